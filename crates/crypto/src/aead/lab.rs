//! The two suites for the laboratory that do something: authentication alone, and AES-256-CBC with
//! HMAC-SHA-256.
//!
//! Both authenticate with HMAC-SHA-256 truncated to its first 128 bits (RFC 4868) over
//!
//! ```text
//! nonce (12 bytes) || length of the associated data (u64, little-endian)
//!     || associated data || text
//! ```
//!
//! The length makes the input unambiguous; the nonce carries the counter. `text` is the plaintext
//! for `auth-only`.
//!
//! For CBC, `text` is the ciphertext followed by its IV, and the key material is three keys of 32
//! bytes: encryption, IV, authentication. The IV must be unpredictable (NIST SP 800-38A, appendix
//! C), so it is `nonce || 0x00000000` encrypted with AES-256 under the IV key; since nonces never
//! repeat, neither do IVs, and no randomness is needed. It travels with the packet, as in IPsec
//! (RFC 3602), but behind the ciphertext, so that nothing has to be moved.
//!
//! INVARIANT: nothing is decrypted before its tag was checked, so padding is no oracle.

use aes::cipher::{BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, InnerIvInit, KeyInit};
use aes::{Aes256Dec, Aes256Enc, Block};
use aws_lc_rs::cipher as lc;
use aws_lc_rs::iv::FixedLength;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::erased::Erased;
use super::{OpenError, SealError, TAG_LEN};
use crate::backend::Backend;
use crate::schedule::IV_LEN;
use crate::suite::Suite;

const BLOCK_LEN: usize = 16;

/// HMAC-SHA-256-128 with its key.
#[expect(clippy::large_enum_variant, reason = "lives behind a Box, and only in the laboratory")]
pub(crate) enum Mac {
    Ring(Erased<ring::hmac::Key>),
    AwsLc(aws_lc_rs::hmac::Key),
    RustCrypto(Hmac<Sha256>),
}

impl Mac {
    /// Takes the key. The backend must support the suite.
    pub(super) fn new(backend: Backend, key: &[u8]) -> Self {
        match backend {
            Backend::Ring => Self::Ring(Erased::new(ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key))),
            Backend::AwsLc => Self::AwsLc(aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, key)),
            Backend::RustCrypto | Backend::Vaes256 | Backend::Vaes512 | Backend::Ifma => Self::RustCrypto(
                <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of every length"),
            ),
        }
    }

    pub(super) fn tag(&self, nonce: &[u8; IV_LEN], aad: &[u8], text: &[u8]) -> [u8; TAG_LEN] {
        self.tag_of([nonce, &(aad.len() as u64).to_le_bytes(), aad, text])
    }

    pub(super) fn verify(
        &self,
        nonce: &[u8; IV_LEN],
        aad: &[u8],
        text: &[u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), OpenError> {
        if self.tag(nonce, aad, text).ct_eq(tag).into() { Ok(()) } else { Err(OpenError) }
    }

    /// The truncated HMAC over the concatenation of `parts`.
    pub(super) fn tag_of<const N: usize>(&self, parts: [&[u8]; N]) -> [u8; TAG_LEN] {
        match self {
            Self::Ring(key) => {
                let mut context = ring::hmac::Context::with_key(key);
                parts.into_iter().for_each(|part| context.update(part));
                first_half(context.sign().as_ref())
            }
            Self::AwsLc(key) => {
                let mut context = aws_lc_rs::hmac::Context::with_key(key);
                parts.into_iter().for_each(|part| context.update(part));
                first_half(context.sign().as_ref())
            }
            Self::RustCrypto(keyed) => {
                let mut context = keyed.clone();
                parts.into_iter().for_each(|part| context.update(part));
                first_half(&context.finalize().into_bytes())
            }
        }
    }
}

fn first_half(tag: &[u8]) -> [u8; TAG_LEN] {
    *tag.first_chunk().expect("SHA-256 gives 32 bytes")
}

/// AES-256-CBC, then HMAC-SHA-256-128 over the ciphertext.
pub(crate) struct CbcHmac {
    cbc: Cbc,
    mac: Mac,
}

impl CbcHmac {
    /// Takes the three keys. The backend must support the suite.
    pub(super) fn new(backend: Backend, key: &[u8]) -> Self {
        let (text_key, rest) = key.split_first_chunk().expect("96 bytes of key material");
        let (iv_key, mac_key) = rest.split_first_chunk().expect("96 bytes of key material");
        Self { cbc: Cbc::new(backend, text_key, iv_key), mac: Mac::new(backend, mac_key) }
    }

    pub(super) fn seal(
        &self,
        nonce: [u8; IV_LEN],
        aad: &[u8],
        buf: &mut [u8],
        plaintext_len: usize,
    ) -> Result<usize, SealError> {
        let sealed_len = Suite::Aes256CbcHmacSha256.sealed_len(plaintext_len);
        let sealed = buf.get_mut(..sealed_len).ok_or(SealError::BufferTooShort)?;
        let (body, tag) =
            sealed.split_last_chunk_mut::<TAG_LEN>().expect("a sealed packet ends with its tag");
        let (text, iv) = body.split_last_chunk_mut::<BLOCK_LEN>().expect("an IV is before the tag");
        *iv = self.cbc.iv(&nonce);
        let pad = text.len() - plaintext_len;
        text[plaintext_len..].fill(pad as u8);
        self.cbc.encrypt(iv, text);
        *tag = self.mac.tag(&nonce, aad, body);
        Ok(sealed_len)
    }

    pub(super) fn open<'a>(
        &self,
        nonce: [u8; IV_LEN],
        aad: &[u8],
        buf: &'a mut [u8],
    ) -> Result<&'a mut [u8], OpenError> {
        let (body, tag) = buf.split_last_chunk_mut::<TAG_LEN>().ok_or(OpenError)?;
        self.mac.verify(&nonce, aad, body, tag)?;
        let (text, iv) = body.split_last_chunk_mut::<BLOCK_LEN>().ok_or(OpenError)?;
        self.cbc.decrypt(iv, text)
    }
}

/// AES-256-CBC with PKCS #7 padding (RFC 5652 §6.3), and the cipher that makes IVs.
#[expect(clippy::large_enum_variant, reason = "lives behind a Box, and only in the laboratory")]
pub(super) enum Cbc {
    AwsLc { encrypt: lc::EncryptingKey, decrypt: lc::DecryptingKey, iv: lc::EncryptingKey },
    RustCrypto { encrypt: Aes256Enc, decrypt: Aes256Dec, iv: Aes256Enc },
}

impl Cbc {
    /// AWS-LC for itself, RustCrypto for the rest: ring has no CBC.
    pub(super) fn new(backend: Backend, text_key: &[u8; 32], iv_key: &[u8; 32]) -> Self {
        const WHY: &str = "an AES-256 key has 32 bytes";
        if backend == Backend::AwsLc {
            let unbound = |key: &[u8; 32]| lc::UnboundCipherKey::new(&lc::AES_256, key).expect(WHY);
            return Self::AwsLc {
                encrypt: lc::EncryptingKey::cbc(unbound(text_key)).expect(WHY),
                decrypt: lc::DecryptingKey::cbc(unbound(text_key)).expect(WHY),
                iv: lc::EncryptingKey::ecb(unbound(iv_key)).expect(WHY),
            };
        }
        Self::RustCrypto {
            encrypt: Aes256Enc::new(text_key.into()),
            decrypt: Aes256Dec::new(text_key.into()),
            iv: Aes256Enc::new(iv_key.into()),
        }
    }

    fn iv(&self, nonce: &[u8; IV_LEN]) -> [u8; BLOCK_LEN] {
        let mut block = [0; BLOCK_LEN];
        block[..IV_LEN].copy_from_slice(nonce);
        match self {
            Self::AwsLc { iv, .. } => {
                iv.less_safe_encrypt(&mut block, lc::EncryptionContext::None).expect("one whole block");
            }
            Self::RustCrypto { iv, .. } => iv.encrypt_block((&mut block).into()),
        }
        block
    }

    /// Encrypts whole blocks in place.
    pub(super) fn encrypt(&self, iv: &[u8; BLOCK_LEN], text: &mut [u8]) {
        match self {
            Self::AwsLc { encrypt, .. } => {
                let context = lc::EncryptionContext::Iv128(FixedLength::from(*iv));
                encrypt.less_safe_encrypt(text, context).expect("whole blocks and a fitting IV");
            }
            Self::RustCrypto { encrypt, .. } => {
                let (blocks, rest) = Block::slice_as_chunks_mut(text);
                assert!(rest.is_empty(), "padding completes the last block");
                cbc::Encryptor::inner_iv_init(encrypt, iv.into()).encrypt_blocks(blocks);
            }
        }
    }

    /// Decrypts in place and takes the padding off.
    pub(super) fn decrypt<'a>(
        &self,
        iv: &[u8; BLOCK_LEN],
        text: &'a mut [u8],
    ) -> Result<&'a mut [u8], OpenError> {
        if text.is_empty() || !text.len().is_multiple_of(BLOCK_LEN) {
            return Err(OpenError);
        }
        match self {
            Self::AwsLc { decrypt, .. } => {
                let context = lc::DecryptionContext::Iv128(FixedLength::from(*iv));
                decrypt.decrypt(text, context).map_err(|_| OpenError)?;
            }
            Self::RustCrypto { decrypt, .. } => {
                let (blocks, _) = Block::slice_as_chunks_mut(text);
                cbc::Decryptor::inner_iv_init(decrypt, iv.into()).decrypt_blocks(blocks);
            }
        }
        unpad(text)
    }
}

/// The text without its padding: 1 to 16 bytes that each hold their number.
fn unpad(text: &mut [u8]) -> Result<&mut [u8], OpenError> {
    let pad = *text.last().ok_or(OpenError)?;
    let len = text.len().checked_sub(usize::from(pad)).ok_or(OpenError)?;
    let well_formed =
        (1..=BLOCK_LEN).contains(&usize::from(pad)) && text[len..].iter().all(|&byte| byte == pad);
    if well_formed { Ok(&mut text[..len]) } else { Err(OpenError) }
}
