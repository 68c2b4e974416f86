//! A gateway's place in its fleet: what is done once over all gateways is done through it.

use std::sync::{Arc, OnceLock};

use super::Notices;
use vpnd_store::StoreError;

/// The notices of the fleet, if this gateway is in one.
#[derive(Default)]
pub struct Membership(OnceLock<Arc<Notices>>);

impl Membership {
    /// Is one of this fleet from now on.
    pub fn join(&self, notices: &Arc<Notices>) {
        self.0.get_or_init(|| Arc::clone(notices));
    }

    pub fn is_in_fleet(&self) -> bool {
        self.0.get().is_some()
    }

    /// Does this after all that other gateways have done, and before all that they will do.
    pub fn in_order<T>(&self, work: impl FnOnce() -> T) -> Result<T, StoreError> {
        match self.0.get() {
            Some(notices) => notices.decide(work),
            None => Ok(work()),
        }
    }

    /// Learns what other gateways have just done; whether that may be more than was known. Callers
    /// share the queries of the database, so that many cost it no more than a few.
    pub fn catch_up(&self) -> Result<bool, StoreError> {
        match self.0.get() {
            Some(notices) => notices.join_turn().map(|()| true),
            None => Ok(false),
        }
    }

    /// Lets other gateways know of what was done here, before it returns. Callers share changes of
    /// the database.
    pub fn tell(&self) -> Result<(), StoreError> {
        self.catch_up().map(drop)
    }

    /// Lets other gateways know of what was done here, which its user does not wait for.
    pub fn tell_soon(&self) {
        if let Some(notices) = self.0.get().map(Arc::clone) {
            // After a failure it is sent at the next turn.
            tokio::task::spawn_blocking(move || drop(notices.join_turn()));
        }
    }
}
