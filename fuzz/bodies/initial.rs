//! Any bytes as the first datagram of a QUIC connection: what the gateway's front reads in it is
//! what QUIC reads in it, so nothing begins a connection without having been asked for a proof; and
//! only a Retry to the same address proves one.
//!
//! Input: two bytes that choose an address and a time, and the datagram, which is also tried with
//! the padding that it needs.

use std::io::Cursor;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;

use aws_lc_rs::hkdf;
use quinn_proto::{FixedLengthConnectionIdParser, PacketDecodeError, ProtectedHeader};
use vpnd_control_channel::quic::VERSION;

use vpnd_gateway::worker::quic::retry::{
    Initial, Kind, MIN_INITIAL, TOKEN_LIFETIME, classify, is_proof, retry,
};

/// Length of the gateway's own connection ids; nothing here depends on it.
const OWN_ID_LEN: usize = 16;
/// How a datagram begins that is for QUIC: steering has looked at this bit.
const FIXED_BIT: u8 = 0x40;

static KEY: LazyLock<hkdf::Prk> =
    LazyLock::new(|| hkdf::Salt::new(hkdf::HKDF_SHA256, b"fuzzing").extract(b"a secret"));

/// Checks one input.
pub fn run(data: &[u8]) {
    let Some(([place, time], datagram)) = data.split_first_chunk() else { return };
    let from = address(*place);
    check(datagram, from, *time);
    if datagram.len() < MIN_INITIAL {
        let mut padded = datagram.to_vec();
        padded.resize(MIN_INITIAL, 0);
        check(&padded, from, *time);
    }
}

fn address(place: u8) -> SocketAddr {
    let ip = if place & 1 == 0 {
        Ipv4Addr::new(192, 0, 2, place).into()
    } else {
        Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, place.into()).into()
    };
    SocketAddr::new(ip, 1_024 + u16::from(place))
}

fn check(datagram: &[u8], from: SocketAddr, time: u8) {
    let kind = classify(datagram);
    check_against_quic(datagram, &kind);
    if let Kind::Initial(initial) = kind {
        assert!(datagram.len() >= MIN_INITIAL, "too short to be answered");
        let now_s = 1_000 + u64::from(time);
        assert!(!is_proof(&*KEY, initial.token, from, now_s), "a token that the gateway has not made");
        check_retry(&initial, from, now_s, datagram);
    }
}

/// QUIC begins a connection for nothing but what the front takes for an Initial, with the same ids
/// and the same token.
fn check_against_quic(datagram: &[u8], kind: &Kind<'_>) {
    if datagram.first().is_none_or(|first| first & FIXED_BIT == 0) {
        return;
    }
    match quic(datagram) {
        Ok(ProtectedHeader::Initial(theirs)) if datagram.len() >= MIN_INITIAL => {
            let Kind::Initial(ours) = kind else { panic!("QUIC would take for an Initial what is {kind:?}") };
            assert_eq!((ours.destination, ours.source), (&*theirs.dst_cid, &*theirs.src_cid));
            assert_eq!(ours.token, &datagram[theirs.token_pos]);
        }
        // Long enough for QUIC, but not to begin anything.
        Ok(ProtectedHeader::Initial(_)) => assert_eq!(*kind, Kind::Malformed),
        Ok(ProtectedHeader::VersionNegotiate { .. }) => {
            assert!(matches!(kind, Kind::OtherVersion | Kind::Malformed));
        }
        Ok(_) => assert_eq!(*kind, Kind::Other),
        Err(PacketDecodeError::UnsupportedVersion { .. }) => {
            assert!(matches!(kind, Kind::OtherVersion | Kind::Malformed), "an answer without a limit");
        }
        // The front need not see that the rest is malformed.
        Err(PacketDecodeError::InvalidHeader(_)) => {}
    }
}

fn quic(datagram: &[u8]) -> Result<ProtectedHeader, PacketDecodeError> {
    let ids = FixedLengthConnectionIdParser::new(OWN_ID_LEN);
    ProtectedHeader::decode(&mut Cursor::new(datagram.into()), &ids, &[VERSION], false)
}

/// The answer is shorter than the question, is a Retry to QUIC, and proves this address for a while
/// and no other.
fn check_retry(initial: &Initial<'_>, from: SocketAddr, now_s: u64, datagram: &[u8]) {
    let random: [u8; 32] = std::array::from_fn(|at| datagram[datagram.len() - 1 - at]);
    let answer = retry(&*KEY, initial, from, now_s, &random);
    assert!(answer.len() < MIN_INITIAL);
    let Ok(ProtectedHeader::Retry { dst_cid, src_cid, version }) = quic(&answer) else {
        panic!("what was answered is no Retry");
    };
    assert_eq!((&*dst_cid, version), (initial.source, VERSION));
    let header = 1 + size_of::<u32>() + 1 + dst_cid.len() + 1 + src_cid.len();
    let token = &answer[header..answer.len() - 16];
    let last_s = now_s + TOKEN_LIFETIME.as_secs();
    assert!(is_proof(&*KEY, token, from, now_s) && is_proof(&*KEY, token, from, last_s));
    assert!(!is_proof(&*KEY, token, from, last_s + 1), "too late");
    let elsewhere = SocketAddr::new(from.ip(), from.port() ^ 1);
    assert!(!is_proof(&*KEY, token, elsewhere, now_s), "shown from elsewhere");
}
