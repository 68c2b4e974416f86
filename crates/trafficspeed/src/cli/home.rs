//! `trafficspeed home`: real paths.

use clap::Args;

use super::{IpVersion, OutputArgs, SystemArgs, seconds, seconds_or_none};
use crate::experiment::home::HomePlan;
use crate::experiment::home::results::HomeSettings;
use crate::load::congestion::CongestionControl;
use crate::load::tcp::MAX_STREAMS;

/// The measurement of real paths.
#[derive(Clone, Debug, Args)]
#[command(
    mut_arg("delay", |arg| arg.default_value("16ms")),
    mut_arg("jitter", |arg| arg.default_value("2ms")),
    mut_arg("loss", |arg| arg.default_value("0.1%")),
    mut_arg("rate", |arg| arg.default_value("100mbit")),
    mut_arg("queue", |arg| {
        arg.default_value("100ms").help(
            "Longest queue in front of the link, for example 100ms (of the rate), 256kb or 1000p; what does not fit is dropped. Under \
             load the delay of a call is mostly this queue"
        )
    })
)]
pub struct HomeArgs {
    #[command(flatten)]
    pub systems: SystemArgs,
    /// Measured seconds of everything at once.
    #[arg(short = 't', long, default_value_t = 12.0, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds before counting begins.
    #[arg(short = 'O', long, default_value_t = 2.0, value_parser = seconds_or_none)]
    pub warmup: f64,
    /// Measured seconds of each part alone; 0: only everything at once.
    #[arg(long, default_value_t = 3.0, value_parser = seconds_or_none)]
    pub alone: f64,
    /// How often everything is measured; systems take turns.
    #[arg(long, default_value_t = super::ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// TCP connections of the download, and of the upload.
    #[arg(short = 'P', long = "parallel", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_STREAMS)))]
    pub streams: u32,
    /// IP version inside.
    #[arg(long, value_enum, default_value = "4")]
    pub ip: IpVersion,
    /// Congestion control of the measured connections, and in the lab of VPNs over TCP.
    #[arg(short = 'C', long, default_value_t)]
    pub congestion: CongestionControl,
    /// Seed of the random payload.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl HomeArgs {
    /// # Errors
    /// In words, if the names of the user's own systems do not fit.
    pub fn plan(&self) -> Result<HomePlan, String> {
        let links = self.systems.links_of_one(self.congestion)?;
        let ways = links.emulation.map(|emulation| [emulation.up, emulation.down]).unwrap_or_default();
        let settings = HomeSettings {
            ip: self.ip.number(),
            seconds: self.seconds,
            warmup_seconds: self.warmup,
            alone_seconds: self.alone,
            repeats: self.repeat,
            streams: self.streams,
            congestion: self.congestion,
            seed: self.seed,
            rate: ways.map(|way| way.rate.map(|rate| rate.bits_per_second)),
            queue: ways.map(|way| way.rate.map(|rate| way.queue_limit(rate).to_string())),
        };
        Ok(HomePlan {
            subjects: self.systems.subjects_and_control(),
            links,
            programs: self.systems.programs()?,
            settings,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    fn plan(line: &str) -> Result<HomePlan, String> {
        let line = format!("trafficspeed home {line}");
        match Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?.command {
            Some(Command::Home(args)) => args.plan(),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn the_default_link_is_a_home_link_both_ways() {
        let plan = plan("").unwrap();
        let emulation = plan.links.emulation.unwrap();
        assert_eq!(emulation.up, emulation.down);
        assert_eq!(
            emulation.up.to_string(),
            "delay 16 ms ± 2 ms, loss 0.1 %, rate 100 Mbit/s with a queue of 100 ms"
        );
        assert_eq!(emulation.check(), Ok(()));
        assert_eq!(plan.settings.rate, [Some(100_000_000); 2]);
        let labels: Vec<String> = plan.subjects.iter().map(|subject| subject.label()).collect();
        assert_eq!(labels, ["vpnd", "plain routing", "vpnd (again)"]);
    }

    #[test]
    fn each_property_of_the_link_can_be_another_and_another_down() {
        let plan =
            plan("--rate 40mbit --rate-down 250mbit --queue 20ms --queue-down 1000p --loss 0% -P 8 -C reno")
                .unwrap();
        let emulation = plan.links.emulation.unwrap();
        assert_eq!((emulation.up.loss.ppm, emulation.down.loss.ppm), (0, 0));
        assert_eq!(plan.settings.rate, [Some(40_000_000), Some(250_000_000)]);
        assert_eq!(plan.settings.queue, [Some("20 ms".into()), Some("1000 packets".into())]);
        assert_eq!((plan.settings.streams, plan.settings.congestion.name()), (8, "reno"));
    }

    #[test]
    fn four_systems_in_five_rounds_take_about_a_quarter_of_an_hour() {
        let plan = plan("--vpn vpnd,wireguard-go-tailscale,openvpn,none").unwrap();
        assert_eq!(plan.subjects[1].label(), "vpnd, no priority", "among other VPNs");
        assert!(plan.estimate().as_secs() < 18 * 60, "{:?}", plan.estimate());
    }
}
