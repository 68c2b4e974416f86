//! Stock WireGuard clients: their peers' state machines, apart from the sessions, and what carries
//! out their outputs.
//!
//! Handshakes are made by the auth process, which has the static key; a peer without a session is
//! admitted by it before it gets an answer, so that the first data find their session. This module
//! decides about none of both.
//!
//! INVARIANT: shards have keys of a peer only while it has a session. Requests to the auth process
//! are as few as the peers' state machines allow at once, whatever arrives.

mod admissions;
mod counts;
mod datagrams;
mod decision;
mod first_look;
pub(super) mod following;
mod handover;
mod log;
mod questions;
mod refusals;
mod sessions;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use quinn::AsyncUdpSocket;
use vpnd_crypto::Backend;
use vpnd_proto::control;
use vpnd_proto::plane::{Activity, Command, Event as PlaneEvent, Slot};
use vpnd_proto::session::{LocalSuite, SessionId};
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;
use vpnd_wireguard::gate::Limits;
use vpnd_wireguard::handshakes::{Reply, Request};
use vpnd_wireguard::peers::{Config, Event, Output, PeerId, RequestId};
use vpnd_wireguard::turns::Step;
use vpnd_wireguard::{Peers, PublicKey};

use crate::worker::auth_client::AuthClient;
use crate::worker::core::Core;
use crate::worker::relayed::Relayed;
use admissions::{Admissions, Unreleased};
use counts::Counts;
use datagrams::Datagrams;
pub(super) use decision::Decision;
use following::PeerList;
pub(super) use handover::HandedDevice;
use handover::TakenOver;
use questions::{FromAuth, Questions};
use sessions::PeerSessions;
use vpnd_config::ServerConfig;
use vpnd_ipc::admin::status::RefusedDevice;
use vpnd_ipc::gateway::wireguard::{Admission, DeviceAt, PeerChange};
use vpnd_ipc::requests::NoReply;
use vpnd_shard::handshake_queue::{HandshakeDatagram, HandshakeQueue};
use vpnd_shard::suites;
use vpnd_sys::clock::now;

/// Why a device whose session lifetime is over, or that was kicked, is not let in.
const WALLED: &str = "its sessions are over until 'vpnd device renew'";

/// An entry of the worker's queues for WireGuard.
pub(super) enum Input {
    Datagram(HandshakeDatagram),
    Auth(Box<FromAuth>),
}

/// The peers, their sessions and queues.
pub(crate) struct WireGuard {
    peers: Peers,
    sessions: PeerSessions,
    admissions: Admissions,
    datagrams: Datagrams,
    questions: Questions,
    counts: Counts,
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
        Ok(list.map(|list| Self::new(list, auth, shards as usize, backend(), socket)))
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
        let mut this = Self {
            peers: Peers::new(now(), config, vpnd_sys::random::random()),
            sessions: PeerSessions::new(shards),
            admissions: Admissions::new(),
            datagrams: Datagrams::new(list.own, socket),
            questions: Questions::new(auth),
            counts: Counts::default(),
            seen: list.seen(),
        };
        this.change(list.changes);
        // The outputs say where peers are. Shards need that only for peers with sessions.
        while this.poll_commands().is_some() {}
        this
    }

    /// Sets the relays of some clients' datagrams.
    pub(super) fn relayed(self, relayed: &Relayed) -> Self {
        Self { datagrams: self.datagrams.relayed(relayed), ..self }
    }

    /// Whether peers get sessions from now on.
    pub(super) fn admit(&mut self, admits: bool) {
        self.admissions.open(admits);
    }

    /// The next input.
    pub(super) async fn next(&mut self) -> Input {
        tokio::select! {
            Some(datagram) = self.datagrams.receive() => Input::Datagram(datagram),
            Some(answer) = self.questions.receive() => Input::Auth(Box::new(answer)),
            else => std::future::pending().await,
        }
    }

    /// The next input, if one waits.
    pub(super) fn try_next(&mut self) -> Option<Input> {
        // A flood of datagrams does not keep answers waiting, which are few.
        let answer = self.questions.try_receive().map(|answer| Input::Auth(Box::new(answer)));
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
            Input::Auth(answer) => match *answer {
                FromAuth::Step(step, reply) => {
                    if let Some((request, reply)) = self.questions.step_done(step, *reply) {
                        self.take_step(request, reply);
                    }
                }
                FromAuth::Admission { peer, admission } => {
                    self.admissions.decided();
                    self.take_admission(peer, admission);
                }
            },
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
        let others = self.questions.poll_timeout().into_iter().chain(self.admissions.poll_timeout(now()));
        self.peers.poll_timeout().into_iter().chain(others).min()
    }

    pub(super) fn handle_timeout(&mut self) {
        self.peers.on_timeout(now());
    }

    /// Peers have come, gone or changed.
    pub(super) fn change(&mut self, changes: Vec<PeerChange>) {
        for PeerChange { key, peer } in changes {
            let key = PublicKey(key.into());
            self.admissions.forget_refusal(&key);
            match peer {
                Some(peer) => {
                    let at = peer.outer.map(|at| self.datagrams.as_bound(at));
                    let id = self.peers.add(now(), key, at, peer.keepalive());
                    self.sessions.renew(id, peer.renewed_s);
                    // One that lasts longer takes its session's place before that one ends.
                    if self.sessions.is_renewed(id) {
                        self.peers.begin_at_once(now(), id);
                    }
                }
                None => {
                    let Some(id) = self.peers.by_key(&key) else { continue };
                    self.sessions.remove(id);
                    self.peers.remove(id);
                }
            }
        }
    }

    /// Other settings are in force, by which devices that reach the portal alone may be let in.
    pub(super) fn decide_all_again(&mut self) {
        self.sessions.change_all();
    }

    /// The gateway's address that the peer of this session talks to.
    pub(super) fn own_address(&self, id: SessionId) -> Option<IpAddr> {
        self.peers.endpoint(self.sessions.peer(id)?)?.local
    }

    /// The peer has a session, in this slot; false if there is no such peer any more. It takes the
    /// place of the one before. `renewed_s` is when the peer had been renewed last.
    pub(super) fn join(
        &mut self,
        key: PublicKey,
        id: SessionId,
        slot: Slot,
        is_walled: bool,
        renewed_s: u64,
    ) -> bool {
        let Some(peer) = self.peers.by_key(&key) else { return false };
        if is_walled {
            self.counts.add("walled");
        }
        self.sessions.join(peer, id, slot, is_walled, renewed_s);
        self.admissions.begin(now(), key, id);
        true
    }

    /// Sessions that have keys, for another process, and the keys of their devices; `opened` is the
    /// highest counter that shards have opened for each index.
    pub(super) fn hand_over(&self, opened: &HashMap<Index, u64>) -> HashMap<SessionId, HandedDevice> {
        handover::devices(&self.peers, &self.sessions, &self.admissions, opened)
    }

    /// Goes on with the keys of a device that another process has handed over. `None` if they do
    /// not fit together, or the device is none any more: it comes back to a new session.
    pub(super) fn take_over(&mut self, device: HandedDevice) -> Option<TakenOver> {
        device.into_peers(&mut self.peers)
    }

    /// The session of a device whose keys were taken over goes on in this slot.
    pub(super) fn rejoin(&mut self, device: TakenOver, id: SessionId, slot: Slot, is_walled: bool) {
        self.sessions.join(device.peer, id, slot, is_walled, device.renewed_s);
        // A handshake for its next session may have been on its way.
        if self.sessions.is_renewed(device.peer) {
            self.peers.begin_at_once(now(), device.peer);
        }
    }

    /// A session is over.
    pub(super) fn session_over(&mut self, id: SessionId) {
        let Some((peer, is_changed)) = self.sessions.over(id) else { return };
        self.peers.end(peer);
        if is_changed {
            self.peers.begin_at_once(now(), peer);
        }
    }

    /// Where messages of handshakes go in.
    pub(super) fn queue(&self) -> HandshakeQueue {
        self.datagrams.queue()
    }

    /// Follows the list of peers from where it was at the start.
    pub(super) fn follow(&self, core: Core) -> impl Future<Output = ()> + use<> {
        following::follow(core, self.questions.auth(), self.seen)
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
        self.admissions.refused_devices(now())
    }

    /// The next thing that others have to do.
    pub(super) fn poll_decision(&mut self) -> Option<Decision> {
        self.sessions.poll_decision()
    }

    /// The next command, and the shard that it is for. What needs none is done.
    pub(super) fn poll_commands(&mut self) -> Option<Vec<(usize, Command)>> {
        loop {
            let Some(output) = self.peers.poll_output() else {
                self.take_turns();
                return None;
            };
            return Some(match output {
                Output::Send { to, datagram } => {
                    self.datagrams.send(to, &datagram);
                    continue;
                }
                Output::Ask(id, request) => {
                    let has_session = matches!(&*request, Request::Initiate(key) if self.has_session(key));
                    let source = self.peers.source(id).map(|from| self.datagrams.client(from.remote).ip());
                    let step = Step { id, request: *request };
                    if let Some(lost) = self.questions.add_step(step, has_session, source) {
                        self.counts.add("busy");
                        self.peers.give_up(lost);
                    }
                    continue;
                }
                Output::Event(event) => self.note(event),
                Output::Open { peer, index, opener } => self.sessions.open(peer, index, opener),
                Output::Close(index) => self.sessions.close(index),
                Output::Seal(peer, sealer) => self.sessions.seal(peer, sealer.zip(self.peers.endpoint(peer))),
                Output::Endpoint(peer, endpoint) => self.sessions.move_to(peer, endpoint),
            });
        }
    }

    /// Asks the auth process what has its turn.
    fn take_turns(&mut self) {
        self.questions.ask_steps(self.peers.finishing(), self.admissions.count());
        while let Some((peer, from)) = self.admissions.next_question() {
            self.questions.ask_admission(peer, self.datagrams.client(from.remote).ip().to_canonical());
        }
    }

    /// Takes the reply to a step. A peer without a session gets no answer to its handshake before
    /// it has one. One that was renewed is answered in any case: if it gets no other session, in
    /// the one that it has.
    fn take_step(&mut self, request: RequestId, reply: Reply) {
        let key = match &reply {
            Reply::Responded(responded) => responded.peer,
            Reply::Finished(_) => match self.peers.finishes_with(request) {
                Some(key) => key,
                // The peer was removed meanwhile.
                None => return self.peers.give_up(request),
            },
            Reply::Initiated(..) | Reply::Refused(_) => return self.peers.on_reply(now(), request, reply),
        };
        // A session that has begun may not be in force yet: then the peer's last reply waits for
        // it.
        let is_in_force = self.has_session(&key) && !self.admissions.has(&key);
        let is_answered = is_in_force && !(self.admissions.is_open() && self.is_renewed(&key));
        let outer = self.peers.source(request);
        let Some(outer) = outer.filter(|_| !is_answered) else {
            return self.peers.on_reply(now(), request, reply);
        };
        if !self.admissions.takes(now(), &key) {
            return self.peers.give_up(request);
        }
        // It may take a directory long to say whether the device is let in.
        self.peers.set_aside(request);
        if let Some(before) = self.admissions.add(key, request, reply, outer) {
            self.peers.give_up(before);
        }
    }

    fn take_admission(&mut self, peer: PublicKey, admission: Result<Admission, String>) {
        match admission {
            Ok(Admission::Granted(grant)) => self.sessions.admit(peer, grant),
            Ok(Admission::Walled) => self.turn_away(peer, WALLED, true),
            Ok(Admission::Refused(refused)) => self.refused(peer, &control::Refused::from(refused).text),
            Err(why) => self.refused(peer, &why),
        }
    }

    /// Answers the peers whose sessions are in force by now. Returns the sessions whose addresses
    /// are not released in time.
    pub(super) fn answer_released(&mut self, is_released: impl Fn(SessionId) -> bool) -> Vec<SessionId> {
        let (now, mut late) = (now(), Vec::new());
        for waiting in self.admissions.take_unreleased() {
            let Unreleased { peer, session, until } = waiting;
            if !self.has(session) {
                self.refused(peer, "its session could not be stored, or was ended at once");
            } else if is_released(session) {
                self.answer(peer);
            } else if until <= now {
                tracing::warn!(%session, "the kernel does not forget the connections of an address; its next device is refused");
                self.refused(peer, "its address is not free yet");
                late.push(session);
            } else {
                self.admissions.wait_longer(waiting);
            }
        }
        late
    }

    /// The peer's session is in force: what it waits for is done.
    fn answer(&mut self, peer: PublicKey) {
        if let Some((request, reply)) = self.admissions.admitted(&peer) {
            self.peers.on_reply(now(), request, reply);
        }
    }

    /// The peer gets no session.
    pub(super) fn refused(&mut self, peer: PublicKey, why: &str) {
        self.turn_away(peer, why, false);
    }

    fn turn_away(&mut self, peer: PublicKey, why: &str, is_walled: bool) {
        if self.is_renewed(&peer) {
            log::keeps_session(&peer, why);
            return self.answer(peer);
        }
        self.counts.add(if is_walled { "walled" } else { "refused" });
        log::not_let_in(&peer, why);
        if let Some(request) = self.admissions.refused(now(), peer, why, is_walled) {
            self.peers.give_up(request);
        }
    }

    /// Begins handshakes with the peers that have been somewhere and have no session: what they had
    /// agreed on with the gateway's process before this one is lost, and they do not know.
    pub(super) fn begin_all(&mut self) {
        let is_lost = |id: &PeerId| self.peers.endpoint(*id).is_some() && !self.sessions.has(*id);
        let known: Vec<_> = self.peers.ids().filter(is_lost).collect();
        known.into_iter().for_each(|id| self.peers.on_no_session(now(), id));
    }

    /// Begins handshakes with these devices, which have talked to an address that is this machine's
    /// now, unless they have sessions here.
    pub(super) fn begin_at(&mut self, found: Vec<DeviceAt>) {
        for DeviceAt { key, outer } in found {
            let Some(id) = self.peers.by_key(&PublicKey(key.into())) else { continue };
            if !self.sessions.has(id) {
                let at = self.datagrams.as_bound(outer);
                self.peers.expect_at(id, at);
                self.peers.begin_at_once(now(), id);
            }
        }
    }

    fn is_renewed(&self, key: &PublicKey) -> bool {
        self.peers.by_key(key).is_some_and(|peer| self.sessions.is_renewed(peer))
    }

    fn has_session(&self, key: &PublicKey) -> bool {
        self.peers.by_key(key).is_some_and(|peer| self.sessions.has(peer))
    }

    /// Takes note of what people may want to know. Returns what shards have to know of it.
    fn note(&mut self, event: Event) -> Vec<(usize, Command)> {
        match event {
            Event::HandshakeDone(peer) => {
                self.sessions.shaken(peer);
                self.counts.add("done");
            }
            Event::SessionEnded(peer) => self.sessions.silent(peer),
            Event::Unreachable(peer) => {
                self.counts.add("unanswered");
                return self.sessions.unanswered(peer);
            }
            Event::BackAndForth { peer, between: [here, there] } => {
                log::two_devices(self.peers.key(peer), self.sessions.id(peer), [here, there]);
                self.sessions.two_devices(peer, here.remote);
                self.counts.add("back_and_forth");
            }
            Event::Refused { from, why } => {
                self.counts.add_refused(why);
                log::refused(from, &why);
            }
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
