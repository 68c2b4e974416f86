//! The embedded store: one SQLite file.
//!
//! Invariants: write-ahead log with `synchronous = FULL`, so a commit is on the disk before it is
//! acknowledged; every change is one immediate transaction, so that several processes can work on
//! the file; the file is checked before it is used and is readable by its owner alone; what takes
//! rights away stands in the main file when it is acknowledged, so that losing the log does not
//! give them back. This module must not know what users may do.

mod accounts;
mod api_tokens;
mod columns;
mod connections;
mod digest;
mod events;
mod faults;
mod fixed_addresses;
mod invitations;
mod place;
mod put_off;
mod refresh_tokens;
mod sessions;
mod transfer;
mod users;
mod wireguard;

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Transaction};
use vpnd_proto::attach::Tokens;
use vpnd_proto::session::{DeviceId, SessionId};

use connections::{BUSY_TIMEOUT, Connections, open};
use faults::{corrupted, explain};
pub(super) use place::backup_path;
use place::{is_emptied, plain_files, reachable};
use put_off::PutOff;
pub use transfer::Replacement;

use super::{
    CertificateHash, Device, ExternalUser, Family, Lease, LeaseOwner, Leases, LiveSession, LiveUser, NewUser,
    Owner, PasswordHash, Revocation, RevocationCause, Revocations, SessionChange, SessionRecord, Sessions,
    StoreError, User, UserChange, UserId, UserImport, UserPage, Users,
};
use crate::format::{Format, Found};
use vpnd_sys::own_file;

const FORMAT: Format = Format {
    application: i32::from_be_bytes(*b"vpnd"),
    schema: include_str!("sqlite/schema.sql"),
    steps: &[include_str!("sqlite/format_2.sql")],
};

/// Revocations that may be kept though they were carried out, so that not each is a change of its
/// own.
const KEPT_REVOCATIONS: u64 = 64;

#[derive(Debug)]
pub struct Sqlite {
    connections: Connections,
    put_off: PutOff,
    path: PathBuf,
}

impl Sqlite {
    /// Opens the store at `path`, which must exist, and checks it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        reachable(path)?;
        Self::connect(path)
    }

    /// Looks whether the store at `path` is whole, and who is in it. It stays as it is.
    pub fn inspect(path: &Path) -> Result<Vec<User>, StoreError> {
        reachable(path)?;
        let explain = |error| explain(path, error);
        let connection = open(path).map_err(explain)?;
        connection.pragma_update(None, "query_only", true).map_err(explain)?;
        let connection = match check(path, &connection)? {
            Found::Empty => return Ok(Vec::new()),
            // A copy is brought up: the store itself stays as it is.
            Found::Earlier(_) => FORMAT.brought_up_copy(&connection).map_err(explain)?,
            _ => connection,
        };
        digest::verify_all(&connection).map_err(explain)?;
        users::all(&connection).map_err(explain)
    }

    /// Opens the store at `path`, or makes it, with its directory, if it is not there.
    pub fn open_or_create(path: &Path) -> Result<Self, StoreError> {
        plain_files(path)?;
        let failed =
            |error: std::io::Error| StoreError::Failed { path: path.to_owned(), detail: error.to_string() };
        if !path.exists() {
            let directory = vpnd_sys::secret_file::parent(path);
            // A process that has shut itself in makes none.
            if !directory.is_dir() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
            }
            // SQLite gives its other files the permissions of this one.
            drop(own_file::open_or_create(path).map_err(failed)?);
        }
        Self::connect(path)
    }

    fn connect(path: &Path) -> Result<Self, StoreError> {
        let explain = |error| explain(path, error);
        if is_emptied(path) {
            return Err(corrupted(path, "nothing is left of it".to_owned()));
        }
        let mut connection = open(path).map_err(explain)?;
        check(path, &connection)?;
        prepare(&connection).map_err(explain)?;
        FORMAT.bring_up(&mut connection).map_err(explain)?;
        digest::verify_all(&connection).map_err(explain)?;
        let connections = Connections::new(path, connection).map_err(explain)?;
        Ok(Self { connections, put_off: PutOff::beside(path), path: path.to_owned() })
    }

    /// A copy of this moment, in a file that has no name any more. Others may read and write the
    /// store meanwhile.
    pub fn copy(&self) -> Result<File, StoreError> {
        transfer::copy(&self.connections, &self.path)
    }

    /// Makes the changes that were put off, if the store is free again; how many there were.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if it is not. They stay where they are after an error.
    pub fn catch_up(&self, now_s: u64) -> Result<usize, StoreError> {
        self.put_off.catch_up(&self.connections, now_s)
    }

    /// Writes a copy of the store into its directory, in one step: the copy that
    /// [`StoreError::Corrupted`] recommends.
    pub fn back_up(&self) -> Result<(), StoreError> {
        let failed =
            |error: std::io::Error| StoreError::Failed { path: self.path.clone(), detail: error.to_string() };
        let target = backup_path(&self.path);
        let temporary = target.with_extension("backup.new");
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).map_err(failed)?;
        self.read(|connection| {
            connection.backup("main", &temporary, None::<fn(rusqlite::backup::Progress)>)
        })?;
        let directory = vpnd_sys::secret_file::parent(&self.path);
        file.sync_all()
            .and_then(|()| fs::rename(&temporary, &target))
            .and_then(|()| File::open(directory)?.sync_all())
            .map_err(failed)
    }

    fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        self.connections.read(query)
    }

    /// Runs a change and commits it, or changes nothing.
    fn change<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.connections.change(BUSY_TIMEOUT, change)
    }

    /// Runs a change that takes rights away. Afterwards the log is empty: a log that is lost or cut
    /// short takes the newest changes with it, and none of these may be among them.
    fn revoke<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let value = self.change(change)?;
        // The change is durable already: if this fails, or another process reads for too long, it
        // stays in the log.
        if !self.connections.empty_log() {
            tracing::warn!(path = %self.path.display(), "a revocation is safe, but only in the store's -wal file so far");
        }
        Ok(value)
    }
}

/// Refuses a file that is damaged, foreign or of another format, before anything is written to it.
fn check(path: &Path, connection: &Connection) -> Result<Found, StoreError> {
    let explain = |error| explain(path, error);
    let verdict: String =
        connection.query_row("PRAGMA integrity_check(1)", (), |row| row.get(0)).map_err(explain)?;
    if verdict != "ok" {
        return Err(corrupted(path, verdict));
    }
    match FORMAT.find(connection).map_err(explain)? {
        Found::Newer(found) => {
            Err(StoreError::Newer { path: path.to_owned(), found, known: FORMAT.number() })
        }
        Found::Older => Err(StoreError::Older { path: path.to_owned() }),
        Found::Foreign => Err(corrupted(path, "it is a database, but not one of vpnd".to_owned())),
        found @ (Found::Empty | Found::Earlier(_) | Found::Current) => Ok(found),
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    // Bytes of a deleted hash or secret are overwritten.
    connection.pragma_update(None, "secure_delete", true)?;
    connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)
}

impl Users for Sqlite {
    fn add_user(&self, user: &NewUser, now_s: u64) -> Result<UserId, StoreError> {
        self.change(|t| users::add(t, user, now_s))
    }

    fn user(&self, name: &str) -> Result<Option<User>, StoreError> {
        self.read(|c| users::by_name(c, name))
    }

    fn user_by_id(&self, id: UserId) -> Result<Option<User>, StoreError> {
        self.read(|c| users::by_id(c, id))
    }

    fn user_by_subject(&self, source: &str, subject: &str) -> Result<Option<User>, StoreError> {
        self.read(|c| match accounts::by_subject(c, source, subject)? {
            Some((id, _)) => users::by_id(c, id),
            None => Ok(None),
        })
    }

    fn find_users(&self, part: &str, after: Option<&str>, limit: usize) -> Result<UserPage, StoreError> {
        self.read(|c| users::find(c, part, after, limit))
    }

    fn users(&self) -> Result<Vec<User>, StoreError> {
        self.read(users::all)
    }

    fn set_enabled(&self, name: &str, enabled: bool, now_s: u64) -> Result<(), StoreError> {
        let change = |t: &Transaction<'_>| users::set_enabled(t, name, enabled, now_s);
        if enabled { self.change(change) } else { self.revoke(change) }
    }

    fn refresh_external(&self, user: &ExternalUser, now_s: u64) -> Result<User, StoreError> {
        self.change(|t| accounts::refresh_external(t, user, now_s))
    }

    fn update_external(&self, user: &ExternalUser, now_s: u64) -> Result<User, StoreError> {
        self.change(|t| accounts::update_external(t, user, now_s))
    }

    fn modify_user(&self, name: &str, change: &UserChange, now_s: u64) -> Result<(), StoreError> {
        self.revoke(|t| accounts::modify(t, name, change, now_s))
    }

    fn import_users(&self, users: &[UserImport], now_s: u64) -> Result<(), StoreError> {
        self.revoke(|t| accounts::import(t, users, now_s))
    }

    fn set_password(&self, name: &str, password: &PasswordHash, now_s: u64) -> Result<(), StoreError> {
        self.revoke(|t| users::set_password(t, name, password, now_s))
    }

    fn change_own_password(
        &self,
        user: &User,
        password: &PasswordHash,
        now_s: u64,
    ) -> Result<bool, StoreError> {
        self.revoke(|t| users::change_own_password(t, user, password, now_s))
    }

    fn rehash(&self, id: UserId, old: &PasswordHash, new: &PasswordHash) -> Result<(), StoreError> {
        self.change(|t| users::rehash(t, id, old, new).map(Ok))
    }

    fn remove_user(&self, name: &str, now_s: u64) -> Result<(), StoreError> {
        self.revoke(|t| users::remove(t, name, now_s))
    }

    fn add_certificate(&self, name: &str, certificate: &CertificateHash) -> Result<(), StoreError> {
        self.change(|t| users::add_certificate(t, name, certificate))
    }

    fn revoke_certificates(
        &self,
        name: &str,
        certificates: &[CertificateHash],
        now_s: u64,
    ) -> Result<(), StoreError> {
        self.revoke(|t| users::revoke_certificates(t, name, certificates, now_s))
    }

    fn has_one_time_codes(&self) -> Result<bool, StoreError> {
        self.read(users::have_one_time_codes)
    }

    fn use_totp_step(&self, id: UserId, step: u64) -> Result<bool, StoreError> {
        self.change(|t| users::use_totp_step(t, id, step).map(Ok))
    }

    fn knows_source(&self, id: UserId, source: &str, since_s: u64) -> Result<bool, StoreError> {
        self.read(|c| users::knows_source(c, id, source, since_s))
    }

    fn newest_sources(&self, limit: usize) -> Result<Vec<(String, u64)>, StoreError> {
        self.read(|c| users::newest_sources(c, limit))
    }

    fn remember_source(&self, id: UserId, source: &str, now_s: u64) -> Result<(), StoreError> {
        self.change(|t| users::remember_source(t, id, source, now_s).map(Ok))
    }
}

impl Sessions for Sqlite {
    fn add_session(&self, session: &SessionRecord, generation: u64) -> Result<bool, StoreError> {
        self.change(|t| sessions::add(t, session, generation).map(Ok))
    }

    fn session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError> {
        self.put_off.session(&self.connections, id, now_s)
    }

    fn set_tokens(&self, id: SessionId, tokens: &Tokens, epoch: u32) -> Result<bool, StoreError> {
        self.change(|t| sessions::set_tokens(t, id, tokens, epoch).map(Ok))
    }

    fn end_session(&self, id: SessionId, now_s: u64) -> Result<(), StoreError> {
        self.change(|t| sessions::end(t, id, now_s).map(Ok))
    }

    fn change_sessions(&self, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError> {
        self.put_off.change(&self.connections, changes, now_s)
    }

    fn live_sessions(&self, now_s: u64) -> Result<Vec<LiveSession>, StoreError> {
        self.read(|c| sessions::live(c, now_s))
    }

    fn session_owners(&self, now_s: u64) -> Result<Vec<Owner>, StoreError> {
        self.read(|c| sessions::owners(c, now_s))
    }

    fn users_with_sessions(&self, source: &str) -> Result<Vec<LiveUser>, StoreError> {
        self.read(|c| accounts::with_sessions(c, source))
    }

    fn devices(&self, id: UserId) -> Result<Vec<Device>, StoreError> {
        self.read(|c| sessions::devices(c, id))
    }

    fn remove_device(&self, name: &str, device: DeviceId, now_s: u64) -> Result<bool, StoreError> {
        self.revoke(|t| accounts::remove_device(t, name, device, now_s))
    }
}

impl Leases for Sqlite {
    fn lease_of(&self, owner: LeaseOwner, family: Family) -> Result<Option<Lease>, StoreError> {
        self.read(|c| sessions::lease_of(c, owner, family))
    }

    fn fixed_addresses(&self, owner: LeaseOwner, family: Family) -> Result<Vec<IpAddr>, StoreError> {
        self.read(|c| fixed_addresses::of_owner(c, owner, family))
    }

    fn fixed_for_others(&self, owner: LeaseOwner, family: Family) -> Result<Vec<IpAddr>, StoreError> {
        self.read(|c| fixed_addresses::of_others(c, owner, family))
    }

    fn claim(&self, lease: &Lease, now_s: u64) -> Result<bool, StoreError> {
        self.change(|t| sessions::claim(t, lease, now_s).map(Ok))
    }

    fn surplus(&self, user: UserId, family: Family, now_s: u64) -> Result<Option<Lease>, StoreError> {
        self.read(|c| sessions::surplus(c, user, family, now_s))
    }

    fn lease_on(&self, address: IpAddr) -> Result<Option<Lease>, StoreError> {
        self.read(|c| sessions::lease_on(c, address))
    }

    fn leases(&self, family: Family) -> Result<Vec<Lease>, StoreError> {
        self.read(|c| sessions::leases(c, family))
    }

    fn live_leases(&self, first: IpAddr, last: IpAddr, now_s: u64) -> Result<u64, StoreError> {
        self.read(|c| sessions::live_leases(c, first, last, now_s))
    }

    fn release(&self, session: SessionId, now_s: u64) -> Result<(), StoreError> {
        self.change(|t| sessions::release(t, session, now_s).map(Ok))
    }

    fn orphaned(&self, now_s: u64) -> Result<HashSet<SessionId>, StoreError> {
        self.read(|c| sessions::orphaned(c, now_s))
    }

    fn forget_leases(&self, before_s: u64) -> Result<usize, StoreError> {
        self.change(|t| sessions::forget_leases(t, before_s).map(Ok))
    }
}

impl Revocations for Sqlite {
    fn end_sessions(&self, user: &LiveUser, cause: RevocationCause, now_s: u64) -> Result<(), StoreError> {
        self.revoke(|t| {
            users::revoke(t, user.id, &user.name, cause, now_s)?;
            digest::renew(t, user.id).map(Ok)
        })
    }

    fn end_device(
        &self,
        user: &LiveUser,
        device: DeviceId,
        cause: RevocationCause,
        now_s: u64,
    ) -> Result<(), StoreError> {
        self.revoke(|t| accounts::end_device(t, user.id, &user.name, device, cause, now_s).map(Ok))
    }

    fn end_expired(&self, now_s: u64) -> Result<usize, StoreError> {
        // Asked several times a second, so the write transaction is only for when there is
        // something to write.
        if self.read(|c| accounts::due(c, now_s))?.is_empty() {
            return Ok(0);
        }
        self.revoke(|t| accounts::end_expired(t, now_s).map(Ok))
    }

    fn last_revocation(&self) -> Result<u64, StoreError> {
        self.read(events::last_revocation)
    }

    fn revocations_since(&self, seq: u64) -> Result<Vec<Revocation>, StoreError> {
        self.read(|c| events::revocations_since(c, seq))
    }

    fn forget_revocations(&self, carried_out: u64) {
        let forget = || match self.read(|c| events::count_until(c, carried_out))? {
            0..=KEPT_REVOCATIONS => Ok(()),
            _ => self.change(|t| events::forget_until(t, carried_out).map(Ok)),
        };
        // The next call does it.
        if let Err(error) = forget() {
            tracing::debug!(%error, "revocations that were carried out are not forgotten");
        }
    }
}

#[cfg(test)]
mod tests;
