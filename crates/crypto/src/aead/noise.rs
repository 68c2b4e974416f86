//! ChaCha20-Poly1305 with the nonces of the Noise framework, for WireGuard.
//!
//! ```text
//! nonce (12 bytes) = 0x00000000 || counter as u64, little-endian
//! ```
//!
//! Noise and WireGuard set their own limits, so this key has none but a packet's length: the caller
//! counts, and keeps them.

use std::fmt;

use super::{Cipher, OpenError, SealError};
use crate::backend::Backend;
use crate::schedule::IV_LEN;
use crate::secret::Secret;
use crate::suite::{MAX_PLAINTEXT_LEN, Suite};

/// A key of one direction, or of one message of a handshake.
pub struct NoiseKey(Cipher);

impl NoiseKey {
    /// Expands `key` for use by `backend`; nothing if the backend has no ChaCha20-Poly1305.
    #[must_use]
    pub fn new(backend: Backend, key: &Secret<32>) -> Option<Self> {
        Cipher::new(Suite::ChaCha20Poly1305, backend, key.expose()).map(Self)
    }

    /// Seals `buf[..plaintext_len]` in place, writes the tag of 16 bytes behind it, and returns the
    /// sealed length. **`counter` must never have been given to this key before.**
    ///
    /// # Errors
    /// If the buffer has no room for the tag, or the plaintext is longer than
    /// [`MAX_PLAINTEXT_LEN`]; `buf` is as it was, and the counter counts as not used.
    #[inline]
    pub fn seal_in_place(
        &self,
        counter: u64,
        aad: &[u8],
        buf: &mut [u8],
        plaintext_len: usize,
    ) -> Result<usize, SealError> {
        if plaintext_len > MAX_PLAINTEXT_LEN {
            return Err(SealError::TooLong);
        }
        self.0.seal(nonce(counter), aad, buf, plaintext_len)
    }

    /// Opens the sealed bytes that fill `buf`, and returns the plaintext, which lies at the start
    /// of `buf`.
    ///
    /// # Errors
    /// If they are not authentic. `buf` then holds no plaintext.
    #[inline]
    pub fn open_in_place<'a>(
        &self,
        counter: u64,
        aad: &[u8],
        buf: &'a mut [u8],
    ) -> Result<&'a mut [u8], OpenError> {
        self.0.open(nonce(counter), aad, buf)
    }
}

impl fmt::Debug for NoiseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NoiseKey")
    }
}

#[inline]
fn nonce(counter: u64) -> [u8; IV_LEN] {
    let mut nonce = [0; IV_LEN];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nonce_is_four_zeros_and_the_counter() {
        assert_eq!(nonce(0x0807_0605_0403_0201), [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn every_counter_can_be_used_and_each_backend_opens_what_another_sealed() {
        let key = |backend| NoiseKey::new(backend, &Secret::new([7; 32]));
        let keys: Vec<_> = Backend::ALL.into_iter().filter_map(key).collect();
        assert!(keys.len() >= Backend::LIBRARIES.len());
        for counter in [0, 1 << 26, u64::MAX] {
            for (sealing, opening) in keys.iter().zip(keys.iter().cycle().skip(1)) {
                let mut buf = *b"text and its tag";
                assert_eq!(
                    sealing.seal_in_place(counter, b"aad", &mut buf, 4),
                    Err(SealError::BufferTooShort)
                );
                let mut buf = [0; 20];
                buf[..4].copy_from_slice(b"text");
                assert_eq!(sealing.seal_in_place(counter, b"aad", &mut buf, 4), Ok(20));
                let mut other = buf;
                assert!(opening.open_in_place(counter ^ 1, b"aad", &mut other).is_err());
                assert_eq!(opening.open_in_place(counter, b"aad", &mut buf).as_deref(), Ok(&b"text"[..]));
            }
        }
    }
}
