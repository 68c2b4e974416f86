//! Arguments of `vpnd user modify` and `vpnd user devices`.

use clap::Args;

use super::StoreArgs;
use crate::date::Expiry;

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
}

/// What `vpnd user modify` changes.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct UserChangeArgs {
    /// Put the user into this group and out of all that are not named so. May be repeated
    #[arg(long, value_name = "G", conflicts_with_all = ["add_group", "remove_group"])]
    pub group: Vec<String>,
    /// Put the user into this group, too. May be repeated
    #[arg(long, value_name = "G")]
    pub add_group: Vec<String>,
    /// Take the user out of this group. May be repeated
    #[arg(long, value_name = "G")]
    pub remove_group: Vec<String>,
    /// The last day on which the user may log in, such as 2027-01-31 (UTC), or never. Sessions end then, too
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
    /// Ask this user for a one-time code from now on, made from a new secret; prints what to enter into an authenticator app
    #[arg(long)]
    pub totp: bool,
    /// Ask this user for no one-time code any more
    #[arg(long, conflicts_with = "totp")]
    pub no_totp: bool,
}

/// Arguments of `vpnd user devices`.
#[derive(Args, Debug)]
pub struct UserDevicesArgs {
    /// The user's name
    pub name: String,
    /// Remove the device whose name begins so: its sessions end, and its addresses go to others
    #[arg(long, value_name = "DEVICE")]
    pub remove: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "remove")]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}
