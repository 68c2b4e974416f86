//! Sending a datagram that is longer than the path, where it must not be lost: the outer IP layer
//! cuts it.
//!
//! Routers of IPv4 cut what has no DF. Those of IPv6 cut nothing: the kernel does, to the size from
//! the last ICMP error, so over a path of IPv6 that filters ICMP there is no help.
//!
//! INVARIANT: fragments are allowed for this one datagram, or for the large ones of a batch that
//! may be cut, only. All others keep the mode in which the kernel ignores what ICMP messages report
//! of the path.

use std::io;

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

use super::{SendOutcome, ShardSocket, Transmit};

/// The longest datagram that every path of IPv6 carries in one piece.
const ALWAYS_WHOLE: usize = 1_280 - 40 - 8;

impl Transmit<'_> {
    /// Whether it may have to be fragmented.
    pub(super) fn needs_fragments(&self) -> bool {
        self.may_fragment && self.segment_size.unwrap_or(self.contents.len()) > ALWAYS_WHOLE
    }
}

impl ShardSocket {
    /// Sends one datagram, which routers of IPv4 may cut and the kernel cuts for IPv6. Costs some
    /// system calls.
    pub fn try_send_fragmented(&self, transmit: &Transmit<'_>) -> SendOutcome {
        self.with_fragments(|| self.send_one(transmit))
    }

    /// Sends while fragments are allowed.
    pub(super) fn with_fragments<T>(&self, send: impl FnOnce() -> T) -> T {
        if let Err(error) = self.allow_fragments(true) {
            tracing::trace!(%error, "fragments can't be allowed");
        }
        let sent = send();
        if let Err(error) = self.allow_fragments(false) {
            tracing::warn!(%error, "fragments can't be forbidden again: what is longer than the path is cut from now on");
        }
        sent
    }

    fn allow_fragments(&self, allowed: bool) -> io::Result<()> {
        let (v4, v6) = if allowed {
            (Ipv4PathMtuDiscovery::DONT, Ipv6PathMtuDiscovery::DONT)
        } else {
            (Ipv4PathMtuDiscovery::PROBE, Ipv6PathMtuDiscovery::PROBE)
        };
        // A socket for both protocols takes the options of IPv4, too.
        sockopt::set_ip_mtu_discover(&self.socket, v4)?;
        if self.is_v6 {
            sockopt::set_ipv6_mtu_discover(&self.socket, v6)?;
        }
        Ok(())
    }
}
