//! `trafficspeed suite`: the experiments that compare ciphers rather than systems.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::hosts::HostsArgs;
use super::{IpVersion, OutputArgs, ProgramArgs, seconds, seconds_or_none};
use crate::experiment::hosts::host_pairs::HostPairsPlan;
use crate::experiment::pair_run::Times;
use crate::experiment::suite::ipsec::{SuitePart, Sweep};
use crate::experiment::suite::{SuiteOptions, SuitePlan, aead, flows, ipsec};
use crate::experiment::testbed::RemoteEnd;
use crate::lab::LinkSettings;
use crate::load::congestion::CongestionControl;
use crate::observe::HostInfo;
use crate::system::vpnd::Code;
use crate::system::{Cipher, Kind, Priority, Subject};

/// `trafficspeed suite`.
#[derive(Clone, Debug, Args)]
pub struct SuiteArgs {
    /// Which.
    #[command(subcommand)]
    pub which: Suite,
}

/// The suites.
#[derive(Clone, Debug, Subcommand)]
pub enum Suite {
    /// The cost of authentication and encryption for streams, transactions, a loaded CPU and live
    /// video (experiment 2).
    Ipsec(IpsecArgs),
    /// Which cipher is the fastest, with AES instructions and without (experiment 5).
    Aead(AeadArgs),
    /// Completion times of short flows, connections a second, and packets of mixed sizes (RFC 9411,
    /// IMIX).
    Flows(FlowsArgs),
}

/// Options of all suites.
#[derive(Clone, Debug, Args)]
pub struct ScaleArgs {
    /// Fewer and shorter measurements: minutes instead of hours.
    #[arg(long)]
    pub quick: bool,
    /// Seconds of each measurement: 10, or 1 if --quick.
    #[arg(short = 't', long, value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Seconds before counting begins: 1, or 0.3 if --quick.
    #[arg(short = 'O', long, value_parser = seconds_or_none)]
    pub warmup: Option<f64>,
    /// How often each measurement is made: 5 (ipsec, flows) and 10 (aead), or 5 if --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: Option<u32>,
    /// Do not measure a cipher a second time in each round, which shows how far a system differs
    /// from itself.
    #[arg(long)]
    pub no_control: bool,
    /// Ciphers to measure; all of the experiment by default (flows: what each system chooses).
    #[arg(long, value_delimiter = ',', value_enum)]
    pub cipher: Vec<Cipher>,
    /// Systems to measure besides plain routing, each with those of the ciphers that it has, or
    /// with its own choice.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "vpnd")]
    pub vpn: Vec<Kind>,
    /// The CPU priority of the systems: what each takes by itself, or the same for all; by default
    /// the first, among other VPNs both.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub priority: Vec<Priority>,
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// The other end: the gateway itself, or a second client behind it.
    #[arg(long, value_enum, default_value = "gateway")]
    pub to: RemoteEnd,
    /// Congestion control of the measured connections, and in the lab of VPNs over TCP.
    #[arg(short = 'C', long, default_value_t)]
    pub congestion: CongestionControl,
    #[command(flatten)]
    pub lab: super::link::LabLinksArgs,
    #[command(flatten, next_help_heading = "Emulated links")]
    pub link: super::link::LinkArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `trafficspeed suite ipsec`.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("pairs", |arg| {
    arg.conflicts_with_all(["vpn", "priority", "named_programs", "cipher", "vpnd", "to", "offload", "mtu", "topology", "hogs", "LinkArgs"])
}))]
pub struct IpsecArgs {
    #[command(flatten)]
    pub scale: ScaleArgs,
    #[command(flatten, next_help_heading = "Between real hosts, where `trafficspeed serve` runs")]
    pub hosts: HostsArgs,
    /// The parts of the original to measure.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "stream,datagram,transaction,time,video")]
    pub part: Vec<SuitePart>,
    /// Sweeps in addition to the original's measurements.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "payload,mtu,rate")]
    pub sweep: Vec<Sweep>,
    /// No sweeps.
    #[arg(long, conflicts_with = "sweep")]
    pub no_sweep: bool,
    /// Processes that want the whole CPU in the loaded measurements; by default one for each CPU.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub hogs: Option<u32>,
}

/// `trafficspeed suite aead`.
#[derive(Clone, Debug, Args)]
pub struct AeadArgs {
    #[command(flatten)]
    pub scale: ScaleArgs,
    /// Largest TCP segment for all ciphers, in bytes, TCP options included.
    #[arg(short = 'M', long, default_value_t = aead::MSS, value_parser = clap::value_parser!(u32).range(88..=65_495))]
    pub mss: u32,
    /// TCP streams at once.
    #[arg(short = 'P', long = "parallel", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub streams: u32,
    /// Ciphers with the CPU's instructions, without those for AES, or both.
    #[arg(long, value_enum, default_value = "both")]
    pub code: CodeChoice,
    /// IP version inside.
    #[arg(long, value_enum, default_value = "4")]
    pub ip: IpVersion,
}

/// `trafficspeed suite flows`.
#[derive(Clone, Debug, Args)]
pub struct FlowsArgs {
    #[command(flatten)]
    pub scale: ScaleArgs,
    /// IP version inside.
    #[arg(long, value_enum, default_value = "4")]
    pub ip: IpVersion,
}

/// Which machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CodeChoice {
    /// The fastest for this CPU.
    Native,
    /// Code for a CPU without AES instructions.
    WithoutAes,
    /// Both.
    Both,
}

impl ScaleArgs {
    /// The choices for any suite that measures these ciphers, unless it is quick as often as this.
    fn options(&self, ciphers: Vec<Cipher>, repeats: u32) -> SuiteOptions {
        let (seconds, warmup, repeats) =
            if self.quick { (1.0, 0.3, super::ROUNDS) } else { (10.0, 1.0, repeats) };
        let duration = Duration::from_secs_f64(self.seconds.unwrap_or(seconds));
        let warmup = Duration::from_secs_f64(self.warmup.unwrap_or(warmup));
        let (emulation, congestion) = (self.link.emulation(), self.congestion);
        SuiteOptions {
            // Plain routing is always there.
            kinds: self.vpn.iter().copied().filter(|kind| *kind != Kind::None).collect(),
            ciphers,
            priorities: if self.priority.is_empty() {
                Subject::usual_priorities(&self.vpn).to_vec()
            } else {
                self.priority.clone()
            },
            times: Times { warmup, duration, interval: Duration::from_secs(1).min(duration) },
            repeats: self.repeat.unwrap_or(repeats),
            links: LinkSettings { emulation, congestion, ..self.lab.links() },
            far: self.to,
            programs: self.programs.programs(),
            control: !self.no_control,
        }
    }

    fn ciphers(&self, all: &[Cipher]) -> Vec<Cipher> {
        let mut ciphers = if self.cipher.is_empty() { all.to_vec() } else { self.cipher.clone() };
        // The suite that vpnd chooses by itself is one of the others.
        ciphers.retain(|cipher| *cipher != Cipher::Auto);
        ciphers
    }
}

impl SuiteArgs {
    /// Where results go.
    pub fn output(&self) -> &OutputArgs {
        match &self.which {
            Suite::Ipsec(args) => &args.scale.output,
            Suite::Aead(args) => &args.scale.output,
            Suite::Flows(args) => &args.scale.output,
        }
    }

    /// The pairs of hosts and their options, if not in the lab.
    pub fn between_hosts(&self) -> Option<(ipsec::Options, HostPairsPlan)> {
        let Suite::Ipsec(args) = &self.which else { return None };
        Some((args.options(), args.hosts.host_pairs()?))
    }

    /// # Errors
    /// In words, if it cannot be done.
    pub fn plan(&self) -> Result<SuitePlan, String> {
        let plan = match &self.which {
            Suite::Ipsec(args) => args.plan(),
            Suite::Aead(args) => args.plan(),
            Suite::Flows(args) => args.plan(),
        };
        let mut cases = plan.stages.iter().flat_map(|stage| &stage.cases);
        cases.find_map(|case| Some(format!("{}: {}", case.name, case.task.problem()?))).map_or(Ok(plan), Err)
    }
}

impl IpsecArgs {
    fn plan(&self) -> SuitePlan {
        ipsec::plan(&self.options())
    }

    fn options(&self) -> ipsec::Options {
        ipsec::Options {
            suite: self.scale.options(self.scale.ciphers(&ipsec::CIPHERS), super::ROUNDS),
            quick: self.scale.quick,
            parts: self.part.clone(),
            sweeps: if self.no_sweep { Vec::new() } else { self.sweep.clone() },
            hogs: self.hogs.unwrap_or_else(|| HostInfo::read().cpus),
            ip: None,
        }
    }
}

impl AeadArgs {
    fn plan(&self) -> SuitePlan {
        let codes = match self.code {
            CodeChoice::Native => vec![Code::Native],
            CodeChoice::WithoutAes => vec![Code::WithoutAes],
            CodeChoice::Both => vec![Code::Native, Code::WithoutAes],
        };
        aead::plan(&aead::Options {
            suite: self.scale.options(self.scale.ciphers(&aead::CIPHERS), 10),
            codes,
            mss: self.mss,
            streams: self.streams,
            ip: self.ip.number(),
        })
    }
}

impl FlowsArgs {
    fn plan(&self) -> SuitePlan {
        let asked = &self.scale.cipher;
        let ciphers = if asked.is_empty() { vec![Cipher::Auto] } else { asked.clone() };
        flows::plan(&self.scale.options(ciphers, super::ROUNDS), self.ip.number())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn plan(line: &str) -> Result<SuitePlan, String> {
        match Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?.command {
            Some(Command::Suite(args)) => args.plan(),
            _ => Err("another command".into()),
        }
    }

    #[test]
    fn both_scales_of_both_suites_can_be_asked_for() {
        let quick = plan("trafficspeed suite ipsec --quick").unwrap();
        let full = plan("trafficspeed suite ipsec").unwrap();
        assert!(
            quick.estimate() < Duration::from_secs(5_400) && full.estimate() > 3 * quick.estimate(),
            "{:?} {:?}",
            quick.estimate(),
            full.estimate()
        );
        let line = "trafficspeed suite aead --quick --cipher aes-256-gcm,auto --code native";
        let some = plan(line).unwrap();
        assert_eq!(
            (some.stages.len(), some.repeats, some.count()),
            (4, 5, 5 * 2 * 3),
            "one is its own control"
        );
        let with = plan("trafficspeed suite ipsec --quick --vpn none,vpnd,strongswan,wireguard-go --cipher auth-only,aes-256-gcm --no-sweep --no-control").unwrap();
        let labels: Vec<String> = with.stages.iter().map(|stage| stage.label()).collect();
        assert_eq!(
            labels,
            [
                "plain routing",
                "vpnd, auth-only",
                "vpnd, auth-only, no priority",
                "vpnd, aes-256-gcm",
                "vpnd, aes-256-gcm, no priority",
                "strongSwan, auth-only",
                "strongSwan, aes-256-gcm",
                "wireguard-go"
            ]
        );
        let only = plan("trafficspeed suite aead --vpn wireguard-go --cipher auth-only --program wireguard-go=/opt/w --no-control").unwrap();
        let labels: Vec<String> = only.stages.iter().map(|stage| stage.label()).collect();
        assert_eq!(
            labels,
            ["plain routing", "wireguard-go"],
            "its own choice, where it has none of the ciphers"
        );
        let some = plan(&format!("{line} --no-control --repeat 4")).unwrap();
        assert_eq!((some.stages.len(), some.repeats, some.count()), (3, 4, 4 * 2 * 2));
    }

    #[test]
    fn no_scale_measures_for_less_than_a_second_or_less_than_three_times() {
        for line in ["ipsec --quick", "ipsec", "aead --quick", "aead", "flows --quick", "flows"] {
            let plan = plan(&format!("trafficspeed suite {line}")).unwrap();
            assert!(plan.repeats >= 3, "{line}");
            let cases = plan.stages.iter().flat_map(|stage| &stage.cases);
            assert!(cases.into_iter().all(|case| case.times.duration >= Duration::from_secs(1)), "{line}");
        }
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        for (line, expected) in [
            ("trafficspeed suite", "aead"),
            ("trafficspeed suite rot13", "unrecognized subcommand"),
            ("trafficspeed suite ipsec --cipher rot13", "chacha20-poly1305"),
            ("trafficspeed suite ipsec --part moon", "stream, datagram, transaction, time, video"),
            ("trafficspeed suite ipsec --sweep moon", "payload, mtu, rate"),
            ("trafficspeed suite ipsec --pair a=b --token-file t --cipher none", "cannot be used with"),
            ("trafficspeed suite aead --pair a=b", "unexpected argument"),
            ("trafficspeed suite aead --code x", "native, without-aes, both"),
            ("trafficspeed suite flows --part time", "unexpected argument"),
        ] {
            let error = plan(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
