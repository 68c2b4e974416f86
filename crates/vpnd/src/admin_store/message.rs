//! Contents of the messages between a command and the process that opens the store for it.

mod change;
pub(crate) mod wireguard;

use std::net::IpAddr;

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Encode};

use super::database::DatabaseTarget;
use super::request::Replied;
pub(super) use change::ChangeToMake;
use vpnd_ipc::messages::{Common, SecretBytes};
use vpnd_store::{CertificateHash, Device, FixedAddress, NewUser, StoreError, User, UserImport};

/// Bytes of one part of a copy, at most.
pub(crate) const PART_BYTES: usize = 256 << 10;
/// Users of one answer or piece of an import, at most; the command asks again.
pub(crate) const MAX_USERS: usize = 256;
/// Bytes of groups' names after which an answer takes no further user.
pub(crate) const MAX_GROUP_BYTES: usize = 1 << 20;

/// Mode in which a command opens the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Opening {
    /// It must be there.
    #[n(0)]
    Existing,
    /// It is made, with its directory, if it is not there.
    #[n(1)]
    Create,
    /// It must be there and stays as it is, whatever format it has.
    #[n(2)]
    Inspect,
    /// It is not opened: another is to take its place.
    #[n(3)]
    Replace,
    /// The audit file is opened, not the store.
    #[n(4)]
    Audit,
    /// Nothing is opened: the store is to move from one engine to the other.
    #[n(5)]
    Move,
    /// The kicks are opened that are on their way to the gateways of a fleet, not the store.
    #[n(6)]
    Kicks,
    /// It must be there, and is given up soon: if it is a database that does not answer, there is
    /// another way.
    #[n(7)]
    Promptly,
}

#[derive(Debug, Encode, Decode)]
pub(crate) struct StoreLaunch {
    #[n(0)]
    pub(crate) common: Common,
    #[n(1)]
    pub(crate) directory: ByteVec,
    #[n(2)]
    pub(crate) opening: Opening,
    /// There where a database is the store, or is to be.
    #[n(3)]
    pub(crate) database: Option<DatabaseTarget>,
}

/// The process's messages to the command, once it is prepared.
#[derive(Debug, Encode, Decode)]
pub(crate) enum FromStore {
    /// The child failed, and why.
    #[n(2)]
    Failed(#[n(0)] String),
    /// The store is open, or why not.
    #[n(11)]
    Opened(#[n(0)] Replied<()>),
    /// The reply to the request, encoded.
    #[n(12)]
    Reply(#[n(0)] SecretBytes),
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct UserSummary {
    #[n(0)]
    pub name: String,
    /// Whether the user may log in.
    #[n(1)]
    pub enabled: bool,
    /// Whether the user must show one-time codes.
    #[n(2)]
    pub totp: bool,
    /// Groups, sorted.
    #[n(3)]
    pub groups: Vec<String>,
    /// Client certificates of which the user must show one.
    #[n(4)]
    pub certificates: Vec<CertificateHash>,
    /// Those of them that were revoked.
    #[n(5)]
    pub revoked_certificates: Vec<CertificateHash>,
    /// When the user was added.
    #[n(6)]
    pub created_s: u64,
    /// Which authority vouches for the user.
    #[n(7)]
    pub source: String,
    #[n(8)]
    pub expires_s: Option<u64>,
    #[n(9)]
    pub sponsor: Option<String>,
    #[n(10)]
    pub note: String,
    /// Inner addresses reserved for the user.
    #[n(11)]
    pub fixed_addresses: Vec<FixedSummary>,
    /// Whether the user has no password, and shows a client certificate alone.
    #[n(12)]
    pub is_machine: bool,
}

/// A fixed address of a user.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FixedSummary {
    #[n(0)]
    pub address: IpAddr,
    /// The only device that gets it.
    #[n(1)]
    pub(crate) device: Option<ByteArray<16>>,
}

impl From<&FixedAddress> for FixedSummary {
    fn from(fixed: &FixedAddress) -> Self {
        Self { address: fixed.address, device: fixed.device.map(|device| ByteArray::from(device.0)) }
    }
}

/// A device of a user.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DeviceSummary {
    #[n(0)]
    pub(crate) id: ByteArray<16>,
    #[n(1)]
    pub addresses: Vec<IpAddr>,
    /// When its user logged in, if it has a session.
    #[n(2)]
    pub session_since_s: Option<u64>,
}

impl DeviceSummary {
    /// The displayed form.
    pub fn name(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl From<&Device> for DeviceSummary {
    fn from(device: &Device) -> Self {
        Self {
            id: ByteArray::from(device.id.0),
            addresses: device.addresses.clone(),
            session_since_s: device.session_since_s,
        }
    }
}

impl From<&User> for UserSummary {
    fn from(user: &User) -> Self {
        Self {
            name: user.name.clone(),
            enabled: user.enabled,
            totp: user.totp.is_some(),
            groups: user.groups.clone(),
            certificates: user.certificates.clone(),
            revoked_certificates: user.revoked_certificates.clone(),
            created_s: user.created_s,
            source: user.source.clone(),
            expires_s: user.expires_s,
            sponsor: user.sponsor.clone(),
            note: user.note.clone(),
            fixed_addresses: user.fixed_addresses.iter().map(FixedSummary::from).collect(),
            is_machine: user.is_machine(),
        }
    }
}

impl UserSummary {
    /// The summary for a terminal: an attacker who writes the store may have written control
    /// characters into it.
    pub(crate) fn plain(mut self) -> Self {
        self.name = vpnd_sys::text::plain(&self.name);
        for group in &mut self.groups {
            *group = vpnd_sys::text::plain(group);
        }
        self.source = vpnd_sys::text::plain(&self.source);
        self.note = vpnd_sys::text::plain(&self.note);
        self.sponsor = self.sponsor.as_deref().map(vpnd_sys::text::plain);
        self
    }
}

#[derive(Debug, Encode, Decode)]
pub(crate) struct UserToAdd {
    #[n(0)]
    pub(crate) name: String,
    #[n(1)]
    pub(crate) hash: SecretBytes,
    #[n(2)]
    pub(crate) totp: Option<SecretBytes>,
    #[n(3)]
    pub(crate) groups: Vec<String>,
    #[n(4)]
    pub(crate) certificate: Option<ByteArray<32>>,
    #[n(5)]
    pub(crate) expires_s: Option<u64>,
    #[n(6)]
    pub(crate) sponsor: Option<String>,
    #[n(7)]
    pub(crate) note: String,
}

impl From<&NewUser> for UserToAdd {
    fn from(user: &NewUser) -> Self {
        let secret = |bytes: &[u8]| SecretBytes(zeroize::Zeroizing::new(bytes.to_vec()));
        Self {
            name: user.name.clone(),
            hash: secret(user.password.expose().as_bytes()),
            totp: user.totp.as_ref().map(|totp| secret(totp.expose())),
            groups: user.groups.clone(),
            certificate: user.certificate.map(ByteArray::from),
            expires_s: user.expires_s,
            sponsor: user.sponsor.clone(),
            note: user.note.clone(),
        }
    }
}

/// One user of an import.
#[derive(Debug, Encode, Decode)]
pub(crate) struct StagedUser {
    #[n(0)]
    name: String,
    #[n(1)]
    exists: bool,
    #[n(2)]
    hash: Option<SecretBytes>,
    #[n(3)]
    change: ChangeToMake,
    #[n(4)]
    enabled: Option<bool>,
}

impl From<&UserImport> for StagedUser {
    fn from(user: &UserImport) -> Self {
        let hash = user.password.as_ref();
        Self {
            name: user.name.clone(),
            exists: user.exists,
            hash: hash.map(|hash| SecretBytes(hash.expose().as_bytes().to_vec().into())),
            change: (&user.change).into(),
            enabled: user.enabled,
        }
    }
}

impl StagedUser {
    /// The user in the store's form.
    pub(super) fn into_import(self) -> Result<UserImport, StoreError> {
        Ok(UserImport {
            password: self.hash.map(|hash| super::served::password_hash(&hash.0)).transpose()?,
            name: self.name,
            exists: self.exists,
            change: self.change.into(),
            enabled: self.enabled,
        })
    }
}

/// Hash and secret of a local user, for an export that is asked for them.
#[derive(Debug, Encode, Decode)]
pub struct UserSecrets {
    #[n(0)]
    pub(crate) name: String,
    #[n(1)]
    pub(crate) hash: SecretBytes,
    #[n(2)]
    pub(crate) totp: Option<SecretBytes>,
}
