//! Arguments of `vpnd store`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use vpnd_config::DEFAULT_CONFIG;

/// The commands of `vpnd store`.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Copy all users, sessions and devices from the embedded store into the database of [store],
    /// or back. The gateway must be stopped; what is copied stays where it was
    Migrate(StoreMigrateArgs),
    /// Make the database of [store] this gateway's, after the gateway that had it is gone for good
    Adopt(StoreAdoptArgs),
}

/// Where a store moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MoveTo {
    /// The database that [store] names
    Postgres,
    /// A new vpnd.db in the state directory
    Sqlite,
}

/// Arguments of `vpnd store migrate`.
#[derive(Args, Debug)]
pub struct StoreMigrateArgs {
    /// The engine to copy to
    #[arg(long)]
    pub to: MoveTo,
    /// The gateway's configuration
    #[arg(long, default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
}

/// Arguments of `vpnd store adopt`.
#[derive(Args, Debug)]
pub struct StoreAdoptArgs {
    /// The name of the gateway that had it, as in the text of the refusal
    #[arg(long, value_name = "NAME")]
    pub from: String,
    /// The gateway's configuration
    #[arg(long, default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
}
