//! A WireGuard client's configuration, in the format of wg-quick(8), which the apps read too.
//!
//! Invariants: there is no `ListenPort`, with which two clients behind one NAT would be in each
//! other's way. No allowed network has an outer address of the gateway, unless it is a default
//! route: clients lead those around it by themselves, and others they do not.

use std::fmt::Write as _;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use vpnd_wireguard::PublicKey;
use zeroize::Zeroizing;

use vpnd_config::endpoint::Endpoint;
use vpnd_config::{AccessProfile, Tunnel};

/// Everything that a client's file has.
pub struct Configuration<'c> {
    /// `None` if only the device has it.
    pub private: Option<&'c Zeroizing<[u8; 32]>>,
    pub public: PublicKey,
    pub preshared: Option<&'c Zeroizing<[u8; 32]>>,
    pub gateway: PublicKey,
    pub addresses: &'c [IpAddr],
    pub endpoint: &'c Endpoint,
    pub profile: &'c AccessProfile,
    pub tunnel: &'c Tunnel,
}

impl Configuration<'_> {
    /// The file's text.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        // Grown in one step, so that no copy of a key stays behind in memory.
        let mut text = Zeroizing::new(String::with_capacity(64 << 10));
        let key = |bytes: &Zeroizing<[u8; 32]>| Zeroizing::new(STANDARD.encode(**bytes));
        let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a string takes it");
        line(format_args!("[Interface]"));
        match self.private {
            Some(private) => line(format_args!("PrivateKey = {}", *key(private))),
            None => line(format_args!("# PrivateKey = the private key of {}", self.public)),
        }
        line(format_args!("Address = {}", list(self.addresses.iter().copied().map(IpNet::from))));
        let push = &self.profile.push;
        if !push.dns.is_empty() {
            let search = push.search.iter().map(ToString::to_string);
            line(format_args!("DNS = {}", list(push.dns.iter().map(ToString::to_string).chain(search))));
        }
        line(format_args!("MTU = {}", self.profile.wireguard.mtu));
        line(format_args!(""));
        line(format_args!("[Peer]"));
        line(format_args!("PublicKey = {}", self.gateway));
        if let Some(preshared) = self.preshared {
            line(format_args!("PresharedKey = {}", *key(preshared)));
        }
        line(format_args!("AllowedIPs = {}", list(self.allowed())));
        line(format_args!("Endpoint = {}", self.endpoint.address));
        if let Some(keepalive) = self.profile.wireguard.keepalive {
            line(format_args!("PersistentKeepalive = {}", keepalive.as_secs()));
        }
        text
    }

    /// The networks that the client sends into the tunnel.
    fn allowed(&self) -> Vec<IpNet> {
        let push = &self.profile.push;
        let pushed = push.networks(self.tunnel).chain(push.dns_outside().map(IpNet::from));
        let is_default = |network: &IpNet| network.prefix_len() == 0;
        let mut allowed = Vec::new();
        for network in pushed {
            let mut parts = vec![network];
            for outer in
                self.endpoint.outer.iter().filter(|outer| network.contains(*outer) && !is_default(&network))
            {
                parts = parts.into_iter().flat_map(|part| without(part, *outer)).collect();
            }
            allowed.extend(parts);
        }
        IpNet::aggregate(&allowed)
    }
}

fn list(items: impl IntoIterator<Item = impl ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
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
}
