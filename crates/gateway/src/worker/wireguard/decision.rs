//! Decisions of the peers' state machines, which others carry out on the sessions.

use std::net::SocketAddr;

use vpnd_ipc::gateway::wireguard::DeviceGrant;
use vpnd_proto::plane::{Endpoint, Slot};
use vpnd_proto::session::SessionId;
use vpnd_wireguard::PublicKey;

/// The result of an input that others have to carry out.
pub(in crate::worker) enum Decision {
    /// Make a session for this peer, and call [`join`](super::WireGuard::join) or
    /// [`refused`](super::WireGuard::refused).
    Admit { peer: PublicKey, grant: Box<DeviceGrant> },
    /// End the session: its peer is silent.
    Silent(SessionId),
    /// End the session: its peer is none any more.
    Gone(SessionId),
    /// End the session, which reaches the portal alone: its peer is another one, perhaps renewed.
    Changed(SessionId),
    /// The session's peer is there now.
    At(Slot, Endpoint),
    /// Two devices use the configuration of the session's one; one of them is there.
    TwoDevices(Slot, SessionId, SocketAddr),
    /// The session has new keys.
    Shaken(Slot),
}
