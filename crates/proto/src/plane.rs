//! One shard's data plane: tables of receive indexes, sessions and routes, and what happens to each packet.
//!
//! Pure: bytes and time come in as arguments, packets are opened and sealed in the caller's buffers. A gateway has one
//! plane for each shard, a client too; nothing is shared between them. The control plane speaks to a plane only by
//! [`Command`]s and hears only [`Event`]s.

mod command;

use core::net::{IpAddr, SocketAddr};

pub use command::{Activity, Command, EpochSpec, Event, ReceiveSpec, SessionSpec, Slot};

/// Where a peer is: its outer address, and the local address it talks to (a gateway may have several).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The local address to answer from; `None` leaves it to the routing table.
    pub local: Option<IpAddr>,
}
