//! The directory of undo journals, which only the privileged process writes, and the checks that
//! hold it to that.
//!
//! INVARIANT: whatever is read, written or removed here is reached through the descriptor of a
//! directory that was opened one component after the other, none of them a symbolic link, and each
//! of them checked on its open descriptor: it belongs to root or to this process's user, and no
//! other user can put something in its place. So a journal that is undone was written by a user who
//! has the privileges to make the changes directly.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;

use super::{JournalError, os_error};
use vpnd_sys::lock::LockedFile;
use vpnd_sys::own_file;

/// The longest journal that is read, bytes.
pub(super) const MAX_LEN: u64 = 16 << 20;
/// Length up to which an entry that another process holds is read.
const MAX_HELD: u64 = 4_096;

const PRIVATE_DIRECTORY: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Bits of a mode that let others put something in place of what is in a directory.
const WRITABLE_BY_OTHERS: RawMode = 0o022;
/// Only its owner may rename or remove an entry of a directory with this bit.
const STICKY: RawMode = 0o1000;
/// Attempts to create a file that another process takes for abandoned and removes.
const ATTEMPTS: usize = 16;

/// An open directory of journals.
#[derive(Debug)]
pub struct JournalDirectory {
    path: PathBuf,
    handle: OwnedFd,
    /// Device and inode number of it and of each directory above it.
    lineage: Vec<(u64, u64)>,
}

/// Result of opening another process's journal.
pub(super) enum Opened {
    /// It is abandoned, and now locked by the holder of the file.
    Abandoned(LockedFile, Vec<u8>),
    /// Its process is alive.
    InUse,
    /// It was removed meanwhile.
    Gone,
    /// It is not what the privileged process writes, and why.
    Untrusted(String),
}

impl JournalDirectory {
    /// Opens the directory at `path`; `None` if there is none.
    ///
    /// # Errors
    /// [`JournalError`], also if a user without privileges could have written in it.
    pub fn open(path: &Path) -> Result<Option<Self>, JournalError> {
        match Self::walk(path, false) {
            Err(JournalError::Os { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Opens the directory, and makes what is missing of it.
    pub fn create(path: &Path) -> Result<Self, JournalError> {
        Self::walk(path, true)
    }

    /// Checks that `other`, in which less privileged processes write, is neither this directory nor
    /// above it.
    ///
    /// # Errors
    /// [`JournalError::Untrusted`] if it is.
    pub fn stay_clear_of(&self, other: &Path) -> Result<(), JournalError> {
        let id = match rustix::fs::stat(other) {
            Ok(found) => identity(&found),
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(os_error(other, "examined", errno.into())),
        };
        if self.lineage.contains(&id) {
            let reason = format!("it lies in {}, where less privileged processes write", other.display());
            return Err(untrusted(&self.path, reason));
        }
        Ok(())
    }

    fn walk(path: &Path, make: bool) -> Result<Self, JournalError> {
        let failed = |step| move |source: Errno| os_error(path, step, source.into());
        let absolute = std::path::absolute(path).map_err(|source| os_error(path, "found", source))?;
        let mut handle = open_directory(CWD, "/").map_err(failed("opened"))?;
        let mut found = rustix::fs::fstat(&handle).map_err(failed("examined"))?;
        let mut lineage = vec![identity(&found)];
        let mut at = PathBuf::from("/");
        for component in absolute.components() {
            let name = match component {
                Component::RootDir | Component::CurDir => continue,
                Component::Normal(name) => name,
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(untrusted(path, "its path contains `..`: write it without".to_owned()));
                }
            };
            check_parent(&at, &found)?;
            at.push(name);
            handle = match open_directory(&handle, name) {
                Err(Errno::NOENT) if make => make_directory(&handle, name).map_err(failed("created"))?,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    let reason = format!("{} is no directory, or a symbolic link to one", at.display());
                    return Err(untrusted(path, format!("{reason}: name the directory itself")));
                }
                opened => opened.map_err(failed("opened"))?,
            };
            found = rustix::fs::fstat(&handle).map_err(failed("examined"))?;
            lineage.push(identity(&found));
        }
        check_last(path, &found)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(&handle, ".", flags, Mode::empty()).map_err(failed("opened"))?;
        Ok(Self { path: path.to_owned(), handle, lineage })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of an entry, for messages.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A second handle of the directory.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { path: self.path.clone(), handle: self.handle.try_clone()?, lineage: self.lineage.clone() })
    }

    /// The names of its entries that are text and don't begin with a dot, sorted; others are none
    /// of ours.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.handle)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok().filter(|name| !name.starts_with('.'));
            names.extend(name.map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// Creates a file that is locked until it is closed; fails if the name is taken.
    pub(super) fn create_file(&self, name: &str) -> io::Result<LockedFile> {
        for _ in 0..ATTEMPTS {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&self.handle, name, flags, PRIVATE_FILE)?;
            let file = LockedFile::lock(file.into())?;
            // Another process may have looked between the two calls, taken it for an abandoned one
            // and removed it.
            if rustix::fs::fstat(&*file)?.st_nlink == 1 {
                return Ok(file);
            }
        }
        Err(io::Error::other("another process removes it again and again"))
    }

    /// Locks the file of this name, which is made if it is missing, until it is closed; `None` if
    /// another process holds it.
    pub fn take(&self, name: &str) -> io::Result<Option<LockedFile>> {
        self.lock(name, LockedFile::try_lock)
    }

    /// Locks the file like [`Self::take`], but waits until no other process holds it.
    pub fn wait_for(&self, name: &str) -> io::Result<LockedFile> {
        let locked = self.lock(name, |file| LockedFile::lock(file).map(Some))?;
        locked.ok_or_else(|| io::Error::other("it is locked and is not"))
    }

    fn lock(
        &self,
        name: &str,
        lock: impl Fn(fs::File) -> io::Result<Option<LockedFile>>,
    ) -> io::Result<Option<LockedFile>> {
        for _ in 0..ATTEMPTS {
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&self.handle, name, flags, PRIVATE_FILE)?;
            let Some(file) = lock(file.into())? else { return Ok(None) };
            // The process that held it may have removed it meanwhile.
            if rustix::fs::fstat(&*file)?.st_nlink > 0 {
                return Ok(Some(file));
            }
        }
        Err(io::Error::other("another process removes it again and again"))
    }

    /// The beginning of an entry that another process holds; `None` if none does. The lock decides,
    /// whatever the entry holds, and whether it can be read.
    pub fn read_held(&self, name: &str) -> io::Result<Option<String>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.handle, name, flags, Mode::empty()) {
            Ok(file) => fs::File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let mut text = Vec::new();
        let _ = (&file).take(MAX_HELD).read_to_end(&mut text);
        Ok(LockedFile::try_lock(file)?.is_none().then(|| String::from_utf8_lossy(&text).into_owned()))
    }

    /// Opens and reads an entry if it is an abandoned journal.
    pub(super) fn open_abandoned(&self, name: &str) -> io::Result<Opened> {
        // A pipe must not hold this process up, nor a terminal become its own.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.handle, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(Opened::Gone),
            Err(Errno::LOOP) => return Ok(Opened::Untrusted("it is a symbolic link".to_owned())),
            Err(errno) => return Err(errno.into()),
        };
        if let Some(reason) = own_file::fault_of(&rustix::fs::fstat(&file)?) {
            return Ok(Opened::Untrusted(reason));
        }
        let Some(file) = LockedFile::try_lock(file.into())? else { return Ok(Opened::InUse) };
        // Its process may have put another file in its place and let go of this one meanwhile.
        if rustix::fs::fstat(&*file)?.st_nlink == 0 {
            return Ok(Opened::Gone);
        }
        let mut bytes = Vec::new();
        (&*file).take(MAX_LEN + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_LEN {
            return Ok(Opened::Untrusted(format!("it is longer than {} MiB", MAX_LEN >> 20)));
        }
        Ok(Opened::Abandoned(file, bytes))
    }

    /// Gives an entry another name, in place of what has that name.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.handle, from, &self.handle, to)?)
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.handle, name, AtFlags::empty())?)
    }

    /// Waits until names are durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.handle)?)
    }
}

fn open_directory(at: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

fn make_directory(at: &OwnedFd, name: &std::ffi::OsStr) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(at, name, PRIVATE_DIRECTORY) {
        // Another process was faster.
        Ok(()) | Err(Errno::EXIST) => open_directory(at.as_fd(), name),
        Err(errno) => Err(errno),
    }
}

/// Checks a directory on the way: what is in it must stay there.
fn check_parent(path: &Path, found: &Stat) -> Result<(), JournalError> {
    let is_shared = found.st_mode & STICKY != 0 && found.st_uid == 0;
    if !is_own_or_roots(found) {
        return Err(untrusted(path, format!("it belongs to user {}, not to root", found.st_uid)));
    }
    if found.st_mode & WRITABLE_BY_OTHERS != 0 && !is_shared {
        return Err(untrusted(path, "others than its owner can write in it".to_owned()));
    }
    Ok(())
}

/// Checks the directory of journals itself.
fn check_last(path: &Path, found: &Stat) -> Result<(), JournalError> {
    if found.st_uid != us() {
        let reason = format!("it belongs to user {}, and vpnd runs as user {}", found.st_uid, us());
        return Err(untrusted(path, reason));
    }
    if found.st_mode & WRITABLE_BY_OTHERS != 0 {
        return Err(untrusted(path, "others than its owner can write in it".to_owned()));
    }
    Ok(())
}

fn is_own_or_roots(found: &Stat) -> bool {
    found.st_uid == 0 || found.st_uid == us()
}

fn us() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn identity(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

fn untrusted(path: &Path, reason: String) -> JournalError {
    JournalError::Untrusted { path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests;
