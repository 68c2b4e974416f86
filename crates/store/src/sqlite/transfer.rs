//! A store as bytes: a copy of one moment, and a copy that takes a store's place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::connections::{Connections, open};
use super::faults::explain;
use super::{Sqlite, StoreError};
use crate::sql::{Database as _, invitations};
use vpnd_sys::secret_file;

/// The steps by which a replacement takes a store's place. INVARIANT: after each of them the old
/// store or the new one is in place and whole, with no log of the other; the old one has a copy
/// before it goes.
const STEPS: [fn(&Replacement) -> io::Result<()>; 8] = [
    Replacement::empty_log,
    Replacement::clear_kept,
    Replacement::keep_log,
    Replacement::keep,
    Replacement::sync_directory,
    Replacement::clear_beside,
    Replacement::put_in_place,
    Replacement::sync_directory,
];

/// Suffixes of the files that SQLite keeps for a database.
const BESIDE: [&str; 2] = ["-wal", "-shm"];

/// A copy of the store at `path`, as [`Sqlite::copy`] has it.
pub(super) fn copy(connections: &Connections, path: &Path) -> Result<File, StoreError> {
    let failed = |error| failed(path, error);
    let temporary = path.with_extension("db.copy");
    remove(&temporary).map_err(failed)?;
    let mut file = create(&temporary).map_err(failed)?;
    let copied = connections.with_queries(|connection| {
        connection.backup("main", &temporary, None::<fn(rusqlite::backup::Progress)>)
    });
    // Two at the same time: this one's name may stand for the other's file by now.
    let is_ours = fs::metadata(&temporary).is_ok_and(|named| {
        file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (named.dev(), named.ino()))
    });
    remove(&temporary).map_err(failed)?;
    copied?;
    if !is_ours {
        return Err(StoreError::Busy { path: path.to_owned() });
    }
    file.rewind().map_err(failed)?;
    Ok(file)
}

/// Writes a copy of the store at `path` to `target` in its directory, in one step: `copy` writes it
/// to the path that it is given.
pub(super) fn write_copy(
    path: &Path,
    target: &Path,
    copy: impl FnOnce(&Path) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let failed = |error| failed(path, error);
    let temporary = beside(target, ".new");
    remove(&temporary).map_err(failed)?;
    let file = create(&temporary).map_err(failed)?;
    let put_in_place = || {
        file.sync_all()?;
        fs::rename(&temporary, target)?;
        File::open(secret_file::parent(path))?.sync_all()
    };
    let written = copy(&temporary).and_then(|()| put_in_place().map_err(failed));
    if written.is_err() {
        // The disk may be full; the next copy removes what is left now.
        let _ = remove(&temporary);
    }
    written
}

/// Keeps a copy of a store whose format is about to change: the way back to the earlier vpnd, which
/// opens no newer format. Where that fails the store stays as it is, and the earlier vpnd with it.
/// A copy of before is replaced: the store was brought back by it, and has changed since.
pub(super) fn keep_earlier(path: &Path, number: usize) -> Result<(), StoreError> {
    let explain = |error| explain(path, error);
    let target = path.with_extension(format!("db.format{number}"));
    // The connection that is about to change it can't read it for a copy.
    let earlier = open(path).map_err(explain)?;
    write_copy(path, &target, |temporary| {
        earlier.backup("main", temporary, None::<fn(rusqlite::backup::Progress)>).map_err(explain)
    })?;
    tracing::info!(copy = %target.display(), "the user store gets another format; a copy keeps it as it was");
    Ok(())
}

/// A store that is to take another's place. Dropped before [`Replacement::publish`], it leaves
/// nothing.
pub struct Replacement {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl Replacement {
    /// For the store at `path`, which may be there, be damaged or be missing.
    pub fn new(path: &Path) -> Result<Self, StoreError> {
        let failed = |error| failed(path, error);
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
        self.file.write_all(bytes).map_err(|error| self.failed(error))
    }

    /// Checks it as a whole, without its sessions, and puts it in place. Invitations, tokens of
    /// the API and refresh tokens go too: since it was made some may have been used or removed.
    /// Whether there was a store, which is `….replaced` now.
    pub fn publish(self) -> Result<bool, StoreError> {
        self.file.sync_all().map_err(|error| self.failed(error))?;
        // One of an earlier format is kept by the backup that it comes from.
        let store = Sqlite::connect(&self.temporary, |_, _| Ok(()))?;
        // Inner addresses stay reserved for their devices.
        store.change(|t| {
            t.execute("DELETE FROM sessions", ())?;
            t.execute("DELETE FROM api_tokens", ())?;
            t.execute("DELETE FROM refresh_tokens", ())?;
            invitations::forget(t).map(Ok)
        })?;
        // SQLite empties its log into the file when the last connection ends.
        drop(store);
        if BESIDE.iter().any(|suffix| beside(&self.temporary, suffix).exists()) {
            return Err(self.failed(io::Error::other("its log could not be emptied")));
        }
        self.file.sync_all().map_err(|error| self.failed(error))?;
        let existed = self.path.exists();
        for step in STEPS {
            step(&self).map_err(|error| self.failed(error))?;
        }
        Ok(existed)
    }

    fn kept(&self) -> PathBuf {
        self.path.with_extension("db.replaced")
    }

    /// Brings into the old store what is in its log alone. One that is damaged keeps its log.
    fn empty_log(&self) -> io::Result<()> {
        let log = beside(&self.path, "-wal");
        if !self.path.exists() || !log.exists() {
            return Ok(());
        }
        // The last connection to end removes the log; it fails where SQLite can't read the store.
        let emptied = open(&self.path)
            .and_then(|connection| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(())));
        match emptied {
            Ok(()) if log.exists() => {
                Err(io::Error::other("another process uses the store; end it, and try again"))
            }
            _ => Ok(()),
        }
    }

    /// Where no store is, the copy of an earlier one may be the only one.
    fn clear_kept(&self) -> io::Result<()> {
        if self.path.exists() { clear(&self.kept()) } else { Ok(()) }
    }

    /// A log without its store belongs to nothing.
    fn keep_log(&self) -> io::Result<()> {
        let log = beside(&self.path, "-wal");
        if self.path.exists() { copy_if_there(&log, &beside(&self.kept(), "-wal")) } else { Ok(()) }
    }

    fn keep(&self) -> io::Result<()> {
        copy_if_there(&self.path, &self.kept())
    }

    /// The log of the old store must not be applied to the new one.
    fn clear_beside(&self) -> io::Result<()> {
        for suffix in BESIDE {
            remove(&beside(&self.path, suffix))?;
        }
        self.sync_directory()
    }

    fn put_in_place(&self) -> io::Result<()> {
        fs::rename(&self.temporary, &self.path)
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(secret_file::parent(&self.path))?.sync_all()
    }

    fn failed(&self, error: io::Error) -> StoreError {
        failed(&self.path, error)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After `publish` it has another name; a leftover goes with the next restore.
        let _ = clear(&self.temporary);
    }
}

/// A failure of the file system as an error of the store at `path`.
fn failed(path: &Path, error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StoreError::Full { path: path.to_owned() }
        }
        _ => StoreError::Failed { path: path.to_owned(), detail: error.to_string() },
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

/// Copies a file that may be missing, durably.
fn copy_if_there(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = match File::open(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let mut to = create(to)?;
    io::copy(&mut from, &mut to)?;
    to.sync_all()
}

/// Removes a database and the files that SQLite keeps for it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ApiToken, ApiTokens as _, InvitationToken, Invitations as _, NewUser, PasswordHash, RefreshToken,
        RefreshTokens as _, Users as _,
    };
    use vpnd_config::desk::DeskRole;

    fn named(name: &str) -> NewUser {
        NewUser::new(name, PasswordHash::new("x".to_owned()))
    }

    fn users(path: &Path) -> Vec<String> {
        Sqlite::open(path).unwrap().users().unwrap().into_iter().map(|user| user.name).collect()
    }

    /// A store with ann, and with bob whom only its log has: as after a kill.
    fn killed(path: &Path) {
        let store = Sqlite::open_or_create(path).unwrap();
        store.add_user(&named("ann"), 1).unwrap();
        store.connections.empty_log();
        store.add_user(&named("bob"), 1).unwrap();
        let log = beside(path, "-wal");
        let bytes = [fs::read(path).unwrap(), fs::read(&log).unwrap()];
        assert!(!bytes[1].is_empty());
        drop(store);
        for (path, bytes) in [path, &log].into_iter().zip(bytes) {
            fs::write(path, bytes).unwrap();
        }
    }

    /// A replacement, ready to take the place of the store at `path`.
    fn replacement(path: &Path, source: &Path) -> Replacement {
        let mut replacement = Replacement::new(path).unwrap();
        replacement.write(&fs::read(source).unwrap()).unwrap();
        replacement
    }

    /// Another store, with cid alone.
    fn other(directory: &Path) -> PathBuf {
        let path = directory.join("other.db");
        Sqlite::open_or_create(&path).unwrap().add_user(&named("cid"), 1).unwrap();
        path
    }

    #[test]
    fn an_interrupted_transfer_leaves_a_whole_store_and_the_old_copy() {
        for count in 0..=STEPS.len() {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("vpnd.db");
            let source = other(directory.path());
            killed(&path);
            let replacement = self::replacement(&path, &source);
            for step in &STEPS[..count] {
                step(&replacement).unwrap();
            }
            // Like a kill at this point: nothing is cleared up.
            std::mem::forget(replacement);
            let found = users(&path);
            let is_new = count >= 7;
            let wanted: &[&str] = if is_new { &["cid"] } else { &["ann", "bob"] };
            assert_eq!(found, wanted, "after {count} steps");
            if is_new {
                assert_eq!(users(&path.with_extension("db.replaced")), ["ann", "bob"], "after {count} steps");
            }
            assert_eq!(self::replacement(&path, &source).publish().ok(), Some(true), "after {count} steps");
            assert_eq!(users(&path), ["cid"]);
        }
    }

    #[test]
    fn the_only_copy_of_a_store_stays_until_there_is_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vpnd.db");
        let source = other(directory.path());
        killed(&path);
        // An administrator has moved the store there.
        let kept = path.with_extension("db.replaced");
        fs::rename(&path, &kept).unwrap();
        assert_eq!(replacement(&path, &source).publish().ok(), Some(false));
        assert_eq!(users(&path), ["cid"], "and the log is not that of the new store");
        assert_eq!(users(&kept), ["ann"]);
    }

    #[test]
    fn a_damaged_store_is_kept_with_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vpnd.db");
        let source = other(directory.path());
        killed(&path);
        let (bytes, log) = (b"damaged".repeat(100), fs::read(beside(&path, "-wal")).unwrap());
        fs::write(&path, &bytes).unwrap();
        assert_eq!(replacement(&path, &source).publish().ok(), Some(true));
        assert_eq!(users(&path), ["cid"]);
        let kept = path.with_extension("db.replaced");
        assert!(fs::read(&kept).unwrap() == bytes);
        assert!(fs::read(beside(&kept, "-wal")).unwrap() == log);
    }

    #[test]
    fn a_restore_revives_no_token_and_no_invitation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vpnd.db");
        let source = other(directory.path());
        let (token, invitation) =
            (ApiToken::new("idm", DeskRole::Administrator, 1, 100).0, InvitationToken::new().hash());
        let old = Sqlite::open(&source).unwrap();
        assert!(old.add_api_token(&token).unwrap());
        old.invite("cid", &invitation, 100).unwrap();
        let cid = old.user("cid").unwrap().unwrap().id;
        old.keep_refresh_token(cid, Some(&RefreshToken::new("x".to_owned()))).unwrap();
        assert!(old.invited(&invitation, 2).unwrap().is_some());
        drop(old);
        assert_eq!(replacement(&path, &source).publish().ok(), Some(false));
        let store = Sqlite::open(&path).unwrap();
        assert!(store.api_tokens().unwrap().is_empty() && store.invited(&invitation, 2).unwrap().is_none());
        assert_eq!(store.refresh_token(cid).unwrap(), None);
        assert_eq!(users(&path), ["cid"], "whole");
    }

    #[test]
    fn a_store_in_use_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vpnd.db");
        let source = other(directory.path());
        let used = Sqlite::open_or_create(&path).unwrap();
        used.add_user(&named("ann"), 1).unwrap();
        assert!(replacement(&path, &source).publish().is_err());
        assert_eq!(users(&path), ["ann"]);
    }
}
