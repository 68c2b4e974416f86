//! The results of the attempts to reach the gateway, in the log: once in each outage.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vpnd_proto::time::Time;

use super::DialError;
use super::trials::Trials;
use vpnd_sys::clock::now;

/// The trials of all attempts, of which several may be under way.
#[derive(Default)]
pub(in crate::worker) struct TrialLog(Mutex<Trials>);

impl TrialLog {
    /// Whether the next line about what was tried says what to do about a login page of the
    /// network.
    pub(in crate::worker) fn is_advice_due(&self) -> bool {
        self.lock().is_advice_due()
    }

    /// Logs the addresses that were tried and the results, once in each outage; with what to do
    /// about a login page, if the tunnel `is_lost`. Returns whether it did.
    pub(in crate::worker) fn log(&self, is_lost: bool) -> bool {
        let report = self.lock().report(now(), is_lost);
        if let Some(report) = &report {
            tracing::warn!("{report}; trying on");
        }
        report.is_some()
    }

    /// Logs that an attempt has failed with `error`.
    pub(in crate::worker) fn log_failure(&self, error: &DialError, is_lost: bool) {
        if !self.log(is_lost) && self.lock().attempt_failed(now()) {
            tracing::warn!(%error, "no connection to the gateway; trying again");
        }
    }

    /// Whether the gateway was heard since the log had its last line about an outage.
    pub(in crate::worker) fn ends_outage(&self, is_heard_since: impl FnOnce(Time) -> bool) -> bool {
        self.lock().ends_outage(is_heard_since)
    }

    /// The failures as text, for the error of a client that gives up. `None` if no address failed
    /// since the gateway answered last.
    pub(in crate::worker) fn report(&self) -> Option<String> {
        self.lock().describe(true)
    }

    /// Notes why there is no connection to this address.
    pub(super) fn failed(&self, address: SocketAddr, error: &DialError) {
        tracing::debug!(%address, %error, "no connection");
        let mut trials = self.lock();
        match error {
            DialError::NoHandshake(_) => {}
            DialError::Handshake { source, .. } => trials.failed(address, source.to_string()),
            DialError::Unproven { cause, .. } => trials.unproven(address, cause.to_string()),
            error => trials.no_way(address, error.to_string()),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Trials> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
