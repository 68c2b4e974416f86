//! Notices of the gateways of a fleet to one another, through the database.
//!
//! INVARIANT: every gateway learns all notices, in one order. A process has learnt its own ones
//! when it makes them. What [`Notices::decide`] decides follows all that was noticed before. This
//! module must not know of those who make and learn them.

mod membership;
mod notice;
mod shared_turns;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use minicbor::bytes::ByteVec;
use shared_turns::SharedTurns;
use vpnd_store::{MAX_NOTICES, Store, StoreError};
use vpnd_sys::clock::steady_s;

pub use membership::Membership;
pub use notice::{GuessEvent, Notice, SharedGuess, SharedLogin, SharedVisit, Taken, VisitFacts};
pub use notice::{OfGateway, Question, Recorded};

/// Notices of one change, at most.
const MAX_TOGETHER: usize = 1_024;

/// The time since this one of the clock that the gateways share.
pub fn age(at_s: u64) -> Duration {
    Duration::from_secs(steady_s().saturating_sub(at_s))
}

/// A part of the process that makes notices, and learns those of others.
pub trait Subscriber: Send + Sync {
    /// Another process has made it.
    fn learn(&self, notice: &Notice);
    /// Those that were made here since the last call.
    fn made(&self) -> Vec<Notice>;
    /// Some were lost before they were learnt.
    fn has_missed(&self) {}
}

/// The notices of a fleet.
pub struct Notices {
    store: Arc<dyn Store>,
    /// Identifies this process.
    origin: [u8; 16],
    subscribers: Mutex<Vec<Weak<dyn Subscriber>>>,
    /// The number of the last one that was learnt; 0 before the first.
    learnt: Mutex<u64>,
    /// Made here, and not acknowledged by the store.
    unsent: Mutex<Vec<Notice>>,
    shared_turns: SharedTurns,
}

impl Notices {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            origin: rand::random(),
            subscribers: Mutex::default(),
            learnt: Mutex::default(),
            unsent: Mutex::default(),
            shared_turns: SharedTurns::default(),
        }
    }

    pub fn subscribe(&self, subscriber: Weak<dyn Subscriber>) {
        lock(&self.subscribers).push(subscriber);
    }

    /// Sends all that was made here, and learns what others have.
    pub fn turn(&self) -> Result<(), StoreError> {
        loop {
            let mut unsent = lock(&self.unsent);
            let (count, is_left) = if self.gather(&mut unsent) {
                (self.send(&mut unsent, || {})?, !unsent.is_empty())
            } else {
                drop(unsent);
                let after = *lock(&self.learnt);
                (self.learn(&self.store.notices(after)?), false)
            };
            if count < MAX_NOTICES && !is_left {
                return Ok(());
            }
        }
    }

    /// Takes part in a turn that begins after this call, with all others who call meanwhile.
    pub fn join_turn(&self) -> Result<(), StoreError> {
        self.shared_turns.join(self.shared_turns.begun(), || self.turn())
    }

    /// Decides by all that others have let know, so that they decide by it. `decide` is called at
    /// most once; what it makes is sent with it.
    pub fn decide<T>(&self, decide: impl FnOnce() -> T) -> Result<T, StoreError> {
        let (mut decide, mut decided) = (Some(decide), None);
        loop {
            let mut unsent = lock(&self.unsent);
            self.send(&mut unsent, || decided = decide.take().map(|decide| decide()))?;
            if let Some(decided) = decided.take() {
                return Ok(decided);
            }
        }
    }

    /// Learns what others have made, and if that is all of it, does `then` and sends what was made
    /// here; how many others there were.
    fn send(
        &self,
        unsent: &mut MutexGuard<'_, Vec<Notice>>,
        mut then: impl FnMut(),
    ) -> Result<usize, StoreError> {
        let (mut count, mut sent) = (0, 0);
        let after = *lock(&self.learnt);
        self.store.leave_notice(self.origin, after, &mut |found| {
            count = self.learn(&found);
            if count >= MAX_NOTICES {
                return None;
            }
            then();
            if !self.gather(unsent) {
                return None;
            }
            sent = unsent.len().min(MAX_TOGETHER);
            Some(encode(&unsent[..sent]))
        })?;
        unsent.drain(..sent);
        Ok(count)
    }

    /// Takes what subscribers have made; whether there is anything to send.
    fn gather(&self, unsent: &mut Vec<Notice>) -> bool {
        self.each_subscriber(|subscriber| unsent.extend(subscriber.made()));
        !unsent.is_empty()
    }

    /// Hands these on that were not learnt yet; how many there are.
    fn learn(&self, notices: &vpnd_store::Notices) -> usize {
        let mut learnt = lock(&self.learnt);
        if notices.is_cut {
            tracing::warn!("what other gateways have let know was lost in the database");
            self.each_subscriber(|subscriber| subscriber.has_missed());
            // The database may be an earlier one, whose numbers are given again.
            *learnt = 0;
        }
        for notice in &notices.found {
            if notice.number <= *learnt {
                continue;
            }
            *learnt = notice.number;
            if notice.origin != self.origin {
                let items = decode(&notice.body);
                self.each_subscriber(|subscriber| items.iter().for_each(|item| subscriber.learn(item)));
            }
        }
        notices.found.len()
    }

    fn each_subscriber(&self, mut work: impl FnMut(&dyn Subscriber)) {
        let subscribers = lock(&self.subscribers).clone();
        subscribers.iter().filter_map(Weak::upgrade).for_each(|subscriber| work(&*subscriber));
    }
}

pub fn encode(notices: &[Notice]) -> Vec<u8> {
    let item = |notice| ByteVec::from(minicbor::to_vec(notice).expect("a vector takes all bytes"));
    minicbor::to_vec(notices.iter().map(item).collect::<Vec<_>>()).expect("a vector takes all bytes")
}

/// The notices of a body, but for those that this vpnd does not know.
pub fn decode(body: &[u8]) -> Vec<Notice> {
    let items: Vec<ByteVec> = minicbor::decode(body).unwrap_or_default();
    items.iter().filter_map(|item| minicbor::decode(item).ok()).collect()
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
