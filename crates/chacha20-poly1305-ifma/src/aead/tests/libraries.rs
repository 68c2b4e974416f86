//! ChaCha20-Poly1305 by others, to compare with: `ring` (assembly from BoringSSL) and
//! `chacha20poly1305` (portable Rust). Both must make the same of a packet. The fuzz target has
//! this module too.

use chacha20_poly1305_ifma::{KEY_LEN, NONCE_LEN, TAG_LEN};
use chacha20poly1305::ChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut as _, KeyInit as _};
use ring::aead;

pub(crate) struct Libraries {
    ring: aead::LessSafeKey,
    portable: ChaCha20Poly1305,
}

impl Libraries {
    pub(crate) fn new(key: &[u8; KEY_LEN]) -> Self {
        let unbound = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, key).expect("a key of 32 bytes");
        Self { ring: aead::LessSafeKey::new(unbound), portable: ChaCha20Poly1305::new(key.into()) }
    }

    /// The ciphertext, then the tag.
    pub(crate) fn seal(&self, nonce: [u8; NONCE_LEN], aad: &[u8], text: &[u8]) -> Vec<u8> {
        let reason = "a text of at most 65,535 bytes";
        let mut sealed = text.to_vec();
        let with = aead::Nonce::assume_unique_for_key(nonce);
        self.ring.seal_in_place_append_tag(with, aead::Aad::from(aad), &mut sealed).expect(reason);
        let mut other = text.to_vec();
        let buffer = other.as_mut_slice().into();
        let tag = self.portable.encrypt_inout_detached(&nonce.into(), aad, buffer).expect(reason);
        other.extend(<[u8; TAG_LEN]>::from(tag));
        assert!(sealed == other, "the libraries differ");
        sealed
    }

    /// Whether `packet`, of at least a tag, is authentic.
    pub(crate) fn open(&self, nonce: [u8; NONCE_LEN], aad: &[u8], packet: &[u8]) -> bool {
        let with = aead::Nonce::assume_unique_for_key(nonce);
        let opened = self.ring.open_in_place(with, aead::Aad::from(aad), &mut packet.to_vec()).is_ok();
        let (text, tag) = packet.split_last_chunk::<TAG_LEN>().expect("at least a tag");
        let (mut text, tag) = (text.to_vec(), (*tag).into());
        let buffer = text.as_mut_slice().into();
        let other = self.portable.decrypt_inout_detached(&nonce.into(), aad, buffer, &tag);
        assert_eq!(opened, other.is_ok(), "the libraries differ");
        opened
    }
}
