//! The connections to a store: one for changes, which wait for each other and for other processes,
//! and one for queries, which wait for neither.
//!
//! INVARIANT: a change waits for no longer than its limit, however many others wait before it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use vpnd_proto::session::SessionId;

use super::StoreError;
use super::faults::{explain, explain_sql};
use super::group::{Changes, Company, NotMade};
use crate::put_off::{self, Behind, Pace, Wall};
use crate::sql::{self, Transaction, sessions, wireguard};
use crate::{HandshakeShown, SessionChange, SessionRecord};

/// Limit for a change's wait for others and for other processes, before it fails as
/// [`StoreError::Busy`].
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for a change of sessions to wait: clients wait for it, and all others behind it.
const URGENT_PATIENCE: Duration = Duration::from_millis(250);
/// Wait of a change that was put off, and is tried again soon.
const LATER_PATIENCE: Duration = Duration::from_millis(20);

/// Statements that stay compiled; there are fewer.
const STATEMENTS: usize = 256;

#[derive(Debug)]
pub(crate) struct Connections {
    changes: Changes,
    queries: Mutex<Connection>,
    path: PathBuf,
}

impl Connections {
    /// With `changes`, to the store at `path`, which was checked and prepared.
    pub(super) fn new(path: &Path, changes: Connection) -> rusqlite::Result<Self> {
        let queries = open(path)?;
        queries.pragma_update(None, "query_only", true)?;
        Ok(Self { changes: Changes::new(changes), queries: Mutex::new(queries), path: path.to_owned() })
    }

    pub(super) fn read<T>(
        &self,
        query: impl FnOnce(&sql::Connection<'_>) -> sql::Result<T>,
    ) -> Result<T, StoreError> {
        query(&sql::Connection::new(&*self.queries.lock())).map_err(|error| explain_sql(&self.path, error))
    }

    /// Runs queries that only SQLite has.
    pub(super) fn with_queries<T>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        query(&self.queries.lock()).map_err(|error| explain(&self.path, error))
    }

    /// Runs a change and has it committed, or changes nothing.
    pub(super) fn change<T>(
        &self,
        limit: Duration,
        change: impl FnOnce(&Transaction<'_>) -> sql::Result<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.make(limit, Company::Others, change)
    }

    fn make<T>(
        &self,
        limit: Duration,
        company: Company,
        change: impl FnOnce(&Transaction<'_>) -> sql::Result<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.changes.make(limit, company, change).map_err(|not_made| match not_made {
            NotMade::Late => StoreError::Busy { path: self.path.clone() },
            NotMade::Sql(error) => explain_sql(&self.path, error),
            NotMade::Refused(refused) => refused,
        })
    }

    /// Runs a change after which the log is empty: a log that is lost or cut short takes the newest
    /// changes with it, and none of these may be among them.
    pub(super) fn revoke<T>(
        &self,
        limit: Duration,
        change: impl FnOnce(&Transaction<'_>) -> sql::Result<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let value = self.make(limit, Company::Alone, change)?;
        // The change is durable already: if this fails, or another process reads for too long, it
        // stays in the log.
        if !self.empty_log() {
            tracing::warn!(path = %self.path.display(), "a revocation is safe, but only in the store's -wal file so far");
        }
        Ok(value)
    }

    /// Brings all changes from the log into the main file; whether that was possible.
    pub(super) fn empty_log(&self) -> bool {
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        let busy = self.changes.alone(|connection| {
            connection.busy_timeout(BUSY_TIMEOUT)?;
            connection.query_row(checkpoint, (), |row| row.get(0))
        });
        matches!(busy, Ok(0_i64))
    }
}

impl Behind for Connections {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn held_up(&self) -> StoreError {
        StoreError::Busy { path: self.path.clone() }
    }

    fn alter(&self, pace: Pace, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError> {
        self.change(patience(pace), |t| sessions::change(t, changes, now_s).map(Ok))
    }

    fn keep_shown(&self, pace: Pace, shown: &[HandshakeShown]) -> Result<Vec<bool>, StoreError> {
        self.change(patience(pace), |t| wireguard::keep_handshakes(t, shown).map(Ok))
    }

    fn wall(&self, pace: Pace, walls: &[Wall]) -> Result<(), StoreError> {
        self.revoke(patience(pace), |t| wireguard::wall(t, pace, walls).map(Ok))
    }

    fn end_all(&self, at_s: u64) -> Result<(), StoreError> {
        self.revoke(LATER_PATIENCE, |t| put_off::end_all(t, at_s).map(Ok))
    }

    fn stored_session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError> {
        self.read(|c| sessions::by_id(c, id, now_s))
    }
}

fn patience(pace: Pace) -> Duration {
    match pace {
        Pace::Urgent => URGENT_PATIENCE,
        Pace::Later => LATER_PATIENCE,
    }
}

/// Opens the database at `path`, which exists.
pub(crate) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // All of this program's statements stay compiled, whatever values they are given.
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn changes_that_clients_wait_for_share_a_commit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("numbers.db");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE numbers (number INTEGER)").unwrap();
        let connections = &Connections::new(&path, open(&path).unwrap()).unwrap();
        // Shorter than that of changes for which no client waits.
        let limit = BUSY_TIMEOUT - Duration::from_millis(1);
        let insert = |before: &dyn Fn()| {
            connections.change(limit, |t| {
                before();
                t.execute("INSERT INTO numbers VALUES (1)", ()).map(Ok)
            })
        };
        let (begun, has_begun) = mpsc::channel();
        let all_wait = move || {
            begun.send(()).unwrap();
            while connections.changes.counts().0 < 4 {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            let first = scope.spawn(move || insert(&all_wait));
            has_begun.recv().unwrap();
            let others: Vec<_> = (0..4).map(|_| scope.spawn(move || insert(&|| {}))).collect();
            others
                .into_iter()
                .chain([first])
                .for_each(|change| assert_eq!(change.join().unwrap().unwrap(), 1));
        });
        assert_eq!(connections.changes.counts(), (0, 1), "one trip to the disk");
    }
}
