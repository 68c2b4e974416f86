//! Accepts connections for the control plane, as far as [`vpnd_proto::admission`] permits.
//!
//! INVARIANT: a connection without a permit costs no memory beyond its first datagram, and nothing
//! is sent to an address that has not proved itself but a request for that proof.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quinn::{Endpoint, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares};
use vpnd_proto::admission::{Admission, ConnectionDecision, Limits, RetryDecision, Source};

use crate::worker::relayed::Relayed;
use vpnd_sys::clock::now;

/// A person who has typed for this long makes room for another.
const TYPING_TIMEOUT: Duration = Duration::from_secs(20);

/// Admission control, shared by the acceptor and the [`super::retry_filter`].
#[derive(Clone)]
pub struct AdmissionControl {
    admission: Arc<Mutex<Admission>>,
    /// Datagrams that came here and whose first byte is not QUIC's.
    not_quic: Arc<AtomicU64>,
    /// Messages of WireGuard's handshakes that found no place.
    wireguard_dropped: Arc<AtomicU64>,
    relayed: Relayed,
}

impl AdmissionControl {
    pub fn new(limits: Limits, relayed: Relayed) -> Self {
        let mut secret = [0; 16];
        vpnd_sys::random::random()(&mut secret);
        Self {
            admission: Arc::new(Mutex::new(Admission::new(limits, secret))),
            not_quic: Arc::default(),
            wireguard_dropped: Arc::default(),
            relayed,
        }
    }

    /// The clients whose datagrams are relayed.
    pub(crate) fn relayed(&self) -> &Relayed {
        &self.relayed
    }

    /// The source that a datagram from this address counts for.
    pub(super) fn source(&self, address: SocketAddr) -> Source {
        Source::from(self.relayed.client(address).ip())
    }

    /// Counts of decisions, by outcome.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let counts = self.lock().counts();
        let named = [
            ("retried", counts.retried),
            ("dropped", counts.dropped),
            ("accepted", counts.accepted),
            ("refused", counts.refused),
            ("displaced", counts.displaced),
            ("ignored", counts.ignored),
            ("not_quic", self.not_quic.load(Ordering::Relaxed)),
            ("wireguard_dropped", self.wireguard_dropped.load(Ordering::Relaxed)),
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

    /// Counts a message of a WireGuard handshake that found too many before it.
    pub(super) fn count_wireguard_dropped(&self) {
        self.wireguard_dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Holders of permits: a holder's receiver closes when its permit is taken away.
#[derive(Clone, Default)]
struct PermitHolders(Arc<Mutex<HashMap<PermitId, oneshot::Sender<Infallible>>>>);

impl PermitHolders {
    fn add(&self, permit: PermitId) -> oneshot::Receiver<Infallible> {
        let (sender, displaced) = oneshot::channel();
        self.lock().insert(permit, sender);
        displaced
    }

    fn remove(&self, permit: PermitId) {
        self.lock().remove(&permit);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PermitId, oneshot::Sender<Infallible>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permit of a connection that has no session yet; given back when dropped.
pub(crate) struct Permit {
    owner: Owner,
    holders: PermitHolders,
    id: PermitId,
    displaced: oneshot::Receiver<Infallible>,
}

enum Owner {
    Handshakes(AdmissionControl),
    Codes(Arc<Mutex<Shares>>),
}

impl Permit {
    /// Waits until the permit is given to another connection.
    pub(crate) async fn displaced(&mut self) {
        // Nothing is ever sent: the sender is dropped with the permit.
        let _ = (&mut self.displaced).await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        match &self.owner {
            Owner::Handshakes(admission) => admission.lock().leave(self.id),
            Owner::Codes(shares) => {
                shares.lock().unwrap_or_else(PoisonError::into_inner).leave(self.id);
            }
        }
        self.holders.remove(self.id);
    }
}

/// Counts a connected session of a source until dropped: sources with sessions have a better
/// standing.
pub(crate) struct SessionGuard {
    admission: AdmissionControl,
    source: Source,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.admission.lock().session_ended(self.source);
    }
}

/// Accepts connections that have no session yet. Those whose password is to be checked, which takes
/// long, give up the permits of the others, so they never keep out clients that only attach. Their
/// number is bounded here, above what the auth process lets wait; which of them wait, and in which
/// order, is its affair.
pub(crate) struct Acceptor {
    admission: AdmissionControl,
    holders: PermitHolders,
    logins: Arc<Semaphore>,
    codes: Arc<Mutex<Shares>>,
    code_holders: PermitHolders,
}

impl Acceptor {
    /// An acceptor with this many permits for logins, and as many for those of them that wait for a
    /// person to type a code.
    pub(crate) fn new(admission: AdmissionControl, logins: usize) -> Self {
        let division =
            Division { limit: logins, displace_after: TYPING_TIMEOUT, displaced: Displaced::Oldest };
        Self {
            admission,
            holders: PermitHolders::default(),
            logins: Arc::new(Semaphore::new(logins)),
            codes: Arc::new(Mutex::new(Shares::new(division))),
            code_holders: PermitHolders::default(),
        }
    }

    /// The client at the other end of a connection with this address.
    pub(crate) fn client(&self, remote: SocketAddr) -> SocketAddr {
        self.admission.relayed.client(remote)
    }

    /// A permit for a connection whose user is asked for a one-time code, which may take a person a
    /// while; `None` if its network has its share.
    pub(crate) fn code_permit(&self, remote: SocketAddr) -> Option<Permit> {
        let source = self.admission.source(remote);
        let standing = self.admission.lock().standing(source);
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let Entered::In { permit, displaced } = codes.enter(now(), source, standing) else { return None };
        if let Some(displaced) = displaced {
            self.code_holders.remove(displaced);
        }
        let (owner, holders) = (Owner::Codes(Arc::clone(&self.codes)), self.code_holders.clone());
        // Under the lock, so that a connection that is displaced next is among the holders.
        let displaced = holders.add(permit);
        Some(Permit { owner, holders, id: permit, displaced })
    }

    /// A permit for a login, until it has a session or is gone; `None` if there are too many. By
    /// then the permit that it was accepted with is given back.
    pub(crate) fn login_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.logins).try_acquire_owned().ok()
    }

    /// A connection from this address has a session.
    pub(crate) fn session_started(&self, remote: SocketAddr) -> SessionGuard {
        let source = self.admission.source(remote);
        self.admission.lock().session_began(source);
        SessionGuard { admission: self.admission.clone(), source }
    }

    /// The next accepted connection and its permit, to be given back when it has a session or is
    /// gone. Everyone else gets a Retry, a refusal or nothing. `None` when the endpoint is closed.
    pub(crate) async fn next(&self, endpoint: &Endpoint) -> Option<(Incoming, Permit)> {
        loop {
            let incoming = endpoint.accept().await?;
            let source = self.admission.source(incoming.remote_address());
            if !incoming.remote_address_validated() {
                self.request_validation(incoming, source);
                continue;
            }
            let decision = self.admission.lock().on_connection(now(), source);
            match decision {
                ConnectionDecision::Accept { permit, displaced } => {
                    if let Some(displaced) = displaced {
                        // Drops the sender, which ends the connection that held the permit.
                        self.holders.remove(displaced);
                    }
                    return Some((incoming, self.permit(permit)));
                }
                ConnectionDecision::Refuse => incoming.refuse(),
                ConnectionDecision::Ignore => incoming.ignore(),
            }
        }
    }

    fn permit(&self, id: PermitId) -> Permit {
        let (owner, holders) = (Owner::Handshakes(self.admission.clone()), self.holders.clone());
        let displaced = holders.add(id);
        Permit { owner, holders, id, displaced }
    }

    /// The retry filter has accepted the token, but the endpoint does not: it may have expired in
    /// between.
    fn request_validation(&self, incoming: Incoming, source: Source) {
        let decision = self.admission.lock().on_initial(now(), source);
        match decision {
            // It has proved its address already if this fails.
            RetryDecision::Retry => drop(incoming.retry()),
            RetryDecision::Drop => incoming.ignore(),
        }
    }
}
