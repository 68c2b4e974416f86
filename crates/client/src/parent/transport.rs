//! Whether the tunnel is connected, and over UDP or TCP, in words for people.

use vpnd_config::profile::Profile;

use super::CONNECTING;
use crate::user_messages::TunnelState;

/// Which way the tunnel may go, and goes.
pub(super) struct Transport {
    /// The TCP port of the gateway, if the profile has one.
    tcp_port: Option<u16>,
    is_tcp: bool,
    is_connected: bool,
}

impl Transport {
    pub(super) fn new(profile: &Profile) -> Self {
        Self { tcp_port: profile.tcp_port, is_tcp: false, is_connected: false }
    }

    /// The client is in this state, in one word or some.
    pub(super) fn note(&mut self, state: TunnelState) -> &'static str {
        self.is_connected = state == TunnelState::Connected;
        match (self.is_connected, self.is_tcp) {
            (false, _) => CONNECTING,
            (true, false) => "connected",
            (true, true) => "connected over TCP, which is slower: this network passes no UDP",
        }
    }

    /// Whether the tunnel goes over TCP from now on.
    pub(super) fn set_tcp(&mut self, is_tcp: bool) {
        self.is_tcp = is_tcp;
    }

    pub(super) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// The TCP port over which the tunnel goes, if it does.
    pub(super) fn tcp_port(&self) -> Option<u16> {
        self.tcp_port.filter(|_| self.is_tcp)
    }
}
