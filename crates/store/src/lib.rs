//! The gateway's durable state: users, sessions with their attach tokens, address leases,
//! revocations.
//!
//! Invariants: what a method has acknowledged survives a crash of the process and of the machine;
//! an error means that nothing was changed. Nothing assumes that this gateway is the only one:
//! names are random, leases and sessions have deadlines, a revocation is an event with a number
//! that only grows. Of tokens only hashes are kept. This module must not know of connections, keys
//! of traffic or the configuration.
//!
//! Methods block on storage; call them from threads that may wait. Times are seconds since 1970
//! (`…_s`), passed in.
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

mod api_tokens;
pub mod audit;
#[cfg(test)]
mod conformance;
mod fixed_address;
mod fleet;
mod format;
mod invitations;
#[cfg(test)]
mod kept;
mod known_devices;
mod leases;
mod live_user;
pub mod migrate;
pub mod password;
pub mod postgres;
mod provider_sessions;
mod put_off;
mod refresh_tokens;
mod revocations;
mod session_record;
mod sessions;
mod sql;
pub mod sqlite;
mod store_error;
pub mod totp;
mod users;
mod wireguard;

use std::fmt;

use zeroize::Zeroizing;

pub use api_tokens::{ApiToken, ApiTokens};
pub use fixed_address::{AddressChange, FixedAddress};
pub use fleet::{
    Absences, Begun, Fleet, GATEWAY_SILENCE_S, GatewayReport, GatewayState, HeldSession, MAX_NOTICES, Notice,
    Notices, TakenAway,
};
pub use invitations::{Accepted, INVITATION_LIFETIME_S, InvitationHash, InvitationToken, Invitations};
pub use known_devices::{KnownDevice, KnownDevices, Sighting, client_network};
pub use leases::{Family, KEPT_LEASES, Lease, LeaseOwner, Leases};
pub use live_user::LiveUser;
pub use provider_sessions::ProviderSessions;
pub use put_off::kicks::{Kick, KickProgress, Kicks, SeenKick};
pub use refresh_tokens::{RefreshToken, RefreshTokens};
pub use revocations::{Revocation, Revocations};
pub use session_record::SessionRecord;
pub use sessions::{Device, LiveSession, Owner, SessionChange, Sessions};
pub use store_error::StoreError;
pub use users::{
    ExternalUser, ListedUser, MAX_SOURCES_PER_USER, NewUser, User, UserChange, UserImport, UserPage, Users,
};
pub use vpnd_config::revocation_cause::RevocationCause;
pub use wireguard::{
    DeviceChanges, FoundDevice, HandshakeShown, HandshakeTime, NewWireGuardDevice, OwnedDevice, PresharedKey,
    WireGuardDevice, WireGuardDevices,
};

/// The name of a user that never changes: random, so that gateways need not agree on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub [u8; 16]);

impl UserId {
    /// An id that no user has: for queries that take the same time when there is no such user.
    pub const NOBODY: Self = Self([0; 16]);
}

impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A password hash in the PHC string format. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(Zeroizing<String>);

impl PasswordHash {
    pub fn new(phc: String) -> Self {
        Self(Zeroizing::new(phc))
    }

    /// In place of a hash, for a user who has no password.
    #[must_use]
    pub fn none() -> Self {
        Self::new(String::new())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(<secret>)")
    }
}

/// The secret that one-time codes are made from (RFC 6238). Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct TotpSecret(Zeroizing<Vec<u8>>);

impl TotpSecret {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for TotpSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TotpSecret(<secret>)")
    }
}

/// The source of users whose passwords are in this store.
pub const LOCAL: &str = "local";
/// Groups of one user, at most.
pub const MAX_GROUPS: usize = 512;
/// The longest name of a group, source or sponsor, and the longest subject, in bytes.
pub const MAX_FIELD_BYTES: usize = 128;

/// SHA-256 of a client certificate's DER.
pub type CertificateHash = [u8; 32];

/// The gateway's store. [`sqlite::Sqlite`] is one; another passes the tests of `conformance`.
/// Callers take the part that they need.
pub trait Store:
    Users
    + Sessions
    + Leases
    + Revocations
    + Fleet
    + WireGuardDevices
    + KnownDevices
    + Invitations
    + ApiTokens
    + RefreshTokens
    + ProviderSessions
{
}

impl<
    T: Users
        + Sessions
        + Leases
        + Revocations
        + Fleet
        + WireGuardDevices
        + KnownDevices
        + Invitations
        + ApiTokens
        + RefreshTokens
        + ProviderSessions,
> Store for T
{
}
