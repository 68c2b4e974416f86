//! The pages of the help desk and of administrators: what each may see and change.
//!
//! Invariants: a request names a user, an address and a reason, and no right. It counts from the
//! configured networks alone, a change only within ten minutes of a login, with a reason, on the
//! record, and so often. A portal that was taken over can do this while such a person is logged in:
//! the limits here are what bounds it, and people give no role.

mod accounts;
mod actor;
mod answers;
mod authority;
mod callers;
mod deeds;
mod health;
mod questions;
mod sessions;
mod views;
mod watch;

use std::path::PathBuf;

pub(super) use answers::DeskAnswers;
use vpnd_config::ServerConfig;
use vpnd_config::https_url::HttpsUrl;
use vpnd_store::audit::whois::Recording;
use vpnd_store::audit::{self, AuditFile};
use watch::Watch;

/// The rules in force, and what the worker has reported.
pub(crate) struct Desk {
    rules: vpnd_config::desk::Desk,
    recording: Recording,
    /// Where the pages are, if that is known.
    pages: Option<HttpsUrl>,
    /// The audit file.
    audit: PathBuf,
    /// Whether it is written.
    records: bool,
    watch: Watch,
}

impl Desk {
    pub(crate) fn of(config: &ServerConfig) -> Option<Self> {
        let portal = config.portal.as_ref()?;
        Some(Self {
            rules: portal.desk.clone(),
            pages: portal.url.clone(),
            recording: Recording::of(config),
            audit: config.server.state_dir.join(audit::FILE_NAME),
            records: config.audit.enabled,
            watch: Watch::default(),
        })
    }

    /// The audit file, if something is recorded.
    fn audit_file(&self) -> Option<AuditFile> {
        if !self.records {
            return None;
        }
        let file = self.recording.open(&self.audit);
        file.map_err(|error| tracing::error!(%error, "the desk has no audit file")).ok()
    }
}

#[cfg(test)]
pub(in crate::portal) mod tests;
