//! Proof of an address without keeping anything: QUIC Retry (RFC 9000 section 8.1.2), made and
//! checked before QUIC receives the datagram.
//!
//! The endpoint could do this itself, but derives the keys of a connection first and keeps a place
//! for it, at several times the cost; and a flood of forged addresses has to be answered at the
//! rate at which it comes, for honest clients are among it. Tokens have the endpoint's own form and
//! key, because it is the endpoint that takes them up: it checks them again.
//!
//! Pure but for the key. INVARIANT: a Retry is shorter than [`MIN_INITIAL`], which is what it
//! answers.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use aws_lc_rs::aead;
use quinn::crypto::HandshakeTokenKey;
use vpnd_control_channel::quic::VERSION;

/// Smallest size of a datagram that begins a connection (RFC 9000 section 14.1).
pub const MIN_INITIAL: usize = 1_200;
/// Validity of a Retry token: longer than between two keep-alives of an idle tunnel, so that
/// `vpnd netcheck` can see whether an address translator forgets a client in between.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(30);

const MAX_ID: usize = 20;
const ID_LEN: usize = 16;
const NONCE_LEN: usize = 16;
/// The kind of token that a Retry carries.
const KIND: u8 = 0;
/// RFC 9001 section 5.8.
const INTEGRITY_KEY: [u8; 16] =
    [0xBE, 0x0C, 0x69, 0x0B, 0x9F, 0x66, 0x57, 0x5A, 0x1D, 0x76, 0x6B, 0x54, 0xE3, 0x68, 0xC8, 0x4E];
const INTEGRITY_NONCE: [u8; 12] = [0x46, 0x15, 0x99, 0xD3, 0x5D, 0x63, 0x2B, 0xF2, 0x23, 0x98, 0x25, 0xBB];

/// Classification of a datagram for QUIC.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind<'d> {
    /// Begin a connection, or belong to one that has begun.
    Initial(Initial<'d>),
    /// Bring about an answer that names this gateway's version.
    OtherVersion,
    /// Belong to a connection, or be dropped.
    Other,
    Malformed,
}

/// The readable part of an Initial packet (RFC 9000 section 17.2.2).
#[derive(Debug, PartialEq, Eq)]
pub struct Initial<'d> {
    pub destination: &'d [u8],
    pub source: &'d [u8],
    pub token: &'d [u8],
}

/// Looks at the header, as far as it is not protected.
pub fn classify(datagram: &[u8]) -> Kind<'_> {
    match datagram {
        [first, v0, v1, v2, v3, rest @ ..] if first & 0x80 != 0 => {
            match u32::from_be_bytes([*v0, *v1, *v2, *v3]) {
                VERSION if first & 0x30 != 0 => Kind::Other,
                _ if datagram.len() < MIN_INITIAL => Kind::Malformed,
                VERSION => initial(rest).map_or(Kind::Malformed, Kind::Initial),
                _ => Kind::OtherVersion,
            }
        }
        [first, ..] if first & 0x80 == 0 => Kind::Other,
        _ => Kind::Malformed,
    }
}

fn initial(bytes: &[u8]) -> Option<Initial<'_>> {
    let (destination, rest) = id(bytes)?;
    let (source, rest) = id(rest)?;
    let (first, _) = rest.split_first()?;
    // A variable-length integer (RFC 9000 section 16).
    let (length, rest) = rest.split_at_checked(1 << (first >> 6))?;
    let length = length.iter().fold(0, |value: u64, byte| value << 8 | u64::from(*byte));
    let length = length & (u64::MAX >> (66 - (8 << (first >> 6))));
    let token = rest.get(..usize::try_from(length).ok()?)?;
    Some(Initial { destination, source, token })
}

fn id(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length)).filter(|(id, _)| id.len() <= MAX_ID)
}

/// A Retry for an Initial that came from `to` at this second since 1970. `random` is used once.
pub fn retry(
    key: &dyn HandshakeTokenKey,
    initial: &Initial<'_>,
    to: SocketAddr,
    now_s: u64,
    random: &[u8; NONCE_LEN + ID_LEN],
) -> Vec<u8> {
    let (nonce, new_id) = random.split_at(NONCE_LEN);
    // The first byte's low bits mean nothing. The pseudo-packet is the packet behind the id that it
    // answers.
    let mut pseudo = Vec::with_capacity(256);
    put_id(&mut pseudo, initial.destination);
    let start = pseudo.len();
    pseudo.push(0xF0);
    pseudo.extend_from_slice(&VERSION.to_be_bytes());
    put_id(&mut pseudo, initial.source);
    put_id(&mut pseudo, new_id);
    pseudo.extend_from_slice(&token(key, to, initial.destination, now_s, nonce));
    let tag = integrity_tag(&pseudo);
    let mut packet = pseudo.split_off(start);
    packet.extend_from_slice(&tag);
    packet
}

fn put_id(out: &mut Vec<u8>, id: &[u8]) {
    out.push(id.len() as u8);
    out.extend_from_slice(id);
}

fn integrity_tag(pseudo: &[u8]) -> [u8; 16] {
    static KEY: LazyLock<aead::LessSafeKey> = LazyLock::new(|| {
        let key = aead::UnboundKey::new(&aead::AES_128_GCM, &INTEGRITY_KEY);
        aead::LessSafeKey::new(key.expect("the key has the length of its algorithm"))
    });
    let nonce = aead::Nonce::assume_unique_for_key(INTEGRITY_NONCE);
    let tag = KEY.seal_in_place_separate_tag(nonce, aead::Aad::from(pseudo), &mut []);
    let tag = tag.expect("nothing is short enough to seal");
    tag.as_ref().try_into().expect("the algorithm's tag has 16 bytes")
}

/// `kind ‖ address ‖ port ‖ id ‖ time`, sealed, ‖ nonce.
fn token(key: &dyn HandshakeTokenKey, to: SocketAddr, original: &[u8], now_s: u64, nonce: &[u8]) -> Vec<u8> {
    let mut token = address(to);
    put_id(&mut token, original);
    token.extend_from_slice(&now_s.to_be_bytes());
    key.aead_from_hkdf(nonce).seal(&mut token, &[]).expect("a token is short enough to seal");
    token.extend_from_slice(nonce);
    token
}

/// Prefix of a token for `address`.
fn address(address: SocketAddr) -> Vec<u8> {
    let mut start = Vec::with_capacity(128);
    start.push(KIND);
    match address.ip() {
        IpAddr::V4(v4) => {
            start.push(0);
            start.extend_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            start.push(1);
            start.extend_from_slice(&v6.octets());
        }
    }
    start.extend_from_slice(&address.port().to_be_bytes());
    start
}

/// Whether the token proves that its sender received a Retry at `from` shortly before this second.
pub fn is_proof(key: &dyn HandshakeTokenKey, token: &[u8], from: SocketAddr, now_s: u64) -> bool {
    let start = address(from);
    // No key is derived for what has not a token's length.
    let shortest = start.len() + 1 + size_of::<u64>() + aead::MAX_TAG_LEN + NONCE_LEN;
    if !(shortest..=shortest + MAX_ID).contains(&token.len()) {
        return false;
    }
    let (sealed, nonce) = token.split_at(token.len() - NONCE_LEN);
    let mut sealed = sealed.to_vec();
    let Ok(plain) = key.aead_from_hkdf(nonce).open(&mut sealed, &[]) else { return false };
    let Some((_, issued)) = plain.strip_prefix(start.as_slice()).and_then(|rest| rest.split_last_chunk())
    else {
        return false;
    };
    now_s <= u64::from_be_bytes(*issued).saturating_add(TOKEN_LIFETIME.as_secs())
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hkdf;
    use proptest::prelude::*;

    use super::*;

    const RANDOM: [u8; 32] = [7; 32];

    fn key(secret: &[u8]) -> hkdf::Prk {
        hkdf::Salt::new(hkdf::HKDF_SHA256, b"tests").extract(secret)
    }

    fn datagram(first: u8, version: u32, rest: &[u8]) -> Vec<u8> {
        let mut datagram = vec![first];
        datagram.extend_from_slice(&version.to_be_bytes());
        datagram.extend_from_slice(rest);
        datagram.resize(MIN_INITIAL, 0);
        datagram
    }

    #[test]
    fn the_tag_is_that_of_rfc_9001() {
        // Appendix A.4.
        let original = [0x83, 0x94, 0xC8, 0xF0, 0x3E, 0x51, 0x57, 0x08];
        let packet = b"\xff\x00\x00\x00\x01\x00\x08\xf0\x67\xa5\x50\x2a\x42\x62\xb5token";
        let mut pseudo = Vec::new();
        put_id(&mut pseudo, &original);
        pseudo.extend_from_slice(packet);
        let tag = b"\x04\xa2\x65\xba\x2e\xff\x4d\x82\x90\x58\xfb\x3f\x0f\x24\x96\xba";
        assert_eq!(&integrity_tag(&pseudo), tag);
    }

    #[test]
    fn quic_header_forms_are_distinguished() {
        let ids = [2, 0xAA, 0xAB, 1, 0xBB];
        let with_token = |token: &[u8]| datagram(0xC3, 1, &[&ids, token].concat());
        let initial = |token| Kind::Initial(Initial { destination: &[0xAA, 0xAB], source: &[0xBB], token });
        assert_eq!(classify(&with_token(&[0])), initial(&[]));
        assert_eq!(classify(&with_token(&[3, 1, 2, 3])), initial(&[1, 2, 3]));
        assert_eq!(classify(&with_token(&[0x40, 3, 1, 2, 3])), initial(&[1, 2, 3]));
        assert_eq!(classify(&with_token(&[0x80, 0, 0, 3, 1, 2, 3])), initial(&[1, 2, 3]));
        assert_eq!(classify(&with_token(&[0xC0, 0, 0, 0, 0, 0, 0, 2, 1, 2])), initial(&[1, 2]));
        assert_eq!(classify(&with_token(&[0xFF; 8])), Kind::Malformed, "longer than the datagram");
        assert_eq!(classify(&with_token(&[0])[..MIN_INITIAL - 1]), Kind::Malformed, "too short to begin");
        assert_eq!(classify(&datagram(0xC0, 1, &[21])), Kind::Malformed, "too long an id");
        for first in [0xD0, 0xE0, 0xF0] {
            assert_eq!(classify(&datagram(first, 1, &[])), Kind::Other);
        }
        assert_eq!(classify(&datagram(0xC0, 0x0A1A_2A3A, &[])), Kind::OtherVersion);
        assert_eq!(classify(&datagram(0xC0, 2, &[])[..MIN_INITIAL - 1]), Kind::Malformed);
        assert_eq!(classify(&[0x40]), Kind::Other);
        assert_eq!(classify(&[]), Kind::Malformed);
    }

    #[test]
    fn a_proof_is_good_for_one_address_and_some_seconds() {
        let key = key(b"mine");
        for (to, other) in [
            ("192.0.2.1:5", "192.0.2.1:6"),
            ("192.0.2.1:5", "192.0.2.2:5"),
            ("[2001:db8::1]:5", "[2001:db8::2]:5"),
        ] {
            let (to, other) = (to.parse().unwrap(), other.parse().unwrap());
            let token = token(&key, to, &[9; 20], 1_000, &RANDOM[..NONCE_LEN]);
            assert!(is_proof(&key, &token, to, 1_000) && is_proof(&key, &token, to, 1_030));
            assert!(!is_proof(&key, &token, to, 1_031), "too late");
            assert!(!is_proof(&key, &token, other, 1_000), "{other} has not got it");
            assert!(!is_proof(&self::key(b"another's"), &token, to, 1_000));
            for byte in 0..token.len() {
                let mut forged = token.clone();
                forged[byte] ^= 1;
                assert!(!is_proof(&key, &forged, to, 1_000), "byte {byte} was changed");
            }
            assert!(!is_proof(&key, &[], to, 1_000));
        }
    }

    #[test]
    fn the_longest_retry_is_far_shorter_than_what_it_answers() {
        let initial = Initial { destination: &[1; MAX_ID], source: &[2; MAX_ID], token: &[] };
        let retry = retry(&key(b"mine"), &initial, "[2001:db8::1]:5".parse().unwrap(), 1_000, &RANDOM);
        assert_eq!(retry.len(), 140);
    }

    proptest! {
        #[test]
        fn nothing_that_arrives_panics(
            start in prop::collection::vec(any::<u8>(), 0..64),
            length in 0usize..1_500,
            token in prop::collection::vec(any::<u8>(), 0..128),
        ) {
            let mut datagram = start;
            datagram.resize(length, 0);
            classify(&datagram);
            prop_assert!(!is_proof(&key(b"mine"), &token, "192.0.2.1:5".parse().unwrap(), 0));
        }
    }
}
