//! The network worker of a gateway: everything that talks to the network, without a privilege.
//!
//! It gets its devices, sockets and secrets from the opener and asks the auth process about users. What it holds of
//! secrets is what TLS needs and the keys of sessions.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use rand::TryRng as _;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use vpnd_crypto::LabPermit;
use vpnd_proto::admission;
use vpnd_proto::control::Code;
use vpnd_proto::gateway::{Config, Gateway, Selector};
use vpnd_proto::plane::Role;
use vpnd_proto::policy::{Names, Policy};
use vpnd_proto::session::LocalSuite;

use super::handler::{Administration, Facts};
use super::settings;
use crate::admin::server::AdminSocket;
use crate::admin::status::{Process, Steering};
use crate::config::ServerConfig;
use crate::control::connection::Door;
use crate::control::core::Core;
use crate::control::quic;
use crate::control::quic::gate::{Admissions, Gate};
use crate::control::quic::handed::HandOver;
use crate::control::quic::keys::Keys;
use crate::control::registry::Registry;
use crate::metrics::Metrics;
use crate::privsep::auth::client::AuthClient;
use crate::privsep::auth::message::{self, Answer, Request};
use crate::privsep::channel::{Channel, ChannelError};
use crate::privsep::launch::{Devices, Reread, ToOpener, ToWorker, WorkerLaunch};
use crate::privsep::part::{self, Begun, Part};
use crate::shard::{ShardSpec, Shards, now};
use crate::suites;
use crate::sys::process;
use crate::sys::tun::{TunOffloads, TunQueue};
use crate::sys::udp::{ReuseportGroup, ShardSocket};
use crate::tls;

/// How often it is asked whether a user was disabled: half of what is promised, so that it is kept.
const REVOCATION_INTERVAL: Duration = Duration::from_millis(400);
/// How long clients have to hear that the gateway goes down.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long the last datagrams have to leave.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Runs it; `stream` leads to the opener.
pub(crate) fn run(stream: UnixStream) -> anyhow::Result<()> {
    let nothing = |launch: &WorkerLaunch| {
        // While it is still allowed: shards inherit it. Where it is not, they say so themselves.
        if let Ok(config) = launch.configuration.parse() {
            let _ = process::prefer_current_thread(config.server.priority);
            // Without this the session of its own that the worker is in would take the effect away.
            let _ = process::prefer_session(config.server.priority);
        }
        Vec::new()
    };
    match part::begin(Part::Worker, &stream, |launch: &WorkerLaunch| &launch.common, nothing) {
        Ok(begun) => part::work(stream, async |opener| serve(begun, opener).await),
        Err(error) => part::fail(stream, &error),
    }
}

/// The channel to the opener, and who waits for the configuration to be read.
pub(super) struct Opener {
    channel: Channel,
    turn: tokio::sync::Mutex<()>,
    waiting: Mutex<VecDeque<oneshot::Sender<Result<String, String>>>>,
}

impl Opener {
    /// Has the configuration read again and put into force. What has changed, in words.
    pub(super) async fn reread(&self) -> Result<String, String> {
        let (done, outcome) = oneshot::channel();
        {
            // Answers come in the order of questions.
            let _turn = self.turn.lock().await;
            self.waiting().push_back(done);
            let asked = self.channel.send(&ToOpener::ReadConfiguration, &[]).await;
            asked.map_err(|error| error.to_string())?;
        }
        outcome.await.unwrap_or_else(|_| Err("the daemon is going down".to_owned()))
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<oneshot::Sender<Result<String, String>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(begun: Begun<WorkerLaunch>, channel: Channel) -> anyhow::Result<()> {
    let prepared = Prepared::new(begun)?;
    channel.send(&ToOpener::Prepared(prepared.protections.clone()), &[]).await?;
    let first = channel.receive::<ToWorker>().await?.ok_or_else(|| anyhow!("the opener is gone"))?;
    let ToWorker::Devices(devices) = first.message else {
        bail!("the worker was told something else than its devices");
    };
    let opener = Arc::new(Opener {
        channel: channel.clone(),
        turn: tokio::sync::Mutex::default(),
        waiting: Mutex::default(),
    });
    let running = Running::start(prepared, &devices, first.descriptors, Arc::clone(&opener)).await?;
    channel.send(&ToOpener::Ready, &[]).await?;
    running.serve(channel, &opener).await
}

/// What is there before the devices are.
struct Prepared {
    launch: WorkerLaunch,
    config: ServerConfig,
    protections: crate::sys::sandbox::Protections,
    suites: Vec<LocalSuite>,
    tls: quinn::crypto::rustls::QuicServerConfig,
    keys: Keys,
    auth: Channel,
    admin: AdminSocket,
    metrics: Option<Metrics>,
}

impl Prepared {
    /// Checks all that it was given.
    fn new(begun: Begun<WorkerLaunch>) -> anyhow::Result<Self> {
        let launch = begun.launch.message;
        let config = launch.configuration.parse()?;
        let suites = suites::measure(&config.crypto.suites, config.crypto.backend, launch.insecure_lab)?;
        let tls = server_tls(&launch, config.tls.require_client_certificate)?;
        let keys = Keys::from_secret(&launch.quic_secret.0)
            .ok_or_else(|| anyhow!("the QUIC secret has the wrong length"))?;
        let mut descriptors = begun.launch.descriptors.into_iter();
        let mut next =
            |what: &str| descriptors.next().with_context(|| format!("the worker was started without {what}"));
        let auth = Channel::new(next("a channel to the auth process")?.into(), message::MAX_FRAME)?;
        let admin = AdminSocket::adopt(next("the control socket")?, launch.owner)?;
        let metrics = match config.admin.metrics {
            Some(_) => Some(Metrics::adopt(next("the listener of its metrics")?)?),
            None => None,
        };
        let protections = begun.protections;
        Ok(Self { launch, config, protections, suites, tls, keys, auth, admin, metrics })
    }

    fn facts(&self, devices: &Devices, listen: std::net::SocketAddr) -> Facts {
        let named = |name: &str, protections| Process::new(name, protections);
        Facts {
            pid: self.launch.pid,
            started: now(),
            listen: vec![listen],
            shards: devices.shards as usize,
            steering: if devices.steering_refused.is_none() { Steering::Cbpf } else { Steering::Hash },
            tun: devices.tun.into(),
            suites: self.suites.clone(),
            processes: vec![named("worker", &self.protections), named("auth", &self.launch.auth)],
        }
    }
}

fn server_tls(
    launch: &WorkerLaunch,
    required: bool,
) -> anyhow::Result<quinn::crypto::rustls::QuicServerConfig> {
    let identity = tls::Identity::from_pem(&launch.certificate, &launch.key.0)?;
    let clients = match launch.client_ca.as_deref() {
        None => tls::ClientCertificates::Ignored,
        Some(ca) if required => tls::ClientCertificates::Required(ca),
        Some(ca) => tls::ClientCertificates::Optional(ca),
    };
    Ok(tls::server(identity, &clients)?)
}

/// A worker that carries packets.
struct Running {
    administration: Arc<Administration>,
    core: Core,
    control: JoinHandle<()>,
    endpoint: quinn::Endpoint,
    /// Ends when no connection has anything more to say.
    closed: mpsc::Receiver<Infallible>,
    shard_failure: Arc<Notify>,
    auth_gone: Arc<Notify>,
    background: Vec<JoinHandle<()>>,
}

impl Running {
    async fn start(
        prepared: Prepared,
        devices: &Devices,
        descriptors: Vec<OwnedFd>,
        opener: Arc<Opener>,
    ) -> anyhow::Result<Self> {
        let config = &prepared.config;
        let mut names = Names::new();
        let policy = Arc::new(settings::policy(config).compile(&mut names)?);
        let (event_sender, events) = mpsc::unbounded_channel();
        let (queues, group) = adopt(config, devices, descriptors)?;
        let (quic_socket, hand_over) = quic::socket(group.quic)?;
        let tun_offloads = devices.tun.into();
        let specs = shard_specs(group.shards, queues, tun_offloads, config, &policy, hand_over.as_ref())?;
        let shards = Shards::start(specs, &event_sender)?;
        // The control plane is as any other program; this fails where it never was anything else.
        let _ = process::prefer_current_thread(0);
        let lab = prepared.launch.insecure_lab.then(LabPermit::insecure);
        let gateway = Gateway::new(
            core_config(config, shards.count(), prepared.suites.clone(), lab),
            crate::control::random(),
        )?;
        let shard_failure = shards.failure();
        let auth_gone = Arc::new(Notify::new());
        let auth = AuthClient::start(prepared.auth.clone(), Arc::clone(&auth_gone));
        let registry = Registry::new(auth.clone(), names);
        let (core, control) = Core::start(gateway, shards, events, registry);
        let facts = prepared.facts(devices, quic_socket.local_addr()?);
        let admissions = Admissions::new(admission::Limits {
            places: config.limits.max_handshakes,
            handshakes_per_s: config.limits.handshakes_per_address_s,
        });
        let endpoint = quic::listen(quic_socket, prepared.tls, &prepared.keys, admissions.clone())?;
        let (door, closed) = door(config, &core, &auth, admissions.clone());
        let door = Arc::new(door);
        let logins = Arc::clone(&door.logins);
        let administration =
            Arc::new(Administration { facts, core: core.clone(), logins, admissions, opener });
        let mut background = vec![
            tokio::spawn(door.run(endpoint.clone())),
            tokio::spawn(end_revoked(core.clone(), auth)),
            tokio::spawn(prepared.admin.serve(Arc::clone(&administration))),
        ];
        let metrics = prepared.metrics;
        background.extend(metrics.map(|metrics| tokio::spawn(metrics.serve(Arc::clone(&administration)))));
        Ok(Self { administration, core, control, endpoint, closed, shard_failure, auth_gone, background })
    }

    /// Works until the opener says so or is gone.
    async fn serve(self, channel: Channel, opener: &Opener) -> anyhow::Result<()> {
        // Not cancelled half-way in a message: it runs by itself.
        let (news, mut inbox) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let heard = channel.receive::<ToWorker>().await.transpose();
                let over = !matches!(heard, Some(Ok(_)));
                if news.send(heard).await.is_err() || over {
                    return;
                }
            }
        });
        loop {
            tokio::select! {
                heard = inbox.recv() => match heard.flatten() {
                    Some(heard) => match heard.and_then(|received| received.alone())? {
                        ToWorker::Stop => break,
                        ToWorker::Configuration(reread) => self.reconfigure(reread, opener).await,
                        _ => Err(ChannelError::Broken("a message that is not for a gateway at work"))?,
                    },
                    // It was killed. Its successor gets our clients back.
                    None => {
                        tracing::error!("the daemon's first process is gone, so the worker ends");
                        return Ok(());
                    }
                },
                () = self.shard_failure.notified() => bail!("a shard stopped; see the log above"),
                () = self.auth_gone.notified() => bail!("without the auth process nobody can log in"),
            }
        }
        self.stop().await;
        Ok(())
    }

    /// Puts a configuration into force, and tells who asked for it.
    async fn reconfigure(&self, reread: Reread, opener: &Opener) {
        let outcome = match reread {
            Reread::Good(configuration) => self.administration.apply(&configuration).await,
            Reread::Bad(why) => Err(why),
        };
        let asker = opener.waiting().pop_front();
        match (asker, outcome) {
            // Who has asked may have gone meanwhile.
            (Some(asker), outcome) => drop(asker.send(outcome)),
            (None, Ok(said)) => tracing::info!("{said}"),
            (None, Err(error)) => tracing::error!(%error, "the configuration stays as it was"),
        }
    }

    /// Tells the clients.
    async fn stop(mut self) {
        for task in &self.background {
            task.abort();
        }
        self.core.shut_down().await;
        let _ = tokio::time::timeout(FAREWELL, self.control).await;
        // QUIC would like to linger, for who did not hear it. Those hear a reset from the next gateway, and everybody else
        // gets it sooner.
        let _ = tokio::time::timeout(FAREWELL, self.closed.recv()).await;
        let _ = tokio::time::timeout(LAST_WORDS, self.endpoint.wait_idle()).await;
    }
}

/// The devices that the descriptors are.
fn adopt(
    config: &ServerConfig,
    devices: &Devices,
    descriptors: Vec<OwnedFd>,
) -> anyhow::Result<(Vec<TunQueue>, ReuseportGroup)> {
    let shards = devices.shards as usize;
    if shards == 0 || descriptors.len() != 2 * shards + 1 {
        bail!("the worker was given {} descriptors for {shards} shards", descriptors.len());
    }
    let mut descriptors = descriptors.into_iter();
    let queues = descriptors.by_ref().take(shards).map(TunQueue::adopt).collect();
    let sockets = descriptors.collect();
    let refused = devices.steering_refused.clone();
    let group = ReuseportGroup::adopt(sockets, &super::socket_options(config), refused)?;
    Ok((queues, group))
}

fn shard_specs(
    sockets: Vec<ShardSocket>,
    queues: Vec<TunQueue>,
    tun_offloads: TunOffloads,
    config: &ServerConfig,
    policy: &Arc<Policy>,
    hand_over: Option<&HandOver>,
) -> anyhow::Result<Vec<ShardSpec>> {
    let cores = process::available_cores()?;
    let mut specs = Vec::new();
    for (number, (socket, tun)) in sockets.into_iter().zip(queues).enumerate() {
        specs.push(ShardSpec {
            number,
            core: Some(cores[number % cores.len()]),
            priority: config.server.priority,
            role: Role::Gateway,
            policy: Arc::clone(policy),
            hash_seed: rand::rngs::SysRng.try_next_u64().context("the system gives no random numbers")?,
            tun,
            tun_offloads,
            mtu: config.tunnel.mtu,
            socket,
            quic: hand_over.cloned(),
        });
    }
    Ok(specs)
}

fn core_config(
    config: &ServerConfig,
    shards: usize,
    suites: Vec<LocalSuite>,
    lab: Option<LabPermit>,
) -> Config {
    Config {
        shards,
        suites,
        fixed_suite: None,
        features: vpnd_proto::control::FEATURE_PARTIAL_CHECKSUM,
        lab,
        timers: settings::timers(&config.timeouts),
        idle_timeout: config.timeouts.idle_timeout,
        max_sessions: config.limits.max_sessions,
        max_sessions_per_user: config.limits.max_sessions_per_user,
        network: settings::network(config),
    }
}

fn door(
    config: &ServerConfig,
    core: &Core,
    auth: &AuthClient,
    admissions: Admissions,
) -> (Door, mpsc::Receiver<Infallible>) {
    let (open, closed) = mpsc::channel(1);
    let door = Door {
        core: core.clone(),
        auth: auth.clone(),
        deadline: config.timeouts.authentication_deadline,
        gate: Gate::new(admissions, config.limits.max_handshakes),
        logins: Arc::default(),
        _open: open,
    };
    (door, closed)
}

/// Ends the sessions of users who were disabled, removed or given another password, by whichever process did it.
async fn end_revoked(core: Core, auth: AuthClient) {
    let mut seen = None;
    loop {
        match auth.ask(Request::Revocations(seen)).await {
            Ok(Answer::Revocations { seen: last, found }) => {
                seen = Some(last);
                for revoked in found {
                    let user = Selector::User(revoked.name.clone());
                    let ended = core.end(user, Code::Disabled, revoked.cause.to_string()).await;
                    let Ok(count) = ended else { return };
                    tracing::info!(user = %revoked.name, cause = ?revoked.cause, sessions = count, "revoked");
                }
            }
            Ok(Answer::Failed(error)) => tracing::error!(%error, "can't tell whether users were disabled"),
            Ok(_) => tracing::error!("can't tell whether users were disabled: the answer makes no sense"),
            // The daemon is going down.
            Err(_) => return,
        }
        tokio::time::sleep(REVOCATION_INTERVAL).await;
    }
}
