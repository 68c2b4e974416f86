//! The network worker of a gateway: everything that talks to the network, without a privilege.
//!
//! It gets its devices, sockets and secrets from the parent and sends the auth process requests
//! about users. What it holds of secrets is what TLS needs and the keys of sessions.

pub(crate) mod access;
mod accounting;
pub(crate) mod admin_server;
mod administration;
pub(crate) mod auth_client;
mod certificate;
mod client_certificates;
mod closing;
pub(crate) mod connection;
pub(crate) mod core;
mod devices;
mod fleet_report;
pub mod handover;
pub(crate) mod hosts;
mod listener;
pub(crate) mod metrics;
mod observation;
mod orders;
mod outer_addresses;
mod parent_client;
pub mod quic;
mod rates;
pub(crate) mod registry;
pub mod relayed;
mod releases;
mod revocation;
mod settings;
#[cfg(test)]
mod testing;
mod wireguard;

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use vpnd_crypto::LabPermit;
use vpnd_proto::gateway::Gateway;
use vpnd_proto::session::LocalSuite;

use crate::quic_keys::Keys;
use crate::worker::admin_server::AdminSocket;
use crate::worker::auth_client::AuthClient;
use crate::worker::connection::{ControlServer, LoginLog};
use crate::worker::core::{Core, HandoverSummary};
use crate::worker::metrics::Metrics;
use crate::worker::orders::Orders;
use crate::worker::quic::acceptor::{Acceptor, AdmissionControl};
use crate::worker::registry::Registry;
use crate::worker::relayed::Relayed;
use crate::worker::releases::Releases;
use administration::{Administration, MachineState, StaticInfo};
use certificate::WorkerCertificate;
use client_certificates::ClientCertificates;
use closing::refuse_all;
use devices::{adopt, shard_specs};
use handover::{Predecessor, Successor, adopt_sessions};
use listener::Listener;
use parent_client::ParentClient;
use revocation::{Revocations, carry_out_revocations};
use vpnd_config::ServerConfig;
use vpnd_config::fleet::Fleet;
use vpnd_config::in_force::Settings;
use vpnd_ipc::admin::Handler as _;
use vpnd_ipc::admin::status::{FleetMember, Process, Steering};
use vpnd_ipc::channel::{Channel, ChannelError, Received};
use vpnd_ipc::child::{self, ChildRole, Preparation, Started};
use vpnd_ipc::gateway as messages;
use vpnd_ipc::gateway::{Begin, FromWorker, ReloadedConfiguration, ToWorker, WorkerLaunch};
use vpnd_ipc::messages::{self as common, Devices};
use vpnd_ipc::signing::SigningClient;
use vpnd_shard::{EVENT_QUEUE, Shards, suites};
use vpnd_sys::clock::now;
use vpnd_sys::process;
use wireguard::WireGuard;

/// Limit for the notices to clients that the gateway goes down.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit for the successor to start its shards.
const SUCCESSOR_START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for QUIC's last datagrams to leave.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs it; `stream` leads to the parent.
pub fn run(stream: UnixStream) -> anyhow::Result<()> {
    let prefer = |launch: &WorkerLaunch| {
        // While it is still allowed: shards inherit it. Where it is not, they log that themselves.
        if let Ok(config) = launch.configuration.parse() {
            let _ = process::prefer_current_thread(config.server.priority);
            // Without this the worker's separate session would undo the effect.
            let _ = process::prefer_session(config.server.priority);
        }
        Ok(Preparation { writable: Vec::new(), tcp_ports: Vec::new(), made: () })
    };
    let started = child::start(ChildRole::Worker, &stream, |launch: &WorkerLaunch| &launch.common, prefer);
    match started.and_then(|started| child::work(&stream, async |parent| serve(started, parent).await)) {
        Ok(()) => Ok(()),
        Err(error) => child::finish(stream, &FromWorker::Failed(vpnd_sys::text::format_chain(&error))),
    }
}

async fn serve(started: Started<WorkerLaunch>, channel: Channel) -> anyhow::Result<()> {
    let prepared = Prepared::new(started)?;
    channel.send(&common::Prepared::Prepared(prepared.protections.clone()), &[]).await?;
    let begin = channel.receive::<Begin>().await?.ok_or_else(|| anyhow!("the parent is gone"))?;
    let initial = InitialState::of(begin.message, begin.descriptors).await?;
    let running = RunningWorker::start(prepared, initial, &channel).await?;
    running.serve(channel).await
}

/// The devices that it begins with.
struct InitialState {
    devices: Devices,
    descriptors: Vec<OwnedFd>,
    /// The worker that has had the sessions until now.
    predecessor: Option<Predecessor>,
}

impl InitialState {
    async fn of(message: Begin, descriptors: Vec<OwnedFd>) -> anyhow::Result<Self> {
        match message {
            Begin::Devices(devices) => Ok(Self { devices, descriptors, predecessor: None }),
            Begin::TakeOver => {
                let Ok([stream]) = <[_; 1]>::try_from(descriptors) else {
                    bail!("the worker was given no channel to the one that runs");
                };
                let (predecessor, devices, descriptors) = Predecessor::receive_devices(stream).await?;
                Ok(Self { devices, descriptors, predecessor: Some(predecessor) })
            }
        }
    }
}

/// State that is prepared before the devices are opened.
struct Prepared {
    launch: WorkerLaunch,
    config: ServerConfig,
    protections: vpnd_sys::sandbox::Protections,
    suites: Vec<LocalSuite>,
    tls: quinn::crypto::rustls::QuicServerConfig,
    clients: ClientCertificates,
    certificate: Arc<WorkerCertificate>,
    keys: Keys,
    auth: Channel,
    admin: AdminSocket,
    metrics: Option<Metrics>,
}

impl Prepared {
    /// Checks all that it was given.
    fn new(started: Started<WorkerLaunch>) -> anyhow::Result<Self> {
        let launch = started.launch.message;
        let config = launch.configuration.parse()?;
        let suites = suites::measure(&config.crypto.suites, config.crypto.backend, launch.insecure_lab)?;
        let keys = Keys::from_secret(&launch.quic_secret.0)
            .ok_or_else(|| anyhow!("the QUIC secret has the wrong length"))?;
        let mut descriptors = started.launch.descriptors.into_iter();
        let mut next =
            |what: &str| descriptors.next().with_context(|| format!("the worker was started without {what}"));
        let auth = Channel::new(next("a channel to the auth process")?.into(), messages::auth::MAX_FRAME)?;
        let signing = SigningClient::new(next("a channel for signatures")?);
        let certificate = Arc::new(WorkerCertificate::new(&launch.certificate, signing)?);
        let required = config.tls.require_client_certificate;
        let clients = ClientCertificates::new(&launch, &certificate, required);
        let tls = clients.tls()?;
        let admin = AdminSocket::adopt(next("the control socket")?, launch.owner)?;
        let metrics = match config.admin.metrics {
            Some(_) => {
                let listener = next("the listener of its metrics")?;
                Some(Metrics::adopt(listener, config.admin.metrics_by_session)?)
            }
            None => None,
        };
        let protections = started.protections;
        Ok(Self {
            launch,
            config,
            protections,
            suites,
            tls,
            clients,
            certificate,
            keys,
            auth,
            admin,
            metrics,
        })
    }

    fn static_info(&self, devices: &Devices, listen: std::net::SocketAddr) -> StaticInfo {
        let named = |name: &str, protections| Process::new(name, protections);
        let fleet = self.config.fleet.clone();
        StaticInfo {
            pid: self.launch.pid,
            parent_version: self.launch.parent_version.clone(),
            started: now(),
            listen,
            fleet: fleet.map(|Fleet { id, name, .. }| FleetMember { fleet: id, name }),
            shards: devices.shards as usize,
            steering: if devices.steering_refused.is_none() { Steering::Cbpf } else { Steering::Hash },
            tun: devices.tun,
            suites: self.suites.clone(),
            has_wireguard: self.config.wireguard.is_some(),
            processes: vec![named("worker", &self.protections), named("auth", &self.launch.auth)],
        }
    }
}

/// A worker that carries packets.
struct RunningWorker {
    administration: Arc<Administration>,
    core: Core,
    control: JoinHandle<()>,
    listener: Listener,
    shard_failure: Arc<Notify>,
    auth_gone: Arc<Notify>,
    background: Vec<JoinHandle<()>>,
    handover: HandoverState,
}

/// Kept for a hand-over to the next worker.
struct HandoverState {
    devices: Devices,
    /// Second handles of all that the shards and QUIC have.
    descriptors: Vec<OwnedFd>,
    /// The last revocation that was carried out.
    revocations: Revocations,
    /// QUIC receives nothing more.
    paused: Arc<AtomicBool>,
    admin: JoinHandle<()>,
    admin_over: Arc<Notify>,
}

impl RunningWorker {
    async fn start(prepared: Prepared, initial: InitialState, channel: &Channel) -> anyhow::Result<Self> {
        let InitialState { devices, descriptors, predecessor } = initial;
        let (config, releases, relayed) = (&prepared.config, Releases::default(), Relayed::default());
        let (auth_gone, admin_over) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let auth = AuthClient::start(prepared.auth.clone(), Arc::clone(&auth_gone));
        let mut registry = Registry::new(auth.clone(), config)?.releasing(releases.clone()).relayed(&relayed);
        let access = registry.access();
        let (event_sender, events) = mpsc::channel(EVENT_QUEUE);
        let handles = descriptors.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>()?;
        let (queues, group) = adopt(config, &devices, descriptors)?;
        let (quic_socket, forwarder) = quic::socket(group.quic)?;
        let mut peers =
            WireGuard::start(config, &auth, devices.shards, &prepared.suites, &quic_socket).await?;
        let (orders, aside) = Orders::start(config, &quic_socket, peers.as_ref().map(WireGuard::queue));
        let ways = (forwarder.as_ref(), aside.wireguard.as_ref());
        let mut specs = shard_specs(group.shards, queues, devices.tun, config, &access.policy, ways)?;
        let lab = prepared.launch.insecure_lab.then(LabPermit::insecure);
        let settings = settings::core(config, access, specs.len(), prepared.suites.clone(), lab);
        let mut gateway = Gateway::new(settings, vpnd_sys::random::random())?;
        registry.set_limits(config.limits.rates.clone(), &mut gateway);
        let static_info = prepared.static_info(&devices, quic_socket.local_addr()?);
        let (revocations, before) =
            adopt_sessions(predecessor, &auth, &mut gateway, &mut registry, peers.as_mut(), &mut specs)
                .await?;
        let (hosts, shards) = (registry.hosts().cloned(), Shards::start(specs, &event_sender)?);
        // The control plane is as any other program; this fails where it never was anything else.
        let _ = process::prefer_current_thread(0);
        let (shard_failure, registry) = (shards.failure(), registry.revoking(prepared.clients.revoked()?));
        let (core, control) = Core::start(gateway, shards, events, registry, peers);
        let admission = AdmissionControl::new(settings::admission(config), relayed);
        let (keys, paused, for_quic) = (prepared.keys, Arc::<AtomicBool>::default(), admission.clone());
        let endpoint = quic::listen(quic_socket, prepared.tls, &keys, for_quic, Arc::clone(&paused), aside)?;
        let (server, closed) = server(config, &core, &auth, admission.clone());
        let (logins, server) = (Arc::clone(&server.logins), Arc::new(server));
        let administration = Arc::new(Administration {
            static_info,
            core: core.clone(),
            auth: auth.clone(),
            logins,
            admission,
            parent: ParentClient::start(channel.clone()),
            certificate: prepared.certificate,
            before,
            config: Mutex::new(config.clone()),
            in_force: Mutex::new(in_force(&prepared.launch)),
            machine: MachineState::default(),
        });
        let reporting = accounting::report_traffic(core.clone(), auth.clone(), &config.sources);
        let revoking = carry_out_revocations(core.clone(), auth, revocations.clone());
        let connections = Arc::downgrade(&server);
        let mut background = vec![tokio::spawn(server.run(endpoint.clone())), tokio::spawn(revoking)];
        // Before requests of administrators: the parent expects this message first.
        channel.send(&common::Ready::Ready, &[]).await?;
        let admin = tokio::spawn(prepared.admin.serve(Arc::clone(&administration), Arc::clone(&admin_over)));
        let handover =
            HandoverState { devices, descriptors: handles, revocations, paused, admin, admin_over };
        let serve = |metrics: Metrics| tokio::spawn(metrics.serve(Arc::clone(&administration)));
        background.extend(prepared.metrics.map(serve).into_iter().chain(reporting.map(tokio::spawn)));
        background.extend(administration.begin_tasks(releases, hosts, orders));
        Ok(Self {
            administration,
            core,
            control,
            listener: Listener { endpoint, closed, server: connections, clients: prepared.clients, keys },
            shard_failure,
            auth_gone,
            background,
            handover,
        })
    }

    /// Works until the parent ends it or is gone.
    async fn serve(mut self, channel: Channel) -> anyhow::Result<()> {
        self.administration.parent.send(FromWorker::ReportFirewall).await?;
        self.background.push(tokio::spawn(observation::report(Arc::clone(&self.administration))));
        // Not cancelled half-way in a message: it runs by itself.
        let (sender, mut inbox) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let received = channel.receive::<ToWorker>().await.transpose();
                let over = !matches!(received, Some(Ok(_)));
                if sender.send(received).await.is_err() || over {
                    return;
                }
            }
        });
        let reason = loop {
            tokio::select! {
                received = inbox.recv() => match received.flatten() {
                    Some(received) => match received.and_then(Received::into_parts)? {
                        (ToWorker::Stop(reason), None) => break reason,
                        (ToWorker::Configuration(reloaded), None) => self.reconfigure(reloaded).await,
                        (ToWorker::Certificate(certificate), None) => {
                            self.administration.certificate.replace(&certificate)?;
                        }
                        (ToWorker::Revoked(file), None) => {
                            self.listener.revoke(file.into(), &self.core).await?;
                        }
                        (ToWorker::Firewall(firewall), None) => self.administration.note_firewall(firewall),
                        (ToWorker::Relay { here, client }, None) => {
                            self.administration.admission.relayed().begin(here, client);
                            self.administration.parent.send(FromWorker::RelayKnown(here)).await?;
                        }
                        (ToWorker::RelayOver { here, dropped }, None) => {
                            self.administration.admission.relayed().end(here, dropped);
                        }
                        (ToWorker::Forgotten, None) => self.administration.parent.released(),
                        (ToWorker::HostsSet(is_set), None) => self.administration.parent.hosts_set(is_set),
                        (ToWorker::Addresses(all), None) => self.administration.note_addresses(all),
                        (ToWorker::NotUpgraded(why), None) => self.administration.parent.upgraded(Err(why)),
                        (ToWorker::HandOver, Some(stream)) => {
                            if self.hand_over(stream, &mut inbox).await? {
                                return Ok(());
                            }
                        }
                        _ => Err(ChannelError::Broken("a descriptor too many or too few"))?,
                    },
                    // It was killed. Its successor gets our clients back.
                    None => {
                        tracing::error!("the daemon's first process is gone, so the worker ends");
                        return Ok(());
                    }
                },
                () = self.shard_failure.notified() => bail!("a shard stopped; see the log above"),
                () = self.auth_gone.notified() => bail!("without the auth process no user can log in"),
            }
        };
        self.stop(reason.as_deref()).await;
        Ok(())
    }

    /// Puts a configuration into force, and reports the result to the administrator.
    async fn reconfigure(&self, reloaded: ReloadedConfiguration) {
        let outcome = match reloaded {
            ReloadedConfiguration::Good(configuration) => self.administration.apply(&configuration).await,
            ReloadedConfiguration::Bad(why) => Err(why),
        };
        // After SIGHUP no command waits for the result, so it goes to the log.
        match self.administration.parent.reload_finished(outcome) {
            Ok(()) => {}
            Err(Ok(changed)) => tracing::info!("{changed}"),
            Err(Err(error)) => tracing::error!(%error, "the configuration stays unchanged"),
        }
    }

    /// Hands everything to the worker behind `stream`; whether it did, and so is no gateway any
    /// more.
    async fn hand_over(&mut self, stream: OwnedFd, inbox: &mut Inbox) -> anyhow::Result<bool> {
        let summary = match self.hand_over_sessions(stream).await {
            Ok(summary) => summary,
            Err(error) => {
                self.administration
                    .parent
                    .send(FromWorker::HandoverFailed(vpnd_sys::text::format_chain(&error)))
                    .await?;
                return Ok(false);
            }
        };
        self.handover.paused.store(true, Ordering::Relaxed);
        self.handover.admin_over.notify_one();
        for task in &self.background {
            task.abort();
        }
        let HandoverSummary { sessions, version, paused_for } = summary;
        let outcome = format!(
            "vpnd {version} goes on with {sessions} sessions; traffic stood still for {paused_for:.0?}; the privileged process stays the \
             program that it was started as until a restart"
        );
        tracing::info!("{outcome}");
        self.administration.parent.send(FromWorker::HandedOver).await?;
        // The parent sends this once the other worker is at work.
        let stop = tokio::time::timeout(SUCCESSOR_START_TIMEOUT, is_stopped(inbox)).await;
        if stop == Ok(true) {
            self.administration.parent.upgraded(Ok(outcome));
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, &mut self.handover.admin).await;
        }
        Ok(true)
    }

    async fn hand_over_sessions(&self, stream: OwnedFd) -> anyhow::Result<HandoverSummary> {
        let HandoverState { devices, descriptors, revocations, .. } = &self.handover;
        let Some(revocations) = revocations.get() else {
            bail!("the gateway has only just started; try again in a second");
        };
        let counters = self.administration.status().await.map_err(anyhow::Error::msg)?.counters;
        let successor = Successor::begin(stream, devices.clone(), descriptors, revocations, counters).await?;
        self.core.hand_over(successor).await
    }

    /// Logs the gateway's totals, and notifies the clients.
    async fn stop(self, reason: Option<&str>) {
        self.administration.log_end(reason.unwrap_or("unknown")).await;
        self.handover.admin.abort();
        for task in &self.background {
            task.abort();
        }
        let refusing = tokio::spawn(refuse_all(self.listener.endpoint.clone()));
        self.core.shut_down().await;
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.control).await;
        self.listener.close().await;
        refusing.abort();
    }
}

/// The parent's messages, in its order.
type Inbox = mpsc::Receiver<Option<Result<Received<ToWorker>, ChannelError>>>;

/// Whether the parent has the worker stop. The answer to a request of before may come first.
async fn is_stopped(inbox: &mut Inbox) -> bool {
    loop {
        match inbox.recv().await {
            Some(Some(Ok(Received {
                message: ToWorker::Forgotten | ToWorker::HostsSet(_) | ToWorker::Addresses(_),
                ..
            }))) => {}
            received => {
                return matches!(received, Some(Some(Ok(Received { message: ToWorker::Stop(_), .. }))));
            }
        }
    }
}

fn server(
    config: &ServerConfig,
    core: &Core,
    auth: &AuthClient,
    admission: AdmissionControl,
) -> (ControlServer, mpsc::Receiver<Infallible>) {
    let (open, closed) = mpsc::channel(1);
    let server = ControlServer {
        core: core.clone(),
        auth: auth.clone(),
        deadline: config.timeouts.authentication_deadline,
        acceptor: Acceptor::new(admission, settings::logins(config)),
        logins: Arc::default(),
        login_log: LoginLog::default(),
        _open: open,
    };
    (server, closed)
}

/// The settings that this process begins with.
fn in_force(launch: &WorkerLaunch) -> Settings {
    let mut settings = launch.configuration.settings();
    settings.keep_log_level(&launch.common.log_filter);
    settings
}
