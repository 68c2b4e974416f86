//! Experiment 4: encrypt ahead of the wait. Block writes over long delays, each answered once it is on disk.
//!
//! ```text
//!   client 1: writer ═══ emulated link ═══ gateway: target with its file
//! ```
//!
//! The original's three ways to write the same blocks: *plain*, without a VPN, waiting for each answer; through the
//! *tunnel*, waiting for each answer (its IPsec); and *OP-n*, without a VPN but sealed above TCP, with n blocks in progress.
//! And two controls, *plain-n* and *tunnel-n*: what n blocks in progress gain by themselves is not the gain of encrypting
//! ahead. At each delay one lab with the tunnel up serves all of them in turn, so that drift hits all alike.

pub mod ends;
pub mod model;
pub mod original;
pub mod outcome;
pub mod tally;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use super::cpu::CpuMeter;
use super::lab_agents::{TestbedError, gateway_address};
use super::progress::Progress;
use crate::interrupt::Interrupt;
use crate::lab::cpu_limit::CpuLimit;
use crate::lab::device::{Counters, towards};
use crate::lab::emulator::Emulation;
use crate::lab::emulator::impairment::{Rate, Span};
use crate::lab::{Lab, LabError, LinkSettings};
use crate::load::block::content::{Content, verify};
use crate::load::block::place::{Place, PlaceError, PlaceOptions};
use crate::load::block::{Blocks, Protection, Secret};
use crate::load::congestion::CongestionControl;
use crate::observe::tree_cpu_seconds;
use crate::system::{ClientAddress, Programs, Subject, System, SystemError};
use ends::{Connection, Ends, EndsError};
pub use outcome::{BlockReport, Case, Route, Way};
use tally::{Side, Work};

/// The least share of the blocks' bytes that the tunnel must have carried.
const LEAST_SHARE: f64 = 0.95;
/// Round trips that a new connection gets to open its window, and what it gets beside.
const WARMUP_ROUND_TRIPS: u32 = 12;
const WARMUP: Duration = Duration::from_millis(300);
/// Blocks in progress when the host is measured without waiting.
pub const CALIBRATION_AHEAD: u32 = 10;
/// The time that a lab with a system takes to come up and go, and a case beside its own; for the estimate only.
const LAB: Duration = Duration::from_secs(4);
const CASE_SECONDS: f64 = 0.2;

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
    /// The target asks for each block first, as iSCSI does without unsolicited data: two round trips for each.
    pub ready_first: bool,
}

#[derive(Debug)]
pub struct BlockPlan {
    pub delays: Vec<Span>,
    /// Of the link, each way; as fast as the machine can if absent.
    pub rate: Option<Rate>,
    /// Of the VPN's programs at the target's side and of the target.
    pub cpu: Option<CpuLimit>,
    pub writes: Writes,
    pub place: PlaceOptions,
    /// The system with the tunnel.
    pub subject: Subject,
    pub programs: Programs,
}

/// Why a lab gave no results.
#[derive(Debug, thiserror::Error)]
pub enum BlockRunError {
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The system did not come up.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The gateway's inner address was not found.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    #[error(transparent)]
    Ends(#[from] EndsError),
    /// The target's file or device failed.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The measurement would go past the VPN, or did.
    #[error("{0}; check the routes")]
    Past(String),
}

impl Writes {
    /// All cases at one delay, in the order in which they are measured: block size, way, repetition. Repetitions come last,
    /// so that drift of the machine hits all ways alike.
    pub fn cases(&self) -> Vec<(u32, Way, u32)> {
        let ways = outcome::ways(&self.ahead);
        let of = |repeat: u32| {
            let each = |&size: &u32| ways.iter().map(move |&way| (size, way, repeat)).collect::<Vec<_>>();
            self.sizes.iter().flat_map(each).collect::<Vec<_>>()
        };
        (1..=self.repeats).flat_map(of).collect()
    }

    pub fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(1)
    }

    /// The blocks of one size, with a secret of their own.
    pub fn blocks(&self, block_bytes: u32, protection: Protection) -> Blocks {
        let size = u64::from(block_bytes);
        let span_bytes = (self.span_bytes / size).max(1) * size;
        let (congestion, ready_first) = (self.congestion, self.ready_first);
        Blocks { secret: Secret::random(), protection, block_bytes, span_bytes, congestion, ready_first }
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
        let case = (Self::warmup(delay) + self.duration.max(least)).as_secs_f64() + CASE_SECONDS;
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
            ..LinkSettings::default()
        }
    }

    /// The limits of link and CPU, in words.
    fn limits(&self) -> Vec<String> {
        let rate = self.rate.map(|rate| format!("the link carries {rate} each way"));
        let cpu = self.cpu.map(|cpu| {
            format!("the target and the VPN's programs on its side have {cpu} of the CPU together")
        });
        rate.into_iter().chain(cpu).collect()
    }

    /// About how long all of it takes.
    pub fn estimate(&self) -> Duration {
        let labs = self.delays.iter().map(|&delay| LAB + self.writes.estimate(delay));
        labs.sum()
    }
}

/// Says what is missing, before anything is changed.
pub fn check(plan: &BlockPlan) -> Result<(), BlockRunError> {
    for delay in &plan.delays {
        Lab::check(plan.links(*delay))?;
    }
    Ok(plan.subject.check(&plan.programs)?)
}

/// Runs all of it.
///
/// # Errors
/// [`PlaceError`] when the target cannot be had; what fails later is in the report.
pub fn run(plan: &BlockPlan, progress: &Progress, interrupt: &Interrupt) -> Result<BlockReport, PlaceError> {
    let writes = &plan.writes;
    let place = Place::prepare(&plan.place, writes.span_bytes.max(u64::from(writes.largest())))?;
    let delays_ms = plan.delays.iter().map(|delay| delay.ns as f64 / 1e6).collect();
    let mut report = BlockReport::begin(writes, plan.subject.label(), place.describe(), delays_ms);
    report.window_bytes = crate::lab::WINDOW_BYTES;
    report.limits = plan.limits();
    let mut work = Work::default();
    for &delay in &plan.delays {
        if interrupt.is_set() {
            break;
        }
        if let Err(error) = run_delay(plan, delay, &place, &mut report, &mut work, progress, interrupt) {
            report.problems.push(format!("one-way delay {delay}: {error}"));
        }
    }
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
) -> Result<(), BlockRunError> {
    let mut system = plan.subject.system(&plan.programs)?;
    system.check()?;
    let lab = Lab::build(1, plan.links(delay))?;
    lab.widen_windows()?;
    let measured = system.up(&lab, interrupt).map_err(BlockRunError::from).and_then(|addresses| {
        let none = || SystemError::Missing("the client has no address inside the system".into());
        let client = addresses.into_iter().next().ok_or_else(none)?;
        let gateway = gateway_address(&lab, system.as_mut(), &client, interrupt)?;
        report.facts = system.facts();
        let mut bench = Bench::new(plan, delay, place, &lab, system.as_ref(), (client, gateway))?;
        if !work.is_calibrated() {
            work.lower = bench.calibrate(interrupt)?;
        }
        bench.run_all(report, work, progress, interrupt)
    });
    system.down();
    if let Some(emulator) = lab.emulator() {
        report.links.extend(emulator.notes().iter().map(|note| format!("delay {delay}: {note}")));
    }
    measured
}

/// A lab that is up, with both ends.
struct Bench<'a> {
    plan: &'a BlockPlan,
    delay: Span,
    place: &'a Place,
    lab: &'a Lab,
    system: &'a dyn System,
    client: ClientAddress,
    inner: IpAddr,
    ends: Ends,
    content: Content,
}

impl<'a> Bench<'a> {
    fn new(
        plan: &'a BlockPlan,
        delay: Span,
        place: &'a Place,
        lab: &'a Lab,
        system: &'a dyn System,
        (client, gateway): (ClientAddress, ClientAddress),
    ) -> Result<Self, BlockRunError> {
        let inner = gateway.v4.ok_or_else(|| {
            SystemError::Missing("the gateway has no IPv4 address inside the system".into())
        })?;
        let ends = Ends::start(&lab.clients()[0], lab.gateway())?;
        let content = Content::new(plan.writes.seed);
        Ok(Self { plan, delay, place, lab, system, client, inner: inner.into(), ends, content })
    }

    /// The rate of this host without encryption and without waiting, bytes per second.
    fn calibrate(&mut self, interrupt: &Interrupt) -> Result<f64, BlockRunError> {
        let blocks = self.plan.writes.blocks(self.plan.writes.largest(), Protection::Plain);
        let connection = self.connection(&blocks, Lab::gateway_v4(1).into(), CALIBRATION_AHEAD);
        let (wrote, _) = self.ends.run(&connection, interrupt)?;
        Ok(tally::rate(&blocks, &wrote).unwrap_or(0.0))
    }

    fn connection<'b>(&self, blocks: &'b Blocks, address: IpAddr, ahead: u32) -> Connection<'b>
    where
        'a: 'b,
    {
        let Writes { sync, seed, duration, .. } = self.plan.writes;
        let (file, warmup) = (self.place.path(), Writes::warmup(self.delay));
        Connection { blocks, file, sync, address, seed, ahead, warmup, duration }
    }

    fn run_all(
        &mut self,
        report: &mut BlockReport,
        work: &mut Work,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<(), BlockRunError> {
        for (block_bytes, way, repeat) in self.plan.writes.cases() {
            if interrupt.is_set() {
                return Ok(());
            }
            let (delay, name) = (self.delay, way.name());
            progress.live(&format!("delay {delay}, run {repeat}, blocks of {block_bytes} bytes, {name}"));
            report.cases.push(self.case((block_bytes, way, repeat), work, interrupt)?);
        }
        progress.note(&format!("one-way delay {} done", self.delay));
        Ok(())
    }

    fn case(
        &mut self,
        (block_bytes, way, repeat): (u32, Way, u32),
        work: &mut Work,
        interrupt: &Interrupt,
    ) -> Result<Case, BlockRunError> {
        let outer = Lab::gateway_v4(1).into();
        let address = if way.route == Route::Tunnel { self.inner } else { outer };
        let blocks = self.plan.writes.blocks(block_bytes, way.protection());
        if way.route == Route::Tunnel {
            self.leads_into_the_tunnel()?;
        }
        let (before, cpu_before) = (self.tunnel_sent()?, tree_cpu_seconds(&self.system.processes().0));
        let connection = self.connection(&blocks, address, way.ahead);
        let mut meter = CpuMeter::new(self.system.processes());
        meter.read();
        let (wrote, received) = self.ends.run(&connection, interrupt)?;
        meter.read();
        let vpn_cpu = tree_cpu_seconds(&self.system.processes().0) - cpu_before;
        let carried = self.tunnel_sent()?.saturating_sub(before);
        let read = |offset: u64, data: &mut [u8]| self.place.read_at(offset, data);
        let verified = verify(&blocks, &self.content, wrote.acknowledged, wrote.sent, read)
            .map_err(PlaceError::reading(self.place.path()))?;
        work.add(&blocks, &wrote, &received);
        let vpn_cpu_seconds = if way.route == Route::Tunnel { vpn_cpu } else { 0.0 };
        let side = Side { received: &received, verified, vpn_cpu_seconds };
        let delay_ms = self.delay.ns as f64 / 1e6;
        let mut case = Case::measured((delay_ms, way, repeat), &blocks, &wrote, &side);
        case.cpu = meter.used();
        let payload = received.written * u64::from(block_bytes);
        if way.route == Route::Tunnel && (carried as f64) < LEAST_SHARE * payload as f64 {
            let percent = carried * 100 / payload.max(1);
            case.problem = Some(format!("only {percent} % of the blocks went through the tunnel"));
        }
        Ok(case)
    }

    fn leads_into_the_tunnel(&self) -> Result<(), BlockRunError> {
        let found = towards(&self.lab.clients()[0], self.inner)?;
        if found == self.client.device {
            return Ok(());
        }
        let (inner, tunnel) = (self.inner, &self.client.device);
        Err(BlockRunError::Past(format!(
            "the writer would reach {inner} through {found}, not through {tunnel}"
        )))
    }

    /// Bytes that the client's tunnel device has sent.
    fn tunnel_sent(&self) -> Result<u64, LabError> {
        let all: HashMap<String, Counters> = Counters::read(&self.lab.clients()[0])?;
        Ok(all.get(&self.client.device).map_or(0, |counters| counters.sent.bytes))
    }
}

#[cfg(test)]
pub(crate) mod tests;
