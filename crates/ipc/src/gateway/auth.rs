//! Messages between the network worker and the auth process.
//!
//! Invariants: no answer holds a password hash, the secret of one-time codes or the id of a user;
//! lists have a largest length, so that a frame has one.

mod as_status;
mod browser;
mod gateways;
mod observation;
mod orders;
mod sessions;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::control::{
    ChallengeAnswer, ChallengeKind, ChallengeText, Code, Grant, SecretText, Text, UserName,
};
use vpnd_proto::gateway::Addresses;
use vpnd_proto::plane::{Activity, Endpoint};
use vpnd_proto::session::SessionId;

pub use browser::{BrowserLogin, BrowserLoginReply};
pub use gateways::{
    DrainHere, GatewayReport, GatewayState, GatewaysQuery, MAX_ABSENCES, MAX_ADDRESSES, MAX_GATEWAYS,
};
pub use observation::{Count, MAX_SESSION_USES, Observed, SessionUse, WorkerState};
pub use orders::{FleetDatagram, MAX_FLEET_DATAGRAMS, OrderDone, OrderedEnd, OrdersReply, OrdersTurn};
pub use sessions::{Dropped, MissingQuery, SessionClaim, SessionQuery, StoredSession, TakenAway};

use super::refusal::Refused;
use super::wireguard::{
    Admission, AdmitDevice, DeviceAt, DevicesQuery, Handshake, HandshakeReply, PeerChanges, PeersQuery,
};
use vpnd_config::factor::Factors;
use vpnd_config::revocation_cause::RevocationCause;

/// The longest frame in either direction, bytes.
pub const MAX_FRAME: usize = 128 << 10;
/// Writes of one request, at most.
pub const MAX_WRITES: usize = 512;
/// Revocations of one answer, at most; the worker asks again.
pub const MAX_REVOCATIONS: usize = 128;
/// Bytes of groups' names after which an answer takes no further revocation.
pub const MAX_GROUP_BYTES: usize = 32 << 10;

crate::requests! {
    /// A request of the worker.
    pub AuthRequest {
        Login = 0, LoginRequest => LoginReply;
        Session = 1, SessionQuery => Option<StoredSession>;
        Commit = 2, Commit => Committed;
        Revocations = 3, RevocationQuery => Revocations;
        Answer = 4, TypedAnswer => LoginReply;
        Status = 5, StatusQuery => AuthStatus;
        Approval = 6, ApprovalQuery => Option<LoginReply>;
        Traffic = 7, TrafficReport => Vec<ByteArray<16>>;
        Absences = 8, ConfirmAbsences => Option<u64>;
        Abandon = 9, Abandon => ();
        Carried = 10, Carried => ();
        Observed = 20, Observed => bool;
        WireGuardHandshake = 11, Handshake => HandshakeReply;
        WireGuardAdmit = 12, AdmitDevice => Admission;
        WireGuardPeers = 13, PeersQuery => Option<PeerChanges>;
        BrowserLogin = 14, BrowserLogin => BrowserLoginReply;
        Missing = 15, MissingQuery => Vec<ByteArray<16>>;
        Claim = 16, SessionClaim => Option<StoredSession>;
        Dropped = 17, Dropped => Vec<TakenAway>;
        GatewayReport = 18, GatewayReport => Vec<GatewayState>;
        Gateways = 19, GatewaysQuery => Vec<GatewayState>;
        DrainHere = 21, DrainHere => bool;
        DevicesAt = 22, DevicesQuery => Vec<DeviceAt>;
        Orders = 23, OrdersTurn => OrdersReply;
    }
}

/// Make these changes durable.
#[derive(Debug, Encode, Decode)]
pub struct Commit(#[n(0)] pub Vec<Write>);

/// All of it is durable but what concerns these sessions: the store has failed, or their user was
/// disabled, removed or given another password, or never logged in for them.
#[derive(Debug, Encode, Decode)]
pub struct Committed {
    #[n(0)]
    pub failed: Vec<ByteArray<16>>,
}

/// The revocations after this number; without one, only the number of the last.
#[derive(Debug, Encode, Decode)]
pub struct RevocationQuery {
    #[n(0)]
    pub seen: Option<u64>,
    /// The store's history by the last answer.
    #[n(1)]
    pub history: Option<u64>,
}

#[derive(Debug, Encode, Decode)]
pub struct Revocations {
    /// The number to ask with the next time.
    #[n(0)]
    pub seen: u64,
    #[n(1)]
    pub found: Vec<Revoked>,
    #[n(2)]
    pub history: u64,
    /// The store may lack what it had before, revocations and sessions.
    #[n(3)]
    pub went_back: bool,
}

/// A person's input for the login with this number: a one-time code, or the answer to a
/// challenge.
#[derive(Debug, Encode, Decode)]
pub struct TypedAnswer {
    #[n(0)]
    pub login: u64,
    #[n(1)]
    pub answer: ChallengeAnswer,
    /// The device of the login.
    #[n(2)]
    pub device: ByteArray<16>,
}

/// The login with this number is over without an answer.
#[derive(Debug, Encode, Decode)]
pub struct Abandon(#[n(0)] pub u64);

/// Sessions that the worker has taken over from the one before it, [`MAX_WRITES`] at most: their
/// clients are there.
#[derive(Debug, Encode, Decode)]
pub struct Carried(#[n(0)] pub Vec<ByteArray<16>>);

/// Whether the login with this number is approved by now. The reply comes within moments: `None` if
/// the server still waits.
#[derive(Debug, Encode, Decode)]
pub struct ApprovalQuery {
    #[n(0)]
    pub login: u64,
    /// The device of the login.
    #[n(1)]
    pub device: ByteArray<16>,
}

/// How full the pools are, and whether the sources answer.
#[derive(Debug, Encode, Decode)]
pub struct StatusQuery;

/// The traffic of the sessions that the last reply to this has named. The reply names those whose
/// traffic is to be accounted for now, [`MAX_WRITES`] at most.
#[derive(Debug, Encode, Decode)]
pub struct TrafficReport(#[n(0)] pub Vec<SessionTraffic>);

/// An administrator says that the users whom this source shows no more have gone. The reply is how
/// many these are, if there is such a source.
#[derive(Debug, Encode, Decode)]
pub struct ConfirmAbsences(#[n(0)] pub SourceName);

/// Credentials that a client has presented.
#[derive(Debug, Encode, Decode)]
pub struct LoginRequest {
    #[n(0)]
    pub user: UserName,
    #[n(1)]
    pub password: SecretText<1024>,
    #[n(2)]
    pub code: Option<SecretText<16>>,
    /// SHA-256 of the client certificate that the TLS handshake has verified.
    #[n(3)]
    pub certificate: Option<ByteArray<32>>,
    #[n(4)]
    pub source: IpAddr,
    #[n(5)]
    pub device: ByteArray<16>,
    /// The grant of a login in a browser; user and password do not count then.
    #[n(6)]
    pub grant: Option<Grant>,
}

/// One change of the sessions that are kept.
#[derive(Clone, Debug, Encode, Decode)]
pub enum Write {
    /// A session has these tokens now. The first time, it must have been granted by a login.
    #[n(0)]
    Keep {
        #[n(0)]
        session: ByteArray<16>,
        #[n(1)]
        tokens: TokenHashes,
        #[n(2)]
        epoch: u32,
    },
    /// A session is over and its addresses are free.
    #[n(1)]
    End(#[n(0)] ByteArray<16>),
    /// For the audit file: why a session will be over, by a [`Write::End`] that comes after this.
    #[n(2)]
    Ended {
        #[n(0)]
        session: ByteArray<16>,
        #[n(2)]
        code: Code,
        #[n(3)]
        traffic: Traffic,
    },
    /// For the audit file: a lane of the session's client is heard from this address now.
    #[n(3)]
    Moved {
        #[n(0)]
        session: ByteArray<16>,
        #[n(1)]
        outer: Endpoint,
        #[n(2)]
        lane: u8,
        /// Addresses of the session since the last report that were left out.
        #[n(3)]
        left_out: u32,
    },
    /// For the audit file: two devices use the configuration of the session's device; one of them
    /// is at this address.
    #[n(4)]
    TwoDevices(#[n(0)] ByteArray<16>, #[n(1)] IpAddr),
}

/// Inner packets of a session since it began, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Traffic {
    #[n(0)]
    pub rx_packets: u64,
    #[n(1)]
    pub rx_bytes: u64,
    #[n(2)]
    pub tx_packets: u64,
    #[n(3)]
    pub tx_bytes: u64,
}

impl From<Activity> for Traffic {
    fn from(activity: Activity) -> Self {
        let Activity { rx_packets, rx_bytes, tx_packets, tx_bytes, .. } = activity;
        Self { rx_packets, rx_bytes, tx_packets, tx_bytes }
    }
}

/// The traffic of one session.
#[derive(Clone, Debug, Encode, Decode)]
pub struct SessionTraffic {
    #[n(0)]
    pub session: ByteArray<16>,
    #[n(1)]
    pub traffic: Traffic,
}

impl Write {
    /// The session whose keeping this is about.
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Self::Keep { session, .. } | Self::End(session) => Some(SessionId((*session).into())),
            Self::Ended { .. } | Self::Moved { .. } | Self::TwoDevices(..) => None,
        }
    }
}

/// Hashes of attach tokens.
#[derive(Clone, Debug, Encode, Decode)]
pub struct TokenHashes {
    #[n(0)]
    settled: ByteArray<32>,
    #[n(1)]
    fresh: Option<ByteArray<32>>,
}

impl From<&Tokens> for TokenHashes {
    fn from(tokens: &Tokens) -> Self {
        let bytes = |hash: TokenHash| ByteArray::from(*hash.as_bytes());
        Self { settled: bytes(tokens.settled()), fresh: tokens.fresh().map(bytes) }
    }
}

impl TokenHashes {
    /// The tokens in the form of the protocol's core.
    pub fn into_tokens(self) -> Tokens {
        let hash = |bytes: ByteArray<32>| TokenHash::from_bytes(bytes.into());
        Tokens::restore(hash(self.settled), self.fresh.map(hash))
    }
}

/// The decision about a login, or its next step.
#[derive(Debug, Encode, Decode)]
pub enum LoginReply {
    #[n(0)]
    Granted(#[n(0)] Granted),
    /// Not without a one-time code, by [`TypedAnswer`] with this number. It discloses nothing about
    /// the password.
    #[n(1)]
    CodeRequired(#[n(0)] u64),
    /// Not without this.
    #[n(2)]
    Challenge(#[n(0)] Demand),
    #[n(3)]
    Refused(#[n(0)] Refused),
}

/// A demand of a server, for a person.
#[derive(Debug, Encode, Decode)]
pub struct Demand {
    /// The login goes on by [`TypedAnswer`] with this number, or [`ApprovalQuery`] if it is a push.
    #[n(0)]
    pub login: u64,
    #[n(1)]
    pub kind: ChallengeKind,
    #[n(2)]
    pub text: ChallengeText,
    #[n(3)]
    pub time_s: u16,
}

/// State of the auth process, for administrators. No user is named in it.
#[derive(Clone, Debug, Default, Encode, Decode)]
pub struct AuthStatus {
    #[n(0)]
    pub pools: Vec<PoolUsage>,
    #[n(1)]
    pub sources: Vec<SourceHealth>,
    #[n(2)]
    pub audit: Option<AuditHealth>,
    /// Where web pages are switched on.
    #[n(3)]
    pub portal: Option<PortalHealth>,
    /// Refusals there since this process began, by name.
    #[n(4)]
    pub portal_refusals: Vec<Count>,
}

/// State of the portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PortalHealth {
    /// Whether its process is there.
    #[n(0)]
    pub up: bool,
    #[n(1)]
    pub visits: u64,
    /// Seconds until its certificate expires: 0 without one, `None` if the parent has not said.
    #[n(2)]
    pub certificate_left_s: Option<u64>,
}

/// State of the audit file.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AuditHealth {
    /// Events that were not recorded since the process began.
    #[n(0)]
    pub lost: u64,
    /// Why nothing is recorded now.
    #[n(1)]
    pub failure: Option<Reason>,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PoolUsage {
    #[n(0)]
    pub pool: Text<64>,
    /// Addresses with a live lease.
    #[n(1)]
    pub taken: u64,
    #[n(2)]
    pub total: u64,
}

/// How a source of identities answers.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SourceHealth {
    #[n(0)]
    pub name: SourceName,
    /// Whether the last request was answered; `None` before the first.
    #[n(1)]
    pub up: Option<bool>,
    /// Seconds since the last answer.
    #[n(2)]
    pub last_answer_s: Option<u64>,
    /// Seconds since the first request after that got none.
    #[n(7)]
    pub silent_s: Option<u64>,
    #[n(3)]
    pub answers: u64,
    #[n(4)]
    pub failures: u64,
    /// `None` if its sessions are not accounted for.
    #[n(5)]
    pub accounting: Option<AccountingHealth>,
    /// Users with sessions whom it shows no more: so many that they are taken for a fault of the
    /// source.
    #[n(6)]
    pub missing: u64,
}

/// Counts of the records of a source's sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct AccountingHealth {
    /// Records that a server has.
    #[n(0)]
    pub sent: u64,
    /// Records that no server will have.
    #[n(1)]
    pub lost: u64,
    /// Records on their way.
    #[n(2)]
    pub waiting: u64,
}

/// The name of a source.
pub type SourceName = Text<32>;
/// The name of an access profile.
pub type ProfileName = Text<32>;
pub use crate::request::Reason;

/// A user, with what access profiles and policy go by.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Account {
    #[n(0)]
    pub name: UserName,
    #[n(1)]
    pub groups: Vec<String>,
    /// The source that vouches for the user.
    #[n(2)]
    pub source: SourceName,
}

/// A new session that a login is entitled to.
#[derive(Debug, Encode, Decode)]
pub struct Granted {
    #[n(0)]
    pub account: Account,
    #[n(1)]
    pub session: ByteArray<16>,
    #[n(2)]
    pub addresses: Leased,
    /// The latest time of its end, whatever a later reload makes of the profile's lifetime.
    #[n(3)]
    pub expires_s: u64,
    #[n(4)]
    pub started_s: u64,
    /// The name of the access profile that was decided, for the log; `None` without `[[profile]]`.
    #[n(5)]
    pub profile: Option<ProfileName>,
    #[n(6)]
    pub factors: Factors,
    /// Whether the device had the addresses before, and no other device since.
    #[n(7)]
    pub own_addresses: bool,
    /// Time without a packet of the client after which it ends, by its source.
    #[n(8)]
    pub idle_timeout_s: Option<u32>,
    /// In a fleet, that of its beginning; else 0.
    #[n(9)]
    pub generation: u64,
    /// Sessions of the user at other gateways that count for the user's limit.
    #[n(10)]
    pub elsewhere: u64,
}

#[derive(Clone, Copy, Debug, Encode, Decode)]
pub struct Leased {
    #[n(0)]
    pub ipv4: Option<Ipv4Addr>,
    #[n(1)]
    pub ipv6: Option<Ipv6Addr>,
}

impl From<Leased> for Addresses {
    fn from(leased: Leased) -> Self {
        Self { ipv4: leased.ipv4, ipv6: leased.ipv6 }
    }
}

/// A user whose sessions end, or go on in other groups.
#[derive(Debug, Encode, Decode)]
pub struct Revoked {
    #[n(0)]
    pub name: UserName,
    #[n(1)]
    pub cause: RevocationCause,
    /// The device whose sessions it is about, if not all.
    #[n(2)]
    pub device: Option<ByteArray<16>>,
    /// With [`RevocationCause::Groups`]: those the user is in now.
    #[n(3)]
    pub groups: Option<Vec<String>>,
}

/// A session's id as a message has it.
pub fn id(session: SessionId) -> ByteArray<16> {
    ByteArray::from(session.0)
}
