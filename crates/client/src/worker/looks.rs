//! When the worker looks at its shards: some times a second while packets pass, and not at all
//! while none do, so that an idle machine sleeps.
//!
//! INVARIANT: an outage is looked at like packets, since what is done about it depends on how long
//! it lasts.

use std::mem;
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};
use vpnd_proto::time::Time;
use vpnd_shard::Shards;

/// Interval at which traffic is reported to the core, which bounds how soon it notices silence.
const TICK: Duration = Duration::from_millis(250);
/// Silence after which nothing is looked at until something passes.
const QUIET: Duration = Duration::from_secs(2);
/// So late, the machine has slept, or the process was stopped: load alone does not do that.
const SUSPEND_THRESHOLD: Duration = Duration::from_secs(5);

pub(super) struct Looks {
    tick: Interval,
    /// Since when nothing has passed.
    quiet_since: Option<Time>,
    is_idle: bool,
    /// Whether something has passed since it was idle last.
    has_passed: bool,
    /// The time by which something should run here; `None` if nothing has to.
    expected: Option<Time>,
}

impl Looks {
    /// Needs a runtime.
    pub(super) fn new() -> Self {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { tick, quiet_since: None, is_idle: false, has_passed: false, expected: None }
    }

    /// Nothing else is to be done before `due`.
    pub(super) fn expect(&mut self, now: Time, due: Option<Time>) {
        let look = (!self.is_idle).then(|| now + TICK);
        self.expected = look.into_iter().chain(due.map(|due| due.max(now))).min();
    }

    /// The time for which nothing has run here, if that is more than load explains.
    pub(super) fn slept(&mut self, now: Time) -> Option<Duration> {
        let late = now.since(self.expected.take()?);
        (late >= SUSPEND_THRESHOLD).then_some(late)
    }

    /// Waits until it is time for a look. Safe to cancel.
    pub(super) async fn due(&mut self, shards: &Shards) {
        if self.is_idle {
            // It may be nothing of the session, as what the kernel sends on each link.
            shards.stirred().await;
            self.is_idle = false;
            self.tick.reset();
        } else {
            self.tick.tick().await;
        }
    }

    /// A look has shown whether there was nothing. Returns whether something has passed, and
    /// nothing does any more.
    pub(super) fn note(&mut self, now: Time, is_quiet: bool) -> bool {
        self.has_passed |= !is_quiet;
        self.quiet_since = if is_quiet { self.quiet_since.or(Some(now)) } else { None };
        self.is_idle = self.quiet_since.is_some_and(|since| now.since(since) >= QUIET);
        self.is_idle && mem::take(&mut self.has_passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[tokio::test]
    async fn checks_pause_while_no_packet_passes() {
        let mut looks = Looks::new();
        looks.note(at(0), false);
        for millis in (250..2_250).step_by(250) {
            assert!(!looks.note(at(millis), true));
            assert!(!looks.is_idle, "after {millis} ms");
        }
        assert!(looks.note(at(2_250), true) && looks.is_idle);
        assert!(!looks.note(at(60_000), true) && looks.is_idle, "what came was nothing");
        looks.note(at(60_250), false);
        assert!(!looks.is_idle);
        // One packet between many looks keeps them up.
        let mut looks = Looks::new();
        for second in 0..60 {
            looks.note(at(second * 1_000), second % 2 != 0);
            assert!(!looks.is_idle);
        }
    }

    #[tokio::test]
    async fn a_suspend_is_detected_by_late_timers() {
        let mut looks = Looks::new();
        looks.expect(at(1_000), None);
        assert_eq!(looks.slept(at(6_249)), None, "load");
        assert_eq!(looks.slept(at(100_000)), None, "nothing was expected");
        looks.expect(at(1_000), None);
        assert_eq!(looks.slept(at(6_250)), Some(Duration::from_secs(5)));
        looks.is_idle = true;
        looks.expect(at(1_000), Some(at(25_000)));
        assert_eq!(looks.slept(at(29_000)), None, "idle, and no keep-alive was due for long");
        looks.expect(at(1_000), Some(at(25_000)));
        assert_eq!(looks.slept(at(40_000)), Some(Duration::from_secs(15)));
    }
}
