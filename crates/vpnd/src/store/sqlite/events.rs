//! Revocations and the audit log, in SQL.

use rusqlite::{Connection, Row, Transaction, params};

use vpnd_proto::session::DeviceId;

use super::super::{AuditEntry, MAX_AUDIT_ENTRIES, Revocation, RevocationCause, UserId};
use super::{bytes, unexpected};

/// Entries between two prunings of the audit log.
const PRUNE_EVERY: u64 = 256;

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
    c.prepare_cached("SELECT coalesce(max(seq), 0) FROM revocations")?.query_row((), |row| row.get(0))
}

pub(super) fn revocations_since(c: &Connection, seq: u64) -> rusqlite::Result<Vec<Revocation>> {
    let sql = "SELECT seq, user_id, name, cause, device FROM revocations WHERE seq > ? ORDER BY seq";
    c.prepare_cached(sql)?.query_map([seq], revocation_from_row)?.collect()
}

pub(super) fn audit(t: &Transaction<'_>, entry: &AuditEntry) -> rusqlite::Result<()> {
    t.execute(
        "INSERT INTO audit (at_s, event, user, source, detail) VALUES (?, ?, ?, ?, ?)",
        params![entry.at_s, entry.event, entry.user, entry.source, entry.detail],
    )?;
    let id = t.last_insert_rowid() as u64;
    if id.is_multiple_of(PRUNE_EVERY) {
        t.execute("DELETE FROM audit WHERE id <= ?", [id.saturating_sub(MAX_AUDIT_ENTRIES)])?;
    }
    Ok(())
}

pub(super) fn audit_log(c: &Connection, limit: u32) -> rusqlite::Result<Vec<AuditEntry>> {
    let sql = "SELECT at_s, event, user, source, detail FROM audit ORDER BY id DESC LIMIT ?";
    let mut statement = c.prepare_cached(sql)?;
    let entries = statement.query_map([limit], |row| {
        Ok(AuditEntry {
            at_s: row.get("at_s")?,
            event: row.get("event")?,
            user: row.get("user")?,
            source: row.get("source")?,
            detail: row.get("detail")?,
        })
    })?;
    entries.collect()
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
        RevocationCause::Disabled | RevocationCause::Source | RevocationCause::Unconfirmed => "disabled",
        RevocationCause::Removed => "removed",
        RevocationCause::Password => "password",
        RevocationCause::Certificate => "certificate",
        RevocationCause::Expired => "expired",
        RevocationCause::Renamed => "renamed",
        RevocationCause::Groups => "groups",
        RevocationCause::Device => "device",
    }
}
