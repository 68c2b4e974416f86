//! The client: `vpnd connect`.
//!
//! The shell around the sans-IO core of `vpnd-proto`: it makes connections, moves messages, and changes the machine's
//! network as the core asks. INVARIANT: every change to the machine goes through the undo journal, so that a killed
//! client can be cleaned up after.

mod device;
mod dial;
mod network;

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rand::TryRng as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use vpnd_crypto::LabPermit;
use vpnd_proto::client::{Action, Client, Config, DEFAULT_MTU, Purpose};
use vpnd_proto::control::{Code, FEATURE_PARTIAL_CHECKSUM, Message, Offer};
use vpnd_proto::plane::{Activity, Endpoint, Event, Role};
use vpnd_proto::policy::Policy;
use vpnd_proto::session::{ConnectionId, Timers};

use crate::cli::ConnectArgs;
use crate::config::Offload;
use crate::control::stream::{StreamError, Writer};
use crate::credentials::{self, Source};
use crate::journal;
use crate::profile::{Profile, Trust};
use crate::shard::{ShardSpec, Shards, now};
use crate::suites;
use crate::sys::netlink::{Netlink, NetworkChange, NetworkWatch};
use crate::sys::process::{self, Capability};
use crate::sys::tun::{CLIENT_TX_QUEUE_LEN, Tun, TunSpec};
use crate::sys::udp::{ShardSocket, SocketOptions};
use crate::tls;
use device::Device;
use dial::{Answer, Channel, Credentials, DialError, Dialer};
use network::{MARK, NetworkSetup, Wishes};

/// How often the core hears of traffic, which bounds how soon it notices silence, and looks at the clock whatever
/// happened: after a suspend its timers are late.
const TICK: Duration = Duration::from_millis(250);
/// Changes of the machine's network come in bursts; this long after the first the core is told.
const NETWORK_SETTLES: Duration = Duration::from_millis(100);
/// How long a last message may take on its way out.
const FAREWELL: Duration = Duration::from_secs(2);
/// MTU of the TUN device until the core names one.
const INITIAL_MTU: u16 = DEFAULT_MTU;

/// Runs `vpnd connect` until the user ends it or the gateway refuses for good.
///
/// # Errors
/// What failed and what to do, for the terminal.
pub async fn run(args: ConnectArgs) -> anyhow::Result<()> {
    let profile = Profile::load(&args.profile)?;
    process::require(Capability::NetAdmin)?;
    process::forbid_core_dumps().context("core dumps can't be switched off, and they could hold keys")?;
    clean_up_after_others(&args.state_dir).await?;
    let password = password(&args, &profile)?;
    let connected = start(&args, &profile, password).await?;
    connected.run().await
}

/// `vpnd cleanup`: undoes what killed clients left behind.
///
/// # Errors
/// If a journal can't be read or not all could be undone.
pub async fn cleanup(state_dir: &std::path::Path) -> anyhow::Result<()> {
    let netlink = Netlink::open()?;
    let mut complete = true;
    for recovered in journal::recover(state_dir, &netlink).await? {
        println!("{}", recovered);
        complete &= recovered.is_complete();
    }
    if complete { Ok(()) } else { bail!("not everything could be undone; see above, then try again") }
}

/// A client that was killed may have left routes that would now lead nowhere.
async fn clean_up_after_others(state_dir: &std::path::Path) -> anyhow::Result<()> {
    let netlink = Netlink::open()?;
    for recovered in journal::recover(state_dir, &netlink).await? {
        tracing::info!(%recovered, "undid what an earlier client left behind");
    }
    Ok(())
}

fn password(args: &ConnectArgs, profile: &Profile) -> anyhow::Result<zeroize::Zeroizing<String>> {
    let source = match (&args.credentials, args.password_fd) {
        (Some(file), _) => Source::File(file.clone()),
        (None, Some(fd)) => Source::Descriptor(fd),
        (None, None) => Source::Prompt,
    };
    let prompt = format!("Password of {} at {}: ", profile.user, profile.server_name);
    Ok(credentials::read(&source, &prompt)?)
}

/// What attempts and connections tell the loop.
enum News {
    /// An attempt is over.
    Dialled(ConnectionId, Result<Answer, DialError>),
    /// A message came.
    Message(ConnectionId, Message),
    /// A connection is gone.
    Lost(ConnectionId, Option<Code>),
}

/// A connection that the core uses.
struct Live {
    connection: quinn::Connection,
    endpoint: quinn::Endpoint,
    writer: Writer,
    reader: JoinHandle<()>,
}

/// A running client.
struct Connected {
    core: Client,
    shards: Shards,
    events: mpsc::UnboundedReceiver<(usize, Event)>,
    setup: NetworkSetup,
    dialer: Arc<Dialer>,
    interface_index: u32,
    attempts: HashMap<ConnectionId, JoinHandle<()>>,
    live: HashMap<ConnectionId, Live>,
    news: mpsc::UnboundedSender<News>,
    inbox: mpsc::UnboundedReceiver<News>,
    farewells: Vec<JoinHandle<()>>,
    was_up: bool,
    was_ever_up: bool,
    /// Whether the data sockets are for both protocol versions.
    dual_stack: bool,
    _device: Device,
}

/// Opens everything that the client needs; nothing of the machine's network is changed yet.
async fn start(
    args: &ConnectArgs,
    profile: &Profile,
    password: zeroize::Zeroizing<String>,
) -> anyhow::Result<Connected> {
    let lab = args.insecure_lab.then(LabPermit::insecure);
    let wanted = args.suite.map_or_else(|| profile.suites.clone(), |suite| vec![suite]);
    let suites = suites::measure(&wanted, args.backend, lab.is_some())?;
    let timers = Timers::default();
    let lanes = args.lanes.map_or(profile.lanes, usize::from);
    let config = Config { lanes, suites, features: FEATURE_PARTIAL_CHECKSUM, lab, timers };
    let core = Client::new(config, crate::control::random())?;
    let tun = Tun::open(&TunSpec {
        name: args.tun.clone(),
        mtu: INITIAL_MTU,
        queues: lanes,
        tx_queue_len: CLIENT_TX_QUEUE_LEN,
        offloads: profile.offload.tun_offloads(),
    })?;
    if let Err(error) = tun.pin_flows() {
        tracing::warn!(
            %error,
            "the kernel may move flows between lanes, and packets then come out of order: run as root or with CAP_BPF, or \
             with one lane"
        );
    }
    let (interface, interface_index) = (tun.name().to_owned(), tun.index());
    let wishes = Wishes {
        routes: (!args.no_routes).then(|| profile.routes.clone()),
        dns: profile.dns && !args.no_dns,
    };
    let setup = NetworkSetup::new(&args.state_dir, &interface, interface_index, wishes)?;
    let device = Device::take(&args.state_dir, &profile.user, &profile.server_name)?;
    let (event_sender, events) = mpsc::unbounded_channel();
    let specs = shard_specs(tun, &profile.offload)?;
    let dual_stack = specs.iter().all(|spec| spec.socket.local_addr().is_ok_and(|address| address.is_ipv6()));
    let shards = Shards::start(specs, &event_sender)?;
    let identity = profile.identity.as_ref().map(|identity| {
        tls::Identity::from_pem(identity.certificate_pem.as_bytes(), identity.key_pem.as_bytes())
    });
    let trust = match &profile.trust {
        Trust::System => tls::Trust::System,
        Trust::Pinned { ca_pem } => tls::Trust::Pinned(ca_pem.as_bytes()),
    };
    let dialer = Arc::new(Dialer {
        servers: profile.servers.clone(),
        server_name: profile.server_name.clone(),
        tls: Arc::new(tls::client(&trust, identity.transpose()?)?),
        credentials: Credentials { user: profile.user.clone(), password, device: device.id() },
        mark: Some(MARK),
    });
    let (news, inbox) = mpsc::unbounded_channel();
    Ok(Connected {
        core,
        shards,
        events,
        setup,
        dialer,
        interface_index,
        attempts: HashMap::new(),
        live: HashMap::new(),
        news,
        inbox,
        farewells: Vec::new(),
        was_up: false,
        was_ever_up: false,
        dual_stack,
        _device: device,
    })
}

fn shard_specs(tun: Tun, offload: &Offload) -> anyhow::Result<Vec<ShardSpec>> {
    let tun_offloads = tun.offloads();
    let options = SocketOptions {
        mark: Some(MARK),
        gro: offload.udp_gro,
        gso: offload.udp_gso,
        ..SocketOptions::default()
    };
    let mut specs = Vec::new();
    for (number, queue) in tun.into_queues().into_iter().enumerate() {
        specs.push(ShardSpec {
            number,
            core: None,
            priority: 0,
            role: Role::Client,
            policy: Arc::new(Policy::default()),
            hash_seed: rand::rngs::SysRng.try_next_u64().context("the system gives no random numbers")?,
            tun: queue,
            tun_offloads,
            mtu: INITIAL_MTU,
            socket: ShardSocket::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), &options)?,
            quic: None,
        });
    }
    Ok(specs)
}

impl Connected {
    /// The loop; ends with everything undone.
    async fn run(mut self) -> anyhow::Result<()> {
        let outcome = self.serve().await;
        self.core.quit();
        let _ = self.carry_out().await;
        for farewell in self.farewells.drain(..) {
            let _ = farewell.await;
        }
        self.setup.undo().await;
        outcome
    }

    async fn serve(&mut self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut watch = NetworkWatch::open()?;
        let shard_failure = self.shards.failure();
        let mut settles: Option<tokio::time::Instant> = None;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.carry_out().await?;
            self.tell_state();
            let due = self.core.poll_timeout().map(|(at, _)| at.since(now()));
            tokio::select! {
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                () = shard_failure.notified() => bail!("the TUN device or a socket is gone; see the log above"),
                Some(news) = self.inbox.recv() => self.hear(news)?,
                Some((_, event)) = self.events.recv() => self.core.handle_event(now(), event),
                change = watch.next() => {
                    if change.is_some_and(|change| self.is_foreign(change)) && settles.is_none() {
                        settles = Some(tokio::time::Instant::now() + NETWORK_SETTLES);
                    }
                }
                () = sleep_until(settles), if settles.is_some() => {
                    settles = None;
                    tracing::info!("the machine's network changed");
                    self.core.network_changed(now());
                }
                () = tokio::time::sleep(due.unwrap_or(Duration::MAX)), if due.is_some() => {
                    self.core.handle_timeout(now());
                }
                _ = tick.tick() => self.tick().await,
            }
        }
    }

    async fn tick(&mut self) {
        for (shard, report) in self.shards.report().await.into_iter().enumerate() {
            // Silence counts too, so the core hears of every shard.
            let seen = report.activities.into_iter().map(|(_, activity)| activity);
            let seen = seen.fold(Activity::default(), Activity::merge);
            self.core.handle_activity(now(), shard, seen);
        }
        self.core.handle_timeout(now());
        self.farewells.retain(|farewell| !farewell.is_finished());
    }

    /// Our own tunnel's changes are no news.
    fn is_foreign(&self, change: NetworkChange) -> bool {
        match change {
            NetworkChange::Link { interface } | NetworkChange::Address { interface } => {
                interface != self.interface_index
            }
            NetworkChange::Route { interface } => interface != Some(self.interface_index),
            NetworkChange::Unknown => true,
        }
    }

    fn tell_state(&mut self) {
        let up = self.core.is_up();
        if up != self.was_up {
            self.was_up = up;
            if up {
                self.was_ever_up = true;
                tracing::info!("connected");
            } else {
                tracing::warn!("the connection to the gateway is interrupted");
            }
        }
    }

    fn hear(&mut self, news: News) -> anyhow::Result<()> {
        match news {
            News::Dialled(connection, outcome) => {
                self.attempts.remove(&connection);
                match outcome {
                    Ok(Answer::Established(channel)) => self.established(connection, *channel),
                    Ok(Answer::Refused(refused)) => {
                        let retry_after = Duration::from_millis(refused.retry_after_ms.unwrap_or(0).into());
                        tracing::warn!(code = %refused.code, text = %refused.text, "the gateway refused");
                        self.core.refused(now(), connection, refused.code, &refused.text, retry_after);
                    }
                    // Once the gateway has proved itself, somebody else on the way is no reason to give up.
                    Err(error) if error.is_final() && !self.was_ever_up => return Err(error.into()),
                    Err(error) => {
                        tracing::warn!(%error, "no connection to the gateway; trying again");
                        self.core.connect_failed(now(), connection);
                    }
                }
            }
            News::Message(connection, message) => self.core.handle_message(now(), connection, message),
            News::Lost(connection, code) => {
                self.live.remove(&connection);
                self.core.connection_lost(now(), connection, code);
            }
        }
        Ok(())
    }

    fn established(&mut self, id: ConnectionId, channel: Channel) {
        let Channel { connection, endpoint, mut reader, writer, established, secret } = channel;
        let gateway = connection.remote_address();
        // Sockets for both protocol versions name an IPv4 gateway by its mapped address.
        let remote = if self.dual_stack { mapped(gateway) } else { gateway };
        let gateway = Endpoint { remote, local: None };
        let (news, watched) = (self.news.clone(), connection.clone());
        let reader = tokio::spawn(async move {
            let code = loop {
                match reader.next().await {
                    Ok(Some(message)) => {
                        let _ = news.send(News::Message(id, message));
                    }
                    Ok(None) => break dial::close_code(&watched.closed().await),
                    Err(StreamError::Message(error)) => {
                        tracing::warn!(%error, "the gateway broke the protocol");
                        break None;
                    }
                    Err(_) => break dial::close_code(&watched.closed().await),
                }
            };
            let _ = news.send(News::Lost(id, code));
        });
        self.live.insert(id, Live { connection, endpoint, writer, reader });
        self.core.established(now(), id, &established, secret, gateway);
    }

    /// Does what the core asks for, in its order.
    async fn carry_out(&mut self) -> anyhow::Result<()> {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Connect { connection, purpose, offer } => self.dial(connection, purpose, offer),
                Action::Command { shard, command } => self.shards.command(shard, command),
                Action::PathMtu(mtu) => {
                    tracing::debug!(mtu, "the way to the gateway was measured");
                    // New TCP connections are held to it in both directions, also where it is too small for the device.
                    self.shards.set_mtu(mtu);
                    self.setup.set_mtu(mtu).await?;
                }
                Action::Configure(network) => {
                    self.setup.apply(&network).await?;
                    tracing::info!(
                        ipv4 = network.ipv4.map(tracing::field::display),
                        ipv6 = network.ipv6.map(tracing::field::display),
                        routes = network.routes.len(),
                        "the tunnel is set up"
                    );
                }
                Action::Send { connection, message } => {
                    if let Some(live) = self.live.get_mut(&connection) {
                        // If the connection is gone, its reader says so.
                        let _ = live.writer.send(&message).await;
                    }
                }
                Action::Disconnect { connection, code } => self.disconnect(connection, code),
                Action::GiveUp { code, text } => {
                    bail!("the gateway refuses this client: {text} (code {})", code.number())
                }
            }
        }
        Ok(())
    }

    fn dial(&mut self, connection: ConnectionId, purpose: Purpose, offer: Offer) {
        let (dialer, news) = (Arc::clone(&self.dialer), self.news.clone());
        let rtt = self.live.values().map(|live| live.connection.rtt()).min();
        let attempt = tokio::spawn(async move {
            let outcome = dialer.dial(&purpose, offer, rtt).await;
            let _ = news.send(News::Dialled(connection, outcome));
        });
        self.attempts.insert(connection, attempt);
    }

    /// Ends a connection in the background, after what was sent on it has arrived.
    fn disconnect(&mut self, connection: ConnectionId, code: Code) {
        if let Some(attempt) = self.attempts.remove(&connection) {
            attempt.abort();
        }
        let Some(mut live) = self.live.remove(&connection) else { return };
        live.reader.abort();
        self.farewells.push(tokio::spawn(async move {
            let _ = tokio::time::timeout(FAREWELL, live.writer.finish()).await;
            crate::control::stream::close(&live.connection, code, "");
            let _ = tokio::time::timeout(FAREWELL, live.endpoint.wait_idle()).await;
        }));
    }
}

async fn sleep_until(when: Option<tokio::time::Instant>) {
    if let Some(when) = when {
        tokio::time::sleep_until(when).await;
    }
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => (Ipv4Addr::to_ipv6_mapped(v4.ip()), v4.port()).into(),
        v6 @ SocketAddr::V6(_) => v6,
    }
}
