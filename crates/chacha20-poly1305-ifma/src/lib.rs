//! ChaCha20-Poly1305 (RFC 8439) for packets, on x86 processors with AVX-512 and IFMA: up to
//! twenty-four blocks of ChaCha20 side by side, and eight numbers of Poly1305 in limbs of 44 bits.
//!
//! ```
//! use chacha20_poly1305_ifma::Key;
//!
//! // Nothing on a processor without the instructions.
//! if let Some(key) = Key::new(&[7; 32]) {
//!     let (nonce, header, mut text) = (*b"never twice!", b"header", *b"text");
//!     let tag = key.seal(nonce, header, &mut text);
//!     assert_eq!(key.open(nonce, header, &mut text, &tag), Ok(()));
//!     assert_eq!(&text, b"text");
//! }
//! ```
//!
//! **A nonce must never be given twice to the same key**: two packets with one nonce reveal both,
//! and let anyone forge more. The caller counts; this crate remembers nothing and draws no
//! randomness.
//!
//! | module | what |
//! |---|---|
//! | `aead` | a packet's way through both |
//! | `chacha20`, `poly1305` | the algorithms, once, over the operations of a machine |
//! | `machine` | those operations |
//! | `sys` | the processor; all that is `unsafe` |
//! | `emulated` | the same in plain integers, for tests only |
//!
//! The README says what is proved, what is tested and what is not promised.

#![deny(unsafe_code)]

// The body of the fuzz target, which tests replay, names the crate from outside.
#[cfg(test)]
extern crate self as chacha20_poly1305_ifma;

#[cfg(any(target_arch = "x86_64", test, fuzzing))]
mod aead;
#[cfg(any(target_arch = "x86_64", test, fuzzing))]
mod chacha20;
#[cfg(any(test, fuzzing))]
mod emulated;
#[cfg(any(target_arch = "x86_64", test, fuzzing))]
mod machine;
#[cfg(any(target_arch = "x86_64", test, fuzzing))]
mod poly1305;
#[cfg(target_arch = "x86_64")]
mod sys;

use std::fmt;

#[cfg(any(test, fuzzing))]
use emulated::Emulated;
#[cfg(target_arch = "x86_64")]
use sys::Avx512;

/// Bytes of a key.
pub const KEY_LEN: usize = 32;
/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;
/// Bytes of a tag.
pub const TAG_LEN: usize = 16;
/// Longest text that is sealed or opened, in bytes: no datagram carries more.
pub const MAX_TEXT_LEN: usize = 65_535;

/// Whether this processor has the instructions (AVX-512 F, BW, VL and IFMA), and the kernel saves
/// their registers.
pub fn is_supported() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Avx512::detect().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// A key, on the heap, erased when dropped.
pub struct Key(Form);

enum Form {
    #[cfg(target_arch = "x86_64")]
    Native(Box<aead::Key<Avx512>>),
    #[cfg(any(test, fuzzing))]
    Emulated(Box<aead::Key<Emulated>>),
}

#[cfg_attr(
    not(any(target_arch = "x86_64", test, fuzzing)),
    expect(unused_variables, reason = "there is no key on other processors")
)]
impl Key {
    /// Copies `key`. Nothing if the processor lacks the instructions.
    pub fn new(key: &[u8; KEY_LEN]) -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        return Some(Self(Form::Native(aead::Key::new(Avx512::detect()?, key))));
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// The algorithm for any processor, slowly, in plain integers.
    #[cfg(any(test, fuzzing))]
    pub fn emulated(key: &[u8; KEY_LEN]) -> Self {
        Self(Form::Emulated(aead::Key::new(Emulated, key)))
    }

    /// Encrypts `text` in place and returns the tag over it and `aad`, which is not encrypted.
    ///
    /// # Panics
    /// If `text` is longer than [`MAX_TEXT_LEN`].
    pub fn seal(&self, nonce: [u8; NONCE_LEN], aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Form::Native(ref key) => key.seal(nonce, aad, text),
            #[cfg(any(test, fuzzing))]
            Form::Emulated(ref key) => key.seal(nonce, aad, text),
        }
    }

    /// Decrypts `text` in place.
    ///
    /// # Errors
    /// [`NotAuthentic`] if `tag` is not the tag of `text` and `aad`, or `text` is too long; `text`
    /// is zeros then.
    pub fn open(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), NotAuthentic> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Form::Native(ref key) => key.open(nonce, aad, text, tag),
            #[cfg(any(test, fuzzing))]
            Form::Emulated(ref key) => key.open(nonce, aad, text, tag),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key([redacted])")
    }
}

/// A packet is not authentic. One value for all reasons, so that nothing about the key can be
/// learnt from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAuthentic;

impl fmt::Display for NotAuthentic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the packet is not authentic")
    }
}

impl std::error::Error for NotAuthentic {}
