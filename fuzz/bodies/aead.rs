//! Any packet, whole or forged, by our own AES-GCM on every machine that there is, emulated ones
//! included: it gives a library's bytes, opens what a library opens, refuses the rest, and leaves
//! zeros of it.
//!
//! Input: suite and kind of forgery (1 byte), where (2), length of all text (2), how much of it is
//! only authenticated (2), key (32), nonce (12), and bytes that are repeated to the length.

use aes_gcm_vaes::{Key, NONCE_LEN, TAG_LEN, Width};

#[path = "../../crates/aes-gcm-vaes/src/gcm/tests/libraries.rs"]
pub(crate) mod libraries;
use libraries::Libraries;

/// Longer texts are only tried on the processor, if it has the instructions: the emulation takes
/// milliseconds for them.
const LONGEST_EMULATED: usize = 3_000;
const HEAD: usize = 1 + 2 + 2 + 2 + 32 + NONCE_LEN;

/// One packet with what a library makes of it, and one that is perhaps no packet.
struct Case<'a> {
    key: &'a [u8],
    nonce: [u8; NONCE_LEN],
    aad: &'a [u8],
    text: &'a [u8],
    sealed: Vec<u8>,
    forged: Forged,
    /// Whether a library opens the forged one.
    is_authentic: bool,
}

#[derive(Clone)]
struct Forged {
    nonce: [u8; NONCE_LEN],
    aad: Vec<u8>,
    /// At least a tag.
    packet: Vec<u8>,
}

/// Checks one input.
///
/// # Panics
/// If our code and a library differ.
#[allow(unreachable_pub, reason = "a body is a part of several crates")]
pub fn run(data: &[u8]) {
    let Some((head, bytes)) = data.split_first_chunk::<HEAD>() else { return };
    let number = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
    let (kind, place, len) = (head[0], number(1), number(3));
    let all: Vec<u8> = (0..len).map(|i| filler(bytes, i)).collect();
    let (aad, text) = all.split_at(number(5).min(len));
    let key = &head[7..if kind & 1 == 0 { 7 + 16 } else { 7 + 32 }];
    let nonce = *head.last_chunk().expect("the nonce comes last");
    let libraries = Libraries::new(key);
    let sealed = libraries.seal(nonce, aad, text);
    let whole = Forged { nonce, aad: aad.to_vec(), packet: sealed.clone() };
    let forged = forge(whole, kind >> 1, place);
    let is_authentic = libraries.open(forged.nonce, &forged.aad, &forged.packet);
    on_every_machine(&Case { key, nonce, aad, text, sealed, forged, is_authentic });
}

fn filler(bytes: &[u8], i: usize) -> u8 {
    if bytes.is_empty() { i as u8 } else { bytes[i % bytes.len()].wrapping_add((i / bytes.len()) as u8) }
}

/// Changes one thing, if there is any of it.
fn forge(mut packet: Forged, kind: u8, place: usize) -> Forged {
    let flip = |bytes: &mut [u8]| {
        if !bytes.is_empty() {
            let bit = place % (8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    };
    let tag_at = packet.packet.len() - TAG_LEN;
    match kind % 8 {
        1 => flip(&mut packet.packet[..tag_at]),
        2 => flip(&mut packet.packet[tag_at..]),
        3 => flip(&mut packet.aad),
        4 => flip(&mut packet.nonce),
        5 => drop(packet.packet.drain(..place.min(tag_at))),
        6 => packet.packet.splice(tag_at..tag_at, [0; 3]).for_each(drop),
        7 => {
            // The border between what is only authenticated and the ciphertext.
            let moved: Vec<u8> = packet.packet.drain(..place.min(tag_at)).collect();
            packet.aad.extend(moved);
        }
        _ => {}
    }
    packet
}

fn on_every_machine(case: &Case) {
    let keys = |make: fn(Width, &[u8]) -> Option<Key>| {
        [Width::Bits256, Width::Bits512].into_iter().filter_map(move |width| make(width, case.key))
    };
    let is_native = keys(Key::new).inspect(|key| on(key, case)).count() > 0;
    if !is_native || case.aad.len() + case.text.len() <= LONGEST_EMULATED {
        keys(Key::emulated).for_each(|key| on(&key, case));
    }
}

fn on(own: &Key, case: &Case) {
    let (ciphertext, tag) = case.sealed.split_last_chunk().expect("sealed with a tag");
    let mut packet = case.text.to_vec();
    assert_eq!(own.seal(case.nonce, case.aad, &mut packet), *tag, "the tag differs");
    assert!(packet == ciphertext, "the ciphertext differs");
    assert_eq!(own.open(case.nonce, case.aad, &mut packet, tag), Ok(()));
    assert!(packet == case.text, "what was sealed is not what was opened");

    let Forged { nonce, aad, mut packet } = case.forged.clone();
    let (text, tag) = packet.split_last_chunk_mut().expect("at least a tag");
    let opened = own.open(nonce, &aad, text, tag);
    assert_eq!(opened.is_ok(), case.is_authentic, "the libraries decide otherwise");
    assert!(case.is_authentic || text.iter().all(|&byte| byte == 0), "a refused packet left something");
}
