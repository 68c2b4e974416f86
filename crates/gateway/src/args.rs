//! The command line of `vpnd server`.

use std::path::PathBuf;

use clap::Args;

use vpnd_config::DEFAULT_CONFIG;
use vpnd_sys::logging::LogFormat;
use vpnd_sys::sandbox::SandboxMode;

/// Arguments of `vpnd server`.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// The configuration
    #[arg(long, default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// Let the program that is installed now go on in place of the gateway that runs. All sessions go on, and traffic stands
    /// still for a moment. If that can't be, the running one goes on and says why
    #[arg(long, conflicts_with_all = ["insecure_lab", "sandbox", "log_format"])]
    pub upgrade: bool,
    /// Take back what a gateway that has ended leaves on this machine for its next start: firewall, forwarding and the
    /// routes that hold back packets for clients
    #[arg(long, conflicts_with_all = ["upgrade", "insecure_lab", "sandbox", "log_format"])]
    pub teardown: bool,
    /// Laboratory only: allow suites that do not protect traffic. Both ends need this switch
    #[arg(long)]
    pub insecure_lab: bool,
    /// Whether processes are shut in [default: as configured]
    #[arg(long, value_enum, value_name = "MODE")]
    pub sandbox: Option<SandboxMode>,
    /// Format of log lines [default: as configured]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
}
