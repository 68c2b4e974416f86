//! Changes of sessions that were put off because another process held the store, or its server was
//! away, in a small database in the state directory.
//!
//! Timestamps of WireGuard handshakes wait there, too: without them old handshakes could be
//! replayed; and kicks of WireGuard devices. INVARIANT: such a change is on the disk before it is
//! acknowledged, counts in [`PutOff::session`] and [`PutOff::walls`] at once, and is in the store
//! before later ones are written there. What it is about is no secret and no right: hashes of tokens,
//! and sessions that are over. A damaged database may have had the end of any session, or the kick of
//! its device: all that the store has end then.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior};
use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::session::{DeviceId, SessionId};

use crate::sql::columns::{bytes, optional_bytes};
use crate::sql::{self, Optional as _, Row, Transaction, Value, digest, params, sessions, users, wireguard};
use crate::sqlite::connections::open;
use crate::sqlite::{explain_sql, plain_files};
use crate::{
    FoundDevice, HandshakeShown, RevocationCause, SessionChange, SessionRecord, StoreError, UserId,
    WireGuardDevice,
};
use vpnd_sys::clock::wall_s;
use vpnd_sys::{own_file, secret_file};

/// Changes that are made together later, at most.
const BATCH: u32 = 64;

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS changes (
    session BLOB PRIMARY KEY CHECK (length(session) = 16),
    settled BLOB CHECK (length(settled) = 32),
    fresh   BLOB CHECK (length(fresh) = 32),
    epoch   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS handshakes (
    public_key BLOB NOT NULL CHECK (length(public_key) = 32),
    is_own     INTEGER NOT NULL,
    time       BLOB NOT NULL CHECK (length(time) = 12),
    PRIMARY KEY (public_key, is_own)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS walls (
    device BLOB PRIMARY KEY CHECK (length(device) = 16),
    at_s   INTEGER NOT NULL
) STRICT, WITHOUT ROWID";

/// A WireGuard device, and since when its sessions are not valid until it is renewed.
pub(crate) type Wall = (DeviceId, u64);

/// The walls that are not in the store yet.
pub(crate) struct Walls {
    kept: Vec<Wall>,
    /// Whether there may be more: any device with a session may have been kicked.
    are_lost: bool,
}

impl Walls {
    /// Since when the sessions of a device are not valid, as the store found it after this was read.
    pub(crate) fn of(&self, FoundDevice { device, has_session, .. }: &FoundDevice) -> Option<u64> {
        self.kept(device).or_else(|| (self.are_lost && *has_session).then(wall_s))
    }

    /// Since when they are not valid, by walls that were not lost.
    pub(crate) fn kept(&self, device: &WireGuardDevice) -> Option<u64> {
        let of_it = |(id, at_s): &&Wall| *id == device.id && *at_s >= device.renewed_s;
        self.kept.iter().find(of_it).map(|(_, at_s)| *at_s)
    }
}

/// Limits of a change's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Clients wait for it, and all others behind it.
    Urgent,
    /// It was put off.
    Later,
}

/// A store, of which changes are put off while it can't be written.
pub(crate) trait Behind {
    /// Its name for people.
    fn name(&self) -> String;
    /// Why it can't be written now, without a try.
    fn held_up(&self) -> StoreError;
    /// Makes changes at this pace, or fails; after [`StoreError::is_uncertain`] they may be made.
    fn alter(&self, pace: Pace, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError>;
    /// Keeps timestamps of handshakes, of which only later ones count.
    fn keep_shown(&self, pace: Pace, shown: &[HandshakeShown]) -> Result<Vec<bool>, StoreError>;
    /// Keeps that devices were walled. A later one may have been renewed since.
    fn wall(&self, pace: Pace, walls: &[Wall]) -> Result<(), StoreError>;
    /// Does [`end_all`].
    fn end_all(&self, at_s: u64) -> Result<(), StoreError>;
    /// A session as it was written last.
    fn stored_session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError>;
    /// Looks a session up for a change of it, for which all others wait.
    fn known_session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError> {
        self.stored_session(id, now_s)
    }
}

/// The changes that were put off.
#[derive(Debug)]
pub(crate) struct PutOff {
    path: PathBuf,
    /// Where a damaged one stays until the store has lost all sessions that it may have been about.
    damaged: PathBuf,
    /// Whether the store could not be written when it was tried last, or there may be changes.
    is_held: AtomicBool,
    database: Mutex<Option<Connection>>,
}

impl PutOff {
    /// Changes of the store at `store`, which another process may have left.
    pub(crate) fn beside(store: &Path) -> Self {
        let [path, damaged] = ["db.put-off", "db.put-off.damaged"].map(|end| store.with_extension(end));
        let is_held = path.exists() || damaged.exists();
        Self { path, damaged, is_held: is_held.into(), database: Mutex::default() }
    }

    /// Makes all changes. If another process holds the store, those of sessions that there are are
    /// put off; others fail as [`StoreError::Busy`].
    pub(crate) fn change(
        &self,
        behind: &impl Behind,
        changes: &[SessionChange],
        now_s: u64,
    ) -> Result<Vec<bool>, StoreError> {
        let mut held = None;
        if !self.is_held() {
            match behind.alter(Pace::Urgent, changes, now_s) {
                Err(error) if error.is_for_now() => {
                    self.is_held.store(true, Ordering::Release);
                    tracing::warn!(store = behind.name(), %error, "sessions go on, logins wait for the user store");
                    held = Some(error);
                }
                done => return done,
            }
        }
        let begun = changes.iter().filter_map(|change| match change {
            SessionChange::Add(session, _) => Some(SessionChange::End(session.id)),
            SessionChange::Tokens(..) | SessionChange::End(_) => None,
        });
        let begun: Vec<SessionChange> = begun.collect();
        if !begun.is_empty() {
            let error = held.unwrap_or_else(|| behind.held_up());
            // Their clients are refused, so one that is in the store is to end.
            if error.is_uncertain() {
                self.keep_all(begun.iter())?;
            }
            return Err(error);
        }
        // A change of a session that is gone has no effect.
        let exists = |change: &SessionChange| match change {
            SessionChange::Tokens(id, ..) => {
                let known = behind.known_session(*id, now_s)?;
                Ok(self.newest(known)?.is_some())
            }
            SessionChange::Add(..) | SessionChange::End(_) => Ok(true),
        };
        let exist = changes.iter().map(exists).collect::<Result<Vec<bool>, StoreError>>()?;
        let kept = changes.iter().zip(&exist).filter(|(_, exists)| **exists).map(|(change, _)| change);
        self.keep_all(kept)?;
        Ok(exist)
    }

    fn keep_all<'c>(&self, changes: impl Iterator<Item = &'c SessionChange>) -> Result<(), StoreError> {
        let mut changes = changes;
        self.with(|database| {
            // The store may be free by now, and no longer known as held.
            self.is_held.store(true, Ordering::Release);
            let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
            changes.try_for_each(|change| keep(&Transaction::new(&*transaction), change))?;
            Ok(transaction.commit()?)
        })
    }

    /// Keeps timestamps of handshakes, in the store or here.
    pub(crate) fn keep_handshakes(
        &self,
        behind: &impl Behind,
        shown: &[HandshakeShown],
    ) -> Result<Vec<bool>, StoreError> {
        if !self.is_held() {
            match behind.keep_shown(Pace::Urgent, shown) {
                Err(error) if error.is_for_now() => {
                    tracing::warn!(store = behind.name(), %error, "handshakes go on without the user store");
                }
                done => return done,
            }
        }
        self.with(|database| {
            self.is_held.store(true, Ordering::Release);
            let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let sql = "INSERT INTO handshakes (public_key, is_own, time) VALUES (?, ?, ?)
                       ON CONFLICT DO UPDATE SET time = excluded.time WHERE time < excluded.time";
            let kept = Transaction::new(&*transaction);
            for HandshakeShown { public_key, time, is_own } in shown {
                kept.execute(sql, params![public_key, is_own, time])?;
            }
            transaction.commit()?;
            Ok(vec![true; shown.len()])
        })
    }

    /// Keeps that a device was walled, in the store or here.
    pub(crate) fn wall(&self, behind: &impl Behind, wall: Wall) -> Result<(), StoreError> {
        if !self.is_held() {
            match behind.wall(Pace::Urgent, &[wall]) {
                Err(error) if error.is_for_now() => {
                    tracing::warn!(store = behind.name(), %error, "a kick of a device waits for the user store, and holds until then");
                }
                done => return done,
            }
        }
        self.with(|database| {
            self.is_held.store(true, Ordering::Release);
            let sql = "INSERT INTO walls (device, at_s) VALUES (?1, ?2)
                       ON CONFLICT DO UPDATE SET at_s = excluded.at_s";
            sql::Connection::new(database).execute(sql, params![wall.0.0, wall.1]).map(drop)
        })
    }

    /// The walls that are not in the store yet. To be read before the store is: one may get there
    /// meanwhile.
    pub(crate) fn walls(&self) -> Result<Walls, StoreError> {
        if !self.is_held() {
            return Ok(Walls { kept: Vec::new(), are_lost: false });
        }
        let kept = self.with(|database| {
            sql::Connection::new(database).statement("SELECT * FROM walls").query_all((), wall_from_row)
        })?;
        Ok(Walls { kept, are_lost: self.damaged.exists() })
    }

    /// The session as it is by the store and what was put off.
    pub(crate) fn session(
        &self,
        behind: &impl Behind,
        id: SessionId,
        now_s: u64,
    ) -> Result<Option<SessionRecord>, StoreError> {
        let stored = behind.stored_session(id, now_s)?;
        if self.is_held() { self.newest(stored) } else { Ok(stored) }
    }

    /// A session of the store with what was put off.
    fn newest(&self, stored: Option<SessionRecord>) -> Result<Option<SessionRecord>, StoreError> {
        let Some(stored) = stored else { return Ok(None) };
        let sql = "SELECT * FROM changes WHERE session = ?";
        let newest = self.with(|database| {
            sql::Connection::new(database).query_row(sql, [stored.id.0], change_from_row).optional()
        })?;
        Ok(match newest {
            Some(SessionChange::Tokens(_, tokens, epoch)) if epoch >= stored.epoch => {
                Some(SessionRecord { tokens, epoch, ..stored })
            }
            Some(SessionChange::End(_)) => None,
            None if self.damaged.exists() => None,
            _ => Some(stored),
        })
    }

    /// Makes the changes that were put off, as [`super::Sqlite::catch_up`] has it. Others can be
    /// put off meanwhile, for the store may take its time.
    pub(crate) fn catch_up(&self, behind: &impl Behind, now_s: u64) -> Result<usize, StoreError> {
        let mut count = 0;
        while self.is_held() {
            let walls = self.walls()?.kept;
            self.make_up(behind)?;
            let (changes, shown) = self.with(|database| {
                let kept = sql::Connection::new(database);
                let changes = kept.statement("SELECT * FROM changes LIMIT ?");
                let changes: Vec<SessionChange> = changes.query_all([BATCH], change_from_row)?;
                let shown = kept.statement("SELECT * FROM handshakes LIMIT ?");
                let shown: Vec<HandshakeShown> = shown.query_all([BATCH], shown_from_row)?;
                Ok((changes, shown))
            })?;
            // Before the sessions of these devices are over.
            if !walls.is_empty() {
                behind.wall(Pace::Later, &walls)?;
            }
            behind.keep_shown(Pace::Later, &shown)?;
            behind.alter(Pace::Later, &changes, now_s)?;
            self.forget(&changes, &shown, &walls)?;
            count += changes.len() + shown.len() + walls.len();
        }
        Ok(count)
    }

    /// Ends all that a damaged database may have been about.
    fn make_up(&self, behind: &impl Behind) -> Result<(), StoreError> {
        if !self.damaged.exists() {
            return Ok(());
        }
        behind.end_all(wall_s())?;
        fs::remove_file(&self.damaged).map_err(|error| self.failed(&error))
    }

    /// Forgets changes that are made, unless there are newer ones in their place by now.
    fn forget(
        &self,
        changes: &[SessionChange],
        shown: &[HandshakeShown],
        walls: &[Wall],
    ) -> Result<(), StoreError> {
        self.with(|database| {
            let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let kept = Transaction::new(&*transaction);
            for change in changes {
                let Some(columns) = columns(change) else { continue };
                let sql =
                    "DELETE FROM changes WHERE session = ? AND settled IS ? AND fresh IS ? AND epoch = ?";
                kept.execute(sql, columns)?;
            }
            for HandshakeShown { public_key, time, is_own } in shown {
                let sql = "DELETE FROM handshakes WHERE public_key = ? AND is_own = ? AND time = ?";
                kept.execute(sql, params![public_key, is_own, time])?;
            }
            for (device, at_s) in walls {
                kept.execute("DELETE FROM walls WHERE device = ? AND at_s = ?", params![device.0, at_s])?;
            }
            let left = "SELECT 1 FROM changes UNION SELECT 1 FROM handshakes UNION SELECT 1 FROM walls";
            let is_left = kept.statement(left).exists(())?;
            transaction.commit()?;
            // Before the database is free for others.
            self.is_held.store(is_left, Ordering::Release);
            Ok(())
        })
    }

    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> sql::Result<T>) -> Result<T, StoreError> {
        let mut database = self.database.lock();
        let connection = match &mut *database {
            Some(connection) => connection,
            none => none.insert(self.open()?),
        };
        let done = work(connection).map_err(|error| explain_sql(&self.path, error));
        if matches!(done, Err(StoreError::Corrupted { .. })) {
            // The next call sets it aside.
            *database = None;
        }
        done
    }

    /// Opens the database. A damaged one is set aside.
    fn open(&self) -> Result<Connection, StoreError> {
        plain_files(&self.path)?;
        match prepare(&self.path, SCHEMA) {
            Err(StoreError::Corrupted { detail, .. }) => {
                tracing::error!(
                    path = %self.path.display(), detail,
                    "changes of sessions and kicks that waited for the user store are lost: the sessions that it has \
                     end, and WireGuard devices that had one have to be renewed, for they may have been kicked"
                );
                set_aside(&self.path, &self.damaged).map_err(|error| self.failed(&error))?;
                prepare(&self.path, SCHEMA)
            }
            opened => opened,
        }
    }

    fn failed(&self, error: &io::Error) -> StoreError {
        StoreError::Failed { path: self.path.clone(), detail: error.to_string() }
    }
}

/// Opens a small database at this path, whose changes are on the disk once they are made.
pub(crate) fn prepare(path: &Path, schema: &str) -> Result<Connection, StoreError> {
    let failed =
        |error: std::io::Error| StoreError::Failed { path: path.to_owned(), detail: error.to_string() };
    drop(own_file::open_or_create(path).map_err(failed)?);
    let prepared = open(path).and_then(|connection| {
        connection.pragma_update(None, "journal_mode", "truncate")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "trusted_schema", false)?;
        connection.execute_batch(schema)?;
        let found: String = connection.query_row("PRAGMA quick_check(1)", (), |row| row.get(0))?;
        Ok((connection, found))
    });
    match prepared.map_err(|error| explain_sql(path, error.into()))? {
        (connection, found) if found == "ok" => Ok(connection),
        (_, damage) => Err(StoreError::corrupted(path.to_owned(), damage)),
    }
}

/// Moves a damaged database of this kind to another name, without its journal.
pub(crate) fn set_aside(path: &Path, damaged: &Path) -> io::Result<()> {
    let mut journal = path.as_os_str().to_owned();
    journal.push("-journal");
    match fs::remove_file(journal) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::rename(path, damaged)?,
    }
    File::open(secret_file::parent(path))?.sync_all()
}

/// Makes changes in the store; which of them were made.
pub(crate) fn apply(t: &Transaction<'_>, changes: &[SessionChange], now_s: u64) -> sql::Result<Vec<bool>> {
    let done = changes.iter().map(|change| match change {
        SessionChange::Add(session, generation) => sessions::add(t, session, *generation),
        SessionChange::Tokens(id, tokens, epoch) => sessions::set_tokens(t, *id, tokens, *epoch),
        SessionChange::End(id) => sessions::end(t, *id, now_s).map(|()| true),
    });
    done.collect()
}

/// Ends the sessions of all users who have one here, and walls the devices of these.
pub(crate) fn end_all(t: &Transaction<'_>, at_s: u64) -> sql::Result<()> {
    let sessions = sessions::all(t)?;
    let walls: Vec<Wall> = sessions.iter().map(|session| (session.device, at_s)).collect();
    wireguard::wall(t, Pace::Urgent, &walls)?;
    let owners: BTreeSet<UserId> = sessions.into_iter().map(|session| session.user).collect();
    for id in owners {
        let Some(user) = users::by_id(t, id)? else { continue };
        users::revoke(t, id, &user.name, RevocationCause::Kicked, at_s)?;
        digest::renew(t, id)?;
    }
    Ok(())
}

fn keep(t: &Transaction<'_>, change: &SessionChange) -> sql::Result<()> {
    let Some(columns) = columns(change) else { return Ok(()) };
    let sql = "INSERT OR REPLACE INTO changes (session, settled, fresh, epoch) VALUES (?, ?, ?, ?)";
    t.execute(sql, columns).map(drop)
}

/// A change as a row. A session that begins is not put off.
fn columns(change: &SessionChange) -> Option<Vec<Value>> {
    match change {
        SessionChange::Tokens(id, tokens, epoch) => {
            let fresh = tokens.fresh().map(|fresh| *fresh.as_bytes());
            Some(params![id.0, tokens.settled().as_bytes(), fresh, epoch])
        }
        SessionChange::End(id) => Some(params![id.0, None::<Vec<u8>>, None::<Vec<u8>>, 0_u32]),
        SessionChange::Add(..) => None,
    }
}

fn shown_from_row(row: &Row<'_>) -> sql::Result<HandshakeShown> {
    Ok(HandshakeShown {
        public_key: bytes(row, "public_key")?,
        time: bytes(row, "time")?,
        is_own: row.get("is_own")?,
    })
}

fn wall_from_row(row: &Row<'_>) -> sql::Result<Wall> {
    Ok((DeviceId(bytes(row, "device")?), row.get("at_s")?))
}

fn change_from_row(row: &Row<'_>) -> sql::Result<SessionChange> {
    let id = SessionId(bytes(row, "session")?);
    let hash = |column| -> sql::Result<Option<TokenHash>> {
        Ok(optional_bytes(row, column)?.map(TokenHash::from_bytes))
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
