//! A session in the store.

use vpnd_proto::attach::Tokens;
use vpnd_proto::session::{DeviceId, SessionId};

use super::UserId;
use vpnd_config::factor::Factors;

/// A session, as a restarted gateway needs it to let its client attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    pub id: SessionId,
    pub user: UserId,
    pub device: DeviceId,
    /// Number of its last epoch.
    pub epoch: u32,
    /// Hashes of the attach tokens that are good now.
    pub tokens: Tokens,
    /// When the user logged in.
    pub started_s: u64,
    /// When the user must log in again.
    pub expires_s: u64,
    /// The factors by which the user has logged in.
    pub factors: Factors,
    /// When that was, by the wall clock.
    pub auth_time_s: u64,
    /// Where gateways share the store, that of its last move; else 0.
    pub generation: u64,
    /// When it begins where gateways share the store: the most sessions that its user may have, at
    /// all of them. It is not kept.
    pub most: Option<u64>,
}
