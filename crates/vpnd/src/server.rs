//! The gateway: `vpnd server`.
//!
//! Start-up goes from what can fail without a trace to what changes the machine: configuration, store, certificate,
//! sockets, then the TUN device, addresses and firewall, these through the undo journal. Nothing of the machine is
//! changed before everything that can be checked has been.

mod handler;
mod machine;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use rand::TryRng as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use vpnd_crypto::LabPermit;
use vpnd_proto::control::Code;
use vpnd_proto::gateway::{Config, Gateway, Selector};
use vpnd_proto::plane::Role;
use vpnd_proto::policy::{Names, Policy};
use vpnd_proto::session::LocalSuite;

use crate::admin::server::AdminSocket;
use crate::admin::status::Steering;
use crate::auth::password::Hasher;
use crate::auth::{self, Authenticator};
use crate::cli::ServerArgs;
use crate::config::{ConfigError, ServerConfig, check};
use crate::control::connection::Door;
use crate::control::core::Core;
use crate::control::quic;
use crate::control::quic::gate::Gate;
use crate::control::quic::handed::HandOver;
use crate::control::quic::keys::Keys;
use crate::control::registry::Registry;
use crate::lease::Pools;
use crate::logging;
use crate::metrics::Metrics;
use crate::shard::{ShardSpec, Shards, now};
use crate::store::sqlite::Sqlite;
use crate::store::{RevocationCause, Store};
use crate::suites;
use crate::sys::process::{self, Capability};
use crate::sys::tun::{GATEWAY_TX_QUEUE_LEN, Tun, TunSpec};
use crate::sys::udp::{self, ReuseportGroup, ShardSocket, SocketOptions, bind_reuseport_group};
use crate::tls;
use handler::{Administration, Facts};
use machine::Machine;

/// How often the store is asked whether a user was disabled: half of what is promised, so that it is kept.
const REVOCATION_INTERVAL: Duration = Duration::from_millis(400);
/// How often the user store is copied.
const BACKUP_INTERVAL: Duration = Duration::from_secs(6 * 3600);
/// How long clients have to hear that the gateway goes down.
const FAREWELL: Duration = Duration::from_secs(2);

/// Runs `vpnd server` until it is told to stop.
///
/// # Errors
/// What failed and what to do, for the administrator.
pub async fn run(args: ServerArgs) -> anyhow::Result<()> {
    let config = ServerConfig::load(&args.config)?;
    logging::init(&config.log.level, args.log_format.unwrap_or(config.log.format))?;
    process::require(Capability::NetAdmin)?;
    config.check(&check::local_networks(), check::now_s()).map_err(ConfigError::Invalid)?;
    process::forbid_core_dumps().context("core dumps can't be switched off, and they could hold keys")?;
    process::return_large_blocks();
    let running = Running::start(args, config).await?;
    running.serve().await
}

/// A gateway that is up.
struct Running {
    administration: Arc<Administration>,
    core: Core,
    control: JoinHandle<()>,
    endpoint: quinn::Endpoint,
    machine: Machine,
    shard_failure: Arc<Notify>,
    background: Vec<JoinHandle<()>>,
}

impl Running {
    async fn start(args: ServerArgs, config: ServerConfig) -> anyhow::Result<Self> {
        let lab = args.insecure_lab.then(LabPermit::insecure);
        let suites = suites::measure(&config.crypto.suites, config.crypto.backend, lab.is_some())?;
        let sqlite = Arc::new(Sqlite::open(&config.server.store_path())?);
        let store: Arc<dyn Store> = Arc::clone(&sqlite) as _;
        let admin = AdminSocket::bind(&config.admin.socket)?;
        let metrics = match config.admin.metrics {
            Some(address) => Some(Metrics::bind(address).await?),
            None => None,
        };
        let mut machine = Machine::new(&config).await?;
        let tls = server_tls(&config)?;
        let keys = Keys::load_or_create(&config.server.state_dir)?;
        let (group, shards) = bind(&config)?;
        let tun = open_tun(&config, shards)?;
        machine.configure(&config, &tun).await?;

        let mut names = Names::new();
        let policy = settings::policy(&config.policy);
        let policy = Arc::new(Policy::compile(&policy.rules, policy.client_to_client, &mut names)?);
        let (event_sender, events) = mpsc::unbounded_channel();
        let steering = if group.steering_refused.is_none() { Steering::Cbpf } else { Steering::Hash };
        let tun_offloads = tun.offloads();
        let (quic_socket, hand_over) = quic::socket(group.quic)?;
        let specs = shard_specs(group.shards, tun, &config, &policy, hand_over.as_ref())?;
        let shards = Shards::start(specs, &event_sender)?;
        let gateway = Gateway::new(
            core_config(&config, shards.count(), suites.clone(), lab),
            crate::control::random(),
        )?;
        let (count, shard_failure) = (shards.count(), shards.failure());
        let registry = Registry::new(Arc::clone(&store), names);
        let (core, control) = Core::start(gateway, shards, events, registry);
        let endpoint = quic::listen(quic_socket, tls, &keys)?;
        let door = Arc::new(door(&config, &core, &store).await?);
        let facts = Facts {
            config: args.config,
            started: now(),
            listen: vec![endpoint.local_addr()?],
            shards: count,
            steering,
            tun: tun_offloads,
            suites,
        };
        let logins = Arc::clone(&door.logins);
        let administration = Arc::new(Administration { facts, core: core.clone(), logins });
        let mut background = vec![
            tokio::spawn(door.run(endpoint.clone())),
            tokio::spawn(end_revoked(core.clone(), Arc::clone(&store))),
            tokio::spawn(admin.serve(Arc::clone(&administration))),
            tokio::spawn(back_up(sqlite)),
        ];
        background.extend(metrics.map(|metrics| tokio::spawn(metrics.serve(Arc::clone(&administration)))));
        tracing::info!(
            listen = %endpoint.local_addr()?,
            interface = %config.tunnel.name,
            ?steering,
            "the gateway is up"
        );
        Ok(Self { administration, core, control, endpoint, machine, shard_failure, background })
    }

    async fn serve(self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let outcome = loop {
            tokio::select! {
                _ = terminate.recv() => break Ok(()),
                _ = interrupt.recv() => break Ok(()),
                () = self.shard_failure.notified() => break Err(anyhow!("a shard stopped; see the log above")),
                _ = hangup.recv() => match self.administration.read_again().await {
                    Ok(said) => tracing::info!("{said}"),
                    Err(error) => tracing::error!(%error, "the configuration stays as it was"),
                },
            }
        };
        self.stop().await;
        outcome
    }

    /// Tells the clients, then takes back what was changed on the machine.
    async fn stop(self) {
        tracing::info!("the gateway goes down");
        for task in &self.background {
            task.abort();
        }
        self.core.shut_down().await;
        let _ = tokio::time::timeout(FAREWELL, self.control).await;
        let _ = tokio::time::timeout(FAREWELL, self.endpoint.wait_idle()).await;
        self.machine.undo().await;
    }
}

fn server_tls(config: &ServerConfig) -> anyhow::Result<quinn::crypto::rustls::QuicServerConfig> {
    let read = |path: &std::path::Path| {
        std::fs::read(path).with_context(|| format!("can't read {}", path.display()))
    };
    let key = zeroize::Zeroizing::new(read(&config.tls.key)?);
    let identity = tls::Identity::from_pem(&read(&config.tls.certificate)?, &key)?;
    let ca = config.tls.client_ca.as_deref().map(read).transpose()?;
    let clients = match &ca {
        None => tls::ClientCertificates::Ignored,
        Some(ca) if config.tls.require_client_certificate => tls::ClientCertificates::Required(ca),
        Some(ca) => tls::ClientCertificates::Optional(ca),
    };
    Ok(tls::server(identity, &clients)?)
}

/// Binds the port for QUIC and all shards.
fn bind(config: &ServerConfig) -> anyhow::Result<(ReuseportGroup, usize)> {
    let [listen] = config.server.listen[..] else {
        bail!("[server] listen must name one address; `[::]:4433` takes IPv4 and IPv6");
    };
    let shards = match config.server.shards {
        0 => process::available_cores()?.len().min(vpnd_proto::wire::MAX_GATEWAY_LANES),
        shards => shards,
    };
    let options = SocketOptions {
        gro: config.offload.udp_gro,
        gso: config.offload.udp_gso,
        ..SocketOptions::default()
    };
    let steering = if config.offload.steering { udp::Steering::Program } else { udp::Steering::Off };
    let group = bind_reuseport_group(listen, shards, steering, &options)?;
    if let Some(error) = &group.steering_refused {
        tracing::warn!(%error, "datagrams are not steered to their shards by the kernel: slower, but right");
    }
    Ok((group, shards))
}

fn open_tun(config: &ServerConfig, queues: usize) -> anyhow::Result<Tun> {
    let tun = Tun::open(&TunSpec {
        name: config.tunnel.name.clone(),
        mtu: config.tunnel.mtu,
        queues,
        tx_queue_len: GATEWAY_TX_QUEUE_LEN,
        offloads: config.offload.tun_offloads(),
    })?;
    if config.offload.steering
        && let Err(error) = tun.pin_flows()
    {
        tracing::warn!(
            %error,
            "the kernel may move flows between the queues of the TUN device, and packets then come out of order: run as root \
             or with CAP_BPF, or with `shards = 1`"
        );
    }
    Ok(tun)
}

fn shard_specs(
    sockets: Vec<ShardSocket>,
    tun: Tun,
    config: &ServerConfig,
    policy: &Arc<Policy>,
    hand_over: Option<&HandOver>,
) -> anyhow::Result<Vec<ShardSpec>> {
    let tun_offloads = tun.offloads();
    let cores = process::available_cores()?;
    let mut specs = Vec::new();
    for (number, (socket, queue)) in sockets.into_iter().zip(tun.into_queues()).enumerate() {
        specs.push(ShardSpec {
            number,
            core: Some(cores[number % cores.len()]),
            priority: config.server.priority,
            role: Role::Gateway,
            policy: Arc::clone(policy),
            hash_seed: rand::rngs::SysRng.try_next_u64().context("the system gives no random numbers")?,
            tun: queue,
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

async fn door(config: &ServerConfig, core: &Core, store: &Arc<dyn Store>) -> anyhow::Result<Door> {
    let settings = auth::Settings {
        workers: match config.limits.password_workers {
            0 => process::available_cores()?.len().div_ceil(2),
            workers => workers,
        },
        queue: config.limits.password_queue,
        require_certificate: config.tls.require_client_certificate,
    };
    let for_auth = Arc::clone(store);
    let authenticator =
        tokio::task::spawn_blocking(move || Authenticator::new(for_auth, Hasher::default(), settings))
            .await?;
    Ok(Door {
        core: core.clone(),
        authenticator: Arc::new(authenticator),
        store: Arc::clone(store),
        pools: Pools::new(&config.tunnel),
        session_lifetime: config.timeouts.session_lifetime,
        deadline: config.timeouts.authentication_deadline,
        gate: Gate::new(config.limits.max_handshakes),
        logins: Arc::default(),
    })
}

/// Keeps a copy of the store, which has just proved whole, beside it.
async fn back_up(store: Arc<Sqlite>) {
    loop {
        let copied = Arc::clone(&store);
        match tokio::task::spawn_blocking(move || copied.back_up()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the user store has no new backup"),
            Err(error) => tracing::error!(%error, "the user store has no new backup"),
        }
        tokio::time::sleep(BACKUP_INTERVAL).await;
    }
}

/// Ends the sessions of users who were disabled, removed or given another password, by whichever process did it.
async fn end_revoked(core: Core, store: Arc<dyn Store>) {
    let mut seen: Option<u64> = None;
    loop {
        let asked = Arc::clone(&store);
        let found = tokio::task::spawn_blocking(move || match seen {
            None => asked.last_revocation().map(|last| (last, Vec::new())),
            Some(seen) => asked.revocations_since(seen).map(|found| (seen, found)),
        });
        match found.await {
            Ok(Ok((last, revocations))) => {
                seen = Some(last);
                for revocation in revocations {
                    seen = Some(revocation.seq);
                    let why = match revocation.cause {
                        RevocationCause::Disabled => "this user was disabled",
                        RevocationCause::Removed => "this user was removed",
                        RevocationCause::Password => "the password was changed; log in again",
                    };
                    let user = vpnd_proto::control::UserName::cut(&revocation.name);
                    let ended = core.end(Selector::User(user), Code::Disabled, why.to_owned()).await;
                    let Ok(count) = ended else { return };
                    tracing::info!(user = %revocation.name, cause = ?revocation.cause, sessions = count, "revoked");
                }
            }
            Ok(Err(error)) => tracing::error!(%error, "can't tell whether users were disabled"),
            Err(error) => tracing::error!(%error, "can't tell whether users were disabled"),
        }
        tokio::time::sleep(REVOCATION_INTERVAL).await;
    }
}
