//! Revocations: what ends sessions, as events that the gateway carries out one after the other.

use vpnd_proto::session::DeviceId;

use crate::{LiveUser, RevocationCause, StoreError, UserId};

/// Something that ends sessions, or changes what they may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// Its number; a later one is greater.
    pub seq: u64,
    /// The user whose sessions end.
    pub user: UserId,
    /// The user's login name then.
    pub name: String,
    pub cause: RevocationCause,
    /// The one device that it is about, if it is not about all.
    pub device: Option<DeviceId>,
}

impl Revocation {
    /// Whether it ends the sessions of this device.
    #[must_use]
    pub fn ends(&self, user: UserId, device: DeviceId) -> bool {
        let is_of_device = self.device.is_none_or(|revoked| revoked == device);
        self.user == user && self.cause != RevocationCause::Groups && is_of_device
    }
}

/// The revocations of a gateway. Methods of [`crate::Users`] and [`crate::Sessions`] make some,
/// too.
///
/// INVARIANT: within one [history](Revocations::history) a revocation has a number that only grows,
/// and none is lost before it was carried out.
pub trait Revocations: Send + Sync {
    /// Ends all sessions of a user, which is a revocation. The user may log in again.
    fn end_sessions(&self, user: &LiveUser, cause: RevocationCause, now_s: u64) -> Result<(), StoreError>;
    /// Ends the session of a device of this user, which is a revocation. The user may log in again,
    /// and others may have the device's addresses once it has ended.
    fn end_device(
        &self,
        user: &LiveUser,
        device: DeviceId,
        cause: RevocationCause,
        now_s: u64,
    ) -> Result<(), StoreError>;
    /// Makes a revocation for each user whose time is over and who has none yet; returns their
    /// number. Cheap if there are none.
    fn end_expired(&self, now_s: u64) -> Result<usize, StoreError>;
    /// The number of the last revocation, 0 before the first.
    fn last_revocation(&self) -> Result<u64, StoreError>;
    /// The number of the last revocation that was forgotten, which a gateway may have missed that
    /// was without the database; 0 in the embedded store.
    fn last_forgotten(&self) -> Result<u64, StoreError>;
    /// A number for the history that the store is on: it is another one after a database was
    /// restored, or another server has taken over, which may lack what was acknowledged last.
    fn history(&self) -> u64;
    /// Forgets what is only remembered of the store, after it went back to an earlier state.
    fn begin_again(&self) -> Result<(), StoreError>;
    /// The revocations after number `seq`, oldest first.
    fn revocations_since(&self, seq: u64) -> Result<Vec<Revocation>, StoreError>;
    /// The worker has carried out all revocations up to this number; they are forgotten once there
    /// are many. What they ended is not in the store, and a worker that starts without sessions
    /// goes on from the last one.
    fn forget_revocations(&self, carried_out: u64);
}
