//! What a client changes on its machine: addresses, routes and DNS of the tunnel, all through the undo journal.
//!
//! Routes of the tunnel stand in a table of their own, which all packets are looked up in but the tunnel's own
//! datagrams (they carry a mark). So the way to the gateway can't lead into the tunnel, whatever routes are pushed.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use vpnd_proto::client::DEFAULT_MTU;
use vpnd_proto::control::Network;
use vpnd_proto::wire::HEADER_LEN;

use crate::config::MIN_MTU;
use crate::journal::{ChangeId, Journal, JournalError};
use crate::profile::Routes;
use crate::sys::change::Change;
use crate::sys::dns::{DnsChange, DnsError, DnsSettings, DnsSystem};
use crate::sys::netlink::{
    AddressSpec, Family, MAIN_TABLE, Netlink, NetlinkError, RouteSpec, RouteTarget, RuleMatch, RuleSpec,
};
use crate::sys::udp::MAX_GSO_BYTES;

/// Mark of the tunnel's own datagrams ("vp").
pub(super) const MARK: u32 = 0x7670;
/// First of our routing tables; each tunnel adds its interface's index.
const TABLE_BASE: u32 = 30_000;
/// First priority of our rules, before the system's own at 32766.
const PRIORITY_BASE: u32 = 5_200;
/// Tunnels that find different priorities.
const PRIORITIES: u32 = 1_000;
/// What a standard suite adds to a packet, in bytes.
const TAG_LEN: usize = 16;

/// Why the machine's network could not be set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum NetworkError {
    /// A change failed or could not be written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused something that needs no undoing.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Name servers can't be set.
    #[error(transparent)]
    Dns(#[from] DnsError),
}

/// What the user wants of the tunnel.
#[derive(Clone, Debug)]
pub(super) struct Wishes {
    /// What goes into the tunnel; `None` leaves the machine's routes as they are.
    pub(super) routes: Option<Routes>,
    /// Whether to use the gateway's DNS servers.
    pub(super) dns: bool,
}

/// The changes that are in force.
pub(super) struct NetworkSetup {
    netlink: Netlink,
    journal: Journal,
    interface: String,
    interface_index: u32,
    wishes: Wishes,
    mtu: u16,
    active: Vec<ChangeId>,
}

impl NetworkSetup {
    /// Opens the journal in `state_dir`; nothing is changed yet.
    ///
    /// # Errors
    /// If the journal can't be kept: then nothing may be changed.
    pub(super) fn new(
        state_dir: &Path,
        interface: &str,
        interface_index: u32,
        wishes: Wishes,
    ) -> Result<Self, NetworkError> {
        let netlink = Netlink::open()?;
        let journal = Journal::create(state_dir)?;
        Ok(Self {
            netlink,
            journal,
            interface: interface.to_owned(),
            interface_index,
            wishes,
            mtu: DEFAULT_MTU,
            active: Vec::new(),
        })
    }

    /// Replaces what is set by what `network` says.
    ///
    /// # Errors
    /// If a change was refused; the ones before it stay in force until the next call or [`NetworkSetup::undo`].
    pub(super) async fn apply(&mut self, network: &Network) -> Result<(), NetworkError> {
        for id in self.active.drain(..).rev() {
            self.journal.undo(&self.netlink, id).await?;
        }
        self.set_mtu(self.mtu).await?;
        let mut changes = self.addresses(network);
        changes.push(Change::LinkUp { interface: self.interface.clone() });
        changes.extend(self.routes(network));
        changes.extend(self.dns(network)?.map(Change::Dns));
        for change in changes {
            self.active.push(self.journal.apply(&self.netlink, change).await?);
        }
        Ok(())
    }

    /// Sets what the tunnel's device carries; never less than IPv6 needs, for the kernel would take IPv6 from it. This
    /// needs no undoing: the device goes with the client.
    ///
    /// # Errors
    /// If the kernel refused.
    pub(super) async fn set_mtu(&mut self, mtu: u16) -> Result<(), NetworkError> {
        self.mtu = mtu.max(MIN_MTU);
        self.netlink.set_mtu(&self.interface, self.mtu.into()).await?;
        let super_packet = super_packet_len(self.mtu);
        if let Err(error) = self.netlink.set_gso_max_size(&self.interface, super_packet).await {
            tracing::debug!(%error, "super-packets will not fit one send");
        }
        Ok(())
    }

    /// Takes everything back and removes the journal.
    pub(super) async fn undo(self) {
        let report = self.journal.undo_all(&self.netlink).await;
        for change in &report.not_ours {
            tracing::warn!(%change, "left as it is: someone else has changed it since");
        }
        for error in &report.failed {
            tracing::error!(%error, "not undone; `vpnd cleanup` tries again");
        }
    }

    fn addresses(&self, network: &Network) -> Vec<Change> {
        host_addresses(network)
            .into_iter()
            .map(|address| Change::Address(AddressSpec { interface: self.interface.clone(), address }))
            .collect()
    }

    fn routes(&self, network: &Network) -> Vec<Change> {
        let table = TABLE_BASE + self.interface_index;
        let destinations = destinations(self.wishes.routes.as_ref(), network);
        let mut changes: Vec<Change> = destinations
            .iter()
            .map(|&destination| {
                let target = RouteTarget::Interface(self.interface.clone());
                Change::Route(RouteSpec { destination, target, table, metric: None })
            })
            .collect();
        for family in [Family::V4, Family::V6] {
            let mut of_family = destinations.iter().filter(|net| Family::of(net.addr()) == family).peekable();
            if of_family.peek().is_none() {
                continue;
            }
            let priority = PRIORITY_BASE + 2 * (self.interface_index % PRIORITIES);
            if of_family.any(|net| net.prefix_len() == 0) {
                // Networks that the machine is directly connected to stay reachable.
                let matches = RuleMatch::IgnoringPrefixesUpTo(0);
                changes.push(Change::Rule(RuleSpec { family, priority, matches, table: MAIN_TABLE }));
            }
            let matches = RuleMatch::NotMarked(MARK);
            changes.push(Change::Rule(RuleSpec { family, priority: priority + 1, matches, table }));
        }
        changes
    }

    fn dns(&self, network: &Network) -> Result<Option<DnsChange>, DnsError> {
        if !self.wishes.dns || network.dns.is_empty() {
            return Ok(None);
        }
        let settings = DnsSettings {
            interface: self.interface.clone(),
            servers: network.dns.iter().map(|server| server.0).collect(),
            search: network.search.iter().map(|domain| domain.to_string()).collect(),
            all_names: network.search.is_empty(),
        };
        DnsChange::plan(&settings, &DnsSystem::default()).map(Some)
    }
}

/// The largest super-packet whose slices fit one send, in bytes. TCP fills super-packets with whole segments, after it has
/// put aside what the kernel's longest headers may take.
fn super_packet_len(mtu: u16) -> u32 {
    const LONGEST_HEADERS: usize = 384;
    const HEADERS_WITH_TIMESTAMPS: usize = 52;
    let slices = MAX_GSO_BYTES / (HEADER_LEN + usize::from(mtu) + TAG_LEN);
    let payload = slices * usize::from(mtu).saturating_sub(HEADERS_WITH_TIMESTAMPS);
    u32::try_from((payload + LONGEST_HEADERS).min(65_536)).expect("64 KiB fit")
}

/// The client's inner addresses, each as a network of one host.
pub(super) fn host_addresses(network: &Network) -> Vec<IpNet> {
    let ipv4 = network.ipv4.map(|address| IpNet::from(IpAddr::from(address)));
    let ipv6 = network.ipv6.map(|address| IpNet::from(IpAddr::from(address)));
    ipv4.into_iter().chain(ipv6).collect()
}

/// Where the tunnel leads: what the user or the gateway names, and the gateway itself. Only of the protocol versions
/// that the client has an inner address of.
fn destinations(wishes: Option<&Routes>, network: &Network) -> Vec<IpNet> {
    let Some(routes) = wishes else { return Vec::new() };
    let mut wanted: Vec<IpNet> = match routes {
        Routes::Pushed => network.routes.iter().map(|cidr| cidr.0).collect(),
        Routes::All => vec![default_route(false), default_route(true)],
        Routes::Only(networks) => networks.clone(),
    };
    wanted.extend(network.gateway_ipv4.map(|address| IpNet::from(IpAddr::from(address))));
    wanted.extend(network.gateway_ipv6.map(|address| IpNet::from(IpAddr::from(address))));
    let mut destinations: Vec<IpNet> = Vec::new();
    for net in wanted.into_iter().map(|net| net.trunc()) {
        let possible = if net.addr().is_ipv4() { network.ipv4.is_some() } else { network.ipv6.is_some() };
        if possible && !destinations.contains(&net) {
            destinations.push(net);
        }
    }
    destinations
}

fn default_route(ipv6: bool) -> IpNet {
    if ipv6 { IpNet::V6(ipnet::Ipv6Net::default()) } else { IpNet::V4(ipnet::Ipv4Net::default()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_proto::control::{AsText, List};

    fn network() -> Network {
        Network {
            ipv4: Some([10, 86, 0, 9].into()),
            gateway_ipv4: Some([10, 86, 0, 1].into()),
            routes: List::new(vec![
                AsText("192.0.2.0/24".parse().unwrap()),
                AsText("2001:db8::/32".parse().unwrap()),
            ])
            .unwrap(),
            ..Network::default()
        }
    }

    fn texts(nets: &[IpNet]) -> Vec<String> {
        nets.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_routes_of_versions_that_the_client_speaks_are_set() {
        let pushed = destinations(Some(&Routes::Pushed), &network());
        assert_eq!(texts(&pushed), ["192.0.2.0/24", "10.86.0.1/32"]);
        assert_eq!(texts(&destinations(Some(&Routes::All), &network())), ["0.0.0.0/0", "10.86.0.1/32"]);
        assert_eq!(texts(&host_addresses(&network())), ["10.86.0.9/32"]);
    }

    #[test]
    fn the_users_own_choice_comes_first() {
        let only = Routes::Only(vec!["198.51.100.7/24".parse().unwrap()]);
        assert_eq!(texts(&destinations(Some(&only), &network())), ["198.51.100.0/24", "10.86.0.1/32"]);
        assert!(destinations(None, &network()).is_empty());
    }
}
