//! `[push]`: what clients are sent at login, and the routes that come of it.

use std::net::IpAddr;

use ipnet::IpNet;
use vpnd_pki::dns_name::DnsName;

use super::Tunnel;
use crate::profile::KillSwitchMode;

/// `[push]`: settings sent to clients at login.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Push {
    /// Networks that clients send into the tunnel.
    pub routes: Vec<IpNet>,
    /// DNS servers that clients use while connected.
    pub dns: Vec<IpAddr>,
    pub search: Vec<DnsName>,
    /// The kill switch that clients have to have.
    pub kill_switch: KillSwitchMode,
}

impl Push {
    /// The networks that are pushed to clients, name servers outside of the routes among them.
    pub fn reach(&self) -> impl Iterator<Item = IpNet> {
        self.routes.iter().copied().chain(self.dns.iter().copied().map(IpNet::from))
    }

    /// The networks that clients are given. The tunnel's own always leads into the tunnel: without
    /// these routes, packets for other clients would leave in clear by the client's default route.
    /// This includes an IP version of which these clients have no address: they refuse
    /// its packets by the same routes.
    pub fn networks(&self, tunnel: &Tunnel) -> impl Iterator<Item = IpNet> {
        let pools = tunnel.pools().filter(|pool| !self.routes.contains(pool));
        pools.chain(self.routes.iter().copied())
    }

    /// The number of routes in a client's table, with the addresses of the gateway and name
    /// servers that stand alone.
    pub fn count_routes(&self, tunnel: &Tunnel) -> usize {
        let own = tunnel.pools().count();
        self.networks(tunnel).count() + own + self.dns_outside().count()
    }

    /// The name servers that no pushed route leads to.
    pub fn dns_outside(&self) -> impl Iterator<Item = IpAddr> {
        let routed = |server: &IpAddr| self.routes.iter().any(|route| route.contains(server));
        self.dns.iter().copied().filter(move |server| !routed(server))
    }
}
