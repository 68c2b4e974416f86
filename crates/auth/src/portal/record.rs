//! The record of what happens at the portal: entries of the audit file, and what is refused.
//!
//! INVARIANT: nothing waits for the record: where it can't be written, the audit file has a gap.

use std::net::IpAddr;

use super::refusals::Refusals;
use vpnd_store::audit::recorder::{Health, Recorder};
use vpnd_store::audit::{AuditEntry, Event};
use vpnd_sys::clock::Clocks;

pub(super) struct Record {
    audit: Option<Recorder>,
    clocks: Clocks,
    pub(super) refusals: Refusals,
}

impl Record {
    pub(super) fn new(audit: Option<Recorder>, clocks: Clocks) -> Self {
        Self { audit, clocks, refusals: Refusals::default() }
    }

    /// Records what was done from this address by or for a user.
    pub(super) fn add(&self, event: &str, user: &str, address: IpAddr, detail: &str) {
        self.entry(event, user, address.to_string(), detail, "");
    }

    /// Records what someone else has done to a user.
    pub(super) fn add_by(&self, event: &str, user: &str, by: &str) {
        self.entry(event, user, String::new(), "", by);
    }

    fn entry(&self, event: &str, user: &str, source: String, detail: &str, by: &str) {
        if let Some(audit) = &self.audit {
            audit.record(Event::Entry(AuditEntry {
                at_s: (self.clocks.wall)(),
                event: event.to_owned(),
                user: user.to_owned(),
                source,
                detail: detail.to_owned(),
                by: by.to_owned(),
            }));
        }
    }

    /// State of the audit file; `None` if nothing is to be recorded.
    pub(super) fn health(&self) -> Option<Health> {
        self.audit.as_ref().filter(|audit| audit.is_enabled()).map(Recorder::health)
    }
}
