//! Notices of the gateways of a fleet to one another, in SQL. Only databases have it.
//!
//! INVARIANT: numbers grow in the order of the changes, since these follow one another. The newest
//! notice stays, so that a gateway that has read it knows that it has missed none.

use super::columns::bytes;
use super::{Connection, Result, Row, Transaction, params};
use crate::{MAX_NOTICES, Notice, Notices};

/// Time for which a notice stays. Longer than guesses of passwords are remembered.
const KEPT: &str = "40 minutes";

pub(crate) fn since(c: &Connection, after: u64) -> Result<Notices> {
    // The one before is read as well: it is gone if others may be.
    let sql = "SELECT number, origin, body FROM notices WHERE number >= ? ORDER BY number LIMIT ?";
    let statement = c.statement(sql);
    let mut found: Vec<Notice> = statement.query_all(params![after, MAX_NOTICES as u64 + 1], from_row)?;
    let is_cut = after > 0 && found.first().is_none_or(|first| first.number != after);
    found.retain(|notice| notice.number != after);
    found.truncate(MAX_NOTICES);
    Ok(Notices { found, is_cut })
}

pub(crate) fn leave(t: &Transaction<'_>, origin: [u8; 16], body: &[u8]) -> Result<()> {
    let sql = "INSERT INTO notices (origin, body) VALUES (?, ?)";
    t.execute(sql, params![origin, body]).map(drop)
}

/// Forgets those that are old.
pub(crate) fn forget(t: &Transaction<'_>) -> Result<()> {
    let sql = format!(
        "DELETE FROM notices WHERE made < clock_timestamp() - interval '{KEPT}'
             AND number < (SELECT max(number) FROM notices)"
    );
    t.execute(&sql, ()).map(drop)
}

fn from_row(row: &Row<'_>) -> Result<Notice> {
    Ok(Notice { number: row.get("number")?, origin: bytes(row, "origin")?, body: row.blob("body")?.to_vec() })
}
