//! Files of the privileged process in a directory in which a less privileged one writes too.
//!
//! INVARIANT: what is opened here is a regular file of this process's user, with one name and no
//! access for others, which is checked on the open descriptor. No link is followed, and nothing
//! that was put in the file's place holds this process up: neither a pipe without another end nor a
//! device without an end of file. The directory itself is as it was configured; this module must
//! not know what the files mean.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;

use crate::secret_file::parent;

/// Bits of a mode that no such file has: set-user-id and the like, and whatever others may do.
const UNEXPECTED: RawMode = 0o7077;

/// Reads all of it.
///
/// # Errors
/// If it is missing, longer than `max_len` bytes or not a file of this process alone, or can't be
/// read.
pub fn read(path: &Path, max_len: u64) -> io::Result<Vec<u8>> {
    let file = open(path, OFlags::RDONLY)?;
    let mut bytes = Vec::new();
    file.take(max_len + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_len {
        return Err(io::Error::other(format!("it is longer than {max_len} bytes: remove it")));
    }
    Ok(bytes)
}

/// Opens it for writing, and makes it if it is missing.
///
/// # Errors
/// If what is there is not a file of this process alone, or it can't be made.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    open(path, OFlags::RDWR | OFlags::CREATE)
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?;
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, parent(path), directory, Mode::empty())?;
    // A pipe must not hold this process up, nor a terminal become its own.
    let safely = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(&directory, name, flags | safely, Mode::RUSR | Mode::WUSR) {
        Ok(file) => file,
        Err(Errno::LOOP) => return Err(not_ours("it is a symbolic link")),
        Err(errno) => return Err(errno.into()),
    };
    match fault_of(&rustix::fs::fstat(&file)?) {
        Some(reason) => Err(not_ours(&reason)),
        None => Ok(file.into()),
    }
}

fn not_ours(reason: &str) -> io::Error {
    io::Error::other(format!("{reason}: vpnd did not make it so; find out who did, then remove it"))
}

/// The reason why a file can't be one that this user's privileged process has written for itself,
/// if there is one.
pub fn fault_of(found: &Stat) -> Option<String> {
    let us = rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Some("it is no regular file".to_owned());
    }
    if found.st_uid != us {
        return Some(format!("it belongs to user {}, and vpnd runs as user {us}", found.st_uid));
    }
    if found.st_mode & UNEXPECTED != 0 {
        return Some(format!("its mode is {:o}, not 600", found.st_mode & 0o7777));
    }
    (found.st_nlink > 1).then(|| "it has a second name".to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::PathBuf;

    use super::*;

    struct Bench {
        dir: tempfile::TempDir,
        path: PathBuf,
        /// Another file of this user, outside.
        victim: PathBuf,
    }

    fn bench() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("state/file"), dir.path().join("victim"));
        fs::create_dir(dir.path().join("state")).unwrap();
        secret(&victim);
        Bench { dir, path, victim }
    }

    fn secret(path: &Path) {
        fs::write(path, b"a secret").unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    }

    /// Neither way of opening it takes it; and both return at once.
    fn refused(bench: &Bench, hint: &str) {
        for error in [read(&bench.path, 100).unwrap_err(), open_or_create(&bench.path).unwrap_err()] {
            assert!(error.to_string().contains(hint), "wanted {hint:?}: {error}");
        }
    }

    #[test]
    fn a_file_of_ours_is_read_and_made() {
        let bench = bench();
        assert_eq!(read(&bench.path, 100).unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(open_or_create(&bench.path).unwrap());
        assert_eq!(fs::metadata(&bench.path).unwrap().permissions().mode() & 0o7777, 0o600);
        fs::write(&bench.path, b"12345678").unwrap();
        drop(open_or_create(&bench.path).unwrap());
        assert_eq!(read(&bench.path, 8).unwrap(), b"12345678", "and is left as it is");
        assert!(read(&bench.path, 7).unwrap_err().to_string().contains("longer than 7"));
    }

    #[test]
    fn a_file_planted_by_another_user_is_refused() {
        let bench = bench();
        symlink(&bench.victim, &bench.path).unwrap();
        refused(&bench, "a symbolic link");
        fs::remove_file(&bench.path).unwrap();
        // One that leads to nothing would have the privileged process make a file there.
        let elsewhere = bench.dir.path().join("elsewhere");
        symlink(&elsewhere, &bench.path).unwrap();
        refused(&bench, "a symbolic link");
        assert!(!elsewhere.exists());
        fs::remove_file(&bench.path).unwrap();
        fs::hard_link(&bench.victim, &bench.path).unwrap();
        refused(&bench, "a second name");
        fs::remove_file(&bench.path).unwrap();
        rustix::fs::mknodat(CWD, &bench.path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        refused(&bench, "no regular file");
        fs::remove_file(&bench.path).unwrap();
        secret(&bench.path);
        for mode in [0o640, 0o602, 0o4600] {
            fs::set_permissions(&bench.path, Permissions::from_mode(mode)).unwrap();
            refused(&bench, "not 600");
        }
        assert_eq!(fs::read(&bench.victim).unwrap(), b"a secret");
    }
}
