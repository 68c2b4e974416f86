//! Tracks how long the gateway has been out of reach, and decides two things by it: use of the
//! machine's own DNS servers, and the end of a client whose user has set a limit.
//!
//! INVARIANT: the log advises to log in to the network only once the parent knows that the tunnel
//! leads nowhere: before, the machine asks the tunnel's DNS servers, and `vpnd captive-portal` is
//! refused.

use std::time::Duration;

use vpnd_proto::time::Time;

use crate::Unreached;

/// Time without the gateway after which the machine uses its own DNS servers: a restart takes less.
const OWN_DNS_DELAY: Duration = Duration::from_secs(3);

/// Since when there is no session. Has access to neither the gateway nor a clock.
pub(super) struct Reach {
    lost: Option<Time>,
    /// When the log advised to log in to the network, until the gateway answers.
    advised_at: Option<Time>,
    give_up: Option<Duration>,
    /// The DNS servers that the parent was last requested to use: the tunnel's, or the machine's
    /// own. `None` before the first request.
    requested_dns: Option<bool>,
}

impl Reach {
    /// For a client that ends after `give_up_s` seconds without a session.
    pub(super) fn new(give_up_s: Option<u32>) -> Self {
        Self {
            lost: None,
            advised_at: None,
            give_up: give_up_s.map(|seconds| Duration::from_secs(seconds.into())),
            requested_dns: None,
        }
    }

    /// Whether the tunnel leads somewhere now, and the gateway `is_heard_since` some time.
    pub(super) fn note(&mut self, now: Time, within_reach: bool, is_heard_since: impl Fn(Time) -> bool) {
        self.advised_at = self.advised_at.filter(|at| !is_heard_since(*at));
        let leads_somewhere = within_reach && self.advised_at.is_none();
        self.lost = if leads_somewhere { None } else { self.lost.or(Some(now)) };
    }

    /// Notes that the log advises to log in to the network.
    pub(super) fn advise(&mut self, now: Time) {
        self.advised_at = Some(now);
    }

    /// The gateway has granted an epoch.
    pub(super) fn answered(&mut self) {
        self.advised_at = None;
    }

    /// Nothing was tried until now, so that time does not count.
    pub(super) fn slept(&mut self, now: Time) {
        self.lost = self.lost.map(|_| now);
    }

    /// The DNS servers to request of the parent: whether the tunnel's. `None` if these are the last
    /// requested ones.
    pub(super) fn other_dns(&mut self, now: Time) -> Option<bool> {
        let tunnel = self.tunnel_dns(now)?;
        (self.requested_dns.replace(tunnel) != Some(tunnel)).then_some(tunnel)
    }

    /// Whether the machine should use the tunnel's DNS servers, or its own. `None` in a short
    /// silence, which changes nothing.
    fn tunnel_dns(&self, now: Time) -> Option<bool> {
        match self.lost {
            None => Some(true),
            Some(since) => {
                let is_long = self.advised_at.is_some() || now.since(since) >= OWN_DNS_DELAY;
                is_long.then_some(false)
            }
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

    fn note(reach: &mut Reach, now: Time, within_reach: bool) {
        reach.note(now, within_reach, |_| false);
    }

    #[test]
    fn the_tunnels_dns_is_dropped_after_a_silence_and_back_at_once() {
        let mut reach = Reach::new(None);
        note(&mut reach, at(1), true);
        assert_eq!(reach.tunnel_dns(at(1)), Some(true));
        note(&mut reach, at(2), false);
        note(&mut reach, at(4), false);
        assert_eq!(reach.tunnel_dns(at(4)), None);
        assert_eq!(reach.tunnel_dns(at(5)), Some(false));
        note(&mut reach, at(6), true);
        assert_eq!(reach.tunnel_dns(at(6)), Some(true));
        assert!(reach.check(at(1_000), || None).is_ok(), "without --give-up it tries for ever");
    }

    #[test]
    fn giving_up_counts_the_time_without_a_session_in_which_it_was_tried() {
        let mut reach = Reach::new(Some(10));
        note(&mut reach, at(0), false);
        assert!(reach.check(at(9), || None).is_ok());
        reach.slept(at(500));
        assert!(reach.check(at(509), || None).is_ok());
        assert!(reach.check(at(510), || Some("what was tried".to_owned())).is_err());
        note(&mut reach, at(511), true);
        assert!(reach.check(at(900), || None).is_ok());
    }

    #[test]
    fn a_captive_portal_is_reachable_until_the_gateway_answers() {
        for is_answer in [false, true] {
            let mut reach = Reach::new(None);
            note(&mut reach, at(1), true);
            reach.advise(at(2));
            note(&mut reach, at(2), true);
            assert_eq!(reach.tunnel_dns(at(2)), Some(false), "at once");
            note(&mut reach, at(3), true);
            assert_eq!(reach.tunnel_dns(at(3)), Some(false), "the attempt has not failed yet");
            match is_answer {
                true => reach.answered(),
                false => reach.note(at(4), true, |since| since < at(3)),
            }
            note(&mut reach, at(4), true);
            assert_eq!(reach.tunnel_dns(at(4)), Some(true));
        }
    }
}
