//! The sockets to the gateway: of the lanes, of the control channel, and over TCP.
//!
//! INVARIANT: each carries the tunnel's mark, which only a privileged process can set, so what is
//! sent there never enters the tunnel; a TCP connection goes to a port of the profile alone.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::outer_path::OuterPaths;
use vpnd_config::profile::Profile;
use vpnd_sys::control_socket;
use vpnd_sys::netlink::Netlink;
use vpnd_sys::udp;

pub(super) struct GatewaySockets {
    mark: u32,
    /// The TCP ports of the gateway and the proxy.
    tcp_ports: Vec<u16>,
    /// The sockets of the lanes, which the worker has, too, and may not bind to other ports.
    lanes: Vec<OwnedFd>,
    paths: OuterPaths,
}

impl GatewaySockets {
    /// For sockets with this mark, and the tunnel whose datagrams they send.
    pub(super) fn new(profile: &Profile, lanes: Vec<OwnedFd>, mark: u32, tunnel: u32) -> Self {
        let proxy = profile.proxy.as_ref().map(|proxy| proxy.server.port);
        let tcp_ports = profile.tcp_port.into_iter().chain(proxy).collect();
        Self { mark, tcp_ports, lanes, paths: OuterPaths::new(mark, tunnel) }
    }

    /// Opens a UDP socket for the control channel to `gateway`.
    pub(super) async fn open(&mut self, netlink: &Netlink, gateway: SocketAddr) -> Result<OwnedFd, String> {
        self.paths.watch(netlink, gateway.ip()).await;
        let opened = control_socket::socket(gateway, Some(self.mark));
        opened.map(OwnedFd::from).map_err(|error| error.to_string())
    }

    /// Begins a TCP connection to the gateway or a proxy; with the socket before it.
    pub(super) async fn open_stream(
        &mut self,
        netlink: &Netlink,
        gateway: SocketAddr,
    ) -> Result<[OwnedFd; 2], String> {
        if !self.tcp_ports.contains(&gateway.port()) {
            return Err("the profile has another TCP port, or none".to_owned());
        }
        self.paths.watch(netlink, gateway.ip()).await;
        control_socket::stream(gateway, self.mark).map_err(|error| error.to_string())
    }

    /// Opens these lanes (a bit for each) at other ports; the ports of all lanes.
    pub(super) fn reopen_lanes(&self, lanes: u16) -> Result<Vec<u16>, String> {
        let ports = self.lanes.iter().enumerate().map(|(lane, socket)| {
            let is_asked =
                u32::try_from(lane).is_ok_and(|lane| lanes.checked_shr(lane).unwrap_or(0) & 1 != 0);
            if is_asked { udp::reopen(socket) } else { udp::port(socket) }
        });
        let ports: io::Result<Vec<_>> = ports.collect();
        ports.map_err(|error| format!("other ports for the lanes: {error}"))
    }

    /// Whether the way to the gateway is another than it was; see [`OuterPaths::have_changed`].
    pub(super) async fn have_other_path(&mut self, netlink: &Netlink) -> bool {
        self.paths.have_changed(netlink).await
    }
}
