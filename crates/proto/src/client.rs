//! The client's control core: when to log in, attach, probe, rekey, wait, or give up.
//!
//! One owner calls it; it never waits. Every input may leave [`Action`]s, which the owner carries
//! out in order. The owner makes connections and reports the outcome of each [`Action::Connect`]
//! exactly once, by [`Client::established`], [`Client::refused`] or [`Client::connect_failed`];
//! afterwards, that an established connection is gone by [`Client::connection_lost`].
//!
//! Invariants: at most one connection is being made; at most one current, one pending and one
//! retiring epoch; wrong credentials are never tried twice. This module must not know of sockets,
//! TUN devices, passwords or files.

mod action;
mod batches;
mod epoch;
mod lane_ports;
mod liveness;
mod moving;
mod output;
mod path_mtu;
mod purpose;
mod reconnect;

use core::time::Duration;

use vpnd_crypto::LabPermit;

use crate::attach::Token;
use crate::control::{Code, FEATURE_RENEWAL, Message, Network};
use crate::plane::{Activity, Command, Event, Slot};
use crate::session::{ConnectionId, LocalSuite, Random, SessionId, Timers};
use crate::time::Time;
use crate::wire::MAX_CLIENT_LANES;

pub use action::Action;
use batches::{BATCH_PROBE, Batches};
use epoch::Epochs;
use liveness::Liveness;
use moving::Notices;
use output::Output;
pub use path_mtu::DEFAULT_MTU;
use path_mtu::{PATH_PROBE, PathSearch};
pub use purpose::Purpose;
use reconnect::Attempt;

/// A client's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of its shards, and so of its lanes.
    pub lanes: usize,
    /// The suites it accepts, and how fast this host is with them.
    pub suites: Vec<LocalSuite>,
    /// The features this host understands (PROTOCOL §3.4).
    pub features: u32,
    /// Present if the client was started with the insecure switch.
    pub lab: Option<LabPermit>,
    /// The timers of PROTOCOL §11; the gateway may shorten them.
    pub timers: Timers,
}

/// The error of a configuration with which a client can't start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not 1 to 16 lanes.
    #[error("a client has 1 to {MAX_CLIENT_LANES} lanes, not {0}")]
    Lanes(usize),
    /// No suite, or too many.
    #[error("a client offers 1 to {max} cipher suites, not {0}", max = crate::control::MAX_SUITES)]
    Suites(usize),
}

/// The reason of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A connection is to be tried again.
    Reconnect,
    /// The epoch is old enough to be replaced, if it was used.
    Rekey,
    /// The current epoch has ceased to seal, and is to be erased.
    Expire,
    /// Nothing was received in a new epoch.
    Unconfirmed,
    /// An old epoch's keys are to be erased.
    Retire,
    /// Probes were not answered yet.
    Probe,
    /// A probe of the path's MTU was not answered yet, or another is due.
    PathMtu,
    /// A lane may have been silent for long.
    Keepalive(u8),
}

/// The session that the client has.
#[derive(Debug)]
struct Session {
    id: SessionId,
    token: Token,
    slot: Slot,
    network: Network,
}

/// The control core of a client.
pub struct Client {
    config: Config,
    /// The timers in force: the configuration's, as far as the gateway did not shorten them.
    in_force: Timers,
    random: Random,
    next_connection: u64,
    attempt: Option<Attempt>,
    connection: Option<ConnectionId>,
    /// Attempts that failed since an epoch was confirmed.
    failures: u32,
    /// The last answer was a refusal, which is to be followed by no attempt before then.
    refused_until: Option<Time>,
    /// When the last attempt to log in was over.
    last_login: Option<Time>,
    /// Sessions in a row that the gateway ended soon after their login.
    ended_early: u32,
    /// When the last attempt failed because nothing came back: the network's or the gateway's
    /// fault.
    unanswered_at: Option<Time>,
    /// Another client took the session over; if the token is void too, that is final.
    superseded: bool,
    session: Option<Session>,
    sessions_begun: u32,
    notices: Notices,
    /// Agreed on with the gateway of the connection.
    features: u32,
    epochs: Epochs,
    liveness: Liveness,
    path: PathSearch,
    batches: Batches,
    output: Output,
    over: bool,
}

impl core::fmt::Debug for Client {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Client")
            .field("attempt", &self.attempt.as_ref().map(|attempt| attempt.connection))
            .field("connection", &self.connection)
            .field("session", &self.session.as_ref().map(|session| session.id))
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client that logs in at once.
    ///
    /// # Errors
    /// If the configuration cannot be offered to any gateway.
    pub fn new(config: Config, random: Random) -> Result<Self, ConfigError> {
        if !(1..=MAX_CLIENT_LANES).contains(&config.lanes) {
            return Err(ConfigError::Lanes(config.lanes));
        }
        if !(1..=crate::control::MAX_SUITES).contains(&config.suites.len()) {
            return Err(ConfigError::Suites(config.suites.len()));
        }
        let mut client = Self {
            in_force: config.timers,
            liveness: Liveness::new(config.lanes),
            output: Output::new(config.lanes),
            config,
            random,
            next_connection: 0,
            attempt: None,
            connection: None,
            failures: 0,
            refused_until: None,
            last_login: None,
            ended_early: 0,
            unanswered_at: None,
            superseded: false,
            session: None,
            sessions_begun: 0,
            notices: Notices::default(),
            features: 0,
            epochs: Epochs::default(),
            path: PathSearch::default(),
            batches: Batches::default(),
            over: false,
        };
        client.connect();
        Ok(client)
    }

    /// A message came on an established connection.
    pub fn handle_message(&mut self, now: Time, connection: ConnectionId, message: Message) {
        if self.connection != Some(connection) {
            return;
        }
        match message {
            Message::Wake => {
                if self.epochs.pending.is_none() {
                    self.attach(now);
                }
            }
            Message::Update(update) => {
                if let Some(session) = &mut self.session {
                    // The addresses of a session never change.
                    let Network { ipv4, ipv6, .. } = session.network;
                    session.network = Network { ipv4, ipv6, ..update.network };
                    self.configure(now);
                }
            }
            Message::Close(close) => {
                self.connection = None;
                self.output.disconnect(connection, Code::Bye);
                self.closed(now, Some(close.code), &close.text);
            }
            Message::Drain(notice) => self.leave(now, notice),
            // Otherwise as a message of a later version (PROTOCOL §3.4).
            Message::Renewal(renewal) => {
                if self.features & FEATURE_RENEWAL != 0 {
                    self.output.push(Action::Renew(renewal));
                }
            }
            Message::Unknown(_) => {}
            _ => {
                self.connection = None;
                self.output.disconnect(connection, Code::BadRequest);
                self.retry(now, Duration::ZERO);
            }
        }
    }

    /// A shard's data plane saw something.
    pub fn handle_event(&mut self, now: Time, event: Event) {
        let (Event::Heard { slot, .. }
        | Event::ProbeReply { slot, .. }
        | Event::EpochWanted { slot }
        | Event::PathInUse { slot }
        | Event::PathStated { slot, .. }
        | Event::WireGuardOpened { slot, .. }
        | Event::RekeyDue { slot, .. }
        | Event::EpochExhausted { slot, .. }) = event;
        if self.session.as_ref().is_none_or(|session| session.slot != slot) {
            return;
        }
        match event {
            Event::Heard { epoch, .. } => self.heard(now, epoch),
            Event::ProbeReply { id, .. } if id & (PATH_PROBE | BATCH_PROBE) == PATH_PROBE | BATCH_PROBE => {
                self.batch_answered(id);
            }
            Event::ProbeReply { id, .. } if id & PATH_PROBE != 0 => self.path_answered(now, id),
            Event::ProbeReply { id, .. } => self.answered(now, id),
            Event::EpochWanted { .. } => self.connect_unless_pending(),
            Event::PathInUse { .. } => self.doubt_path(now),
            // Only clients state a size, and none has peers of WireGuard.
            Event::PathStated { .. } | Event::WireGuardOpened { .. } => {}
            Event::RekeyDue { epoch, .. } => {
                if self.epochs.is_newest(epoch) {
                    self.connect_unless_pending();
                }
            }
            Event::EpochExhausted { epoch, .. } => {
                self.erase(epoch);
                self.connect_unless_pending();
            }
        }
    }

    /// The session's traffic over one shard since the last report. Expected a few times a second,
    /// also if there was none: that is how silence is noticed.
    pub fn handle_activity(&mut self, now: Time, shard: usize, activity: Activity) {
        self.liveness.record(shard, activity);
        self.check_silence(now);
        self.check_quiet_lanes(now);
        self.check_overdue(now);
        self.test_batches(now);
    }

    /// Whether the client has ended or given up: nothing is tried any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The machine's addresses or routes changed: the way to the gateway may be another, or gone.
    pub fn network_changed(&mut self, now: Time) {
        self.abandon_attach();
        self.look_for_the_gateway(now);
    }

    /// Time has passed up to `now` in which nothing ran here, as when a laptop sleeps: keys may be
    /// too old, connections forgotten by the gateway, and the network another. A session that was
    /// idle is reachable again soon, too.
    pub fn resumed(&mut self, now: Time) {
        self.abandon_attach();
        // Keys that are too old are gone before the gateway is looked for with them.
        self.handle_timeout(now);
        self.look_for_the_gateway(now);
    }

    /// An attach that was on its way is lost; but a login is left alone, for its user may be
    /// typing.
    fn abandon_attach(&mut self) {
        if let Some(attempt) = self.attempt.take_if(|attempt| !attempt.is_login) {
            self.output.disconnect(attempt.connection, Code::Bye);
        }
    }

    fn look_for_the_gateway(&mut self, now: Time) {
        if self.over {
            return;
        }
        if self.connection.is_some() && self.epochs.is_alive() {
            self.failures = 0;
            self.probe_roaming(now);
            self.path.may_be_another();
            self.check_path(now);
        } else {
            self.path.may_be_another();
            self.hasten(now);
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(reason) = self.output.timers.pop(now) {
            match reason {
                Reason::Reconnect => self.connect(),
                Reason::Rekey => self.rekey_if_used(),
                Reason::Expire => self.rest(),
                Reason::Unconfirmed => self.erase_pending(),
                Reason::Retire => self.erase_retiring(),
                Reason::Probe => self.probe_again(now),
                Reason::PathMtu => self.search_path(now),
                Reason::Keepalive(lane) => self.keep_alive(now, lane),
            }
        }
    }

    /// The user ends the session.
    pub fn quit(&mut self) {
        if self.over {
            return;
        }
        if let Some(connection) = self.connection.take() {
            self.output.push(Action::Send { connection, message: Message::Bye });
            self.output.disconnect(connection, Code::Bye);
        }
        self.end();
    }

    /// The next thing the owner has to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.output.pop()
    }

    /// When to call [`Client::handle_timeout`], and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Time, Reason)> {
        self.output.timers.poll_timeout()
    }

    /// Whether there is a session, a connection, and a confirmed epoch or one that ended because
    /// nothing was sent.
    #[must_use]
    pub fn is_up(&self) -> bool {
        let has_keys = self.epochs.current.is_some() || self.epochs.is_at_rest;
        self.session.is_some() && self.connection.is_some() && has_keys
    }

    /// Whether the tunnel leads somewhere, as far as the client knows: it is up, and the gateway
    /// has been heard since the last attempt to connect to it failed.
    #[must_use]
    pub fn is_within_reach(&self) -> bool {
        self.is_up() && self.unanswered_at.is_none_or(|at| self.liveness.is_heard_since(at))
    }

    /// Whether the tunnel is up, and anything of the gateway's came after `at`.
    #[must_use]
    pub fn is_heard_since(&self, at: Time) -> bool {
        self.is_up() && self.liveness.is_heard_since(at)
    }

    /// The session, if there is one.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        self.session.as_ref().map(|session| session.id)
    }

    fn configure(&mut self, now: Time) {
        self.limit_path(now);
        let Some(session) = &self.session else { return };
        self.output.configure(&session.network);
    }

    /// Erases all keys and forgets the session.
    fn drop_session(&mut self) {
        if let Some(session) = self.session.take() {
            self.output.command_all(|_| Command::Close(session.slot));
        }
        self.superseded = false;
        self.epochs = Epochs::default();
        self.liveness = Liveness::new(self.config.lanes);
        self.path = PathSearch::default();
        self.batches = Batches::default();
        self.output.timers = Default::default();
    }

    fn give_up(&mut self, code: Code, text: &str) {
        self.end();
        self.output.push(Action::GiveUp { code, text: text.to_owned() });
    }

    fn end(&mut self) {
        let attempt = self.attempt.take().map(|attempt| attempt.connection);
        for connection in attempt.into_iter().chain(self.connection.take()) {
            self.output.disconnect(connection, Code::Bye);
        }
        self.drop_session();
        self.over = true;
    }
}

#[cfg(test)]
mod tests;
