//! The sessions that are accounted for, in a separate file: an upgrade's processes go on with
//! them, and a start knows those of before.
//!
//! INVARIANT: nothing depends on it but accounting. A file that can't be used is a line in the log,
//! and what it would have kept is left out of later records.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use minicbor::{Decode, Encode};
use rusqlite::{Connection, OptionalExtension as _};
use vpnd_proto::session::SessionId;

use vpnd_ipc::gateway::auth::SourceName;
use vpnd_ipc::gateway::idp::AccountedSession;
use vpnd_sys::own_file;

/// Wait for the other auth process during an upgrade.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS open_session (id BLOB PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID, STRICT;
    CREATE TABLE IF NOT EXISTS earlier_session (id BLOB PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID, STRICT;
";

/// A session, as far as its records go by it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct OpenSession {
    #[n(0)]
    pub(super) source: SourceName,
    #[n(1)]
    pub(super) session: AccountedSession,
    /// In the server's form.
    #[n(2)]
    pub(super) interim_s: Option<u32>,
    /// By the monotonic clock.
    #[n(3)]
    pub(super) started_s: u64,
}

pub(super) struct OpenSessions(Mutex<Connection>);

impl OpenSessions {
    /// The file at this path, made if it is missing. A damaged one is replaced.
    pub(super) fn open(path: &Path) -> Option<Self> {
        let opened = Self::connect(path).or_else(|error| {
            tracing::warn!(%error, path = %path.display(), "the file of accounted sessions is damaged, so another is made");
            for name in ["", "-wal", "-shm"] {
                let mut file = path.as_os_str().to_owned();
                file.push(name);
                match std::fs::remove_file(file) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                    _ => {}
                }
            }
            Self::connect(path)
        });
        opened.inspect_err(warn).ok().map(|connection| Self(Mutex::new(connection)))
    }

    fn connect(path: &Path) -> anyhow::Result<Connection> {
        drop(own_file::open_or_create(path)?);
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // A power failure loses only records of sessions that it has ended.
        connection.pragma_update(None, "synchronous", "OFF")?;
        connection.execute_batch(TABLES)?;
        // A damaged page shows by now.
        connection.query_row("SELECT count(record) FROM open_session", [], |_| Ok(()))?;
        connection.query_row("SELECT count(record) FROM earlier_session", [], |_| Ok(()))?;
        Ok(connection)
    }

    pub(super) fn add(&self, id: SessionId, open: &OpenSession) {
        let record = minicbor::to_vec(open).expect("a vector takes all that is written to it");
        self.tried(|connection| {
            let sql = "INSERT OR REPLACE INTO open_session VALUES (?1, ?2)";
            connection.execute(sql, (id.0.as_slice(), record.as_slice()))
        });
    }

    /// The gateway starts: the servers take none of these sessions to go on. Those that `is_alive`
    /// knows may come back.
    pub(super) fn restart(&self, is_alive: impl Fn(SessionId) -> bool) {
        let sql =
            "INSERT OR REPLACE INTO earlier_session SELECT * FROM open_session; DELETE FROM open_session";
        self.tried(|connection| connection.execute_batch(sql));
        for (id, _) in self.rows("SELECT id, record FROM earlier_session") {
            if !is_alive(id) {
                self.remove(id);
            }
        }
    }

    pub(super) fn remove(&self, id: SessionId) {
        for sql in ["DELETE FROM open_session WHERE id = ?1", "DELETE FROM earlier_session WHERE id = ?1"] {
            self.tried(|connection| connection.execute(sql, [id.0.as_slice()]));
        }
    }

    /// A session of this run.
    pub(super) fn current(&self, id: SessionId) -> Option<OpenSession> {
        self.get("SELECT record FROM open_session WHERE id = ?1", id)
    }

    /// A session of a run before this one.
    pub(super) fn earlier(&self, id: SessionId) -> Option<OpenSession> {
        self.get("SELECT record FROM earlier_session WHERE id = ?1", id)
    }

    fn get(&self, sql: &str, id: SessionId) -> Option<OpenSession> {
        let found = self.tried(|connection| {
            connection.query_row(sql, [id.0.as_slice()], |row| row.get::<_, Vec<u8>>(0)).optional()
        });
        minicbor::decode(&found??).ok()
    }

    /// All sessions of this run.
    pub(super) fn all(&self) -> Vec<(SessionId, OpenSession)> {
        self.rows("SELECT id, record FROM open_session")
    }

    fn rows(&self, sql: &str) -> Vec<(SessionId, OpenSession)> {
        let found = self.tried(|connection| {
            let mut statement = connection.prepare(sql)?;
            let rows =
                statement.query_map([], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
            rows.collect::<Result<Vec<_>, _>>()
        });
        let decoded = found.unwrap_or_default().into_iter().filter_map(|(id, record)| {
            Some((SessionId(id.try_into().ok()?), minicbor::decode(&record).ok()?))
        });
        decoded.collect()
    }

    fn tried<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Option<T> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work(&connection).inspect_err(|error| warn(&error)).ok()
    }
}

fn warn(error: &impl std::fmt::Display) {
    tracing::warn!(%error, "accounted sessions could not be saved, so a restart loses some");
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_ipc::gateway::idp::AccountingEvent;
    use vpnd_ipc::gateway::idp::testing::record;

    #[test]
    fn open_sessions_survive_the_process_and_a_damaged_file_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("accounting.sqlite");
        let record = record(AccountingEvent::Start);
        let open = OpenSession {
            source: record.source,
            session: record.session.unwrap(),
            interim_s: Some(60),
            started_s: 7,
        };
        let (one, two) = (SessionId([1; 16]), SessionId([2; 16]));
        let kept = OpenSessions::open(&path).unwrap();
        kept.add(one, &open);
        kept.add(two, &open);
        kept.remove(two);
        // Another process at the same time, as during an upgrade.
        let next = OpenSessions::open(&path).unwrap();
        assert_eq!((next.current(one), next.current(two), next.all().len()), (Some(open.clone()), None, 1));
        next.add(two, &open);
        next.restart(|id| id == one);
        assert_eq!((next.earlier(one), next.earlier(two), next.all().len()), (Some(open.clone()), None, 0));
        drop((kept, next));
        std::fs::write(&path, [7; 8192]).unwrap();
        let anew = OpenSessions::open(&path).unwrap();
        assert!(anew.all().is_empty());
        anew.add(one, &open);
        assert_eq!(anew.current(one), Some(open));
    }
}
