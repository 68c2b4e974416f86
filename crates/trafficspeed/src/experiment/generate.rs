//! The direct use of the generators: one kind of load through each system of the lab, repeated.
//! (Between real hosts `hosts::load` does the same plan.)
//!
//! Several clients may measure at once (`clients`): then a task is that of all of them together,
//! and each has its part of it. Systems take turns within each repetition, and each measurement
//! gets a fresh lab. A search for the highest rate without loss makes its trials one after the
//! other in the same lab.

mod clients;
pub mod observations;
pub mod search;

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::figures::{Figures, figures};
use super::hosts::host_pairs::{HostEnd, HostPairsPlan};
use super::outcome::{CpuUse, Taken};
use super::pair_run::{EndReports, Times};
use super::progress::Progress;
use super::testbed::{ClientsTrial, RemoteEnd, Testbed, TestbedError, Trial};
use super::turns::{in_turns, pause, until_quiet};
use crate::clock;
use crate::coordinate::message::Measurement;
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LinkSettings};
use crate::load::congestion::CongestionControl;
use crate::load::task::Task;
use crate::system::{Programs, Subject, SystemInfo, kernel};
pub use search::{Search, SearchOutcome, SearchTrial};

/// A task and what reports call it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NamedTask {
    /// For example `TCP stream, near to far`.
    pub name: String,
    pub task: Task,
}

#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// `stream`, `rr` or `udp`.
    pub command: &'static str,
    pub path: MeasuredPath,
    /// Clients that measure at once; of several, each has a partner at the gateway, and the figures
    /// are sums over all.
    pub clients: u32,
    /// The tasks of each client, all at once.
    pub tasks: Vec<NamedTask>,
    /// IP version inside the systems of the lab.
    pub ip: u8,
    /// The times of each measurement.
    pub times: Times,
    /// How often each is made.
    pub repeats: u32,
    /// The congestion controls of TCP that are measured, one after the other.
    pub congestion: Vec<CongestionControl>,
    /// Search the highest rate of the first task at which at most this percentage is lost.
    pub search: Option<f64>,
}

#[derive(Clone, Debug)]
pub enum MeasuredPath {
    Lab(Box<LabPath>),
    Hosts(HostPairsPlan),
}

/// A lab and what is measured in it.
#[derive(Clone, Debug)]
pub struct LabPath {
    pub subjects: Vec<Subject>,
    /// Where the far end is.
    pub far: RemoteEnd,
    pub links: LinkSettings,
    pub programs: Programs,
}

/// All measurements of one command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadCampaign {
    /// `stream`, `rr` or `udp`.
    pub command: String,
    pub settings: LoadSettings,
    pub environment: Environment,
    /// Round by round, in the order of reports.
    pub runs: Vec<LoadRun>,
    /// The user ended it early.
    pub interrupted: bool,
}

/// The work as reports record it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadSettings {
    /// Where the far end is; absent between real hosts.
    pub far: Option<RemoteEnd>,
    /// Clients that measured at once.
    pub clients: u32,
    /// The congestion controls that were measured, one after the other.
    pub congestion: Vec<CongestionControl>,
    /// IP version of the measured connections.
    pub ip: u8,
    pub seconds: f64,
    pub warmup_seconds: f64,
    pub interval_seconds: f64,
    /// The tasks of each client.
    pub tasks: Vec<NamedTask>,
    /// The loss that a search allows, in percent.
    pub search_loss_percent: Option<f64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadRun {
    /// The measured system; absent between real hosts.
    pub subject: Option<Subject>,
    /// Its name in the report.
    pub label: String,
    pub congestion: CongestionControl,
    /// Which repetition, from 1.
    pub repeat: u32,
    /// When it began, UTC.
    pub started: String,
    /// The system's own account.
    pub facts: SystemInfo,
    /// The near and the far host, if they are real ones.
    pub hosts: Vec<HostEnd>,
    /// Task by task; sums over all clients.
    pub figures: Vec<Figures>,
    /// Figures of each of several clients, client by client and task by task, without their
    /// course over time.
    pub by_client: Vec<Vec<Figures>>,
    pub cpu: Option<CpuUse>,
    /// Datagrams that the ends' kernels dropped at full sockets, the generator's and others.
    pub socket_drops: u64,
    /// Those of them that the generator did not take in time.
    pub generator_drops: u64,
    /// The search, if there was one.
    pub search: Option<SearchOutcome>,
    /// An end stopped early.
    pub stopped_early: bool,
    /// Faults of single streams.
    pub faults: Vec<String>,
    /// Why there is no result.
    pub error: Option<String>,
}

impl LoadRun {
    /// The share of the machine that others took, in all trials if there was a search.
    pub fn taken(&self) -> Taken {
        let trials = self.search.as_ref().map(|search| search.taken).unwrap_or_default();
        self.cpu.iter().fold(trials, Taken::with)
    }

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

    /// Shows that it is over, and what went wrong.
    pub(super) fn tell(&self, progress: &Progress) {
        for problem in self.problems() {
            progress.note(&format!("{}, run {}: {problem}", self.label, self.repeat));
        }
    }

    pub(super) fn take(&mut self, tasks: &[Task], reports: &EndReports) {
        self.figures = tasks.iter().zip(0..).map(|(task, at)| figures(task, at, reports)).collect();
        self.socket_drops = reports.ends.iter().map(|end| end.socket_drops).sum();
        self.generator_drops = reports.ends.iter().map(Measurement::generator_drops).sum();
        self.stopped_early = reports.stopped_early();
        self.faults = reports.faults();
    }

    /// Takes what each client of several measured, where `tasks` are those of all clients together.
    fn take_clients(&mut self, tasks: &[Task], reports: &[EndReports]) {
        self.take(tasks, &clients::together(reports));
        self.by_client = clients::figures(tasks, reports);
        self.faults = clients::faults(reports);
    }
}

impl LoadPlan {
    /// The links of the lab under each congestion control.
    fn links(&self, lab: &LabPath) -> Vec<LinkSettings> {
        self.congestion.iter().map(|&congestion| LinkSettings { congestion, ..lab.links }).collect()
    }

    /// Like [`check`], under each congestion control.
    ///
    /// # Errors
    /// The first thing that is missing.
    pub fn check(&self, lab: &LabPath) -> anyhow::Result<()> {
        self.links(lab).into_iter().try_for_each(Lab::check)?;
        check(&lab.subjects, &lab.programs, lab.links)
    }

    /// The plan with TCP under one congestion control, and what tells it from the others in a
    /// label.
    pub(super) fn under(&self, congestion: CongestionControl) -> (Self, String) {
        let mut plan = Self { congestion: vec![congestion], ..self.clone() };
        plan.tasks.iter_mut().for_each(|named| named.task.set_congestion(congestion));
        (plan, if self.congestion.len() > 1 { format!(", {congestion}") } else { String::new() })
    }

    /// The campaign before its first run.
    pub(super) fn campaign(&self, environment: Environment, ip: u8) -> LoadCampaign {
        let far = match &self.path {
            MeasuredPath::Lab(lab) => Some(lab.far),
            MeasuredPath::Hosts(_) => None,
        };
        let mut tasks = self.tasks.clone();
        if let Some(first) = self.congestion.first() {
            tasks.iter_mut().for_each(|named| named.task.set_congestion(*first));
        }
        let settings = LoadSettings {
            far,
            clients: self.clients,
            congestion: self.congestion.clone(),
            ip,
            seconds: self.times.duration.as_secs_f64(),
            warmup_seconds: self.times.warmup.as_secs_f64(),
            interval_seconds: self.times.interval.as_secs_f64(),
            tasks,
            search_loss_percent: self.search,
        };
        let (command, runs) = (self.command.to_owned(), Vec::new());
        LoadCampaign { command, settings, environment, runs, interrupted: false }
    }
}

impl LoadCampaign {
    /// Says that no more runs will come.
    pub(super) fn close(self, interrupt: &Interrupt) -> Self {
        Self { interrupted: interrupt.is_set(), ..self }
    }
}

/// Says what is missing, before anything is changed: a lab that cannot be, or systems
/// ([`Subject::check_all`]).
pub fn check(subjects: &[Subject], programs: &Programs, links: LinkSettings) -> anyhow::Result<()> {
    Lab::check(links)?;
    kernel::check_limit(subjects, links.gateway_cpu)?;
    Ok(Subject::check_all(subjects, programs)?)
}

/// Runs everything in the lab.
pub fn run(plan: &LoadPlan, lab: &LabPath, progress: &Progress, interrupt: &Interrupt) -> LoadCampaign {
    let mut campaign = plan.campaign(Environment::of_each(&plan.links(lab)), plan.ip);
    let all: Vec<_> =
        plan.congestion.iter().map(|&congestion| (congestion, plan.under(congestion))).collect();
    let combinations: Vec<_> =
        lab.subjects.iter().flat_map(|subject| all.iter().map(move |under| (*subject, under))).collect();
    campaign.runs = in_turns(&combinations, plan.repeats, interrupt, |&(subject, under), repeat| {
        let (congestion, (plan, suffix)) = under;
        pause();
        let taken = |run: &LoadRun| run.is_whole().then(|| run.taken());
        until_quiet(interrupt, taken, || {
            let mut run = LoadRun {
                subject: Some(subject),
                label: format!("{}{suffix}", subject.label_with(&lab.programs)),
                congestion: *congestion,
                repeat,
                started: clock::wall_text(),
                ..LoadRun::default()
            };
            progress.note(&format!("{}, run {repeat}", run.label));
            let measured = measure(plan, lab, subject, &mut run, interrupt);
            run.error = measured.err().map(|error| error.to_string());
            run.tell(progress);
            run
        })
    });
    campaign.close(interrupt)
}

fn measure(
    plan: &LoadPlan,
    lab: &LabPath,
    subject: Subject,
    run: &mut LoadRun,
    interrupt: &Interrupt,
) -> Result<(), TestbedError> {
    let system = subject.system(&lab.programs)?;
    let links = LinkSettings { congestion: run.congestion, ..lab.links };
    let mut testbed = match plan.clients {
        1 => Testbed::build(system, lab.far, links, interrupt)?,
        clients => Testbed::with_partners(system, clients, links, interrupt)?,
    };
    run.facts = testbed.facts().clone();
    let ip = plan.ip;
    let mut attempt = |tasks: Vec<Task>, times: Times, run: &mut LoadRun| {
        if plan.clients == 1 {
            let trial = Trial { tasks, ip, times };
            let measured = testbed.measure(&trial, interrupt)?;
            run.take(&trial.tasks, &measured.reports);
            run.cpu = Some(measured.cpu);
        } else {
            let trial = ClientsTrial { tasks: clients::parts(&tasks, plan.clients), ip, times };
            let (reports, cpu) = testbed.measure_clients(&trial, interrupt)?;
            run.take_clients(&tasks, &reports);
            run.cpu = Some(cpu);
        }
        Ok::<_, TestbedError>(())
    };
    search::or_once(plan, run, &mut attempt, interrupt)?;
    run.facts.notes.extend(testbed.emulator_notes());
    Ok(())
}

/// This task with its own run id.
pub fn fresh(task: &Task) -> Task {
    let mut task = task.clone();
    let run_id = rand::random();
    match &mut task {
        Task::Bulk(job) => job.run_id = run_id,
        Task::Messages(work) => work.run_id = run_id,
        Task::Exchange(work) => work.run_id = run_id,
        Task::Pages(work) => work.run_id = run_id,
    }
    task
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::message::Messages;
    use crate::load::tcp::Job;
    use crate::observe::HostCpu;

    fn plan(congestion: &[&str]) -> LoadPlan {
        let task = Task::Bulk(Job { write_bytes: 1_000, ..Job::default() });
        LoadPlan {
            command: "stream",
            path: MeasuredPath::Lab(Box::new(lab())),
            clients: 2,
            tasks: vec![NamedTask { name: "TCP".into(), task }],
            ip: 4,
            times: Times::default(),
            repeats: 1,
            congestion: congestion.iter().map(|name| name.parse().unwrap()).collect(),
            search: None,
        }
    }

    fn lab() -> LabPath {
        LabPath {
            subjects: Vec::new(),
            far: RemoteEnd::Gateway,
            links: LinkSettings::default(),
            programs: Programs::default(),
        }
    }

    #[test]
    fn a_search_is_disturbed_if_one_of_its_trials_was() {
        let mut plan = plan(&["reno"]);
        let task = Task::Messages(Messages { length: 1_000, ..Messages::default() });
        (plan.tasks[0].task, plan.search) = (task, Some(0.1));
        let mut attempts = 0;
        let mut attempt = |_: Vec<Task>, _: Times, run: &mut LoadRun| {
            attempts += 1;
            let foreign = if attempts == 1 { 1.0 } else { 0.0 };
            let host = HostCpu { user: 4.0, ..HostCpu::default() };
            run.cpu = Some(CpuUse { foreign, host, ..CpuUse::default() });
            let (lost_percent, received_per_second) = (Some(0.0), Some(1_000.0));
            run.figures = vec![Figures { lost_percent, received_per_second, ..Figures::default() }];
            Ok::<_, ()>(())
        };
        let mut run = LoadRun { repeat: 1, ..LoadRun::default() };
        search::or_once(&plan, &mut run, &mut attempt, &Interrupt::default()).unwrap();
        assert!(attempts > 1 && !Taken::most(&run.cpu).is_disturbed(), "the last one was quiet");
        let mut campaign = plan.campaign(Environment::default(), 4);
        campaign.runs.push(run);
        assert_eq!(campaign.observations().disturbed(), (1, 1));
    }

    #[test]
    fn every_congestion_control_is_checked_and_named() {
        let plan = plan(&["reno", "nonsuch"]);
        let names: Vec<String> =
            plan.links(&lab()).iter().map(|links| links.congestion.to_string()).collect();
        assert_eq!(names, ["reno", "nonsuch"]);
        // Without root it is that which is missing first.
        assert!(plan.check(&lab()).is_err());
        let environment = Environment::of_each(&plan.links(&lab()));
        let campaign = plan.campaign(environment, 4);
        let said = campaign.environment.links.unwrap();
        assert!(said.contains("reno") && said.contains("nonsuch"), "{said}");
        assert_eq!(campaign.settings.congestion, plan.congestion);
        let first = campaign.settings.tasks[0].task.congestion();
        assert_eq!(first.name(), "reno", "not the one that a task has before it is known");
    }
}
