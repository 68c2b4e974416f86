//! The command line of `vpnd-endurance soak`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::experiment::soak::SoakPlan;
use trafficspeed::system::Programs;

/// Hours of churn.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// Hours from the moment in which all sessions are up; may be a fraction.
    #[arg(long, default_value_t = 2.0, value_parser = hours)]
    pub hours: f64,
    /// Sessions.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub clients: u32,
    /// Processes that hold them, each in its own namespace; by default one for 125 sessions,
    /// two at least.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub processes: Option<u32>,
    /// Users that share the sessions.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub users: u32,
    /// Sessions that send a packet to the gateway each second and miss its answer; by default a
    /// tenth.
    #[arg(long)]
    pub talkers: Option<u32>,
    /// Seconds at the beginning that are not judged; by default an eighth of the time, half an hour
    /// at most.
    #[arg(long)]
    pub warm_up: Option<u32>,
    /// Seconds between two looks at the gateway.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub sample: u32,
    /// Seconds between two actions of one session (leave, move, lose its connection), on average.
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u32).range(2..=86_400))]
    pub every: u32,
    /// Seconds between two kills (`kill -9`) of a process with all its sessions.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(2..=86_400))]
    pub kill_every: u32,
    /// Age in seconds at which keys that are used are replaced.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=120))]
    pub rekey_after: u32,
    /// Seconds that all sessions may take to come up.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub patience: u32,
    /// Decides which session acts when and how; by default another one each time. It is printed.
    #[arg(long)]
    pub seed: Option<u64>,
    /// The directory for soak.csv, soak.json, soak.svg (memory), soak-descriptors.svg and
    /// soak-sessions.svg.
    #[arg(long, value_name = "DIR", default_value = "results/soak")]
    pub out: PathBuf,
    /// Replace the results of an earlier run there.
    #[arg(long)]
    pub force: bool,
    /// The `vpnd` program; by default the one next to this one, then the one in PATH.
    #[arg(long, value_name = "PATH")]
    pub vpnd: Option<PathBuf>,
    /// No progress on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

impl SoakArgs {
    pub fn plan(&self) -> SoakPlan {
        let time = Duration::from_secs_f64(self.hours * 3600.0);
        let most = Duration::from_secs(1800);
        SoakPlan {
            clients: self.clients,
            processes: self.processes.unwrap_or(self.clients.div_ceil(125).clamp(2, 64)).min(self.clients),
            users: self.users.min(self.clients),
            talkers: self.talkers.unwrap_or(self.clients.div_ceil(10)).min(self.clients),
            time,
            warm_up: self.warm_up.map_or((time / 8).min(most), |seconds| Duration::from_secs(seconds.into())),
            sample: Duration::from_secs(self.sample.into()),
            every: Duration::from_secs(self.every.into()),
            kill_every: Duration::from_secs(self.kill_every.into()),
            rekey_after: Duration::from_secs(self.rekey_after.into()),
            login_timeout: Duration::from_secs(self.patience.into()),
            seed: self.seed.unwrap_or_else(rand::random),
            out: self.out.clone(),
            programs: self.vpnd.iter().fold(Programs::default(), |all, path| all.with("vpnd", path.clone())),
        }
    }
}

fn hours(text: &str) -> Result<f64, String> {
    let hours = text.parse::<f64>().ok().filter(|hours| (0.001..=1_000.0).contains(hours));
    hours.ok_or_else(|| "give hours from 0.001 to 1000".into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    fn plan(line: &str) -> Result<SoakPlan, String> {
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        match cli.command {
            Command::Soak(args) => Ok(args.plan()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn defaults_of_a_soak_follow_from_its_options() {
        let two_hours = plan("vpnd-endurance soak").unwrap();
        assert_eq!((two_hours.clients, two_hours.processes, two_hours.talkers), (1_000, 8, 100));
        assert_eq!((two_hours.time.as_secs(), two_hours.warm_up.as_secs()), (7_200, 900));
        assert_ne!(two_hours.seed, plan("vpnd-endurance soak").unwrap().seed);
        let few =
            plan("vpnd-endurance soak --hours 0.01 --clients 3 --talkers 9 --seed 5 --warm-up 7").unwrap();
        assert_eq!((few.processes, few.users, few.talkers, few.seed), (2, 3, 3, 5));
        assert_eq!((few.time.as_secs(), few.warm_up.as_secs()), (36, 7));
        for refused in ["--hours 0", "--hours x", "--hours 1e9", "--clients 0", "--rekey-after 121"] {
            assert!(plan(&format!("vpnd-endurance soak {refused}")).is_err(), "{refused}");
        }
    }
}
