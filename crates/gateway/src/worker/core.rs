//! The gateway's control plane: the one task that owns all sessions.
//!
//! It feeds the sans-IO core with requests of connections and administrators, events of shards and
//! the clock, and carries out the core's effects, in order: a client is sent an epoch only after
//! every shard can open it and the store holds its token (PROTOCOL §5.1).
//!
//! INVARIANT: no other task changes a session. Nothing here hashes passwords or waits for a peer.

mod access;
mod announce;
pub(crate) mod attach;
pub(crate) mod drain;
mod effects;
mod ended;
mod endings;
pub(crate) mod fleet;
mod snapshot;
mod wireguard;

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};
use vpnd_crypto::EpochSecret;
use vpnd_proto::control::{Code, Message, Offer, UserName};
use vpnd_proto::gateway::Gateway;
use vpnd_proto::plane::{Activity, Event};
use vpnd_proto::policy::PolicyError;
use vpnd_proto::session::{ConnectionId, DeviceId, SessionId};

use crate::worker::handover::{HandoverError, Successor};
use crate::worker::registry::{AdmittedSession, Registry};
use crate::worker::wireguard::WireGuard;
use announce::Outboxes;
use attach::{Attaches, Attaching, Found, unanswered};
use drain::{Drain, DrainRequest};
pub(crate) use ended::Ended;
use endings::Endings;
pub(crate) use endings::{EndedCounts, ToEnd};
pub(crate) use fleet::Reported;
pub(crate) use snapshot::CoreSnapshot;
use vpnd_config::ServerConfig;
use vpnd_ipc::gateway::auth::{GatewayState, TakenAway};
use vpnd_ipc::gateway::wireguard::{DeviceAt, PeerChange};
use vpnd_pki::revocation_list::{CertificateNumber, RevocationList};
use vpnd_shard::Shards;
use vpnd_sys::clock::now;
use wireguard::next_input;

/// Text of a refusal of a revoked certificate.
const REVOKED: &str = "your certificate was revoked by the authority that signed it";
/// Interval at which each session's traffic is collected from the shards.
const ACTIVITY_INTERVAL: Duration = Duration::from_secs(1);
/// Requests and events that are carried out together, with one trip to the disk, at most this many.
const BATCH: usize = 256;
/// Messages that wait for one connection's task at most. The task gives a client that does not read
/// up after [`crate::worker::connection::READ_TIMEOUT`], within which fewer come: a `Wake` each
/// second, and what an administrator changes.
pub(crate) const OUTBOX: usize = 64;
/// Time for routes to be withdrawn before a hand-over.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Requests that wait at most; who comes later waits in its own task.
const QUEUE: usize = 1_024;

/// A request to the control plane.
pub(crate) enum CoreRequest {
    /// A connection has proved its user and device.
    Login {
        connection: ConnectionId,
        outbox: mpsc::Sender<Outgoing>,
        device: DeviceId,
        admission: Box<AdmittedSession>,
        /// The certificate that it has presented.
        certificate: Option<CertificateNumber>,
        offer: Offer,
        secret: EpochSecret,
    },
    Attach {
        attaching: Box<Attaching>,
        outbox: mpsc::Sender<Outgoing>,
    },
    /// The store's answer about a claim.
    LookedUp {
        attaching: Box<Attaching>,
        found: Found,
    },
    /// The store has not answered the claim of a connection for as long as its client waits.
    Unanswered(ConnectionId),
    /// A later message of a connection.
    Message {
        connection: ConnectionId,
        message: Message,
    },
    Lost(ConnectionId),
    /// End sessions; answered with how many there were of each.
    End {
        which: Vec<ToEnd>,
        reply: oneshot::Sender<EndedCounts>,
    },
    /// End those of the sessions that began until then, by the steady clock; answered as above.
    EndBegun {
        which: Vec<(ToEnd, u64)>,
        reply: oneshot::Sender<EndedCounts>,
    },
    /// Users are in these groups from now on; answered with the number of their sessions.
    Regroup {
        users: Vec<(UserName, Vec<String>)>,
        reply: oneshot::Sender<usize>,
    },
    /// Let no certificate of these in, and end the sessions that have shown one; answered with how
    /// many there were.
    Revoke {
        revoked: Box<RevocationList>,
        reply: oneshot::Sender<usize>,
    },
    Status(oneshot::Sender<CoreSnapshot>),
    /// The report to the fleet's other gateways.
    Reported(oneshot::Sender<Reported>),
    /// The gateways of the fleet, by their last reports.
    Fleet(Vec<GatewayState>),
    /// The traffic of these sessions, as far as shards have reported it and they are there.
    Traffic {
        sessions: Vec<SessionId>,
        reply: oneshot::Sender<Vec<(SessionId, Activity)>>,
    },
    Drain(DrainRequest, oneshot::Sender<()>),
    /// New settings hold from now on; answered with what is wrong with the policy, if anything.
    Settings {
        config: Box<ServerConfig>,
        reply: oneshot::Sender<Result<(), PolicyError>>,
    },
    /// Hand everything to another process and stop; or reply with the reason and go on.
    HandOver {
        to: Box<Successor>,
        reply: oneshot::Sender<Result<HandoverSummary, HandoverError>>,
    },
    /// Drop these sessions, which another gateway has taken over, unless they have come back.
    Leave {
        sessions: Vec<TakenAway>,
        reply: oneshot::Sender<()>,
    },
    /// Peers of WireGuard have come, gone or changed.
    Peers(Vec<PeerChange>),
    /// Begin handshakes with these devices, unless they have sessions here.
    BeginPeers(Vec<DeviceAt>),
    /// Tell the clients, keep their sessions for the next start, and stop.
    Shutdown,
}

/// An item in the outbox of a connection's task.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// A message; boxed, for each connection has room for many of these.
    Message(Box<Message>),
    /// Nothing more: close the connection with this code once all messages are on their way.
    Close(Code),
}

/// Summary of a completed hand-over.
#[derive(Debug)]
pub(crate) struct HandoverSummary {
    pub sessions: usize,
    /// The version of that process.
    pub version: String,
    /// Time from the stop of the shards until the other process was ready.
    pub paused_for: Duration,
}

/// A handle of the control plane's task.
#[derive(Clone)]
pub(crate) struct Core {
    requests: mpsc::Sender<CoreRequest>,
    draining: watch::Receiver<bool>,
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the control plane has stopped")]
pub(crate) struct Stopped;

impl Core {
    /// Starts the task. It ends after [`CoreRequest::Shutdown`].
    pub(crate) fn start(
        gateway: Gateway,
        shards: Shards,
        events: mpsc::Receiver<Event>,
        registry: Registry,
        wireguard: Option<WireGuard>,
    ) -> (Self, tokio::task::JoinHandle<()>) {
        let (requests, inbox) = mpsc::channel(QUEUE);
        let (drain, draining) = Drain::new();
        let wireguard = wireguard.map(|wireguard| wireguard.relayed(registry.relays()));
        let task = CoreTask {
            gateway,
            shards,
            registry,
            wireguard,
            outboxes: Outboxes::default(),
            endings: Endings::default(),
            drain,
            attaches: Attaches::new(requests.downgrade()),
        };
        let core = Self { requests, draining };
        if let Some(wireguard) = &task.wireguard {
            tokio::spawn(wireguard.follow(core.clone()));
        }
        (core, tokio::spawn(task.run(inbox, events)))
    }

    pub(crate) async fn send(&self, request: CoreRequest) -> Result<(), Stopped> {
        self.requests.send(request).await.map_err(|_| Stopped)
    }

    /// Sends a request and waits for its reply.
    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> CoreRequest) -> Result<T, Stopped> {
        let (reply, wait) = oneshot::channel();
        self.send(request(reply)).await?;
        wait.await.map_err(|_| Stopped)
    }

    /// Makes these settings hold from now on.
    pub(crate) async fn apply(&self, config: ServerConfig) -> anyhow::Result<()> {
        Ok(self.ask(|reply| CoreRequest::Settings { config: Box::new(config), reply }).await??)
    }

    /// Hands everything to another process, which then goes on; the task has stopped afterwards.
    /// After an error it goes on.
    pub(crate) async fn hand_over(&self, to: Successor) -> anyhow::Result<HandoverSummary> {
        Ok(self.ask(|reply| CoreRequest::HandOver { to: Box::new(to), reply }).await??)
    }

    /// Tells the clients that the gateway goes down, and stops the task. If it has stopped already,
    /// there are none.
    pub(crate) async fn shut_down(&self) {
        let _ = self.send(CoreRequest::Shutdown).await;
    }

    /// Ends sessions; returns how many there were of each.
    pub(crate) async fn end(&self, which: Vec<ToEnd>) -> Result<EndedCounts, Stopped> {
        self.ask(|reply| CoreRequest::End { which, reply }).await
    }

    /// Ends those of the sessions that began until then; returns how many there were of each.
    pub(crate) async fn end_begun(&self, which: Vec<(ToEnd, u64)>) -> Result<EndedCounts, Stopped> {
        self.ask(|reply| CoreRequest::EndBegun { which, reply }).await
    }

    /// Users are in these groups now; returns the number of their sessions.
    pub(crate) async fn regroup(&self, users: Vec<(UserName, Vec<String>)>) -> Result<usize, Stopped> {
        self.ask(|reply| CoreRequest::Regroup { users, reply }).await
    }

    /// Lets in no certificate that `revoked` names; returns how many sessions ended.
    pub(crate) async fn revoke(&self, revoked: RevocationList) -> Result<usize, Stopped> {
        self.ask(|reply| CoreRequest::Revoke { revoked: Box::new(revoked), reply }).await
    }

    /// The traffic of those of these sessions that there are.
    pub(crate) async fn traffic(
        &self,
        sessions: Vec<SessionId>,
    ) -> Result<Vec<(SessionId, Activity)>, Stopped> {
        self.ask(|reply| CoreRequest::Traffic { sessions, reply }).await
    }

    pub(crate) async fn status(&self) -> Result<CoreSnapshot, Stopped> {
        self.ask(CoreRequest::Status).await
    }

    /// Begins to drain the gateway, or ends that.
    pub(crate) async fn drain(&self, request: DrainRequest) -> Result<(), Stopped> {
        self.ask(|reply| CoreRequest::Drain(request, reply)).await
    }

    /// Whether logins are refused. The core refuses one that is being checked meanwhile.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}

struct CoreTask {
    gateway: Gateway,
    shards: Shards,
    registry: Registry,
    /// Stock WireGuard clients, if they are served.
    wireguard: Option<WireGuard>,
    outboxes: Outboxes,
    endings: Endings,
    drain: Drain,
    attaches: Attaches,
}

/// Why the task ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The gateway goes down.
    Shutdown,
    /// The sessions are another process's.
    HandedOver,
}

impl CoreTask {
    async fn run(mut self, mut requests: mpsc::Receiver<CoreRequest>, mut events: mpsc::Receiver<Event>) {
        let mut activity = interval(ACTIVITY_INTERVAL);
        activity.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut end = None;
        // Those of an earlier process, which had other settings.
        self.registry.set_deadlines(&mut self.gateway);
        self.end_unfit();
        let releases = self.registry.releases().clone();
        while end.is_none() {
            let timeout = self.gateway.poll_timeout().map(|(at, _)| at);
            let peers = self.wireguard.as_ref().and_then(WireGuard::poll_timeout);
            let due = timeout.into_iter().chain(self.outboxes.held_until()).chain(peers).min();
            let due = due.map(|at| at.since(now()));
            tokio::select! {
                request = requests.recv() => end = self.handle(request).await,
                Some(event) = events.recv() => self.handle_event(event),
                input = next_input(self.wireguard.as_mut()) => self.handle_input(input),
                () = tokio::time::sleep(due.unwrap_or(Duration::MAX)), if due.is_some() => {
                    self.handle_timeout().await;
                }
                () = releases.progress() => {}
                _ = activity.tick() => {
                    self.collect_activity().await;
                    self.go_on_draining();
                    self.announce_heard();
                }
            }
            // While the disk was busy, others came: they share the next trip.
            for _ in 1..BATCH {
                // One of each in turn: a flood of the one must not keep the other waiting.
                let event = events.try_recv().ok();
                let request = if end.is_none() { requests.try_recv().ok() } else { None };
                let input = self.wireguard.as_mut().and_then(WireGuard::try_next);
                if event.is_none() && request.is_none() && input.is_none() {
                    break;
                }
                if let Some(input) = input {
                    self.handle_input(input);
                }
                if let Some(event) = event {
                    self.handle_event(event);
                }
                if let Some(request) = request {
                    end = self.handle(Some(request)).await;
                }
            }
            if end == Some(End::HandedOver) {
                return;
            }
            self.deliver_held();
            self.carry_out().await;
            self.serve_wireguard().await;
        }
        self.gateway.shutdown();
        self.carry_out().await;
    }

    /// Returns why the task ends, if it does.
    async fn handle(&mut self, request: Option<CoreRequest>) -> Option<End> {
        let Some(request) = request else { return Some(End::Shutdown) };
        self.attaches.note(&request);
        match request {
            CoreRequest::Login { connection, outbox, device, admission, certificate, offer, secret } => {
                self.outboxes.open(connection, outbox);
                if self.outboxes.refuse_revoked(connection, certificate.as_ref(), &self.registry) {
                    self.registry.abandon(admission.session);
                    return None;
                }
                self.log_in(connection, device, &admission, &offer, secret);
                self.registry.shown(admission.session, certificate);
            }
            CoreRequest::Attach { attaching, outbox } => {
                self.outboxes.open(attaching.connection, outbox);
                let is_draining = self.drain.has_begun();
                let (gateway, registry) = (&mut self.gateway, &mut self.registry);
                self.attaches.attach(attaching, is_draining, gateway, registry, &mut self.outboxes);
            }
            CoreRequest::LookedUp { attaching, found } => self.looked_up(attaching, found),
            CoreRequest::Unanswered(connection) => unanswered(connection, &mut self.outboxes),
            CoreRequest::Message { connection, message } => self.handle_message(connection, &message),
            CoreRequest::Lost(connection) => {
                self.outboxes.lost(connection);
                self.gateway.connection_lost(connection);
            }
            CoreRequest::End { which, reply } => self.endings.end_and_reply(which, reply, &self.gateway),
            CoreRequest::EndBegun { which, reply } => {
                self.endings.end_begun_and_reply(which, reply, &self.gateway, &self.registry);
            }
            CoreRequest::Regroup { users, reply } => {
                let count = self.regroup(users);
                self.endings.reply_when_done(reply, count);
            }
            CoreRequest::Revoke { revoked, reply } => {
                let revoked = self.registry.revoke(*revoked).into_iter();
                let to_end = revoked.map(|session| ToEnd::session(session, Code::Certificate, REVOKED));
                let count: usize = to_end.map(|to_end| self.endings.end(to_end, &self.gateway)).sum();
                self.endings.reply_when_done(reply, count);
            }
            CoreRequest::Status(reply) => {
                let _ = reply.send(self.snapshot().await);
            }
            CoreRequest::Reported(reply) => {
                let _ = reply.send(self.reported());
            }
            CoreRequest::Fleet(gateways) => self.know_fleet(&gateways),
            CoreRequest::Traffic { sessions, reply } => {
                let activity = |id| Some((id, self.gateway.session(id)?.activity));
                let _ = reply.send(sessions.into_iter().filter_map(activity).collect());
            }
            CoreRequest::Drain(request, reply) => self.handle_drain(request, reply),
            CoreRequest::Settings { config, reply } => {
                let set = self.set(&config);
                self.endings.reply_when_done(reply, set);
            }
            CoreRequest::HandOver { to, reply } => {
                let handed_over_to = self.hand_over(*to).await;
                let end = handed_over_to.is_ok().then_some(End::HandedOver);
                // The requester ends with this reply.
                let _ = reply.send(handed_over_to);
                return end;
            }
            CoreRequest::Leave { sessions, reply } => {
                self.leave(sessions);
                self.endings.reply_when_done(reply, ());
            }
            CoreRequest::Peers(changes) => self.change_peers(changes),
            CoreRequest::BeginPeers(found) => self.begin_peers(found),
            CoreRequest::Shutdown => return Some(End::Shutdown),
        }
        None
    }

    fn looked_up(&mut self, attaching: Box<Attaching>, found: Found) {
        let is_draining = self.drain.has_begun();
        let (gateway, registry) = (&mut self.gateway, &mut self.registry);
        let outboxes = &mut self.outboxes;
        let left = self.attaches.looked_up(attaching, found, is_draining, gateway, registry, outboxes);
        if let Some(to_end) = left {
            self.endings.end(to_end, &self.gateway);
        }
    }

    /// Stops the shards and hands all sessions over. Control connections stay behind; their clients
    /// attach when they notice.
    async fn hand_over(&mut self, to: Successor) -> Result<HandoverSummary, HandoverError> {
        self.carry_out().await;
        if let Some(hosts) = self.registry.hosts().cloned() {
            // The successor does not know which routes are to be withdrawn.
            let _ = tokio::time::timeout(SETTLE_TIMEOUT, hosts.settled()).await;
        }
        self.collect_activity().await;
        let stopped = now();
        let mut frozen = self.shards.freeze().await?;
        let sessions = self.gateway.hand_over(std::mem::take(&mut frozen.progress));
        let count = sessions.len();
        match to.hand_over(sessions, &self.registry).await {
            // The shards end with what holds them still.
            Ok(version) => Ok(HandoverSummary { sessions: count, version, paused_for: now().since(stopped) }),
            Err(error) => {
                frozen.resume();
                Err(error)
            }
        }
    }

    fn log_in(
        &mut self,
        connection: ConnectionId,
        device: DeviceId,
        admission: &AdmittedSession,
        offer: &Offer,
        secret: EpochSecret,
    ) {
        let who = self.registry.authenticated(admission, device);
        match self.gateway.login(now(), connection, who, offer, secret) {
            Ok(session) => {
                self.outboxes.begin(session);
                self.log_routes_left_out(session);
            }
            // The effects include the refusal.
            Err(_) => self.registry.abandon(admission.session),
        }
    }
}
