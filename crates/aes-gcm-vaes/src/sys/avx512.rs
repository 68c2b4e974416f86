//! Vectors of four blocks: AVX-512 with VAES and VPCLMULQDQ.

#![expect(unsafe_code, reason = "the compiler can neither know the processor nor check a vector's pointer")]

use std::arch::asm;
use std::arch::x86_64::{
    __m512i, _mm_loadu_si128, _mm_storeu_si128, _mm_xor_si128, _mm256_castsi256_si128,
    _mm256_extracti128_si256, _mm256_xor_si256, _mm512_add_epi32, _mm512_aesenc_epi128,
    _mm512_aesenclast_epi128, _mm512_broadcast_i32x4, _mm512_castsi512_si128, _mm512_castsi512_si256,
    _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_maskz_mov_epi8, _mm512_setzero_si512, _mm512_shuffle_epi8,
    _mm512_shuffle_epi32, _mm512_storeu_si512, _mm512_ternarylogic_epi32, _mm512_xor_si512,
    _mm512_zextsi128_si512,
};
use std::mem::MaybeUninit;

use crate::gcm::Gcm;
use crate::machine::{BYTES_REVERSED, Block, HALVES_SWAPPED, Machine};
use crate::{NONCE_LEN, TAG_LEN};

/// Exclusive or of three, as the table of a ternary function.
const XOR3: i32 = 0x96;
const _: () = {
    let mut row = 0;
    while row < 8_u32 {
        assert!((XOR3 >> row & 1) as u32 == row.count_ones() % 2);
        row += 1;
    }
};

/// Bytes of the stack that are overwritten after a call: more than the largest frame of `crypt` or
/// `expand`, as a test looks after (`nothing_stays_on_the_stack`).
const WIPED: usize = 1_024;

/// Proof that this processor, and the kernel for its registers, can run the code of this module.
///
/// INVARIANT: only [`Avx512::detect`] makes one. Each SAFETY below that says "the proof" means
/// `self`.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        Self::needs(|_, is_detected| is_detected).then_some(Self(()))
    }

    /// Whether `has` accepts each feature that the code needs, given its name and whether this
    /// processor has it.
    pub(crate) fn needs(has: impl Fn(&str, bool) -> bool) -> bool {
        all_features!(has, "aes", "pclmulqdq", "avx512f", "avx512bw", "avx512vl", "vaes", "vpclmulqdq")
    }
}

impl Machine for Avx512 {
    const BLOCKS: usize = 4;
    type Vector = __m512i;

    #[inline(always)]
    fn zero(self) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn everywhere(self, block: &Block) -> __m512i {
        // SAFETY: the proof; the reference is good for 16 bytes, and nothing need be aligned.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(block.as_ptr().cast())) }
    }

    #[inline(always)]
    fn lowest(self, block: &Block) -> __m512i {
        // SAFETY: the proof; the reference is good for 16 bytes, and nothing need be aligned.
        unsafe { _mm512_zextsi128_si512(_mm_loadu_si128(block.as_ptr().cast())) }
    }

    #[inline(always)]
    fn lowest_of(self, vector: __m512i) -> Block {
        let mut block = [0; 16];
        // SAFETY: the proof; the array has 16 bytes, and nothing need be aligned.
        unsafe { _mm_storeu_si128(block.as_mut_ptr().cast(), _mm512_castsi512_si128(vector)) }
        block
    }

    #[inline(always)]
    fn sum_of_blocks(self, vector: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe {
            let upper = _mm512_extracti64x4_epi64::<1>(vector);
            let half = _mm256_xor_si256(_mm512_castsi512_si256(vector), upper);
            let block = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            _mm512_zextsi128_si512(block)
        }
    }

    #[inline(always)]
    fn load(self, bytes: &[u8]) -> __m512i {
        assert_eq!(bytes.len(), Self::BYTES, "a vector is loaded whole");
        // SAFETY: the proof; the slice has the 64 bytes that are read, and nothing need be aligned.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8], vector: __m512i) {
        assert_eq!(bytes.len(), Self::BYTES, "a vector is stored whole");
        // SAFETY: the proof; the slice has the 64 bytes that are written, and nothing need be
        // aligned.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
    }

    #[inline(always)]
    fn load_part(self, bytes: &[u8]) -> __m512i {
        // SAFETY: the proof; the mask has a bit for each byte of the slice, and no other byte is
        // touched.
        unsafe { _mm512_maskz_loadu_epi8(mask(bytes.len()), bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_part(self, bytes: &mut [u8], vector: __m512i) -> __m512i {
        let mask = mask(bytes.len());
        // SAFETY: the proof; the mask has a bit for each byte of the slice, and no other byte is
        // touched.
        unsafe {
            _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), mask, vector);
            _mm512_maskz_mov_epi8(mask, vector)
        }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn xor3(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_ternarylogic_epi32::<XOR3>(a, b, c) }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn reversed(self, vector: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_shuffle_epi8(vector, self.everywhere(&BYTES_REVERSED)) }
    }

    #[inline(always)]
    fn swapped(self, vector: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_shuffle_epi32::<HALVES_SWAPPED>(vector) }
    }

    #[inline(always)]
    fn product<const HALVES: i32>(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_clmulepi64_epi128::<HALVES>(a, b) }
    }

    #[inline(always)]
    fn round(self, state: __m512i, round_key: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_aesenc_epi128(state, round_key) }
    }

    #[inline(always)]
    fn last_round(self, state: __m512i, round_key: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_aesenclast_epi128(state, round_key) }
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

/// A bit for each of `len` bytes.
fn mask(len: usize) -> u64 {
    assert!((1..=Avx512::BYTES).contains(&len), "a part of a vector has 1 byte to all");
    u64::MAX >> (Avx512::BYTES - len)
}

#[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
#[inline(never)]
fn expand<const R: usize>(gcm: &mut Gcm<Avx512, R>, key: &[u8]) {
    gcm.expand_here(key);
}

#[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
#[inline(never)]
fn crypt<const R: usize, const SEAL: bool>(
    gcm: &Gcm<Avx512, R>,
    nonce: [u8; NONCE_LEN],
    aad: &[u8],
    text: &mut [u8],
) -> [u8; TAG_LEN] {
    gcm.crypt_here::<SEAL>(nonce, aad, text)
}

/// Its frame lies where the frame of the function was that its caller has called before.
#[target_feature(enable = "avx512f")]
#[inline(never)]
fn wipe() {
    let mut frame = MaybeUninit::<[u64; WIPED / 8]>::uninit();
    let begin = frame.as_mut_ptr();
    // SAFETY: writes the array and nothing else, which is a multiple of 64 bytes long. `vzeroall`
    // clears the first sixteen vector registers in all their length; all that is changed is
    // declared.
    unsafe {
        asm!(
            "vpxord zmm16, zmm16, zmm16",
            "2:",
            "vmovdqu64 zmmword ptr [{at}], zmm16",
            "vmovdqu64 zmmword ptr [{at} + 64], zmm16",
            "add {at}, 128",
            "cmp {at}, {end}",
            "jb 2b",
            "vpxord zmm17, zmm17, zmm17",
            "vpxord zmm18, zmm18, zmm18",
            "vpxord zmm19, zmm19, zmm19",
            "vpxord zmm20, zmm20, zmm20",
            "vpxord zmm21, zmm21, zmm21",
            "vpxord zmm22, zmm22, zmm22",
            "vpxord zmm23, zmm23, zmm23",
            "vpxord zmm24, zmm24, zmm24",
            "vpxord zmm25, zmm25, zmm25",
            "vpxord zmm26, zmm26, zmm26",
            "vpxord zmm27, zmm27, zmm27",
            "vpxord zmm28, zmm28, zmm28",
            "vpxord zmm29, zmm29, zmm29",
            "vpxord zmm30, zmm30, zmm30",
            "vpxord zmm31, zmm31, zmm31",
            "vzeroall",
            at = inout(reg) begin => _,
            end = in(reg) begin.add(1),
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
            out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
            out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _, out("zmm28") _, out("zmm29") _,
            out("zmm30") _, out("zmm31") _,
            options(nostack),
        );
    }
}

// The loop above writes two vectors at a time.
const _: () = assert!(WIPED.is_multiple_of(2 * Avx512::BYTES) && WIPED > 0);
