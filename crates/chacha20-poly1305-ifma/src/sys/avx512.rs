//! Vectors of 512 bits: AVX-512 with IFMA.

#![expect(unsafe_code, reason = "the compiler can neither know the processor nor check a vector's pointer")]

mod lanes;
mod wipe;

use std::arch::x86_64::{
    __m512i, _mm512_add_epi64, _mm512_and_si512, _mm512_loadu_si512, _mm512_madd52hi_epu64,
    _mm512_madd52lo_epu64, _mm512_mask_blend_epi64, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8,
    _mm512_or_si512, _mm512_reduce_add_epi64, _mm512_set1_epi64, _mm512_slli_epi64, _mm512_srli_epi64,
    _mm512_storeu_si512, _mm512_unpackhi_epi64, _mm512_unpacklo_epi64, _mm512_xor_si512,
};

use crate::TAG_LEN;
use crate::aead::{Key, Packet};
use crate::machine::{BLOCK_LEN, Lanes, Machine};
use crate::poly1305::{self, MacKey};
use lanes::{Eight, Sixteen, TwentyFour};

/// Proof that this processor, and the kernel for its registers, can run the code of this module.
///
/// INVARIANT: only [`Avx512::detect`] makes one. Each SAFETY below that says "the proof" means
/// `self`.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The standard library's detection asks the processor which registers the kernel saves, too
    /// (XCR0, by XGETBV).
    pub(crate) fn detect() -> Option<Self> {
        Self::needs(|_, is_detected| is_detected).then_some(Self(()))
    }

    /// Whether `has` accepts each feature that the code needs, given its name and whether this
    /// processor has it.
    pub(crate) fn needs(has: impl Fn(&str, bool) -> bool) -> bool {
        all_features!(has, "avx512f", "avx512bw", "avx512vl", "avx512ifma")
    }
}

impl Machine for Avx512 {
    type Vector = __m512i;
    type Sixteen = Sixteen;
    type Eight = Eight;
    type TwentyFour = TwentyFour;

    #[inline(always)]
    fn sixteen(self) -> Sixteen {
        Sixteen(self)
    }

    #[inline(always)]
    fn eight(self) -> Eight {
        Eight(self)
    }

    #[inline(always)]
    fn twenty_four(self) -> TwentyFour {
        TwentyFour(self)
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; BLOCK_LEN]) -> __m512i {
        // SAFETY: the proof; the reference is good for 64 bytes, and nothing need be aligned.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_part(self, bytes: &[u8]) -> __m512i {
        // SAFETY: the proof; the mask has a bit for each byte of the slice, and no other byte is
        // touched.
        unsafe { _mm512_maskz_loadu_epi8(mask(bytes.len()), bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8; BLOCK_LEN], vector: __m512i) {
        // SAFETY: the proof; the reference is good for 64 bytes, and nothing need be aligned.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
    }

    #[inline(always)]
    fn store_part(self, bytes: &mut [u8], vector: __m512i) {
        // SAFETY: the proof; the mask has a bit for each byte of the slice, and no other byte is
        // touched.
        unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), mask(bytes.len()), vector) }
    }

    #[inline(always)]
    fn numbers(self, numbers: &[u64; 8]) -> __m512i {
        // SAFETY: the proof; the reference is good for 64 bytes, and nothing need be aligned.
        unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) }
    }

    #[inline(always)]
    fn everywhere(self, number: u64) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_set1_epi64(number.cast_signed()) }
    }

    #[inline(always)]
    fn sum_of_numbers(self, vector: __m512i) -> u64 {
        // SAFETY: the proof.
        unsafe { _mm512_reduce_add_epi64(vector) }.cast_unsigned()
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_add_epi64(a, b) }
    }

    #[inline(always)]
    fn shifted_left<const BITS: u32>(self, vector: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_slli_epi64::<BITS>(vector) }
    }

    #[inline(always)]
    fn shifted_right<const BITS: u32>(self, vector: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_srli_epi64::<BITS>(vector) }
    }

    #[inline(always)]
    fn firsts(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_unpacklo_epi64(a, b) }
    }

    #[inline(always)]
    fn seconds(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_unpackhi_epi64(a, b) }
    }

    #[inline(always)]
    fn selected<const MASK: u8>(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_mask_blend_epi64(MASK, a, b) }
    }

    #[inline(always)]
    fn add_low(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_madd52lo_epu64(sum, a, b) }
    }

    #[inline(always)]
    fn add_high(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_madd52hi_epu64(sum, a, b) }
    }

    #[inline]
    fn batch<L: Lanes<Vector = __m512i>, const SEAL: bool>(
        key: &Key<Self>,
        lanes: L,
        packet: &mut Packet<'_>,
    ) -> bool {
        // SAFETY: the proof in `key`.
        unsafe { batch::<L, SEAL>(key, lanes, packet) }
    }

    #[inline]
    fn tag(self, key: &MacKey, aad: &[u8], text: &[u8]) -> [u8; TAG_LEN] {
        // SAFETY: the proof.
        unsafe { tag(self, key, aad, text) }
    }

    #[inline]
    fn wipe<const SEAL: bool>(self) {
        // SAFETY: the proof.
        unsafe {
            if SEAL {
                wipe::wipe::<{ wipe::SEALED }>();
            } else {
                wipe::wipe::<{ wipe::OPENED }>();
            }
        }
    }
}

/// A bit for each of `len` bytes.
#[inline(always)]
fn mask(len: usize) -> u64 {
    assert!((1..=BLOCK_LEN).contains(&len), "a part of a vector has 1 byte to all");
    u64::MAX >> (BLOCK_LEN - len)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma")]
#[inline(never)]
fn batch<L: Lanes<Vector = __m512i>, const SEAL: bool>(
    key: &Key<Avx512>,
    lanes: L,
    packet: &mut Packet<'_>,
) -> bool {
    key.batch_here::<L, SEAL>(lanes, packet)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma")]
#[inline(never)]
fn tag(machine: Avx512, key: &MacKey, aad: &[u8], text: &[u8]) -> [u8; TAG_LEN] {
    poly1305::tag_here(machine, key, aad, text)
}

/// XCR0: a bit for each kind of registers that the kernel saves. Only on a processor that has
/// AVX-512.
#[cfg(test)]
pub(crate) fn saved_registers() -> u64 {
    use std::arch::x86_64::_xgetbv;

    #[target_feature(enable = "xsave")]
    fn read() -> u64 {
        // SAFETY: the number is that of XCR0.
        unsafe { _xgetbv(0) }
    }
    assert!(Avx512::detect().is_some() && is_x86_feature_detected!("xsave"));
    // SAFETY: the processor has XSAVE, as was just seen.
    unsafe { read() }
}
