//! Whose a database is: one gateway's, of which one start runs.
//!
//! The row in `holder` names both. A start of a gateway holds an advisory lock for as long as its
//! connection for changes lives, and the server ends that within seconds of the machine's end. The
//! lock is gone for a moment, too, when the server starts again or another one takes over; so a row
//! is a leftover only after its lock was free for a while ([`FREE_BEFORE`]), unless the next start
//! is of the same running system, which is no copy of it. The processes of one start share its
//! instance: in an upgrade both auth processes work.
//!
//! INVARIANT: each change locks the row and finds its own gateway there, and its own start if it is a
//! gateway's, or changes nothing.

use std::fmt::Write as _;
use std::time::Duration;

use tokio_postgres::{Client, Row};

use super::engine::Session;
use super::trouble::{Fault, Trouble};
use crate::sql::{Engine as _, SqlError, Value};
use zeroize::Zeroizing;

/// The first number of vpnd's advisory locks.
const LOCK_CLASS: i32 = i32::from_be_bytes(*b"vpnd");
/// The format of the tables.
pub(super) const FORMAT: u64 = 3;
/// Begins a change, whatever the server's defaults are: each statement sees what was committed
/// before it, so that after the lock of the row nothing older is seen.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
/// Marks that are kept: far more than changes can be made while one of them is asked for.
const KEPT_MARKS: u32 = 10_000;

/// Time for a gateway to take its lock again after its server was away, before another may have it.
const FREE_BEFORE: Duration = Duration::from_secs(15);
const FREE_INTERVAL: Duration = Duration::from_millis(500);

/// The row, locked for the transaction.
const ROW: &str = "SELECT gateway, instance, name FROM holder FOR UPDATE";

/// Identifies a change.
pub(super) type Mark = [u8; 16];

/// A gateway, as a database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The identity in its state directory.
    pub gateway: [u8; 16],
    /// The start of it; all starts on one running system share the second half. `None` for a command
    /// of an administrator.
    pub instance: Option<[u8; 16]>,
    /// Its name for people.
    pub name: String,
}

impl Holder {
    /// Takes a connection for this gateway, or refuses it.
    pub(super) async fn admit(&self, client: &Client) -> Result<(), Fault> {
        if let Some(instance) = &self.instance {
            let sql = format!("SELECT pg_advisory_lock_shared({LOCK_CLASS}, {})", number(instance));
            client.batch_execute(&sql).await?;
        }
        client.batch_execute(BEGIN).await?;
        let row = client.query_opt(ROW, &[]).await?;
        let row = row.ok_or(Trouble::OutOfOrder("the table 'holder' is empty".to_owned()))?;
        let known = Self::from_row(&row)?;
        if known.gateway != self.gateway {
            return Err(Trouble::Foreign(known.name).into());
        }
        if let Some(instance) = &self.instance {
            let is_of_this_system = known.instance.is_some_and(|other| other[8..] == instance[8..]);
            let may_have_it = known.instance == self.instance
                || if is_of_this_system {
                    !known.is_alive(client).await?
                } else {
                    known.is_free(client).await?
                };
            if !may_have_it {
                return Err(Trouble::InUse(known.name).into());
            }
            let sql = "UPDATE holder SET instance = $1, name = $2, since = now(), free_since = NULL
                       WHERE instance IS DISTINCT FROM $1 OR free_since IS NOT NULL";
            client.execute(sql, &[&instance.as_slice(), &self.name]).await?;
        }
        Ok(client.batch_execute("COMMIT").await?)
    }

    /// Whether the start of the row, which the transaction has locked, has been without its lock
    /// for long enough; ends the transaction if it has not.
    async fn is_free(&self, client: &Client) -> Result<bool, Fault> {
        if self.instance.is_none() {
            return Ok(true);
        }
        let is_alive = self.is_alive(client).await?;
        let free_since = if is_alive { "NULL" } else { "coalesce(free_since, clock_timestamp())" };
        let sql = format!(
            "UPDATE holder SET free_since = {free_since}
             RETURNING coalesce(clock_timestamp() - free_since >= interval '{} seconds', false)",
            FREE_BEFORE.as_secs()
        );
        let is_free: bool = client.query_one(&sql, &[]).await?.try_get(0)?;
        if !is_free {
            client.batch_execute("COMMIT").await?;
        }
        Ok(is_free)
    }

    /// Whether the start of a gateway holds its lock.
    async fn is_alive(&self, client: &Client) -> Result<bool, Fault> {
        match &self.instance {
            Some(instance) => is_alive(client, instance).await,
            None => Ok(false),
        }
    }

    /// Makes an empty database this gateway's, with its tables; one that has them stays as it is.
    pub(super) async fn create(&self, client: &Client) -> Result<(), Fault> {
        match check_format(client).await {
            Err(Fault::Trouble(Trouble::Empty)) => {}
            found => return found,
        }
        let mut gateway = String::new();
        for byte in &self.gateway {
            let _ = write!(gateway, "{byte:02x}");
        }
        let sql = format!(
            "{BEGIN}; SELECT pg_advisory_xact_lock({LOCK_CLASS}, 0); CREATE SCHEMA IF NOT EXISTS vpnd; {}
             INSERT INTO format (number, made_by) VALUES ({FORMAT}, '{}');
             INSERT INTO holder (gateway, name) VALUES ('\\x{gateway}', {}); COMMIT",
            include_str!("schema.sql"),
            env!("CARGO_PKG_VERSION"),
            quoted(&self.name),
        );
        client.batch_execute(&sql).await?;
        Ok(())
    }

    /// Makes a database this gateway's that was the one's of this name, which must not run: it waits
    /// until that one could have come back from an outage.
    pub(super) async fn adopt(&self, client: &Client, from: &str) -> Result<(), Fault> {
        check_format(client).await?;
        loop {
            client.batch_execute(BEGIN).await?;
            let known = Self::from_row(&client.query_one(ROW, &[]).await?)?;
            if known.name != from {
                return Err(Trouble::Foreign(known.name).into());
            }
            if known.is_free(client).await? {
                let sql = "UPDATE holder SET gateway = $1, instance = NULL, name = $2, since = now(), free_since = NULL";
                client.execute(sql, &[&self.gateway.as_slice(), &self.name]).await?;
                return Ok(client.batch_execute("COMMIT").await?);
            }
            if known.is_alive(client).await? {
                return Err(Trouble::InUse(known.name).into());
            }
            tokio::time::sleep(FREE_INTERVAL).await;
        }
    }

    /// Locks the row within a change, and marks the change.
    pub(super) fn fence(&self, session: &Session) -> Result<Mark, Trouble> {
        let mark: Mark = rand::random();
        let sql = format!(
            "WITH held AS (SELECT gateway, instance, name FROM holder FOR UPDATE),
                  marked AS (INSERT INTO marks (mark) VALUES (?)),
                  forgotten AS (DELETE FROM marks WHERE number < (SELECT max(number) - {KEPT_MARKS} FROM marks))
             SELECT gateway, instance, name FROM held"
        );
        let rows = session.query(&sql, &[as_value(&mark)]).map_err(trouble)?;
        let values = rows.iter().next().map(|row| row.values().to_vec()).unwrap_or_default();
        let [Value::Blob(gateway), instance, Value::Text(name)] = values.as_slice() else {
            return Err(Trouble::OutOfOrder("the table 'holder' is not as vpnd made it".to_owned()));
        };
        let is_ours = match (&self.instance, instance) {
            (None, _) => true,
            (Some(ours), Value::Blob(instance)) => instance.as_slice() == ours,
            (Some(_), _) => false,
        };
        if gateway.as_slice() != self.gateway {
            return Err(Trouble::Foreign(name.to_string()));
        }
        if is_ours { Ok(mark) } else { Err(Trouble::InUse(name.to_string())) }
    }

    fn from_row(row: &Row) -> Result<Self, Fault> {
        let unexpected = || Trouble::OutOfOrder("the table 'holder' is not as vpnd made it".to_owned());
        let gateway: Vec<u8> = row.try_get(0)?;
        let instance: Option<Vec<u8>> = row.try_get(1)?;
        let instance = instance.map(<[u8; 16]>::try_from).transpose().map_err(|_| unexpected())?;
        let name: String = row.try_get(2)?;
        let gateway = gateway.try_into().map_err(|_| unexpected())?;
        Ok(Self { gateway, instance, name: vpnd_sys::text::plain(&name) })
    }
}

/// The name of the gateway that works on the database, if one does.
pub(super) async fn running(client: &Client) -> Result<Option<String>, Fault> {
    check_format(client).await?;
    let row = client.query_one("SELECT gateway, instance, name FROM holder", &[]).await?;
    let known = Holder::from_row(&row)?;
    Ok(known.is_alive(client).await?.then_some(known.name))
}

/// Refuses a database without tables of vpnd, or of another format.
pub(super) async fn check_format(client: &Client) -> Result<(), Fault> {
    let sql = "SELECT to_regclass('vpnd.format') IS NOT NULL";
    if !client.query_one(sql, &[]).await?.try_get::<_, bool>(0)? {
        return Err(Trouble::Empty.into());
    }
    let row = client.query_one("SELECT max(number) FROM format", &[]).await?;
    let found = row.try_get::<_, Option<i64>>(0)?.and_then(|found| u64::try_from(found).ok()).unwrap_or(0);
    Err(match found {
        FORMAT => return Ok(()),
        found if found < FORMAT => Trouble::Older { found, known: FORMAT },
        found => Trouble::Newer { found, known: FORMAT },
    }
    .into())
}

/// Whether a change was committed of which no transaction is left. INVARIANT: the connection was
/// admitted after the change's own was lost, so that it has waited for the lock of that change.
pub(super) fn is_made(session: &Session, mark: &Mark) -> Result<bool, SqlError> {
    let found = session.query("SELECT number FROM marks WHERE mark = ?", &[as_value(mark)])?;
    Ok(found.iter().next().is_some())
}

fn as_value(mark: &Mark) -> Value {
    Value::Blob(Zeroizing::new(mark.to_vec()))
}

/// Whether the start of a gateway holds its lock.
async fn is_alive(client: &Client, instance: &[u8; 16]) -> Result<bool, Fault> {
    let sql = format!(
        "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid::bigint = {}
             AND objid::bigint = {} AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
        LOCK_CLASS.cast_unsigned(),
        number(instance).cast_unsigned(),
    );
    Ok(client.query_one(&sql, &[]).await?.try_get(0)?)
}

/// The second number of the lock of a gateway's start.
fn number(instance: &[u8; 16]) -> i32 {
    let [a, b, c, d, ..] = *instance;
    i32::from_be_bytes([a, b, c, d])
}

fn quoted(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

pub(super) fn trouble(error: SqlError) -> Trouble {
    match error {
        SqlError::Postgres(fault) => fault.into_trouble(),
        error => Trouble::Failed(error.to_string()),
    }
}
