//! The store in a PostgreSQL database.
//!
//! Invariants: a change is one transaction, and they follow one another, as in the embedded store;
//! it is acknowledged after the server has said that it is committed, and after a connection was
//! lost in between the server is asked; a gateway changes no database but its own. This module must
//! not know what users may do, and makes no connection of its own: it is given them ([`Dial`]).

mod access;
mod engine;
mod holder;
mod identity;
mod link;
mod mirror;
mod pool;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod trouble;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use vpnd_proto::session::SessionId;

pub use access::{Access, Dial, Direct};
use engine::Session;
pub use holder::Holder;
pub use link::ServerFacts;
use mirror::Mirror;
use pool::{Pool, Turn};
pub(crate) use trouble::Fault;
pub use trouble::Trouble;

use crate::put_off::{self, Behind, PutOff};
use crate::sql::{
    Connection, Database, Engine as _, Result as SqlResult, SqlError, Transaction, Value, sessions, wireguard,
};
use crate::{HandshakeShown, Revocation, SessionChange, SessionRecord, StoreError};

/// Connections of a gateway's auth process, and of a command.
const GATEWAY_CONNECTIONS: usize = 4;
/// Limit for the first answer of a server. The gateway that was killed before this one may still
/// count as running for half of it.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit for a change to wait for others, and for its connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Limit for the server's answer whether a change was committed.
const INQUIRY_TIMEOUT: Duration = Duration::from_secs(12);
const INQUIRY_INTERVAL: Duration = Duration::from_millis(100);

pub struct Postgres {
    pool: Pool,
    holder: Holder,
    name: String,
    put_off: PutOff,
    mirror: Mirror,
    facts: ServerFacts,
}

impl Postgres {
    /// Opens the database for a gateway, or for a command of an administrator; `state_dir` keeps
    /// what waits while it is away.
    ///
    /// # Errors
    /// [`StoreError::Database`] says what is wrong with it.
    pub fn open(
        access: &Access,
        dial: Arc<dyn Dial>,
        holder: Holder,
        state_dir: &Path,
    ) -> Result<Self, StoreError> {
        Self::open_within(START_TIMEOUT, access, dial, holder, state_dir)
    }

    fn open_within(
        limit: Duration,
        access: &Access,
        dial: Arc<dyn Dial>,
        holder: Holder,
        state_dir: &Path,
    ) -> Result<Self, StoreError> {
        let name = access.name();
        let size = if holder.instance.is_some() { GATEWAY_CONNECTIONS } else { 1 };
        let failed = |trouble| trouble::of_store(&name, trouble);
        let pool = Pool::start(access, &dial, &holder, size).map_err(failed)?;
        let facts = pool.wait(Instant::now() + limit).map_err(failed)?;
        let put_off = PutOff::beside(&state_dir.join(vpnd_config::STORE_FILE_NAME));
        let store = Self { pool, holder, name, put_off, mirror: Mirror::default(), facts };
        if store.holder.instance.is_some() {
            store.mirror.fill(store.read(sessions::all)?);
        }
        Ok(store)
    }

    /// Makes the tables of a database that is empty, and makes it this gateway's.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn create(access: &Access, dial: &Arc<dyn Dial>, holder: &Holder) -> Result<(), StoreError> {
        let holder = holder.clone();
        once(access, dial, async move |client: &Client| holder.create(client).await)
    }

    /// Makes the database of a gateway that is gone for good this gateway's; returns the other's
    /// name.
    ///
    /// # Errors
    /// As [`Self::open`], and if the other one runs.
    pub fn adopt(access: &Access, dial: &Arc<dyn Dial>, holder: &Holder) -> Result<String, StoreError> {
        let holder = holder.clone();
        once(access, dial, async move |client: &Client| holder.adopt(client).await)
    }

    /// The name of the gateway that works on the database, if one does.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn running(access: &Access, dial: &Arc<dyn Dial>) -> Result<Option<String>, StoreError> {
        once(access, dial, async |client: &Client| holder::running(client).await)
    }

    /// What the server said of itself when it was connected to first.
    #[must_use]
    pub fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    /// Makes the changes that were put off, if the database is there again; how many there were.
    ///
    /// # Errors
    /// [`StoreError::Database`] if it is not. They stay where they are after an error.
    pub fn catch_up(&self, now_s: u64) -> Result<usize, StoreError> {
        self.put_off.catch_up(self, now_s)
    }

    fn failed(&self, trouble: Trouble) -> StoreError {
        trouble::of_store(&self.name, trouble)
    }

    /// Begins a transaction. A connection that was lost while nobody used it is no failure.
    fn begin(&self, turn: &Turn<'_>, sql: &str, until: Instant) -> Result<Open, StoreError> {
        let session = turn.session().map_err(|trouble| self.failed(trouble))?;
        match session.batch(sql) {
            Ok(()) => return Ok(Open::new(session)),
            Err(fault @ Fault::Lost(_)) => turn.give_up(&session, &fault.into_trouble()),
            Err(fault) => return Err(self.failed(fault.into_trouble())),
        }
        let session = turn.next_session(&session, until).map_err(|trouble| self.failed(trouble))?;
        session.batch(sql).map_err(|fault| {
            let trouble = fault.into_trouble();
            turn.give_up(&session, &trouble);
            self.failed(trouble)
        })?;
        Ok(Open::new(session))
    }

    /// The error of a statement within a transaction.
    fn broken(&self, turn: &Turn<'_>, session: &Session, error: SqlError) -> StoreError {
        if let SqlError::Postgres(Fault::Lost(why)) = &error {
            turn.give_up(session, &Trouble::Unreachable(why.clone()));
        }
        match error {
            SqlError::Postgres(fault) => self.failed(fault.into_trouble()),
            error => self.failed(Trouble::Failed(error.to_string())),
        }
    }

    fn change_within<T>(
        &self,
        patience: Duration,
        change: impl FnOnce(&Transaction<'_>) -> SqlResult<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let until = Instant::now() + patience;
        let turn = self.pool.changes(until).map_err(|trouble| self.failed(trouble))?;
        let mut open = self.begin(&turn, "BEGIN", until)?;
        let number = match self.holder.fence(&open.session) {
            Ok(number) => number,
            Err(trouble) => {
                if matches!(trouble, Trouble::Unreachable(_)) {
                    turn.give_up(&open.session, &trouble);
                }
                return Err(self.failed(trouble));
            }
        };
        let changed = change(&Transaction::new(&open.session));
        let value = changed.map_err(|error| self.broken(&turn, &open.session, error))??;
        open.is_over = true;
        match open.session.batch("COMMIT") {
            Ok(()) => Ok(value),
            Err(Fault::Lost(why)) => {
                turn.give_up(&open.session, &Trouble::Unreachable(why.clone()));
                match self.was_committed(&turn, &open.session, &number) {
                    Some(true) => Ok(value),
                    Some(false) => Err(self.failed(Trouble::Unreachable(why))),
                    None => Err(self.failed(Trouble::Uncertain)),
                }
            }
            Err(fault) => Err(self.failed(fault.into_trouble())),
        }
    }

    /// Asks the server whether a transaction was committed whose end was not heard; `None` if that
    /// can't be known.
    fn was_committed(&self, turn: &Turn<'_>, lost: &Session, number: &str) -> Option<bool> {
        let until = Instant::now() + INQUIRY_TIMEOUT;
        let mut lost = lost.clone();
        while Instant::now() < until {
            let session = turn.next_session(&lost, until).ok()?;
            let number = Value::Text(zeroize::Zeroizing::new(number.to_owned()));
            match session.query("SELECT pg_xact_status((?)::xid8) AS status", &[number]) {
                Ok(rows) => match rows.iter().next().map(|row| row.get("status")) {
                    Some(Ok(Some::<String>(status))) if status == "committed" => return Some(true),
                    Some(Ok(Some(status))) if status == "aborted" => return Some(false),
                    Some(Ok(Some(_))) => std::thread::sleep(INQUIRY_INTERVAL),
                    _ => return None,
                },
                Err(SqlError::Postgres(Fault::Lost(why))) => {
                    turn.give_up(&session, &Trouble::Unreachable(why));
                    lost = session;
                }
                // A standby that took over without the last transactions does not know it.
                Err(_) => return Some(false),
            }
        }
        None
    }
}

/// A transaction, which is rolled back when it is dropped.
struct Open {
    session: Session,
    is_over: bool,
}

impl Open {
    fn new(session: Session) -> Self {
        Self { session, is_over: false }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.is_over
            && let Err(error) = self.session.batch("ROLLBACK")
        {
            tracing::debug!(%error, "a transaction ends with its connection");
        }
    }
}

impl Database for Postgres {
    fn read<T>(&self, query: impl FnOnce(&Connection<'_>) -> SqlResult<T>) -> Result<T, StoreError> {
        let turn = self.pool.queries();
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        let open = self.begin(&turn, begin, Instant::now() + PATIENCE)?;
        let found = query(&Connection::new(&open.session));
        found.map_err(|error| self.broken(&turn, &open.session, error))
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> SqlResult<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.change_within(PATIENCE, change)
    }

    fn revoke<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> SqlResult<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.change(change)
    }

    fn find_session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError> {
        self.put_off.session(self, id, now_s)
    }

    fn alter_sessions(&self, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError> {
        self.put_off.change(self, changes, now_s)
    }

    fn keep_shown_handshakes(&self, shown: &[HandshakeShown]) -> Result<(), StoreError> {
        self.put_off.keep_handshakes(self, shown)
    }

    fn learnt_of(&self, revocations: &[Revocation]) {
        self.mirror.revoked(revocations);
    }
}

impl Behind for Postgres {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn alter(
        &self,
        patience: Duration,
        changes: &[SessionChange],
        now_s: u64,
    ) -> Result<Vec<bool>, StoreError> {
        let done = self.change_within(patience, |t| put_off::apply(t, changes, now_s).map(Ok))?;
        self.mirror.changed(changes, &done, now_s);
        Ok(done)
    }

    fn keep_shown(&self, patience: Duration, shown: &[HandshakeShown]) -> Result<(), StoreError> {
        self.change_within(patience, |t| wireguard::keep_handshakes(t, shown).map(Ok))
    }

    /// While the database is away, as it was known last.
    fn stored_session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError> {
        match self.read(|c| sessions::by_id(c, id, now_s)) {
            Ok(found) => {
                self.mirror.found(id, found.as_ref());
                Ok(found)
            }
            Err(error) if error.is_for_now() => Ok(self.mirror.session(id, now_s)),
            Err(error) => Err(error),
        }
    }
}

/// Has a task carried out on a connection of its own.
fn once<T: Send>(
    access: &Access,
    dial: &Arc<dyn Dial>,
    task: impl AsyncFnOnce(&Client) -> Result<T, Fault> + Send,
) -> Result<T, StoreError> {
    let work = || -> Result<T, Trouble> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Trouble::Failed(error.to_string()))?;
        runtime.block_on(async {
            let link::Link { client, driver, .. } = link::connect(access, dial).await?;
            tokio::select! {
                done = task(&client) => done.map_err(Fault::into_trouble),
                _ = driver => Err(Trouble::Unreachable("the connection has ended".to_owned())),
            }
        })
    };
    // A thread of its own, for the caller's may be one that must not wait for tasks.
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    let done = done.unwrap_or_else(|_| Err(Trouble::Failed("this process is out of order".to_owned())));
    done.map_err(|trouble| trouble::of_store(&access.name(), trouble))
}
