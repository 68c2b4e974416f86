//! The command line of `vpnd-endurance capacity`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use vpnd_swarm::load::{Direction, LEAST_PACKET, MOST_BURST, USUAL_ACK_DELAY_MS, USUAL_ACKNOWLEDGE};

use crate::experiment::capacity::CapacityPlan;
use crate::experiment::capacity::results::{Case, Traffic};
use trafficspeed::lab::cpu_limit::CpuLimit;
use trafficspeed::lab::emulator::impairment::Rate;
use trafficspeed::system::{Cipher, Kind, Priority, Programs, Subject};

/// The most sessions: addresses of a lab's gateway, and descriptors of a process.
const MOST_SESSIONS: i64 = 20_000;
/// Real clients beyond which they would need the whole machine.
const MOST_REAL: i64 = 64;

/// The capacity of a gateway.
#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// Active sessions, even numbers; all of them stay logged in all the time.
    #[arg(long, value_delimiter = ',', default_value = "2,8,64,256,1024,4096",
        value_parser = clap::value_parser!(u32).range(2..=MOST_SESSIONS))]
    pub sessions: Vec<u32>,
    /// Direction: sessions to each other through the gateway, as in experiment 1; to a
    /// socket on the gateway's machine, which stands for the campus; from it; or both.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "pairs")]
    pub direction: Vec<DirectionArg>,
    /// Bytes of the inner packets; `full`: as long as the tunnel takes.
    #[arg(long, value_delimiter = ',', default_value = "full", value_parser = packet)]
    pub packet: Vec<Packet>,
    /// Packets that a session sends at once. TCP at high rates sends runs of up to 64 KiB (44 full
    /// packets), at a few Mbit/s a session two to four.
    #[arg(long, value_delimiter = ',', default_value = "44",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_BURST)))]
    pub burst: Vec<u16>,
    /// Bursts of small packets (64 bytes), out of a hundred.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub small: u32,
    /// Rate that each session sends, for example 5mbit, even if it is lost; without it as fast as
    /// turns come.
    #[arg(long, value_delimiter = ',')]
    pub rate: Vec<Rate>,
    /// The first session has as much on its way as this number of others, as one with many
    /// connections would.
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub greedy: u32,
    /// Further sessions that have calls: 200 bytes each 20 ms, in pairs or with the campus.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub calls: u32,
    /// In pairs, merged runs out of a hundred that a session answers by an
    /// acknowledgement (56 bytes), as TCP's receivers do; 0: none. Traffic with the campus is UDP
    /// and has none.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [USUAL_ACKNOWLEDGE],
        value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub acknowledge: Vec<u32>,
    /// Milliseconds for which an acknowledgement waits at most until others go with it; seven never
    /// wait.
    #[arg(long, value_name = "MILLISECONDS", value_delimiter = ',', default_values_t = [USUAL_ACK_DELAY_MS],
        value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub ack_delay: Vec<u32>,
    /// CPU of the gateway's programs: `all`, or a number of cores, such as 0.5, so
    /// that the gateway is the bottleneck. With several, each case is measured with each, in turns.
    #[arg(long, value_name = "CORES", value_delimiter = ',', default_value = "all", value_parser = gateway_cpu)]
    pub gateway_cpu: Vec<GatewayCpu>,
    /// Microseconds for which the gateway and real clients look for the next packet instead of
    /// sleeping (`busy_poll_us`).
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub busy_poll: Option<u32>,
    /// KiB that are on their way at most over all sessions; the next ones wait for their turn, so
    /// no queue overflows. Usually 2048; where the gateway is limited 6144, so that it never runs
    /// out of work, or as much as 600 bursts have.
    #[arg(long, value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    pub in_flight: Option<u32>,
    /// Merged runs of a session for each one that is authenticated and opened.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sample: u32,
    /// Real clients with 32 TCP streams a pair that are measured on the same gateway, even numbers:
    /// to check the load against.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=MOST_REAL))]
    pub real: Vec<u32>,
    /// The cipher; by default vpnd's own choice.
    #[arg(long, default_value = "auto")]
    pub cipher: Cipher,
    /// The gateway's scheduling priority: its own setting, or that of any process.
    #[arg(long, value_enum, default_value = "own")]
    pub priority: Priority,
    /// Seconds of each measurement.
    #[arg(short = 't', long, default_value_t = 2.0, value_parser = trafficspeed::cli::seconds)]
    pub seconds: f64,
    /// Seconds before it that don't count.
    #[arg(short = 'O', long, default_value_t = 1.0, value_parser = trafficspeed::cli::seconds)]
    pub omit: f64,
    /// How often each case is measured, in rounds, in shuffled order. The
    /// case that costs are compared with is measured twice in each (A/A), and ratios that do not go
    /// beyond what it is of itself show no difference.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    /// Seconds after which sessions that are not up are given up.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub patience: u32,
    /// Where `vpnd` is, as vpnd=PATH; by default next to this one, then in PATH.
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = trafficspeed::cli::program)]
    pub programs: Vec<(String, PathBuf)>,
    /// Write capacity.json and capacity.svg into this directory.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace the results of an earlier run there.
    #[arg(long)]
    pub force: bool,
    /// Print the JSON report instead of the table.
    #[arg(short = 'J', long)]
    pub json: bool,
    /// No progress on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

/// The direction of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectionArg {
    Pairs,
    Up,
    Down,
    Both,
}

impl From<DirectionArg> for Direction {
    fn from(direction: DirectionArg) -> Self {
        match direction {
            DirectionArg::Pairs => Self::Pairs,
            DirectionArg::Up => Self::Up,
            DirectionArg::Down => Self::Down,
            DirectionArg::Both => Self::Both,
        }
    }
}

/// The length of inner packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet(Option<u16>);

fn packet(word: &str) -> Result<Packet, String> {
    if word == "full" {
        return Ok(Packet(None));
    }
    let bytes: u16 = word.parse().map_err(|_| "`full`, or a number of bytes".to_owned())?;
    if usize::from(bytes) < LEAST_PACKET {
        return Err(format!("at least {LEAST_PACKET} bytes: headers, a number and a time"));
    }
    Ok(Packet(Some(bytes)))
}

/// The CPU of the gateway's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayCpu(Option<CpuLimit>);

fn gateway_cpu(word: &str) -> Result<GatewayCpu, String> {
    if word == "all" {
        return Ok(GatewayCpu(None));
    }
    word.parse().map(|limit| GatewayCpu(Some(limit)))
}

impl CapacityArgs {
    /// # Errors
    /// Numbers that can't be paired.
    pub fn plan(&self) -> Result<CapacityPlan, String> {
        let counts = self.sessions.iter().chain(&self.real).chain([&self.calls]);
        if let Some(odd) = counts.into_iter().find(|count| !count.is_multiple_of(2)) {
            return Err(format!("{odd} can't be split into pairs; give even numbers"));
        }
        let mut cases = Vec::new();
        for traffic in self.traffic() {
            cases.extend(self.gateway_cpu.iter().flat_map(|&GatewayCpu(gateway_cpu)| {
                self.sessions.iter().map(move |&sessions| Case::Made { sessions, traffic, gateway_cpu })
            }));
        }
        for &GatewayCpu(gateway_cpu) in &self.gateway_cpu {
            cases.extend(self.real.iter().map(|&clients| Case::Real { clients, gateway_cpu }));
        }
        let programs =
            trafficspeed::cli::named(Programs::default(), &self.programs).with_busy_poll(self.busy_poll);
        Ok(CapacityPlan {
            subject: Subject { priority: self.priority, ..Subject::new(Kind::Vpnd, self.cipher) },
            cases,
            in_flight: self.in_flight.map(|kib| u64::from(kib) * 1_024),
            sample: self.sample,
            seconds: self.seconds,
            warmup_seconds: self.omit,
            repeats: self.repeat,
            login_timeout: Duration::from_secs(self.patience.into()),
            programs,
        })
    }

    /// Each combination of what may be given several times.
    fn traffic(&self) -> Vec<Traffic> {
        let rates: Vec<_> = self.rate.iter().map(|rate| Some(rate.bits_per_second)).collect();
        let rates = if rates.is_empty() { vec![None] } else { rates };
        let usual = |&direction: &DirectionArg| Traffic {
            direction: direction.into(),
            packet: None,
            burst: 0,
            rate: None,
            small: self.small,
            greedy: self.greedy,
            calls: self.calls,
            acknowledge: 0,
            ack_delay_ms: 0,
        };
        let mut all: Vec<Traffic> = self.direction.iter().map(usual).collect();
        all = each(&all, &self.packet, |traffic, Packet(packet)| Traffic { packet, ..traffic });
        all = each(&all, &self.burst, |traffic, burst| Traffic { burst, ..traffic });
        all = each(&all, &rates, |traffic, rate| Traffic { rate, ..traffic });
        all = each(&all, &self.acknowledge, |traffic, acknowledge| match traffic.direction {
            Direction::Pairs => Traffic { acknowledge, ..traffic },
            _ => traffic,
        });
        all = each(&all, &self.ack_delay, |traffic, ack_delay_ms| match traffic.acknowledge {
            0 => traffic,
            _ => Traffic { ack_delay_ms, ..traffic },
        });
        // Without acknowledgements their number and delay make no difference.
        all.dedup();
        all
    }
}

/// Each traffic with each of `values`.
fn each<T: Copy>(traffic: &[Traffic], values: &[T], with: impl Fn(Traffic, T) -> Traffic) -> Vec<Traffic> {
    traffic
        .iter()
        .flat_map(|&traffic| values.iter().map(move |&value| (traffic, value)))
        .map(|(t, v)| with(t, v))
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;
    use crate::experiment::capacity::results::samples;

    fn plan(line: &str) -> Result<CapacityPlan, String> {
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        match cli.command {
            Command::Capacity(args) => args.plan(),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn every_combination_is_a_case_and_real_clients_come_last() {
        let plan = plan(
            "vpnd-endurance capacity --sessions 2,8 --packet full,64 --burst 4 --real 2 --in-flight 1024",
        )
        .unwrap();
        let traffic = Traffic { burst: 4, ..samples::traffic() };
        let made = |sessions, packet| Case::Made {
            sessions,
            traffic: Traffic { packet, ..traffic },
            gateway_cpu: None,
        };
        let real = Case::Real { clients: 2, gateway_cpu: None };
        let wanted = [made(2, None), made(8, None), made(2, Some(64)), made(8, Some(64)), real];
        assert_eq!((plan.cases, plan.in_flight), (wanted.to_vec(), Some(1 << 20)));
    }

    #[test]
    fn a_gateway_is_measured_with_each_limit() {
        let plan = plan(
            "vpnd-endurance capacity --sessions 8 --real 2 --gateway-cpu all,0.5 --acknowledge 0 --busy-poll 70",
        )
        .unwrap();
        let traffic = Traffic { acknowledge: 0, ack_delay_ms: 0, ..samples::traffic() };
        let made = |gateway_cpu| Case::Made { sessions: 8, traffic, gateway_cpu };
        let real = |gateway_cpu| Case::Real { clients: 2, gateway_cpu };
        let half = "0.5".parse().ok();
        assert_eq!(plan.cases, [made(None), made(half), real(None), real(half)]);
        assert_eq!((plan.in_flight, plan.programs.busy_poll_us()), (None, Some(70)));
    }

    #[test]
    fn rates_are_cases_and_what_stands_beside_holds_for_all() {
        let plan =
            plan("vpnd-endurance capacity --sessions 4 --rate 1mbit,2mbit --calls 2 --greedy 8 --small 10")
                .unwrap();
        let traffic = Traffic { calls: 2, greedy: 8, small: 10, ..samples::traffic() };
        let made = |rate| Case::Made {
            sessions: 4,
            traffic: Traffic { rate: Some(rate), ..traffic },
            gateway_cpu: None,
        };
        assert_eq!(plan.cases, [made(1_000_000), made(2_000_000)]);
    }

    #[test]
    fn acknowledgements_make_cases_of_traffic_that_has_some() {
        let some =
            plan("vpnd-endurance capacity --sessions 4 --direction pairs,up --acknowledge 0,50").unwrap();
        let traffic: Vec<_> = some.cases.iter().filter_map(|case| case.traffic()).collect();
        let kinds: Vec<_> = traffic.iter().map(|traffic| (traffic.direction, traffic.acknowledge)).collect();
        assert_eq!(kinds, [(Direction::Pairs, 0), (Direction::Pairs, 50), (Direction::Up, 0)]);

        let delayed =
            plan("vpnd-endurance capacity --sessions 4 --acknowledge 0,100 --ack-delay 5,10000").unwrap();
        let traffic: Vec<_> = delayed.cases.iter().filter_map(|case| case.traffic()).collect();
        let kinds: Vec<_> =
            traffic.iter().map(|traffic| (traffic.acknowledge, traffic.ack_delay_ms)).collect();
        assert_eq!(kinds, [(0, 0), (100, 5), (100, 10_000)]);
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for line in [
            "--sessions 3",
            "--real 5",
            "--calls 1",
            "--rate 5",
            "--greedy 0",
            "--packet 56",
            "--gateway-cpu half",
            "--busy-poll 10001",
            "--acknowledge 1001",
            "--packet x",
            "--burst 65",
            "--burst 0",
        ] {
            assert!(plan(&format!("vpnd-endurance capacity {line}")).is_err(), "{line}");
        }
    }
}
