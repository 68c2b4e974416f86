//! The control connections of a client: begun at once, later, or not at all (PROTOCOL §5, §11).
//!
//! INVARIANT: at most one is being made and at most one is in use; none is begun once the client is
//! over. A connection's number is never used again.

use core::time::Duration;

use vpnd_crypto::Suite;

use super::backoff::Backoff;
use super::moving::Notices;
use super::{Action, Config, ConfigError, Output, Purpose, Reason, Session};
use crate::control::{Code, Established, List, MAX_SUITES, Offer, SuiteSpeed};
use crate::session::{ConnectionId, LocalSuite, Random, random_bytes, random_index};
use crate::time::Time;
use crate::wire::{Index, MAX_CLIENT_LANES, MAX_GATEWAY_LANES};

/// A connection on its way.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) connection: ConnectionId,
    pub(super) offer: Offer,
    pub(super) is_login: bool,
    /// It leads to another gateway, while the session goes on.
    pub(super) is_move: bool,
}

/// The connection in use, the one that is being made, and what the next one depends on.
pub(super) struct Connections {
    pub(super) config: Config,
    random: Random,
    pub(super) backoff: Backoff,
    pub(super) notices: Notices,
    pub(super) current: Option<ConnectionId>,
    pub(super) attempt: Option<Attempt>,
    next: u64,
    /// The client has ended or given up.
    pub(super) is_over: bool,
}

impl Connections {
    pub(super) fn new(config: Config, random: Random) -> Result<Self, ConfigError> {
        if !(1..=MAX_CLIENT_LANES).contains(&config.lanes) {
            return Err(ConfigError::Lanes(config.lanes));
        }
        if !(1..=MAX_SUITES).contains(&config.suites.len()) {
            return Err(ConfigError::Suites(config.suites.len()));
        }
        let (backoff, notices) = (Backoff::default(), Notices::default());
        let (current, attempt, next, is_over) = (None, None, 0, false);
        Ok(Self { config, random, backoff, notices, current, attempt, next, is_over })
    }

    fn may_begin(&self) -> bool {
        !self.is_over && self.attempt.is_none()
    }

    /// Takes out the attempt with this connection: it is over, by an answer as far as this knows.
    pub(super) fn take_attempt(&mut self, now: Time, connection: ConnectionId) -> Option<Attempt> {
        let attempt = self.attempt.take_if(|attempt| attempt.connection == connection)?;
        self.backoff.answered(now, attempt.is_login);
        Some(attempt)
    }

    /// Takes out the attempt if it is an attach, at this or at another gateway.
    pub(super) fn take_attach(&mut self) -> Option<Attempt> {
        self.attempt.take_if(|attempt| !attempt.is_login)
    }

    fn offer(&mut self, is_used: impl Fn(Index) -> bool) -> Offer {
        let Config { lanes, ref suites, features, lab, .. } = self.config;
        let mut indexes: Vec<u32> = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let taken = |index: Index| indexes.contains(&index.0) || is_used(index);
            let index = random_index(&mut self.random, lane, lanes, taken);
            indexes.push(index.0);
        }
        let suites = suites.iter().map(|local| SuiteSpeed { suite: local.suite.id(), mbps: local.mbps });
        Offer {
            indexes: List::new(indexes).expect("the number of lanes was checked at the start"),
            suites: List::new(suites.collect()).expect("the number of suites was checked at the start"),
            features,
            lab: lab.is_some(),
        }
    }

    /// The suite to use, if the answer fits what was asked.
    pub(super) fn suite(&self, attempt: &Attempt, established: &Established) -> Option<LocalSuite> {
        let suite = Suite::from_id(established.suite)?;
        let local = *self.config.suites.iter().find(|local| local.suite == suite)?;
        let permitted = !suite.is_lab_only() || self.config.lab.is_some();
        let lanes = (1..=MAX_GATEWAY_LANES).contains(&usize::from(established.gateway_lanes))
            && established.indexes.len() == attempt.offer.indexes.len();
        (permitted && lanes).then_some(local)
    }

    /// Ends the client; returns the connections that there were.
    pub(super) fn end(&mut self) -> impl Iterator<Item = ConnectionId> + use<> {
        self.is_over = true;
        let attempt = self.attempt.take().map(|attempt| attempt.connection);
        attempt.into_iter().chain(self.current.take())
    }
}

/// Begins connections for the session that there is, or for one that a login is to make.
pub(super) struct Connector<'c> {
    pub(super) connections: &'c mut Connections,
    pub(super) session: Option<&'c Session>,
    pub(super) output: &'c mut Output,
}

impl Connector<'_> {
    /// Begins a connection, unless one is on its way. Without a session that is a login, so who
    /// calls this has seen to its distance from the one before.
    pub(super) fn connect(&mut self) {
        if self.connections.may_begin() {
            self.output.timers.cancel(Reason::Reconnect);
            self.begin(self.session.map_or(Purpose::Login, |session| session.terms.claim(false)));
        }
    }

    /// Begins one for the session, unless one is on its way or was refused until later.
    pub(super) fn attach(&mut self, now: Time) {
        if self.session.is_some() && !self.connections.backoff.is_refused(now) {
            self.connect();
        }
    }

    pub(super) fn connect_unless_pending(&mut self) {
        let is_pending = self.session.is_some_and(|session| session.epochs.pending.is_some());
        if !is_pending && self.output.timers.get(Reason::Reconnect).is_none() {
            self.connect();
        }
    }

    /// Something happened after which an attempt may succeed where the last one did not: it need
    /// not wait for long. But who was refused until later asks no sooner, and logins are spaced.
    pub(super) fn hasten(&mut self, now: Time) {
        match self.connections.backoff.hasten(now, self.session.is_none()) {
            None => self.connect(),
            Some(_) if !self.connections.may_begin() => {}
            Some(earliest) => {
                let due = self.output.timers.get(Reason::Reconnect);
                self.output.timers.set(Reason::Reconnect, due.map_or(earliest, |due| due.min(earliest)));
            }
        }
    }

    /// The gateway has answered a probe in the data path. Who waits because no connection could be
    /// made tries again soon: keys that grew old meanwhile may last for seconds only.
    pub(super) fn back_in_reach(&mut self, now: Time) {
        let was_unanswered = self.connections.backoff.unanswered_at.take().is_some();
        if was_unanswered && self.output.timers.get(Reason::Reconnect).is_some() {
            self.connections.backoff.failures = 0;
            self.retry(now, Duration::ZERO);
        }
    }

    /// Tries again after an answer: whatever happens meanwhile, it waits at least this long.
    pub(super) fn retry_refused(&mut self, now: Time, at_least: Duration) {
        self.retry(now, at_least);
        self.connections.backoff.refused_until = self.output.timers.get(Reason::Reconnect);
    }

    /// Tries again later, but not before `at_least`.
    pub(super) fn retry(&mut self, now: Time, at_least: Duration) {
        if self.connections.may_begin() {
            let Connections { config, random, backoff, .. } = &mut *self.connections;
            let jitter = 0.5 + f64::from(u16::from_le_bytes(random_bytes(random))) / f64::from(u16::MAX);
            let wait = backoff.fail(&config.timers, jitter, at_least, self.session.is_none());
            self.output.timers.set(Reason::Reconnect, now + wait);
        }
    }

    /// Begins a connection to another gateway, if the notice to leave permits one more.
    pub(super) fn go_elsewhere(&mut self) {
        let Some(session) = self.session.filter(|session| session.epochs.is_up()) else { return };
        if self.connections.current.is_none() || !self.connections.may_begin() {
            return;
        }
        let Some(with_session) = self.connections.notices.take_try() else { return };
        self.begin(if with_session { session.terms.claim(true) } else { Purpose::Move });
    }

    /// Whether `attempt`, which has failed, was a move from a connection that is still there: then
    /// nothing is lost. `code` is the refusal, if there was one.
    pub(super) fn stays(&mut self, attempt: &Attempt, code: Option<Code>) -> bool {
        let stays = attempt.is_move && self.connections.current.is_some();
        if stays && self.connections.notices.failed(attempt.is_login, code) {
            self.go_elsewhere();
        }
        stays
    }

    fn begin(&mut self, purpose: Purpose) {
        let connections = &mut *self.connections;
        let connection = ConnectionId(connections.next);
        connections.next += 1;
        let is_used = |index| self.session.is_some_and(|session| session.epochs.uses(index));
        let offer = connections.offer(is_used);
        let is_login = matches!(purpose, Purpose::Login | Purpose::Move);
        let is_move = purpose.leads_elsewhere();
        connections.attempt = Some(Attempt { connection, offer: offer.clone(), is_login, is_move });
        self.output.push(Action::Connect { connection, purpose, offer });
    }
}
