//! The transactions of one process in its database: how each begins and ends, and what is known of
//! a change whose connection was lost.
//!
//! INVARIANT: a change is acknowledged after the server has said that it is committed. After a
//! connection was lost in between the server is asked, and nothing but its answer counts.

use std::time::{Duration, Instant};

use super::engine::Session;
use super::history::Mark;
use super::holder::{self, Holder};
use super::pool::{Pool, Turn};
use super::trouble::{self, Fault, Trouble};
use crate::StoreError;
use crate::sql::{Connection, Result as SqlResult, SqlError, Transaction};

/// Limit for a change to wait for others, and for its connection.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Limit for the server's answer whether a change was committed.
const INQUIRY_TIMEOUT: Duration = Duration::from_secs(12);
const INQUIRY_INTERVAL: Duration = Duration::from_millis(100);

/// Limits for a change.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// For its turn: on this side, and at the server.
    pub(super) patience: Duration,
    /// For all of it. Beyond that the connection is given up.
    pub(super) whole: Duration,
}

pub(super) struct Transactions {
    pub(super) pool: Pool,
    pub(super) holder: Holder,
    /// Identifies the database in errors.
    pub(super) name: String,
}

impl Transactions {
    pub(super) fn failed(&self, trouble: Trouble) -> StoreError {
        trouble::of_store(&self.name, trouble)
    }

    /// Begins a transaction. A connection that was lost while unused is no failure.
    fn begin<'t>(
        &self,
        turn: &'t Turn<'t>,
        sql: &str,
        until: Instant,
        deadline: Option<Instant>,
    ) -> Result<Open<'t>, StoreError> {
        let session = turn.session().map_err(|trouble| self.failed(trouble))?.within(deadline);
        match session.batch(sql) {
            Ok(()) => return Ok(Open::new(turn, session)),
            Err(fault @ Fault::Lost(_)) => turn.give_up(&session, &fault.into_trouble()),
            Err(fault) => return Err(self.failed(fault.into_trouble())),
        }
        let next = turn.next_session(&session, until).map_err(|trouble| self.failed(trouble))?;
        let session = next.within(deadline);
        session.batch(sql).map_err(|fault| {
            let trouble = fault.into_trouble();
            turn.give_up(&session, &trouble);
            self.failed(trouble)
        })?;
        Ok(Open::new(turn, session))
    }

    /// The error of a statement within a transaction.
    fn broken(&self, open: &mut Open<'_>, error: SqlError) -> StoreError {
        if let SqlError::Postgres(Fault::Lost(why)) = &error {
            open.lost(why);
        }
        match error {
            SqlError::Postgres(fault) => self.failed(fault.into_trouble()),
            error => self.failed(Trouble::Failed(error.to_string())),
        }
    }

    /// Makes a change that no session waits for, and finds out whether it was made.
    pub(super) fn change_surely<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> SqlResult<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let turn = self.changes(PATIENCE)?;
        match self.change_once(&turn, PATIENCE, None, change) {
            Ok(value) => Ok(value),
            Err(Ended::Failed(error)) => Err(error),
            Err(Ended::Lost { why, lost, mark, value }) => match self.was_committed(&turn, &lost, &mark) {
                Some(true) => {
                    self.pool.histories().acknowledged(mark, Instant::now());
                    Ok(value)
                }
                Some(false) => Err(self.failed(Trouble::Unreachable(why))),
                None => Err(self.failed(Trouble::Uncertain)),
            },
        }
    }

    /// Makes a change that may be made again, or be undone, after [`Trouble::Uncertain`].
    pub(super) fn change_within<T>(
        &self,
        limits: Limits,
        change: impl FnOnce(&Transaction<'_>) -> SqlResult<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + limits.whole;
        let turn = self.changes(limits.patience)?;
        match self.change_once(&turn, limits.patience, Some(deadline), change) {
            Ok(value) => Ok(value),
            Err(Ended::Failed(error)) => Err(error),
            Err(Ended::Lost { .. }) => Err(self.failed(Trouble::Uncertain)),
        }
    }

    pub(super) fn read_within<T>(
        &self,
        limits: Option<Limits>,
        query: impl FnOnce(&Connection<'_>) -> SqlResult<T>,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        let until = begun + limits.map_or(PATIENCE, |limits| limits.patience);
        let deadline = limits.map(|limits| begun + limits.whole);
        let turn = self.pool.queries(until).map_err(|trouble| self.failed(trouble))?;
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        let mut open = self.begin(&turn, begin, until, deadline)?;
        let found = query(&Connection::new(&open.session));
        found.map_err(|error| self.broken(&mut open, error))
    }

    fn changes(&self, patience: Duration) -> Result<Turn<'_>, StoreError> {
        self.pool.changes(Instant::now() + patience).map_err(|trouble| self.failed(trouble))
    }

    fn change_once<T>(
        &self,
        turn: &Turn<'_>,
        patience: Duration,
        deadline: Option<Instant>,
        change: impl FnOnce(&Transaction<'_>) -> SqlResult<Result<T, StoreError>>,
    ) -> Result<T, Ended<T>> {
        let begin = format!("{}; SET LOCAL lock_timeout = {}", holder::BEGIN, patience.as_millis());
        let mut open = self.begin(turn, &begin, Instant::now() + patience, deadline)?;
        let mark = self.holder.fence(&open.session).map_err(|trouble| {
            if let Trouble::Unreachable(why) = &trouble {
                open.lost(why);
            }
            self.failed(trouble)
        })?;
        let changed = change(&Transaction::new(&open.session));
        let value = changed.map_err(|error| self.broken(&mut open, error))??;
        open.is_over = true;
        match open.session.batch("COMMIT") {
            Ok(()) => {
                self.pool.histories().acknowledged(mark, Instant::now());
                Ok(value)
            }
            Err(Fault::Lost(why)) => {
                open.lost(&why);
                Err(Ended::Lost { why, lost: open.session.clone().within(None), mark, value })
            }
            Err(fault) => Err(self.failed(fault.into_trouble()).into()),
        }
    }

    /// Asks the server whether a change was made whose end was not heard; `None` if that can't be
    /// known. Only an answer counts: what keeps a server from one says nothing of the change.
    fn was_committed(&self, turn: &Turn<'_>, lost: &Session, mark: &Mark) -> Option<bool> {
        let until = Instant::now() + INQUIRY_TIMEOUT;
        let mut lost = lost.clone();
        while Instant::now() < until {
            let session = turn.next_session(&lost, until).ok()?;
            match holder::is_made(&session, mark) {
                Ok(is_made) => return Some(is_made),
                Err(SqlError::Postgres(Fault::Lost(why))) => {
                    turn.give_up(&session, &Trouble::Unreachable(why));
                    lost = session;
                }
                Err(error) => {
                    tracing::warn!(%error, "the user database does not say yet whether a change was made");
                    std::thread::sleep(INQUIRY_INTERVAL);
                }
            }
        }
        None
    }
}

/// How a change ended that was not acknowledged.
enum Ended<T> {
    /// It was not made.
    Failed(StoreError),
    /// The server was told to commit it, and did not answer.
    Lost { why: String, lost: Session, mark: Mark, value: T },
}

impl<T> From<StoreError> for Ended<T> {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

/// A transaction, which is rolled back when it is dropped.
struct Open<'t> {
    turn: &'t Turn<'t>,
    session: Session,
    is_over: bool,
}

impl<'t> Open<'t> {
    fn new(turn: &'t Turn<'t>, session: Session) -> Self {
        Self { turn, session, is_over: false }
    }

    /// Its connection is of no use any more.
    fn lost(&mut self, why: &str) {
        self.is_over = true;
        self.turn.give_up(&self.session, &Trouble::Unreachable(why.to_owned()));
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        match self.session.batch("ROLLBACK") {
            Ok(()) => {}
            Err(Fault::Lost(why)) => self.lost(&why),
            Err(error) => tracing::warn!(%error, "a transaction of the user database could not be ended"),
        }
    }
}
