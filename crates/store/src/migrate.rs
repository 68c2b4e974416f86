//! A store that moves from one engine to the other.
//!
//! Invariants: the new store has everything or is not there; the old one stays as it is, and nobody
//! changes it meanwhile; a store that has something in it is never written over.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use crate::StoreError;
use crate::postgres::{Access, Dial, Holder, Postgres};
use crate::sql::{Database as _, copy};
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
        if !copy::is_empty(to)? {
            let detail = "there are users in it already; a store moves into an empty database".to_owned();
            return Ok(Err(StoreError::Unsuitable { store: access.name(), detail }));
        }
        // Within a transaction, so that nobody changes it meanwhile.
        let mut outcome = Ok(0);
        let read = from.change(|from| {
            outcome = copy::everything(from, to);
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
            // What is not there needs no removing.
            let _ = fs::remove_file(name);
        }
    };
    clear();
    let moved = copy_into(&from, &temporary).and_then(|users| {
        let failed =
            |error: std::io::Error| StoreError::Failed { path: path.to_owned(), detail: error.to_string() };
        File::open(&temporary).and_then(|file| file.sync_all()).map_err(failed)?;
        fs::rename(&temporary, path).map_err(failed)?;
        File::open(state_dir).and_then(|directory| directory.sync_all()).map_err(failed)?;
        Ok(users)
    });
    if moved.is_err() {
        clear();
    }
    moved
}

fn copy_into(from: &Postgres, path: &Path) -> Result<usize, StoreError> {
    let to = Sqlite::open_or_create(path)?;
    to.revoke(|to| {
        let mut outcome = Ok(0);
        let read = from.change(|from| {
            outcome = copy::everything(from, to);
            Ok(Ok(()))
        });
        match read {
            Ok(()) => outcome.map(Ok),
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
