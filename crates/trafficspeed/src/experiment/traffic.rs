//! Experiment 1, TrafficSpeed: a VPN server as its clients grow.
//!
//! Clients are paired, both ends of a pair are VPN clients, so every byte crosses the server twice. Each pair has
//! many TCP connections, half carrying data each way; all pairs start at one instant. Every measurement gets a
//! fresh lab; systems and client counts are interleaved within each repetition, so that drift of the machine hits
//! all alike.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::bulk_pairs::{self, PairPlan, SecondsObserver};
use super::cpu::CpuMeter;
use super::memory;
use super::outcome::{Campaign, Program, Run, Settings};
use super::progress::Progress;
use super::tunnel::{Reading, RouteError, check_routes};
use crate::coordinate::fleet::{Fleet, FleetError};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LabError, LinkSettings};
use crate::observe::running_program;
use crate::system::{ClientAddress, Programs, Subject, System, SystemError};
use crate::{clock, experiment::environment::Environment};

/// From the last connection to the start: enough for the word to reach every process of a busy machine.
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

/// Why one measurement has no result; the others go on.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("{0}")]
    Lab(#[from] LabError),
    #[error("{0}")]
    System(#[from] SystemError),
    #[error("{0}")]
    Fleet(#[from] FleetError),
    #[error("{0}")]
    Route(#[from] RouteError),
    #[error("client {number} has no IPv{ip} address through this system")]
    NoAddress { number: usize, ip: u8 },
}

/// Says what is missing, before anything is changed. A system that is missing is only a missing line of the
/// report, unless it is the only one.
///
/// # Errors
/// [`LabError::Missing`] or, if no system can run, [`SystemError::Missing`] in words.
pub fn check(plan: &TrafficPlan) -> anyhow::Result<()> {
    Lab::check(plan.links)?;
    memory::check(plan.clients.iter().copied().max().unwrap_or(0), &plan.settings)?;
    let missing: Vec<SystemError> =
        plan.subjects.iter().filter_map(|subject| subject.check(&plan.programs).err()).collect();
    if missing.is_empty() || missing.len() < plan.subjects.len() {
        return Ok(());
    }
    let lines: Vec<String> = missing.iter().map(ToString::to_string).collect();
    anyhow::bail!("nothing to measure: {}", lines.join("; "))
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
    /// Every measurement in the order of work: rounds outermost, systems innermost.
    pub fn slots(&self) -> Vec<Slot> {
        let rounds = 1..=self.settings.repeats;
        let of_round = |repeat| {
            let counts = self.clients.iter();
            counts.flat_map(move |&clients| {
                self.subjects.iter().map(move |&subject| Slot { subject, clients, repeat })
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
    Campaign { settings: plan.settings.clone(), environment, runs, interrupted, baseline: None }
}

/// Makes one measurement, for the `attempt`th time, in a lab of its own. Whatever goes wrong is in the result.
pub fn run_one(
    plan: &TrafficPlan,
    slot: Slot,
    attempt: u32,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Run {
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
    progress.starting(&title, &run);
    let result = subject
        .system(&plan.programs)
        .map_err(RunError::from)
        .and_then(|mut system| measure(plan, system.as_mut(), &mut run, progress, &title, interrupt));
    run.error = result.err().map(|error| error.to_string());
    run.took_seconds = began.elapsed().as_secs_f64();
    progress.finished(&title, &run);
    run
}

fn measure(
    plan: &TrafficPlan,
    system: &mut dyn System,
    run: &mut Run,
    progress: &Progress,
    title: &str,
    interrupt: &Interrupt,
) -> Result<(), RunError> {
    system.check()?;
    let lab = Lab::build(run.clients, plan.links)?;
    let measured = system.up(&lab, interrupt).map_err(RunError::from).and_then(|addresses| {
        run.facts = system.facts();
        measure_in(plan, &lab, system, &addresses, run, progress, title, interrupt)
    });
    system.down();
    measured
}

/// Measures the clients of a system that is up. The lab may have more namespaces than there are addresses: then the
/// first are the clients.
pub fn run_up(
    plan: &TrafficPlan,
    lab: &Lab,
    system: &dyn System,
    addresses: &[ClientAddress],
    title: &str,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Run {
    let clients = addresses.len() as u32;
    let mut run =
        Run { label: title.to_owned(), clients, repeat: 1, started: clock::wall_text(), ..Run::default() };
    progress.starting(title, &run);
    let result = measure_in(plan, lab, system, addresses, &mut run, progress, title, interrupt);
    run.error = result.err().map(|error| error.to_string());
    progress.finished(title, &run);
    run
}

#[expect(
    clippy::too_many_arguments,
    reason = "the borrowed parts of one measurement, used in this file only"
)]
fn measure_in(
    plan: &TrafficPlan,
    lab: &Lab,
    system: &dyn System,
    addresses: &[ClientAddress],
    run: &mut Run,
    progress: &Progress,
    title: &str,
    interrupt: &Interrupt,
) -> Result<(), RunError> {
    let mut fleet = Fleet::default();
    for (namespace, number) in lab.clients().iter().take(addresses.len()).zip(1..) {
        fleet.add_child(&format!("c{number}"), namespace.agent())?;
    }
    let pairs = pair_up(addresses, plan.settings.ip)?;
    check_routes(lab, addresses, &pairs, interrupt)?;
    let before = Reading::take(lab)?;
    let (gateway, clients) = system.processes();
    run.programs = programs(&gateway, &clients);
    let meter = CpuMeter::new((gateway, clients));
    let mut observer = SecondsObserver::new(progress, title, &plan.settings, Some(meter));
    (run.pairs, run.intervals) =
        bulk_pairs::run(&mut fleet, &pairs, &plan.settings, LEAD, &mut observer, interrupt);
    run.cpu = observer.cpu.as_ref().and_then(CpuMeter::used);
    run.carried = Reading::take(lab)?.since(&before, addresses, &run.pairs);
    if let Some(emulator) = lab.emulator() {
        run.facts.notes.extend(emulator.notes());
    }
    if let Some(cpu) = &mut run.cpu {
        cpu.generators =
            run.pairs.iter().flat_map(super::outcome::Pair::outcomes).map(|o| o.cpu_seconds).sum();
    }
    Ok(())
}

/// Client 1 with 2, 3 with 4, and so on; the first of each listens.
fn pair_up(addresses: &[ClientAddress], ip: u8) -> Result<Vec<PairPlan>, RunError> {
    (0..addresses.len() / 2)
        .map(|pair| {
            let (listener, connector) = (2 * pair, 2 * pair + 1);
            let address = &addresses[listener];
            let address = if ip == 4 { address.v4.map(IpAddr::V4) } else { address.v6.map(IpAddr::V6) };
            let address = address.ok_or(RunError::NoAddress { number: listener + 1, ip })?;
            Ok(PairPlan { listener, address, connector })
        })
        .collect()
}

/// The gateway's programs and those of one client, which stands for all.
fn programs(gateway: &[u32], clients: &[u32]) -> Vec<Program> {
    let of = |role: &str, pid: u32| {
        let (command, sha256) = running_program(pid)?;
        Some(Program { role: role.to_owned(), command, sha256 })
    };
    let gateway = gateway.iter().filter_map(|pid| of("gateway", *pid));
    gateway.chain(clients.first().and_then(|pid| of("client", *pid))).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn neighbours_are_paired_and_a_missing_address_is_named() {
        let address =
            |n: u8| ClientAddress { v4: Some(Ipv4Addr::new(10, 0, 0, n)), v6: None, device: "tun0".into() };
        let pairs = pair_up(&[address(1), address(2), address(3), address(4)], 4).unwrap();
        assert_eq!(pairs.len(), 2);
        assert_eq!((pairs[1].listener, pairs[1].connector), (2, 3));
        assert_eq!(pairs[1].address, IpAddr::from([10, 0, 0, 3]));
        let error = pair_up(&[address(1), address(2)], 6).unwrap_err();
        assert_eq!(error.to_string(), "client 1 has no IPv6 address through this system");
        let v6 = ClientAddress { v4: None, v6: Some(Ipv6Addr::LOCALHOST), device: "tun0".into() };
        assert!(pair_up(&[v6.clone(), v6], 6).is_ok());
    }
}
