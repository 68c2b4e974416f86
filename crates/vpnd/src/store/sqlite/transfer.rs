//! A store as bytes: a copy of one moment, and a copy that takes a store's place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{Sqlite, StoreError};
use crate::secret_file;

/// What SQLite keeps beside a database.
const BESIDE: [&str; 2] = ["-wal", "-shm"];

impl Sqlite {
    /// A copy of this moment, in a file that has no name any more. Others may read and write the store meanwhile.
    pub fn copy(&self) -> Result<File, StoreError> {
        let failed = |error: io::Error| self.failed(&error);
        let temporary = self.path.with_extension("db.copy");
        remove(&temporary).map_err(failed)?;
        let mut file = create(&temporary).map_err(failed)?;
        let copied = self
            .read(|connection| connection.backup("main", &temporary, None::<fn(rusqlite::backup::Progress)>));
        // Two at the same time: this one's name may stand for the other's file by now.
        let is_ours = fs::metadata(&temporary).is_ok_and(|named| {
            file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (named.dev(), named.ino()))
        });
        remove(&temporary).map_err(failed)?;
        copied?;
        if !is_ours {
            return Err(StoreError::Busy { path: self.path.clone() });
        }
        file.rewind().map_err(failed)?;
        Ok(file)
    }

    /// Forgets all sessions; inner addresses stay reserved for their devices.
    fn forget_sessions(&self) -> Result<(), StoreError> {
        self.change(|t| t.execute("DELETE FROM sessions", ()).map(drop).map(Ok))
    }

    fn failed(&self, error: &io::Error) -> StoreError {
        StoreError::Failed { path: self.path.clone(), detail: error.to_string() }
    }
}

/// A store that is to take another's place. Dropped before [`Replacement::publish`], it leaves nothing.
pub struct Replacement {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl Replacement {
    /// For the store at `path`, which may be there, be damaged or be missing.
    pub fn new(path: &Path) -> Result<Self, StoreError> {
        let failed =
            |error: io::Error| StoreError::Failed { path: path.to_owned(), detail: error.to_string() };
        let temporary = path.with_extension("db.restore");
        let directory = secret_file::parent(path);
        // A process that has shut itself in makes none.
        if !directory.is_dir() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        }
        clear(&temporary).map_err(failed)?;
        let file = create(&temporary).map_err(failed)?;
        Ok(Self { path: path.to_owned(), temporary, file })
    }

    /// Adds bytes to it.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                StoreError::Full { path: self.path.clone() }
            }
            _ => self.failed(error),
        })
    }

    /// Checks it as a whole, without its sessions, and puts it in place. Whether there was a store, which is `….replaced` now.
    pub fn publish(self) -> Result<bool, StoreError> {
        self.file.sync_all().map_err(|error| self.failed(error))?;
        let store = Sqlite::open(&self.temporary)?;
        store.forget_sessions()?;
        // SQLite empties its log into the file when the last connection ends.
        drop(store);
        if BESIDE.iter().any(|suffix| beside(&self.temporary, suffix).exists()) {
            return Err(self.failed(io::Error::other("its log could not be emptied")));
        }
        let there = self.put_in_place().map_err(|error| self.failed(error))?;
        Ok(there)
    }

    fn put_in_place(&self) -> io::Result<bool> {
        let kept = self.path.with_extension("db.replaced");
        clear(&kept)?;
        let there = self.path.exists();
        if there {
            fs::rename(&self.path, &kept)?;
        }
        // The newest changes may be in its log alone.
        let log = beside(&self.path, "-wal");
        if there && log.exists() {
            fs::rename(&log, beside(&kept, "-wal"))?;
        }
        clear(&self.path)?;
        fs::rename(&self.temporary, &self.path)?;
        File::open(secret_file::parent(&self.path))?.sync_all()?;
        Ok(there)
    }

    fn failed(&self, error: io::Error) -> StoreError {
        StoreError::Failed { path: self.path.clone(), detail: error.to_string() }
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After `publish` it has another name; a leftover goes with the next restore.
        let _ = clear(&self.temporary);
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Removes a database and what SQLite keeps beside it.
fn clear(path: &Path) -> io::Result<()> {
    remove(path)?;
    BESIDE.iter().try_for_each(|suffix| remove(&beside(path, suffix)))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
