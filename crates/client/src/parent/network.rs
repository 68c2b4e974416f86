//! A client's changes to its machine: addresses, routes and DNS of the tunnel, all through the undo
//! journal.
//!
//! Routes of the tunnel stand in a table of their own ([`routing`]), which all packets are looked
//! up in before the system's but the tunnel's own datagrams (they carry a mark) and what the
//! process asks that looks up the gateway's name (it has a user of its own). So the way to the
//! gateway can't lead into the tunnel, whatever routes are pushed, and no route of the local
//! network leads around it.

use std::net::IpAddr;

use ipnet::IpNet;
use vpnd_proto::client::DEFAULT_MTU;
use vpnd_proto::control::Network;

use super::permission::{self, Forbidden, HostNetworks};
use super::plan::{self, Plan, Step};
use super::stop::Stop;
use super::tunnel_dns::TunnelDns;
use guard::Guard;
use presence::Present;
use renewals::Renewals;
use routing::{Overlap, Routing, everything, has_address_for, own_address};
use vpnd_config::profile::Routes;
use vpnd_config::{MAX_MTU, MIN_MTU};
use vpnd_journal::{ChangeId, Journal, JournalDirectory, JournalError};
use vpnd_sys::change::{Change, LAST_RESORT_METRIC, Layer};
use vpnd_sys::clock::now;
use vpnd_sys::dns::{DnsError, DnsSettings};
use vpnd_sys::netlink::{
    AddressSpec, Family, MAIN_TABLE, NO_TABLE, Netlink, NetlinkError, RouteSpec, RouteTarget, RuleMatch,
    RuleSpec,
};
use vpnd_sys::nft::{NftError, Returning};

mod guard;
mod presence;
mod renewals;
mod routing;
mod sources;
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
        "each routing table that the tunnel could have holds routes of somebody else, or rules name it: remove some of them \
         (`ip route show table all`, `ip rule`), then connect again"
    )]
    NoTable,
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

/// The changes that are in force.
pub(super) struct NetworkSetup {
    netlink: Netlink,
    journal: Journal,
    interface: String,
    interface_index: u32,
    layer: Layer,
    options: TunnelOptions,
    stop: Stop,
    mtu: u16,
    active: Vec<(ChangeId, Change)>,
    /// The gateway's last settings, as far as the profile permits them, and the routing made of
    /// them.
    in_force: Option<(Network, Routing)>,
    /// The routing tables of the tunnel: the one that leads into it, and the one that holds back
    /// what passes that.
    tables: Option<[u32; 2]>,
    /// Local networks as last logged, so that a change alone is logged again.
    overlaps: Vec<Overlap>,
    dns: TunnelDns,
    guard: Option<Guard>,
    /// Datagrams that the guard marks on arrival.
    returning: Option<Returning>,
    /// Set once the kernel looks for the way back with a packet's mark; with the change, unless
    /// another program has made it.
    valid_marks: Option<Option<ChangeId>>,
    /// In force while names are looked up.
    lookup_rules: Vec<(ChangeId, Change)>,
    renewals: Renewals,
}

impl NetworkSetup {
    /// Opens the journal in `journals`; nothing is changed yet.
    ///
    /// # Errors
    /// If the journal can't be kept: then nothing may be changed.
    pub(super) fn new(
        journals: &JournalDirectory,
        interface: &str,
        interface_index: u32,
        layer: Layer,
        options: TunnelOptions,
        stop: Stop,
    ) -> Result<Self, NetworkError> {
        let netlink = Netlink::open()?;
        let journal = Journal::create(journals)?;
        Ok(Self {
            netlink,
            journal,
            interface: interface.to_owned(),
            interface_index,
            layer,
            options,
            stop,
            mtu: DEFAULT_MTU,
            active: Vec::new(),
            in_force: None,
            tables: None,
            overlaps: Vec::new(),
            dns: TunnelDns::new(interface_index),
            guard: None,
            returning: None,
            valid_marks: None,
            lookup_rules: Vec::new(),
            renewals: Renewals::new(),
        })
    }

    /// The connection to the kernel.
    pub(super) fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    /// Replaces the settings in force by those of `network`, as far as the profile permits them.
    /// What is new comes before what is old goes, so that no packet finds neither.
    ///
    /// # Errors
    /// If the profile forbids it, or a change was refused; the changes before it stay in force
    /// until the next call or [`NetworkSetup::undo`].
    pub(super) async fn apply(&mut self, network: &Network) -> Result<(), NetworkError> {
        let name_servers = self.dns.own_servers();
        let machine =
            HostNetworks::read(&self.netlink, &self.interface, self.interface_index, name_servers).await?;
        let network = &permission::permitted(network, &self.options, &machine)?;
        let addresses: Vec<IpAddr> = host_addresses(network).iter().map(IpNet::addr).collect();
        let mut old_and_new = self.guard.as_ref().map(|guard| guard.addresses().to_vec()).unwrap_or_default();
        old_and_new
            .extend(addresses.iter().filter(|new| !old_and_new.contains(new)).copied().collect::<Vec<_>>());
        let routing = Routing::new(&self.options, network, machine.local());
        self.pass_source_checks(&routing).await;
        self.guard(old_and_new).await?;
        self.set_mtu(self.mtu).await?;
        let obsolete = self.make(network, &routing).await?;
        log_refused(&routing);
        // Name servers are set only while there is a route to them.
        self.dns.set(dns_settings(&self.interface, &self.options, network, &routing), routing.is_full);
        self.settle_dns().await?;
        self.take_back(obsolete).await?;
        self.in_force = Some((network.clone(), routing));
        self.guard(addresses).await
    }

    /// Returns whether the tunnel's interface exists, as far as that can be found out.
    pub(super) async fn has_interface(&self) -> bool {
        !matches!(self.netlink.interface_index(&self.interface).await, Ok(None))
    }

    /// Follows the machine to another local network: what it is directly connected to decides about
    /// exceptions from the tunnel. Puts back what other programs have removed, by comparison with
    /// the kernel.
    ///
    /// # Errors
    /// If the machine can't be read or a change was refused.
    pub(super) async fn follow(&mut self) -> Result<(), NetworkError> {
        let Some((network, before)) = self.in_force.clone() else { return Ok(()) };
        let is_alone = self.renew().await?;
        let machine =
            HostNetworks::read(&self.netlink, &self.interface, self.interface_index, Vec::new()).await?;
        let routing = Routing::new(&self.options, &network, machine.local());
        // An interface may have come that checks sources; somebody may have put the setting back.
        self.pass_source_checks(&routing).await;
        self.guard_again().await?;
        self.renew_guard().await?;
        if routing == before && is_alone {
            return Ok(());
        }
        let obsolete = self.make(&network, &routing).await?;
        self.take_back(obsolete).await?;
        self.in_force = Some((network, routing));
        Ok(())
    }

    /// Puts back what other programs have removed. Returns whether the tunnel's tables are used by
    /// vpnd alone; in others' tables nothing is put back.
    async fn renew(&mut self) -> Result<bool, NetworkError> {
        let present = Present::read(&self.netlink, &self.interface, self.interface_index).await?;
        if !self.tables.iter().flatten().all(|table| present.leaves_free(*table)) {
            return Ok(false);
        }
        let mut removed = Vec::new();
        // In the order in which they were made: rules come last.
        for (id, change) in self.active.iter().chain(&self.lookup_rules).filter(|(_, it)| !present.has(it)) {
            self.journal.renew(&self.netlink, *id).await?;
            removed.push(change.to_string());
        }
        self.renewals.note(&removed, now());
        Ok(true)
    }

    /// Makes the changes that are missing, and returns those to take back. Logs new overlaps with
    /// local networks.
    async fn make(&mut self, network: &Network, routing: &Routing) -> Result<Vec<ChangeId>, NetworkError> {
        for overlap in routing.overlaps.iter().filter(|overlap| !self.overlaps.contains(overlap)) {
            overlap.log();
        }
        self.overlaps.clone_from(&routing.overlaps);
        let tables = table::choose(&self.netlink, self.interface_index, self.tables).await?;
        self.tables = Some(tables);
        let mut wanted = self.addresses(network);
        wanted.push(Change::LinkUp { interface: self.interface.clone() });
        wanted.extend(self.routes(network, routing, tables));
        let Plan { first, obsolete } = plan::plan(&self.active, wanted);
        for step in first {
            self.take(step).await?;
        }
        Ok(obsolete)
    }

    async fn take_back(&mut self, obsolete: Vec<ChangeId>) -> Result<(), NetworkError> {
        for id in obsolete {
            self.journal.undo(&self.netlink, id).await?;
            self.active.retain(|(active, _)| *active != id);
        }
        Ok(())
    }

    async fn take(&mut self, step: Step<ChangeId>) -> Result<(), NetworkError> {
        // There may be thousands.
        if self.stop.is_asked_for() {
            return Err(NetworkError::Ending);
        }
        match step {
            Step::Keep(id) => self.journal.renew(&self.netlink, id).await?,
            Step::Make(change) => {
                let id = self.journal.apply(&self.netlink, change.clone()).await?;
                self.active.push((id, change));
            }
            Step::Replace(id, change) => {
                let new = self.journal.supersede(&self.netlink, id, change.clone()).await?;
                self.active.retain(|(active, _)| *active != id);
                self.active.push((new, change));
            }
        }
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
        let Some(user) = self.options.lookups.filter(|_| self.lookup_rules.is_empty()) else { return Ok(()) };
        for family in [Family::V4, Family::V6] {
            let leads_in = |change: &Change| matches!(change, Change::Rule(rule) if rule.family == family);
            if self.active.iter().any(|(_, change)| leads_in(change)) {
                // What a full tunnel would carry else: a query would only time out while it is
                // dead.
                let is_full = self.in_force.as_ref().is_some_and(|(_, routing)| routing.is_full);
                let refusal = is_full.then_some((Layer::REFUSAL_RULE, NO_TABLE));
                for (rule, table) in [(Layer::LOOKUP_RULE, MAIN_TABLE)].into_iter().chain(refusal) {
                    let (priority, matches) = (self.layer.priority(rule), RuleMatch::User(user));
                    let rule = Change::Rule(RuleSpec { family, priority, matches, table });
                    let id = self.journal.apply(&self.netlink, rule.clone()).await?;
                    self.lookup_rules.push((id, rule));
                }
            }
        }
        Ok(())
    }

    /// No name is looked up any more. To be called again after a failure, of
    /// [`NetworkSetup::begin_lookups`], too; does nothing if nothing is left to end.
    ///
    /// # Errors
    /// If a change could not be taken back; all others were.
    pub(super) async fn end_lookups(&mut self) -> Result<(), NetworkError> {
        if !self.dns.is_looking_up() && self.lookup_rules.is_empty() {
            return Ok(());
        }
        self.dns.set_looking_up(false);
        let mut outcome = Ok(());
        for (id, rule) in std::mem::take(&mut self.lookup_rules).into_iter().rev() {
            if let Err(error) = self.journal.undo(&self.netlink, id).await {
                self.lookup_rules.insert(0, (id, rule));
                outcome = Err(error.into());
            }
        }
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
        // Without the guard the machine gets its own name servers back all the same: a gateway that
        // has moved must be found.
        let guarded = self.guard_again().await;
        let is_done = self.dns.settle(&mut self.journal, &self.netlink).await?;
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
        Ok(self.netlink.set_mtu(&self.interface, self.mtu.into()).await?)
    }

    /// Takes everything back and removes the journal.
    pub(super) async fn undo(self) {
        let report = self.journal.undo_all(&self.netlink).await;
        for change in &report.not_ours {
            tracing::warn!(%change, "left as it is: another program has changed it since");
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

    /// Routes and rules. Each comes after those without which it would take more than it is meant
    /// for.
    fn routes(&self, network: &Network, routing: &Routing, [table, closing]: [u32; 2]) -> Vec<Change> {
        let (mut changes, mut last) = (Vec::new(), Vec::new());
        let (mark, mask) = self.layer.passed_over();
        let rule = |family, place, table| {
            let (priority, matches) = (self.layer.priority(place), RuleMatch::NotMarked { mark, mask });
            Change::Rule(RuleSpec { family, priority, matches, table })
        };
        let special = |destination, target, table| {
            let metric = Some(LAST_RESORT_METRIC);
            Change::Route(RouteSpec { destination, target, source: None, table, metric })
        };
        last.extend(routing.families().map(|family| rule(family, Layer::TUNNEL_RULE, table)));
        if routing.is_full {
            changes.extend(routing.outside().map(|local| special(local, RouteTarget::Throw, closing)));
            let families = || routing.families();
            changes
                .extend(families().map(|family| special(everything(family), RouteTarget::Closed, closing)));
            last.extend(families().map(|family| rule(family, Layer::CLOSING_RULE, closing)));
        }
        let aside = |destination, target| special(destination, target, table);
        changes.extend(routing.outside().map(|local| aside(local, RouteTarget::Throw)));
        changes.extend(routing.destinations.iter().map(|&destination| {
            let target = RouteTarget::Interface(self.interface.clone());
            let source = own_address(network, destination.addr());
            Change::Route(RouteSpec { destination, target, source, table, metric: None })
        }));
        // Refused at once, where a silent loss would have every program wait.
        let refused = routing.refused.iter().map(|family| everything(*family));
        changes.extend(refused.map(|rest| aside(rest, RouteTarget::Unreachable)));
        changes.extend(last);
        changes
    }
}

/// DNS settings while the tunnel is up; `None` leaves the machine's as they are.
fn dns_settings(
    interface: &str,
    options: &TunnelOptions,
    network: &Network,
    routing: &Routing,
) -> Option<DnsSettings> {
    let servers = name_servers(options, network);
    if !options.dns || servers.is_empty() {
        if routing.is_full {
            tracing::warn!(
                "the tunnel is for everything but names: the machine goes on asking its own name servers, in clear if they are in \
                 a local network that stays outside the tunnel"
            );
        }
        return None;
    }
    Some(DnsSettings {
        interface: interface.to_owned(),
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

/// The gateway's name servers that are reached through the tunnel. One of a protocol version that
/// the tunnel does not carry would be asked in clear.
fn name_servers(options: &TunnelOptions, network: &Network) -> Vec<IpAddr> {
    let mut servers: Vec<IpAddr> = network.dns.iter().map(|server| server.0).collect();
    if options.set_routes {
        servers.retain(|server| {
            let reached = has_address_for(network, *server);
            if !reached {
                tracing::warn!(%server, "not used: the tunnel has no address of the protocol version of this name server");
            }
            reached
        });
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parent::network::routing::tests::{network, options, texts};
    use vpnd_proto::control::{AsText, List};
    use vpnd_sys::testing::{in_namespace_async, run};

    #[test]
    fn name_servers_are_asked_through_the_tunnel_or_not_at_all() {
        let dns = ["192.0.2.53", "9.9.9.9", "2620:fe::9"].map(|server| AsText(server.parse().unwrap()));
        let network = Network { dns: List::new(dns.to_vec()).unwrap(), ..network() };
        let destinations =
            |options: &TunnelOptions| texts(&Routing::new(options, &network, &[]).destinations);
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
            dns_settings("vpn0", options, network, &Routing::new(options, network, &[]))
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
            let routes = || run("ip", &["route", "show", "table", "all", "proto", "118"]);

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
    fn the_client_has_addresses_of_one_host_each() {
        assert_eq!(texts(&host_addresses(&network())), ["10.86.0.9/32"]);
    }
}
