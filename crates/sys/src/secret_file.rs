//! Files that hold secrets or that must never be seen half-written.
//!
//! Invariants: a file written here is readable by its owner alone from the first byte on, appears
//! under its name complete or not at all (also after a power cut), and never replaces another file
//! unless asked to. This module must not know what the files mean.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is a file of that name, and replacing was not requested.
    #[error("{} exists already; remove it or choose another place", path.display())]
    Exists {
        /// The file that is in the way.
        path: PathBuf,
    },
    #[error("can't write {}: {source}", path.display())]
    Io {
        /// The file that was to be written.
        path: PathBuf,
        source: io::Error,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Leave it and fail with [`WriteError::Exists`].
    Refuse,
    /// Put the new one in its place in one step.
    Replace,
}

/// The permission bits of a file with secrets.
pub const SECRET_MODE: u32 = 0o600;
/// The permission bits of a file that everyone may read.
pub const PUBLIC_MODE: u32 = 0o644;

/// Writes `bytes` to `path` with permissions `mode`, atomically and durably.
pub fn write(path: &Path, bytes: &[u8], mode: u32, existing: Existing) -> Result<(), WriteError> {
    Staged::new(path, bytes, mode)?.publish(existing)
}

/// A file that is complete and durable, but does not have its name yet. Dropping it removes it.
pub struct Staged {
    temporary: PathBuf,
    path: PathBuf,
}

impl Staged {
    /// Writes all of it beside `path`. Writes that may fail on a full disk fail here.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn new(path: &Path, bytes: &[u8], mode: u32) -> Result<Self, WriteError> {
        let io = |source| WriteError::Io { path: path.to_owned(), source };
        let (temporary, mut file) = create_beside(path, mode).map_err(io)?;
        let staged = Self { temporary, path: path.to_owned() };
        fill(&mut file, bytes, mode).map_err(io)?;
        Ok(staged)
    }

    /// Gives it its name.
    pub fn publish(self, existing: Existing) -> Result<(), WriteError> {
        let io = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => WriteError::Exists { path: self.path.clone() },
            _ => WriteError::Io { path: self.path.clone(), source },
        };
        publish(&self.temporary, &self.path, existing).map_err(io)?;
        sync_directory(&self.path).map_err(io)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After `publish` it has another name; a leftover that can't be removed is readable by its
        // owner alone.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Removes what processes that were killed have left of their attempts to write `path`.
pub fn remove_leftovers(path: &Path) -> io::Result<()> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
    for entry in fs::read_dir(parent(path))? {
        let entry = entry?.file_name();
        let number = entry.to_str().and_then(|entry| {
            entry.strip_prefix('.')?.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".new")
        });
        if number.is_some_and(|number| number.len() == 16 && u64::from_str_radix(number, 16).is_ok()) {
            fs::remove_file(parent(path).join(entry))?;
        }
    }
    Ok(())
}

/// The directory that holds `path`; `.` for a bare name.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn create_beside(path: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{:016x}.new", rand::random::<u64>()));
    let temporary = parent(path).join(temporary);
    let file = OpenOptions::new().write(true).create_new(true).mode(mode & SECRET_MODE).open(&temporary)?;
    Ok((temporary, file))
}

fn fill(file: &mut File, bytes: &[u8], mode: u32) -> io::Result<()> {
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

/// Gives the finished file its name. A hard link fails if the name is taken, which `rename` would
/// not.
fn publish(temporary: &Path, path: &Path, existing: Existing) -> io::Result<()> {
    match existing {
        Existing::Replace => fs::rename(temporary, path),
        Existing::Refuse => {
            fs::hard_link(temporary, path)?;
            fs::remove_file(temporary)
        }
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_readable_by_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.pem");
        write(&path, b"secret", SECRET_MODE, Existing::Refuse).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap(), b"secret");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn unnamed_and_leftover_temporary_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.pem");
        drop(Staged::new(&path, b"secret", SECRET_MODE).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        std::mem::forget(Staged::new(&path, b"secret", SECRET_MODE).unwrap());
        for other in [".other.pem.0123456789abcdef.new", ".key.pem.note.new", "key.pem"] {
            fs::write(dir.path().join(other), "another's").unwrap();
        }
        remove_leftovers(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing else goes");
    }

    #[test]
    fn refuses_to_replace_unless_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server.toml");
        write(&path, b"first", PUBLIC_MODE, Existing::Refuse).unwrap();
        let error = write(&path, b"second", PUBLIC_MODE, Existing::Refuse).unwrap_err();
        assert!(matches!(error, WriteError::Exists { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        write(&path, b"third", PUBLIC_MODE, Existing::Replace).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
    }
}
