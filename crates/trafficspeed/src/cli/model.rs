//! The command line of `trafficspeed model`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{OutputArgs, Switch, named, seconds, seconds_or_none};
use crate::experiment::model::real::RealPlan;
use crate::experiment::model::stages::STAGES;
use crate::experiment::model::{Case, ModelPlan};
use crate::lab::LinkSettings;
use crate::lab::cpu_limit::CpuLimit;
use crate::lab::emulator::impairment::Rate;
use crate::load::congestion::CongestionControl;
use crate::load::tcp::MAX_STREAMS;
use crate::system::{Cipher, Kind, Programs};

/// The name that its adapter has.
const VPND: &str = "vpnd";
/// Range of a target, in bit/s.
const RATES: std::ops::RangeInclusive<f64> = 1e6..=1e13;

/// Experiment 3: where the time goes: what each stage costs, and their sum, compared with the real
/// VPN.
///
/// Measures what each stage of a running tunnel costs on this host, those of the kernel included:
/// CPU time for each call, packet and byte, fitted from streams through whole shards in pieces of
/// several sizes without a cipher, and what each cipher adds. Then the real vpnd carries TCP
/// streams with each cipher, packet length and number of streams. The sum of the costs over what
/// passed for a Gbit says where its CPU time went, and the report by how much it is off.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// Ciphers; `none` is measured in any case, since the others cost what they take beyond it.
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "none,aes-128-gcm,aes-256-gcm,chacha20-poly1305"
    )]
    pub cipher: Vec<Cipher>,
    /// Lengths of the longest packets inside the tunnel, in bytes.
    #[arg(long, value_delimiter = ',', default_value = "1408,1280,576", value_parser = clap::value_parser!(u32).range(200..=65_000))]
    pub packet: Vec<u32>,
    /// Numbers of TCP streams; each is measured with each length.
    #[arg(short = 'P', long = "parallel", value_delimiter = ',', default_value = "1,8,32", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_STREAMS)))]
    pub streams: Vec<u32>,
    /// Also say what each stage would have to cost for this rate, such as 10gbit or 25G; may be
    /// given again.
    #[arg(long, value_name = "RATE", value_parser = target)]
    pub target: Vec<f64>,
    /// Milliseconds for each stage and size.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub millis: u64,
    /// Seconds of each measurement of the real VPN.
    #[arg(short = 't', long, default_value_t = 2.0, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds before counting begins.
    #[arg(short = 'O', long, default_value_t = 0.5, value_parser = seconds_or_none)]
    pub warmup: f64,
    /// How often each cipher and load is measured.
    #[arg(long, default_value_t = super::ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Do not measure one cipher a second time in each turn (AES-256-GCM, or the first one), which
    /// shows how far it differs from itself.
    #[arg(long)]
    pub no_control: bool,
    /// The `vpnd` program; by default the one next to trafficspeed, then the one in PATH.
    #[arg(long, value_name = "PATH")]
    pub vpnd: Option<PathBuf>,
    /// The `vpnd-stages` program, found in the same way. Build it from the same source, with the
    /// same options.
    #[arg(long, value_name = "PATH")]
    pub stages: Option<PathBuf>,
    /// Either program's place: vpnd=PATH or vpnd-stages=PATH; may be given again.
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = program)]
    pub named_programs: Vec<(String, PathBuf)>,
    /// Also measure six rows as the original did, packets of 1280 bytes on links of these rates: no
    /// tunnel, no cipher, and four ciphers. Without a value 100mbit,1gbit.
    #[arg(long, value_name = "RATE", value_delimiter = ',', num_args = 0..=1, default_missing_value = "100mbit,1gbit")]
    pub original: Vec<Rate>,
    /// Limit what the gateway's programs use of the CPU for --original, in cores: with 0.15 of one
    /// a cipher limits 1gbit, and not 100mbit.
    #[arg(long, value_name = "CORES", requires = "original")]
    pub gateway_cpu: Option<CpuLimit>,
    /// Congestion control of the measured connection.
    #[arg(short = 'C', long, default_value_t)]
    pub congestion: CongestionControl,
    /// Segmentation offload of the lab's links; off is closer to a wire.
    #[arg(long, value_enum, default_value = "on")]
    pub offload: Switch,
    /// MTU of the lab's links in bytes.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1500..=65_535))]
    pub mtu: u32,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl ModelArgs {
    /// # Errors
    /// If a cipher is none of vpnd's suites, or anything is named twice.
    pub fn plan(&self) -> Result<ModelPlan, String> {
        let known = Kind::Vpnd.profile().ciphers;
        for (at, cipher) in self.cipher.iter().enumerate() {
            if !known.contains(cipher) || self.cipher[..at].contains(cipher) {
                let names: Vec<&str> = known.iter().map(|cipher| cipher.name()).collect();
                return Err(format!(
                    "--cipher {}: name each of {} once at most",
                    cipher.name(),
                    names.join(", ")
                ));
            }
        }
        let cases: Vec<Case> = self
            .packet
            .iter()
            .flat_map(|&packet| self.streams.iter().map(move |&streams| Case { packet, streams }))
            .collect();
        if let Some((_, case)) = cases.iter().enumerate().find(|(at, case)| cases[..*at].contains(case)) {
            return Err(format!(
                "--packet {} with --parallel {}: name each length and number once at most",
                case.packet, case.streams
            ));
        }
        let mut programs = named(Programs::default(), &self.named_programs);
        for (name, path) in [(VPND, &self.vpnd), (STAGES.name, &self.stages)] {
            programs = path.iter().fold(programs, |all, path| all.with(name, path.clone()));
        }
        let real = RealPlan {
            duration: Duration::from_secs_f64(self.seconds),
            warmup: Duration::from_secs_f64(self.warmup),
            repeats: self.repeat,
        };
        Ok(ModelPlan {
            ciphers: self.cipher.clone(),
            cases,
            millis: self.millis,
            programs,
            links: LinkSettings {
                offload: self.offload == Switch::On,
                mtu: self.mtu,
                congestion: self.congestion,
                ..LinkSettings::default()
            },
            control: !self.no_control,
            real,
            targets: self.target.clone(),
            original: self.original.clone(),
            original_cpu: self.gateway_cpu,
        })
    }
}

/// The two programs that are run here, and where one is.
fn program(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if [VPND, STAGES.name].contains(&name) => Ok((name.to_owned(), path.into())),
        Some((name, _)) => Err(format!("`{name}` is not run here; there are {VPND} and {}", STAGES.name)),
        None => Err("give it as NAME=PATH".into()),
    }
}

/// A rate with the units of `tc`: `10gbit`, or with iperf3's: `10G`.
fn target(text: &str) -> Result<f64, String> {
    let lower = text.to_ascii_lowercase();
    let (number, factor) = [("gbit", 1e9), ("mbit", 1e6), ("g", 1e9), ("m", 1e6)]
        .into_iter()
        .find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?, factor)))
        .unwrap_or((&lower, 1.0));
    match number.parse::<f64>() {
        Ok(value) if RATES.contains(&(value * factor)) => Ok(value * factor),
        Ok(_) => Err("between 1mbit and 10000gbit, please".into()),
        Err(_) => Err(format!("`{text}` is no rate; for example 10gbit")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn plan(line: &str) -> Result<ModelPlan, String> {
        match Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?.command {
            Some(Command::Model(args)) => args.plan(),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn the_short_form_measures_ciphers_lengths_and_streams() {
        let plan = plan("trafficspeed model --target 10gbit --target 25G").unwrap();
        let ciphers = [Cipher::None, Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];
        assert_eq!((plan.ciphers.as_slice(), plan.cases.len()), (ciphers.as_slice(), 9));
        assert_eq!(plan.cases[1], Case { packet: 1408, streams: 8 });
        assert_eq!((plan.targets, plan.real.repeats), (vec![10e9, 25e9], 5));
    }

    #[test]
    fn the_reference_is_always_measured_first() {
        let asked = plan("trafficspeed model --cipher chacha20-poly1305").unwrap();
        assert_eq!(asked.suites(), [Cipher::None, Cipher::ChaCha20Poly1305]);
        assert_eq!(asked.ciphers, [Cipher::ChaCha20Poly1305]);
    }

    #[test]
    fn the_originals_rates_are_two_unless_others_are_named() {
        let rates = |line: &str| plan(line).unwrap().original.iter().map(Rate::to_string).collect::<Vec<_>>();
        assert_eq!(rates("trafficspeed model --original"), ["100 Mbit/s", "1 Gbit/s"]);
        assert_eq!(rates("trafficspeed model --original 200mbit -t 1"), ["200 Mbit/s"]);
        assert!(rates("trafficspeed model").is_empty());
    }

    #[test]
    fn what_is_advised_for_a_missing_program_is_taken() {
        let line = "trafficspeed model --program vpnd-stages=/nonexistent/stages";
        let missing = plan(line).unwrap().programs.find(&STAGES);
        assert!(missing.unwrap_err().to_string().contains("--program vpnd-stages=/nonexistent/stages"));
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_could() {
        for (line, expected) in [
            ("trafficspeed model --target fast", "for example 10gbit"),
            ("trafficspeed model --target=-5gbit", "between 1mbit"),
            ("trafficspeed model --target 1e300gbit", "between 1mbit"),
            ("trafficspeed model --target nan", "between 1mbit"),
            ("trafficspeed model --cipher rot13", "chacha20-poly1305"),
            ("trafficspeed model --cipher auto", "name each of"),
            ("trafficspeed model --cipher none,none", "once at most"),
            ("trafficspeed model --packet 1280,1280", "once at most"),
            ("trafficspeed model --packet 64", "200..=65000"),
            ("trafficspeed model --program openvpn=/bin/true", "vpnd-stages"),
            ("trafficspeed model --millis 0", "1..=10000"),
            ("trafficspeed model --gateway-cpu 0.15", "--original"),
        ] {
            let error = plan(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
