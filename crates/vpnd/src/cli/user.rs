//! Arguments of `vpnd user show`, `modify`, `import`, `export` and `devices`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use super::{ReasonArgs, StoreArgs};
use vpnd_sys::date::Expiry;

/// Arguments of `vpnd user modify`. Whatever is not named stays as it is.
#[derive(Args, Debug)]
pub struct UserModifyArgs {
    /// The user's name
    pub name: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub change: UserChangeArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub reason: ReasonArgs,
}

/// Changes of `vpnd user modify`.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct UserChangeArgs {
    /// Put the user into this group, and out of all groups that are not given so. May be repeated
    #[arg(long, value_name = "G", conflicts_with_all = ["add_group", "remove_group"])]
    pub group: Vec<String>,
    /// Put the user into this group, too. May be repeated
    #[arg(long, value_name = "G")]
    pub add_group: Vec<String>,
    /// Take the user out of this group. May be repeated
    #[arg(long, value_name = "G")]
    pub remove_group: Vec<String>,
    /// An inner address reserved for the user from the next login on; replaces those before. May be
    /// repeated, for IPv4 and IPv6 and
    /// for several devices: each gets one that is free
    #[arg(long, value_name = "IP", group = "addresses")]
    pub address: Vec<IpAddr>,
    /// The user gets any address again
    #[arg(long, conflicts_with = "address", group = "addresses")]
    pub no_address: bool,
    /// The addresses are for the one device of the user whose name begins so ('vpnd user devices')
    #[arg(long, value_name = "DEVICE", requires = "addresses")]
    pub device: Option<String>,
    /// The last day on which the user may log in, such as 2027-01-31 (UTC), or never. Sessions end
    /// then, too
    #[arg(long, value_name = "DATE")]
    pub expires: Option<Expiry>,
    /// The user who answers for this guest
    #[arg(long, value_name = "NAME")]
    pub sponsor: Option<String>,
    /// The user is no guest any more
    #[arg(long, conflicts_with = "sponsor")]
    pub no_sponsor: bool,
    /// A note for administrators
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Ask this user for a one-time code from now on, made from a new secret; prints what to enter
    /// into an authenticator app
    #[arg(long)]
    pub totp: bool,
    /// Ask this user for no one-time code any more
    #[arg(long, conflicts_with = "totp")]
    pub no_totp: bool,
}

/// Arguments of `vpnd user show`.
#[derive(Args, Debug)]
pub struct UserShowArgs {
    /// The user's name
    pub name: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}

/// Arguments of `vpnd user devices`.
#[derive(Args, Debug)]
pub struct UserDevicesArgs {
    /// The user's name
    pub name: String,
    /// Remove the device whose name begins so: its sessions end, and its addresses go to others
    #[arg(long, value_name = "DEVICE")]
    pub remove: Option<String>,
    /// Why it is removed, such as the number of a ticket. It is recorded
    #[arg(long, value_name = "TEXT", value_parser = super::reason::reason, requires = "remove")]
    pub reason: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "remove")]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}

/// Arguments of `vpnd user import`.
#[derive(Args, Debug)]
pub struct UserImportArgs {
    /// CSV with a header, or a JSON array: name, groups, expires, sponsor, note, enabled, and
    /// password, or password_hash (argon2, bcrypt, {SSHA}), totp_secret (base64) and addresses.
    /// Groups stand with spaces between them, addresses (inner ones, reserved for the user), too
    pub file: PathBuf,
    /// Change users who are there already, in the fields that are given
    #[arg(long)]
    pub update: bool,
    /// Check the file and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}

/// Arguments of `vpnd user export`.
#[derive(Args, Debug)]
pub struct UserExportArgs {
    /// Write JSON instead of CSV
    #[arg(long)]
    pub json: bool,
    /// Write password hashes and secrets of one-time codes, too: they allow guessing passwords and
    /// making codes
    #[arg(long)]
    pub with_hashes: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}
