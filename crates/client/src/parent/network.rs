//! A client's changes to its machine, all through the undo journal: addresses and routes
//! ([`TunnelRoutes`]), name servers ([`TunnelDns`]) and the firewall's part ([`Firewall`]) of the
//! tunnel. Each knows which of its changes are in force; here is the order in which they change.
//!
//! Routes of the tunnel stand in a separate table ([`routing`]), which all packets are looked
//! up in before the system's but the tunnel's own datagrams (they carry a mark) and what the
//! process asks that looks up the gateway's name (it runs as a separate user). So the way to the
//! gateway can't lead into the tunnel, whatever routes are pushed, and no route of the local
//! network leads around it.

use std::net::IpAddr;

use ipnet::IpNet;
use vpnd_proto::client::DEFAULT_MTU;
use vpnd_proto::control::Network;

use super::permission::{self, Forbidden, HostNetworks};
use super::stop::Stop;
use super::tunnel_dns::TunnelDns;
use firewall::Firewall;
use renewals::Renewals;
use routes::TunnelRoutes;
use routing::{Routing, has_address_for};
use vpnd_config::profile::Routes;
use vpnd_config::{MAX_MTU, MIN_MTU};
use vpnd_journal::{Journal, JournalDirectory, JournalError};
use vpnd_sys::change::Layer;
use vpnd_sys::clock::now;
use vpnd_sys::dns::{DnsError, DnsSettings};
use vpnd_sys::netlink::{Family, Netlink, NetlinkError};
use vpnd_sys::nft::NftError;

mod firewall;
mod guard;
mod in_force;
mod other_tunnels;
mod presence;
mod renewals;
mod routes;
mod routing;
mod table;

#[derive(Debug, thiserror::Error)]
pub(super) enum NetworkError {
    /// A change failed or could not be written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused something that needs no undoing.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// The guard can't be read.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// The gateway's settings are not permitted here.
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// A signal ends the client; what was changed is undone.
    #[error("the client is ending")]
    Ending,
    /// All that the tunnel may use belongs to other programs.
    #[error(
        "each routing table that the tunnel could have holds foreign routes, or rules name it: remove some of them \
         (`ip route show table all`, `ip rule`), then connect again"
    )]
    NoTable,
}

impl NetworkError {
    /// Whether the same settings are refused as long as nothing else changes on this machine.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Forbidden(_) | Self::NoTable)
    }
}

/// The user's settings for the tunnel.
#[derive(Clone, Debug)]
pub(super) struct TunnelOptions {
    /// Destinations that may be routed into the tunnel.
    pub(super) routes: Routes,
    /// Whether to set routes for that; otherwise the machine's stay as they are.
    pub(super) set_routes: bool,
    /// Whether to use the gateway's DNS servers.
    pub(super) dns: bool,
    /// Whether networks that the machine is directly connected to stay outside the tunnel.
    pub(super) local_network: bool,
    /// The user as whom the gateway's name is looked up: outside the tunnel, for the lookup may
    /// happen while the tunnel is dead.
    pub(super) lookups: Option<u32>,
}

/// The tunnel's device, and the way to change the machine for it.
struct TunnelLink {
    netlink: Netlink,
    journal: Journal,
    interface: String,
    index: u32,
    layer: Layer,
}

/// The changes that are in force.
pub(super) struct NetworkSetup {
    link: TunnelLink,
    options: TunnelOptions,
    mtu: u16,
    in_force: Option<InForce>,
    routes: TunnelRoutes,
    dns: TunnelDns,
    firewall: Firewall,
    renewals: Renewals,
}

/// The gateway's last settings, and what was made of them.
#[derive(Clone)]
struct InForce {
    /// The settings that the profile permits.
    permitted: Network,
    /// Those of them that the machine takes now.
    usable: Network,
    routing: Routing,
}

impl NetworkSetup {
    /// Opens the journal in `journals`; nothing is changed yet. To be called when nothing can stop
    /// the client's start any more, for only [`NetworkSetup::undo`] removes the journal.
    ///
    /// # Errors
    /// If the journal can't be kept: then nothing may be changed.
    pub(super) fn new(
        journals: &JournalDirectory,
        interface: &str,
        index: u32,
        layer: Layer,
        options: TunnelOptions,
        stop: Stop,
    ) -> Result<Self, NetworkError> {
        let (netlink, journal) = (Netlink::open()?, Journal::create(journals)?);
        let link = TunnelLink { netlink, journal, interface: interface.to_owned(), index, layer };
        Ok(Self {
            link,
            options,
            mtu: DEFAULT_MTU,
            in_force: None,
            routes: TunnelRoutes::new(stop),
            dns: TunnelDns::new(index),
            firewall: Firewall::default(),
            renewals: Renewals::new(),
        })
    }

    /// The connection to the kernel.
    pub(super) fn netlink(&self) -> &Netlink {
        &self.link.netlink
    }

    /// The number of the tunnel's interface.
    pub(super) fn interface_index(&self) -> u32 {
        self.link.index
    }

    /// Replaces the settings in force by those of `offer`, as far as the profile permits them.
    /// New settings are added before old ones are removed, so that no packet finds neither.
    ///
    /// # Errors
    /// If the profile forbids it, or a change was refused; the changes before it stay in force
    /// until the next call or [`NetworkSetup::undo`].
    pub(super) async fn apply(&mut self, offer: &Network) -> Result<(), NetworkError> {
        let name_servers = self.dns.own_servers();
        let machine =
            HostNetworks::read(&self.link.netlink, &self.link.interface, self.link.index, name_servers)
                .await?;
        let network = &permission::permitted(offer, &self.options, &machine)?;
        let addresses: Vec<IpAddr> = host_addresses(network).iter().map(IpNet::addr).collect();
        let mut old_and_new = self.firewall.addresses();
        old_and_new
            .extend(addresses.iter().filter(|new| !old_and_new.contains(new)).copied().collect::<Vec<_>>());
        let routing = Routing::new(&self.options, network, &machine);
        self.pass_source_checks(&routing).await;
        self.guard(old_and_new).await?;
        self.set_mtu(self.mtu).await?;
        let obsolete = self.routes.make(&mut self.link, network, &routing).await?;
        // Name servers are set only while there is a route to them.
        let link = (self.link.interface.as_str(), self.link.index);
        self.dns.set(dns_settings(link, &self.options, network, &routing), routing.is_full);
        self.settle_dns().await?;
        self.routes.take_back(&mut self.link, obsolete).await?;
        let before = self.in_force.as_ref().map(|before| &before.routing.destinations);
        let has_new = before != Some(&routing.destinations);
        let (permitted, usable) = (network.clone(), network.clone());
        self.in_force = Some(InForce { permitted, usable, routing: routing.clone() });
        self.guard(addresses).await?;
        permission::log_left_out(offer, network, &self.options, &machine);
        log_refused(&routing);
        log_name_servers(&self.options, network, &routing);
        if has_new {
            other_tunnels::report(&self.link.netlink, self.link.index, &routing.destinations).await;
        }
        Ok(())
    }

    /// Returns whether the tunnel's interface exists, as far as that can be found out.
    pub(super) async fn has_interface(&self) -> bool {
        !matches!(self.link.netlink.interface_index(&self.link.interface).await, Ok(None))
    }

    /// Follows the machine to another local network: what it is directly connected to decides about
    /// exceptions from the tunnel. Puts back what other programs have removed, by comparison with
    /// the kernel.
    ///
    /// # Errors
    /// If the machine can't be read or a change was refused.
    pub(super) async fn follow(&mut self) -> Result<(), NetworkError> {
        let Some(before) = self.in_force.clone() else { return Ok(()) };
        let renewed = self.routes.renew(&self.link).await?;
        self.renewals.note(&renewed.removed, now());
        let machine =
            HostNetworks::read(&self.link.netlink, &self.link.interface, self.link.index, Vec::new()).await?;
        let usable = machine.usable(&before.permitted);
        let routing = Routing::new(&self.options, &usable, &machine);
        // An interface may have come that checks sources; a program may have put the setting back.
        self.pass_source_checks(&routing).await;
        self.guard(self.firewall.addresses()).await?;
        self.firewall.renew(&self.link, &mut self.renewals).await?;
        if routing == before.routing && usable == before.usable && renewed.is_alone {
            return renewed.failure.map_or(Ok(()), Err);
        }
        let obsolete = self.routes.make(&mut self.link, &usable, &routing).await?;
        self.routes.take_back(&mut self.link, obsolete).await?;
        self.in_force = Some(InForce { usable, routing, ..before });
        Ok(())
    }

    /// Has names looked up as without this tunnel, until [`NetworkSetup::end_lookups`]: it may lead
    /// nowhere.
    ///
    /// # Errors
    /// If a change was refused.
    pub(super) async fn begin_lookups(&mut self) -> Result<(), NetworkError> {
        self.dns.set_looking_up(true);
        self.settle_dns().await?;
        let Some(user) = self.options.lookups else { return Ok(()) };
        let is_full = self.is_full();
        self.routes.begin_lookups(&mut self.link, user, is_full).await
    }

    /// No name is looked up any more. To be called again after a failure, of
    /// [`NetworkSetup::begin_lookups`], too; does nothing if nothing is left to end.
    ///
    /// # Errors
    /// If a change could not be taken back; all others were.
    pub(super) async fn end_lookups(&mut self) -> Result<(), NetworkError> {
        if !self.dns.is_looking_up() && !self.routes.has_lookup_rules() {
            return Ok(());
        }
        self.dns.set_looking_up(false);
        let outcome = self.routes.end_lookups(&mut self.link).await;
        self.check_dns().await;
        outcome
    }

    /// Has the machine use the tunnel's DNS servers, if it has any, or its own, as without a
    /// tunnel.
    ///
    /// # Errors
    /// If they could not be set.
    pub(super) async fn use_tunnel_dns(&mut self, tunnel: bool) -> Result<(), NetworkError> {
        self.dns.set_reachable(tunnel);
        self.settle_dns().await.map(drop)
    }

    /// Has the machine use the DNS servers that it should use now, and keeps it from others where
    /// it should.
    async fn settle_dns(&mut self) -> Result<bool, NetworkError> {
        // Without the guard the machine gets its own name servers back nevertheless: a gateway that
        // has moved must be found.
        let guarded = self.guard(self.firewall.addresses()).await;
        let is_done = self.dns.settle(&mut self.link.journal, &self.link.netlink).await?;
        guarded.map(|()| is_done)
    }

    /// Has the machine use the DNS servers that it should use now, whatever other programs did.
    /// Returns whether that is done; otherwise another look is needed soon.
    pub(super) async fn check_dns(&mut self) -> bool {
        let outcome = self.settle_dns().await;
        self.dns.look_at_other_links();
        self.dns.checked(outcome)
    }

    /// A domain whose names are to be tried; see [`TunnelDns::take_untried`].
    pub(super) fn take_untried_names(&mut self) -> Option<String> {
        self.dns.take_untried()
    }

    /// Sets what the tunnel's device carries; never less than IPv6 needs, for the kernel would take
    /// IPv6 from it, nor more than a gateway may be configured with. This needs no undoing: the
    /// device goes with the client.
    ///
    /// The largest super-packet stays the kernel's: it cuts a longer one that it forwards here,
    /// from a container or a network behind this machine, into single segments.
    ///
    /// # Errors
    /// If the kernel refused.
    pub(super) async fn set_mtu(&mut self, mtu: u16) -> Result<(), NetworkError> {
        self.mtu = mtu.clamp(MIN_MTU, MAX_MTU);
        Ok(self.link.netlink.set_mtu(&self.link.interface, self.mtu.into()).await?)
    }

    /// Guards these addresses in place of those before, if there are some, by the rules that hold
    /// now: names closed or open, as the name servers that are to be in force demand.
    async fn guard(&mut self, addresses: Vec<IpAddr>) -> Result<(), NetworkError> {
        self.firewall.guard(&mut self.link, addresses, self.dns.closes_names()).await
    }

    /// Has the tunnel's own datagrams pass where sources are checked.
    async fn pass_source_checks(&mut self, routing: &Routing) {
        let Self { firewall, link, options, renewals, .. } = self;
        firewall.pass_source_checks(link, routing, options.lookups, renewals).await;
    }

    /// Whether settings are in force by which nothing may leave without the tunnel.
    pub(super) fn is_full(&self) -> bool {
        self.in_force.as_ref().is_some_and(|now| now.routing.is_full)
    }

    /// Whether names are looked up as without this tunnel.
    pub(super) fn is_looking_up(&self) -> bool {
        self.dns.is_looking_up() || self.routes.has_lookup_rules()
    }

    /// How often other programs have removed something.
    pub(super) fn renewals(&self) -> u64 {
        self.renewals.total()
    }

    /// Whether the guard may be other than it should be without a report of the kernel.
    pub(super) fn is_contested(&self) -> bool {
        self.firewall.is_contested()
    }

    /// Whether the machine's name servers are not those that they should be.
    pub(super) fn has_dns_problem(&self) -> bool {
        self.dns.has_problem()
    }

    /// Waits until another program may have removed or changed the guard. Safe to cancel.
    pub(super) async fn guard_disturbed(&mut self) {
        self.firewall.disturbed().await;
    }

    /// Takes everything back and removes the journal; returns whether that was all.
    pub(super) async fn undo(self) -> bool {
        let report = self.link.journal.undo_all(&self.link.netlink).await;
        for change in &report.not_ours {
            tracing::warn!(%change, "left as it is: another program has changed it since");
        }
        for error in &report.failed {
            tracing::error!(%error, "not undone; `vpnd cleanup` tries again");
        }
        report.is_complete()
    }
}

/// DNS settings while the tunnel is up; `None` leaves the machine's as they are.
fn dns_settings(
    (interface, index): (&str, u32),
    options: &TunnelOptions,
    network: &Network,
    routing: &Routing,
) -> Option<DnsSettings> {
    let servers = name_servers(options, network);
    if !options.dns || servers.is_empty() {
        return None;
    }
    Some(DnsSettings {
        interface: interface.to_owned(),
        index: Some(index),
        servers,
        search: network.search.iter().map(|domain| domain.to_string()).collect(),
        // With a full tunnel no name is for the local network's servers, whatever domains the
        // gateway names.
        all_names: network.search.is_empty() || routing.is_full,
    })
}

/// The client's inner addresses, each as a network of one host.
pub(super) fn host_addresses(network: &Network) -> Vec<IpNet> {
    let ipv4 = network.ipv4.map(|address| IpNet::from(IpAddr::from(address)));
    let ipv6 = network.ipv6.map(|address| IpNet::from(IpAddr::from(address)));
    ipv4.into_iter().chain(ipv6).collect()
}

/// Says in the log what a full tunnel keeps from leaving.
fn log_refused(routing: &Routing) {
    for family in &routing.refused {
        let version = if *family == Family::V4 { "IPv4" } else { "IPv6" };
        tracing::warn!(
            "the tunnel is for everything, and the gateway does not carry all of {version}: the rest of {version} is refused on \
             this machine, so that nothing leaves in clear"
        );
    }
}

/// Says in the log which name servers are not used, and if there are none for a full tunnel.
fn log_name_servers(options: &TunnelOptions, network: &Network, routing: &Routing) {
    let servers = name_servers(options, network);
    for server in network.dns.iter().map(|server| server.0).filter(|server| !servers.contains(server)) {
        tracing::warn!(%server, "not used: the tunnel has no address of the protocol version of this name server");
    }
    if routing.is_full && (!options.dns || servers.is_empty()) {
        tracing::warn!(
            "the tunnel is for everything but names: the machine goes on asking its own name servers, in clear if they are in \
             a local network that stays outside the tunnel"
        );
    }
}

/// The gateway's name servers that are reached through the tunnel. One of a protocol version that
/// the tunnel does not carry would be asked in clear.
fn name_servers(options: &TunnelOptions, network: &Network) -> Vec<IpAddr> {
    let mut servers: Vec<IpAddr> = network.dns.iter().map(|server| server.0).collect();
    if options.set_routes {
        servers.retain(|server| has_address_for(network, *server));
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parent::network::routing::tests::{network, options, texts};
    use crate::parent::permission::tests::connected_to;
    use vpnd_proto::control::{AsText, List};
    use vpnd_sys::testing::{in_namespace_async, run};

    #[test]
    fn name_servers_are_asked_through_the_tunnel_or_not_at_all() {
        let dns = ["192.0.2.53", "9.9.9.9", "2620:fe::9"].map(|server| AsText(server.parse().unwrap()));
        let network = Network { dns: List::new(dns.to_vec()).unwrap(), ..network() };
        let destinations = |options: &TunnelOptions| {
            texts(&Routing::new(options, &network, &connected_to(&[])).destinations)
        };
        let pushed = options(Routes::Pushed);
        assert_eq!(destinations(&pushed), ["192.0.2.0/24", "10.86.0.1/32", "9.9.9.9/32"]);
        let asked = name_servers(&pushed, &network);
        assert_eq!(asked, ["192.0.2.53", "9.9.9.9"].map(|server| server.parse::<IpAddr>().unwrap()));

        let without = TunnelOptions { dns: false, ..pushed };
        assert_eq!(destinations(&without), ["192.0.2.0/24", "10.86.0.1/32"]);
    }

    #[test]
    fn a_full_tunnel_asks_its_name_servers_for_all_names() {
        let network = Network {
            dns: List::new(vec![AsText("192.0.2.53".parse().unwrap())]).unwrap(),
            search: List::new(vec![vpnd_proto::control::Text::new("campus.example").unwrap()]).unwrap(),
            ..network()
        };
        let settings = |options: &TunnelOptions, network: &Network| {
            let routing = Routing::new(options, network, &connected_to(&[]));
            dns_settings(("vpn0", 7), options, network, &routing)
        };
        let all_names = |routes| settings(&options(routes), &network).map(|settings| settings.all_names);
        assert_eq!(all_names(Routes::Pushed), Some(false), "the domains are divided");
        assert_eq!(all_names(Routes::All), Some(true));
        let without_search = Network { search: List::default(), ..network.clone() };
        assert!(settings(&options(Routes::Pushed), &without_search).unwrap().all_names);
        assert_eq!(settings(&TunnelOptions { dns: false, ..options(Routes::All) }, &network), None);
    }

    #[test]
    fn a_signal_ends_long_work_between_two_steps() {
        in_namespace_async(async || {
            run("ip", &["tuntap", "add", "vp0", "mode", "tun"]);
            let index = Netlink::open().unwrap().interface_index("vp0").await.unwrap().unwrap();
            let place = tempfile::tempdir().unwrap();
            let journals = JournalDirectory::create(place.path()).unwrap();
            let options = TunnelOptions { dns: false, ..options(Routes::Pushed) };
            let setup = |stop| {
                NetworkSetup::new(&journals, "vp0", index, Layer::OLDEST, options.clone(), stop).unwrap()
            };
            let routes = || {
                let all = run("ip", &["route", "show", "table", "all"]);
                all.lines().filter(|line| line.contains(" table 30")).collect::<Vec<_>>().join("\n")
            };

            let mut ending = setup(Stop::fixed(Some("SIGTERM")));
            let outcome = ending.apply(&network()).await;
            assert!(matches!(outcome, Err(NetworkError::Ending)), "{outcome:?}");
            assert_eq!(routes(), "");
            ending.undo().await;
            assert!(
                !run("nft", &["list", "ruleset"]).contains("vpndguard"),
                "what was made before is undone"
            );

            let mut going = setup(Stop::fixed(None));
            going.apply(&network()).await.unwrap();
            assert!(routes().contains("192.0.2.0/24"), "{}", routes());
            going.undo().await;
            assert_eq!(routes(), "");
        });
    }

    #[test]
    fn a_route_that_was_withdrawn_on_a_full_disk_does_not_come_back() {
        in_namespace_async(async || {
            run("ip", &["tuntap", "add", "vp0", "mode", "tun"]);
            let index = Netlink::open().unwrap().interface_index("vp0").await.unwrap().unwrap();
            let place = tempfile::tempdir().unwrap();
            let disk = place.path().to_str().unwrap();
            run("mount", &["-t", "tmpfs", "-o", "size=512k,mode=0700", "tmpfs", disk]);
            let journals = JournalDirectory::create(place.path()).unwrap();
            let stop = Stop::fixed(None);
            let options = TunnelOptions { dns: false, ..options(Routes::Pushed) };
            let mut setup = NetworkSetup::new(&journals, "vp0", index, Layer::OLDEST, options, stop).unwrap();
            let routes: Vec<_> =
                (0..=255).map(|n| AsText(format!("198.51.100.{n}/32").parse().unwrap())).collect();
            let many = Network { routes: List::new(routes).unwrap(), ..network() };
            let none = Network { routes: List::default(), ..network() };
            let count = || run("ip", &["route", "show", "table", "all"]).matches("198.51.100.").count();
            setup.apply(&many).await.unwrap();
            assert_eq!(count(), 256);

            // There is room for some lines in the last block that the journal has.
            let filler = place.path().join("filler");
            let filled = std::fs::write(&filler, vec![0u8; 1 << 20]);
            assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
            let outcome = setup.apply(&none).await;
            assert!(matches!(outcome, Err(NetworkError::Journal(JournalError::Os { .. }))), "{outcome:?}");
            let left = count();
            assert!(left < 256);
            setup.follow().await.unwrap();
            assert_eq!((count(), setup.renewals()), (left, 0));

            std::fs::remove_file(filler).unwrap();
            setup.apply(&none).await.unwrap();
            assert_eq!(count(), 0);
            assert!(setup.undo().await);
            run("umount", &["--lazy", disk]);
        });
    }

    #[test]
    fn inner_addresses_have_host_prefixes() {
        assert_eq!(texts(&host_addresses(&network())), ["10.86.0.9/32"]);
    }
}
