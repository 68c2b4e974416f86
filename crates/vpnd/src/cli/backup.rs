//! `vpnd backup` and `vpnd restore`, as they are typed.

use std::path::PathBuf;

use clap::Args;

use super::StoreArgs;

/// Arguments of `vpnd backup`.
#[derive(Args, Debug)]
pub struct BackupArgs {
    /// The file to write; only its owner will be able to read it
    pub file: PathBuf,
    /// Take the passphrase from this file's first line; without it, from the terminal
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}

/// Arguments of `vpnd restore`.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// The file that `vpnd backup` has written
    pub file: PathBuf,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
    /// Take the passphrase from this file's first line; without it, from the terminal
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// A directory in which files may be restored, in addition to that of the configuration. May be
    /// repeated
    #[arg(long, value_name = "DIRECTORY")]
    pub outside: Vec<PathBuf>,
    /// Replace what is there. The store is kept as vpnd.db.replaced
    #[arg(long)]
    pub force: bool,
}
