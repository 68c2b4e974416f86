//! Multiplication and reduction in GF(2^128), proved for all inputs, and the machines' operations.
//!
//! **The argument.** What happens to a block of text between its load and the tag is: products
//! without carries (PCLMULQDQ), exclusive or, and moves of bytes and halves. Each is linear over
//! GF(2) by what the instruction is defined to do: a product of polynomials is linear in either
//! factor, the others in all they take. A block is only ever the one factor of the first product,
//! and a stored power only ever the other; the products of the reduction have a constant as one
//! factor. So from the same length the code computes a map that is linear in the blocks and linear
//! in the powers, provided that it does the same whatever their values are: that it has no branch
//! and no address that depends on them is what `constant_time` and `trace` look after.
//! Multiplication in the field is linear in both factors as well. **Two such maps that agree on all
//! pairs of basis vectors agree on all inputs**, so the tests below take all 128 × 128 pairs of
//! bits, for each place of a vector, for each stored power, and for each length of a text in blocks
//! up to a chunk, through the very function that carries traffic. That no block meets another
//! block's power as well is tried with random powers: a wrong product shows with each of them with
//! a probability of at least one half.
//!
//! Longer texts are chunks: the hash so far is added to the first block of the next, which is
//! linear again.
//!
//! The argument rests on the makers' definition of the instructions. That this processor keeps it
//! is tried with random values ([`sums_of_factors`]), and `native` compares packets of every length
//! with other code.

use aes_gcm::aes::Aes256;
use aes_gcm::aes::cipher::{BlockCipherEncrypt as _, KeyInit as _};

use super::*;

/// The field's polynomial without its highest power, as SP 800-38D, section 6.3, writes it: bits
/// run from the left.
const REDUCTION: u128 = 0xe1 << 120;

/// SP 800-38D, section 6.3, algorithm 1, bit by bit: the product of two blocks, read as numbers.
fn product(x: u128, y: u128) -> u128 {
    let (mut sum, mut shifted) = (0, y);
    for bit in (0..128).rev() {
        if x >> bit & 1 == 1 {
            sum ^= shifted;
        }
        shifted = if shifted & 1 == 1 { shifted >> 1 ^ REDUCTION } else { shifted >> 1 };
    }
    sum
}

/// The block x^0.
const ONE: u128 = 1 << 127;

/// Numbers that look random, always the same ones.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// `splitmix64`.
    pub(super) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn block(&mut self) -> u128 {
        u128::from(self.word()) << 64 | u128::from(self.word())
    }
}

/// A key whose stored powers a test chooses, and the key stream of its one nonce.
struct Probe<M, const R: usize> {
    own: Box<Gcm<M, R>>,
    /// The mask of the tag.
    mask: u128,
}

impl<M: Machine, const R: usize> Probe<M, R> {
    /// Blocks of a chunk.
    const CHUNK_BLOCKS: usize = TOGETHER * M::BLOCKS;

    fn new(machine: M) -> Self {
        let mut own = Gcm::<M, R>::new(machine, &KEY[..4 * (R - 6)]);
        own.powers = [[0; 16]; _];
        let mask = u128::from_be_bytes(own.seal(NONCE, &[], &mut []));
        Self { own, mask }
    }

    /// Stores `value` as the hash key's `power`.
    fn set(&mut self, power: usize, value: u128) {
        self.own.powers[TOP - power] = number(times_x(value));
    }

    fn set_all(&mut self, values: &[u128; TOP]) {
        for (i, value) in values.iter().enumerate() {
            self.set(i + 1, *value);
        }
    }

    /// GHASH of a ciphertext, by opening and then by sealing, which leaves the text as it was.
    fn hash(&self, aad: &[u8], ciphertext: &mut [u8]) -> u128 {
        let opened = M::crypt::<R, false>(&self.own, NONCE, aad, ciphertext);
        let sealed = M::crypt::<R, true>(&self.own, NONCE, aad, ciphertext);
        assert_eq!(opened, sealed, "seal and open hash the same ciphertext");
        u128::from_be_bytes(opened) ^ self.mask
    }
}

/// By the standard: the hash of a text of whole blocks with `powers`, of which the first is the
/// hash key's first.
fn hashed(blocks: &[u128], powers: &[u128; TOP], chunk_blocks: usize) -> u128 {
    let lengths = 128 * blocks.len() as u128;
    let (last, chunks) = (blocks.len() % chunk_blocks, blocks.len() / chunk_blocks);
    let (whole, tail) = blocks.split_at(chunks * chunk_blocks);
    let sum = |carry: u128, blocks: &[u128], lowest: usize| {
        let first = blocks.len() + lowest - 1;
        let products = blocks.iter().enumerate().map(|(i, block)| {
            let block = if i == 0 { block ^ carry } else { *block };
            if block == 0 { 0 } else { product(block, powers[first - i - 1]) }
        });
        products.fold(0, |sum, product| sum ^ product)
    };
    let hash = whole.chunks(chunk_blocks).fold(0, |hash, chunk| sum(hash, chunk, 1));
    if last == 0 {
        return product(hash ^ lengths, powers[0]);
    }
    sum(hash, tail, 2) ^ product(lengths, powers[0])
}

/// Each place of a vector by itself, and each with the power of another place, which it must not
/// meet.
pub(super) fn every_place<M: Machine>(machine: M) {
    fn at<M: Machine>(machine: M, place: usize, block: u128) -> M::Vector {
        let mut vector = vec![[0; 16]; M::BLOCKS];
        vector[place] = number(block);
        machine.load(vector.as_flattened())
    }
    for (place, other) in pairs(M::BLOCKS) {
        for (i, j) in pairs(128) {
            let mut sum = Sum::starting_with(machine, machine.zero());
            sum.add_reversed(at(machine, place, 1 << i), at(machine, other, times_x(1 << j)));
            let found = u128::from_le_bytes(machine.lowest_of(sum.reduce()));
            let wanted = if place == other { product(1 << i, 1 << j) } else { 0 };
            assert_eq!(found, wanted, "bit {i} at {place}, bit {j} at {other}");
        }
    }
}

/// Each number of blocks to a chunk, each block of it, each of its `bits`, each of the `bits` of
/// the power that it meets.
fn powers_of<M: Machine, const R: usize>(machine: M, bits: &[usize]) {
    let products: Vec<u128> = pairs(128).map(|(i, j)| product(1 << i, 1 << j)).collect();
    let (mut probe, chunk) = (Probe::<M, R>::new(machine), Probe::<M, R>::CHUNK_BLOCKS);
    for (blocks, block) in (1..=chunk).flat_map(|blocks| (0..blocks).map(move |block| (blocks, block))) {
        // A chunk's last block meets the hash key itself, a tail's the square of it.
        let lowest = if blocks == chunk { 1 } else { 2 };
        let power = blocks - 1 - block + lowest;
        let (mut text, lengths) = (vec![0; 16 * blocks], 128 * blocks as u128);
        for &j in bits {
            let mut values = [0; TOP];
            // The lengths meet the hash key, and so does the sum of a chunk before them.
            values[0] = ONE;
            values[power - 1] = 1 << j;
            probe.set_all(&values);
            for &i in bits {
                text[16 * block..][..16].copy_from_slice(&(1_u128 << i).to_be_bytes());
                let met = products[128 * i + j];
                let wanted = if power == 1 { product(met ^ lengths, 1 << j) } else { met ^ lengths };
                let found = probe.hash(&[], &mut text);
                assert_eq!(found, wanted, "{blocks} blocks, bit {i} of {block}, bit {j} of power {power}");
            }
        }
    }
}

pub(super) fn every_power(machine: impl Machine) {
    let bits: Vec<usize> = (0..128).collect();
    powers_of::<_, ROUNDS_128>(machine, &bits);
    powers_of::<_, ROUNDS_256>(machine, &bits);
}

/// The part of that which the emulation does in a second.
fn some_bits_of_every_power(machine: impl Machine) {
    powers_of::<_, ROUNDS_128>(machine, &[0, 63, 64, 127]);
}

/// The lengths and the associated data meet the hash key itself.
pub(super) fn lengths_and_data_beside(machine: impl Machine) {
    let mut probe = Probe::<_, ROUNDS_256>::new(machine);
    for (i, j) in pairs(128) {
        probe.set(1, 1 << j);
        let aad = (1_u128 << i).to_be_bytes();
        let wanted = product(product(1 << i, 1 << j) ^ 128 << 64, 1 << j);
        assert_eq!(probe.hash(&aad, &mut []), wanted, "bit {i}, bit {j}");
    }
}

/// Each bit of each block with random powers in all places, `rounds` times.
fn others<M: Machine>(machine: M, lengths: impl Iterator<Item = usize>, rounds: usize) {
    let (mut probe, mut random) = (Probe::<M, ROUNDS_256>::new(machine), Random(7));
    for (blocks, _) in lengths.flat_map(|blocks| (0..rounds).map(move |round| (blocks, round))) {
        let values: [u128; TOP] = std::array::from_fn(|_| random.block());
        probe.set_all(&values);
        for (block, i) in (0..blocks).flat_map(|block| (0..128).map(move |i| (block, i))) {
            let mut text = vec![0_u128; blocks];
            text[block] = 1 << i;
            let wanted = hashed(&text, &values, Probe::<M, ROUNDS_256>::CHUNK_BLOCKS);
            let mut text: Vec<u8> = text.into_iter().flat_map(u128::to_be_bytes).collect();
            assert_eq!(probe.hash(&[], &mut text), wanted, "{blocks} blocks, bit {i} of {block}");
        }
    }
}

/// No block meets a power that is another's: a product too many shows with a probability of at
/// least one half in each round.
pub(super) fn no_other_power<M: Machine>(machine: M) {
    others(machine, 1..=TOGETHER * M::BLOCKS, 32);
    // Chunks after one another, and a tail behind them.
    others(machine, [2, 3].into_iter().map(|chunks| chunks * TOGETHER * M::BLOCKS + 5), 1);
}

fn few_other_powers<M: Machine>(machine: M) {
    others(machine, [1, M::BLOCKS + 1, TOGETHER * M::BLOCKS].into_iter(), 1);
}

/// Not proved but tried: the hash of a sum is the sum of the hashes, of texts and of powers.
pub(super) fn sums_of_factors<M: Machine>(machine: M) {
    let (mut probe, mut random) = (Probe::<M, ROUNDS_128>::new(machine), Random(11));
    for _ in 0..1_000 {
        // The blocks of a tail, whose hash is linear in the powers too: a chunk's sum meets the
        // hash key twice.
        let blocks = 1 + random.word() as usize % (TOGETHER * M::BLOCKS - 1);
        let [a, b] = [0; 2].map(|_| (0..16 * blocks).map(|_| random.word() as u8).collect::<Vec<u8>>());
        let [p, q]: [[u128; TOP]; 2] = [0; 2].map(|_| std::array::from_fn(|_| random.block()));
        let mut hash = |powers: &[u128; TOP], text: &[u8]| {
            probe.set_all(powers);
            probe.hash(&[], &mut text.to_vec())
        };
        let text: Vec<u8> = a.iter().zip(&b).map(|(a, b)| a ^ b).collect();
        assert_eq!(hash(&p, &text), hash(&p, &a) ^ hash(&p, &b) ^ hash(&p, &vec![0; 16 * blocks]));
        let powers = std::array::from_fn(|i| p[i] ^ q[i]);
        assert_eq!(hash(&powers, &a), hash(&p, &a) ^ hash(&q, &a));
    }
}

/// Stored are the powers of the key's own hash key, by the reference, and zeros behind them.
pub(super) fn powers_of_keys(machine: impl Machine) {
    let mut random = Random(3);
    for _ in 0..200 {
        let key = [random.block(), random.block()].map(u128::to_be_bytes);
        let mut zeros = [0; 16].into();
        Aes256::new_from_slice(key.as_flattened()).unwrap().encrypt_block(&mut zeros);
        let hash_key = u128::from_be_bytes(zeros.into());
        let own = Gcm::<_, ROUNDS_256>::new(machine, key.as_flattened());
        let mut power = hash_key;
        for (i, stored) in own.powers[..TOP].iter().rev().enumerate() {
            assert_eq!(*stored, number(times_x(power)), "power {}", i + 1);
            power = product(power, hash_key);
        }
        assert!(own.powers[TOP..].iter().all(|block| *block == [0; 16]));
    }
}

/// Counters have 32 bits and wrap without a carry into the nonce (SP 800-38D, section 6.2), though
/// no packet has that many blocks.
pub(super) fn counters_wrap<M: Machine>(machine: M) {
    let own = Gcm::<M, ROUNDS_256>::new(machine, &KEY);
    let library = Aes256::new_from_slice(&KEY).unwrap();
    for before in 0..=(TOGETHER * M::BLOCKS) as u32 {
        let counter = |i: usize| {
            let mut block = [0xff; 16];
            block[NONCE_LEN..].copy_from_slice(&(i as u32).wrapping_sub(before).to_be_bytes());
            block
        };
        let first: Vec<Block> = (0..M::BLOCKS).map(counter).collect();
        let mut counters = machine.reversed(machine.load(first.as_flattened()));
        let stream = own.key_stream::<TOGETHER>(&mut counters, None);
        let mut found = vec![0; M::BYTES * TOGETHER];
        for (bytes, vector) in found.chunks_mut(M::BYTES).zip(stream) {
            machine.store(bytes, vector);
        }
        for (i, found) in found.as_chunks::<16>().0.iter().enumerate() {
            let mut wanted = counter(i).into();
            library.encrypt_block(&mut wanted);
            assert_eq!(*found, <Block>::from(wanted), "block {i}, {before} before the end");
        }
    }
}

/// Both numbers below `n`, each with each.
fn pairs(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).flat_map(move |i| (0..n).map(move |j| (i, j)))
}

emulated! {
    a_place_multiplies_all_pairs_of_basis_vectors: every_place;
    a_power_multiplies_some_pairs_of_basis_vectors: some_bits_of_every_power;
    no_block_meets_a_power_of_another: few_other_powers;
    the_lengths_meet_the_hash_key: lengths_and_data_beside;
    powers_are_those_of_the_hash_key: powers_of_keys;
    counters_wrap_without_a_carry: counters_wrap;
}
