//! Against two libraries, byte for byte: emulated on any computer, and on the processor at hand if
//! it has the instructions.

#[cfg(target_arch = "x86_64")]
mod constant_time;
mod fuzzing;
#[cfg(target_arch = "x86_64")]
pub(crate) mod native;
#[cfg(target_arch = "x86_64")]
mod residue;
#[cfg(target_arch = "x86_64")]
#[path = "../../../aes-gcm-vaes/src/gcm/tests/steps.rs"]
mod steps;
#[cfg(target_arch = "x86_64")]
mod trace;
mod vectors;

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::*;
use crate::emulated::Emulated;
use fuzzing::chacha::libraries::Libraries;

const NONCE: [u8; NONCE_LEN] = *b"twelve bytes";
const AAD: [u8; 16] = *b"a header's bytes";
const KEY: [u8; KEY_LEN] = *b"thirty-two bytes, whatever these";
/// Bytes of text of each kind of first batch.
const EIGHT: usize = 7 * BLOCK_LEN;
const SIXTEEN: usize = 15 * BLOCK_LEN;
const TWENTY_FOUR: usize = 23 * BLOCK_LEN;
/// Two batches of sixteen and one of any other, and more than a group of Poly1305 behind.
const LONG: usize = TWENTY_FOUR + SIXTEEN + EIGHT;

/// A key by this crate, and by libraries.
struct Compared<M> {
    own: Box<Key<M>>,
    libraries: Libraries,
}

impl<M: Machine> Compared<M> {
    fn new(machine: M, key: &[u8; KEY_LEN]) -> Self {
        Self { own: Key::new(machine, key), libraries: Libraries::new(key) }
    }

    /// Seals and opens with our code, which must be the inverse, and compares with the libraries.
    fn check(&self, nonce: [u8; NONCE_LEN], aad: &[u8], text: &[u8]) {
        let case = || format!("{} bytes, {} beside", text.len(), aad.len());
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

/// Every length to beyond several batches of each kind, with and without associated data.
fn every_length(machine: impl Machine) {
    let text = text(LONG + TWENTY_FOUR + 1);
    let compared = Compared::new(machine, &KEY);
    for len in 0..=text.len() {
        compared.check(NONCE, &AAD[..len % 17], &text[..len]);
        compared.check(NONCE, &[], &text[..len]);
    }
}

/// Every place of the text in a cache line, for lengths around those of a batch.
fn every_alignment(machine: impl Machine) {
    let text = text(TWENTY_FOUR + 2);
    let compared = Compared::new(machine, &KEY);
    let mut room = [0; 64 + TWENTY_FOUR + 2];
    let line = room.as_ptr().align_offset(64);
    let lengths = (0..=BLOCK_LEN + 1).chain([EIGHT - 1, EIGHT, EIGHT + 1, SIXTEEN, SIXTEEN + 1, text.len()]);
    for len in lengths {
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
    let compared = Compared::new(machine, &KEY);
    for len in [1_280, 1_424, 4_096, 8_999, MAX_TEXT_LEN - 1, MAX_TEXT_LEN] {
        compared.check(NONCE, &AAD, &text[..len]);
    }
}

/// Divides the same bytes anywhere into plaintext and associated data.
fn every_split(machine: impl Machine) {
    let text = text(EIGHT + 200);
    let compared = Compared::new(machine, &KEY);
    for (beside, sealed) in (0..=text.len()).map(|at| text.split_at(at)) {
        compared.check(NONCE, beside, sealed);
    }
}

/// A batch and a part of one; each byte of it, and each bit of all else, is changed.
fn forgeries(machine: impl Machine) {
    let compared = Compared::new(machine, &KEY);
    let mut sealed = text(EIGHT + BLOCK_LEN + 21);
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
    let compared = Compared::new(machine, &KEY);
    let mut long = text(MAX_TEXT_LEN + 1);
    let sealed = compared.libraries.seal(NONCE, &AAD, &long);
    let (ciphertext, tag) = sealed.split_last_chunk().unwrap();
    compared.refuses(NONCE, &AAD, ciphertext, tag, "authentic, but too long");
    let sealing = catch_unwind(AssertUnwindSafe(|| compared.own.seal(NONCE, &AAD, &mut long)));
    assert!(sealing.is_err());
}

fn erased(machine: impl Machine) {
    let mut own = Key::new(machine, &KEY);
    assert_eq!(own.key, KEY);
    own.erase();
    assert_eq!(own.key, [0; KEY_LEN]);
}

/// All three kinds of batches from any counter on are the same blocks, which a library has too.
fn batches<M: Machine>(machine: M) {
    fn bytes<M: Machine, L: Lanes<Vector = M::Vector>>(machine: M, lanes: L, counter: u32) -> Vec<u8> {
        let stream = chacha20::stream(lanes, &KEY, &NONCE, counter);
        assert_eq!(stream.as_ref().len(), L::BLOCKS);
        let mut bytes = vec![[0; BLOCK_LEN]; L::BLOCKS];
        for (bytes, block) in bytes.iter_mut().zip(stream.as_ref()) {
            machine.store(bytes, *block);
        }
        bytes.concat()
    }
    for counter in [0, 1, 2, 7, 1_000, u32::MAX - 23] {
        let blocks = bytes(machine, machine.twenty_four(), counter);
        assert_eq!(bytes(machine, machine.sixteen(), counter), blocks[..16 * BLOCK_LEN]);
        assert_eq!(bytes(machine, machine.eight(), counter), blocks[..8 * BLOCK_LEN]);
        assert_eq!(bytes(machine, machine.eight(), counter + 16), blocks[16 * BLOCK_LEN..]);
    }
    let zeros = Libraries::new(&KEY).seal(NONCE, &[], &[0; TWENTY_FOUR]);
    assert_eq!(bytes(machine, machine.twenty_four(), 0)[BLOCK_LEN..], zeros[..TWENTY_FOUR]);
}

mod emulated {
    use super::*;

    #[test]
    fn every_length_to_beyond_some_batches() {
        every_length(Emulated);
    }

    #[test]
    fn every_alignment_of_a_text() {
        every_alignment(Emulated);
    }

    #[test]
    fn lengths_of_packets_and_the_longest() {
        long_packets(Emulated);
    }

    #[test]
    fn every_split_of_the_same_bytes() {
        every_split(Emulated);
    }

    #[test]
    fn a_forged_packet_leaves_zeros() {
        forgeries(Emulated);
    }

    #[test]
    fn a_packet_longer_than_any_is_neither_sealed_nor_opened() {
        too_long(Emulated);
    }

    #[test]
    fn a_key_can_be_erased() {
        erased(Emulated);
    }

    #[test]
    fn batches_of_all_kinds_are_the_same_blocks() {
        batches(Emulated);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_packet_is_sealed_as_a_library_does(
        key: [u8; KEY_LEN],
        nonce: [u8; NONCE_LEN],
        aad in prop::collection::vec(any::<u8>(), 0..40),
        text in prop::collection::vec(any::<u8>(), 0..1_700),
    ) {
        Compared::new(Emulated, &key).check(nonce, &aad, &text);
    }
}
