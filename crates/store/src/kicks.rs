//! Kicks of users on their way to all gateways of a fleet, in a small database in the state directory.
//!
//! A command leaves a kick here and reads what has become of it, for neither depends on the store's
//! server. The auth process has the other gateways carry it out, and the store. INVARIANT: a kick is on
//! the disk before it is acknowledged, and stays until the store has it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use minicbor::{Decode, Encode};
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, ToSql, params};
use vpnd_sys::clock::Clocks;

use crate::postgres::CLOCK_TOLERANCE_S;
use crate::put_off::{prepare, set_aside};
use crate::sqlite::{explain_sql, plain_files};
use crate::{Device, LiveUser, RevocationCause, Store, StoreError};

/// Its name.
const FILE_NAME: &str = "kicks.db";
/// Kicks that are read at once, as many as there may be orders to all gateways.
const MAX_KICKS: u64 = 256;
/// Time for the auth process to have other gateways know of a kick, seconds. Then the store has it,
/// whether they do or not.
const TELL_FIRST_S: u64 = 1;

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS kicks (
    id     BLOB PRIMARY KEY CHECK (length(id) = 16),
    user   TEXT NOT NULL,
    at_s   INTEGER NOT NULL,
    steady INTEGER,
    ended  INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS confirmations (
    kick    BLOB NOT NULL,
    gateway TEXT NOT NULL,
    ended   INTEGER,
    PRIMARY KEY (kick, gateway)
) STRICT, WITHOUT ROWID";

/// A user's sessions are to end at all gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kick {
    /// Its name: random bytes.
    pub id: [u8; 16],
    /// The user's login name.
    pub user: String,
    /// By the clock that people set: the command has none of the daemon's.
    pub at_s: u64,
}

/// A kick that the auth process has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenKick {
    /// The kick that the command has left.
    pub kick: Kick,
    /// Its time by the clock of sessions, as it was when it was seen: the other clock may be set
    /// meanwhile.
    pub steady_s: u64,
    /// The sessions that the store had, once it has the kick.
    pub ended: Option<u64>,
}

/// The state of a kick at the store and the other gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct KickProgress {
    /// The sessions that the store had, once it has the kick.
    #[n(0)]
    pub stored: Option<u64>,
    /// The other gateways, and the sessions that have ended there, once they have.
    #[n(1)]
    pub gateways: Vec<(String, Option<u64>)>,
}

/// The kicks of a gateway.
#[derive(Debug)]
pub struct Kicks {
    path: PathBuf,
    database: Mutex<Option<Opened>>,
}

/// The database as one process has it. Another one may have set it aside since.
#[derive(Debug)]
struct Opened {
    connection: Connection,
    file: FileId,
}

/// Device and inode.
type FileId = (u64, u64);

impl Kicks {
    /// Those of this state directory. Nothing is opened before it is needed.
    #[must_use]
    pub fn of_state_dir(state_dir: &Path) -> Self {
        Self { path: state_dir.join(FILE_NAME), database: Mutex::default() }
    }

    /// Leaves a kick for the auth process.
    pub fn leave(&self, kick: &Kick) -> Result<(), StoreError> {
        let Kick { id, user, at_s } = kick;
        self.with(|kicks| {
            kicks.execute("INSERT INTO kicks (id, user, at_s) VALUES (?, ?, ?)", params![id, user, at_s])
        })?;
        Ok(())
    }

    /// Gives the kicks that were left since the last call their time by the clock of sessions. Others are
    /// not found below.
    pub fn see(&self, clocks: Clocks) -> Result<(), StoreError> {
        if !self.path.exists() {
            return Ok(());
        }
        self.with(|kicks| {
            let is_new = "SELECT 1 FROM kicks WHERE steady IS NULL LIMIT 1";
            if !kicks.prepare_cached(is_new)?.exists(())? {
                return Ok(());
            }
            let (wall_s, steady_s) = ((clocks.wall)(), (clocks.steady)());
            let sql = "UPDATE kicks SET steady = max(0, ?2 - max(0, ?1 - at_s)) WHERE steady IS NULL";
            kicks.execute(sql, params![wall_s, steady_s]).map(drop)
        })
    }

    /// The kicks that some other gateway has not confirmed, the newest first, some hundreds at most: a
    /// gateway that is off for long keeps none of these from the others.
    pub fn unconfirmed(&self) -> Result<Vec<SeenKick>, StoreError> {
        let which = "(SELECT count(*) = 0 OR count(*) > count(ended) FROM confirmations WHERE kick = id)
                     ORDER BY at_s DESC, id LIMIT ?1";
        self.find(which, params![MAX_KICKS])
    }

    /// The kicks that the store has, but for those of the last `for_s` seconds; the oldest first,
    /// some hundreds at most.
    pub fn stored(&self, for_s: u64, clocks: Clocks) -> Result<Vec<SeenKick>, StoreError> {
        let which = "kicks.ended IS NOT NULL AND abs(?1 - steady) > ?2 ORDER BY at_s, id LIMIT ?3";
        self.find(which, params![(clocks.steady)(), for_s, MAX_KICKS])
    }

    fn find(&self, which: &str, params: &[&dyn ToSql]) -> Result<Vec<SeenKick>, StoreError> {
        if !self.path.exists() {
            return Ok(Vec::new());
        }
        self.with(|kicks| {
            let sql = format!(
                "SELECT id, user, at_s, steady, kicks.ended FROM kicks
                 WHERE steady IS NOT NULL AND {which}"
            );
            let mut statement = kicks.prepare_cached(&sql)?;
            let rows = statement.query_map(params, |row| {
                let kick = Kick { id: row.get(0)?, user: row.get(1)?, at_s: row.get(2)? };
                Ok(SeenKick { kick, steady_s: row.get(3)?, ended: row.get(4)? })
            })?;
            rows.collect()
        })
    }

    /// The state of a kick; `None` if there is no such kick, or no longer.
    pub fn progress(&self, id: &[u8; 16]) -> Result<Option<KickProgress>, StoreError> {
        self.with(|kicks| {
            let stored = kicks.query_row("SELECT ended FROM kicks WHERE id = ?", [id], |row| row.get(0));
            let Some(stored) = stored.optional()? else { return Ok(None) };
            let sql = "SELECT gateway, ended FROM confirmations WHERE kick = ? ORDER BY gateway";
            let mut statement = kicks.prepare_cached(sql)?;
            let rows = statement.query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(Some(KickProgress { stored, gateways: rows.collect::<Result<_, _>>()? }))
        })
    }

    /// Keeps what other gateways have done about a kick.
    pub fn confirm(&self, id: &[u8; 16], gateways: &[(String, Option<u64>)]) -> Result<(), StoreError> {
        self.with(|kicks| {
            let transaction = kicks.transaction()?;
            for (gateway, ended) in gateways {
                let sql = "INSERT INTO confirmations (kick, gateway, ended) SELECT id, ?2, ?3 FROM kicks WHERE id = ?1
                           ON CONFLICT DO UPDATE SET ended = coalesce(excluded.ended, ended)";
                transaction.execute(sql, params![id, gateway, ended])?;
            }
            transaction.commit()
        })
    }

    /// Makes those of the kicks that the store does not have of which other gateways know, or which
    /// are older than the time for that; how many they were.
    pub fn write(
        &self,
        store: &dyn Store,
        is_sent: impl Fn(&[u8; 16]) -> bool,
        clocks: Clocks,
    ) -> Result<usize, StoreError> {
        let (mut count, mut after) = (0, Vec::new());
        loop {
            let batch =
                self.find("kicks.ended IS NULL AND id > ?1 ORDER BY id LIMIT ?2", params![after, MAX_KICKS])?;
            let Some(last) = batch.last() else { return Ok(count) };
            after = last.kick.id.to_vec();
            let steady_s = (clocks.steady)();
            let is_due =
                |seen: &&SeenKick| is_sent(&seen.kick.id) || seen.steady_s.abs_diff(steady_s) > TELL_FIRST_S;
            for seen in batch.iter().filter(is_due) {
                let ended = make(store, seen, clocks)?;
                self.with(|kicks| {
                    kicks.execute("UPDATE kicks SET ended = ? WHERE id = ?", params![ended, seen.kick.id])
                })?;
                count += 1;
            }
        }
    }

    /// Forgets a kick that the store has.
    pub fn forget(&self, id: &[u8; 16]) -> Result<(), StoreError> {
        self.with(|kicks| {
            let transaction = kicks.transaction()?;
            if transaction.execute("DELETE FROM kicks WHERE id = ? AND ended IS NOT NULL", [id])? == 1 {
                transaction.execute("DELETE FROM confirmations WHERE kick = ?", [id])?;
            }
            transaction.commit()
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let mut database = self.database.lock();
        database.take_if(|opened| file_id(&self.path).ok() != Some(opened.file));
        let opened = match &mut *database {
            Some(opened) => opened,
            none => none.insert(self.open()?),
        };
        let done = work(&mut opened.connection).map_err(|error| explain_sql(&self.path, error.into()));
        if done.is_err() {
            // The next call opens it again, and sets a damaged one aside.
            *database = None;
        }
        done
    }

    /// Opens the database. A damaged one is set aside.
    fn open(&self) -> Result<Opened, StoreError> {
        plain_files(&self.path)?;
        let failed =
            |error: io::Error| StoreError::Failed { path: self.path.clone(), detail: error.to_string() };
        let connection = match prepare(&self.path, SCHEMA) {
            Err(StoreError::Corrupted { detail, .. }) => {
                tracing::error!(
                    path = %self.path.display(), detail,
                    "kicks that waited for other gateways or the user database are lost: kick those users again"
                );
                set_aside(&self.path, &self.path.with_extension("db.damaged")).map_err(failed)?;
                prepare(&self.path, SCHEMA)
            }
            opened => opened,
        }?;
        Ok(Opened { connection, file: file_id(&self.path).map_err(failed)? })
    }
}

fn file_id(path: &Path) -> io::Result<FileId> {
    let found = fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Ends the sessions that a user had at the time of the kick, and has the WireGuard devices of that time
/// stay out until they are renewed; how many sessions there were.
fn make(store: &dyn Store, seen: &SeenKick, clocks: Clocks) -> Result<u64, StoreError> {
    let SeenKick { kick, steady_s, .. } = seen;
    let Some(user) = store.user(&kick.user)? else { return Ok(0) };
    let until_s = steady_s.saturating_add(2 * CLOCK_TOLERANCE_S);
    let (user, now_s) = (LiveUser::of(&user), (clocks.wall)());
    // Wherever their sessions were.
    for device in store.wireguard_devices_of(user.id)? {
        if device.renewed_s <= kick.at_s {
            store.wall_wireguard_device(device.id, now_s)?;
        }
    }
    let devices = store.devices(user.id)?.into_iter().filter(|device| device.session.is_some());
    let is_meant = |device: &Device| device.session_since_s.is_none_or(|since_s| since_s <= until_s);
    let (meant, later): (Vec<Device>, Vec<_>) = devices.partition(is_meant);
    if later.is_empty() {
        store.end_sessions(&user, RevocationCause::Kicked, now_s)?;
    } else {
        // The user has logged in again, where there was a database.
        for device in &meant {
            store.end_device(&user, device.id, RevocationCause::Kicked, now_s)?;
        }
    }
    Ok(meant.len() as u64)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use vpnd_proto::session::SessionId;

    use super::*;
    use crate::conformance::session_of;
    use crate::sqlite::Sqlite;
    use crate::{NewUser, PasswordHash, Revocations as _, SessionRecord, Sessions as _, Users as _};

    fn kick(id: u8, at_s: u64) -> Kick {
        Kick { id: [id; 16], user: "ann".to_owned(), at_s }
    }

    fn write(kicks: &Kicks, store: &Sqlite, clocks: Clocks) -> usize {
        kicks.see(clocks).unwrap();
        kicks.write(store, |_| true, clocks).unwrap()
    }

    fn unconfirmed(kicks: &Kicks) -> Vec<Kick> {
        kicks.see(CLOCKS).unwrap();
        kicks.unconfirmed().unwrap().into_iter().map(|seen| seen.kick).collect()
    }

    const CLOCKS: Clocks = Clocks { wall: || 5_000, steady: || 4_000 };

    #[test]
    fn a_kick_waits_for_the_store_over_a_restart_and_is_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        store.add_user(&NewUser::new("ann", PasswordHash::new("x".to_owned())), 1_000).unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        assert!(unconfirmed(&kicks).is_empty() && !directory.path().join(FILE_NAME).exists());
        kicks.leave(&kick(1, 10)).unwrap();
        kicks.leave(&kick(2, 9)).unwrap();
        drop(kicks);
        let kicks = Kicks::of_state_dir(directory.path());
        assert_eq!(unconfirmed(&kicks), [kick(1, 10), kick(2, 9)], "the newest first");
        kicks.forget(&[1; 16]).unwrap();
        assert_eq!(unconfirmed(&kicks).len(), 2, "the store does not have it");
        let before = store.last_revocation().unwrap();
        assert_eq!(write(&kicks, &store, CLOCKS), 2);
        assert_eq!(store.last_revocation().unwrap(), before + 2);
        assert_eq!(write(&kicks, &store, CLOCKS), 0);
        assert!(kicks.unconfirmed().unwrap().iter().all(|kick| kick.ended == Some(0)));
        kicks.forget(&[1; 16]).unwrap();
        assert_eq!((unconfirmed(&kicks).len(), kicks.progress(&[1; 16]).unwrap()), (1, None));
    }

    #[test]
    fn confirmations_are_of_kicks_that_there_are() {
        let directory = tempfile::tempdir().unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        kicks.leave(&kick(1, 10)).unwrap();
        let gateways = |ended| vec![("gw2".to_owned(), ended), ("gw3".to_owned(), None)];
        for ended in [None, Some(2)] {
            kicks.confirm(&[1; 16], &gateways(ended)).unwrap();
            let known = KickProgress { stored: None, gateways: gateways(ended) };
            assert_eq!(kicks.progress(&[1; 16]).unwrap(), Some(known));
        }
        kicks.confirm(&[2; 16], &gateways(None)).unwrap();
        assert_eq!(kicks.progress(&[2; 16]).unwrap(), None);
    }

    #[test]
    fn a_kick_that_comes_late_to_the_store_ends_no_later_session() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        let user = store.add_user(&NewUser::new("ann", PasswordHash::new("x".to_owned())), 1_000).unwrap();
        let begin = |id: u8, started_s| {
            let record = SessionRecord { started_s, expires_s: 9_000, ..session_of(user, id) };
            assert!(store.add_session(&record, 0).unwrap());
        };
        begin(1, 2_000);
        begin(2, 3_900);
        let kicks = Kicks::of_state_dir(directory.path());
        kicks.leave(&kick(1, 4_500)).unwrap();
        assert_eq!(write(&kicks, &store, CLOCKS), 1);
        let exists = |id| store.session(SessionId([id; 16]), 4_000).unwrap().is_some();
        assert!(!exists(1) && exists(2), "it was given at 3,500 of the sessions' clock");
        kicks.leave(&kick(2, 4_890)).unwrap();
        assert_eq!(write(&kicks, &store, CLOCKS), 1);
        assert!(!exists(2), "clocks may differ by as much");
    }

    #[test]
    fn a_damaged_database_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        fs::write(&path, [b'x'; 4_096]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        assert!(unconfirmed(&kicks).is_empty());
        kicks.leave(&kick(1, 10)).unwrap();
        assert_eq!(unconfirmed(&kicks), [kick(1, 10)]);
        assert!(directory.path().join("kicks.db.damaged").exists());
    }

    #[test]
    fn a_database_that_another_process_has_set_aside_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        let kicks = Kicks::of_state_dir(directory.path());
        kicks.leave(&kick(1, 10)).unwrap();
        set_aside(&path, &path.with_extension("db.damaged")).unwrap();
        Kicks::of_state_dir(directory.path()).leave(&kick(2, 20)).unwrap();
        assert_eq!(unconfirmed(&kicks), [kick(2, 20)]);
    }

    #[test]
    fn kicks_are_written_and_the_newest_sent_however_many_wait_for_a_gateway() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        let numbered = |number: u64| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_be_bytes());
            Kick { id, user: "ann".to_owned(), at_s: 1_000 + number }
        };
        // One transaction for all: a test waits for the disk once.
        kicks
            .with(|database| {
                let transaction = database.transaction()?;
                for Kick { id, user, at_s } in (0..=2 * MAX_KICKS).map(numbered) {
                    let sql = "INSERT INTO kicks (id, user, at_s) VALUES (?, ?, ?)";
                    transaction.execute(sql, params![id, user, at_s])?;
                    let sql = "INSERT INTO confirmations (kick, gateway, ended) VALUES (?, 'off', NULL)";
                    transaction.execute(sql, [id])?;
                }
                transaction.commit()
            })
            .unwrap();
        let to_send = unconfirmed(&kicks);
        assert_eq!((to_send.len(), &to_send[0]), (MAX_KICKS as usize, &numbered(2 * MAX_KICKS)));
        kicks.confirm(&to_send[0].id, &[("off".to_owned(), Some(1))]).unwrap();
        kicks.confirm(&to_send[0].id, &[("off".to_owned(), None)]).unwrap();
        assert_eq!(unconfirmed(&kicks)[0], numbered(2 * MAX_KICKS - 1), "it has all confirmations");
        assert_eq!(write(&kicks, &store, CLOCKS), 2 * MAX_KICKS as usize + 1);
        assert_eq!(kicks.stored(0, CLOCKS).unwrap()[0].kick, numbered(0));
    }

    #[test]
    fn a_kick_is_written_although_no_gateway_knows_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        kicks.leave(&kick(1, 5_000)).unwrap();
        kicks.see(CLOCKS).unwrap();
        let written = |steady| kicks.write(&store, |_| false, Clocks { steady, ..CLOCKS }).unwrap();
        assert_eq!(written(|| 4_000 + TELL_FIRST_S), 0, "others may learn of it yet");
        assert_eq!(written(|| 4_001 + TELL_FIRST_S), 1);
    }

    #[test]
    fn a_step_of_the_systems_clock_changes_no_kick_that_waits() {
        let directory = tempfile::tempdir().unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        for (id, wall) in (1..).zip([|| 5_000, || 9_000, || 1_000_u64]) {
            kicks.leave(&kick(id, 4_990)).unwrap();
            kicks.see(Clocks { wall, ..CLOCKS }).unwrap();
            let found = kicks.unconfirmed().unwrap();
            assert_eq!((found[0].kick.id, found[0].steady_s), ([1; 16], 3_990));
        }
    }
}
