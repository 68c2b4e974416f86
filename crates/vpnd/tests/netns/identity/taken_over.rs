//! Behaviour: an attacker has taken over the idp process and sends the auth process what they like,
//! over the channel between the two. They reach sessions of the users of its sources and no others,
//! and answer nothing that was not asked.
//!
//! The real process is stopped (SIGSTOP), and the test has a copy of its descriptor of the channel.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::{SystemTime, UNIX_EPOCH};

use minicbor::{Decoder, Encoder};
use rustix::process::{Pid, Signal, kill_process};

use super::dynamic_authorization::{configure, let_a_second_pass, request};
use super::{ADDRESS, TIMEOUT, beside, idp, login_of};
use crate::client::Client;
use crate::freeradius::FreeRadius;
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::taken_over::{TakenOver, channel_to_auth, stop};
use crate::traffic::ping_until;

// Numbers of messages and of a field in `crates/ipc/src/gateway/idp.rs` and below.
const NEXT: u32 = 4;
const DISCONNECT: u32 = 0;
const REGROUP: u32 = 1;
/// The number of "no such session" in RFC 5176.
const SESSION_NOT_FOUND: u32 = 503;

/// Stops the idp process and takes its channel to the auth process.
pub(super) fn take_over(gateway: u32) -> TakenOver {
    let pid = eventually("there is an idp process", TIMEOUT, || idp(gateway));
    let process = Pid::from_raw(pid as i32).unwrap();
    stop(process);
    TakenOver::of(process, channel_to_auth(process, gateway))
}

/// The frame with this reply to the request of this number.
pub(super) fn reply(number: u32, content: &[u8]) -> Vec<u8> {
    // An array of two, first the number of `Ok`.
    let reply = [&[0x82, 0], content].concat();
    let mut body = Encoder::new(Vec::new());
    body.array(2).unwrap().u32(number).unwrap().bytes(&reply).unwrap();
    let body = body.into_writer();
    [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], &[0; 4], &body].concat()
}

/// Claims that a server wants something of sessions of `user` or on `address`: their end, or
/// another group.
struct Claim<'c> {
    source: &'c str,
    group: Option<&'c str>,
    user: Option<&'c str>,
    address: Option<Ipv4Addr>,
}

/// Makes a claim in the reply to the request of this number; the error of the auth process, which
/// asks on with the next number.
fn claim(idp: &mut TakenOver, number: &mut u32, claim: &Claim<'_>) -> Option<u32> {
    let mut body = Encoder::new(Vec::new());
    body.array(6).unwrap().u32(*number).unwrap().str(claim.source).unwrap();
    match claim.group {
        None => body.array(2).unwrap().u32(DISCONNECT).unwrap().array(0).unwrap(),
        Some(group) => body
            .array(2)
            .unwrap()
            .u32(REGROUP)
            .unwrap()
            .array(1)
            .unwrap()
            .array(1)
            .unwrap()
            .str(group)
            .unwrap(),
    };
    body.array(4).unwrap();
    match claim.user {
        Some(user) => body.str(user).unwrap(),
        None => body.null().unwrap(),
    };
    body.null().unwrap();
    match claim.address {
        Some(address) => body.bytes(&address.octets()).unwrap(),
        None => body.null().unwrap(),
    };
    body.null().unwrap();
    // Made now, and no repetition.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    body.u64(now.as_secs()).unwrap().bytes(&[*number as u8; 16]).unwrap();
    idp.send(&reply(*number, &body.into_writer()));
    *number += 1;
    let sent = idp.expect(*number);
    let mut next = Decoder::new(&sent.body);
    next.array().unwrap();
    assert_eq!(next.u32().unwrap(), *number);
    next.array().unwrap();
    assert_eq!((next.u32().unwrap(), next.array().unwrap()), (NEXT, Some(1)));
    next.array().unwrap();
    // Without an error the field is left out.
    let fields = next.array().unwrap();
    assert_eq!(next.u32().unwrap(), *number - 1, "the claim's own number");
    (fields == Some(2)).then(|| next.u32().unwrap())
}

#[test]
fn a_compromised_idp_process_ends_only_sessions_of_its_sources() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let Some(radius) = FreeRadius::start(ADDRESS, |program| beside(&lab, program)) else { return };
    configure(&lab, &gateway, &radius, false);
    gateway.start();
    let ann = login_of(&lab, &local, "ann@guests.example", "right");
    let one = Client::connect(&lab, 1, &ann);
    let other = Client::connect(&lab, 2, &local);
    ping_until(one.namespace(), CAMPUS_V4.into(), TIMEOUT);
    ping_until(other.namespace(), CAMPUS_V4.into(), TIMEOUT);
    // Requests to a new process begin with the first number: the one is for what is asked here, the
    // next is open then.
    let pid = gateway.process().id();
    let before = eventually("there is an idp process", TIMEOUT, || idp(pid));
    kill_process(Pid::from_raw(before as i32).unwrap(), Signal::KILL).unwrap();
    eventually("there is another", TIMEOUT, || idp(pid).filter(|new| *new != before));
    let_a_second_pass();
    eventually("it receives requests", TIMEOUT, || {
        (request(&lab, "disconnect", "User-Name=nobody") == "Disconnect-NAK Session-Context-Not-Found")
            .then_some(())
    });
    let IpAddr::V4(others) = other.v4() else { panic!("it is one") };
    let mut idp = take_over(pid);
    let mut number = 2;
    let nothing = Claim { source: "guests", group: None, user: None, address: None };
    for (what, attempt) in [
        ("a local user", Claim { user: Some("local"), ..nothing }),
        ("its address", Claim { address: Some(others), ..nothing }),
        ("hers and its address", Claim { user: Some("ann"), address: Some(others), ..nothing }),
        ("the local source", Claim { source: "local", user: Some("local"), ..nothing }),
        ("a source that there is not", Claim { source: "others", user: Some("ann"), ..nothing }),
        ("groups of a local user", Claim { group: Some("admins"), user: Some("local"), ..nothing }),
        ("everybody", Claim { ..nothing }),
    ] {
        assert_eq!(claim(&mut idp, &mut number, &attempt), Some(SESSION_NOT_FOUND), "{what}");
    }
    assert_eq!(gateway.sessions().len(), 2);
    // Those of its sources it can end, as SECURITY.md has it.
    assert_eq!(claim(&mut idp, &mut number, &Claim { user: Some("ann"), ..nothing }), None);
    eventually("her session has ended", TIMEOUT, || (gateway.sessions().len() == 1).then_some(()));

    // An answer without a request is the last of this process.
    idp.send(&reply(9_999, &minicbor::to_vec(()).unwrap()));
    idp.let_go();
    ping_until(other.namespace(), CAMPUS_V4.into(), TIMEOUT);
    eventually("there is another", TIMEOUT, || super::idp(pid));
    drop(other);
    let again = Client::connect(&lab, 2, &local);
    ping_until(again.namespace(), CAMPUS_V4.into(), TIMEOUT);
}
