//! Any packet, whole or forged, by our own AES-GCM on every machine that there is, emulated ones included: it gives a library's
//! bytes, opens what a library opens, refuses the rest, and leaves zeros of it.
//!
//! Input: suite and kind of forgery (1 byte), where (2), length of all text (2), how much of it is only authenticated (2), key
//! (32), nonce (12), and bytes that are repeated to the length.

use crate::aead::vaes::emulated::Emulated;
use crate::aead::vaes::{Gcm, Machine, ROUNDS_128, ROUNDS_256};
use crate::aead::{Cipher, TAG_LEN};
use crate::backend::Backend;
use crate::schedule::IV_LEN;
use crate::suite::Suite;

/// Longer texts are only tried on the processor, if it has the instructions: the emulation takes milliseconds for them.
const LONGEST_EMULATED: usize = 3_000;
const HEAD: usize = 1 + 2 + 2 + 2 + 32 + IV_LEN;

/// One packet with what a library makes of it, and one that is perhaps no packet.
struct Case<'a> {
    key: &'a [u8],
    nonce: [u8; IV_LEN],
    aad: &'a [u8],
    text: &'a [u8],
    sealed: Vec<u8>,
    forged: Forged,
    /// Whether a library opens the forged one.
    is_authentic: bool,
}

#[derive(Clone)]
struct Forged {
    nonce: [u8; IV_LEN],
    aad: Vec<u8>,
    /// At least a tag.
    packet: Vec<u8>,
}

/// Checks one input.
///
/// # Panics
/// If our code and a library differ.
pub fn run(data: &[u8]) {
    let Some((head, bytes)) = data.split_first_chunk::<HEAD>() else { return };
    let number = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
    let (kind, place, len) = (head[0], number(1), number(3));
    let all: Vec<u8> = (0..len).map(|i| filler(bytes, i)).collect();
    let (aad, text) = all.split_at(number(5).min(len));
    let suite = if kind & 1 == 0 { Suite::Aes128Gcm } else { Suite::Aes256Gcm };
    let key = &head[7..7 + suite.key_len()];
    let nonce = *head.last_chunk().expect("the nonce comes last");
    let library = [Backend::Ring, Backend::AwsLc, Backend::RustCrypto][place % 3];
    let library = Cipher::new(suite, library, key).expect("every library has AES-GCM");
    let mut sealed = [text, &[0; TAG_LEN]].concat();
    library.seal(nonce, aad, &mut sealed, text.len()).expect("there is room");
    let whole = Forged { nonce, aad: aad.to_vec(), packet: sealed.clone() };
    let forged = forge(whole, kind >> 1, place);
    let is_authentic = library.open(forged.nonce, &forged.aad, &mut forged.packet.clone()).is_ok();
    let case = Case { key, nonce, aad, text, sealed, forged, is_authentic };
    if suite == Suite::Aes128Gcm {
        on_every_machine::<ROUNDS_128>(&case)
    } else {
        on_every_machine::<ROUNDS_256>(&case)
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

fn on_every_machine<const R: usize>(case: &Case) {
    let mut is_native = false;
    #[cfg(target_arch = "x86_64")]
    {
        use crate::aead::vaes::{Avx2, Avx512};
        if let Some(machine) = Avx2::detect() {
            on::<_, R>(machine, case);
            is_native = true;
        }
        if let Some(machine) = Avx512::detect() {
            on::<_, R>(machine, case);
        }
    }
    if !is_native || case.aad.len() + case.text.len() <= LONGEST_EMULATED {
        on::<_, R>(Emulated::<2>, case);
        on::<_, R>(Emulated::<4>, case);
    }
}

fn on<M: Machine, const R: usize>(machine: M, case: &Case) {
    let own = Gcm::<M, R>::new(machine, case.key);
    let (ciphertext, tag) = case.sealed.split_last_chunk().expect("sealed with a tag");
    let mut packet = case.text.to_vec();
    assert_eq!(own.seal(case.nonce, case.aad, &mut packet), *tag, "the tag differs");
    assert!(packet == ciphertext, "the ciphertext differs");
    assert_eq!(own.open(case.nonce, case.aad, &mut packet, tag), Ok(()));
    assert!(packet == case.text, "what was sealed is not what was opened");

    let Forged { nonce, aad, mut packet } = case.forged.clone();
    let (text, tag) = packet.split_last_chunk_mut().expect("at least a tag");
    let opened = own.open(nonce, &aad, text, tag);
    assert_eq!(opened.is_ok(), case.is_authentic, "a library decides otherwise");
    assert!(case.is_authentic || text.iter().all(|&byte| byte == 0), "a refused packet left something");
}
