//! The gate before the control plane: which connections may come in, by what [`vpnd_proto::admission`] decides.
//!
//! INVARIANT: a connection without a place costs no memory beyond its first datagram, and nothing is sent to an address that
//! has not proved itself but a request for that proof.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quinn::{Endpoint, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use vpnd_proto::admission::{Admission, Greeting, Limits, Source, Verdict};

use crate::shard::now;

/// What the gate and the [`super::front`] decide by.
#[derive(Clone)]
pub(crate) struct Admissions(Arc<Mutex<Admission>>);

impl Admissions {
    /// Nobody is there yet.
    pub(crate) fn new(limits: Limits) -> Self {
        let mut secret = [0; 16];
        crate::control::random()(&mut secret);
        Self(Arc::new(Mutex::new(Admission::new(limits, secret))))
    }

    /// What was decided so far, by outcome.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let counts = self.lock().counts();
        let named = [
            ("retried", counts.retried),
            ("dropped", counts.dropped),
            ("accepted", counts.accepted),
            ("refused", counts.refused),
            ("ignored", counts.ignored),
        ];
        named.map(|(name, count)| (name.to_owned(), count)).into()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Admission> {
        // Nothing that is done with it panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connection that has no session yet; given back when dropped.
pub(crate) struct Place {
    admissions: Admissions,
    source: Source,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admissions.lock().leave(self.source);
    }
}

/// Says that a session is connected from somewhere, until dropped.
pub(crate) struct Settled {
    admissions: Admissions,
    source: Source,
}

impl Drop for Settled {
    fn drop(&mut self) {
        self.admissions.lock().session_ended(self.source);
    }
}

/// Lets connections in that have no session yet. Those whose password is to be checked, which takes long, have places of
/// their own: so they never keep out clients that only attach.
pub(crate) struct Gate {
    admissions: Admissions,
    logins: Arc<Semaphore>,
}

impl Gate {
    /// A gate with so many places for logins.
    pub(crate) fn new(admissions: Admissions, logins: usize) -> Self {
        Self { admissions, logins: Arc::new(Semaphore::new(logins)) }
    }

    /// A place for a login, until it has a session or is gone; `None` if there are too many. Then the place that it
    /// came in by is free.
    pub(crate) fn login_place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.logins).try_acquire_owned().ok()
    }

    /// A connection from this address has a session.
    pub(crate) fn settle(&self, remote: SocketAddr) -> Settled {
        let source = Source::from(remote.ip());
        self.admissions.lock().session_began(source);
        Settled { admissions: self.admissions.clone(), source }
    }

    /// The next connection that may come in, and its place, to be given back when it has a session or is gone. Everyone
    /// else gets a Retry, a refusal or nothing. `None` when the endpoint is closed.
    pub(crate) async fn next(&self, endpoint: &Endpoint) -> Option<(Incoming, Place)> {
        loop {
            let incoming = endpoint.accept().await?;
            let source = Source::from(incoming.remote_address().ip());
            if !incoming.remote_address_validated() {
                self.ask_for_proof(incoming, source);
                continue;
            }
            let verdict = self.admissions.lock().arrive(now(), source);
            match verdict {
                Verdict::Accept => {
                    return Some((incoming, Place { admissions: self.admissions.clone(), source }));
                }
                Verdict::Refuse => incoming.refuse(),
                Verdict::Ignore => incoming.ignore(),
            }
        }
    }

    /// The front has seen a proof, but the endpoint doubts it: it may have become too old in between.
    fn ask_for_proof(&self, incoming: Incoming, source: Source) {
        let greeting = self.admissions.lock().greet(now(), source);
        match greeting {
            // It has proved its address already if this fails.
            Greeting::Answer => drop(incoming.retry()),
            Greeting::Drop => incoming.ignore(),
        }
    }
}
