//! A locked file, by which others know that its holder lives.

use std::fs::{File, TryLockError};
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use crate::own_file;

/// A file under an exclusive lock (flock(2)), which ends with this value or with the process,
/// however that ends.
///
/// Closing the file would not do: a program that is being started holds a copy of each descriptor
/// until it runs, and the lock lasts as long as any copy does.
#[derive(Debug)]
pub struct LockedFile(File);

impl LockedFile {
    /// The file next to a control socket whose lock shows that the socket's daemon lives.
    pub fn path_of_socket(socket: &Path) -> PathBuf {
        let mut name = socket.as_os_str().to_owned();
        name.push(".lock");
        name.into()
    }

    /// Locks [`Self::path_of_socket`]; `None` if the daemon lives.
    ///
    /// # Errors
    /// If the file can't be made, or the file system has no locks.
    pub fn of_socket(socket: &Path) -> io::Result<Option<Self>> {
        // Less privileged processes may write in the directory.
        Self::try_lock(own_file::open_or_create(&Self::path_of_socket(socket))?)
    }

    /// Locks `file`, which waits until no other process holds it.
    ///
    /// # Errors
    /// If the file system has no locks.
    pub fn lock(file: File) -> io::Result<Self> {
        file.lock()?;
        Ok(Self(file))
    }

    /// Locks `file`; `None` if another process holds it.
    ///
    /// # Errors
    /// If the file system has no locks.
    pub fn try_lock(file: File) -> io::Result<Option<Self>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // If this fails, the kernel unlocks it when the last copy is closed.
        let _ = self.0.unlock();
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl DerefMut for LockedFile {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_ends_with_its_holder_though_a_copy_of_the_descriptor_stays_open() {
        let dir = tempfile::tempdir().unwrap();
        let open = || File::create(dir.path().join("lock")).unwrap();
        let first = LockedFile::lock(open()).unwrap();
        let copy = first.try_clone().unwrap();
        assert!(LockedFile::try_lock(open()).unwrap().is_none());
        drop(first);
        assert!(LockedFile::try_lock(open()).unwrap().is_some());
        drop(copy);
    }
}
