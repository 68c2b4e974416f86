//! A store as rows, from one database into another that is empty.
//!
//! INVARIANT: all rows of all tables are there afterwards, and the numbers that must only grow go
//! on; a table that is added to the schemas is added here, which a test compares.

use super::{Connection, Dialect, Result, Transaction, Value, digest};
use crate::UserId;
use crate::sql::columns::bytes;

/// The tables with their columns, those before that others refer to.
pub(crate) const TABLES: [(&str, &str); 16] = [
    (
        "users",
        "id, name, source, subject, password, enabled, generation, totp_secret, totp_step, created_s, expires_s, \
         lapsed, sponsor, note",
    ),
    ("memberships", "user_id, name"),
    ("certificates", "sha256, user_id"),
    ("revoked_certificates", "sha256, user_id, at_s"),
    ("fixed_addresses", "address, user_id, device"),
    ("sources", "user_id, source, seen_s"),
    ("sessions", "id, user_id, device, settled, fresh, started_s, expires_s, epoch, amr, auth_time_s"),
    ("leases", "address, user_id, device, session, until_s"),
    ("revocations", "seq, user_id, name, cause, device, at_s"),
    ("past_revocations", "user_id, count"),
    (
        "wireguard_devices",
        "public_key, user_id, device, name, preshared, renewed_s, walled_s, latest, latest_own, \"outer\"",
    ),
    ("known_devices", "user_id, device, added_s, seen_s, network"),
    ("invitations", "user_id, token, until_s, generation"),
    ("api_tokens", "name, role, created_s, until_s, hash"),
    ("refresh_tokens", "user_id, token"),
    ("provider_sessions", "user_id, session, at_s"),
];

/// Rows in one statement, at most.
const BATCH: usize = 200;

/// Whether there is nothing in it that a copy could overwrite.
pub(crate) fn is_empty(c: &Connection) -> Result<bool> {
    for (table, _) in TABLES {
        if c.statement(&format!("SELECT 1 FROM {table} LIMIT 1")).exists(())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Copies all rows; the number of users.
pub(crate) fn rows(from: &Connection, to: &Transaction<'_>) -> Result<usize> {
    let mut users = 0;
    for (table, columns) in TABLES {
        let rows = from.statement(&format!("SELECT {columns} FROM {table}")).query(())?;
        if table == "users" {
            users = rows.values.len();
        }
        for batch in rows.values.chunks(BATCH) {
            // NULL is written out, because its type depends on the column.
            let mark = |value: &Value| if matches!(value, Value::Null(_)) { "NULL" } else { "?" };
            let row = |row: &Vec<Value>| format!("({})", row.iter().map(mark).collect::<Vec<_>>().join(", "));
            let marks = batch.iter().map(row).collect::<Vec<_>>().join(", ");
            let is_there = |value: &&Value| !matches!(value, Value::Null(_));
            let values: Vec<Value> = batch.iter().flatten().filter(is_there).cloned().collect();
            to.execute(&format!("INSERT INTO {table} ({columns}) VALUES {marks}"), values)?;
        }
    }
    let last: u64 = super::events::last_revocation(from)?;
    set_last_revocation(to, last)?;
    Ok(users)
}

/// Makes the digests of rows that were copied into a store that has some.
pub(crate) fn digests(to: &Transaction<'_>) -> Result<()> {
    let ids: Vec<UserId> =
        to.statement("SELECT id FROM users").query_all((), |row| bytes(row, "id").map(UserId))?;
    ids.into_iter().try_for_each(|id| digest::renew(to, id))
}

fn set_last_revocation(to: &Transaction<'_>, last: u64) -> Result<()> {
    match to.dialect() {
        Dialect::Sqlite => {
            to.execute("DELETE FROM sqlite_sequence WHERE name = 'revocations'", ())?;
            to.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('revocations', ?)", [last]).map(drop)
        }
        Dialect::Postgres => to.execute("UPDATE revocation_number SET number = ?", [last]).map(drop),
    }
}
