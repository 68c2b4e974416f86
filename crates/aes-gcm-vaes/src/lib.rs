//! AES-GCM (NIST SP 800-38D) for packets, on x86 processors that encrypt and multiply two or four
//! blocks with one instruction: VAES and VPCLMULQDQ on vectors of 256 bits (AVX2) or 512 (AVX-512).
//!
//! ```
//! use aes_gcm_vaes::{Key, Width};
//!
//! // Nothing on a processor without the instructions.
//! if let Some(key) = Key::new(Width::Bits256, &[7; 32]) {
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
//! | `gcm` | the algorithm, once, over the operations of a machine |
//! | `machine` | those operations |
//! | `sys` | the two kinds of processors; all that is `unsafe` |
//! | `emulated` | the same in plain integers, for tests only |
//!
//! The README says what is proved, what is tested and what is not promised.

#![deny(unsafe_code)]

// The body of the fuzz target, which tests replay, names the crate from outside.
#[cfg(test)]
extern crate self as aes_gcm_vaes;

#[cfg(any(test, fuzzing))]
mod emulated;
#[cfg(any(target_arch = "x86_64", test, fuzzing))]
mod gcm;
#[cfg(any(target_arch = "x86_64", test, fuzzing))]
mod machine;
#[cfg(target_arch = "x86_64")]
mod sys;

use std::fmt;

#[cfg(any(test, fuzzing))]
use emulated::Emulated;
#[cfg(any(target_arch = "x86_64", test, fuzzing))]
use gcm::{Gcm, ROUNDS_128, ROUNDS_256};
#[cfg(target_arch = "x86_64")]
use sys::{Avx2, Avx512};

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;
/// Bytes of a tag.
pub const TAG_LEN: usize = 16;
/// Longest text that is sealed or opened, in bytes: no datagram carries more.
pub const MAX_TEXT_LEN: usize = 65_535;

/// Bits of the vectors that the processor computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// Two blocks: AES, PCLMULQDQ, AVX2, VAES and VPCLMULQDQ.
    Bits256,
    /// Four blocks: the same and AVX-512 F, BW and VL.
    Bits512,
}

impl Width {
    /// Whether this processor has the instructions.
    pub fn is_supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Self::Bits256 => Avx2::detect().is_some(),
            Self::Bits512 => Avx512::detect().is_some(),
        };
        #[cfg(not(target_arch = "x86_64"))]
        false
    }
}

/// An expanded key of AES-128-GCM or AES-256-GCM, on the heap, erased when dropped.
pub struct Key(Form);

/// One for each width and length of key.
enum Form {
    #[cfg(target_arch = "x86_64")]
    Aes128Bits256(Box<Gcm<Avx2, ROUNDS_128>>),
    #[cfg(target_arch = "x86_64")]
    Aes256Bits256(Box<Gcm<Avx2, ROUNDS_256>>),
    #[cfg(target_arch = "x86_64")]
    Aes128Bits512(Box<Gcm<Avx512, ROUNDS_128>>),
    #[cfg(target_arch = "x86_64")]
    Aes256Bits512(Box<Gcm<Avx512, ROUNDS_256>>),
    #[cfg(any(test, fuzzing))]
    Aes128Emulated256(Box<Gcm<Emulated<2>, ROUNDS_128>>),
    #[cfg(any(test, fuzzing))]
    Aes256Emulated256(Box<Gcm<Emulated<2>, ROUNDS_256>>),
    #[cfg(any(test, fuzzing))]
    Aes128Emulated512(Box<Gcm<Emulated<4>, ROUNDS_128>>),
    #[cfg(any(test, fuzzing))]
    Aes256Emulated512(Box<Gcm<Emulated<4>, ROUNDS_256>>),
}

/// Does the same with the key in whatever form it is.
macro_rules! with_key {
    ($form:expr, $gcm:ident => $work:expr) => {
        match $form {
            #[cfg(target_arch = "x86_64")]
            Form::Aes128Bits256(ref $gcm) => $work,
            #[cfg(target_arch = "x86_64")]
            Form::Aes256Bits256(ref $gcm) => $work,
            #[cfg(target_arch = "x86_64")]
            Form::Aes128Bits512(ref $gcm) => $work,
            #[cfg(target_arch = "x86_64")]
            Form::Aes256Bits512(ref $gcm) => $work,
            #[cfg(any(test, fuzzing))]
            Form::Aes128Emulated256(ref $gcm) => $work,
            #[cfg(any(test, fuzzing))]
            Form::Aes256Emulated256(ref $gcm) => $work,
            #[cfg(any(test, fuzzing))]
            Form::Aes128Emulated512(ref $gcm) => $work,
            #[cfg(any(test, fuzzing))]
            Form::Aes256Emulated512(ref $gcm) => $work,
        }
    };
}

#[cfg_attr(
    not(any(target_arch = "x86_64", test, fuzzing)),
    expect(unused_variables, reason = "there is no key on other processors")
)]
impl Key {
    /// Expands `key`. Nothing if it has neither 16 nor 32 bytes, or the processor lacks the
    /// instructions.
    pub fn new(width: Width, key: &[u8]) -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        return Some(Self(match (width, key.len()) {
            (Width::Bits256, 16) => Form::Aes128Bits256(Gcm::new(Avx2::detect()?, key)),
            (Width::Bits256, 32) => Form::Aes256Bits256(Gcm::new(Avx2::detect()?, key)),
            (Width::Bits512, 16) => Form::Aes128Bits512(Gcm::new(Avx512::detect()?, key)),
            (Width::Bits512, 32) => Form::Aes256Bits512(Gcm::new(Avx512::detect()?, key)),
            _ => return None,
        }));
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// The algorithm for any processor, slowly, in plain integers.
    #[cfg(any(test, fuzzing))]
    pub fn emulated(width: Width, key: &[u8]) -> Option<Self> {
        Some(Self(match (width, key.len()) {
            (Width::Bits256, 16) => Form::Aes128Emulated256(Gcm::new(Emulated, key)),
            (Width::Bits256, 32) => Form::Aes256Emulated256(Gcm::new(Emulated, key)),
            (Width::Bits512, 16) => Form::Aes128Emulated512(Gcm::new(Emulated, key)),
            (Width::Bits512, 32) => Form::Aes256Emulated512(Gcm::new(Emulated, key)),
            _ => return None,
        }))
    }

    /// Encrypts `text` in place and returns the tag over it and `aad`, which is not encrypted.
    ///
    /// # Panics
    /// If `text` is longer than [`MAX_TEXT_LEN`].
    pub fn seal(&self, nonce: [u8; NONCE_LEN], aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
        with_key!(self.0, gcm => gcm.seal(nonce, aad, text))
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
        with_key!(self.0, gcm => gcm.open(nonce, aad, text, tag))
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
