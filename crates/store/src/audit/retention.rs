//! The erasure of personal fields when their time is over, and of whole records after that.
//!
//! INVARIANT: erased bytes are overwritten, in the file and in its log. Erasing goes in small
//! steps, so that it holds up no event.

use rusqlite::{OptionalExtension as _, params};
use vpnd_config::Retention;

use super::{AuditError, AuditFile};

const DAY_S: u64 = 86_400;
/// Rows of one step.
const STEP: u32 = 500;

/// A rule: its name, its days, and statements that erase up to ?3 rows whose time lies between ?1
/// and ?2. Where there may be many rows, it finds them by an index on their time.
type Rule = (&'static str, fn(&Retention) -> u32, &'static [&'static str]);

const RULES: [Rule; 6] = [
    (
        "user",
        |retention| retention.user_days,
        &[
            "UPDATE sessions SET user = NULL WHERE seq IN (
                 SELECT seq FROM sessions WHERE end_s BETWEEN ?1 AND ?2 AND user IS NOT NULL LIMIT ?3)",
            "UPDATE entries SET user = NULL WHERE seq IN (
                 SELECT seq FROM entries WHERE at_s BETWEEN ?1 AND ?2 AND user IS NOT NULL LIMIT ?3)",
        ],
    ),
    (
        "device",
        |retention| retention.device_days,
        &["UPDATE sessions SET device = NULL WHERE seq IN (
               SELECT seq FROM sessions WHERE end_s BETWEEN ?1 AND ?2 AND device IS NOT NULL LIMIT ?3)"],
    ),
    (
        "inner",
        |retention| retention.inner_days,
        &["UPDATE sessions SET ipv4 = NULL, ipv6 = NULL WHERE seq IN (
               SELECT seq FROM sessions WHERE end_s BETWEEN ?1 AND ?2 AND (ipv4 IS NOT NULL OR ipv6 IS NOT NULL) LIMIT ?3)"],
    ),
    (
        "outer",
        |retention| retention.outer_days,
        &[
            "UPDATE sessions SET outer_address = NULL WHERE seq IN (
                 SELECT seq FROM sessions WHERE end_s BETWEEN ?1 AND ?2 AND outer_address IS NOT NULL LIMIT ?3)",
            "UPDATE entries SET outer_address = NULL WHERE seq IN (
                 SELECT seq FROM entries WHERE at_s BETWEEN ?1 AND ?2 AND outer_address IS NOT NULL LIMIT ?3)",
            // Those of live sessions, too.
            "DELETE FROM moves WHERE rowid IN (SELECT rowid FROM moves WHERE at_s BETWEEN ?1 AND ?2 LIMIT ?3)",
        ],
    ),
    (
        "refused",
        |retention| retention.refused_days,
        &["DELETE FROM entries WHERE seq IN (
               SELECT seq FROM entries WHERE at_s BETWEEN ?1 AND ?2 AND event = 'login-refused' LIMIT ?3)"],
    ),
    (
        "record",
        |retention| retention.record_days,
        &[
            "DELETE FROM sessions WHERE seq IN (SELECT seq FROM sessions WHERE end_s BETWEEN ?1 AND ?2 LIMIT ?3)",
            "DELETE FROM entries WHERE seq IN (SELECT seq FROM entries WHERE at_s BETWEEN ?1 AND ?2 LIMIT ?3)",
            "DELETE FROM gaps WHERE rowid IN (SELECT rowid FROM gaps WHERE to_s BETWEEN ?1 AND ?2 LIMIT ?3)",
            // One that was killed is over when the next one begins: the time between is a gap, of
            // which only these two say. There are few.
            "DELETE FROM runs WHERE id IN (SELECT id FROM runs r WHERE coalesce(ended_s, max(alive_s, (
                 SELECT started_s FROM runs n WHERE n.id > r.id ORDER BY n.id LIMIT 1))) <= ?2 ORDER BY id LIMIT ?3)",
        ],
    ),
];

impl AuditFile {
    /// Erases a step's worth of what is due. Whether there may be more.
    pub(crate) fn erase(&mut self, retention: &Retention, now_s: u64) -> Result<bool, AuditError> {
        for (field, days, statements) in RULES {
            let days = days(retention);
            let Some(up_to_s) = now_s.checked_sub(u64::from(days) * DAY_S + 1).filter(|_| days > 0) else {
                continue;
            };
            let sql = "SELECT up_to_s FROM erased WHERE field = ?";
            let done: Option<u64> = self.connection.query_row(sql, [field], |row| row.get(0)).optional()?;
            // With a clock that was years ahead for a while it says nothing.
            let done = done.filter(|done_s| *done_s <= now_s);
            // A clock that was set back for a while has recorded times that lie before those which
            // are done.
            let from_s = done.map_or(0, |done_s| done_s.saturating_sub(DAY_S));
            if done.is_some_and(|done_s| done_s.saturating_add(DAY_S / 24) > up_to_s) {
                continue;
            }
            for sql in statements {
                let erased = self.connection.prepare_cached(sql)?.execute(params![from_s, up_to_s, STEP])?;
                if erased == STEP as usize {
                    return Ok(true);
                }
            }
            let sql =
                "INSERT INTO erased (field, up_to_s) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET up_to_s = ?2";
            self.connection.execute(sql, params![field, up_to_s])?;
            // The log still has pages of before; it is emptied and cut off, unless a process reads.
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))?;
            return Ok(true);
        }
        Ok(false)
    }
}
