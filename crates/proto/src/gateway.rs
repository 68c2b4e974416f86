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
mod drain;
mod epoch;
pub mod handover;
mod indexes;
mod limits;
mod profiles;
mod renewal;
mod session;
mod table;
mod wireguard;

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;

use vpnd_crypto::{LabPermit, Suite};

use crate::control::{Close, Code, Explanation, Message, Renewal, UserName};
use crate::flows::Flows;
use crate::plane::{Activity, Command, Event, GroupLimits, Slot};
use crate::session::{ConnectionId, DeviceId, LocalSuite, Random, SessionId, Timers, random_bytes};
use crate::time::Time;
use crate::timer::TimerQueue;
use crate::wire::MAX_GATEWAY_LANES;

pub use admission::{Authenticated, Claim};
use indexes::Indexes;
pub use profiles::{ProfileSettings, Profiles};
pub use session::{Addresses, SessionRecord, SessionStatus};
use table::{SessionTaken, Table};

/// A gateway's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of shards that carry data; each is a lane of every session.
    pub shards: usize,
    /// The suites that are allowed, and how fast this host is with them. Of equally fast ones, the
    /// first is taken.
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

/// A task for the owner; they are to be carried out in order.
#[derive(Debug)]
pub enum Effect {
    /// Give a command to a shard.
    Command {
        /// Which shard.
        shard: usize,
        /// The command.
        command: Command,
    },
    /// Send a message on a control connection.
    Send {
        /// Which connection.
        connection: ConnectionId,
        /// The message.
        message: Message,
    },
    /// Close a control connection, once what was sent on it is on its way.
    CloseConnection {
        /// Which connection.
        connection: ConnectionId,
        /// The application close code.
        code: Code,
    },
    /// Store the session; must be durable before a later `Send` goes out.
    Persist(SessionRecord),
    /// Remove the session from the store; must be durable before a later `Send` goes out.
    Forget(SessionId),
    /// A lane of the session's client is heard from this outer address, which may be known. For the
    /// audit file.
    HeardAt {
        /// Which session.
        session: SessionId,
        /// The client's lane.
        lane: u8,
        /// From where.
        outer: SocketAddr,
    },
    /// The session is over; its addresses are free. For log and audit file.
    Ended(EndedSession),
}

/// A session that is over.
#[derive(Clone, Debug)]
pub struct EndedSession {
    /// Which session.
    pub session: SessionId,
    /// Its user.
    pub user: UserName,
    /// Its inner addresses.
    pub addresses: Addresses,
    /// Why.
    pub code: Code,
    /// When it began, or was restored after a restart.
    pub since: Time,
    /// Its traffic, as far as shards have reported it.
    pub activity: Activity,
}

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

/// The control core of a gateway.
pub struct Gateway {
    config: Config,
    random: Random,
    table: Table,
    /// Indexes of all epochs that are alive.
    indexes: Indexes,
    timers: TimerQueue<(Slot, Reason)>,
    effects: VecDeque<Effect>,
    /// Rate limits that sessions share.
    groups: Vec<GroupLimits>,
    /// No login is accepted.
    draining: bool,
    /// Sessions of other gateways, which count for the limit of all.
    elsewhere: usize,
}

impl core::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gateway").field("sessions", &self.table.len()).finish_non_exhaustive()
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
            indexes: Indexes::new(config.shards),
            config,
            random,
            table: Table::default(),
            timers: TimerQueue::new(),
            effects: VecDeque::new(),
            groups: Vec::new(),
            draining: false,
            elsewhere: 0,
        })
    }

    /// Takes up a session from the store after a restart: it is detached until its client attaches.
    /// Returns whether it was taken; one that is known already, or whose device has a session, is
    /// not. Another session with one of its addresses ends.
    pub fn restore(&mut self, now: Time, record: SessionRecord) -> bool {
        let known = self.table.by_id(record.id).is_some()
            || self.table.by_device(&record.user, record.device).is_some();
        if known {
            return false;
        }
        self.end_holders(record.addresses);
        let Ok(slot) = self.insert(now, record) else { return false };
        // Its client may wait for what a host was sending when the process before this one ended.
        if let Some(session) = self.table.get(slot) {
            session.flows.excuse(now);
        }
        true
    }

    /// A shard's data plane saw something.
    pub fn handle_event(&mut self, now: Time, event: Event) {
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
                self.erase(slot, epoch);
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

    /// A session's traffic over one shard since the last report; expected about once a second while
    /// there is some.
    pub fn handle_activity(&mut self, slot: Slot, activity: Activity) {
        if let Some(session) = self.table.get_mut(slot) {
            session.activity = session.activity.merge(activity);
        }
    }

    /// A control connection is gone, for whatever reason.
    pub fn connection_lost(&mut self, connection: ConnectionId) {
        self.table.disconnect(connection);
    }

    /// A message came on a connection whose login or attach is over.
    pub fn handle_message(&mut self, connection: ConnectionId, message: &Message) {
        match (message, self.table.by_connection(connection)) {
            (Message::Unknown(_), Some(_)) => {}
            (Message::Bye, Some(slot)) => self.end_session(slot, Code::Bye, ""),
            _ => {
                self.close_connection(connection, Code::BadRequest, Code::BadRequest.explanation());
            }
        }
    }

    /// Ends sessions for good: their keys are erased, their tokens void. Returns how many there
    /// were.
    pub fn end(&mut self, which: &Selector, code: Code, text: &str) -> usize {
        let slots = self.slots(which);
        for slot in &slots {
            self.end_session(*slot, code, text);
        }
        slots.len()
    }

    /// The sessions that [`Gateway::end`] would end now.
    pub fn selected(&self, which: &Selector) -> impl Iterator<Item = SessionId> {
        let slots = self.slots(which).into_iter();
        slots.filter_map(|slot| Some(self.table.get(slot)?.record.id))
    }

    fn slots(&self, which: &Selector) -> Vec<Slot> {
        match which {
            Selector::Session(id) => self.table.by_id(*id).into_iter().collect(),
            Selector::User(user) => self.table.of_user(user).map(|session| session.slot).collect(),
            Selector::Device(user, device) => self.table.by_device(user, *device).into_iter().collect(),
        }
    }

    /// The gateway goes down: clients get `Close`, keys are erased; sessions stay in the store, to
    /// be attached to later.
    pub fn shutdown(&mut self) {
        self.close_all(Code::Shutdown);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((slot, reason)) = self.timers.pop(now) {
            match reason {
                Reason::Unconfirmed => self.erase_pending(slot),
                Reason::Retire => self.erase_retiring(slot),
                Reason::Expire => self.erase_current(slot),
                Reason::Wake => self.wake(now, slot),
                Reason::DeadPeer => self.check_dead(now, slot),
                Reason::Idle => self.check_idle(now, slot),
                Reason::Lifetime => self.end_session(slot, Code::Lifetime, Code::Lifetime.explanation()),
            }
        }
    }

    /// The sessions that [`Gateway::handle_timeout`] would end now.
    pub fn due_to_end(&self, now: Time) -> impl Iterator<Item = SessionId> {
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

    /// The next thing the owner has to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to call [`Gateway::handle_timeout`], and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Time, Reason)> {
        self.timers.poll_timeout().map(|(at, (_, reason))| (at, reason))
    }

    /// All sessions as an administrator sees them.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> {
        self.table.iter().map(session::Session::status)
    }

    /// One session, as an administrator sees it.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<SessionStatus> {
        self.table.get(self.table.by_id(id)?).map(session::Session::status)
    }

    /// The session of a control connection.
    #[must_use]
    pub fn session_of(&self, connection: ConnectionId) -> Option<SessionId> {
        let slot = self.table.by_connection(connection)?;
        self.table.get(slot).map(|session| session.record.id)
    }

    /// Ends the sessions that have one of these addresses, which were leased to another one: their
    /// own leases are over.
    fn end_holders(&mut self, addresses: Addresses) {
        while let Some(slot) = self.table.by_address(addresses) {
            self.end_session(
                slot,
                Code::Token,
                "the session's inner addresses are leased to another one; log in again",
            );
        }
    }

    fn insert(&mut self, now: Time, record: SessionRecord) -> Result<Slot, SessionTaken> {
        let (deadline, idle) = (record.deadline, self.idle_timeout(&record));
        let flows = Flows::new(random_bytes(&mut self.random));
        let slot = self.table.insert(now, self.config.shards, record, flows)?;
        self.timers.set((slot, Reason::Lifetime), deadline);
        if let Some(idle) = idle {
            self.timers.set((slot, Reason::Idle), now + idle);
        }
        Ok(slot)
    }

    fn close_connection(&mut self, connection: ConnectionId, code: Code, text: &str) {
        self.table.disconnect(connection);
        if code != Code::Bye {
            let message = Message::Close(Close { code, text: Explanation::cut(text) });
            self.effects.push_back(Effect::Send { connection, message });
        }
        self.effects.push_back(Effect::CloseConnection { connection, code });
    }

    /// The order is: no packet passes any more, that is durable, the client gets `Close`.
    fn end_session(&mut self, slot: Slot, code: Code, text: &str) {
        let Some(session) = self.remove(slot) else { return };
        self.effects.push_back(Effect::Forget(session.record.id));
        if let Some(connection) = session.connection {
            self.close_connection(connection, code, text);
        }
        let session::Session { record, since, activity, .. } = *session;
        let SessionRecord { id, user, addresses, .. } = record;
        let ended = EndedSession { session: id, user, addresses, code, since, activity };
        self.effects.push_back(Effect::Ended(ended));
    }

    /// Takes the session out of the table and of all shards.
    fn remove(&mut self, slot: Slot) -> Option<Box<session::Session>> {
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

    fn command_all(&mut self, command: impl Fn(usize) -> Command) {
        for shard in 0..self.config.shards {
            let command = command(shard);
            self.effects.push_back(Effect::Command { shard, command });
        }
    }

    /// The shorter one of the gateway's and the session's own.
    fn idle_timeout(&self, record: &SessionRecord) -> Option<Duration> {
        [self.config.idle_timeout, record.idle_timeout].into_iter().flatten().min()
    }

    fn check_idle(&mut self, now: Time, slot: Slot) {
        let Some(session) = self.table.get(slot) else { return };
        let Some(until) = self.idle_until(session) else { return };
        if until <= now {
            self.end_session(slot, Code::Idle, Code::Idle.explanation());
        } else {
            self.timers.set((slot, Reason::Idle), until);
        }
    }

    /// When the session ends unless its client uses it until then.
    fn idle_until(&self, session: &session::Session) -> Option<Time> {
        self.idle_timeout(&session.record).map(|idle| session.last_used() + idle)
    }
}

#[cfg(test)]
mod tests;
