//! Stock WireGuard clients: their peers' state machines, apart from the sessions, and what carries
//! out their outputs.
//!
//! Handshakes are made by the auth process, which has the static key; a peer without a session is
//! admitted by it before it gets an answer, so that the first data find their session. This module
//! decides about none of both.
//!
//! INVARIANT: shards have keys of a peer only while it has a session. Requests to the auth process
//! are as few as the peers' state machines allow at once, whatever arrives.

mod asking;
mod beginning;
mod counts;
mod datagrams;
mod decision;
mod first_look;
pub(super) mod following;
mod refusals;
mod sessions;
mod turns;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::AsyncUdpSocket;
use tokio::sync::mpsc;
use vpnd_crypto::Backend;
use vpnd_proto::plane::{Activity, Command, Endpoint, Event as PlaneEvent, Slot};
use vpnd_proto::session::{LocalSuite, SessionId};
use vpnd_proto::time::Time;
use vpnd_wireguard::gate::Limits;
use vpnd_wireguard::handshakes::{Reply, Request};
use vpnd_wireguard::peers::{Config, Event, Output, PeerId, RequestId};
use vpnd_wireguard::{Peers, PublicKey};

use crate::worker::auth_client::AuthClient;
use crate::worker::core::Core;
use crate::worker::relayed::Relayed;
use asking::FromAuth;
use counts::Counts;
use datagrams::Datagrams;
pub(super) use decision::Decision;
use following::PeerList;
use refusals::Refusals;
use sessions::PeerSessions;
use turns::{Step, Turns};
use vpnd_config::ServerConfig;
use vpnd_ipc::admin::status::RefusedDevice;
use vpnd_ipc::gateway::wireguard::PeerChange;
use vpnd_ipc::requests::NoReply;
use vpnd_shard::handshake_queue::{HandshakeDatagram, HandshakeQueue};
use vpnd_shard::suites;
use vpnd_sys::clock::now;
use vpnd_sys::log_limit::LogLimit;

/// Limits the log's lines about handshakes that were refused.
static REFUSALS: LogLimit = LogLimit::new(20, Duration::from_secs(5));

/// An entry of the worker's queues for WireGuard.
pub(super) enum Input {
    Datagram(HandshakeDatagram),
    Auth(Box<FromAuth>),
}

/// The peers, their sessions and queues.
pub(crate) struct WireGuard {
    peers: Peers,
    sessions: PeerSessions,
    /// The last reply for each peer that waits until its session is in force.
    waiting: HashMap<PublicKey, (RequestId, Reply)>,
    auth: AuthClient,
    datagrams: Datagrams,
    answers: mpsc::UnboundedReceiver<FromAuth>,
    answer: mpsc::UnboundedSender<FromAuth>,
    turns: Turns,
    refusals: Refusals,
    counts: Counts,
    decisions: VecDeque<Decision>,
    /// Whether peers get sessions.
    admits: bool,
    /// The number of the last change of peers at the start.
    seen: u64,
}

impl WireGuard {
    /// With the peers that the auth process names; `None` if their clients are not served.
    ///
    /// # Errors
    /// If the auth process does not reply.
    pub(super) async fn start(
        config: &ServerConfig,
        auth: &AuthClient,
        shards: u32,
        suites: &[LocalSuite],
        socket: &Arc<dyn AsyncUdpSocket>,
    ) -> Result<Option<Self>, NoReply> {
        if config.wireguard.is_none() {
            return Ok(None);
        }
        let list = PeerList::query(auth).await?;
        let backend = || suites::for_wireguard(suites, config.crypto.backend);
        Ok(list.map(|list| {
            let mut this = Self::new(list, auth, shards as usize, backend(), socket);
            // In a fleet they may be another gateway's, until the parent names this machine's
            // addresses.
            if config.fleet.is_none() {
                this.begin_all();
            }
            this
        }))
    }

    /// With these peers.
    fn new(
        list: PeerList,
        auth: &AuthClient,
        shards: usize,
        backend: Backend,
        socket: &Arc<dyn AsyncUdpSocket>,
    ) -> Self {
        let config = Config { own: list.own, shards, backend, limits: Limits::default() };
        let (answer, answers) = mpsc::unbounded_channel();
        let mut this = Self {
            peers: Peers::new(now(), config, vpnd_sys::random::random()),
            sessions: PeerSessions::new(shards),
            waiting: HashMap::new(),
            auth: auth.clone(),
            datagrams: Datagrams::new(list.own, socket),
            answers,
            answer,
            turns: Turns::default(),
            refusals: Refusals::default(),
            counts: Counts::default(),
            decisions: VecDeque::new(),
            admits: true,
            seen: list.seen(),
        };
        this.change(list.changes);
        this
    }

    /// Sets the relays of some clients' datagrams.
    pub(super) fn relayed(self, relayed: &Relayed) -> Self {
        Self { datagrams: self.datagrams.relayed(relayed), ..self }
    }

    /// Whether peers get sessions from now on.
    pub(super) fn admit(&mut self, admits: bool) {
        self.admits = admits;
    }

    /// The next input.
    pub(super) async fn next(&mut self) -> Input {
        tokio::select! {
            Some(datagram) = self.datagrams.receive() => Input::Datagram(datagram),
            Some(answer) = self.answers.recv() => Input::Auth(Box::new(answer)),
            else => std::future::pending().await,
        }
    }

    /// The next input, if one waits.
    pub(super) fn try_next(&mut self) -> Option<Input> {
        // A flood of datagrams does not keep answers waiting, which are few.
        let answer = self.answers.try_recv().ok().map(|answer| Input::Auth(Box::new(answer)));
        answer.or_else(|| self.datagrams.try_receive().map(Input::Datagram))
    }

    pub(super) fn handle(&mut self, input: Input) {
        match input {
            Input::Datagram(datagram) => {
                let (from, source) = (datagram.from, self.datagrams.client(datagram.from.remote));
                if let Err(dropped) = self.peers.on_datagram_of(now(), from, source, datagram.bytes()) {
                    self.counts.add_dropped(dropped);
                }
            }
            Input::Auth(answer) => self.take_answer(*answer),
        }
    }

    /// Takes an event of a shard, if it is about a peer.
    pub(super) fn handle_event(&mut self, event: &PlaneEvent) -> bool {
        match event {
            PlaneEvent::WireGuardOpened { index, endpoint, opened, .. } => {
                self.peers.on_opened(now(), *index, *endpoint, *opened);
                true
            }
            PlaneEvent::EpochWanted { slot } => {
                let Some(peer) = self.sessions.in_slot(*slot) else { return false };
                self.peers.on_no_session(now(), peer);
                true
            }
            _ => false,
        }
    }

    /// The traffic of a session since the last call.
    pub(super) fn handle_activity(&mut self, slot: Slot, activity: &Activity) {
        if let Some(peer) = self.sessions.in_slot(slot) {
            self.peers.on_activity(now(), peer, activity);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.peers.poll_timeout().into_iter().chain(self.turns.poll_timeout()).min()
    }

    pub(super) fn handle_timeout(&mut self) {
        self.peers.on_timeout(now());
    }

    /// Peers have come, gone or changed.
    pub(super) fn change(&mut self, changes: Vec<PeerChange>) {
        for PeerChange { key, peer } in changes {
            let key = PublicKey(key.into());
            self.refusals.forget(&key);
            match peer {
                Some(peer) => {
                    let at = peer.outer.map(|at| self.datagrams.as_bound(at));
                    let id = self.peers.add(now(), key, at, peer.keepalive());
                    self.sessions.renew(id, peer.renewed_s);
                    self.decide_again(id);
                    self.begin_renewed(id);
                }
                None => {
                    let Some(id) = self.peers.by_key(&key) else { continue };
                    self.decisions.extend(self.sessions.get(id).map(|joined| Decision::Gone(joined.id)));
                    self.sessions.remove(id);
                    self.peers.remove(id);
                }
            }
        }
    }

    /// Other settings are in force, by which devices that reach the portal alone may be let in.
    pub(super) fn decide_all_again(&mut self) {
        self.sessions.walled().into_iter().for_each(|peer| self.decide_again(peer));
    }

    /// Ends the peer's session if it reaches the portal alone; the next one may not be like that.
    fn decide_again(&mut self, peer: PeerId) {
        self.decisions.extend(self.sessions.change_walled(peer).map(Decision::Changed));
    }

    /// The gateway's address that the peer of this session talks to.
    pub(super) fn own_address(&self, id: SessionId) -> Option<IpAddr> {
        self.peers.endpoint(self.sessions.peer(id)?)?.local
    }

    /// The peer has a session, in this slot; false if there is no such peer any more. It takes the
    /// place of the one before. `renewed_s` is when the peer had been renewed last.
    pub(super) fn join(
        &mut self,
        peer: PublicKey,
        id: SessionId,
        slot: Slot,
        is_walled: bool,
        renewed_s: u64,
    ) -> bool {
        let Some(peer) = self.peers.by_key(&peer) else { return false };
        if is_walled {
            self.counts.add("walled");
        }
        if self.sessions.join(peer, id, slot, is_walled, renewed_s) {
            self.decisions.push_back(Decision::Changed(id));
        }
        true
    }

    /// A session is over.
    pub(super) fn session_over(&mut self, id: SessionId) {
        let Some((peer, joined)) = self.sessions.over(id) else { return };
        self.peers.end(peer);
        if joined.is_changed {
            self.peers.begin_at_once(now(), peer);
        }
    }

    /// Where messages of handshakes go in.
    pub(super) fn queue(&self) -> HandshakeQueue {
        self.datagrams.queue()
    }

    /// Follows the list of peers from where it was at the start.
    pub(super) fn follow(&self, core: Core) -> impl Future<Output = ()> + use<> {
        following::follow(core, self.auth.clone(), self.seen)
    }

    /// Whether it is the session of a peer.
    pub(super) fn has(&self, id: SessionId) -> bool {
        self.sessions.peer(id).is_some()
    }

    /// The sessions of peers.
    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.ids()
    }

    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.all(self.peers.gate_counts(), self.datagrams.not_for_us())
    }

    /// Devices that got no session lately.
    pub(super) fn refused_devices(&self) -> Vec<RefusedDevice> {
        self.refusals.shown(now())
    }

    /// The next thing that others have to do.
    pub(super) fn poll_decision(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    /// The next command, and the shard that it is for. What needs none is done.
    pub(super) fn poll_commands(&mut self) -> Option<Vec<(usize, Command)>> {
        loop {
            let Some(output) = self.peers.poll_output() else {
                self.take_turns();
                return None;
            };
            let commands = match output {
                Output::Send { to, datagram } => {
                    self.datagrams.send(to, &datagram);
                    continue;
                }
                Output::Ask(id, request) => {
                    let has_session = match &*request {
                        Request::Initiate(key) => self.has_session(key),
                        Request::Respond(_) | Request::Finish(..) => false,
                    };
                    self.turns.add_step(Step { id, request: *request }, has_session);
                    continue;
                }
                Output::Event(event) => self.note(event),
                Output::Open { peer, index, opener } => self.sessions.open(peer, index, opener),
                Output::Close(index) => self.sessions.close(index),
                Output::Seal(peer, sealer) => {
                    let key = sealer.zip(self.peers.endpoint(peer));
                    if let Some((_, endpoint)) = key {
                        self.note_endpoint(peer, endpoint);
                    }
                    self.sessions.seal(peer, key)
                }
                Output::Endpoint(peer, endpoint) => {
                    self.note_endpoint(peer, endpoint);
                    self.sessions.move_to(peer, endpoint)
                }
            };
            return Some(commands);
        }
    }

    fn has_session(&self, key: &PublicKey) -> bool {
        self.peers.by_key(key).is_some_and(|peer| self.sessions.get(peer).is_some())
    }

    /// The peer is there, which its session's data go to.
    fn note_endpoint(&mut self, peer: PeerId, endpoint: Endpoint) {
        let joined = self.sessions.get(peer);
        self.decisions.extend(joined.map(|joined| Decision::At(joined.slot, endpoint)));
    }

    /// Takes note of what people may want to know. Returns what shards have to know of it.
    fn note(&mut self, event: Event) -> Vec<(usize, Command)> {
        match event {
            Event::HandshakeDone(peer) => {
                let joined = self.sessions.get(peer);
                self.decisions.extend(joined.map(|joined| Decision::Shaken(joined.slot)));
                self.counts.add("done");
            }
            Event::SessionEnded(peer) => {
                let joined = self.sessions.get(peer);
                self.decisions.extend(joined.map(|joined| Decision::Silent(joined.id)));
            }
            Event::Unreachable(peer) => {
                self.counts.add("unanswered");
                return self.sessions.unanswered(peer);
            }
            Event::BackAndForth { peer, between: [here, there] } => {
                let key = self.peers.key(peer).map(|key| key.short());
                let joined = self.sessions.get(peer);
                tracing::warn!(
                    key,
                    session = joined.map(|joined| joined.id.to_string()),
                    "two devices use one WireGuard configuration, and both are slow: give each its own"
                );
                tracing::debug!(here = %here.remote, there = %there.remote, "they are there");
                self.decisions
                    .extend(joined.map(|joined| Decision::TwoDevices(joined.slot, joined.id, here.remote)));
                self.counts.add("back_and_forth");
            }
            Event::Refused { from, why } => {
                self.counts.add_refused(why);
                if REFUSALS.admits() {
                    tracing::info!(%why, "a WireGuard handshake was refused");
                    tracing::debug!(from = %from.remote, "it came from there");
                }
            }
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
