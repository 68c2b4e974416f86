//! Vectors of two blocks: AVX2 with VAES and VPCLMULQDQ, without AVX-512.

#![expect(unsafe_code, reason = "the compiler can neither know the processor nor check a vector's pointer")]

#[cfg(test)]
pub(crate) mod narrow;

use std::arch::asm;
use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm_storeu_si128, _mm_xor_si128, _mm256_add_epi32, _mm256_aesenc_epi128,
    _mm256_aesenclast_epi128, _mm256_broadcastsi128_si256, _mm256_castsi256_si128, _mm256_clmulepi64_epi128,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_shuffle_epi32, _mm256_storeu_si256, _mm256_xor_si256, _mm256_zextsi128_si256,
};
use std::mem::MaybeUninit;

use crate::gcm::Gcm;
use crate::machine::{BYTES_REVERSED, Block, HALVES_SWAPPED, Machine};
use crate::{NONCE_LEN, TAG_LEN};

/// Bytes of the stack that are overwritten after a call: more than the largest frame of `crypt` or
/// `expand`, as a test looks after (`nothing_stays_on_the_stack`).
const WIPED: usize = 1_536;

/// Proof that this processor, and the kernel for its registers, can run the code of this module.
///
/// INVARIANT: only [`Avx2::detect`] makes one. Each SAFETY below that says "the proof" means
/// `self`.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        Self::needs(|_, is_detected| is_detected).then_some(Self(()))
    }

    /// Whether `has` accepts each feature that the code needs, given its name and whether this
    /// processor has it.
    pub(crate) fn needs(has: impl Fn(&str, bool) -> bool) -> bool {
        all_features!(has, "aes", "pclmulqdq", "avx2", "vaes", "vpclmulqdq")
    }
}

impl Machine for Avx2 {
    const BLOCKS: usize = 2;
    type Vector = __m256i;

    #[inline(always)]
    fn zero(self) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn everywhere(self, block: &Block) -> __m256i {
        // SAFETY: the proof; the reference is good for 16 bytes, and nothing need be aligned.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(block.as_ptr().cast())) }
    }

    #[inline(always)]
    fn lowest(self, block: &Block) -> __m256i {
        // SAFETY: the proof; the reference is good for 16 bytes, and nothing need be aligned.
        unsafe { _mm256_zextsi128_si256(_mm_loadu_si128(block.as_ptr().cast())) }
    }

    #[inline(always)]
    fn lowest_of(self, vector: __m256i) -> Block {
        let mut block = [0; 16];
        // SAFETY: the proof; the array has 16 bytes, and nothing need be aligned.
        unsafe { _mm_storeu_si128(block.as_mut_ptr().cast(), _mm256_castsi256_si128(vector)) }
        block
    }

    #[inline(always)]
    fn sum_of_blocks(self, vector: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe {
            let upper = _mm256_extracti128_si256::<1>(vector);
            _mm256_zextsi128_si256(_mm_xor_si128(_mm256_castsi256_si128(vector), upper))
        }
    }

    #[inline(always)]
    fn load(self, bytes: &[u8]) -> __m256i {
        assert_eq!(bytes.len(), Self::BYTES, "a vector is loaded whole");
        // SAFETY: the proof; the slice has the 32 bytes that are read, and nothing need be aligned.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8], vector: __m256i) {
        assert_eq!(bytes.len(), Self::BYTES, "a vector is stored whole");
        // SAFETY: the proof; the slice has the 32 bytes that are written, and nothing need be
        // aligned.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
    }

    #[inline(always)]
    fn load_part(self, bytes: &[u8]) -> __m256i {
        let mut whole = [0; Self::BYTES];
        whole[..bytes.len()].copy_from_slice(bytes);
        self.load(&whole)
    }

    #[inline(always)]
    fn store_part(self, bytes: &mut [u8], vector: __m256i) -> __m256i {
        let mut whole = [0; Self::BYTES];
        self.store(&mut whole, vector);
        bytes.copy_from_slice(&whole[..bytes.len()]);
        self.load_part(bytes)
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_xor_si256(a, b) }
    }

    #[inline(always)]
    fn xor3(self, a: __m256i, b: __m256i, c: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_xor_si256(_mm256_xor_si256(a, b), c) }
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    fn reversed(self, vector: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_shuffle_epi8(vector, self.everywhere(&BYTES_REVERSED)) }
    }

    #[inline(always)]
    fn swapped(self, vector: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_shuffle_epi32::<HALVES_SWAPPED>(vector) }
    }

    #[inline(always)]
    fn product<const HALVES: i32>(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_clmulepi64_epi128::<HALVES>(a, b) }
    }

    #[inline(always)]
    fn round(self, state: __m256i, round_key: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_aesenc_epi128(state, round_key) }
    }

    #[inline(always)]
    fn last_round(self, state: __m256i, round_key: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_aesenclast_epi128(state, round_key) }
    }

    fn expand<const R: usize>(gcm: &mut Gcm<Self, R>, key: &[u8]) {
        // SAFETY: the proof in `gcm`.
        unsafe { expand(gcm, key) }
    }

    #[inline]
    fn crypt<const R: usize, const SEAL: bool>(
        gcm: &Gcm<Self, R>,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_LEN] {
        // SAFETY: the proof in `gcm`.
        unsafe { crypt::<R, SEAL>(gcm, nonce, aad, text) }
    }

    #[inline]
    fn wipe(self) {
        // SAFETY: the proof.
        unsafe { wipe() }
    }
}

#[target_feature(enable = "aes,pclmulqdq,avx2,vaes,vpclmulqdq")]
#[inline(never)]
fn expand<const R: usize>(gcm: &mut Gcm<Avx2, R>, key: &[u8]) {
    gcm.expand_here(key);
}

#[target_feature(enable = "aes,pclmulqdq,avx2,vaes,vpclmulqdq")]
#[inline(never)]
fn crypt<const R: usize, const SEAL: bool>(
    gcm: &Gcm<Avx2, R>,
    nonce: [u8; NONCE_LEN],
    aad: &[u8],
    text: &mut [u8],
) -> [u8; TAG_LEN] {
    gcm.crypt_here::<SEAL>(nonce, aad, text)
}

/// Its frame lies where the frame of the function was that its caller has called before.
#[target_feature(enable = "avx2")]
#[inline(never)]
fn wipe() {
    let mut frame = MaybeUninit::<[u64; WIPED / 8]>::uninit();
    let begin = frame.as_mut_ptr();
    // SAFETY: writes the array and nothing else, which is a multiple of 64 bytes long. `vzeroall`
    // clears all vector registers of a program without AVX-512; all that is changed is declared.
    unsafe {
        asm!(
            "vpxor ymm0, ymm0, ymm0",
            "2:",
            "vmovdqu ymmword ptr [{at}], ymm0",
            "vmovdqu ymmword ptr [{at} + 32], ymm0",
            "add {at}, 64",
            "cmp {at}, {end}",
            "jb 2b",
            "vzeroall",
            at = inout(reg) begin => _,
            end = in(reg) begin.add(1),
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
            out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack),
        );
    }
}

// The loop above writes two vectors at a time.
const _: () = assert!(WIPED.is_multiple_of(2 * Avx2::BYTES) && WIPED > 0);
