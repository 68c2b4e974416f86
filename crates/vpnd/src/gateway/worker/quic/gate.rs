//! The gate before the control plane: which connections may come in, by what [`vpnd_proto::admission`] decides.
//!
//! INVARIANT: a connection without a place costs no memory beyond its first datagram, and nothing is sent to an address that
//! has not proved itself but a request for that proof.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quinn::{Endpoint, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PlaceId, Shares};
use vpnd_proto::admission::{Admission, Greeting, Limits, Source, Verdict};

use crate::clock::now;

/// A person who has typed for this long makes room for another.
const TYPING_PATIENCE: Duration = Duration::from_secs(20);

/// What the gate and the [`super::front`] decide by.
#[derive(Clone)]
pub(crate) struct Admissions {
    admission: Arc<Mutex<Admission>>,
    /// Datagrams that came here and whose first byte is not QUIC's.
    not_quic: Arc<AtomicU64>,
}

impl Admissions {
    /// Nobody is there yet.
    pub(crate) fn new(limits: Limits) -> Self {
        let mut secret = [0; 16];
        crate::control::random()(&mut secret);
        Self { admission: Arc::new(Mutex::new(Admission::new(limits, secret))), not_quic: Arc::default() }
    }

    /// What was decided so far, by outcome.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let counts = self.lock().counts();
        let named = [
            ("retried", counts.retried),
            ("dropped", counts.dropped),
            ("accepted", counts.accepted),
            ("refused", counts.refused),
            ("displaced", counts.displaced),
            ("ignored", counts.ignored),
            ("not_quic", self.not_quic.load(Ordering::Relaxed)),
        ];
        named.map(|(name, count)| (name.to_owned(), count)).into()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Admission> {
        // Nothing that is done with it panics.
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a datagram that belongs to no protocol of this port (PROTOCOL §2).
    pub(super) fn count_not_quic(&self) {
        self.not_quic.fetch_add(1, Ordering::Relaxed);
    }
}

/// Who holds places, to be told when one is taken away.
#[derive(Clone, Default)]
struct Holders(Arc<Mutex<HashMap<PlaceId, oneshot::Sender<Infallible>>>>);

impl Holders {
    fn add(&self, place: PlaceId) -> oneshot::Receiver<Infallible> {
        let (holder, displaced) = oneshot::channel();
        self.lock().insert(place, holder);
        displaced
    }

    fn remove(&self, place: PlaceId) {
        self.lock().remove(&place);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PlaceId, oneshot::Sender<Infallible>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connection that has no session yet; given back when dropped.
pub(crate) struct Place {
    owner: Owner,
    holders: Holders,
    id: PlaceId,
    displaced: oneshot::Receiver<Infallible>,
}

/// Whose the place is.
enum Owner {
    Handshakes(Admissions),
    Codes(Arc<Mutex<Shares>>),
}

impl Place {
    /// Waits until somebody else gets this place.
    pub(crate) async fn displaced(&mut self) {
        // Nothing is ever sent: the other end goes when the place does.
        let _ = (&mut self.displaced).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match &self.owner {
            Owner::Handshakes(admissions) => admissions.lock().leave(self.id),
            Owner::Codes(shares) => {
                shares.lock().unwrap_or_else(PoisonError::into_inner).leave(self.id);
            }
        }
        self.holders.remove(self.id);
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

/// Lets connections in that have no session yet. Those whose password is to be checked, which takes long, leave the places of
/// the others: so they never keep out clients that only attach. Their number is bounded here, above what the auth process lets
/// wait; which of them wait, and in which order, is its affair.
pub(crate) struct Gate {
    admissions: Admissions,
    holders: Holders,
    logins: Arc<Semaphore>,
    codes: Arc<Mutex<Shares>>,
    code_holders: Holders,
}

impl Gate {
    /// A gate with so many places for logins, and as many for those of them that wait for a person to type a code.
    pub(crate) fn new(admissions: Admissions, logins: usize) -> Self {
        let division = Division { limit: logins, patience: TYPING_PATIENCE, displaced: Displaced::Oldest };
        Self {
            admissions,
            holders: Holders::default(),
            logins: Arc::new(Semaphore::new(logins)),
            codes: Arc::new(Mutex::new(Shares::new(division))),
            code_holders: Holders::default(),
        }
    }

    /// A place for a connection whose user is asked for a one-time code, which may take a person a while; `None` if its
    /// network has its share.
    pub(crate) fn code_place(&self, remote: SocketAddr) -> Option<Place> {
        let source = Source::from(remote.ip());
        let standing = self.admissions.lock().standing(source);
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let Entered::In { place, displaced } = codes.enter(now(), source, standing) else { return None };
        if let Some(displaced) = displaced {
            self.code_holders.remove(displaced);
        }
        let (owner, holders) = (Owner::Codes(Arc::clone(&self.codes)), self.code_holders.clone());
        // While nobody else enters, so that whoever is displaced next is among the holders.
        let displaced = holders.add(place);
        Some(Place { owner, holders, id: place, displaced })
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
                Verdict::Accept { place, displaced } => {
                    if let Some(displaced) = displaced {
                        self.holders.remove(displaced);
                    }
                    return Some((incoming, self.place(place)));
                }
                Verdict::Refuse => incoming.refuse(),
                Verdict::Ignore => incoming.ignore(),
            }
        }
    }

    fn place(&self, id: PlaceId) -> Place {
        let (owner, holders) = (Owner::Handshakes(self.admissions.clone()), self.holders.clone());
        let displaced = holders.add(id);
        Place { owner, holders, id, displaced }
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
