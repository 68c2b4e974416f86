//! The AVX2 code on a processor without VAES and VPCLMULQDQ: their five instructions are made of
//! AES-NI and PCLMULQDQ, block by block, and all else is [`Avx2`]'s. For valgrind, which knows AVX2
//! but not those five.

#![expect(unsafe_code, reason = "the compiler can not know the processor")]

use std::arch::x86_64::{
    __m128i, __m256i, _mm_aesenc_si128, _mm_aesenclast_si128, _mm_clmulepi64_si128, _mm256_castsi256_si128,
    _mm256_extracti128_si256, _mm256_set_m128i,
};

use super::Avx2;
use crate::gcm::Gcm;
use crate::machine::{Block, Machine};
use crate::{NONCE_LEN, TAG_LEN};

/// Proof that this processor, and the kernel for its registers, can run the code of this module.
///
/// INVARIANT: only [`Narrow::detect`] makes one. Its [`Avx2`] is used for operations that need AVX2
/// and no more.
#[derive(Clone, Copy)]
pub(crate) struct Narrow(Avx2);

impl Narrow {
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("avx2");
        all.then_some(Self(Avx2(())))
    }
}

/// Applies an operation to both halves.
macro_rules! on_halves {
    ($operation:path, $a:expr, $b:expr) => {{
        let (a, b): (__m256i, __m256i) = ($a, $b);
        // SAFETY: the proof.
        unsafe {
            let low: __m128i = $operation(_mm256_castsi256_si128(a), _mm256_castsi256_si128(b));
            let high = $operation(_mm256_extracti128_si256::<1>(a), _mm256_extracti128_si256::<1>(b));
            _mm256_set_m128i(high, low)
        }
    }};
}

/// Operations as [`Avx2`] has them.
macro_rules! as_avx2 {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[inline(always)]
        fn $name(self, $($argument: $type),*) -> $result {
            self.0.$name($($argument),*)
        }
    )*};
}

impl Machine for Narrow {
    const BLOCKS: usize = 2;
    type Vector = __m256i;

    as_avx2! {
        zero() -> __m256i;
        everywhere(block: &Block) -> __m256i;
        lowest(block: &Block) -> __m256i;
        lowest_of(vector: __m256i) -> Block;
        sum_of_blocks(vector: __m256i) -> __m256i;
        load(bytes: &[u8]) -> __m256i;
        store(bytes: &mut [u8], vector: __m256i) -> ();
        load_part(bytes: &[u8]) -> __m256i;
        store_part(bytes: &mut [u8], vector: __m256i) -> __m256i;
        xor(a: __m256i, b: __m256i) -> __m256i;
        xor3(a: __m256i, b: __m256i, c: __m256i) -> __m256i;
        add(a: __m256i, b: __m256i) -> __m256i;
        reversed(vector: __m256i) -> __m256i;
        swapped(vector: __m256i) -> __m256i;
        wipe() -> ();
    }

    #[inline(always)]
    fn product<const HALVES: i32>(self, a: __m256i, b: __m256i) -> __m256i {
        on_halves!(_mm_clmulepi64_si128::<HALVES>, a, b)
    }

    #[inline(always)]
    fn round(self, state: __m256i, round_key: __m256i) -> __m256i {
        on_halves!(_mm_aesenc_si128, state, round_key)
    }

    #[inline(always)]
    fn last_round(self, state: __m256i, round_key: __m256i) -> __m256i {
        on_halves!(_mm_aesenclast_si128, state, round_key)
    }

    fn expand<const R: usize>(gcm: &mut Gcm<Self, R>, key: &[u8]) {
        // SAFETY: the proof in `gcm`.
        unsafe { expand(gcm, key) }
    }

    fn crypt<const R: usize, const SEAL: bool>(
        gcm: &Gcm<Self, R>,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_LEN] {
        // SAFETY: the proof in `gcm`.
        unsafe { crypt::<R, SEAL>(gcm, nonce, aad, text) }
    }

    fn publish(self, authentic: subtle::Choice) -> bool {
        crate::sys::memcheck::declassified(authentic.unwrap_u8()) == 1
    }
}

#[target_feature(enable = "aes,pclmulqdq,avx2")]
#[inline(never)]
fn expand<const R: usize>(gcm: &mut Gcm<Narrow, R>, key: &[u8]) {
    gcm.expand_here(key);
}

#[target_feature(enable = "aes,pclmulqdq,avx2")]
#[inline(never)]
fn crypt<const R: usize, const SEAL: bool>(
    gcm: &Gcm<Narrow, R>,
    nonce: [u8; NONCE_LEN],
    aad: &[u8],
    text: &mut [u8],
) -> [u8; TAG_LEN] {
    gcm.crypt_here::<SEAL>(nonce, aad, text)
}
