//! Messages about what the pages of the help desk show of the worker.

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::control::{Text, UserName};

/// What the pages of the help desk show of the worker, if the last reply to this has asked for it.
/// The reply names the users whose sessions are shown; it is `None` if nothing is.
#[derive(Debug, Encode, Decode)]
pub struct Observed(#[n(0)] pub Option<WorkerState>);

/// A part of the worker's status.
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
    /// [`super::MAX_WRITES`] at most.
    #[n(4)]
    pub sessions: Vec<SessionUse>,
}

/// A count by its name.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Count {
    #[n(0)]
    pub name: Text<64>,
    #[n(1)]
    pub count: u64,
}

/// Bytes of inner packets of a session.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SessionUse {
    #[n(0)]
    pub user: UserName,
    #[n(1)]
    pub device: ByteArray<16>,
    /// Received from the client.
    #[n(2)]
    pub rx_bytes: u64,
    #[n(3)]
    pub tx_bytes: u64,
}
