//! The measurements that the model is compared with: TCP streams from a client to the gateway's
//! host, through vpnd.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use serde::{Deserialize, Serialize};

use super::counts::{Counts, GBIT_BYTES, HEADERS};
use super::sum::Beside;
use super::{Case, ModelPlan};
use crate::experiment::figures::{Figures, figures};
use crate::experiment::generate::fresh;
use crate::experiment::outcome::{CpuUse, Taken};
use crate::experiment::pair_run::Times;
use crate::experiment::progress::Progress;
use crate::experiment::testbed::{RemoteEnd, Testbed, Trial, TrialResult};
use crate::experiment::turns::{order, pause};
use crate::interrupt::Interrupt;
use crate::lab::device::Counters;
use crate::lab::namespace::Namespace;
use crate::lab::{CLIENT_LINK, Lab};
use crate::load::task::Task;
use crate::load::tcp::{Job, Shape as Socket, Way};
use crate::observe::tree_sleeps;
use crate::stats::{median, range};
use crate::system::{Subject, SystemInfo};

/// Bytes of each send call, as `trafficspeed stream` has them.
const WRITE_BYTES: u32 = 256 * 1024;
const INTERVAL: Duration = Duration::from_secs(1);
/// Length of IPv4 and TCP headers without options: the segment size of a socket
/// includes options.
const BARE_HEADERS: u32 = 40;

#[derive(Clone, Copy, Debug)]
pub struct RealPlan {
    pub duration: Duration,
    pub warmup: Duration,
    pub repeats: u32,
}

/// Medians over the repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Real {
    pub bits_per_second: f64,
    /// CPU seconds of the client's VPN process for a Gbit of payload.
    pub client_seconds_per_gbit: f64,
    pub gateway_seconds_per_gbit: f64,
    /// CPU time outside them, and the share of the machine in use.
    pub beside: Beside,
    /// Cores that were to be had: without those that other processes and the hypervisor took.
    pub cpus: f64,
    /// The share of the used CPU time that was soft interrupts, within whatever process they ran.
    pub softirq: f64,
    /// Calls, packets and wake-ups for each Gbit.
    pub counts: Counts,
    /// The throughput of each repetition.
    pub each: Vec<f64>,
    /// The VPN's CPU seconds for a Gbit of each.
    pub cpu_each: Vec<f64>,
    /// CPU seconds of everything that the load needs, for a Gbit of each.
    #[serde(default)]
    pub whole_each: Vec<f64>,
    /// Share of the machine that others took meanwhile.
    pub taken: Taken,
    /// The VPN's CPU seconds for a Gbit, the least and the most of all repetitions.
    pub cpu_range: (f64, f64),
    /// The VPN's own account.
    pub facts: SystemInfo,
}

impl Real {
    /// CPU seconds of both VPN processes for a Gbit of payload.
    pub fn vpn_seconds_per_gbit(&self) -> f64 {
        self.client_seconds_per_gbit + self.gateway_seconds_per_gbit
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Round {
    cpu: CpuUse,
    bits_per_second: f64,
    client: f64,
    gateway: f64,
    generators: f64,
    kernel: f64,
    in_use: f64,
    cpus: f64,
    softirq: f64,
    counts: Counts,
}

/// One suite's cases, each measured or why it could not be.
pub type Cases = Vec<anyhow::Result<Real>>;

/// Measures every suite with every case. The suites take turns in shuffled order, so that a machine
/// that becomes slower or faster meanwhile does so for all of them. After a suite's failure its
/// other turns are left out. Before each turn but the first `between` is called.
///
/// # Errors
/// Those of `between`.
pub fn measure(
    plan: &ModelPlan,
    subjects: &[Subject],
    (progress, interrupt): (&Progress, &Interrupt),
    mut between: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<anyhow::Result<Cases>>> {
    let mut taken: Vec<anyhow::Result<Turns>> = subjects.iter().map(|_| Ok(Turns::new(plan))).collect();
    for turn in 0..plan.real.repeats {
        if turn > 0 && !interrupt.is_set() {
            between()?;
        }
        for at in order(0..subjects.len(), turn + 1) {
            let Ok(known) = &mut taken[at] else { continue };
            if interrupt.is_set() {
                taken[at] = Err(anyhow!("interrupted"));
                continue;
            }
            progress.note(&format!(
                "measuring {}, turn {} of {}",
                subjects[at].label(),
                turn + 1,
                plan.real.repeats
            ));
            pause();
            if let Err(error) = known.take_turn(plan, subjects[at], interrupt) {
                taken[at] = Err(error);
            }
        }
    }
    Ok(taken.into_iter().map(|taken| taken.map(Turns::finish)).collect())
}

/// The results of one suite's turns.
struct Turns {
    facts: Option<SystemInfo>,
    cases: Vec<anyhow::Result<Vec<Round>>>,
}

impl Turns {
    fn new(plan: &ModelPlan) -> Self {
        Self { facts: None, cases: plan.cases.iter().map(|_| Ok(Vec::new())).collect() }
    }

    /// Brings the system up and measures each case once.
    fn take_turn(&mut self, plan: &ModelPlan, subject: Subject, interrupt: &Interrupt) -> anyhow::Result<()> {
        let system = subject.system(&plan.programs)?;
        let mut testbed = Testbed::build(system, RemoteEnd::Gateway, plan.links, interrupt)?;
        for (case, rounds) in plan.cases.iter().zip(&mut self.cases) {
            let Ok(known) = rounds else { continue };
            match round(plan, &mut testbed, *case, interrupt) {
                Ok(round) => known.push(round),
                Err(error) => *rounds = Err(error),
            }
        }
        self.facts = Some(testbed.facts().clone());
        Ok(())
    }

    fn finish(self) -> Cases {
        let facts = self.facts;
        let result = |rounds: Vec<Round>| {
            facts.as_ref().map(|facts| Real::of(&rounds, facts.clone())).context("nothing was measured")
        };
        self.cases.into_iter().map(|rounds| rounds.and_then(result)).collect()
    }
}

/// One repetition of one case.
fn round(
    plan: &ModelPlan,
    testbed: &mut Testbed,
    case: Case,
    interrupt: &Interrupt,
) -> anyhow::Result<Round> {
    ensure!(!interrupt.is_set(), "interrupted");
    let before = Reading::take(testbed)?;
    let (found, cpu) = carry(plan, testbed, case, interrupt)?;
    let counts =
        Reading::take(testbed)?.since(&before).counts(case).context("the TUN devices carried nothing")?;
    // The kernel counts a segment without its options.
    let longest = found.mss.unwrap_or_default() + HEADERS as u32;
    ensure!(
        longest >= case.packet,
        "packets of {} bytes do not fit: the tunnel carries {longest} here",
        case.packet
    );
    Round::of(&found, cpu, counts).context("the streams carried nothing")
}

/// Carries streams as fast as possible, with segments as long as the case has packets.
pub(super) fn carry(
    plan: &ModelPlan,
    testbed: &mut Testbed,
    case: Case,
    interrupt: &Interrupt,
) -> anyhow::Result<(Figures, CpuUse)> {
    let task = Task::Bulk(Job {
        streams: case.streams,
        write_bytes: WRITE_BYTES,
        congestion: plan.links.congestion,
        shape: Socket { way: Way::Forward, window: None, mss: Some(case.packet - BARE_HEADERS) },
        ..Job::default()
    });
    let RealPlan { warmup, duration, .. } = plan.real;
    let trial =
        Trial { tasks: vec![fresh(&task)], ip: 4, times: Times { warmup, duration, interval: INTERVAL } };
    let TrialResult { reports, cpu } = testbed.measure(&trial, interrupt)?;
    ensure!(!reports.stopped_early(), "interrupted");
    ensure!(reports.faults().is_empty(), reports.faults().join("; "));
    Ok((figures(&trial.tasks[0], 0, &reports), cpu))
}

impl Real {
    fn of(rounds: &[Round], facts: SystemInfo) -> Self {
        let middle = |value: fn(&Round) -> f64| {
            median(&rounds.iter().map(value).collect::<Vec<_>>()).unwrap_or_default()
        };
        let vpn: Vec<f64> = rounds.iter().map(|round| round.client + round.gateway).collect();
        let whole = rounds.iter().zip(&vpn).map(|(round, vpn)| vpn + round.generators + round.kernel);
        Self {
            bits_per_second: middle(|round| round.bits_per_second),
            client_seconds_per_gbit: middle(|round| round.client),
            gateway_seconds_per_gbit: middle(|round| round.gateway),
            beside: Beside {
                generators: middle(|round| round.generators),
                kernel: middle(|round| round.kernel),
                in_use: middle(|round| round.in_use),
            },
            cpus: middle(|round| round.cpus),
            softirq: middle(|round| round.softirq),
            counts: Counts::mean(&rounds.iter().map(|round| round.counts).collect::<Vec<_>>()),
            each: rounds.iter().map(|round| round.bits_per_second).collect(),
            cpu_range: range(&vpn).unwrap_or_default(),
            whole_each: whole.collect(),
            cpu_each: vpn,
            taken: Taken::most(rounds.iter().map(|round| &round.cpu)),
            facts,
        }
    }
}

impl Round {
    fn of(found: &Figures, cpu: CpuUse, counts: Counts) -> Option<Self> {
        let gbit = found.received_bits_per_second * cpu.seconds / 1e9;
        let available = cpu.host.total() - cpu.host.steal - cpu.foreign;
        let used = cpu.host.busy() - cpu.foreign;
        let known = cpu.clients + cpu.gateway + cpu.generators;
        let share = |part: f64, whole: f64| if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
        (gbit > 0.0 && available > 0.0).then(|| Self {
            cpu,
            bits_per_second: found.received_bits_per_second,
            client: cpu.clients / gbit,
            gateway: cpu.gateway / gbit,
            generators: cpu.generators / gbit,
            kernel: (used - known).max(0.0) / gbit,
            in_use: share(used.max(known), available),
            cpus: available / cpu.seconds,
            softirq: share(cpu.host.interrupt, used),
            counts,
        })
    }
}

/// The counters of the devices and of the VPN's processes at both ends.
struct Reading {
    client: HashMap<String, Counters>,
    gateway: HashMap<String, Counters>,
    /// How often the threads of the client's and of the gateway's processes have slept.
    wakes: [u64; 2],
}

/// The counts between two readings.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    client_tun: Counters,
    client_link: Counters,
    gateway_tun: Counters,
    wakes: [u64; 2],
}

impl Reading {
    fn take(testbed: &mut Testbed) -> anyhow::Result<Self> {
        let (_, system) = testbed.parts();
        let (gateway, clients) = system.processes();
        let wakes = [tree_sleeps(&clients), tree_sleeps(&gateway)];
        let lab: &Lab = testbed.lab();
        let read = |namespace: &Namespace| Counters::read(namespace);
        Ok(Self { client: read(&lab.clients()[0])?, gateway: read(lab.gateway())?, wakes })
    }

    fn since(&self, earlier: &Self) -> Carried {
        // Beside loopback and the lab's links there is only the tunnel's device.
        let tun = |now: &HashMap<String, Counters>, then: &HashMap<String, Counters>, link: &str| {
            let names = now.keys().filter(|name| *name != "lo" && *name != link);
            let carried = names.map(|name| now[name].since(then.get(name).copied().unwrap_or_default()));
            carried.max_by_key(|counters| counters.sent.bytes + counters.received.bytes).unwrap_or_default()
        };
        let link = |all: &HashMap<String, Counters>| all.get(CLIENT_LINK).copied().unwrap_or_default();
        Carried {
            client_tun: tun(&self.client, &earlier.client, CLIENT_LINK),
            client_link: link(&self.client).since(link(&earlier.client)),
            gateway_tun: tun(&self.gateway, &earlier.gateway, "c1"),
            wakes: [0, 1].map(|end: usize| self.wakes[end].saturating_sub(earlier.wakes[end])),
        }
    }
}

impl Carried {
    /// The counts for a Gbit of payload; `None` without any.
    fn counts(&self, case: Case) -> Option<Counts> {
        let headers = HEADERS * self.client_tun.sent.packets as f64;
        let payload = self.client_tun.sent.bytes as f64 - headers;
        let scale = (payload > 0.0).then(|| GBIT_BYTES / payload)?;
        let per_gbit = |count: u64| count as f64 * scale;
        Some(Counts {
            bytes: GBIT_BYTES,
            datagrams: GBIT_BYTES / (f64::from(case.packet) - HEADERS),
            reads: per_gbit(self.client_tun.sent.packets),
            runs: per_gbit(self.client_link.sent.packets),
            writes: per_gbit(self.gateway_tun.received.packets),
            ack_reads: per_gbit(self.gateway_tun.sent.packets),
            acks: per_gbit(self.gateway_tun.sent.packets),
            ack_runs: per_gbit(self.client_link.received.packets),
            ack_writes: per_gbit(self.client_tun.received.packets),
            wakes: self.wakes.map(per_gbit),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::device::Traffic;

    fn counters(sent: (u64, u64), received: (u64, u64)) -> Counters {
        let traffic = |(bytes, packets)| Traffic { bytes, packets, ..Traffic::default() };
        Counters { sent: traffic(sent), received: traffic(received) }
    }

    #[test]
    fn carried_traffic_is_read_from_device_counters() {
        // Super-packets of 10,052 bytes at the client.
        let reading = |packets: u64| Reading {
            client: HashMap::from([
                ("lo".to_owned(), counters((1 << 50, 1), (0, 0))),
                (CLIENT_LINK.to_owned(), counters((10_052 * packets, packets * 2), (0, packets / 4))),
                ("vpnd0".to_owned(), counters((10_052 * packets, packets), (0, packets / 2))),
            ]),
            gateway: HashMap::from([
                ("c1".to_owned(), counters((1 << 40, 1), (1 << 50, 1))),
                ("vpnd0".to_owned(), counters((0, packets / 2), (10_052 * packets, packets * 4))),
            ]),
            wakes: [packets, 3 * packets],
        };
        let carried = reading(140).since(&reading(40));
        // 100 super-packets are a MB of payload; a Gbit is 125 times as much.
        let counts = carried.counts(Case { packet: 1052, streams: 1 }).expect("there is traffic");
        let found =
            [counts.reads, counts.runs, counts.writes, counts.acks, counts.ack_runs, counts.ack_writes];
        assert_eq!(found, [12_500.0, 25_000.0, 50_000.0, 6250.0, 3125.0, 6250.0]);
        assert_eq!((counts.datagrams, counts.wakes), (125_000.0, [12_500.0, 37_500.0]));
        assert!(Carried::default().counts(Case { packet: 1052, streams: 1 }).is_none());
    }
}
