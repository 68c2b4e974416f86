//! Messages about the pages of the help desk and of administrators.
//!
//! INVARIANT: no request names who asks or a right: that is decided by the browser's token. A user,
//! an address or a reason is what a person has typed.

mod deeds;
pub mod sessions;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::control::{List, SecretText, Text};

use super::devices::OwnDevices;
use super::{Browser, MAX_SESSIONS, PortalHealth};
use crate::gateway::auth::{AuditHealth, Count, PoolUsage, SourceHealth, SourceName};
use crate::health::{Finding, Verdict};
pub use deeds::{AccountChange, Deed, Link, Made, NewAccount};
use sessions::DeviceTraffic;
pub use vpnd_config::desk::DeskRole as Role;
pub use vpnd_config::source::LOCAL;

/// The longest text that is typed: a name, an address, a time.
pub const MAX_TYPED: usize = 256;
/// Users that a search shows, at most.
pub const MAX_FOUND: usize = 50;
/// Profiles, pools and sources of an overview, at most.
pub const MAX_LISTED: usize = 65;
/// Groups of a user that are shown, at most.
pub const MAX_GROUPS: usize = 64;
/// Client certificates of a user that are shown, and reserved addresses, at most.
pub const MAX_CERTIFICATES: usize = 32;
pub const MAX_RESERVED: usize = 64;
/// Refused logins of a user that are shown.
pub const MAX_REFUSED: usize = 10;
/// Records of one answer of the audit file, at most, and notes.
pub const MAX_RECORDS: usize = 64;
pub const MAX_NOTES: usize = 16;

/// A text that a person has typed.
pub type Typed = Text<MAX_TYPED>;
/// A reason, which is recorded.
pub type Reason = Text<512>;
/// A reply, or why there is none.
pub type Replied<T> = Result<T, DeskRefusal>;

/// Why a request of the desk is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum DeskRefusal {
    /// The browser has no visit.
    #[n(0)]
    NoVisit,
    /// Its user has no role, or a lesser one than this takes.
    #[n(1)]
    NoRole,
    /// The browser is in another network than this is for.
    #[n(2)]
    Elsewhere,
    /// The login is too old for this.
    #[n(3)]
    LogInAgain,
    /// No reason was given, or it is none that can be recorded.
    #[n(4)]
    NoReason,
    #[n(5)]
    NotThere,
    /// There were too many requests of this person.
    #[n(6)]
    TooOften,
    /// The user is the one who asks.
    #[n(7)]
    Own,
    /// The user has a role, and takes an administrator.
    #[n(8)]
    Senior,
    /// The input is no date or address, or does not fit this user.
    #[n(9)]
    Unusable,
    /// Nothing can be recorded now, so nothing is done.
    #[n(10)]
    NotRecorded,
    /// There is a user of that name.
    #[n(11)]
    Taken,
    /// The user has an end, and no sponsor: that takes an administrator.
    #[n(12)]
    NoGuest,
    /// WireGuard is off, or the user's profile has no such devices.
    #[n(13)]
    NoWireGuard,
    /// No address is free for another device.
    #[n(14)]
    Full,
    /// The user has as many WireGuard devices as the access profile allows.
    #[n(15)]
    TooManyDevices,
    /// The device's configuration would be longer than a reply may be.
    #[n(16)]
    TooManyRoutes,
}

/// The sender of a request.
#[derive(Clone, Debug, Encode, Decode)]
pub enum Caller {
    #[n(0)]
    Browser(#[n(0)] Browser),
    /// A program with this token of the API.
    #[n(1)]
    Program {
        #[n(0)]
        token: SecretText<128>,
        #[n(1)]
        address: IpAddr,
    },
}

/// The state of the gateway.
#[derive(Debug, Encode, Decode)]
pub struct DeskQuery(#[n(0)] pub Caller);

/// Users whose name has this in it, or who have or had last this address.
#[derive(Debug, Encode, Decode)]
pub struct FindUsers {
    #[n(0)]
    pub caller: Caller,
    #[n(1)]
    pub text: Typed,
    /// Only those whose names come after this one.
    #[n(2)]
    pub after: Option<Typed>,
    /// For an address, which is asked about on the record.
    #[n(3)]
    pub reason: Option<Reason>,
}

/// All about this user.
#[derive(Debug, Encode, Decode)]
pub struct ShowUser {
    #[n(0)]
    pub caller: Caller,
    #[n(1)]
    pub user: Typed,
}

/// Change this user. The reply has what was made by that, if anything.
#[derive(Debug, Encode, Decode)]
pub struct ChangeUser {
    #[n(0)]
    pub caller: Caller,
    #[n(1)]
    pub user: Typed,
    #[n(2)]
    pub deed: Deed,
    #[n(3)]
    pub reason: Reason,
}

/// Asks who had this address at that time.
#[derive(Debug, Encode, Decode)]
pub struct AskWhois {
    #[n(0)]
    pub caller: Caller,
    #[n(1)]
    pub address: Typed,
    #[n(2)]
    pub at: Typed,
    #[n(3)]
    pub reason: Reason,
}

/// Asks for everything that is recorded between two times.
#[derive(Debug, Encode, Decode)]
pub struct ExportAudit {
    #[n(0)]
    pub caller: Caller,
    #[n(1)]
    pub from: Typed,
    #[n(2)]
    pub to: Typed,
    /// Only what is recorded of this user.
    #[n(3)]
    pub user: Option<Typed>,
    /// [`ExportedPart::next`] of the part before.
    #[n(4)]
    pub after: Option<Text<64>>,
    #[n(5)]
    pub reason: Reason,
}

/// The gateway, for an overview.
#[derive(Clone, Debug, Encode, Decode)]
pub struct DeskState {
    #[n(0)]
    pub role: Role,
    #[n(1)]
    pub users: u64,
    /// Sessions by access profile; those of users in none have no name.
    #[n(2)]
    pub profiles: List<ProfileCount, MAX_LISTED>,
    #[n(3)]
    pub pools: List<PoolUsage, MAX_LISTED>,
    #[n(4)]
    pub sources: List<SourceHealth, MAX_LISTED>,
    /// `None` if nothing is to be recorded.
    #[n(5)]
    pub audit: Option<AuditHealth>,
    #[n(6)]
    pub portal: Option<PortalHealth>,
    /// `None` if the worker has said nothing in time.
    #[n(7)]
    pub worker: Option<WorkerShown>,
    /// The worst first.
    #[n(8)]
    pub findings: List<ListedFinding, MAX_LISTED>,
    /// Refusals of the web pages, by name.
    #[n(9)]
    pub refused: List<Count, MAX_LISTED>,
}

/// A finding, as `vpnd doctor` has it, in English.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ListedFinding {
    #[n(0)]
    pub check: Text<64>,
    #[n(1)]
    pub verdict: Verdict,
    #[n(2)]
    pub found: Text<512>,
    #[n(3)]
    pub advice: Option<Text<512>>,
}

impl From<Finding> for ListedFinding {
    fn from(Finding { check, verdict, found, advice }: Finding) -> Self {
        Self {
            check: Text::cut(check),
            verdict,
            found: Text::cut(&found),
            advice: advice.as_deref().map(Text::cut),
        }
    }
}

/// The network worker's part.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WorkerShown {
    #[n(0)]
    pub version: Text<32>,
    #[n(1)]
    pub uptime_s: u64,
    /// For how long the gateway's certificate is good yet, seconds.
    #[n(2)]
    pub certificate_left_s: u64,
    /// Dropped packets, by reason.
    #[n(3)]
    pub drops: List<Count, MAX_LISTED>,
}

/// Sessions of one access profile.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProfileCount {
    #[n(0)]
    pub profile: Option<Text<64>>,
    #[n(1)]
    pub sessions: u64,
}

/// The users that were found.
#[derive(Clone, Debug, Encode, Decode)]
pub struct FoundUsers {
    #[n(0)]
    pub users: List<FoundUser, MAX_FOUND>,
    /// Those that are not shown.
    #[n(1)]
    pub more: u64,
}

impl FoundUsers {
    /// The name behind which those begin that are not shown. The first one of a page may be out of
    /// order, and comes again then.
    #[must_use]
    pub fn next(&self) -> Option<&str> {
        self.users.last().map(|user| &*user.name).filter(|_| self.more > 0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FoundUser {
    #[n(0)]
    pub name: Text<128>,
    #[n(1)]
    pub source: SourceName,
    #[n(2)]
    pub state: UserState,
}

/// Whether a user may log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum UserState {
    #[n(0)]
    Enabled,
    #[n(1)]
    Disabled,
    /// The user's time is over.
    #[n(2)]
    Expired,
}

/// All about a user.
#[derive(Clone, Debug, Encode, Decode)]
pub struct ShownUser {
    #[n(0)]
    pub user: FoundUser,
    /// The access profile, if one is for the user.
    #[n(1)]
    pub profile: Option<Text<64>>,
    #[n(2)]
    pub groups: List<Text<128>, MAX_GROUPS>,
    /// Whether the user has one-time codes of this gateway; `None` if that is another source's
    /// business.
    #[n(3)]
    pub codes: Option<bool>,
    #[n(4)]
    pub certificates: List<ShownCertificate, MAX_CERTIFICATES>,
    /// When the user's time ends, seconds since 1970.
    #[n(5)]
    pub expires_s: Option<u64>,
    #[n(6)]
    pub sponsor: Option<Text<128>>,
    #[n(7)]
    pub note: Text<2048>,
    #[n(8)]
    pub created_s: u64,
    #[n(9)]
    pub devices: OwnDevices,
    /// Logins of the last 30 days; `None` if none are recorded.
    #[n(10)]
    pub logins: Option<Logins>,
    /// Why the person who looks may not change the user, if that is so.
    #[n(11)]
    pub locked: Option<DeskRefusal>,
    /// Traffic of sessions that the worker has reported in time.
    #[n(12)]
    pub traffic: List<DeviceTraffic, MAX_SESSIONS>,
    /// Whether an invitation can be made.
    #[n(13)]
    pub can_be_invited: bool,
    /// Whether the user's end can be put off by the person who looks.
    #[n(14)]
    pub can_be_extended: bool,
    /// The user's role at the desk, if there is one.
    #[n(15)]
    pub role: Option<Role>,
    /// How the user was disabled, if that is so and on record.
    #[n(16)]
    pub disabled: Option<Disabling>,
    /// Inner addresses that are reserved for the user.
    #[n(17)]
    pub reserved: List<IpAddr, MAX_RESERVED>,
}

/// A client certificate of which the user must show one.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ShownCertificate {
    /// Its SHA-256.
    #[n(0)]
    pub fingerprint: ByteArray<32>,
    #[n(1)]
    pub revoked: bool,
}

/// When a user was disabled, by whom, and why.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Disabling {
    #[n(0)]
    pub at_s: u64,
    #[n(1)]
    pub by: Text<192>,
    #[n(2)]
    pub reason: Text<1024>,
}

/// Logins of a user.
#[derive(Clone, Debug, Default, Encode, Decode)]
pub struct Logins {
    #[n(0)]
    pub last_s: Option<u64>,
    /// The newest first.
    #[n(1)]
    pub refused: List<RefusedLogin, MAX_REFUSED>,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RefusedLogin {
    #[n(0)]
    pub at_s: u64,
    #[n(1)]
    pub from: Text<64>,
    #[n(2)]
    pub cause: Text<128>,
}

/// The holder of an address.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Whois {
    #[n(0)]
    pub found: List<AuditRecord, MAX_RECORDS>,
    /// Why the answer may be wrong, or why there is none, in English.
    #[n(1)]
    pub notes: List<Text<512>, MAX_NOTES>,
    /// The address as it was understood, and the time.
    #[n(2)]
    pub address: Text<64>,
    #[n(3)]
    pub at_s: u64,
}

/// A part of what is recorded between two times.
#[derive(Clone, Debug, Encode, Decode)]
pub struct ExportedPart {
    #[n(0)]
    pub records: List<AuditRecord, MAX_RECORDS>,
    /// Where it goes on, if it does.
    #[n(1)]
    pub next: Option<Text<64>>,
}

/// A record of the audit file. `None` does not belong to this kind, was not recorded, or is erased.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct AuditRecord {
    #[n(0)]
    pub kind: Text<64>,
    #[n(1)]
    pub at_s: u64,
    /// `None` while a session goes on, too.
    #[n(2)]
    pub until_s: Option<u64>,
    #[n(3)]
    pub user: Option<Text<128>>,
    #[n(4)]
    pub source: Option<Text<64>>,
    #[n(5)]
    pub profile: Option<Text<64>>,
    #[n(6)]
    pub device: Option<Text<64>>,
    #[n(7)]
    pub ipv4: Option<Ipv4Addr>,
    #[n(8)]
    pub ipv6: Option<Ipv6Addr>,
    #[n(9)]
    pub outer: Option<Text<64>>,
    #[n(10)]
    pub session: Option<Text<64>>,
    #[n(11)]
    pub detail: Option<Text<1024>>,
    #[n(12)]
    pub by: Option<Text<192>>,
    /// The public address by which it was seen, with the first and the last of its ports.
    #[n(13)]
    pub public: Option<(Ipv4Addr, u16, u16)>,
    /// The gateway of the fleet that has it on record.
    #[n(14)]
    pub gateway: Option<Text<64>>,
}
