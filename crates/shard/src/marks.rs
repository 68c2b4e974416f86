//! A shard's line in the log about congestion marks that a router on the way sets in another way
//! than the standards provide (RFC 6040 §4.2): at most one a minute, whatever arrives.

use std::time::Duration;

use vpnd_packet::ecn::Unused;
use vpnd_proto::plane::Counters;
use vpnd_proto::time::Time;

/// Time between two lines at least.
const PAUSE: Duration = Duration::from_secs(60);

/// The counts that are in the log already, and when the next line may come.
#[derive(Default)]
pub(super) struct MarksLog {
    logged: [u64; Unused::ALL.len()],
    next: Option<Time>,
}

impl MarksLog {
    /// Logs what was counted since the last line, if it is time for one. `now` is asked only if
    /// there is something.
    #[inline]
    pub(super) fn look_at(&mut self, counters: &Counters, now: impl FnOnce() -> Time) {
        if let Some(new) = self.take(counters, now) {
            let text: Vec<String> =
                new.into_iter().map(|(name, packets)| format!("{name}: {packets}")).collect();
            tracing::warn!(
                packets = text.join(", "),
                "a device on the way sets congestion marks as no standard provides; packets pass or drop as RFC 6040 says. A \
                 router there is misconfigured, or marks are forged (`unused_marks` in `vpnd status --json` counts them)"
            );
        }
    }

    /// Returns the new counts by name, if it is time for a line.
    fn take(&mut self, counters: &Counters, now: impl FnOnce() -> Time) -> Option<Vec<(&'static str, u64)>> {
        let counts = Unused::ALL.map(|combination| counters.unused_marks(combination));
        if counts == self.logged {
            return None;
        }
        let now = now();
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        self.next = Some(now + PAUSE);
        let before = std::mem::replace(&mut self.logged, counts);
        let new = Unused::ALL.map(|combination| {
            let place = combination as usize;
            (combination.name(), counts[place] - before[place])
        });
        Some(new.into_iter().filter(|(_, packets)| *packets > 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_names_new_marks_at_most_once_a_minute() {
        let start = Time::from_nanos(1_000_000_000);
        let mut log = MarksLog::default();
        let mut counters = Counters::default();
        let look = |log: &mut MarksLog, counters: &Counters, at: u64| {
            let now = start + Duration::from_secs(at);
            log.take(counters, || now)
        };
        assert_eq!(look(&mut log, &counters, 0), None);
        counters.count_unused(Unused::NotEctInCe);
        counters.count_unused(Unused::NotEctInCe);
        assert_eq!(look(&mut log, &counters, 1), Some(vec![("not_ect_in_ce", 2)]));
        counters.count_unused(Unused::CeInEct1);
        counters.count_unused(Unused::NotEctInCe);
        assert_eq!(look(&mut log, &counters, 60), None);
        assert_eq!(look(&mut log, &counters, 61), Some(vec![("not_ect_in_ce", 1), ("ce_in_ect1", 1)]));
        assert_eq!(look(&mut log, &counters, 500), None, "nothing is new");
    }
}
