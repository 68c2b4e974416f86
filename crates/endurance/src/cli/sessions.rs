//! The command line of `vpnd-endurance sessions`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::experiment::devices::MOST_OF_USER;
use crate::experiment::sessions::{Restart, SessionsPlan, Traffic};
use trafficspeed::system::Programs;

/// Most sessions of one measurement: as many inner addresses as the lab's gateway has.
const MAX_SESSIONS: i64 = 60_000;
/// Most processes that hold sessions.
const MAX_PROCESSES: i64 = 64;

/// Opening many sessions.
#[derive(Debug, Args)]
pub struct SessionsArgs {
    /// Sessions to open.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=MAX_SESSIONS))]
    pub count: u32,
    /// Processes that hold them, each in its own namespace; by default one for 5,000 sessions.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MAX_PROCESSES))]
    pub processes: Option<u32>,
    /// Users that share the sessions; the lab's gateway allows each of them as many as that takes.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub users: u32,
    /// Logins that are under way at once; the gateway lets a limited number wait for their password
    /// to be checked.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub at_once: u32,
    /// Sessions that send a packet to the gateway each second and expect an answer.
    #[arg(long, default_value_t = 0)]
    pub talkers: u32,
    /// The sessions are WireGuard devices, in the gateway's store before the first handshake; users
    /// are as many as these need.
    #[arg(long, conflicts_with = "talkers")]
    pub wireguard: bool,
    /// Restarts of the gateway, in this order, once all sessions are up.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "kill,clean")]
    pub restart: Vec<RestartArg>,
    /// Seconds to leave the sessions alone before that: keys that carried packets are renewed once,
    /// after two minutes, and are gone after three more.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub settle: u32,
    /// Seconds to watch the sessions doing nothing.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub idle: u32,
    /// Seconds after which sessions that are not up are given up.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub patience: u32,
    /// Measure a pair of real clients alone, and then while these sessions are up.
    #[arg(long)]
    pub with_traffic: bool,
    /// Seconds of each of these measurements.
    #[arg(short = 't', long, default_value_t = 10.0, requires = "with_traffic", value_parser = trafficspeed::cli::seconds)]
    pub seconds: f64,
    /// How often the pair is measured, each time before and after.
    #[arg(long, default_value_t = 3, requires = "with_traffic", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    /// The `vpnd` program; by default the one next to this one, then the one in PATH.
    #[arg(long, value_name = "PATH")]
    pub vpnd: Option<PathBuf>,
    /// Where `vpnd` is, as vpnd=PATH, as other commands take it.
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = trafficspeed::cli::program)]
    pub named_programs: Vec<(String, PathBuf)>,
    /// Write the JSON report to this file.
    #[arg(long, value_name = "FILE")]
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

/// How a gateway is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RestartArg {
    /// Not at all.
    None,
    /// kill -9: the clients get no notice.
    Kill,
    /// In order: the gateway announces to the clients that it goes down.
    Clean,
    /// `vpnd server --upgrade`, while some sessions are watched closely: sessions go on.
    Upgrade,
}

/// One process of many sessions.
#[derive(Debug, Args)]
pub struct SwarmArgs {
    /// The process that started it.
    #[arg(long)]
    pub parent: u32,
    /// The namespace to work in.
    #[arg(long)]
    pub netns: String,
}

impl SessionsArgs {
    pub fn plan(&self) -> SessionsPlan {
        let restarts = self.restart.iter().filter_map(|restart| match restart {
            RestartArg::None => None,
            RestartArg::Kill => Some(Restart::Kill),
            RestartArg::Clean => Some(Restart::Clean),
            RestartArg::Upgrade => Some(Restart::Upgrade),
        });
        let traffic = Traffic { seconds: self.seconds, repeats: self.repeat };
        SessionsPlan {
            count: self.count,
            processes: self.processes.unwrap_or(self.count.div_ceil(5_000)).min(self.count),
            users: if self.wireguard {
                self.users.max(self.count.div_ceil(MOST_OF_USER))
            } else {
                self.users.min(self.count)
            },
            wireguard: self.wireguard,
            at_once: self.at_once,
            talkers: self.talkers.min(self.count),
            restarts: restarts.collect(),
            settle: Duration::from_secs(self.settle.into()),
            idle: Duration::from_secs(self.idle.into()),
            login_timeout: Duration::from_secs(self.patience.into()),
            traffic: self.with_traffic.then_some(traffic),
            programs: self
                .vpnd
                .iter()
                .fold(trafficspeed::cli::named(Programs::default(), &self.named_programs), |all, path| {
                    all.with("vpnd", path.clone())
                }),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    fn plan(line: &str) -> Result<SessionsPlan, String> {
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        match cli.command {
            Command::Sessions(args) => Ok(args.plan()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn numbers_that_cannot_be_are_trimmed_or_refused() {
        let few = plan("vpnd-endurance sessions --count 3 --processes 9 --talkers 7").unwrap();
        assert_eq!((few.processes, few.users, few.talkers), (3, 3, 3));
        assert_eq!(few.restarts, [Restart::Kill, Restart::Clean]);
        assert!(few.traffic.is_none());
        let upgraded = plan("vpnd-endurance sessions --restart upgrade,upgrade").unwrap();
        assert_eq!(upgraded.restarts, [Restart::Upgrade; 2]);
        let many = plan("vpnd-endurance sessions --count 12000 --restart none").unwrap();
        assert_eq!((many.processes, many.restarts.len()), (3, 0));
        let devices = plan("vpnd-endurance sessions --count 5000 --wireguard").unwrap();
        assert!(devices.wireguard && devices.users == 100);
        assert!(plan("vpnd-endurance sessions --wireguard --talkers 7").is_err(), "devices say nothing");
        assert!(plan("vpnd-endurance sessions --count 0").is_err());
        assert!(plan("vpnd-endurance sessions --count 70000").is_err());
        assert!(plan("vpnd-endurance sessions -t 5").is_err(), "seconds of what?");
        assert!(plan("vpnd-endurance sessions --with-traffic -t 5").unwrap().traffic.is_some());
    }
}
