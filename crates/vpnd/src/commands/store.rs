//! `vpnd store`: a store that moves between a file and a database.
//!
//! INVARIANT: nothing is moved while a gateway works on it, by its control socket or, where the
//! database is on another machine, by what the database says.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::admin_store::{Opening, Stores};
use crate::cli::{MoveTo, StoreCommand};
use vpnd_config::database::StoreEngine;
use vpnd_config::{ConfigError, ServerConfig};
use vpnd_ipc::admin::client::{Client, ClientError};
use vpnd_store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("a gateway runs with {}; stop it first: systemctl stop vpnd-server", .0.display())]
    Running(PathBuf),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("can't print the result: {0}")]
    Output(#[from] std::io::Error),
}

/// Runs a command of `vpnd store`.
///
/// # Errors
/// [`MoveError`]; then nothing has moved.
pub fn run(command: &StoreCommand, stores: &dyn Stores, out: &mut dyn Write) -> Result<(), MoveError> {
    match command {
        StoreCommand::Migrate(args) => {
            let config = stopped(&args.config)?;
            let to_postgres = args.to == MoveTo::Postgres;
            let users = stores.open(&config, Opening::Move)?.move_store(to_postgres)?;
            let (to, engine, wanted) = match args.to {
                MoveTo::Postgres => ("the database of [store]", "postgres", StoreEngine::Postgres),
                MoveTo::Sqlite => ("vpnd.db in the state directory", "sqlite", StoreEngine::Sqlite),
            };
            writeln!(
                out,
                "copied {users} users with all that is theirs into {to}; the old store is as it was"
            )?;
            if config.store.engine != wanted {
                writeln!(out, "next: engine = \"{engine}\" in [store] of {}", config.file)?;
            }
            Ok(())
        }
        StoreCommand::Adopt(args) => {
            let config = stopped(&args.config)?;
            let before = stores.open(&config, Opening::Move)?.adopt()?;
            Ok(writeln!(out, "the database is this gateway's now; it was that of '{before}'")?)
        }
    }
}

/// The configuration of a gateway that does not run.
fn stopped(path: &Path) -> Result<ServerConfig, MoveError> {
    let config = ServerConfig::load(path)?;
    match Client::connect(&config.admin.socket) {
        Err(ClientError::NotRunning(_)) => Ok(config),
        _ => Err(MoveError::Running(path.to_owned())),
    }
}
