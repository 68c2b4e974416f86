//! How often the machine is compared with what it should be, for what no report of the kernel
//! shows: each second while something changes, and seldom afterwards, so that an idle machine
//! sleeps.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::RunningClient;
use super::tunnel_dns::DnsWatch;
use vpnd_sys::netlink::NetworkChange;

/// Interval for a while after each sign of a change: others may follow.
const OFTEN: Duration = Duration::from_secs(1);
const WHILE: Duration = Duration::from_secs(30);
/// Interval in peace.
const SELDOM: Duration = Duration::from_secs(300);

pub(super) struct Pace {
    next: Instant,
    often_until: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self::new_at(Instant::now())
    }

    fn new_at(now: Instant) -> Self {
        Self { next: now + OFTEN, often_until: now + WHILE }
    }

    /// Something changes on this machine, or is not as it should be.
    pub(super) fn sign(&mut self) {
        self.sign_at(Instant::now());
    }

    fn sign_at(&mut self, now: Instant) {
        self.often_until = now + WHILE;
        self.next = self.next.min(now + OFTEN);
    }

    /// The next look is within this time.
    pub(super) fn within(&mut self, time: Duration) {
        self.next = self.next.min(Instant::now() + time);
    }

    /// Waits until it is time. Safe to cancel.
    pub(super) async fn due(&mut self) {
        sleep_until(self.next).await;
        self.looked_at(Instant::now());
    }

    fn looked_at(&mut self, now: Instant) {
        self.next = now + if now < self.often_until { OFTEN } else { SELDOM };
    }
}

impl RunningClient {
    /// Brings the tunnel's network up to date. Returns whether it was so before, and will stay so
    /// as far as can be seen.
    pub(super) async fn follow(&mut self) -> bool {
        self.kill_switch.follow(self.interface_index).await;
        let renewals = self.setup.renewals();
        let outcome = self.setup.follow().await;
        let is_settled = outcome.is_ok() && renewals == self.setup.renewals() && !self.setup.is_contested();
        if let Err(error) = outcome
            && !self.stop.is_asked_for()
            // The interface goes with the worker, whose end is noticed next.
            && self.setup.has_interface().await
            && self.failures.admits()
        {
            let error = vpnd_sys::text::format_chain(&error.into());
            tracing::error!(%error, "the tunnel's addresses, routes and rules could not be updated");
        }
        is_settled
    }

    /// Has the machine use the name servers that it should use now, and tries them where they are
    /// new.
    pub(super) async fn check_dns(&mut self, watch: &mut DnsWatch) {
        if !self.setup.check_dns().await {
            watch.soon();
        }
        if self.setup.has_dns_problem() {
            watch.sign();
        }
        if !self.setup.is_looking_up()
            && let Some(domain) = self.setup.take_untried_names()
        {
            self.lookups.try_names(domain);
        }
    }

    /// Whether something other than the tunnel changed. If not, something of the tunnel may have
    /// been removed.
    pub(super) fn is_foreign(&self, change: NetworkChange) -> bool {
        match change {
            NetworkChange::Link { interface } | NetworkChange::Address { interface } => {
                interface != self.interface_index
            }
            NetworkChange::RouteRemoved | NetworkChange::RuleRemoved => false,
            // Those that vpnd makes are left out; others into the tunnel may be in the way of the
            // tunnel's datagrams.
            NetworkChange::Route { .. } | NetworkChange::Rule | NetworkChange::Unknown => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_rare_when_idle_and_each_second_after_an_event() {
        let began = Instant::now();
        let mut pace = Pace::new_at(began);
        // The second of each of the next looks.
        let looks = |pace: &mut Pace, count: usize| {
            let looks = (0..count).map(|_| {
                let at = pace.next;
                pace.looked_at(at);
                (at - began).as_secs()
            });
            looks.last().unwrap()
        };
        assert_eq!(looks(&mut pace, 30), 30);
        assert_eq!(looks(&mut pace, 2), 630);
        pace.sign_at(began + Duration::from_secs(700));
        assert_eq!(looks(&mut pace, 30), 730);
        assert_eq!(looks(&mut pace, 1), 1_030);
    }
}
