//! RADIUS packets (RFC 2865, RFC 3579): an Access-Request with its signature first, and replies
//! that are signed, too.
//!
//! INVARIANT: whatever the bytes, decoding neither panics nor allocates beyond them; a reply counts
//! only if it has the request's number, is made with the shared secret for exactly this request,
//! and has a Message-Authenticator: without that anybody on the path can turn a refusal into an
//! admission (BlastRADIUS, CVE-2024-3596). Bytes in, bytes out: no socket, no clock, no randomness.

pub mod accounting;
pub mod dynamic;

use hmac::{Hmac, KeyInit as _, Mac as _};
use md5::{Digest as _, Md5};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

const HEADER: usize = 20;
/// The longest packet.
pub const MAX_PACKET: usize = 4096;
/// The longest password that an attribute holds.
pub(crate) const MAX_PASSWORD: usize = 128;
const BLOCK: usize = 16;
/// Replies of a person's length, characters.
const MAX_TEXT: usize = 400;

const ACCESS_REQUEST: u8 = 1;
pub(crate) const ACCESS_ACCEPT: u8 = 2;
const ACCESS_REJECT: u8 = 3;
pub const ACCOUNTING_RESPONSE: u8 = 5;
const ACCESS_CHALLENGE: u8 = 11;
const STATUS_SERVER: u8 = 12;

pub const USER_NAME: u8 = 1;
const USER_PASSWORD: u8 = 2;
pub(crate) const FRAMED_IP_ADDRESS: u8 = 8;
pub const FILTER_ID: u8 = 11;
const REPLY_MESSAGE: u8 = 18;
const STATE: u8 = 24;
pub(crate) const CLASS: u8 = 25;
pub(crate) const SESSION_TIMEOUT: u8 = 27;
pub(crate) const IDLE_TIMEOUT: u8 = 28;
const CALLING_STATION_ID: u8 = 31;
const NAS_IDENTIFIER: u8 = 32;
const NAS_PORT_TYPE: u8 = 61;
const PROMPT: u8 = 76;
/// The value of Prompt by which an answer may be shown while it is typed (RFC 2869 §5.10).
const ECHO: [u8; 4] = [0, 0, 0, 1];
const VIRTUAL: [u8; 4] = [0, 0, 0, 5];
pub const MESSAGE_AUTHENTICATOR: u8 = 80;
pub(crate) const ACCT_INTERIM_INTERVAL: u8 = 85;
pub(crate) const FRAMED_IPV6_ADDRESS: u8 = 168;

/// A question.
pub struct AccessRequest<'r> {
    pub id: u8,
    /// Random, and another for each request.
    pub authenticator: [u8; 16],
    pub user: &'r str,
    /// The password, or the answer to a challenge.
    pub password: &'r str,
    /// Copied from the challenge.
    pub state: Option<&'r [u8]>,
    pub nas_identifier: &'r str,
    /// From where the user comes.
    pub station: &'r str,
}

/// A reply that the server has made for this request.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Accept(Vec<Attribute>),
    Reject(String),
    Challenge(Challenge),
}

/// The server requires an answer to this.
#[derive(Debug, PartialEq, Eq)]
pub struct Challenge {
    pub text: String,
    pub state: Option<Vec<u8>>,
    /// Whether the answer may be shown while it is typed.
    pub(crate) is_shown: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Attribute {
    pub kind: u8,
    pub value: Vec<u8>,
}

/// Why a packet is no reply to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoReply {
    #[error("no RADIUS")]
    Malformed,
    #[error("not the request's number")]
    Id,
    #[error("not signed for this request with the shared secret")]
    Authenticator,
    #[error("no Message-Authenticator; the server must send one in every reply")]
    Unsigned,
    #[error("a wrong Message-Authenticator")]
    Signature,
}

impl AccessRequest<'_> {
    /// The packet. A password that is longer than [`MAX_PASSWORD`] is cut, so the caller refuses it
    /// before.
    pub fn encode(&self, secret: &[u8]) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(MAX_PACKET));
        out.extend_from_slice(&[ACCESS_REQUEST, self.id, 0, 0]);
        out.extend_from_slice(&self.authenticator);
        // The first, so that an attacker can choose nothing before it.
        attribute(&mut out, MESSAGE_AUTHENTICATOR, &[0; 16]);
        attribute(&mut out, USER_NAME, self.user.as_bytes());
        attribute(&mut out, USER_PASSWORD, &hidden(self.password.as_bytes(), secret, &self.authenticator));
        attribute(&mut out, NAS_IDENTIFIER, self.nas_identifier.as_bytes());
        attribute(&mut out, NAS_PORT_TYPE, &VIRTUAL);
        attribute(&mut out, CALLING_STATION_ID, self.station.as_bytes());
        if let Some(state) = self.state {
            attribute(&mut out, STATE, state);
        }
        let len = out.len() as u16;
        out[2..4].copy_from_slice(&len.to_be_bytes());
        let signature = signature(secret, &[&out]);
        out[HEADER + 2..HEADER + 18].copy_from_slice(&signature);
        out
    }

    /// The server's reply, if it is one to this request.
    pub fn reply(&self, packet: &[u8], secret: &[u8]) -> Result<Reply, NoReply> {
        let Some(header) = packet.first_chunk::<HEADER>() else { return Err(NoReply::Malformed) };
        let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        // Bytes behind the length are padding.
        let packet = packet.get(..len).filter(|packet| packet.len() >= HEADER).ok_or(NoReply::Malformed)?;
        let (code, id) = (header[0], header[1]);
        if id != self.id {
            return Err(NoReply::Id);
        }
        let body = &packet[HEADER..];
        let expected = Md5::new().chain_update(&header[..4]).chain_update(self.authenticator);
        let expected = expected.chain_update(body).chain_update(secret).finalize();
        if !bool::from(expected.as_slice().ct_eq(&header[4..])) {
            return Err(NoReply::Authenticator);
        }
        let attributes = attributes(body)?;
        check_signature(&header[..4], &self.authenticator, body, secret)?;
        let text = || text(&attributes);
        match code {
            ACCESS_ACCEPT => Ok(Reply::Accept(attributes)),
            ACCESS_REJECT => Ok(Reply::Reject(text())),
            ACCESS_CHALLENGE => challenge(&attributes).map(Reply::Challenge),
            _ => Err(NoReply::Malformed),
        }
    }
}

/// The length of the packet at the beginning of what has come over a connection, once that is
/// known.
pub fn len(received: &[u8]) -> Result<Option<usize>, NoReply> {
    let Some(header) = received.first_chunk::<4>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if (HEADER..=MAX_PACKET).contains(&len) { Ok(Some(len)) } else { Err(NoReply::Malformed) }
}

/// A question whether the server is there (RFC 5997); `authenticator` is random, and another for
/// each.
pub(crate) fn status_server(
    id: u8,
    authenticator: [u8; 16],
    nas_identifier: &str,
    secret: &[u8],
) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(vec![STATUS_SERVER, id, 0, 0]);
    out.extend_from_slice(&authenticator);
    attribute(&mut out, MESSAGE_AUTHENTICATOR, &[0; 16]);
    attribute(&mut out, NAS_IDENTIFIER, nas_identifier.as_bytes());
    let len = out.len() as u16;
    out[2..4].copy_from_slice(&len.to_be_bytes());
    let signature = signature(secret, &[&out]);
    out[HEADER + 2..HEADER + 18].copy_from_slice(&signature);
    out
}

/// Whether there is one Message-Authenticator, and a right one; `authenticator` is the request's.
fn check_signature(
    header: &[u8],
    authenticator: &[u8; 16],
    body: &[u8],
    secret: &[u8],
) -> Result<(), NoReply> {
    let mut found = None;
    let mut at = 0;
    while at < body.len() {
        if body[at] == MESSAGE_AUTHENTICATOR {
            let is_first = found.replace(at).is_none();
            if !is_first || body[at + 1] != 18 {
                return Err(NoReply::Signature);
            }
        }
        at += usize::from(body[at + 1]);
    }
    let Some(at) = found else { return Err(NoReply::Unsigned) };
    let parts = [header, authenticator, &body[..at + 2], &[0; 16], &body[at + 18..]];
    let right = signature(secret, &parts).ct_eq(&body[at + 2..at + 18]);
    if bool::from(right) { Ok(()) } else { Err(NoReply::Signature) }
}

fn attribute(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    let value = &value[..value.len().min(253)];
    out.extend_from_slice(&[kind, value.len() as u8 + 2]);
    out.extend_from_slice(value);
}

fn attributes(mut body: &[u8]) -> Result<Vec<Attribute>, NoReply> {
    let mut found = Vec::new();
    while let [kind, len, ..] = *body {
        let value = body.get(2..usize::from(len)).ok_or(NoReply::Malformed)?;
        found.push(Attribute { kind, value: value.to_vec() });
        body = &body[usize::from(len)..];
    }
    if body.is_empty() { Ok(found) } else { Err(NoReply::Malformed) }
}

fn challenge(attributes: &[Attribute]) -> Result<Challenge, NoReply> {
    let values = |kind| attributes.iter().filter(move |attribute| attribute.kind == kind);
    let mut states = values(STATE);
    let state = states.next().map(|attribute| attribute.value.clone());
    if states.next().is_some() {
        // One that is picked may be the wrong one (RFC 2865 §5.44 allows one).
        return Err(NoReply::Malformed);
    }
    let is_shown = values(PROMPT).any(|attribute| attribute.value == ECHO);
    Ok(Challenge { text: text(attributes), state, is_shown })
}

fn text(attributes: &[Attribute]) -> String {
    let parts = attributes.iter().filter(|attribute| attribute.kind == REPLY_MESSAGE);
    let text: String =
        parts.map(|attribute| String::from_utf8_lossy(&attribute.value).into_owned()).collect();
    let line = text.chars().map(|c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c });
    line.filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}

fn signature(secret: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    let mut mac = Hmac::<Md5>::new_from_slice(secret).expect("a key may have any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// A password as RFC 2865 §5.2 hides it.
fn hidden(password: &[u8], secret: &[u8], authenticator: &[u8; 16]) -> Zeroizing<Vec<u8>> {
    let len = password.len().clamp(1, MAX_PASSWORD).next_multiple_of(BLOCK);
    let mut out = Zeroizing::new(vec![0; len]);
    let shown = password.len().min(MAX_PASSWORD);
    out[..shown].copy_from_slice(&password[..shown]);
    let mut before = *authenticator;
    for block in out.chunks_exact_mut(BLOCK) {
        let mask = Md5::new().chain_update(secret).chain_update(before).finalize();
        block.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        before.copy_from_slice(block);
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const SECRET: &[u8] = b"xyzzy5461";

    /// The example of RFC 2865 §7.1, but for its signature.
    fn request() -> AccessRequest<'static> {
        let authenticator =
            [0x0f, 0x40, 0x3f, 0x94, 0x73, 0x97, 0x80, 0x57, 0xbd, 0x83, 0xd5, 0xcb, 0x98, 0xf4, 0x22, 0x7a];
        AccessRequest {
            id: 0,
            authenticator,
            user: "nemo",
            password: "arctangent",
            state: None,
            nas_identifier: "vpnd",
            station: "192.0.2.1",
        }
    }

    /// A reply of a server that has the secret; `signed` says whether it has a
    /// Message-Authenticator.
    pub(crate) fn reply_to(
        request: &[u8],
        code: u8,
        attributes: &[u8],
        secret: &[u8],
        signed: bool,
    ) -> Vec<u8> {
        let authenticator = request[4..HEADER].try_into().unwrap();
        made([code, request[1]], authenticator, attributes, secret, signed)
    }

    /// A packet with this code and number that is made with the secret; `authenticator` is the
    /// request's, or zero for a request.
    pub(crate) fn made(
        start: [u8; 2],
        authenticator: [u8; 16],
        attributes: &[u8],
        secret: &[u8],
        signed: bool,
    ) -> Vec<u8> {
        let mut packet = [&start[..], &[0; 2], &authenticator].concat();
        if signed {
            attribute(&mut packet, MESSAGE_AUTHENTICATOR, &[0; 16]);
        }
        packet.extend_from_slice(attributes);
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        if signed {
            let mac = signature(secret, &[&packet]);
            packet[HEADER + 2..HEADER + 18].copy_from_slice(&mac);
        }
        let authenticator = Md5::new().chain_update(&packet).chain_update(secret).finalize();
        packet[4..HEADER].copy_from_slice(&authenticator);
        packet
    }

    #[test]
    fn a_password_is_hidden_as_the_standard_has_it() {
        let expected =
            [0x0d, 0xbe, 0x70, 0x8d, 0x93, 0xd4, 0x13, 0xce, 0x31, 0x96, 0xe4, 0x3f, 0x78, 0x2a, 0x0a, 0xee];
        let request = request();
        assert_eq!(*hidden(b"arctangent", SECRET, &request.authenticator), expected);
        assert_eq!(hidden(&[b'x'; 17], SECRET, &request.authenticator).len(), 32);
        let packet = request.encode(SECRET);
        assert_eq!(packet[HEADER..HEADER + 2], [MESSAGE_AUTHENTICATOR, 18], "the signature is the first");
        assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
        let mut unsigned = packet.clone();
        unsigned[HEADER + 2..HEADER + 18].fill(0);
        assert_eq!(packet[HEADER + 2..HEADER + 18], signature(SECRET, &[&unsigned]));
    }

    #[test]
    fn a_reply_counts_only_if_it_is_signed_for_this_request() {
        let request = request();
        let packet = request.encode(SECRET);
        let group = [&[FILTER_ID, 7][..], b"staff"].concat();
        let good = reply_to(&packet, ACCESS_ACCEPT, &group, SECRET, true);
        let accepted = Reply::Accept(vec![
            Attribute { kind: MESSAGE_AUTHENTICATOR, value: good[HEADER + 2..HEADER + 18].to_vec() },
            Attribute { kind: FILTER_ID, value: b"staff".to_vec() },
        ]);
        assert_eq!(request.reply(&good, SECRET), Ok(accepted));
        let padded = [&good[..], b"padding"].concat();
        assert!(request.reply(&padded, SECRET).is_ok());
        let refused = |packet: &[u8]| request.reply(packet, SECRET).unwrap_err();
        // A forgery by BlastRADIUS: right by the old rules.
        assert_eq!(refused(&reply_to(&packet, ACCESS_ACCEPT, &group, SECRET, false)), NoReply::Unsigned);
        assert_eq!(refused(&reply_to(&packet, ACCESS_ACCEPT, &[], b"other", true)), NoReply::Authenticator);
        let other = AccessRequest { authenticator: [7; 16], ..self::request() }.encode(SECRET);
        assert_eq!(
            refused(&reply_to(&other, ACCESS_ACCEPT, &[], SECRET, true)),
            NoReply::Authenticator,
            "late"
        );
        let other = AccessRequest { id: 9, ..self::request() }.encode(SECRET);
        assert_eq!(refused(&reply_to(&other, ACCESS_ACCEPT, &[], SECRET, true)), NoReply::Id);
        // Signed, but with a Message-Authenticator of something else.
        let forged = [[MESSAGE_AUTHENTICATOR, 18].as_slice(), &[7; 16]].concat();
        assert_eq!(refused(&reply_to(&packet, ACCESS_ACCEPT, &forged, SECRET, false)), NoReply::Signature);
        let short = [MESSAGE_AUTHENTICATOR, 2];
        assert_eq!(refused(&reply_to(&packet, ACCESS_ACCEPT, &short, SECRET, false)), NoReply::Signature);
        for at in 0..good.len() {
            let mut changed = good.clone();
            changed[at] ^= 1;
            assert!(request.reply(&changed, SECRET).is_err(), "{at}");
            assert!(request.reply(&good[..at], SECRET).is_err(), "{at}");
        }
    }

    #[test]
    fn an_answer_to_a_challenge_carries_its_state() {
        let answer = AccessRequest { password: "123456", state: Some(&[7; 253]), ..request() }.encode(SECRET);
        let sent = attributes(&answer[HEADER..]).unwrap();
        let state: Vec<_> = sent.iter().filter(|attribute| attribute.kind == STATE).collect();
        assert_eq!((state.len(), state[0].value.as_slice()), (1, &[7; 253][..]));
        let plain = request().encode(SECRET);
        assert!(attributes(&plain[HEADER..]).unwrap().iter().all(|attribute| attribute.kind != STATE));
    }

    #[test]
    fn refusals_and_challenges_have_their_text() {
        let request = request();
        let packet = request.encode(SECRET);
        let text = [&[REPLY_MESSAGE, 8][..], b"no\x1b[2J", &[REPLY_MESSAGE, 4], b"\n!"].concat();
        let reply = |code, rest: &[u8]| {
            let attributes = [&text, rest].concat();
            request.reply(&reply_to(&packet, code, &attributes, SECRET, true), SECRET)
        };
        let plain = "no[2J !".to_owned();
        assert_eq!(reply(ACCESS_REJECT, &[]), Ok(Reply::Reject(plain.clone())));
        let challenge = |state: Option<&[u8]>, is_shown| {
            Ok(Reply::Challenge(Challenge {
                text: plain.clone(),
                state: state.map(<[u8]>::to_vec),
                is_shown,
            }))
        };
        assert_eq!(reply(ACCESS_CHALLENGE, &[]), challenge(None, false));
        let state = [STATE, 4, 0, 255];
        assert_eq!(reply(ACCESS_CHALLENGE, &state), challenge(Some(&[0, 255]), false));
        let shown = [PROMPT, 6, 0, 0, 0, 1];
        assert_eq!(reply(ACCESS_CHALLENGE, &[&state[..], &shown].concat()), challenge(Some(&[0, 255]), true));
        let hidden = [PROMPT, 6, 0, 0, 0, 0];
        assert_eq!(reply(ACCESS_CHALLENGE, &hidden), challenge(None, false));
        assert_eq!(reply(ACCESS_CHALLENGE, &[state, state].concat()), Err(NoReply::Malformed));
        assert_eq!(reply(ACCESS_REQUEST, &[]), Err(NoReply::Malformed));
        let empty = reply_to(&packet, ACCESS_ACCEPT, &[25, 0], SECRET, true);
        assert!(request.reply(&empty, SECRET).is_err(), "an attribute without a length");
    }
}
