//! The embedded store: one SQLite file.
//!
//! Invariants: write-ahead log with `synchronous = FULL`, so a commit is on the disk before it is
//! acknowledged; every change is in one immediate transaction, so that several processes can work
//! on the file; the file is checked before it is used and is readable by its owner alone; what
//! takes rights away stands in the main file when it is acknowledged, so that losing the log does
//! not give them back. This module must not know what users may do.

pub(crate) mod connections;
mod engine;
mod faults;
mod group;
mod place;
mod transfer;

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use vpnd_proto::session::SessionId;

use connections::{BUSY_TIMEOUT, Connections, open};
pub(crate) use faults::explain_sql;
use faults::{corrupted, explain};
pub(super) use place::backup_path;
pub(crate) use place::plain_files;
use place::{is_emptied, reachable};
pub use transfer::Replacement;

use super::{HandshakeShown, SessionChange, SessionRecord, StoreError, User};
use crate::format::{Format, Found};
use crate::put_off::{PutOff, Wall};
use crate::sql::{self, Database, Transaction, digest, users};
use vpnd_sys::own_file;

pub(crate) const FORMAT: Format = Format {
    application: i32::from_be_bytes(*b"vpnd"),
    schema: include_str!("sqlite/schema.sql"),
    steps: &[include_str!("sqlite/format_2.sql")],
};

#[derive(Debug)]
pub struct Sqlite {
    connections: Connections,
    put_off: PutOff,
    path: PathBuf,
}

impl Sqlite {
    /// Opens the store at `path`, which must exist, and checks it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        reachable(path)?;
        Self::connect(path, transfer::keep_earlier)
    }

    /// Looks whether the store at `path` is whole, and who is in it. It stays as it is.
    pub fn inspect(path: &Path) -> Result<Vec<User>, StoreError> {
        reachable(path)?;
        let explain = |error| explain(path, error);
        let explain_sql = |error| explain_sql(path, error);
        let connection = open(path).map_err(explain)?;
        connection.pragma_update(None, "query_only", true).map_err(explain)?;
        let connection = match check(path, &connection)? {
            Found::Empty => return Ok(Vec::new()),
            // A copy is brought up: the store itself stays as it is.
            Found::Earlier(_) => FORMAT.brought_up_copy(&connection).map_err(explain)?,
            _ => connection,
        };
        let view = sql::Connection::new(&connection);
        digest::verify_all(&view).map_err(explain_sql)?;
        users::all(&view).map_err(explain_sql)
    }

    /// Opens the store at `path`, or makes it, with its directory, if it is not there.
    pub fn open_or_create(path: &Path) -> Result<Self, StoreError> {
        plain_files(path)?;
        let failed =
            |error: std::io::Error| StoreError::Failed { path: path.to_owned(), detail: error.to_string() };
        if !path.exists() {
            let directory = vpnd_sys::secret_file::parent(path);
            // A process that has shut itself in makes none.
            if !directory.is_dir() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
            }
            // SQLite gives its other files the permissions of this one.
            drop(own_file::open_or_create(path).map_err(failed)?);
        }
        Self::connect(path, transfer::keep_earlier)
    }

    /// Opens and checks the store. One of an earlier format gets the newest one after `keep`, which
    /// is given the number of the earlier one.
    fn connect(path: &Path, keep: fn(&Path, usize) -> Result<(), StoreError>) -> Result<Self, StoreError> {
        let explain = |error| explain(path, error);
        if is_emptied(path) {
            return Err(corrupted(path, "nothing is left of it".to_owned()));
        }
        let mut connection = open(path).map_err(explain)?;
        check(path, &connection)?;
        prepare(&connection).map_err(explain)?;
        if let Some(transaction) = FORMAT.begin(&mut connection).map_err(explain)? {
            if let Found::Earlier(number) = FORMAT.find(&transaction).map_err(explain)? {
                keep(path, number)?;
            }
            FORMAT.complete(transaction).map_err(explain)?;
        }
        digest::verify_all(&sql::Connection::new(&connection)).map_err(|error| explain_sql(path, error))?;
        let connections = Connections::new(path, connection).map_err(explain)?;
        Ok(Self { connections, put_off: PutOff::beside(path), path: path.to_owned() })
    }

    /// A copy of this moment, in a file that has no name any more. Others may read and write the
    /// store meanwhile.
    pub fn copy(&self) -> Result<File, StoreError> {
        transfer::copy(&self.connections, &self.path)
    }

    /// Makes the changes that were put off, if the store is free again; how many there were.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if it is not. They stay where they are after an error.
    pub fn catch_up(&self, now_s: u64) -> Result<usize, StoreError> {
        self.put_off.catch_up(&self.connections, now_s)
    }

    /// Writes a copy of the store into its directory, in one step: the copy that
    /// [`StoreError::Corrupted`] recommends.
    pub fn back_up(&self) -> Result<(), StoreError> {
        transfer::write_copy(&self.path, &backup_path(&self.path), |temporary| {
            self.connections.with_queries(|connection| {
                connection.backup("main", temporary, None::<fn(rusqlite::backup::Progress)>)
            })
        })
    }
}

impl Database for Sqlite {
    fn read<T>(&self, query: impl FnOnce(&sql::Connection<'_>) -> sql::Result<T>) -> Result<T, StoreError> {
        self.connections.read(query)
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> sql::Result<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.connections.change(BUSY_TIMEOUT, change)
    }

    fn revoke<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> sql::Result<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.connections.revoke(BUSY_TIMEOUT, change)
    }

    fn find_session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError> {
        self.put_off.session(&self.connections, id, now_s)
    }

    fn alter_sessions(&self, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError> {
        self.put_off.change(&self.connections, changes, now_s)
    }

    fn keep_shown_handshakes(&self, shown: &[HandshakeShown]) -> Result<Vec<bool>, StoreError> {
        self.put_off.keep_handshakes(&self.connections, shown)
    }

    fn wall_device(&self, wall: Wall) -> Result<(), StoreError> {
        self.put_off.wall(&self.connections, wall)
    }

    fn put_off(&self) -> &PutOff {
        &self.put_off
    }
}

/// Refuses a file that is damaged, foreign or of another format, before anything is written to it.
fn check(path: &Path, connection: &Connection) -> Result<Found, StoreError> {
    let explain = |error| explain(path, error);
    let verdict: String =
        connection.query_row("PRAGMA integrity_check(1)", (), |row| row.get(0)).map_err(explain)?;
    if verdict != "ok" {
        return Err(corrupted(path, verdict));
    }
    match FORMAT.find(connection).map_err(explain)? {
        Found::Newer(found) => {
            Err(StoreError::Newer { path: path.to_owned(), found, known: FORMAT.number() })
        }
        Found::Older => Err(StoreError::Older { path: path.to_owned() }),
        Found::Foreign => Err(corrupted(path, "it is a database, but not one of vpnd".to_owned())),
        found @ (Found::Empty | Found::Earlier(_) | Found::Current) => Ok(found),
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    // The sandbox leaves no directory for temporary files.
    connection.pragma_update(None, "temp_store", "memory")?;
    // Bytes of a deleted hash or secret are overwritten.
    connection.pragma_update(None, "secure_delete", true)?;
    connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)
}

#[cfg(test)]
mod tests;
