//! Poly1305 (RFC 8439, section 2.5) on eight numbers at a time, in limbs of 44, 44 and 42 bits: the
//! instructions of AVX-512 IFMA multiply numbers of 52 bits, so products of such limbs can be added
//! up without a carry.
//!
//! Numbered as a message meets it:
//!
//! 1. The message is associated data, text and lengths, in blocks of 16 bytes, and these in groups
//!    of eight, of which the first may have fewer: its blocks are the last of the group, and zeros
//!    that count for nothing stand before them.
//! 2. Eight sums, one for each place of a group, go by Horner's rule with r^8; two groups at a
//!    time, with r^16 and r^8, so that limbs are carried half as often.
//! 3. The last group's sums meet r^8 to r^1, each the power of its place, and are added up.
//! 4. The sum is reduced modulo 2^130 - 5, and the second half of the key added, in plain integers.
//!
//! The bounds of all limbs are asserted at compile time ([`bounds`]).
//!
//! - INVARIANT: no branch and no address depends on the key or the tag, only on lengths.
//! - INVARIANT: nothing overflows that is not meant to; what may, wraps.

mod message;
#[cfg(test)]
pub(crate) mod tests;

use crate::TAG_LEN;
use crate::machine::Machine;
use message::{GROUP, GROUP_LEN, Message};

/// Bits of the two lower limbs.
const LOWER: u32 = 44;
/// Bits of the highest limb.
const HIGHEST: u32 = 42;
/// Bits of the numbers that the processor multiplies.
const FACTOR: u32 = 52;
/// The bit behind a block of 16 bytes, in the highest limb.
const BEHIND: u64 = 1 << (128 - 2 * LOWER);
const LOWER_MASK: u64 = (1 << LOWER) - 1;
const HIGHEST_MASK: u64 = (1 << HIGHEST) - 1;
/// Bits of r that may be set (section 2.5), in limbs.
const CLAMP: [u64; 3] = limbs(0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff);
/// 2^(3 * 44) modulo 2^130 - 5.
const BEYOND: u64 = 5 << (3 * LOWER - 130);
/// Which block of a group is where, after its numbers were taken by turns from two vectors.
const PLACES: [usize; GROUP] = [0, 4, 1, 5, 2, 6, 3, 7];
/// The places whose exponent, less one, has bit 0, 1, 2.
const BITS: [u8; 3] = [exponents_with(1), exponents_with(2), exponents_with(4)];
/// The bit behind each block, for a first group that lacks this many blocks.
const BEHIND_FIRST: [[u64; GROUP]; GROUP] = {
    let mut bits = [[0; GROUP]; GROUP];
    let (mut missing, mut place) = (0, 0);
    while missing < GROUP {
        if PLACES[place] >= missing {
            bits[missing][place] = BEHIND;
        }
        place += 1;
        if place == GROUP {
            (missing, place) = (missing + 1, 0);
        }
    }
    bits
};

const fn exponents_with(bit: usize) -> u8 {
    let (mut mask, mut place) = (0, 0);
    while place < GROUP {
        // The last block meets r itself.
        let exponent = GROUP - PLACES[place];
        mask |= (((exponent - 1) & bit != 0) as u8) << place;
        place += 1;
    }
    mask
}

/// A number in limbs.
const fn limbs(number: u128) -> [u64; 3] {
    [number as u64 & LOWER_MASK, (number >> LOWER) as u64 & LOWER_MASK, (number >> (2 * LOWER)) as u64]
}

/// The largest values that numbers can have in [`Sum::add`] and [`Sum::carried`].
const fn bounds() {
    // By induction: limbs that are carried are at most these, and those of a block these.
    let carried = [LOWER_MASK, LOWER_MASK + (1 << 9), HIGHEST_MASK];
    let block = [LOWER_MASK, LOWER_MASK, 2 * BEHIND - 1];
    let state = [carried[0] + block[0], carried[1] + block[1], carried[2] + block[2]];
    let most = 1 << FACTOR;
    assert!(state[0] < most && state[1] < most && state[2] < most);
    // A factor's limbs, and those of it that are multiplied because they stand beyond 2^130.
    let beyond = [0, BEYOND * carried[1], BEYOND * carried[2]];
    assert!(carried[1] < most && beyond[1] < most && beyond[2] < most);
    // Two groups, three products each.
    let low = 6 * (most - 1);
    let mut high = [0_u64; 3];
    let mut limb = 0;
    while limb < 3 {
        let mut i = 0;
        while i < 3 {
            let factor = if i <= limb { carried[limb - i] } else { beyond[limb + 3 - i] };
            high[limb] += 2 * ((state[i] as u128 * factor as u128) >> FACTOR) as u64;
            i += 1;
        }
        limb += 1;
    }
    // Carries, as `carried` makes them: nothing is shifted out, and nothing wraps.
    let shift = FACTOR - LOWER;
    assert!(high[0] < 1 << (63 - shift) && high[1] < 1 << (63 - shift));
    let first = low + (high[0] << shift) + (low >> LOWER);
    let second = low + (high[1] << shift) + (first >> LOWER);
    let shift = FACTOR - HIGHEST;
    assert!(high[2] < 1 << (60 - shift));
    let around = (high[2] << shift) + (second >> HIGHEST);
    assert!(around < u64::MAX / 5);
    let lowest = LOWER_MASK + 5 * around;
    // The induction's end.
    assert!(LOWER_MASK + (lowest >> LOWER) <= carried[1]);
    // Eight places are added up, and carried in 64 bits.
    assert!(carried[1] < u64::MAX / 16);
}
const _: () = bounds();

/// A key, for one message: r, then what is added to the hash, each in two numbers.
pub(crate) type MacKey = [u64; 4];

/// The tag of `aad` and `text`.
#[inline(always)]
pub(crate) fn tag_here<M: Machine>(machine: M, key: &MacKey, aad: &[u8], text: &[u8]) -> [u8; TAG_LEN] {
    let number = |low: u64, high: u64| u128::from(low) | u128::from(high) << 64;
    let message = Message::new(aad, text);
    let powers = Powers::new(machine, number(key[0], key[1]), message.groups());
    let sums = hash(machine, &powers, &message);
    reduced(machine, sums).wrapping_add(number(key[2], key[3])).to_le_bytes()
}

/// Eight sums, one for each place, that together are the hash.
#[inline(always)]
fn hash<M: Machine>(machine: M, powers: &Powers<M>, message: &Message<'_>) -> Limbs<M> {
    let behind = [machine.everywhere(BEHIND), machine.numbers(&BEHIND_FIRST[message.missing()])];
    let mut room = [0; GROUP_LEN];
    let mut hash = Limbs { machine, limbs: [machine.everywhere(0); 3] };
    for group in 0..message.copied_groups() {
        message.copy(machine, group, &mut room);
        let blocks = load(machine, &room, behind[usize::from(group == 0)]);
        hash = hash.plus(blocks).times(&powers.eighth);
    }
    let (pairs, single) = message.pairs_in_text();
    for [first, second] in pairs {
        let mut sum = Sum::new(machine);
        // The second group first: it does not wait for the carry before it.
        sum.add(load(machine, second, behind[0]), &powers.eighth);
        sum.add(hash.plus(load(machine, first, behind[0])), &powers.sixteenth);
        hash = sum.carried();
    }
    if let [single] = single {
        hash = hash.plus(load(machine, single, behind[0])).times(&powers.eighth);
    }
    let last = message.groups() - 1;
    message.copy(machine, last, &mut room);
    hash.plus(load(machine, &room, behind[usize::from(last == 0)])).times(&powers.each)
}

/// A group's blocks as numbers, each with the bit `behind` it (section 2.5.1).
#[inline(always)]
fn load<M: Machine>(machine: M, group: &[u8; GROUP_LEN], behind: M::Vector) -> Limbs<M> {
    let [first, second] = group.as_chunks().0 else { unreachable!("a group is two vectors") };
    let (first, second) = (machine.load(first), machine.load(second));
    let (low, high) = (machine.firsts(first, second), machine.seconds(first, second));
    let mask = machine.everywhere(LOWER_MASK);
    let across =
        machine.or(machine.shifted_right::<LOWER>(low), machine.shifted_left::<{ 64 - LOWER }>(high));
    let highest = machine.or(machine.shifted_right::<{ 2 * LOWER - 64 }>(high), behind);
    Limbs { machine, limbs: [machine.and(low, mask), machine.and(across, mask), highest] }
}

/// All eight sums added up, modulo 2^130 - 5; of this the lower 128 bits.
#[inline(always)]
fn reduced<M: Machine>(machine: M, hash: Limbs<M>) -> u128 {
    let [mut low, mut middle, mut high] = hash.limbs.map(|limb| machine.sum_of_numbers(limb));
    middle = middle.wrapping_add(low >> LOWER);
    high = high.wrapping_add(middle >> LOWER);
    low = (low & LOWER_MASK).wrapping_add((high >> HIGHEST).wrapping_mul(5));
    (middle, high) = (middle & LOWER_MASK, high & HIGHEST_MASK);
    // Less than twice the modulus now. Whether it is more than once is what adding 5 carries out.
    let carry = low.wrapping_add(5) >> LOWER;
    let carry = middle.wrapping_add(carry) >> LOWER;
    let beyond = high.wrapping_add(carry) >> HIGHEST;
    u128::from(low.wrapping_add(beyond.wrapping_mul(5)))
        .wrapping_add(u128::from(middle) << LOWER)
        .wrapping_add(u128::from(high) << (2 * LOWER))
}

/// Eight numbers modulo 2^130 - 5, in limbs.
#[derive(Clone, Copy)]
struct Limbs<M: Machine> {
    limbs: [M::Vector; 3],
    machine: M,
}

impl<M: Machine> Limbs<M> {
    /// Without a carry.
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        let mut sum = self;
        for i in 0..3 {
            sum.limbs[i] = self.machine.add(self.limbs[i], other.limbs[i]);
        }
        sum
    }

    /// The products, carried.
    #[inline(always)]
    fn times(self, factor: &Factor<M>) -> Self {
        let mut sum = Sum::new(self.machine);
        sum.add(self, factor);
        sum.carried()
    }

    /// The numbers of `other` where the mask has a one.
    #[inline(always)]
    fn or_else<const MASK: u8>(self, other: Self) -> Self {
        let mut selected = self;
        for i in 0..3 {
            selected.limbs[i] = self.machine.selected::<MASK>(self.limbs[i], other.limbs[i]);
        }
        selected
    }
}

/// Eight numbers to multiply by.
#[derive(Clone, Copy)]
struct Factor<M: Machine> {
    number: Limbs<M>,
    /// The two higher limbs times [`BEYOND`].
    beyond: [M::Vector; 2],
}

impl<M: Machine> Factor<M> {
    #[inline(always)]
    fn new(number: Limbs<M>) -> Self {
        let machine = number.machine;
        let (zero, beyond) = (machine.everywhere(0), machine.everywhere(BEYOND));
        let [_, middle, high] = number.limbs;
        Self { number, beyond: [machine.add_low(zero, middle, beyond), machine.add_low(zero, high, beyond)] }
    }
}

/// Products that are added up and not carried yet: two groups' at most.
struct Sum<M: Machine> {
    /// The lower 52 bits of each limb's products.
    low: [M::Vector; 3],
    /// The upper 52 bits of each limb's products.
    high: [M::Vector; 3],
    machine: M,
}

impl<M: Machine> Sum<M> {
    #[inline(always)]
    fn new(machine: M) -> Self {
        let zero = machine.everywhere(0);
        Self { low: [zero; 3], high: [zero; 3], machine }
    }

    /// Adds products modulo 2^130 - 5.
    #[inline(always)]
    fn add(&mut self, numbers: Limbs<M>, factor: &Factor<M>) {
        let ([low, middle, high], beyond) = (factor.number.limbs, factor.beyond);
        let rows = [[low, middle, high], [beyond[1], low, middle], [beyond[0], beyond[1], low]];
        // In the order in which `carried` has them ready.
        for i in [2, 0, 1] {
            for (limb, factor) in rows[i].into_iter().enumerate() {
                let number = numbers.limbs[i];
                self.low[limb] = self.machine.add_low(self.low[limb], number, factor);
                self.high[limb] = self.machine.add_high(self.high[limb], number, factor);
            }
        }
    }

    /// The sums, in limbs of the bounds that [`bounds`] has.
    #[inline(always)]
    fn carried(self) -> Limbs<M> {
        const UP: u32 = FACTOR - LOWER;
        const AROUND: u32 = FACTOR - HIGHEST;
        let machine = self.machine;
        let (lower, highest) = (machine.everywhere(LOWER_MASK), machine.everywhere(HIGHEST_MASK));
        let [low, middle, high] = self.low;
        let middle = machine.add(middle, machine.shifted_left::<UP>(self.high[0]));
        let middle = machine.add(middle, machine.shifted_right::<LOWER>(low));
        let high = machine.add(high, machine.shifted_left::<UP>(self.high[1]));
        let high = machine.add(high, machine.shifted_right::<LOWER>(middle));
        let around = machine.shifted_left::<AROUND>(self.high[2]);
        let around = machine.add(around, machine.shifted_right::<HIGHEST>(high));
        // 2^130 is 5.
        let around = machine.add(around, machine.shifted_left::<2>(around));
        let low = machine.add(machine.and(low, lower), around);
        let middle = machine.add(machine.and(middle, lower), machine.shifted_right::<LOWER>(low));
        Limbs { machine, limbs: [machine.and(low, lower), middle, machine.and(high, highest)] }
    }
}

/// Powers of r, as many as a message of this many groups takes.
struct Powers<M: Machine> {
    /// For the last group: each place's own, from r^8 to r.
    each: Factor<M>,
    /// r^8 everywhere; r where there is but one group.
    eighth: Factor<M>,
    /// r^16 everywhere; another power where there are less than three groups.
    sixteenth: Factor<M>,
}

impl<M: Machine> Powers<M> {
    #[inline(always)]
    fn new(machine: M, r: u128, groups: usize) -> Self {
        let mut first = [0; 3];
        for (limb, (r, clamp)) in first.iter_mut().zip(limbs(r).into_iter().zip(CLAMP)) {
            *limb = r & clamp;
        }
        let first = Limbs { machine, limbs: first.map(|limb| machine.everywhere(limb)) };
        let by_first = Factor::new(first);
        let second = first.times(&by_first);
        let each = first.or_else::<{ BITS[0] }>(second);
        let by_second = Factor::new(second);
        let fourth = second.times(&by_second);
        let each = each.or_else::<{ BITS[1] }>(each.times(&by_second));
        let by_fourth = Factor::new(fourth);
        let each = Factor::new(each.or_else::<{ BITS[2] }>(each.times(&by_fourth)));
        if groups == 1 {
            return Self { each, eighth: by_first, sixteenth: by_first };
        }
        let eighth = fourth.times(&by_fourth);
        let by_eighth = Factor::new(eighth);
        if groups == 2 {
            return Self { each, eighth: by_eighth, sixteenth: by_first };
        }
        Self { each, eighth: by_eighth, sixteenth: Factor::new(eighth.times(&by_eighth)) }
    }
}
