//! A word of each of sixteen blocks in a vector of 512 bits, or of eight in one of 256; and how the
//! words of a block come together.

use std::arch::x86_64::{
    __m256i, __m512i, _mm256_add_epi32, _mm256_rol_epi32, _mm256_set1_epi32, _mm256_setr_epi32,
    _mm256_xor_si256, _mm512_add_epi32, _mm512_castsi256_si512, _mm512_inserti64x4, _mm512_rol_epi32,
    _mm512_set1_epi32, _mm512_setr_epi32, _mm512_shuffle_i32x4, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64, _mm512_xor_si512,
};

use super::Avx512;
use crate::machine::Lanes;

/// For a shuffle of two vectors' quarters, two bits for each quarter of the result, of which two
/// are from either: the first two, the last two, the even and the odd ones.
const FIRST_HALVES: i32 = 0b01_00_01_00;
const SECOND_HALVES: i32 = 0b11_10_11_10;
const EVEN: i32 = 0b10_00_10_00;
const ODD: i32 = 0b11_01_11_01;

/// Sixteen blocks. Each SAFETY below that says "the proof" means the [`Avx512`] inside.
#[derive(Clone, Copy)]
pub(crate) struct Sixteen(pub(super) Avx512);

/// Eight blocks.
#[derive(Clone, Copy)]
pub(crate) struct Eight(pub(super) Avx512);

/// Twenty-four blocks: both at once, in all 32 registers. Neither waits for its own last
/// instruction then.
#[derive(Clone, Copy)]
pub(crate) struct TwentyFour(pub(super) Avx512);

impl Lanes for Sixteen {
    const BLOCKS: usize = 16;
    type Vector = __m512i;
    type Words = __m512i;
    type Blocks = [__m512i; 16];

    #[inline(always)]
    fn everywhere(self, word: u32) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_set1_epi32(word.cast_signed()) }
    }

    #[inline(always)]
    fn counting(self, first: u32) -> __m512i {
        // SAFETY: the proof.
        let numbers = unsafe { _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) };
        self.add(self.everywhere(first), numbers)
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn rotated<const BITS: i32>(self, words: __m512i) -> __m512i {
        // SAFETY: the proof.
        unsafe { _mm512_rol_epi32::<BITS>(words) }
    }

    /// Four words in a row come together in each quarter, of blocks `i`, `4 + i`, `8 + i` and
    /// `12 + i`; then the quarters that are of one block.
    #[inline(always)]
    fn blocks(self, words: [__m512i; 16]) -> [__m512i; 16] {
        let mut blocks = words;
        let mut rows = [[words[0]; 4]; 4];
        for (row, words) in rows.iter_mut().zip(words.as_chunks().0) {
            *row = self.0.rows(*words);
        }
        for i in 0..4 {
            let [a, b, c, d] = [rows[0][i], rows[1][i], rows[2][i], rows[3][i]];
            // SAFETY: the proof.
            unsafe {
                let first = _mm512_shuffle_i32x4::<FIRST_HALVES>(a, b);
                let second = _mm512_shuffle_i32x4::<FIRST_HALVES>(c, d);
                blocks[i] = _mm512_shuffle_i32x4::<EVEN>(first, second);
                blocks[4 + i] = _mm512_shuffle_i32x4::<ODD>(first, second);
                let first = _mm512_shuffle_i32x4::<SECOND_HALVES>(a, b);
                let second = _mm512_shuffle_i32x4::<SECOND_HALVES>(c, d);
                blocks[8 + i] = _mm512_shuffle_i32x4::<EVEN>(first, second);
                blocks[12 + i] = _mm512_shuffle_i32x4::<ODD>(first, second);
            }
        }
        blocks
    }
}

impl Lanes for Eight {
    const BLOCKS: usize = 8;
    type Vector = __m512i;
    type Words = __m256i;
    type Blocks = [__m512i; 8];

    #[inline(always)]
    fn everywhere(self, word: u32) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_set1_epi32(word.cast_signed()) }
    }

    #[inline(always)]
    fn counting(self, first: u32) -> __m256i {
        // SAFETY: the proof.
        let numbers = unsafe { _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7) };
        self.add(self.everywhere(first), numbers)
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_xor_si256(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    fn rotated<const BITS: i32>(self, words: __m256i) -> __m256i {
        // SAFETY: the proof.
        unsafe { _mm256_rol_epi32::<BITS>(words) }
    }

    /// Words 0 to 3 and 4 to 7 of a vector, then 8 to 11 and 12 to 15, so that the quarters of a
    /// block are in order when the even ones, or the odd ones, are taken.
    #[inline(always)]
    fn blocks(self, words: [__m256i; 16]) -> [__m512i; 8] {
        // SAFETY: the proof.
        let joined = |first, second| unsafe {
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(words[first]), words[second])
        };
        let lower = self.0.rows([joined(0, 4), joined(1, 5), joined(2, 6), joined(3, 7)]);
        let upper = self.0.rows([joined(8, 12), joined(9, 13), joined(10, 14), joined(11, 15)]);
        let mut blocks = [lower[0]; 8];
        for i in 0..4 {
            // SAFETY: the proof.
            unsafe {
                blocks[i] = _mm512_shuffle_i32x4::<EVEN>(lower[i], upper[i]);
                blocks[4 + i] = _mm512_shuffle_i32x4::<ODD>(lower[i], upper[i]);
            }
        }
        blocks
    }
}

impl TwentyFour {
    #[inline(always)]
    fn parts(self) -> (Sixteen, Eight) {
        (Sixteen(self.0), Eight(self.0))
    }
}

impl Lanes for TwentyFour {
    const BLOCKS: usize = Sixteen::BLOCKS + Eight::BLOCKS;
    type Vector = __m512i;
    type Words = (__m512i, __m256i);
    type Blocks = [__m512i; 24];

    #[inline(always)]
    fn everywhere(self, word: u32) -> (__m512i, __m256i) {
        let (sixteen, eight) = self.parts();
        (sixteen.everywhere(word), eight.everywhere(word))
    }

    #[inline(always)]
    fn counting(self, first: u32) -> (__m512i, __m256i) {
        let (sixteen, eight) = self.parts();
        (sixteen.counting(first), eight.counting(first.wrapping_add(Sixteen::BLOCKS as u32)))
    }

    #[inline(always)]
    fn xor(self, a: (__m512i, __m256i), b: (__m512i, __m256i)) -> (__m512i, __m256i) {
        let (sixteen, eight) = self.parts();
        (sixteen.xor(a.0, b.0), eight.xor(a.1, b.1))
    }

    #[inline(always)]
    fn add(self, a: (__m512i, __m256i), b: (__m512i, __m256i)) -> (__m512i, __m256i) {
        let (sixteen, eight) = self.parts();
        (sixteen.add(a.0, b.0), eight.add(a.1, b.1))
    }

    #[inline(always)]
    fn rotated<const BITS: i32>(self, words: (__m512i, __m256i)) -> (__m512i, __m256i) {
        let (sixteen, eight) = self.parts();
        (sixteen.rotated::<BITS>(words.0), eight.rotated::<BITS>(words.1))
    }

    #[inline(always)]
    fn blocks(self, words: [(__m512i, __m256i); 16]) -> [__m512i; 24] {
        let (sixteen, eight) = self.parts();
        let (mut first, mut second) = ([words[0].0; 16], [words[0].1; 16]);
        for i in 0..16 {
            (first[i], second[i]) = words[i];
        }
        let (first, second) = (sixteen.blocks(first), eight.blocks(second));
        let mut blocks = [first[0]; 24];
        blocks[..Sixteen::BLOCKS].copy_from_slice(&first);
        blocks[Sixteen::BLOCKS..].copy_from_slice(&second);
        blocks
    }
}

impl Avx512 {
    /// Four words that stand in the same place of four vectors, in a row: of the first place of
    /// each quarter, of the second, of the third, of the fourth.
    #[inline(always)]
    fn rows(self, [a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
        // SAFETY: the proof.
        unsafe {
            let (first, second) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (third, fourth) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(first, second),
                _mm512_unpackhi_epi64(first, second),
                _mm512_unpacklo_epi64(third, fourth),
                _mm512_unpackhi_epi64(third, fourth),
            ]
        }
    }
}
