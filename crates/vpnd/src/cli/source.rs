//! Arguments of `vpnd source`.

use clap::{Args, Subcommand};

use super::AdminArgs;

/// The commands of `vpnd source`.
#[derive(Debug, Subcommand)]
pub enum SourceCommand {
    /// End the sessions of users whom a source no longer shows. So many of them at once go on until this is said, or the source shows them again
    Confirm(SourceConfirmArgs),
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
