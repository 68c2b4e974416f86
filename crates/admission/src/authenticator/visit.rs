//! Logins of users in a browser, as they were.

use vpnd_proto::session::DeviceId;

use super::Authenticated;
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::idp::{SourceAddresses, SourceLimits};
use vpnd_store::UserId;

/// A user who has logged in in a browser, as the user was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    pub user: UserId,
    /// A revocation of the user ends the visit.
    pub generation: u64,
    pub factors: Factors,
    pub login: LoginFacts,
}

/// The facts of a login that count for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginFacts {
    /// The one that it was begun with.
    pub device: DeviceId,
    /// When the user has shown credentials.
    pub auth_time_s: u64,
    pub limits: SourceLimits,
    pub addresses: SourceAddresses,
}

impl Visit {
    /// The visit of a user who was let in just now.
    pub fn of(user: &Authenticated, device: DeviceId, now_s: u64) -> Self {
        let login = LoginFacts {
            device,
            auth_time_s: user.asked_at_s(now_s),
            limits: user.limits,
            addresses: user.addresses,
        };
        Self { user: user.id, generation: user.generation, factors: user.factors, login }
    }
}
