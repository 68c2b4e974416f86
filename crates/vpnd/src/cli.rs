//! The command line: commands, arguments and their help.
//!
//! Invariants: no secret is ever an argument, because every user of a machine can read those; a
//! secret comes from a prompt, a file or a file descriptor. This module only describes; the
//! commands live in separate modules.

mod audit;
mod backup;
mod device;
mod drain;
mod migrate;
mod policy;
mod reason;
mod source;
mod store;
mod token;
mod user;

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ipnet::{Ipv4Net, Ipv6Net};

use crate::commands::users::revoke::Fingerprint;
pub use audit::{AuditCommand, AuditExportArgs, AuditWhoisArgs, ExportFormat};
pub use backup::{BackupArgs, RestoreArgs};
pub use device::{DeviceAddArgs, DeviceCommand, DeviceListArgs, DeviceRemoveArgs, DeviceRenewArgs};
pub use drain::DrainArgs;
pub use migrate::{MigrateCommand, MigrateOpenvpnArgs};
pub use policy::{PolicyCommand, PolicyTestArgs};
pub use reason::ReasonArgs;
pub use source::{SourceCommand, SourceConfirmArgs, SourceTestArgs};
pub use store::{MoveTo, StoreAdoptArgs, StoreCommand, StoreMigrateArgs};
pub use token::{TokenAddArgs, TokenCommand, TokenListArgs, TokenRemoveArgs};
pub use user::{
    UserChangeArgs, UserDevicesArgs, UserExportArgs, UserImportArgs, UserModifyArgs, UserShowArgs,
};
use vpnd_client::args::{CleanupArgs, ConnectArgs, KillSwitchArgs, user_name};
use vpnd_client::user_messages::DEFAULT_SOCKET;
use vpnd_client_service::captive_portal::CaptivePortalArgs;
use vpnd_client_service::service::ServiceArgs;
use vpnd_client_service::user_commands::{
    ForgetArgs, ImportArgs, ListArgs, LogArgs, OpenPortalArgs, OwnPasswordArgs, OwnTunnelsArgs,
    ServiceSocket, UpArgs,
};
use vpnd_config::DEFAULT_CONFIG;
use vpnd_gateway::args::ServerArgs;
use vpnd_sys::date::Expiry;

/// The version that `--version` prints: the package's if one is being built.
const VERSION: &str = match option_env!("VPND_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// A fast, safe VPN in user space: gateway, client and admin tool.
#[derive(Debug, Parser)]
#[command(name = "vpnd", version = VERSION, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `vpnd`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a CA, a certificate and a commented configuration for a new gateway
    Init(InitArgs),
    /// Check a gateway's configuration and everything it names, and change nothing
    Check(CheckArgs),
    /// Test everything that a gateway needs of this machine and its network, and say what to do
    Doctor(DoctorArgs),
    /// Back up a gateway, also while it runs, into one file: configuration, certificates, keys,
    /// users
    Backup(BackupArgs),
    /// Put a backup in place, on this machine or a new one
    Restore(RestoreArgs),
    /// Move the users of a gateway between the embedded store and a PostgreSQL database
    #[command(subcommand)]
    Store(StoreCommand),
    /// Give a gateway a new certificate for the names and the key it has. Gateways with their CA's
    /// key do so by themselves
    Renew(RenewArgs),
    /// Run the gateway
    Server(ServerArgs),
    /// Manage the users of a gateway
    #[command(subcommand)]
    User(UserCommand),
    /// Manage devices of users that connect with a stock WireGuard client
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Manage tokens by which programs use the API of [portal]
    #[command(subcommand)]
    Token(TokenCommand),
    /// Test which packets a gateway's configuration permits
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Test the directories and RADIUS servers that users are looked up in
    #[command(subcommand)]
    Source(SourceCommand),
    /// Translate the configuration of another VPN
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Ask who had an address, and export what the gateway has recorded. Each question is recorded,
    /// too
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Revoke a client certificate, and end its user's sessions
    Revoke(RevokeArgs),
    /// Connect to a gateway
    Connect(ConnectArgs),
    /// Connect without root, by a profile of this machine, through the client service
    Up(UpArgs),
    /// End this user's tunnels
    Down(OwnTunnelsArgs),
    /// List the profiles of this machine, and this user's own
    List(ListArgs),
    /// Add a profile of this user, for a gateway that a profile of this machine names; only its
    /// [user] counts. As root: add one for all users
    Import(ImportArgs),
    /// Remove a profile that this user has imported
    Forget(ForgetArgs),
    /// Show this user's password page of the gateway, and open it where there is a screen.
    /// Passwords are changed nowhere else
    Password(OwnPasswordArgs),
    /// Show the messages about this user's tunnels
    Log(LogArgs),
    /// Open the network's login page in a separate browser, past a kill switch or a full tunnel
    CaptivePortal(OpenPortalArgs),
    /// Run the service through which users connect without root
    ClientService(ServiceArgs),
    /// Run the service that opens login pages of networks for users; for the unit
    /// vpnd-captive-portal
    CaptivePortalService(CaptivePortalArgs),
    /// Test what this network lets through to a gateway, and say what to do
    Netcheck(NetcheckArgs),
    /// Undo what a client that was killed left behind: routes, rules, DNS, the kill switch
    Cleanup(CleanupArgs),
    /// Keep a persistent kill switch in force while no client does, also after a restart of the
    /// machine; for the unit vpnd-kill-switch
    KillSwitch(KillSwitchArgs),
    /// Show a running gateway: sessions, offloads, counters; on a client: this user's tunnels
    Status(StatusArgs),
    /// End sessions: all of a user, or one by its id
    Kick(KickArgs),
    /// Refuse logins, ask clients to use another gateway, and wait until this one is empty
    Drain(DrainArgs),
    /// Let a running gateway read its configuration again
    Reload(AdminArgs),
    /// One of the processes that `server` and `connect` start by themselves
    #[command(name = "part", hide = true)]
    Child { role: vpnd_ipc::child::ChildRole },
    /// Print the completions of a shell
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    Man {
        /// An existing directory, such as /usr/local/share/man/man1.
        dir: PathBuf,
    },
}

/// Arguments of `vpnd init`.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Directory for the configuration, keys and state; made if it is missing
    #[arg(long)]
    pub dir: PathBuf,
    /// Name or address by which clients reach the gateway; goes into its certificate. May be
    /// repeated
    #[arg(long, required = true, value_name = "ADDRESS_OR_DNSNAME")]
    pub name: Vec<String>,
    /// Outer UDP address and port to listen on
    #[arg(long, default_value = "[::]:4433")]
    pub listen: std::net::SocketAddr,
    /// Inner IPv4 addresses
    #[arg(long, default_value = "10.86.0.0/16", value_name = "NETWORK")]
    pub pool_v4: Ipv4Net,
    /// Inner IPv6 addresses [default: a random /64 of the private range fd00::/8]
    #[arg(long, value_name = "NETWORK")]
    pub pool_v6: Option<Ipv6Net>,
    /// Replace files that exist: all client profiles made before stop working. The users are kept
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `vpnd renew`.
#[derive(Args, Debug)]
#[command(override_usage = "vpnd renew [--config FILE] [--ca-key FILE] [--days DAYS] [--new-key]\n       \
                                vpnd renew --certificate FILE --ca FILE --ca-key FILE [--days DAYS]")]
pub struct RenewArgs {
    /// The gateway's configuration, which names certificate, key and CA
    #[arg(long, default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// The CA's key, if it is elsewhere than the configuration says
    #[arg(long, value_name = "FILE")]
    pub ca_key: Option<PathBuf>,
    /// Without a configuration, where the CA's key is: the certificate to renew, in its place
    #[arg(long, value_name = "FILE", requires_all = ["ca", "ca_key"], conflicts_with = "new_key")]
    pub certificate: Option<PathBuf>,
    /// The CA of --certificate
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub ca: Option<PathBuf>,
    /// Validity of the new certificate in days [default: as configured, or 30]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=825))]
    pub days: Option<u32>,
    /// Make a new key, too. Clients pin the CA and do not notice
    #[arg(long)]
    pub new_key: bool,
}

/// Arguments of `vpnd check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// The configuration to check
    #[arg(default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// The gateway will be started with this switch: suites for the laboratory are not a mistake
    #[arg(long)]
    pub insecure_lab: bool,
}

/// Arguments of `vpnd doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// The gateway's configuration
    #[arg(long, default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `vpnd netcheck`.
#[derive(Args, Debug)]
pub struct NetcheckArgs {
    /// The profile of the gateway, a file or a name that `vpnd list` shows; without one only the
    /// network itself is looked at
    pub profile: Option<PathBuf>,
    /// Also see whether an address translator forgets this machine in a silence of 27 s
    #[arg(long)]
    pub silence: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub service: ServiceSocket,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `vpnd user …`.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Add a user and print what they need to connect
    Add(UserAddArgs),
    /// List the users
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        #[expect(missing_docs, reason = "documented at the type")]
        store: StoreArgs,
    },
    /// Show a user on one page: rights, sessions, devices, and the last refused logins
    Show(UserShowArgs),
    /// Refuse a user from now on and end their sessions; `enable` undoes it
    Disable(UserArgs),
    /// Let a disabled user in again
    Enable(UserArgs),
    /// Remove a user for good and end their sessions
    Remove(UserArgs),
    /// Give a user a new password and end their sessions
    Passwd(UserPasswdArgs),
    /// Change groups, end date, sponsor, note or second factor of a user. Sessions go on, by the
    /// rules for the new groups
    Modify(UserModifyArgs),
    /// Add users from a file, all of them or none, and list every mistake with its line
    Import(UserImportArgs),
    /// Write the local users as `import` reads them
    Export(UserExportArgs),
    /// List the devices of a user, or remove one
    Devices(UserDevicesArgs),
    /// Make another client certificate for a user; the ones before stay good until they expire or
    /// are revoked
    Certificate(UserCertificateArgs),
    /// Write a client profile: for one user, also one of a directory, or one for all, which asks
    /// for the name
    Profile(UserProfileArgs),
}

/// Which gateway's users.
#[derive(Args, Debug)]
pub struct StoreArgs {
    /// The configuration of the gateway
    #[arg(long, default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
}

/// Source of a password. Without one of these: a prompt if there is a terminal, else one is made
/// and printed.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub struct PasswordArgs {
    /// Read the password from this file descriptor, up to the first line break
    #[arg(long, value_name = "N")]
    pub password_fd: Option<RawFd>,
    /// Read the password from this file, up to the first line break
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Set no password: print a link by which the user chooses one, and a second factor, within
    /// seven days
    #[arg(long)]
    pub invite: bool,
}

/// Arguments of `vpnd user add`.
#[derive(Args, Debug)]
pub struct UserAddArgs {
    /// The user's name: letters, digits and . _ @ + -
    pub name: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub password: PasswordArgs,
    /// Ask this user for a one-time code too; prints what to enter into an authenticator app
    #[arg(long)]
    pub totp: bool,
    /// Ask this user for a client certificate too, made now and put into the profile
    #[arg(long)]
    pub client_cert: bool,
    /// Add a machine: a user without a password, whose client logs in by the certificate alone that
    /// is made now. A [[profile]] with 'machines' has to be for it
    #[arg(long, conflicts_with_all = ["totp", "password_fd", "password_file", "invite"])]
    pub machine: bool,
    /// A group that policy rules may name. May be repeated
    #[arg(long, value_name = "G", alias = "add-group")]
    pub group: Vec<String>,
    /// The last day on which the user may log in, such as 2027-01-31 (UTC). Sessions end then, too
    #[arg(long, value_name = "DATE")]
    pub expires: Option<Expiry>,
    /// Make the user a guest: the user who answers for this one
    #[arg(long, value_name = "NAME", requires = "expires")]
    pub sponsor: Option<String>,
    /// A note for administrators
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Write the client's profile to this file
    #[arg(long, value_name = "FILE")]
    pub profile_out: Option<PathBuf>,
}

/// Arguments of `vpnd user certificate`.
#[derive(Args, Debug)]
pub struct UserCertificateArgs {
    /// The user's name
    pub name: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
    /// Write the client's profile to this file
    #[arg(long, value_name = "FILE")]
    pub profile_out: Option<PathBuf>,
}

/// Arguments of `vpnd user profile`.
#[derive(Args, Debug)]
pub struct UserProfileArgs {
    /// The user's name; without one the profile is for all users
    #[arg(value_parser = user_name)]
    pub name: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
    /// Ask for a one-time code at each login
    #[arg(long)]
    pub totp: bool,
    /// Log in in a browser, as users of OpenID providers do in any case
    #[arg(long)]
    pub browser: bool,
    /// Write it to this file [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub profile_out: Option<PathBuf>,
}

/// Arguments of `vpnd revoke`.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// The user whose certificates are revoked: all of them, unless one is named
    #[arg(required_unless_present_any = ["certificate", "fingerprint", "list"])]
    pub user: Option<String>,
    /// Only the certificate in this file (PEM)
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// Only the certificate with this SHA-256 fingerprint
    #[arg(long, value_name = "HEX", conflicts_with = "certificate")]
    pub fingerprint: Option<Fingerprint>,
    /// Show what was revoked, and change nothing
    #[arg(long, conflicts_with_all = ["user", "certificate", "fingerprint"])]
    pub list: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub reason: ReasonArgs,
}

/// Arguments of the commands that take only a user.
#[derive(Args, Debug)]
pub struct UserArgs {
    /// The user's name
    pub name: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub reason: ReasonArgs,
}

/// Arguments of `vpnd user passwd`.
#[derive(Args, Debug)]
pub struct UserPasswdArgs {
    /// The user's name
    pub name: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub password: PasswordArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub reason: ReasonArgs,
}

/// Which running daemon.
#[derive(Args, Debug)]
pub struct AdminArgs {
    /// Its control socket [default: the one of --config]
    #[arg(long, value_name = "P")]
    pub socket: Option<PathBuf>,
    /// Its configuration, to find the socket
    #[arg(long, default_value = DEFAULT_CONFIG, conflicts_with = "socket")]
    pub config: PathBuf,
}

/// Arguments of `vpnd status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub admin: AdminArgs,
    /// On a client: the socket of the client service
    #[arg(long, default_value = DEFAULT_SOCKET, value_name = "P")]
    pub client_socket: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Show it again every second until interrupted
    #[arg(long)]
    pub watch: bool,
    /// Show the gateways of this one's fleet
    #[arg(long, conflicts_with = "watch")]
    pub fleet: bool,
}

/// Arguments of `vpnd kick`.
#[derive(Args, Debug)]
pub struct KickArgs {
    /// A user's name or a session's id
    pub target: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub admin: AdminArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub reason: ReasonArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_description_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_password_has_one_source() {
        let arguments = ["vpnd", "user", "add", "ann", "--password-fd", "3", "--password-file", "f"];
        assert!(Cli::try_parse_from(arguments).is_err());
        assert!(Cli::try_parse_from(&arguments[..6]).is_ok());
        assert!(Cli::try_parse_from(["vpnd", "user", "add", "ann", "--password", "secret"]).is_err());
    }

    #[test]
    fn a_suite_and_an_interface_are_checked_here() {
        let connect = |extra: [&'static str; 2]| {
            Cli::try_parse_from(["vpnd", "connect", "me.toml"].into_iter().chain(extra)).is_ok()
        };
        assert!(connect(["--suite", "aes-256-gcm"]));
        assert!(!connect(["--suite", "aes-512-gcm"]));
        assert!(connect(["--backend", "aws-lc"]) && connect(["--backend", "auto"]));
        assert!(!connect(["--backend", "openssl"]));
        assert!(connect(["--tun", "vpn7"]));
        assert!(!connect(["--tun", "a-name-that-is-too-long"]));
    }
}
