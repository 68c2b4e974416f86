//! The command line of `trafficspeed capacity`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use vpnd_swarm::load::{Direction, LEAST_PACKET, MOST_BURST};

use crate::experiment::capacity::CapacityPlan;
use crate::experiment::capacity::results::{Case, Traffic};
use crate::lab::cpu_limit::CpuLimit;
use crate::lab::emulator::impairment::Rate;
use crate::system::{Cipher, Kind, Priority, Programs, Subject};

/// As many sessions as the gateway of a lab has addresses for, and a process has descriptors.
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
    /// Who sends to whom: sessions to each other through the gateway, as in experiment 1; to a socket on the gateway's machine, which
    /// stands for the campus; from it; or both.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "pairs")]
    pub direction: Vec<DirectionArg>,
    /// Bytes of the inner packets; `full`: as long as the tunnel takes.
    #[arg(long, value_delimiter = ',', default_value = "full", value_parser = packet)]
    pub packet: Vec<Packet>,
    /// Packets that a session sends at once. TCP at high rates sends runs of up to 64 KiB (44 full packets), at a few Mbit/s a
    /// session two to four.
    #[arg(long, value_delimiter = ',', default_value = "44",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_BURST)))]
    pub burst: Vec<u16>,
    /// Of a hundred bursts, so many are of small packets (64 bytes).
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub small: u32,
    /// What each session sends, for example 5mbit, whatever becomes of it; without it as fast as turns come.
    #[arg(long, value_delimiter = ',')]
    pub rate: Vec<Rate>,
    /// The first session has as much on its way as so many others, as one with so many connections would.
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub greedy: u32,
    /// So many sessions beside those have calls: 200 bytes each 20 ms, in pairs or with the campus.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub calls: u32,
    /// Limit what the gateway's programs use of the CPU, in cores such as 0.5: then the gateway is the bottleneck.
    #[arg(long, value_name = "CORES")]
    pub gateway_cpu: Option<CpuLimit>,
    /// KiB that are on their way at most over all sessions; the next ones wait for their turn, so no queue overflows.
    #[arg(long, default_value_t = 2_048, value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    pub in_flight: u32,
    /// Of so many merged runs of a session, one is authenticated and opened.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sample: u32,
    /// Real clients with 32 TCP streams a pair that are measured on the same gateway, even numbers: to check the load against.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=MOST_REAL))]
    pub real: Vec<u32>,
    /// The cipher; by default vpnd's own choice.
    #[arg(long, default_value = "auto")]
    pub cipher: Cipher,
    /// The gateway's scheduling priority: its own setting, or that of any process.
    #[arg(long, value_enum, default_value = "own")]
    pub priority: Priority,
    /// Seconds of each measurement.
    #[arg(short = 't', long, default_value_t = 2.0, value_parser = super::seconds)]
    pub seconds: f64,
    /// Seconds before it that don't count.
    #[arg(short = 'O', long, default_value_t = 1.0, value_parser = super::seconds)]
    pub omit: f64,
    /// How often each case is measured, in rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    /// Seconds after which sessions that are not up are given up.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub patience: u32,
    /// Where `vpnd` is, as vpnd=PATH; by default beside trafficspeed, then in PATH.
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = super::program)]
    pub programs: Vec<(String, PathBuf)>,
    /// Write capacity.json and capacity.svg into this directory.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the JSON report instead of the table.
    #[arg(short = 'J', long)]
    pub json: bool,
    /// No progress on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Who sends to whom.
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

impl CapacityArgs {
    /// # Errors
    /// Numbers that can't be paired.
    pub fn plan(&self) -> Result<CapacityPlan, String> {
        let counts = self.sessions.iter().chain(&self.real).chain([&self.calls]);
        if let Some(odd) = counts.into_iter().find(|count| !count.is_multiple_of(2)) {
            return Err(format!("{odd} can't be split into pairs; give even numbers"));
        }
        let rates = if self.rate.is_empty() { vec![None] } else { self.rate.iter().map(Some).collect() };
        let mut cases = Vec::new();
        let kinds = self
            .direction
            .iter()
            .flat_map(|direction| self.packet.iter().map(move |packet| (direction, packet)));
        for (&direction, &Packet(packet)) in kinds {
            for (&burst, rate) in
                self.burst.iter().flat_map(|burst| rates.iter().map(move |rate| (burst, rate)))
            {
                let traffic = Traffic {
                    direction: direction.into(),
                    packet,
                    burst,
                    rate: rate.map(|rate| rate.bits_per_second),
                    small: self.small,
                    greedy: self.greedy,
                    calls: self.calls,
                };
                cases.extend(self.sessions.iter().map(|&sessions| Case::Made { sessions, traffic }));
            }
        }
        cases.extend(self.real.iter().map(|&clients| Case::Real { clients }));
        Ok(CapacityPlan {
            subject: Subject { priority: self.priority, ..Subject::new(Kind::Vpnd, self.cipher) },
            cases,
            gateway_cpu: self.gateway_cpu,
            in_flight: u64::from(self.in_flight) * 1_024,
            sample: self.sample,
            seconds: self.seconds,
            warmup_seconds: self.omit,
            repeats: self.repeat,
            login_timeout: Duration::from_secs(self.patience.into()),
            programs: super::named(Programs::default(), &self.programs),
        })
    }
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
            Some(Command::Capacity(args)) => args.plan(),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn every_combination_is_a_case_and_real_clients_come_last() {
        let plan =
            plan("trafficspeed capacity --sessions 2,8 --packet full,64 --burst 4 --real 2 --in-flight 1024")
                .unwrap();
        let traffic = Traffic { burst: 4, ..samples::traffic() };
        let made = |sessions, packet| Case::Made { sessions, traffic: Traffic { packet, ..traffic } };
        let wanted =
            [made(2, None), made(8, None), made(2, Some(64)), made(8, Some(64)), Case::Real { clients: 2 }];
        assert_eq!((plan.cases, plan.in_flight), (wanted.to_vec(), 1 << 20));
    }

    #[test]
    fn rates_are_cases_and_what_stands_beside_holds_for_all() {
        let plan =
            plan("trafficspeed capacity --sessions 4 --rate 1mbit,2mbit --calls 2 --greedy 8 --small 10")
                .unwrap();
        let traffic = Traffic { calls: 2, greedy: 8, small: 10, ..samples::traffic() };
        let made = |rate| Case::Made { sessions: 4, traffic: Traffic { rate: Some(rate), ..traffic } };
        assert_eq!(plan.cases, [made(1_000_000), made(2_000_000)]);
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for line in [
            "--sessions 3",
            "--real 5",
            "--calls 1",
            "--rate 5",
            "--greedy 0",
            "--packet 40",
            "--packet x",
            "--burst 65",
            "--burst 0",
        ] {
            assert!(plan(&format!("trafficspeed capacity {line}")).is_err(), "{line}");
        }
    }
}
