//! When flows that send at a steady pace have their turns.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::time::Duration;

use vpnd_proto::time::Time;

/// The turns of flows that all have one pace, spread evenly over it.
#[derive(Debug)]
pub(super) struct Pacer {
    due: BinaryHeap<Reverse<(Time, usize)>>,
    pace: Duration,
}

impl Pacer {
    /// Each of `flows` has its first turn within `pace` from `now`, and one each `pace` after that.
    pub(super) fn new(flows: Range<usize>, pace: Duration, now: Time) -> Self {
        let pace = pace.max(Duration::from_nanos(1));
        let count = flows.len().max(1) as u64;
        let phase = |number: usize| Duration::from_nanos(pace.as_nanos() as u64 / count * number as u64);
        let due = flows.enumerate().map(|(number, flow)| Reverse((now + phase(number), flow))).collect();
        Self { due, pace }
    }

    /// A flow whose turn has come; again and again, if several of its turns have passed.
    pub(super) fn next(&mut self, now: Time) -> Option<usize> {
        let Reverse((due, flow)) = self.due.peek().copied().filter(|Reverse((due, _))| *due < now)?;
        self.due.pop();
        self.due.push(Reverse((due + self.pace, flow)));
        Some(flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_spread_over_the_pace_and_none_is_left_out() {
        let at = |us: u64| Time::from_nanos(us * 1_000);
        let mut pacer = Pacer::new(3..7, Duration::from_micros(100), at(0));
        let due = |pacer: &mut Pacer, now| std::iter::from_fn(|| pacer.next(now)).collect::<Vec<_>>();
        assert_eq!(due(&mut pacer, at(0)), [0; 0]);
        assert_eq!(due(&mut pacer, at(26)), [3, 4]);
        assert_eq!(due(&mut pacer, at(100)), [5, 6]);
        assert_eq!(due(&mut pacer, at(300)).len(), 8, "two turns each");
    }
}
