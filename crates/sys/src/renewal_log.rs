//! Lines of the log about what another program removed and vpnd put back.
//!
//! INVARIANT: a few renewals a minute have a line each, for they may be an administrator's work or
//! a service's restart. More are a fight between two programs, which has one line a minute.

use std::time::Duration;

use vpnd_proto::time::Time;

use crate::allowance::Allowance;
use crate::log_limit::LogLimit;

/// Renewals that are no conflict with another program: this many at once, and one for each
/// interval.
pub const ORDINARY: Allowance = Allowance::new(5, Duration::from_secs(12));

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalLine {
    /// About this renewal.
    Once,
    /// About a program that removes again and again.
    Fight,
}

/// Decides which renewals have a line.
#[derive(Debug)]
pub struct RenewalLog {
    ordinary: Allowance,
    fights: LogLimit,
}

impl Default for RenewalLog {
    fn default() -> Self {
        Self::new()
    }
}

impl RenewalLog {
    pub const fn new() -> Self {
        Self { ordinary: ORDINARY, fights: LogLimit::new(1, Duration::from_secs(60)) }
    }

    /// Counts a renewal; returns its line, if it has one.
    pub fn note(&mut self, now: Time) -> Option<RenewalLine> {
        if self.ordinary.take(now) {
            return Some(RenewalLine::Once);
        }
        self.fights.admits().then_some(RenewalLine::Fight)
    }
}
