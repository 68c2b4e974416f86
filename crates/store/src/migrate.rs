//! A store that moves from one engine to the other.
//!
//! Invariants: the new store has everything or is not there; the old one stays as it is, and no
//! process changes it meanwhile; a store that has something in it is never written over.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use crate::StoreError;
use crate::postgres::{Access, Dial, Holder, Postgres};
use crate::sql::{self, Database as _, Transaction, copy};
use crate::sqlite::Sqlite;

/// Copies the embedded store at `path` into a database without users; the number of users.
///
/// # Errors
/// [`StoreError`], after which the database has nothing of it.
pub fn to_postgres(
    path: &Path,
    access: &Access,
    dial: &Arc<dyn Dial>,
    holder: &Holder,
) -> Result<usize, StoreError> {
    let from = Sqlite::open(path)?;
    Postgres::create(access, dial, holder)?;
    refuse_running(access, dial)?;
    let state_dir = vpnd_sys::secret_file::parent(path);
    let to = Postgres::open(access, Arc::clone(dial), holder.clone(), state_dir)?;
    to.change(|to| {
        lift_limits(to)?;
        if !copy::is_empty(to)? {
            let detail = "there are users in it already; a store moves into an empty database".to_owned();
            return Ok(Err(StoreError::Unsuitable { store: access.name(), detail }));
        }
        // Within a transaction, so that it does not change meanwhile.
        let mut outcome = Ok(0);
        let read = from.change(|from| {
            outcome = copy::rows(from, to);
            Ok(Ok(()))
        });
        match read {
            Ok(()) => outcome.map(Ok),
            Err(error) => Ok(Err(error)),
        }
    })
}

/// Copies a database into an embedded store at `path`, where none may be; the number of users.
///
/// # Errors
/// [`StoreError`], after which no store is at `path`.
pub fn to_sqlite(
    access: &Access,
    dial: &Arc<dyn Dial>,
    holder: &Holder,
    path: &Path,
) -> Result<usize, StoreError> {
    if path.exists() {
        let detail =
            format!("it is there already; move {} and its -wal and -shm files away first", path.display());
        return Err(StoreError::Unsuitable { store: path.display().to_string(), detail });
    }
    refuse_running(access, dial)?;
    let state_dir = vpnd_sys::secret_file::parent(path);
    let from = Postgres::open(access, Arc::clone(dial), holder.clone(), state_dir)?;
    let temporary = path.with_extension("db.migrating");
    let clear = || {
        for suffix in ["", "-wal", "-shm"] {
            let mut name = temporary.as_os_str().to_owned();
            name.push(suffix);
            // A file that is not there needs no removing.
            let _ = fs::remove_file(name);
        }
    };
    clear();
    let moved = copy_into(&from, &temporary).and_then(|users| put_in_place(&temporary, path).map(|()| users));
    if moved.is_err() {
        clear();
    }
    moved
}

fn put_in_place(temporary: &Path, path: &Path) -> Result<(), StoreError> {
    let failed =
        |error: std::io::Error| StoreError::Failed { path: path.to_owned(), detail: error.to_string() };
    let mut log = temporary.as_os_str().to_owned();
    log.push("-wal");
    // SQLite empties its log into the file when the last connection ends, unless that fails.
    if fs::metadata(log).is_ok_and(|log| log.len() > 0) {
        return Err(failed(std::io::Error::other("its log could not be emptied; is the disk full?")));
    }
    File::open(temporary).and_then(|file| file.sync_all()).map_err(failed)?;
    fs::rename(temporary, path).map_err(failed)?;
    File::open(vpnd_sys::secret_file::parent(path)).and_then(|directory| directory.sync_all()).map_err(failed)
}

/// The other store takes its time while this one waits, and for large tables this one does.
fn lift_limits(t: &Transaction<'_>) -> sql::Result<()> {
    let limits = ["idle_in_transaction_session_timeout", "statement_timeout"];
    limits.iter().try_for_each(|limit| t.execute(&format!("SET LOCAL {limit} = 0"), ()).map(drop))
}

fn copy_into(from: &Postgres, path: &Path) -> Result<usize, StoreError> {
    let to = Sqlite::open_or_create(path)?;
    to.revoke(|to| {
        let mut outcome = Ok(0);
        let read = from.change(|from| {
            outcome = lift_limits(from).and_then(|()| copy::rows(from, to));
            Ok(Ok(()))
        });
        // Digests are many statements, for which the database need not wait.
        match read {
            Ok(()) => outcome.and_then(|users| copy::digests(to).map(|()| Ok(users))),
            Err(error) => Ok(Err(error)),
        }
    })
}

fn refuse_running(access: &Access, dial: &Arc<dyn Dial>) -> Result<(), StoreError> {
    match Postgres::running(access, dial)? {
        Some(gateway) => {
            let detail = format!("the gateway '{gateway}' runs on it; stop that first");
            Err(StoreError::Unsuitable { store: access.name(), detail })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Users as _;
    use crate::conformance::ann;
    use crate::postgres::testing::Cluster;
    use crate::sqlite::connections::open;

    #[test]
    fn a_store_whose_log_has_a_part_of_it_is_not_put_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let (temporary, path) = (directory.path().join("new.db"), directory.path().join("vpnd.db"));
        let store = Sqlite::open_or_create(&temporary).unwrap();
        let reader = open(&temporary).unwrap();
        reader.execute_batch("BEGIN; SELECT * FROM users").unwrap();
        store.add_user(&ann(), 1).unwrap();
        drop(store);
        assert!(put_in_place(&temporary, &path).is_err() && !path.exists());
        drop(reader);
        put_in_place(&temporary, &path).unwrap();
        assert!(Sqlite::open(&path).unwrap().user("ann").unwrap().is_some());
    }

    #[test]
    fn a_database_waits_for_a_slow_copy() {
        let start = Cluster::start("127.0.0.1", |path| std::process::Command::new(path), "");
        let Some(cluster) = start else { return };
        let (access, dial) = cluster.access(&cluster.database());
        let dial: Arc<dyn Dial> = Arc::new(dial);
        let directory = tempfile::tempdir().unwrap();
        let holder = Holder { gateway: [1; 16], instance: None, fleet: None, name: "gw1".to_owned() };
        Postgres::create(&access, &dial, &holder).unwrap();
        let store = Postgres::open(&access, dial, holder, directory.path()).unwrap();
        let limits = store.change(|t| {
            lift_limits(t)?;
            let sql = "SELECT current_setting('idle_in_transaction_session_timeout') || current_setting('statement_timeout')";
            t.query_row(sql, (), |row| row.get::<_, String>(0)).map(Ok)
        });
        assert_eq!(limits.unwrap(), "00");
    }
}
