//! The file of a state directory in which changes wait for the store, and for a fleet's other
//! gateways.
//!
//! A command may write it while the auth process has it open. INVARIANT: a change of it is on the
//! disk once it is made. A damaged file is set aside and stays so until the store has lost all
//! sessions that it may have been about.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rusqlite::Connection;
use vpnd_sys::{own_file, secret_file};

use crate::StoreError;
use crate::sql;
use crate::sqlite::connections::open;
use crate::sqlite::{explain_sql, plain_files};

const SCHEMA: &str = include_str!("schema.sql");

/// The file as one process has it.
#[derive(Debug)]
pub(super) struct PutOffFile {
    path: PathBuf,
    /// The place of one that was set aside.
    damaged: PathBuf,
    /// Whether there may be changes of sessions, or some may be lost.
    is_left: AtomicBool,
    database: Mutex<Option<Opened>>,
}

#[derive(Debug)]
struct Opened {
    connection: Connection,
    file: FileId,
}

/// Device and inode.
type FileId = (u64, u64);

impl PutOffFile {
    /// The file of the store at `store`, which another process may have left. Nothing is opened
    /// before it is needed.
    pub(super) fn beside(store: &Path) -> Self {
        let [path, damaged] = ["db.put-off", "db.put-off.damaged"].map(|end| store.with_extension(end));
        let is_left = path.exists() || damaged.exists();
        Self { path, damaged, is_left: is_left.into(), database: Mutex::default() }
    }

    /// Whether there may be anything in it.
    pub(super) fn exists(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| found.len() > 0)
    }

    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    pub(super) fn set_left(&self, is_left: bool) {
        self.is_left.store(is_left, Ordering::Release);
    }

    /// Whether changes were lost that the store has not made up for.
    pub(super) fn are_lost(&self) -> bool {
        self.damaged.exists()
    }

    /// The store has lost all sessions that lost changes may have been about.
    pub(super) fn made_up(&self) -> Result<(), StoreError> {
        fs::remove_file(&self.damaged).map_err(|error| self.failed(&error))
    }

    pub(super) fn with<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> sql::Result<T>,
    ) -> Result<T, StoreError> {
        let mut database = self.database.lock();
        if database.take_if(|opened| file_id(&self.path).ok() != Some(opened.file)).is_some() {
            // Another process has set it aside.
            self.set_left(true);
        }
        let opened = match &mut *database {
            Some(opened) => opened,
            none => none.insert(self.open()?),
        };
        let done = work(&mut opened.connection).map_err(|error| explain_sql(&self.path, error));
        if done.is_err() {
            // The next call opens it again, and sets a damaged one aside.
            *database = None;
        }
        done
    }

    fn open(&self) -> Result<Opened, StoreError> {
        plain_files(&self.path)?;
        let connection = match self.prepare() {
            Err(StoreError::Corrupted { detail, .. }) => {
                tracing::error!(
                    path = %self.path.display(), detail,
                    "changes that waited for the user store or other gateways are lost: the sessions that it has end, \
                     WireGuard devices that had one have to be renewed, for they may have been kicked, and whom you have \
                     disabled or kicked since the store was away you have to disable or kick again"
                );
                self.set_aside().map_err(|error| self.failed(&error))?;
                self.prepare()
            }
            opened => opened,
        }?;
        Ok(Opened { connection, file: file_id(&self.path).map_err(|error| self.failed(&error))? })
    }

    fn prepare(&self) -> Result<Connection, StoreError> {
        drop(own_file::open_or_create(&self.path).map_err(|error| self.failed(&error))?);
        let prepared = open(&self.path).and_then(|connection| {
            connection.pragma_update(None, "journal_mode", "truncate")?;
            connection.pragma_update(None, "synchronous", "full")?;
            connection.pragma_update(None, "trusted_schema", false)?;
            connection.execute_batch(SCHEMA)?;
            let found: String = connection.query_row("PRAGMA quick_check(1)", (), |row| row.get(0))?;
            Ok((connection, found))
        });
        match prepared.map_err(|error| explain_sql(&self.path, error.into()))? {
            (connection, found) if found == "ok" => Ok(connection),
            (_, damage) => Err(StoreError::corrupted(self.path.clone(), damage)),
        }
    }

    /// Moves a damaged file to its other name, without its journal.
    fn set_aside(&self) -> io::Result<()> {
        let mut journal = self.path.as_os_str().to_owned();
        journal.push("-journal");
        match fs::remove_file(journal) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::rename(&self.path, &self.damaged)?,
        }
        self.set_left(true);
        File::open(secret_file::parent(&self.path))?.sync_all()
    }

    fn failed(&self, error: &io::Error) -> StoreError {
        StoreError::Failed { path: self.path.clone(), detail: error.to_string() }
    }
}

fn file_id(path: &Path) -> io::Result<FileId> {
    let found = fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(file: &PutOffFile) -> u64 {
        file.with(|c| Ok(c.query_row("SELECT count(*) FROM walls", (), |row| row.get(0))?)).unwrap()
    }

    fn add(file: &PutOffFile, device: u8) {
        let insert = "INSERT INTO walls (device, at_s) VALUES (?, 1)";
        file.with(|c| Ok(c.execute(insert, [[device; 16]])?)).unwrap();
    }

    #[test]
    fn a_file_that_another_process_has_set_aside_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let [file, others] = [(); 2].map(|()| PutOffFile::beside(&directory.path().join("vpnd.db")));
        assert!(!file.exists() && !file.is_left());
        add(&file, 1);
        others.set_aside().unwrap();
        add(&others, 2);
        assert!(!file.is_left());
        add(&file, 3);
        assert!(file.is_left() && file.are_lost(), "changes are lost");
        assert_eq!(rows(&others), 2, "both have one file");
    }
}
