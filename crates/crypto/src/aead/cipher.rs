//! One enum over suites and backends: the whole dispatch of the data path.
//!
//! Contexts of some hundred bytes are boxed, so that a key is a few words wherever it is stored.
//! Nothing here knows counters, limits or permits; [`super`] has checked them.

use aes_gcm::aead::{AeadInOut, KeyInit, Nonce, Tag};
use aes_gcm_vaes::Width;
use aws_lc_rs::aead as lc;
use ring::aead as ring_aead;

use super::erased::Erased;
use super::lab::{CbcHmac, Mac};
use super::{OpenError, SealError};
use crate::backend::Backend;
use crate::schedule::IV_LEN;
use crate::suite::{MAX_PLAINTEXT_LEN, Suite};

/// Bytes of every tag.
pub(crate) const TAG_LEN: usize = 16;

// Tags, nonces and longest texts of our own ciphers are those of a packet.
const _: () = assert!(aes_gcm_vaes::TAG_LEN == TAG_LEN && aes_gcm_vaes::NONCE_LEN == IV_LEN);
const _: () = assert!(aes_gcm_vaes::MAX_TEXT_LEN >= MAX_PLAINTEXT_LEN);
const _: () =
    assert!(chacha20_poly1305_ifma::TAG_LEN == TAG_LEN && chacha20_poly1305_ifma::NONCE_LEN == IV_LEN);
const _: () = assert!(chacha20_poly1305_ifma::MAX_TEXT_LEN >= MAX_PLAINTEXT_LEN);

/// Longest plaintext for which ring's ChaCha20-Poly1305 is faster than our own, which prepares for
/// many blocks, in bytes.
pub(super) const SHORT: usize = 384;

/// A suite as one backend implements it, with its expanded key.
pub(crate) enum Cipher {
    Ring(Erased<ring_aead::LessSafeKey>),
    AwsLc(lc::LessSafeKey),
    Aes128Gcm(Box<aes_gcm::Aes128Gcm>),
    Aes256Gcm(Box<aes_gcm::Aes256Gcm>),
    ChaCha20Poly1305(Box<chacha20poly1305::ChaCha20Poly1305>),
    Vaes(aes_gcm_vaes::Key),
    /// Both keys are the same one: bytes do not tell which has sealed them.
    Ifma {
        own: chacha20_poly1305_ifma::Key,
        short: Erased<ring_aead::LessSafeKey>,
    },
    /// Our own key alone, by [`Cipher::own_alone`].
    IfmaAlone(chacha20_poly1305_ifma::Key),
    Null,
    AuthOnly(Box<Mac>),
    CbcHmac(Box<CbcHmac>),
    /// A faulty one: it seals as the other does, and opens whatever is as long as a tag.
    #[cfg(test)]
    Gullible(Box<Self>),
}

impl Cipher {
    /// Expands `key`, which has `suite.key_len()` bytes. Nothing if the backend lacks the suite.
    pub(crate) fn new(suite: Suite, backend: Backend, key: &[u8]) -> Option<Self> {
        assert_eq!(key.len(), suite.key_len(), "lane keys have the length of their suite");
        if !backend.supports(suite) {
            return None;
        }
        Some(match suite {
            Suite::Aes128Gcm | Suite::Aes256Gcm | Suite::ChaCha20Poly1305 => {
                return Self::standard(suite, backend, key);
            }
            Suite::Null => Self::Null,
            Suite::AuthOnly => Self::AuthOnly(Box::new(Mac::new(backend, key))),
            Suite::Aes256CbcHmacSha256 => Self::CbcHmac(Box::new(CbcHmac::new(backend, key))),
        })
    }

    fn standard(suite: Suite, backend: Backend, key: &[u8]) -> Option<Self> {
        const WHY: &str = "the key has the length of its suite";
        Some(match backend {
            Backend::Ring => {
                let algorithm = match suite {
                    Suite::Aes128Gcm => &ring_aead::AES_128_GCM,
                    Suite::Aes256Gcm => &ring_aead::AES_256_GCM,
                    _ => &ring_aead::CHACHA20_POLY1305,
                };
                Self::Ring(of_ring(algorithm, key))
            }
            Backend::AwsLc => {
                let algorithm = match suite {
                    Suite::Aes128Gcm => &lc::AES_128_GCM,
                    Suite::Aes256Gcm => &lc::AES_256_GCM,
                    _ => &lc::CHACHA20_POLY1305,
                };
                Self::AwsLc(lc::LessSafeKey::new(lc::UnboundKey::new(algorithm, key).expect(WHY)))
            }
            Backend::RustCrypto => match suite {
                Suite::Aes128Gcm => {
                    Self::Aes128Gcm(Box::new(aes_gcm::Aes128Gcm::new_from_slice(key).expect(WHY)))
                }
                Suite::Aes256Gcm => {
                    Self::Aes256Gcm(Box::new(aes_gcm::Aes256Gcm::new_from_slice(key).expect(WHY)))
                }
                _ => Self::ChaCha20Poly1305(Box::new(
                    chacha20poly1305::ChaCha20Poly1305::new_from_slice(key).expect(WHY),
                )),
            },
            Backend::Vaes256 | Backend::Vaes512 if !suite.is_aes_gcm() => return None,
            Backend::Vaes256 => Self::Vaes(aes_gcm_vaes::Key::new(Width::Bits256, key)?),
            Backend::Vaes512 => Self::Vaes(aes_gcm_vaes::Key::new(Width::Bits512, key)?),
            Backend::Ifma if suite.is_aes_gcm() => return None,
            Backend::Ifma => Self::Ifma {
                own: chacha20_poly1305_ifma::Key::new(key.try_into().expect(WHY))?,
                short: of_ring(&ring_aead::CHACHA20_POLY1305, key),
            },
        })
    }

    /// Our own code at every length, without the library that seals and opens its short packets.
    pub(crate) fn own_alone(self) -> Self {
        match self {
            Self::Ifma { own, .. } => Self::IfmaAlone(own),
            other => other,
        }
    }

    /// Seals `buf[..plaintext_len]` in place and returns the sealed length.
    #[inline]
    pub(crate) fn seal(
        &self,
        nonce: [u8; IV_LEN],
        aad: &[u8],
        buf: &mut [u8],
        plaintext_len: usize,
    ) -> Result<usize, SealError> {
        match self {
            Self::Ring(key) => seal_by_ring(key, nonce, aad, buf, plaintext_len),
            Self::AwsLc(key) => with_tag(buf, plaintext_len, |text, tag| {
                let nonce = lc::Nonce::assume_unique_for_key(nonce);
                let sealed = key.seal_in_place_scatter(nonce, lc::Aad::from(aad), text, &[], tag);
                sealed.map_err(|_| SealError::TooLong)
            }),
            Self::Aes128Gcm(key) => seal_detached(&**key, nonce, aad, buf, plaintext_len),
            Self::Aes256Gcm(key) => seal_detached(&**key, nonce, aad, buf, plaintext_len),
            Self::ChaCha20Poly1305(key) => seal_detached(&**key, nonce, aad, buf, plaintext_len),
            Self::Vaes(key) => with_tag(buf, plaintext_len, |text, tag| {
                *tag = key.seal(nonce, aad, text);
                Ok(())
            }),
            Self::Ifma { short, .. } if plaintext_len <= SHORT => {
                seal_by_ring(short, nonce, aad, buf, plaintext_len)
            }
            Self::Ifma { own, .. } | Self::IfmaAlone(own) => with_tag(buf, plaintext_len, |text, tag| {
                *tag = own.seal(nonce, aad, text);
                Ok(())
            }),
            Self::Null if plaintext_len > buf.len() => Err(SealError::BufferTooShort),
            Self::Null => Ok(plaintext_len),
            Self::AuthOnly(mac) => with_tag(buf, plaintext_len, |text, tag| {
                *tag = mac.tag(&nonce, aad, text);
                Ok(())
            }),
            Self::CbcHmac(cipher) => cipher.seal(nonce, aad, buf, plaintext_len),
            #[cfg(test)]
            Self::Gullible(cipher) => cipher.seal(nonce, aad, buf, plaintext_len),
        }
    }

    /// Opens `buf` in place and returns the plaintext at its start.
    #[inline]
    pub(crate) fn open<'a>(
        &self,
        nonce: [u8; IV_LEN],
        aad: &[u8],
        buf: &'a mut [u8],
    ) -> Result<&'a mut [u8], OpenError> {
        match self {
            Self::Ring(key) => open_by_ring(key, nonce, aad, buf),
            Self::AwsLc(key) => {
                let nonce = lc::Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, lc::Aad::from(aad), buf).map_err(|_| OpenError)
            }
            Self::Aes128Gcm(key) => open_detached(&**key, nonce, aad, buf),
            Self::Aes256Gcm(key) => open_detached(&**key, nonce, aad, buf),
            Self::ChaCha20Poly1305(key) => open_detached(&**key, nonce, aad, buf),
            Self::Vaes(key) => {
                let (text, tag) = buf.split_last_chunk_mut().ok_or(OpenError)?;
                key.open(nonce, aad, text, tag).map_err(|_| OpenError)?;
                Ok(text)
            }
            Self::Ifma { short, .. } if buf.len() <= SHORT + TAG_LEN => open_by_ring(short, nonce, aad, buf),
            Self::Ifma { own, .. } | Self::IfmaAlone(own) => {
                let (text, tag) = buf.split_last_chunk_mut().ok_or(OpenError)?;
                own.open(nonce, aad, text, tag).map_err(|_| OpenError)?;
                Ok(text)
            }
            Self::Null => Ok(buf),
            Self::AuthOnly(mac) => {
                let (text, tag) = buf.split_last_chunk_mut::<TAG_LEN>().ok_or(OpenError)?;
                mac.verify(&nonce, aad, text, tag)?;
                Ok(text)
            }
            Self::CbcHmac(cipher) => cipher.open(nonce, aad, buf),
            // Sealed once more, a ciphertext is the plaintext again.
            #[cfg(test)]
            Self::Gullible(cipher) => {
                let len = buf.len().checked_sub(TAG_LEN).ok_or(OpenError)?;
                cipher.seal(nonce, aad, buf, len).map_err(|_| OpenError)?;
                Ok(&mut buf[..len])
            }
        }
    }
}

/// A key of ring's, which has the algorithm's length.
fn of_ring(algorithm: &'static ring_aead::Algorithm, key: &[u8]) -> Erased<ring_aead::LessSafeKey> {
    let key = ring_aead::UnboundKey::new(algorithm, key).expect("the key has the length of its suite");
    Erased::new(ring_aead::LessSafeKey::new(key))
}

#[inline]
fn seal_by_ring(
    key: &ring_aead::LessSafeKey,
    nonce: [u8; IV_LEN],
    aad: &[u8],
    buf: &mut [u8],
    plaintext_len: usize,
) -> Result<usize, SealError> {
    with_tag(buf, plaintext_len, |text, tag| {
        let nonce = ring_aead::Nonce::assume_unique_for_key(nonce);
        let sealed = key.seal_in_place_separate_tag(nonce, ring_aead::Aad::from(aad), text);
        tag.copy_from_slice(sealed.map_err(|_| SealError::TooLong)?.as_ref());
        Ok(())
    })
}

#[inline]
fn open_by_ring<'a>(
    key: &ring_aead::LessSafeKey,
    nonce: [u8; IV_LEN],
    aad: &[u8],
    buf: &'a mut [u8],
) -> Result<&'a mut [u8], OpenError> {
    let nonce = ring_aead::Nonce::assume_unique_for_key(nonce);
    key.open_in_place(nonce, ring_aead::Aad::from(aad), buf).map_err(|_| OpenError)
}

/// Gives `seal` the plaintext and the room for the tag behind it, and returns the sealed length.
///
/// The only packets that a backend itself refuses are far longer than any datagram, hence
/// [`SealError::TooLong`].
#[inline]
fn with_tag(
    buf: &mut [u8],
    plaintext_len: usize,
    seal: impl FnOnce(&mut [u8], &mut [u8; TAG_LEN]) -> Result<(), SealError>,
) -> Result<usize, SealError> {
    let (text, room) = buf.split_at_mut_checked(plaintext_len).ok_or(SealError::BufferTooShort)?;
    let tag = room.first_chunk_mut().ok_or(SealError::BufferTooShort)?;
    seal(text, tag)?;
    Ok(plaintext_len + TAG_LEN)
}

#[inline]
fn seal_detached<C>(
    cipher: &C,
    nonce: [u8; IV_LEN],
    aad: &[u8],
    buf: &mut [u8],
    plaintext_len: usize,
) -> Result<usize, SealError>
where
    C: AeadInOut,
    [u8; IV_LEN]: Into<Nonce<C>>,
    Tag<C>: Into<[u8; TAG_LEN]>,
{
    with_tag(buf, plaintext_len, |text, tag| {
        let sealed = cipher.encrypt_inout_detached(&nonce.into(), aad, text.into());
        *tag = sealed.map_err(|_| SealError::TooLong)?.into();
        Ok(())
    })
}

#[inline]
fn open_detached<'a, C>(
    cipher: &C,
    nonce: [u8; IV_LEN],
    aad: &[u8],
    buf: &'a mut [u8],
) -> Result<&'a mut [u8], OpenError>
where
    C: AeadInOut,
    [u8; IV_LEN]: Into<Nonce<C>>,
    [u8; TAG_LEN]: Into<Tag<C>>,
{
    let (text, tag) = buf.split_last_chunk_mut::<TAG_LEN>().ok_or(OpenError)?;
    cipher
        .decrypt_inout_detached(&nonce.into(), aad, (&mut *text).into(), &(*tag).into())
        .map_err(|_| OpenError)?;
    Ok(text)
}
