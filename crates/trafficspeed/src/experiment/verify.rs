//! Whether this program's own generator agrees with others: the same bulk TCP data through the same
//! tunnel, in turns.
//!
//! ```text
//!   client 1: each generator's client ══ tunnel ══ gateway: its server
//! ```
//!
//! In each round every generator sends once, and this program's own a second time, as its control.
//! All have the same streams, bytes of a send call, socket buffers and congestion control, and no
//! warm-up, which not all of them have.

use std::time::Duration;

use serde::Serialize;

use super::cpu::CpuMeter;
use super::environment::Environment;
use super::figures::figures;
use super::generate::fresh;
use super::lab_agents::TestbedError;
use super::outcome::{CpuUse, Taken};
use super::pair_run::Times;
use super::progress::Progress;
use super::suite::faults;
use super::testbed::{RemoteEnd, Testbed, Trial};
use super::tunnel::{self, Payload};
use super::turns::{order, pause};
use super::watched::Watched;
use crate::interrupt::Interrupt;
use crate::lab::LinkSettings;
use crate::load::congestion::CongestionControl;
use crate::load::task::Task;
use crate::load::tcp::{Job, Shape, Way};
use crate::observation::{ByRound, differs, ratio};
use crate::stats::Spread;
use crate::system::generator::{ALL, BulkLoad, Generator};
use crate::system::{AGAIN, Programs, Subject, SystemInfo};

/// Two generators agree if the median of their ratios is no further from 1 than this.
pub const LIMIT: f64 = 0.05;
/// This program's own generator in reports.
const OWN: &str = "trafficspeed";

#[derive(Debug)]
pub struct VerifyPlan {
    pub subject: Subject,
    pub programs: Programs,
    pub links: LinkSettings,
    pub ip: u8,
    pub streams: u32,
    pub seconds: u32,
    pub write_bytes: u32,
    pub window: Option<u32>,
    pub repeats: u32,
}

/// The figures of one generator.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Generated {
    pub name: String,
    pub version: String,
    /// Bit/s that arrived in each round; none for those that failed.
    pub bits_per_second: Vec<Option<f64>>,
    /// CPU time meanwhile, of each round that has a figure.
    pub cpu: Vec<CpuUse>,
    /// Why there are none, or fewer than rounds.
    pub problem: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    pub environment: Environment,
    pub system: String,
    pub facts: SystemInfo,
    pub congestion: CongestionControl,
    pub streams: u32,
    pub seconds: u32,
    pub write_bytes: u32,
    pub window: Option<u32>,
    /// This program's own, the others, and its own again.
    pub generators: Vec<Generated>,
    pub interrupted: bool,
}

/// Whether two generators agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    Agrees,
    Differs,
    /// Further from 1 than permitted, and within this program's generator compared with itself.
    WithinControl,
    /// Too few undisturbed rounds, or an emulated machine, which says nothing.
    NotJudged,
    NotMeasured,
}

impl Verification {
    /// This program's own figure / that of generator `at`, of the rounds that have both and that
    /// others did not disturb.
    pub fn ratio(&self, at: usize) -> Option<Spread> {
        let (own, other) = (self.generators.first()?, self.generators.get(at)?);
        let rounds = |generated: &Generated| -> ByRound {
            let rates = (1..).zip(&generated.bits_per_second);
            let measured = rates.filter_map(|(round, rate)| Some((round, (*rate)?)));
            let with_cpu = measured.enumerate().map(|(at, rate)| (rate, generated.cpu.get(at)));
            with_cpu.filter(|(_, cpu)| !Taken::most(*cpu).is_disturbed()).map(|(rate, _)| rate).collect()
        };
        ratio(&rounds(own), &rounds(other))
    }

    /// This program's generator relative to itself.
    pub fn same(&self) -> Option<Spread> {
        self.ratio(self.generators.len().checked_sub(1)?)
    }

    pub fn agreement(&self, at: usize) -> Agreement {
        let Some(ratio) = self.ratio(at) else {
            let is_measured = self.generators.get(at).is_some_and(|other| !other.cpu.is_empty());
            return if is_measured { Agreement::NotJudged } else { Agreement::NotMeasured };
        };
        let is_near = (ratio.median - 1.0).abs() <= LIMIT;
        match differs(Some(ratio), self.same()).filter(|_| !self.environment.is_emulated()) {
            None => Agreement::NotJudged,
            Some(_) if is_near => Agreement::Agrees,
            Some(false) => Agreement::WithinControl,
            Some(true) => Agreement::Differs,
        }
    }

    /// The numbers of the generators of others.
    pub fn others(&self) -> std::ops::Range<usize> {
        1..self.generators.len().saturating_sub(1)
    }

    /// Whether all generators that could be had agree, and one could.
    pub fn agrees(&self) -> bool {
        let number = |agreement| self.others().filter(move |&at| self.agreement(at) == agreement).count();
        number(Agreement::Agrees) > 0 && number(Agreement::Differs) + number(Agreement::WithinControl) == 0
    }
}

/// Says what is missing, before anything is changed. One of the generators is enough.
pub fn check(plan: &VerifyPlan) -> anyhow::Result<()> {
    super::generate::check(&[plan.subject], &plan.programs, plan.links)?;
    let missing = ALL.iter().filter_map(|generator| absent(plan, generator));
    let missing: Vec<String> = missing.collect();
    anyhow::ensure!(missing.len() < ALL.len(), "nothing to compare with: {}", missing.join("; "));
    Ok(())
}

/// Why a generator cannot be compared with, if so.
fn absent(plan: &VerifyPlan, generator: &Generator) -> Option<String> {
    let congestion = plan.links.congestion;
    if !generator.sets_congestion && congestion.in_namespaces() != congestion {
        return Some(format!(
            "it has the congestion control of its namespace, which this machine does not let be {congestion}; compare all of \
             them with -C {}, or allow it by net.ipv4.tcp_allowed_congestion_control",
            congestion.in_namespaces()
        ));
    }
    plan.programs.find(&generator.program).err().map(|error| error.to_string())
}

/// Runs all of it.
///
/// # Errors
/// [`TestbedError`] when the system does not come up or stops carrying; what else fails is in the
/// report.
pub fn run(
    plan: &VerifyPlan,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Verification, TestbedError> {
    let system = plan.subject.system(&plan.programs)?;
    let mut testbed = Testbed::build(system, RemoteEnd::Gateway, plan.links, interrupt)?;
    let mut found = Verification {
        environment: Environment::read(Some(plan.links)),
        system: plan.subject.label(),
        facts: testbed.facts().clone(),
        congestion: plan.links.congestion,
        streams: plan.streams,
        seconds: plan.seconds,
        write_bytes: plan.write_bytes,
        window: plan.window,
        generators: named(plan),
        interrupted: false,
    };
    for repeat in 1..=plan.repeats {
        let last = found.generators.len() - 1;
        for at in order(0..=last, repeat) {
            let generator = &mut found.generators[at];
            if interrupt.is_set() || (generator.problem.is_some() && generator.bits_per_second.is_empty()) {
                continue;
            }
            progress.note(&format!("run {repeat}, {}", generator.name));
            pause();
            let measured = match at.checked_sub(1).and_then(|other| ALL.get(other)) {
                Some(other) => others(plan, &mut testbed, other, interrupt),
                None => own(plan, &mut testbed, interrupt),
            };
            generator.problem = measured.as_ref().err().map(ToString::to_string).or(generator.problem.take());
            let (rate, cpu) = measured.ok().unzip();
            generator.bits_per_second.push(rate);
            generator.cpu.extend(cpu);
        }
    }
    found.interrupted = interrupt.is_set();
    Ok(found)
}

fn named(plan: &VerifyPlan) -> Vec<Generated> {
    let own = |name: String| Generated {
        name,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Generated::default()
    };
    let other = |generator: &&Generator| {
        let program = &generator.program;
        let path = plan.programs.find(program).ok();
        Generated {
            name: program.name.to_owned(),
            version: path.map(|path| program.version_of(&path)).unwrap_or_default(),
            problem: absent(plan, generator),
            ..Generated::default()
        }
    };
    let others = ALL.iter().map(other);
    std::iter::once(own(OWN.into())).chain(others).chain([own(format!("{OWN}{AGAIN}"))]).collect()
}

/// Bit/s that arrived, and CPU time meanwhile.
type Measured = Result<(f64, CpuUse), TestbedError>;

fn own(plan: &VerifyPlan, testbed: &mut Testbed, interrupt: &Interrupt) -> Measured {
    let task = Task::Bulk(Job {
        streams: plan.streams,
        write_bytes: plan.write_bytes,
        congestion: plan.links.congestion,
        shape: Shape { way: Way::Forward, window: plan.window, mss: None },
        ..Job::default()
    });
    let duration = Duration::from_secs(plan.seconds.into());
    let times = Times { warmup: Duration::ZERO, duration, interval: Duration::from_secs(1) };
    let trial = Trial { tasks: vec![fresh(&task)], ip: plan.ip, times };
    let measured = testbed.measure(&trial, interrupt)?;
    let faults = faults(&measured.reports);
    if !faults.is_empty() {
        return Err(TestbedError::Faulty(faults.join("; ")));
    }
    Ok((figures(&trial.tasks[0], 0, &measured.reports).received_bits_per_second, measured.cpu))
}

/// The figure of another generator, which the tunnel must have carried like this program's own.
fn others(
    plan: &VerifyPlan,
    testbed: &mut Testbed,
    generator: &Generator,
    interrupt: &Interrupt,
) -> Measured {
    let (agents, system) = testbed.parts();
    let (mut meter, watched) = (CpuMeter::new(system.processes()), Watched::of_system(system));
    let pair = agents.pair((0, 1), plan.ip, &[])?;
    agents.check_routes(std::slice::from_ref(&pair), interrupt)?;
    let (address, before) = (pair.address, agents.read_devices()?);
    let load = BulkLoad {
        address,
        streams: plan.streams,
        seconds: plan.seconds,
        write_bytes: plan.write_bytes,
        window: plan.window,
        congestion: plan.links.congestion,
    };
    let lab = testbed.lab();
    let ends = (&lab.clients()[0], lab.gateway());
    meter.read();
    let received = generator.run(&plan.programs, ends, lab.directory(), &load, interrupt)?;
    meter.read();
    if let Some(process) = watched.ended().filter(|_| !interrupt.is_set()) {
        return Err(TestbedError::Ended(process));
    }
    let payload = Payload { sent: received.bytes, received: 0 };
    let carried = testbed.parts().0.carried_since(&before, payload)?;
    if let Some(reason) = tunnel::bypass(&carried) {
        return Err(TestbedError::Bypassed(reason));
    }
    Ok((received.bits_per_second, meter.used().unwrap_or_default()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::observe::HostCpu;
    use crate::stats::five;

    /// Three rounds of this program, two others and itself again, in Gbit/s.
    pub(crate) fn sample(rates: [[f64; 3]; 4]) -> Verification {
        let names = [OWN, "iperf3", "nuttcp", "trafficspeed (again)"];
        let generated = |(name, rates): (&str, [f64; 3])| Generated {
            name: name.into(),
            version: "1".into(),
            bits_per_second: five(rates).map(|rate| Some(rate * 1e9)).into(),
            cpu: Vec::new(),
            problem: None,
        };
        Verification {
            environment: Environment::default(),
            system: "vpnd".into(),
            facts: SystemInfo::default(),
            congestion: CongestionControl::default(),
            streams: 1,
            seconds: 5,
            write_bytes: 131_072,
            window: None,
            generators: names.into_iter().zip(rates).map(generated).collect(),
            interrupted: false,
        }
    }

    #[test]
    fn generators_agree_within_five_percent_or_the_control() {
        let found = sample([[2.0, 1.0, 2.0], [1.95, 1.0, 1.91], [1.5, 0.8, 1.6], [2.0, 1.02, 1.98]]);
        assert_eq!((found.agreement(1), found.agreement(2)), (Agreement::Agrees, Agreement::Differs));
        assert!(!found.agrees() && found.others() == (1..3));
        let mut noisy = sample([[2.0, 1.0, 2.0], [1.95, 1.0, 1.91], [1.5, 0.8, 1.6], [1.3, 1.02, 1.98]]);
        assert_eq!(noisy.agreement(2), Agreement::WithinControl);
        assert!(!noisy.agrees(), "what cannot be told is no agreement");
        noisy.generators[2].bits_per_second.clear();
        assert_eq!(noisy.agreement(2), Agreement::NotMeasured);
        assert!(noisy.agrees(), "the one that could be had agrees");
        noisy.generators[1].bits_per_second.clear();
        assert!(!noisy.agrees(), "no other generator was measured");
        let mut few = found.clone();
        few.generators.iter_mut().for_each(|generated| generated.bits_per_second.truncate(4));
        assert_eq!((few.agreement(1), few.agreement(2)), (Agreement::NotJudged, Agreement::NotJudged));
        let mut emulated = found;
        emulated.environment.host.cpu = "QEMU TCG CPU version 2.5+".into();
        assert_eq!(emulated.agreement(1), Agreement::NotJudged);
        assert!(!emulated.agrees());
    }

    #[test]
    fn rounds_that_others_disturbed_do_not_count() {
        let mut found = sample([[2.0; 3], [2.0; 3], [1.0; 3], [2.0; 3]]);
        let quiet = CpuUse { host: HostCpu { user: 4.0, ..HostCpu::default() }, ..CpuUse::default() };
        let disturbed = CpuUse { foreign: 1.0, ..quiet };
        // The second round has no figure, so its CPU time is missing, too.
        let other = &mut found.generators[1];
        (other.bits_per_second[1], other.bits_per_second[2]) = (None, Some(0.2e9));
        other.cpu = vec![quiet, disturbed, quiet, quiet];
        let ratio = found.ratio(1).unwrap();
        assert_eq!((ratio.high, ratio.n), (1.0, 3));
        assert_eq!(found.agreement(1), Agreement::NotJudged);
        found.generators[1].cpu.fill(disturbed);
        assert_eq!((found.ratio(1), found.agreement(1)), (None, Agreement::NotJudged));
    }

    #[test]
    fn ratios_are_formed_within_rounds_that_have_both() {
        let mut found = sample([[4.0, 1.0, 4.0], [2.0, 1.0, 2.0], [1.0; 3], [4.0, 1.0, 4.0]]);
        found.generators[1].bits_per_second[1] = None;
        found.generators.iter_mut().for_each(|generated| generated.bits_per_second.truncate(3));
        let ratio = found.ratio(1).unwrap();
        assert_eq!((ratio.median, ratio.n), (2.0, 2));
        assert_eq!(found.same().map(|same| same.widest_ratio()), Some(1.0));
    }
}
