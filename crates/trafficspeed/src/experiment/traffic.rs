//! Experiment 1, TrafficSpeed: a VPN server as its clients grow.
//!
//! Clients are paired, both ends of a pair are VPN clients, so every byte crosses the server twice;
//! or each has a partner behind the gateway, which then stands between an untrusted segment and a
//! trusted one. Each pair has many TCP connections, half carrying data each way; all pairs start at
//! one instant. Every measurement gets a fresh lab; systems and client counts are interleaved
//! within each repetition, so that drift of the machine hits all alike.

use std::time::{Duration, Instant};

use super::bulk_pairs::{self, SecondsObserver};
use super::generate;
use super::lab_agents::{LabAgents, Schedule, TestbedError};
use super::memory;
use super::outcome::{Campaign, Program, RemoteEnd, Run, Settings};
use super::progress::Progress;
use super::testbed::Testbed;
use super::turns::{order, pause};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LinkSettings};
use crate::observe::running_program;
use crate::system::{ClientAddress, Programs, Subject, System};
use crate::{clock, experiment::environment::Environment};

/// From the last connection to the start: enough for the command to reach every process of a busy
/// machine.
const LEAD: Duration = Duration::from_millis(400);

#[derive(Debug)]
pub struct TrafficPlan {
    pub subjects: Vec<Subject>,
    /// Client counts, each even.
    pub clients: Vec<u32>,
    pub settings: Settings,
    pub links: LinkSettings,
    pub programs: Programs,
}

/// Refuses what this machine can't run, before anything is changed.
///
/// # Errors
/// [`crate::lab::LabError::Missing`], or those of [`Subject::check_all`].
pub fn check(plan: &TrafficPlan) -> anyhow::Result<()> {
    plan.subjects.iter().try_for_each(|subject| Lab::check(plan.links_of(*subject)))?;
    generate::check(&plan.subjects, &plan.programs, plan.links)?;
    Ok(memory::check(plan.clients.iter().copied().max().unwrap_or(0), &plan.settings)?)
}

/// One measurement of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub subject: Subject,
    pub clients: u32,
    /// Which round, from 1.
    pub repeat: u32,
}

impl TrafficPlan {
    /// The links of the lab for a system, with its gateway's share of the CPU.
    fn links_of(&self, subject: Subject) -> LinkSettings {
        LinkSettings { gateway_cpu: subject.gateway_cpu.or(self.links.gateway_cpu), ..self.links }
    }

    /// The plan with the order of its systems in reports.
    #[must_use]
    pub fn named(mut self) -> Self {
        let labels = self.subjects.iter().map(|subject| subject.label_with(&self.programs));
        self.settings.systems = labels.collect();
        self
    }

    /// Every measurement in the order of work: rounds outermost, systems innermost and in turns.
    pub fn slots(&self) -> Vec<Slot> {
        let rounds = 1..=self.settings.repeats;
        let of_round = |repeat| {
            let counts = self.clients.iter();
            counts.flat_map(move |&clients| {
                let subjects = order(self.subjects.iter().copied(), repeat).into_iter();
                subjects.map(move |subject| Slot { subject, clients, repeat })
            })
        };
        rounds.flat_map(of_round).collect()
    }
}

/// Runs the whole campaign.
pub fn run(plan: &TrafficPlan, progress: &Progress, interrupt: &Interrupt) -> Campaign {
    let environment = Environment::read(Some(plan.links));
    let mut runs = Vec::new();
    for slot in plan.slots() {
        if !interrupt.is_set() {
            runs.push(run_one(plan, slot, 1, progress, interrupt));
        }
    }
    let interrupted = interrupt.is_set();
    Campaign::new(plan.settings.clone(), environment, runs, interrupted, None)
}

/// Makes one measurement, for the `attempt`th time, in its own lab. Whatever goes wrong is in
/// the result.
pub fn run_one(
    plan: &TrafficPlan,
    slot: Slot,
    attempt: u32,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Run {
    pause();
    let Slot { subject, clients, repeat } = slot;
    let began = Instant::now();
    let label = subject.label_with(&plan.programs);
    let title = format!("{label:<26} {clients:>3} clients  run {repeat}");
    let mut run = Run {
        subject: Some(subject),
        label,
        clients,
        repeat,
        attempt,
        started: clock::wall_text(),
        ..Run::default()
    };
    progress.starting(&title);
    let measured = measure(plan, subject, &mut run, progress, &title, interrupt);
    run.error = measured.err().map(|error| error.to_string());
    // Whatever else is wrong with it then may have come of the interruption.
    run.interrupted = interrupt.is_set() && !run.is_complete();
    run.took_seconds = began.elapsed().as_secs_f64();
    progress.finished(&title, &run);
    run
}

fn measure(
    plan: &TrafficPlan,
    subject: Subject,
    run: &mut Run,
    progress: &Progress,
    title: &str,
    interrupt: &Interrupt,
) -> Result<(), TestbedError> {
    let (system, links) = (subject.system(&plan.programs)?, plan.links_of(subject));
    let mut testbed = match plan.settings.far {
        RemoteEnd::Client => Testbed::with_clients(system, run.clients, links, interrupt)?,
        RemoteEnd::Gateway => Testbed::with_partners(system, run.clients, links, interrupt)?,
    };
    run.facts = testbed.facts().clone();
    let (agents, system) = testbed.parts();
    measure_pairs(plan, agents, system, run, (progress, title), interrupt)?;
    run.facts.notes.extend(testbed.emulator_notes());
    Ok(())
}

/// Measures the clients of a system that is up and stays so.
pub fn run_up(
    plan: &TrafficPlan,
    (lab, system, addresses): (&Lab, &dyn System, &[ClientAddress]),
    title: &str,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Run {
    let clients = addresses.len() as u32;
    let mut run =
        Run { label: title.to_owned(), clients, repeat: 1, started: clock::wall_text(), ..Run::default() };
    progress.starting(title);
    let measured = LabAgents::start(lab, addresses).and_then(|mut agents| {
        measure_pairs(plan, &mut agents, system, &mut run, (progress, title), interrupt)
    });
    run.error = measured.err().map(|error| error.to_string());
    progress.finished(title, &run);
    run
}

/// Client 1 with 2, 3 with 4, and so on; the first of each listens. Or each with its partner at the
/// gateway, which listens.
fn measure_pairs(
    plan: &TrafficPlan,
    agents: &mut LabAgents,
    system: &dyn System,
    run: &mut Run,
    (progress, title): (&Progress, &str),
    interrupt: &Interrupt,
) -> Result<(), TestbedError> {
    let settings = &plan.settings;
    let tasks = bulk_pairs::tasks(settings, agents.count() / 2);
    let half = agents.count() / 2;
    let ends = |pair| match settings.far {
        RemoteEnd::Client => (2 * pair + 1, 2 * pair),
        RemoteEnd::Gateway => (pair, half + pair),
    };
    let pair = |(tasks, pair)| agents.pair(ends(pair), settings.ip, tasks);
    let pairs = tasks.iter().map(Vec::as_slice).zip(0_usize..).map(pair).collect::<Result<Vec<_>, _>>()?;
    run.programs = programs(system);
    let mut observer = SecondsObserver::new(progress, title, settings);
    let schedule = Schedule { lead: LEAD, times: bulk_pairs::times(settings) };
    let measured = agents.measure(system, &pairs, schedule, &mut observer, interrupt)?;
    run.probe = tasks
        .first()
        .zip(measured.results.first())
        .and_then(|(tasks, found)| bulk_pairs::probe(tasks, found));
    (run.pairs, run.intervals) = bulk_pairs::collect(agents.fleet(), &pairs, measured.results);
    (run.cpu, run.carried) = (measured.cpu, measured.carried);
    measured.ended.map_or(Ok(()), |process| Err(TestbedError::Ended(process)))
}

/// The gateway's programs and those of one client, which stands for all.
fn programs(system: &dyn System) -> Vec<Program> {
    let (gateway, clients) = system.processes();
    let program = |role: &str, pid: u32| {
        let (command, sha256) = running_program(pid)?;
        Some(Program { role: role.to_owned(), command, sha256 })
    };
    let gateway = gateway.iter().filter_map(|pid| program("gateway", *pid));
    gateway.chain(clients.first().and_then(|pid| program("client", *pid))).collect()
}
