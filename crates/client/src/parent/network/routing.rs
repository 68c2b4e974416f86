//! Decides what a client's tunnel takes, which local networks it leaves alone, and which protocol
//! version is refused.
//!
//! The table of a tunnel is looked up before the system's own, so whatever it has a route for, no
//! route that the local network hands out (DHCP option 121, router advertisements) leads elsewhere,
//! however specific that is. The exceptions are made here: a network that the machine is directly
//! connected to goes back to the system's table, if the profile permits that and the network is
//! plausible. A local network chooses its own addresses, so one that could be there to capture
//! something (public, very wide, where the tunnel's name servers or pushed networks are) is no
//! exception.
//!
//! Pure: what the machine is connected to is an argument.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use vpnd_proto::control::Network;

use super::TunnelOptions;
use crate::parent::permission::HostNetworks;
use vpnd_config::profile::Routes;
use vpnd_sys::change::is_plausible_local;
use vpnd_sys::netlink::Family;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Contents of the tunnel's routing table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Routing {
    /// Destinations that lead into the tunnel.
    pub(super) destinations: Vec<IpNet>,
    /// Whether nothing may leave without the tunnel.
    pub(super) is_full: bool,
    /// Protocol versions of which a full tunnel does not carry everything: the rest is refused on
    /// this machine.
    pub(super) refused: Vec<Family>,
    /// Networks of the machine that a destination contains or touches, and which of both wins.
    pub(super) overlaps: Vec<Overlap>,
}

/// A directly connected network that shares addresses with what the tunnel takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    /// The machine's network.
    pub(super) local: IpNet,
    /// The network that the tunnel takes.
    pub(super) taken: IpNet,
    /// The reason why the tunnel wins; `None` if the local network does.
    pub(super) lost: Option<Why>,
}

/// Reason why a local network gets no exception from the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Profile,
    /// It is not of addresses that a local network has, or wider than one is.
    Implausible,
    /// A pushed network is equal to it or inside it.
    Pushed(IpNet),
    /// A name server of the tunnel is inside it.
    NameServer(IpAddr),
    /// An inner address is inside it.
    Inner(IpAddr),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Profile => f.write_str("'local_network' of the profile is false"),
            Self::Implausible => f.write_str(
                "it is public, or wider than a local network is (/16, IPv6 /48), so it could be there to capture traffic",
            ),
            Self::Pushed(net) => write!(f, "the gateway names {net}, which is as specific or more"),
            Self::NameServer(server) => write!(f, "the tunnel's name server {server} has an address of it"),
            Self::Inner(address) => write!(f, "the tunnel's own address {address} belongs to it"),
        }
    }
}

impl Overlap {
    /// Says in the log which of both wins.
    pub(super) fn log(&self) {
        let Self { local, taken, lost } = self;
        match lost {
            None => tracing::info!(
                %local, %taken,
                "the tunnel contains the local network, which stays outside of it and reachable; 'local_network = false' in \
                 the profile would take it in"
            ),
            Some(reason) => tracing::warn!(
                %local, %taken, %reason,
                "the tunnel contains the local network, which goes into it: its hosts are not reachable meanwhile"
            ),
        }
    }
}

impl Routing {
    /// Decides for a tunnel with these options and this offer of the gateway, on this machine.
    pub(super) fn new(options: &TunnelOptions, network: &Network, machine: &HostNetworks) -> Self {
        let destinations = destinations(options, network);
        let whole = |family: &Family| {
            IpNet::aggregate(&destinations_of(&destinations, *family).copied().collect())
                .contains(&everything(*family))
        };
        let has_address = network.ipv4.is_some() || network.ipv6.is_some();
        // Two halves are a whole, too.
        let is_full = options.set_routes
            && has_address
            && (options.routes == Routes::All || FAMILIES.iter().any(whole));
        let leaves = |family: &Family| !whole(family) && machine.sends(*family);
        let refused = FAMILIES.into_iter().filter(|family| is_full && leaves(family)).collect();
        let mut routing = Self { destinations, is_full, refused, overlaps: Vec::new() };
        let local = machine.local().into_iter();
        routing.overlaps = local.filter_map(|net| routing.overlap(net, options, network)).collect();
        routing
    }

    /// The local networks that stay outside the tunnel.
    pub(super) fn outside(&self) -> impl Iterator<Item = IpNet> {
        self.overlaps.iter().filter(|overlap| overlap.lost.is_none()).map(|overlap| overlap.local)
    }

    /// The protocol versions that the tunnel's table has routes of.
    pub(super) fn families(&self) -> impl Iterator<Item = Family> {
        let has = |family: &Family| {
            self.refused.contains(family) || destinations_of(&self.destinations, *family).next().is_some()
        };
        FAMILIES.into_iter().filter(has)
    }

    /// The overlap of the tunnel with a local network, if the tunnel contains all of it.
    fn overlap(&self, local: IpNet, options: &TunnelOptions, network: &Network) -> Option<Overlap> {
        let refused = self.refused.iter().map(|family| everything(*family));
        let taking = self.destinations.iter().copied().chain(refused);
        let taken = taking.filter(|net| net.contains(&local)).max_by_key(IpNet::prefix_len)?;
        Some(Overlap { local, taken, lost: why_lost(local, &self.destinations, options, network) })
    }
}

/// The reason why a local network gets no exception; `None` if it gets one.
fn why_lost(local: IpNet, destinations: &[IpNet], options: &TunnelOptions, network: &Network) -> Option<Why> {
    if !options.local_network {
        return Some(Why::Profile);
    }
    if !is_plausible_local(local) {
        return Some(Why::Implausible);
    }
    let inner = [
        network.ipv4.map(IpAddr::from),
        network.ipv6.map(IpAddr::from),
        network.gateway_ipv4.map(IpAddr::from),
        network.gateway_ipv6.map(IpAddr::from),
    ];
    if let Some(address) = inner.into_iter().flatten().find(|address| local.contains(address)) {
        return Some(Why::Inner(address));
    }
    let servers = network.dns.iter().map(|server| server.0);
    if let Some(server) = servers.into_iter().find(|server| options.dns && local.contains(server)) {
        return Some(Why::NameServer(server));
    }
    // With "all", too, what the gateway names counts for more than everything else.
    let named: Vec<IpNet> = match options.routes {
        Routes::Pushed | Routes::All => network.routes.iter().map(|route| route.0.trunc()).collect(),
        Routes::Only(_) => Vec::new(),
    };
    let inside = destinations.iter().copied().chain(named).find(|net| local.contains(net));
    inside.map(Why::Pushed)
}

fn destinations_of(destinations: &[IpNet], family: Family) -> impl Iterator<Item = &IpNet> {
    destinations.iter().filter(move |net| Family::of(net.addr()) == family)
}

/// The tunnel's destinations: those that the user or the gateway names, and the gateway itself.
/// Only of the protocol versions that the client has an inner address of.
pub(super) fn destinations(options: &TunnelOptions, network: &Network) -> Vec<IpNet> {
    if !options.set_routes {
        return Vec::new();
    }
    let mut wanted: Vec<IpNet> = match &options.routes {
        Routes::Pushed => network.routes.iter().map(|cidr| cidr.0).collect(),
        Routes::All => vec![everything(Family::V4), everything(Family::V6)],
        Routes::Only(networks) => networks.clone(),
    };
    wanted.extend(network.gateway_ipv4.map(|address| IpNet::from(IpAddr::from(address))));
    wanted.extend(network.gateway_ipv6.map(|address| IpNet::from(IpAddr::from(address))));
    if options.dns {
        // Queries go to them through the tunnel, whatever else does.
        let servers = network.dns.iter().map(|server| server.0);
        let outside = servers.filter(|server| !wanted.iter().any(|net| net.contains(server)));
        wanted.extend(outside.map(IpNet::from).collect::<Vec<_>>());
    }
    let mut destinations: Vec<IpNet> = Vec::new();
    for net in wanted.into_iter().map(|net| net.trunc()) {
        if has_address_for(network, net.addr()) && !destinations.contains(&net) {
            destinations.push(net);
        }
    }
    destinations
}

/// Whether the client has an inner address that it could talk to this one from.
pub(super) fn has_address_for(network: &Network, address: IpAddr) -> bool {
    own_address(network, address).is_some()
}

/// The client's inner address of this one's protocol version.
pub(super) fn own_address(network: &Network, address: IpAddr) -> Option<IpAddr> {
    if address.is_ipv4() { network.ipv4.map(IpAddr::from) } else { network.ipv6.map(IpAddr::from) }
}

/// All addresses of a protocol version.
pub(super) fn everything(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::V4(ipnet::Ipv4Net::default()),
        Family::V6 => IpNet::V6(ipnet::Ipv6Net::default()),
    }
}

#[cfg(test)]
pub(super) mod tests;
