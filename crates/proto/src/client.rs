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
mod backoff;
mod batches;
mod connections;
mod epoch;
mod lane_ports;
mod liveness;
mod moving;
mod output;
mod path_mtu;
mod session;

use core::time::Duration;

use vpnd_crypto::{EpochSecret, LabPermit};

use crate::control::{Code, Established, FEATURE_RENEWAL, MAX_SUITES, Message};
use crate::plane::{Activity, Command, Endpoint, Event, Slot};
use crate::session::{ConnectionId, LocalSuite, Random, SessionId, Timers};
use crate::time::Time;
use crate::wire::MAX_CLIENT_LANES;

pub use action::{Action, Purpose};
use connections::{Connections, Connector};
use output::Output;
pub use output::Reason;
pub use path_mtu::DEFAULT_MTU;
use session::{Finding, Session, Terms};

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
    #[error("a client offers 1 to {MAX_SUITES} cipher suites, not {0}")]
    Suites(usize),
}

/// The control core of a client.
pub struct Client {
    connections: Connections,
    session: Option<Session>,
    sessions_begun: u32,
    output: Output,
}

impl core::fmt::Debug for Client {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Client")
            .field("attempt", &self.connections.attempt.as_ref().map(|attempt| attempt.connection))
            .field("connection", &self.connections.current)
            .field("session", &self.session())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client that logs in at once.
    ///
    /// # Errors
    /// If the configuration cannot be offered to any gateway.
    pub fn new(config: Config, random: Random) -> Result<Self, ConfigError> {
        let output = Output::new(config.lanes);
        let mut client =
            Self { connections: Connections::new(config, random)?, session: None, sessions_begun: 0, output };
        client.connector().connect();
        Ok(client)
    }

    fn connector(&mut self) -> Connector<'_> {
        let Self { connections, session, output, .. } = self;
        Connector { connections, session: session.as_ref(), output }
    }

    /// A message came on an established connection.
    pub fn handle_message(&mut self, now: Time, connection: ConnectionId, message: Message) {
        if self.connections.current != Some(connection) {
            return;
        }
        match message {
            Message::Wake if self.is_epoch_pending() => {}
            Message::Wake => self.connector().attach(now),
            Message::Update(update) => {
                if let Some(session) = &mut self.session {
                    session.update(now, update.network, &mut self.output);
                }
            }
            Message::Close(close) => {
                self.connections.current = None;
                self.output.disconnect(connection, Code::Bye);
                self.closed(now, Some(close.code), &close.text);
            }
            Message::Drain(notice) => {
                if self.connections.notices.follow(now, &notice) {
                    self.connector().go_elsewhere();
                }
            }
            // Otherwise as a message of a later version (PROTOCOL §3.4).
            Message::Renewal(renewal) => {
                let features = self.session.as_ref().map_or(0, |session| session.terms.features);
                if features & FEATURE_RENEWAL != 0 {
                    self.output.push(Action::Renew(renewal));
                }
            }
            Message::Unknown(_) => {}
            _ => {
                self.connections.current = None;
                self.output.disconnect(connection, Code::BadRequest);
                self.connector().retry(now, Duration::ZERO);
            }
        }
    }

    /// A shard's data plane saw something.
    pub fn handle_event(&mut self, now: Time, event: Event) {
        self.advance(now, |session, output| session.handle_event(now, event, output));
    }

    /// The session's traffic over one shard since the last report. Expected a few times a second,
    /// also if there was none: that is how silence is noticed.
    pub fn handle_activity(&mut self, now: Time, shard: usize, activity: Activity) {
        self.advance(now, |session, output| {
            session.liveness.record(shard, activity);
            session.check_traffic(now, output)
        });
        if let Some(session) = &mut self.session {
            session.test_batches(now, &mut self.output);
        }
    }

    /// Packets have flowed, and none does any more. Asks once whether the way is still open: a peer
    /// that waits for what is lost on its way here sends nothing.
    pub fn check_way(&mut self, now: Time) {
        if let Some(session) = &mut self.session {
            session.check_way(now, &mut self.output);
        }
    }

    /// Has the session, if there is one, take a step, and makes the connection that this calls for.
    fn advance(&mut self, now: Time, step: impl FnOnce(&mut Session, &mut Output) -> Option<Finding>) {
        let Some(session) = &mut self.session else { return };
        match step(session, &mut self.output) {
            None => {}
            Some(Finding::Confirmed) => self.connections.backoff.failures = 0,
            Some(Finding::Answered) => self.connector().back_in_reach(now),
            // A wait that began in the network before means nothing in this one.
            Some(Finding::InDoubt { has_moved: true }) if !self.is_epoch_pending() => {
                self.connector().hasten(now)
            }
            Some(Finding::EpochWanted | Finding::InDoubt { .. }) => self.connector().connect_unless_pending(),
            // A new connection finds out whether the gateway is there at all. Not at once if the
            // last epoch came to nothing too.
            Some(Finding::Unanswered) => self.connector().attach(now),
            Some(Finding::EpochFailed) => self.connector().retry(now, Duration::ZERO),
        }
    }

    /// Whether the client has ended or given up: nothing is tried any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.connections.is_over
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

    /// Makes a connection at once, for the session to go another way.
    pub fn change_way(&mut self, now: Time) {
        self.abandon_attach();
        if let Some(session) = &mut self.session {
            self.output.retire(session.terms.slot, session.epochs.pending.take());
        }
        self.connector().attach(now);
    }

    /// An attach that was on its way is lost; a login is left alone, for its user may be typing.
    fn abandon_attach(&mut self) {
        if let Some(attempt) = self.connections.take_attach() {
            self.output.disconnect(attempt.connection, Code::Bye);
        }
    }

    fn look_for_the_gateway(&mut self, now: Time) {
        if self.is_over() {
            return;
        }
        let is_connected = self.connections.current.is_some();
        let session = self.session.as_mut();
        if session.is_some_and(|session| session.roam(now, is_connected, &mut self.output)) {
            self.connections.backoff.failures = 0;
        } else {
            self.connector().hasten(now);
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(reason) = self.output.timers.pop(now) {
            match reason {
                Reason::Reconnect => self.connector().connect(),
                Reason::Expire => self.rest(),
                reason => self.advance(now, |session, output| session.handle_timer(now, reason, output)),
            }
        }
    }

    /// The epoch is over. It was idle, if another one is neither on its way nor waited for.
    fn rest(&mut self) {
        let is_waiting = self.is_epoch_pending() || self.output.timers.get(Reason::Reconnect).is_some();
        let is_at_rest = self.is_up() && self.connections.attempt.is_none() && !is_waiting;
        if let Some(Session { terms, epochs, .. }) = &mut self.session {
            epochs.is_at_rest = is_at_rest;
            self.output.retire(terms.slot, epochs.current.take());
        }
    }

    /// The user ends the session.
    pub fn quit(&mut self) {
        if self.is_over() {
            return;
        }
        if let Some(connection) = self.connections.current.take() {
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

    /// Whether there are a session, a connection, and an epoch that is confirmed or ended unused.
    #[must_use]
    pub fn is_up(&self) -> bool {
        let is_connected = self.connections.current.is_some();
        is_connected && self.session.as_ref().is_some_and(|session| session.epochs.is_up())
    }

    /// Whether the tunnel leads somewhere, as far as the client knows: it is up, and the gateway
    /// has been heard since the last attempt to connect to it failed.
    #[must_use]
    pub fn is_within_reach(&self) -> bool {
        self.is_up() && self.connections.backoff.unanswered_at.is_none_or(|at| self.is_heard_since(at))
    }

    /// Whether the tunnel is up, and anything of the gateway's came after `at`.
    #[must_use]
    pub fn is_heard_since(&self, at: Time) -> bool {
        self.is_up() && self.session.as_ref().is_some_and(|session| session.liveness.is_heard_since(at))
    }

    /// Whether the gateway left probes unanswered: it may be down, or at another address.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.liveness.in_doubt)
    }

    /// The session, if there is one.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        self.session.as_ref().map(|session| session.terms.granted.session)
    }

    fn is_epoch_pending(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.epochs.pending.is_some())
    }

    /// The gateway at this address granted what `connection` asked for; its exporter gave `secret`.
    pub fn established(
        &mut self,
        now: Time,
        connection: ConnectionId,
        established: &Established,
        secret: EpochSecret,
        gateway: Endpoint,
    ) {
        let Some(attempt) = self.connections.take_attempt(now, connection) else {
            self.output.disconnect(connection, Code::Bye);
            return;
        };
        let is_expected = attempt.is_login
            || self.session.as_ref().is_some_and(|session| session.is_continued_by(established));
        let suite = self.connections.suite(&attempt, established).filter(|_| is_expected);
        let Some(suite) = suite else {
            self.output.disconnect(connection, Code::BadRequest);
            self.connector().retry(now, Duration::ZERO);
            return;
        };
        if let Some(before) = self.connections.current.replace(connection) {
            // A login elsewhere leaves the old session behind; an attach takes it along.
            let is_over = attempt.is_move && attempt.is_login;
            let code = if is_over { Code::Bye } else { Code::Superseded };
            if is_over {
                self.output.push(Action::Send { connection: before, message: Message::Bye });
            }
            self.output.disconnect(before, code);
        }
        self.output.timers.cancel(Reason::Reconnect);
        let slot = Slot { index: 0, generation: self.sessions_begun + 1 };
        let terms = Terms::new(slot, established.clone(), suite, &self.connections.config, gateway);
        let mut session = match self.session.take_if(|session| session.may_go_on(&terms)) {
            Some(session) => session.go_on(terms),
            None => {
                self.drop_session();
                self.sessions_begun += 1;
                Session::new(now, terms, &mut self.output)
            }
        };
        session.enter(now, &attempt.offer, secret, &mut self.output);
        self.session = Some(session);
    }

    /// The gateway refused what `connection` asked for.
    pub fn refused(
        &mut self,
        now: Time,
        connection: ConnectionId,
        code: Code,
        text: &str,
        retry_after: Duration,
    ) {
        let Some(attempt) = self.connections.take_attempt(now, connection) else { return };
        self.output.disconnect(connection, Code::Bye);
        if self.connector().stays(&attempt, Some(code)) {
            return;
        }
        match code {
            // The session's own gateway may be back, whatever another one thinks of this client.
            _ if attempt.is_move => self.connector().retry_refused(now, retry_after),
            Code::Token | Code::Lifetime if !attempt.is_login => {
                if self.session.as_ref().is_some_and(|session| session.is_superseded) {
                    self.give_up(Code::Superseded, Code::Superseded.explanation());
                } else {
                    self.log_in_again(now);
                }
            }
            _ if code.is_final() => self.give_up(code, text),
            _ => self.connector().retry_refused(now, retry_after),
        }
    }

    /// No connection could be made, or it broke before an answer came.
    pub fn connect_failed(&mut self, now: Time, connection: ConnectionId) {
        let Some(attempt) = self.connections.take_attempt(now, connection) else { return };
        if !self.connector().stays(&attempt, None) {
            if let Some(session) = &mut self.session {
                session.epochs.is_at_rest = false;
            }
            self.connections.backoff.unanswered_at = Some(now);
            self.connector().retry(now, Duration::ZERO);
        }
    }

    /// The gateway has no place for a connection now, as when all its clients come back at once.
    pub fn turned_away(&mut self, now: Time, connection: ConnectionId) {
        let Some(attempt) = self.connections.take_attempt(now, connection) else { return };
        if !self.connector().stays(&attempt, None) {
            self.connections.backoff.turned_away();
            self.connector().retry_refused(now, Duration::ZERO);
        }
    }

    /// An established connection is gone; `code` is that with which the gateway closed it, if so.
    pub fn connection_lost(&mut self, now: Time, connection: ConnectionId, code: Option<Code>) {
        if self.connections.current == Some(connection) {
            self.connections.current = None;
            self.closed(now, code, "");
        }
    }

    /// The gateway, or fate, closed the connection in use.
    fn closed(&mut self, now: Time, code: Option<Code>, text: &str) {
        match code {
            // The next messages of a session that was good may be understood again.
            Some(Code::BadRequest) => self.connector().retry(now, Duration::ZERO),
            Some(code) if code.is_final() => {
                self.give_up(code, if text.is_empty() { code.explanation() } else { text });
            }
            Some(Code::Lifetime | Code::Token) => self.log_in_again(now),
            // With an attach under way, it was that one that took over.
            Some(Code::Superseded) if self.connections.attempt.is_none() => {
                self.session.iter_mut().for_each(|session| session.is_superseded = true);
                self.connector().attach(now);
            }
            Some(Code::Shutdown | Code::Busy | Code::Internal) => self.connector().retry(now, Duration::ZERO),
            _ if self.connections.backoff.failures > 0 => self.connector().retry(now, Duration::ZERO),
            _ => self.connector().attach(now),
        }
    }

    /// Logs in for a session that the gateway has ended.
    fn log_in_again(&mut self, now: Time) {
        self.drop_session();
        // It is that of the session that is over: what still comes on it may lead to no login.
        if let Some(connection) = self.connections.current.take() {
            self.output.disconnect(connection, Code::Bye);
        }
        if self.connections.backoff.session_ended(now) {
            self.connector().connect();
        } else {
            self.connector().retry_refused(now, Duration::ZERO);
        }
    }

    /// Erases all keys and forgets the session.
    fn drop_session(&mut self) {
        if let Some(session) = self.session.take() {
            self.output.command_all(|_| Command::Close(session.terms.slot));
        }
        self.output.timers = Default::default();
    }

    fn give_up(&mut self, code: Code, text: &str) {
        self.end();
        self.output.push(Action::GiveUp { code, text: text.to_owned() });
    }

    fn end(&mut self) {
        for connection in self.connections.end() {
            self.output.disconnect(connection, Code::Bye);
        }
        self.drop_session();
    }
}

#[cfg(test)]
mod tests;
