//! The gate before the control plane: how many connections may be on their way in, and who has to prove its address.
//!
//! INVARIANT: a connection without a place costs no memory beyond its first datagram.

use std::sync::Arc;

use quinn::{Endpoint, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for connections that have no session yet. Those whose password is to be checked, which takes long, have places
/// of their own: so they never keep out clients that only attach.
pub(crate) struct Gate {
    places: Arc<Semaphore>,
    logins: Arc<Semaphore>,
    /// Below this many free places addresses have to prove themselves (QUIC Retry, RFC 9000 section 8.1.2).
    retry_below: usize,
}

impl Gate {
    /// A gate with so many places, and as many for logins; when fewer than half of them are free, it asks for proofs.
    pub(crate) fn new(places: usize) -> Self {
        let semaphore = || Arc::new(Semaphore::new(places));
        Self { places: semaphore(), logins: semaphore(), retry_below: places.div_ceil(2) }
    }

    /// A place for a login, until it has a session or is gone; `None` if there are too many. Then the place that it
    /// came in by is free.
    pub(crate) fn login_place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.logins).try_acquire_owned().ok()
    }

    /// The next connection that may come in, and its place, to be given back when it has a session or is gone. Everyone
    /// else gets a Retry or a refusal. `None` when the endpoint is closed.
    pub(crate) async fn next(&self, endpoint: &Endpoint) -> Option<(Incoming, OwnedSemaphorePermit)> {
        loop {
            let incoming = endpoint.accept().await?;
            if self.places.available_permits() < self.retry_below && !incoming.remote_address_validated() {
                // It has proved its address already if this fails.
                let _ = incoming.retry();
                continue;
            }
            match Arc::clone(&self.places).try_acquire_owned() {
                Ok(place) => return Some((incoming, place)),
                Err(_) => incoming.refuse(),
            }
        }
    }
}
