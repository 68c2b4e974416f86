//! Messages about what the pages of the help desk show of the worker.

use std::net::IpAddr;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::control::Text;

/// Sessions of one part of a report, at most.
pub const MAX_SESSION_USES: usize = 1_024;

/// A part of a report for the pages of the help desk, if the last reply to this has asked for one.
/// The reply is whether these pages are looked at.
#[derive(Debug, Encode, Decode)]
pub struct Observed(#[n(0)] pub Option<WorkerState>);

/// A part of the worker's status. A report is as many of them as its sessions take.
#[derive(Clone, Debug, Default, Encode, Decode)]
pub struct WorkerState {
    #[n(0)]
    pub version: Text<32>,
    #[n(1)]
    pub uptime_s: u64,
    /// For how long the gateway's certificate is good yet, seconds.
    #[n(2)]
    pub certificate_left_s: u64,
    /// Packets that were dropped, by reason; none that has no packets.
    #[n(3)]
    pub drops: Vec<Count>,
    /// [`MAX_SESSION_USES`] at most.
    #[n(4)]
    pub sessions: Vec<SessionUse>,
    /// Whether the report ends with this part.
    #[n(5)]
    pub is_last: bool,
}

/// A count by its name.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Count {
    #[n(0)]
    pub name: Text<64>,
    #[n(1)]
    pub count: u64,
}

/// A session as the worker has it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SessionUse {
    #[n(0)]
    pub session: ByteArray<16>,
    /// Bytes of inner packets received from the client.
    #[n(1)]
    pub rx_bytes: u64,
    #[n(2)]
    pub tx_bytes: u64,
    /// Where the client was heard from last.
    #[n(3)]
    pub outer: Option<IpAddr>,
    /// Whether it reaches the web pages alone, until its user renews it.
    #[n(4)]
    pub walled: bool,
}
