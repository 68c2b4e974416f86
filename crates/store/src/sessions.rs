//! Sessions, with the tokens by which their clients attach again, and the devices that have them.

use std::net::IpAddr;

use vpnd_proto::attach::Tokens;
use vpnd_proto::session::{DeviceId, SessionId};

use crate::{LiveUser, SessionRecord, StoreError, UserId};

/// A device of a user that has a session, or had one whose address no other device has needed
/// since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub id: DeviceId,
    /// Its inner addresses.
    pub addresses: Vec<IpAddr>,
    /// When its user logged in, if it has a session.
    pub session_since_s: Option<u64>,
    /// Its session, if it has one.
    pub session: Option<SessionId>,
}

/// A change to what is remembered of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionChange {
    /// A session begins, as [`Sessions::add_session`] has it.
    Add(SessionRecord, u64),
    /// Other tokens are good now, as [`Sessions::set_tokens`] has it.
    Tokens(SessionId, Tokens, u32),
    /// A session is over, as [`Sessions::end_session`] has it.
    End(SessionId),
}

/// A session that is not over, with whom it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSession {
    pub id: SessionId,
    pub owner: UserId,
    pub user: String,
    pub source: String,
    pub device: DeviceId,
    /// The device's name, if it is a WireGuard device.
    pub wireguard: Option<String>,
    pub addresses: Vec<IpAddr>,
    pub started_s: u64,
    pub expires_s: u64,
}

/// A user who has sessions, with what decides about the access profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub user: String,
    pub source: String,
    /// Sorted.
    pub groups: Vec<String>,
    /// The number of sessions.
    pub sessions: u64,
}

/// The sessions of a gateway.
pub trait Sessions: Send + Sync {
    /// Keeps a new session: `false`, and nothing is kept, unless the user is enabled and still has
    /// this `generation`.
    fn add_session(&self, session: &SessionRecord, generation: u64) -> Result<bool, StoreError>;
    /// A session that has not expired and whose user is enabled.
    fn session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError>;
    /// A session has a new epoch and new token hashes: `false` if it is gone.
    fn set_tokens(&self, id: SessionId, tokens: &Tokens, epoch: u32) -> Result<bool, StoreError>;
    /// Forgets a session and lets its leases go.
    fn end_session(&self, id: SessionId, now_s: u64) -> Result<(), StoreError>;
    /// Makes changes of any number of sessions durable together, in their order, or none of them.
    /// Returns for each change what its own method returns, or `true` if that has no result.
    fn change_sessions(&self, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError>;
    /// Which of these sessions the store does not have.
    fn missing_sessions(&self, ids: &[SessionId], now_s: u64) -> Result<Vec<SessionId>, StoreError>;
    /// The sessions whose time is not over.
    fn live_sessions(&self, now_s: u64) -> Result<Vec<LiveSession>, StoreError>;
    /// The users who have sessions whose time is not over.
    fn session_owners(&self, now_s: u64) -> Result<Vec<Owner>, StoreError>;
    /// The users of this source who have sessions.
    fn users_with_sessions(&self, source: &str) -> Result<Vec<LiveUser>, StoreError>;
    /// The devices of a user.
    fn devices(&self, id: UserId) -> Result<Vec<Device>, StoreError>;
    /// Removes a device of the user: its sessions end, which is a revocation, and others may have
    /// its addresses once they have. `false` if the user has no such device.
    fn remove_device(&self, name: &str, device: DeviceId, now_s: u64) -> Result<bool, StoreError>;
}
