//! The store in a PostgreSQL database.
//!
//! Invariants: a change is one transaction, and they follow one another, as in the embedded store;
//! it is acknowledged after the server has said that it is committed, and after a connection was
//! lost in between the server is asked; a gateway changes no database but its own. This module must
//! not know what users may do, and opens no connection: it is given them ([`Dial`]).

mod access;
mod engine;
mod format;
mod history;
mod holder;
mod identity;
mod link;
mod mirror;
mod pool;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod transactions;
mod trouble;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use vpnd_proto::session::SessionId;

pub use access::{Access, Dial, Dialled, Direct};
use history::SETTLING;
pub use holder::{CLOCK_TOLERANCE_S, Holder};
pub use link::ServerFacts;
use mirror::Mirror;
use pool::Pool;
use transactions::{Limits, PATIENCE, Transactions};
pub(crate) use trouble::Fault;
pub use trouble::Trouble;

use crate::put_off::{self, Behind, Pace, PutOff, Wall};
use crate::sql::{Connection, Database, Result as SqlResult, Transaction, sessions, wireguard};
use crate::{HandshakeShown, Revocation, SessionChange, SessionRecord, StoreError};

/// Connections of a gateway's auth process, and of a command.
const GATEWAY_CONNECTIONS: usize = 4;
/// Limit for the first answer of a server. The start before this one may count as running for half
/// of it.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Limits for a gateway's query: a login makes several, for which its client waits.
const QUERY: Limits = Limits { patience: PATIENCE, whole: Duration::from_secs(8) };
/// Limits for changes of sessions, for which all sessions wait. A crowd of changes at other
/// gateways is no reason to put them off, for what was put off is not known there.
const URGENT: Limits = Limits { patience: Duration::from_secs(1), whole: Duration::from_secs(2) };
/// Limits for those that were put off. Nothing but logins waits for them.
const LATER: Limits = Limits { patience: Duration::from_secs(1), whole: Duration::from_secs(30) };

pub struct Postgres {
    transactions: Transactions,
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
        let pool = Pool::start(access, &dial, &holder, size, state_dir).map_err(failed)?;
        let facts = pool.wait(Instant::now() + limit).map_err(failed)?;
        let put_off = PutOff::beside(&state_dir.join(vpnd_config::STORE_FILE_NAME));
        let transactions = Transactions { pool, holder, name };
        let store = Self { transactions, put_off, mirror: Mirror::default(), facts };
        if store.transactions.holder.instance.is_some() {
            store.learn_again()?;
        }
        Ok(store)
    }

    /// Makes the tables of a database that is empty, and makes it this gateway's.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn create(access: &Access, dial: &Arc<dyn Dial>, holder: &Holder) -> Result<(), StoreError> {
        let holder = holder.clone();
        once(access, dial, async move |client: &Client| holder.create(client).await)
    }

    /// Makes the database of the gateway of this name, which is gone for good, this gateway's;
    /// waits until the other one can't come back from an outage.
    ///
    /// # Errors
    /// Those of [`Self::open`]; also if the other gateway runs or has another name.
    pub fn adopt(
        access: &Access,
        dial: &Arc<dyn Dial>,
        holder: &Holder,
        from: &str,
    ) -> Result<(), StoreError> {
        let (holder, from) = (holder.clone(), from.to_owned());
        once(access, dial, async move |client: &Client| holder.adopt(client, &from).await)
    }

    /// The name of the gateway that works on the database, if one does.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn running(access: &Access, dial: &Arc<dyn Dial>) -> Result<Option<String>, StoreError> {
        once(access, dial, async |client: &Client| holder::running(client).await)
    }

    /// The server's statement about itself at the first connection.
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
}

impl Database for Postgres {
    fn read<T>(&self, query: impl FnOnce(&Connection<'_>) -> SqlResult<T>) -> Result<T, StoreError> {
        self.transactions.read_within(self.transactions.holder.instance.map(|_| QUERY), query)
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> SqlResult<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.transactions.change_surely(change)
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

    fn take_over(&self, moves: &[(SessionId, u64)], now_s: u64) -> Result<Vec<SessionRecord>, StoreError> {
        let before = self.mirror.before();
        let moved = self.change(|t| sessions::move_here(t, moves, now_s).map(Ok))?;
        moved.iter().for_each(|session| self.mirror.found(before, session.id, Some(session)));
        Ok(moved)
    }

    fn alter_sessions(&self, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError> {
        self.put_off.change(self, changes, now_s)
    }

    fn keep_shown_handshakes(&self, shown: &[HandshakeShown]) -> Result<Vec<bool>, StoreError> {
        self.put_off.keep_handshakes(self, shown)
    }

    fn wall_device(&self, wall: Wall) -> Result<(), StoreError> {
        if self.transactions.holder.instance.is_none() {
            // Nothing would make a command's change later.
            return self.change(|t| wireguard::wall(t, Pace::Urgent, &[wall]).map(Ok));
        }
        self.put_off.wall(self, wall)
    }

    fn put_off(&self) -> &PutOff {
        &self.put_off
    }

    fn is_shared(&self) -> bool {
        self.transactions.holder.fleet.is_some()
    }

    fn may_lease(&self) -> Result<(), StoreError> {
        let histories = self.transactions.pool.histories();
        if self.is_shared() && !histories.is_settled(Instant::now()) {
            return Err(self.transactions.failed(Trouble::Settling { wait_s: SETTLING.as_secs() }));
        }
        Ok(())
    }

    fn present_history(&self) -> u64 {
        self.transactions.pool.histories().number()
    }

    fn learn_again(&self) -> Result<(), StoreError> {
        self.mirror.fill(self.transactions.read_within(None, sessions::all)?);
        Ok(())
    }

    fn learnt_of(&self, revocations: &[Revocation]) {
        self.mirror.revoked(revocations);
    }
}

impl Behind for Postgres {
    fn name(&self) -> String {
        self.transactions.name.clone()
    }

    fn held_up(&self) -> StoreError {
        self.transactions.failed(self.transactions.pool.trouble().unwrap_or(Trouble::Busy))
    }

    fn alter(&self, pace: Pace, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError> {
        let change = |t: &Transaction<'_>| sessions::change(t, changes, now_s).map(Ok);
        let done = self.transactions.change_within(limits(pace), change)?;
        self.mirror.changed(changes, &done, now_s);
        Ok(done)
    }

    fn keep_shown(&self, pace: Pace, shown: &[HandshakeShown]) -> Result<Vec<bool>, StoreError> {
        self.transactions.change_within(limits(pace), |t| wireguard::keep_handshakes(t, shown).map(Ok))
    }

    fn wall(&self, pace: Pace, walls: &[Wall]) -> Result<(), StoreError> {
        self.transactions.change_within(limits(pace), |t| wireguard::wall(t, pace, walls).map(Ok))
    }

    fn end_all(&self, at_s: u64) -> Result<(), StoreError> {
        self.transactions.change_within(LATER, |t| put_off::end_all(t, at_s).map(Ok))?;
        self.mirror.fill(Vec::new());
        Ok(())
    }

    /// While the database is away, as it was known last.
    fn stored_session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError> {
        let before = self.mirror.before();
        match self.transactions.read_within(Some(URGENT), |c| sessions::by_id(c, id, now_s)) {
            Ok(found) => {
                self.mirror.found(before, id, found.as_ref());
                Ok(found)
            }
            Err(error) if error.is_for_now() => Ok(self.mirror.session(id, now_s)),
            Err(error) => Err(error),
        }
    }

    fn known_session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError> {
        match self.mirror.session(id, now_s) {
            Some(known) => Ok(Some(known)),
            None => self.stored_session(id, now_s),
        }
    }
}

fn limits(pace: Pace) -> Limits {
    match pace {
        Pace::Urgent => URGENT,
        Pace::Later => LATER,
    }
}

/// Has a task carried out on a separate connection.
fn once<T: Send>(
    access: &Access,
    dial: &Arc<dyn Dial>,
    task: impl AsyncFnOnce(&Client) -> Result<T, Fault> + Send,
) -> Result<T, StoreError> {
    let work = || -> Result<T, Trouble> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Trouble::Failed(error.to_string()))?;
        runtime.block_on(async {
            let link::Link { client, driver, .. } = link::connect(access, dial, None).await?;
            tokio::select! {
                done = task(&client) => done.map_err(Fault::into_trouble),
                _ = driver => Err(Trouble::Unreachable("the connection has ended".to_owned())),
            }
        })
    };
    // On a separate thread, for the caller's may be one that must not wait for tasks.
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    let done = done.unwrap_or_else(|_| Err(Trouble::Failed("this process is out of order".to_owned())));
    done.map_err(|trouble| trouble::of_store(&access.name(), trouble))
}
