//! The gateways of a fleet: the report of each, and what the store has of all.

use std::net::IpAddr;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::control::Text;

/// Gateways of one answer, at most.
pub const MAX_GATEWAYS: usize = 256;
/// Addresses of one gateway, at most.
pub const MAX_ADDRESSES: usize = 4;
/// Sessions of each kind in one report, at most.
pub const MAX_ABSENCES: usize = 512;

/// The state of this gateway. The reply is that of all.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GatewayReport {
    /// The address at which it listens; `None` if that is any.
    #[n(0)]
    pub address: Option<IpAddr>,
    /// Sessions that are in use.
    #[n(1)]
    pub sessions: u64,
    /// Use of its shards' CPUs.
    #[n(2)]
    pub load_percent: u64,
    #[n(3)]
    pub is_draining: bool,
    /// Sessions whose clients are away since the last report, [`MAX_ABSENCES`] at most.
    #[n(4)]
    pub away: Vec<ByteArray<16>>,
    /// Those whose clients are there, as many.
    #[n(5)]
    pub back: Vec<ByteArray<16>>,
    /// Those of `addresses` in [server] that this machine has, [`MAX_ADDRESSES`] at most.
    #[n(6)]
    pub addresses: Vec<IpAddr>,
}

/// The gateways of the fleet, [`MAX_GATEWAYS`] at most.
#[derive(Debug, Encode, Decode)]
pub struct GatewaysQuery;

/// A gateway by its last report.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GatewayState {
    #[n(0)]
    pub name: Text<64>,
    #[n(1)]
    pub is_here: bool,
    /// Whether it was heard of lately.
    #[n(2)]
    pub is_alive: bool,
    /// Seconds since the report; `None` before the first.
    #[n(3)]
    pub heard_s: Option<u64>,
    #[n(4)]
    pub address: Option<IpAddr>,
    #[n(5)]
    pub version: Text<64>,
    #[n(6)]
    pub sessions: u64,
    #[n(7)]
    pub load_percent: u64,
    #[n(8)]
    pub is_draining: bool,
    /// Sessions that the store has of it, with those whose clients are away.
    #[n(9)]
    pub held: u64,
    /// Where clients reach it, as far as it knows; [`MAX_ADDRESSES`] at most.
    #[n(10)]
    pub addresses: Vec<IpAddr>,
}

/// This gateway is to be drained if another one is alive that is not; the reply is whether there
/// is.
#[derive(Debug, Encode, Decode)]
pub struct DrainHere;
