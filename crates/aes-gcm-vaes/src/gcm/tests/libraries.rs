//! AES-GCM by others, to compare with: `ring` (assembly from BoringSSL) and `aes-gcm` (portable
//! Rust). Both must make the same of a packet. The fuzz target has this module too.

use aes_gcm::aead::{AeadInOut as _, KeyInit as _};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use aes_gcm_vaes::{NONCE_LEN, TAG_LEN};
use ring::aead;

pub(crate) struct Libraries {
    ring: aead::LessSafeKey,
    portable: Portable,
}

enum Portable {
    Aes128(Box<Aes128Gcm>),
    Aes256(Box<Aes256Gcm>),
}

impl Libraries {
    pub(crate) fn new(key: &[u8]) -> Self {
        let reason = "a key of 16 or 32 bytes";
        let (algorithm, portable) = if key.len() == 16 {
            (&aead::AES_128_GCM, Portable::Aes128(Box::new(Aes128Gcm::new_from_slice(key).expect(reason))))
        } else {
            (&aead::AES_256_GCM, Portable::Aes256(Box::new(Aes256Gcm::new_from_slice(key).expect(reason))))
        };
        let ring = aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, key).expect(reason));
        Self { ring, portable }
    }

    /// The ciphertext, then the tag.
    pub(crate) fn seal(&self, nonce: [u8; NONCE_LEN], aad: &[u8], text: &[u8]) -> Vec<u8> {
        let reason = "a text of at most 65,535 bytes";
        let mut sealed = text.to_vec();
        let with = aead::Nonce::assume_unique_for_key(nonce);
        self.ring.seal_in_place_append_tag(with, aead::Aad::from(aad), &mut sealed).expect(reason);
        let mut other = text.to_vec();
        let buffer = other.as_mut_slice().into();
        let tag: [u8; TAG_LEN] = match &self.portable {
            Portable::Aes128(key) => {
                key.encrypt_inout_detached(&nonce.into(), aad, buffer).expect(reason).into()
            }
            Portable::Aes256(key) => {
                key.encrypt_inout_detached(&nonce.into(), aad, buffer).expect(reason).into()
            }
        };
        other.extend(tag);
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
        let other = match &self.portable {
            Portable::Aes128(key) => key.decrypt_inout_detached(&nonce.into(), aad, buffer, &tag),
            Portable::Aes256(key) => key.decrypt_inout_detached(&nonce.into(), aad, buffer, &tag),
        };
        assert_eq!(opened, other.is_ok(), "the libraries differ");
        opened
    }
}
