//! The QUIC settings of the control channel (PROTOCOL §3): one stream, small windows, no greased
//! bit.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    AckFrequencyConfig, AsyncUdpSocket, Endpoint, EndpointConfig, IdleTimeout, Runtime as _, TokioRuntime,
    TransportConfig, VarInt,
};

use crate::icmp::IgnoresIcmp;

/// The only version (PROTOCOL §2).
pub const VERSION: u32 = 1;
/// Bytes in flight that either end allows; a message has at most 16 KiB.
const WINDOW: u32 = 64 * 1024;
/// Interval of a client's keep-alives (PROTOCOL §11). Address translators that forget a binding
/// sooner than after 30 s are not met in practice, and each keep-alive costs both ends some
/// wake-ups, which thousands of idle sessions add up to a core.
const KEEP_ALIVE: Duration = Duration::from_secs(25);
/// A connection without any sign of life is given up after this: three of them.
const IDLE_TIMEOUT: Duration = KEEP_ALIVE.saturating_mul(3);
/// The round trip that a new connection reckons with, if there was one before it; the most is what
/// RFC 9002 takes when nothing is known.
const MIN_INITIAL_RTT: Duration = Duration::from_millis(50);
const MAX_INITIAL_RTT: Duration = Duration::from_millis(333);

/// A client's endpoint on `socket`. `rtt` is the round trip that a connection to the same gateway
/// has just had: what is lost while a gateway restarts is then sent again sooner (RFC 9002 section
/// 6.2.2).
///
/// # Errors
/// If the socket can't be used by the runtime.
pub fn client_endpoint(
    socket: UdpSocket,
    tls: Arc<QuicClientConfig>,
    rtt: Option<Duration>,
) -> io::Result<Endpoint> {
    let mut transport = transport();
    if let Some(rtt) = rtt {
        transport.initial_rtt(rtt.clamp(MIN_INITIAL_RTT, MAX_INITIAL_RTT));
    }
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .ack_frequency_config(Some(acknowledged_at_once()));
    let mut config = quinn::ClientConfig::new(tls);
    config.transport_config(Arc::new(transport));
    let endpoint_config = on_shared_port(EndpointConfig::default());
    let mut endpoint = Endpoint::new_with_abstract_socket(
        endpoint_config,
        None,
        client_socket(socket)?,
        Arc::new(TokioRuntime),
    )?;
    endpoint.set_default_client_config(config);
    Ok(endpoint)
}

/// A socket as a client's endpoint uses it.
///
/// # Errors
/// If the socket can't be used by the runtime.
pub fn client_socket(socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    Ok(Arc::new(IgnoresIcmp(TokioRuntime.wrap_udp_socket(socket)?)))
}

/// The endpoint's settings on a port that control and data share.
pub fn on_shared_port(mut config: EndpointConfig) -> EndpointConfig {
    // The first byte separates control from data on the shared port, so its QUIC bit must stay as
    // RFC 9000 has it.
    config.grease_quic_bit(false).supported_versions(vec![VERSION]);
    config
}

/// The connection's settings at both ends.
pub fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(u64::from(WINDOW))
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(idle_timeout()))
        // Control messages are short: searching a larger packet size would only cost datagrams, and
        // each connection would keep a buffer for a batch of ten that it never sends.
        .mtu_discovery_config(None)
        .enable_segmentation_offload(false);
    transport
}

/// Has the gateway acknowledge at once: a packet that comes alone, as a keep-alive does, would be
/// acknowledged after 25 ms, for which the gateway sets a timer and wakes up a second time.
fn acknowledged_at_once() -> AckFrequencyConfig {
    let mut config = AckFrequencyConfig::default();
    config.ack_eliciting_threshold(VarInt::from_u32(0));
    config
}

fn idle_timeout() -> IdleTimeout {
    IdleTimeout::from(VarInt::from_u32(
        u32::try_from(IDLE_TIMEOUT.as_millis()).expect("a minute in milliseconds fits"),
    ))
}
