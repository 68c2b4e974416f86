//! The direct use of the generators in the lab: one kind of load through each system, repeated.
//!
//! Systems take turns within each repetition, and each measurement gets a fresh lab. A search for the highest rate
//! without loss makes its trials one after the other in the same lab.

use std::time::Duration;

use serde::Serialize;

use super::duet::Times;
use super::environment::Environment;
use super::figures::{Figures, figures};
use super::outcome::CpuUse;
use super::site::{Far, Measured, Site, SiteError, Trial};
use crate::clock;
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LinkSettings};
use crate::load::search::RateSearch;
use crate::load::task::Task;
use crate::system::{Facts, Programs, Subject};

/// How near the limits of a search come.
const RESOLUTION: f64 = 0.02;
/// A sender that reaches less of the rate it was told than this was itself the limit.
const LEAST_SENT: f64 = 0.97;
/// The longest that a single trial of a search takes unless the user wants longer.
const SEARCH_WARMUP: Duration = Duration::from_millis(200);

/// A task and what reports call it.
#[derive(Clone, Debug, Serialize)]
pub struct NamedTask {
    /// For example `TCP stream, near to far`.
    pub name: String,
    /// The work.
    pub task: Task,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// `stream`, `rr` or `udp`.
    pub command: &'static str,
    /// The systems.
    pub subjects: Vec<Subject>,
    /// Where the far end is.
    pub far: Far,
    /// The links.
    pub links: LinkSettings,
    /// Where programs are.
    pub programs: Programs,
    /// The tasks, all at once.
    pub tasks: Vec<NamedTask>,
    /// IP version inside.
    pub ip: u8,
    /// The times of each measurement.
    pub times: Times,
    /// How often each is made.
    pub repeats: u32,
    /// Search the highest rate of the first task at which at most this percentage is lost.
    pub search: Option<f64>,
}

/// All measurements of one command.
#[derive(Clone, Debug, Serialize)]
pub struct LoadCampaign {
    /// `stream`, `rr` or `udp`.
    pub command: &'static str,
    /// The work.
    pub settings: LoadSettings,
    /// Where it ran.
    pub environment: Environment,
    /// In the order they were made.
    pub runs: Vec<LoadRun>,
    /// The user ended it early.
    pub interrupted: bool,
}

/// The work as reports record it.
#[derive(Clone, Debug, Serialize)]
pub struct LoadSettings {
    /// Where the far end is.
    pub far: Far,
    /// IP version inside.
    pub ip: u8,
    /// Measured seconds.
    pub seconds: f64,
    /// Seconds before that.
    pub warmup_seconds: f64,
    /// Seconds between samples.
    pub interval_seconds: f64,
    /// The tasks.
    pub tasks: Vec<NamedTask>,
    /// The loss that a search allows, in percent.
    pub search_loss_percent: Option<f64>,
}

/// One measurement.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadRun {
    /// What was measured.
    pub subject: Option<Subject>,
    /// What the report calls it.
    pub label: String,
    /// Which repetition, from 1.
    pub repeat: u32,
    /// When it began, UTC.
    pub started: String,
    /// What the system said of itself.
    pub facts: Facts,
    /// Task by task.
    pub figures: Vec<Figures>,
    /// CPU time.
    pub cpu: Option<CpuUse>,
    /// Datagrams that the ends' kernels dropped because the generator did not take them in time.
    pub socket_drops: u64,
    /// The search, if there was one.
    pub search: Option<SearchOutcome>,
    /// An end stopped early.
    pub stopped_early: bool,
    /// What went wrong on single streams.
    pub faults: Vec<String>,
    /// Why there is no result.
    pub error: Option<String>,
}

/// What a search found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SearchOutcome {
    /// Messages per second of the best trial that was carried; zero if none was.
    pub packets_per_second: f64,
    /// Its payload.
    pub bits_per_second: f64,
    /// The sender could not do more, so the path may.
    pub limited_by_sender: bool,
    /// Every trial.
    pub trials: Vec<SearchTrial>,
}

/// One trial of a search.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SearchTrial {
    /// The rate that was asked for, payload; absent: as fast as possible.
    pub asked_bits_per_second: Option<f64>,
    /// Messages that were sent, per second.
    pub sent_per_second: f64,
    /// Messages that arrived, per second.
    pub received_per_second: f64,
    /// Lost, in percent.
    pub lost_percent: f64,
    /// Whether it counts as carried.
    pub carried: bool,
}

impl LoadRun {
    /// Whether the figures may stand in a comparison.
    pub fn is_whole(&self) -> bool {
        self.error.is_none() && !self.stopped_early && self.faults.is_empty()
    }

    /// Everything that went wrong, in words.
    pub fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.error.iter().cloned().chain(self.faults.clone()).collect();
        if self.stopped_early {
            problems.push("ended early".into());
        }
        problems
    }

    fn take(&mut self, tasks: &[Task], measured: &Measured) {
        self.figures = tasks.iter().zip(0..).map(|(task, at)| figures(task, at, &measured.heard)).collect();
        self.cpu = Some(measured.cpu);
        self.socket_drops = measured.heard.ends.iter().map(|end| end.socket_drops).sum();
        self.stopped_early = measured.heard.stopped_early();
        let found = measured.heard.ends.iter().flat_map(|end| &end.tasks);
        self.faults = found.flat_map(|task| task.found.faults.clone()).collect();
    }
}

/// Says what is missing, before anything is changed: a lab that cannot be, or no system that can run.
///
/// # Errors
/// In words.
pub fn check(subjects: &[Subject], programs: &Programs, links: LinkSettings) -> anyhow::Result<()> {
    Lab::check(links)?;
    let problems: Vec<_> = subjects.iter().filter_map(|subject| subject.check(programs).err()).collect();
    let count = problems.len();
    match problems.into_iter().next() {
        Some(error) if subjects.len() == count => Err(error.into()),
        _ => Ok(()),
    }
}

/// Runs everything; `tell` hears a line before and after each measurement.
pub fn run(plan: &LoadPlan, tell: &dyn Fn(&str), interrupt: &Interrupt) -> LoadCampaign {
    let mut runs = Vec::new();
    for repeat in 1..=plan.repeats {
        for &subject in &plan.subjects {
            if interrupt.is_set() {
                continue;
            }
            let label = subject.label_with(&plan.programs);
            let title = format!("{label}, run {repeat}");
            tell(&title);
            let mut run = LoadRun {
                subject: Some(subject),
                label,
                repeat,
                started: clock::wall_text(),
                ..LoadRun::default()
            };
            run.error = measure(plan, &mut run, interrupt).err().map(|error| error.to_string());
            for problem in run.problems() {
                tell(&format!("{title}: {problem}"));
            }
            runs.push(run);
        }
    }
    LoadCampaign {
        command: plan.command,
        settings: plan.settings(),
        environment: Environment::read(Some(plan.links)),
        runs,
        interrupted: interrupt.is_set(),
    }
}

impl LoadPlan {
    fn settings(&self) -> LoadSettings {
        LoadSettings {
            far: self.far,
            ip: self.ip,
            seconds: self.times.duration.as_secs_f64(),
            warmup_seconds: self.times.warmup.as_secs_f64(),
            interval_seconds: self.times.interval.as_secs_f64(),
            tasks: self.tasks.clone(),
            search_loss_percent: self.search,
        }
    }
}

fn measure(plan: &LoadPlan, run: &mut LoadRun, interrupt: &Interrupt) -> Result<(), SiteError> {
    let system = run.subject.expect("the caller names it").system(&plan.programs)?;
    let mut site = Site::build(system, plan.far, plan.links, interrupt)?;
    run.facts = site.facts().clone();
    let tasks: Vec<Task> = plan.tasks.iter().map(|named| fresh(&named.task)).collect();
    if let Some(allowed) = plan.search {
        let found = search(&mut site, plan, &tasks[0], allowed, run, interrupt)?;
        run.search = Some(found);
        return Ok(());
    }
    let trial = Trial { tasks, ip: plan.ip, times: plan.times };
    let measured = site.measure(&trial, interrupt)?;
    run.take(&trial.tasks, &measured);
    if let Some(emulator) = site.lab().emulator() {
        run.facts.notes.extend(emulator.notes());
    }
    Ok(())
}

/// The same task with a run id of its own.
pub fn fresh(task: &Task) -> Task {
    let mut task = task.clone();
    let run_id = rand::random();
    match &mut task {
        Task::Bulk(job) => job.run_id = run_id,
        Task::Messages(work) => work.run_id = run_id,
        Task::Exchange(work) => work.run_id = run_id,
    }
    task
}

/// The highest rate at which at most `allowed` percent of the messages are lost.
fn search(
    site: &mut Site,
    plan: &LoadPlan,
    task: &Task,
    allowed: f64,
    run: &mut LoadRun,
    interrupt: &Interrupt,
) -> Result<SearchOutcome, SiteError> {
    let times = Times { warmup: plan.times.warmup.min(SEARCH_WARMUP), ..plan.times };
    let mut outcome = SearchOutcome::default();
    let mut attempt = |rate: Option<f64>, run: &mut LoadRun| {
        let mut task = fresh(task);
        if let Task::Messages(work) = &mut task {
            // Less than one bit per second is no rate.
            work.bits_per_second = rate.map(|rate| (rate as u64).max(1) / u64::from(work.streams));
        }
        let trial = Trial { tasks: vec![task], ip: plan.ip, times };
        let measured = site.measure(&trial, interrupt)?;
        run.take(&trial.tasks, &measured);
        Ok::<_, SiteError>(SearchTrial::of(rate, &run.figures[0]))
    };
    let mut first = attempt(None, run)?;
    if first.lost_percent <= allowed {
        first.carried = true;
        return Ok(SearchOutcome {
            packets_per_second: first.received_per_second,
            bits_per_second: run.figures[0].received_bits_per_second,
            limited_by_sender: true,
            trials: vec![first],
        });
    }
    let mut limits = RateSearch::new(run.figures[0].sent_bits_per_second, RESOLUTION);
    outcome.trials.push(first);
    while let Some(rate) = limits.next().filter(|_| !interrupt.is_set()) {
        let mut trial = attempt(Some(rate), run)?;
        let full = run.figures[0].sent_bits_per_second >= LEAST_SENT * rate;
        // A sender that cannot keep the pace says nothing against the path: what it sent is what is judged.
        trial.carried = trial.lost_percent <= allowed;
        if trial.carried && trial.received_per_second > outcome.packets_per_second {
            outcome.packets_per_second = trial.received_per_second;
            outcome.bits_per_second = run.figures[0].received_bits_per_second;
            outcome.limited_by_sender = !full;
        }
        limits.tell(trial.carried);
        outcome.trials.push(trial);
    }
    Ok(outcome)
}

impl SearchTrial {
    fn of(rate: Option<f64>, figures: &Figures) -> Self {
        Self {
            asked_bits_per_second: rate,
            sent_per_second: figures.sent_per_second.unwrap_or_default(),
            received_per_second: figures.received_per_second.unwrap_or_default(),
            // Nothing sent is no proof of anything.
            lost_percent: figures.lost_percent.unwrap_or(100.0),
            carried: false,
        }
    }
}
