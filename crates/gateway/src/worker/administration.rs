//! Requests of administrators to a running gateway, answered from the control plane.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use vpnd_proto::control::{Code, UserName};
use vpnd_proto::gateway::Selector;
use vpnd_proto::session::{LocalSuite, SessionId};
use vpnd_proto::time::Time;

use super::certificate::WorkerCertificate;
use super::fleet_report::Reporter;
use super::hosts::Hosts;
use super::orders::Orders;
use super::parent_client::ParentClient;
use super::releases::Releases;
use super::wireguard::following;
use crate::worker::auth_client::AuthClient;
use crate::worker::connection::Logins;
use crate::worker::core::drain::{DrainRequest, DrainState};
use crate::worker::core::{Core, Ended, ToEnd, fleet};
use crate::worker::quic::acceptor::AdmissionControl;
use vpnd_config::ServerConfig;
use vpnd_config::in_force::Settings;
use vpnd_ipc::admin::status::{
    Audit, Counters, Drain, Firewall, FleetMember, Offloads, Pool, Portal, Process, Session, Source,
    Steering, Suite, Tun, Udp,
};
use vpnd_ipc::admin::{FleetGateway, Handler, Kicked, Status};
use vpnd_ipc::gateway::Configuration;
use vpnd_ipc::gateway::auth::{
    AuditHealth, AuthRequest, AuthStatus, ConfirmAbsences, DrainHere, GatewaysQuery, SourceHealth,
    SourceName, StatusQuery,
};
use vpnd_ipc::request::Request;
use vpnd_ipc::requests::NoReply;
use vpnd_sys::clock::{now, wall_s};
use vpnd_sys::tun::TunOffloads;

/// Limit for the auth process's part of the status; shorter than what a scraper of metrics waits
/// for.
const AUTH_STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Limit for what an administrator asks of the database.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(12);

/// The machine's addresses.
pub(super) type OwnAddresses = Arc<Mutex<BTreeSet<IpAddr>>>;

/// Status that does not change while the gateway runs.
pub(super) struct StaticInfo {
    /// The daemon's first process.
    pub(super) pid: u32,
    /// Its version.
    pub(super) parent_version: String,
    pub(super) started: Time,
    pub(super) listen: SocketAddr,
    pub(super) shards: usize,
    pub(super) steering: Steering,
    pub(super) tun: TunOffloads,
    pub(super) suites: Vec<LocalSuite>,
    pub(super) processes: Vec<Process>,
    /// Its place in a fleet, if it has one.
    pub(super) fleet: Option<FleetMember>,
    /// Whether it serves stock WireGuard clients.
    pub(super) has_wireguard: bool,
}

/// The gateway as administrators see it.
pub(super) struct Administration {
    pub(super) static_info: StaticInfo,
    pub(super) core: Core,
    pub(super) auth: AuthClient,
    pub(super) logins: Arc<Logins>,
    pub(super) admission: AdmissionControl,
    pub(super) parent: ParentClient,
    pub(super) certificate: Arc<WorkerCertificate>,
    /// Counters of the gateway's earlier processes.
    pub(super) before: Counters,
    pub(super) config: Mutex<ServerConfig>,
    pub(super) in_force: Mutex<Settings>,
    pub(super) machine: MachineState,
}

/// The state that the parent has sent.
#[derive(Default)]
pub(super) struct MachineState {
    firewall: Mutex<Option<Firewall>>,
    addresses: OwnAddresses,
}

impl Administration {
    /// Starts the tasks that have the parent change something for sessions, and those of a fleet.
    pub(super) fn begin_tasks(
        self: &Arc<Self>,
        releases: Releases,
        hosts: Option<Hosts>,
        orders: Option<Orders>,
    ) -> Vec<JoinHandle<()>> {
        let mut tasks = vec![tokio::spawn(releases.run(Arc::clone(self)))];
        tasks.extend(orders.map(|orders| tokio::spawn(orders.run(self.core.clone(), self.auth.clone()))));
        if let Some(hosts) = hosts {
            tasks.push(tokio::spawn(fleet::follow(self.core.clone(), self.auth.clone(), hosts.clone())));
            let reporter = Reporter::new(&self.static_info, &self.machine.addresses);
            tasks.push(tokio::spawn(reporter.run(self.core.clone(), self.auth.clone())));
            tasks.push(tokio::spawn(hosts.run(Arc::clone(self))));
        }
        tasks
    }

    /// The machine has these addresses, and no others.
    pub(super) fn note_addresses(&self, addresses: Vec<IpAddr>) {
        let mut own = self.machine.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *own, addresses.into_iter().collect());
        let new: Vec<IpAddr> = own.difference(&before).copied().collect();
        if self.static_info.has_wireguard && !new.is_empty() {
            tokio::spawn(following::take_over(self.core.clone(), self.auth.clone(), new));
        }
    }

    /// Takes the state of the firewall.
    pub(super) fn note_firewall(&self, firewall: Firewall) {
        *self.machine.firewall.lock().unwrap_or_else(PoisonError::into_inner) = Some(firewall);
    }

    /// The settings of a configuration that need no restart hold from now on. Names those that do,
    /// in words.
    pub(super) async fn apply(&self, configuration: &Configuration) -> Result<String, String> {
        let config = configuration.parse().map_err(|error| error.to_string())?;
        let config = config.reloaded(&self.config.lock().unwrap_or_else(PoisonError::into_inner));
        let applied = self.core.apply(config.clone()).await;
        applied.map_err(|error| format!("{error:#}"))?;
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
        // Comparing each key with its default reads the configuration once for each.
        let read = configuration.clone();
        let file = tokio::task::spawn_blocking(move || read.settings()).await;
        let file = file.map_err(|error| error.to_string())?;
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        in_force.reload(&file);
        let (waiting, _) = in_force.differences(&file);
        Ok(match &waiting[..] {
            [] => "everything is as configured now".to_owned(),
            waiting => format!(
                "everything is as configured now but what needs a restart and has changed: {}",
                waiting.join(", ")
            ),
        })
    }
}

impl Administration {
    /// A session with its client's addresses instead of those of relays.
    fn shown(&self, mut session: Session) -> Session {
        for outer in &mut session.outer {
            if let Some(client) = self.admission.relayed().over_tcp(*outer) {
                (*outer, session.over_tcp) = (client, true);
            }
        }
        session
    }

    /// One line about the whole life of the gateway, upgrades included.
    pub(super) async fn log_end(&self, reason: &str) {
        let status = match self.status().await {
            Ok(status) => status,
            Err(error) => return tracing::info!(reason, %error, "the gateway stops"),
        };
        let Counters { drops, logins, ended, .. } = &status.counters;
        let live = |bytes: fn(&Session) -> u64| status.sessions.iter().map(bytes).sum::<u64>();
        tracing::info!(
            reason,
            uptime_s = status.uptime_s,
            logins = Counters::of(logins, "accepted"),
            refused = Counters::of(logins, "refused"),
            attaches = Counters::of(logins, "attaches"),
            sessions_kept = status.sessions.len(),
            sessions_ended = Counters::of(ended, "sessions"),
            received = Counters::of(ended, "rx_bytes") + live(|session| session.rx_bytes),
            sent = Counters::of(ended, "tx_bytes") + live(|session| session.tx_bytes),
            dropped = drops.values().sum::<u64>(),
            "the gateway stops"
        );
    }
}

impl Administration {
    /// State of the auth process. Without an answer in time the rest of the status is shown all the
    /// same.
    async fn auth_status(&self) -> AuthStatus {
        match timeout(AUTH_STATUS_TIMEOUT, self.auth.request(StatusQuery)).await {
            Ok(Ok(status)) => status,
            Ok(Err(NoReply::Failed(why))) => {
                tracing::error!(%why, "the use of the pools can't be determined");
                AuthStatus::default()
            }
            // It is busy or gone, which the worker notices by itself.
            Ok(Err(NoReply::Gone(_))) | Err(_) => AuthStatus::default(),
        }
    }
}

impl Administration {
    /// Asks auth for something of the database.
    async fn of_store<R>(&self, request: R) -> Result<R::Reply, String>
    where
        R: Request<Message = AuthRequest>,
    {
        match timeout(DATABASE_TIMEOUT, self.auth.request(request)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the database gave no answer; try again".to_owned()),
        }
    }

    /// Refuses unless another gateway of the fleet can take this one's clients.
    async fn permit_drain(&self) -> Result<(), String> {
        let gateways = self.fleet().await?;
        if self.of_store(DrainHere).await? {
            return Ok(());
        }
        let others: Vec<String> = gateways.iter().filter(|gateway| !gateway.here).map(absence).collect();
        let others = if others.is_empty() { "there is no other".to_owned() } else { others.join(", ") };
        Err(format!(
            "no other gateway of the fleet can take the clients ({others}): start one, or drain without --fleet-safe"
        ))
    }
}

/// Why a gateway takes no clients, or did not a moment ago.
fn absence(gateway: &FleetGateway) -> String {
    let FleetGateway { name, alive, heard_s, draining, .. } = gateway;
    match (alive, heard_s) {
        (true, _) if *draining => format!("{name} is being drained"),
        (true, _) => format!("{name} takes none now"),
        (false, Some(heard_s)) => format!("{name} was last heard of {heard_s} s ago"),
        (false, None) => format!("{name} was never heard of"),
    }
}

impl From<DrainState> for Drain {
    fn from(DrainState { in_use, left, over }: DrainState) -> Self {
        Self { in_use, left_s: left.map(|left| left.as_secs()), over }
    }
}

impl Handler for Administration {
    async fn status(&self) -> Result<Status, String> {
        let snapshot = self.core.status().await.map_err(|error| error.to_string())?;
        let mut counters = Counters::from(&snapshot.shards.counters);
        counters.logins = self.logins.counts();
        counters.handshakes = self.admission.counts();
        counters.handshakes.extend(snapshot.wireguard);
        let Ended { sessions, rx_bytes, tx_bytes, reasons } = snapshot.ended;
        counters.ends = reasons.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect();
        counters.polling =
            snapshot.shards.poll.by_name().map(|(name, count)| (name.to_owned(), count)).into();
        let ended = [("sessions", sessions), ("rx_bytes", rx_bytes), ("tx_bytes", tx_bytes)];
        counters.ended = ended.map(|(name, count)| (name.to_owned(), count)).into();
        let AuthStatus { pools, sources, audit, portal, portal_refusals } = self.auth_status().await;
        let by_source = |count: fn(&SourceHealth) -> u64| {
            sources.iter().map(|source| (source.name.to_string(), count(source))).collect()
        };
        counters.source_answers = by_source(|source| source.answers);
        counters.source_failures = by_source(|source| source.failures);
        if let Some(audit) = &audit {
            counters.audit = [("lost".to_owned(), audit.lost)].into();
        }
        let refusals = portal_refusals.into_iter().map(|refused| (refused.name.to_string(), refused.count));
        counters.portal_refusals = refusals.collect();
        counters.relays =
            self.admission.relayed().counts().map(|(name, count)| (name.to_owned(), count)).into();
        let counters = counters.after(&self.before);
        let now = now();
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            parent_version: self.static_info.parent_version.clone(),
            pid: self.static_info.pid,
            uptime_s: now.since(self.static_info.started).as_secs(),
            listen: self.static_info.listen,
            fleet: self.static_info.fleet.clone(),
            shards: self.static_info.shards,
            steering: self.static_info.steering,
            offloads: Offloads {
                tun: Tun::of_shards(self.static_info.tun, &snapshot.shards.tun),
                udp: Udp::of_shards(&snapshot.shards.udp),
            },
            suites: self.static_info.suites.iter().map(Suite::from).collect(),
            processes: self.static_info.processes.clone(),
            certificate_left_s: self.certificate.expires_s().saturating_sub(wall_s()),
            pools: pools.into_iter().map(Pool::from).collect(),
            sources: sources.into_iter().map(Source::from).collect(),
            audit: audit
                .map(|AuditHealth { failure, .. }| Audit { failure: failure.map(|why| why.to_string()) }),
            portal: portal
                .map(|portal| Portal { relays: self.admission.relayed().count() as u64, ..portal.into() }),
            firewall: self.machine.firewall.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            settings: self.in_force.lock().unwrap_or_else(PoisonError::into_inner).report(),
            drain: snapshot.drain.map(Drain::from),
            counters,
            refused_devices: snapshot.refused_devices,
            sessions: snapshot
                .sessions
                .iter()
                .zip(snapshot.profiles)
                .map(|(session, profile)| self.shown(Session { profile, ..Session::at(now, session) }))
                .collect(),
        })
    }

    async fn kick(&self, target: String) -> Result<Kicked, String> {
        let which = match session_id(&target) {
            Some(session) => Selector::Session(session),
            None => Selector::User(UserName::new(target).map_err(|error| error.to_string())?),
        };
        let (code, text) = (Code::Kicked, Code::Kicked.explanation().into());
        let ended = self.core.end(vec![ToEnd { which, code, text }]).await;
        let ended = ended.map_err(|error| error.to_string())?;
        Ok(Kicked { sessions: ended.sum(), is_kept: ended.is_stored })
    }

    async fn reload(&self) -> Result<String, String> {
        self.parent.reload().await
    }

    async fn fleet(&self) -> Result<Vec<FleetGateway>, String> {
        if self.static_info.fleet.is_none() {
            return Err(
                "this gateway is of no fleet: [fleet] in server.toml makes it one of a fleet".to_owned()
            );
        }
        let gateways = self.of_store(GatewaysQuery).await?;
        Ok(gateways.into_iter().map(FleetGateway::from).collect())
    }

    async fn drain(&self, within: Option<Duration>, fleet_safe: bool) -> Result<(), String> {
        if fleet_safe {
            self.permit_drain().await?;
        }
        self.core.drain(DrainRequest::Begin { within }).await.map_err(|error| error.to_string())
    }

    async fn confirm_absences(&self, source: String) -> Result<u64, String> {
        let unknown = || format!("there is no source {source:?}: 'vpnd status' lists them");
        let name = SourceName::new(source.clone()).map_err(|_| unknown())?;
        match timeout(AUTH_STATUS_TIMEOUT, self.auth.request(ConfirmAbsences(name))).await {
            Ok(Ok(users)) => users.ok_or_else(unknown),
            _ => Err("the auth process gave no answer; try again".to_owned()),
        }
    }

    async fn cancel_drain(&self) -> Result<(), String> {
        self.core.drain(DrainRequest::Cancel).await.map_err(|error| error.to_string())
    }

    async fn upgrade(&self) -> Result<String, String> {
        if self.core.is_draining() {
            return Err("the gateway is being drained; 'vpnd drain --cancel' ends that".to_owned());
        }
        self.parent.upgrade().await
    }
}

/// A session's id as `vpnd status` prints it.
fn session_id(text: &str) -> Option<SessionId> {
    let mut id = [0; 16];
    if text.len() != 2 * id.len() || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(SessionId(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_ids_and_user_names_are_distinguished() {
        let id = SessionId([0xA7; 16]);
        assert_eq!(session_id(&id.to_string()), Some(id));
        for name in ["ann", "", "+a", &"g".repeat(32), &"a".repeat(31), &"é".repeat(16)] {
            assert_eq!(session_id(name), None, "{name}");
        }
    }
}
