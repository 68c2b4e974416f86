//! The emulator's decision on each packet, and its time: a state machine without clock or I/O.
//!
//! [`Decisions::decide`] gets the instant at which a packet entered the link and its length, and
//! says when it leaves. Each kind of chance (loss, jitter, lateness) draws from a separate
//! generator, once for every packet, so the n-th packet's decision depends on the seed and n alone
//! and switching one kind on changes no other.
//!
//! INVARIANT: instants given to `decide` never decrease. Without `reorder`, the instants it gives
//! never decrease either.

use std::collections::VecDeque;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::impairment::{Impairment, QueueLimit, Share};

/// The decision on one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The queue in front of the link was full.
    QueueFull,
    /// Lost on the way.
    Lost,
    Arrives {
        /// When it leaves the link, on the clock of the caller, ns.
        at_ns: u64,
    },
}

/// The state of one direction of a link.
#[derive(Debug)]
pub struct Decisions {
    link: Impairment,
    queue: Queue,
    loss: ChaCha8Rng,
    jitter: ChaCha8Rng,
    reorder: ChaCha8Rng,
    /// When the last packet that was not made late leaves.
    last_ns: u64,
}

impl Decisions {
    /// A link that has carried nothing yet. `link` must have passed [`Impairment::check`].
    pub fn new(link: Impairment, seed: u64) -> Self {
        debug_assert_eq!(link.check(), Ok(()));
        let stream = |number| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(number);
            rng
        };
        Self {
            link,
            queue: Queue::new(&link),
            loss: stream(0),
            jitter: stream(1),
            reorder: stream(2),
            last_ns: 0,
        }
    }

    /// Decides about a packet of `bytes` that enters the link at `now_ns`.
    pub fn decide(&mut self, now_ns: u64, bytes: u32) -> Decision {
        // Every generator is asked for every packet; see the module's documentation.
        let lost = chance(&mut self.loss, self.link.loss);
        let travel_ns = self.travel_ns();
        let late = chance(&mut self.reorder, self.link.reorder);
        // A packet that is lost on the wire has used its time there; one that found no room has
        // not.
        let Some(sent_ns) = self.queue.admit(now_ns, bytes) else { return Decision::QueueFull };
        if lost {
            return Decision::Lost;
        }
        let at_ns = (sent_ns + travel_ns).max(self.last_ns);
        if late {
            return Decision::Arrives { at_ns: at_ns + self.link.reorder_late.ns };
        }
        self.last_ns = at_ns;
        Decision::Arrives { at_ns }
    }

    fn travel_ns(&mut self) -> u64 {
        let Impairment { delay, jitter, .. } = self.link;
        let extra: f64 = self.jitter.random();
        delay.ns - jitter.ns + (extra * 2.0 * jitter.ns as f64) as u64
    }
}

fn chance(rng: &mut ChaCha8Rng, share: Share) -> bool {
    rng.random::<f64>() < share.fraction()
}

/// The queue in front of a link of limited rate, first in, first out; what does not fit is dropped.
#[derive(Debug)]
struct Queue {
    rate_and_limit: Option<(u64, QueueLimit)>,
    /// When each packet that waits or is being sent will have been sent, and its bytes.
    waiting: VecDeque<(u64, u32)>,
    waiting_bytes: u64,
    /// When the link is free, in ns and the fraction of one that is left (in 1/rate ns), so that no
    /// rate is rounded.
    free_ns: u64,
    remainder: u64,
}

impl Queue {
    fn new(link: &Impairment) -> Self {
        let rate_and_limit = link.rate.map(|rate| (rate.bits_per_second, link.queue_limit(rate)));
        Self { rate_and_limit, waiting: VecDeque::new(), waiting_bytes: 0, free_ns: 0, remainder: 0 }
    }

    /// When the packet will have been sent; `None` if it finds no room.
    fn admit(&mut self, now_ns: u64, bytes: u32) -> Option<u64> {
        let Some((rate, limit)) = self.rate_and_limit else { return Some(now_ns) };
        while let Some(&(sent_ns, bytes)) = self.waiting.front()
            && sent_ns <= now_ns
        {
            self.waiting.pop_front();
            self.waiting_bytes -= u64::from(bytes);
        }
        let fits = match limit {
            QueueLimit::Packets(most) => (self.waiting.len() as u64) < most,
            // An idle link takes any packet, however small its queue.
            QueueLimit::Bytes(most) => {
                self.waiting.is_empty() || self.waiting_bytes + u64::from(bytes) <= most
            }
            QueueLimit::Time(most) => self.free_ns.saturating_sub(now_ns) <= most.ns,
        };
        if !fits {
            return None;
        }
        if self.free_ns < now_ns {
            (self.free_ns, self.remainder) = (now_ns, 0);
        }
        let work = u64::from(bytes) * 8 * 1_000_000_000 + self.remainder;
        self.free_ns += work / rate;
        self.remainder = work % rate;
        self.waiting.push_back((self.free_ns, bytes));
        self.waiting_bytes += u64::from(bytes);
        Some(self.free_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::super::impairment::{Rate, Span};
    use super::*;

    const PACKETS: u64 = 200_000;

    fn ms(ms: u64) -> Span {
        Span { ns: ms * 1_000_000 }
    }

    fn percent(percent: u32) -> Share {
        Share { ppm: percent * 10_000 }
    }

    fn run(link: Impairment, seed: u64, packets: u64) -> Vec<Decision> {
        let mut decisions = Decisions::new(link, seed);
        (0..packets).map(|n| decisions.decide(n * 10_000, 1_500)).collect()
    }

    fn arrivals(decisions: &[Decision]) -> Vec<u64> {
        let at = |decision: &Decision| {
            if let Decision::Arrives { at_ns } = decision { Some(*at_ns) } else { None }
        };
        decisions.iter().filter_map(at).collect()
    }

    fn lost(decisions: &[Decision]) -> usize {
        decisions.iter().filter(|decision| **decision == Decision::Lost).count()
    }

    #[test]
    fn a_constant_delay_is_exact_and_keeps_the_order() {
        let link = Impairment { delay: ms(16), ..Impairment::default() };
        for (n, at_ns) in (0_u64..).zip(arrivals(&run(link, 1, 1_000))) {
            assert_eq!(at_ns, n * 10_000 + 16_000_000);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_decisions_and_another_seed_others() {
        let link = Impairment { loss: percent(5), ..Impairment::default() };
        assert_eq!(run(link, 7, 5_000), run(link, 7, 5_000));
        assert_ne!(run(link, 7, 5_000), run(link, 8, 5_000));
    }

    #[test]
    fn switching_one_chance_on_changes_no_other() {
        let plain = Impairment { loss: percent(5), ..Impairment::default() };
        let more = Impairment { delay: ms(9), jitter: ms(3), reorder: percent(10), ..plain };
        let which = |link| {
            let decisions = run(link, 3, 5_000);
            decisions.iter().map(|decision| *decision == Decision::Lost).collect::<Vec<_>>()
        };
        assert_eq!(which(plain), which(more));
    }

    #[test]
    fn independent_losses_have_the_share_asked_for_and_no_memory() {
        let decisions = run(Impairment { loss: percent(10), ..Impairment::default() }, 5, PACKETS);
        // The standard deviation of the count is 134.
        assert!(lost(&decisions).abs_diff(20_000) < 700, "{}", lost(&decisions));
        let begins = |pair: &&[Decision]| pair[0] != Decision::Lost && pair[1] == Decision::Lost;
        let bursts =
            decisions.windows(2).filter(begins).count() + usize::from(decisions[0] == Decision::Lost);
        let mean = lost(&decisions) as f64 / bursts as f64;
        assert!((mean - 1.0 / 0.9).abs() < 0.02, "{mean}");
    }

    #[test]
    fn all_or_nothing_is_lost_at_the_ends_of_the_scale() {
        assert_eq!(lost(&run(Impairment { loss: percent(100), ..Impairment::default() }, 1, 1_000)), 1_000);
        assert_eq!(lost(&run(Impairment::default(), 1, 1_000)), 0);
    }

    #[test]
    fn jitter_stays_within_its_bounds_is_spread_over_them_and_keeps_the_order() {
        let link = Impairment { delay: ms(20), jitter: ms(5), ..Impairment::default() };
        let mut decisions = Decisions::new(link, 2);
        let (mut low, mut high, mut sum, mut last) = (u64::MAX, 0, 0, 0);
        for n in 0..10_000 {
            // Packets far apart, so that keeping the order does not change their delay.
            let now_ns = n * 20_000_000;
            let Decision::Arrives { at_ns } = decisions.decide(now_ns, 100) else {
                panic!("nothing is lost")
            };
            assert!(at_ns >= last);
            last = at_ns;
            let delay = at_ns - now_ns;
            (low, high, sum) = (low.min(delay), high.max(delay), sum + delay);
        }
        assert!((15_000_000..15_100_000).contains(&low), "{low}");
        assert!((24_900_000..=25_000_000).contains(&high), "{high}");
        assert!((sum / 10_000).abs_diff(20_000_000) < 200_000, "{sum}");
        // Packets that are close keep their order too.
        let close = arrivals(&run(link, 2, 10_000));
        assert!(close.is_sorted());
    }

    #[test]
    fn late_packets_are_overtaken_and_only_they() {
        let link = Impairment { reorder: percent(10), reorder_late: ms(1), ..Impairment::default() };
        let decisions = run(link, 4, PACKETS);
        let late = (0_u64..).zip(arrivals(&decisions)).filter(|(n, at_ns)| *at_ns != n * 10_000);
        let late: Vec<u64> = late.map(|(n, at_ns)| at_ns - n * 10_000).collect();
        assert!(late.len().abs_diff(20_000) < 700, "{}", late.len());
        assert!(late.iter().all(|delay| *delay == 1_000_000));
    }

    #[test]
    fn the_rate_is_kept_to_the_nanosecond_and_an_idle_link_saves_nothing_up() {
        let rate = Some(Rate { bits_per_second: 7_000_000 });
        let queue = Some(QueueLimit::Packets(1_000_000));
        let mut decisions = Decisions::new(Impairment { rate, queue, ..Impairment::default() }, 1);
        let mut last = 0;
        for n in 1..=7_000_u64 {
            let Decision::Arrives { at_ns } = decisions.decide(0, 1_000) else { panic!("there is room") };
            last = at_ns;
            assert_eq!(at_ns, n * 8_000 * 1_000_000_000 / 7_000_000);
        }
        assert_eq!(last, 8_000_000_000, "7,000 packets of 8,000 bit at 7 Mbit/s take 8 s");
        let later = 20_000_000_000;
        let first = decisions.decide(later, 1_000);
        assert_eq!(first, Decision::Arrives { at_ns: later + 1_142_857 });
    }

    #[test]
    fn a_full_queue_drops_until_it_has_drained() {
        let rate = Some(Rate { bits_per_second: 8_000_000 });
        for (queue, room) in
            [(QueueLimit::Packets(5), 5), (QueueLimit::Bytes(5_999), 5), (QueueLimit::Bytes(1), 1)]
        {
            let link = Impairment { rate, queue: Some(queue), ..Impairment::default() };
            let mut decisions = Decisions::new(link, 1);
            let taken = (0..20).filter(|_| decisions.decide(0, 1_000) != Decision::QueueFull).count();
            assert_eq!(taken, room, "{queue}");
            assert_eq!(decisions.decide(999_999, 1_000), Decision::QueueFull, "{queue}");
            assert_ne!(
                decisions.decide(1_000_000, 1_000),
                Decision::QueueFull,
                "one packet has been sent: {queue}"
            );
        }
    }

    #[test]
    fn a_queue_limited_in_time_bounds_the_wait() {
        let rate = Some(Rate { bits_per_second: 8_000_000 });
        let link = Impairment { rate, queue: Some(QueueLimit::Time(ms(100))), ..Impairment::default() };
        let mut decisions = Decisions::new(link, 1);
        // Each takes a millisecond; the last waits for a hundred others.
        let taken = (0..200).map(|_| decisions.decide(0, 1_000)).filter(|d| *d != Decision::QueueFull);
        assert_eq!(arrivals(&taken.collect::<Vec<_>>()).last(), Some(&101_000_000));
        let short = Impairment { queue: Some(QueueLimit::Time(Span { ns: 1 })), ..link };
        assert_eq!(lost_at_queue(short), 1);
    }

    /// Loss of one of two packets that arrive at once.
    fn lost_at_queue(link: Impairment) -> usize {
        let mut decisions = Decisions::new(link, 1);
        (0..2).filter(|_| decisions.decide(0, 1_000) == Decision::QueueFull).count()
    }

    #[test]
    fn a_lost_packet_has_used_its_time_on_the_wire() {
        let rate = Some(Rate { bits_per_second: 8_000_000 });
        let mut decisions =
            Decisions::new(Impairment { rate, loss: percent(50), ..Impairment::default() }, 9);
        for n in 1..=20 {
            if let Decision::Arrives { at_ns } = decisions.decide(0, 1_000) {
                assert_eq!(at_ns, n * 1_000_000);
            }
        }
    }
}
