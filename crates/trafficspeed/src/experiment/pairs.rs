//! Drives all pairs of a fleet through one measurement, in the lab and between real hosts alike.
//!
//! Stages: the listeners listen, the connectors connect one pair after the other, everyone starts at one instant,
//! everyone reports. A host that fails or is lost takes its pair out; the others go on. Every stage has a deadline.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::outcome::{End, Interval, Pair};
use crate::clock;
use crate::coordinate::agent::DRAIN_PATIENCE;
use crate::coordinate::fleet::{Event, Fleet};
use crate::coordinate::message::{Command, Outcome, Report};
use crate::interrupt::Interrupt;
use crate::load::tcp::Job;

/// How long making all connections may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(45);
/// Grace for the reports after the last drain.
const REPORT_PATIENCE: Duration = Duration::from_secs(10);
/// How often the coordinator looks up while it waits.
const TICK: Duration = Duration::from_millis(100);

/// Two agents that are to talk.
#[derive(Clone, Debug)]
pub struct PairPlan {
    /// The agent that listens.
    pub listener: usize,
    /// Where it listens: the address inside the VPN.
    pub address: IpAddr,
    /// The agent that connects.
    pub connector: usize,
}

/// The work and its times.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The pairs.
    pub pairs: Vec<PairPlan>,
    /// The work of each pair; every pair gets its own run id and payload seed.
    pub job: Job,
    /// Before counting.
    pub warmup: Duration,
    /// Counting.
    pub duration: Duration,
    /// From the last connection to the start.
    pub lead: Duration,
}

/// What is told while a measurement runs.
pub trait Watch {
    /// Counting begins now.
    fn begin(&mut self);
    /// Counting ends now.
    fn end(&mut self);
    /// All hosts have reported this second.
    fn second(&mut self, number: usize, interval: Interval);
}

/// What came out.
#[derive(Debug)]
pub struct Driven {
    /// In the order of the plan.
    pub pairs: Vec<Pair>,
    /// Totals of every second.
    pub intervals: Vec<Interval>,
}

/// Runs one measurement.
pub fn drive(fleet: &mut Fleet, plan: &Plan, watch: &mut dyn Watch, interrupt: &Interrupt) -> Driven {
    let mut drive = Drive::new(fleet, plan);
    drive.connect(interrupt);
    if interrupt.is_set() {
        drive.fleet.stop_all();
        drive.fail_rest("stopped before the start");
    } else {
        drive.measure(watch, interrupt);
    }
    drive.into_driven()
}

struct Drive<'a> {
    fleet: &'a mut Fleet,
    plan: &'a Plan,
    /// Which pair an agent belongs to.
    pair_of: HashMap<usize, usize>,
    /// Where the listeners that are ready listen, until their connectors are told.
    ports: Vec<Option<u16>>,
    connected: Vec<usize>,
    errors: Vec<Option<String>>,
    outcomes: HashMap<usize, Outcome>,
    intervals: Vec<Interval>,
}

impl<'a> Drive<'a> {
    fn new(fleet: &'a mut Fleet, plan: &'a Plan) -> Self {
        let members = |(at, pair): (usize, &PairPlan)| [(pair.listener, at), (pair.connector, at)];
        Self {
            fleet,
            plan,
            pair_of: plan.pairs.iter().enumerate().flat_map(members).collect(),
            ports: vec![None; plan.pairs.len()],
            connected: vec![0; plan.pairs.len()],
            errors: vec![None; plan.pairs.len()],
            outcomes: HashMap::new(),
            intervals: Vec::new(),
        }
    }

    fn job(&self, pair: usize) -> Job {
        let number = pair as u64;
        let base = &self.plan.job;
        Job { run_id: base.run_id.wrapping_add(number), seed: base.seed.wrapping_add(number), ..base.clone() }
    }

    fn connect(&mut self, interrupt: &Interrupt) {
        for (at, pair) in self.plan.pairs.iter().enumerate() {
            let command = Command::Listen { job: self.job(at), bind: pair.address };
            self.fleet.tell(pair.listener, &command);
        }
        let deadline = Instant::now() + CONNECT_PATIENCE;
        while !interrupt.is_set() && !self.all_settled(|drive, pair| drive.connected[pair] == 2) {
            if Instant::now() > deadline {
                self.fail_rest("the connections were not made in time");
                return;
            }
            self.connect_next();
            if let Some((agent, event)) = self.fleet.next(TICK) {
                self.take_connecting(agent, event);
            }
        }
    }

    /// Tells the next pair to connect once those before it are settled. Linux sizes a connection's bursts by the
    /// shortest round trip it ever saw (`tcp_tso_rtt_log`); if a thousand connections were made at once, each would
    /// remember the rush for the whole measurement.
    fn connect_next(&mut self) {
        let settled = |pair: usize| self.errors[pair].is_some() || self.connected[pair] == 2;
        let Some(pair) = (0..self.plan.pairs.len()).find(|&pair| !settled(pair)) else { return };
        if let Some(port) = self.ports[pair].take() {
            let plan = &self.plan.pairs[pair];
            let command = Command::Connect { job: self.job(pair), peer: SocketAddr::new(plan.address, port) };
            self.fleet.tell(plan.connector, &command);
        }
    }

    fn take_connecting(&mut self, agent: usize, event: Event) {
        let Some(&pair) = self.pair_of.get(&agent) else { return };
        match event {
            Event::Said(Report::Listening { port }) => self.ports[pair] = Some(port),
            Event::Said(Report::Connected) => self.connected[pair] += 1,
            other => self.take_failure(agent, pair, other),
        }
    }

    fn take_failure(&mut self, agent: usize, pair: usize, event: Event) {
        let why = match event {
            Event::Lost(why) | Event::Said(Report::Failed { why }) => why,
            Event::Said(other) => format!("said {other:?} out of turn"),
        };
        let name = self.fleet.name(agent);
        self.errors[pair].get_or_insert(format!("{name}: {why}"));
        // The other end has nobody to talk to any more.
        let plan = &self.plan.pairs[pair];
        let other = if plan.listener == agent { plan.connector } else { plan.listener };
        self.fleet.tell(other, &Command::Stop);
    }

    fn measure(&mut self, watch: &mut dyn Watch, interrupt: &Interrupt) {
        let millis = |duration: Duration| duration.as_millis() as u64;
        let (warmup_ms, duration_ms) = (millis(self.plan.warmup), millis(self.plan.duration));
        let at_ns = clock::now_ns() + self.plan.lead.as_nanos() as u64;
        for agent in self.agents_of_good_pairs() {
            let at_ns = self.fleet.offset(agent).translate(at_ns);
            self.fleet.tell(agent, &Command::Start { at_ns, warmup_ms, duration_ms });
        }
        let begin_ns = at_ns + warmup_ms * 1_000_000;
        let end_ns = begin_ns + duration_ms * 1_000_000;
        let deadline = Instant::now() + clock::until(end_ns) + DRAIN_PATIENCE + REPORT_PATIENCE;
        let mut marks = Marks::default();
        let mut told = 0;
        let mut stopping = false;
        let mut give_up = deadline;
        while !self.all_settled(Self::both_reported) && Instant::now() < give_up {
            marks.pass(begin_ns, end_ns, watch);
            if !stopping && self.fleet.stop_if(interrupt, &mut stopping) {
                marks.stop(watch);
                give_up = deadline.min(Instant::now() + DRAIN_PATIENCE + REPORT_PATIENCE);
            }
            let patience = TICK.min(marks.next_wait(begin_ns, end_ns));
            if let Some((agent, event)) = self.fleet.next(patience) {
                self.take_measuring(agent, event);
            }
            told = self.tell_seconds(told, watch);
        }
        marks.stop(watch);
        self.fail_rest("no report in time");
    }

    fn take_measuring(&mut self, agent: usize, event: Event) {
        let Some(&pair) = self.pair_of.get(&agent) else { return };
        match event {
            Event::Said(Report::Interval { number, received, sent }) => {
                self.add(number as usize, received, sent)
            }
            Event::Said(Report::Done(outcome)) => {
                self.outcomes.insert(agent, outcome);
            }
            // The pair is out already; its other end was told to stop and may still say so.
            Event::Said(_) if self.errors[pair].is_some() => {}
            other => self.take_failure(agent, pair, other),
        }
    }

    fn add(&mut self, number: usize, received: u64, sent: u64) {
        // One more than the seconds asked for would be an agent's error; it must not grow memory.
        if number > self.plan.duration.as_secs() as usize {
            return;
        }
        if self.intervals.len() <= number {
            self.intervals.resize(number + 1, Interval::default());
        }
        let interval = &mut self.intervals[number];
        interval.received += received;
        interval.sent += sent;
        interval.hosts += 1;
    }

    /// Tells every second that all hosts have reported, from `told` on.
    fn tell_seconds(&self, told: usize, watch: &mut dyn Watch) -> usize {
        let hosts = self.agents_of_good_pairs().len() as u32;
        let mut told = told;
        while let Some(interval) = self.intervals.get(told).filter(|interval| interval.hosts >= hosts) {
            watch.second(told, *interval);
            told += 1;
        }
        told
    }

    fn agents_of_good_pairs(&self) -> Vec<usize> {
        let good = self.plan.pairs.iter().zip(&self.errors).filter(|(_, error)| error.is_none());
        good.flat_map(|(pair, _)| [pair.listener, pair.connector]).collect()
    }

    fn both_reported(&self, pair: usize) -> bool {
        let plan = &self.plan.pairs[pair];
        self.outcomes.contains_key(&plan.listener) && self.outcomes.contains_key(&plan.connector)
    }

    /// Whether every pair has failed or satisfies `done`. A failed pair's living end is waited for no longer.
    fn all_settled(&self, done: impl Fn(&Self, usize) -> bool) -> bool {
        (0..self.plan.pairs.len()).all(|pair| {
            let plan = &self.plan.pairs[pair];
            let waiting = |agent: usize| !self.fleet.is_lost(agent) && !self.outcomes.contains_key(&agent);
            let half = self.errors[pair].is_some() && self.connected[pair] == 2;
            done(self, pair)
                || (self.errors[pair].is_some()
                    && !(half && (waiting(plan.listener) || waiting(plan.connector))))
        })
    }

    fn fail_rest(&mut self, why: &str) {
        for pair in 0..self.plan.pairs.len() {
            if !self.both_reported(pair) {
                self.errors[pair].get_or_insert(why.to_owned());
            }
        }
    }

    fn into_driven(mut self) -> Driven {
        let mut pairs = Vec::new();
        for (plan, error) in self.plan.pairs.iter().zip(std::mem::take(&mut self.errors)) {
            let ends = [plan.listener, plan.connector].map(|agent| {
                let offset = self.fleet.offset(agent);
                End {
                    name: self.fleet.name(agent).to_owned(),
                    host: self.fleet.host(agent).clone(),
                    clock_offset_ms: offset.ns as f64 / 1e6,
                    clock_uncertainty_ms: offset.uncertainty_ns as f64 / 1e6,
                    outcome: self.outcomes.remove(&agent),
                }
            });
            pairs.push(Pair { ends, error });
        }
        Driven { pairs, intervals: self.intervals }
    }
}

/// Which of the two instants have been told.
#[derive(Default)]
struct Marks {
    begun: bool,
    ended: bool,
}

impl Marks {
    fn pass(&mut self, begin_ns: u64, end_ns: u64, watch: &mut dyn Watch) {
        let now = clock::now_ns();
        if !self.begun && now >= begin_ns {
            self.begun = true;
            watch.begin();
        }
        if self.begun && now >= end_ns {
            self.stop(watch);
        }
    }

    fn stop(&mut self, watch: &mut dyn Watch) {
        if self.begun && !self.ended {
            self.ended = true;
            watch.end();
        }
    }

    /// Until the next instant to tell; never zero, so that a loop cannot spin.
    fn next_wait(&self, begin_ns: u64, end_ns: u64) -> Duration {
        let next = if !self.begun {
            begin_ns
        } else if !self.ended {
            end_ns
        } else {
            u64::MAX
        };
        clock::until(next).max(Duration::from_millis(1))
    }
}
