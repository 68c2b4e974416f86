//! Orders between the gateways of a fleet: auth seals and opens them, the worker sends and
//! receives, and ends sessions.

use std::net::SocketAddr;

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Encode};

use super::Revoked;

/// Datagrams and orders of one turn, at most.
pub const MAX_FLEET_DATAGRAMS: usize = 128;

/// Datagrams that have come from other gateways, as far as their filter's MAC shows, and what has
/// become of orders.
#[derive(Debug, Encode, Decode)]
pub struct OrdersTurn {
    #[n(0)]
    pub received: Vec<ByteVec>,
    #[n(1)]
    pub done: Vec<OrderDone>,
}

/// An order is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OrderDone {
    #[n(0)]
    pub id: ByteArray<16>,
    /// The sessions that have ended; `None` if that could not be stored.
    #[n(1)]
    pub ended: Option<u64>,
}

/// The next tasks of the worker.
#[derive(Debug, Encode, Decode)]
pub struct OrdersReply {
    /// The key of the last MAC of datagrams to this gateway.
    #[n(0)]
    pub filter: ByteArray<32>,
    #[n(1)]
    pub to_send: Vec<FleetDatagram>,
    #[n(2)]
    pub orders: Vec<OrderedEnd>,
}

/// A datagram for another gateway.
#[derive(Clone, Debug, Encode, Decode)]
pub struct FleetDatagram {
    #[n(0)]
    pub to: SocketAddr,
    #[n(1)]
    pub bytes: ByteVec,
}

/// Sessions are to end by an order of this gateway or another one.
#[derive(Debug, Encode, Decode)]
pub struct OrderedEnd {
    #[n(0)]
    pub id: ByteArray<16>,
    #[n(1)]
    pub revoked: Revoked,
    /// Those that began later are not meant; seconds of the steady clock.
    #[n(2)]
    pub begun_until_s: u64,
}
