//! Counts of logins and attaches. They are read by status and metrics alone: nothing is decided by
//! them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_proto::control::Message;

/// Logins and attaches by outcome, counted since the start.
#[derive(Debug, Default)]
pub(crate) struct Logins {
    pub(super) accepted: AtomicU64,
    /// Refused logins, in the order of [`Refusal::ALL`].
    refused: [AtomicU64; Refusal::ALL.len()],
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
        let mut counts = BTreeMap::from([
            count("accepted", &self.accepted),
            count("attaches", &self.attaches),
            count("attaches_refused", &self.attaches_refused),
            count("bad_requests", &self.bad_requests),
            count("timed_out", &self.timed_out),
            count("unproved", &self.unproved),
            count("unread", &self.unread),
        ]);
        for (refusal, counter) in Refusal::ALL.iter().zip(&self.refused) {
            *counts.entry(refusal.counter().to_owned()).or_default() += counter.load(Ordering::Relaxed);
        }
        counts
    }

    /// Counts a login that was refused.
    pub(super) fn count_refused(&self, refusal: Refusal) {
        self.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what the control plane has answered to a login whose credentials were right.
    pub(super) fn count_answer(&self, answer: &Message) {
        if matches!(answer, Message::Refused(refused) if refused.code == Refusal::TooMany.code()) {
            self.count_refused(Refusal::TooMany);
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
