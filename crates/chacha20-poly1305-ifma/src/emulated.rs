//! The processor, imitated with numbers in memory: the algorithm runs on any computer, and under
//! tools that know no AVX-512.
//!
//! INVARIANT: no branch and no address depends on a value, so that one which does is the
//! algorithm's own.

use crate::TAG_LEN;
use crate::aead::{Key, Packet};
use crate::machine::{BLOCK_LEN, Lanes, Machine};
use crate::poly1305::{self, MacKey};

/// A processor with vectors of eight numbers.
#[derive(Clone, Copy)]
pub(crate) struct Emulated;

/// Eight, sixteen or twenty-four blocks side by side.
#[derive(Clone, Copy)]
pub(crate) struct Side<const BLOCKS: usize>;

/// The bits that IFMA uses of its factors.
const FACTOR_MASK: u64 = (1 << 52) - 1;

type Vector = [u64; 8];

fn each(a: Vector, b: Vector, of: impl Fn(u64, u64) -> u64) -> Vector {
    std::array::from_fn(|i| of(a[i], b[i]))
}

fn product(a: u64, b: u64) -> u128 {
    u128::from(a & FACTOR_MASK).wrapping_mul(u128::from(b & FACTOR_MASK))
}

impl Machine for Emulated {
    type Vector = Vector;
    type Sixteen = Side<16>;
    type Eight = Side<8>;
    type TwentyFour = Side<24>;

    fn sixteen(self) -> Side<16> {
        Side
    }

    fn eight(self) -> Side<8> {
        Side
    }

    fn twenty_four(self) -> Side<24> {
        Side
    }

    fn load(self, bytes: &[u8; BLOCK_LEN]) -> Vector {
        self.load_part(bytes)
    }

    fn load_part(self, bytes: &[u8]) -> Vector {
        assert!((1..=BLOCK_LEN).contains(&bytes.len()), "a part of a vector has 1 byte to all");
        let mut vector = [[0; 8]; 8];
        vector.as_flattened_mut()[..bytes.len()].copy_from_slice(bytes);
        vector.map(u64::from_le_bytes)
    }

    fn store(self, bytes: &mut [u8; BLOCK_LEN], vector: Vector) {
        self.store_part(bytes, vector);
    }

    fn store_part(self, bytes: &mut [u8], vector: Vector) {
        assert!((1..=BLOCK_LEN).contains(&bytes.len()), "a part of a vector has 1 byte to all");
        bytes.copy_from_slice(&vector.map(u64::to_le_bytes).as_flattened()[..bytes.len()]);
    }

    fn numbers(self, numbers: &Vector) -> Vector {
        *numbers
    }

    fn everywhere(self, number: u64) -> Vector {
        [number; 8]
    }

    fn sum_of_numbers(self, vector: Vector) -> u64 {
        vector.into_iter().fold(0, u64::wrapping_add)
    }

    fn xor(self, a: Vector, b: Vector) -> Vector {
        each(a, b, |a, b| a ^ b)
    }

    fn and(self, a: Vector, b: Vector) -> Vector {
        each(a, b, |a, b| a & b)
    }

    fn or(self, a: Vector, b: Vector) -> Vector {
        each(a, b, |a, b| a | b)
    }

    fn add(self, a: Vector, b: Vector) -> Vector {
        each(a, b, u64::wrapping_add)
    }

    fn shifted_left<const BITS: u32>(self, vector: Vector) -> Vector {
        vector.map(|number| number << BITS)
    }

    fn shifted_right<const BITS: u32>(self, vector: Vector) -> Vector {
        vector.map(|number| number >> BITS)
    }

    fn firsts(self, a: Vector, b: Vector) -> Vector {
        std::array::from_fn(|i| if i % 2 == 0 { a[i] } else { b[i - 1] })
    }

    fn seconds(self, a: Vector, b: Vector) -> Vector {
        std::array::from_fn(|i| if i % 2 == 0 { a[i + 1] } else { b[i] })
    }

    fn selected<const MASK: u8>(self, a: Vector, b: Vector) -> Vector {
        std::array::from_fn(|i| if MASK >> i & 1 == 1 { b[i] } else { a[i] })
    }

    fn add_low(self, sum: Vector, a: Vector, b: Vector) -> Vector {
        self.add(sum, each(a, b, |a, b| product(a, b) as u64 & FACTOR_MASK))
    }

    fn add_high(self, sum: Vector, a: Vector, b: Vector) -> Vector {
        self.add(sum, each(a, b, |a, b| (product(a, b) >> 52) as u64))
    }

    fn batch<L: Lanes<Vector = Vector>, const SEAL: bool>(
        key: &Key<Self>,
        lanes: L,
        packet: &mut Packet<'_>,
    ) -> bool {
        key.batch_here::<L, SEAL>(lanes, packet)
    }

    fn tag(self, key: &MacKey, aad: &[u8], text: &[u8]) -> [u8; TAG_LEN] {
        poly1305::tag_here(self, key, aad, text)
    }

    /// There are no vector registers, and no secret but a test's.
    fn wipe<const SEAL: bool>(self) {}

    #[cfg(all(test, target_arch = "x86_64"))]
    fn publish(self, authentic: subtle::Choice) -> bool {
        crate::sys::memcheck::declassified(authentic.unwrap_u8()) == 1
    }
}

impl<const BLOCKS: usize> Lanes for Side<BLOCKS> {
    const BLOCKS: usize = BLOCKS;
    type Vector = Vector;
    type Words = [u32; BLOCKS];
    type Blocks = [Vector; BLOCKS];

    fn everywhere(self, word: u32) -> [u32; BLOCKS] {
        [word; BLOCKS]
    }

    fn counting(self, first: u32) -> [u32; BLOCKS] {
        std::array::from_fn(|i| first.wrapping_add(i as u32))
    }

    fn xor(self, a: [u32; BLOCKS], b: [u32; BLOCKS]) -> [u32; BLOCKS] {
        std::array::from_fn(|i| a[i] ^ b[i])
    }

    fn add(self, a: [u32; BLOCKS], b: [u32; BLOCKS]) -> [u32; BLOCKS] {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }

    fn rotated<const BITS: i32>(self, words: [u32; BLOCKS]) -> [u32; BLOCKS] {
        words.map(|word| word.rotate_left(BITS as u32))
    }

    fn blocks(self, words: [[u32; BLOCKS]; 16]) -> [Vector; BLOCKS] {
        let half = |word: usize, block: usize| u64::from(words[word][block]);
        std::array::from_fn(|block| {
            std::array::from_fn(|i| half(2 * i, block) | half(2 * i + 1, block) << 32)
        })
    }
}
