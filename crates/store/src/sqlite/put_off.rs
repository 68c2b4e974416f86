//! Changes of sessions that were put off because another process held the store, in a small
//! database in its directory.
//!
//! INVARIANT: such a change is on the disk before it is acknowledged, counts in [`PutOff::session`]
//! at once, and is in the store before later ones are written there. What it is about is no secret
//! and no right: hashes of tokens, and sessions that are over.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, TransactionBehavior, params};
use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::session::SessionId;

use super::columns::{bytes, unexpected};
use super::connections::{Connections, open};
use super::faults::explain;
use super::place::plain_files;
use super::{SessionChange, SessionRecord, StoreError, sessions};
use vpnd_sys::own_file;

/// Limit for a change of sessions to wait for the store: clients wait for it, and all others behind
/// it.
const PATIENCE: Duration = Duration::from_millis(250);
/// Time to wait in [`PutOff::catch_up`], during which other changes are put off.
const RETRY_PATIENCE: Duration = Duration::from_millis(20);

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS changes (
    session BLOB PRIMARY KEY CHECK (length(session) = 16),
    settled BLOB CHECK (length(settled) = 32),
    fresh   BLOB CHECK (length(fresh) = 32),
    epoch   INTEGER NOT NULL
) STRICT, WITHOUT ROWID";

/// The changes that were put off.
#[derive(Debug)]
pub(super) struct PutOff {
    path: PathBuf,
    /// Whether the store was held by another process when it was tried last, or there may be
    /// changes.
    is_held: AtomicBool,
    database: Mutex<Option<Connection>>,
}

impl PutOff {
    /// Changes of the store at `store`, which another process may have left.
    pub(super) fn beside(store: &Path) -> Self {
        let path = store.with_extension("db.put-off");
        Self { is_held: path.exists().into(), path, database: Mutex::default() }
    }

    /// Makes all changes. If another process holds the store, those of sessions that there are are
    /// put off; others fail as [`StoreError::Busy`].
    pub(super) fn change(
        &self,
        connections: &Connections,
        changes: &[SessionChange],
        now_s: u64,
    ) -> Result<Vec<bool>, StoreError> {
        if !self.is_held() {
            match connections.change(PATIENCE, |t| apply(t, changes, now_s).map(Ok)) {
                Err(StoreError::Busy { .. }) => {
                    self.is_held.store(true, Ordering::Release);
                    tracing::warn!(
                        store = %connections.path().display(),
                        "another process holds the user store: sessions go on, logins wait for it"
                    );
                }
                done => return done,
            }
        }
        if changes.iter().any(|change| matches!(change, SessionChange::Add(..))) {
            return Err(StoreError::Busy { path: connections.path().to_owned() });
        }
        // A change of a session that is gone has no effect.
        let exists = |change: &SessionChange| match change {
            SessionChange::Tokens(id, ..) => Ok(self.session(connections, *id, now_s)?.is_some()),
            SessionChange::Add(..) | SessionChange::End(_) => Ok(true),
        };
        let exist = changes.iter().map(exists).collect::<Result<Vec<bool>, StoreError>>()?;
        self.with(|database| {
            // The store may be free by now, and no longer known as held.
            self.is_held.store(true, Ordering::Release);
            let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for (change, _) in changes.iter().zip(&exist).filter(|(_, exists)| **exists) {
                keep(&transaction, change)?;
            }
            transaction.commit()
        })?;
        Ok(exist)
    }

    /// The session as it is by the store and what was put off.
    pub(super) fn session(
        &self,
        connections: &Connections,
        id: SessionId,
        now_s: u64,
    ) -> Result<Option<SessionRecord>, StoreError> {
        let Some(stored) = connections.read(|c| sessions::by_id(c, id, now_s))? else { return Ok(None) };
        if !self.is_held() {
            return Ok(Some(stored));
        }
        let sql = "SELECT * FROM changes WHERE session = ?";
        let newest = self.with(|database| database.query_row(sql, [id.0], change_from_row).optional())?;
        Ok(match newest {
            Some(SessionChange::Tokens(_, tokens, epoch)) if epoch >= stored.epoch => {
                Some(SessionRecord { tokens, epoch, ..stored })
            }
            Some(SessionChange::End(_)) => None,
            _ => Some(stored),
        })
    }

    /// Makes the changes that were put off, as [`super::Sqlite::catch_up`] has it.
    pub(super) fn catch_up(&self, connections: &Connections, now_s: u64) -> Result<usize, StoreError> {
        if !self.is_held() {
            return Ok(0);
        }
        let mut outcome = Ok(0);
        self.with(|database| {
            let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let changes = transaction
                .prepare("SELECT * FROM changes")?
                .query_map((), change_from_row)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            outcome = connections
                .change(RETRY_PATIENCE, |t| apply(t, &changes, now_s).map(Ok))
                .map(|_| changes.len());
            if outcome.is_ok() {
                transaction.execute("DELETE FROM changes", ())?;
                transaction.commit()?;
                // Before the database is free for others.
                self.is_held.store(false, Ordering::Release);
            }
            Ok(())
        })?;
        outcome
    }

    fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let mut database = self.database.lock();
        let connection = match &mut *database {
            Some(connection) => connection,
            none => none.insert(self.open()?),
        };
        work(connection).map_err(|error| explain(&self.path, error))
    }

    /// Opens the database. A damaged one is removed: the sessions that it is about need a login
    /// then.
    fn open(&self) -> Result<Connection, StoreError> {
        plain_files(&self.path)?;
        match prepare(&self.path) {
            Err(StoreError::Corrupted { detail, .. }) => {
                tracing::error!(path = %self.path.display(), detail, "changes of sessions that waited for the store are lost");
                let failed = |error: std::io::Error| StoreError::Failed {
                    path: self.path.clone(),
                    detail: error.to_string(),
                };
                fs::remove_file(&self.path).map_err(failed)?;
                prepare(&self.path)
            }
            opened => opened,
        }
    }
}

fn prepare(path: &Path) -> Result<Connection, StoreError> {
    let failed =
        |error: std::io::Error| StoreError::Failed { path: path.to_owned(), detail: error.to_string() };
    drop(own_file::open_or_create(path).map_err(failed)?);
    let prepared = open(path).and_then(|connection| {
        connection.pragma_update(None, "journal_mode", "truncate")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "trusted_schema", false)?;
        connection.execute_batch(SCHEMA)?;
        Ok(connection)
    });
    prepared.map_err(|error| explain(path, error))
}

/// Makes changes in the store; which of them were made.
fn apply(t: &Transaction<'_>, changes: &[SessionChange], now_s: u64) -> rusqlite::Result<Vec<bool>> {
    let done = changes.iter().map(|change| match change {
        SessionChange::Add(session, generation) => sessions::add(t, session, *generation),
        SessionChange::Tokens(id, tokens, epoch) => sessions::set_tokens(t, *id, tokens, *epoch),
        SessionChange::End(id) => sessions::end(t, *id, now_s).map(|()| true),
    });
    done.collect()
}

fn keep(t: &Transaction<'_>, change: &SessionChange) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO changes (session, settled, fresh, epoch) VALUES (?, ?, ?, ?)";
    let mut statement = t.prepare_cached(sql)?;
    match change {
        SessionChange::Tokens(id, tokens, epoch) => {
            let fresh = tokens.fresh().map(|fresh| *fresh.as_bytes());
            statement.execute(params![id.0, tokens.settled().as_bytes(), fresh, epoch]).map(drop)
        }
        SessionChange::End(id) => {
            statement.execute(params![id.0, None::<Vec<u8>>, None::<Vec<u8>>, 0]).map(drop)
        }
        SessionChange::Add(..) => Ok(()),
    }
}

fn change_from_row(row: &Row<'_>) -> rusqlite::Result<SessionChange> {
    let id = SessionId(bytes(row, "session")?);
    let hash = |column| -> rusqlite::Result<Option<TokenHash>> {
        let bytes: Option<Vec<u8>> = row.get(column)?;
        let hash = bytes.map(|bytes| bytes.try_into().map_err(|_| unexpected(column))).transpose()?;
        Ok(hash.map(TokenHash::from_bytes))
    };
    Ok(match hash("settled")? {
        Some(settled) => {
            SessionChange::Tokens(id, Tokens::restore(settled, hash("fresh")?), row.get("epoch")?)
        }
        None => SessionChange::End(id),
    })
}

#[cfg(test)]
mod tests;
