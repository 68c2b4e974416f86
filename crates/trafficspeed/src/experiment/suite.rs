//! Suites: many short measurements of one VPN under different ciphers, links and loads, as one
//! experiment.
//!
//! A suite is a list of stages; a stage is one system in one lab, in which its cases are measured
//! one after the other. Stages are interleaved within each repetition, so that drift of the machine
//! hits all alike.

pub mod aead;
mod bottleneck;
pub mod flows;
pub mod ipsec;
pub mod observations;
mod options;
mod quantity;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::figures::{Figures, figures};
use super::generate::{Search, SearchOutcome, fresh};
use super::hog::{self, Hogs};
use super::outcome::{CpuUse, Taken};
use super::pair_run::{EndReports, Times};
use super::problems::said_once;
use super::progress::Progress;
use super::testbed::{RemoteEnd, Testbed, TestbedError, Trial};
use super::turns::{in_turns, pause, until_quiet};
use crate::interrupt::Interrupt;
use crate::lab::LinkSettings;
use crate::load::task::Task;
use crate::observe::load_average;
use crate::system::vpnd::{Code, Vpnd};
use crate::system::{AGAIN, Cipher, Kind, Priority, Programs, Subject, System, SystemError, SystemInfo};
pub use options::SuiteOptions;
pub use quantity::Quantity;

/// How the names of the sweeps' sections begin.
pub const SWEEP: &str = "Sweep: ";
/// The time to build a lab and bring a system up, and to connect and drain before and after,
/// about.
const STAGE_TIME: Duration = Duration::from_millis(2_500);
const CASE_TIME: Duration = Duration::from_millis(600);
/// Trials of a search, about.
const SEARCH_TRIALS: u32 = 12;
/// Time that a CPU hog may outlive its measurement, if it is not ended.
const HOG_GRACE: Duration = Duration::from_secs(60);

/// One measurement of a stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// The part of the report that it belongs to.
    pub section: String,
    pub name: String,
    pub task: Task,
    pub ip: u8,
    /// The figures that are shown of it.
    pub quantities: Vec<Quantity>,
    /// CPU hogs that run meanwhile.
    pub hogs: u32,
    /// Search the highest rate at which at most this much is lost, and measure at that.
    pub search: Option<Search>,
    #[serde(skip)]
    pub times: Times,
}

/// One system in one lab.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The system and its cipher.
    pub subject: Subject,
    /// The machine code of its ciphers.
    pub code: Code,
    pub links: LinkSettings,
    /// Whether there are other VPNs, so that a cipher alone would not name it.
    pub among_others: bool,
    /// Measured in it; none: only what the system says of itself is of interest.
    pub cases: Vec<Case>,
}

#[derive(Clone, Debug)]
pub struct SuitePlan {
    /// `ipsec`, `aead` or `flows`.
    pub name: &'static str,
    /// One sentence for the report's head.
    pub about: String,
    pub far: RemoteEnd,
    pub stages: Vec<Stage>,
    /// How often each case is measured.
    pub repeats: u32,
    /// Measure with CPU hogs only once the load average shows them, which takes minutes.
    pub await_load: bool,
    pub programs: Programs,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SuiteCampaign {
    /// `ipsec`, `aead` or `flows`.
    pub name: String,
    /// One sentence for the report's head.
    pub about: String,
    /// Where the far end is; absent between real hosts.
    pub far: Option<RemoteEnd>,
    /// How often each case was to be measured.
    pub repeats: u32,
    pub environment: Environment,
    /// The systems' own accounts, one entry per stage and repetition.
    pub stages: Vec<StageInfo>,
    /// Every measurement, in order.
    pub rows: Vec<Row>,
    /// The user ended it early.
    pub interrupted: bool,
}

/// A stage as it came up, or why it did not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageInfo {
    /// Its name in reports.
    pub label: String,
    /// The system and its cipher.
    pub subject: Option<Subject>,
    pub code: Code,
    /// MTU of the lab's links.
    pub link_mtu: Option<u32>,
    /// The system's own account.
    pub facts: SystemInfo,
    /// Why it did not come up.
    pub error: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The stage's name in reports.
    pub label: String,
    /// The system and its cipher; absent between real hosts.
    pub subject: Option<Subject>,
    pub code: Code,
    /// MTU of the lab's links.
    pub link_mtu: Option<u32>,
    pub case: Case,
    /// Which repetition, from 1.
    pub repeat: u32,
    pub figures: Option<Figures>,
    /// The search that led to the rate of these figures.
    pub search: Option<SearchOutcome>,
    pub cpu: Option<CpuUse>,
    /// The machine's load average of the last minute as a measurement with CPU hogs began.
    pub load_average: Option<f64>,
    /// Why nothing came out, or what was wrong with it.
    pub error: Option<String>,
}

impl Case {
    /// Measures it, at the highest rate that is carried if it is to be searched; see
    /// [`Search::measured`].
    ///
    /// # Errors
    /// The first of `measure`.
    pub(super) fn measured<M, E>(
        &self,
        measure: &mut dyn FnMut(Task, Times) -> Result<(Figures, M), E>,
        interrupt: &Interrupt,
    ) -> Result<(Option<SearchOutcome>, M), E> {
        let Some(search) = self.search else { return Ok((None, measure(fresh(&self.task), self.times)?.1)) };
        let (found, measured) = search.measured(&self.task, self.times, measure, interrupt)?;
        Ok((Some(found), measured))
    }
}

impl Row {
    /// A measurement of nothing yet.
    pub fn new(label: String, case: &Case, repeat: u32) -> Self {
        Self {
            label,
            subject: None,
            code: Code::default(),
            link_mtu: None,
            case: case.clone(),
            repeat,
            figures: None,
            search: None,
            cpu: None,
            load_average: None,
            error: None,
        }
    }

    /// The value of a quantity, if the measurement stands.
    pub fn value(&self, quantity: Quantity) -> Option<f64> {
        if self.error.is_some() {
            return None;
        }
        quantity.of(self.figures.as_ref()?)
    }
}

impl SuiteCampaign {
    /// Whether everything was measured as it should be.
    pub fn is_whole(&self) -> bool {
        !self.interrupted && self.problems().is_empty()
    }

    /// Everything that went wrong, in words; the same of several measurements of a system once.
    pub fn problems(&self) -> Vec<String> {
        let stages = self
            .stages
            .iter()
            .filter_map(|stage| Some((stage.label.clone(), String::new(), stage.error.clone()?)));
        let rows = self.rows.iter().filter_map(|row| {
            let place = format!("{}, run {}", row.case.name, row.repeat);
            Some((row.label.clone(), place, row.error.clone()?))
        });
        said_once(stages.chain(rows))
    }
}

impl Stage {
    /// Its name in reports.
    pub fn label(&self) -> String {
        let name = match (self.subject.kind, self.subject.cipher) {
            (Kind::Vpnd, cipher) if !self.among_others && self.subject.priority == Priority::Own => {
                cipher.name().to_owned()
            }
            _ => Subject { again: false, ..self.subject }.label(),
        };
        let code = if self.code == Code::WithoutAes { ", without AES instructions" } else { "" };
        let again = if self.subject.again { AGAIN } else { "" };
        format!("{name}{code}{again}")
    }

    /// The stage that is measured a second time as a control, without sweeps: that of AES-256-GCM,
    /// or the first VPN.
    pub(super) fn control(stages: &[Self]) -> Option<Self> {
        let vpns =
            || stages.iter().filter(|stage| stage.subject.kind != Kind::None && !stage.cases.is_empty());
        let chosen =
            vpns().find(|stage| stage.subject.cipher == Cipher::Aes256Gcm).or_else(|| vpns().next())?;
        let cases = chosen.cases.iter().filter(|case| !case.section.starts_with(SWEEP)).cloned().collect();
        Some(Self { subject: chosen.subject.again(), cases, ..chosen.clone() })
    }

    fn system(&self, programs: &Programs) -> Result<Box<dyn System>, SystemError> {
        if self.subject.kind == Kind::Vpnd && self.code != Code::Native {
            return Ok(Box::new(Vpnd::with_code(programs, self.subject, self.code)));
        }
        self.subject.system(programs)
    }
}

impl SuitePlan {
    /// The number of measurements.
    pub fn count(&self) -> usize {
        self.repeats as usize * self.stages.iter().map(|stage| stage.cases.len()).sum::<usize>()
    }

    /// About how long it takes.
    pub fn estimate(&self) -> Duration {
        let once = |times: Times| times.warmup + times.duration + CASE_TIME;
        let case = |case: &Case| {
            let trials = case.search.map(|search| SEARCH_TRIALS * once(search.trial_times(case.times)));
            once(case.times) + trials.unwrap_or_default()
        };
        let stage = |stage: &Stage| {
            let waits = self.await_load && stage.cases.iter().any(|case| case.hogs > 0);
            let load = if waits { hog::LOAD_TIMEOUT } else { Duration::ZERO };
            STAGE_TIME + load + stage.cases.iter().map(case).sum::<Duration>()
        };
        self.stages.iter().map(stage).sum::<Duration>() * self.repeats
    }
}

impl SuiteCampaign {
    /// The campaign before its first measurement.
    pub(super) fn begin(plan: &SuitePlan, far: Option<RemoteEnd>, environment: Environment) -> Self {
        Self {
            name: plan.name.to_owned(),
            about: plan.about.clone(),
            far,
            repeats: plan.repeats,
            environment,
            stages: Vec::new(),
            rows: Vec::new(),
            interrupted: false,
        }
    }

    /// Says that no more measurements will come.
    pub(super) fn close(self, interrupt: &Interrupt) -> Self {
        Self { interrupted: interrupt.is_set(), ..self }
    }
}

/// Runs a suite in the lab.
pub fn run(plan: &SuitePlan, progress: &Progress, interrupt: &Interrupt) -> SuiteCampaign {
    let links: Vec<LinkSettings> = plan.stages.iter().map(|stage| stage.links).collect();
    let mut campaign = SuiteCampaign::begin(plan, Some(plan.far), Environment::of_each(&links));
    let mut turns = 0;
    let found = in_turns(&plan.stages, plan.repeats, interrupt, |stage, repeat| {
        pause();
        let number = turns % plan.stages.len() + 1;
        turns += 1;
        progress.note(&format!(
            "run {repeat} of {}, {number} of {}: {}, MTU {}, {} measurements",
            plan.repeats,
            plan.stages.len(),
            stage.label(),
            stage.links.mtu,
            stage.cases.len()
        ));
        run_stage(plan, stage, repeat, interrupt)
    });
    for (stage, rows) in found {
        campaign.stages.push(stage);
        campaign.rows.extend(rows);
    }
    campaign.close(interrupt)
}

fn run_stage(plan: &SuitePlan, stage: &Stage, repeat: u32, interrupt: &Interrupt) -> (StageInfo, Vec<Row>) {
    let build = || Testbed::build(stage.system(&plan.programs)?, plan.far, stage.links, interrupt);
    let mut rows = Vec::new();
    let mut facts = StageInfo {
        label: stage.label(),
        subject: Some(stage.subject),
        code: stage.code,
        link_mtu: Some(stage.links.mtu),
        ..StageInfo::default()
    };
    let mut testbed = match build() {
        Ok(testbed) => testbed,
        Err(error) => {
            facts.error = Some(error.to_string());
            return (facts, rows);
        }
    };
    facts.facts = testbed.facts().clone();
    for case in &stage.cases {
        if interrupt.is_set() {
            break;
        }
        let taken = |found: &Result<Found, TestbedError>| {
            found.as_ref().ok().filter(|found| found.fault.is_none()).map(Found::taken)
        };
        let measured =
            until_quiet(interrupt, taken, || measure(&mut testbed, case, plan.await_load, interrupt));
        let is_lost = measured.as_ref().is_err_and(TestbedError::is_final);
        rows.push(row(stage, case, repeat, measured));
        if is_lost {
            // Late reports of the ends must not be taken for those of the next case.
            drop(testbed);
            match build() {
                Ok(again) => testbed = again,
                Err(_) => break,
            }
        }
    }
    (facts, rows)
}

/// A case as it was measured.
struct Found {
    figures: Figures,
    search: Option<SearchOutcome>,
    cpu: CpuUse,
    load_average: Option<f64>,
    fault: Option<String>,
}

impl Found {
    /// The share of the machine that others took, in all trials if there was a search.
    fn taken(&self) -> Taken {
        self.search.as_ref().map(|search| search.taken).unwrap_or_default().with(&self.cpu)
    }
}

fn measure(
    testbed: &mut Testbed,
    case: &Case,
    await_load: bool,
    interrupt: &Interrupt,
) -> Result<Found, TestbedError> {
    let waiting = if await_load { hog::LOAD_TIMEOUT } else { Duration::ZERO };
    let mut hogs = Hogs::start(case.hogs, waiting + case.times.warmup + case.times.duration + HOG_GRACE)?;
    if await_load {
        hogs.await_load(interrupt);
    }
    let load_average = load_average().filter(|_| case.hogs > 0);
    let mut taken = Taken::default();
    let mut measure = |task: Task, times: Times| {
        let trial = Trial { tasks: vec![task], ip: case.ip, times };
        let measured = testbed.measure(&trial, interrupt)?;
        taken = taken.with(&measured.cpu);
        let figures = figures(&trial.tasks[0], 0, &measured.reports);
        Ok::<_, TestbedError>((figures.clone(), (measured, figures)))
    };
    let (found, (measured, figures)) = case.measured(&mut measure, interrupt)?;
    let mut faults = faults(&measured.reports);
    faults.extend(found.as_ref().and_then(SearchOutcome::problem));
    if hogs.running() < case.hogs as usize {
        faults.push("a CPU hog ended too early".into());
    }
    Ok(Found {
        figures,
        search: found.map(|found| SearchOutcome { taken, ..found }),
        cpu: measured.cpu,
        load_average,
        fault: (!faults.is_empty()).then(|| faults.join("; ")),
    })
}

/// Faults that the ends reported.
pub(super) fn faults(reports: &EndReports) -> Vec<String> {
    let early = reports.stopped_early().then(|| "ended early".to_owned());
    reports.faults().into_iter().chain(early).collect()
}

fn row(stage: &Stage, case: &Case, repeat: u32, measured: Result<Found, TestbedError>) -> Row {
    let (subject, code, link_mtu) = (Some(stage.subject), stage.code, Some(stage.links.mtu));
    let row = Row { subject, code, link_mtu, ..Row::new(stage.label(), case, repeat) };
    match measured {
        Ok(Found { figures, search, cpu, load_average, fault: error }) => {
            Row { figures: Some(figures), search, cpu: Some(cpu), load_average, error, ..row }
        }
        Err(error) => Row { error: Some(error.to_string()), ..row },
    }
}
