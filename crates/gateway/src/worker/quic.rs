//! The gateway's end of the control channel's QUIC (PROTOCOL §3): its socket and settings.

pub(crate) mod acceptor;
pub mod retry;
mod retry_filter;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{AsyncUdpSocket, Endpoint, Runtime as _, ServerConfig, TokioRuntime, VarInt};
use vpnd_control_channel::quic::{on_shared_port, transport};

use crate::quic_keys::Keys;
use acceptor::AdmissionControl;
use retry_filter::RetryFilter;
use vpnd_shard::handshake_queue::HandshakeQueue;
use vpnd_shard::quic_forwarder::{self, QuicForwarder};
use vpnd_sys::udp::QuicMember;

/// Connections that wait to be let in, all from addresses that have proved themselves.
const MAX_INCOMING: usize = 1 << 12;
/// Bytes kept for all connections that are not accepted yet.
const MAX_INCOMING_BYTES: u64 = 8 << 20;

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
/// Messages of WireGuard's handshakes go to their queue, if there is one.
///
/// # Errors
/// If the socket can't be used by the runtime.
pub fn listen(
    socket: Arc<dyn AsyncUdpSocket>,
    tls: QuicServerConfig,
    keys: &Keys,
    admission: AdmissionControl,
    paused: Arc<AtomicBool>,
    wireguard: Option<HandshakeQueue>,
) -> io::Result<Endpoint> {
    let tokens = Arc::clone(&keys.tokens) as _;
    let socket = Arc::new(RetryFilter::new(socket, admission, tokens, paused, wireguard));
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
