//! Counts of logins and attaches. They are read by status and metrics alone: nothing is decided by them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use vpnd_proto::control::{Code, Message};

/// Logins and attaches by outcome, counted since the start.
#[derive(Debug, Default)]
pub(crate) struct Logins {
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) busy: AtomicU64,
    pub(super) no_address: AtomicU64,
    /// Logins of users for whom there is no access profile.
    pub(super) no_profile: AtomicU64,
    /// Logins by fewer factors than the user's access profile requires.
    pub(super) missing_factor: AtomicU64,
    /// Logins whose user, or the gateway, has as many sessions as may be.
    pub(super) too_many: AtomicU64,
    /// Logins whose directory or server could not be asked.
    pub(super) source_unavailable: AtomicU64,
    /// Logins for which there was no room among those that wait for a person.
    pub(super) waiting_full: AtomicU64,
    /// Logins at a gateway that is being drained.
    pub(super) draining: AtomicU64,
    pub(super) attaches: AtomicU64,
    pub(super) attaches_refused: AtomicU64,
    pub(super) bad_requests: AtomicU64,
    pub(super) timed_out: AtomicU64,
    /// Logins and attaches whose device's signature was not for their connection.
    pub(super) unproved: AtomicU64,
    /// Connections that were closed because what was sent on them was not read.
    pub(super) unread: AtomicU64,
}

impl Logins {
    /// The counts by outcome.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let count = |name: &str, counter: &AtomicU64| (name.to_owned(), counter.load(Ordering::Relaxed));
        BTreeMap::from([
            count("accepted", &self.accepted),
            count("refused", &self.refused),
            count("busy", &self.busy),
            count("no_address", &self.no_address),
            count("no_profile", &self.no_profile),
            count("missing_factor", &self.missing_factor),
            count("too_many", &self.too_many),
            count("source_unavailable", &self.source_unavailable),
            count("waiting_full", &self.waiting_full),
            count("draining", &self.draining),
            count("attaches", &self.attaches),
            count("attaches_refused", &self.attaches_refused),
            count("bad_requests", &self.bad_requests),
            count("timed_out", &self.timed_out),
            count("unproved", &self.unproved),
            count("unread", &self.unread),
        ])
    }

    /// Counts what the control plane has answered to a login whose credentials were right.
    pub(super) fn count_answer(&self, answer: &Message) {
        if matches!(answer, Message::Refused(refused) if refused.code == Code::TooMany) {
            self.too_many.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an attach, once the control plane has answered it.
    pub(super) fn count_attach(&self, answer: &Message) {
        match answer {
            Message::Established(_) => self.attaches.fetch_add(1, Ordering::Relaxed),
            _ => self.attaches_refused.fetch_add(1, Ordering::Relaxed),
        };
    }
}
