//! The results of experiment 1, as plain data from which every report is made.
//!
//! Definitions (TrafficSpeed, 2006): *communication throughput* counts bytes received plus bytes
//! sent of every measuring host; *goodput* counts bytes received only, once per byte. Both are per
//! second of each host's own measuring time, in bit/s with decimal prefixes.

mod cpu_use;
pub mod observations;

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::figures::Figures;
use super::tunnel::{self, Carried};
use crate::coordinate::message::Measurement;
use crate::load::congestion::CongestionControl;
use crate::load::tcp::StreamTotal;
use crate::observe::HostInfo;
use crate::stats::{distinct, jain};
use crate::system::{Subject, SystemInfo, kernel};

pub use cpu_use::{CpuUse, MOST_FOREIGN_PERCENT, MOST_STEAL_PERCENT, Taken};

/// Where the far end is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum RemoteEnd {
    /// On the gateway, at its inner address: every byte crosses the tunnel once.
    #[default]
    Gateway,
    /// A second client: every byte crosses the gateway's tunnel twice.
    Client,
}

/// The work that every run of a campaign does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub streams: u32,
    pub seconds: f64,
    pub warmup_seconds: f64,
    /// How often each combination is run.
    pub repeats: u32,
    /// IP version inside, 4 or 6.
    pub ip: u8,
    /// Seed of the payload.
    pub seed: u64,
    /// Bytes per send call.
    pub write_bytes: u32,
    /// Every received byte is compared with what was sent.
    pub verify: bool,
    /// Congestion control of the sockets.
    pub congestion: CongestionControl,
    /// Worker threads per host.
    pub threads: u32,
    /// Clients measure with each other, or each with a partner behind the gateway.
    pub far: RemoteEnd,
    /// Milliseconds from one request of the probe under load to the next; 0: without a probe.
    #[serde(default)]
    pub probe_every_ms: u32,
    /// The systems in the order of reports; those without a place come last.
    #[serde(default)]
    pub systems: Vec<String>,
}

/// All runs of one command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Campaign {
    pub settings: Settings,
    pub environment: Environment,
    /// Every run, round by round, systems in the order of reports.
    pub runs: Vec<Run>,
    /// The user ended it early.
    pub interrupted: bool,
    /// The label of the system that the others are compared with, besides plain routing.
    pub baseline: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// The measured system; absent between real hosts, where the tool does not know it.
    pub subject: Option<Subject>,
    /// Its name in the report.
    pub label: String,
    /// Hosts that measure: twice the pairs.
    pub clients: u32,
    /// Which repetition, from 1.
    pub repeat: u32,
    /// When it began, UTC.
    pub started: String,
    /// The system's own account.
    pub facts: SystemInfo,
    pub pairs: Vec<Pair>,
    /// Totals of every second, in order.
    pub intervals: Vec<Interval>,
    /// The round trips of the first pair's probe under load.
    #[serde(default)]
    pub probe: Option<Figures>,
    /// CPU time within the measurement; lab only.
    pub cpu: Option<CpuUse>,
    /// The counters of each client's devices, to compare with what it moved; lab only.
    pub carried: Vec<Carried>,
    /// Why there is no result at all.
    pub error: Option<String>,
    /// The user ended it before it was complete, so it says nothing about the system.
    pub interrupted: bool,
    /// Which attempt at this measurement, from 1.
    pub attempt: u32,
    /// Seconds it took in all: building, bringing up, measuring, removing.
    pub took_seconds: f64,
    /// The load of others beyond what the user allows, in words.
    pub disturbance: Option<String>,
    /// Another attempt stands for this one; decided from all attempts, never saved.
    #[serde(skip)]
    pub superseded: bool,
    /// The VPN's programs as they ran; lab only.
    pub programs: Vec<Program>,
}

/// A program of a VPN, as the kernel ran it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The owner: the gateway or a client.
    pub role: String,
    pub command: String,
    /// SHA-256 of the executable in hexadecimal; empty if it could not be read.
    pub sha256: String,
}

/// Two hosts that talked to each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The host that listened, then the one that connected.
    pub ends: [End; 2],
    /// Why the pair has no or half a result.
    pub error: Option<String>,
    /// It stood still for a second, so that its figures are no result.
    pub stall: Option<String>,
}

/// One host of a pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub name: String,
    pub host: HostInfo,
    /// Its clock less the coordinator's, in milliseconds.
    pub clock_offset_ms: f64,
    /// Half the shortest round trip of the comparison, in milliseconds.
    pub clock_uncertainty_ms: f64,
    pub outcome: Option<HostOutcome>,
}

/// The measurement of one host of a pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostOutcome {
    /// Seconds between the two readings that bound the measurement.
    pub seconds: f64,
    /// How late the first reading was after the agreed instant, in milliseconds.
    pub late_ms: f64,
    /// Stopped before its time.
    pub stopped_early: bool,
    /// CPU seconds of the generator within the measurement.
    pub cpu_seconds: f64,
    /// One entry per connection.
    pub streams: Vec<StreamOutcome>,
}

/// The bytes of one connection, as one host counted them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOutcome {
    /// Number within the pair.
    pub index: u32,
    /// This host sent (else it received).
    pub sends: bool,
    /// Bytes within the measurement.
    pub bytes: u64,
    /// Bytes over the connection's whole life, after draining.
    pub total_bytes: u64,
    /// The connection ended in order.
    pub complete: bool,
    pub fault: Option<String>,
}

impl HostOutcome {
    /// From an agent's measurement of one bulk task.
    pub fn of(measurement: Measurement) -> Self {
        let Measurement { seconds, late_ms, stopped_early, cpu_seconds, .. } = measurement;
        let ends = measurement.tasks.into_iter().take(1);
        let streams = ends.flat_map(|end| end.found.streams.into_iter().zip(end.stream_bytes));
        let stream = |(total, bytes): (StreamTotal, u64)| StreamOutcome {
            index: total.index,
            sends: total.sends,
            bytes,
            total_bytes: total.bytes,
            complete: total.complete,
            fault: total.fault,
        };
        Self { seconds, late_ms, stopped_early, cpu_seconds, streams: streams.map(stream).collect() }
    }

    /// Bytes received within the measurement.
    pub fn received(&self) -> u64 {
        self.streams.iter().filter(|s| !s.sends).map(|s| s.bytes).sum()
    }

    /// Bytes sent within the measurement.
    pub fn sent(&self) -> u64 {
        self.streams.iter().filter(|s| s.sends).map(|s| s.bytes).sum()
    }
}

/// The bytes of all hosts together in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    pub received: u64,
    pub sent: u64,
    /// Received by the hosts that listened, which the others sent.
    #[serde(default)]
    pub forward: u64,
    /// The number of hosts that reported this second.
    pub hosts: u32,
}

/// One connection, seen from both its ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamResult {
    /// Number within the pair.
    pub index: u32,
    /// From the host that connected to the one that listened.
    pub forward: bool,
    /// Bytes the sender counted within the measurement.
    pub sent: u64,
    /// Bytes the receiver counted within the measurement.
    pub received: u64,
    pub bits_per_second: f64,
}

impl Pair {
    /// Why it does not count.
    fn problem(&self) -> Option<&String> {
        self.error.as_ref().or(self.stall.as_ref())
    }

    /// Whether both hosts reported, and all that was sent arrived.
    fn is_complete(&self) -> bool {
        self.problem().is_none() && self.outcomes().count() == 2 && self.faults().is_empty()
    }

    pub fn outcomes(&self) -> impl Iterator<Item = &HostOutcome> {
        self.ends.iter().filter_map(|end| end.outcome.as_ref())
    }

    /// Bits per second received by both hosts together.
    pub fn goodput(&self) -> f64 {
        self.outcomes().map(|outcome| rate(outcome.received(), outcome.seconds)).sum()
    }

    /// Bits per second received and sent by both hosts together.
    pub fn communication(&self) -> f64 {
        self.outcomes().map(|outcome| rate(outcome.received() + outcome.sent(), outcome.seconds)).sum()
    }

    /// The pair's connections; empty unless both hosts reported.
    pub fn streams(&self) -> Vec<StreamResult> {
        let [Some(listener), Some(connector)] = self.ends.each_ref().map(|end| end.outcome.as_ref()) else {
            return Vec::new();
        };
        listener
            .streams
            .iter()
            .zip(&connector.streams)
            .map(|(l, c)| {
                let (sender, receiver, seconds) =
                    if l.sends { (l, c, connector.seconds) } else { (c, l, listener.seconds) };
                StreamResult {
                    index: l.index,
                    forward: !l.sends,
                    sent: sender.bytes,
                    received: receiver.bytes,
                    bits_per_second: rate(receiver.bytes, seconds),
                }
            })
            .collect()
    }

    /// Connections whose bytes did not all arrive, or that broke, in words.
    pub fn faults(&self) -> Vec<String> {
        let [Some(listener), Some(connector)] = self.ends.each_ref().map(|end| end.outcome.as_ref()) else {
            return Vec::new();
        };
        let mut faults = Vec::new();
        for (l, c) in listener.streams.iter().zip(&connector.streams) {
            let (sender, receiver) = if l.sends { (l, c) } else { (c, l) };
            if let Some(reason) = receiver.fault.as_ref().or(sender.fault.as_ref()) {
                faults.push(format!("stream {}: {reason}", l.index));
            } else if sender.total_bytes != receiver.total_bytes || !receiver.complete {
                faults.push(format!(
                    "stream {}: {} bytes sent, {} received",
                    l.index, sender.total_bytes, receiver.total_bytes
                ));
            }
        }
        faults
    }
}

impl Campaign {
    /// A campaign of `runs`, in whatever order they were made.
    pub fn new(
        settings: Settings,
        environment: Environment,
        mut runs: Vec<Run>,
        interrupted: bool,
        baseline: Option<String>,
    ) -> Self {
        let place = |run: &Run| settings.systems.iter().position(|label| *label == run.label);
        runs.sort_by_key(|run| (run.repeat, run.clients, place(run)));
        Self { settings, environment, runs, interrupted, baseline }
    }

    /// Whether the gateways had a share of the CPU, so that they are the bottleneck.
    pub fn is_gateway_limited(&self) -> bool {
        let is_limited = |run: &Run| run.subject.is_some_and(|subject| subject.gateway_cpu.is_some());
        self.environment.gateway_cpu.is_some() || self.runs.iter().any(is_limited)
    }

    /// The systems in the order of reports, those without a result included.
    pub fn labels(&self) -> Vec<String> {
        let mut labels = distinct(self.runs.iter().map(|run| run.label.clone()));
        let place = |label: &String| self.settings.systems.iter().position(|known| known == label);
        labels.sort_by_key(|label| place(label).unwrap_or(usize::MAX));
        labels
    }
}

impl Run {
    /// Bits per second received, all hosts together.
    pub fn goodput(&self) -> f64 {
        self.pairs.iter().map(Pair::goodput).sum()
    }

    /// Bits per second by the original definition.
    pub fn communication(&self) -> f64 {
        self.pairs.iter().map(Pair::communication).sum()
    }

    /// Each second's bytes. A last, shorter one would show as a drop that never was.
    pub fn whole_seconds(&self, settings: &Settings) -> &[Interval] {
        let whole = settings.seconds.floor() as usize;
        &self.intervals[..whole.min(self.intervals.len())]
    }

    /// Bytes received, all hosts together.
    pub fn received(&self) -> u64 {
        self.pairs.iter().flat_map(Pair::outcomes).map(HostOutcome::received).sum()
    }

    /// Bytes sent, all hosts together.
    pub fn sent(&self) -> u64 {
        self.pairs.iter().flat_map(Pair::outcomes).map(HostOutcome::sent).sum()
    }

    /// The longest measuring time of a host.
    pub fn seconds(&self) -> f64 {
        self.pairs.iter().flat_map(Pair::outcomes).map(|outcome| outcome.seconds).fold(0.0, f64::max)
    }

    /// Jain's index over all connections.
    pub fn stream_fairness(&self) -> Option<f64> {
        let rates: Vec<f64> = self.pairs.iter().flat_map(Pair::streams).map(|s| s.bits_per_second).collect();
        jain(&rates)
    }

    /// Jain's index over the pairs.
    pub fn pair_fairness(&self) -> Option<f64> {
        jain(&self.pairs.iter().map(Pair::goodput).collect::<Vec<_>>())
    }

    /// Says how much went past the VPN; `None` if nothing that matters did, or between real hosts.
    pub fn bypass(&self) -> Option<String> {
        tunnel::bypass(&self.carried)
    }

    /// Gbit of goodput per CPU second of the gateway's VPN processes. Only what went through the
    /// tunnel counts.
    pub fn gbit_per_gateway_second(&self) -> Option<f64> {
        let (cpu, gbit) = self.cpu_and_gbit()?;
        Some(gbit / cpu.gateway)
    }

    /// See [`CpuUse::steal_percent`].
    pub fn steal_percent(&self) -> Option<f64> {
        self.cpu?.steal_percent()
    }

    /// See [`CpuUse::busy_percent`].
    pub fn busy_percent(&self) -> Option<f64> {
        self.cpu?.busy_percent()
    }

    /// See [`CpuUse::foreign_percent`].
    pub fn foreign_percent(&self) -> Option<f64> {
        self.cpu?.foreign_percent()
    }

    /// CPU seconds per Gbit of goodput through the tunnel: of the gateway's VPN processes, and of
    /// all VPN processes.
    pub fn seconds_per_gbit(&self) -> Option<(f64, f64)> {
        let (cpu, gbit) = self.cpu_and_gbit()?;
        Some((cpu.gateway / gbit, (cpu.gateway + cpu.clients) / gbit))
    }

    /// How often the gateway's threads were woken, per Gbit of goodput through the tunnel.
    pub fn gateway_wakes_per_gbit(&self) -> Option<f64> {
        let (cpu, gbit) = self.cpu_and_gbit()?;
        Some(cpu.gateway_wakes as f64 / gbit)
    }

    /// Wakes of all clients' VPN processes for each Gbit.
    pub fn client_wakes_per_gbit(&self) -> Option<f64> {
        let (cpu, gbit) = self.cpu_and_gbit()?;
        Some(cpu.client_wakes as f64 / gbit)
    }

    fn cpu_and_gbit(&self) -> Option<(CpuUse, f64)> {
        let in_kernel = self.subject.is_some_and(|subject| kernel::carries(subject.kind));
        let cpu = self.cpu.filter(|cpu| cpu.gateway > 0.0 && !in_kernel)?;
        let gbit = self.goodput() * tunnel::tunnel_share(&self.carried)? * cpu.seconds / 1e9;
        (gbit > 0.0).then_some((cpu, gbit))
    }

    /// Whether the measurement was made as it should be and its figures stand.
    pub fn is_whole(&self) -> bool {
        !self.superseded && self.is_complete()
    }

    /// Whether the measurement was made as it should be, disturbed or not.
    pub fn is_complete(&self) -> bool {
        self.error.is_none()
            && self.bypass().is_none()
            && !self.pairs.is_empty()
            && self.pairs.iter().all(Pair::is_complete)
            && self.pairs.iter().flat_map(Pair::outcomes).all(|outcome| !outcome.stopped_early)
    }

    /// Everything that is wrong with the measurement, in words: failures, and what shared the
    /// machine.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.failures();
        problems.extend(self.unfinished());
        if let Some(disturbance) = &self.disturbance {
            let fate =
                if self.superseded { "attempt rejected" } else { "stands for want of a quieter attempt" };
            problems.push(format!("{fate}: {disturbance}"));
        }
        problems
    }

    /// Words that it was not finished; `None` if it was, or another attempt stands for it.
    fn unfinished(&self) -> Option<String> {
        let open = self.interrupted && !self.superseded;
        let after = || format!("interrupted after {:.1} s", self.seconds());
        open.then(|| format!("unfinished: {}", self.error.clone().unwrap_or_else(after)))
    }

    /// Everything that failed, in words. What the user broke off has not failed.
    pub fn failures(&self) -> Vec<String> {
        if self.interrupted {
            return Vec::new();
        }
        let mut problems: Vec<String> = self.error.iter().cloned().chain(self.bypass()).collect();
        for (pair, number) in self.pairs.iter().zip(1..) {
            let name = format!("pair {number} ({} = {})", pair.ends[0].name, pair.ends[1].name);
            problems.extend(pair.problem().map(|reason| format!("{name}: {reason}")));
            problems.extend(pair.faults().into_iter().map(|reason| format!("{name}: {reason}")));
        }
        if self.pairs.iter().flat_map(Pair::outcomes).any(|outcome| outcome.stopped_early) {
            problems.push(format!("ended early, after {:.1} s", self.seconds()));
        }
        problems
    }
}

/// Bits per second; zero for a window of no length.
pub fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 }
}

#[cfg(test)]
pub(crate) mod samples {
    //! Made-up results for the tests of reports.

    use super::*;
    use crate::lab::device::{Counters, Traffic};
    use crate::load::delays::DelaySummary;
    use crate::system::{Cipher, Kind};

    pub(crate) fn end(name: &str, listens: bool, bytes: [u64; 2]) -> End {
        let streams = bytes
            .into_iter()
            .zip(0..)
            .map(|(bytes, index)| StreamOutcome {
                index,
                sends: (index == 0) != listens,
                bytes,
                total_bytes: bytes + 10,
                complete: true,
                fault: None,
            })
            .collect();
        let outcome = HostOutcome { seconds: 2.0, streams, ..HostOutcome::default() };
        End { name: name.into(), outcome: Some(outcome), ..End::default() }
    }

    /// The counters of client `number` for streams of `bytes` each.
    fn carried(number: u32, bytes: u64) -> Carried {
        let traffic = Traffic { bytes: bytes + bytes / 20, packets: 1 + bytes / 1400, ..Traffic::default() };
        let counters = Counters { received: traffic, sent: traffic };
        Carried {
            client: format!("c{number}"),
            device: "tun0".into(),
            payload_sent: bytes,
            payload_received: bytes,
            tunnel: counters,
            underlay: counters,
        }
    }

    pub(crate) fn run(kind: Kind, clients: u32, repeat: u32, bytes: u64) -> Run {
        let subject = Subject::new(kind, if kind == Kind::None { Cipher::None } else { Cipher::Aes256Gcm });
        let pair = Pair {
            ends: [end("c1", true, [bytes, bytes]), end("c2", false, [bytes, bytes])],
            ..Pair::default()
        };
        Run {
            subject: Some(subject),
            label: subject.label(),
            clients,
            repeat,
            started: "2026-01-01T00:00:00Z".into(),
            pairs: vec![pair; clients as usize / 2],
            carried: (1..=clients).map(|number| carried(number, bytes)).collect(),
            intervals: vec![Interval { received: bytes, sent: bytes, forward: bytes / 2, hosts: clients }; 2],
            probe: Some(Figures {
                round_trip: Some(DelaySummary {
                    p50_us: 2_000.0,
                    p99_us: 9_000.0,
                    curve: vec![(0.5, 2_000.0), (0.99, 9_000.0)],
                    ..DelaySummary::default()
                }),
                lost_percent: Some(0.0),
                ..Figures::default()
            }),
            cpu: Some(CpuUse {
                gateway: 1.0,
                clients: 2.0,
                generators: 0.5,
                seconds: 2.0,
                ..CpuUse::default()
            }),
            ..Run::default()
        }
    }

    pub(crate) fn campaign() -> Campaign {
        campaign_of(3)
    }

    pub(crate) fn campaign_of(rounds: u32) -> Campaign {
        let mut runs = Vec::new();
        for repeat in 1..=rounds {
            for clients in [2, 4, 8] {
                runs.push(run(Kind::Vpnd, clients, repeat, 1_000_000_000 + u64::from(repeat) * 10_000_000));
                runs.push(run(Kind::None, clients, repeat, 3_000_000_000));
            }
        }
        let mut failed = run(Kind::Vpnd, 16, 1, 1);
        failed.pairs.clear();
        failed.error = Some("vpnd <did> not come up & \"died\"".into());
        runs.push(failed);
        Campaign {
            settings: Settings {
                streams: 2,
                seconds: 2.0,
                warmup_seconds: 0.0,
                repeats: rounds,
                ip: 4,
                seed: 1,
                write_bytes: 131_072,
                verify: false,
                congestion: CongestionControl::default(),
                threads: 1,
                far: RemoteEnd::Client,
                probe_every_ms: 20,
                systems: Vec::new(),
            },
            environment: Environment::default(),
            runs,
            interrupted: false,
            baseline: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::Kind;

    #[test]
    fn communication_counts_both_ends_and_goodput_each_byte_once() {
        // Two streams of 1,000 bytes, one each way, in 2 s: 2,000 bytes arrive, 4,000 are received
        // or sent.
        let run = samples::run(Kind::Vpnd, 2, 1, 1_000);
        assert!((run.goodput() - 8_000.0).abs() < 1e-9);
        assert!((run.communication() - 16_000.0).abs() < 1e-9);
        assert_eq!((run.received(), run.sent()), (2_000, 2_000));
        assert!(run.is_whole() && run.problems().is_empty());
    }

    #[test]
    fn more_pairs_add_up_and_efficiency_is_per_gateway_second() {
        let run = samples::run(Kind::Vpnd, 8, 1, 1_000_000_000);
        assert!((run.goodput() - 32e9).abs() < 1.0);
        assert!((run.gbit_per_gateway_second().unwrap() - 64.0).abs() < 1e-6);
        let dco = samples::run(Kind::OpenvpnDco, 8, 1, 1_000_000_000);
        assert_eq!(dco.seconds_per_gbit(), None, "the kernel's time is in no process");
        assert!((run.pair_fairness().unwrap() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn lost_bytes_lost_hosts_and_early_ends_are_said() {
        let mut run = samples::run(Kind::Vpnd, 4, 1, 1_000);
        run.pairs[0].ends[0].outcome.as_mut().unwrap().streams[0].total_bytes -= 1;
        assert!(!run.is_whole(), "a byte is missing");
        run.pairs[1].ends[1].outcome = None;
        run.pairs[1].error = Some("c4: gone".into());
        let text = run.problems().join("\n");
        assert!(text.contains("stream 0: 1010 bytes sent, 1009 received"), "{text}");
        assert!(text.contains("pair 2 (c1 = c2): c4: gone"), "{text}");
        assert!(!run.is_whole());
        assert!(run.goodput() > 0.0, "what the others measured still counts");
    }

    #[test]
    fn an_interrupted_run_is_unfinished_and_no_failure() {
        let mut coming_up = samples::run(Kind::Vpnd, 4, 1, 1_000);
        coming_up.pairs.clear();
        coming_up.error = Some("interrupted before it was up".into());
        assert_eq!(coming_up.failures().len(), 1, "as an error of the system's own");
        coming_up.interrupted = true;
        let mut measuring = samples::run(Kind::Vpnd, 4, 1, 1_000);
        measuring.pairs[0].ends[0].outcome.as_mut().unwrap().stopped_early = true;
        measuring.interrupted = true;
        for (run, words) in [
            (&mut coming_up, "unfinished: interrupted before it was up"),
            (&mut measuring, "unfinished: interrupted after 2.0 s"),
        ] {
            assert!(!run.is_whole() && run.failures().is_empty());
            assert_eq!(run.problems(), [words]);
            run.superseded = true;
            assert_eq!(run.problems(), [""; 0], "another attempt stands for it");
        }
    }

    #[test]
    fn traffic_outside_the_tunnel_breaks_a_run_at_no_gateway_cost() {
        let mut run = samples::run(Kind::Vpnd, 8, 1, 1_000_000_000);
        run.carried.iter_mut().for_each(|client| client.tunnel.sent.bytes /= 100);
        assert!(!run.is_whole());
        assert!(run.problems()[0].starts_with("only 50 % of the bytes went through the tunnel"));
        assert!((run.gbit_per_gateway_second().unwrap() - 64.0 * 0.50525).abs() < 1e-6);
        run.carried.clear();
        assert_eq!(run.gbit_per_gateway_second(), None, "what is not known is not said");
    }

    #[test]
    fn an_empty_window_is_no_division_by_zero() {
        assert_eq!(rate(5, 0.0), 0.0);
        assert_eq!(Run::default().goodput(), 0.0);
        assert_eq!(Run::default().stream_fairness(), None);
    }
}
