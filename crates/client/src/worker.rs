//! The network worker of a client: everything that talks to the network, without a privilege.
//!
//! The shell around the sans-IO core of `vpnd-proto`: it makes connections, moves messages, and has
//! the parent change the machine's network as the core decides.

mod connections;
mod data_path;
mod devices;
mod dial;
mod distrust;
mod looks;
mod over_tcp;
mod parent_client;
mod path;
mod prepared;
mod reach;
mod settings;
mod transport;
mod uptime;
#[cfg(any(test, fuzzing))]
pub(crate) use dial::read_arrival;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::mpsc;
use vpnd_control_channel::login::Channel;
use vpnd_proto::client::{Action, Client};
use vpnd_proto::control::{Code, Message, Renewal};
use vpnd_proto::plane::Command;
use vpnd_proto::session::ConnectionId;

use super::Refusal;
use crate::messages::{Begin, FromWorker, Measured, WorkerLaunch};
use connections::{ConnectionEvent, Connections};
use data_path::{DataPath, DataPathEvent};
use devices::shard_specs;
use dial::{DialError, DialOutcome, Dialer, GatewaySearch};
use over_tcp::Carrier;
use parent_client::{ParentClient, ParentError, ParentEvent};
use path::log_path;
use prepared::Prepared;
use reach::Reach;
use settings::TunnelSettings;
use transport::Transport;
use uptime::Uptime;
use vpnd_config::profile::{Profile, Trust};
use vpnd_ipc::channel;
use vpnd_ipc::child::{self, ChildRole, Preparation, Started};
use vpnd_ipc::messages::{self as common, Devices};
use vpnd_pki::tls;
use vpnd_sys::clock::now;
use vpnd_sys::logging::NEWS;
use vpnd_sys::text::harmless;

/// Runs it; `stream` leads to the parent.
pub fn run(stream: UnixStream) -> anyhow::Result<()> {
    // Files can't be read once the sandbox is on.
    let read_trust = |launch: &WorkerLaunch| {
        let profile = launch.profile()?;
        let made = match profile.trust {
            Trust::System => Some(tls::SystemTrust::read()?),
            // The web server's certificate may be of one of these; without them it is of the pinned
            // one.
            Trust::Pinned { .. } if profile.tcp_port.is_some() => tls::SystemTrust::read().ok(),
            Trust::Pinned { .. } => None,
        };
        Ok(Preparation { writable: Vec::new(), tcp_ports: Vec::new(), made })
    };
    let started =
        child::start(ChildRole::Client, &stream, |launch: &WorkerLaunch| &launch.common, read_trust);
    match started.and_then(|started| work(&stream, started)) {
        Ok(()) => Ok(()),
        Err(error) => child::finish(stream, &FromWorker::from(&error)),
    }
}

/// Does the work in this thread alone: threads that wake each other keep an idle machine from
/// sleep.
fn work(stream: &UnixStream, started: Started<WorkerLaunch, Option<tls::SystemTrust>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let channel = channel::Channel::new(stream.try_clone()?, common::MAX_FRAME)?;
        serve(started, channel).await
    });
    // A thread that waits for a disk must not hold up the end.
    runtime.shutdown_background();
    outcome
}

async fn serve(
    started: Started<WorkerLaunch, Option<tls::SystemTrust>>,
    channel: channel::Channel,
) -> anyhow::Result<()> {
    let launch = started.launch.alone()?;
    let profile = launch.profile()?;
    let prepared = Prepared::new(&launch, &profile, started.made)?;
    channel.send(&common::Prepared::Prepared(started.protections), &[]).await?;
    let begin = channel.receive::<Begin>().await?.context("the parent is gone")?;
    let Begin::Devices(devices) = begin.message;
    let (parent, events) = ParentClient::start(channel.clone());
    let connected = Connected::start(launch, &profile, prepared, &devices, begin.descriptors, parent)?;
    channel.send(&common::Ready::Ready, &[]).await?;
    connected.run(events).await
}

struct Connected {
    core: Client,
    data_path: DataPath,
    parent: Arc<ParentClient>,
    search: Arc<GatewaySearch>,
    connections: Connections,
    settings: TunnelSettings,
    transport: Transport,
    reach: Reach,
    uptime: Uptime,
}

impl Connected {
    fn start(
        launch: WorkerLaunch,
        profile: &Profile,
        prepared: Prepared,
        devices: &Devices,
        descriptors: Vec<OwnedFd>,
        parent: Arc<ParentClient>,
    ) -> anyhow::Result<Self> {
        let specs = shard_specs(profile, launch.copy_dscp, devices, descriptors)?;
        let ports = specs.iter().filter_map(|spec| Some(spec.socket.local_addr().ok()?.port())).collect();
        let over_tcp = prepared.over_tcp.map(|over_tcp| over_tcp.of_lanes(ports));
        let data_path = DataPath::start(specs)?;
        let (parent_of, weights) = (Arc::clone(&parent), launch.weights(profile));
        let search = Arc::new(GatewaySearch::new(profile, prepared.tls, parent_of, over_tcp, weights));
        let dialer = Dialer::new(Arc::clone(&search), &launch, Arc::clone(&parent));
        let connections = Connections::new(dialer);
        let transport = Transport::new(Arc::clone(&search), Arc::clone(&parent), connections.sender());
        Ok(Self {
            core: prepared.core,
            data_path,
            settings: TunnelSettings::new(Arc::clone(&parent)),
            parent,
            search,
            connections,
            transport,
            reach: Reach::new(launch.give_up_s),
            uptime: Uptime::new(),
        })
    }

    /// The loop. What it has changed on the machine is undone by the parent.
    async fn run(mut self, parent_events: mpsc::Receiver<ParentEvent>) -> anyhow::Result<()> {
        let outcome = self.serve(parent_events).await;
        // The parent may end the client while a request is open; its failure is none of the
        // client's.
        let outcome = if self.parent.is_ending() { Ok(()) } else { outcome };
        // Shards forget what a session has carried when it is closed.
        self.look().await;
        // An error is reported once, by the parent.
        let reason = match &outcome {
            Ok(()) => self.parent.reason().unwrap_or("the client's first process is gone"),
            Err(error) if error.is::<Refusal>() => "refused",
            Err(_) => "failure",
        };
        self.uptime.log_end(reason, self.data_path.carried(), self.data_path.polled());
        self.core.quit();
        // A failure now must not prevent the notice to the gateway.
        while self.carry_out().await.is_err() {}
        self.connections.finish().await;
        outcome
    }

    async fn serve(&mut self, mut parent_events: mpsc::Receiver<ParentEvent>) -> anyhow::Result<()> {
        let shard_failure = self.data_path.failure();
        loop {
            self.data_path.expect(Some(now()));
            self.carry_out().await?;
            self.settings.retry().await?;
            self.uptime.log(&self.core, self.connections.is_dialling(), self.search.trials());
            self.choose_dns().await?;
            self.reach.check(now(), || self.search.trials().report())?;
            if self.notice_sleep() {
                continue;
            }
            let due = self.core.poll_timeout().map(|(at, _)| at);
            let due = due.into_iter().chain(self.settings.retry_at()).min();
            self.data_path.expect(due);
            let due = due.map(|at| at.since(now()));
            tokio::select! {
                event = parent_events.recv() => match event {
                    Some(ParentEvent::NetworkChanged) => {
                        self.core.network_changed(now());
                        self.search.ways().prefer_udp();
                        self.search.network_changed();
                    }
                    Some(ParentEvent::Measure) => self.send_measured(),
                    // Its changes are undone by the next start, or by `vpnd cleanup`.
                    Some(ParentEvent::Stop) | None => return Ok(()),
                },
                () = shard_failure.notified() => bail!("the TUN device or a socket is gone; see the log above"),
                Some(event) = self.connections.next() => self.handle_connection_event(event).await?,
                () = self.search.silent() => self.report_outage(None).await?,
                event = self.data_path.next() => match event {
                    DataPathEvent::Shard(event) => self.core.handle_event(now(), event),
                    DataPathEvent::LookDue => self.look().await,
                },
                () = tokio::time::sleep(due.unwrap_or(Duration::MAX)), if due.is_some() => {
                    self.core.handle_timeout(now());
                }
            }
            self.notice_sleep();
        }
    }

    /// Looks at the shards.
    async fn look(&mut self) {
        let mut is_quiet = true;
        // Silence counts too, so the core gets a report of every shard.
        for (shard, seen) in self.data_path.look().await.into_iter().enumerate() {
            // Keep-alives and probes are none.
            is_quiet &= seen.tx_packets == 0 && seen.rx_packets == 0;
            self.core.handle_activity(now(), shard, seen);
        }
        self.core.handle_timeout(now());
        if self.transport.is_narrow() {
            self.attach_anew();
        }
        // An outage is looked at like packets (see [`looks`]).
        is_quiet &= self.core.is_within_reach() && !self.core.is_in_doubt();
        is_quiet &= self.connections.are_settled() && !self.transport.is_searching(now());
        if self.data_path.note_look(is_quiet) {
            self.core.check_way(now());
        }
    }

    /// Has the gateway looked for after a time in which nothing ran here, if there was one.
    fn notice_sleep(&mut self) -> bool {
        let now = now();
        let Some(slept) = self.data_path.slept(now) else { return false };
        tracing::info!("nothing ran here for {} s: looking for the gateway", slept.as_secs());
        self.reach.slept(now);
        self.core.resumed(now);
        true
    }

    /// Has the machine use its own DNS servers while the tunnel leads nowhere. A short silence
    /// changes nothing.
    async fn choose_dns(&mut self) -> anyhow::Result<()> {
        self.reach.note(now(), self.core.is_within_reach(), |at| self.core.is_heard_since(at));
        if self.uptime.was_ever_up()
            && let Some(tunnel) = self.reach.other_dns(now())
        {
            match self.parent.use_tunnel_dns(tunnel).await {
                // The session is worth more than its DNS servers.
                Err(ParentError::Refused(why)) => {
                    tracing::warn!("the machine's DNS servers stay as they are: {why}")
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Logs that the gateway does not answer; or that an attempt has failed, and why.
    async fn report_outage(&mut self, failure: Option<&DialError>) -> anyhow::Result<()> {
        // Data may pass where new connections do not.
        let is_lost =
            !self.core.is_within_reach() || !self.core.is_heard_since(self.connections.attempted_at());
        if is_lost && self.search.trials().is_advice_due() {
            self.reach.advise(now());
            self.choose_dns().await?;
        }
        match failure {
            Some(error) => self.search.trials().log_failure(error, is_lost),
            None => drop(self.search.trials().log(is_lost)),
        }
        Ok(())
    }

    async fn handle_connection_event(&mut self, event: ConnectionEvent) -> anyhow::Result<()> {
        match event {
            ConnectionEvent::Dialled(connection, outcome) => match outcome {
                Ok(DialOutcome::Established(channel, endpoint, carrier)) => {
                    self.established(connection, *channel, endpoint, carrier);
                }
                Ok(DialOutcome::Refused(refused)) => {
                    let retry_after = Duration::from_millis(refused.retry_after_ms.unwrap_or(0).into());
                    self.core.refused(now(), connection, refused.code, &refused.text, retry_after);
                    // A final refusal ends the client, whose error has the reason.
                    if !self.core.is_over() {
                        tracing::warn!("the gateway refused: {}", harmless(&refused.text));
                    }
                }
                Err(error) if error.is_final(self.uptime.was_ever_up()) => {
                    return Err(Refusal(vpnd_sys::text::format_chain(&error.into())).into());
                }
                Err(error) if error.is_full() => {
                    tracing::warn!("the gateway is full; trying again soon");
                    self.core.turned_away(now(), connection);
                }
                Err(DialError::NoOther) => self.core.connect_failed(now(), connection),
                Err(error) => {
                    self.core.connect_failed(now(), connection);
                    self.report_outage(Some(&error)).await?;
                }
            },
            ConnectionEvent::Message(connection, message) => {
                if matches!(message, Message::Drain(_))
                    && let Some(gateway) = self.connections.gateway(connection)
                    && self.search.addresses().note_drained(gateway)
                {
                    tracing::warn!("the gateway is draining: looking for another one of the profile");
                }
                // Other reasons are shown where they end the client, or mean no more than a new
                // connection.
                if let Message::Close(close) = &message
                    && matches!(close.code, Code::Lifetime | Code::Token)
                {
                    tracing::warn!("the session is over: {}", harmless(&close.text));
                }
                self.core.handle_message(now(), connection, message)
            }
            ConnectionEvent::Lost(connection, code) => {
                self.connections.lost(connection);
                let is_superseded = code == Some(Code::Superseded) && self.connections.is_dialling();
                self.uptime.lost(is_superseded);
                self.core.connection_lost(now(), connection, code);
            }
            ConnectionEvent::UdpWorks => {
                tracing::info!(target: NEWS, "UDP works here again: using it");
                self.search.ways().prefer_udp();
                self.attach_anew();
            }
        }
        Ok(())
    }

    fn established(
        &mut self,
        id: ConnectionId,
        channel: Channel,
        endpoint: quinn::Endpoint,
        carrier: Option<Carrier>,
    ) {
        self.reach.answered();
        self.transport.set(carrier.is_some());
        let (remote, established, secret) = self.connections.add(id, channel, endpoint, carrier);
        self.core.established(now(), id, &established, secret, self.data_path.endpoint(remote));
    }

    /// Carries out the core's actions in order.
    async fn carry_out(&mut self) -> anyhow::Result<()> {
        self.transport.note().await?;
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Connect { connection, purpose, offer } => {
                    let may_look_up = !self.core.is_within_reach() || self.core.is_in_doubt();
                    self.connections.dial(connection, purpose, offer, may_look_up);
                }
                Action::Command { shard, command } => {
                    if let Command::PathSize { size, .. } = command
                        && shard == 0
                    {
                        log_path(size);
                        self.transport.sized(now(), size);
                    }
                    self.data_path.command(shard, command).await;
                }
                Action::PathMtu(mtu) => {
                    tracing::debug!(mtu, "the tunnel's MTU");
                    self.data_path.set_mtu(mtu).await;
                    self.settings.set_mtu(mtu).await?;
                }
                Action::Configure(network) => self.settings.configure(network).await?,
                Action::BatchesLost(gateway) => vpnd_shard::warn_of_lost_batches(gateway),
                Action::Reopen(lanes) => self.transport.reopen(lanes).await?,
                Action::LanesBlocked => {
                    if self.transport.is_blocked() {
                        self.core.change_way(now());
                    }
                }
                Action::Renew(renewal) => self.renew(&renewal).await?,
                Action::Send { connection, message } => self.connections.send(connection, &message).await,
                Action::Disconnect { connection, code } => self.connections.disconnect(connection, code),
                Action::GiveUp { code, text } => {
                    let reason = format!("the gateway refuses this client: {text} (code {})", code.number());
                    return Err(Refusal(reason).into());
                }
            }
        }
        Ok(())
    }

    /// Has a new connection made, for the session to go over it.
    fn attach_anew(&mut self) {
        // All but the connection of the session are passed over.
        for connection in self.connections.ids() {
            self.core.handle_message(now(), connection, Message::Wake);
        }
    }

    /// Has the gateway's addresses kept, and goes by them from now on.
    async fn renew(&self, renewal: &Renewal) -> anyhow::Result<()> {
        match self.parent.renew(renewal).await {
            Ok(()) => self.search.addresses().add(renewal),
            // The parent has logged what a person should know.
            Err(ParentError::Refused(why)) => tracing::debug!("the gateway's addresses stay: {why}"),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Sends the parent what is known of the connection to the gateway, and waits for nothing.
    fn send_measured(&self) {
        let (over_tcp, carried) = (self.transport.is_over_tcp(), self.data_path.carried());
        let measured = Measured { over_tcp, carried, ..self.connections.measured() };
        let parent = Arc::clone(&self.parent);
        // Without an answer the user sees less.
        tokio::spawn(async move { parent.measured(measured).await });
    }
}
