//! The gateway's end of the control channel's QUIC (PROTOCOL §3): its socket and settings.

pub(crate) mod acceptor;
pub mod retry;
mod retry_filter;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{AsyncUdpSocket, Endpoint, Runtime as _, ServerConfig, TokioRuntime, VarInt};
use vpnd_control_channel::quic::{on_shared_port, transport};

use crate::quic_keys::Keys;
use crate::worker::orders::OrderQueue;
use acceptor::AdmissionControl;
use retry_filter::RetryFilter;
use vpnd_shard::handshake_queue::HandshakeQueue;
use vpnd_shard::quic_forwarder::{self, QuicForwarder};
use vpnd_sys::udp::QuicMember;

/// Connections that wait to be let in, all from addresses that have proved themselves.
const MAX_INCOMING: usize = 1 << 12;
/// Bytes kept for all connections that are not accepted yet.
const MAX_INCOMING_BYTES: u64 = 8 << 20;

/// The queues for datagrams that are not QUIC's, as far as they are served.
#[derive(Clone, Debug, Default)]
pub struct Diverted {
    /// For messages of WireGuard's handshakes.
    pub(super) wireguard: Option<HandshakeQueue>,
    /// For datagrams of the fleet's other gateways.
    pub(super) fleet: Option<OrderQueue>,
}

/// An address as the socket names it: one for both IP versions names those of IPv4 by their mapped
/// ones.
pub(super) fn as_bound(socket: &dyn AsyncUdpSocket, address: IpAddr) -> IpAddr {
    let is_v6 = socket.local_addr().is_ok_and(|own| own.is_ipv6());
    match address.to_canonical() {
        IpAddr::V4(v4) if is_v6 => v4.to_ipv6_mapped().into(),
        address => address,
    }
}

/// The socket of the gateway's endpoint; and, if the kernel does not steer, the forwarder by which
/// shards pass on what is for it.
///
/// # Errors
/// If the socket can't be used by the runtime.
pub fn socket(member: QuicMember) -> io::Result<(Arc<dyn AsyncUdpSocket>, Option<QuicForwarder>)> {
    match member {
        QuicMember::Own(socket) => Ok((TokioRuntime.wrap_udp_socket(socket)?, None)),
        QuicMember::SendOnly(sender) => {
            let (socket, forwarder) = quic_forwarder::socket(sender)?;
            Ok((Arc::new(socket), Some(forwarder)))
        }
    }
}

/// The gateway's endpoint on `socket`, which receives only those first datagrams that `admission`
/// lets pass, and nothing more once it is `paused`, because another process reads the socket.
/// Datagrams that are not QUIC's are `diverted`.
///
/// # Errors
/// If the socket can't be used by the runtime.
pub fn listen(
    socket: Arc<dyn AsyncUdpSocket>,
    tls: QuicServerConfig,
    keys: &Keys,
    admission: AdmissionControl,
    paused: Arc<AtomicBool>,
    diverted: Diverted,
) -> io::Result<Endpoint> {
    let tokens = Arc::clone(&keys.tokens) as _;
    let socket = Arc::new(RetryFilter::new(socket, admission, tokens, paused, diverted));
    Endpoint::new_with_abstract_socket(
        on_shared_port(keys.endpoint_config()),
        Some(server_config(tls, keys)),
        socket,
        Arc::new(TokioRuntime),
    )
}

/// The settings of the connections that a gateway's endpoint takes from now on.
pub fn server_config(tls: QuicServerConfig, keys: &Keys) -> ServerConfig {
    let mut transport = transport();
    transport.max_concurrent_bidi_streams(VarInt::from_u32(1));
    let mut config = ServerConfig::new(Arc::new(tls), Arc::clone(&keys.tokens) as _);
    config
        .transport_config(Arc::new(transport))
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size_total(MAX_INCOMING_BYTES)
        .retry_token_lifetime(retry::TOKEN_LIFETIME)
        .migration(true);
    config
}

#[cfg(test)]
mod tests;
