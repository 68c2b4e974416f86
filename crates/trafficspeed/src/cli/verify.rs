//! The command line of `trafficspeed verify`.

use clap::Args;

use super::IpVersion;
use super::load::size;
use crate::experiment::verify::VerifyPlan;
use crate::lab::LinkSettings;
use crate::load::congestion::CongestionControl;
use crate::system::{Cipher, Kind, Priority, Subject};

/// Comparing with other generators.
#[derive(Clone, Debug, Args)]
pub struct VerifyArgs {
    /// The system whose tunnel all of them use.
    #[arg(long, value_enum, default_value = "vpnd")]
    pub vpn: Kind,
    /// Its cipher.
    #[arg(long, value_enum, default_value = "auto")]
    pub cipher: Cipher,
    /// Its CPU priority: what it takes by itself, or that of any other process.
    #[arg(long, value_enum, default_value = "own")]
    pub priority: Priority,
    /// Streams at once.
    #[arg(short = 'P', long = "parallel", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub streams: u32,
    /// Seconds of each measurement.
    #[arg(short = 't', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// How often each generator measures; they take turns.
    #[arg(long, default_value_t = super::ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Bytes per send call. K and M are understood.
    #[arg(short = 'l', long, default_value = "128K", value_parser = size)]
    pub length: u32,
    /// Bytes of the socket buffers; the kernel's by default. K and M are understood.
    #[arg(short = 'w', long, value_parser = size)]
    pub window: Option<u32>,
    /// Congestion control of all generators.
    #[arg(short = 'C', long, default_value_t)]
    pub congestion: CongestionControl,
    /// IP version inside.
    #[arg(long, value_enum, default_value = "4")]
    pub ip: IpVersion,
    #[command(flatten)]
    pub programs: super::ProgramArgs,
    #[command(flatten, next_help_heading = "Emulated links")]
    pub link: super::link::LinkArgs,
    /// Print JSON instead of the table.
    #[arg(short = 'J', long)]
    pub json: bool,
    /// No progress on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

impl VerifyArgs {
    pub fn plan(&self) -> VerifyPlan {
        let (emulation, congestion) = (self.link.emulation(), self.congestion);
        VerifyPlan {
            subject: Subject { priority: self.priority, ..Subject::new(self.vpn, self.cipher) },
            programs: self.programs.programs(),
            links: LinkSettings { emulation, congestion, ..LinkSettings::default() },
            ip: self.ip.number(),
            streams: self.streams,
            seconds: self.seconds,
            write_bytes: self.length,
            window: self.window,
            repeats: self.repeat,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::{Cli, Command};

    #[test]
    fn a_stream_of_five_seconds_in_five_rounds_unless_another_is_wanted() {
        let plan = |line: &str| match Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command) {
            Ok(Some(Command::Verify(args))) => args.plan(),
            other => panic!("{other:?}"),
        };
        let usual = plan("trafficspeed verify");
        assert_eq!((usual.streams, usual.seconds, usual.repeats), (1, 5, 5));
        assert_eq!((usual.write_bytes, usual.window, usual.ip), (128 << 10, None, 4));
        let other = plan("trafficspeed verify --vpn none -P 4 -w 1M -C reno --program iperf3=/opt/iperf3");
        assert_eq!((other.streams, other.window), (4, Some(1 << 20)));
        assert_eq!(plan("trafficspeed verify --priority same").subject.label(), "vpnd, no priority");
        assert_eq!(other.links.congestion.name(), "reno");
    }
}
