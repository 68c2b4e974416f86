//! When a queue should signal congestion: controlled delay (CoDel, RFC 8289), one state for each
//! flow.
//!
//! Pure. A burst that drains is no reason for a signal; a queue that holds each message for
//! [`TARGET`] or longer over a whole [`INTERVAL`] is, and then more often the longer that lasts.

use std::time::Duration;

use vpnd_proto::time::Time;

/// A wait that keeps the gateway busy and that users do not notice.
pub(super) const TARGET: Duration = Duration::from_millis(5);
/// About the longest round trip of the senders that are to react.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// The state of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Codel {
    /// When every message will have waited too long for an interval, if it goes on like this.
    due: Option<Time>,
    /// When the next signal is due while there are some.
    next: Option<Time>,
    /// Signals since they have begun.
    count: u32,
    /// The count when they ended last, and when the next would have been due then.
    last: Option<(u32, Time)>,
}

impl Codel {
    /// Whether a message that leaves the queue now signals congestion. `is_last` if it leaves none
    /// behind.
    pub(super) fn signals(&mut self, now: Time, waited: Duration, is_last: bool) -> bool {
        if waited < TARGET || is_last {
            self.due = None;
            self.last = self.next.take().map(|next| (self.count, next)).or(self.last);
            return false;
        }
        let due = *self.due.get_or_insert(now + INTERVAL);
        match self.next {
            None if now < due => return false,
            Some(next) if now < next => return false,
            None => {
                // Where it was not long ago, few signals were too few.
                let before = self.last.filter(|(_, next)| now.since(*next) < 16 * INTERVAL);
                self.count = before.map_or(1, |(count, _)| count.saturating_sub(2).max(1));
                self.next = Some(now + self.pause());
            }
            Some(next) => {
                self.count = self.count.saturating_add(1);
                self.next = Some(next + self.pause());
            }
        }
        true
    }

    fn pause(&self) -> Duration {
        INTERVAL.div_f64(f64::from(self.count).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(1_000_000_000);

    /// Signals of a flow whose messages leave each millisecond and have waited `wait_ms` of their
    /// number.
    fn signals(codel: &mut Codel, from_ms: u64, to_ms: u64, wait_ms: impl Fn(u64) -> u64) -> Vec<u64> {
        let at = |ms| START + Duration::from_millis(ms);
        (from_ms..to_ms)
            .filter(|ms| codel.signals(at(*ms), Duration::from_millis(wait_ms(*ms)), false))
            .collect()
    }

    #[test]
    fn a_standing_queue_signals_after_an_interval_and_then_more_and_more_often() {
        let mut codel = Codel::default();
        let at = signals(&mut codel, 0, 1_000, |_| 5);
        assert_eq!(at[..4], [100, 200, 271, 329], "pauses of 100 ms over the root of the count");
        let pauses: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{pauses:?}");
    }

    #[test]
    fn a_queue_that_drains_within_each_interval_does_not() {
        let mut codel = Codel::default();
        assert!(signals(&mut codel, 0, 5_000, |ms| if ms % 100 == 99 { 4 } else { 80 }).is_empty());
        assert!(signals(&mut codel, 5_000, 9_000, |_| 4).is_empty());
        // The last message of a queue keeps no other waiting.
        assert!((0..1_000).all(|ms| {
            !codel.signals(START + Duration::from_millis(10_000 + ms), Duration::from_millis(50), true)
        }));
    }

    #[test]
    fn codel_resumes_its_rate_if_the_queue_returns_soon() {
        let mut codel = Codel::default();
        let before = signals(&mut codel, 0, 2_000, |_| 20).len();
        assert!(signals(&mut codel, 2_000, 2_050, |_| 1).is_empty());
        let again = signals(&mut codel, 2_050, 2_350, |_| 20);
        assert!(before > 20 && again.len() > 5 && again[0] == 2_150, "{before} {again:?}");
        assert!(signals(&mut codel, 2_350, 9_000, |_| 1).is_empty());
        assert_eq!(signals(&mut codel, 9_000, 9_250, |_| 20), [9_100, 9_200]);
    }
}
