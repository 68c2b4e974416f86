//! The packets under way on one direction of a link; no clock and no I/O.
//!
//! INVARIANT: the bytes held never exceed the limit given at the start, whatever is sent and
//! however late the caller fetches what is due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Packets with the instants at which they leave.
#[derive(Debug)]
pub struct Transit<P> {
    heap: BinaryHeap<Reverse<Due<P>>>,
    /// The number that were put in: packets of one instant leave in the order in which they came.
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

    /// Takes a packet that occupies `bytes` of memory and leaves at `at_ns`; gives it back if there
    /// is no room.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_when_due_and_ties_in_order_of_arrival() {
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
    fn held_bytes_are_bounded_and_released() {
        let mut transit = Transit::new(100);
        assert!(transit.put(1, 60, 'a').is_ok());
        assert_eq!(transit.put(2, 41, 'b'), Err('b'));
        assert!(transit.put(2, 40, 'c').is_ok());
        assert_eq!(transit.take_due(1), Some((1, 'a')));
        assert!(transit.put(3, 60, 'd').is_ok());
    }
}
