//! The measurement that the model is compared with: one TCP stream from a client to the gateway's host, through vpnd.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::ModelPlan;
use super::predict::Shape;
use crate::experiment::figures::figures;
use crate::experiment::generate::fresh;
use crate::experiment::pair_run::Times;
use crate::experiment::testbed::{RemoteEnd, Testbed, Trial, TrialResult};
use crate::interrupt::Interrupt;
use crate::lab::device::Counters;
use crate::lab::namespace::Namespace;
use crate::lab::{CLIENT_LINK, Lab};
use crate::load::congestion::CongestionControl;
use crate::load::task::Task;
use crate::load::tcp::{Job, Shape as Socket, Way};
use crate::stats::median;
use crate::system::{Subject, SystemInfo};

/// Bytes of each send call, as `trafficspeed stream` has them.
const WRITE_BYTES: u32 = 256 * 1024;
const INTERVAL: Duration = Duration::from_secs(1);

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
    pub generator_seconds_per_gbit: f64,
    /// The pieces in which the payload travelled, all repetitions together.
    pub shape: Shape,
    pub each: Vec<f64>,
    /// The share of the machine's CPU time that was used, in percent; the largest of all repetitions.
    pub busy_percent: f64,
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
    bits_per_second: f64,
    client: f64,
    gateway: f64,
    generators: f64,
    mss: f64,
    busy_percent: f64,
}

/// Measures one suite.
///
/// # Errors
/// If it does not come up or a repetition fails.
pub fn measure(
    plan: &ModelPlan,
    subject: Subject,
    real: RealPlan,
    interrupt: &Interrupt,
) -> anyhow::Result<Real> {
    let system = subject.system(&plan.programs)?;
    let mut testbed = Testbed::build(system, RemoteEnd::Gateway, plan.links, interrupt)?;
    let times = Times { warmup: real.warmup, duration: real.duration, interval: INTERVAL };
    let before = Reading::take(testbed.lab())?;
    let mut rounds = Vec::new();
    for _ in 0..real.repeats {
        let trial = Trial { tasks: vec![fresh(&stream(plan.links.congestion))], ip: 4, times };
        let measured = testbed.measure(&trial, |_, _| (), interrupt)?;
        ensure!(!measured.reports.stopped_early(), "interrupted");
        rounds.push(Round::of(&trial, &measured).context("the stream carried nothing")?);
    }
    let carried = Reading::take(testbed.lab())?.since(&before);
    let mss = middle(&rounds, |round| round.mss);
    let shape = carried.shape(mss).context("the TUN devices carried nothing")?;
    Ok(Real {
        bits_per_second: middle(&rounds, |round| round.bits_per_second),
        client_seconds_per_gbit: middle(&rounds, |round| round.client),
        gateway_seconds_per_gbit: middle(&rounds, |round| round.gateway),
        generator_seconds_per_gbit: middle(&rounds, |round| round.generators),
        shape,
        each: rounds.iter().map(|round| round.bits_per_second).collect(),
        busy_percent: rounds.iter().map(|round| round.busy_percent).fold(0.0, f64::max),
        facts: testbed.facts().clone(),
    })
}

fn middle(rounds: &[Round], of: fn(&Round) -> f64) -> f64 {
    median(&rounds.iter().map(of).collect::<Vec<_>>()).unwrap_or_default()
}

fn stream(congestion: CongestionControl) -> Task {
    Task::Bulk(Job {
        run_id: 0,
        seed: 1,
        streams: 1,
        threads: 1,
        write_bytes: WRITE_BYTES,
        verify: false,
        congestion,
        shape: Socket { way: Way::Forward, window: None, mss: None },
    })
}

impl Round {
    fn of(trial: &Trial, measured: &TrialResult) -> Option<Self> {
        let found = figures(&trial.tasks[0], 0, &measured.reports);
        let cpu = measured.cpu;
        let gbit = found.received_bits_per_second * cpu.seconds / 1e9;
        let total = cpu.host.total();
        (gbit > 0.0).then(|| Self {
            bits_per_second: found.received_bits_per_second,
            client: cpu.clients / gbit,
            gateway: cpu.gateway / gbit,
            generators: cpu.generators / gbit,
            mss: f64::from(found.mss.unwrap_or_default()),
            busy_percent: if total > 0.0 { 100.0 * cpu.host.busy() / total } else { 0.0 },
        })
    }
}

/// The counters of the devices at both ends.
struct Reading {
    client: HashMap<String, Counters>,
    gateway: HashMap<String, Counters>,
}

/// The counters at both ends.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    client_tun: Counters,
    client_link: Counters,
    gateway_tun: Counters,
}

impl Reading {
    fn take(lab: &Lab) -> anyhow::Result<Self> {
        let read = |namespace: &Namespace| Counters::read(namespace);
        Ok(Self { client: read(&lab.clients()[0])?, gateway: read(lab.gateway())? })
    }

    fn since(&self, earlier: &Self) -> Carried {
        // Beside loopback and the lab's links there is only the tunnel's device.
        let tun = |now: &HashMap<String, Counters>, then: &HashMap<String, Counters>, link: &str| {
            let names = now.keys().filter(|name| *name != "lo" && *name != link);
            let carried = names.map(|name| now[name].since(then.get(name).copied().unwrap_or_default()));
            carried.max_by_key(|counters| counters.sent.bytes + counters.received.bytes).unwrap_or_default()
        };
        let of = |all: &HashMap<String, Counters>| all.get(CLIENT_LINK).copied().unwrap_or_default();
        Carried {
            client_tun: tun(&self.client, &earlier.client, CLIENT_LINK),
            client_link: of(&self.client).since(of(&earlier.client)),
            gateway_tun: tun(&self.gateway, &earlier.gateway, "c1"),
        }
    }
}

impl Carried {
    /// In which pieces the payload travelled; `None` without any.
    fn shape(&self, mss: f64) -> Option<Shape> {
        let payload = self.client_tun.sent.bytes as f64;
        let of = |packets: u64| (packets > 0).then(|| payload / packets as f64);
        Some(Shape {
            mss: if mss > 0.0 { mss } else { return None },
            read: of(self.client_tun.sent.packets)?,
            run: of(self.client_link.sent.packets)?,
            written: of(self.gateway_tun.received.packets)?,
            acknowledged: of(self.gateway_tun.sent.packets)?,
            ack_run: of(self.client_link.received.packets)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::device::Traffic;

    fn counters(sent: (u64, u64), received: (u64, u64)) -> Counters {
        let of = |(bytes, packets)| Traffic { bytes, packets, ..Traffic::default() };
        Counters { sent: of(sent), received: of(received) }
    }

    #[test]
    fn pieces_come_from_the_devices_counters() {
        let reading = |sent: u64, packets: u64| Reading {
            client: HashMap::from([
                ("lo".to_owned(), counters((1 << 50, 1), (0, 0))),
                (CLIENT_LINK.to_owned(), counters((sent, packets * 2), (0, packets / 4))),
                ("vpnd0".to_owned(), counters((sent, packets), (0, packets / 2))),
            ]),
            gateway: HashMap::from([
                ("c1".to_owned(), counters((1 << 40, 1), (1 << 50, 1))),
                ("vpnd0".to_owned(), counters((0, packets / 2), (sent, packets * 4))),
            ]),
        };
        let carried = reading(1_060_000, 140).since(&reading(60_000, 40));
        let shape = carried.shape(1356.0).expect("there is traffic");
        let found = [shape.read, shape.run, shape.written, shape.acknowledged, shape.ack_run];
        assert_eq!(found, [10_000.0, 5_000.0, 2_500.0, 20_000.0, 40_000.0]);
        assert!(carried.shape(0.0).is_none() && Carried::default().shape(1356.0).is_none());
    }
}
