//! Experiment 3: where the time goes: what each stage costs, and their sum, compared with the real
//! VPN.
//!
//! The stages of a running tunnel, those of the kernel among them, are measured on this host in
//! streams through whole shards of pieces of several sizes, and fitted as an amount for each call,
//! packet and byte. The real VPN then carries each case; their sum over what passed says where the
//! CPU time of its processes went, and by how much it is off is shown. The stages are measured by
//! `vpnd-stages`, another program: this crate knows nothing of vpnd's inside.

pub mod costs;
pub mod counts;
pub mod disturbance;
pub mod fit;
#[cfg(test)]
pub mod made_up;
pub mod observations;
pub mod original;
pub mod real;
pub mod stages;
pub mod sum;

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::progress::Progress;
use crate::interrupt::Interrupt;
use crate::lab::cpu_limit::CpuLimit;
use crate::lab::emulator::impairment::Rate;
use crate::lab::{Lab, LinkSettings};
use crate::load::congestion::CongestionControl;
use crate::observation::{in_rounds, ratio};
use crate::stats::Spread;
use crate::system::vpnd::{named_library, use_library};
use crate::system::{Cipher, Kind, Programs, Subject};
use costs::Cost;
use disturbance::Disturbance;
use fit::Stage;
use real::{Real, RealPlan};
use stages::{HandOver, Raw};
use sum::{Sum, Target};

/// How often the streams through whole shards are carried at least: once before each turn of the
/// real VPN, the rest at once.
const ROUNDS: u32 = 3;
/// The suite without a cipher, beyond whose stages the ciphers cost what they do.
pub const REFERENCE: Cipher = Cipher::None;

/// A load: TCP streams with packets of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Length of the longest inner packet, in bytes.
    pub packet: u32,
    pub streams: u32,
}

#[derive(Clone, Debug)]
pub struct ModelPlan {
    /// The ciphers; each is a suite of vpnd.
    pub ciphers: Vec<Cipher>,
    /// The loads.
    pub cases: Vec<Case>,
    /// Milliseconds for each stage and size.
    pub millis: u64,
    pub programs: Programs,
    pub links: LinkSettings,
    /// Measure one cipher a second time in each turn, as its own control.
    pub control: bool,
    /// How the real VPN is measured.
    pub real: RealPlan,
    /// Bits per second for which the cost of each stage is asked.
    pub targets: Vec<f64>,
    /// Links' rates at which the original's algorithms are measured, too.
    pub original: Vec<Rate>,
    /// CPU of the gateway's programs in these measurements.
    pub original_cpu: Option<CpuLimit>,
}

impl ModelPlan {
    /// The suites that are measured: the reference first, then the others that were asked for.
    pub fn suites(&self) -> Vec<Cipher> {
        let others = self.ciphers.iter().copied().filter(|cipher| *cipher != REFERENCE);
        std::iter::once(REFERENCE).chain(others).collect()
    }

    /// The cipher that is measured a second time in each turn: AES-256-GCM, or the first that was
    /// asked for.
    fn again(&self) -> Option<Cipher> {
        let usual = self.ciphers.iter().find(|cipher| **cipher == Cipher::Aes256Gcm);
        usual.or(self.ciphers.first()).copied().filter(|_| self.control)
    }
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Model {
    pub environment: Environment,
    /// The congestion control of the measured connections; older reports lack it.
    pub congestion: Option<CongestionControl>,
    /// The figures as the program measured them.
    pub raw: Raw,
    /// The stages alone, repeated in memory or between idle devices, with their fits.
    pub stages: Vec<Stage>,
    /// The stages of a running tunnel, which are summed.
    pub costs: Vec<Cost>,
    /// By how much the clocks made the streams dearer from which the costs were fitted.
    pub disturbance: Disturbance,
    pub sums: Vec<Compared>,
    /// The second measurements of one cipher: what they differ from its first by is no error of the
    /// sums.
    pub control: Vec<Again>,
    /// The original's table.
    pub original: Vec<original::Row>,
    /// CPU of the gateway's programs while it was measured.
    pub original_cpu: Option<CpuLimit>,
    /// The user ended it early.
    pub interrupted: bool,
}

/// The second measurement of one cipher with one load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Again {
    pub suite: String,
    pub case: Case,
    pub real: Option<Real>,
    /// Why there is no measurement.
    pub error: Option<String>,
}

/// One cipher with one load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Compared {
    pub suite: String,
    /// The library behind it.
    pub backend: String,
    pub case: Case,
    /// The costs of the stages over what passed in this run.
    pub sum: Option<Sum>,
    pub real: Option<Real>,
    /// The share of all CPU time that is saved without a cipher, as measured within each round.
    #[serde(default)]
    pub saved: Option<Spread>,
    /// Others took too much of the machine, with or without the cipher, to claim anything of that.
    #[serde(default)]
    pub is_disturbed: bool,
    /// Why there is no measurement.
    pub error: Option<String>,
    /// The cost of each stage that the rates which the user asked about need.
    pub targets: Vec<Target>,
}

impl Compared {
    /// Whether it is the run without a cipher.
    fn is_reference(&self) -> bool {
        self.suite == REFERENCE.name()
    }

    /// The share by which the sum is off from the VPN's CPU seconds for a Gbit: negative if it is
    /// too low.
    pub fn off(&self) -> Option<f64> {
        Some(self.sum.as_ref()?.seconds_per_gbit() / self.real.as_ref()?.vpn_seconds_per_gbit() - 1.0)
    }

    /// Answers for each of `rates`, starting from what was measured.
    fn answer(&mut self, rates: &[f64]) {
        let Some((sum, real)) = self.sum.as_ref().zip(self.real.as_ref()) else { return };
        let unexplained = real.vpn_seconds_per_gbit() - sum.seconds_per_gbit();
        let target = |&rate: &f64| sum.target(rate, real.cpus, real.beside, unexplained);
        self.targets = rates.iter().map(target).collect();
    }
}

/// Says what is missing, before anything is changed.
pub fn check(plan: &ModelPlan) -> anyhow::Result<()> {
    Lab::check(LinkSettings { gateway_cpu: plan.original_cpu, ..plan.links })?;
    crate::system::check_tun()?;
    plan.programs.find(&stages::STAGES)?;
    Ok(plan.suites().into_iter().try_for_each(|cipher| subject(cipher).check(&plan.programs))?)
}

fn subject(cipher: Cipher) -> Subject {
    Subject::new(Kind::Vpnd, cipher)
}

/// Measures stages, then the real VPN; a line before each part says which.
///
/// # Errors
/// If the stages cannot be measured; a real measurement that fails is in the result.
pub fn run(plan: &ModelPlan, progress: &Progress, interrupt: &Interrupt) -> anyhow::Result<Model> {
    let environment = Environment::read(Some(plan.links));
    progress.note("measuring each stage");
    let rounds = ROUNDS.saturating_sub(plan.real.repeats - 1).max(1);
    let mut raw = stages::measure(plan, rounds, interrupt)?;
    for suite in &raw.suites {
        use_library(&plan.programs, &format!("{} ({})", suite.name, suite.backend));
    }
    let mut subjects: Vec<Subject> = plan.suites().into_iter().map(subject).collect();
    let again = plan.again();
    subjects.extend(again.map(|cipher| subject(cipher).again()));
    // Stages and whole runs take turns: a machine that becomes slower or faster does so for both.
    let more = || {
        progress.note("measuring the streams of the stages again");
        let suites = raw.suites.clone();
        raw.live.extend(stages::streams(plan, &suites, interrupt)?);
        Ok(())
    };
    let mut measured = real::measure(plan, &subjects, (progress, interrupt), more)?;
    let control = again.and_then(|cipher| Some((cipher, measured.pop()?)));
    let control = control.map_or_else(Vec::new, |(cipher, measured)| second(plan, cipher, measured));
    let (stages, (costs, disturbance)) = (fit::fit_all(&raw)?, costs::fit_all(&raw)?);
    let mut all: Vec<Compared> = Vec::new();
    for (known, measured) in raw.suites.iter().zip(measured) {
        for ((real, error), &case) in by_case(measured, plan.cases.len()).into_iter().zip(&plan.cases) {
            let reference = all.iter().find(|other| other.is_reference() && other.case == case);
            let mut compared = compare(&costs, (known, case), real, reference);
            compared.error = error.or(compared.error);
            compared.is_disturbed |= environment.is_emulated();
            compared.answer(&plan.targets);
            all.push(compared);
        }
    }
    // A suite that was measured only as the reference is not part of the answer.
    all.retain(|one| plan.ciphers.iter().any(|cipher| cipher.name() == one.suite));
    let original = original::measure(plan, progress, interrupt);
    Ok(Model {
        environment,
        congestion: Some(plan.links.congestion),
        raw,
        stages,
        costs,
        disturbance,
        sums: all,
        control,
        original,
        original_cpu: plan.original_cpu,
        interrupted: interrupt.is_set(),
    })
}

/// The second measurement of a cipher.
fn second(plan: &ModelPlan, cipher: Cipher, measured: anyhow::Result<real::Cases>) -> Vec<Again> {
    let measurements = by_case(measured, plan.cases.len()).into_iter().zip(&plan.cases);
    let again = |((real, error), &case)| Again { suite: cipher.name().to_owned(), case, real, error };
    measurements.map(again).collect()
}

/// The results of one suite's cases, each a measurement or why there is none.
fn by_case(measured: anyhow::Result<real::Cases>, cases: usize) -> Vec<(Option<Real>, Option<String>)> {
    let split = |real: anyhow::Result<Real>| match real {
        Ok(real) => (Some(real), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    match measured {
        Ok(measured) => measured.into_iter().map(split).collect(),
        Err(error) => vec![(None, Some(error.to_string())); cases],
    }
}

/// Sum and measurement of one case.
fn compare(
    costs: &[Cost],
    (suite, case): (&stages::Suite, Case),
    real: Option<Real>,
    reference: Option<&Compared>,
) -> Compared {
    let (real, error) = match real.map(|real| of_library(suite, real)).transpose() {
        Ok(real) => (real, None),
        Err(reason) => (None, Some(reason)),
    };
    let known = reference.and_then(|reference| reference.real.as_ref());
    Compared {
        suite: suite.name.clone(),
        backend: suite.backend.clone(),
        case,
        sum: real.as_ref().map(|real| Sum::make(costs, &suite.name, real.counts)),
        saved: known.zip(real.as_ref()).and_then(|(without, with)| saved(without, with)),
        is_disturbed: known.into_iter().chain(&real).any(|real| real.taken.is_disturbed()),
        real,
        error,
        targets: Vec::new(),
    }
}

/// The part of a round's CPU time that the same round without a cipher saves.
fn saved(without: &Real, with: &Real) -> Option<Spread> {
    let rest = ratio(&in_rounds(&without.whole_each), &in_rounds(&with.whole_each))?;
    Some(Spread { median: 1.0 - rest.median, low: 1.0 - rest.high, high: 1.0 - rest.low, n: rest.n })
}

/// The measurement, unless another library than that of the stages carried it.
fn of_library(suite: &stages::Suite, real: Real) -> Result<Real, String> {
    match named_library(&real.facts.cipher) {
        Some((name, library)) if (name, library) != (suite.name.as_str(), suite.backend.as_str()) => {
            Err(format!(
                "the stages were measured with {} of {}, and the VPN ran with {name} of {library}: they are not compared",
                suite.name, suite.backend
            ))
        }
        _ => Ok(real),
    }
}

impl Model {
    /// Whether everything that was asked for was measured.
    pub fn is_whole(&self) -> bool {
        !self.interrupted
            && self.sums.iter().all(|one| one.error.is_none())
            && self.control.iter().all(|one| one.error.is_none())
            && self.original.iter().all(|row| row.error.is_none())
    }

    /// The hand-over figures of one suite.
    pub fn hand_over(&self, suite: &str) -> Vec<&HandOver> {
        self.raw.handover.iter().filter(|figure| figure.suite == suite).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::five;

    #[test]
    fn a_saving_is_formed_within_rounds_and_disturbed_by_either_run() {
        let mut model = made_up::model(&[0.05, 0.05]);
        let suite = stages::Suite { name: "aes-256-gcm".into(), backend: "made up".into() };
        let mut with = model.sums[1].real.clone().expect("it was measured");
        with.whole_each = five([2.0, 4.0, 10.0]).into();
        let without = model.sums[0].real.as_mut().expect("it was measured");
        without.whole_each = five([1.0, 4.0, 9.0]).into();
        let found = |model: &Model| {
            compare(&model.costs, (&suite, model.sums[1].case), Some(with.clone()), model.sums.first())
        };
        let saved = found(&model).saved.expect("there are rounds");
        // A saving of the medians, which are of different rounds, would be nothing.
        assert!((saved.median - 0.1).abs() < 1e-9 && saved.low.abs() < 1e-9, "{saved:?}");
        assert!((saved.high - 0.5).abs() < 1e-9 && saved.n == 5 && !found(&model).is_disturbed, "{saved:?}");
        model.sums[0].real.as_mut().expect("it was measured").taken.others = Some(30.0);
        assert!(found(&model).is_disturbed);
    }

    #[test]
    fn a_run_with_another_library_than_the_stages_is_not_compared() {
        let model = made_up::model(&[0.05, 0.05]);
        let suite = stages::Suite { name: "aes-256-gcm".into(), backend: "ring".into() };
        let compared = |cipher: &str| {
            let mut real = model.sums[1].real.clone().expect("it was measured");
            real.facts.cipher = cipher.into();
            compare(&model.costs, (&suite, model.sums[1].case), Some(real), model.sums.first())
        };
        assert!(compared("aes-256-gcm (ring)").off().is_some());
        let other = compared("aes-256-gcm (aws-lc)");
        assert_eq!(other.off(), None);
        let reason = other.error.expect("a reason");
        assert!(
            reason.contains("ring") && reason.contains("aws-lc") && reason.ends_with("not compared"),
            "{reason}"
        );
    }
}
