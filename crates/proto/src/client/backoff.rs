//! How long a client waits before its next connection (PROTOCOL §11).
//!
//! INVARIANT: logins are [`LOGIN_SPACING`] apart, but for the first that is tried again, since each
//! may reach a directory that locks accounts; and who was refused until later asks no sooner.

use core::time::Duration;

use crate::session::Timers;
use crate::time::Time;

/// Number of times that the wait doubles for a gateway that answers but has no place: up to 4 s.
/// Places are held for moments: a longer wait gains nothing, and a refusal costs little.
const DOUBLINGS_WHILE_FULL: u32 = 3;

/// A login is no sooner than this after the last one, but for the first that is tried again.
const LOGIN_SPACING: Duration = Duration::from_secs(1);

/// A session that ends sooner than this after its login did not work: the next logins back off.
const SETTLED: Duration = Duration::from_secs(30);

/// The history of connections, as far as waits depend on it.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Attempts that failed since an epoch was confirmed.
    pub(super) failures: u32,
    /// The last answer was a refusal, which is to be followed by no attempt before then.
    pub(super) refused_until: Option<Time>,
    /// When the last attempt to log in was over.
    last_login: Option<Time>,
    /// Sessions in a row that the gateway ended soon after their login.
    ended_early: u32,
    /// When the last attempt failed because nothing came back: a fault of network or gateway.
    pub(super) unanswered_at: Option<Time>,
}

impl Backoff {
    /// An attempt is over, by an answer as far as this knows.
    pub(super) fn answered(&mut self, now: Time, is_login: bool) {
        self.unanswered_at = None;
        self.refused_until = None;
        if is_login {
            self.last_login = Some(now);
        }
    }

    /// The gateway is there, and has no place.
    pub(super) fn turned_away(&mut self) {
        self.failures = self.failures.min(DOUBLINGS_WHILE_FULL);
    }

    pub(super) fn is_refused(&self, now: Time) -> bool {
        self.refused_until.is_some_and(|until| until > now)
    }

    /// The gateway has ended the session. Returns whether a login may follow at once: after one
    /// that worked for a while, and after the first that did not.
    pub(super) fn session_ended(&mut self, now: Time) -> bool {
        let worked = self.last_login.is_none_or(|login| now.since(login) >= SETTLED);
        self.ended_early = if worked { 0 } else { self.ended_early.saturating_add(1) };
        if self.ended_early > 1 {
            self.failures = self.failures.max(self.ended_early);
        }
        self.ended_early <= 1
    }

    /// An attempt may succeed where the last one did not. Returns when it may begin, if not now.
    pub(super) fn hasten(&mut self, now: Time, is_login: bool) -> Option<Time> {
        if self.refused_until.is_none() {
            self.failures = self.failures.min(u32::from(is_login));
        }
        let spaced = self.last_login.filter(|_| is_login).map(|last| last + LOGIN_SPACING);
        spaced.max(self.refused_until).filter(|earliest| *earliest > now)
    }

    /// The wait after one more failure: a time that doubles, with jitter, but not less than
    /// `least`. That is stretched by up to double, too: a gateway says the same to all whom it
    /// has no time for, and they must not come back together.
    pub(super) fn fail(&mut self, timers: &Timers, jitter: f64, least: Duration, is_login: bool) -> Duration {
        let doublings = self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let base = (timers.reconnect_first * (1 << doublings)).min(timers.reconnect_max);
        let wait = base.mul_f64(jitter).max(least.mul_f64(0.5 + jitter));
        if is_login && doublings > 0 { wait.max(LOGIN_SPACING) } else { wait }
    }
}
