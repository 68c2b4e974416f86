//! Arguments of `vpnd migrate`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The commands of `vpnd migrate`.
#[derive(Debug, Subcommand)]
pub enum MigrateCommand {
    /// Print the translated configuration of an OpenVPN server, and at its end what has no
    /// counterpart. Nothing is changed
    Openvpn(MigrateOpenvpnArgs),
}

/// Arguments of `vpnd migrate openvpn`.
#[derive(Args, Debug)]
pub struct MigrateOpenvpnArgs {
    /// The server's configuration, such as /etc/openvpn/server/server.conf
    pub file: PathBuf,
    /// The directory with a file for each user [default: client-config-dir in the configuration]
    pub ccd: Option<PathBuf>,
}
