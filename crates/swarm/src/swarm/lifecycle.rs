//! The sessions of a soak test: the actions that each takes, and what happens to it without one.
//!
//! INVARIANT: a client that did not leave must neither be thrown out, nor have to use its password
//! again, nor go without an answer for long. Each of these is reported as unexplained.

use std::net::SocketAddr;
use std::time::Duration;

use vpnd_control_channel::quic::client_socket;
use vpnd_crypto::{DeviceKey, Secret};
use vpnd_proto::control::Code;
use vpnd_proto::session::ConnectionId;
use vpnd_proto::time::Time;

use super::{SOCKETS, Swarm, SwarmError, bind, local, now};
use crate::churn::{self, Action, Churn, Counts};
use crate::member::Member;
use crate::message::{KeySource, Report};
use crate::now_ns;

/// A session that logs in is missed after this time: longer than a gateway takes to check a
/// process's passwords.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(120);
/// A session whose packets are not answered for this long is cut off, whatever moved.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// A process that did nothing for this long was stopped, or the whole machine was.
const STALL: Duration = Duration::from_secs(5);
/// Time after a stall in which ends of sessions are attributed to it: connections time out within a
/// minute.
const STALL_RECOVERY: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug)]
pub(super) struct Lifecycle {
    /// The socket that it sends from.
    pub(super) socket: usize,
    /// The gateway that has granted its keys, or is the first to be asked for some.
    pub(super) gateway: SocketAddr,
    state: State,
    /// When a packet last came back, or was first missed.
    answered: Time,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// It logs in, since then.
    LoggingIn(Time),
    /// It has keys that work.
    Up,
    /// It left, and comes back then.
    Away(Time),
    /// It was reported, and is left alone.
    Gone,
}

impl Lifecycle {
    pub(super) fn new(socket: usize, gateway: SocketAddr, now: Time) -> Self {
        Self { socket, gateway, state: State::LoggingIn(now), answered: now }
    }
}

pub(super) struct Churning {
    churn: Option<Churn>,
    pub(super) counts: Counts,
    /// The last tick: once a second, unless the process stood still.
    ticked: Time,
    /// When the process last stood still, and for how long.
    stall: Option<(Time, Duration)>,
}

impl Churning {
    pub(super) fn none() -> Self {
        Self { churn: None, counts: Counts::default(), ticked: now(), stall: None }
    }

    fn note_stall(&mut self, at: Time) {
        let stood = at - self.ticked;
        self.ticked = at;
        if stood > STALL {
            self.stall = Some((at, stood));
        }
    }

    /// For how long the process stood still not long before `at`.
    fn stalled(&self, at: Time) -> Option<Duration> {
        let now = Some((at, at - self.ticked)).filter(|(_, stood)| *stood > STALL);
        now.or(self.stall).filter(|(then, _)| at - *then < STALL_RECOVERY).map(|(_, stood)| stood)
    }
}

impl Swarm {
    /// From now on sessions act by `plan`; without one those that are up stay so.
    pub(super) fn set_churn(&mut self, plan: Option<churn::Plan>) {
        self.churning.churn = plan.map(|plan| Churn::new(plan, seconds(now())));
    }

    /// From now on the first `talkers` sessions send packets and miss the answers.
    pub(super) fn set_talkers(&mut self, talkers: usize) {
        self.talkers = talkers;
        let at = now();
        self.lifecycles.iter_mut().for_each(|lifecycle| lifecycle.answered = at);
    }

    /// A second of churn.
    pub(super) fn churn(&mut self) -> Result<(), SwarmError> {
        let at = now();
        self.churning.note_stall(at);
        if let Some(mut churn) = self.churning.churn.take() {
            while let Some((number, action)) = churn.due(seconds(at), self.members.len()) {
                self.act(number, action, &mut churn, at);
            }
            if let Some(endpoint) = churn.rebind(seconds(at), self.endpoints.len()) {
                let source = self.job.sources.get(churn.other(0, self.job.sources.len())).copied();
                let socket = client_socket(bind(local(self.job.gateway, source))?)?;
                self.endpoints[endpoint].rebind_abstract(socket)?;
                self.churning.counts.rebound += 1;
            }
            self.churning.churn = Some(churn);
        }
        for number in 0..self.lifecycles.len() {
            self.check_session(number, at)?;
        }
        if self.job.soak.is_some() {
            let in_state = |which: fn(&State) -> bool| {
                self.lifecycles.iter().filter(|lifecycle| which(&lifecycle.state)).count() as u32
            };
            let up = in_state(|state| *state == State::Up);
            let away = in_state(|state| matches!(state, State::Away(_)));
            let counts = std::mem::take(&mut self.churning.counts);
            self.reports.push(Report::Status { first: self.job.first, up, away, counts });
        }
        Ok(())
    }

    /// Only a session that is up has something to lose.
    fn act(&mut self, number: usize, action: Action, churn: &mut Churn, at: Time) {
        if self.lifecycles[number].state != State::Up {
            return;
        }
        match action {
            Action::Leave(away_s) => {
                self.churning.counts.left += 1;
                self.lifecycles[number].state = State::Away(at + Duration::from_secs_f64(away_s));
                self.with(number, |member, tasks| member.quit(at, tasks));
            }
            Action::Roam => {
                self.churning.counts.roamed += 1;
                self.lifecycles[number].socket = churn.other(self.lifecycles[number].socket, SOCKETS);
                self.with(number, |member, tasks| member.network_changed(at, tasks));
            }
            Action::Rekey => {
                let Some(id) = self.live.keys().find(|(who, _)| *who == number).map(|(_, id)| *id) else {
                    return;
                };
                self.churning.counts.rekeyed += 1;
                let live = self.live.remove(&(number, id)).expect("its key was just found");
                live.reader.abort();
                // The last handle closes the connection, as the end of a program does.
                drop(live);
                self.with(number, |member, tasks| member.lost(at, id, None, tasks));
            }
        }
    }

    fn check_session(&mut self, number: usize, at: Time) -> Result<(), SwarmError> {
        let lifecycle = self.lifecycles[number];
        match lifecycle.state {
            State::Away(until) if until <= at => {
                self.members[number] = self.member(number)?;
                self.lifecycles[number] =
                    Lifecycle { state: State::LoggingIn(at), answered: at, ..lifecycle };
                self.with(number, |member, tasks| member.timeout(at, tasks));
            }
            State::LoggingIn(since) if at - since > LOGIN_TIMEOUT => {
                self.unexplained(number, format!("not up {LOGIN_TIMEOUT:?} after its login began"));
                self.lifecycles[number].state = State::LoggingIn(at);
            }
            State::Up if number < self.talkers && at - lifecycle.answered > ANSWER_TIMEOUT => {
                self.unexplained(number, format!("no packet answered for {ANSWER_TIMEOUT:?}"));
                self.lifecycles[number].answered = at;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn came_up(&mut self, number: usize, by: KeySource) {
        match by {
            KeySource::Login => self.churning.counts.logins += 1,
            KeySource::Attach => self.churning.counts.attaches += 1,
        }
        let lifecycle = self.lifecycles[number];
        if by == KeySource::Login && !matches!(lifecycle.state, State::LoggingIn(_)) {
            self.unexplained(number, "its session was lost, and it logged in anew".into());
        }
        self.lifecycles[number] = Lifecycle { state: State::Up, answered: now(), ..lifecycle };
    }

    pub(super) fn packet_answered(&mut self, number: usize) {
        self.churning.counts.answered += 1;
        self.lifecycles[number].answered = now();
    }

    /// A control connection ended that was not closed from here.
    pub(super) fn connection_ended(&mut self, number: usize, id: ConnectionId, code: Option<Code>) {
        // The gateway ends the connection before when it grants a new one, and the end may arrive
        // first.
        let replaced = code == Some(Code::Superseded) && self.attempts.keys().any(|(who, _)| *who == number);
        if self.live.contains_key(&(number, id)) && !replaced {
            let reason = code.map_or_else(|| "no sign of life".to_owned(), |code| code.to_string());
            self.unexplained(number, format!("its control connection ended: {reason}"));
        }
    }

    pub(super) fn gave_up(&mut self, number: usize, reason: &str) {
        self.unexplained(number, format!("gave up: {reason}"));
        self.lifecycles[number].state = State::Gone;
    }

    fn unexplained(&mut self, number: usize, what: String) {
        if self.job.soak.is_some() {
            let (session, after_stall_s) = (self.session(number), self.churning.stalled(now()));
            let after_stall_s = after_stall_s.map(|stood| stood.as_secs_f64());
            self.reports.push(Report::Unexplained { session, at_ns: now_ns(), what, after_stall_s });
        }
    }

    pub(super) fn is_up(&self, number: usize) -> bool {
        self.lifecycles[number].state == State::Up
    }

    /// A client that has no session yet.
    pub(super) fn member(&self, number: usize) -> Result<Member, SwarmError> {
        let session = self.session(number);
        let seed = self.job.soak.map_or_else(rand::random, |seed| churn::device(seed, session));
        let member = Member::new(self.suites.clone(), DeviceKey::from_seed(Secret::new(seed)), self.job.far);
        member.map_err(|error| SwarmError::Suite(error.to_string()))
    }
}

fn seconds(at: Time) -> f64 {
    at.since(Time::ZERO).as_secs_f64()
}
