//! A receiver's statistics of numbered messages: order, loss, duplicates, jitter, delay.
//!
//! Messages are numbered from 0 without gaps by their sender and carry the instant at which they
//! were sent. Jitter is that of RFC 3550 §6.4.1; a message is reordered if a later one was there
//! before it (RFC 4737 §3.4).
//!
//! INVARIANT: memory does not depend on what arrives. Which of the last [`REMEMBERED`] numbers have
//! come is kept as bits; an older one cannot be told from a duplicate and counts as reordered.

use super::delays::Delays;

/// Numbers back to which a duplicate is recognised.
pub const REMEMBERED: u64 = 1 << 16;
const WORDS: usize = (REMEMBERED / 64) as usize;

/// The accounting on one stream of messages.
#[derive(Clone, Debug)]
pub struct ReceiverStats {
    /// One more than the highest number that has come.
    next: u64,
    seen: Box<[u64]>,
    /// Different messages that have come.
    pub received: u64,
    pub bytes: u64,
    /// Messages that had come before.
    pub duplicates: u64,
    /// Messages that came after one with a higher number.
    pub reordered: u64,
    /// Smoothed difference of neighbours' transit times, in nanoseconds.
    pub jitter_ns: f64,
    last_transit_ns: Option<i64>,
    pub delays: Delays,
    /// Difference of every two neighbours' transit times, whichever was longer (RFC 3393): what the
    /// running value of jitter smooths away.
    pub variation: Delays,
}

impl Default for ReceiverStats {
    fn default() -> Self {
        Self {
            next: 0,
            seen: vec![0; WORDS].into_boxed_slice(),
            received: 0,
            bytes: 0,
            duplicates: 0,
            reordered: 0,
            jitter_ns: 0.0,
            last_transit_ns: None,
            delays: Delays::default(),
            variation: Delays::default(),
        }
    }
}

impl ReceiverStats {
    /// Takes message `number` of `bytes` bytes, sent and received at these instants (of any two
    /// clocks that run alike: a constant difference changes only the delays). Returns its one-way
    /// delay in nanoseconds, `None` for a duplicate.
    pub fn take(&mut self, number: u64, bytes: usize, sent_ns: u64, received_ns: u64) -> Option<u64> {
        if self.is_duplicate(number) {
            self.duplicates += 1;
            return None;
        }
        if number < self.next {
            self.reordered += 1;
        }
        self.note(number);
        self.received += 1;
        self.bytes += bytes as u64;
        let transit = received_ns.wrapping_sub(sent_ns).cast_signed();
        if let Some(last) = self.last_transit_ns {
            let difference = transit.abs_diff(last);
            self.jitter_ns += (difference as f64 - self.jitter_ns) / 16.0;
            self.variation.record(difference);
        }
        self.last_transit_ns = Some(transit);
        let delay = transit.max(0).cast_unsigned();
        self.delays.record(delay);
        Some(delay)
    }

    /// Messages that should have come by now and have not.
    pub fn missing(&self) -> u64 {
        self.next - self.received.min(self.next)
    }

    fn is_duplicate(&self, number: u64) -> bool {
        number < self.next
            && self.next - number <= REMEMBERED
            && self.seen[Self::word(number)] & Self::bit(number) != 0
    }

    fn note(&mut self, number: u64) {
        if number >= self.next {
            // The places of the numbers that were skipped still hold what was there a round ago.
            if number - self.next >= REMEMBERED {
                self.seen.fill(0);
            } else {
                (self.next..number).for_each(|skipped| self.seen[Self::word(skipped)] &= !Self::bit(skipped));
            }
            // No sender counts so far: its numbers have two bits less.
            self.next = number.saturating_add(1);
        }
        if self.next - number <= REMEMBERED {
            self.seen[Self::word(number)] |= Self::bit(number);
        }
    }

    fn word(number: u64) -> usize {
        (number / 64) as usize % WORDS
    }

    fn bit(number: u64) -> u64 {
        1 << (number % 64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn account(numbers: &[u64]) -> ReceiverStats {
        let mut account = ReceiverStats::default();
        for (number, at) in numbers.iter().zip(0..) {
            account.take(*number, 100, at * 1_000, at * 1_000 + 50);
        }
        account
    }

    #[test]
    fn order_loss_and_duplicates_are_distinguished() {
        let whole = account(&[0, 1, 2, 3]);
        assert_eq!((whole.received, whole.missing(), whole.reordered, whole.duplicates), (4, 0, 0, 0));
        let lossy = account(&[0, 3, 4]);
        assert_eq!((lossy.received, lossy.missing(), lossy.reordered), (3, 2, 0));
        let late = account(&[0, 2, 1, 3]);
        assert_eq!((late.received, late.missing(), late.reordered, late.duplicates), (4, 0, 1, 0));
        let twice = account(&[0, 1, 1, 0, 2]);
        assert_eq!((twice.received, twice.missing(), twice.reordered, twice.duplicates), (3, 0, 0, 2));
        assert_eq!(twice.bytes, 300, "a duplicate's bytes are no goodput");
    }

    #[test]
    fn a_round_later_the_same_place_is_free_again() {
        let mut account = ReceiverStats::default();
        for number in 0..3 * REMEMBERED {
            assert!(account.take(number, 1, 0, 0).is_some(), "{number}");
        }
        assert!(account.take(3 * REMEMBERED - 1, 1, 0, 0).is_none());
        // A jump forward clears what it skips, also when it skips everything.
        for jump in [5, REMEMBERED - 1, REMEMBERED, 10 * REMEMBERED] {
            let from = account.next;
            account.take(from + jump, 1, 0, 0);
            assert!(account.take(from + jump - 1, 1, 0, 0).is_some(), "{jump}");
        }
    }

    #[test]
    fn it_agrees_with_a_set_of_all_numbers() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let (mut account, mut all, mut duplicates, mut highest) =
            (ReceiverStats::default(), HashSet::new(), 0, 0);
        for base in 0..200_000_u64 {
            let number = base.saturating_sub(random.random_range(0..300)) + random.random_range(0..20);
            highest = highest.max(number);
            if !all.insert(number) {
                duplicates += 1;
            }
            account.take(number, 1, 0, 0);
        }
        assert_eq!((account.received, account.duplicates), (all.len() as u64, duplicates));
        assert_eq!(account.missing(), highest + 1 - all.len() as u64);
    }

    #[test]
    fn jitter_is_that_of_rfc_3550_and_a_clock_offset_does_not_matter() {
        for offset in [0_u64, 1_000_000_000] {
            let mut account = ReceiverStats::default();
            // Transit times 100, 300, 100, 300 ns: every difference is 200.
            let mut expected = 0.0;
            for n in 0..50 {
                account.take(n, 1, offset + n * 1_000, n * 1_000 + if n % 2 == 0 { 100 } else { 300 });
                expected += if n == 0 { 0.0 } else { (200.0 - expected) / 16.0 };
            }
            assert!((account.jitter_ns - expected).abs() < 1e-9 && expected > 150.0);
            let variation = account.variation.summary().unwrap();
            assert_eq!((variation.count, variation.p50_us, variation.max_us), (49, 0.2, 0.2));
        }
        // One of a hundred messages is late: the smoothed value has forgotten it at the end, the
        // distribution has not.
        let mut late = ReceiverStats::default();
        for n in 0..1_000 {
            let transit = if n % 100 == 50 { 5_000_000 } else { 1_000 };
            late.take(n, 1, n * 1_000_000, n * 1_000_000 + transit);
        }
        let variation = late.variation.summary().unwrap();
        assert!(late.jitter_ns < 250_000.0 && variation.at(0.99) > 4_900.0 && variation.p50_us < 1.0);
        let steady = account(&[0, 1, 2, 3, 4]);
        assert!(steady.jitter_ns.abs() < 1e-9);
        assert_eq!(steady.delays.summary().unwrap().max_us, 0.05);
    }
}
