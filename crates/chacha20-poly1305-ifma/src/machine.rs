//! The instructions that ChaCha20-Poly1305 is made of, as a machine that has them: an x86 processor
//! with AVX-512 and IFMA, and arrays in memory that imitate it.
//!
//! A value of a [`Machine`] is the proof that its instructions may be used, so everything here is
//! safe to call. All of it must be inlined into [`Machine::batch`] and [`Machine::tag`],
//! which alone are compiled for the processor.

use subtle::Choice;

use crate::TAG_LEN;
use crate::aead::{Key, Packet};
use crate::poly1305::MacKey;

/// Bytes of a block of ChaCha20, and of a vector.
pub(crate) const BLOCK_LEN: usize = 64;

/// Vectors of 64 bytes, which are eight numbers of 64 bits, and what can be done with them.
pub(crate) trait Machine: Copy {
    /// 64 bytes.
    type Vector: Copy;
    /// Sixteen blocks of ChaCha20 side by side.
    type Sixteen: Lanes<Vector = Self::Vector>;
    /// Eight blocks of ChaCha20 side by side, in less than the time of sixteen.
    type Eight: Lanes<Vector = Self::Vector>;

    /// Twenty-four blocks of ChaCha20 side by side, in less than the time of sixteen and eight.
    type TwentyFour: Lanes<Vector = Self::Vector>;

    /// The instructions for sixteen blocks.
    fn sixteen(self) -> Self::Sixteen;
    /// The instructions for eight blocks.
    fn eight(self) -> Self::Eight;
    /// The instructions for twenty-four blocks.
    fn twenty_four(self) -> Self::TwentyFour;

    /// 64 bytes, little-endian.
    fn load(self, bytes: &[u8; BLOCK_LEN]) -> Self::Vector;
    /// 1 to 64 bytes, and zeros behind them.
    fn load_part(self, bytes: &[u8]) -> Self::Vector;
    /// Into 64 bytes, little-endian.
    fn store(self, bytes: &mut [u8; BLOCK_LEN], vector: Self::Vector);
    /// Fills 1 to 64 bytes from the vector's beginning.
    fn store_part(self, bytes: &mut [u8], vector: Self::Vector);
    /// Eight numbers.
    fn numbers(self, numbers: &[u64; 8]) -> Self::Vector;
    /// A vector with the number eight times.
    fn everywhere(self, number: u64) -> Self::Vector;
    /// The sum of all eight, which must be below 2^64.
    fn sum_of_numbers(self, vector: Self::Vector) -> u64;

    /// Exclusive or.
    fn xor(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// And.
    fn and(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Or.
    fn or(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Sums, modulo 2^64.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Each number times 2^`BITS`, modulo 2^64.
    fn shifted_left<const BITS: u32>(self, vector: Self::Vector) -> Self::Vector;
    /// Each number divided by 2^`BITS`.
    fn shifted_right<const BITS: u32>(self, vector: Self::Vector) -> Self::Vector;
    /// The first number of each 16 bytes: of `a` and of `b` by turns.
    fn firsts(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The second number of each 16 bytes: of `a` and of `b` by turns.
    fn seconds(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The numbers of `b` where `MASK` has a one, from its lowest bit on, and those of `a`
    /// elsewhere.
    fn selected<const MASK: u8>(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `sum` plus the lower 52 bits of the products of the lower 52 bits of `a` and `b`.
    fn add_low(self, sum: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `sum` plus the upper 52 bits of those products of 104 bits.
    fn add_high(self, sum: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// [`Key::batch_here`], compiled for this machine.
    fn batch<L: Lanes<Vector = Self::Vector>, const SEAL: bool>(
        key: &Key<Self>,
        lanes: L,
        packet: &mut Packet<'_>,
    ) -> bool;
    /// [`poly1305::tag_here`](crate::poly1305::tag_here), compiled for this machine.
    fn tag(self, key: &MacKey, aad: &[u8], text: &[u8]) -> [u8; TAG_LEN];
    /// Overwrites the vector registers, and the part of the stack that calls of the two above have
    /// just left: when opening the second is called by the first.
    fn wipe<const SEAL: bool>(self);
    /// Whether a packet is authentic: from here on no secret.
    fn publish(self, authentic: Choice) -> bool {
        authentic.into()
    }
}

/// Vectors that hold one word of 32 bits of each of some blocks.
pub(crate) trait Lanes: Copy {
    /// Blocks side by side.
    const BLOCKS: usize;
    /// A block.
    type Vector: Copy;
    /// A word of each block.
    type Words: Copy;
    /// [`Self::BLOCKS`] blocks.
    type Blocks: AsRef<[Self::Vector]>;

    /// Words with this one for each block.
    fn everywhere(self, word: u32) -> Self::Words;
    /// `first` for the first block, and one more for each after it.
    fn counting(self, first: u32) -> Self::Words;
    /// Exclusive or.
    fn xor(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// Sums, modulo 2^32.
    fn add(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// Each word rotated to the left.
    fn rotated<const BITS: i32>(self, words: Self::Words) -> Self::Words;
    /// The blocks whose words these are.
    fn blocks(self, words: [Self::Words; 16]) -> Self::Blocks;
}
