//! Poly1305's arithmetic against plain numbers modulo 2^130 - 5.
//!
//! **The argument.** No number overflows, for no key and no message: the bounds are computed at
//! compile time (`bounds`), by induction over groups. Then all that happens to limbs is addition
//! and multiplication of integers, and each product of two limbs is its lower 52 bits plus 2^52
//! times its upper ones, as the instructions are defined. So [`Sum::add`] is linear in the block's
//! limbs and in the factor's, seen as numbers modulo 2^130 - 5; **two such maps that agree on all
//! pairs of bits agree on all inputs**, and [`limbs_of_bits`] tries all pairs of bits that limbs
//! can have. Each is tried in one place, and some in all: that the places of a vector are alike is
//! how the instructions are defined. [`Sum::carried`] and [`reduced`] are tried at the ends of
//! their bounds; that they keep the number modulo 2^130 - 5 follows from the lines themselves: what
//! is masked away is added a limb higher, and five times at the bottom.

use super::*;
use crate::emulated::Emulated;

/// Numbers that look random, always the same ones.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// `splitmix64`.
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
}

/// A number below 2^130 - 5: its lower 128 bits and the two above.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Number {
    low: u128,
    high: u128,
}

const ZERO: Number = Number { low: 0, high: 0 };
const ONE: Number = Number { low: 1, high: 0 };

impl Number {
    /// `high` times 2^128, and `low`.
    fn new(mut low: u128, mut high: u128) -> Self {
        // 2^130 is 5.
        while high >= 4 {
            let (sum, carry) = low.overflowing_add((high >> 2) * 5);
            (low, high) = (sum, (high & 3) + u128::from(carry));
        }
        if high == 3 && low >= u128::MAX - 4 {
            return Self { low: low - (u128::MAX - 4), high: 0 };
        }
        Self { low, high }
    }

    fn of_limbs([low, middle, high]: [u64; 3]) -> Self {
        let lower = u128::from(low) + (u128::from(middle) << 44);
        let (lower, carry) = lower.overflowing_add(u128::from(high) << 88);
        Self::new(lower, (u128::from(high) >> 40) + u128::from(carry))
    }

    fn plus(self, other: Self) -> Self {
        let (low, carry) = self.low.overflowing_add(other.low);
        Self::new(low, self.high + other.high + u128::from(carry))
    }

    /// Bit by bit.
    fn times(self, other: Self) -> Self {
        let bits = (0..130).rev().map(|bit| {
            if bit < 128 { other.low >> bit & 1 == 1 } else { other.high >> (bit - 128) & 1 == 1 }
        });
        bits.fold(ZERO, |sum, bit| {
            let doubled = sum.plus(sum);
            if bit { doubled.plus(self) } else { doubled }
        })
    }
}

/// `r` with the bits cleared that it may not have (RFC 8439, section 2.5).
fn clamped(r: u128) -> u128 {
    r & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff
}

/// The tag by the RFC.
fn tag_of(key: &MacKey, blocks: &[u128]) -> u128 {
    let number = |low: u64, high: u64| u128::from(low) | u128::from(high) << 64;
    let r = Number::new(clamped(number(key[0], key[1])), 0);
    let hash = blocks.iter().fold(ZERO, |hash, block| hash.plus(Number::new(*block, 1)).times(r));
    hash.low.wrapping_add(number(key[2], key[3]))
}

/// The limbs of r to r^8 and of r^16, by block 0 of the key stream.
pub(crate) fn powers(first: &[u8; 64]) -> Vec<[u64; 3]> {
    let r = Number::new(clamped(u128::from_le_bytes(*first.first_chunk().unwrap())), 0);
    let mut power = ONE;
    let mut all = Vec::new();
    for exponent in 1..=16 {
        power = power.times(r);
        if exponent <= 8 || exponent == 16 {
            let middle = (power.low >> 44) as u64 & LOWER_MASK;
            let high = (power.low >> 88) as u64 | (power.high as u64) << 40;
            all.push([power.low as u64 & LOWER_MASK, middle, high]);
        }
    }
    all
}

fn numbers<M: Machine>(machine: M, vector: M::Vector) -> [u64; 8] {
    let mut bytes = [0; 64];
    machine.store(&mut bytes, vector);
    std::array::from_fn(|i| u64::from_le_bytes(bytes.as_chunks().0[i]))
}

/// The limbs in each place.
fn places<M: Machine>(limbs: Limbs<M>) -> [[u64; 3]; 8] {
    let machine = limbs.machine;
    let limbs = limbs.limbs.map(|limb| numbers(machine, limb));
    std::array::from_fn(|place| limbs.map(|limb| limb[place]))
}

/// Limbs in one place, zeros in all others.
fn at<M: Machine>(machine: M, place: usize, limbs: [u64; 3]) -> Limbs<M> {
    let limbs = limbs.map(|limb| {
        let mut numbers = [0; 8];
        numbers[place] = limb;
        machine.numbers(&numbers)
    });
    Limbs { machine, limbs }
}

/// A number for each bit that a limb can have, and its limbs: up to 46, which are more than a
/// carried limb and a block's.
fn bits() -> Vec<[u64; 3]> {
    (0..3)
        .flat_map(|limb| (0..46).map(move |bit| std::array::from_fn(|i| u64::from(i == limb) << bit)))
        .collect()
}

pub(crate) fn limbs_of_bits<M: Machine>(machine: M) {
    let one = |limbs: &[u64; 3]| Number::of_limbs(*limbs);
    let carried = |limbs: &&[u64; 3]| limbs[0] <= LOWER_MASK && limbs[2] <= HIGHEST_MASK;
    let bits = bits();
    for (i, a) in bits.iter().enumerate() {
        for b in bits.iter().filter(carried) {
            let wanted = one(a).times(one(b));
            // All places for each eleventh, one place for the others.
            let tried = if i % 11 == 0 { 0..8 } else { i % 8..i % 8 + 1 };
            for place in tried {
                let product = at(machine, place, *a).times(&Factor::new(at(machine, place, *b)));
                for (other, limbs) in places(product).into_iter().enumerate() {
                    let wanted = if other == place { wanted } else { ZERO };
                    assert_eq!(
                        Number::of_limbs(limbs),
                        wanted,
                        "{a:?} times {b:?} in {place}, seen in {other}"
                    );
                }
            }
        }
    }
}

/// Sums at the ends of their bounds.
pub(crate) fn carries<M: Machine>(machine: M) {
    let most = 6 * ((1 << FACTOR) - 1);
    let low = [0, 1, LOWER_MASK, 1 << FACTOR, most];
    let high = [0, 1, (1 << 39) - 1];
    let combinations = |values: &[u64]| -> Vec<[u64; 3]> {
        let pairs = |a: u64| values.iter().flat_map(move |b| values.iter().map(move |c| [a, *b, *c]));
        values.iter().flat_map(|a| pairs(*a)).collect()
    };
    for low in combinations(&low) {
        for high in combinations(&high) {
            let vectors = |limbs: [u64; 3]| limbs.map(|limb| machine.everywhere(limb));
            let sum = Sum { low: vectors(low), high: vectors(high), machine };
            let carried = places(sum.carried());
            let shift = |limbs: [u64; 3]| Number::of_limbs(limbs).times(Number::new(1 << FACTOR, 0));
            let wanted = Number::of_limbs(low).plus(shift(high));
            for [low, middle, high] in carried {
                assert_eq!(Number::of_limbs([low, middle, high]), wanted);
                assert!(low <= LOWER_MASK && middle <= LOWER_MASK + (1 << 9) && high <= HIGHEST_MASK);
            }
        }
    }
}

/// Hashes around the modulus, and sums of eight that are far above it.
pub(crate) fn residues<M: Machine>(machine: M) {
    let near = [LOWER_MASK - 10, LOWER_MASK, 0, 1, 10];
    for (low, middle, high) in near.iter().flat_map(|a| near.iter().map(move |b| (*a, *b, HIGHEST_MASK))) {
        for place in 0..8 {
            let limbs = [low, middle + (1 << 9) * u64::from(place == 1), high];
            let wanted = Number::of_limbs(limbs);
            assert_eq!(reduced(machine, at(machine, place, limbs)), wanted.low, "{limbs:?}");
        }
    }
    for low in LOWER_MASK - 7..=LOWER_MASK {
        let limbs = [low, LOWER_MASK, HIGHEST_MASK];
        assert_eq!(reduced(machine, at(machine, 3, limbs)), Number::of_limbs(limbs).low, "{limbs:?}");
        let all = Limbs { machine, limbs: limbs.map(|limb| machine.everywhere(limb)) };
        let wanted = (0..8).fold(ZERO, |sum, _| sum.plus(Number::of_limbs(limbs)));
        assert_eq!(reduced(machine, all), wanted.low, "eight times {limbs:?}");
    }
}

/// The powers of r in each place, of extreme keys and of random ones.
pub(crate) fn powers_of_keys<M: Machine>(machine: M) {
    let mut random = Random(3);
    let random = (0..200).map(|_| u128::from(random.word()) << 64 | u128::from(random.word()));
    for r in [0, 1, 2, u128::MAX].into_iter().chain(random).collect::<Vec<_>>() {
        let clamped = Number::new(clamped(r), 0);
        let power = |exponent: usize| (0..exponent).fold(ONE, |power, _| power.times(clamped));
        let powers = Powers::new(machine, r, 3);
        let values = |factor: &Factor<M>| places(factor.number).map(Number::of_limbs);
        assert_eq!(values(&powers.eighth), [power(8); 8]);
        assert_eq!(values(&powers.sixteenth), [power(16); 8]);
        let factors = values(&powers.each);
        assert_eq!(factors, PLACES.map(|block| power(GROUP - block)));
        let two = Powers::new(machine, r, 2);
        assert_eq!((values(&two.each), values(&two.eighth)), (factors, [power(8); 8]));
        assert_eq!(values(&Powers::new(machine, r, 1).each), factors);
    }
}

/// Through the function that carries traffic: each bit of each block with a bit of r, in messages
/// of one group to five; and all bits at once.
pub(crate) fn every_place<M: Machine>(machine: M) {
    some_places(machine, 1);
}

fn some_places<M: Machine>(machine: M, step: usize) {
    let r_bits: Vec<usize> = (0..128).filter(|bit| clamped(1 << bit) != 0).collect();
    for blocks in [1, 2, 7, 8, 9, 15, 16, 17, 25, 33] {
        // The last block is the lengths.
        let mut text = vec![0; 16 * (blocks - 1)];
        let lengths = u128::from(text.len() as u64) << 64;
        let check = |key: &MacKey, text: &[u8]| {
            let mut all: Vec<u128> =
                text.as_chunks().0.iter().map(|block| u128::from_le_bytes(*block)).collect();
            all.push(lengths);
            let found = u128::from_le_bytes(machine.tag(key, &[], text));
            assert_eq!(found, tag_of(key, &all), "{blocks} blocks, key {key:?}");
        };
        for (i, bit) in (0..8 * text.len()).enumerate().step_by(step) {
            text[bit / 8] = 1 << (bit % 8);
            let r: u128 = 1 << r_bits[(i * 37 + i / 128) % r_bits.len()];
            check(&[r as u64, (r >> 64) as u64, 0, 0], &text);
            text[bit / 8] = 0;
        }
        check(&[u64::MAX; 4], &text);
        text.fill(0xff);
        check(&[u64::MAX; 4], &text);
        check(&[0, 0, u64::MAX, u64::MAX], &text);
    }
}

#[test]
fn products_of_all_pairs_of_bits_emulated() {
    limbs_of_bits(Emulated);
}

#[test]
fn carries_keep_the_number_and_the_bounds_emulated() {
    carries(Emulated);
}

#[test]
fn sums_are_reduced_emulated() {
    residues(Emulated);
}

#[test]
fn powers_are_those_of_the_key_emulated() {
    powers_of_keys(Emulated);
}

#[test]
fn each_bit_of_each_block_meets_its_power_emulated() {
    some_places(Emulated, 3);
}

/// The reference itself, by numbers that are known.
#[test]
fn the_reference_is_right() {
    let modulus = [(1 << 44) - 5, LOWER_MASK, HIGHEST_MASK];
    assert_eq!(Number::of_limbs(modulus), ZERO);
    assert_eq!(Number::of_limbs([(1 << 44) - 6, LOWER_MASK, HIGHEST_MASK]).plus(ONE), ZERO);
    let root = Number::new(1 << 65, 0);
    assert_eq!(root.times(root), Number::new(5, 0), "2^130 is 5");
    // RFC 8439, section 2.5.2.
    let key = [
        u64::from_le_bytes([0x85, 0xd6, 0xbe, 0x78, 0x57, 0x55, 0x6d, 0x33]),
        u64::from_le_bytes([0x7f, 0x44, 0x52, 0xfe, 0x42, 0xd5, 0x06, 0xa8]),
        u64::from_le_bytes([0x01, 0x03, 0x80, 0x8a, 0xfb, 0x0d, 0xb2, 0xfd]),
        u64::from_le_bytes([0x4a, 0xbf, 0xf6, 0xaf, 0x41, 0x49, 0xf5, 0x1b]),
    ];
    let text = b"Cryptographic Forum Research Group";
    let (whole, rest) = text.as_chunks();
    let r = Number::new(clamped(u128::from(key[0]) | u128::from(key[1]) << 64), 0);
    let block = |block: &[u8; 16]| Number::new(u128::from_le_bytes(*block), 1);
    let hash = whole.iter().fold(ZERO, |hash, bytes| hash.plus(block(bytes)).times(r));
    // The last block has two bytes, and the bit is behind these.
    assert_eq!(rest, b"up");
    let last = Number::new(u128::from_le_bytes(*b"up\x01\0\0\0\0\0\0\0\0\0\0\0\0\0"), 0);
    let tag = hash.plus(last).times(r).low.wrapping_add(u128::from(key[2]) | u128::from(key[3]) << 64);
    assert_eq!(
        tag.to_le_bytes(),
        [0xa8, 0x06, 0x1d, 0xc1, 0x30, 0x51, 0x36, 0xc6, 0xc2, 0x2b, 0x8b, 0xaf, 0x0c, 0x01, 0x27, 0xa9]
    );
}
