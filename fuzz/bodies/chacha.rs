//! Any packet, whole or forged, by our own ChaCha20-Poly1305, on the processor and emulated: it
//! gives a library's bytes, opens what a library opens, refuses the rest, and leaves zeros of it.
//!
//! Input: kind of forgery (1 byte, without its lowest bit), where (2), length of all text (2), how
//! much of it is only authenticated (2), key (32), nonce (12), and bytes that are repeated to the
//! length.

use chacha20_poly1305_ifma::{KEY_LEN, Key, NONCE_LEN, TAG_LEN};

#[path = "../../crates/chacha20-poly1305-ifma/src/aead/tests/libraries.rs"]
pub(crate) mod libraries;
use libraries::Libraries;

/// Longer texts are only tried on the processor, if it has the instructions: the emulation takes
/// longer for them.
const LONGEST_EMULATED: usize = 3_000;
const HEAD: usize = 1 + 2 + 2 + 2 + KEY_LEN + NONCE_LEN;

/// One packet with what a library makes of it, and one that is perhaps no packet.
struct Case<'a> {
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
    let (kind, place, len) = (head[0] >> 1, number(1), number(3));
    let all: Vec<u8> = (0..len).map(|i| filler(bytes, i)).collect();
    let (aad, text) = all.split_at(number(5).min(len));
    let key = head[7..].first_chunk().expect("the key lies before the nonce");
    let nonce = *head.last_chunk().expect("the nonce comes last");
    let libraries = Libraries::new(key);
    let sealed = libraries.seal(nonce, aad, text);
    let whole = Forged { nonce, aad: aad.to_vec(), packet: sealed.clone() };
    let forged = forge(whole, kind, place);
    let is_authentic = libraries.open(forged.nonce, &forged.aad, &forged.packet);
    let case = Case { nonce, aad, text, sealed, forged, is_authentic };
    let native = Key::new(key);
    if let Some(native) = &native {
        on(native, &case);
    }
    if native.is_none() || len <= LONGEST_EMULATED {
        on(&Key::emulated(key), &case);
    }
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
    // One that is longer than any packet is refused, even if it is authentic.
    let is_authentic = case.is_authentic && text.len() <= chacha20_poly1305_ifma::MAX_TEXT_LEN;
    assert_eq!(opened.is_ok(), is_authentic, "the libraries decide otherwise");
    assert!(is_authentic || text.iter().all(|&byte| byte == 0), "a refused packet left something");
}
