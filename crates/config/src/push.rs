//! `[push]`: what clients are sent at login, and the routes that come of it.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
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

    /// The networks that a stock WireGuard client sends into the tunnel, without these outer
    /// addresses of the gateway. With a default route of one IP version they are everything: the
    /// client would send the other version around the tunnel. It leads default routes around the
    /// gateway by itself, and others it does not.
    #[must_use]
    pub fn allowed_networks(&self, tunnel: &Tunnel, outer: &[IpAddr]) -> Vec<IpNet> {
        let pushed: Vec<IpNet> = self.networks(tunnel).chain(self.dns_outside().map(IpNet::from)).collect();
        let networks = IpNet::aggregate(&pushed);
        if networks.iter().any(|network| network.prefix_len() == 0) {
            return vec![Ipv4Net::default().into(), Ipv6Net::default().into()];
        }
        let parts = outer.iter().fold(networks, |networks, outer| {
            networks.into_iter().flat_map(|network| without(network, *outer)).collect()
        });
        IpNet::aggregate(&parts)
    }
}

/// The parts of a network without one of its addresses.
fn without(network: IpNet, address: IpAddr) -> Vec<IpNet> {
    if !network.contains(&address) {
        return vec![network];
    }
    let mut left = Vec::new();
    let mut around = network;
    while around.prefix_len() < around.max_prefix_len() {
        let length = around.prefix_len() + 1;
        let halves: Vec<IpNet> = match around {
            IpNet::V4(net) => net.subnets(length).map(|nets| nets.map(IpNet::V4).collect()),
            IpNet::V6(net) => net.subnets(length).map(|nets| nets.map(IpNet::V6).collect()),
        }
        .unwrap_or_default();
        let (with, other): (Vec<IpNet>, Vec<IpNet>) =
            halves.into_iter().partition(|half| half.contains(&address));
        left.extend(other);
        let [half] = with[..] else { break };
        around = half;
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::smallest;

    #[test]
    fn a_network_without_an_address_is_all_the_others() {
        let parts = without("10.20.0.0/30".parse().expect("a network"), [10, 20, 0, 2].into());
        let mut shown: Vec<_> = parts.iter().map(ToString::to_string).collect();
        shown.sort();
        assert_eq!(shown, ["10.20.0.0/31", "10.20.0.3/32"]);
        let network: IpNet = "2001:db8::/32".parse().expect("a network");
        let address: IpAddr = "2001:db8::1".parse().expect("an address");
        let parts = without(network, address);
        assert_eq!(parts.len(), 96);
        assert!(parts.iter().all(|part| !part.contains(&address) && network.contains(part)));
        assert_eq!(without(network, [10, 0, 0, 1].into()), [network]);
    }

    #[test]
    fn a_default_route_of_one_ip_version_leads_the_other_into_the_tunnel_too() {
        let outer: [IpAddr; 2] = ["192.0.2.1", "2001:db8::1"].map(|outer| outer.parse().unwrap());
        let allowed = |routes: &str| -> Vec<String> {
            let config = smallest(&format!("[push]\nroutes = [{routes}]\n"));
            let networks = config.push.allowed_networks(&config.tunnel, &outer);
            networks.iter().map(ToString::to_string).collect()
        };
        let everything = ["0.0.0.0/0", "::/0"];
        for routes in ["'0.0.0.0/0'", "'::/0'", "'::/0', '0.0.0.0/0'", "'0.0.0.0/1', '128.0.0.0/1'"] {
            assert_eq!(allowed(routes), everything, "{routes}");
        }
        assert_eq!(allowed("'0.0.0.0/0', '2001:db8::/32'"), everything, "it has an outer address");
        assert_eq!(allowed("'10.20.0.0/16'"), ["10.20.0.0/16", "10.86.0.0/16"], "not a full tunnel");
        let split = allowed("'192.0.2.0/30'");
        assert_eq!(split, ["10.86.0.0/16", "192.0.2.0/32", "192.0.2.2/31"]);
    }
}
