//! The format of a database's tables, and how they are added to.
//!
//! A vpnd works on tables of one format alone. What a later vpnd needs beyond them is added in
//! steps, which the first gateway that has them takes at its start; those of an earlier vpnd go on
//! meanwhile, and may start again.
//!
//! INVARIANT: a vpnd without a step neither reads nor fills what the step adds, so this is tables,
//! columns with a default and indexes. What can't be added so is another format.

use tokio_postgres::Client;

use super::holder::{BEGIN, LOCK_CLASS};
use super::trouble::{Fault, Trouble};

/// The format of the tables.
pub(super) const FORMAT: u64 = 6;
/// The steps since then, in order. Each takes moments: a gateway has ten seconds for all, and
/// others wait.
pub(super) const STEPS: &[&str] = &[
    "ALTER TABLE format ADD COLUMN step BIGINT NOT NULL DEFAULT 0",
    "DROP INDEX users_expiry;
     CREATE INDEX users_expiry ON users (lapsed, expires_s) WHERE expires_s IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS revocations_name ON revocations (name, at_s)",
];

/// Makes the tables, within a transaction of the caller's.
pub(super) fn tables() -> String {
    let made_by = env!("CARGO_PKG_VERSION");
    format!(
        "CREATE SCHEMA IF NOT EXISTS vpnd; {}
         INSERT INTO format (number, made_by) VALUES ({FORMAT}, '{made_by}'); {}",
        include_str!("schema.sql"),
        steps_from(0, STEPS)
    )
}

/// Refuses a database without tables of vpnd, or of another format; how many steps were taken
/// there.
pub(super) async fn check(client: &Client) -> Result<usize, Fault> {
    // Not `to_regclass`: within a transaction it may remember that there was none before another's.
    let sql = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'vpnd' AND tablename = 'format')";
    if !client.query_one(sql, &[]).await?.try_get::<_, bool>(0)? {
        return Err(Trouble::Empty.into());
    }
    // The column may be missing.
    let sql = "SELECT number, (to_jsonb(f) ->> 'step')::bigint FROM format f ORDER BY number DESC LIMIT 1";
    let row = client.query_opt(sql, &[]).await?;
    let row = row.ok_or_else(|| Trouble::OutOfOrder("the table 'format' is empty".to_owned()))?;
    let found = u64::try_from(row.try_get::<_, i64>(0)?).unwrap_or_default();
    Err(match found {
        FORMAT => {
            let step = row.try_get::<_, Option<i64>>(1)?.unwrap_or_default();
            return Ok(usize::try_from(step).unwrap_or_default());
        }
        found if found < FORMAT => Trouble::Older { found, known: FORMAT },
        found => Trouble::Newer { found, known: FORMAT },
    }
    .into())
}

/// Takes those of `steps` that the database lacks, all or none. Another gateway may do so at the
/// same time: one finds that it is done.
pub(super) async fn bring_up(client: &Client, steps: &[&str]) -> Result<(), Fault> {
    if check(client).await? >= steps.len() {
        return Ok(());
    }
    // Others' statements wait behind one that waits for a table.
    client.batch_execute(&format!("{}; SET LOCAL lock_timeout = '3s'", begin_alone())).await?;
    let taken = check(client).await?;
    client.batch_execute(&format!("{}; COMMIT", steps_from(taken, steps))).await?;
    Ok(())
}

/// Begins a transaction in which this gateway alone changes the format.
pub(super) fn begin_alone() -> String {
    format!("{BEGIN}; SELECT pg_advisory_xact_lock({LOCK_CLASS}, 0)")
}

/// The steps behind those that were taken.
fn steps_from(taken: usize, steps: &[&str]) -> String {
    let left = steps.get(taken..).unwrap_or_default().join(";\n");
    format!("{left}; UPDATE format SET step = greatest(step, {})", steps.len())
}
