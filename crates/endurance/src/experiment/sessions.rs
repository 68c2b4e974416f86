//! Experiment 2: what many sessions cost a gateway, and how they come back when it restarts.
//!
//! Real sessions of vpnd's protocol, without a TUN device for each: few processes hold them
//! (`vpnd_swarm`), and the real gateway serves them. So this experiment is of vpnd alone. The
//! coordinator here starts gateway and processes, waits, and adds up.

pub mod results;
mod upgrade;

use std::time::{Duration, Instant};

use serde::Serialize;
use vpnd_swarm::message::{Command, Credentials};
use vpnd_swarm::processes::Processes;
use vpnd_swarm::tally::{self, Tally};

use super::devices::{Devices, MTU};
use super::held_sessions::{
    self, SessionsError, add_sources, add_users, holder, job, real_work, share_of, shares, take_reports,
    with_gateway,
};
use results::{Idle, PairRates, Phase, Restarted, SessionsResults};
use trafficspeed::clock;
use trafficspeed::experiment::cpu::CpuMeter;
use trafficspeed::experiment::environment::Environment;
use trafficspeed::experiment::outcome::Taken;
use trafficspeed::experiment::progress::Progress;
use trafficspeed::experiment::traffic::{TrafficPlan, run_up};
use trafficspeed::interrupt::Interrupt;
use trafficspeed::lab::{Lab, LinkSettings};
use trafficspeed::observe::memory::Memory;
use trafficspeed::observe::tree_cpu_seconds;
use trafficspeed::stats::median;
use trafficspeed::system::vpnd::{Room, Vpnd};
use trafficspeed::system::{Cipher, ClientAddress, Kind, Programs, Subject, System};

/// Real clients that are measured together with the sessions.
const PAIR: u32 = 2;
/// Time that the coordinator waits for a report before it looks at the clock.
const POLL: Duration = Duration::from_millis(100);
/// How often the gateway's memory is looked at while sessions come up.
const SAMPLE: Duration = Duration::from_millis(500);
/// Time for packets to pass through all sessions.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(30);
/// From one phase to the next: answers that are under way arrive.
const SETTLE: Duration = Duration::from_secs(2);
/// Addresses that the devices of a process send from: of one, a gateway takes few handshakes a
/// second.
const SOURCES: u8 = 100;

/// How a gateway is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    Kill,
    Clean,
    /// Replaced by a new process of its program, without an end.
    Upgrade,
}

/// How the pair of real clients is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Seconds of each measurement.
    pub seconds: f64,
    /// Measurements before, and as many after.
    pub repeats: u32,
}

#[derive(Clone, Debug)]
pub struct SessionsPlan {
    pub count: u32,
    /// Processes that hold them.
    pub processes: u32,
    /// Users that they belong to.
    pub users: u32,
    /// Logins under way at once.
    pub at_once: u32,
    /// Sessions that carry light traffic.
    pub talkers: u32,
    /// They are WireGuard devices instead.
    pub wireguard: bool,
    /// Restarts of the gateway.
    pub restarts: Vec<Restart>,
    /// Time to leave them alone first.
    pub settle: Duration,
    /// Time to watch them doing nothing.
    pub idle: Duration,
    /// Time for all sessions to come up.
    pub login_timeout: Duration,
    /// Whether and how a pair of real clients is measured.
    pub traffic: Option<Traffic>,
    /// Where the `vpnd` program is.
    pub programs: Programs,
}

impl SessionsPlan {
    fn links() -> LinkSettings {
        LinkSettings::default()
    }

    fn pair(&self) -> u32 {
        if self.traffic.is_some() { PAIR } else { 0 }
    }

    fn system(&self) -> Vpnd {
        let room = Room {
            clients: self.pair() as usize,
            sessions: self.count + PAIR,
            per_user: self.count.div_ceil(self.users),
            rekey_after_s: None,
        };
        let vpnd = Vpnd::with_room(self.programs.clone(), Subject::new(Kind::Vpnd, Cipher::Auto), room);
        if self.wireguard { vpnd.serving_devices(MTU.into()) } else { vpnd }
    }
}

/// Refuses what this machine can't run, before anything is changed.
///
/// # Errors
/// The first thing that is missing.
pub fn check(plan: &SessionsPlan) -> Result<(), SessionsError> {
    held_sessions::check(SessionsPlan::links(), &plan.system())
}

/// Runs the whole measurement.
///
/// # Errors
/// If lab, gateway or processes can't be had. Sessions that don't come up are no error, but part of
/// the results.
pub fn run(
    plan: &SessionsPlan,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<SessionsResults, SessionsError> {
    let lab = (plan.pair() + plan.processes, SessionsPlan::links());
    with_gateway(lab, plan.system(), interrupt, |lab, system, addresses| {
        let mut measurement = Measurement {
            plan,
            lab,
            system,
            addresses,
            processes: Processes::default(),
            results: begin(plan),
            progress,
            interrupt,
        };
        measurement.run()?;
        Ok(measurement.results)
    })
}

fn begin(plan: &SessionsPlan) -> SessionsResults {
    SessionsResults {
        count: plan.count,
        processes: plan.processes,
        users: plan.users,
        wireguard: plan.wireguard,
        at_once: plan.at_once,
        environment: Environment::read(Some(SessionsPlan::links())),
        facts: trafficspeed::system::SystemInfo::default(),
        machine: None,
        login: None,
        memory_before: Memory::default(),
        slope_kib: None,
        idle: None,
        talked: (0, 0),
        restarts: Vec::new(),
        traffic: None,
        interrupted: false,
        problems: Vec::new(),
    }
}

/// One measurement under way.
struct Measurement<'a> {
    plan: &'a SessionsPlan,
    lab: &'a Lab,
    system: &'a mut Vpnd,
    addresses: Vec<ClientAddress>,
    processes: Processes,
    results: SessionsResults,
    progress: &'a Progress,
    interrupt: &'a Interrupt,
}

impl Measurement<'_> {
    fn run(&mut self) -> Result<(), SessionsError> {
        self.results.facts = self.system.facts().clone();
        let mut machine = self.meter();
        let users = add_users(self.system, self.plan.users)?;
        let alone = self.measure_pair("a pair alone");
        self.results.memory_before = self.memory()?;
        self.log_in(&users)?;
        if self.plan.talkers > 0 && !self.interrupt.is_set() {
            self.talk();
        }
        self.settle();
        self.watch_idle()?;
        if let Some((alone, taken_alone)) = alone {
            let (beside, taken) = self.measure_pair("a pair beside the sessions").unwrap_or_default();
            let ratio = median(&beside).zip(median(&alone)).map(|(beside, alone)| beside / alone);
            self.results.traffic = Some(PairRates { alone, beside, taken: [taken_alone, taken], ratio });
        }
        machine.read();
        self.results.machine = machine.used();
        for how in &self.plan.restarts {
            if !self.interrupt.is_set() {
                self.restart(*how)?;
            }
        }
        self.results.interrupted = self.interrupt.is_set();
        Ok(())
    }

    fn log_in(&mut self, users: &[Credentials]) -> Result<(), SessionsError> {
        let jobs = self.jobs(users)?;
        let mut tally = Tally::new(clock::now_ns());
        let (cpu, meter) = (self.cpu(), self.meter());
        let namespaces = &self.lab.clients()[self.plan.pair() as usize..];
        for (namespace, job) in namespaces.iter().zip(&jobs) {
            self.processes.start(holder(namespace)?, job)?;
        }
        let mut samples = Vec::new();
        self.wait_until_up(&mut tally, "sessions logged in", &mut samples)?;
        self.results.slope_kib = tally::slope(&samples);
        self.results.login = Some(self.phase(&mut tally, Some(cpu), meter)?);
        Ok(())
    }

    /// The first command of each process.
    fn jobs(&mut self, users: &[Credentials]) -> Result<Vec<Command>, SessionsError> {
        let SessionsPlan { count, processes, at_once, .. } = *self.plan;
        let devices = self.plan.wireguard.then(|| Devices::add(self.system, self.lab, users, count));
        let devices = devices.transpose()?;
        let job = |(number, share): (u32, (u32, u32))| {
            let at_once = share_of(at_once, processes, number).max(1);
            match &devices {
                None => Ok(Command::Open(job(self.system, share, at_once, users)?)),
                Some(devices) => {
                    let sources = add_sources(self.lab, self.plan.pair() + number + 1, SOURCES)?;
                    Ok(Command::OpenWireGuard(devices.job(share, at_once, sources)))
                }
            }
        };
        let jobs = (0..).zip(shares(count, processes)).map(job).collect::<Result<_, SessionsError>>()?;
        if devices.is_some() {
            // Until the gateway has learnt of all of them.
            std::thread::sleep(SETTLE);
        }
        Ok(jobs)
    }

    fn restart(&mut self, how: Restart) -> Result<(), SessionsError> {
        if how == Restart::Upgrade {
            return self.upgrade();
        }
        let mut tally = Tally::new(clock::now_ns());
        let begun = Instant::now();
        let back = self.system.restart(self.lab, how == Restart::Kill, self.interrupt)?;
        let meter = self.meter();
        self.wait_until_up(&mut tally, "sessions back", &mut Vec::new())?;
        // A new gateway has used nothing before.
        let phase = self.phase(&mut tally, Some(0.0), meter)?;
        let gateway_back_seconds = back.duration_since(begun).as_secs_f64();
        self.results.restarts.push(Restarted { how, gateway_back_seconds, watched: None, phase });
        Ok(())
    }

    /// Waits until all sessions are up, or until that can't be any more.
    fn wait_until_up(
        &mut self,
        tally: &mut Tally,
        what: &str,
        samples: &mut Vec<(f64, f64)>,
    ) -> Result<(), SessionsError> {
        let deadline = Instant::now() + self.plan.login_timeout;
        let mut sample_at = Instant::now();
        while tally.up() + tally.gave_up() < self.plan.count && !self.over(tally, deadline) {
            take_reports(&self.processes, tally, POLL);
            if Instant::now() >= sample_at {
                sample_at = Instant::now() + SAMPLE;
                samples.push((f64::from(tally.up()), self.memory()?.pss_kib as f64));
                self.progress.live(&format!("{} of {} {what}", tally.up(), self.plan.count));
            }
        }
        if tally.up() < self.plan.count {
            let missing = self.plan.count - tally.up();
            self.results.problems.push(format!("{missing} of {} {what} are missing", self.plan.count));
        }
        Ok(())
    }

    fn over(&mut self, tally: &mut Tally, deadline: Instant) -> bool {
        if let Some(reason) = tally.broken.take() {
            self.results.problems.push(reason);
            return true;
        }
        self.interrupt.is_set() || Instant::now() > deadline
    }

    /// The end of a phase: its cost since the gateway had used `cpu_before`, what others took since
    /// `meter` began, and how many sessions carry packets.
    fn phase(
        &mut self,
        tally: &mut Tally,
        cpu_before: Option<f64>,
        mut meter: CpuMeter,
    ) -> Result<Phase, SessionsError> {
        let storm = tally.storm();
        let gateway_cpu_seconds = cpu_before.map(|before| self.cpu() - before);
        meter.read();
        let epochs = f64::from((storm.logins + storm.attaches).max(1));
        self.verify(tally);
        self.wait(tally, SETTLE);
        Ok(Phase {
            storm,
            gateway_cpu_seconds,
            cpu_ms_each: gateway_cpu_seconds.map(|seconds| 1e3 * seconds / epochs),
            answered: tally.answered(),
            memory: self.memory()?,
            taken: Taken::most(&meter.used()),
        })
    }

    fn verify(&mut self, tally: &mut Tally) {
        if self.interrupt.is_set() {
            return;
        }
        self.processes.send_each(|_| Command::Verify(u32::MAX));
        let deadline = Instant::now() + VERIFY_TIMEOUT;
        while tally.answered() < self.plan.count && !self.over(tally, deadline) {
            take_reports(&self.processes, tally, POLL);
        }
    }

    fn wait(&mut self, tally: &mut Tally, time: Duration) {
        let deadline = Instant::now() + time;
        while !self.over(tally, deadline) {
            take_reports(&self.processes, tally, POLL);
        }
    }

    fn talk(&mut self) {
        let (talkers, processes) = (self.plan.talkers, self.plan.processes);
        self.processes.send_each(|number| Command::Talk(share_of(talkers, processes, number as u32)));
        let mut tally = Tally::new(clock::now_ns());
        self.wait(&mut tally, self.plan.idle);
        self.processes.send_each(|_| Command::Talk(0));
        self.results.talked = tally.talked;
    }

    /// A packet of each session has shown that it is up. By that its keys were used, and are
    /// renewed once more.
    fn settle(&mut self) {
        let mut tally = Tally::new(clock::now_ns());
        self.wait(&mut tally, self.plan.settle);
    }

    fn watch_idle(&mut self) -> Result<(), SessionsError> {
        let mut tally = Tally::new(clock::now_ns());
        let (holders, mut meter) = (self.processes.ids(), self.meter());
        let (gateway, clients, since) = (self.cpu(), tree_cpu_seconds(&holders), Instant::now());
        self.wait(&mut tally, self.plan.idle);
        let seconds = since.elapsed().as_secs_f64();
        meter.read();
        self.memory()?;
        self.results.idle = Some(Idle {
            seconds,
            gateway_cpu_seconds: self.cpu() - gateway,
            clients_cpu_seconds: tree_cpu_seconds(&holders) - clients,
            taken: Taken::most(&meter.used()),
        });
        Ok(())
    }

    /// Goodput of each measurement of the pair, and the most that others took meanwhile; `None` if
    /// it is not wanted.
    fn measure_pair(&mut self, title: &str) -> Option<(Vec<f64>, Taken)> {
        let traffic = self.plan.traffic?;
        let plan = TrafficPlan {
            subjects: vec![Subject::new(Kind::Vpnd, Cipher::Auto)],
            clients: vec![PAIR],
            settings: real_work(traffic.seconds, 1.0, traffic.repeats),
            links: SessionsPlan::links(),
            programs: self.plan.programs.clone(),
        };
        let (mut rates, mut cpu) = (Vec::new(), Vec::new());
        for _ in 0..traffic.repeats {
            if self.interrupt.is_set() {
                break;
            }
            let gateway: (_, &dyn System, &[_]) = (self.lab, &*self.system, &self.addresses);
            let run = run_up(&plan, gateway, title, self.progress, self.interrupt);
            if run.is_whole() && run.problems().is_empty() {
                rates.push(run.goodput());
                cpu.extend(run.cpu);
            } else {
                let problems = run.problems().join("; ");
                self.results.problems.push(format!("{title}: {problems}"));
            }
        }
        Some((rates, Taken::most(&cpu)))
    }

    fn gateway(&self) -> u32 {
        self.system.processes().0.first().copied().unwrap_or_default()
    }

    /// A meter that has begun. After a restart that must be once the new gateway is there: the
    /// workers of one that is killed are left to init, which then counts as having used all that
    /// they ever did.
    fn meter(&self) -> CpuMeter {
        let mut meter = CpuMeter::new(self.system.processes());
        meter.read();
        meter
    }

    fn cpu(&self) -> f64 {
        tree_cpu_seconds(&[self.gateway()])
    }

    fn memory(&self) -> Result<Memory, SessionsError> {
        Memory::of_tree(self.gateway()).ok_or(SessionsError::GatewayGone)
    }
}
