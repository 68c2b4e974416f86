//! Arguments of `vpnd policy`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::commands::policy::{Service, Target};
use vpnd_config::DEFAULT_CONFIG;

/// The commands of `vpnd policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show whether a user's client may reach a destination, or a host the client, and which rule
    /// decides. Exit code 0: it may, 1: it may not
    Test(PolicyTestArgs),
}

/// Arguments of `vpnd policy test`.
#[derive(Args, Debug)]
pub struct PolicyTestArgs {
    /// The user whose client sends or, with --from, is sent to. Without --groups and --source,
    /// groups and source are taken from the gateway's store
    #[arg(long, value_name = "NAME")]
    pub user: String,
    /// The user's groups, in place of those in the store
    #[arg(long, value_name = "G", value_delimiter = ',')]
    pub groups: Vec<String>,
    /// The user's source, in place of that in the store [default with --groups: local]
    #[arg(long, value_name = "S")]
    pub source: Option<String>,
    /// Destination: 10.20.1.3:22/tcp, [2001:db8::1]:53/udp, 10.20.1.3 (a ping),
    /// user:bob:22/tcp (another user's client)
    #[arg(long, value_name = "TARGET", required_unless_present = "from", conflicts_with = "from")]
    pub to: Option<Target>,
    /// In place of --to, a host behind the gateway that opens a connection to the user's client
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<IpAddr>,
    /// The port of the client that the host sends to: 22/tcp, 53/udp [default: it pings]
    #[arg(long, value_name = "PORT", requires = "from", conflicts_with = "to")]
    pub to_port: Option<Service>,
    /// The configuration, in force or planned
    #[arg(long, default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// Print the decision as JSON
    #[arg(long)]
    pub json: bool,
}
