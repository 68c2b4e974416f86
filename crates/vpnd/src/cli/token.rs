//! Arguments of `vpnd token …`.

use clap::{Args, Subcommand};

use super::StoreArgs;
use vpnd_config::desk::DeskRole;
use vpnd_sys::date::Expiry;

/// `vpnd token …`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token by which a program uses the API of [portal], and print it
    Add(TokenAddArgs),
    /// List the tokens, which are not shown again
    List(TokenListArgs),
    /// Remove a token: it is refused from now on
    Remove(TokenRemoveArgs),
}

/// Arguments of `vpnd token add`.
#[derive(Args, Debug)]
pub struct TokenAddArgs {
    /// A name for administrators: up to 32 letters, digits, '-' and '_'
    pub name: String,
    /// Rights of the program: viewer, help-desk or administrator
    #[arg(long)]
    pub role: DeskRole,
    /// The last day on which it is good, such as 2027-01-31 (UTC)
    #[arg(long, value_name = "DATE")]
    pub expires: Expiry,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}

/// Arguments of `vpnd token list`.
#[derive(Args, Debug)]
pub struct TokenListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}

/// Arguments of `vpnd token remove`.
#[derive(Args, Debug)]
pub struct TokenRemoveArgs {
    /// Its name
    pub name: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}
