//! The command lines of `vpnd connect` and `vpnd cleanup`.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Args;
use vpnd_config::profile::KillSwitchMode;
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
    /// Let packets leave this machine through the tunnel only, beginning before the first one. on:
    /// until the client ends in order; persistent: also after SIGTERM and a restart of the machine.
    /// Ctrl-C or `vpnd cleanup` ends either [default: the profile's]
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub kill_switch: Option<KillSwitchMode>,
    /// Let hosts of directly connected networks pass the kill switch, if these are private and not
    /// wider than /16 (IPv6: unique local, /48)
    #[arg(long)]
    pub kill_switch_allow_local: bool,
    /// TCP ports of this machine that others reach through the kill switch, such as 22; or none
    #[arg(long, value_name = "PORTS", value_parser = inbound_ports)]
    pub kill_switch_inbound: Option<InboundPorts>,
    /// Directory of the keys by which the gateway recognises this device, and of the addresses that
    /// it has sent
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
    /// Started by the client service, whose channel is on standard input and names profile, user
    /// and directory of keys: every user of the machine sees arguments
    #[arg(long, hide = true, conflicts_with_all = ["credentials", "password_fd", "login", "browser"])]
    pub for_service: bool,
    /// The user for whom the client runs: root, without the client service.
    #[arg(skip)]
    pub on_behalf_of: u32,
    /// Whether the person can open a browser on this machine.
    #[arg(skip)]
    pub has_screen: bool,
    /// The peers of the sessions by which the person works on this machine.
    #[arg(skip)]
    pub sessions: Vec<SocketAddr>,
    /// Format of log lines
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Log more than warnings and whether it is connected, with times and modules; twice: for
    /// developers
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// TCP ports of this machine that stay reachable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboundPorts(pub Vec<u16>);

/// Arguments of `vpnd cleanup`.
#[derive(Args, Debug)]
pub struct CleanupArgs {
    /// Leave a kill switch on, for the client's next start
    #[arg(long)]
    pub keep_kill_switch: bool,
    /// Started by the client service: ends the kill switch that a client of the user of this number
    /// has left, and nothing else
    #[arg(long, hide = true, value_name = "UID", conflicts_with = "keep_kill_switch")]
    pub kill_switch_of: Option<u32>,
    /// Directory of the journal of changes to this machine; only this user may write there
    #[arg(long, default_value = JOURNAL_DIRECTORY, value_name = "D")]
    pub journal_dir: PathBuf,
}

/// Arguments of `vpnd kill-switch`, for the unit of that name.
#[derive(Args, Debug)]
pub struct KillSwitchArgs {
    /// Directory of the journal of changes to this machine; only this user may write there
    #[arg(long, default_value = JOURNAL_DIRECTORY, value_name = "D")]
    pub journal_dir: PathBuf,
}

fn inbound_ports(text: &str) -> Result<InboundPorts, String> {
    if text == "none" {
        return Ok(InboundPorts::default());
    }
    let ports = text.split(',').map(|port| port.trim().parse::<NonZeroU16>().map(NonZeroU16::get));
    let ports = ports.collect::<Result<_, _>>().map(InboundPorts);
    ports.map_err(|_| "TCP ports are numbers with commas in between, or the word none".to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_or_none() {
        assert_eq!(inbound_ports("22"), Ok(InboundPorts(vec![22])));
        assert_eq!(inbound_ports("22, 443"), Ok(InboundPorts(vec![22, 443])));
        assert_eq!(inbound_ports("none"), Ok(InboundPorts::default()));
        for wrong in ["", "0", "ssh", "65536", "22,", "-1"] {
            assert!(inbound_ports(wrong).is_err(), "{wrong:?}");
        }
    }
}
