//! Sealing and opening one packet, in place.
//!
//! A [`SealKey`] belongs to the sender of one lane, an [`OpenKey`] to its receiver. Which library
//! does the work is decided once, when the key is made; a packet costs one `match`, no allocation
//! and no virtual call of ours.
//!
//! The nonce of a packet is made from its counter as in TLS 1.3 (RFC 8446 §5.3), except that the
//! counter is little-endian like every integer on vpnd's data path:
//!
//! ```text
//! nonce (12 bytes) = IV of the lane XOR (0x00000000 || counter as u64, little-endian)
//! ```
//!
//! Sealed form of a packet, by suite:
//!
//! | suite | bytes |
//! |---|---|
//! | AES-GCM, ChaCha20-Poly1305 | ciphertext ‖ tag (16) |
//! | `none` | plaintext |
//! | `auth-only` | plaintext ‖ tag (16) |
//! | `aes-256-cbc-hmac-sha-256` | ciphertext with padding ‖ IV (16) ‖ tag (16) |
//!
//! Invariants:
//!
//! - INVARIANT: counters at or above [`Limits::refuse_after`](crate::Limits) are neither sealed nor
//!   opened.
//! - INVARIANT: a packet that fails to open gives no slice, and its buffer then holds no plaintext
//!   that the packet did not carry in the clear (`auth-only` does): each backend either checks the
//!   tag before it decrypts or overwrites what it wrote.
//! - Tags are compared in constant time, and every reason for a failure to open looks the same.
//! - Whether a counter was used before is not known here. The sender of a lane counts, its receiver
//!   has a replay window.
//!
//! - Expanded keys are erased when dropped, whichever library made them. Copies that a library
//!   leaves on the stack while it expands a key are out of reach for safe code.

mod cipher;
mod erased;
mod lab;
pub mod noise;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;

use std::fmt;

pub(crate) use cipher::{Cipher, TAG_LEN};

use crate::backend::Backend;
use crate::schedule::{IV_LEN, LaneKey};
use crate::secret::Secret;
use crate::suite::{LabPermit, MAX_PLAINTEXT_LEN, Suite};

/// The part of a lane that both ends share.
struct Key {
    cipher: Cipher,
    iv: Secret<IV_LEN>,
    suite: Suite,
    backend: Backend,
}

impl Key {
    fn new(
        suite: Suite,
        backend: Backend,
        lane_key: &LaneKey,
        permit: Option<LabPermit>,
    ) -> Result<Self, KeyError> {
        if suite.is_lab_only() && permit.is_none() {
            return Err(KeyError::LabOnly(suite));
        }
        if lane_key.suite() != suite {
            return Err(KeyError::OtherSuite { wanted: suite, derived: lane_key.suite() });
        }
        let cipher =
            Cipher::new(suite, backend, lane_key.key()).ok_or(KeyError::Unsupported { suite, backend })?;
        Ok(Self { cipher, iv: Secret::copy_of(lane_key.iv()), suite, backend })
    }

    /// The nonce for `counter`, or nothing if the counter is beyond the suite's limit.
    #[inline]
    fn nonce(&self, counter: u64) -> Option<[u8; IV_LEN]> {
        if counter >= self.suite.limits().refuse_after {
            return None;
        }
        let mut nonce = *self.iv.expose();
        for (byte, counter_byte) in nonce[4..].iter_mut().zip(counter.to_le_bytes()) {
            *byte ^= counter_byte;
        }
        Some(nonce)
    }

    fn fmt(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("suite", &self.suite)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

/// The key with which the one sender of a lane seals its packets.
///
/// Not `Clone`: two holders would count separately and repeat nonces.
pub struct SealKey(Key);

impl SealKey {
    /// Expands `lane_key` for use by `backend`.
    ///
    /// # Errors
    /// [`KeyError`]: a suite for the laboratory without `permit`, a lane key of another suite, or a
    /// suite that the backend lacks.
    pub fn new(
        suite: Suite,
        backend: Backend,
        lane_key: &LaneKey,
        permit: Option<LabPermit>,
    ) -> Result<Self, KeyError> {
        Key::new(suite, backend, lane_key, permit).map(Self)
    }

    /// Seals `buf[..plaintext_len]` in place, writes tag and padding behind it, and returns the
    /// sealed length, `suite.sealed_len(plaintext_len)`. Bytes of `buf` behind that are not
    /// touched.
    ///
    /// `aad` is authenticated with the packet and sent with it. **`counter` must never have been
    /// given to this key before**: a second packet with the same counter reveals both and lets
    /// anyone forge more.
    ///
    /// # Errors
    /// [`SealError`]; `buf` is as it was, and the counter counts as not used.
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
        let nonce = self.0.nonce(counter).ok_or(SealError::Exhausted)?;
        self.0.cipher.seal(nonce, aad, buf, plaintext_len)
    }

    /// The suite of the key.
    pub const fn suite(&self) -> Suite {
        self.0.suite
    }

    /// The library that does the work.
    pub const fn backend(&self) -> Backend {
        self.0.backend
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt("SealKey", f)
    }
}

/// The key with which the receiver of a lane opens its packets.
pub struct OpenKey(Key);

impl OpenKey {
    /// Expands `lane_key` for use by `backend`, which need not be the sender's.
    ///
    /// # Errors
    /// [`KeyError`], as for [`SealKey::new`].
    pub fn new(
        suite: Suite,
        backend: Backend,
        lane_key: &LaneKey,
        permit: Option<LabPermit>,
    ) -> Result<Self, KeyError> {
        Key::new(suite, backend, lane_key, permit).map(Self)
    }

    /// Opens the sealed packet that fills `buf`, and returns its plaintext, which lies at the start
    /// of `buf`.
    ///
    /// # Errors
    /// [`OpenError`], whatever the reason. The content of `buf` is then unspecified, and holds no
    /// plaintext that was sealed by encryption.
    #[inline]
    pub fn open_in_place<'a>(
        &self,
        counter: u64,
        aad: &[u8],
        buf: &'a mut [u8],
    ) -> Result<&'a mut [u8], OpenError> {
        let nonce = self.0.nonce(counter).ok_or(OpenError)?;
        self.0.cipher.open(nonce, aad, buf)
    }

    /// The suite of the key.
    pub const fn suite(&self) -> Suite {
        self.0.suite
    }

    /// The library that does the work.
    pub const fn backend(&self) -> Backend {
        self.0.backend
    }
}

impl fmt::Debug for OpenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt("OpenKey", f)
    }
}

/// The error of a key that could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The suite is for the laboratory and no [`LabPermit`] was shown.
    #[error(
        "cipher suite {0} protects nothing or not enough: both ends must be started with the insecure switch"
    )]
    LabOnly(Suite),
    /// The lane key was derived for another suite; sealing with it would use its bytes for two
    /// purposes.
    #[error("a lane key derived for {derived} can't be used with {wanted}")]
    OtherSuite {
        /// The suite asked for.
        wanted: Suite,
        /// The suite in the lane key's derivation.
        derived: Suite,
    },
    /// The backend doesn't implement the suite.
    #[error("{backend} does not implement {suite}; choose another backend, or let the measurement choose")]
    Unsupported {
        /// The suite asked for.
        suite: Suite,
        /// The library asked for.
        backend: Backend,
    },
}

/// The error of a packet that was not sealed. All three are faults of the caller, not of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The counter reached the limit of the key: only a new epoch helps.
    #[error("the key has sealed all the packets it may; a new epoch is needed")]
    Exhausted,
    /// The buffer ends before the sealed packet would.
    #[error("the buffer has no room for the sealed packet")]
    BufferTooShort,
    /// The plaintext is longer than [`MAX_PLAINTEXT_LEN`].
    #[error("a packet of more than 65,535 bytes can't be sealed")]
    TooLong,
}

/// A packet is not authentic, or malformed, or its counter is beyond the limit. One value for all
/// reasons, so that nothing about the key can be learnt from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet is not authentic")]
pub struct OpenError;
