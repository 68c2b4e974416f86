//! The algorithm. A library spends half of its time for a datagram of 1.4 kB on set-up, since
//! libraries are made for records of 16 KiB. Here all that a packet needs of its key is computed
//! once, with the key, and GHASH runs interleaved with the encryption of the next blocks.
//!
//! Numbered as a packet meets it:
//!
//! 1. GHASH takes in the associated data, block by block: there is one on the data path.
//! 2. Chunks: eight vectors of counter blocks go through AES together. Between the rounds GHASH
//!    takes in the ciphertext that there is already: of this chunk when opening, of the one before
//!    when sealing.
//! 3. The tail, shorter than a chunk, vector by vector; the last one may be a part of a vector.
//! 4. GHASH takes in the lengths, and the encrypted first counter block makes a tag of it.
//!
//! GHASH works on blocks with their bytes reversed, for the processor's order of bits, and with
//! powers of the hash key times x, which saves a shift of each product (S. Gueron and M. Kounavis,
//! "Intel Carry-Less Multiplication Instruction and its Usage for Computing the GCM Mode", 2014).
//! The blocks of a chunk are multiplied by falling powers and the sum is reduced once.
//!
//! The algorithm stands here once, over a [`Machine`]: the two kinds of processors, or arrays that
//! imitate either (`emulated`, only in tests), so that each line runs in the tests of every
//! computer.
//!
//! - INVARIANT: no branch and no address depends on key, plaintext or tag, only on lengths.
//! - INVARIANT: a packet that is not authentic leaves zeros where its plaintext would be.
//! - INVARIANT: vector registers and stack are wiped before a call returns, for they held key
//!   stream and tag.
//! - The expanded key is made where it stays, on the heap, and erased there.
//!
//! Nonces and limits are the caller's business.

#[cfg(test)]
mod tests;

use std::hint::black_box;

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

use crate::machine::{Block, Machine};
use crate::{MAX_TEXT_LEN, NONCE_LEN, NotAuthentic, TAG_LEN};

/// Vectors that go through AES together: as many as hide the latency of a round.
const TOGETHER: usize = 8;
/// Blocks of the longest vector.
const MAX_BLOCKS: usize = 4;
/// The highest power of the hash key that is kept: for the blocks of the longest tail, and the
/// lengths.
const TOP: usize = TOGETHER * MAX_BLOCKS + 1;
/// The field's polynomial in the order of bits that reversed blocks have.
const POLYNOMIAL: u128 = 0xc200_0000_0000_0000_0000_0000_0000_0001;
/// The words that the key schedule adds, round by round (FIPS 197, section 5.2).
const ROUND_CONSTANTS: [u8; 10] = [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x1b, 0x36];
/// How far each block's counter is from that of the tag's mask, in the first vector.
const AHEAD: [Block; MAX_BLOCKS] = [number(1), number(2), number(3), number(4)];
/// Counter of the block that masks the tag, when a nonce has 96 bits (SP 800-38D, section 7.1, step
/// 2).
const FIRST_COUNTER: u32 = 1;

/// AES-128-GCM's rounds.
pub(crate) const ROUNDS_128: usize = 10;
/// AES-256-GCM's rounds.
pub(crate) const ROUNDS_256: usize = 14;

/// A number as a reversed block.
const fn number(number: u128) -> Block {
    number.to_le_bytes()
}

/// A block times x: a shift, and the polynomial if a bit falls out.
#[inline(always)]
fn times_x(block: u128) -> u128 {
    block << 1 ^ POLYNOMIAL & 0_u128.wrapping_sub(block >> 127)
}

// The constants of the code above, computed from their definition.
const _: () = {
    // x^128 + x^7 + x^2 + x + 1, its bits in reverse order; times x, for the powers are; and x^128
    // itself.
    assert!(POLYNOMIAL == 0x87_u128.reverse_bits() << 1 | 1);
    // Each round constant is the one before times x in AES's field.
    assert!(ROUND_CONSTANTS[0] == 1);
    let mut i = 1;
    while i < ROUND_CONSTANTS.len() {
        let before = ROUND_CONSTANTS[i - 1];
        assert!(ROUND_CONSTANTS[i] == (before << 1) ^ ((before >> 7) * 0x1b));
        i += 1;
    }
    // An AES-128 key needs all of them: a round key of four words for each round, after four words
    // of key.
    assert!(ROUND_CONSTANTS.len() == ROUNDS_128);
    let mut i = 0;
    while i < AHEAD.len() {
        assert!(u128::from_le_bytes(AHEAD[i]) == i as u128 + 1);
        i += 1;
    }
    // No counter of a packet wraps, so none comes twice: the first, one for each block, and a
    // vector that is counted ahead.
    let last = FIRST_COUNTER as u64 + MAX_TEXT_LEN.div_ceil(16) as u64 + MAX_BLOCKS as u64;
    assert!(last < 1 << 32);
    // Each vector of a chunk has a round to be hashed beside.
    assert!(TOGETHER < ROUNDS_128);
    // Lengths in bits fit in 64.
    assert!(MAX_TEXT_LEN < usize::MAX / 8);
};

/// An expanded AES-GCM key with `R` rounds. Aligned so that no vector of powers for a chunk lies
/// across cache lines.
#[repr(C, align(64))]
pub(crate) struct Gcm<M, const R: usize> {
    /// Round keys, `R + 1` of them.
    round_keys: [Block; ROUNDS_256 + 1],
    /// The hash key to the power of `TOP`, and so on down to itself; then zeros, which a vector
    /// from there may hold.
    powers: [Block; TOP + MAX_BLOCKS - 1],
    machine: M,
}

impl<M: Machine, const R: usize> Gcm<M, R> {
    /// Bytes of a chunk.
    const CHUNK: usize = TOGETHER * M::BYTES;

    /// Expands `key`, of 4 (R − 6) bytes.
    pub(crate) fn new(machine: M, key: &[u8]) -> Box<Self> {
        const { assert!(R == ROUNDS_128 || R == ROUNDS_256) };
        const { assert!(M::BLOCKS <= MAX_BLOCKS && MAX_BLOCKS.is_multiple_of(M::BLOCKS)) };
        assert_eq!(key.len(), 4 * (R - 6), "the key has the length of its suite");
        let (round_keys, powers) = ([[0; 16]; ROUNDS_256 + 1], [[0; 16]; TOP + MAX_BLOCKS - 1]);
        let mut gcm = Box::new(Self { round_keys, powers, machine });
        M::expand(&mut gcm, key);
        machine.wipe();
        gcm
    }

    /// Encrypts `text` in place and returns the tag.
    #[inline]
    pub(crate) fn seal(&self, nonce: [u8; NONCE_LEN], aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
        assert!(text.len() <= MAX_TEXT_LEN, "the caller checks what a counter block can count");
        let tag = M::crypt::<R, true>(self, nonce, aad, text);
        self.machine.wipe();
        tag
    }

    /// Decrypts `text` in place if `tag` is its tag; else `text` is zeros.
    #[inline]
    pub(crate) fn open(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), NotAuthentic> {
        if text.len() > MAX_TEXT_LEN {
            text.zeroize();
            return Err(NotAuthentic);
        }
        // The right tag of a forged packet would be the forger's.
        let computed = Zeroizing::new(M::crypt::<R, false>(self, nonce, aad, text));
        self.machine.wipe();
        if self.machine.publish(computed.ct_eq(tag)) {
            return Ok(());
        }
        text.zeroize();
        Err(NotAuthentic)
    }

    /// Computes round keys and powers (FIPS 197, section 5.2).
    #[inline(always)]
    pub(crate) fn expand_here(&mut self, key: &[u8]) {
        let words = key.len() / 4;
        let mut schedule = Zeroizing::new([0_u32; 4 * (ROUNDS_256 + 1)]);
        for (word, bytes) in schedule.iter_mut().zip(key.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        for i in words..4 * (R + 1) {
            let mut word = schedule[i - 1];
            if i % words == 0 {
                word = self.substituted(word).rotate_right(8) ^ u32::from(ROUND_CONSTANTS[i / words - 1]);
            } else if words > 6 && i % words == 4 {
                word = self.substituted(word);
            }
            schedule[i] = schedule[i - words] ^ word;
        }
        for (round_key, words) in self.round_keys.iter_mut().zip(schedule.as_chunks::<4>().0) {
            for (bytes, word) in round_key.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                *bytes = word.to_le_bytes();
            }
        }
        let machine = self.machine;
        let encrypted = Zeroizing::new(machine.lowest_of(self.block(&[0; 16])));
        let hash_key = Zeroizing::new(u128::from_be_bytes(*encrypted));
        let first = machine.lowest(&number(times_x(*hash_key)));
        let mut power = first;
        for place in self.powers[..TOP].iter_mut().rev() {
            *place = machine.lowest_of(power);
            let mut sum = Sum::starting_with(machine, machine.zero());
            sum.add_reversed(power, first);
            power = sum.reduce();
        }
    }

    /// AES's substitution of the four bytes of a word: with the same word in each column, ShiftRows
    /// changes nothing.
    #[inline(always)]
    fn substituted(&self, word: u32) -> u32 {
        let columns = number(u128::from(word) * 0x0000_0001_0000_0001_0000_0001_0000_0001);
        let block = self.machine.last_round(self.machine.lowest(&columns), self.machine.zero());
        u128::from_le_bytes(self.machine.lowest_of(block)) as u32
    }

    /// Encrypts one block.
    #[inline(always)]
    fn block(&self, block: &Block) -> M::Vector {
        let machine = self.machine;
        let mut state = machine.xor(machine.lowest(block), machine.lowest(&self.round_keys[0]));
        for round_key in &self.round_keys[1..R] {
            state = machine.round(state, machine.lowest(round_key));
        }
        machine.last_round(state, machine.lowest(&self.round_keys[R]))
    }

    /// Encrypts the next `N` vectors of counter blocks. Of `beside`, if there is something, a
    /// vector is added to its sum after each of the first rounds.
    #[inline(always)]
    fn key_stream<const N: usize>(
        &self,
        counters: &mut M::Vector,
        mut beside: Option<(&[u8], &mut Sum<M>)>,
    ) -> [M::Vector; N] {
        let machine = self.machine;
        let step = machine.everywhere(&number(M::BLOCKS as u128));
        let round_key = machine.everywhere(&self.round_keys[0]);
        let mut states = [round_key; N];
        for state in &mut states {
            *state = machine.xor(machine.reversed(*counters), round_key);
            *counters = machine.add(*counters, step);
        }
        for round in 1..R {
            let round_key = machine.everywhere(&self.round_keys[round]);
            for state in &mut states {
                *state = machine.round(*state, round_key);
            }
            if let Some((ciphertext, sum)) = &mut beside
                && round <= TOGETHER
            {
                let vector = &ciphertext[(round - 1) * M::BYTES..round * M::BYTES];
                sum.add(machine.load(vector), self.powers_from(M::BLOCKS * (TOGETHER + 1 - round)));
            }
        }
        let round_key = machine.everywhere(&self.round_keys[R]);
        for state in &mut states {
            *state = machine.last_round(*state, round_key);
        }
        states
    }

    /// Powers of the hash key for a vector whose first block is the `power`-th from the end.
    #[inline(always)]
    fn powers_from(&self, power: usize) -> M::Vector {
        self.machine.load(self.powers[TOP - power..][..M::BLOCKS].as_flattened())
    }

    /// Encrypts or decrypts `text` in place and returns the tag of the ciphertext.
    #[inline(always)]
    pub(crate) fn crypt_here<const SEAL: bool>(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_LEN] {
        let mut first_counter = [0; 16];
        first_counter[..NONCE_LEN].copy_from_slice(&nonce);
        first_counter[NONCE_LEN..].copy_from_slice(&FIRST_COUNTER.to_be_bytes());
        let mask = self.block(&first_counter);
        // To the compiler this is another key. Else it keeps the round keys that it has loaded for
        // the mask, on the stack.
        let hash = black_box(self).crypt_text::<SEAL>(&first_counter, aad, text);
        self.machine.lowest_of(self.machine.xor(hash, mask))
    }

    /// Encrypts or decrypts `text` in place and returns GHASH of the ciphertext, as the tag has its
    /// bytes.
    #[inline(always)]
    fn crypt_text<const SEAL: bool>(&self, first_counter: &Block, aad: &[u8], text: &mut [u8]) -> M::Vector {
        let machine = self.machine;
        let lengths = ((8 * aad.len() as u128) << 64) | (8 * text.len() as u128);
        let ahead = machine.load(AHEAD[..M::BLOCKS].as_flattened());
        let first_counter = machine.reversed(machine.everywhere(first_counter));
        let mut counters = machine.add(first_counter, ahead);

        let hash = self.hash_aad(aad);
        let whole = text.len() - text.len() % Self::CHUNK;
        let (chunks, tail) = text.split_at_mut(whole);
        let hash = if SEAL {
            self.seal_chunks(hash, &mut counters, chunks)
        } else {
            self.open_chunks(hash, &mut counters, chunks)
        };
        let mut sum = Sum::starting_with(machine, hash);
        self.tail::<SEAL>(&mut sum, &mut counters, tail);
        // The lengths need no reversing: they are made as numbers.
        sum.add_reversed(machine.lowest(&number(lengths)), self.powers_from(1));
        machine.reversed(sum.reduce())
    }

    /// GHASH of the associated data so far.
    #[inline(always)]
    fn hash_aad(&self, aad: &[u8]) -> M::Vector {
        let mut hash = self.machine.zero();
        let (blocks, rest) = aad.as_chunks();
        for block in blocks {
            hash = self.hash_block(hash, block);
        }
        if !rest.is_empty() {
            let mut block = [0; 16];
            block[..rest.len()].copy_from_slice(rest);
            hash = self.hash_block(hash, &block);
        }
        hash
    }

    #[inline(always)]
    fn hash_block(&self, hash: M::Vector, block: &Block) -> M::Vector {
        let mut sum = Sum::starting_with(self.machine, hash);
        sum.add(self.machine.lowest(block), self.powers_from(1));
        sum.reduce()
    }

    /// Decrypts chunks; each is hashed beside its own key stream.
    #[inline(always)]
    fn open_chunks(&self, mut hash: M::Vector, counters: &mut M::Vector, chunks: &mut [u8]) -> M::Vector {
        for chunk in chunks.chunks_exact_mut(Self::CHUNK) {
            let mut sum = Sum::starting_with(self.machine, hash);
            let stream = self.key_stream::<TOGETHER>(counters, Some((chunk, &mut sum)));
            hash = sum.reduce();
            self.apply(&stream, chunk);
        }
        hash
    }

    /// Encrypts chunks; each is hashed while the key stream of the next is computed.
    #[inline(always)]
    fn seal_chunks(&self, mut hash: M::Vector, counters: &mut M::Vector, chunks: &mut [u8]) -> M::Vector {
        let mut chunks = chunks.chunks_exact_mut(Self::CHUNK);
        let Some(mut done) = chunks.next() else { return hash };
        self.apply(&self.key_stream::<TOGETHER>(counters, None), done);
        for chunk in chunks {
            let mut sum = Sum::starting_with(self.machine, hash);
            let stream = self.key_stream::<TOGETHER>(counters, Some((done, &mut sum)));
            hash = sum.reduce();
            self.apply(&stream, chunk);
            done = chunk;
        }
        let mut sum = Sum::starting_with(self.machine, hash);
        for (i, vector) in done.chunks_exact(M::BYTES).enumerate() {
            sum.add(self.machine.load(vector), self.powers_from(M::BLOCKS * (TOGETHER - i)));
        }
        sum.reduce()
    }

    #[inline(always)]
    fn apply(&self, stream: &[M::Vector; TOGETHER], chunk: &mut [u8]) {
        for (vector, stream) in chunk.chunks_exact_mut(M::BYTES).zip(stream) {
            self.machine.store(vector, self.machine.xor(self.machine.load(vector), *stream));
        }
    }

    /// Encrypts or decrypts the tail and adds it to the `sum`.
    #[inline(always)]
    fn tail<const SEAL: bool>(&self, sum: &mut Sum<M>, counters: &mut M::Vector, tail: &mut [u8]) {
        let machine = self.machine;
        let mut power = tail.len().div_ceil(16) + 1;
        let mut vectors = tail.chunks_exact_mut(M::BYTES);
        for vector in &mut vectors {
            let [stream] = self.key_stream(counters, None);
            let before = machine.load(vector);
            let after = machine.xor(before, stream);
            machine.store(vector, after);
            sum.add(if SEAL { after } else { before }, self.powers_from(power));
            power -= M::BLOCKS;
        }
        let rest = vectors.into_remainder();
        if !rest.is_empty() {
            let [stream] = self.key_stream(counters, None);
            let before = machine.load_part(rest);
            let after = machine.store_part(rest, machine.xor(before, stream));
            sum.add(if SEAL { after } else { before }, self.powers_from(power));
        }
    }
}

impl<M, const R: usize> Gcm<M, R> {
    fn erase(&mut self) {
        self.round_keys.zeroize();
        self.powers.zeroize();
    }
}

impl<M, const R: usize> Drop for Gcm<M, R> {
    fn drop(&mut self) {
        self.erase();
    }
}

/// Products of blocks with powers of the hash key, added up and not reduced yet: a sum for each
/// place of a vector.
struct Sum<M: Machine> {
    low: M::Vector,
    middle: M::Vector,
    high: M::Vector,
    /// The state of the hash before the next block.
    carry: M::Vector,
    machine: M,
}

impl<M: Machine> Sum<M> {
    /// Begins with the hash of everything before, which counts as part of the next block.
    #[inline(always)]
    fn starting_with(machine: M, hash: M::Vector) -> Self {
        let zero = machine.zero();
        Self { low: zero, middle: zero, high: zero, carry: hash, machine }
    }

    /// Adds a vector of ciphertext times its powers.
    #[inline(always)]
    fn add(&mut self, ciphertext: M::Vector, powers: M::Vector) {
        self.add_reversed(self.machine.reversed(ciphertext), powers);
    }

    #[inline(always)]
    fn add_reversed(&mut self, blocks: M::Vector, powers: M::Vector) {
        let machine = self.machine;
        let blocks = machine.xor(blocks, self.carry);
        self.carry = machine.zero();
        self.low = machine.xor(self.low, machine.product::<0x00>(blocks, powers));
        let (one, other) = (machine.product::<0x01>(blocks, powers), machine.product::<0x10>(blocks, powers));
        self.middle = machine.xor3(self.middle, one, other);
        self.high = machine.xor(self.high, machine.product::<0x11>(blocks, powers));
    }

    /// Reduces the sums by the polynomial, the lower half of each first, and adds them up. The
    /// result is a block in the lowest place.
    #[inline(always)]
    fn reduce(self) -> M::Vector {
        let machine = self.machine;
        let middle = self.folded(self.low, self.middle);
        let high = self.folded(middle, self.high);
        machine.sum_of_blocks(high)
    }

    /// Adds `low` to `onto`, which stands 64 bits higher, so that its lower half is zero there and
    /// can be left out.
    #[inline(always)]
    fn folded(&self, low: M::Vector, onto: M::Vector) -> M::Vector {
        let polynomial = self.machine.everywhere(&number(POLYNOMIAL));
        let product = self.machine.product::<0x01>(polynomial, low);
        self.machine.xor3(onto, self.machine.swapped(low), product)
    }
}
