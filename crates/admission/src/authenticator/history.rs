//! Remembers earlier logins: users, their devices, and the networks that they came from.
//!
//! INVARIANT: an unknown user costs as many queries as a known one.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use vpnd_proto::admission::shares::Standing;
use vpnd_proto::session::DeviceId;

use super::Login;
use super::known_sources::KnownSources;
use super::throttle::source_prefix;
use vpnd_store::{Family, LeaseOwner, Store, StoreError, User, UserId};

/// Time for which a source counts as known to a user, seconds.
pub(super) const KNOWN_SOURCE_S: u64 = 90 * 86_400;

/// Earlier logins, as the store has them.
pub(super) struct History {
    store: Arc<dyn Store>,
    sources: Mutex<KnownSources>,
}

impl History {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { sources: Mutex::new(KnownSources::of(store.as_ref())), store }
    }

    /// The user, and whether they have logged in from this source or with this device before.
    pub(super) fn look_up(&self, login: &Login, now_s: u64) -> Result<(Option<User>, bool), StoreError> {
        let user = self.store.user(&login.user)?;
        // An id that no user has: the queries below take the same time then.
        let id = user.as_ref().map_or(UserId::NOBODY, |user| user.id);
        let prefix = source_prefix(login.source);
        let prefix = self.store.knows_source(id, &prefix, now_s.saturating_sub(KNOWN_SOURCE_S))?;
        let device = self.has_lease(id, login.device)?;
        Ok((user, prefix | device))
    }

    /// The standing of the device, or else of the source. A device can't be claimed by another,
    /// because it proves its key; and a source counts whichever user came from there, so that turns
    /// disclose nothing about the user who is named.
    pub(super) async fn standing(self: &Arc<Self>, login: &Login, now_s: u64) -> Standing {
        let (this, name, device) = (Arc::clone(self), login.user.clone(), login.device);
        let returning = tokio::task::spawn_blocking(move || this.has_been_here(&name, device)).await;
        if matches!(returning, Ok(Ok(true))) {
            Standing::Returning
        } else if self.sources().contains(&source_prefix(login.source), now_s) {
            Standing::Known
        } else {
            Standing::Stranger
        }
    }

    /// A user has logged in from there.
    pub(super) fn remember(&self, user: UserId, source: IpAddr, now_s: u64) {
        let prefix = source_prefix(source);
        if let Err(error) = self.store.remember_source(user, &prefix, now_s) {
            tracing::warn!(%error, "the network of a login could not be stored");
        }
        self.sources().add(prefix, now_s);
    }

    /// Whether this device of this user's has had a session.
    fn has_been_here(&self, name: &str, device: DeviceId) -> Result<bool, StoreError> {
        let user = self.store.user(name)?.map_or(UserId::NOBODY, |user| user.id);
        self.has_lease(user, device)
    }

    fn has_lease(&self, user: UserId, device: DeviceId) -> Result<bool, StoreError> {
        let owner = LeaseOwner { user, device };
        let [v4, v6] = [Family::V4, Family::V6].map(|family| self.store.lease_of(owner, family));
        Ok(v4?.is_some() || v6?.is_some())
    }

    fn sources(&self) -> std::sync::MutexGuard<'_, KnownSources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
