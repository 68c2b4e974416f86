//! The command line of `trafficspeed model`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{OutputArgs, Switch, seconds, seconds_or_none};
use crate::experiment::model::ModelPlan;
use crate::experiment::model::real::RealPlan;
use crate::lab::LinkSettings;
use crate::load::congestion::CongestionControl;
use crate::system::{Cipher, Kind, Programs};

/// Range of a target, in bit/s.
const RATES: std::ops::RangeInclusive<f64> = 1e6..=1e13;

/// Experiment 3: where the time goes, and a model that predicts it.
///
/// Measures what each stage of vpnd's data path costs on this host, for each packet and for each byte; predicts from that
/// what the VPN costs and carries; carries one TCP stream through the real one, and shows the error.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// Ciphers.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "aes-256-gcm,chacha20-poly1305,none")]
    pub cipher: Vec<Cipher>,
    /// Also say what each stage would have to cost for this rate, such as 10gbit or 25G; may be given again.
    #[arg(long, value_name = "RATE", value_parser = target)]
    pub target: Vec<f64>,
    /// Milliseconds for each stage and size.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub millis: u64,
    /// Only predict; do not measure the real VPN.
    #[arg(long)]
    pub predict_only: bool,
    /// Seconds of each measurement of the real VPN.
    #[arg(short = 't', long, default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds before counting begins.
    #[arg(short = 'O', long, default_value_t = 1.0, value_parser = seconds_or_none)]
    pub warmup: f64,
    /// How often each cipher is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// The `vpnd` program; by default the one beside trafficspeed, then the one in PATH.
    #[arg(long, value_name = "PATH")]
    pub vpnd: Option<PathBuf>,
    /// The `vpnd-stages` program, found in the same way. Build it from the same source, with the same options.
    #[arg(long, value_name = "PATH")]
    pub stages: Option<PathBuf>,
    /// Congestion control of the measured connection.
    #[arg(short = 'C', long, default_value_t)]
    pub congestion: CongestionControl,
    /// Segmentation offload of the lab's links; off is closer to a wire.
    #[arg(long, value_enum, default_value = "on")]
    pub offload: Switch,
    /// MTU of the lab's links in bytes.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1500..=65_535))]
    pub mtu: u32,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl ModelArgs {
    /// # Errors
    /// If a cipher is none of vpnd's suites, or is named twice.
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
        let named = [("vpnd", &self.vpnd), ("vpnd-stages", &self.stages)];
        let programs = named.into_iter().filter_map(|(name, path)| Some((name, path.clone()?)));
        let real = RealPlan {
            duration: Duration::from_secs_f64(self.seconds),
            warmup: Duration::from_secs_f64(self.warmup),
            repeats: self.repeat,
        };
        Ok(ModelPlan {
            ciphers: self.cipher.clone(),
            millis: self.millis,
            programs: programs.fold(Programs::default(), |all, (name, path)| all.with(name, path)),
            links: LinkSettings {
                offload: self.offload == Switch::On,
                mtu: self.mtu,
                congestion: self.congestion,
                ..LinkSettings::default()
            },
            real: (!self.predict_only).then_some(real),
            targets: self.target.clone(),
        })
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
    fn the_short_form_predicts_and_measures_three_ciphers() {
        let plan = plan("trafficspeed model --target 10gbit --target 25G").unwrap();
        assert_eq!(plan.ciphers, [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305, Cipher::None]);
        assert_eq!((plan.targets, plan.real.map(|real| real.repeats)), (vec![10e9, 25e9], Some(3)));
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
            ("trafficspeed model --millis 0", "1..=10000"),
        ] {
            let error = plan(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
