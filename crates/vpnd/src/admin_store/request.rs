//! Requests of a command to the process that opens the store for it.
//!
//! Invariants: no reply holds a password hash or the secret of one-time codes, but those to
//! [`Secrets`] and [`CopyPart`]; a list comes in pieces, so that a frame has a largest length.

use std::net::IpAddr;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};

use super::fault::Fault;
use super::message::wireguard::{
    AddWireGuardDevice, BackUpWireGuardKey, RenewWireGuardDevice, RestoreWireGuardKey, WireGuardDevicesAfter,
    WireGuardKey, WireGuardSummary,
};
use super::message::{ChangeToMake, DeviceSummary, StagedUser, UserSecrets, UserSummary, UserToAdd};
use super::moving::{Adopt, DatabaseFacts, Facts, MoveStore};
use vpnd_admission::whois::{OfGateway, Question};
use vpnd_config::desk::DeskRole;
use vpnd_ipc::messages::SecretBytes;
use vpnd_store::audit::AuditEntry;
use vpnd_store::audit::query::{Answer, Cursor, Range, Record};
use vpnd_store::{ApiToken, CertificateHash, Kick, KickProgress};

/// A reply, or why there is none.
pub(crate) type Replied<T> = Result<T, Fault>;

vpnd_ipc::requests! {
    /// All requests. Those that change the store are durable once they are answered.
    pub(crate) StoreRequest {
        Users = 0, Users => Replied<Vec<UserSummary>>;
        OneUser = 1, OneUser => Replied<Option<UserSummary>>;
        AddUser = 2, AddUser => Replied<()>;
        SetEnabled = 3, SetEnabled => Replied<()>;
        SetPassword = 4, SetPassword => Replied<()>;
        RemoveUser = 5, RemoveUser => Replied<()>;
        AddCertificate = 6, AddCertificate => Replied<()>;
        RevokeCertificates = 7, RevokeCertificates => Replied<()>;
        RecordDeed = 8, RecordDeed => Replied<()>;
        ModifyUser = 9, ModifyUser => Replied<()>;
        Devices = 10, Devices => Replied<Vec<DeviceSummary>>;
        RemoveDevice = 11, RemoveDevice => Replied<()>;
        StageUsers = 12, StageUsers => Replied<()>;
        ImportStaged = 13, ImportStaged => Replied<()>;
        Secrets = 14, Secrets => Replied<Vec<UserSecrets>>;
        Invite = 15, Invite => Replied<()>;
        AddToken = 16, TokenSummary => Replied<bool>;
        Tokens = 17, Tokens => Replied<Vec<TokenSummary>>;
        RemoveToken = 18, RemoveToken => Replied<bool>;
        MakeCopy = 20, MakeCopy => Replied<()>;
        CopyPart = 21, CopyPart => Replied<SecretBytes>;
        ReplacementPart = 22, ReplacementPart => Replied<()>;
        Replace = 23, Replace => Replied<bool>;
        Whois = 24, Whois => Replied<Answer>;
        Export = 25, Export => Replied<Exported>;
        WireGuardKey = 30, WireGuardKey => Replied<ByteArray<32>>;
        AddWireGuardDevice = 31, AddWireGuardDevice => Replied<Option<Vec<IpAddr>>>;
        WireGuardDevices = 32, WireGuardDevicesAfter => Replied<Vec<WireGuardSummary>>;
        RenewWireGuardDevice = 33, RenewWireGuardDevice => Replied<bool>;
        BackUpWireGuardKey = 34, BackUpWireGuardKey => Replied<Option<SecretBytes>>;
        RestoreWireGuardKey = 35, RestoreWireGuardKey => Replied<()>;
        MoveStore = 40, MoveStore => Replied<u64>;
        Adopt = 41, Adopt => Replied<()>;
        Facts = 42, Facts => Replied<Option<DatabaseFacts>>;
        AskFleet = 44, AskFleet => Replied<Vec<OfGateway>>;
        LeaveKick = 45, LeaveKick => Replied<()>;
        KickProgress = 46, KickProgressQuery => Replied<Option<KickProgress>>;
    }
}

/// The users after this one, by name.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Users(#[n(0)] pub(crate) Option<String>);

#[derive(Debug, Encode, Decode)]
pub(crate) struct OneUser(#[n(0)] pub(crate) String);

#[derive(Debug, Encode, Decode)]
pub(crate) struct AddUser {
    #[n(0)]
    pub(crate) user: UserToAdd,
    #[n(1)]
    pub(crate) now_s: u64,
}

#[derive(Debug, Encode, Decode)]
pub(crate) struct SetEnabled {
    #[n(0)]
    pub(crate) name: String,
    #[n(1)]
    pub(crate) enabled: bool,
    #[n(2)]
    pub(crate) now_s: u64,
    /// Source of a user who need not have logged in before.
    #[n(3)]
    pub(crate) source: Option<String>,
}

/// The sessions of the user with this name are to end at all gateways of the fleet, and the user
/// may be disabled.
#[derive(Debug, Encode, Decode)]
pub(crate) struct LeaveKick {
    #[n(0)]
    id: ByteArray<16>,
    #[n(1)]
    user: String,
    #[n(2)]
    at_s: u64,
    #[n(3)]
    is_disable: bool,
    #[n(4)]
    source: Option<String>,
}

impl From<&Kick> for LeaveKick {
    fn from(kick: &Kick) -> Self {
        let Kick { id, user, at_s, is_disable, source } = kick.clone();
        Self { id: id.into(), user, at_s, is_disable, source }
    }
}

impl From<LeaveKick> for Kick {
    fn from(LeaveKick { id, user, at_s, is_disable, source }: LeaveKick) -> Self {
        Self { id: id.into(), user, at_s, is_disable, source }
    }
}

/// The state of the kick with this id.
#[derive(Debug, Encode, Decode)]
pub(crate) struct KickProgressQuery(#[n(0)] pub(crate) ByteArray<16>);

#[derive(Debug, Encode, Decode)]
pub(crate) struct SetPassword {
    #[n(0)]
    pub(crate) name: String,
    /// A hash in the PHC format.
    #[n(1)]
    pub(crate) hash: SecretBytes,
    #[n(2)]
    pub(crate) now_s: u64,
}

/// A token of the API, to be added or as it is.
#[derive(Debug, Encode, Decode)]
pub(crate) struct TokenSummary {
    #[n(0)]
    pub(crate) name: String,
    #[n(1)]
    pub(crate) role: DeskRole,
    #[n(2)]
    pub(crate) created_s: u64,
    #[n(3)]
    pub(crate) until_s: u64,
    #[n(4)]
    pub(crate) hash: ByteArray<32>,
}

impl From<ApiToken> for TokenSummary {
    fn from(token: ApiToken) -> Self {
        let ApiToken { name, role, created_s, until_s, hash } = token;
        Self { name, role, created_s, until_s, hash: hash.into() }
    }
}

impl From<TokenSummary> for ApiToken {
    fn from(token: TokenSummary) -> Self {
        let TokenSummary { name, role, created_s, until_s, hash } = token;
        Self { name, role, created_s, until_s, hash: hash.into() }
    }
}

/// All tokens.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Tokens;

#[derive(Debug, Encode, Decode)]
pub(crate) struct RemoveToken(#[n(0)] pub(crate) String);

#[derive(Debug, Encode, Decode)]
pub(crate) struct Invite {
    #[n(0)]
    pub(crate) name: String,
    /// Hash of the link's token.
    #[n(1)]
    pub(crate) invitation: ByteArray<32>,
    #[n(2)]
    pub(crate) until_s: u64,
}

#[derive(Debug, Encode, Decode)]
pub(crate) struct RemoveUser {
    #[n(0)]
    pub(crate) name: String,
    #[n(1)]
    pub(crate) now_s: u64,
}

#[derive(Debug, Encode, Decode)]
pub(crate) struct AddCertificate {
    #[n(0)]
    pub(crate) name: String,
    #[n(1)]
    pub(crate) certificate: ByteArray<32>,
}

#[derive(Debug, Encode, Decode)]
pub(crate) struct RevokeCertificates {
    #[n(0)]
    pub(crate) name: String,
    #[n(1)]
    pub(crate) certificates: Vec<CertificateHash>,
    #[n(2)]
    pub(crate) now_s: u64,
}

/// A line for the audit log, from the command line.
#[derive(Debug, Encode, Decode)]
pub(crate) struct RecordDeed {
    #[n(0)]
    event: String,
    #[n(1)]
    user: String,
    #[n(2)]
    detail: String,
    #[n(3)]
    at_s: u64,
    /// The administrator.
    #[n(4)]
    by: String,
}

impl From<AuditEntry> for RecordDeed {
    fn from(entry: AuditEntry) -> Self {
        let AuditEntry { at_s, event, user, detail, by, .. } = entry;
        Self { event, user, detail, at_s, by }
    }
}

impl From<RecordDeed> for AuditEntry {
    fn from(deed: RecordDeed) -> Self {
        let RecordDeed { event, user, detail, at_s, by } = deed;
        Self { at_s, event, user, source: String::new(), detail, by }
    }
}

/// Whatever is none stays as it is.
#[derive(Debug, Encode, Decode)]
pub(crate) struct ModifyUser {
    #[n(0)]
    pub(crate) name: String,
    #[n(1)]
    pub(crate) change: ChangeToMake,
    #[n(2)]
    pub(crate) now_s: u64,
}

/// Those of the user with this name.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Devices(#[n(0)] pub(crate) String);

#[derive(Debug, Encode, Decode)]
pub(crate) struct RemoveDevice {
    #[n(0)]
    pub(crate) name: String,
    #[n(1)]
    pub(crate) device: ByteArray<16>,
    #[n(2)]
    pub(crate) now_s: u64,
}

/// Users of an import that comes in pieces.
#[derive(Debug, Encode, Decode)]
pub(crate) struct StageUsers(#[n(0)] pub(crate) Vec<StagedUser>);

/// Adds and changes all of them, or none.
#[derive(Debug, Encode, Decode)]
pub(crate) struct ImportStaged {
    #[n(0)]
    pub(crate) now_s: u64,
}

/// Hashes and secrets of the local users after this one, by name.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Secrets(#[n(0)] pub(crate) Option<String>);

/// Make a copy of this moment.
#[derive(Debug, Encode, Decode)]
pub(crate) struct MakeCopy;

/// The next bytes of the copy; none at its end.
#[derive(Debug, Encode, Decode)]
pub(crate) struct CopyPart;

/// Bytes of the store that takes this one's place.
#[derive(Debug, Encode, Decode)]
pub(crate) struct ReplacementPart(#[n(0)] pub(crate) SecretBytes);

/// Those were all: check it and put it in place. Answered with whether there was a store before,
/// which is kept.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Replace;

/// The other gateways of the fleet are asked.
#[derive(Debug, Encode, Decode)]
pub(crate) struct AskFleet(#[n(0)] pub(crate) Question);

/// Question who had this address at that time; recorded before it is answered.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Whois {
    #[n(0)]
    pub(crate) address: IpAddr,
    #[n(1)]
    pub(crate) at_s: u64,
    #[n(2)]
    pub(crate) now_s: u64,
    /// The question, for the record.
    #[n(3)]
    pub(crate) detail: String,
    #[n(4)]
    pub(crate) by: String,
    #[n(5)]
    pub(crate) port: Option<u16>,
}

/// A part of what is recorded, after this one.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Export {
    #[n(0)]
    pub(crate) range: Range,
    #[n(1)]
    pub(crate) cursor: Cursor,
}

/// Records, and where the next part begins.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Exported(#[n(0)] pub(crate) Vec<Record>, #[n(1)] pub(crate) Option<Cursor>);
