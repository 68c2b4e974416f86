//! The life of epochs at the gateway: made by a login or an attach, confirmed by the first
//! authentic datagram, replaced, expired, erased (PROTOCOL §5.1, §11).

use std::sync::Arc;

use vpnd_crypto::EpochSecret;

use super::session::Epoch;
use super::{Effect, Gateway, Reason};
use crate::attach::Token;
use crate::control::{Code, Established, List, Message, Offer};
use crate::plane::{Command, Endpoint, EpochSpec, ReceiveSpec, Slot};
use crate::session::{ConnectionId, LocalSuite};
use crate::time::Time;
use crate::wire::Index;

/// The result of a login or an attach that was granted.
pub(super) struct Grant<'a> {
    pub(super) connection: ConnectionId,
    pub(super) offer: &'a Offer,
    pub(super) suite: LocalSuite,
    pub(super) secret: EpochSecret,
    /// For the next attach; its hash stands in the session already.
    pub(super) token: Token,
}

impl Gateway {
    /// Makes a pending epoch for the session and answers the client.
    pub(super) fn establish(&mut self, now: Time, slot: Slot, grant: Grant<'_>) {
        self.erase_pending(slot);
        let Some(session) = self.table.get_mut(slot) else { return };
        let before = session.current.as_ref().map_or(&[][..], |epoch| &epoch.indexes);
        let indexes = self.indexes.allocate(grant.offer.indexes.len(), before, &mut self.random);
        session.record.epoch += 1;
        let endpoints = vec![None; indexes.len()];
        let epoch = Epoch {
            number: session.record.epoch,
            suite: grant.suite,
            indexes,
            peer_indexes: grant.offer.indexes.iter().copied().map(Index).collect(),
            features: self.config.features & grant.offer.features,
            lab: self.config.lab.filter(|_| grant.offer.lab),
            secret: Arc::new(grant.secret),
            endpoints,
            began: now,
            confirmed: None,
        };
        session.pending = Some(epoch.clone());
        session.features = epoch.features;
        session.heard = now;
        let record = session.record.clone();
        let network = self.settings_of(&record.principal).map(|settings| &settings.network);
        let network = network.map(|template| record.addresses.network(template)).unwrap_or_default();
        let network = network.within(epoch.features);
        let Some(session) = self.table.get_mut(slot) else { return };
        let opening = (!core::mem::replace(&mut session.open, true)).then(|| session.spec());
        if let Some(spec) = opening {
            self.command_all(|_| Command::Open(spec.clone()));
        }
        self.install(slot, &epoch);
        self.timers.set((slot, Reason::Unconfirmed), now + self.config.timers.confirm_within);
        self.timers.set((slot, Reason::DeadPeer), now + self.config.timers.dead_peer);
        self.timers.cancel((slot, Reason::Wake));

        let established = Established {
            session: record.id,
            epoch: epoch.number,
            suite: epoch.suite.suite.id(),
            indexes: List::new(epoch.indexes.iter().map(|index| index.0).collect())
                .expect("there are as many as the offer had, which is of the same type"),
            gateway_lanes: self.config.shards as u8,
            features: epoch.features,
            token: grant.token,
            network,
            timers: self.config.timers.to_message(),
        };
        self.effects.push_back(Effect::Persist(record));
        let (connection, message) = (grant.connection, Message::Established(Box::new(established)));
        self.effects.push_back(Effect::Send { connection, message });
        self.renew(connection, epoch.features);
        if let Some(before) = self.table.connect(slot, connection) {
            self.close_connection(before, Code::Superseded, Code::Superseded.explanation());
        }
    }

    /// Gives the shards the keys of an epoch.
    pub(super) fn install(&mut self, slot: Slot, epoch: &Epoch) {
        let shards = self.config.shards;
        let reject_at = epoch.began + self.config.timers.reject_after;
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

    /// A lane of the client was heard: that confirms a pending epoch, and its endpoint goes to the
    /// shards.
    pub(super) fn heard(&mut self, now: Time, slot: Slot, epoch: u32, lane: u8, endpoint: Endpoint) {
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
            for shard in (usize::from(lane)..self.config.shards).step_by(lanes) {
                let command = Command::Reach { slot, epoch, lane, endpoint };
                self.effects.push_back(Effect::Command { shard, command });
            }
        }
    }

    /// The pending epoch becomes the current one; the token before is void, durably.
    fn confirm(&mut self, now: Time, slot: Slot) {
        self.erase_retiring(slot);
        let timers = self.config.timers;
        let Some(session) = self.table.get_mut(slot) else { return };
        let Some(mut confirmed) = session.pending.take() else { return };
        confirmed.confirmed = Some(now);
        let expires = timers.gateway_erases(confirmed.began);
        session.retiring = session.current.replace(confirmed);
        session.record.tokens.confirm();
        self.effects.push_back(Effect::Persist(session.record.clone()));
        if session.retiring.is_some() {
            self.timers.set((slot, Reason::Retire), now + timers.retire_after);
        }
        self.timers.cancel((slot, Reason::Unconfirmed));
        self.timers.set((slot, Reason::Expire), expires);
    }

    /// A shard has a packet for the client and nothing to seal it with.
    pub(super) fn wanted(&mut self, now: Time, slot: Slot) {
        let current = self.table.get(slot).and_then(|session| session.current.as_ref());
        let confirmed = current.and_then(|current| current.confirmed);
        // If an epoch has just come, the shard had requested it before it got it.
        if confirmed.is_none_or(|confirmed| now - confirmed >= self.config.timers.wake_interval) {
            self.wake(now, slot);
        }
    }

    /// Packets wait for the client, or a lane is used up, and only the client can make an epoch.
    pub(super) fn wake(&mut self, now: Time, slot: Slot) {
        let interval = self.config.timers.wake_interval;
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
        self.effects.push_back(Effect::Send { connection, message: Message::Wake });
    }

    /// Erases one epoch's keys everywhere.
    pub(super) fn erase(&mut self, slot: Slot, number: u32) {
        let Some(session) = self.table.get_mut(slot) else { return };
        let Some(epoch) = session.take_epoch(number) else { return };
        for index in &epoch.indexes {
            self.indexes.release(*index);
        }
        self.command_all(|_| Command::Retire { slot, epoch: number });
    }

    pub(super) fn erase_pending(&mut self, slot: Slot) {
        let session = self.table.get(slot);
        if let Some(number) = session.and_then(|session| session.pending.as_ref()).map(|epoch| epoch.number) {
            self.erase(slot, number);
        }
    }

    pub(super) fn erase_retiring(&mut self, slot: Slot) {
        let session = self.table.get(slot);
        if let Some(number) = session.and_then(|session| session.retiring.as_ref()).map(|epoch| epoch.number)
        {
            self.erase(slot, number);
        }
    }

    pub(super) fn erase_current(&mut self, slot: Slot) {
        let session = self.table.get(slot);
        if let Some(number) = session.and_then(|session| session.current.as_ref()).map(|epoch| epoch.number) {
            self.erase(slot, number);
        }
    }

    /// Erases the keys of a client that was not heard for long; its addresses and tokens stay.
    pub(super) fn check_dead(&mut self, now: Time, slot: Slot) {
        let Some(session) = self.table.get(slot) else { return };
        if session.epochs().next().is_none() {
            return;
        }
        let until = session.last_heard() + self.config.timers.dead_peer;
        if until > now {
            self.timers.set((slot, Reason::DeadPeer), until);
            return;
        }
        let numbers: Vec<u32> = session.epochs().map(|epoch| epoch.number).collect();
        for number in numbers {
            self.erase(slot, number);
        }
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
