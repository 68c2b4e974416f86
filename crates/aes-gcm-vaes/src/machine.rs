//! The instructions that AES-GCM is made of, as a machine that has them: two kinds of x86
//! processors, and arrays in memory that imitate either.
//!
//! A value of a [`Machine`] is the proof that its instructions may be used, so everything here is
//! safe to call. All of it must be inlined into [`Machine::expand`] and [`Machine::crypt`], which
//! alone are compiled for the processor.

use subtle::Choice;

use crate::gcm::Gcm;
use crate::{NONCE_LEN, TAG_LEN};

/// A block of AES.
pub(crate) type Block = [u8; 16];

/// For a shuffle of bytes: each block's in reverse order.
pub(crate) const BYTES_REVERSED: Block = [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0];
/// For a shuffle of words of 32 bits, two bits for the source of each: the halves of a block
/// swapped.
pub(crate) const HALVES_SWAPPED: i32 = 0b01_00_11_10;
const _: () = {
    let mut i = 0;
    while i < BYTES_REVERSED.len() {
        assert!(BYTES_REVERSED[i] as usize == 15 - i);
        i += 1;
    }
    let mut word = 0;
    while word < 4 {
        assert!(HALVES_SWAPPED >> (2 * word) & 3 == (word + 2) % 4);
        word += 1;
    }
};

/// Vectors of blocks and what can be done with them. "Lowest" is the block that lies first in
/// memory.
pub(crate) trait Machine: Copy {
    /// Blocks of a vector: 2 or 4.
    const BLOCKS: usize;
    /// Bytes of a vector.
    const BYTES: usize = 16 * Self::BLOCKS;
    /// A vector of [`Self::BLOCKS`] blocks.
    type Vector: Copy;

    /// Zeros.
    fn zero(self) -> Self::Vector;
    /// The block in each place.
    fn everywhere(self, block: &Block) -> Self::Vector;
    /// The block in the lowest place, zeros in the others.
    fn lowest(self, block: &Block) -> Self::Vector;
    /// The block in the lowest place.
    fn lowest_of(self, vector: Self::Vector) -> Block;
    /// The exclusive or of all blocks in the lowest place, zeros in the others.
    fn sum_of_blocks(self, vector: Self::Vector) -> Self::Vector;

    /// Exactly [`Machine::BYTES`] bytes.
    fn load(self, bytes: &[u8]) -> Self::Vector;
    /// Into exactly [`Machine::BYTES`] bytes.
    fn store(self, bytes: &mut [u8], vector: Self::Vector);
    /// 1 to [`Machine::BYTES`] bytes, and zeros behind them.
    fn load_part(self, bytes: &[u8]) -> Self::Vector;
    /// Fills 1 to [`Machine::BYTES`] bytes from the vector's beginning; returns the vector with
    /// zeros behind them.
    fn store_part(self, bytes: &mut [u8], vector: Self::Vector) -> Self::Vector;

    /// Exclusive or.
    fn xor(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Exclusive or of three.
    fn xor3(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The sum of each 32 bits, without carry to the next 32.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Each block with its bytes in reverse order.
    fn reversed(self, vector: Self::Vector) -> Self::Vector;
    /// Each block with its halves swapped.
    fn swapped(self, vector: Self::Vector) -> Self::Vector;
    /// The product, without carries, of a half of each block of `a` and a half of the same block of
    /// `b`: bit 0 of `HALVES` chooses the upper half of `a`, bit 4 that of `b`.
    fn product<const HALVES: i32>(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// A round of AES: ShiftRows, SubBytes, MixColumns, AddRoundKey.
    fn round(self, state: Self::Vector, round_key: Self::Vector) -> Self::Vector;
    /// The last round, without MixColumns.
    fn last_round(self, state: Self::Vector, round_key: Self::Vector) -> Self::Vector;

    /// [`Gcm::expand_here`], compiled for this machine.
    fn expand<const R: usize>(gcm: &mut Gcm<Self, R>, key: &[u8]);
    /// [`Gcm::crypt_here`], compiled for this machine.
    fn crypt<const R: usize, const SEAL: bool>(
        gcm: &Gcm<Self, R>,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_LEN];
    /// Overwrites the vector registers, and the part of the stack that a call of the two above has
    /// just left.
    fn wipe(self);
    /// Whether a packet is authentic: from here on no secret.
    fn publish(self, authentic: Choice) -> bool {
        authentic.into()
    }
}
