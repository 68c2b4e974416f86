//! The gateway's durable state: users, sessions with their attach tokens, address leases, revocations.
//!
//! Invariants: what a method has acknowledged survives a crash of the process and of the machine; an error means
//! that nothing was changed. Nothing assumes that this gateway is the only one: names are random, leases and
//! sessions have deadlines, a revocation is an event with a number that only grows. Of tokens only hashes are
//! kept. This module must not know of connections, keys of traffic or the configuration.
//!
//! Methods block on storage; call them from threads that may wait. Times are seconds since 1970 (`…_s`), passed in.
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

pub mod audit;
mod fixed_address;
mod format;
mod live_user;
pub mod password;
mod session_record;
pub mod sqlite;
mod store_error;
pub mod totp;

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use sha2::{Digest as _, Sha256};
use vpnd_proto::attach::Tokens;
use vpnd_proto::session::{DeviceId, SessionId};
use zeroize::Zeroizing;

pub use fixed_address::{AddressChange, FixedAddress};
pub use live_user::LiveUser;
pub use session_record::SessionRecord;
pub use store_error::StoreError;
pub use vpnd_config::revocation_cause::RevocationCause;

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

/// A user of the source [`LOCAL`] that is to be added.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// The login name; see [`vpnd_config::profile::is_user_name`].
    pub name: String,
    /// The hash of the password.
    pub password: PasswordHash,
    /// The secret of one-time codes, if the user must show them.
    pub totp: Option<TotpSecret>,
    pub groups: Vec<String>,
    /// The client certificate that the user must show, if any.
    pub certificate: Option<CertificateHash>,
    /// The first second at which the user may not log in any more.
    pub expires_s: Option<u64>,
    /// The user who answers for this one, a guest.
    pub sponsor: Option<String>,
    pub note: String,
}

impl NewUser {
    /// A user with a password and nothing else.
    pub fn new(name: &str, password: PasswordHash) -> Self {
        Self {
            name: name.to_owned(),
            password,
            totp: None,
            groups: Vec::new(),
            certificate: None,
            expires_s: None,
            sponsor: None,
            note: String::new(),
        }
    }
}

/// A user as a source other than [`LOCAL`] has just described them.
#[derive(Clone, Debug)]
pub struct ExternalUser {
    /// The source's name in the configuration.
    pub source: String,
    /// The source's name for the user, which never changes and is given to nobody else.
    pub subject: String,
    /// The login name, as [`vpnd_config::user_name::canonical`] makes it.
    pub name: String,
    pub groups: Vec<String>,
}

impl ExternalUser {
    /// A user whom the source has not described yet. No source has this subject: a directory's has no spaces, a name no capitals.
    #[must_use]
    pub fn expected(source: &str, name: &str) -> Self {
        let digest =
            Sha256::digest(name).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        let subject = format!("Not here yet: {digest}");
        Self { source: source.to_owned(), subject, name: name.to_owned(), groups: Vec::new() }
    }
}

/// New values for a user; `None` leaves one as it is.
#[derive(Clone, Debug, Default)]
pub struct UserChange {
    pub expires_s: Option<Option<u64>>,
    pub sponsor: Option<Option<String>>,
    pub note: Option<String>,
    /// Those of local users alone: another source has its own.
    pub groups: Option<Vec<String>>,
    pub totp: Option<Option<TotpSecret>>,
    pub addresses: Option<AddressChange>,
}

/// A user of the source [`LOCAL`] as a file describes them; what it does not mention stays, or is none.
#[derive(Clone, Debug)]
pub struct UserImport {
    pub name: String,
    /// Whether the user is there and is changed, or not there and added.
    pub exists: bool,
    /// A new user has one.
    pub password: Option<PasswordHash>,
    pub change: UserChange,
    pub enabled: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name that never changes.
    pub id: UserId,
    pub name: String,
    /// Which authority vouches for the user: [`LOCAL`], or a source in the configuration.
    pub source: String,
    /// Its name for the user.
    pub subject: String,
    /// The hash of the password. Users of other sources have none here, so no password is theirs.
    pub password: Option<PasswordHash>,
    /// Whether the user may log in.
    pub enabled: bool,
    /// Grows with every revocation of this user, changes of groups included; a login that was allowed under an older one is
    /// void if its session has not begun.
    pub generation: u64,
    /// The secret of one-time codes, if the user must show them.
    pub totp: Option<TotpSecret>,
    /// Groups, sorted.
    pub groups: Vec<String>,
    /// Client certificates of which the user must show one; empty if none is required.
    pub certificates: Vec<CertificateHash>,
    /// Those of them that were revoked: no good any more, but the user goes on having to show another.
    pub revoked_certificates: Vec<CertificateHash>,
    /// When the user was added.
    pub created_s: u64,
    /// The first second at which the user may not log in any more.
    pub expires_s: Option<u64>,
    /// The user who answers for this one, a guest.
    pub sponsor: Option<String>,
    pub note: String,
    /// Inner addresses reserved for the user.
    pub fixed_addresses: Vec<FixedAddress>,
}

impl User {
    /// Nobody's record: for checks that do the same work when there is no such user.
    pub fn nobody() -> Self {
        Self {
            id: UserId::NOBODY,
            name: String::new(),
            source: String::new(),
            subject: String::new(),
            password: None,
            enabled: true,
            generation: 0,
            totp: None,
            groups: Vec::new(),
            certificates: Vec::new(),
            revoked_certificates: Vec::new(),
            created_s: 0,
            expires_s: None,
            sponsor: None,
            note: String::new(),
            fixed_addresses: Vec::new(),
        }
    }

    pub fn has_expired(&self, now_s: u64) -> bool {
        self.expires_s.is_some_and(|expires_s| expires_s <= now_s)
    }
}

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
    /// Whether nobody else may have the address yet.
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

/// A device of a user that has a session, or had one whose address nobody has needed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub id: DeviceId,
    /// Its inner addresses.
    pub addresses: Vec<IpAddr>,
    /// When its user logged in, if it has a session.
    pub session_since_s: Option<u64>,
}

/// A change to what is remembered of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionChange {
    /// A session begins, as [`Store::add_session`] has it.
    Add(SessionRecord, u64),
    /// Other tokens are good now, as [`Store::set_tokens`] has it.
    Tokens(SessionId, Tokens, u32),
    /// A session is over, as [`Store::end_session`] has it.
    End(SessionId),
}

/// A session that is not over, with whom it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSession {
    pub id: SessionId,
    pub user: String,
    pub source: String,
    pub device: DeviceId,
    pub addresses: Vec<IpAddr>,
    pub started_s: u64,
    pub expires_s: u64,
}

pub const MAX_SOURCES_PER_USER: u64 = 32;
/// Leases of a family that are kept for a user's devices without a session.
pub const KEPT_LEASES: u32 = 32;

/// The gateway's store. The embedded implementation is [`sqlite::Sqlite`]; a fleet would share another.
pub trait Store: Send + Sync {
    fn add_user(&self, user: &NewUser, now_s: u64) -> Result<UserId, StoreError>;
    /// The user with this login name.
    fn user(&self, name: &str) -> Result<Option<User>, StoreError>;
    /// The user with this id.
    fn user_by_id(&self, id: UserId) -> Result<Option<User>, StoreError>;
    /// All users, by name.
    fn users(&self) -> Result<Vec<User>, StoreError>;
    /// Lets a user in or not. Disabling is a revocation.
    fn set_enabled(&self, name: &str, enabled: bool, now_s: u64) -> Result<(), StoreError>;
    /// Makes the record of a user of another source or brings it up to date, and returns it. It says nothing about whether the
    /// user may log in: the caller checks [`User::enabled`] and [`User::has_expired`], as for all others.
    fn refresh_external(&self, user: &ExternalUser, now_s: u64) -> Result<User, StoreError>;
    /// The same for a user who did not log in: without a record none is made, since whoever removed it must not be overruled by an answer
    /// that was under way ([`StoreError::NoSuchUser`]).
    fn update_external(&self, user: &ExternalUser, now_s: u64) -> Result<User, StoreError>;
    /// The users of this source who have sessions.
    fn users_with_sessions(&self, source: &str) -> Result<Vec<LiveUser>, StoreError>;
    /// Ends all sessions of a user, which is a revocation. The user may log in again.
    fn end_sessions(&self, user: &LiveUser, cause: RevocationCause, now_s: u64) -> Result<(), StoreError>;
    /// Ends the session of a device of this user, which is a revocation. The user may log in again, and others may have the device's
    /// addresses once it has ended.
    fn end_device(
        &self,
        user: &LiveUser,
        device: DeviceId,
        cause: RevocationCause,
        now_s: u64,
    ) -> Result<(), StoreError>;
    /// Changes what a user is besides the password. A change of groups is a revocation that ends no session.
    fn modify_user(&self, name: &str, change: &UserChange, now_s: u64) -> Result<(), StoreError>;
    /// Adds and changes users, all of them or, if one can't be, none.
    fn import_users(&self, users: &[UserImport], now_s: u64) -> Result<(), StoreError>;
    /// The devices of a user.
    fn devices(&self, id: UserId) -> Result<Vec<Device>, StoreError>;
    /// Removes a device of the user: its sessions end, which is a revocation, and others may have its addresses once they have.
    /// `false` if the user has no such device.
    fn remove_device(&self, name: &str, device: DeviceId, now_s: u64) -> Result<bool, StoreError>;
    /// Makes a revocation for each user whose time is over and who has none yet; returns their number. Cheap if there are none.
    fn end_expired(&self, now_s: u64) -> Result<usize, StoreError>;
    /// Gives a local user another password, which is a revocation.
    fn set_password(&self, name: &str, password: &PasswordHash, now_s: u64) -> Result<(), StoreError>;
    /// Replaces the hash of an unchanged password, if it is still `old`.
    fn rehash(&self, id: UserId, old: &PasswordHash, new: &PasswordHash) -> Result<(), StoreError>;
    /// Removes a user, which is a revocation.
    fn remove_user(&self, name: &str, now_s: u64) -> Result<(), StoreError>;
    /// A certificate that the user may show from now on; they must show one then.
    fn add_certificate(&self, name: &str, certificate: &CertificateHash) -> Result<(), StoreError>;
    /// These certificates of the user are no good any more, which is a revocation.
    fn revoke_certificates(
        &self,
        name: &str,
        certificates: &[CertificateHash],
        now_s: u64,
    ) -> Result<(), StoreError>;
    /// Whether any user has one-time codes.
    fn has_one_time_codes(&self) -> Result<bool, StoreError>;
    /// Marks a step of one-time codes as used: `true` once for each step, and never for one before it.
    fn use_totp_step(&self, id: UserId, step: u64) -> Result<bool, StoreError>;
    /// Whether the user has logged in from `source` since `since_s`.
    fn knows_source(&self, id: UserId, source: &str, since_s: u64) -> Result<bool, StoreError>;
    /// The sources that users logged in from last, at most `limit`, each with when.
    fn newest_sources(&self, limit: usize) -> Result<Vec<(String, u64)>, StoreError>;
    /// Remembers that the user logged in from `source`.
    fn remember_source(&self, id: UserId, source: &str, now_s: u64) -> Result<(), StoreError>;

    /// Keeps a new session: `false`, and nothing is kept, unless the user is enabled and still has this `generation`.
    fn add_session(&self, session: &SessionRecord, generation: u64) -> Result<bool, StoreError>;
    /// A session that has not expired and whose user is enabled.
    fn session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError>;
    /// A session has a new epoch and new token hashes: `false` if it is gone.
    fn set_tokens(&self, id: SessionId, tokens: &Tokens, epoch: u32) -> Result<bool, StoreError>;
    /// The sessions with live leases that the store does not have.
    fn orphaned(&self, now_s: u64) -> Result<HashSet<SessionId>, StoreError>;
    /// Forgets a session and lets its leases go.
    fn end_session(&self, id: SessionId, now_s: u64) -> Result<(), StoreError>;

    /// Makes changes of any number of sessions durable together, in their order, or none of them. What each method for
    /// one change would have returned, and `true` for changes without a result.
    fn change_sessions(&self, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError>;

    /// The lease that this owner has or had last.
    fn lease_of(&self, owner: LeaseOwner, family: Family) -> Result<Option<Lease>, StoreError>;
    /// The fixed addresses of a family that this owner may have, in the order in which it should.
    fn fixed_addresses(&self, owner: LeaseOwner, family: Family) -> Result<Vec<IpAddr>, StoreError>;
    /// The fixed addresses of a family that this owner can't have, sorted.
    fn fixed_for_others(&self, owner: LeaseOwner, family: Family) -> Result<Vec<IpAddr>, StoreError>;
    /// Takes an address in one step: `false` if a live lease of another owner is on it, or it is fixed for another. The owner's other
    /// addresses of that family are let go.
    fn claim(&self, lease: &Lease, now_s: u64) -> Result<bool, StoreError>;
    /// The newest of the user's ended leases but for [`KEPT_LEASES`], if there are more.
    fn surplus(&self, user: UserId, family: Family, now_s: u64) -> Result<Option<Lease>, StoreError>;
    /// The lease on this address, an ended one too.
    fn lease_on(&self, address: IpAddr) -> Result<Option<Lease>, StoreError>;
    /// All leases of a family, ended ones too, by address.
    fn leases(&self, family: Family) -> Result<Vec<Lease>, StoreError>;
    /// The number of live leases on addresses from `first` to `last`, which are of one family.
    fn live_leases(&self, first: IpAddr, last: IpAddr, now_s: u64) -> Result<u64, StoreError>;
    /// Moves the deadline of a session's leases.
    fn renew(&self, session: SessionId, until_s: u64) -> Result<(), StoreError>;

    /// The number of the last revocation, 0 before the first.
    fn last_revocation(&self) -> Result<u64, StoreError>;
    /// The worker has carried out all revocations up to this number; they are forgotten once there are many. What they ended is not in
    /// the store, and a worker that starts without sessions goes on from the last one.
    fn forget_revocations(&self, carried_out: u64);
    /// The revocations after number `seq`, oldest first.
    fn revocations_since(&self, seq: u64) -> Result<Vec<Revocation>, StoreError>;

    /// The sessions whose time is not over.
    fn live_sessions(&self, now_s: u64) -> Result<Vec<LiveSession>, StoreError>;
}
