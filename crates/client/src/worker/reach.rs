//! Tracks how long the gateway has been out of reach, and decides two things by it: use of the
//! machine's own DNS servers, and the end of a client whose user has set a limit. Has access to
//! neither the gateway nor a clock.

use std::time::Duration;

use vpnd_proto::time::Time;

use crate::Unreached;

/// Time without the gateway after which the machine uses its own DNS servers: a restart takes less.
const OWN_DNS_DELAY: Duration = Duration::from_secs(3);

/// Since when there is no session.
pub(super) struct Reach {
    lost: Option<Time>,
    give_up: Option<Duration>,
}

impl Reach {
    /// For a client that ends after `give_up_s` seconds without a session.
    pub(super) fn new(give_up_s: Option<u32>) -> Self {
        Self { lost: None, give_up: give_up_s.map(|seconds| Duration::from_secs(seconds.into())) }
    }

    /// Whether the tunnel leads somewhere now.
    pub(super) fn note(&mut self, now: Time, within_reach: bool) {
        self.lost = if within_reach { None } else { self.lost.or(Some(now)) };
    }

    /// Nothing was tried until now, so that time does not count.
    pub(super) fn slept(&mut self, now: Time) {
        self.lost = self.lost.map(|_| now);
    }

    /// Whether the machine should use the tunnel's DNS servers, or its own. `None` in a short
    /// silence, which changes nothing.
    pub(super) fn tunnel_dns(&self, now: Time) -> Option<bool> {
        match self.lost {
            None => Some(true),
            Some(since) => (now.since(since) >= OWN_DNS_DELAY).then_some(false),
        }
    }

    /// Fails once there was no session for as long as the user waits; `report` lists what was
    /// tried.
    pub(super) fn check(&self, now: Time, report: impl FnOnce() -> Option<String>) -> Result<(), Unreached> {
        let (Some(limit), Some(since)) = (self.give_up, self.lost) else { return Ok(()) };
        if now.since(since) < limit {
            return Ok(());
        }
        let report = report().unwrap_or_else(|| "see the log above".to_owned());
        Err(Unreached(format!("no session for {} s, so --give-up ends it: {report}", limit.as_secs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_machines_own_dns_comes_after_a_silence_and_goes_at_once() {
        let mut reach = Reach::new(None);
        reach.note(at(1), true);
        assert_eq!(reach.tunnel_dns(at(1)), Some(true));
        reach.note(at(2), false);
        reach.note(at(4), false);
        assert_eq!(reach.tunnel_dns(at(4)), None);
        assert_eq!(reach.tunnel_dns(at(5)), Some(false));
        reach.note(at(6), true);
        assert_eq!(reach.tunnel_dns(at(6)), Some(true));
        assert!(reach.check(at(1_000), || None).is_ok(), "without --give-up it tries for ever");
    }

    #[test]
    fn giving_up_counts_the_time_without_a_session_in_which_it_was_tried() {
        let mut reach = Reach::new(Some(10));
        reach.note(at(0), false);
        assert!(reach.check(at(9), || None).is_ok());
        reach.slept(at(500));
        assert!(reach.check(at(509), || None).is_ok());
        assert!(reach.check(at(510), || Some("what was tried".to_owned())).is_err());
        reach.note(at(511), true);
        assert!(reach.check(at(900), || None).is_ok());
    }
}
