//! Which of the addresses that a gateway names the profile permits.
//!
//! A gateway names routes, but every other address that it names takes packets from somewhere, too:
//! the client's own address is answered on this machine, the gateway's is routed to it, a name
//! server is asked. So what the profile keeps out of the tunnel is kept out in each of these forms.
//! This is decided in the privileged process: the worker only passes on the gateway's message.
//!
//! Pure but for [`HostNetworks::read`]: what this machine uses is an argument.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use vpnd_proto::control::{AsText, List, Network};

use super::network::TunnelOptions;
use vpnd_config::profile::Routes;
use vpnd_sys::netlink::{Family, LocalAddress, LocalRoute, MAIN_TABLE, Netlink, NetlinkError};
use vpnd_sys::sysctl;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Forbidden {
    #[error(
        "the gateway gives this machine the address {0}, which no host can have: its address pool is wrong"
    )]
    NoHost(IpAddr),
    /// It means something else on this machine.
    #[error(
        "the gateway gives this machine the address {0}, which is in use here already (this machine's own, a router's \
         or a name server's): the gateway needs another address pool"
    )]
    InUse(IpAddr),
    /// The profile restricts the routes, and the address lies outside.
    #[error(
        "the gateway gives this machine no address of an IP version that 'routes' of the profile has networks of and that this \
         machine has switched on, so the tunnel could carry nothing: compare 'routes' and net.ipv6.conf.all.disable_ipv6 with \
         the gateway's address pools"
    )]
    NoAddress,
    #[error(
        "the gateway gives this machine the address {0}, which is public or belongs to a network that this machine \
         reaches without the tunnel, and 'routes' of the profile does not contain it: add it there if it is right"
    )]
    Outside(IpAddr),
}

/// Addresses and networks that the machine uses without the tunnel.
#[derive(Clone, Debug, Default)]
pub(super) struct HostNetworks {
    /// Its own addresses, and those of its routers and name servers.
    addresses: Vec<IpAddr>,
    /// The networks that it has routes for, but for default routes.
    networks: Vec<IpNet>,
    /// The networks that it is directly connected to, each with its interface. An address in one
    /// is no evidence alone, for an interface that is down keeps those of IPv4; nor is a route
    /// without a router, for DHCP and router advertisements can name such.
    local: Vec<(IpNet, u32)>,
    /// Whether IPv6 is switched off for the tunnel's device.
    without_ipv6: bool,
    /// Whether the kernel has no IPv6 at all: it sends none, and takes no routes for it.
    lacks_ipv6: bool,
}

impl HostNetworks {
    /// Reads it from the kernel; what belongs to the tunnel is left out. `name_servers` are those
    /// it uses without the tunnel.
    ///
    /// # Errors
    /// If the kernel does not list its addresses or routes.
    pub(super) async fn read(
        netlink: &Netlink,
        tunnel: &str,
        index: u32,
        name_servers: Vec<IpAddr>,
    ) -> Result<Self, NetlinkError> {
        let own = netlink.addresses().await?.into_iter().filter(|own| own.interface != index);
        let own: Vec<LocalAddress> = own.collect();
        let routes = netlink.routes().await?;
        let mut machine = Self {
            addresses: own.iter().map(|own| own.address.addr()).collect(),
            networks: Vec::new(),
            local: local_networks(&own, &routes),
            without_ipv6: !sysctl::has_ipv6(tunnel),
            lacks_ipv6: !sysctl::kernel_has_ipv6(),
        };
        for route in routes.into_iter().filter(|route| route.interface != Some(index)) {
            machine.addresses.extend(route.gateway);
            if route.table == MAIN_TABLE && route.destination.prefix_len() > 0 {
                machine.networks.push(route.destination);
            }
        }
        machine.addresses.extend(name_servers);
        Ok(machine)
    }

    /// `network` without the IP version that this machine has switched off.
    pub(super) fn usable(&self, network: &Network) -> Network {
        Network { ipv6: network.ipv6.filter(|_| !self.without_ipv6), ..network.clone() }
    }

    /// Whether packets of this version can leave it.
    pub(super) fn sends(&self, family: Family) -> bool {
        family == Family::V4 || !self.lacks_ipv6
    }

    /// The networks that it is directly connected to, each once.
    pub(super) fn local(&self) -> Vec<IpNet> {
        let mut networks: Vec<IpNet> = self.local.iter().map(|(network, _)| *network).collect();
        networks.dedup();
        networks
    }

    /// Those networks, each with the index of its interface.
    pub(super) fn local_links(&self) -> &[(IpNet, u32)] {
        &self.local
    }
}

/// The networks behind these addresses of the machine that the kernel looks for on the address's
/// link: for others, which have lost their link, it would take the default route. What never leaves
/// the machine or its link needs no route: the kernel's own rule for local addresses comes first,
/// and link-local IPv6 addresses name their interface.
fn local_networks(own: &[LocalAddress], routes: &[LocalRoute]) -> Vec<(IpNet, u32)> {
    let is_connected = |(network, interface): &(IpNet, u32)| {
        let place = (*network, MAIN_TABLE, Some(*interface));
        let leads_there = |route: &LocalRoute| (route.destination, route.table, route.interface) == place;
        routes.iter().any(|route| route.is_connected && leads_there(route))
    };
    let mut networks: Vec<(IpNet, u32)> = own
        .iter()
        .map(|own| (own.address, own.interface))
        .filter(|(net, _)| net.prefix_len() < net.max_prefix_len() && !net.addr().is_loopback())
        .filter(|(net, _)| !matches!(net.addr(), IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .map(|(net, interface)| (net.trunc(), interface))
        .filter(is_connected)
        .collect();
    networks.sort();
    networks.dedup();
    networks
}

/// `network` without what the profile forbids or the machine can't have.
///
/// # Errors
/// If that is the client's own address, without which there is no tunnel.
pub(super) fn permitted(
    network: &Network,
    options: &TunnelOptions,
    machine: &HostNetworks,
) -> Result<Network, Forbidden> {
    let mut network = machine.usable(network);
    if let (Routes::Only(networks), true) = (&options.routes, options.set_routes) {
        // An address of an IP version without routes is of no use.
        network.ipv4 = network.ipv4.filter(|_| networks.iter().any(|net| net.addr().is_ipv4()));
        network.ipv6 = network.ipv6.filter(|_| networks.iter().any(|net| net.addr().is_ipv6()));
    }
    let own = [network.ipv4.map(IpAddr::from), network.ipv6.map(IpAddr::from)];
    for address in own.into_iter().flatten() {
        check_own(address, options, machine)?;
    }
    // Without one a full tunnel would have no routes, and everything would leave in clear.
    if own == [None, None] && options.set_routes {
        return Err(Forbidden::NoAddress);
    }
    let may_lead_into_tunnel = |address: IpAddr| {
        is_host(address) && !machine.addresses.contains(&address) && contains(&options.routes, address)
    };
    network.gateway_ipv4 = network.gateway_ipv4.filter(|address| may_lead_into_tunnel((*address).into()));
    network.gateway_ipv6 = network.gateway_ipv6.filter(|address| may_lead_into_tunnel((*address).into()));
    permit_dns(&mut network, options);
    Ok(network)
}

/// Says in the log what of `network` the machine can't have or the profile forbids, if `permitted`
/// is in force: settings that are refused are tried again and again.
pub(super) fn log_left_out(
    network: &Network,
    permitted: &Network,
    options: &TunnelOptions,
    machine: &HostNetworks,
) {
    if machine.without_ipv6 && network.ipv6.is_some() {
        tracing::warn!("IPv6 is switched off on this machine: the tunnel carries IPv4 only");
    }
    for AsText(server) in network.dns.iter().filter(|server| options.dns && !permitted.dns.contains(server)) {
        tracing::warn!(%server, "not used: 'routes' of the profile does not contain this name server of the gateway");
    }
}

/// Whether the client may have this address.
fn check_own(address: IpAddr, options: &TunnelOptions, machine: &HostNetworks) -> Result<(), Forbidden> {
    if !is_host(address) {
        return Err(Forbidden::NoHost(address));
    }
    if machine.addresses.contains(&address) {
        return Err(Forbidden::InUse(address));
    }
    let elsewhere = || machine.networks.iter().any(|net| net.contains(&address));
    if contains(&options.routes, address) || is_private(address) && !elsewhere() {
        Ok(())
    } else {
        Err(Forbidden::Outside(address))
    }
}

/// Leaves the name servers that queries may go to, and without any no search domains.
fn permit_dns(network: &mut Network, options: &TunnelOptions) {
    let is_permitted = |AsText(server): &AsText<IpAddr>| {
        options.dns && is_host(*server) && contains(&options.routes, *server)
    };
    let permitted: Vec<_> = network.dns.iter().copied().filter(is_permitted).collect();
    if permitted.is_empty() {
        network.search = List::default();
    }
    network.dns = List::new(permitted).unwrap_or_default();
}

/// Whether the user lets packets for this address go into the tunnel.
fn contains(routes: &Routes, address: IpAddr) -> bool {
    match routes {
        Routes::Pushed | Routes::All => true,
        Routes::Only(networks) => networks.iter().any(|net| net.contains(&address)),
    }
}

/// Whether one machine can have this address beyond its own link.
fn is_host(address: IpAddr) -> bool {
    let nobodys = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !nobodys
        && match address {
            IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_broadcast() && v4.octets()[0] != 0,
            IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
        }
}

/// Whether it belongs to networks of which each has its own: RFC 1918, RFC 6598 and RFC 4193.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            v4.is_private() || u32::from(v4) & 0xFFC0_0000 == u32::from(Ipv4Addr::new(100, 64, 0, 0))
        }
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use vpnd_sys::logging::testing::logged_as_json;
    use vpnd_sys::testing::{in_namespace_async, run};

    const PRIVATE: &str = "10.86.0.9";
    const PRIVATE_V6: &str = "fd86::9";

    fn options(routes: Routes) -> TunnelOptions {
        TunnelOptions { routes, set_routes: true, dns: true, local_network: true, lookups: None }
    }

    fn only(networks: &[&str]) -> TunnelOptions {
        options(Routes::Only(networks.iter().map(|net| net.parse().unwrap()).collect()))
    }

    /// A machine that is connected to these networks.
    pub(in crate::parent) fn connected_to(local: &[IpNet]) -> HostNetworks {
        HostNetworks { local: local.iter().map(|net| (*net, 2)).collect(), ..HostNetworks::default() }
    }

    /// One whose kernel has no IPv6.
    pub(in crate::parent) fn lacking_ipv6() -> HostNetworks {
        HostNetworks { without_ipv6: true, lacks_ipv6: true, ..HostNetworks::default() }
    }

    fn machine() -> HostNetworks {
        HostNetworks {
            addresses: ["192.168.1.7", "192.168.1.1", "192.168.1.53", "2001:db8::1"]
                .map(|address| address.parse().unwrap())
                .into(),
            networks: vec!["192.168.1.0/24".parse().unwrap(), "fd01::/64".parse().unwrap()],
            local: Vec::new(),
            without_ipv6: false,
            lacks_ipv6: false,
        }
    }

    fn own(v4: &str, v6: &str) -> Network {
        Network { ipv4: v4.parse().ok(), ipv6: v6.parse().ok(), ..Network::default() }
    }

    fn refused(network: &Network, options: &TunnelOptions) -> Option<Forbidden> {
        permitted(network, options, &machine()).err()
    }

    #[test]
    fn an_inner_address_that_means_something_else_is_refused_whatever_is_routed() {
        for routes in [options(Routes::Pushed), options(Routes::All), only(&["0.0.0.0/0", "::/0"])] {
            assert_eq!(refused(&own(PRIVATE, PRIVATE_V6), &routes), None);
            for used in ["192.168.1.7", "192.168.1.1", "192.168.1.53"] {
                let expected = Some(Forbidden::InUse(used.parse().unwrap()));
                assert_eq!(refused(&own(used, PRIVATE_V6), &routes), expected);
            }
            assert_eq!(
                refused(&own("", "2001:db8::1"), &routes),
                Some(Forbidden::InUse("2001:db8::1".parse().unwrap()))
            );
            for nobody in ["127.0.0.53", "169.254.169.254", "224.0.0.251", "255.255.255.255", "0.0.0.0"] {
                let expected = Some(Forbidden::NoHost(nobody.parse().unwrap()));
                assert_eq!(refused(&own(nobody, ""), &routes), expected);
            }
            for nobody in ["::1", "fe80::1", "ff02::fb", "::", "::ffff:10.0.0.1"] {
                let expected = Some(Forbidden::NoHost(nobody.parse().unwrap()));
                assert_eq!(refused(&own("", nobody), &routes), expected);
            }
        }
    }

    #[test]
    fn with_routes_of_the_users_own_an_inner_address_is_private_or_among_them() {
        let routes = only(&["10.200.0.0/24", "fd20::/64"]);
        assert_eq!(refused(&own(PRIVATE, PRIVATE_V6), &routes), None);
        assert_eq!(refused(&own("100.64.0.9", ""), &routes), None);
        for captured in ["8.8.8.8", "192.168.1.77", "2001:4860:4860::8888", "fd01::77"] {
            let network = if captured.contains(':') { own("", captured) } else { own(captured, "") };
            let expected = Some(Forbidden::Outside(captured.parse().unwrap()));
            assert_eq!(refused(&network, &routes), expected, "{captured}");
            assert_eq!(refused(&network, &options(Routes::All)), None, "{captured}");
            let named = only(&[&format!("{captured}/{}", if captured.contains(':') { 128 } else { 32 })]);
            assert_eq!(refused(&network, &named), None, "{captured} is named in the profile");
        }
        let by_hand = TunnelOptions { set_routes: false, ..routes };
        assert!(refused(&own("8.8.8.8", ""), &by_hand).is_some(), "also if routes are set by hand");
    }

    #[test]
    fn a_version_that_nothing_is_routed_of_gets_no_address() {
        let given = permitted(&own(PRIVATE, "2001:4860::9"), &only(&["10.200.0.0/24"]), &machine()).unwrap();
        assert_eq!((given.ipv4.is_some(), given.ipv6), (true, None));
        let without = HostNetworks { without_ipv6: true, ..machine() };
        let given = permitted(&own(PRIVATE, PRIVATE_V6), &options(Routes::All), &without).unwrap();
        assert_eq!((given.ipv4.is_some(), given.ipv6), (true, None));
    }

    #[test]
    fn a_tunnel_without_an_address_is_refused_and_leaves_nothing_open() {
        let without = HostNetworks { without_ipv6: true, ..machine() };
        let v6_alone = own("", PRIVATE_V6);
        for routes in [options(Routes::All), options(Routes::Pushed), only(&["0.0.0.0/0", "::/0"])] {
            assert!(permitted(&v6_alone, &routes, &machine()).is_ok());
            assert_eq!(permitted(&v6_alone, &routes, &without).err(), Some(Forbidden::NoAddress));
            assert_eq!(refused(&own("", ""), &routes), Some(Forbidden::NoAddress));
        }
        assert_eq!(refused(&v6_alone, &only(&["0.0.0.0/0"])), Some(Forbidden::NoAddress));
    }

    #[test]
    fn ipv6_that_is_switched_off_later_is_not_wanted_any_more() {
        let network = own(PRIVATE, PRIVATE_V6);
        assert_eq!(machine().usable(&network), network);
        let without = HostNetworks { without_ipv6: true, ..machine() };
        assert_eq!(without.usable(&network), own(PRIVATE, ""));
    }

    #[test]
    fn a_network_is_local_while_the_kernel_looks_for_it_on_its_link() {
        in_namespace_async(async || {
            let ip = |line: &str| run("ip", &line.split(' ').collect::<Vec<_>>());
            for line in [
                "link add vp0 type veth peer name vp1",
                "address add 192.168.1.2/24 dev vp0",
                "address add 192.168.1.3/32 dev vp0",
                "link set vp0 up",
                "link set vp1 up",
                "address add fd77::2/64 dev vp0 nodad",
                // A hotspot that wants packets for other hosts of the network sent to its router.
                "address add fd78::2/64 dev vp0 nodad noprefixroute",
            ] {
                ip(line);
            }
            let netlink = Netlink::open().unwrap();
            let local = async || {
                let machine = HostNetworks::read(&netlink, "vpn0", u32::MAX, Vec::new()).await.unwrap();
                machine.local().iter().map(IpNet::to_string).collect::<Vec<_>>()
            };
            assert_eq!(local().await, ["192.168.1.0/24", "fd77::/64"]);
            ip("route del 192.168.1.0/24 dev vp0");
            ip("route add 192.168.1.0/24 via 192.168.1.1 dev vp0 onlink");
            assert_eq!(local().await, ["fd77::/64"], "packets go to a router");
            ip("link set vp0 down");
            assert!(ip("address show dev vp0").contains("192.168.1.2/24"), "the kernel keeps it");
            assert!(local().await.is_empty());
            ip("link set vp0 up");
            assert_eq!(local().await, ["192.168.1.0/24"]);
        });
    }

    #[test]
    fn a_gateway_address_leads_into_the_tunnel_only_where_routes_do() {
        let named = |v4: &str| Network { gateway_ipv4: v4.parse().ok(), ..own(PRIVATE, "") };
        let kept = |v4: &str, options: &TunnelOptions| {
            permitted(&named(v4), options, &machine()).unwrap().gateway_ipv4.is_some()
        };
        assert!(kept("10.86.0.1", &options(Routes::Pushed)));
        assert!(!kept("10.86.0.1", &only(&["10.200.0.0/24"])), "nobody asked for it");
        assert!(!kept("8.8.8.8", &only(&["10.200.0.0/24"])));
        assert!(kept("10.200.0.1", &only(&["10.200.0.0/24"])));
        for captured in ["192.168.1.1", "127.0.0.1", "224.0.0.1"] {
            assert!(!kept(captured, &options(Routes::Pushed)), "{captured}");
        }
    }

    #[test]
    fn what_is_left_out_is_logged_only_once_the_rest_is_in_force() {
        let machine = HostNetworks { without_ipv6: true, ..machine() };
        let servers = ["10.200.0.53", "8.8.8.8"].map(|server| AsText(server.parse().unwrap()));
        let network = Network { dns: List::new(servers.into()).unwrap(), ..own(PRIVATE, PRIVATE_V6) };
        let (options, mut given) = (only(&["10.200.0.0/24"]), Network::default());
        let attempts = logged_as_json(|| given = permitted(&network, &options, &machine).unwrap());
        assert_eq!(attempts, Vec::<serde_json::Value>::new());
        let lines = logged_as_json(|| log_left_out(&network, &given, &options, &machine));
        let messages: Vec<_> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
        assert!(messages.len() == 2 && messages[0].contains("IPv4 only"), "{lines:?}");
        assert_eq!(lines[1]["server"], "8.8.8.8");
    }

    #[test]
    fn only_permitted_name_servers_are_used() {
        let servers = ["10.200.0.53", "8.8.8.8", "127.0.0.1", "fe80::53"];
        let network = Network {
            dns: List::new(servers.map(|server| AsText(server.parse().unwrap())).into()).unwrap(),
            search: List::new(vec![vpnd_proto::control::Text::new("corp.example").unwrap()]).unwrap(),
            ..own(PRIVATE, "")
        };
        let left = |options: &TunnelOptions| {
            let network = permitted(&network, options, &machine()).unwrap();
            (network.dns.iter().map(|server| server.0.to_string()).collect::<Vec<_>>(), network.search.len())
        };
        assert_eq!(left(&options(Routes::Pushed)), (vec!["10.200.0.53".to_owned(), "8.8.8.8".to_owned()], 1));
        assert_eq!(left(&only(&["10.200.0.0/24"])), (vec!["10.200.0.53".to_owned()], 1));
        assert_eq!(left(&only(&["10.9.0.0/24"])), (vec![], 0), "no server, no search domains");
        assert_eq!(left(&TunnelOptions { dns: false, ..options(Routes::All) }), (vec![], 0));
    }
}
