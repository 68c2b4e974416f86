//! A digest of each user, so that damage to a row is found where SQLite can't find it.
//!
//! SQLite checks the structure of its pages, but a flipped bit inside a row makes a disabled user
//! an enabled one. Code that changes a user calls [`renew`] in the same transaction; code that
//! reads one calls [`verify`]. Invariant: data that decide about a login are either as they were
//! written or an error. This guards against damage, not against people who may write the file:
//! those can compute a digest too.

use sha2::{Digest as _, Sha256};

use super::columns::bytes;
use super::{Connection, Optional as _, Result, SqlError, Transaction, ValueRef, params};
use crate::UserId;

/// All that a user is, in rows that are in a fixed order.
const PARTS: [&str; 7] = [
    "SELECT id, name, source, subject, password, enabled, generation, totp_secret, totp_step, created_s, expires_s,
            lapsed, sponsor, note
     FROM users WHERE id = ?",
    "SELECT name FROM memberships WHERE user_id = ? ORDER BY name",
    "SELECT sha256 FROM certificates WHERE user_id = ? ORDER BY sha256",
    "SELECT sha256, at_s FROM revoked_certificates WHERE user_id = ? ORDER BY sha256",
    "SELECT address, device FROM fixed_addresses WHERE user_id = ? ORDER BY address",
    "SELECT public_key, device, name, preshared, renewed_s, walled_s FROM wireguard_devices WHERE user_id = ? ORDER BY public_key",
    "SELECT token, until_s, generation FROM invitations WHERE user_id = ?",
];

/// Writes down what the user is now; after each change, in its transaction.
pub(crate) fn renew(t: &Transaction<'_>, id: UserId) -> Result<()> {
    if !t.dialect().has_digests() {
        return Ok(());
    }
    let digest = compute(t, id)?;
    t.statement("UPDATE users SET digest = ? WHERE id = ?").execute(params![digest, id.0]).map(drop)
}

/// Fails if the user is not as it was written down. Costs as much for a user that does not exist,
/// which is no failure.
pub(crate) fn verify(c: &Connection, id: UserId) -> Result<()> {
    if !c.dialect().has_digests() {
        return Ok(());
    }
    let statement = c.statement("SELECT digest FROM users WHERE id = ?");
    let stored: Option<Option<Vec<u8>>> = statement.query_row([id.0], |row| row.get(0)).optional()?;
    let computed = compute(c, id)?;
    match stored {
        None => Ok(()),
        Some(Some(stored)) if stored == computed => Ok(()),
        Some(_) => Err(SqlError::Damaged("a user is not as it was written")),
    }
}

/// Verifies all users, and that none has lost a revocation: a page of an older time looks whole by
/// itself.
pub(crate) fn verify_all(c: &Connection) -> Result<()> {
    let ids: Vec<UserId> =
        c.statement("SELECT id FROM users").query_all((), |row| bytes(row, "id").map(UserId))?;
    ids.into_iter().try_for_each(|id| verify(c, id))?;
    let sql =
        "SELECT 1 FROM users u LEFT JOIN (SELECT user_id, count(*) AS n FROM revocations GROUP BY user_id) r
               ON r.user_id = u.id LEFT JOIN past_revocations p ON p.user_id = u.id
         WHERE u.generation <> coalesce(r.n, 0) + coalesce(p.count, 0)";
    if c.statement(sql).exists(())? {
        return Err(SqlError::Damaged("users and revocations disagree"));
    }
    Ok(())
}

fn compute(c: &Connection, id: UserId) -> Result<[u8; 32]> {
    let mut digest = Sha256::new();
    for (part, sql) in (0_u8..).zip(PARTS) {
        // A user may have dozens of devices, each of which has this computed when it comes back.
        c.statement(sql).visit([id.0], |value| {
            // Part, kind and length stand before each value, so that no two users have one stream
            // of bytes.
            let number;
            let (kind, value): (u8, &[u8]) = match value {
                ValueRef::Null => (0, &[]),
                ValueRef::Integer(integer) => {
                    number = integer.to_le_bytes();
                    (1, &number)
                }
                ValueRef::Text(text) => (3, text.as_bytes()),
                ValueRef::Blob(blob) => (4, blob),
            };
            let mut head = [part, kind, 0, 0, 0, 0, 0, 0, 0, 0];
            head[2..].copy_from_slice(&(value.len() as u64).to_le_bytes());
            digest.update(head);
            digest.update(value);
        })?;
    }
    Ok(digest.finalize().into())
}
