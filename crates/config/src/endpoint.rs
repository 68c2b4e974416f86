//! Where clients that know a single address, such as stock WireGuard's, find the gateway.
//!
//! Invariants: no name is looked up, so the privileged parent reads no answer of a network;
//! commands and pages of a machine find the same, and so write the same files for clients.

use std::net::IpAddr;

use super::ServerConfig;
use super::local_ports::outward_addresses;
use super::profile::{ServerAddress, gateway_names};

/// The gateway as clients reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: ServerAddress,
    /// Its outer addresses as far as they are known, sorted. The machine's others, such as that of
    /// a campus interface, are not among them: clients reach the web pages there by the tunnel.
    pub outer: Vec<IpAddr>,
}

/// A gateway without a name or address for clients.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} names no server, so a client would not know where to connect; write 'addresses' in [server], or make it with \
     'vpnd init --name …'"
)]
pub struct NoEndpoint {
    path: String,
}

impl Endpoint {
    /// Finds it for a gateway on this machine: by a name if it has one, since that stays when
    /// addresses change.
    ///
    /// # Errors
    /// If it has neither a name nor an address for clients.
    pub fn of(config: &ServerConfig) -> Result<Self, NoEndpoint> {
        let names = gateway_names(config).map(|(names, _)| names).unwrap_or_default();
        let path = || config.tls.certificate.display().to_string();
        Self::on(config, names, outward_addresses()).ok_or_else(|| NoEndpoint { path: path() })
    }

    /// Finds it on a machine that sends by these `own` addresses, where the certificate has these
    /// names.
    fn on(config: &ServerConfig, names: Vec<String>, own: impl Iterator<Item = IpAddr>) -> Option<Self> {
        let address = config.preferred_address(names)?;
        let listening = config.server.listen.ip().to_canonical();
        // The tunnel's own address is inside.
        let is_outer = |own: &IpAddr| {
            !own.is_loopback()
                && (listening.is_unspecified() || listening == *own)
                && !config.tunnel.pools().any(|pool| pool.contains(own))
        };
        let literal = |address: &ServerAddress| Some(address.literal()?.ip());
        let named = config.server.addresses.iter().chain([&address]).filter_map(literal);
        let mut outer: Vec<IpAddr> = named.chain(own.filter(is_outer)).collect();
        outer.sort_unstable();
        outer.dedup();
        Some(Self { address, outer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::smallest;

    const OWN: [&str; 5] = ["127.0.0.1", "192.0.2.1", "10.86.0.1", "fd86::1", "2001:db8::1"];

    fn outer(server: &str) -> Vec<String> {
        let config = smallest(&format!("pool_v6 = 'fd86::/64'\n[server]\n{server}"));
        let own = OWN.iter().map(|own| own.parse().unwrap());
        let found = Endpoint::on(&config, vec!["vpn.uni.example".to_owned()], own).unwrap();
        assert_eq!(found.address.host, "vpn.uni.example", "clients get its name");
        found.outer.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn outer_addresses_are_the_machines_and_the_configured_ones() {
        assert_eq!(outer(""), ["192.0.2.1", "2001:db8::1"], "no inner one");
        let named = "addresses = ['203.0.113.7:443', 'vpn.uni.example:4433']\n";
        assert_eq!(outer(named), ["192.0.2.1", "203.0.113.7", "2001:db8::1"]);
        assert_eq!(outer("listen = '192.0.2.1:4433'\n"), ["192.0.2.1"], "no client comes to another");
    }

    #[test]
    fn a_gateway_without_a_name_has_its_address_for_clients_or_none() {
        let config = smallest("");
        let on = |names: &[&str]| {
            Endpoint::on(&config, names.iter().map(ToString::to_string).collect(), std::iter::empty())
        };
        assert_eq!(on(&["198.51.100.1"]).unwrap().outer, [IpAddr::from([198, 51, 100, 1])]);
        assert_eq!(on(&[]), None);
    }
}
