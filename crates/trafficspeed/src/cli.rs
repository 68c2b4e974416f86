//! The command line: what a user can ask for, checked as far as that needs no system call.

pub mod block;
pub mod compare;
mod guidance;
pub mod home;
pub mod hosts;
pub mod link;
pub mod load;
pub mod model;
mod output;
pub mod suite;
pub mod verify;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::experiment::outcome::{RemoteEnd, Settings};
use crate::experiment::traffic::TrafficPlan;
use crate::lab::MAX_CLIENTS;
use crate::lab::cpu_limit::CpuLimit;
use crate::load::congestion::CongestionControl;
use crate::load::tcp::MAX_STREAMS;
use crate::own_processes::OwnProcess;
use crate::stats::CLAIM_ROUNDS;
use crate::system::command::{HELP, Scripts};
use crate::system::generator;
use crate::system::{Cipher, Kind, Priority, Programs, Subject};

use compare::{CompareArgs, ReportArgs};
pub use guidance::{EXAMPLES, OVERVIEW, naming_known};
pub use output::OutputArgs;

/// Rounds of a measurement unless the user says otherwise: enough to claim a difference.
const ROUNDS: u32 = CLAIM_ROUNDS as u32;
/// Milliseconds between the probe's requests, unless the user says otherwise: fifty round trips a
/// second are enough for their 99th percentile in a measurement of some seconds.
const PROBE_EVERY_MS: u32 = 20;

/// Measures what a VPN carries as its clients grow.
///
/// With --clients it builds a laboratory of network namespaces on this machine (needs root), brings
/// up each system with that many clients, lets all pairs of clients talk at once and shows the
/// totals. Everything it makes is removed again.
#[derive(Debug, Parser)]
#[command(version = crate::VERSION, override_help = OVERVIEW, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Cli {
    #[command(flatten)]
    pub lab: LabArgs,
    /// Anything else.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Commands, in the order of the overview.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Let all pairs of clients talk at once, in a laboratory on this machine; the word `lab` may
    /// be left out.
    ///
    /// It makes network namespaces (needs root), brings up each system with that many clients, lets
    /// all pairs of clients talk at once and shows the totals. Everything it makes is removed
    /// again.
    #[command(after_long_help = HELP)]
    Lab(LabArgs),
    /// Compare systems in rounds, with median, spread and ratios; can be resumed.
    ///
    /// Exit code: 0 if all was measured, 1 if something was not, 2 if nothing could be, 3 if other
    /// load disturbed every attempt at something (then nothing is claimed), 130 if it was
    /// interrupted.
    Compare(CompareArgs),
    /// Measure between hosts where `trafficspeed serve` runs.
    Run(RunArgs),
    /// Let the holder of a token measure with this host.
    Serve(hosts::ServeArgs),
    /// Make a token file for `serve` and `run`.
    Token {
        /// The file to make; it must not exist yet.
        file: PathBuf,
    },
    /// Show the results in a directory again, also as pictures.
    Report(ReportArgs),
    /// Show which systems this machine can measure, and what installs the others.
    ///
    /// Exit code: 0 if all of them are ready (with --install: if that one is), 1 if one is not, 2
    /// if it could not be found out.
    Doctor(DoctorArgs),
    /// TCP as fast as it goes, or at a rate, between a client and the gateway or another client.
    Stream(load::StreamArgs),
    /// Real paths: a download, an upload, a call and pages at once over a link as a home has it.
    ///
    /// The link stands below every system: 16 ms ± 2 ms each way, 0.1 % of packets lost, 100 Mbit/s
    /// both ways and a queue of at most 100 ms in front of it, unless the options of emulated links
    /// say otherwise. Each system in turn carries everything at once first, then each part alone.
    Home(home::HomeArgs),
    /// Requests and responses: transactions per second and the latency of each.
    Rr(load::RrArgs),
    /// UDP at a rate, or the highest rate without loss.
    Udp(load::UdpArgs),
    /// Experiment 4: block writes over long delays, encrypted ahead of the wait.
    Block(block::BlockArgs),
    /// Measure the emulated links alone: delay, loss, order and rate, asked for and got.
    LinkCheck(link::LinkCheckArgs),
    /// Compare trafficspeed's TCP generator with iperf3 and nuttcp; exit code 0 if those installed
    /// agree within 5 %, otherwise 1.
    Verify(verify::VerifyArgs),
    /// Experiments that compare ciphers under many loads.
    Suite(suite::SuiteArgs),
    /// Experiment 3: where the time goes, and a model, compared with runs that it was not fitted
    /// to.
    Model(model::ModelArgs),
    /// Remove what a killed run left behind.
    Cleanup,
    /// Print the completions of a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory.
    Man {
        /// An existing directory, such as /usr/local/share/man/man1.
        dir: PathBuf,
    },
    #[command(flatten)]
    Own(OwnProcess),
}

/// The lab experiment.
#[derive(Clone, Debug, Args)]
pub struct LabArgs {
    /// Numbers of clients, each even unless the other ends are at the gateway: every two clients
    /// are a pair.
    #[arg(long, value_delimiter = ',', required = true, value_parser = clients)]
    pub clients: Vec<u32>,
    /// The other ends of the clients: another client each, or the gateway; with --topology routers
    /// a host in the trusted segment behind it.
    #[arg(long, value_enum, default_value = "client")]
    pub to: RemoteEnd,
    #[command(flatten)]
    pub systems: SystemArgs,
    #[command(flatten)]
    pub work: WorkArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The systems, where their programs are, and the links of the lab.
#[derive(Clone, Debug, Args)]
pub struct SystemArgs {
    /// Systems to measure.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "vpnd,none")]
    pub vpn: Vec<Kind>,
    /// Ciphers to measure the systems with; the system's own choice by default.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub cipher: Vec<Cipher>,
    /// Measure without encryption (together with --cipher: also without).
    #[arg(long)]
    pub no_encryption: bool,
    /// The CPU priority of the systems: what each takes by itself, or the same for all; by default
    /// the first, among other VPNs and in `compare` both.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub priority: Vec<Priority>,
    /// Do not measure a system a second time in each round, which shows how far a system differs
    /// from itself.
    #[arg(long)]
    pub no_control: bool,
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// Microseconds for which vpnd's gateway and clients look for the next packet instead of
    /// sleeping (`busy_poll_us`).
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub busy_poll: Option<u32>,
    /// Brings up a system of your own, for --vpn command, and what the report calls it, `command`
    /// without a name; may be given again for another system. `trafficspeed lab --help` tells how
    /// at its end.
    #[arg(long, value_name = "[NAME=]SCRIPT", value_parser = own_script)]
    pub command_up: Vec<(String, PathBuf)>,
    /// Takes the system of that name down again.
    #[arg(long, value_name = "[NAME=]SCRIPT", value_parser = own_script, requires = "command_up")]
    pub command_down: Vec<(String, PathBuf)>,
    /// Limit what the VPN's programs at the gateway use of the CPU, in cores such as 0.5: then the
    /// gateway is the bottleneck, whatever the clients take. With several, --clients and `compare`
    /// measure each.
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    pub gateway_cpu: Vec<CpuLimit>,
    #[command(flatten)]
    pub lab: link::LabLinksArgs,
    #[command(flatten, next_help_heading = "Emulated links")]
    pub link: link::LinkArgs,
}

/// Where the programs of the measured systems are.
#[derive(Clone, Debug, Args)]
pub struct ProgramArgs {
    /// The `vpnd` program; by default the one next to trafficspeed, then the one in PATH.
    #[arg(long, value_name = "PATH")]
    pub vpnd: Option<PathBuf>,
    /// Where another program of a measured system is, for example wireguard-go=/opt/wireguard-go;
    /// may be given again.
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = program)]
    pub named_programs: Vec<(String, PathBuf)>,
}

impl ProgramArgs {
    pub fn programs(&self) -> Programs {
        let named = named(Programs::default(), &self.named_programs);
        self.vpnd.iter().fold(named, |all, path| all.with("vpnd", path.clone()))
    }
}

/// Measuring between real hosts.
#[derive(Debug, Args)]
#[command(mut_arg("pairs", |arg| arg.required(true)))]
pub struct RunArgs {
    #[command(flatten)]
    pub hosts: hosts::HostsArgs,
    #[command(flatten)]
    pub work: WorkArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Looking at this machine.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Install what this system lacks, by the commands that are shown; needs root.
    #[arg(long, value_name = "SYSTEM", value_enum)]
    pub install: Option<Kind>,
    /// Print JSON instead of the table.
    #[arg(short = 'J', long)]
    pub json: bool,
    /// Where a program is that is not where it would be looked for; may be given again.
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = program)]
    pub named_programs: Vec<(String, PathBuf)>,
}

impl DoctorArgs {
    /// Where the programs are that the user named.
    pub fn programs(&self) -> Programs {
        named(Programs::default(), &self.named_programs)
    }
}

/// `programs` with those that the user named.
pub fn named(programs: Programs, named: &[(String, PathBuf)]) -> Programs {
    named.iter().fold(programs, |all, (name, path)| all.with(name, path.clone()))
}

/// The work that every measurement does.
#[derive(Clone, Debug, Args)]
pub struct WorkArgs {
    /// TCP connections per pair; half of them carry data each way.
    #[arg(short = 'P', long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_STREAMS)))]
    pub streams: u32,
    /// Measured seconds.
    #[arg(short = 't', long, default_value_t = 60.0, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds before counting begins.
    #[arg(short = 'O', long, default_value_t = 2.0, value_parser = seconds_or_none)]
    pub warmup: f64,
    /// How often each measurement is made; systems take turns. Fewer than 5 rounds are figures
    /// without verdicts.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// IP version of the measured connections.
    #[arg(long, value_enum, default_value = "4")]
    pub ip: IpVersion,
    /// Seed of the random payload.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Bytes per send call.
    #[arg(short = 'l', long, default_value_t = 256 * 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub length: u32,
    /// Read and check every byte that arrives instead of discarding it in the kernel.
    #[arg(long)]
    pub verify: bool,
    /// Congestion control of the measured connections, and in the lab of VPNs over TCP.
    #[arg(short = 'C', long, default_value_t)]
    pub congestion: CongestionControl,
    /// Generator threads per host; by default the CPUs divided by the clients.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Option<u32>,
    /// Milliseconds between the requests (64 bytes over UDP, as their answers) with which the first
    /// pair measures round trips under its load; 0: none. In the lab 20, between hosts none.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub probe: Option<u32>,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

impl SystemArgs {
    /// The measured systems, with `priorities` unless the user names others. Of a system without
    /// any of the ciphers there is none, unless that is so of all: then nothing can be measured,
    /// which the person who measures chooses.
    pub fn subjects(&self, priorities: &[Priority]) -> Vec<Subject> {
        let chosen = if self.priority.is_empty() { priorities } else { &self.priority };
        let all = Subject::with_shares(&Subject::with_priorities(&self.all(), chosen), &self.gateway_cpu);
        let (kept, _) = Subject::with_their_ciphers(&all);
        if kept.is_empty() { all } else { kept }
    }

    /// The systems that are measured without some of the ciphers or not at all, a sentence each.
    pub fn left_out(&self) -> Vec<String> {
        Subject::with_their_ciphers(&self.all()).1
    }

    fn all(&self) -> Vec<Subject> {
        Subject::all(&self.vpn, &self.ciphers(), self.command_up.len())
    }

    /// The measured systems with the priorities that are usual, and one of them as its own control.
    pub fn subjects_and_control(&self) -> Vec<Subject> {
        self.with_control(self.subjects(Subject::usual_priorities(&self.vpn)), |_| false)
    }

    /// The subjects with one of them as its own control for each share of the CPU, unless the user
    /// does without: the one that `is_wanted`, or the first VPN.
    pub fn with_control(
        &self,
        mut subjects: Vec<Subject>,
        is_wanted: impl Fn(&Subject) -> bool,
    ) -> Vec<Subject> {
        if !self.no_control {
            let shares: Vec<Option<CpuLimit>> = match self.gateway_cpu[..] {
                [] | [_] => vec![None],
                ref several => several.iter().copied().map(Some).collect(),
            };
            let of_share = |share| subjects.iter().copied().filter(move |one| one.gateway_cpu == share);
            let controls = shares
                .into_iter()
                .filter_map(|share| Subject::control(&of_share(share).collect::<Vec<_>>(), &is_wanted));
            let controls: Vec<Subject> = controls.collect();
            subjects.extend(controls);
        }
        subjects
    }

    /// The ciphers to measure.
    pub fn ciphers(&self) -> Vec<Cipher> {
        let mut ciphers = self.cipher.clone();
        if self.no_encryption {
            ciphers.push(Cipher::None);
        }
        if ciphers.is_empty() {
            ciphers.push(Cipher::Auto);
        }
        ciphers
    }

    /// Where the programs are that the user named, and the user's own systems.
    ///
    /// # Errors
    /// In words, if the names of the user's own systems do not fit.
    pub fn programs(&self) -> Result<Programs, String> {
        let programs = self.programs.programs().with_busy_poll(self.busy_poll);
        Ok(programs.with_scripts(Scripts::pair(&self.command_up, &self.command_down)?))
    }
}

impl LabArgs {
    /// The plan for these systems on a machine with `cpus` CPUs.
    ///
    /// # Errors
    /// In words, if a client has no partner, or the user's own systems have names that do not fit.
    pub fn traffic(&self, subjects: Vec<Subject>, cpus: u32) -> Result<TrafficPlan, String> {
        check_pairs(&self.clients, self.to)?;
        Ok(TrafficPlan {
            subjects,
            clients: self.clients.clone(),
            settings: Settings { far: self.to, ..self.work.settings(self.threads(cpus)) },
            links: self.systems.links(self.work.congestion),
            programs: self.systems.programs()?,
        })
    }

    /// Generator threads per client, so that all of them together have about one per CPU.
    fn threads(&self, cpus: u32) -> u32 {
        let most = self.clients.iter().copied().max().unwrap_or(1);
        self.work.threads.unwrap_or((cpus / most).clamp(1, 8))
    }
}

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IpVersion {
    #[value(name = "4")]
    V4,
    #[value(name = "6")]
    V6,
}

impl IpVersion {
    /// The number that reports have.
    pub fn number(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }
}

impl WorkArgs {
    /// The work as reports record it.
    pub fn settings(&self, threads: u32) -> Settings {
        Settings {
            streams: self.streams,
            seconds: self.seconds,
            warmup_seconds: self.warmup,
            repeats: self.repeat,
            ip: self.ip.number(),
            seed: self.seed,
            write_bytes: self.length,
            verify: self.verify,
            congestion: self.congestion,
            threads,
            far: RemoteEnd::Client,
            probe_every_ms: self.probe.unwrap_or(PROBE_EVERY_MS),
            systems: Vec::new(),
        }
    }
}

/// A program and its path.
///
/// # Errors
/// In words, for what names no program.
pub fn program(text: &str) -> Result<(String, PathBuf), String> {
    let Some((name, path)) = text.split_once('=') else { return Err("give it as NAME=PATH".into()) };
    let mut known: Vec<&str> =
        Kind::value_variants().iter().flat_map(|kind| kind.profile().programs).map(|p| p.name).collect();
    known.dedup();
    known.extend(generator::ALL.map(|generator| generator.program.name));
    if known.contains(&name) {
        return Ok((name.to_owned(), path.into()));
    }
    Err(format!("no measured system has a program `{name}`; there are {}", known.join(", ")))
}

/// A system of the user's own: its name and its script.
fn own_script(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        None => Ok(("command".into(), text.into())),
        Some((name, path)) if !name.is_empty() && !name.contains('/') && !path.is_empty() => {
            Ok((name.into(), path.into()))
        }
        Some(_) => Err("give it as SCRIPT or NAME=SCRIPT".into()),
    }
}

fn clients(text: &str) -> Result<u32, String> {
    let count: u32 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if count == 0 || count > MAX_CLIENTS {
        return Err(format!("the lab holds at most {MAX_CLIENTS} clients, and at least one"));
    }
    Ok(count)
}

/// Fails if a number of clients leaves one without a partner.
fn check_pairs(clients: &[u32], to: RemoteEnd) -> Result<(), String> {
    match clients.iter().find(|count| to == RemoteEnd::Client && !count.is_multiple_of(2)) {
        None => Ok(()),
        Some(odd) => Err(format!(
            "--clients {odd}: every two clients are a pair; give an even number, or --to gateway"
        )),
    }
}

/// Seconds of a measurement.
///
/// # Errors
/// In words, for anything else.
pub fn seconds(text: &str) -> Result<f64, String> {
    match seconds_or_none(text)? {
        value if value >= 0.1 => Ok(value),
        _ => Err("measure for at least 0.1 seconds".into()),
    }
}

fn seconds_or_none(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=86_400.0).contains(&value) => Ok(value),
        Ok(_) => Err("between 0 and 86400 seconds, please".into()),
        Err(_) => Err(format!("`{text}` is no number of seconds")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn read(line: &str) -> Result<Cli, String> {
        Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_short_form_measures_vpnd_and_plain_routing_as_the_original_did() {
        let lab = read("trafficspeed --clients 8").unwrap().lab;
        assert_eq!((lab.clients.clone(), lab.systems.vpn.clone()), (vec![8], vec![Kind::Vpnd, Kind::None]));
        assert_eq!((lab.work.streams, lab.work.seconds), (32, 60.0));
        assert_eq!(lab.systems.ciphers(), [Cipher::Auto]);
        assert_eq!((lab.threads(2), lab.threads(64)), (1, 8));
    }

    #[test]
    fn a_client_has_another_one_or_the_gateway_to_talk_to() {
        let settings = |line: &str| read(line).unwrap().lab.traffic(Vec::new(), 2).map(|plan| plan.settings);
        let odd = settings("trafficspeed --clients 2,3").unwrap_err();
        assert!(odd.contains("--clients 3: ") && odd.contains("even number"), "{odd}");
        let far = |line: &str| settings(line).map(|settings| settings.far);
        assert_eq!(far("trafficspeed --clients 1,3 --to gateway"), Ok(RemoteEnd::Gateway));
        assert_eq!(far("trafficspeed --clients 2,4"), Ok(RemoteEnd::Client));
    }

    #[test]
    fn lists_ciphers_and_iperfs_letters_are_understood() {
        let lab = read("trafficspeed --clients 2,4 --cipher aes-256-gcm --no-encryption -P 4 -t 1 -O 0 -J")
            .unwrap()
            .lab;
        assert_eq!(lab.clients, [2, 4]);
        assert_eq!(lab.systems.ciphers(), [Cipher::Aes256Gcm, Cipher::None]);
        assert!(lab.output.json);
    }

    #[test]
    fn bad_input_is_refused_with_what_would_be_right() {
        for (line, expected) in [
            ("trafficspeed", "--clients"),
            ("trafficspeed --clients 0", "at least one"),
            ("trafficspeed --clients 256", "at most 254"),
            ("trafficspeed --clients x", "no number"),
            (
                "trafficspeed --clients 2 --vpn ciscovpn",
                "possible values: vpnd, vpnd-vaes, vpnd-postgres, wireguard-go",
            ),
            ("trafficspeed --clients 2 --cipher rot13", "chacha20-poly1305"),
            ("trafficspeed --clients 2 --program vpnd", "NAME=PATH"),
            ("trafficspeed --clients 2 --command-up =x", "NAME=SCRIPT"),
            (
                "trafficspeed --clients 2 --program x=/x",
                "no measured system has a program `x`; there are vpnd",
            ),
            ("trafficspeed --clients 2 --seconds 0", "at least 0.1"),
            ("trafficspeed --clients 2 --seconds NaN", "between 0 and 86400"),
            ("trafficspeed --clients 2 --streams 99999", "1..=1024"),
            ("trafficspeed --clients 2 --mtu 100", "1280"),
            ("trafficspeed run --token-file t --pair a", "HOSTA=HOSTB"),
            ("trafficspeed run --pair a=b", "--token-file"),
            ("trafficspeed --clients 2 --ip 5", "[possible values: 4, 6]"),
            ("trafficspeed serve", "--token-file"),
        ] {
            let error = read(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
