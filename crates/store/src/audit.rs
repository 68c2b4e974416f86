//! The audit file: who had which address and when, logins, and what administrators did. A SQLite
//! file in the store's directory, with its own format number. The auth process writes it; commands
//! of an administrator read it, and record what they do, by the confined process that opens the
//! store for them.
//!
//! Invariants: nothing here changes what is recorded but the end of a session, once, and the
//! erasure of personal fields when their time is over ([`retention`]). Times that are not covered
//! are known as such ([`Gap`]), so that an answer can say when it is uncertain. This module must
//! not know why sessions end, nor who may ask.

pub mod logins;
pub mod query;
pub mod recorder;
pub(crate) mod retention;
pub mod whois;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use vpnd_config::OuterAddresses;

use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior, params,
};
use vpnd_proto::session::{DeviceId, SessionId};

use crate::LiveSession;
use crate::format::{Format, Found};
pub use query::Gap;
use vpnd_sys::own_file;
use vpnd_sys::port_blocks::PortBlocks;

/// Its name in the state directory.
pub const FILE_NAME: &str = "audit.sqlite";
const FORMAT: Format = Format {
    application: i32::from_be_bytes(*b"vpna"),
    schema: include_str!("audit/schema.sql"),
    steps: &[],
};
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The reason for the end of a session that the store does not have any more, while nothing has
/// recorded how it ended.
pub(crate) const NOT_RECORDED: &str = "not-recorded";

/// The cause of a gap.
const CLOCK_SET_BACK: &str = "the clock was set back, so these times were twice";

#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("the audit file {} can't be opened: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("there is no audit file {}: no gateway has recorded anything here yet", .0.display())]
    Missing(PathBuf),
    #[error("the audit file is damaged: {0}")]
    Damaged(String),
    #[error(
        "the audit file was made by a vpnd before 0.1, which this one does not read; move it away, and another is begun"
    )]
    Older,
    #[error(
        "the audit file has format {found}, and this version knows {known}: install the version that wrote it",
        known = FORMAT.number()
    )]
    Newer { found: u32 },
    #[error("the disk of the audit file is full")]
    Full,
    #[error("the disk of the audit file has less than {0} MiB left, which are the store's")]
    Reserved(u64),
    #[error("the audit file failed: {0}")]
    Failed(String),
}

impl From<rusqlite::Error> for AuditError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error.to_string()),
            Some(ErrorCode::DiskFull) => Self::Full,
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// An event to be recorded.
#[derive(Clone, Debug)]
pub enum Event {
    Began(SessionStart),
    Ended {
        session: SessionId,
        at_s: u64,
        reason: String,
    },
    /// The client is heard from another outer address now.
    Moved {
        session: SessionId,
        at_s: u64,
        to: Move,
    },
    Entry(AuditEntry),
}

/// An outer address of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The lane that is received from there. Each has its own address.
    pub lane: u8,
    pub outer: SocketAddr,
    /// Addresses of the session before this one that are not recorded, because there were too many.
    pub left_out: u32,
}

/// A session that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStart {
    pub session: SessionId,
    pub user: String,
    /// The authority that vouches for the user.
    pub source: String,
    /// The user's access profile; empty where it is not known.
    pub profile: String,
    pub device: DeviceId,
    /// The address from which the login came, where it is known.
    pub outer: Option<IpAddr>,
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    pub at_s: u64,
    pub expires_s: u64,
}

impl From<LiveSession> for SessionStart {
    fn from(live: LiveSession) -> Self {
        let ipv4 = |address: &IpAddr| if let IpAddr::V4(v4) = address { Some(*v4) } else { None };
        let ipv6 = |address: &IpAddr| if let IpAddr::V6(v6) = address { Some(*v6) } else { None };
        Self {
            session: live.id,
            ipv4: live.addresses.iter().find_map(ipv4),
            ipv6: live.addresses.iter().find_map(ipv6),
            user: live.user,
            source: live.source,
            profile: String::new(),
            device: live.device,
            outer: None,
            at_s: live.started_s,
            expires_s: live.expires_s,
        }
    }
}

/// A login, a refusal, or a deed of an administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub at_s: u64,
    /// Kind of event, as in `login` or `login-refused`.
    pub event: String,
    /// The user's name as given; it may be unknown.
    pub user: String,
    /// The outer address; empty for the command line.
    pub source: String,
    pub detail: String,
    /// The administrator; empty for a login.
    pub by: String,
}

pub struct AuditFile {
    connection: Connection,
    outer: OuterAddresses,
}

impl AuditFile {
    /// Opens it, or makes it.
    pub fn open_or_create(path: &Path) -> Result<Self, AuditError> {
        // SQLite gives its other files the permissions of this one.
        let made = own_file::open_or_create(path);
        drop(made.map_err(|source| AuditError::Open { path: path.to_owned(), source })?);
        Self::connect(path)
    }

    /// Opens the file that is there.
    pub fn open(path: &Path) -> Result<Self, AuditError> {
        if !path.exists() {
            return Err(AuditError::Missing(path.to_owned()));
        }
        Self::open_or_create(path)
    }

    fn connect(path: &Path) -> Result<Self, AuditError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        match FORMAT.find(&connection)? {
            Found::Empty | Found::Earlier(_) | Found::Current => {}
            Found::Older => return Err(AuditError::Older),
            Found::Newer(found) => return Err(AuditError::Newer { found }),
            Found::Foreign => {
                return Err(AuditError::Damaged("it is a database, but not one of vpnd".to_owned()));
            }
        }
        connection.pragma_update(None, "journal_mode", "wal")?;
        // A commit is on the disk when it returns: a power failure takes no more than kill -9 does.
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "trusted_schema", false)?;
        // Bytes of what was erased are overwritten.
        connection.pragma_update(None, "secure_delete", true)?;
        connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
        FORMAT.bring_up(&mut connection)?;
        Ok(Self { connection, outer: OuterAddresses::Full })
    }

    /// From now on outer addresses are recorded like this.
    pub fn set_outer(&mut self, outer: OuterAddresses) {
        self.outer = outer;
    }

    /// Records all events, or none of them.
    pub fn record(&mut self, events: &[Event]) -> Result<(), AuditError> {
        let outer = self.outer;
        self.change(|t| events.iter().try_for_each(|event| add(t, event, outer)))
    }

    /// Records events of this run, and that they are all up to now.
    pub(crate) fn record_all(&mut self, run: i64, events: &[Event], now_s: u64) -> Result<(), AuditError> {
        let outer = self.outer;
        self.change(|t| {
            events.iter().try_for_each(|event| add(t, event, outer))?;
            alive(t, run, now_s)
        })
    }

    /// Records that events are missing.
    pub fn record_gap(&mut self, gap: &Gap) -> Result<(), AuditError> {
        let sql = "INSERT INTO gaps (from_s, to_s, lost, cause) VALUES (?, ?, ?, ?)";
        self.connection.execute(sql, params![gap.from_s, gap.to_s, gap.lost, gap.cause])?;
        Ok(())
    }

    /// A gateway writes from now on, with these blocks of ports in force; the number of its run.
    pub fn begin_run(&mut self, now_s: u64, blocks: Option<&PortBlocks>) -> Result<i64, AuditError> {
        let before_s: Option<u64> =
            self.connection.query_row("SELECT max(alive_s) FROM runs", (), |row| row.get(0))?;
        if let Some(to_s) = before_s.filter(|before_s| *before_s > now_s) {
            self.record_gap(&Gap { from_s: now_s, to_s, lost: None, cause: CLOCK_SET_BACK.to_owned() })?;
        }
        let sql = "INSERT INTO runs (started_s, alive_s, port_blocks) VALUES (?1, ?1, ?2)";
        self.connection.execute(sql, params![now_s, blocks.map(ToString::to_string)])?;
        Ok(self.connection.last_insert_rowid())
    }

    /// All events up to now are recorded.
    pub fn alive(&mut self, run: i64, now_s: u64) -> Result<(), AuditError> {
        Ok(alive(&self.connection, run, now_s)?)
    }

    /// The gateway has ended in order.
    pub fn end_run(&mut self, run: i64, now_s: u64) -> Result<(), AuditError> {
        self.connection
            .execute("UPDATE runs SET alive_s = ?2, ended_s = ?2 WHERE id = ?1", params![run, now_s])?;
        Ok(())
    }

    /// Sessions without an end.
    pub fn open_sessions(&self) -> Result<Vec<SessionId>, AuditError> {
        let mut statement =
            self.connection.prepare_cached("SELECT session FROM sessions WHERE end_s IS NULL")?;
        let ids = statement.query_map((), |row| row.get::<_, [u8; 16]>(0).map(SessionId))?;
        Ok(ids.collect::<Result<_, _>>()?)
    }

    /// Makes the record agree with the sessions that there are: `open` had no end here before
    /// `live` was read from the store.
    pub(crate) fn reconcile(
        &mut self,
        open: &[SessionId],
        live: &[SessionStart],
        now_s: u64,
    ) -> Result<(), AuditError> {
        let present: std::collections::HashSet<SessionId> =
            live.iter().map(|session| session.session).collect();
        let known: std::collections::HashSet<SessionId> = open.iter().copied().collect();
        let gone = open.iter().filter(|session| !present.contains(session));
        let missing = live.iter().filter(|session| !known.contains(&session.session));
        let outer = self.outer;
        self.change(|t| {
            let sql = "UPDATE sessions SET end_s = max(min(?2, expires_s), start_s),
                           reason = CASE WHEN expires_s <= ?2 THEN 'lifetime' ELSE ?3 END
                       WHERE session = ?1 AND end_s IS NULL";
            for session in gone {
                t.prepare_cached(sql)?.execute(params![session.0, now_s, NOT_RECORDED])?;
            }
            for session in missing {
                add(t, &Event::Began(session.clone()), outer)?;
            }
            Ok(())
        })
    }

    fn change(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), AuditError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        change(&transaction)?;
        Ok(transaction.commit()?)
    }
}

fn alive(connection: &Connection, run: i64, now_s: u64) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached("UPDATE runs SET alive_s = ?2 WHERE id = ?1")?;
    statement.execute(params![run, now_s]).map(drop)
}

fn add(t: &Transaction<'_>, event: &Event, policy: OuterAddresses) -> rusqlite::Result<()> {
    match event {
        Event::Began(start) => {
            // Known already if the session was found in the store before its event came here.
            let sql = "INSERT INTO sessions (session, user, source, profile, device, outer_address, ipv4, ipv6, start_s, expires_s)
                       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
                       ON CONFLICT (session) WHERE end_s IS NULL DO UPDATE SET
                           profile = excluded.profile, outer_address = coalesce(outer_address, excluded.outer_address)";
            t.prepare_cached(sql)?.execute(params![
                start.session.0,
                start.user,
                start.source,
                start.profile,
                start.device.0,
                start.outer.and_then(|outer| policy.of_address(outer)),
                start.ipv4.map(|v4| v4.octets()),
                start.ipv6.map(|v6| v6.octets()),
                start.at_s,
                start.expires_s,
            ])?;
        }
        Event::Ended { session, at_s, reason } => {
            let sql = "UPDATE sessions SET end_s = max(?2, start_s), reason = ?3 WHERE session = ?1 AND end_s IS NULL";
            t.prepare_cached(sql)?.execute(params![session.0, at_s, reason])?;
        }
        Event::Moved { session, at_s, to } => moved(t, *session, *at_s, *to, policy)?,
        Event::Entry(entry) => {
            let sql = "INSERT INTO entries (at_s, event, user, outer_address, detail, by) VALUES (?, ?, ?, ?, ?, ?)";
            let outer = entry.source.parse().ok().and_then(|outer| policy.of_address(outer));
            let user = (!entry.user.is_empty()).then_some(&entry.user);
            t.prepare_cached(sql)?.execute(params![
                entry.at_s,
                entry.event,
                user,
                outer,
                entry.detail,
                entry.by
            ])?;
        }
    }
    Ok(())
}

/// Adds an outer address of a session that goes on, unless its lane was there last.
fn moved(
    t: &Transaction<'_>,
    session: SessionId,
    at_s: u64,
    Move { lane, outer, left_out }: Move,
    policy: OuterAddresses,
) -> rusqlite::Result<()> {
    let Some(outer) = policy.of_socket(outer) else { return Ok(()) };
    let sql = "SELECT seq FROM sessions WHERE session = ? AND end_s IS NULL";
    let seq: Option<i64> = t.prepare_cached(sql)?.query_row([session.0], |row| row.get(0)).optional()?;
    let Some(seq) = seq else { return Ok(()) };
    let sql = "SELECT outer_address FROM moves WHERE session = ? AND lane = ? ORDER BY at_s DESC, rowid DESC LIMIT 1";
    let last: Option<String> =
        t.prepare_cached(sql)?.query_row(params![seq, lane], |row| row.get(0)).optional()?;
    if last.as_ref() != Some(&outer) || left_out > 0 {
        let sql = "INSERT INTO moves (session, at_s, outer_address, lane, left_out) VALUES (?, ?, ?, ?, ?)";
        t.prepare_cached(sql)?.execute(params![seq, at_s, outer, lane, left_out])?;
    }
    Ok(())
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
