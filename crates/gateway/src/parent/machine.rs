//! The gateway's changes to its machine: the tunnel's addresses, forwarding, the firewall table,
//! and where packets for the pools go while there is no tunnel; all through the undo journal.
//!
//! Firewall, translation of addresses, forwarding and the pools' last routes outlive the gateway,
//! however it ends: its next start takes them over, and running connections with them. Only
//! an administrator who ends it for good takes them back.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use tokio::time::Instant;

use super::firewall::Firewall as OwnFirewall;
use vpnd_config::{NatMode, ServerConfig};
use vpnd_ipc::admin::status::Firewall;
use vpnd_ipc::gateway::HostRouteChanges;
use vpnd_journal as journal;
use vpnd_journal::{ChangeId, Journal, JournalDirectory, JournalError, Recovered, RecoveryOutcome};
use vpnd_sys::change::{Change, LAST_RESORT_METRIC};
use vpnd_sys::conntrack;
use vpnd_sys::log_limit::LogLimit;
use vpnd_sys::netlink::{AddressSpec, HostRoutes, MAIN_TABLE, Netlink, RouteSpec, RouteTarget};
use vpnd_sys::nft::{ConnectionLimit, Entrances, GatewayRules, Outgoing, Services, Transit};
use vpnd_sys::sysctl::{self, Forwarding, SysctlChange};
use vpnd_sys::tun::Tun;

/// Time for the worker of a killed gateway to end.
const WORKER_END_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of looks at what no report is needed for.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The machine, and how to take back what was changed.
pub(super) struct Machine {
    netlink: Netlink,
    journal: Journal,
    firewall: Option<OwnFirewall>,
    /// The routes to clients, if others are to learn of them.
    hosts: Option<HostRoutes>,
    /// Whether an earlier gateway has left something in force.
    is_successor: bool,
    /// When it is looked at although no change was reported.
    next_look: Instant,
    /// Limits the lines about what other programs have changed.
    losses: LogLimit,
}

impl Machine {
    /// Takes over what an earlier gateway left in force and checks that the pools are free. Changes
    /// nothing else.
    pub(super) async fn new(config: &ServerConfig) -> anyhow::Result<Self> {
        let netlink = Netlink::open()?;
        let directory = JournalDirectory::create(&config.server.journal_dir)?;
        // The auth process writes in the one, and what is in the other is done with all privileges.
        directory.stay_clear_of(&config.server.state_dir)?;
        journal::undo_what_was_left(&directory, &netlink).await?;
        for pool in config.tunnel.pools() {
            if let Some(network) = netlink.overlap(pool, Some(&config.tunnel.name)).await? {
                bail!(
                    "the address pool {pool} overlaps {network}, a network that this machine is connected to: choose \
                     another [tunnel] pool, or clients could not tell the two apart"
                );
            }
        }
        let journal = Journal::create_kept(&directory, &keeper(config))?;
        let is_successor = !journal.in_force().is_empty();
        Ok(Self {
            netlink,
            journal,
            firewall: None,
            hosts: None,
            is_successor,
            next_look: Instant::now() + LOOK_INTERVAL,
            losses: LogLimit::new(10, Duration::from_secs(60)),
        })
    }

    /// Gives the device its addresses and lets packets through to the campus, as configured.
    pub(super) async fn configure(&mut self, config: &ServerConfig, tun: &Tun) -> anyhow::Result<()> {
        let interface = tun.name().to_owned();
        let wanted: Vec<Change> = config.tunnel.pools().map(last_resort).collect();
        let left = self.keep_of_earlier(config, &wanted).await?;
        for route in wanted {
            if !left.routes.contains(&route) {
                self.hold_back(route).await?;
            }
        }
        for address in gateway_addresses(config) {
            let spec = AddressSpec { interface: interface.clone(), index: Some(tun.index()), address };
            self.apply(Change::Address(spec)).await?;
        }
        self.apply(Change::LinkUp { interface: interface.clone() }).await?;
        if let Some(fleet) = &config.fleet {
            let hosts = HostRoutes { interface: interface.clone(), table: fleet.route_table };
            self.apply(Change::HostRoutes(hosts.clone())).await?;
            self.hosts = Some(hosts);
        }
        if config.nat.mode == NatMode::None {
            return Ok(());
        }
        let (v4, v6) = (config.tunnel.pool_v4.is_some(), config.tunnel.pool_v6.is_some());
        let planned = sysctl::forwarding(v4, v6).context("forwarding can't be switched on")?.changes;
        // Settings that an earlier gateway has switched on were not on before vpnd.
        let mut forwarding = Forwarding { changes: [left.settings, planned.clone()].concat() };
        let switched = GatewayRules::has_switched_forwarding_on(&interface).await?;
        let known = [forwarding.v4_except().is_some(), forwarding.v6_except().is_some()];
        for (number, pool) in [v4, v6].into_iter().enumerate() {
            if pool && switched[number] && !known[number] {
                tracing::warn!(
                    "the undo journal of an earlier gateway is lost; its firewall table records what it did"
                );
                let change = sysctl::forwarding_from_off(number == 0);
                self.apply(Change::Sysctl(change.clone())).await?;
                forwarding.changes.push(change);
            }
        }
        let rules = rules(config, &interface, &forwarding);
        // Before anything is forwarded, it is clear what may be.
        let (earlier, blocks) = match left.firewall {
            Some((id, before)) => (Some(id), before.blocks),
            None => (None, None),
        };
        let firewall = OwnFirewall::apply(&mut self.journal, &self.netlink, earlier, rules).await?;
        if blocks != firewall.rules().blocks {
            end_flows(firewall.rules());
        }
        self.firewall = Some(firewall);
        for change in planned {
            self.apply(Change::Sysctl(change)).await?;
        }
        Ok(())
    }

    /// Adds routes to clients, then removes others.
    ///
    /// # Errors
    /// Why one of them could not be added or removed.
    pub(super) async fn set_hosts(&self, routes: &HostRouteChanges) -> anyhow::Result<()> {
        let hosts = self.hosts.as_ref().context("this gateway is of no fleet")?;
        for route in &routes.added {
            self.netlink.add_host(hosts, route.address, route.metric).await?;
        }
        for route in &routes.removed {
            self.netlink.remove_host(hosts, route.address, route.metric).await?;
        }
        Ok(())
    }

    /// Adds a pool's route of last resort.
    async fn hold_back(&mut self, route: Change) -> anyhow::Result<()> {
        match self.journal.apply(&self.netlink, route.clone()).await {
            // A route of an earlier gateway whose journal is lost. Another program's would not be
            // taken back: it has another origin.
            Err(JournalError::Change { source, .. }) if source.is_already_there() => {
                Ok(self.journal.take_over(route)?)
            }
            applied => Ok(applied.map(drop)?),
        }
    }

    /// Applies the firewall rules of a configuration that was read again. Device, pools and NAT
    /// stay as they are until a restart.
    pub(super) async fn reconfigure(&mut self, config: &ServerConfig) -> anyhow::Result<()> {
        let Some(firewall) = &mut self.firewall else { return Ok(()) };
        let now = firewall.rules();
        let rules = GatewayRules {
            inbound: !now.masquerade && config.policy.campus_to_client,
            campus: config.profiles.routes(),
            services: services(config),
            pages: pages(config),
            connections: connections(config),
            ..now.clone()
        };
        Ok(firewall.replace(&mut self.journal, &self.netlink, rules).await?)
    }

    /// Waits until another program may have changed what this gateway has set up. Safe to cancel.
    pub(super) async fn disturbed(&mut self) {
        let firewall = async {
            match &mut self.firewall {
                Some(firewall) => firewall.disturbed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = firewall => {}
            () = tokio::time::sleep_until(self.next_look) => {}
        }
    }

    /// Puts back what another program has changed.
    pub(super) async fn put_back(&mut self) {
        let is_due = Instant::now() >= self.next_look;
        if let Some(firewall) = &mut self.firewall {
            firewall.check(&self.journal, &self.netlink).await;
        }
        if is_due {
            self.put_back_unreported().await;
            self.next_look = Instant::now() + LOOK_INTERVAL;
        }
    }

    /// The state of the firewall; `None` if it is not this gateway's.
    pub(super) fn firewall(&self) -> Option<Firewall> {
        self.firewall.as_ref().map(OwnFirewall::report)
    }

    /// Puts back forwarding, addresses and routes, of whose changes nothing is reported here.
    async fn put_back_unreported(&mut self) {
        let is_open = self.firewall.as_ref().is_some_and(OwnFirewall::is_failing);
        for (_, change) in self.journal.in_force() {
            let is_wanted = match &change {
                Change::Sysctl(setting) => setting.is_forwarding() && !setting.is_in_force() && !is_open,
                Change::Address(_) | Change::Route(_) => true,
                // An interface that is up stays so.
                Change::LinkUp { .. } => {
                    let _ = change.apply(&self.netlink).await;
                    false
                }
                _ => false,
            };
            if !is_wanted {
                continue;
            }
            match change.apply(&self.netlink).await {
                Ok(()) if self.losses.admits() => {
                    tracing::warn!(
                        "another program has removed or changed this: {change}; it is in force again"
                    );
                }
                Err(error) if !error.is_already_there() && self.losses.admits() => {
                    tracing::error!(%error, "another program has removed or changed this, and it can't be put back: {change}");
                }
                Ok(()) | Err(_) => {}
            }
        }
        self.look_at_forwarding();
    }

    /// Forwarding that was on before vpnd started is not vpnd's to switch on again: the rules let
    /// others' packets pass.
    fn look_at_forwarding(&self) {
        let Some(firewall) = &self.firewall else { return };
        let rules = firewall.rules();
        for (v4, transit) in [(true, &rules.transit_v4), (false, &rules.transit_v6)] {
            let pool = rules.pools.iter().any(|pool| pool.addr().is_ipv4() == v4);
            if pool && *transit == Transit::Untouched && !sysctl::is_forwarding(v4) && self.losses.admits() {
                tracing::error!(
                    "another program has switched forwarding of {} off, so clients don't reach the campus: a restart of vpnd \
                     switches it on again, for its clients alone",
                    if v4 { "IPv4" } else { "IPv6" }
                );
            }
        }
    }

    /// Sorts out what an earlier gateway has left: what goes on, and what is taken back.
    async fn keep_of_earlier(
        &mut self,
        config: &ServerConfig,
        routes: &[Change],
    ) -> anyhow::Result<EarlierChanges> {
        let mut left = EarlierChanges::default();
        let forwards = config.nat.mode != NatMode::None;
        for (id, change) in self.journal.in_force().into_iter().rev() {
            match &change {
                Change::Route(_) if routes.contains(&change) && self.is_there(&change).await? => {
                    left.routes.push(change);
                }
                Change::Firewall(rules) if forwards && rules.tunnel == config.tunnel.name => {
                    left.firewall = Some((id, rules.clone()));
                }
                Change::Sysctl(setting) if forwards && is_wanted(config, setting) => {
                    left.settings.insert(0, setting.clone());
                }
                _ => drop(self.journal.undo(&self.netlink, id).await?),
            }
        }
        Ok(left)
    }

    /// Whether a route that should be in force is: adding it again shows that, and restores one
    /// that was removed.
    async fn is_there(&self, change: &Change) -> anyhow::Result<bool> {
        match change.apply(&self.netlink).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_already_there() => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Leaves in force what the next start takes over.
    pub(super) fn leave(self) {
        tracing::info!(
            "firewall, forwarding and the routes that hold back packets for clients stay for the next start; `vpnd server \
             --teardown` takes them back"
        );
    }

    /// Takes back what a failed start has changed, unless it follows a gateway whose connections
    /// are to go on.
    pub(super) async fn abandon(self) {
        if self.is_successor { self.leave() } else { self.undo().await }
    }

    pub(super) async fn undo(self) {
        let report = self.journal.undo_all(&self.netlink).await;
        for error in &report.failed {
            tracing::error!(%error, "not undone; `vpnd server --teardown` tries again");
        }
    }

    async fn apply(&mut self, change: Change) -> anyhow::Result<()> {
        self.journal.apply(&self.netlink, change).await?;
        Ok(())
    }
}

/// Changes of an earlier gateway that stay in force.
#[derive(Default)]
struct EarlierChanges {
    routes: Vec<Change>,
    firewall: Option<(ChangeId, GatewayRules)>,
    settings: Vec<SysctlChange>,
}

/// Ends flows with ports of the previous blocks, which are another client's now.
fn end_flows(rules: &GatewayRules) {
    let Some(blocks) = &rules.blocks else { return };
    match conntrack::forget(blocks.pool) {
        Ok(0) => {}
        Ok(flows) => {
            tracing::info!(flows, "other port blocks are in force; flows with earlier ports have ended")
        }
        Err(error) => tracing::error!(
            %error,
            "other port blocks are in force, and flows with ports of before can't be ended: until they end by themselves, \
             'vpnd audit whois' names a wrong client for them"
        ),
    }
}

/// `vpnd server --teardown`: takes back what gateways of this configuration have left in force.
///
/// # Errors
/// If the gateway runs, or not all could be taken back.
pub(super) async fn tear_down(config: &ServerConfig) -> anyhow::Result<()> {
    let deadline = Instant::now() + WORKER_END_TIMEOUT;
    while UnixStream::connect(&config.admin.socket).is_ok() {
        if Instant::now() < deadline {
            tokio::time::sleep(POLL_INTERVAL).await;
            continue;
        }
        bail!("the gateway is running: stop it first (systemctl stop vpnd-server), then try again");
    }
    let mut recovered = take_back(&config.server.journal_dir, Some(&keeper(config))).await?;
    // Those of other gateways, and of clients.
    recovered.retain(|one| !matches!(one.outcome, RecoveryOutcome::Kept | RecoveryOutcome::StillRunning));
    report(&recovered)
}

/// Undoes the changes of each gateway that has its journal there and does not run: no configuration
/// has to name it, for that may be lost or damaged.
///
/// # Errors
/// If not all could be taken back.
pub(super) async fn tear_down_all(journals: &Path) -> anyhow::Result<()> {
    let mut recovered = take_back(journals, None).await?;
    // Those of clients.
    recovered.retain(|one| !matches!(one.outcome, RecoveryOutcome::Kept));
    report(&recovered)
}

async fn take_back(journals: &Path, keeper: Option<&str>) -> anyhow::Result<Vec<Recovered>> {
    let Some(directory) = JournalDirectory::open(journals)? else { return Ok(Vec::new()) };
    let netlink = Netlink::open()?;
    Ok(journal::take_back(&directory, &netlink, keeper).await?)
}

fn report(recovered: &[Recovered]) -> anyhow::Result<()> {
    for one in recovered {
        println!("{one}");
    }
    if recovered.is_empty() {
        println!("nothing to undo");
    }
    if recovered.iter().all(Recovered::is_complete) {
        Ok(())
    } else {
        bail!("not everything could be taken back; see above, then try again")
    }
}

/// The name of a gateway that its restarts have in common: its state directory.
fn keeper(config: &ServerConfig) -> String {
    let state = &config.server.state_dir;
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let path = std::fs::canonicalize(state).unwrap_or_else(|_| absolute(state));
    format!("gateway of {}", path.display())
}

/// A route that refuses packets for a pool while there is no tunnel; they would follow the default
/// route to the provider.
fn last_resort(pool: IpNet) -> Change {
    Change::Route(RouteSpec {
        destination: pool,
        target: RouteTarget::Unreachable,
        source: None,
        table: MAIN_TABLE,
        metric: Some(LAST_RESORT_METRIC),
    })
}

fn rules(config: &ServerConfig, interface: &str, forwarding: &Forwarding) -> GatewayRules {
    GatewayRules {
        tunnel: interface.to_owned(),
        pools: config.tunnel.pools().collect(),
        masquerade: config.nat.mode == NatMode::Nftables,
        blocks: config.nat.blocks.clone(),
        outgoing: match &config.nat.outgoing_interface {
            Some(name) => Outgoing::Interface(name.clone()),
            None => Outgoing::AnyButTunnel,
        },
        inbound: config.nat.mode == NatMode::Route && config.policy.campus_to_client,
        resumed: config.fleet.is_some(),
        campus: config.profiles.routes(),
        own: gateway_addresses(config).iter().map(IpNet::addr).collect(),
        services: services(config),
        pages: pages(config),
        transit_v4: transit(forwarding.v4_except()),
        transit_v6: transit(forwarding.v6_except()),
        connections: connections(config),
        entrances: entrances(config),
        outer_port: Some(config.server.listen.port()),
    }
}

fn entrances(config: &ServerConfig) -> Option<Box<Entrances>> {
    let ports = config.server.more_ports.clone();
    (!ports.is_empty()).then(|| Box::new(Entrances { ports, to: config.server.listen }))
}

fn connections(config: &ServerConfig) -> Option<ConnectionLimit> {
    let per_address = config.limits.max_connections_per_address?.get();
    // A session that has just ended has connections for a moment more.
    let addresses =
        u32::try_from(config.limits.max_sessions).unwrap_or(u32::MAX).saturating_mul(2).max(1_024);
    Some(ConnectionLimit { per_address, addresses })
}

fn services(config: &ServerConfig) -> Services {
    if config.policy.client_to_gateway {
        Services::All
    } else {
        Services::Dns(config.profiles.name_servers())
    }
}

fn pages(config: &ServerConfig) -> Option<Box<SocketAddr>> {
    config.portal.as_ref().map(|portal| Box::new(portal.front()))
}

/// Whether a setting that an earlier gateway has changed is as it left it, and needed by this
/// configuration.
fn is_wanted(config: &ServerConfig, change: &SysctlChange) -> bool {
    let tunnel = &config.tunnel;
    let pool = if change.is_of_ipv6() { tunnel.pool_v6.is_some() } else { tunnel.pool_v4.is_some() };
    pool && change.is_in_force()
}

/// The rule for packets that are not the tunnel's: `except` are the interfaces that forwarded
/// before vpnd switched forwarding on, if it did.
fn transit(except: Option<Vec<String>>) -> Transit {
    except.map_or(Transit::Untouched, |except| Transit::Dropped { except })
}

/// The gateway's own inner addresses, each with its pool's prefix, so that the pool is routed to
/// the device.
pub(super) fn gateway_addresses(config: &ServerConfig) -> Vec<IpNet> {
    let tunnel = &config.tunnel;
    let network = |address: Option<std::net::IpAddr>, prefix: Option<u8>| IpNet::new(address?, prefix?).ok();
    let v4 = network(tunnel.gateway_v4().map(Into::into), tunnel.pool_v4.map(|pool| pool.prefix_len()));
    let v6 = network(tunnel.gateway_v6().map(Into::into), tunnel.pool_v6.map(|pool| pool.prefix_len()));
    v4.into_iter().chain(v6).collect()
}
