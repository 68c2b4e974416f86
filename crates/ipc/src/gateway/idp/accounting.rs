//! Accounting of sessions (RFC 2866): records from the auth process to the idp process.
//!
//! INVARIANT: a record says all that its packet holds but for addresses and secrets of servers; it
//! has a largest length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use minicbor::{Decode, Encode};
use vpnd_proto::control::{Code, List, Text, UserName};

use crate::gateway::auth::{SourceName, Traffic};

/// Records of a source that are sent at the same time.
pub const MAX_RECORDS: usize = 8;
/// Values of `Class` that are kept of one Access-Accept.
pub const MAX_CLASSES: usize = 8;
/// The longest value of an attribute.
pub(super) const MAX_VALUE: usize = 253;

/// The values of `Class` of an Access-Accept, which go back as they came (RFC 2865 §5.25).
pub type Classes = List<List<u8, MAX_VALUE>, MAX_CLASSES>;

/// The part of an Access-Accept that counts besides the groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct AcceptAttributes {
    #[n(0)]
    pub classes: Classes,
    /// Acct-Interim-Interval, seconds, as the server has it.
    #[n(1)]
    pub interim_s: Option<u32>,
    #[n(2)]
    pub limits: SourceLimits,
    /// The name by which the server accounts for the user, if it is another one than that of the
    /// login (RFC 2865 §5.1).
    #[n(3)]
    pub user: Option<UserName>,
    #[n(4)]
    pub addresses: SourceAddresses,
}

/// Inner addresses that the server has for the user (Framed-IP-Address, Framed-IPv6-Address), if
/// they are in the pool and free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SourceAddresses {
    #[n(0)]
    pub ipv4: Option<Ipv4Addr>,
    #[n(1)]
    pub ipv6: Option<Ipv6Addr>,
}

/// Limits of a session by its source, seconds (Session-Timeout, Idle-Timeout). They make no session
/// longer than the gateway does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SourceLimits {
    #[n(0)]
    pub session_s: Option<u32>,
    #[n(1)]
    pub idle_s: Option<u32>,
}

impl SourceLimits {
    /// The lifetime of a session that the gateway gives this one: the shorter one.
    pub fn lifetime(self, of_gateway: Option<Duration>) -> Option<Duration> {
        let own = self.session_s.map(|session_s| Duration::from_secs(session_s.into()));
        own.into_iter().chain(of_gateway).min()
    }
}

/// One record, for the servers of a source.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AccountingRecord {
    #[n(0)]
    pub source: SourceName,
    #[n(1)]
    pub event: AccountingEvent,
    /// When it happened, seconds since 1970.
    #[n(2)]
    pub at_s: u64,
    /// Seconds since then.
    #[n(3)]
    pub delay_s: u32,
    /// `None` if it is about the gateway.
    #[n(4)]
    pub session: Option<AccountedSession>,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum AccountingEvent {
    #[n(0)]
    Start,
    #[n(1)]
    Stop(#[n(0)] Usage, #[n(1)] TerminateCause),
    #[n(2)]
    Interim(#[n(0)] Usage),
    /// The gateway starts: no session of before goes on.
    #[n(3)]
    On,
    /// The gateway ends, and with it all sessions.
    #[n(4)]
    Off,
}

/// Use of a session since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Usage {
    #[n(0)]
    pub time_s: u64,
    #[n(1)]
    pub traffic: Traffic,
}

/// Why a session ended, by its number in RFC 2866 §5.10.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum TerminateCause {
    #[n(1)]
    UserRequest = 1,
    #[n(4)]
    IdleTimeout = 4,
    #[n(5)]
    SessionTimeout = 5,
    #[n(6)]
    AdminReset = 6,
    #[n(7)]
    AdminReboot = 7,
    #[n(9)]
    NasError = 9,
    #[n(10)]
    NasRequest = 10,
}

/// From the code with which the session ended.
impl From<Code> for TerminateCause {
    fn from(code: Code) -> Self {
        match code {
            Code::Bye => Self::UserRequest,
            Code::Idle => Self::IdleTimeout,
            Code::Lifetime => Self::SessionTimeout,
            Code::Disabled | Code::Kicked | Code::Certificate | Code::NoProfile => Self::AdminReset,
            Code::Drain | Code::Shutdown => Self::AdminReboot,
            // The same device has another session now, or its user too many.
            Code::Superseded | Code::TooMany | Code::NoAddress => Self::NasRequest,
            _ => Self::NasError,
        }
    }
}

/// A session, as its records name it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AccountedSession {
    /// Acct-Session-Id: random, and no part of what a client attaches with.
    #[n(0)]
    pub id: Text<32>,
    /// The user's name at the source, or from its Access-Accept.
    #[n(1)]
    pub user: UserName,
    /// From where the user came; not known any more after the loss of the file that keeps it.
    #[n(2)]
    pub station: Option<IpAddr>,
    #[n(3)]
    pub ipv4: Option<Ipv4Addr>,
    #[n(4)]
    pub ipv6: Option<Ipv6Addr>,
    #[n(5)]
    pub classes: Classes,
}
