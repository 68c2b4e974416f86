//! The command line of `vpnd-endurance wireguard`.

use std::path::PathBuf;

use clap::Args;
use vpnd_swarm::load::{Direction, MOST_BURST};

use super::capacity::DirectionArg;
use crate::experiment::wireguard::WireGuardPlan;
use trafficspeed::lab::LinkSettings;
use trafficspeed::lab::cpu_limit::CpuLimit;
use trafficspeed::system::{Cipher, Kind, Priority, Programs, Subject};

/// Clients whose ports and devices a lab has room for.
const MOST_CLIENTS: i64 = 1_000;

/// Measures what WireGuard servers carry for clients that cost little.
#[derive(Debug, Args)]
pub struct WireGuardArgs {
    /// The servers; the first is measured twice in each round.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "vpnd,wireguard-go-tailscale")]
    pub servers: Vec<Kind>,
    /// Active clients.
    #[arg(long, value_delimiter = ',', default_value = "8",
        value_parser = clap::value_parser!(u32).range(1..=MOST_CLIENTS))]
    pub clients: Vec<u32>,
    /// Direction: clients to a socket on the server's machine, which stands for the campus,
    /// or to each other through the server; then their number is even.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "up")]
    pub direction: Vec<DirectionArg>,
    /// Bytes of the inner packets; by default as many as the tunnel takes.
    #[arg(long, value_parser = clap::value_parser!(u16).range(100..=65_000))]
    pub packet: Option<u16>,
    /// Packets that a client sends at once.
    #[arg(long, default_value_t = 44, value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_BURST)))]
    pub burst: u16,
    /// KiB that are on their way at most over all clients.
    #[arg(long, default_value_t = 2_048, value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    pub in_flight: u32,
    /// The servers' scheduling priority: what each takes by itself, and that of any process.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "own,same")]
    pub priority: Vec<Priority>,
    /// Limit what the server's programs use of the CPU, in cores such as 0.5.
    #[arg(long, value_name = "CORES")]
    pub gateway_cpu: Option<CpuLimit>,
    /// Seconds of each measurement.
    #[arg(short = 't', long, default_value_t = 3.0, value_parser = trafficspeed::cli::seconds)]
    pub seconds: f64,
    /// Seconds before it that don't count.
    #[arg(short = 'O', long, default_value_t = 1.0, value_parser = trafficspeed::cli::seconds)]
    pub omit: f64,
    /// How often each server is measured, in rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    /// Where a program is, for example vpnd=PATH or wireguard-go=PATH; may be given again.
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = trafficspeed::cli::program)]
    pub programs: Vec<(String, PathBuf)>,
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

impl WireGuardArgs {
    /// # Errors
    /// In words, for traffic that clients of WireGuard are not made to send.
    pub fn plan(&self) -> Result<WireGuardPlan, String> {
        let directions: Vec<Direction> = self.direction.iter().map(|&direction| direction.into()).collect();
        if directions.iter().any(|direction| !matches!(direction, Direction::Up | Direction::Pairs)) {
            return Err("--direction: clients of WireGuard send up or in pairs".into());
        }
        let odd = self.clients.iter().find(|count| !count.is_multiple_of(2));
        if let Some(odd) = odd.filter(|_| directions.contains(&Direction::Pairs)) {
            return Err(format!("{odd} can't be split into pairs; give even numbers"));
        }
        let servers: Vec<Subject> =
            self.servers.iter().map(|kind| Subject::new(*kind, Cipher::Auto)).collect();
        Ok(WireGuardPlan {
            servers: Subject::with_priorities(&servers, &self.priority),
            clients: self.clients.clone(),
            directions,
            packet: self.packet,
            burst: self.burst,
            in_flight: u64::from(self.in_flight) * 1_024,
            seconds: self.seconds,
            warmup_seconds: self.omit,
            repeats: self.repeat,
            links: LinkSettings { gateway_cpu: self.gateway_cpu, ..LinkSettings::default() },
            programs: trafficspeed::cli::named(Programs::default(), &self.programs),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    fn plan(line: &str) -> Result<WireGuardPlan, String> {
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        match cli.command {
            Command::Wireguard(args) => args.plan(),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn servers_take_turns_and_pairs_are_even() {
        let labels = |line: &str| -> Vec<String> {
            plan(line).unwrap().servers.into_iter().map(Subject::label).collect()
        };
        let usual = labels("vpnd-endurance wireguard");
        assert_eq!(usual, ["vpnd", "vpnd, no priority", "wireguard-go-tailscale"]);
        assert_eq!(plan("vpnd-endurance wireguard --clients 1,3").unwrap().clients, [1, 3]);
        for (line, why) in
            [("--clients 3 --direction up,pairs", "3 can't be split"), ("--direction down", "up or in pairs")]
        {
            let refused = plan(&format!("vpnd-endurance wireguard {line}")).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let same = labels("vpnd-endurance wireguard --priority same");
        assert_eq!(same, ["vpnd, no priority", "wireguard-go-tailscale"]);
    }
}
