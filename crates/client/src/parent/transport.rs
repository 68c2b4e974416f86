//! The ways of the tunnel: over UDP by the lanes' sockets, and over TCP, where the profile has
//! that.

use std::io;
use std::os::fd::OwnedFd;

use vpnd_config::profile::Profile;
use vpnd_proto::control::AsText;
use vpnd_sys::control_socket;
use vpnd_sys::udp;

use super::{CONNECTING, RunningClient};
use crate::messages::{OpenStream, OverTcp, Reopen, ToWorker};
use crate::user_messages::TunnelState;

/// Which way the tunnel may go, and goes.
pub(super) struct Transport {
    /// The ports of the gateway and the proxy.
    ports: Vec<u16>,
    /// The port of the gateway.
    tcp_port: Option<u16>,
    is_tcp: bool,
    is_connected: bool,
    /// The sockets of the lanes.
    lanes: Vec<OwnedFd>,
}

impl Transport {
    pub(super) fn new(profile: &Profile, lanes: Vec<OwnedFd>) -> Self {
        let proxy = profile.proxy.as_ref().map(|proxy| proxy.server.port);
        let tcp_port = profile.tcp_port;
        let ports = tcp_port.into_iter().chain(proxy).collect();
        Self { ports, tcp_port, is_tcp: false, is_connected: false, lanes }
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

    pub(super) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Opens lanes at other ports.
    pub(super) fn reopen(&mut self, number: u64, Reopen(lanes): &Reopen) -> ToWorker {
        let ports = self.lanes.iter().enumerate().map(|(lane, socket)| {
            let is_asked =
                u32::try_from(lane).is_ok_and(|lane| lanes.checked_shr(lane).unwrap_or(0) & 1 != 0);
            if is_asked { udp::reopen(socket) } else { udp::port(socket) }
        });
        let ports: io::Result<Vec<_>> = ports.collect();
        ToWorker::reply::<Reopen>(
            number,
            ports.map_err(|error| format!("other ports for the lanes: {error}")),
        )
    }

    /// The TCP port over which the tunnel goes, if it does.
    pub(super) fn tcp_port(&self) -> Option<u16> {
        self.tcp_port.filter(|_| self.is_tcp)
    }
}

impl RunningClient {
    /// Begins a TCP connection to the gateway or a proxy, at the ports that the profile has for
    /// that.
    pub(super) async fn open_stream(
        &mut self,
        number: u64,
        OpenStream(AsText(gateway)): &OpenStream,
        descriptors: &mut Vec<OwnedFd>,
    ) -> ToWorker {
        let opened = if self.transport.ports.contains(&gateway.port()) {
            self.paths.watch(self.setup.netlink(), gateway.ip()).await;
            let opened = control_socket::stream(*gateway, self.layer.layer().mark());
            opened.map(|opened| descriptors.extend(opened)).map_err(|error| error.to_string())
        } else {
            Err("the profile has another TCP port, or none".to_owned())
        };
        ToWorker::reply::<OpenStream>(number, opened)
    }

    /// Shows which way the tunnel goes.
    pub(super) fn note_transport(&mut self, number: u64, OverTcp(is_tcp): &OverTcp) -> ToWorker {
        self.transport.is_tcp = *is_tcp;
        if self.transport.is_connected {
            self.note(TunnelState::Connected);
        }
        ToWorker::reply::<OverTcp>(number, Ok(()))
    }
}
