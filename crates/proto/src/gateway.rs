//! The gateway's control core: which sessions there are, which keys they have, and when that ends.
//!
//! One owner calls it; it never waits. Every input may leave [`Effect`]s, which the owner carries
//! out in order: the shards get new keys and the store gets new tokens **before** the answer that
//! mentions them is sent (PROTOCOL §5.1), so the owner waits for shards and store where the order
//! demands it.
//!
//! Invariants: a session has at most one current, one pending and one retiring epoch; an index
//! belongs to one epoch; endpoints change only on [`Event::Heard`], which a data plane reports only
//! for an authentic datagram that is the newest of its lane. This module must not know of sockets,
//! files, passwords or how a connection is secured.

mod admission;
mod effect;
pub mod handover;
mod indexes;
mod profiles;
mod session;
mod sessions;
mod table;

use core::time::Duration;
use std::sync::Arc;

use vpnd_crypto::{LabPermit, Suite};

use crate::control::{
    Code, Drain, FEATURE_RENEWAL, List, MAX_GATEWAY_ADDRESSES, Message, Renewal, Text, UserName,
};
use crate::flows::Flows;
use crate::plane::{Activity, Command, Endpoint, Event, GroupLimits, Slot};
use crate::rate::{Buckets, Rates, SessionLimits};
use crate::session::{ConnectionId, DeviceId, LocalSuite, Random, SessionId, Timers, random_bytes};
use crate::time::Time;
use crate::wire::MAX_GATEWAY_LANES;

pub use admission::{Authenticated, Claim};
pub use effect::{Effect, EndedSession};
pub use profiles::{ProfileSettings, Profiles};
use session::Session;
pub use session::{Addresses, SessionRecord, SessionStatus};
pub use sessions::Reason;
use sessions::Sessions;

/// A gateway's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of shards that carry data; each is a lane of every session.
    pub shards: usize,
    /// The suites that are allowed, and how fast this host is with them. Of equals, the first wins.
    pub suites: Vec<LocalSuite>,
    /// The features this host understands (PROTOCOL §3.4).
    pub features: u32,
    /// Present if the gateway was started with the insecure switch.
    pub lab: Option<LabPermit>,
    /// The timers of PROTOCOL §11.
    pub timers: Timers,
    /// A session that sent no packet for this long ends; a session may have a shorter limit.
    pub idle_timeout: Option<Duration>,
    /// Sessions at most, detached ones included.
    pub max_sessions: usize,
    /// The access profiles.
    pub profiles: Profiles,
    /// The addresses that clients are to keep, if they are to.
    pub renewal: Option<Renewal>,
}

/// The error of a configuration with which a gateway can't start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not 1 to 64 shards.
    #[error("a gateway has 1 to {MAX_GATEWAY_LANES} shards, not {0}")]
    Shards(usize),
    /// No suite is left.
    #[error("no cipher suite is allowed; allow at least one, and the fixed one if one is fixed")]
    NoSuite,
    /// A laboratory suite without the switch.
    #[error("the suite {0} is for the laboratory: it needs the insecure switch")]
    Laboratory(Suite),
}

/// Which sessions to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// One session.
    Session(SessionId),
    /// All sessions of a user.
    User(UserName),
    /// The sessions of one device of a user.
    Device(UserName, DeviceId),
}

/// The control core of a gateway.
pub struct Gateway {
    config: Config,
    random: Random,
    sessions: Sessions,
    /// Rate limits that sessions share.
    groups: Vec<GroupLimits>,
    /// No login is accepted.
    draining: bool,
    /// Sessions of other gateways, which count for the limit of all.
    elsewhere: usize,
}

impl core::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gateway").field("sessions", &self.sessions.table.len()).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway without sessions. `random` must be unpredictable: tokens come from it.
    ///
    /// # Errors
    /// If the configuration allows no session.
    pub fn new(config: Config, random: Random) -> Result<Self, ConfigError> {
        if !(1..=MAX_GATEWAY_LANES).contains(&config.shards) {
            return Err(ConfigError::Shards(config.shards));
        }
        let laboratory = config.suites.iter().find(|local| local.suite.is_lab_only());
        match laboratory {
            Some(local) if config.lab.is_none() => return Err(ConfigError::Laboratory(local.suite)),
            _ if config.suites.is_empty() => return Err(ConfigError::NoSuite),
            _ => {}
        }
        Ok(Self {
            sessions: Sessions::new(&config),
            config,
            random,
            groups: Vec::new(),
            draining: false,
            elsewhere: 0,
        })
    }

    /// Takes up a session from the store after a restart: it is detached until its client attaches.
    /// Returns whether it was taken; one that is known already, or whose device has a session, is
    /// not. Another session with one of its addresses ends.
    pub fn restore(&mut self, now: Time, record: SessionRecord) -> bool {
        let known = self.sessions.table.by_id(record.id).is_some()
            || self.sessions.table.by_device(&record.user, record.device).is_some();
        if known {
            return false;
        }
        self.sessions.end_holders(record.addresses);
        let flows = Flows::new(random_bytes(&mut self.random));
        let Some(slot) = self.sessions.insert(now, record, flows) else { return false };
        // Its client may wait for what a host was sending when the process before this one ended.
        if let Some(session) = self.sessions.table.get(slot) {
            session.flows.excuse(now);
        }
        true
    }

    /// A shard's data plane saw something.
    pub fn handle_event(&mut self, now: Time, event: Event) {
        self.sessions.handle_event(now, event);
    }

    /// A session's traffic over one shard since the last report, once a second if there is some.
    pub fn handle_activity(&mut self, slot: Slot, activity: Activity) {
        if let Some(session) = self.sessions.table.get_mut(slot) {
            session.activity = session.activity.merge(activity);
        }
    }

    /// A control connection is gone, for whatever reason.
    pub fn connection_lost(&mut self, connection: ConnectionId) {
        self.sessions.table.disconnect(connection);
    }

    /// A message came on a connection whose login or attach is over.
    pub fn handle_message(&mut self, connection: ConnectionId, message: &Message) {
        match (message, self.sessions.table.by_connection(connection)) {
            (Message::Unknown(_), Some(_)) => {}
            (Message::Bye, Some(slot)) => self.sessions.end(slot, Code::Bye, ""),
            _ => {
                self.sessions.close_connection(connection, Code::BadRequest, Code::BadRequest.explanation());
            }
        }
    }

    /// Ends sessions for good: keys are erased, tokens void. Returns how many there were.
    pub fn end(&mut self, which: &Selector, code: Code, text: &str) -> usize {
        let slots = self.slots(which);
        for slot in &slots {
            self.sessions.end(*slot, code, text);
        }
        slots.len()
    }

    /// The sessions that [`Gateway::end`] would end now.
    pub fn selected(&self, which: &Selector) -> impl Iterator<Item = SessionId> {
        let slots = self.slots(which).into_iter();
        slots.filter_map(|slot| Some(self.sessions.table.get(slot)?.record.id))
    }

    fn slots(&self, which: &Selector) -> Vec<Slot> {
        match which {
            Selector::Session(id) => self.sessions.table.by_id(*id).into_iter().collect(),
            Selector::User(user) => self.sessions.table.of_user(user).map(|session| session.slot).collect(),
            Selector::Device(user, device) => {
                self.sessions.table.by_device(user, *device).into_iter().collect()
            }
        }
    }

    /// The gateway goes down: clients get `Close`, keys are erased, sessions stay in the store.
    pub fn shutdown(&mut self) {
        self.close_all(Code::Shutdown);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.sessions.handle_timeout(now);
    }

    /// The sessions that [`Gateway::handle_timeout`] would end now.
    pub fn due_to_end(&self, now: Time) -> impl Iterator<Item = SessionId> {
        self.sessions.due_to_end(now)
    }

    /// The next thing the owner has to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.sessions.effects.pop_front()
    }

    /// When to call [`Gateway::handle_timeout`], and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Time, Reason)> {
        self.sessions.timers.poll_timeout().map(|(at, (_, reason))| (at, reason))
    }

    /// All sessions as an administrator sees them.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> {
        self.sessions.table.iter().map(Session::status)
    }

    /// One session, as an administrator sees it.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<SessionStatus> {
        self.sessions.table.get(self.sessions.table.by_id(id)?).map(Session::status)
    }

    /// The session of a control connection.
    #[must_use]
    pub fn session_of(&self, connection: ConnectionId) -> Option<SessionId> {
        let slot = self.sessions.table.by_connection(connection)?;
        self.sessions.table.get(slot).map(|session| session.record.id)
    }

    /// The peer of a session is at `endpoint` now, which may be known.
    pub fn note_wireguard_endpoint(&mut self, slot: Slot, endpoint: Endpoint) {
        let Some(session) = self.sessions.table.get_mut(slot) else { return };
        let (id, Some(peer)) = (session.record.id, &mut session.wireguard) else { return };
        if peer.endpoint.replace(endpoint) == Some(endpoint) {
            return;
        }
        self.sessions.effects.push_back(Effect::HeardAt { session: id, lane: 0, outer: endpoint.remote });
    }

    /// Two devices have the keys of the session's peer.
    pub fn note_wireguard_two_places(&mut self, now: Time, slot: Slot) {
        if let Some(peer) = self.sessions.table.get_mut(slot).and_then(|session| session.wireguard.as_mut()) {
            peer.two_places = Some(now);
        }
    }

    /// New keys were made for a session.
    pub fn note_wireguard_handshake(&mut self, now: Time, slot: Slot) {
        if let Some(session) = self.sessions.table.get_mut(slot) {
            session.heard = session.heard.max(now);
            if let Some(peer) = &mut session.wireguard {
                peer.handshake = now;
            }
        }
    }

    /// Refuses logins from now on, and notifies the connected clients, again at each call;
    /// `is_shared` says whether other gateways go on with the sessions. Here they go on until they
    /// end or leave: keys are renewed meanwhile.
    pub fn drain(&mut self, is_shared: bool) {
        self.draining = true;
        for connection in self.sessions.table.iter().filter_map(|session| session.connection) {
            let message = Message::Drain(Drain { is_shared });
            self.sessions.effects.push_back(Effect::Send { connection, message });
        }
    }

    /// Lets clients in again.
    pub fn end_drain(&mut self) {
        self.draining = false;
    }

    /// Sessions that are in use: with a connection or with keys.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.sessions.table.iter().filter(|session| !session.is_detached()).count()
    }

    /// Each session, and whether its client is away.
    pub fn absences(&self) -> impl Iterator<Item = (SessionId, bool)> {
        self.sessions.table.iter().map(|session| (session.record.id, session.is_detached()))
    }

    /// Other gateways have this many sessions, which count for the limit of all.
    pub fn set_elsewhere(&mut self, sessions: usize) {
        self.elsewhere = sessions;
    }

    /// Closes all connections with `code` and erases all keys; sessions stay in the store.
    pub fn close_all(&mut self, code: Code) {
        for slot in self.sessions.table.slots() {
            if let Some(session) = self.sessions.remove(slot)
                && let Some(connection) = session.connection
            {
                self.sessions.close_connection(connection, code, code.explanation());
            }
        }
    }

    /// Whether an attach to this session would bring a client back that is away.
    fn is_closed_to(&self, session: &Session) -> bool {
        self.draining && session.is_detached()
    }

    /// Clients that have agreed on it are to keep these addresses from now on (PROTOCOL §5.3);
    /// `None` leaves them what they have. Weights stay if the addresses do.
    pub fn set_renewal(&mut self, renewal: Option<Renewal>) {
        let addresses = |renewal: &Option<Renewal>| renewal.as_ref().map(|renewal| renewal.addresses.clone());
        if addresses(&renewal) == addresses(&self.config.renewal) {
            return;
        }
        self.config.renewal = renewal;
        let sessions = self.sessions.table.iter();
        let connected = sessions.filter_map(|session| Some((session.connection?, session.features)));
        let connected: Vec<_> = connected.collect();
        for (connection, features) in connected {
            self.renew(connection, features);
        }
    }

    /// The addresses that clients are to keep.
    #[must_use]
    pub fn addresses(&self) -> &[Text<259>] {
        self.config.renewal.as_ref().map_or(&[][..], |renewal| &renewal.addresses[..])
    }

    /// The weights of these addresses, in their order, from the next epochs on: all clients at once
    /// would be too many messages for what changes every few seconds.
    pub fn set_weights(&mut self, weights: Option<List<u32, MAX_GATEWAY_ADDRESSES>>) {
        if let Some(renewal) = &mut self.config.renewal {
            renewal.weights = weights;
        }
    }

    /// Sends a client with these features the addresses that it is to keep.
    fn renew(&mut self, connection: ConnectionId, features: u32) {
        if let Some(renewal) = self.config.renewal.clone().filter(|_| features & FEATURE_RENEWAL != 0) {
            self.sessions.send(connection, Message::Renewal(renewal));
        }
    }

    /// These rate limits hold from now on: for each group by its number, and for each session as
    /// `limits_of` has it. No bucket is filled by that: those of a session last as long as it does,
    /// those of a user as long as the user has sessions, those of a group's number always.
    pub fn set_limits(
        &mut self,
        now: Time,
        groups: &[Rates],
        limits_of: impl Fn(SessionId) -> SessionLimits,
    ) {
        self.set_groups(now, groups);
        for slot in self.sessions.table.slots() {
            let Some(session) = self.sessions.table.get_mut(slot) else { continue };
            let limits = limits_of(session.record.id);
            if core::mem::replace(&mut session.record.limits, limits) == limits || !session.open {
                continue;
            }
            let limits = session.limits();
            self.sessions.command_all(|_| Command::Limit { slot, limits: limits.clone() });
        }
    }

    /// A group that is there no more has no limit.
    fn set_groups(&mut self, now: Time, groups: &[Rates]) {
        let shards = self.config.shards;
        let count = groups.len().max(self.groups.len());
        self.groups.resize_with(count, || GroupLimits {
            rates: Rates::default(),
            buckets: Arc::new(Buckets::new(now, shards)),
        });
        for (number, group) in self.groups.iter_mut().enumerate() {
            group.rates = groups.get(number).copied().unwrap_or_default();
        }
        let groups: Arc<[GroupLimits]> = self.groups.clone().into();
        self.sessions.command_all(|_| Command::Groups(Arc::clone(&groups)));
    }
}

#[cfg(test)]
mod tests;
