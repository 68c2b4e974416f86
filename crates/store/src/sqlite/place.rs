//! The files of a store: whether they are there, what they are, and the disk below them. What
//! stands in them is not looked at.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use super::super::StoreError;

/// Length of the header with which every database begins, bytes
/// (<https://www.sqlite.org/fileformat.html>, section 1.3).
const SQLITE_HEADER_LEN: u64 = 100;
/// Tells a store that is not there from one that this process may not open, or should not.
pub(super) fn reachable(path: &Path) -> Result<(), StoreError> {
    plain_files(path)?;
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(StoreError::Missing { path: path.to_owned() })
        }
        Err(source) => Err(StoreError::Unreadable { path: path.to_owned(), source }),
    }
}

/// Refuses a store of which a file is a link, a pipe or the like: SQLite would follow it or wait
/// for it. For people who look for the cause. It does not stop an attacker who exchanges the file a
/// moment later; the sandbox does, which leaves only this directory in reach of the process.
pub(crate) fn plain_files(path: &Path) -> Result<(), StoreError> {
    for suffix in ["", "-journal", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        let kind = match fs::symlink_metadata(&file) {
            Ok(found) => found.file_type(),
            Err(_) => continue,
        };
        if !kind.is_file() {
            let kind = if kind.is_symlink() { "a symbolic link" } else { "no regular file" };
            let detail = format!(
                "{} is {kind}: vpnd did not make it so; find out who did, then remove it",
                Path::new(&file).display()
            );
            return Err(StoreError::Failed { path: path.to_owned(), detail });
        }
    }
    Ok(())
}

/// Path of [`Sqlite::back_up`]'s copy.
pub(in super::super) fn backup_path(path: &Path) -> PathBuf {
    path.with_extension("db.backup")
}

/// Whether nothing is left of a store. One that a killed first start has made is empty and has no
/// backup yet. SQLite takes a single byte for an empty database, too.
pub(super) fn is_emptied(path: &Path) -> bool {
    match fs::metadata(path).map(|file| file.len()) {
        Ok(0) => backup_path(path).exists(),
        Ok(len) => len < SQLITE_HEADER_LEN,
        Err(_) => false,
    }
}

/// Whether there is no room left for what SQLite needs at least, its shared memory, on the disk of
/// `path`.
pub(super) fn is_full(path: &Path) -> bool {
    const SHARED_MEMORY: u64 = 32 * 1024;
    let directory = vpnd_sys::secret_file::parent(path);
    rustix::fs::statvfs(directory)
        .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < SHARED_MEMORY)
}
