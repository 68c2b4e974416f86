//! Arguments of `vpnd device …`.

use clap::{Args, Subcommand};

use super::{ReasonArgs, StoreArgs};

/// `vpnd device …`.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Give a user a WireGuard device, and print its configuration, also as a QR code in a terminal
    Add(DeviceAddArgs),
    /// List the WireGuard devices of all users, or of one
    List(DeviceListArgs),
    /// Remove a WireGuard device and end its session
    Remove(DeviceRemoveArgs),
    /// Let a WireGuard device in for another session lifetime, also after a kick
    Renew(DeviceRenewArgs),
}

/// Arguments of `vpnd device add`.
#[derive(Args, Debug)]
pub struct DeviceAddArgs {
    /// The user whose device it is
    #[arg(long)]
    pub user: String,
    /// The device connects with a stock WireGuard client
    #[arg(long, required = true)]
    pub wireguard: bool,
    /// The device's own public key. Without it a key pair is made, and its private half is printed
    /// and kept nowhere
    #[arg(long, value_name = "KEY")]
    pub public_key: Option<String>,
    /// A name for administrators
    #[arg(long, default_value = "", hide_default_value = true)]
    pub name: String,
    /// Add a preshared key, which keeps recorded traffic secret should X25519 be broken
    #[arg(long)]
    pub preshared_key: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub reason: ReasonArgs,
}

/// Arguments of `vpnd device list`.
#[derive(Args, Debug)]
pub struct DeviceListArgs {
    /// Only those of this user
    #[arg(long)]
    pub user: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}

/// Arguments of `vpnd device remove`.
#[derive(Args, Debug)]
pub struct DeviceRemoveArgs {
    /// Its name, or the beginning of its public key
    pub device: String,
    /// The user whose device it is
    #[arg(long)]
    pub user: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub reason: ReasonArgs,
}

/// Arguments of `vpnd device renew`.
#[derive(Args, Debug)]
pub struct DeviceRenewArgs {
    /// Its name, or the beginning of its public key
    pub device: String,
    /// The user whose device it is
    #[arg(long)]
    pub user: String,
    /// Take handshakes of the device although its clock was set back
    #[arg(long)]
    pub reset_clock: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub reason: ReasonArgs,
}
