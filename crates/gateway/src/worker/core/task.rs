//! The task that owns all sessions: it takes requests, events and inputs, and carries out the
//! effects of the core in its order.
//!
//! INVARIANT: a client is sent what its session needs to be in force only after it is: shards have
//! their commands and the store has the session (and what [`super::announce`] says of the kernel).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};
use vpnd_crypto::EpochSecret;
use vpnd_proto::control::{Code, Message, Offer, UserName};
use vpnd_proto::gateway::{Effect, Gateway, Selector};
use vpnd_proto::plane::{Activity, Endpoint, Event, Slot};
use vpnd_proto::policy::PolicyError;
use vpnd_proto::session::{ConnectionId, DeviceId};

use super::announce::{Outboxes, log_routes_left_out};
use super::attach::{Attaches, Attaching, Found, unanswered};
use super::drain::{Drain, DrainRequest};
use super::endings::{Endings, Leaving};
use super::snapshot::{CoreSnapshot, ShardFigures};
use super::wireguard::next_input;
use super::{CoreRequest, HandoverSummary, Outgoing, Reported, ToEnd};
use super::{access, fleet, wireguard};
use crate::worker::handover::{HandoverError, Successor};
use crate::worker::registry::{AdmittedSession, Registry};
use crate::worker::wireguard::{Input, WireGuard};
use vpnd_config::ServerConfig;
use vpnd_ipc::gateway::wireguard::{DeviceAt, PeerChange};
use vpnd_shard::Shards;
use vpnd_sys::clock::now;

/// Interval at which each session's traffic is collected from the shards.
const ACTIVITY_INTERVAL: Duration = Duration::from_secs(1);
/// Requests and events that are carried out together, with one trip to the disk, at most this many.
const BATCH: usize = 256;
/// Time for routes to be withdrawn before a hand-over.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct CoreTask {
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
    /// What comes back to the task goes to `requests`.
    pub(super) fn new(
        gateway: Gateway,
        shards: Shards,
        registry: Registry,
        wireguard: Option<WireGuard>,
        drain: Drain,
        requests: mpsc::WeakSender<CoreRequest>,
    ) -> Self {
        Self {
            gateway,
            shards,
            registry,
            wireguard,
            outboxes: Outboxes::default(),
            endings: Endings::default(),
            drain,
            attaches: Attaches::new(requests),
        }
    }

    pub(super) async fn run(
        mut self,
        mut requests: mpsc::Receiver<CoreRequest>,
        mut events: mpsc::Receiver<Event>,
    ) {
        let mut activity = interval(ACTIVITY_INTERVAL);
        activity.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut end = None;
        access::begin(&mut self.gateway, &mut self.registry, self.wireguard.as_mut());
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
                    let (gateway, registry) = (&mut self.gateway, &mut self.registry);
                    self.drain.go_on(gateway, registry, self.wireguard.as_ref(), &mut self.endings);
                    fleet::announce_heard(&self.gateway, &self.registry);
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
            self.endings.add_unready(self.outboxes.deliver_held(&self.gateway, &self.registry));
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
                self.attach(attaching);
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
                self.registry.revoke(*revoked);
                let count = self.end_unfit();
                self.endings.reply_when_done(reply, count);
            }
            CoreRequest::Status(reply) => {
                let _ = reply.send(self.snapshot().await);
            }
            CoreRequest::Reported(reply) => {
                let _ = reply.send(Reported::new(&self.gateway));
            }
            CoreRequest::Fleet(gateways) => fleet::note_reports(&gateways, &mut self.gateway),
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
                self.endings.end_all(fleet::left(sessions, &self.registry), &self.gateway);
                self.endings.reply_when_done(reply, ());
            }
            CoreRequest::Peers(changes) => self.change_peers(changes),
            CoreRequest::BeginPeers(found) => self.begin_peers(found),
            CoreRequest::Shutdown => return Some(End::Shutdown),
        }
        None
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
                log_routes_left_out(&self.gateway, session);
            }
            // The effects include the refusal.
            Err(_) => self.registry.abandon(admission.session),
        }
    }

    fn attach(&mut self, attaching: Box<Attaching>) {
        let (gateway, registry) = (&mut self.gateway, &mut self.registry);
        self.attaches.attach(attaching, self.drain.has_begun(), gateway, registry, &mut self.outboxes);
    }

    fn looked_up(&mut self, attaching: Box<Attaching>, found: Found) {
        let (is_draining, outboxes) = (self.drain.has_begun(), &mut self.outboxes);
        let (gateway, registry) = (&mut self.gateway, &mut self.registry);
        let left = self.attaches.looked_up(attaching, found, is_draining, gateway, registry, outboxes);
        self.endings.end_all(left, &self.gateway);
    }

    /// A message of a client, which may end its session. One whose traffic is accounted for ends
    /// with the others of its batch.
    fn handle_message(&mut self, connection: ConnectionId, message: &Message) {
        let session = self.gateway.session_of(connection);
        match (message, session.filter(|session| self.registry.is_accounted(*session))) {
            (Message::Bye, Some(session)) => {
                self.endings.end(ToEnd::session(session, Code::Bye, ""), &self.gateway);
            }
            _ => self.gateway.handle_message(connection, message),
        }
    }

    /// Puts the settings into force that a reload changes.
    fn set(&mut self, config: &ServerConfig) -> Result<(), PolicyError> {
        access::set(config, &mut self.gateway, &mut self.registry)?;
        self.end_unfit();
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.decide_all_again();
        }
        Ok(())
    }

    /// Users are in these groups now. Returns the number of their sessions, those that end by it
    /// included.
    fn regroup(&mut self, users: Vec<(UserName, Vec<String>)>) -> usize {
        let count = self.registry.regroup(users, &mut self.gateway);
        self.end_unfit();
        count
    }

    /// Ends the sessions that can't go on under the settings in force; returns how many there were.
    fn end_unfit(&mut self) -> usize {
        self.endings.end_all(access::unfit(&self.registry, self.wireguard.as_ref()), &self.gateway)
    }

    fn handle_drain(&mut self, request: DrainRequest, reply: oneshot::Sender<()>) {
        self.drain.handle(request, &mut self.gateway, self.registry.hosts().is_some());
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.admit(!self.drain.has_begun());
        }
        // The requester may have gone meanwhile.
        let _ = reply.send(());
    }

    /// Stops the shards and hands all sessions over. Control connections stay behind; their clients
    /// attach when they notice.
    async fn hand_over(&mut self, to: Successor) -> Result<HandoverSummary, HandoverError> {
        self.carry_out().await;
        self.serve_wireguard().await;
        if let Some(hosts) = self.registry.hosts().cloned() {
            // The successor does not know which routes are to be withdrawn.
            let _ = tokio::time::timeout(SETTLE_TIMEOUT, hosts.settled()).await;
        }
        self.collect_activity().await;
        let stopped = now();
        let mut frozen = self.shards.freeze().await?;
        let sessions = self.gateway.hand_over(std::mem::take(&mut frozen.progress));
        let devices = self.wireguard.as_ref().map(|wireguard| wireguard.hand_over(&frozen.opened));
        let count = sessions.len();
        match to.hand_over(sessions, devices.unwrap_or_default(), &self.registry).await {
            // The shards end with what holds them still.
            Ok(version) => Ok(HandoverSummary { sessions: count, version, paused_for: now().since(stopped) }),
            Err(error) => {
                frozen.resume();
                Err(error)
            }
        }
    }

    /// Carries out the core's effects, and those of sessions that end because they could not begin;
    /// then the replies are sent.
    async fn carry_out(&mut self) {
        self.end_leaving().await;
        loop {
            self.carry_out_once().await;
            let unready = self.endings.take_unready();
            if unready.is_empty() {
                break;
            }
            for session in unready {
                self.gateway.end(&Selector::Session(session), Code::Internal, "");
            }
        }
        self.endings.reply();
    }

    /// Carries out effects: shards first, then the store, and when both are done the messages to
    /// clients, in the core's order.
    async fn carry_out_once(&mut self) {
        let mut commanded = false;
        let (mut endings, mut messages) = (Vec::new(), Vec::new());
        let mut over = BTreeSet::new();
        while let Some(effect) = self.gateway.poll_effect() {
            match effect {
                Effect::Command { shard, command } => {
                    self.shards.command(shard, command).await;
                    commanded = true;
                }
                Effect::HeardAt { session, lane, outer: remote } => {
                    let local = self.wireguard.as_ref().and_then(|wireguard| wireguard.own_address(session));
                    self.registry.heard_at(session, lane, Endpoint { remote, local });
                }
                Effect::Persist(record) => self.registry.persist(&record),
                Effect::Forget(session) => self.registry.forget(session),
                Effect::Send { connection, message } => {
                    messages.push((connection, Outgoing::Message(Box::new(message))));
                }
                Effect::CloseConnection { connection, code } => {
                    messages.push((connection, Outgoing::Close(code)));
                }
                Effect::Ended(session) => {
                    self.endings.count(&session);
                    self.outboxes.over(session.session);
                    if let Some(wireguard) = &mut self.wireguard {
                        wireguard.session_over(session.session);
                    }
                    over.extend(session.addresses.iter());
                    endings.push(session.into());
                }
            }
        }
        // Without either nothing waits for the commands to take effect. A packet of a session that
        // is over would make the kernel know its connection again.
        if commanded && !(messages.is_empty() && over.is_empty()) {
            self.shards.barrier().await;
        }
        // Before the store, from which on the addresses may be anybody's.
        self.registry.release(over);
        let failed = self.registry.commit(endings).await;
        self.endings.add_unstored(&failed);
        if let Some(wireguard) = &self.wireguard {
            self.endings.add_unready(failed.iter().copied().filter(|session| wireguard.has(*session)));
        }
        let (gateway, registry) = (&self.gateway, &self.registry);
        for (connection, message) in messages {
            let unready = self.outboxes.deliver(connection, message, &failed, gateway, registry);
            self.endings.add_unready(unready);
        }
    }

    /// Ends the sessions that were to end since the last call. Shards are asked for what they have
    /// counted once for all of them.
    async fn end_leaving(&mut self) {
        let leaving = self.endings.take_leaving();
        if leaving.iter().any(|leaving| self.registry.is_accounted(leaving.session)) {
            self.collect_activity().await;
        }
        for Leaving { session, code, text } in leaving {
            self.gateway.end(&Selector::Session(session), code, &text);
        }
    }

    /// Does what is due, which may end sessions.
    async fn handle_timeout(&mut self) {
        let now = now();
        if self.gateway.due_to_end(now).any(|session| self.registry.is_accounted(session)) {
            self.collect_activity().await;
        }
        self.gateway.handle_timeout(now);
    }

    /// Takes an event of a shard.
    fn handle_event(&mut self, event: Event) {
        let is_of_peer = self.wireguard.as_mut().is_some_and(|wireguard| wireguard.handle_event(&event));
        if !is_of_peer {
            self.gateway.handle_event(now(), event);
        }
    }

    /// Takes a session's traffic over one shard.
    fn handle_activity(&mut self, slot: Slot, activity: Activity) {
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.handle_activity(slot, &activity);
        }
        self.gateway.handle_activity(slot, activity);
    }

    /// Adds up the shards' traffic since the last report: only of sessions that were in use.
    async fn collect_activity(&mut self) {
        for report in self.shards.report().await {
            for (slot, activity) in report.activities {
                self.handle_activity(slot, activity);
            }
        }
        self.registry.note_late_addresses();
    }

    async fn snapshot(&mut self) -> CoreSnapshot {
        let mut shards = ShardFigures::default();
        for report in self.shards.report().await {
            for (slot, activity) in shards.add(report) {
                self.handle_activity(slot, activity);
            }
        }
        let stock = self.wireguard.as_ref();
        let sessions: Vec<_> = self.gateway.sessions().collect();
        CoreSnapshot {
            profiles: self.registry.access().names_of(&sessions),
            sessions,
            ended: self.endings.ended().clone(),
            shards,
            drain: self.drain.state(self.gateway.in_use()),
            wireguard: stock.map(WireGuard::counts).unwrap_or_default(),
            refused_devices: stock.map(WireGuard::refused_devices).unwrap_or_default(),
        }
    }

    /// Takes an input of WireGuard.
    fn handle_input(&mut self, input: Input) {
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.handle(input);
        }
    }

    fn change_peers(&mut self, changes: Vec<PeerChange>) {
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.change(changes);
        }
    }

    fn begin_peers(&mut self, found: Vec<DeviceAt>) {
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.begin_at(found);
        }
    }

    /// Carries out what the peers want, and its effects.
    async fn serve_wireguard(&mut self) {
        loop {
            self.answer_released();
            let Some(wireguard) = &mut self.wireguard else { return };
            let (gateway, registry, endings) = (&mut self.gateway, &mut self.registry, &mut self.endings);
            if !wireguard::serve(wireguard, &self.shards, gateway, registry, endings).await {
                return;
            }
            // One trip to the disk for all of them.
            self.carry_out().await;
        }
    }

    /// Answers the peers whose sessions are in force by now, and ends those that waited too long.
    fn answer_released(&mut self) {
        let Some(wireguard) = &mut self.wireguard else { return };
        let late = wireguard.answer_released(|session| self.registry.is_released(session));
        self.endings.add_unready(late);
    }
}
