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
mod ended;
mod endings;
pub(crate) mod fleet;
mod snapshot;
mod task;
mod wireguard;

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use vpnd_crypto::EpochSecret;
use vpnd_proto::control::{Code, Message, Offer, UserName};
use vpnd_proto::gateway::Gateway;
use vpnd_proto::plane::{Activity, Event};
use vpnd_proto::policy::PolicyError;
use vpnd_proto::session::{ConnectionId, DeviceId, SessionId};

use crate::worker::handover::{HandoverError, Successor};
use crate::worker::registry::{AdmittedSession, Registry};
use crate::worker::wireguard::WireGuard;
use attach::{Attaching, Found};
use drain::{Drain, DrainRequest};
pub(crate) use ended::Ended;
pub(crate) use endings::{EndedCounts, ToEnd};
pub(crate) use fleet::Reported;
pub(crate) use snapshot::CoreSnapshot;
use task::CoreTask;
use vpnd_config::ServerConfig;
use vpnd_ipc::gateway::auth::{GatewayState, TakenAway};
use vpnd_ipc::gateway::wireguard::{DeviceAt, PeerChange};
use vpnd_pki::revocation_list::{CertificateNumber, RevocationList};
use vpnd_shard::Shards;

/// Messages that wait for one connection's task at most. The task gives a client that does not read
/// up after [`crate::worker::connection::READ_TIMEOUT`], within which fewer come: a `Wake` each
/// second, and what an administrator changes.
pub(crate) const OUTBOX: usize = 64;
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
        let core = Self { requests, draining };
        let wireguard = wireguard.map(|wireguard| wireguard.relayed(registry.relays()));
        if let Some(wireguard) = &wireguard {
            tokio::spawn(wireguard.follow(core.clone()));
        }
        let back = core.requests.downgrade();
        let task = CoreTask::new(gateway, shards, registry, wireguard, drain, back);
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

    /// The report to the fleet's other gateways.
    pub(crate) async fn reported(&self) -> Result<Reported, Stopped> {
        self.ask(CoreRequest::Reported).await
    }

    /// Drops these sessions, unless they have come back.
    async fn leave(&self, sessions: Vec<TakenAway>) -> Result<(), Stopped> {
        self.ask(|reply| CoreRequest::Leave { sessions, reply }).await
    }

    /// Peers have come, gone or changed.
    pub(crate) async fn change_peers(&self, changes: Vec<PeerChange>) -> Result<(), Stopped> {
        self.send(CoreRequest::Peers(changes)).await
    }

    /// These devices have talked to an address that is this machine's now.
    pub(crate) async fn begin_peers(&self, found: Vec<DeviceAt>) -> Result<(), Stopped> {
        self.send(CoreRequest::BeginPeers(found)).await
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
