//! All of the crate that is `unsafe`: calling code that only some processors can run, and moving bytes into vectors.

#![expect(unsafe_code, reason = "the compiler can neither know the processor nor check a vector's pointer")]

use std::arch::x86_64::{
    __m128i, __m512i, _mm_loadu_si128, _mm_storeu_si128, _mm512_loadu_si512, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_maskz_mov_epi8, _mm512_storeu_si512,
};

use super::{Gcm, VECTOR};
use crate::aead::TAG_LEN;
use crate::schedule::IV_LEN;

/// Proof that this processor, and the kernel for its registers, can run the code of [`super`].
///
/// INVARIANT: only [`Vaes::detect`] makes one.
#[derive(Clone, Copy)]
pub(super) struct Vaes(());

impl Vaes {
    pub(super) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq");
        all.then_some(Self(()))
    }
}

/// [`Gcm::expand`].
pub(super) fn expand<const R: usize>(gcm: &mut Gcm<R>, key: &[u8]) {
    let Vaes(()) = gcm.vaes;
    // SAFETY: the proof in `gcm` says that this processor has all that `expand` is compiled for.
    unsafe { gcm.expand(key) }
}

/// [`Gcm::crypt`].
#[inline]
pub(super) fn crypt<const R: usize, const SEAL: bool>(
    gcm: &Gcm<R>,
    nonce: [u8; IV_LEN],
    aad: &[u8],
    text: &mut [u8],
) -> [u8; TAG_LEN] {
    let Vaes(()) = gcm.vaes;
    // SAFETY: the proof in `gcm` says that this processor has all that `crypt` is compiled for.
    unsafe { gcm.crypt::<SEAL>(nonce, aad, text) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load_block(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference is good for 16 bytes, and nothing need be aligned.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn store_block(bytes: &mut [u8; 16], block: __m128i) {
    // SAFETY: the reference is good for 16 bytes, and nothing need be aligned.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), block) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load(bytes: &[u8; VECTOR]) -> __m512i {
    // SAFETY: the reference is good for 64 bytes, and nothing need be aligned.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn store(bytes: &mut [u8; VECTOR], vector: __m512i) {
    // SAFETY: the reference is good for 64 bytes, and nothing need be aligned.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

/// Up to 64 bytes, and zeros behind them.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn load_part(bytes: &[u8]) -> __m512i {
    // SAFETY: the mask has a bit for each byte of the slice, and no other byte is touched.
    unsafe { _mm512_maskz_loadu_epi8(mask(bytes.len()), bytes.as_ptr().cast()) }
}

/// Fills up to 64 bytes from the vector's beginning, and returns the vector with zeros behind them.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn store_part(bytes: &mut [u8], vector: __m512i) -> __m512i {
    let mask = mask(bytes.len());
    // SAFETY: the mask has a bit for each byte of the slice, and no other byte is touched.
    unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), mask, vector) }
    _mm512_maskz_mov_epi8(mask, vector)
}

/// A bit for each of `len` bytes.
fn mask(len: usize) -> u64 {
    assert!((1..=VECTOR).contains(&len), "a part of a vector has 1 to {VECTOR} bytes");
    u64::MAX >> (VECTOR - len)
}
