//! Revocations, in SQL.

use vpnd_proto::session::DeviceId;

use super::columns::{bytes, optional_bytes, unexpected};
use super::{Connection, Dialect, Result, Row, Transaction, params};
use crate::{Revocation, RevocationCause, UserId};

pub(crate) fn add_revocation(
    t: &Transaction<'_>,
    user: UserId,
    name: &str,
    cause: RevocationCause,
    device: Option<DeviceId>,
    now_s: u64,
) -> Result<()> {
    let device = device.map(|device| device.0);
    if t.dialect() == Dialect::Postgres {
        // A separate sequence would number changes in another order than they become true.
        t.execute("UPDATE revocation_number SET number = number + 1", ())?;
        let sql = "INSERT INTO revocations (seq, user_id, name, cause, device, at_s)
                   SELECT number, ?1, ?2, ?3, ?4, ?5 FROM revocation_number";
        return t.execute(sql, params![user.0, name, word(cause), device, now_s]).map(drop);
    }
    let sql = "INSERT INTO revocations (user_id, name, cause, device, at_s) VALUES (?, ?, ?, ?, ?)";
    t.statement(sql).execute(params![user.0, name, word(cause), device, now_s]).map(drop)
}

pub(crate) fn last_revocation(c: &Connection) -> Result<u64> {
    // Forgotten ones count, too.
    let sql = match c.dialect() {
        Dialect::Sqlite => "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'revocations'), 0)",
        Dialect::Postgres => "SELECT number FROM revocation_number",
    };
    c.statement(sql).query_row((), |row| row.get(0))
}

pub(crate) fn count_until(c: &Connection, seq: u64) -> Result<u64> {
    c.statement("SELECT count(*) FROM revocations WHERE seq <= ?").query_row([seq], |row| row.get(0))
}

/// Forgets revocations, all but how many of each user there were.
pub(crate) fn forget_until(t: &Transaction<'_>, seq: u64) -> Result<()> {
    t.execute(
        "INSERT INTO past_revocations (user_id, count)
         SELECT user_id, count(*) FROM revocations WHERE seq <= ? AND user_id IN (SELECT id FROM users) GROUP BY user_id
         ON CONFLICT (user_id) DO UPDATE SET count = past_revocations.count + excluded.count",
        [seq],
    )?;
    if t.dialect() == Dialect::Postgres {
        t.execute("UPDATE revocation_number SET forgotten = ?1 WHERE forgotten < ?1", [seq])?;
    }
    t.execute("DELETE FROM revocations WHERE seq <= ?", [seq]).map(drop)
}

/// The number of the last revocation that was forgotten while another gateway may not have carried
/// it out.
pub(crate) fn last_forgotten(c: &Connection) -> Result<u64> {
    match c.dialect() {
        Dialect::Sqlite => Ok(0),
        Dialect::Postgres => {
            c.query_row("SELECT forgotten FROM revocation_number", (), |row| row.get("forgotten"))
        }
    }
}

pub(crate) fn revocations_since(c: &Connection, seq: u64) -> Result<Vec<Revocation>> {
    let sql = "SELECT seq, user_id, name, cause, device FROM revocations WHERE seq > ? ORDER BY seq";
    c.statement(sql).query_all([seq], revocation_from_row)
}

/// Whether a user of this name was disabled at this time or later.
pub(crate) fn is_disabled_since(c: &Connection, name: &str, at_s: u64) -> Result<bool> {
    c.statement(CAUSED_SINCE).exists(params![name, word(RevocationCause::Disabled), at_s])
}

pub(crate) const CAUSED_SINCE: &str =
    "SELECT 1 FROM revocations WHERE name = ?1 AND cause = ?2 AND at_s >= ?3 LIMIT 1";

fn revocation_from_row(row: &Row<'_>) -> Result<Revocation> {
    let cause: String = row.get("cause")?;
    Ok(Revocation {
        seq: row.get("seq")?,
        user: UserId(bytes(row, "user_id")?),
        name: row.get("name")?,
        cause: CAUSES.into_iter().find(|known| word(*known) == cause).ok_or_else(|| unexpected("cause"))?,
        device: optional_bytes(row, "device")?.map(DeviceId),
    })
}

const CAUSES: [RevocationCause; 14] = [
    RevocationCause::Disabled,
    RevocationCause::Removed,
    RevocationCause::Password,
    RevocationCause::Certificate,
    RevocationCause::Expired,
    RevocationCause::Renamed,
    RevocationCause::Groups,
    RevocationCause::Device,
    RevocationCause::Source,
    RevocationCause::Unconfirmed,
    RevocationCause::Disconnected,
    RevocationCause::Portal,
    RevocationCause::Kicked,
    RevocationCause::NoProfile,
];

fn word(cause: RevocationCause) -> &'static str {
    match cause {
        RevocationCause::Disabled => "disabled",
        RevocationCause::Removed => "removed",
        RevocationCause::Password => "password",
        RevocationCause::Certificate => "certificate",
        RevocationCause::Expired => "expired",
        RevocationCause::Renamed => "renamed",
        RevocationCause::Groups => "groups",
        RevocationCause::Device => "device",
        RevocationCause::Source => "source",
        RevocationCause::Unconfirmed => "unconfirmed",
        RevocationCause::Disconnected => "disconnected",
        RevocationCause::Portal => "portal",
        RevocationCause::NoProfile => "no-profile",
        RevocationCause::Kicked => "kicked",
    }
}
