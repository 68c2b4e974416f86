//! Revocations, in SQL.

use rusqlite::{Connection, Row, Transaction, params};

use vpnd_proto::session::DeviceId;

use super::super::{Revocation, RevocationCause, UserId};
use super::{Sqlite, StoreError, bytes, unexpected};

pub(super) fn add_revocation(
    t: &Transaction<'_>,
    user: UserId,
    name: &str,
    cause: RevocationCause,
    device: Option<DeviceId>,
    now_s: u64,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO revocations (user_id, name, cause, device, at_s) VALUES (?, ?, ?, ?, ?)";
    let device = device.map(|device| device.0);
    t.prepare_cached(sql)?.execute(params![user.0, name, word(cause), device, now_s]).map(drop)
}

pub(super) fn last_revocation(c: &Connection) -> rusqlite::Result<u64> {
    // Of those that are forgotten, too.
    let sql = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'revocations'), 0)";
    c.prepare_cached(sql)?.query_row((), |row| row.get(0))
}

pub(super) fn count_until(c: &Connection, seq: u64) -> rusqlite::Result<u64> {
    c.prepare_cached("SELECT count(*) FROM revocations WHERE seq <= ?")?.query_row([seq], |row| row.get(0))
}

/// Forgets revocations, all but how many of each user there were.
pub(super) fn forget_until(t: &Transaction<'_>, seq: u64) -> rusqlite::Result<()> {
    t.execute(
        "INSERT INTO past_revocations (user_id, count)
         SELECT user_id, count(*) FROM revocations WHERE seq <= ? AND user_id IN (SELECT id FROM users) GROUP BY user_id
         ON CONFLICT (user_id) DO UPDATE SET count = count + excluded.count",
        [seq],
    )?;
    t.execute("DELETE FROM revocations WHERE seq <= ?", [seq]).map(drop)
}

pub(super) fn revocations_since(c: &Connection, seq: u64) -> rusqlite::Result<Vec<Revocation>> {
    let sql = "SELECT seq, user_id, name, cause, device FROM revocations WHERE seq > ? ORDER BY seq";
    c.prepare_cached(sql)?.query_map([seq], revocation_from_row)?.collect()
}

/// A line of the audit log that earlier versions kept here: time, event, user, source and detail.
pub(crate) type OldAuditLine = (u64, String, String, String, String);

impl Sqlite {
    /// The audit log of earlier versions.
    pub fn old_audit_log(&self) -> Result<Vec<OldAuditLine>, StoreError> {
        self.read(|c| {
            let mut lines = c.prepare("SELECT at_s, event, user, source, detail FROM audit ORDER BY id")?;
            let line = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?));
            lines.query_map((), line)?.collect()
        })
    }

    /// Removes it, which is in the audit file by now.
    pub fn forget_old_audit_log(&self) -> Result<(), StoreError> {
        self.change(|t| t.execute("DELETE FROM audit", ()).map(drop).map(Ok))
    }
}

fn revocation_from_row(row: &Row<'_>) -> rusqlite::Result<Revocation> {
    let cause: String = row.get("cause")?;
    let device: Option<Vec<u8>> = row.get("device")?;
    let device = device.map(|id| id.try_into().map_err(|_| unexpected("device"))).transpose()?;
    let causes = [
        RevocationCause::Disabled,
        RevocationCause::Removed,
        RevocationCause::Password,
        RevocationCause::Certificate,
        RevocationCause::Expired,
        RevocationCause::Renamed,
        RevocationCause::Groups,
        RevocationCause::Device,
    ];
    Ok(Revocation {
        seq: row.get("seq")?,
        user: UserId(bytes(row, "user_id")?),
        name: row.get("name")?,
        cause: causes.into_iter().find(|known| word(*known) == cause).ok_or_else(|| unexpected("cause"))?,
        device: device.map(DeviceId),
    })
}

fn word(cause: RevocationCause) -> &'static str {
    match cause {
        RevocationCause::Disabled
        | RevocationCause::Source
        | RevocationCause::Unconfirmed
        | RevocationCause::Disconnected => "disabled",
        RevocationCause::Removed => "removed",
        RevocationCause::Password => "password",
        RevocationCause::Certificate => "certificate",
        RevocationCause::Expired => "expired",
        RevocationCause::Renamed => "renamed",
        RevocationCause::Groups => "groups",
        RevocationCause::Device => "device",
    }
}
