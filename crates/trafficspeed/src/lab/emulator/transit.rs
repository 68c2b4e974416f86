//! The packets under way on one direction of a link, and how exactly they left it; no clock and no I/O.
//!
//! INVARIANT: the bytes held never exceed the limit given at the start, whatever is sent and however late the
//! caller fetches what is due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hdrhistogram::Histogram;

/// Packets with the instants at which they leave.
#[derive(Debug)]
pub struct Transit<P> {
    heap: BinaryHeap<Reverse<Due<P>>>,
    /// How many were put in: packets of one instant leave in the order in which they came.
    count: u64,
    held_bytes: usize,
    most_bytes: usize,
}

#[derive(Debug)]
struct Due<P> {
    at_ns: u64,
    number: u64,
    bytes: usize,
    packet: P,
}

impl<P> PartialEq for Due<P> {
    fn eq(&self, other: &Self) -> bool {
        (self.at_ns, self.number) == (other.at_ns, other.number)
    }
}

impl<P> Eq for Due<P> {}

impl<P> PartialOrd for Due<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Due<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

impl<P> Transit<P> {
    /// Nothing under way, and never more than `most_bytes`.
    pub fn new(most_bytes: usize) -> Self {
        Self { heap: BinaryHeap::new(), count: 0, held_bytes: 0, most_bytes }
    }

    /// Takes a packet that occupies `bytes` of memory and leaves at `at_ns`; gives it back if there is no room.
    ///
    /// # Errors
    /// The packet.
    pub fn put(&mut self, at_ns: u64, bytes: usize, packet: P) -> Result<(), P> {
        if self.held_bytes + bytes > self.most_bytes {
            return Err(packet);
        }
        self.held_bytes += bytes;
        self.heap.push(Reverse(Due { at_ns, number: self.count, bytes, packet }));
        self.count += 1;
        Ok(())
    }

    /// The next packet that is due at `now_ns`, with the instant at which it was.
    pub fn take_due(&mut self, now_ns: u64) -> Option<(u64, P)> {
        if self.next_ns()? > now_ns {
            return None;
        }
        let Reverse(due) = self.heap.pop()?;
        self.held_bytes -= due.bytes;
        Some((due.at_ns, due.packet))
    }

    /// When the next packet leaves.
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(due)| due.at_ns)
    }
}

/// How late packets left, exact to 1 %.
#[derive(Clone, Debug)]
pub struct Lateness(Histogram<u64>);

impl Default for Lateness {
    fn default() -> Self {
        Self(Histogram::new(2).expect("two significant digits are a valid precision"))
    }
}

impl Lateness {
    /// Notes one packet.
    pub fn note(&mut self, ns: u64) {
        // It grows as it must; where it could not, the largest value it has stands for larger ones.
        self.0.saturating_record(ns);
    }

    /// Adds what another has noted.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("a histogram that grows takes what another of its kind holds");
    }

    /// The value that `share` (0 to 1) of the packets do not exceed, in ns; zero if there were none.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share).min(self.0.max())
    }

    /// The largest value, ns.
    pub fn max_ns(&self) -> u64 {
        self.0.max()
    }

    /// The mean, ns; zero if there were none.
    pub fn mean_ns(&self) -> f64 {
        self.0.mean()
    }

    /// Their standard deviation, ns.
    pub fn deviation_ns(&self) -> f64 {
        self.0.stdev()
    }

    /// How many were noted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_when_due_and_equals_in_the_order_they_came() {
        let mut transit = Transit::new(1000);
        for (at_ns, packet) in [(30, 'c'), (10, 'a'), (30, 'd'), (20, 'b'), (30, 'e')] {
            transit.put(at_ns, 1, packet).unwrap();
        }
        assert_eq!(transit.take_due(9), None);
        assert_eq!(transit.next_ns(), Some(10));
        let mut left = Vec::new();
        while let Some((_, packet)) = transit.take_due(30) {
            left.push(packet);
        }
        assert_eq!(left, ['a', 'b', 'c', 'd', 'e']);
        assert_eq!(transit.next_ns(), None);
    }

    #[test]
    fn the_bytes_held_are_bounded_and_room_comes_back() {
        let mut transit = Transit::new(100);
        assert!(transit.put(1, 60, 'a').is_ok());
        assert_eq!(transit.put(2, 41, 'b'), Err('b'));
        assert!(transit.put(2, 40, 'c').is_ok());
        assert_eq!(transit.take_due(1), Some((1, 'a')));
        assert!(transit.put(3, 60, 'd').is_ok());
    }

    #[test]
    fn quantiles_are_those_of_what_was_noted() {
        let mut lateness = Lateness::default();
        assert_eq!((lateness.quantile_ns(0.5), lateness.max_ns(), lateness.count()), (0, 0, 0));
        for ns in 1..=1000 {
            lateness.note(ns * 1000);
        }
        let near = |value: f64, wanted: f64| assert!((value / wanted - 1.0).abs() < 0.01, "{value}");
        near(lateness.quantile_ns(0.5) as f64, 500_000.0);
        near(lateness.mean_ns(), 500_500.0);
        near(lateness.deviation_ns(), 288_675.0);
        let mut sum = Lateness::default();
        sum.add(&lateness);
        sum.note(5_000_000);
        assert_eq!(sum.count(), 1001);
        near(sum.max_ns() as f64, 5_000_000.0);
        near(sum.quantile_ns(1.0) as f64, 5_000_000.0);
    }
}
