//! Behaviour: an attacker who has taken over a gateway's worker asks the auth process, over the
//! worker's own channel, for sessions in a profile of their choice. They get what the user's
//! profile is, and its addresses.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;

use minicbor::{Decoder, Encoder};
use rustix::fs::fstat;
use rustix::net::SocketType;
use rustix::net::sockopt::{socket_peercred, socket_type};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::{Body, CHANNEL, LIMIT, TakenOver};
use crate::access_profiles;
use crate::client::Client;
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, Lab};
use crate::privileges::Seen;
use crate::traffic::ping_until;

// The numbers of messages in `crates/ipc/src/gateway/auth.rs`.
const LOGIN: u32 = 0;
const SESSION: u32 = 1;
const COMMIT: u32 = 2;
const GRANTED: u32 = 0;
const REFUSED: u32 = 3;

/// An address of the profile that no user here has.
const OF_STAFF: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 86, 16, 9));

/// The worker's channel to the auth process.
struct AuthChannel(TakenOver);

impl AuthChannel {
    fn of(gateway: &Gateway<'_>) -> Self {
        // Found out by the worker, so before that is stopped.
        let seen = Seen::parent(gateway);
        let mut taken_over = TakenOver::new(&seen, "worker");
        let parent = seen.pid();
        let worker = pidfd_open(taken_over.worker, PidfdFlags::empty()).unwrap();
        // It comes first of the pairs that the parent has made, behind its own channel and copies
        // of that; the runtime has pairs, too.
        let of_parent = fstat(&taken_over.channel).unwrap().st_ino;
        let socket = (CHANNEL + 1..64).find_map(|number| {
            let descriptor = pidfd_getfd(&worker, number, PidfdGetfdFlags::empty()).ok()?;
            let is_stream = socket_type(&descriptor) == Ok(SocketType::STREAM);
            let is_parents = socket_peercred(&descriptor).is_ok_and(|peer| peer.pid == parent);
            let is_another = fstat(&descriptor).is_ok_and(|status| status.st_ino != of_parent);
            (is_stream && is_parents && is_another).then_some(descriptor)
        });
        taken_over.channel = UnixStream::from(socket.expect("the worker has a channel to auth"));
        Self(taken_over)
    }

    /// Asks with a number that the worker has not used; the reply.
    fn ask(&mut self, number: u64, content: impl FnOnce(&mut Body)) -> Vec<u8> {
        let mut body = Encoder::new(Vec::new());
        body.array(2).unwrap().u64(number).unwrap();
        content(&mut body);
        let body = body.into_writer();
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        self.0.send(&[&length[..], &[0; 4], &body].concat());
        loop {
            let mut header = [0; 8];
            self.0.fill(&mut header);
            let mut reply = vec![0; u32::from_le_bytes(header[..4].try_into().unwrap()) as usize];
            self.0.fill(&mut reply);
            let mut decoder = Decoder::new(&reply);
            decoder.array().unwrap();
            // The others are for what the worker has asked before it was stopped.
            if decoder.u64().unwrap() == number {
                let reply = decoder.bytes().unwrap();
                let mut decoder = Decoder::new(reply);
                decoder.array().unwrap();
                assert_eq!(decoder.u32().unwrap(), 0, "no failure");
                return reply[decoder.position()..].to_vec();
            }
        }
    }

    /// Logs in, and names a profile and an address wherever there might be a place for them; the
    /// decision and what follows it.
    fn log_in(&mut self, number: u64, user: &str) -> (u32, Vec<u8>) {
        let reply = self.ask(number, |body| {
            body.array(2).unwrap().u32(LOGIN).unwrap().array(3).unwrap().array(11).unwrap();
            body.str(user).unwrap().str(&format!("{user}'s password")).unwrap();
            body.null().unwrap().null().unwrap();
            body.encode(IpAddr::from([198, 18, 1, 2])).unwrap().bytes(&[9; 16]).unwrap().null().unwrap();
            body.str("staff").unwrap().encode(OF_STAFF).unwrap().u32(1).unwrap().array(0).unwrap();
            body.str("staff").unwrap().encode(OF_STAFF).unwrap();
        });
        let mut decoder = Decoder::new(&reply);
        decoder.array().unwrap();
        (decoder.u32().unwrap(), reply[decoder.position()..].to_vec())
    }

    /// Has a session kept, with the profile and the address; the sessions for which that failed.
    fn keep(&mut self, number: u64, session: [u8; 16]) -> Vec<u8> {
        self.ask(number, |body| {
            body.array(2).unwrap().u32(COMMIT).unwrap().array(1).unwrap().array(1).unwrap().array(1).unwrap();
            body.array(2).unwrap().u32(0).unwrap().array(5).unwrap();
            body.bytes(&session).unwrap().array(2).unwrap().bytes(&[1; 32]).unwrap().null().unwrap();
            body.u32(1).unwrap().str("staff").unwrap().encode(OF_STAFF).unwrap();
        })
    }

    /// The stored session, if there is one.
    fn session(&mut self, number: u64, session: [u8; 16]) -> Vec<u8> {
        self.ask(number, |body| {
            body.array(2).unwrap().u32(SESSION).unwrap().array(1).unwrap().array(1).unwrap();
            body.bytes(&session).unwrap();
        })
    }
}

/// Whether the bytes are somewhere in the message.
fn has(message: &[u8], bytes: &[u8]) -> bool {
    message.windows(bytes.len()).any(|window| window == bytes)
}

/// The address of the pool 10.86.32.0/24 in a message.
fn is_of_guests(message: &[u8]) -> bool {
    has(message, &[10, 86, 32]) && !has(message, &[10, 86, 16])
}

#[test]
fn a_gateways_worker_cannot_choose_profiles_or_addresses() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let [ann, _] = ["ann", "eve"].map(|name| gateway.add_user(name));
    let profile = |name: &str, user: &str, pool: &str| {
        format!(
            "[[profile]]\nname = \"{name}\"\nusers = [\"{user}\"]\nroutes = [\"10.200.0.0/24\"]\npool_v4 = \"{pool}\"\n\
             pool_v6 = \"none\"\n"
        )
    };
    let profiles = profile("staff", "nobody", "10.86.16.0/24") + &profile("guests", "ann", "10.86.32.0/24");
    access_profiles::configure(&gateway, &profiles);
    gateway.start();
    let mut auth = AuthChannel::of(&gateway);

    let (kind, granted) = auth.log_in(1 << 40, "ann");
    assert_eq!(kind, GRANTED, "{granted:?}");
    assert!(is_of_guests(&granted) && has(&granted, b"guests") && !has(&granted, b"staff"), "{granted:?}");
    assert_eq!(auth.log_in((1 << 40) + 1, "eve").0, REFUSED, "she is in no profile");

    // A session that was never granted is not kept, and the one that was is in ann's profile.
    let invented = [0xee; 16];
    let failed = auth.keep((1 << 40) + 2, invented);
    assert!(has(&failed, &invented), "{failed:?}");
    assert_eq!(auth.session((1 << 40) + 3, invented), minicbor::to_vec(None::<()>).unwrap());
    let session = session_in(&granted);
    let failed = auth.keep((1 << 40) + 4, session);
    assert!(!has(&failed, &session), "{failed:?}");
    let stored = auth.session((1 << 40) + 5, session);
    assert!(has(&stored, b"ann") && is_of_guests(&stored), "{stored:?}");
    auth.0.let_go();

    let client = Client::connect(&lab, 1, &ann);
    assert!(client.v4().to_string().starts_with("10.86.32."), "{}", client.v4());
    ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
}

/// The id of the session in the reply to a login.
fn session_in(granted: &[u8]) -> [u8; 16] {
    let mut decoder = Decoder::new(granted);
    decoder.array().unwrap();
    decoder.array().unwrap();
    decoder.skip().unwrap();
    decoder.bytes().unwrap().try_into().unwrap()
}
