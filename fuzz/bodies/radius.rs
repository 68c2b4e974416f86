//! Any bytes as the reply of a RADIUS server: nothing panics; without the shared secret nothing
//! counts; with it what counts is what is well-formed and has exactly one Message-Authenticator,
//! and says then what was sent.
//!
//! Input: the reply's code and its attributes. They are read as a whole packet, too, as they are,
//! and as what has come over a connection. The first Message-Authenticator is filled in, and the
//! packet is made for the request, which mutations never hit.

use hmac::{Hmac, KeyInit as _, Mac as _};
use md5::{Digest as _, Md5};

use vpnd_idp::radius::group;
use vpnd_idp::radius::packet::{AccessRequest, MAX_PACKET, NoReply, Reply, len};

pub(super) const SECRET: &[u8] = b"a secret of server and gateway";
pub(super) const HEADER: usize = 20;
const ID: u8 = 7;
const STATE: u8 = 24;
pub(super) const MESSAGE_AUTHENTICATOR: u8 = 80;
const AUTHENTICATOR: [u8; 16] = *b"random, as it is";

/// Checks one input.
pub fn run(data: &[u8]) {
    let request = AccessRequest {
        id: ID,
        authenticator: AUTHENTICATOR,
        user: "ann",
        password: "secret",
        state: None,
        nas_identifier: "vpnd",
        station: "192.0.2.1",
    };
    assert!(request.reply(data, SECRET).is_err(), "it was made without the secret");
    if let Ok(len) = len(data) {
        assert_eq!(len.is_none(), data.len() < 4, "known as soon as it is there");
        assert!(len.is_none_or(|len| (HEADER..=MAX_PACKET).contains(&len)));
    }
    let Some((code, body)) = data.split_first() else { return };
    let body = &body[..body.len().min(MAX_PACKET - HEADER)];
    let (packet, signed) = packet([*code, ID], &AUTHENTICATOR, body);
    let reply = request.reply(&packet, SECRET);
    check(&reply, *code, &packet[HEADER..], signed);
    if reply.is_ok() {
        let mut changed = packet.clone();
        let at = usize::from(packet[packet.len() - 1]) % packet.len();
        changed[at] ^= 1;
        assert!(request.reply(&changed, SECRET).is_err(), "changed at {at}");
        assert!(request.reply(&packet[..packet.len() - 1], SECRET).is_err(), "cut");
        assert!(request.reply(&packet, b"another").is_err());
    }
    check_request(&request, body);
}

/// A packet with this code, number and these attributes, made with the secret from a request's
/// authenticator; and where its Message-Authenticators are.
pub(super) fn packet(start: [u8; 2], authenticator: &[u8; 16], body: &[u8]) -> (Vec<u8>, Vec<usize>) {
    let mut packet = start.to_vec();
    packet.extend_from_slice(&((HEADER + body.len()) as u16).to_be_bytes());
    packet.extend_from_slice(authenticator);
    packet.extend_from_slice(body);
    let signatures: Vec<usize> = starts(body)
        .unwrap_or_default()
        .into_iter()
        .filter(|at| body[*at] == MESSAGE_AUTHENTICATOR)
        .collect();
    if let Some(at) = signatures.first().filter(|at| body[**at + 1] == 18) {
        let value = HEADER + at + 2..HEADER + at + 18;
        packet[value.clone()].fill(0);
        let mac = signature(&packet);
        packet[value].copy_from_slice(&mac);
    }
    let authenticator = Md5::new().chain_update(&packet).chain_update(SECRET).finalize();
    packet[4..HEADER].copy_from_slice(&authenticator);
    (packet, signatures)
}

pub(super) fn signature(packet: &[u8]) -> [u8; 16] {
    let mac = Hmac::<Md5>::new_from_slice(SECRET).expect("a key may have any length");
    mac.chain_update(packet).finalize().into_bytes().into()
}

/// Where each attribute begins; `None` if they don't fill the body exactly.
pub(super) fn starts(body: &[u8]) -> Option<Vec<usize>> {
    let mut starts = Vec::new();
    let mut at = 0;
    while at < body.len() {
        let len = usize::from(*body.get(at + 1)?);
        if len < 2 || at + len > body.len() {
            return None;
        }
        starts.push(at);
        at += len;
    }
    Some(starts)
}

fn check(reply: &Result<Reply, NoReply>, code: u8, body: &[u8], signatures: Vec<usize>) {
    let Some(starts) = starts(body) else { return assert_eq!(*reply, Err(NoReply::Malformed)) };
    match signatures[..] {
        [] => return assert_eq!(*reply, Err(NoReply::Unsigned)),
        [at] if body[at + 1] == 18 => {}
        _ => return assert_eq!(*reply, Err(NoReply::Signature)),
    }
    match reply {
        Ok(Reply::Accept(attributes)) => {
            let sent = starts.iter().map(|at| (body[*at], &body[at + 2..at + usize::from(body[at + 1])]));
            assert!(code == 2 && attributes.iter().map(|a| (a.kind, &a.value[..])).eq(sent));
            for name in attributes.iter().filter_map(|attribute| group(&attribute.value)) {
                assert!(!name.is_empty() && !name.chars().any(|c| c.is_control() || c == ','));
            }
        }
        Ok(Reply::Reject(text)) => assert!(code == 3 && !text.chars().any(char::is_control)),
        Ok(Reply::Challenge(challenge)) => {
            assert!(code == 11 && !challenge.text.chars().any(char::is_control));
            let states = starts.iter().filter(|at| body[**at] == STATE);
            let sent = states.map(|at| body[at + 2..at + usize::from(body[at + 1])].to_vec());
            assert!(challenge.state.clone().into_iter().eq(sent));
        }
        Err(NoReply::Malformed) if code == 11 => {
            assert!(starts.iter().filter(|at| body[**at] == STATE).count() > 1);
        }
        Err(why) => assert!(![2, 3, 11].contains(&code) && *why == NoReply::Malformed, "{why:?}"),
    }
}

/// A request is well-formed, whatever was typed.
fn check_request(request: &AccessRequest<'_>, typed: &[u8]) {
    let typed = String::from_utf8_lossy(typed);
    let state = Some(typed.as_bytes());
    let request = AccessRequest { user: &typed, password: &typed, state, ..*request }.encode(SECRET);
    let len = usize::from(u16::from_be_bytes([request[2], request[3]]));
    assert!(len == request.len() && len <= MAX_PACKET);
    let starts = starts(&request[HEADER..]).expect("the attributes fill it");
    assert_eq!((starts.len(), request[HEADER]), (7, MESSAGE_AUTHENTICATOR));
}
