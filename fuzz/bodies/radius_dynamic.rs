//! Any bytes as a request of a RADIUS server about sessions (RFC 5176): nothing panics; without the
//! shared secret nothing counts; with it what counts is well-formed, has exactly one
//! Message-Authenticator, and holds nothing that would be passed over; the reply is one packet,
//! made with the secret for this request.
//!
//! Input: the request's code and its attributes, read as a whole packet, too, as they are. The
//! packet is made with the secret, which mutations never hit.

use md5::{Digest as _, Md5};

use super::radius::{HEADER, MESSAGE_AUTHENTICATOR, SECRET, packet, signature, starts};
use vpnd_idp::radius::packet::dynamic::{Demand, Request};
use vpnd_idp::radius::packet::{FILTER_ID, MAX_PACKET, NoReply};
use vpnd_ipc::gateway::idp::{ErrorCause, SessionAttributes};

const ID: u8 = 9;
const USER_NAME: u8 = 1;
const PROXY_STATE: u8 = 33;
const ERROR_CAUSE: u8 = 101;
const DISCONNECT_REQUEST: u8 = 40;
const COA_REQUEST: u8 = 43;
/// Attributes that say which session, and others that change nothing about what is done.
const SELECTORS: [u8; 4] = [USER_NAME, 8, 44, 168];
const OTHERS: [u8; 8] = [4, 18, 32, PROXY_STATE, 49, 55, MESSAGE_AUTHENTICATOR, 95];

/// Checks one input.
pub fn run(data: &[u8]) {
    assert!(Request::decode(data, SECRET).is_err(), "it was made without the secret");
    let Some((code, body)) = data.split_first() else { return };
    let body = &body[..body.len().min(MAX_PACKET - HEADER)];
    let (packet, signatures) = packet([*code, ID], &[0; 16], body);
    let body = &packet[HEADER..];
    let request = match Request::decode(&packet, SECRET) {
        Ok(request) => request,
        Err(why) => return check_refused(why, *code, body, &signatures),
    };
    let starts = starts(body).expect("it counts, so its attributes fill it");
    assert!(
        [DISCONNECT_REQUEST, COA_REQUEST].contains(code)
            && request.is_disconnect == (*code == DISCONNECT_REQUEST)
    );
    assert!(matches!(signatures[..], [at] if body[at + 1] == 18));
    assert_eq!(request.authenticator(), packet[4..HEADER]);
    let sent: Vec<(u8, &[u8])> =
        starts.iter().map(|at| (body[*at], &body[at + 2..at + usize::from(body[at + 1])])).collect();
    let mut changed = packet.clone();
    let at = usize::from(packet[packet.len() - 1]) % packet.len();
    changed[at] ^= 1;
    assert!(Request::decode(&changed, SECRET).is_err(), "changed at {at}");
    assert!(Request::decode(&packet[..packet.len() - 1], SECRET).is_err(), "cut");
    assert!(Request::decode(&packet, b"another").is_err());
    match request.demand("vpnd", &[FILTER_ID]) {
        Ok(demand) => check_demand(&demand, &request, &sent),
        Err(cause) => assert_ne!(cause as u32, ErrorCause::SessionNotFound as u32, "nobody has looked yet"),
    }
    let _ = request.made_s();
    for error in [None, Some(ErrorCause::SessionNotFound)] {
        check_reply(&request.reply(error, SECRET), error, &packet, &sent);
    }
}

fn check_refused(why: NoReply, code: u8, body: &[u8], signatures: &[usize]) {
    let expected = match signatures {
        _ if ![DISCONNECT_REQUEST, COA_REQUEST].contains(&code) || starts(body).is_none() => {
            NoReply::Malformed
        }
        [] => NoReply::Unsigned,
        _ => NoReply::Signature,
    };
    assert_eq!(why, expected);
    assert!(why != NoReply::Signature || signatures.len() > 1 || body[signatures[0] + 1] != 18);
}

/// A request that can be one says for whom, and each of its attributes has counted.
fn check_demand(demand: &Demand, request: &Request, sent: &[(u8, &[u8])]) {
    assert_ne!(demand.which, SessionAttributes::default(), "it would be about every session");
    for kind in SELECTORS {
        assert!(sent.iter().filter(|(of, _)| *of == kind).count() <= 1, "{kind} twice");
    }
    let which = &demand.which;
    let is_there = [which.user.is_some(), which.ipv4.is_some(), which.id.is_some(), which.ipv6.is_some()];
    for (kind, is_there) in SELECTORS.into_iter().zip(is_there) {
        assert_eq!(sent.iter().any(|(of, _)| *of == kind), is_there, "{kind}");
    }
    if let Some(user) = &which.user {
        assert!(sent.contains(&(USER_NAME, user.as_bytes())));
    }
    let groups = sent.iter().filter(|(kind, _)| *kind == FILTER_ID).map(|(_, value)| *value);
    assert!(groups.eq(demand.groups.iter().map(Vec::as_slice)));
    assert_eq!(demand.groups.is_empty(), request.is_disconnect);
    let is_known = |kind: &u8| *kind == FILTER_ID || SELECTORS.contains(kind) || OTHERS.contains(kind);
    assert!(sent.iter().all(|(kind, _)| is_known(kind)), "an attribute was passed over");
    assert!(sent.iter().all(|(kind, value)| *kind != 32 || *value == b"vpnd"), "it is for another gateway");
}

fn check_reply(reply: &[u8], error: Option<ErrorCause>, request: &[u8], sent: &[(u8, &[u8])]) {
    assert!(reply.len() <= MAX_PACKET, "a reply of {} bytes", reply.len());
    assert_eq!(usize::from(u16::from_be_bytes([reply[2], reply[3]])), reply.len());
    assert_eq!((reply[0] - request[0], reply[1]), (if error.is_some() { 2 } else { 1 }, ID));
    let body = &reply[HEADER..];
    let made = Md5::new().chain_update(&reply[..4]).chain_update(&request[4..HEADER]).chain_update(body);
    assert_eq!(reply[4..HEADER], made.chain_update(SECRET).finalize()[..]);
    let starts = starts(body).expect("the attributes fill it");
    assert_eq!((body[0], starts[0]), (MESSAGE_AUTHENTICATOR, 0));
    let mut unsigned = [&reply[..4], &request[4..HEADER], body].concat();
    unsigned[HEADER + 2..HEADER + 18].fill(0);
    assert_eq!(body[2..18], signature(&unsigned));
    let value = |at: &usize| (body[*at], &body[at + 2..at + usize::from(body[at + 1])]);
    let states = sent.iter().copied().filter(|(kind, _)| *kind == PROXY_STATE);
    let rest = starts[1..].iter().map(value);
    assert!(rest.filter(|(kind, _)| *kind != ERROR_CAUSE).eq(states), "what a proxy needs");
}
