//! Arguments of `vpnd source`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::AdminArgs;
use vpnd_config::DEFAULT_CONFIG;

/// The commands of `vpnd source`.
#[derive(Debug, Subcommand)]
pub enum SourceCommand {
    /// End the sessions of users whom a source no longer shows. Too many at once go on until
    /// this command confirms it, or the source shows them again
    Confirm(SourceConfirmArgs),
    /// Test a source step by step, as it is in the configuration, and show which step fails. Exit
    /// code 0: none, 1: one does
    Test(SourceTestArgs),
}

/// Arguments of `vpnd source test`.
#[derive(Args, Debug)]
pub struct SourceTestArgs {
    /// The source's name
    pub name: String,
    /// Ask about this user, too: entry, groups, subject, access profile. No password is needed
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// The configuration, in force or planned
    #[arg(long, default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
}

/// Arguments of `vpnd source confirm`.
#[derive(Args, Debug)]
pub struct SourceConfirmArgs {
    /// The source's name
    pub name: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub admin: AdminArgs,
}
