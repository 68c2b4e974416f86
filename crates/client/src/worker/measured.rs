//! The state of the connection to the gateway, for the user.

use std::sync::Arc;

use vpnd_proto::control::AsText;

use super::Connected;
use super::over_tcp::gateway_of;
use crate::messages::Measured;

impl Connected {
    /// Sends it to the parent, and waits for nothing.
    pub(super) fn send_measured(&self) {
        let (measured, parent) = (self.measured(), Arc::clone(&self.parent));
        // Without an answer the user sees less.
        tokio::spawn(async move { parent.measured(measured).await });
    }

    fn measured(&self) -> Measured {
        let live = self.live.values().min_by_key(|live| live.connection.rtt());
        let path = live.map(|live| live.connection.stats().path);
        Measured {
            gateway: live
                .and_then(|live| gateway_of(&live.connection, live.carrier.as_ref()))
                .map(|gateway| AsText(canonical(gateway))),
            over_tcp: self.is_over_tcp(),
            rtt_us: path.map(|path| u64::try_from(path.rtt.as_micros()).unwrap_or(u64::MAX)),
            control_sent: path.map_or(0, |path| path.sent_packets),
            control_lost: path.map_or(0, |path| path.lost_packets),
            carried: self.carried,
        }
    }
}

/// An IPv4 address as people know it.
fn canonical(address: std::net::SocketAddr) -> std::net::SocketAddr {
    (address.ip().to_canonical(), address.port()).into()
}
