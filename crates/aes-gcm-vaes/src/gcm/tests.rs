//! Against two libraries, byte for byte, on every machine: emulated on any computer, and on the
//! processor at hand if it has the instructions.

/// Each check on vectors of 256 and of 512 bits, emulated.
macro_rules! emulated {
    ($($name:ident: $check:ident;)*) => {$(
        mod $name {
            #[test]
            fn emulated_256() {
                super::$check($crate::emulated::Emulated::<2>);
            }

            #[test]
            fn emulated_512() {
                super::$check($crate::emulated::Emulated::<4>);
            }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
mod constant_time;
mod field;
mod fuzzing;
#[cfg(target_arch = "x86_64")]
mod native;
#[cfg(target_arch = "x86_64")]
mod residue;
#[cfg(target_arch = "x86_64")]
mod steps;
#[cfg(target_arch = "x86_64")]
mod trace;
mod vectors;

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::*;
use crate::emulated::Emulated;
use fuzzing::aead::libraries::Libraries;

const NONCE: [u8; NONCE_LEN] = *b"twelve bytes";
const AAD: [u8; 16] = *b"a header's bytes";
const KEY: [u8; 32] = *b"thirty-two bytes, whatever these";
/// Bytes of the longest chunk and vector.
const CHUNK: usize = TOGETHER * VECTOR;
const VECTOR: usize = 16 * MAX_BLOCKS;

/// A key by this crate, and by libraries.
struct Compared<M, const R: usize> {
    own: Box<Gcm<M, R>>,
    libraries: Libraries,
}

impl<M: Machine, const R: usize> Compared<M, R> {
    /// `key` may be longer than needed.
    fn new(machine: M, key: &[u8]) -> Self {
        let key = &key[..4 * (R - 6)];
        Self { own: Gcm::new(machine, key), libraries: Libraries::new(key) }
    }

    /// Seals and opens with our code, which must be the inverse, and compares with the libraries.
    fn check(&self, nonce: [u8; NONCE_LEN], aad: &[u8], text: &[u8]) {
        let case = || format!("{} bytes, {} beside, {R} rounds", text.len(), aad.len());
        let wanted = self.libraries.seal(nonce, aad, text);
        let mut packet = text.to_vec();
        let tag = self.own.seal(nonce, aad, &mut packet);
        let (ciphertext, wanted_tag) = wanted.split_last_chunk().unwrap();
        assert!(packet == ciphertext, "ciphertext of {}", case());
        assert_eq!(&tag, wanted_tag, "tag of {}", case());
        assert_eq!(self.own.open(nonce, aad, &mut packet, &tag), Ok(()), "{}", case());
        assert!(packet == text, "opened {}", case());
    }

    /// Asserts that what is no packet of this key is refused and leaves zeros.
    fn refuses(&self, nonce: [u8; NONCE_LEN], aad: &[u8], forged: &[u8], tag: &[u8; TAG_LEN], what: &str) {
        let mut packet = forged.to_vec();
        assert_eq!(self.own.open(nonce, aad, &mut packet, tag), Err(NotAuthentic), "{what}");
        assert!(packet.iter().all(|&byte| byte == 0), "{what}: the buffer");
    }
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

/// Every length to beyond two chunks, with both suites: every number of chunks' vectors, of the
/// tail's, and of bytes of a part.
fn every_length(machine: impl Machine) {
    let text = text(2 * CHUNK + VECTOR + 1);
    let (aes_128, aes_256) =
        (Compared::<_, ROUNDS_128>::new(machine, &KEY), Compared::<_, ROUNDS_256>::new(machine, &KEY));
    for len in 0..=text.len() {
        aes_128.check(NONCE, &AAD, &text[..len]);
        aes_256.check(NONCE, &AAD, &text[..len]);
    }
}

/// Every place of the text in a cache line, whatever its length: to beyond two vectors, and around
/// a chunk.
fn every_alignment(machine: impl Machine) {
    let text = text(CHUNK + VECTOR + 2);
    let compared = Compared::<_, ROUNDS_128>::new(machine, &KEY);
    let mut room = [0; 64 + CHUNK + VECTOR + 2];
    let line = room.as_ptr().align_offset(64);
    for len in (0..=2 * VECTOR + 1).chain(CHUNK - 1..=CHUNK + 1).chain([text.len()]) {
        let sealed = compared.libraries.seal(NONCE, &AAD, &text[..len]);
        let (ciphertext, tag) = sealed.split_last_chunk().unwrap();
        for offset in 0..64 {
            room.fill(0xa5);
            let at = (line + offset) % 64;
            let packet = &mut room[at..][..len];
            packet.copy_from_slice(&text[..len]);
            assert_eq!(compared.own.seal(NONCE, &AAD, packet), *tag, "{len} bytes at {offset}");
            assert!(packet == ciphertext, "{len} bytes at {offset}");
            assert_eq!(compared.own.open(NONCE, &AAD, packet, tag), Ok(()), "{len} bytes at {offset}");
            assert!(packet == &text[..len], "{len} bytes at {offset}");
            let outside = room[..at].iter().chain(&room[at + len..]);
            assert!(outside.copied().all(|byte| byte == 0xa5), "{len} bytes at {offset}: outside");
        }
    }
}

/// Lengths of real packets, and the longest.
fn long_packets(machine: impl Machine) {
    let text = text(MAX_TEXT_LEN);
    let compared = Compared::<_, ROUNDS_256>::new(machine, &KEY);
    for len in [1_408, 1_448, 4_096, 8_192, 8_999, MAX_TEXT_LEN - 1, MAX_TEXT_LEN] {
        compared.check(NONCE, &AAD, &text[..len]);
    }
}

/// Divides the same bytes anywhere into plaintext and associated data.
fn every_split(machine: impl Machine) {
    let text = text(CHUNK + VECTOR + 7);
    let compared = Compared::<_, ROUNDS_128>::new(machine, &KEY);
    for (beside, sealed) in (0..=text.len()).map(|at| text.split_at(at)) {
        compared.check(NONCE, beside, sealed);
    }
}

/// A chunk, vectors and a part of one; each byte of it, and each bit of all else, is changed.
fn forgeries(machine: impl Machine) {
    let compared = Compared::<_, ROUNDS_256>::new(machine, &KEY);
    let mut sealed = text(CHUNK + VECTOR + 21);
    let tag = compared.own.seal(NONCE, &AAD, &mut sealed);
    for byte in 0..sealed.len() {
        let mut forged = sealed.clone();
        forged[byte] ^= 1 << (byte % 8);
        compared.refuses(NONCE, &AAD, &forged, &tag, &format!("byte {byte}"));
    }
    let flipped = |bytes: &mut [u8], bit: usize| bytes[bit / 8] ^= 1 << (bit % 8);
    for bit in 0..128 {
        let (mut other, mut beside) = (tag, AAD);
        flipped(&mut other, bit);
        flipped(&mut beside, bit);
        compared.refuses(NONCE, &AAD, &sealed, &other, &format!("bit {bit} of the tag"));
        compared.refuses(NONCE, &beside, &sealed, &tag, &format!("bit {bit} beside"));
    }
    for bit in 0..8 * NONCE_LEN {
        let mut other = NONCE;
        flipped(&mut other, bit);
        compared.refuses(other, &AAD, &sealed, &tag, &format!("bit {bit} of the nonce"));
    }
    for len in 0..sealed.len() {
        compared.refuses(NONCE, &AAD, &sealed[..len], &tag, &format!("{len} bytes of it"));
    }
    compared.refuses(NONCE, &AAD[..15], &sealed, &tag, "less beside");
    assert_eq!(compared.own.open(NONCE, &AAD, &mut sealed, &tag), Ok(()));
}

/// Authentic, and longer than any packet can be: never decrypted, since its counters are not argued
/// about.
fn too_long(machine: impl Machine) {
    let compared = Compared::<_, ROUNDS_128>::new(machine, &KEY);
    let mut long = text(MAX_TEXT_LEN + 1);
    let sealed = compared.libraries.seal(NONCE, &AAD, &long);
    let (ciphertext, tag) = sealed.split_last_chunk().unwrap();
    compared.refuses(NONCE, &AAD, ciphertext, tag, "authentic, but too long");
    let sealing = catch_unwind(AssertUnwindSafe(|| compared.own.seal(NONCE, &AAD, &mut long)));
    assert!(sealing.is_err());
}

fn erased(machine: impl Machine) {
    let mut own = Gcm::<_, ROUNDS_256>::new(machine, &KEY);
    assert!(own.round_keys.iter().all(|key| *key != [0; 16]));
    assert!(own.powers[..TOP].iter().all(|power| *power != [0; 16]));
    own.erase();
    assert_eq!(own.round_keys.as_flattened(), [0; 16 * (ROUNDS_256 + 1)]);
    assert_eq!(own.powers.as_flattened(), [0; 16 * (TOP + MAX_BLOCKS - 1)]);
}

emulated! {
    every_length_to_beyond_two_chunks: every_length;
    every_alignment_of_a_text: every_alignment;
    lengths_of_packets_and_the_longest: long_packets;
    every_split_of_the_same_bytes: every_split;
    a_forged_packet_leaves_zeros: forgeries;
    a_packet_longer_than_any_is_neither_sealed_nor_opened: too_long;
    an_expanded_key_can_be_erased: erased;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_packet_is_sealed_as_a_library_does(
        key: [u8; 32],
        nonce: [u8; NONCE_LEN],
        aad in prop::collection::vec(any::<u8>(), 0..40),
        text in prop::collection::vec(any::<u8>(), 0..1_500),
    ) {
        Compared::<_, ROUNDS_128>::new(Emulated::<2>, &key).check(nonce, &aad, &text);
        Compared::<_, ROUNDS_256>::new(Emulated::<2>, &key).check(nonce, &aad, &text);
        Compared::<_, ROUNDS_128>::new(Emulated::<4>, &key).check(nonce, &aad, &text);
        Compared::<_, ROUNDS_256>::new(Emulated::<4>, &key).check(nonce, &aad, &text);
    }
}
