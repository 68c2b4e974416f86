//! The record of logins: lines of the log about those that were refused, and the events of the
//! audit file.
//!
//! Invariants: anybody may cause such lines, so their number is bounded and those left out are
//! counted; a name that came from outside is one quoted value without control characters; the
//! record waits for no disk: where it can't be written, the audit file has a gap.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::sources::Sources;
use super::{Cause, Login};
use vpnd_store::audit::recorder::Recorder;
use vpnd_store::audit::{AuditEntry, Event};
use vpnd_sys::log_limit::LogLimit;

/// Lines about refusals at once; a person looks for the line of one user, so the rest is counted.
const REFUSALS: u32 = 100;
const REFUSAL_INTERVAL: Duration = Duration::from_millis(200);
/// Lines about a source that gives no answer: each login there would cause one.
const SOURCE_FAILURES: u32 = 5;
const SOURCE_FAILURE_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct LoginRecord {
    sources: Arc<Sources>,
    refusals: LogLimit,
    source_failures: LogLimit,
    audit: Option<Recorder>,
}

impl LoginRecord {
    pub(super) fn new(sources: Arc<Sources>, audit: Option<Recorder>) -> Self {
        Self {
            sources,
            refusals: LogLimit::new(REFUSALS, REFUSAL_INTERVAL),
            source_failures: LogLimit::new(SOURCE_FAILURES, SOURCE_FAILURE_INTERVAL),
            audit,
        }
    }

    /// A login was refused after something was checked.
    pub(super) fn refused(&self, login: &Login, cause: Cause, now_s: u64) {
        self.refused_at(self.sources.source_name(&login.user), login, cause, now_s);
    }

    /// A login at this source was refused so, whatever its user's name.
    pub(super) fn refused_at(&self, source: &str, login: &Login, cause: Cause, now_s: u64) {
        self.log_at(source, login, cause);
        self.add(entry(login, "login-refused", cause.name(), now_s));
    }

    /// A user was let in.
    pub(super) fn granted(&self, login: &Login, now_s: u64) {
        self.add(entry(login, "login", "", now_s));
    }

    /// A WireGuard device was let in, perhaps to the portal alone.
    pub(super) fn device(&self, user: &str, outer: IpAddr, is_walled: bool, now_s: u64) {
        let detail = if is_walled { "wireguard: walled" } else { "wireguard" };
        self.add(device_entry(user, "login", outer, detail.to_owned(), now_s));
    }

    /// A WireGuard device of this user was refused after it had shown its key.
    pub(super) fn device_refused(&self, user: &str, name: &str, outer: IpAddr, cause: Cause, now_s: u64) {
        if self.refusals.admits() {
            let (device, reason) = (printable(name), cause.name());
            tracing::info!(user, device, %outer, reason, "WireGuard device refused");
            self.add(device_entry(user, "login-refused", outer, format!("wireguard: {reason}"), now_s));
        }
    }

    /// Adds an event to the audit file.
    pub(super) fn add(&self, entry: AuditEntry) {
        if let Some(audit) = &self.audit {
            audit.record(Event::Entry(entry));
        }
    }

    /// Logs a refused login, which may cost nothing else.
    pub(super) fn log(&self, login: &Login, cause: Cause) {
        self.log_at(self.sources.source_name(&login.user), login, cause);
    }

    /// Logs a login that was refused at this source.
    pub(super) fn log_at(&self, source: &str, login: &Login, cause: Cause) {
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

fn entry(login: &Login, event: &str, detail: &str, now_s: u64) -> AuditEntry {
    AuditEntry {
        at_s: now_s,
        event: event.to_owned(),
        user: printable(&login.user),
        source: login.source.to_string(),
        detail: detail.to_owned(),
        by: String::new(),
    }
}

fn device_entry(user: &str, event: &str, outer: IpAddr, detail: String, now_s: u64) -> AuditEntry {
    let (event, user, source) = (event.to_owned(), printable(user), outer.to_string());
    AuditEntry { at_s: now_s, event, user, source, detail, by: String::new() }
}

/// A name from outside, made safe for logs: no control characters, at most 64 characters.
pub(super) fn printable(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}
