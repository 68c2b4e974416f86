//! The way of the tunnel's own datagrams to the gateway: its address, and log lines about its size.

use std::net::{Ipv4Addr, SocketAddr};

use vpnd_proto::pmtu::oversize::IPV6_MIN_MTU;
use vpnd_proto::wire::HEADER_LEN;

/// Bytes that a standard suite adds to a packet.
const TAG_LEN: usize = 16;

/// Logs the size of the path, as a warning where it costs throughput.
pub(super) fn log_path(size: u16) {
    tracing::debug!(datagram = size, "the way to the gateway was measured");
    if usize::from(size) < HEADER_LEN + usize::from(IPV6_MIN_MTU) + TAG_LEN {
        tracing::warn!(
            datagram = size,
            "the way to the gateway carries no full IPv6 packet in one datagram: those of up to {IPV6_MIN_MTU} bytes are sent \
             in two, which is slower"
        );
    }
}

/// An IPv4 address as sockets for both protocol versions name it.
pub(super) fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => (Ipv4Addr::to_ipv6_mapped(v4.ip()), v4.port()).into(),
        v6 @ SocketAddr::V6(_) => v6,
    }
}
