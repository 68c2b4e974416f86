//! Connections: made, refused, lost, tried again, or given up (PROTOCOL §5, §11).

use core::time::Duration;

use super::{Action, Client, Purpose, Reason};
use crate::control::{Code, List, Offer, SuiteSpeed};
use crate::session::{ConnectionId, random_bytes, random_index};
use crate::time::Time;
use crate::wire::Index;

/// Number of times that the wait doubles for a gateway that answers but has no place: up to 4 s.
/// Places are held for moments, so a longer wait gains nothing; and a refusal costs the gateway
/// little.
const DOUBLINGS_WHILE_FULL: u32 = 3;

/// Whatever happens, a login is no sooner than this after the last one; only the first that fails
/// is tried again earlier.
const LOGIN_SPACING: Duration = Duration::from_secs(1);

/// A session that ends sooner than this after its login did not work: logins after such sessions
/// back off.
const SETTLED: Duration = Duration::from_secs(30);

/// A connection on its way.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) connection: ConnectionId,
    pub(super) offer: Offer,
    pub(super) is_login: bool,
    /// It leads to another gateway, while the session goes on.
    pub(super) is_move: bool,
}

impl Client {
    /// The gateway refused what `connection` asked for.
    pub fn refused(
        &mut self,
        now: Time,
        connection: ConnectionId,
        code: Code,
        text: &str,
        retry_after: Duration,
    ) {
        let Some(attempt) = self.take_attempt(now, connection) else { return };
        self.output.disconnect(connection, Code::Bye);
        if self.stays(&attempt, Some(code)) {
            return;
        }
        match code {
            // The session's own gateway may be back, whatever another one thinks of this client.
            _ if attempt.is_move => self.retry_refused(now, retry_after),
            Code::Token | Code::Lifetime if !attempt.is_login => {
                if self.superseded {
                    self.give_up(Code::Superseded, Code::Superseded.explanation());
                } else {
                    self.log_in_again(now);
                }
            }
            _ if code.is_final() => self.give_up(code, text),
            _ => self.retry_refused(now, retry_after),
        }
    }

    /// No connection could be made, or it broke before an answer came.
    pub fn connect_failed(&mut self, now: Time, connection: ConnectionId) {
        let Some(attempt) = self.take_attempt(now, connection) else { return };
        if !self.stays(&attempt, None) {
            self.epochs.is_at_rest = false;
            self.unanswered_at = Some(now);
            self.retry(now, Duration::ZERO);
        }
    }

    /// The gateway has answered a probe in the data path. Who waits because no connection could be
    /// made tries again soon: keys that grew old meanwhile may last for seconds only.
    pub(super) fn back_in_reach(&mut self, now: Time) {
        let was_unanswered = self.unanswered_at.take().is_some();
        if was_unanswered && self.output.timers.get(Reason::Reconnect).is_some() {
            self.failures = 0;
            self.retry(now, Duration::ZERO);
        }
    }

    /// The gateway answered that it has no place for a connection now, as when all its clients come
    /// back at once.
    pub fn turned_away(&mut self, now: Time, connection: ConnectionId) {
        let Some(attempt) = self.take_attempt(now, connection) else { return };
        if !self.stays(&attempt, None) {
            self.failures = self.failures.min(DOUBLINGS_WHILE_FULL);
            self.retry_refused(now, Duration::ZERO);
        }
    }

    /// An established connection is gone; `code` is the gateway's application close code, if it
    /// closed it.
    pub fn connection_lost(&mut self, now: Time, connection: ConnectionId, code: Option<Code>) {
        if self.connection == Some(connection) {
            self.connection = None;
            self.closed(now, code, "");
        }
    }

    /// The attempt with this connection is over, by an answer as far as this knows.
    pub(super) fn take_attempt(&mut self, now: Time, connection: ConnectionId) -> Option<Attempt> {
        let attempt = self.attempt.take_if(|attempt| attempt.connection == connection)?;
        self.unanswered_at = None;
        self.refused_until = None;
        if attempt.is_login {
            self.last_login = Some(now);
        }
        Some(attempt)
    }

    /// Something happened after which an attempt may succeed where the last one did not: it need
    /// not wait for long. But a gateway that has refused is asked no sooner for it, and logins keep
    /// their distance.
    pub(super) fn hasten(&mut self, now: Time) {
        if self.refused_until.is_none() {
            self.failures = self.failures.min(u32::from(self.session.is_none()));
        }
        let last_login = self.last_login.filter(|_| self.session.is_none());
        let spaced = last_login.map(|last| last + LOGIN_SPACING);
        match spaced.max(self.refused_until).filter(|earliest| *earliest > now) {
            None => self.connect(),
            Some(_) if self.over || self.attempt.is_some() => {}
            Some(earliest) => {
                let due = self.output.timers.get(Reason::Reconnect);
                self.output.timers.set(Reason::Reconnect, due.map_or(earliest, |due| due.min(earliest)));
            }
        }
    }

    pub(super) fn connect_unless_pending(&mut self) {
        if self.epochs.pending.is_none() && self.output.timers.get(Reason::Reconnect).is_none() {
            self.connect();
        }
    }

    /// Starts a connection for the session that there is, unless one is on its way or the gateway
    /// has refused one until later.
    pub(super) fn attach(&mut self, now: Time) {
        if self.session.is_some() && self.refused_until.is_none_or(|until| until <= now) {
            self.connect();
        }
    }

    /// Starts a connection, unless one is on its way. Without a session that is a login, so who
    /// calls this has seen to its distance from the one before.
    pub(super) fn connect(&mut self) {
        if self.over || self.attempt.is_some() {
            return;
        }
        self.output.timers.cancel(Reason::Reconnect);
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let purpose = self.session.as_ref().map_or(Purpose::Login, |session| Purpose::Attach {
            session: session.id,
            token: session.token.clone(),
        });
        let offer = self.make_offer();
        let is_login = purpose == Purpose::Login;
        self.attempt = Some(Attempt { connection, offer: offer.clone(), is_login, is_move: false });
        self.output.push(Action::Connect { connection, purpose, offer });
    }

    pub(super) fn make_offer(&mut self) -> Offer {
        let lanes = self.config.lanes;
        let mut indexes: Vec<u32> = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let taken = |index: Index| indexes.contains(&index.0) || self.epochs.uses(index);
            let index = random_index(&mut self.random, lane, lanes, taken);
            indexes.push(index.0);
        }
        let suites = self.config.suites.iter();
        let suites = suites.map(|local| SuiteSpeed { suite: local.suite.id(), mbps: local.mbps }).collect();
        Offer {
            indexes: List::new(indexes).expect("the number of lanes was checked at the start"),
            suites: List::new(suites).expect("the number of suites was checked at the start"),
            features: self.config.features,
            lab: self.config.lab.is_some(),
        }
    }

    /// The gateway, or fate, closed the connection in use.
    pub(super) fn closed(&mut self, now: Time, code: Option<Code>, text: &str) {
        match code {
            // The next messages of a session that was good may be understood again.
            Some(Code::BadRequest) => self.retry(now, Duration::ZERO),
            Some(code) if code.is_final() => {
                self.give_up(code, if text.is_empty() { code.explanation() } else { text });
            }
            Some(Code::Lifetime | Code::Token) => self.log_in_again(now),
            // With an attach under way, it was that one that took over.
            Some(Code::Superseded) if self.attempt.is_none() => {
                self.superseded = true;
                self.attach(now);
            }
            Some(Code::Shutdown | Code::Busy | Code::Internal) => self.retry(now, Duration::ZERO),
            _ if self.failures == 0 => self.attach(now),
            _ => self.retry(now, Duration::ZERO),
        }
    }

    /// Logs in for a session that the gateway has ended: at once after one that worked for a while,
    /// and after the first that did not. Further logins back off, because each may reach a
    /// directory that locks accounts.
    fn log_in_again(&mut self, now: Time) {
        self.drop_session();
        // The connection is that of the session that is over: nothing that still comes on it may
        // lead to another login.
        if let Some(connection) = self.connection.take() {
            self.output.disconnect(connection, Code::Bye);
        }
        let worked = self.last_login.is_none_or(|login| now.since(login) >= SETTLED);
        self.ended_early = if worked { 0 } else { self.ended_early.saturating_add(1) };
        if self.ended_early <= 1 {
            self.connect();
        } else {
            self.failures = self.failures.max(self.ended_early);
            self.retry_refused(now, Duration::ZERO);
        }
    }

    /// Tries again after an answer: whatever happens meanwhile, it waits at least this long.
    fn retry_refused(&mut self, now: Time, at_least: Duration) {
        self.retry(now, at_least);
        self.refused_until = self.output.timers.get(Reason::Reconnect);
    }

    /// Tries again later: after a time that doubles, with jitter, but not before `at_least`. That
    /// is stretched by up to double, too: a gateway says the same to all whom it has no time for,
    /// and they must not come back together.
    pub(super) fn retry(&mut self, now: Time, at_least: Duration) {
        if self.over || self.attempt.is_some() {
            return;
        }
        let doublings = self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let timers = &self.config.timers;
        let base = (timers.reconnect_first * (1 << doublings)).min(timers.reconnect_max);
        let jitter =
            0.5 + f64::from(u16::from_le_bytes(random_bytes(&mut self.random))) / f64::from(u16::MAX);
        let mut wait = base.mul_f64(jitter).max(at_least.mul_f64(0.5 + jitter));
        if self.session.is_none() && doublings > 0 {
            wait = wait.max(LOGIN_SPACING);
        }
        self.output.timers.set(Reason::Reconnect, now + wait);
    }
}
