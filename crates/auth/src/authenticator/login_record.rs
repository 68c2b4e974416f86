//! Lines of the log about refused logins.
//!
//! INVARIANT: anybody may cause them, so their number is bounded and those left out are counted; a name that came from outside is one
//! quoted value without control characters.

use std::time::Duration;

use super::{Cause, Login};
use vpnd_sys::log_limit::LogLimit;

/// Lines about refusals at once; a person looks for the line of one user, so the rest is counted.
const REFUSALS: u32 = 100;
const REFUSAL_INTERVAL: Duration = Duration::from_millis(200);
/// Lines about a source that gives no answer: each login there would cause one.
const SOURCE_FAILURES: u32 = 5;
const SOURCE_FAILURE_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct RefusalLog {
    refusals: LogLimit,
    source_failures: LogLimit,
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self {
            refusals: LogLimit::new(REFUSALS, REFUSAL_INTERVAL),
            source_failures: LogLimit::new(SOURCE_FAILURES, SOURCE_FAILURE_INTERVAL),
        }
    }
}

impl RefusalLog {
    /// A login was refused; `source` is the one that its user belongs to by name.
    pub(super) fn refused(&self, login: &Login, source: &str, cause: Cause) {
        if self.refusals.admits() {
            let user = printable(&login.user);
            tracing::info!(
                user = user.as_str(),
                source,
                outer = %login.source,
                device = %login.device,
                reason = cause.name(),
                "login refused"
            );
        }
    }

    /// A source gave no answer, and why.
    pub(super) fn source_failed(&self, source: &str, why: &str) {
        if self.source_failures.admits() {
            tracing::error!(source, why, "a source can't be asked");
        }
    }

    /// Logs the number of lines left out since the last call.
    pub(super) fn report(&self) {
        self.refusals.report("login refused");
        self.source_failures.report("a source can't be asked");
    }
}

/// A name from outside, made safe for logs: no control characters, at most 64 characters.
pub(super) fn printable(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}
