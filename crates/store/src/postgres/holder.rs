//! The holders of a database: one gateway or those of a fleet, and of each one start runs.
//!
//! A row in `holder` names a gateway and its start. A start holds an advisory lock for as long as
//! its connection for changes lives, and the server ends that within seconds of the machine's end.
//! The lock is gone for a moment, too, when the server starts again or another one takes over; so a
//! row is a leftover only after its lock was free for a while ([`FREE_BEFORE`]), unless the next
//! start is of the same running system, which is no copy of it. The processes of one start share
//! its instance: in an upgrade both auth processes work.
//!
//! A second gateway joins only where `fleet` has the id that it is configured with; the id is that
//! of a gateway that has the database alone.
//!
//! INVARIANT: each change locks the row of `fleet` and finds its own gateway in `holder`, and its
//! own start if it is a gateway's, or changes nothing.

use std::fmt::Write as _;
use std::time::Duration;

use tokio_postgres::{Client, Row};

use super::engine::Session;
use super::format;
use super::history::Mark;
use super::trouble::{Fault, Trouble};
use crate::sql::{Engine as _, SqlError, Value};
use zeroize::Zeroizing;

/// The first number of vpnd's advisory locks.
pub(super) const LOCK_CLASS: i32 = i32::from_be_bytes(*b"vpnd");
/// Begins a change, whatever the server's defaults are: each statement sees what was committed
/// before it, so that after the lock of the row nothing older is seen.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
/// Marks that are kept: far more than changes can be made while one of them is asked for.
const KEPT_MARKS: u32 = 10_000;

/// Time for a gateway to take its lock again after its server was away, before another may have it.
const FREE_BEFORE: Duration = Duration::from_secs(15);
const FREE_INTERVAL: Duration = Duration::from_millis(500);

/// Seconds by which the clocks of a fleet's gateways may differ from the database's.
pub const CLOCK_TOLERANCE_S: u64 = 10;

/// The server ends a change that stands still, for all others wait for it: its machine may be gone.
const STANDSTILL: &str = "SET idle_in_transaction_session_timeout = '2s'";

/// The row that changes lock.
const LOCK: &str = "SELECT id FROM fleet FOR UPDATE";
/// Read once the row is locked: each statement sees what was committed before it.
const MEMBERS: &str = "SELECT gateway, instance, name FROM holder ORDER BY since, gateway";

/// Whether the change of this mark and number is not there, nor forgotten behind many later ones.
pub(super) const IS_LOST: &str = "SELECT NOT EXISTS (SELECT 1 FROM marks WHERE mark = $1)
    AND coalesce((SELECT min(number) FROM marks) <= $2, true) AS is_lost";
/// Has generations go on from this one at least.
pub(super) const RAISE: &str = "UPDATE fleet SET generation = $1 WHERE generation < $1";

/// A gateway, as a database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The identity in its state directory.
    pub gateway: [u8; 16],
    /// The start of it; all starts on one running system share the second half. `None` for a
    /// command of an administrator.
    pub instance: Option<[u8; 16]>,
    /// The id of its fleet, if it is to share the database. A command has it if it only looks.
    pub fleet: Option<String>,
    /// Its name for people.
    pub name: String,
}

impl Holder {
    /// Takes a connection for this gateway, or refuses it; whether the database lacks the gateway's
    /// `last` change.
    pub(super) async fn admit(&self, client: &Client, last: Option<Mark>) -> Result<bool, Fault> {
        if let Some(instance) = &self.instance {
            let sql = format!("SELECT pg_advisory_lock_shared({LOCK_CLASS}, {})", number(instance));
            client.batch_execute(&sql).await?;
        }
        client.batch_execute(STANDSTILL).await?;
        client.batch_execute(BEGIN).await?;
        let shared = lock(client).await?;
        let members = members(client).await?;
        let (known, others): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|member| member.gateway == self.gateway);
        let known = known.into_iter().next();
        let mut has_lost = false;
        match (&self.instance, known) {
            // It looks, before this gateway has joined as well as later.
            (None, _) if self.fleet.is_some() => {
                self.check_fleet(client, shared.as_deref(), &others).await?;
            }
            (None, Some(_)) => {}
            (None, None) => {
                let shared = shared.map(|id| Trouble::NotJoined(vpnd_sys::text::plain(&id)));
                return Err(shared.unwrap_or_else(|| foreign(&others)).into());
            }
            (Some(instance), known) => {
                self.check_fleet(client, shared.as_deref(), &others).await?;
                if let Some(known) = known {
                    known.give_way(client, instance).await?;
                }
                self.enter(client, instance, others.is_empty()).await?;
                if let Some(last) = last {
                    has_lost = is_lost(client, &last).await?;
                }
            }
        }
        client.batch_execute("COMMIT").await?;
        Ok(has_lost)
    }

    /// Refuses to share a database unless all are of one fleet.
    async fn check_fleet(&self, client: &Client, shared: Option<&str>, others: &[Self]) -> Result<(), Fault> {
        match (shared, &self.fleet) {
            _ if others.is_empty() => {}
            (None, _) => return Err(foreign(others).into()),
            (Some(found), Some(ours)) if found == ours => {}
            (Some(found), ours) => {
                let ours = ours.clone().unwrap_or_default();
                return Err(Trouble::OtherFleet { found: vpnd_sys::text::plain(found), ours }.into());
            }
        }
        if others.iter().any(|other| other.name == self.name) {
            return Err(Trouble::NameTaken(self.name.clone()).into());
        }
        if self.fleet.is_some() {
            let row = client.query_one("SELECT extract(epoch FROM clock_timestamp())::bigint", &[]).await?;
            let theirs = u64::try_from(row.try_get::<_, i64>(0)?).unwrap_or_default();
            let apart_s = theirs.abs_diff(vpnd_sys::clock::steady_s());
            if apart_s > CLOCK_TOLERANCE_S {
                return Err(Trouble::ClockApart { apart_s }.into());
            }
        }
        Ok(())
    }

    /// Lets this start have the row of an earlier one, or refuses it.
    async fn give_way(&self, client: &Client, instance: &[u8; 16]) -> Result<(), Fault> {
        let is_of_this_system = self.instance.is_some_and(|other| other[8..] == instance[8..]);
        let may_have_it = self.instance.as_ref() == Some(instance)
            || if is_of_this_system { !self.is_alive(client).await? } else { self.is_free(client).await? };
        if may_have_it { Ok(()) } else { Err(Trouble::InUse(self.name.clone()).into()) }
    }

    /// Enters this start; a gateway that `is_alone` decides whether others may join.
    async fn enter(&self, client: &Client, instance: &[u8; 16], is_alone: bool) -> Result<(), Fault> {
        let gateway = self.gateway.as_slice();
        let sql = "INSERT INTO holder AS h (gateway, instance, name) VALUES ($1, $2, $3)
                   ON CONFLICT (gateway) DO UPDATE SET instance = excluded.instance, name = excluded.name,
                       since = now(), free_since = NULL
                   WHERE h.instance IS DISTINCT FROM excluded.instance OR h.free_since IS NOT NULL";
        client.execute(sql, &[&gateway, &instance.as_slice(), &self.name]).await?;
        if is_alone {
            let sql = "UPDATE fleet SET id = $1 WHERE id IS DISTINCT FROM $1";
            client.execute(sql, &[&self.fleet]).await?;
            // A store that was moved into the database knows nothing of gateways.
            let sql = "INSERT INTO carriers (session, gateway, generation) SELECT id, $1, 0 FROM sessions
                       ON CONFLICT DO NOTHING";
            client.execute(sql, &[&gateway]).await?;
        }
        Ok(())
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
            "UPDATE holder SET free_since = {free_since} WHERE gateway = $1
             RETURNING coalesce(clock_timestamp() - free_since >= interval '{} seconds', false)",
            FREE_BEFORE.as_secs()
        );
        let is_free: bool = client.query_one(&sql, &[&self.gateway.as_slice()]).await?.try_get(0)?;
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
        match format::check(client).await {
            Err(Fault::Trouble(Trouble::Empty)) => {}
            found => return found.map(drop),
        }
        let mut gateway = String::new();
        for byte in &self.gateway {
            let _ = write!(gateway, "{byte:02x}");
        }
        client.batch_execute(&format::begin_alone()).await?;
        // A start before this one was killed, and the server has finished meanwhile what that one
        // wanted.
        match format::check(client).await {
            Err(Fault::Trouble(Trouble::Empty)) => {}
            found => {
                client.batch_execute("ROLLBACK").await?;
                return found.map(drop);
            }
        }
        let sql = format!(
            "{}; INSERT INTO holder (gateway, name) VALUES ('\\x{gateway}', {}); COMMIT",
            format::tables(),
            quoted(&self.name),
        );
        client.batch_execute(&sql).await?;
        Ok(())
    }

    /// Makes a database this gateway's that was the one's of this name, which must not run: it
    /// waits until that one could have come back from an outage.
    pub(super) async fn adopt(&self, client: &Client, from: &str) -> Result<(), Fault> {
        format::check(client).await?;
        loop {
            client.batch_execute(BEGIN).await?;
            lock(client).await?;
            let members = members(client).await?;
            let Some(known) = members.iter().find(|member| member.name == from) else {
                return Err(foreign(&members).into());
            };
            if known.is_free(client).await? {
                let (new, old) = (self.gateway.as_slice(), known.gateway.as_slice());
                let sql = "UPDATE holder SET gateway = $1, instance = NULL, name = $2, since = now(), free_since = NULL
                           WHERE gateway = $3";
                client.execute(sql, &[&new, &self.name, &old]).await?;
                for table in ["carriers", "leaving"] {
                    let sql = format!("UPDATE {table} SET gateway = $1 WHERE gateway = $2");
                    client.execute(&sql, &[&new, &old]).await?;
                }
                return Ok(client.batch_execute("COMMIT").await?);
            }
            if known.is_alive(client).await? {
                return Err(Trouble::InUse(known.name.clone()).into());
            }
            tokio::time::sleep(FREE_INTERVAL).await;
        }
    }

    /// Locks the row within a change, and marks the change.
    pub(super) fn fence(&self, session: &Session) -> Result<Mark, Trouble> {
        let mark: [u8; 16] = rand::random();
        let sql = format!(
            "WITH held AS (SELECT generation FROM fleet FOR UPDATE),
                  marked AS (INSERT INTO marks (mark) VALUES (?) RETURNING number),
                  forgotten AS (DELETE FROM marks WHERE number < (SELECT max(number) - {KEPT_MARKS} FROM marks))
             SELECT generation, (SELECT number FROM marked) FROM held"
        );
        let held = session.query(&sql, &[as_value(&mark)]).map_err(trouble)?;
        let mark = match held.iter().next().map(|row| row.values()) {
            Some([Value::Integer(generation), Value::Integer(number)]) => {
                Mark { mark, number: number.unsigned_abs(), generation: generation.unsigned_abs() }
            }
            _ => return Err(unexpected("fleet")),
        };
        let mut first = None;
        for row in session.query(MEMBERS, &[]).map_err(trouble)?.iter() {
            let [Value::Blob(gateway), instance, Value::Text(name)] = row.values() else {
                return Err(unexpected("holder"));
            };
            if gateway.as_slice() != self.gateway {
                first.get_or_insert(name.to_string());
                continue;
            }
            return match (&self.instance, instance) {
                (None, _) => Ok(mark),
                (Some(ours), Value::Blob(instance)) if instance.as_slice() == ours => Ok(mark),
                (Some(_), _) => Err(Trouble::InUse(name.to_string())),
            };
        }
        match (&self.instance, &self.fleet) {
            (None, Some(fleet)) => Err(Trouble::NotJoined(fleet.clone())),
            _ => Err(first.map_or_else(|| unexpected("holder"), Trouble::Foreign)),
        }
    }

    fn from_row(row: &Row) -> Result<Self, Fault> {
        let unexpected = || unexpected("holder");
        let gateway: Vec<u8> = row.try_get(0)?;
        let instance: Option<Vec<u8>> = row.try_get(1)?;
        let instance = instance.map(<[u8; 16]>::try_from).transpose().map_err(|_| unexpected())?;
        let name: String = row.try_get(2)?;
        let gateway = gateway.try_into().map_err(|_| unexpected())?;
        Ok(Self { gateway, instance, fleet: None, name: vpnd_sys::text::plain(&name) })
    }
}

/// The name of a gateway that works on the database, if one does.
pub(super) async fn running(client: &Client) -> Result<Option<String>, Fault> {
    format::check(client).await?;
    for known in members(client).await? {
        if known.is_alive(client).await? {
            return Ok(Some(known.name));
        }
    }
    Ok(None)
}

/// Locks the row that changes lock; the id of the fleet that the database is shared by.
async fn lock(client: &Client) -> Result<Option<String>, Fault> {
    let row = client.query_opt(LOCK, &[]).await?;
    let row = row.ok_or(Trouble::OutOfOrder("the table 'fleet' is empty".to_owned()))?;
    Ok(row.try_get(0)?)
}

/// The gateways that the database belongs to.
async fn members(client: &Client) -> Result<Vec<Holder>, Fault> {
    client.query(MEMBERS, &[]).await?.iter().map(Holder::from_row).collect()
}

fn foreign(members: &[Holder]) -> Trouble {
    members.first().map_or_else(
        || Trouble::OutOfOrder("the table 'holder' is empty".to_owned()),
        |member| Trouble::Foreign(member.name.clone()),
    )
}

fn unexpected(table: &str) -> Trouble {
    Trouble::OutOfOrder(format!("the table '{table}' is not as vpnd made it"))
}

/// Whether a change was committed of which no transaction is left. INVARIANT: the connection was
/// admitted after the change's own was lost, so that it has waited for the lock of that change.
pub(super) fn is_made(session: &Session, mark: &Mark) -> Result<bool, SqlError> {
    let found = session.query("SELECT number FROM marks WHERE mark = ?", &[as_value(&mark.mark)])?;
    Ok(found.iter().next().is_some())
}

/// Whether the database lacks a change that it had acknowledged, and so all later ones; generations
/// go on from the latest that are known. The transaction has locked the row that changes lock.
async fn is_lost(client: &Client, last: &Mark) -> Result<bool, Fault> {
    let as_integer = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let row = client.query_one(IS_LOST, &[&last.mark.as_slice(), &as_integer(last.number)]).await?;
    let is_lost = row.try_get(0)?;
    if is_lost {
        // A change uses up one generation.
        client.execute(RAISE, &[&as_integer(last.generation.saturating_add(1))]).await?;
    }
    Ok(is_lost)
}

fn as_value(mark: &[u8; 16]) -> Value {
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
