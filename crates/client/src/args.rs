//! The command lines of `vpnd connect` and `vpnd cleanup`.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Args;
use vpnd_crypto::{Preference, Suite};
use vpnd_proto::wire::MAX_CLIENT_LANES;

use vpnd_config::JOURNAL_DIRECTORY;
use vpnd_sys::logging::LogFormat;
use vpnd_sys::sandbox::SandboxMode;

/// Default directory of the client's device keys.
pub const DEFAULT_CLIENT_STATE: &str = "/var/lib/vpnd";

/// Arguments of `vpnd connect`.
#[derive(Args, Debug)]
pub struct ConnectArgs {
    /// The profile, as written by `vpnd user add --profile-out`
    pub profile: PathBuf,
    /// The name to log in with [default: the profile's, or a prompt]
    #[arg(long, value_name = "NAME", value_parser = user_name)]
    pub login: Option<String>,
    /// File with the password in its first line, readable by its owner alone
    #[arg(long, value_name = "FILE", conflicts_with = "password_fd")]
    pub credentials: Option<PathBuf>,
    /// Read the password from this file descriptor, up to the first line break
    #[arg(long, value_name = "N")]
    pub password_fd: Option<RawFd>,
    /// Log in in a browser, on the gateway's web pages [default: as the profile says]
    #[arg(long, conflicts_with_all = ["credentials", "password_fd"])]
    pub browser: bool,
    /// Laboratory only: allow suites that do not protect traffic. Both ends need this switch
    #[arg(long)]
    pub insecure_lab: bool,
    /// Use this cipher suite and no other
    #[arg(long, value_name = "S")]
    pub suite: Option<Suite>,
    /// Threads of the data path, each with its own UDP port, 1 to 16 [default: the profile's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=MAX_CLIENT_LANES as i64))]
    pub lanes: Option<u8>,
    /// Copy the DSCP of packets to the outer header, so that the path can prefer some; it then sees
    /// the kind of traffic inside
    #[arg(long)]
    pub copy_dscp: bool,
    /// Implementation of the ciphers: auto takes the fastest; library the fastest that others
    /// wrote; or ring, aws-lc, rustcrypto, or vaes or ifma, which are our own
    #[arg(long, default_value = "auto", value_name = "B")]
    pub backend: Preference,
    /// End with status 4 after this many seconds in a row without a session [default: try forever]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub give_up: Option<u32>,
    /// Name of the TUN device
    #[arg(long, default_value = "vpn0", value_parser = interface_name, value_name = "NAME")]
    pub tun: String,
    /// Leave the machine's DNS as it is
    #[arg(long)]
    pub no_dns: bool,
    /// Leave the machine's routes as they are
    #[arg(long)]
    pub no_routes: bool,
    /// Directory of the keys by which the gateway recognises this device, and of the addresses that it has sent
    #[arg(long, default_value = DEFAULT_CLIENT_STATE, value_name = "D")]
    pub state_dir: PathBuf,
    /// Directory of the journal of changes to this machine; only this user may write there
    #[arg(long, default_value = JOURNAL_DIRECTORY, value_name = "D")]
    pub journal_dir: PathBuf,
    /// Whether the process that reads from the network is sandboxed
    #[arg(long, value_enum, default_value = "on", value_name = "MODE")]
    pub sandbox: SandboxMode,
    /// The user that this process runs as [default: vpnd, or an unused number]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Started by the client service, whose channel is on standard input
    #[arg(long, hide = true, conflicts_with_all = ["credentials", "password_fd", "login", "browser"])]
    pub for_service: bool,
    /// Format of log lines
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Log more than warnings and whether it is connected, with times and modules; twice: for
    /// developers
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// Arguments of `vpnd cleanup`.
#[derive(Args, Debug)]
pub struct CleanupArgs {
    /// Directory of the journal of changes to this machine; only this user may write there
    #[arg(long, default_value = JOURNAL_DIRECTORY, value_name = "D")]
    pub journal_dir: PathBuf,
}

pub fn user_name(text: &str) -> Result<String, String> {
    if vpnd_config::profile::is_login_name(text) {
        Ok(text.to_owned())
    } else {
        Err(format!("a user's name has {}", vpnd_config::profile::LOGIN_NAME_RULE))
    }
}

pub fn interface_name(text: &str) -> Result<String, String> {
    if vpnd_sys::text::is_interface_name(text) {
        Ok(text.to_owned())
    } else {
        Err("an interface name has 1 to 15 letters, digits, '-', '_' or '.'".to_owned())
    }
}
