//! A soak test's sessions: what each does to itself, and what happened to it that it did not do.
//!
//! INVARIANT: a client that was not told to go must neither be thrown out, nor have to use its password again, nor go
//! without an answer for long. Whatever of this happens is reported as unexplained.

use std::time::Duration;

use vpnd_crypto::{DeviceKey, Secret};
use vpnd_proto::control::Code;
use vpnd_proto::session::ConnectionId;
use vpnd_proto::time::Time;

use super::{SOCKETS, Swarm, SwarmError, bind, now};
use crate::clock;
use crate::sessions::churn::{self, Churn, Deed, Done};
use crate::sessions::member::Member;
use crate::sessions::message::{By, Report};

/// A session that wants to be up is missed after this time: longer than a gateway takes to check a process's passwords.
const PATIENCE: Duration = Duration::from_secs(120);
/// A session whose packets are not answered for so long is cut off, whatever moved.
const SILENCE: Duration = Duration::from_secs(30);
/// A process that did nothing for so long was not let: it, or the whole machine, stood still.
const STALL: Duration = Duration::from_secs(5);
/// How long that explains what happens to its sessions: connections time out within a minute.
const AFTERMATH: Duration = Duration::from_secs(90);

/// What is known of one session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    /// The socket that it sends from.
    pub(super) socket: usize,
    state: State,
    /// When a packet last came back, or was first missed.
    heard: Time,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// It logs in, since then.
    Coming(Time),
    /// It has keys that work.
    Up,
    /// It left, and comes back then.
    Away(Time),
    /// It was reported, and is left alone.
    Gone,
}

impl Stay {
    /// A session that logs in.
    pub(super) fn new(number: usize, now: Time) -> Self {
        Self { socket: number % SOCKETS, state: State::Coming(now), heard: now }
    }
}

/// The churn of a process.
pub(super) struct Churning {
    churn: Option<Churn>,
    pub(super) done: Done,
    /// When this was last looked at: once a second, if the machine lets it.
    turn: Time,
    /// When the process last stood still, and for how long.
    stall: Option<(Time, Duration)>,
}

impl Churning {
    pub(super) fn none() -> Self {
        Self { churn: None, done: Done::default(), turn: now(), stall: None }
    }

    fn note_stall(&mut self, at: Time) {
        let stood = at - self.turn;
        self.turn = at;
        if stood > STALL {
            self.stall = Some((at, stood));
        }
    }

    /// For how long the process stood still not long before `at`.
    fn stalled(&self, at: Time) -> Option<Duration> {
        let now = Some((at, at - self.turn)).filter(|(_, stood)| *stood > STALL);
        now.or(self.stall).filter(|(then, _)| at - *then < AFTERMATH).map(|(_, stood)| stood)
    }
}

impl Swarm {
    /// From now on sessions live as `plan` says; without one those that are here stay as they are.
    pub(super) fn live_by(&mut self, plan: Option<churn::Plan>) {
        self.churning.churn = plan.map(|plan| Churn::new(plan, seconds(now())));
    }

    /// From now on the first `talkers` sessions send packets and miss the answers.
    pub(super) fn let_talk(&mut self, talkers: usize) {
        self.talkers = talkers;
        let at = now();
        self.stays.iter_mut().for_each(|stay| stay.heard = at);
    }

    /// A second of churn.
    pub(super) fn churn(&mut self) -> Result<(), SwarmError> {
        let at = now();
        self.churning.note_stall(at);
        if let Some(mut churn) = self.churning.churn.take() {
            while let Some((number, deed)) = churn.due(seconds(at), self.members.len()) {
                self.act_out(number, deed, &mut churn, at);
            }
            if let Some(endpoint) = churn.rebind(seconds(at), self.endpoints.len()) {
                let source = self.job.sources.get(churn.other(0, self.job.sources.len())).copied();
                self.endpoints[endpoint].rebind(bind(self.job.gateway, source)?)?;
                self.churning.done.rebound += 1;
            }
            self.churning.churn = Some(churn);
        }
        for number in 0..self.stays.len() {
            self.look_after(number, at)?;
        }
        if self.job.soak.is_some() {
            let up = self.stays.iter().filter(|stay| stay.state == State::Up).count() as u32;
            let away = self.stays.iter().filter(|stay| matches!(stay.state, State::Away(_))).count() as u32;
            let done = std::mem::take(&mut self.churning.done);
            self.reports.push(Report::Lived { first: self.job.first, up, away, done });
        }
        Ok(())
    }

    /// Only a session that is up has something to lose.
    fn act_out(&mut self, number: usize, deed: Deed, churn: &mut Churn, at: Time) {
        if self.stays[number].state != State::Up {
            return;
        }
        match deed {
            Deed::Leave(away_s) => {
                self.churning.done.left += 1;
                self.stays[number].state = State::Away(at + Duration::from_secs_f64(away_s));
                self.with(number, |member, tasks| member.quit(at, tasks));
            }
            Deed::Roam => {
                self.churning.done.roamed += 1;
                self.stays[number].socket = churn.other(self.stays[number].socket, SOCKETS);
                self.with(number, |member, tasks| member.network_changed(at, tasks));
            }
            Deed::Rekey => {
                let Some(id) = self.live.keys().find(|(who, _)| *who == number).map(|(_, id)| *id) else {
                    return;
                };
                self.churning.done.rekeyed += 1;
                let live = self.live.remove(&(number, id)).expect("its key was just found");
                live.reader.abort();
                // The last handle closes the connection, as the end of a program does.
                drop(live);
                self.with(number, |member, tasks| member.lost(at, id, None, tasks));
            }
        }
    }

    fn look_after(&mut self, number: usize, at: Time) -> Result<(), SwarmError> {
        let stay = self.stays[number];
        match stay.state {
            State::Away(until) if until <= at => {
                self.members[number] = self.member(number)?;
                self.stays[number] = Stay { state: State::Coming(at), heard: at, ..stay };
                self.with(number, |member, tasks| member.timeout(at, tasks));
            }
            State::Coming(since) if at - since > PATIENCE => {
                self.unexplained(number, format!("not up {PATIENCE:?} after it wanted to be"));
                self.stays[number].state = State::Coming(at);
            }
            State::Up if number < self.talkers && at - stay.heard > SILENCE => {
                self.unexplained(number, format!("no packet answered for {SILENCE:?}"));
                self.stays[number].heard = at;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn came_up(&mut self, number: usize, by: By) {
        match by {
            By::Login => self.churning.done.logins += 1,
            By::Attach => self.churning.done.attaches += 1,
        }
        let stay = self.stays[number];
        if by == By::Login && !matches!(stay.state, State::Coming(_)) {
            self.unexplained(number, "its session was lost, and it logged in anew".into());
        }
        self.stays[number] = Stay { state: State::Up, heard: now(), ..stay };
    }

    /// A packet came back.
    pub(super) fn was_answered(&mut self, number: usize) {
        self.churning.done.answered += 1;
        self.stays[number].heard = now();
    }

    /// A control connection ended that nobody here had ended.
    pub(super) fn was_cut(&mut self, number: usize, id: ConnectionId, code: Option<Code>) {
        // The gateway ends the connection before when it grants a new one, and may be heard doing so first.
        let replaced = code == Some(Code::Superseded) && self.attempts.keys().any(|(who, _)| *who == number);
        if self.live.contains_key(&(number, id)) && !replaced {
            let why = code.map_or_else(|| "no sign of life".to_owned(), |code| code.to_string());
            self.unexplained(number, format!("its control connection ended: {why}"));
        }
    }

    /// The client stops for good.
    pub(super) fn stopped(&mut self, number: usize, why: &str) {
        self.unexplained(number, format!("gave up: {why}"));
        self.stays[number].state = State::Gone;
    }

    fn unexplained(&mut self, number: usize, what: String) {
        if self.job.soak.is_some() {
            let (session, after_stall_s) = (self.session(number), self.churning.stalled(now()));
            let after_stall_s = after_stall_s.map(|stood| stood.as_secs_f64());
            self.reports.push(Report::Unexplained { session, at_ns: clock::now_ns(), what, after_stall_s });
        }
    }

    /// Whether a session has keys that work, as far as was heard.
    pub(super) fn is_up(&self, number: usize) -> bool {
        self.stays[number].state == State::Up
    }

    /// A client that has no session yet.
    pub(super) fn member(&self, number: usize) -> Result<Member, SwarmError> {
        let session = self.session(number);
        let seed = self.job.soak.map_or_else(rand::random, |seed| churn::device(seed, session));
        let member = Member::new(self.suites.clone(), DeviceKey::from_seed(Secret::new(seed)));
        member.map_err(|error| SwarmError::Suite(error.to_string()))
    }
}

fn seconds(at: Time) -> f64 {
    at.since(Time::ZERO).as_secs_f64()
}
