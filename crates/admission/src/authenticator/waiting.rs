//! Logins that wait for a person, and the record of those that no person completed.
//!
//! INVARIANT: a login that leaves without its answer is recorded, once.

use std::sync::{Arc, Mutex, MutexGuard};

use vpnd_proto::session::DeviceId;

use super::login_record::LoginRecord;
use super::pending::{Attempt, LIFETIME, Pending, StepKind};
use super::rounds::PendingReply;
use super::sources::ExternalSource;
use crate::notices::lock;
use vpnd_sys::clock::now;

pub(super) struct Waiting {
    pending: Mutex<Pending>,
    record: Arc<LoginRecord>,
}

impl Waiting {
    pub(super) fn new(record: Arc<LoginRecord>) -> Self {
        Self { pending: Mutex::new(Pending::new()), record }
    }

    /// Has a login wait for a person; its number, if there is room.
    pub(super) fn add(&self, attempt: Attempt, now_s: u64) -> Option<u64> {
        let (number, over) = self.pending().add(now(), attempt);
        for attempt in &over {
            self.record_over(attempt, now_s);
        }
        number
    }

    /// Takes out a login that has waited, unless its time is over.
    pub(super) fn take(&self, number: u64, now_s: u64) -> Option<Attempt> {
        let attempt = self.pending().take(number)?;
        if now().since(attempt.since) < LIFETIME {
            return Some(attempt);
        }
        self.record_over(&attempt, now_s);
        None
    }

    /// The person has gone, whom a login waited for.
    pub(super) fn abandon(&self, number: u64, now_s: u64) {
        let attempt = self.pending().take(number);
        if let Some(attempt) = attempt {
            self.record_over(&attempt, now_s);
        }
    }

    /// The source that decides the next step of the login with this number, if one does.
    pub(super) fn source_of(&self, number: u64) -> Option<Arc<ExternalSource>> {
        self.pending().source_of(number)
    }

    /// The step of the login with this number, as far as it is this device's.
    pub(super) fn kind_of(&self, number: u64, device: DeviceId) -> Option<StepKind> {
        self.pending().kind_of(number, device)
    }

    /// Takes out the server's reply that this login waits for, to wait for it.
    pub(super) fn take_reply(&self, number: u64, device: DeviceId) -> Option<PendingReply> {
        self.pending().take_reply(number, device)
    }

    /// Puts it back, if the login is still there.
    pub(super) fn put_back(&self, number: u64, reply: PendingReply) {
        self.pending().put_back(number, reply);
    }

    fn record_over(&self, attempt: &Attempt, now_s: u64) {
        self.record.refused(&attempt.login, attempt.step.cause(), now_s);
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        lock(&self.pending)
    }
}
