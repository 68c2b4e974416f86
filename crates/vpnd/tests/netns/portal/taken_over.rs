//! Behaviour: an attacker has taken over the portal and sends the auth process what they like, over
//! the channel between the two. Without the token of a visit they get no user's data and end
//! no session, and what no portal sends is the last of that portal.
//!
//! The real process is stopped (SIGSTOP), and the test has a copy of its descriptor of the channel.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use minicbor::{Decoder, Encoder};

use super::{Browser, SOON, configure, portal_of, serves, with_client};
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::privileges::Seen;
use crate::process;
use crate::taken_over::{TakenOver, channel_to_auth, stop};
use crate::traffic::ping_until;

// Numbers of requests in `crates/ipc/src/gateway/portal.rs`.
const OVERVIEW: u32 = 3;
const END_SESSION: u32 = 4;
const LOG_OUT: u32 = 5;
const FINISH: u32 = 10;
const SHOW_USER: u32 = 42;
const CHANGE_USER: u32 = 43;
const LIST_SESSIONS: u32 = 47;
/// One that there is not.
pub(super) const UNKNOWN: u32 = 200;

pub(super) type Body = Encoder<Vec<u8>>;

/// A frame with a request of this number and content.
pub(super) fn request(number: u64, kind: u32, content: impl FnOnce(&mut Body)) -> Vec<u8> {
    let mut body = Encoder::new(Vec::new());
    body.array(2).unwrap().u64(number).unwrap().array(2).unwrap().u32(kind).unwrap().array(1).unwrap();
    content(&mut body);
    let body = body.into_writer();
    [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], &[0; 4], &body].concat()
}

/// A browser with this token at the address of the client that logged in.
pub(super) fn browser(body: &mut Body, token: [u8; 32]) {
    body.array(2).unwrap().array(1).unwrap().bytes(&token).unwrap();
    body.encode(std::net::IpAddr::from([198, 18, 1, 2])).unwrap();
}

/// The reply to the request of this number: what is behind its `Ok`.
pub(super) fn reply(portal: &mut TakenOver, number: u64) -> Vec<u8> {
    let sent = portal.expect(number as u32);
    let mut decoder = Decoder::new(&sent.body);
    decoder.array().unwrap();
    decoder.u64().unwrap();
    let reply = decoder.bytes().unwrap();
    assert_eq!(reply[..2], [0x82, 0], "it is answered");
    reply[2..].to_vec()
}

#[test]
fn a_compromised_portal_impersonates_no_user_without_a_token() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, client) = with_client(&lab);
    let browser_of_ann = Browser::new(&lab, &lab.clients[0], &gateway);
    serves(&browser_of_ann);
    let page = browser_of_ann.logged_in("ann");
    let device: Vec<u8> = (0..32)
        .step_by(2)
        .map(|at| u8::from_str_radix(&page.field("device")[at..at + 2], 16).unwrap())
        .collect();

    let seen = portal_of(&gateway);
    let parent = gateway.process().id();
    stop(seen.pid());
    let mut portal = TakenOver::of(seen.pid(), channel_to_auth(seen.pid(), parent));
    // Far from the numbers of what it has asked itself.
    let numbers = 1_000..;
    let guesses = [[0; 32], [0xFF; 32], std::array::from_fn(|at| device[at % 16])];
    let mut numbers = numbers.into_iter();
    for token in guesses {
        let number = numbers.next().unwrap();
        portal.send(&request(number, OVERVIEW, |body| {
            body.array(1).unwrap();
            browser(body, token);
        }));
        assert_eq!(reply(&mut portal, number), [0xF6], "nothing is shown");
        let number = numbers.next().unwrap();
        portal.send(&request(number, END_SESSION, |body| {
            body.array(2).unwrap();
            browser(body, token);
            body.bytes(&device).unwrap();
        }));
        assert_eq!(reply(&mut portal, number), [2], "no visit");
        let number = numbers.next().unwrap();
        portal.send(&request(number, LOG_OUT, |body| {
            body.array(1).unwrap();
            browser(body, token);
        }));
        reply(&mut portal, number);
        // Disable her, as the person at the help desk.
        let number = numbers.next().unwrap();
        portal.send(&request(number, CHANGE_USER, |body| {
            body.array(4).unwrap().array(2).unwrap().u32(0).unwrap().array(1).unwrap();
            browser(body, token);
            body.str("ann").unwrap().array(2).unwrap().u32(1).unwrap().array(0).unwrap().str("why").unwrap();
        }));
        assert_eq!(reply(&mut portal, number), [0x82, 1, 0], "no visit");
        // Back from a provider, with a state of no login.
        let number = numbers.next().unwrap();
        portal.send(&request(number, FINISH, |body| {
            body.array(5).unwrap().str("uni").unwrap();
            browser(body, token);
            body.str("state").unwrap().str("code").unwrap().null().unwrap();
        }));
        assert_eq!(reply(&mut portal, number)[..2], [0x82, 2], "refused");
    }
    assert_eq!(gateway.sessions().len(), 1);
    // A request that there is not is the last of this one.
    portal.send(&request(9_999, UNKNOWN, |body| {
        body.array(0).unwrap();
    }));
    portal.let_go();
    let parent = Seen::parent(&gateway);
    eventually("there is another", SOON, || {
        parent.child_if_any("portal").filter(|other| other.pid() != seen.pid()).map(drop)
    });
    serves(&browser_of_ann);
    assert!(browser_of_ann.overview().is_some(), "her visit goes on");
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
}

/// The token that this browser has.
fn token_of(browser: &Browser<'_>) -> [u8; 32] {
    let cookies = std::fs::read_to_string(&browser.cookies).unwrap();
    let line = cookies.lines().find(|line| line.contains("\t__Host-vpnd\t")).unwrap();
    let token = line.rsplit('\t').next().unwrap();
    std::array::from_fn(|at| u8::from_str_radix(&token[2 * at..2 * at + 2], 16).unwrap())
}

fn caller(body: &mut Body, token: [u8; 32]) {
    body.array(2).unwrap().u32(0).unwrap().array(1).unwrap();
    browser(body, token);
}

#[test]
fn a_compromised_portal_is_limited_to_the_role_of_a_token() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    for (user, group) in [("ann", "students"), ("vic", "viewers"), ("gus", "guests")] {
        gateway.add_user(user);
        must(process::run(gateway.user(&["modify", user, "--group", group])));
    }
    configure(&gateway);
    gateway.configure("wireguard.enabled", true);
    gateway.configure("portal.viewer_groups", "viewers");
    gateway.configure("portal.admin_networks", "198.18.1.0/24");
    crate::wireguard::add_device(&gateway, "gus");
    gateway.start();
    let [ann, vic] = [(); 2].map(|()| Browser::new(&lab, &lab.clients[0], &gateway));
    serves(&ann);
    ann.logged_in("ann");
    vic.logged_in("vic");
    let [ann, vic] = [token_of(&ann), token_of(&vic)];

    let seen = portal_of(&gateway);
    stop(seen.pid());
    let mut portal = TakenOver::of(seen.pid(), channel_to_auth(seen.pid(), gateway.process().id()));
    let mut numbers = 1_000..;
    let mut ask = |kind: u32, content: &dyn Fn(&mut Body)| {
        let number = numbers.next().unwrap();
        portal.send(&request(number, kind, content));
        reply(&mut portal, number)
    };
    const NO_ROLE: [u8; 3] = [0x82, 1, 1];
    for (token, is_viewer) in [(ann, false), (vic, true)] {
        let listed = ask(LIST_SESSIONS, &|body| {
            body.array(3).unwrap();
            caller(body, token);
            body.array(2).unwrap().u32(1).unwrap().array(0).unwrap().u64(1_000_000).unwrap();
        });
        let shown = ask(SHOW_USER, &|body| {
            body.array(2).unwrap();
            caller(body, token);
            body.str("gus").unwrap();
        });
        for reply in [listed, shown] {
            let expected = if is_viewer { &[0x82, 0] } else { &NO_ROLE[..] };
            assert!(reply.starts_with(expected), "viewer: {is_viewer}: {reply:x?}");
        }
        // Renew and remove the device, and disable the user.
        let deeds: [&dyn Fn(&mut Body); 3] = [
            &|body| _ = body.u32(10).unwrap().array(2).unwrap().bytes(&[1; 16]).unwrap().bool(true).unwrap(),
            &|body| _ = body.u32(6).unwrap().array(1).unwrap().bytes(&[1; 16]).unwrap(),
            &|body| _ = body.u32(1).unwrap().array(0).unwrap(),
        ];
        for deed in deeds {
            let changed = ask(CHANGE_USER, &|body| {
                body.array(4).unwrap();
                caller(body, token);
                body.str("gus").unwrap().array(2).unwrap();
                deed(body);
                body.str("why").unwrap();
            });
            assert_eq!(changed, NO_ROLE, "viewer: {is_viewer}");
        }
    }
}
