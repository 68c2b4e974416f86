//! Experiment 4: encrypt ahead of the wait. Block writes over long delays, each answered once it is
//! on disk.
//!
//! ```text
//!   client 1: writer ═══ emulated link ═══ gateway: target with its file
//! ```
//!
//! The original's three ways to write the same blocks: *plain*, without a VPN, waiting for each
//! answer; through the *tunnel*, waiting for each answer (its IPsec); and *OP-n*, without a VPN but
//! sealed above TCP, with n blocks in progress. And two controls, *plain-n* and *tunnel-n*: what n
//! blocks in progress gain by themselves is not the gain of encrypting ahead. The tunnel is
//! measured twice in each round, as its own control, with one block in progress and with the most.
//! At each delay one lab with the tunnel up serves all of them in turns, in shuffled order, so
//! that drift hits all alike.
//!
//! A failure ends nothing else: a case, a delay and a plan of several each say why they
//! have no figures, and the others are measured.

pub mod model;
pub mod observations;
pub mod original;
pub mod outcome;
pub mod pair;
pub mod rounds;
pub mod tally;

use std::net::IpAddr;
use std::time::Duration;

use super::cpu::CpuMeter;
use super::environment::Environment;
use super::outcome::{CpuUse, Taken};
use super::progress::Progress;
use super::testbed::{Testbed, TestbedError};
use super::tunnel::{self, Payload};
use super::turns::{PAUSE, order, pause, until_quiet};
use super::watched::Watched;
use crate::interrupt::Interrupt;
use crate::lab::cpu_limit::CpuLimit;
use crate::lab::emulator::Emulation;
use crate::lab::emulator::impairment::{Rate, Span};
use crate::lab::{Lab, LinkSettings};
use crate::load::block::place::{Place, PlaceError, PlaceOptions};
use crate::load::block::seal::{LIBRARY, Sealing};
use crate::load::block::{Blocks, Protection, Secret};
use crate::load::congestion::CongestionControl;
use crate::system::vpnd::use_library;
use crate::system::{Cipher, Programs, Subject};
pub use outcome::{BlockReport, Case, CpuPart, Route, Way};
use pair::{BlockPair, milliseconds};
use tally::Work;

/// Round trips that a new connection gets to open its window, and the time it gets in addition.
const WARMUP_ROUND_TRIPS: u32 = 12;
const WARMUP: Duration = Duration::from_millis(300);
/// Blocks in progress when the host is measured without waiting.
pub const CALIBRATION_AHEAD: u32 = 10;
/// The time that a lab with a system takes to come up and go, and a case in addition to its own;
/// for the estimate only.
const LAB: Duration = Duration::from_secs(4);
const CASE_SECONDS: f64 = 0.2;
/// This number of cases without a figure ends a delay: where the tunnel is down, each times out.
const MOST_FAILED: usize = 10;

#[derive(Clone, Debug)]
pub struct Writes {
    /// Bytes of a block.
    pub sizes: Vec<u32>,
    /// Blocks in progress, sealed above TCP.
    pub ahead: Vec<u32>,
    /// Counted time of each case.
    pub duration: Duration,
    /// Sync before each answer.
    pub sync: bool,
    /// The part of the target that is written.
    pub span_bytes: u64,
    /// Seed of the content.
    pub seed: u64,
    pub congestion: CongestionControl,
    /// How often each case is measured.
    pub repeats: u32,
    /// The target asks for each block first, as iSCSI does without unsolicited data: two round
    /// trips for each.
    pub ready_first: bool,
    /// Cipher of OP-n.
    pub sealing: Sealing,
    /// Measure the tunnel a second time in each round, as its own control.
    pub control: bool,
}

/// The tunnel's cipher for sealing above TCP, if it is an AEAD that can be had there: then OP-n and
/// the tunnel, which uses the same library, differ in where they encrypt alone.
pub fn sealing_as(tunnel: Cipher) -> Option<Sealing> {
    Sealing::ALL.into_iter().find(|sealing| sealing.name() == tunnel.name())
}

#[derive(Clone, Debug)]
pub struct BlockPlan {
    pub delays: Vec<Span>,
    /// Rate of the link, each way; as fast as the machine can if absent.
    pub rate: Option<Rate>,
    /// CPU of the VPN's programs at the target's side and of the target.
    pub cpu: Option<CpuLimit>,
    /// The most that TCP's buffers in the lab take.
    pub window_bytes: u32,
    pub writes: Writes,
    pub place: PlaceOptions,
    /// The system with the tunnel.
    pub subject: Subject,
    pub programs: Programs,
}

impl Writes {
    /// All cases at one delay, in the order in which they are measured: block size, way,
    /// repetition. Repetitions come last, so that drift of the machine hits all ways alike.
    pub fn cases(&self) -> Vec<(u32, Way, u32)> {
        let ways = outcome::ways(&self.ahead, &self.controls());
        let round = |repeat: u32| {
            let cases = |&size: &u32| ways.iter().map(move |&way| (size, way, repeat)).collect::<Vec<_>>();
            order(self.sizes.iter().flat_map(cases), repeat)
        };
        (1..=self.repeats).flat_map(round).collect()
    }

    /// Blocks in progress with which the tunnel is measured again: one, and the most, because what
    /// a full queue differs from itself is not what a single block does.
    pub fn controls(&self) -> Vec<u32> {
        let most = self.ahead.iter().copied().max().filter(|most| *most > 1);
        if self.control { std::iter::once(1).chain(most).collect() } else { Vec::new() }
    }

    pub fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(1)
    }

    /// The blocks of one size, with their own secret.
    pub fn blocks(&self, block_bytes: u32, protection: Protection) -> Blocks {
        let size = u64::from(block_bytes);
        let span_bytes = (self.span_bytes / size).max(1) * size;
        let Self { congestion, ready_first, sealing, .. } = *self;
        let secret = Secret::random();
        Blocks { secret, protection, sealing, block_bytes, span_bytes, congestion, ready_first }
    }

    /// Time before counting begins.
    pub fn warmup(delay: Span) -> Duration {
        WARMUP + Duration::from_nanos(2 * delay.ns) * WARMUP_ROUND_TRIPS
    }

    /// About how long all cases at one delay take.
    pub fn estimate(&self, delay: Span) -> Duration {
        let cases = self.cases().len();
        // A case lasts until enough answers have come: two windows, one after each round trip.
        let least = Duration::from_nanos(2 * delay.ns) * 3;
        let case = (Self::warmup(delay) + self.duration.max(least)).as_secs_f64()
            + CASE_SECONDS
            + PAUSE.as_secs_f64();
        Duration::from_secs_f64(cases as f64 * case)
    }
}

impl BlockPlan {
    fn links(&self, delay: Span) -> LinkSettings {
        let mut emulation = Emulation::delay(delay);
        (emulation.up.rate, emulation.down.rate) = (self.rate, self.rate);
        LinkSettings {
            emulation: Some(emulation),
            gateway_cpu: self.cpu,
            congestion: self.writes.congestion,
            window_bytes: Some(self.window_bytes),
            ..LinkSettings::default()
        }
    }

    /// The links but for their delays and rates, which each case has.
    fn common_links(&self) -> LinkSettings {
        let links = self.links(Span { ns: 0 });
        LinkSettings { offload: !links.sends_single_packets(), emulation: None, ..links }
    }

    /// The limits of link and CPU, in words.
    fn limits(&self) -> Vec<String> {
        let rate = self.rate.map(|rate| format!("the link carries {rate} each way"));
        let cpu = self.cpu.map(|cpu| {
            format!("the target and the VPN's programs on its side have {cpu} of the CPU together")
        });
        rate.into_iter().chain(cpu).collect()
    }

    /// The report of this plan, in which nothing is measured yet.
    fn begin(&self, target: String) -> BlockReport {
        let delays_ms = self.delays.iter().map(|&delay| milliseconds(delay)).collect();
        BlockReport {
            environment: Environment::read(Some(self.common_links())),
            tunnel_asked: Some(self.subject.cipher),
            window_bytes: self.window_bytes,
            limits: self.limits(),
            rate_bits: self.rate.map(|rate| rate.bits_per_second),
            cores: self.cpu.map(CpuLimit::cores),
            ..BlockReport::begin(&self.writes, self.subject.label(), target, delays_ms)
        }
    }

    /// About how long all of it takes.
    pub fn estimate(&self) -> Duration {
        let labs = self.delays.iter().map(|&delay| LAB + self.writes.estimate(delay));
        labs.sum()
    }
}

/// Says what is missing, before anything is changed.
pub fn check(plan: &BlockPlan) -> anyhow::Result<()> {
    let check = |delay: &Span| super::generate::check(&[plan.subject], &plan.programs, plan.links(*delay));
    plan.delays.iter().try_for_each(check)
}

/// Runs `plans`, which write to one place, one after the other. One that fails is a report that
/// says why, and those after it are measured; nothing begins after an interrupt.
///
/// # Errors
/// The [`PlaceError`] of the first plan, when none has a target.
pub fn run_all(
    plans: &[BlockPlan],
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Vec<BlockReport>, PlaceError> {
    one_by_one(plans, |plan| run(plan, progress, interrupt))
}

fn one_by_one(
    plans: &[BlockPlan],
    mut run: impl FnMut(&BlockPlan) -> Result<BlockReport, PlaceError>,
) -> Result<Vec<BlockReport>, PlaceError> {
    let (mut reports, mut refused, mut holds_ours) = (Vec::new(), None, false);
    for plan in plans {
        let mut plan = plan.clone();
        // INVARIANT: only after a plan was given the place does it hold blocks of ours. A place
        // that was refused is as precious to the next plan as to the one before.
        plan.place.overwrite |= holds_ours;
        match run(&plan) {
            Ok(report) => {
                holds_ours = true;
                let ended = report.interrupted;
                reports.push(report);
                if ended {
                    break;
                }
            }
            Err(error) => {
                let mut report = plan.begin("none".into());
                report.problems.push(format!("nothing was measured: {error}"));
                reports.push(report);
                refused.get_or_insert(error);
            }
        }
    }
    match refused {
        Some(error) if !holds_ours => Err(error),
        _ => Ok(reports),
    }
}

/// Runs all of one plan.
///
/// # Errors
/// [`PlaceError`] when the target cannot be had; what fails later is in the report.
fn run(plan: &BlockPlan, progress: &Progress, interrupt: &Interrupt) -> Result<BlockReport, PlaceError> {
    let writes = &plan.writes;
    use_library(&plan.programs, &format!("{} ({LIBRARY})", writes.sealing.name()));
    let place = Place::prepare(&plan.place, writes.span_bytes.max(u64::from(writes.largest())))?;
    let mut report = plan.begin(place.describe());
    let mut work = Work::default();
    for &delay in &plan.delays {
        if interrupt.is_set() {
            break;
        }
        if let Err(error) = run_delay(plan, delay, &place, &mut report, &mut work, progress, interrupt) {
            report.problems.push(format!("one-way delay {delay}: {error}"));
        }
    }
    let ways = outcome::ways(&writes.ahead, &writes.controls());
    let place = |way: Way| ways.iter().position(|known| *known == way);
    let size = |bytes: u32| writes.sizes.iter().position(|known| *known == bytes);
    let delay = |ms: f64| plan.delays.iter().position(|delay| milliseconds(*delay) == ms);
    report
        .cases
        .sort_by_key(|case| (delay(case.delay_ms), case.repeat, size(case.block_bytes), place(case.way)));
    report.parameters = work.parameters();
    report.interrupted = interrupt.is_set();
    Ok(report)
}

fn run_delay(
    plan: &BlockPlan,
    delay: Span,
    place: &Place,
    report: &mut BlockReport,
    work: &mut Work,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<(), TestbedError> {
    let system = plan.subject.system(&plan.programs)?;
    let mut testbed = Testbed::with_target(system, place.path(), plan.links(delay), interrupt)?;
    report.facts = testbed.facts().clone();
    let measured = Bench { plan, delay, testbed: &mut testbed, work, interrupt }.run_all(report, progress);
    let notes = testbed.emulator_notes();
    report.links.extend(notes.iter().map(|note| format!("delay {delay}: {note}")));
    measured
}

/// A testbed at one delay.
struct Bench<'a> {
    plan: &'a BlockPlan,
    delay: Span,
    testbed: &'a mut Testbed,
    work: &'a mut Work,
    interrupt: &'a Interrupt,
}

impl Bench<'_> {
    fn run_all(&mut self, report: &mut BlockReport, progress: &Progress) -> Result<(), TestbedError> {
        let (plan, delay) = (self.plan, self.delay);
        if !self.work.is_calibrated() {
            let times = (Writes::warmup(delay), plan.writes.duration);
            let Some((lower, _)) = self.ends().calibrate(outer(), times)? else { return Ok(()) };
            self.work.lower = lower;
        }
        let mut failures = Failures::default();
        for (block_bytes, way, repeat) in plan.writes.cases() {
            if self.interrupt.is_set() {
                return Ok(());
            }
            let name = way.name();
            progress.live(&format!("delay {delay}, run {repeat}, blocks of {block_bytes} bytes, {name}"));
            pause();
            let mut is_over = false;
            let case = match self.case(block_bytes, way, repeat) {
                Ok(Some(case)) => case,
                Ok(None) => return Ok(()),
                Err(error) if self.interrupt.is_set() => return Err(error),
                Err(error) => {
                    self.ends().settle();
                    is_over = error.is_final();
                    Case::failed(milliseconds(delay), (block_bytes, way, repeat), error.to_string())
                }
            };
            let end = failures.look_at(&case, self.ends().lost());
            let end = end.or_else(|| is_over.then(|| "nothing more was measured".to_owned()));
            report.cases.push(case);
            if let Some(reason) = end {
                report.problems.push(format!("delay {delay}: {reason}"));
                return Ok(());
            }
        }
        progress.note(&format!("one-way delay {delay} done"));
        Ok(())
    }

    fn ends(&mut self) -> BlockPair<'_> {
        let fleet = self.testbed.parts().0.fleet_mut();
        BlockPair { fleet, near: 0, far: 1, writes: &self.plan.writes, interrupt: self.interrupt }
    }

    /// One case, again if other load disturbed it; `None` if the user ended it.
    fn case(&mut self, block_bytes: u32, way: Way, repeat: u32) -> Result<Option<Case>, TestbedError> {
        let taken = |found: &Result<Option<Case>, TestbedError>| {
            let case = found.as_ref().ok()?.as_ref().filter(|case| case.problem.is_none())?;
            Some(Taken::most(&case.cpu))
        };
        until_quiet(self.interrupt, taken, || self.attempt(block_bytes, way, repeat))
    }

    fn attempt(&mut self, block_bytes: u32, way: Way, repeat: u32) -> Result<Option<Case>, TestbedError> {
        let blocks = self.plan.writes.blocks(block_bytes, way.protection());
        let in_tunnel = way.route == Route::Tunnel;
        let (agents, system) = self.testbed.parts();
        let inner = agents.pair((0, 1), 4, &[])?;
        if in_tunnel {
            agents.check_routes(std::slice::from_ref(&inner), self.interrupt)?;
        }
        let address = if in_tunnel { inner.address } else { outer() };
        let (before, mut meter) = (agents.read_devices()?, CpuMeter::new(system.processes()));
        let watched = Watched::of_system(system);
        meter.read();
        let delay = self.delay;
        let Ok(connected) = self.ends().connect(way, delay, &blocks, address) else { return Ok(None) };
        meter.read();
        if let Some(process) = watched.ended().filter(|_| in_tunnel && !self.interrupt.is_set()) {
            return Err(TestbedError::Ended(process));
        }
        let (written, generators) = connected.moved();
        let cpu = meter.used().map(|cpu| CpuUse { generators, ..cpu });
        let vpn_cpu = cpu.filter(|_| in_tunnel).map_or(0.0, |cpu| cpu.gateway);
        let mut case = connected.case((delay, way, repeat), &blocks, vpn_cpu, self.work);
        case.cpu = cpu.map(|cpu| CpuUse { generator_ends: case.ends_cpu_seconds.unwrap_or_default(), ..cpu });
        if in_tunnel {
            let payload = Payload { sent: written * u64::from(block_bytes), received: 0 };
            let carried = self.testbed.parts().0.carried_since(&before, payload)?;
            case.problem = case.problem.or_else(|| tunnel::bypass(&carried));
        }
        if case.problem.is_some() {
            self.ends().settle();
        }
        Ok(Some(case))
    }
}

/// The cases of one delay without a figure.
#[derive(Debug, Default)]
struct Failures {
    count: usize,
}

impl Failures {
    /// Takes a case, after which an agent may be `lost`. Returns why nothing more is to be measured
    /// at this delay, if so.
    fn look_at(&mut self, case: &Case, lost: Option<&str>) -> Option<String> {
        if let Some(name) = lost {
            return Some(format!("{name} dropped out; nothing more was measured"));
        }
        if case.bytes_per_second.is_some() {
            return None;
        }
        self.count += 1;
        let reason = case.problem.as_deref().unwrap_or("no block was acknowledged");
        (self.count >= MOST_FAILED)
            .then(|| format!("given up after {} cases without a figure, the last one: {reason}", self.count))
    }
}

/// Where the target is reached without the VPN.
fn outer() -> IpAddr {
    Lab::gateway_v4(1).into()
}

#[cfg(test)]
pub(crate) mod tests;
