//! Dynamic authorization (RFC 5176): what a RADIUS server asks about sessions, from the idp process
//! to the auth process and back.
//!
//! INVARIANT: the idp process names what it was sent and nothing of the gateway; which sessions
//! that are, and whether they are those of the source, the auth process finds out.

use std::net::{Ipv4Addr, Ipv6Addr};

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::control::{List, Text, UserName};

use super::{GroupName, MAX_GROUPS};
use crate::gateway::auth::SourceName;

/// A request of a server that has proved who it is.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DynamicRequest {
    #[n(0)]
    pub number: u64,
    #[n(1)]
    pub source: SourceName,
    #[n(2)]
    pub action: DynamicAction,
    #[n(3)]
    pub which: SessionAttributes,
    /// When the server has made it, by its clock, seconds since 1970.
    #[n(4)]
    pub made_s: u64,
    /// Its Request Authenticator, which no other request has.
    #[n(5)]
    pub authenticator: ByteArray<16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum DynamicAction {
    #[n(0)]
    Disconnect,
    /// The user is in these groups now.
    #[n(1)]
    Regroup(#[n(0)] List<GroupName, MAX_GROUPS>),
}

/// Which sessions: those to which all of these apply. One at least is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SessionAttributes {
    /// The name at the source.
    #[n(0)]
    pub user: Option<UserName>,
    /// Acct-Session-Id.
    #[n(1)]
    pub id: Option<Text<32>>,
    #[n(2)]
    pub ipv4: Option<Ipv4Addr>,
    #[n(3)]
    pub ipv6: Option<Ipv6Addr>,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DynamicResult {
    #[n(0)]
    pub number: u64,
    /// Why not, if not.
    #[n(1)]
    pub error: Option<ErrorCause>,
}

/// Why a request is not done, by its number in RFC 5176 §3.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum ErrorCause {
    #[n(401)]
    UnsupportedAttribute = 401,
    #[n(402)]
    MissingAttribute = 402,
    #[n(403)]
    NasIdentification = 403,
    #[n(404)]
    InvalidRequest = 404,
    #[n(405)]
    UnsupportedService = 405,
    #[n(407)]
    InvalidValue = 407,
    #[n(503)]
    SessionNotFound = 503,
    #[n(506)]
    Resources = 506,
}
