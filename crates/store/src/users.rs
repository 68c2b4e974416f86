//! Users: who may log in, and with what.

use sha2::{Digest as _, Sha256};

use crate::{
    AddressChange, CertificateHash, FixedAddress, LOCAL, PasswordHash, StoreError, TotpSecret, UserId,
};

/// Places from which a user has logged in that are remembered.
pub const MAX_SOURCES_PER_USER: u64 = 32;

/// A user of the source [`crate::LOCAL`] that is to be added.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// The login name; see [`vpnd_config::profile::is_user_name`].
    pub name: String,
    /// The hash of the password, or [`PasswordHash::none`] for a machine.
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

/// A user as a source other than [`crate::LOCAL`] has just described them.
#[derive(Clone, Debug)]
pub struct ExternalUser {
    /// The source's name in the configuration.
    pub source: String,
    /// The source's name for the user, which never changes and is given to no other user.
    pub subject: String,
    /// The login name, as [`vpnd_config::user_name::canonical`] makes it.
    pub name: String,
    pub groups: Vec<String>,
}

impl ExternalUser {
    /// A user whom the source has not described yet. No source has this subject: a directory's has
    /// no spaces, a name no capitals.
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

/// A user of the source [`crate::LOCAL`] as a file describes them; what it does not mention stays,
/// or is none.
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
    /// Which authority vouches for the user: [`crate::LOCAL`], or a source in the configuration.
    pub source: String,
    /// Its name for the user.
    pub subject: String,
    /// The hash of the password. Users of other sources and machines have none here, so no password
    /// is theirs.
    pub password: Option<PasswordHash>,
    /// Whether the user may log in.
    pub enabled: bool,
    /// Grows with every revocation of this user, changes of groups included; a login that was
    /// allowed under an older one is void if its session has not begun.
    pub generation: u64,
    /// The secret of one-time codes, if the user must show them.
    pub totp: Option<TotpSecret>,
    /// Groups, sorted.
    pub groups: Vec<String>,
    /// Client certificates of which the user must show one; empty if none is required.
    pub certificates: Vec<CertificateHash>,
    /// Those of them that were revoked: no good any more, but the user goes on having to show
    /// another.
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

/// A user in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedUser {
    pub name: String,
    pub source: String,
    pub enabled: bool,
    pub expires_s: Option<u64>,
}

impl From<&User> for ListedUser {
    fn from(user: &User) -> Self {
        let User { name, source, enabled, expires_s, .. } = user;
        Self { name: name.clone(), source: source.clone(), enabled: *enabled, expires_s: *expires_s }
    }
}

/// A part of a list of users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserPage {
    pub users: Vec<ListedUser>,
    /// Those behind them.
    pub more: u64,
}

impl User {
    /// The record of no user, for checks that do the same work when there is no such user.
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

    /// Whether this is a machine: a user of this store who has no password, and shows a client
    /// certificate alone.
    #[must_use]
    pub fn is_machine(&self) -> bool {
        self.source == LOCAL && self.password.is_none()
    }

    pub fn has_expired(&self, now_s: u64) -> bool {
        self.expires_s.is_some_and(|expires_s| expires_s <= now_s)
    }
}

/// The users of a gateway.
///
/// INVARIANT: what takes rights away is a revocation, and ends the user's sessions, in the same
/// step.
pub trait Users: Send + Sync {
    fn add_user(&self, user: &NewUser, now_s: u64) -> Result<UserId, StoreError>;
    /// The user with this login name.
    fn user(&self, name: &str) -> Result<Option<User>, StoreError>;
    /// The user with this id.
    fn user_by_id(&self, id: UserId) -> Result<Option<User>, StoreError>;
    /// The user whom this source has under this subject.
    fn user_by_subject(&self, source: &str, subject: &str) -> Result<Option<User>, StoreError>;
    /// Users whose name has this in it, in lower case, the first ones by name behind `after`; no
    /// more than `limit` are in memory, however many there are.
    fn find_users(&self, part: &str, after: Option<&str>, limit: usize) -> Result<UserPage, StoreError>;
    /// All users, by name.
    fn users(&self) -> Result<Vec<User>, StoreError>;
    /// Lets a user in or not. Disabling is a revocation.
    fn set_enabled(&self, name: &str, enabled: bool, now_s: u64) -> Result<(), StoreError>;
    /// Makes the record of a user of another source or brings it up to date, and returns it. It
    /// says nothing about whether the user may log in: the caller checks [`User::enabled`] and
    /// [`User::has_expired`], as for all others. A user who may not log in keeps the name.
    fn refresh_external(&self, user: &ExternalUser, now_s: u64) -> Result<User, StoreError>;
    /// Updates a user who did not log in. Without a record none is made: an answer that was under
    /// way must not undo a removal ([`StoreError::NoSuchUser`]).
    fn update_external(&self, user: &ExternalUser, now_s: u64) -> Result<User, StoreError>;
    /// Changes what a user is besides the password. A change of groups is a revocation that ends no
    /// session.
    fn modify_user(&self, name: &str, change: &UserChange, now_s: u64) -> Result<(), StoreError>;
    /// Adds and changes users, all of them or, if one can't be, none.
    fn import_users(&self, users: &[UserImport], now_s: u64) -> Result<(), StoreError>;
    /// Gives a local user another password, which is a revocation.
    fn set_password(&self, name: &str, password: &PasswordHash, now_s: u64) -> Result<(), StoreError>;
    /// The change by the user, as the user was when this began: `false`, and nothing is changed, if
    /// the user was revoked anything since.
    fn change_own_password(
        &self,
        user: &User,
        password: &PasswordHash,
        now_s: u64,
    ) -> Result<bool, StoreError>;
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
    /// Marks a step of one-time codes as used: `true` once for each step, and never for one before
    /// it.
    fn use_totp_step(&self, id: UserId, step: u64) -> Result<bool, StoreError>;
    /// Whether the user has logged in from `source` since `since_s`.
    fn knows_source(&self, id: UserId, source: &str, since_s: u64) -> Result<bool, StoreError>;
    /// The sources that users logged in from last, at most `limit`, each with when.
    fn newest_sources(&self, limit: usize) -> Result<Vec<(String, u64)>, StoreError>;
    /// Remembers that the user logged in from `source`.
    fn remember_source(&self, id: UserId, source: &str, now_s: u64) -> Result<(), StoreError>;
}
