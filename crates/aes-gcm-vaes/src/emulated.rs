//! Either processor, imitated with numbers in memory: the algorithm above runs on any computer, and
//! under tools that know no AVX-512.
//!
//! INVARIANT: no branch and no address depends on a value, so that one which does is the
//! algorithm's own. Hence no table for AES's substitution: it is computed.

use crate::gcm::Gcm;
use crate::machine::{Block, Machine};
use crate::{NONCE_LEN, TAG_LEN};

/// A processor with vectors of `BLOCKS` blocks.
#[derive(Clone, Copy)]
pub(crate) struct Emulated<const BLOCKS: usize>;

impl<const BLOCKS: usize> Machine for Emulated<BLOCKS> {
    const BLOCKS: usize = BLOCKS;
    type Vector = [u128; BLOCKS];

    fn zero(self) -> [u128; BLOCKS] {
        [0; BLOCKS]
    }

    fn everywhere(self, block: &Block) -> [u128; BLOCKS] {
        [u128::from_le_bytes(*block); BLOCKS]
    }

    fn lowest(self, block: &Block) -> [u128; BLOCKS] {
        let mut vector = [0; BLOCKS];
        vector[0] = u128::from_le_bytes(*block);
        vector
    }

    fn lowest_of(self, vector: [u128; BLOCKS]) -> Block {
        vector[0].to_le_bytes()
    }

    fn sum_of_blocks(self, vector: [u128; BLOCKS]) -> [u128; BLOCKS] {
        let sum = vector.into_iter().fold(0, |sum, block| sum ^ block);
        self.lowest(&sum.to_le_bytes())
    }

    fn load(self, bytes: &[u8]) -> [u128; BLOCKS] {
        assert_eq!(bytes.len(), Self::BYTES, "a vector is loaded whole");
        self.load_part(bytes)
    }

    fn store(self, bytes: &mut [u8], vector: [u128; BLOCKS]) {
        assert_eq!(bytes.len(), Self::BYTES, "a vector is stored whole");
        self.store_part(bytes, vector);
    }

    fn load_part(self, bytes: &[u8]) -> [u128; BLOCKS] {
        assert!((1..=Self::BYTES).contains(&bytes.len()), "a part of a vector has 1 byte to all");
        let mut vector = [[0; 16]; BLOCKS];
        vector.as_flattened_mut()[..bytes.len()].copy_from_slice(bytes);
        vector.map(u128::from_le_bytes)
    }

    fn store_part(self, bytes: &mut [u8], vector: [u128; BLOCKS]) -> [u128; BLOCKS] {
        assert!((1..=Self::BYTES).contains(&bytes.len()), "a part of a vector has 1 byte to all");
        bytes.copy_from_slice(&vector.map(u128::to_le_bytes).as_flattened()[..bytes.len()]);
        self.load_part(bytes)
    }

    fn xor(self, a: [u128; BLOCKS], b: [u128; BLOCKS]) -> [u128; BLOCKS] {
        std::array::from_fn(|i| a[i] ^ b[i])
    }

    fn xor3(self, a: [u128; BLOCKS], b: [u128; BLOCKS], c: [u128; BLOCKS]) -> [u128; BLOCKS] {
        self.xor(self.xor(a, b), c)
    }

    fn add(self, a: [u128; BLOCKS], b: [u128; BLOCKS]) -> [u128; BLOCKS] {
        let word = |vector: &[u128; BLOCKS], i: usize, word: usize| (vector[i] >> (32 * word)) as u32;
        std::array::from_fn(|i| {
            let words = (0..4).map(|n| u128::from(word(&a, i, n).wrapping_add(word(&b, i, n))) << (32 * n));
            words.sum()
        })
    }

    fn reversed(self, vector: [u128; BLOCKS]) -> [u128; BLOCKS] {
        vector.map(u128::swap_bytes)
    }

    fn swapped(self, vector: [u128; BLOCKS]) -> [u128; BLOCKS] {
        vector.map(|block| block.rotate_left(64))
    }

    fn product<const HALVES: i32>(self, a: [u128; BLOCKS], b: [u128; BLOCKS]) -> [u128; BLOCKS] {
        let half = |block: u128, upper: bool| u128::from((if upper { block >> 64 } else { block }) as u64);
        std::array::from_fn(|i| {
            let (a, b) = (half(a[i], HALVES & 0x01 != 0), half(b[i], HALVES & 0x10 != 0));
            let (mut sum, mut bit) = (0, 0);
            while bit < 64 {
                sum ^= a << bit & (b >> bit & 1).wrapping_neg();
                bit += 1;
            }
            sum
        })
    }

    fn round(self, state: [u128; BLOCKS], round_key: [u128; BLOCKS]) -> [u128; BLOCKS] {
        self.xor(state.map(|block| mixed(substituted(rows_shifted(block)))), round_key)
    }

    fn last_round(self, state: [u128; BLOCKS], round_key: [u128; BLOCKS]) -> [u128; BLOCKS] {
        self.xor(state.map(|block| substituted(rows_shifted(block))), round_key)
    }

    fn expand<const R: usize>(gcm: &mut Gcm<Self, R>, key: &[u8]) {
        gcm.expand_here(key);
    }

    fn crypt<const R: usize, const SEAL: bool>(
        gcm: &Gcm<Self, R>,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_LEN] {
        gcm.crypt_here::<SEAL>(nonce, aad, text)
    }

    /// There are no vector registers, and no secret but a test's.
    fn wipe(self) {}

    #[cfg(all(test, target_arch = "x86_64"))]
    fn publish(self, authentic: subtle::Choice) -> bool {
        crate::sys::memcheck::declassified(authentic.unwrap_u8()) == 1
    }
}

/// A block's bytes, each of them 1.
const ONES: u128 = u128::MAX / 0xff;

/// The byte in each place.
const fn everywhere(byte: u8) -> u128 {
    ONES * byte as u128
}

/// FIPS 197, section 5.1.2: byte `i` of a block is row `i % 4`, column `i / 4`.
fn rows_shifted(block: u128) -> u128 {
    let bytes = block.to_le_bytes();
    u128::from_le_bytes(std::array::from_fn(|i| bytes[(i + 4 * (i % 4)) % 16]))
}

/// Section 5.1.1: the inverse in the field, which is the 254th power, then the affine map.
fn substituted(block: u128) -> u128 {
    let square = |block| times(block, block);
    let power_2 = square(block);
    let power_3 = times(power_2, block);
    let power_12 = square(square(power_3));
    let power_15 = times(power_12, power_3);
    let power_240 = square(square(square(square(power_15))));
    let b = times(times(power_240, power_12), power_2);
    b ^ rotated(b, 1) ^ rotated(b, 2) ^ rotated(b, 3) ^ rotated(b, 4) ^ everywhere(0x63)
}

/// Section 5.1.3.
fn mixed(block: u128) -> u128 {
    let [next, second, third] = [1, 2, 3].map(|rows| rows_up(block, rows));
    doubled(block ^ next) ^ next ^ second ^ third
}

/// In each place the byte that lies `rows` rows further in its column.
fn rows_up(block: u128, rows: u32) -> u128 {
    let columns = block.to_le_bytes();
    let rotated = |column: usize| {
        let bytes = [0, 1, 2, 3].map(|row| columns[4 * column + row]);
        u128::from(u32::from_le_bytes(bytes).rotate_right(8 * rows)) << (32 * column)
    };
    rotated(0) | rotated(1) | rotated(2) | rotated(3)
}

/// Each byte rotated to the left.
fn rotated(block: u128, bits: u32) -> u128 {
    block << bits & everywhere(0xff << bits) | block >> (8 - bits) & everywhere(0xff >> (8 - bits))
}

/// Each byte times x in AES's field.
fn doubled(block: u128) -> u128 {
    (block << 1 & everywhere(0xfe)) ^ ((block >> 7 & ONES) * 0x1b)
}

/// Products in AES's field, byte by byte.
fn times(mut a: u128, b: u128) -> u128 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 8 {
        product ^= a & ((b >> bit & ONES) * 0xff);
        a = doubled(a);
        bit += 1;
    }
    product
}
