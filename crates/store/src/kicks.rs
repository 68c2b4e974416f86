//! Kicks of users on their way to all gateways of a fleet, in a small database in the state directory.
//!
//! A command leaves a kick here and reads what has become of it, for neither depends on the store's
//! server. The auth process has the other gateways carry it out, and the store. INVARIANT: a kick is on
//! the disk before it is acknowledged, and stays until the store has it.

use std::fs;
use std::path::{Path, PathBuf};

use minicbor::{Decode, Encode};
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, params};
use vpnd_sys::clock::Clocks;

use crate::postgres::CLOCK_TOLERANCE_S;
use crate::put_off::prepare;
use crate::sqlite::{explain_sql, plain_files};
use crate::{Device, LiveUser, RevocationCause, Store, StoreError};

/// Its name.
const FILE_NAME: &str = "kicks.db";
/// Kicks that are read at once; others wait for their turn.
const MAX_READ: usize = 256;

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS kicks (
    id     BLOB PRIMARY KEY CHECK (length(id) = 16),
    user   TEXT NOT NULL,
    at_s   INTEGER NOT NULL,
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
    /// The sessions that the store had, once it has the kick.
    pub ended: Option<u64>,
}

impl Kick {
    /// Its time by the clock of sessions.
    #[must_use]
    pub fn steady_s(&self, clocks: Clocks) -> u64 {
        let age_s = (clocks.wall)().saturating_sub(self.at_s);
        (clocks.steady)().saturating_sub(age_s)
    }
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
    database: Mutex<Option<Connection>>,
}

impl Kicks {
    /// Those of this state directory. Nothing is opened before it is needed.
    #[must_use]
    pub fn of_state_dir(state_dir: &Path) -> Self {
        Self { path: state_dir.join(FILE_NAME), database: Mutex::default() }
    }

    /// Leaves a kick for the auth process.
    pub fn leave(&self, kick: &Kick) -> Result<(), StoreError> {
        let Kick { id, user, at_s, .. } = kick;
        self.with(|kicks| {
            kicks.execute("INSERT INTO kicks (id, user, at_s) VALUES (?, ?, ?)", params![id, user, at_s])
        })?;
        Ok(())
    }

    /// The oldest kicks that are not forgotten.
    pub fn all(&self) -> Result<Vec<Kick>, StoreError> {
        if !self.path.exists() {
            return Ok(Vec::new());
        }
        self.with(|kicks| {
            let sql = "SELECT id, user, at_s, ended FROM kicks ORDER BY at_s, id LIMIT ?";
            let mut statement = kicks.prepare_cached(sql)?;
            let rows = statement.query_map([MAX_READ as u64], |row| {
                Ok(Kick { id: row.get(0)?, user: row.get(1)?, at_s: row.get(2)?, ended: row.get(3)? })
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
                           ON CONFLICT DO UPDATE SET ended = excluded.ended";
                transaction.execute(sql, params![id, gateway, ended])?;
            }
            transaction.commit()
        })
    }

    /// Makes those of these kicks that the store does not have; how many they were.
    pub fn write(&self, store: &dyn Store, kicks: &[Kick], clocks: Clocks) -> Result<usize, StoreError> {
        let mut count = 0;
        for kick in kicks.iter().filter(|kick| kick.ended.is_none()) {
            let ended = make(store, kick, clocks)?;
            self.with(|kicks| {
                kicks.execute("UPDATE kicks SET ended = ? WHERE id = ?", params![ended, kick.id])
            })?;
            count += 1;
        }
        Ok(count)
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
        let connection = match &mut *database {
            Some(connection) => connection,
            none => none.insert(self.open()?),
        };
        let done = work(connection).map_err(|error| explain_sql(&self.path, error.into()));
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
                    "kicks that waited for other gateways or the user database are lost: kick those users again"
                );
                let aside = self.path.with_extension("db.damaged");
                fs::rename(&self.path, aside).map_err(|error| {
                    let detail = error.to_string();
                    StoreError::Failed { path: self.path.clone(), detail }
                })?;
                prepare(&self.path, SCHEMA)
            }
            opened => opened,
        }
    }
}

/// Ends the sessions that a user had at the time of the kick, and has the WireGuard devices of that time
/// stay out until they are renewed; how many sessions there were.
fn make(store: &dyn Store, kick: &Kick, clocks: Clocks) -> Result<u64, StoreError> {
    let Some(user) = store.user(&kick.user)? else { return Ok(0) };
    let until_s = kick.steady_s(clocks).saturating_add(2 * CLOCK_TOLERANCE_S);
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
        Kick { id: [id; 16], user: "ann".to_owned(), at_s, ended: None }
    }

    fn write(kicks: &Kicks, store: &Sqlite, clocks: Clocks) -> usize {
        kicks.write(store, &kicks.all().unwrap(), clocks).unwrap()
    }

    #[test]
    fn a_kick_waits_for_the_store_over_a_restart_and_is_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        store.add_user(&NewUser::new("ann", PasswordHash::new("x".to_owned())), 1_000).unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        assert!(kicks.all().unwrap().is_empty() && !directory.path().join(FILE_NAME).exists());
        kicks.leave(&kick(1, 10)).unwrap();
        kicks.leave(&kick(2, 9)).unwrap();
        drop(kicks);
        let kicks = Kicks::of_state_dir(directory.path());
        assert_eq!(kicks.all().unwrap(), [kick(2, 9), kick(1, 10)]);
        kicks.forget(&[1; 16]).unwrap();
        assert_eq!(kicks.all().unwrap().len(), 2, "the store does not have it");
        let before = store.last_revocation().unwrap();
        assert_eq!(write(&kicks, &store, Clocks::default()), 2);
        assert_eq!(store.last_revocation().unwrap(), before + 2);
        assert_eq!(write(&kicks, &store, Clocks::default()), 0);
        assert!(kicks.all().unwrap().iter().all(|kick| kick.ended == Some(0)));
        kicks.forget(&[1; 16]).unwrap();
        assert_eq!((kicks.all().unwrap().len(), kicks.progress(&[1; 16]).unwrap()), (1, None));
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
        let clocks = Clocks { wall: || 5_000, steady: || 4_000 };
        let begin = |id: u8, started_s| {
            let record = SessionRecord { started_s, expires_s: 9_000, ..session_of(user, id) };
            assert!(store.add_session(&record, 0).unwrap());
        };
        begin(1, 2_000);
        begin(2, 3_900);
        let kicks = Kicks::of_state_dir(directory.path());
        kicks.leave(&kick(1, 4_500)).unwrap();
        assert_eq!(write(&kicks, &store, clocks), 1);
        let exists = |id| store.session(SessionId([id; 16]), 4_000).unwrap().is_some();
        assert!(!exists(1) && exists(2), "it was given at 3,500 of the sessions' clock");
        kicks.leave(&kick(2, 4_890)).unwrap();
        assert_eq!(write(&kicks, &store, clocks), 1);
        assert!(!exists(2), "clocks may differ by as much");
    }

    #[test]
    fn a_damaged_database_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        fs::write(&path, [b'x'; 4_096]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        assert!(kicks.all().unwrap().is_empty());
        kicks.leave(&kick(1, 10)).unwrap();
        assert_eq!(kicks.all().unwrap(), [kick(1, 10)]);
        assert!(directory.path().join("kicks.db.damaged").exists());
    }
}
