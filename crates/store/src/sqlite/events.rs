//! Revocations, in SQL.

use rusqlite::{Connection, Row, Transaction, params};

use vpnd_proto::session::DeviceId;

use super::super::{Revocation, RevocationCause, UserId};
use super::columns::{bytes, unexpected};

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
    // Forgotten ones count, too.
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

fn revocation_from_row(row: &Row<'_>) -> rusqlite::Result<Revocation> {
    let cause: String = row.get("cause")?;
    let device: Option<Vec<u8>> = row.get("device")?;
    let device = device.map(|id| id.try_into().map_err(|_| unexpected("device"))).transpose()?;
    Ok(Revocation {
        seq: row.get("seq")?,
        user: UserId(bytes(row, "user_id")?),
        name: row.get("name")?,
        cause: CAUSES.into_iter().find(|known| word(*known) == cause).ok_or_else(|| unexpected("cause"))?,
        device: device.map(DeviceId),
    })
}

const CAUSES: [RevocationCause; 13] = [
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
        RevocationCause::Kicked => "kicked",
    }
}
