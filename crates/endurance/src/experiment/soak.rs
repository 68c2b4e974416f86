//! A soak test: one gateway, many sessions that come, go, move and are killed, for hours; and
//! whether anything of the gateway grows, or any session ends that did not end itself.
//!
//! ```text
//!   process 1 (its share of the sessions) ── eth0 ──┐
//!   process 2                             ── eth0 ──┼── gateway (vpnd server)
//!   ...                                             ┘
//! ```
//!
//! The processes of `vpnd_swarm` hold the sessions and carry out the churn; the coordinator here
//! kills some of them, takes a sample of the gateway every few seconds, and judges ([`judgement`]).

pub mod judgement;
pub mod results;
pub mod sample;
pub mod trend;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use vpnd_swarm::churn;
use vpnd_swarm::message::{Command, Job, Report};
use vpnd_swarm::processes::Processes;

use super::held_sessions::{
    self, SessionsError, add_sources, add_users, holder, job, share_of, shares, with_gateway,
};
use results::{Incident, SoakResults};
use sample::Sample;
use trafficspeed::csv_table;
use trafficspeed::experiment::environment::Environment;
use trafficspeed::experiment::progress::Progress;
use trafficspeed::interrupt::Interrupt;
use trafficspeed::lab::{Lab, LinkSettings};
use trafficspeed::observe::process_tree;
use trafficspeed::system::vpnd::{Held, Room, Vpnd};
use trafficspeed::system::{Cipher, Kind, Programs, Subject, System};

/// Time that the coordinator waits for a report before it looks at the clock.
const POLL: Duration = Duration::from_millis(100);
/// How often a log gets a line of progress.
const NOTE: Duration = Duration::from_secs(60);
/// Time for the gateway and the clients to agree on the live sessions, once the churn
/// has ended.
const SETTLE: Duration = Duration::from_secs(120);
/// Addresses that each process sends from.
const SOURCES: u8 = 4;
/// Incidents that are listed one by one; the rest is counted.
const MAX_INCIDENTS: usize = 1_000;

#[derive(Clone, Debug)]
pub struct SoakPlan {
    pub clients: u32,
    /// Processes that hold them.
    pub processes: u32,
    /// Users that they belong to.
    pub users: u32,
    /// Sessions that send a packet each second.
    pub talkers: u32,
    /// Duration once all are up.
    pub time: Duration,
    /// The part of it at the beginning that is not judged.
    pub warm_up: Duration,
    /// Time between two samples.
    pub sample: Duration,
    /// Time between two actions of one session, on average.
    pub every: Duration,
    /// Time between two kills of a process.
    pub kill_every: Duration,
    /// Age at which keys are replaced.
    pub rekey_after: Duration,
    /// Time for all sessions to come up.
    pub login_timeout: Duration,
    /// Decides which session acts when and how.
    pub seed: u64,
    /// Where CSV, JSON and picture go.
    pub out: PathBuf,
    /// Where the `vpnd` program is.
    pub programs: Programs,
}

impl SoakPlan {
    fn links() -> LinkSettings {
        LinkSettings::default()
    }

    fn system(&self) -> Vpnd {
        let room = Room {
            clients: 0,
            sessions: self.clients,
            per_user: self.clients.div_ceil(self.users),
            rekey_after_s: Some(self.rekey_after.as_secs() as u32),
        };
        Vpnd::with_room(self.programs.clone(), Subject::new(Kind::Vpnd, Cipher::Auto), room)
    }
}

/// Refuses what this machine can't run, before anything is changed.
///
/// # Errors
/// The first thing that is missing.
pub fn check(plan: &SoakPlan) -> Result<(), SessionsError> {
    held_sessions::check(SoakPlan::links(), &plan.system())
}

/// Runs the whole test. The samples until an interruption are judged, too.
///
/// # Errors
/// If lab, gateway, processes or the file for the samples can't be had.
pub fn run(
    plan: &SoakPlan,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<SoakResults, SessionsError> {
    with_gateway((plan.processes, SoakPlan::links()), plan.system(), interrupt, |lab, system, _| {
        let csv = csv_table::writer(File::create(plan.out.join("soak.csv"))?);
        let mut soak = Soak::new(plan, lab, system, csv, (progress, interrupt));
        soak.run()?;
        Ok(soak.results)
    })
}

/// A test under way.
struct Soak<'a> {
    plan: &'a SoakPlan,
    lab: &'a Lab,
    system: &'a Vpnd,
    progress: &'a Progress,
    interrupt: &'a Interrupt,
    processes: Processes,
    jobs: Vec<Job>,
    random: ChaCha8Rng,
    /// Sessions up and away, by the first of their process.
    there: BTreeMap<u32, (u32, u32)>,
    begun: Instant,
    csv: csv::Writer<File>,
    broken: bool,
    results: SoakResults,
}

impl<'a> Soak<'a> {
    fn new(
        plan: &'a SoakPlan,
        lab: &'a Lab,
        system: &'a mut Vpnd,
        csv: csv::Writer<File>,
        (progress, interrupt): (&'a Progress, &'a Interrupt),
    ) -> Self {
        let results = SoakResults::new(plan, Environment::read(None), system.facts().clone());
        Self {
            plan,
            lab,
            system,
            progress,
            interrupt,
            processes: Processes::default(),
            jobs: Vec::new(),
            random: ChaCha8Rng::seed_from_u64(plan.seed),
            there: BTreeMap::new(),
            begun: Instant::now(),
            csv,
            broken: false,
            results,
        }
    }

    fn run(&mut self) -> Result<(), SessionsError> {
        csv_table::append(&mut self.csv, &Sample::HEAD.map(str::to_owned))?;
        self.prepare()?;
        self.begun = Instant::now();
        for (namespace, job) in self.lab.clients().iter().zip(&self.jobs) {
            self.processes.start(holder(namespace)?, &Command::Open(job.clone()))?;
        }
        if !self.wait_for_all(self.plan.login_timeout)? {
            self.results.interrupted = self.interrupt.is_set();
            self.problem("not all sessions came up; nothing was judged".into());
            return Ok(());
        }
        let gateway_processes = self.gateway_processes();
        self.progress
            .note(&format!("{} sessions are up; churn begins (seed {})", self.plan.clients, self.plan.seed));
        (0..self.jobs.len()).for_each(|number| self.start_churn(number));
        let churn_began = self.begun.elapsed().as_secs_f64();
        self.churn()?;
        self.results.interrupted = self.interrupt.is_set();
        self.processes.send_each(|_| Command::Churn(None));
        if !self.results.interrupted && !self.wait_for_all(SETTLE)? {
            self.problem(format!(
                "gateway and clients don't agree on who is there {SETTLE:?} after the churn"
            ));
        }
        if gateway_processes != self.gateway_processes() {
            self.problem("a process of the gateway has ended or begun".into());
        }
        self.results.judge(churn_began + self.plan.warm_up.as_secs_f64());
        Ok(())
    }

    /// Adds users and addresses to send from, and makes each process's job.
    fn prepare(&mut self) -> Result<(), SessionsError> {
        let users = add_users(self.system, self.plan.users)?;
        let at_once = (100 / self.plan.processes).max(1);
        for (number, share) in (1..).zip(shares(self.plan.clients, self.plan.processes)) {
            self.jobs.push(Job {
                sources: add_sources(self.lab, number, SOURCES)?,
                soak: Some(self.plan.seed),
                ..job(self.system, share, at_once, &users)?
            });
        }
        Ok(())
    }

    /// Has the sessions of a process send packets and act.
    fn start_churn(&mut self, number: usize) {
        let (talkers, processes) = (self.plan.talkers, self.plan.processes);
        let plan = churn::Plan {
            // A process that is started again does not repeat its actions.
            seed: self.random.random(),
            every_s: self.plan.every.as_secs_f64(),
            away_s: (2.0, (self.plan.every.as_secs_f64() / 3.0).max(4.0)),
            rebind_s: (self.plan.every.as_secs_f64() / 3.0).max(3.0),
        };
        let talkers = share_of(talkers, processes, number as u32);
        self.processes.send(number, &Command::Talk(talkers));
        self.processes.send(number, &Command::Churn(Some(plan)));
    }

    /// Churn, kills and samples, until the time is over.
    fn churn(&mut self) -> Result<(), SessionsError> {
        let end = Instant::now() + self.plan.time;
        let mut sample_at = Instant::now();
        let mut kill_at = Instant::now() + self.plan.kill_every;
        let mut note_at = Instant::now() + NOTE;
        while !self.over(end) {
            self.take_reports(POLL);
            let now = Instant::now();
            if now >= sample_at {
                sample_at = now + self.plan.sample;
                self.sample()?;
            }
            // No kill so late that its sessions could not come back before the end.
            if now >= kill_at && end - now > self.plan.kill_every / 2 {
                kill_at = now + self.plan.kill_every;
                self.kill_one()?;
            }
            if now >= note_at {
                note_at = now + NOTE;
                self.progress.note(&self.results.line());
            }
        }
        Ok(())
    }

    fn kill_one(&mut self) -> Result<(), SessionsError> {
        let number = self.random.random_range(0..self.jobs.len());
        let job = self.jobs[number].clone();
        self.there.remove(&job.first);
        self.processes.replace(number, holder(&self.lab.clients()[number])?, &Command::Open(job))?;
        self.results.kills += 1;
        self.start_churn(number);
        Ok(())
    }

    fn over(&self, end: Instant) -> bool {
        self.broken || self.interrupt.is_set() || Instant::now() >= end
    }

    /// Waits until every session is up, by its client and by the gateway.
    fn wait_for_all(&mut self, timeout: Duration) -> Result<bool, SessionsError> {
        let (end, mut sample_at) = (Instant::now() + timeout, Instant::now());
        while !self.over(end) {
            self.take_reports(POLL);
            if Instant::now() < sample_at {
                continue;
            }
            sample_at = Instant::now() + self.plan.sample.min(Duration::from_secs(2));
            let held = self.sample()?;
            let all = self.plan.clients;
            self.progress.live(&format!("{} of {all} sessions", self.present().0));
            if self.present() == (all, 0) && (held.sessions, held.connected, held.leases) == (all, all, all) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take_reports(&mut self, timeout: Duration) {
        let mut next = self.processes.next(timeout);
        while let Some(report) = next {
            match report {
                Report::Status { first, up, away, counts } => {
                    self.there.insert(first, (up, away));
                    self.results.done += counts;
                }
                Report::Unexplained { session, what, after_stall_s, .. } => {
                    self.unexplained(session, what, after_stall_s);
                }
                Report::Failed { reason, .. } => *self.results.failures.entry(reason).or_default() += 1,
                Report::Broken(reason) => {
                    self.broken = true;
                    self.problem(reason);
                }
                Report::Up { .. }
                | Report::GaveUp { .. }
                | Report::Answered { .. }
                | Report::Talked { .. }
                | Report::Watched { .. }
                | Report::Loaded(_) => {}
            }
            next = self.processes.next(Duration::ZERO);
        }
    }

    fn unexplained(&mut self, session: u32, what: String, after_stall_s: Option<f64>) {
        match after_stall_s {
            Some(_) => self.results.after_stalls += 1,
            None => self.results.unexplained += 1,
        }
        if self.results.events.len() < MAX_INCIDENTS {
            let second = self.begun.elapsed().as_secs_f64();
            let after = after_stall_s
                .map_or_else(String::new, |stood| format!(" (after {stood:.0} s of standstill)"));
            self.progress.note(&format!("second {second:.0}: session {session}: {what}{after}"));
            self.results.events.push(Incident { second, session, what, after_stall_s });
        }
    }

    fn problem(&mut self, what: String) {
        self.progress.note(&what);
        self.results.problems.push(what);
    }

    fn present(&self) -> (u32, u32) {
        self.there.values().fold((0, 0), |(up, away), more| (up + more.0, away + more.1))
    }

    fn sample(&mut self) -> Result<Held, SessionsError> {
        let held = self.system.held().ok_or(SessionsError::GatewayGone)?;
        let second = self.begun.elapsed().as_secs_f64();
        let sample = Sample::take(self.gateway(), second, &held, self.present());
        let sample = sample.ok_or(SessionsError::GatewayGone)?;
        csv_table::append(&mut self.csv, &sample.row())?;
        self.results.samples.push(sample);
        self.results.counters = held.counters.clone();
        Ok(held)
    }

    fn gateway(&self) -> u32 {
        self.system.processes().0.first().copied().unwrap_or_default()
    }

    fn gateway_processes(&self) -> Vec<u32> {
        let mut all: Vec<u32> = process_tree(&[self.gateway()]).iter().map(|(pid, _)| *pid).collect();
        all.sort_unstable();
        all
    }
}
