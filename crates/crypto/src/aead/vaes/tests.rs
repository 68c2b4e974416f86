//! Our own AES-GCM against libraries, byte for byte. Published vectors and everything that holds for all backends are
//! tested with the others, in `vectors` and `tests` of the module above.

use proptest::prelude::*;

use super::*;
use crate::aead::Cipher;
use crate::backend::Backend;
use crate::suite::Suite;

const NONCE: [u8; IV_LEN] = *b"twelve bytes";
const AAD: [u8; 16] = *b"a header's bytes";

/// A key by our code; nothing, said loudly, on a processor that can't run it.
fn own<const R: usize>(key: &[u8]) -> Option<Box<Gcm<R>>> {
    let own = Gcm::new(key);
    if own.is_none() {
        eprintln!("NOT TESTED: this processor lacks AVX-512, VAES or VPCLMULQDQ");
    }
    own
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

/// What a library makes of `text`: ciphertext and tag.
fn by_library(library: Backend, key: &[u8], nonce: [u8; IV_LEN], aad: &[u8], text: &[u8]) -> Vec<u8> {
    let suite = if key.len() == 16 { Suite::Aes128Gcm } else { Suite::Aes256Gcm };
    let mut sealed = [text, &[0; TAG_LEN]].concat();
    let len = Cipher::new(suite, library, key).unwrap().seal(nonce, aad, &mut sealed, text.len());
    assert_eq!(len, Ok(sealed.len()));
    sealed
}

/// Seals and opens with our code, and compares with a library.
fn compare<const R: usize>(library: Backend, key: &[u8], nonce: [u8; IV_LEN], aad: &[u8], text: &[u8]) {
    let Some(own) = own::<R>(key) else { return };
    let wanted = by_library(library, key, nonce, aad, text);
    let mut packet = text.to_vec();
    let tag = own.seal(nonce, aad, &mut packet);
    let (ciphertext, wanted_tag) = wanted.split_last_chunk().unwrap();
    assert!(packet == ciphertext, "ciphertext of {} bytes, {} beside", text.len(), aad.len());
    assert_eq!(&tag, wanted_tag, "tag of {} bytes, {} beside", text.len(), aad.len());
    assert_eq!(own.open(nonce, aad, &mut packet, &tag), Ok(()));
    assert!(packet == text, "opened {} bytes", text.len());
}

#[test]
fn every_length_to_beyond_two_chunks_and_the_longest() {
    let (key, text) = ([0x5A; 32], text(MAX_PLAINTEXT_LEN));
    for len in (0..=2 * CHUNK + VECTOR + 1).chain([1_448, 8_999, MAX_PLAINTEXT_LEN - 1, MAX_PLAINTEXT_LEN]) {
        compare::<ROUNDS_128>(Backend::AwsLc, &key[..16], NONCE, &AAD, &text[..len]);
        compare::<ROUNDS_256>(Backend::AwsLc, &key, NONCE, &AAD, &text[..len]);
    }
}

#[test]
fn every_length_of_associated_data() {
    let (key, text) = ([0x5A; 32], text(600));
    for len in 0..=50 {
        compare::<ROUNDS_128>(Backend::Ring, &key[..16], NONCE, &text[..len], &text);
        compare::<ROUNDS_256>(Backend::Ring, &key, NONCE, &text[..len], &text);
    }
}

proptest! {
    #[test]
    fn any_packet_is_sealed_as_a_library_does(
        key: [u8; 32],
        nonce: [u8; IV_LEN],
        aad in prop::collection::vec(any::<u8>(), 0..40),
        text in prop::collection::vec(any::<u8>(), 0..3_000),
    ) {
        compare::<ROUNDS_128>(Backend::RustCrypto, &key[..16], nonce, &aad, &text);
        compare::<ROUNDS_256>(Backend::Ring, &key, nonce, &aad, &text);
    }
}

#[test]
fn a_forged_packet_leaves_zeros() {
    let Some(own) = own::<ROUNDS_256>(&[7; 32]) else { return };
    let mut sealed = text(1_448);
    let tag = own.seal(NONCE, &AAD, &mut sealed);
    for byte in 0..sealed.len() {
        let mut forged = sealed.clone();
        forged[byte] ^= 1 << (byte % 8);
        assert_eq!(own.open(NONCE, &AAD, &mut forged, &tag), Err(OpenError), "byte {byte}");
        assert!(forged.iter().all(|&byte| byte == 0), "byte {byte}");
    }
    for bit in 0..8 * TAG_LEN {
        let mut other = tag;
        other[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            own.open(NONCE, &AAD, &mut sealed.clone(), &other),
            Err(OpenError),
            "bit {bit} of the tag"
        );
    }
    assert_eq!(own.open(NONCE, &AAD, &mut sealed, &tag), Ok(()));
}

#[test]
fn a_packet_longer_than_any_is_not_opened() {
    let Some(own) = own::<ROUNDS_128>(&[7; 16]) else { return };
    let mut long = vec![0; MAX_PLAINTEXT_LEN + 1];
    let sealed = by_library(Backend::AwsLc, &[7; 16], NONCE, &AAD, &long);
    assert_eq!(own.open(NONCE, &AAD, &mut long, sealed.last_chunk().unwrap()), Err(OpenError));
}

#[test]
fn an_expanded_key_can_be_erased() {
    let Some(mut own) = own::<ROUNDS_256>(&[7; 32]) else { return };
    assert!(own.round_keys.iter().all(|key| *key != [0; 16]));
    assert!(own.powers[..TOP].iter().all(|power| *power != [0; 16]));
    own.erase();
    assert_eq!(own.round_keys.as_flattened(), [0; 16 * (ROUNDS_256 + 1)]);
    assert_eq!(own.powers.as_flattened(), [0; 16 * (TOP + 3)]);
}
