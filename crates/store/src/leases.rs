//! Leases: which device has which inner address, and until when.

use std::collections::HashSet;
use std::net::IpAddr;

use vpnd_proto::session::{DeviceId, SessionId};

use crate::{StoreError, UserId};

/// Leases of a family that are kept for a user's devices without a session.
pub const KEPT_LEASES: u32 = 32;

/// One inner address, held until a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub address: IpAddr,
    pub owner: LeaseOwner,
    /// The session that uses it.
    pub session: SessionId,
    /// The first second at which others may have it.
    pub until_s: u64,
}

impl Lease {
    /// Whether no other device may have the address yet.
    pub fn is_live(&self, now_s: u64) -> bool {
        self.until_s > now_s
    }
}

/// A user's device, which gets the same address again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseOwner {
    pub user: UserId,
    /// One of the user's devices.
    pub device: DeviceId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// The leases of a gateway's inner addresses.
///
/// INVARIANT: an address has one owner at a time.
pub trait Leases: Send + Sync {
    /// The lease that this owner has or had last.
    fn lease_of(&self, owner: LeaseOwner, family: Family) -> Result<Option<Lease>, StoreError>;
    /// The fixed addresses of a family that this owner may have, in the order in which it should.
    fn fixed_addresses(&self, owner: LeaseOwner, family: Family) -> Result<Vec<IpAddr>, StoreError>;
    /// The fixed addresses of a family that this owner can't have, sorted.
    fn fixed_for_others(&self, owner: LeaseOwner, family: Family) -> Result<Vec<IpAddr>, StoreError>;
    /// Takes an address in one step: `false` if a live lease of another owner is on it, or it is
    /// fixed for another. The owner's other addresses of that family are let go.
    fn claim(&self, lease: &Lease, now_s: u64) -> Result<bool, StoreError>;
    /// Takes several addresses by one change, each as [`Leases::claim`] does; which of them were
    /// taken.
    fn claim_all(&self, leases: &[Lease], now_s: u64) -> Result<Vec<bool>, StoreError>;
    /// The newest of the user's ended leases but for [`KEPT_LEASES`], if there are more.
    fn surplus(&self, user: UserId, family: Family, now_s: u64) -> Result<Option<Lease>, StoreError>;
    /// The lease on this address, an ended one too.
    fn lease_on(&self, address: IpAddr) -> Result<Option<Lease>, StoreError>;
    /// All leases of a family, ended ones too, by address.
    fn leases(&self, family: Family) -> Result<Vec<Lease>, StoreError>;
    /// The number of live leases on addresses from `first` to `last`, which are of one family.
    fn live_leases(&self, first: IpAddr, last: IpAddr, now_s: u64) -> Result<u64, StoreError>;
    /// Lets the leases of a session go.
    fn release(&self, session: SessionId, now_s: u64) -> Result<(), StoreError>;
    /// The sessions with live leases that the store does not have.
    fn orphaned(&self, now_s: u64) -> Result<HashSet<SessionId>, StoreError>;
    /// Forgets the leases that ended before this time; their number. Sessions that go on have
    /// leases until their end, so none of theirs is among them.
    fn forget_leases(&self, before_s: u64) -> Result<usize, StoreError>;
}
