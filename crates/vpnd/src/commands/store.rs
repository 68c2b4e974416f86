//! `vpnd store`: a store that moves between a file and a database.
//!
//! INVARIANT: nothing is moved while a gateway works on it, by its control socket, of which the
//! lock is held so that none starts meanwhile, or, where the database is on another machine, by
//! what the database says.

use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::admin_store::{Opening, Stores};
use crate::cli::{MoveTo, StoreCommand};
use vpnd_config::database::StoreEngine;
use vpnd_config::{ConfigError, ServerConfig};
use vpnd_ipc::admin::client::{Client, ClientError};
use vpnd_store::StoreError;
use vpnd_sys::lock::LockedFile;

#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("a gateway runs with {}; stop it first: systemctl stop vpnd-server", .0.display())]
    Running(PathBuf),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("can't keep the gateway from starting meanwhile: {0}; run this as root")]
    Lock(std::io::Error),
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
            let (config, _lock) = stopped(&args.config)?;
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
            let (config, _lock) = stopped(&args.config)?;
            stores.open(&config, Opening::Move)?.adopt(&args.from)?;
            super::admin::record(stores, &args.config, &None, "store-adopted", &args.from);
            Ok(writeln!(out, "the database is this gateway's now; it was that of '{}'", args.from)?)
        }
    }
}

/// The configuration of a gateway that does not run, and does not start while the lock is there.
fn stopped(path: &Path) -> Result<(ServerConfig, LockedFile), MoveError> {
    let config = ServerConfig::load(path)?;
    let lock = lock_out(&config.admin.socket).map_err(MoveError::Lock)?;
    Ok((config, lock.ok_or_else(|| MoveError::Running(path.to_owned()))?))
}

/// The lock without which no gateway with this control socket starts; `None` if one runs.
pub(super) fn lock_out(socket: &Path) -> std::io::Result<Option<LockedFile>> {
    let directory = vpnd_sys::secret_file::parent(socket);
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    Ok(LockedFile::of_socket(socket)?.filter(|_| is_silent(socket)))
}

/// Whether there is no gateway at this control socket. Any other error than that is no word for it.
pub(super) fn is_silent(socket: &Path) -> bool {
    matches!(Client::connect(socket), Err(ClientError::NotRunning(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_gateway_starts_while_its_store_moves() {
        let directory = tempfile::tempdir().unwrap();
        let (file, socket) = (directory.path().join("server.toml"), directory.path().join("control"));
        let text = format!(
            "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n[admin]\nsocket = {:?}\n",
            socket.display().to_string()
        );
        std::fs::write(&file, text).unwrap();
        let moving = stopped(&file).unwrap();
        assert!(LockedFile::of_socket(&socket).unwrap().is_none(), "a start is refused");
        assert!(matches!(stopped(&file), Err(MoveError::Running(_))));
        drop(moving);
        assert!(stopped(&file).is_ok());
    }
}
