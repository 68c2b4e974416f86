//! The sessions of a gateway, and the life of their epochs: confirmed by the first authentic
//! datagram, replaced, expired, erased (PROTOCOL §5.1, §11).
//!
//! INVARIANT: an index is taken while an epoch of a session has it, and a timer is set for a
//! session that is there. Shards and store get an order before a client gets what follows.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use super::indexes::Indexes;
use super::session::{Addresses, Epoch, Session, SessionRecord};
use super::table::Table;
use super::{Config, Effect, EndedSession};
use crate::control::{Close, Code, Explanation, Message};
use crate::flows::Flows;
use crate::plane::{Command, Endpoint, EpochSpec, Event, ReceiveSpec, Slot};
use crate::session::{ConnectionId, SessionId, Timers};
use crate::time::Time;
use crate::timer::TimerQueue;

/// The reason of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Nothing was received in a new epoch.
    Unconfirmed,
    /// An old epoch's keys are to be erased.
    Retire,
    /// The current epoch has ceased to seal, and is to be erased.
    Expire,
    /// A `Wake` was held back, because one had just been sent.
    Wake,
    /// The client may be gone.
    DeadPeer,
    /// The client may be idle.
    Idle,
    /// The session's lifetime ends.
    Lifetime,
}

impl Reason {
    const ALL: [Self; 7] = [
        Self::Unconfirmed,
        Self::Retire,
        Self::Expire,
        Self::Wake,
        Self::DeadPeer,
        Self::Idle,
        Self::Lifetime,
    ];
}

/// The sessions, and what has to agree with them.
pub(super) struct Sessions {
    pub(super) table: Table,
    /// Indexes of all epochs that are alive.
    pub(super) indexes: Indexes,
    pub(super) timers: TimerQueue<(Slot, Reason)>,
    pub(super) effects: VecDeque<Effect>,
    /// The times for which the protocol waits.
    pub(super) waits: Timers,
    idle_timeout: Option<Duration>,
}

impl Sessions {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            table: Table::default(),
            indexes: Indexes::new(config.shards),
            timers: TimerQueue::new(),
            effects: VecDeque::new(),
            waits: config.timers,
            idle_timeout: config.idle_timeout,
        }
    }

    pub(super) fn send(&mut self, connection: ConnectionId, message: Message) {
        self.effects.push_back(Effect::Send { connection, message });
    }

    pub(super) fn command_all(&mut self, command: impl Fn(usize) -> Command) {
        for shard in 0..self.indexes.shards() {
            let command = command(shard);
            self.effects.push_back(Effect::Command { shard, command });
        }
    }

    pub(super) fn insert(&mut self, now: Time, record: SessionRecord, flows: Flows) -> Option<Slot> {
        let (deadline, idle) = (record.deadline, self.idle_timeout(&record));
        let slot = self.table.insert(now, self.indexes.shards(), record, flows)?;
        self.timers.set((slot, Reason::Lifetime), deadline);
        if let Some(idle) = idle {
            self.timers.set((slot, Reason::Idle), now + idle);
        }
        Some(slot)
    }

    /// Ends the sessions that have one of these addresses, which were leased to another one.
    pub(super) fn end_holders(&mut self, addresses: Addresses) {
        while let Some(slot) = self.table.by_address(addresses) {
            self.end(
                slot,
                Code::Token,
                "the session's inner addresses are leased to another one; log in again",
            );
        }
    }

    /// The order is: no packet passes any more, that is durable, the client gets `Close`.
    pub(super) fn end(&mut self, slot: Slot, code: Code, text: &str) {
        let Some(session) = self.remove(slot) else { return };
        self.effects.push_back(Effect::Forget(session.record.id));
        if let Some(connection) = session.connection {
            self.close_connection(connection, code, text);
        }
        let Session { record, since, activity, .. } = *session;
        let SessionRecord { id, user, addresses, .. } = record;
        let ended = EndedSession { session: id, user, addresses, code, since, activity };
        self.effects.push_back(Effect::Ended(ended));
    }

    /// Takes the session out of the table and of all shards.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<Box<Session>> {
        let session = self.table.remove(slot)?;
        for reason in Reason::ALL {
            self.timers.cancel((slot, reason));
        }
        for index in session.epochs().flat_map(|epoch| &epoch.indexes) {
            self.indexes.release(*index);
        }
        if session.open {
            self.command_all(|_| Command::Close(slot));
        }
        Some(session)
    }

    pub(super) fn close_connection(&mut self, connection: ConnectionId, code: Code, text: &str) {
        self.table.disconnect(connection);
        if code != Code::Bye {
            self.send(connection, Message::Close(Close { code, text: Explanation::cut(text) }));
        }
        self.effects.push_back(Effect::CloseConnection { connection, code });
    }

    /// A shard's data plane saw something.
    pub(super) fn handle_event(&mut self, now: Time, event: Event) {
        match event {
            Event::Heard { slot, epoch, lane, endpoint } => self.heard(now, slot, epoch, lane, endpoint),
            Event::EpochWanted { slot } => self.wanted(now, slot),
            Event::RekeyDue { slot, epoch } => {
                let current = self.table.get(slot).and_then(|session| session.current.as_ref());
                if current.is_some_and(|current| current.number == epoch) {
                    self.wake(now, slot);
                }
            }
            Event::EpochExhausted { slot, epoch } => {
                self.erase(slot, |session| session.take_epoch(epoch));
                self.wake(now, slot);
            }
            Event::PathStated { slot, size } => {
                if let Some(session) = self.table.get_mut(slot) {
                    session.path_size = Some(size);
                }
                self.command_all(|_| Command::PathSize { slot, size });
            }
            // A gateway sends no probes, and its planes drop what claims to answer one.
            Event::ProbeReply { .. } | Event::PathInUse { .. } => {}
            // For the owner's peers of WireGuard.
            Event::WireGuardOpened { .. } => {}
        }
    }

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        while let Some((slot, reason)) = self.timers.pop(now) {
            match reason {
                Reason::Unconfirmed => self.erase(slot, |session| session.pending.take()),
                Reason::Retire => self.erase(slot, |session| session.retiring.take()),
                Reason::Expire => self.erase(slot, |session| session.current.take()),
                Reason::Wake => self.wake(now, slot),
                Reason::DeadPeer => self.check_dead(now, slot),
                Reason::Idle => self.check_idle(now, slot),
                Reason::Lifetime => self.end(slot, Code::Lifetime, Code::Lifetime.explanation()),
            }
        }
    }

    /// The sessions that [`Sessions::handle_timeout`] would end now.
    pub(super) fn due_to_end(&self, now: Time) -> impl Iterator<Item = SessionId> {
        self.timers.due(now).filter_map(move |(slot, reason)| {
            let session = self.table.get(slot)?;
            let ends = match reason {
                Reason::Lifetime => true,
                Reason::Idle => self.idle_until(session).is_some_and(|until| until <= now),
                _ => false,
            };
            ends.then_some(session.record.id)
        })
    }

    /// Gives the shards the keys of an epoch.
    pub(super) fn install(&mut self, slot: Slot, epoch: &Epoch) {
        let shards = self.indexes.shards();
        let reject_at = epoch.began + self.waits.reject_after;
        self.command_all(|shard| {
            let owned = epoch.indexes.iter().enumerate().filter(|(_, index)| index.shard(shards) == shard);
            let peer_lane = shard % epoch.indexes.len();
            Command::Install(Box::new(EpochSpec {
                slot,
                epoch: epoch.number,
                suite: epoch.suite.suite,
                backend: epoch.suite.backend,
                lab: epoch.lab,
                secret: Arc::clone(&epoch.secret),
                features: epoch.features,
                lane: shard as u8,
                peer_index: epoch.peer_indexes[peer_lane],
                peer_lane: peer_lane as u8,
                endpoint: None,
                receive: owned
                    .map(|(lane, index)| ReceiveSpec { index: *index, lanes: vec![lane as u8] })
                    .collect(),
                reject_at,
            }))
        });
    }

    /// Sends the shards that seal for a client's lane its endpoint; `lanes` is their number.
    pub(super) fn reach(&mut self, slot: Slot, epoch: u32, (lane, lanes): (u8, usize), endpoint: Endpoint) {
        for shard in (usize::from(lane)..self.indexes.shards()).step_by(lanes) {
            let command = Command::Reach { slot, epoch, lane, endpoint };
            self.effects.push_back(Effect::Command { shard, command });
        }
    }

    /// A lane of the client was heard: that confirms an epoch, and shards get the endpoint.
    fn heard(&mut self, now: Time, slot: Slot, epoch: u32, lane: u8, endpoint: Endpoint) {
        let Some(session) = self.table.get_mut(slot) else { return };
        let confirming = session.pending.as_ref().is_some_and(|pending| pending.number == epoch);
        if confirming {
            self.confirm(now, slot);
        }
        let Some(session) = self.table.get_mut(slot) else { return };
        session.heard = session.heard.max(now);
        let before = session.retiring.as_ref().map_or(&[][..], |retiring| &retiring.endpoints);
        // A late datagram of an old epoch is no sign of where the client is now.
        let current = session.current.as_mut().filter(|current| current.number == epoch);
        let Some(endpoints) = current.map(|current| &mut current.endpoints) else { return };
        let moved = if confirming {
            first_endpoints(endpoints, before, lane, endpoint)
        } else {
            moved_lanes(endpoints, lane, endpoint)
        };
        let (lanes, session) = (endpoints.len(), session.record.id);
        if !moved.is_empty() {
            self.effects.push_back(Effect::HeardAt { session, lane, outer: endpoint.remote });
        }
        for (lane, endpoint) in moved {
            self.reach(slot, epoch, (lane, lanes), endpoint);
        }
    }

    /// The pending epoch becomes the current one; the token before is void, durably.
    fn confirm(&mut self, now: Time, slot: Slot) {
        self.erase(slot, |session| session.retiring.take());
        let Some(session) = self.table.get_mut(slot) else { return };
        let Some(mut confirmed) = session.pending.take() else { return };
        confirmed.confirmed = Some(now);
        session.retiring = session.current.replace(confirmed);
        session.record.tokens.confirm();
        self.effects.push_back(Effect::Persist(session.record.clone()));
        self.timers.cancel((slot, Reason::Unconfirmed));
        self.schedule(now, slot);
    }

    /// Sets the timers of epochs that were confirmed or handed over: each to where it was before.
    pub(super) fn schedule(&mut self, now: Time, slot: Slot) {
        let Some(session) = self.table.get(slot) else { return };
        if let Some(pending) = &session.pending {
            self.timers.set((slot, Reason::Unconfirmed), pending.began + self.waits.confirm_within);
        }
        if let Some(current) = &session.current {
            self.timers.set((slot, Reason::Expire), self.waits.gateway_erases(current.began));
        }
        if session.retiring.is_some() {
            let confirmed = session.current.as_ref().and_then(|current| current.confirmed).unwrap_or(now);
            self.timers.set((slot, Reason::Retire), confirmed + self.waits.retire_after);
        }
    }

    /// A shard has a packet for the client and nothing to seal it with.
    fn wanted(&mut self, now: Time, slot: Slot) {
        let current = self.table.get(slot).and_then(|session| session.current.as_ref());
        let confirmed = current.and_then(|current| current.confirmed);
        // If an epoch has just come, the shard had requested it before it got it.
        if confirmed.is_none_or(|confirmed| now - confirmed >= self.waits.wake_interval) {
            self.wake(now, slot);
        }
    }

    /// Packets wait for the client, or a lane is used up, and only the client can make an epoch.
    fn wake(&mut self, now: Time, slot: Slot) {
        let interval = self.waits.wake_interval;
        let Some(session) = self.table.get_mut(slot) else { return };
        let Some(connection) = session.connection else { return };
        // A pending epoch is on its way; its client is awake.
        if session.pending.is_some() {
            return;
        }
        if let Some(woken) = session.woken.filter(|woken| now - *woken < interval) {
            // Later, unless an epoch comes until then: the shards request only once.
            self.timers.set((slot, Reason::Wake), woken + interval);
            return;
        }
        session.woken = Some(now);
        self.send(connection, Message::Wake);
    }

    /// Erases the keys of the epoch that `take` takes out everywhere, if there is one.
    pub(super) fn erase(&mut self, slot: Slot, take: impl FnOnce(&mut Session) -> Option<Epoch>) {
        let Some(epoch) = self.table.get_mut(slot).and_then(take) else { return };
        for index in &epoch.indexes {
            self.indexes.release(*index);
        }
        self.command_all(|_| Command::Retire { slot, epoch: epoch.number });
    }

    /// Erases the keys of a client that was not heard for long; its addresses and tokens stay.
    fn check_dead(&mut self, now: Time, slot: Slot) {
        let Some(session) = self.table.get(slot) else { return };
        if session.epochs().next().is_none() {
            return;
        }
        let until = session.last_heard() + self.waits.dead_peer;
        if until > now {
            self.timers.set((slot, Reason::DeadPeer), until);
            return;
        }
        let numbers: Vec<u32> = session.epochs().map(|epoch| epoch.number).collect();
        for number in numbers {
            self.erase(slot, |session| session.take_epoch(number));
        }
    }

    /// The shorter one of the gateway's and the session's own.
    fn idle_timeout(&self, record: &SessionRecord) -> Option<Duration> {
        [self.idle_timeout, record.idle_timeout].into_iter().flatten().min()
    }

    fn check_idle(&mut self, now: Time, slot: Slot) {
        let Some(session) = self.table.get(slot) else { return };
        let Some(until) = self.idle_until(session) else { return };
        if until <= now {
            self.end(slot, Code::Idle, Code::Idle.explanation());
        } else {
            self.timers.set((slot, Reason::Idle), until);
        }
    }

    /// When the session ends unless its client uses it until then.
    fn idle_until(&self, session: &Session) -> Option<Time> {
        self.idle_timeout(&session.record).map(|idle| session.last_used() + idle)
    }
}

/// The lanes of an epoch that was heard for the first time, on `lane` at `endpoint`. The others are
/// taken to be where they were before, if that is at the same address, or else where this one is:
/// until they are heard themselves, the client finds their datagrams at any of its sockets.
fn first_endpoints(
    endpoints: &mut [Option<Endpoint>],
    before: &[Option<Endpoint>],
    lane: u8,
    endpoint: Endpoint,
) -> Vec<(u8, Endpoint)> {
    let at = |other: u8| {
        let known = before.get(usize::from(other)).copied().flatten();
        let known = known.filter(|known| other != lane && known.remote.ip() == endpoint.remote.ip());
        known.unwrap_or(endpoint)
    };
    let lanes: Vec<(u8, Endpoint)> = (0..endpoints.len() as u8).map(|other| (other, at(other))).collect();
    for (place, (_, endpoint)) in endpoints.iter_mut().zip(&lanes) {
        *place = Some(*endpoint);
    }
    lanes
}

/// The lanes that move when `lane` is heard at `endpoint`. If its address changed, these are all
/// that were at its old address, for nothing reaches them there any more.
fn moved_lanes(endpoints: &mut [Option<Endpoint>], lane: u8, endpoint: Endpoint) -> Vec<(u8, Endpoint)> {
    let Some(place) = endpoints.get_mut(usize::from(lane)) else { return Vec::new() };
    let left = place.replace(endpoint).map(|before| before.remote.ip());
    let left = left.filter(|before| *before != endpoint.remote.ip());
    let mut moved = vec![(lane, endpoint)];
    for (other, place) in (0..).zip(endpoints) {
        if left.is_some() && place.map(|at| at.remote.ip()) == left {
            *place = Some(endpoint);
            moved.push((other, endpoint));
        }
    }
    moved
}
