//! Experiment 3: where the time goes, and a model that predicts it.
//!
//! Each stage of the data path is measured alone on this host, its cost fitted as so much for each packet or super-packet
//! and so much for each byte. The sum predicts what the VPN's processes cost for a Gbit and how fast one TCP stream can
//! go; then the real VPN carries one, and the error is shown. The stages are measured by `vpnd-stages`, another program:
//! this crate knows nothing of vpnd's inside.

pub mod fit;
pub mod predict;
pub mod real;
pub mod stages;

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::progress::Progress;
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LinkSettings};
use crate::system::{Cipher, Kind, Programs, Subject};
use fit::Stage;
use predict::{Prediction, Shape, Target, Way};
use real::{Real, RealPlan};
use stages::{HandOver, Raw};

#[derive(Clone, Debug)]
pub struct ModelPlan {
    /// The ciphers; each is a suite of vpnd.
    pub ciphers: Vec<Cipher>,
    /// Milliseconds for each stage and size.
    pub millis: u64,
    pub programs: Programs,
    pub links: LinkSettings,
    /// How the real VPN is measured; not at all if absent.
    pub real: Option<RealPlan>,
    /// Bits per second for which the cost of each stage is asked.
    pub targets: Vec<f64>,
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Model {
    pub environment: Environment,
    /// As the program measured them.
    pub raw: Raw,
    /// The stages with their fits.
    pub stages: Vec<Stage>,
    pub suites: Vec<SuiteModel>,
    /// The user ended it early.
    pub interrupted: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SuiteModel {
    pub suite: String,
    /// The library behind it.
    pub backend: String,
    /// Before anything was carried: full super-packets, an acknowledgement for each.
    pub ahead: Prediction,
    /// With super-packets and acknowledgements as they were in the measurement.
    pub as_it_was: Option<Prediction>,
    pub real: Option<Real>,
    /// Why there is none.
    pub error: Option<String>,
    /// The cost of each stage that the rates which the user asked about need.
    pub targets: Vec<Target>,
}

impl SuiteModel {
    /// Whether all that was to be measured was.
    pub fn is_whole(&self) -> bool {
        self.error.is_none()
    }

    /// The share by which the prediction of the VPN's CPU seconds for a Gbit is off: negative if it is too low.
    pub fn cpu_error(&self) -> Option<f64> {
        let real = self.real.as_ref()?;
        Some(self.as_it_was.as_ref()?.seconds_per_gbit() / real.vpn_seconds_per_gbit() - 1.0)
    }

    /// The share by which the predicted throughput is off.
    pub fn speed_error(&self, cpus: u32) -> Option<f64> {
        let real = self.real.as_ref()?;
        let predicted = self.as_it_was.as_ref()?.bits_per_second(cpus, real.generator_seconds_per_gbit);
        Some(predicted / real.bits_per_second - 1.0)
    }
}

/// Says what is missing, before anything is changed.
pub fn check(plan: &ModelPlan) -> anyhow::Result<()> {
    Lab::check(plan.links)?;
    crate::system::check_tun()?;
    plan.programs.find(&stages::STAGES)?;
    if plan.real.is_some() {
        for cipher in &plan.ciphers {
            subject(*cipher).check(&plan.programs)?;
        }
    }
    Ok(())
}

fn subject(cipher: Cipher) -> Subject {
    Subject::new(Kind::Vpnd, cipher)
}

/// Measures stages, predicts, and measures the real VPN; a line before each part says which.
///
/// # Errors
/// If the stages cannot be measured; a real measurement that fails is in the result.
pub fn run(plan: &ModelPlan, progress: &Progress, interrupt: &Interrupt) -> anyhow::Result<Model> {
    let environment = Environment::read(Some(plan.links));
    progress.note("measuring each stage");
    let raw = stages::measure(plan, interrupt)?;
    let stages = fit::fit_all(&raw)?;
    let mut suites = Vec::new();
    for (known, &cipher) in raw.suites.iter().zip(&plan.ciphers) {
        let shape = Shape::full(&raw);
        let ahead = Prediction::make(&stages, &known.name, shape);
        let targets = plan.targets.iter().map(|&target| ahead.target(target)).collect();
        let (suite, backend) = (known.name.clone(), known.backend.clone());
        let mut model =
            SuiteModel { suite, backend, ahead, as_it_was: None, real: None, error: None, targets };
        if let Some(real) = plan.real.filter(|_| !interrupt.is_set()) {
            progress.note(&format!("measuring {}", subject(cipher).label()));
            match real::measure(plan, subject(cipher), real, interrupt) {
                Ok(real) => {
                    model.as_it_was = Some(Prediction::make(&stages, &model.suite, real.shape));
                    model.real = Some(real);
                }
                Err(error) => model.error = Some(error.to_string()),
            }
        }
        suites.push(model);
    }
    Ok(Model { environment, raw, stages, suites, interrupted: interrupt.is_set() })
}

impl Model {
    /// Whether everything that was asked for was measured.
    pub fn is_whole(&self) -> bool {
        !self.interrupted && self.suites.iter().all(SuiteModel::is_whole)
    }

    /// The time of one whole shard on made-up devices, in nanoseconds for a full super-packet.
    pub fn whole_shard(&self, suite: &str, way: Way) -> Option<f64> {
        let of_suite = |sample: &&stages::Sample| {
            sample.whole && sample.suite.as_deref() == Some(suite) && sample.side == way.name()
        };
        let bulk = self.raw.stages.iter().filter(of_suite);
        bulk.filter(|sample| sample.packets == self.raw.max_slices && sample.bytes > self.raw.mtu)
            .map(|sample| sample.ns)
            .next_back()
    }

    /// The hand-over figures of one suite.
    pub fn hand_over(&self, suite: &str) -> Vec<&HandOver> {
        self.raw.handover.iter().filter(|figure| figure.suite == suite).collect()
    }
}
