//! The command line of `vpnd server`.

use std::path::PathBuf;

use clap::Args;

use vpnd_config::DEFAULT_CONFIG;
use vpnd_sys::logging::LogFormat;
use vpnd_sys::sandbox::SandboxMode;

/// Arguments of `vpnd server`.
#[derive(Args, Clone, Debug)]
pub struct ServerArgs {
    /// The configuration
    #[arg(long, default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// Replace the running gateway by the program that is installed now. Sessions continue after a
    /// short pause of traffic. If that fails, the running gateway continues and says why
    #[arg(long, conflicts_with_all = ["insecure_lab", "sandbox", "log_format"])]
    pub upgrade: bool,
    /// Undo what a stopped gateway leaves in place for its next start: firewall, forwarding and the
    /// routes that reject packets for clients
    #[arg(long, conflicts_with_all = ["upgrade", "insecure_lab", "sandbox", "log_format"])]
    pub teardown: bool,
    /// With --teardown: undo that for all gateways whose undo journals are in this directory,
    /// without a configuration. A gateway that runs is left alone
    #[arg(long, value_name = "D", requires = "teardown", conflicts_with = "config")]
    pub journal_dir: Option<PathBuf>,
    /// Laboratory only: allow suites that do not protect traffic. Both ends need this switch
    #[arg(long)]
    pub insecure_lab: bool,
    /// Whether processes are sandboxed [default: as configured]
    #[arg(long, value_enum, value_name = "MODE")]
    pub sandbox: Option<SandboxMode>,
    /// Format of log lines [default: as configured]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
}
