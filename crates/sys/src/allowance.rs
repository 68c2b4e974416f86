//! Rate limits of requests from an unprivileged process to the privileged one.
//!
//! INVARIANT: each allowance is far above what an honest process asks for, so that only one that
//! was taken over, or has lost its way, is ever refused. A refusal costs nothing but its answer;
//! the privileged process stays free for its signals.

use std::time::Duration;

use vpnd_proto::time::Time;

/// A number of events at once, and after that one for each interval.
#[derive(Debug)]
pub struct Allowance {
    burst: u32,
    interval: Duration,
    left: u32,
    /// Until when intervals were counted.
    counted: Option<Time>,
}

impl Allowance {
    pub const fn new(burst: u32, interval: Duration) -> Self {
        Self { burst, interval, left: burst, counted: None }
    }

    /// Whether one more is allowed now.
    pub fn has_one(&mut self, now: Time) -> bool {
        self.refill(now);
        self.left > 0
    }

    /// Whether one more is allowed now; takes it then.
    pub fn take(&mut self, now: Time) -> bool {
        let allowed = self.has_one(now);
        self.left -= u32::from(allowed);
        allowed
    }

    /// Gives one back that was taken.
    pub fn give_back(&mut self) {
        self.left = self.burst.min(self.left + 1);
    }

    /// Whether all of it is left.
    pub fn is_full(&mut self, now: Time) -> bool {
        self.refill(now);
        self.left == self.burst
    }

    fn refill(&mut self, now: Time) {
        let counted = *self.counted.get_or_insert(now);
        let whole = now.since(counted).as_nanos() / self.interval.as_nanos().max(1);
        let missing = self.burst - self.left;
        match u32::try_from(whole) {
            Ok(whole) if whole < missing => {
                self.left += whole;
                self.counted = Some(counted + self.interval * whole);
            }
            // Full: what goes beyond is not saved up.
            _ => (self.left, self.counted) = (self.burst, Some(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::ZERO;

    fn taken(allowance: &mut Allowance, at: Time, wanted: u32) -> usize {
        (0..wanted).filter(|_| allowance.take(at)).count()
    }

    #[test]
    fn a_burst_and_then_one_for_each_interval() {
        let second = Duration::from_secs(1);
        let mut allowance = Allowance::new(4, second);
        assert_eq!(taken(&mut allowance, START, 10), 4);
        assert_eq!(taken(&mut allowance, START + second / 2, 10), 0);
        assert_eq!(taken(&mut allowance, START + second, 10), 1);
        // Half an interval is not lost for having been looked at.
        assert_eq!(taken(&mut allowance, START + second * 5 / 2, 10), 1);
        assert_eq!(taken(&mut allowance, START + second * 3, 10), 1);
        assert_eq!(taken(&mut allowance, START + second * 3600, 10), 4, "no more than a burst is saved up");
    }

    #[test]
    fn a_refused_request_uses_no_allowance() {
        let second = Duration::from_secs(1);
        let mut allowance = Allowance::new(1, second);
        let asked = (0..1_000).map(|tenths| START + second * tenths / 10);
        assert_eq!(asked.filter(|at| allowance.take(*at)).count(), 100);
    }
}
