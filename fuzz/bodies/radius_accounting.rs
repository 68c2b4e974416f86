//! Any bytes as a record of accounting and as a server's response to one: nothing panics; each
//! record that can come from the auth process is one well-formed packet; a response counts only if
//! it is made with the shared secret for that packet, is well-formed and of the one code for it.
//!
//! Input: a record in CBOR, or the response's code and its attributes, read as a whole packet, too,
//! as they are.

use md5::{Digest as _, Md5};
use vpnd_proto::control::Text;

use super::radius::{HEADER, SECRET, packet, starts};
use vpnd_idp::radius::packet::MAX_PACKET;
use vpnd_idp::radius::packet::accounting::{AccountingRequest, check_response};
use vpnd_ipc::gateway::idp::{AccountingEvent, AccountingRecord};

const ID: u8 = 7;
const ACCOUNTING_REQUEST: u8 = 4;
const ACCOUNTING_RESPONSE: u8 = 5;
const ACCT_SESSION_ID: u8 = 44;
const ACCT_STATUS_TYPE: u8 = 40;

/// Checks one input.
pub fn run(data: &[u8]) {
    let plain = AccountingRecord {
        source: Text::cut("guests"),
        event: AccountingEvent::On,
        at_s: 1_700_000_000,
        delay_s: 0,
        session: None,
    };
    let record = minicbor::decode(data).unwrap_or(plain);
    let request = AccountingRequest { id: ID, record: &record, delay_s: 90, nas_identifier: "vpnd" };
    let request = request.encode(SECRET);
    check_request(&request);
    check_answer(&request, data);
}

fn check_request(request: &[u8]) {
    let len = usize::from(u16::from_be_bytes([request[2], request[3]]));
    assert!(len == request.len() && len <= MAX_PACKET && request[..2] == [ACCOUNTING_REQUEST, ID]);
    let made = Md5::new().chain_update(&request[..4]).chain_update([0; 16]).chain_update(&request[HEADER..]);
    assert_eq!(request[4..HEADER], made.chain_update(SECRET).finalize()[..]);
    let body = &request[HEADER..];
    let starts = starts(body).expect("the attributes fill it");
    for needed in [ACCT_STATUS_TYPE, ACCT_SESSION_ID] {
        assert_eq!(starts.iter().filter(|at| body[**at] == needed).count(), 1, "{needed}");
    }
}

fn check_answer(request: &[u8], data: &[u8]) {
    let check = |response: &[u8], secret: &[u8]| check_response(request, response, secret);
    assert!(check(data, SECRET).is_err(), "it was made without the secret");
    let Some((code, body)) = data.split_first() else { return };
    let body = &body[..body.len().min(MAX_PACKET - HEADER)];
    let authenticator = request[4..HEADER].try_into().expect("as long as it is");
    let (response, _) = packet([*code, ID], authenticator, body);
    let is_one = *code == ACCOUNTING_RESPONSE && starts(body).is_some();
    assert_eq!(check(&response, SECRET).is_ok(), is_one);
    assert!(check(&response, b"another").is_err() && check(&response[..response.len() - 1], SECRET).is_err());
    let mut changed = response.clone();
    changed[usize::from(response[4]) % response.len()] ^= 1;
    assert!(check(&changed, SECRET).is_err(), "changed");
    let (other, _) = packet([*code, ID + 1], authenticator, body);
    assert!(check(&other, SECRET).is_err(), "of another request");
}
