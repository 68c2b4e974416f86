//! A bound on lines of the log that anybody on the network can cause.
//!
//! INVARIANT: a fixed number of lines at once and after that one for each interval, whatever
//! arrives; omitted lines are counted, and the count is in the log within [`REPORT_INTERVAL`]. This
//! module must not know what the lines are about.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use vpnd_proto::time::Time;

use crate::allowance::Allowance;
use crate::clock::now;

/// Interval at which the number of lines left out is logged, while there are any.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Limits one kind of line.
#[derive(Debug)]
pub struct LogLimit(Mutex<State>);

#[derive(Debug)]
struct State {
    allowance: Allowance,
    left_out: u64,
}

impl LogLimit {
    /// `burst` lines at once, then one for each `interval`.
    pub const fn new(burst: u32, interval: Duration) -> Self {
        Self(Mutex::new(State { allowance: Allowance::new(burst, interval), left_out: 0 }))
    }

    /// Whether a line may be written now. If not, it is counted.
    pub fn admits(&self) -> bool {
        self.admits_at(now())
    }

    fn admits_at(&self, now: Time) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = state.allowance.take(now);
        state.left_out += u64::from(!admitted);
        admitted
    }

    /// The lines left out since the last call.
    fn take_left_out(&self) -> u64 {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).left_out)
    }

    /// Logs how many lines were left out since the last call, if any. `lines` is their message.
    pub fn report(&self, lines: &str) {
        let count = self.take_left_out();
        if count > 0 {
            tracing::warn!(count, lines, "lines were left out of the log, because there were too many");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::testing::logged_as_json;

    #[test]
    fn a_flood_leaves_a_burst_and_a_count() {
        let limit = LogLimit::new(3, Duration::from_secs(1));
        let start = Time::ZERO;
        let admitted = |at: Time| (0..100).filter(|_| limit.admits_at(at)).count();
        assert_eq!(admitted(start), 3);
        assert_eq!(admitted(start + Duration::from_secs(1)), 1);
        let lines = logged_as_json(|| {
            limit.report("login refused");
            limit.report("login refused");
        });
        assert_eq!(lines.len(), 1, "nothing was left out since the first: {lines:?}");
        assert_eq!(
            (lines[0]["count"].as_u64(), lines[0]["lines"].as_str()),
            (Some(196), Some("login refused"))
        );
        assert_eq!(admitted(start + Duration::from_secs(60)), 3, "quiet times give no more than a burst");
    }
}
