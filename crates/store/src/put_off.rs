//! Changes that wait because the store can't be written now, or does not keep them: another process
//! holds it, its server is away, its disk is full, or it is damaged.
//!
//! They are changes of sessions, timestamps of WireGuard handshakes, without which old handshakes
//! could be replayed, kicks of WireGuard devices, and [kicks] of users. INVARIANT: such a change is
//! in the state directory before it is acknowledged, counts at once, and is in the store before
//! later ones are written there. What the directory does not keep either is not acknowledged; an
//! end of a session or a kick still holds while this process runs. What it is about is no secret
//! and no right: hashes of tokens, sessions that are over, users who are kept out. Damaged, it may
//! have had the end of any session, or the kick of its device: all that the store has end then.

mod file;
pub(crate) mod kicks;
mod shown;
mod walls;

use std::collections::BTreeSet;
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior};
use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::session::{DeviceId, SessionId};

use crate::sql::columns::{bytes, optional_bytes};
use crate::sql::{self, Optional as _, Row, Transaction, Value, digest, params, sessions, users, wireguard};
use crate::{HandshakeShown, RevocationCause, SessionChange, SessionRecord, StoreError, UserId};
use file::PutOffFile;
use kicks::Kicks;
use shown::Shown;
use vpnd_sys::clock::wall_s;
pub(crate) use walls::{Wall, Walls};

/// Changes that are made together later, at most.
const BATCH: u32 = 64;
/// Ends and kicks of which neither the store nor the state directory knows, at most.
const MAX_UNKEPT: usize = 16_384;

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
    file: Arc<PutOffFile>,
    kicks: Kicks,
    /// Whether the store could not be written when it was tried last, or there may be changes.
    is_held: AtomicBool,
    unkept: Mutex<Unkept>,
}

/// Sessions that are over, and walls, which the file has not taken.
#[derive(Clone, Debug, Default)]
struct Unkept {
    ends: BTreeSet<SessionId>,
    walls: Vec<Wall>,
}

impl PutOff {
    /// Changes of the store at `store`, which another process may have left.
    pub(crate) fn beside(store: &Path) -> Self {
        let file = Arc::new(PutOffFile::beside(store));
        let (kicks, is_held) = (Kicks::new(Arc::clone(&file)), file.is_left());
        Self { file, kicks, is_held: is_held.into(), unkept: Mutex::default() }
    }

    /// Kicks of users that wait here.
    pub(crate) fn kicks(&self) -> &Kicks {
        &self.kicks
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
                // The gateway has ended it: its client must not go on.
                Err(error) if matches!(changes, [SessionChange::End(_)]) => {
                    tracing::error!(store = behind.name(), %error, "the user store does not keep the end of a session, which is tried again");
                    return self.keep_all(false, changes.iter()).map(|()| vec![true]);
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
                self.keep_all(true, begun.iter())?;
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
        self.keep_all(true, kept)?;
        Ok(exist)
    }

    /// Writes to the file; those that come later are put off, too, if it `holds` them.
    fn keep<T>(
        &self,
        holds: bool,
        work: impl FnOnce(&mut Connection) -> sql::Result<T>,
    ) -> Result<T, StoreError> {
        self.file.with(|database| {
            self.file.set_left(true);
            // The store may be free by now, and no longer known as held.
            self.is_held.fetch_or(holds, Ordering::AcqRel);
            work(database)
        })
    }

    fn keep_all<'c>(
        &self,
        holds: bool,
        changes: impl Iterator<Item = &'c SessionChange> + Clone,
    ) -> Result<(), StoreError> {
        let mut to_keep = changes.clone();
        let kept = self.keep(holds, |database| {
            let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
            to_keep.try_for_each(|change| keep_change(&Transaction::new(&*transaction), change))?;
            Ok(transaction.commit()?)
        });
        if kept.is_err() {
            let mut unkept = self.unkept.lock();
            let ends = changes.filter_map(|change| match change {
                SessionChange::End(id) => Some(*id),
                SessionChange::Add(..) | SessionChange::Tokens(..) => None,
            });
            let room = MAX_UNKEPT.saturating_sub(unkept.ends.len());
            unkept.ends.extend(ends.take(room));
        }
        kept
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
        self.keep(true, |database| {
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

    /// The timestamps that are not in the store yet. To be read before the store is: one may get
    /// there meanwhile.
    pub(crate) fn shown(&self) -> Result<Shown, StoreError> {
        if !self.is_left() {
            return Ok(Shown::default());
        }
        let kept = self.file.with(|database| {
            let kept = sql::Connection::new(database);
            kept.statement("SELECT * FROM handshakes").query_all((), shown_from_row)
        })?;
        Ok(Shown::new(kept))
    }

    /// Keeps that a device was walled, in the store or here.
    pub(crate) fn wall(&self, behind: &impl Behind, wall: Wall) -> Result<(), StoreError> {
        let mut holds = self.is_held();
        if !holds {
            let Err(error) = behind.wall(Pace::Urgent, &[wall]) else { return Ok(()) };
            holds = error.is_for_now();
            tracing::warn!(store = behind.name(), %error, "a kick of a device waits for the user store, and holds until then");
        }
        let kept = self.keep(holds, |database| {
            let sql = "INSERT INTO walls (device, at_s) VALUES (?1, ?2)
                       ON CONFLICT DO UPDATE SET at_s = excluded.at_s";
            sql::Connection::new(database).execute(sql, params![wall.0.0, wall.1]).map(drop)
        });
        if kept.is_err() {
            let mut unkept = self.unkept.lock();
            unkept.walls.retain(|(device, _)| *device != wall.0);
            if unkept.walls.len() < MAX_UNKEPT {
                unkept.walls.push(wall);
            }
        }
        kept
    }

    /// The walls that are not in the store yet. To be read before the store is: one may get there
    /// meanwhile.
    pub(crate) fn walls(&self) -> Result<Walls, StoreError> {
        let mut kept = self.unkept.lock().walls.clone();
        if !self.is_left() {
            return Ok(Walls { kept, are_lost: false });
        }
        kept.extend(self.kept_walls()?);
        Ok(Walls { kept, are_lost: self.file.are_lost() })
    }

    fn kept_walls(&self) -> Result<Vec<Wall>, StoreError> {
        self.file.with(|database| {
            sql::Connection::new(database).statement("SELECT * FROM walls").query_all((), wall_from_row)
        })
    }

    /// The session as it is by the store and what was put off.
    pub(crate) fn session(
        &self,
        behind: &impl Behind,
        id: SessionId,
        now_s: u64,
    ) -> Result<Option<SessionRecord>, StoreError> {
        self.newest(behind.stored_session(id, now_s)?)
    }

    /// A session of the store with what was put off.
    pub(crate) fn newest(&self, stored: Option<SessionRecord>) -> Result<Option<SessionRecord>, StoreError> {
        let Some(stored) = stored else { return Ok(None) };
        if self.unkept.lock().ends.contains(&stored.id) {
            return Ok(None);
        }
        if !self.is_left() {
            return Ok(Some(stored));
        }
        let sql = "SELECT * FROM changes WHERE session = ?";
        let newest = self.file.with(|database| {
            sql::Connection::new(database).query_row(sql, [stored.id.0], change_from_row).optional()
        })?;
        Ok(match newest {
            Some(SessionChange::Tokens(_, tokens, epoch)) if epoch >= stored.epoch => {
                Some(SessionRecord { tokens, epoch, ..stored })
            }
            Some(SessionChange::End(_)) => None,
            None if self.file.are_lost() => None,
            _ => Some(stored),
        })
    }

    /// Makes the changes that were put off, as [`super::Sqlite::catch_up`] has it. Others can be
    /// put off meanwhile, for the store may take its time. One that the store does not keep holds
    /// no others up.
    pub(crate) fn catch_up(&self, behind: &impl Behind, now_s: u64) -> Result<usize, StoreError> {
        let mut count = self.make_unkept(behind, now_s)?;
        while self.is_left() || self.is_held() {
            let walls = self.kept_walls()?;
            self.make_up(behind)?;
            let (changes, shown) = self.file.with(|database| {
                let kept = sql::Connection::new(database);
                let changes = kept.statement("SELECT * FROM changes LIMIT ?");
                let changes: Vec<SessionChange> = changes.query_all([BATCH], change_from_row)?;
                let shown = kept.statement("SELECT * FROM handshakes LIMIT ?");
                let shown: Vec<HandshakeShown> = shown.query_all([BATCH], shown_from_row)?;
                Ok((changes, shown))
            })?;
            let mut not_kept = None;
            // Before the sessions of these devices are over.
            let walls = match &walls[..] {
                [] => Vec::new(),
                walls => make(walls, &mut not_kept, |walls| behind.wall(Pace::Later, walls))?,
            };
            let shown = make(&shown, &mut not_kept, |shown| behind.keep_shown(Pace::Later, shown).map(drop))?;
            let alter = |changes: &[SessionChange]| behind.alter(Pace::Later, changes, now_s).map(drop);
            let changes = make(&changes, &mut not_kept, alter)?;
            self.forget(&changes, &shown, &walls)?;
            count += changes.len() + shown.len() + walls.len();
            if let Some(error) = not_kept {
                if alter(&[]).is_ok() {
                    self.is_held.store(false, Ordering::Release);
                }
                return Err(error);
            }
        }
        Ok(count)
    }

    /// Makes what the file has not taken; how many changes that were.
    fn make_unkept(&self, behind: &impl Behind, now_s: u64) -> Result<usize, StoreError> {
        let Unkept { ends, walls } = self.unkept.lock().clone();
        if ends.is_empty() && walls.is_empty() {
            return Ok(0);
        }
        let ends: Vec<SessionChange> = ends.into_iter().map(SessionChange::End).collect();
        let mut not_kept = None;
        let walls = make(&walls, &mut not_kept, |walls| behind.wall(Pace::Later, walls))?;
        let alter = |ends: &[SessionChange]| behind.alter(Pace::Later, ends, now_s).map(drop);
        let ends = make(&ends, &mut not_kept, alter)?;
        let mut unkept = self.unkept.lock();
        unkept.walls.retain(|wall| !walls.contains(&wall));
        for end in &ends {
            if let SessionChange::End(id) = end {
                unkept.ends.remove(id);
            }
        }
        not_kept.map_or(Ok(ends.len() + walls.len()), Err)
    }

    /// Ends all that a damaged database may have been about.
    fn make_up(&self, behind: &impl Behind) -> Result<(), StoreError> {
        if !self.file.are_lost() {
            return Ok(());
        }
        behind.end_all(wall_s())?;
        self.file.made_up()
    }

    /// Forgets changes that are made, unless there are newer ones in their place by now.
    fn forget(
        &self,
        changes: &[&SessionChange],
        shown: &[&HandshakeShown],
        walls: &[&Wall],
    ) -> Result<(), StoreError> {
        self.file.with(|database| {
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
            if !is_left {
                self.file.set_left(false);
                self.is_held.store(false, Ordering::Release);
            }
            Ok(())
        })
    }

    /// Whether changes are put off without a try to make them.
    fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// Whether there may be changes, or some were lost.
    pub(crate) fn is_left(&self) -> bool {
        self.file.is_left()
    }
}

/// Makes all of these changes, or, if the store does not keep one, each by itself; those that were
/// made, and why one was not.
fn make<'i, T>(
    items: &'i [T],
    not_kept: &mut Option<StoreError>,
    attempt: impl Fn(&[T]) -> Result<(), StoreError>,
) -> Result<Vec<&'i T>, StoreError> {
    match attempt(items) {
        Ok(()) => return Ok(items.iter().collect()),
        Err(error) if error.is_for_now() => return Err(error),
        Err(error) => *not_kept = Some(error),
    }
    let mut made = Vec::new();
    for item in items {
        match attempt(slice::from_ref(item)) {
            Ok(()) => made.push(item),
            Err(error) if error.is_for_now() => return Err(error),
            Err(error) => *not_kept = Some(error),
        }
    }
    Ok(made)
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

fn keep_change(t: &Transaction<'_>, change: &SessionChange) -> sql::Result<()> {
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
