//! Changes that are committed together: a trip to the disk costs more than most changes do.
//!
//! A change that ends while others wait for the connection leaves the transaction open for them,
//! and the last of them commits it for all. A change is committed at once if no other waits behind
//! it, if it is one that may take long, or once the group is [`MAX_AGE`] old: a change that clients
//! wait for then waits for no more than that and one other change.
//!
//! Invariants: a change returns only once it is committed, or has failed; one that fails takes
//! nothing of the others with it, unless the whole transaction is lost, and then all of them fail.
//! A transaction in which no change waits is never left open, for it keeps other processes out.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, Result, ffi};

use crate::StoreError;
use crate::sql::{self, SqlError, Transaction};

/// Changes that are committed together, at most: a lost transaction fails all of them.
const MAX_GROUP: usize = 64;
/// The age at which a group takes no further change.
const MAX_AGE: Duration = if cfg!(test) { Duration::from_secs(60) } else { Duration::from_millis(20) };
/// Wait of each change of a group until it looks whether the group was left open: the next one may
/// have given up. Usually the commit ends the wait, which dozens have at once.
const TURN: Duration = if cfg!(test) { Duration::from_secs(60) } else { MAX_AGE };

/// The connection for changes.
#[derive(Debug)]
pub(super) struct Changes {
    state: Mutex<State>,
    /// Changes that wait for the connection.
    waiting: AtomicUsize,
    #[cfg(test)]
    commits: AtomicUsize,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    open: Option<Group>,
}

/// Changes in one transaction.
#[derive(Debug)]
struct Group {
    begun: Instant,
    members: usize,
    outcome: Arc<Outcome>,
}

/// Which changes a change is committed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    /// Those that wait for the connection.
    Others,
    /// None: it may take long.
    Alone,
}

impl Group {
    fn is_old(&self) -> bool {
        self.begun.elapsed() >= MAX_AGE
    }
}

/// The outcome of a group. Its members wait here, so that no later change keeps them.
#[derive(Debug, Default)]
struct Outcome {
    settled: Mutex<Option<std::result::Result<(), Failure>>>,
    changed: Condvar,
}

impl Outcome {
    fn set(&self, settled: std::result::Result<(), Failure>) {
        self.settled.lock().get_or_insert(settled);
        self.changed.notify_all();
    }

    fn get(&self) -> Option<std::result::Result<(), Failure>> {
        self.settled.lock().clone()
    }

    /// Waits until it is known, for `limit` at most.
    fn wait(&self, limit: Duration) -> Option<std::result::Result<(), Failure>> {
        let mut settled = self.settled.lock();
        if settled.is_none() {
            self.changed.wait_for(&mut settled, limit);
        }
        settled.clone()
    }
}

/// An error of SQLite that many can have.
#[derive(Clone, Debug)]
struct Failure(ffi::Error, String);

impl From<&rusqlite::Error> for Failure {
    fn from(error: &rusqlite::Error) -> Self {
        let code = error.sqlite_error().copied().unwrap_or_else(|| ffi::Error::new(ffi::SQLITE_ERROR));
        Self(code, error.to_string())
    }
}

impl From<Failure> for rusqlite::Error {
    fn from(Failure(code, text): Failure) -> Self {
        Self::SqliteFailure(code, Some(text))
    }
}

/// Why a change is not made.
pub(super) enum NotMade {
    /// Others, or another process, held the store for too long.
    Late,
    Sql(SqlError),
    Refused(StoreError),
}

impl From<rusqlite::Error> for NotMade {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error.into())
    }
}

impl Changes {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            state: Mutex::new(State { connection, open: None }),
            waiting: AtomicUsize::new(0),
            #[cfg(test)]
            commits: AtomicUsize::new(0),
        }
    }

    /// Runs a change and has it committed; changes behind it may run before that. A panic in it
    /// leaves no half of it behind.
    pub(super) fn make<T>(
        &self,
        limit: Duration,
        company: Company,
        change: impl FnOnce(&Transaction<'_>) -> sql::Result<std::result::Result<T, StoreError>>,
    ) -> std::result::Result<T, NotMade> {
        let until = Instant::now() + limit;
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let state = self.state.try_lock_until(until);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let mut state = state.ok_or(NotMade::Late)?;
        if company == Company::Alone || state.open.as_ref().is_some_and(Group::is_old) {
            self.commit(&mut state);
        }
        let outcome = state.join(until)?;
        let ran = catch_unwind(AssertUnwindSafe(|| state.run(change)));
        if let (Ok(Ok(Ok(_))), Some(group)) = (&ran, &mut state.open) {
            group.members += 1;
        }
        let failure = match &ran {
            Ok(Err(SqlError::Sqlite(error))) => Some(Failure::from(error)),
            _ => None,
        };
        self.look_after(&mut state, company, failure);
        drop(state);
        let value = match ran.unwrap_or_else(|panic| resume_unwind(panic)) {
            Ok(Ok(value)) => value,
            Ok(Err(refused)) => return Err(NotMade::Refused(refused)),
            Err(error) => return Err(NotMade::Sql(error)),
        };
        loop {
            if let Some(settled) = outcome.wait(TURN) {
                return settled.map(|()| value).map_err(|failure| rusqlite::Error::from(failure).into());
            }
            // The thread that has the connection looks after the group.
            if let Some(mut state) = self.state.try_lock()
                && outcome.get().is_none()
            {
                self.commit(&mut state);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.waiting.load(Ordering::Acquire), self.commits.load(Ordering::Relaxed))
    }

    /// Does something outside of a transaction.
    pub(super) fn alone<T>(&self, work: impl FnOnce(&mut Connection) -> T) -> T {
        let mut state = self.state.lock();
        self.commit(&mut state);
        work(&mut state.connection)
    }

    /// Ends the transaction, unless others are about to go on with it.
    fn look_after(&self, state: &mut State, company: Company, failure: Option<Failure>) {
        let Some(group) = &state.open else { return };
        if state.connection.is_autocommit() {
            // SQLite has rolled all of it back: the disk is full, say.
            let unknown = || Failure(ffi::Error::new(ffi::SQLITE_ABORT), "the change is lost".to_owned());
            state.settle(Err(failure.unwrap_or_else(unknown)));
        } else if group.members == 0 {
            let ended = state.connection.execute_batch("ROLLBACK");
            state.settle(ended.map_err(|error| Failure::from(&error)));
        } else if company == Company::Alone
            || group.members >= MAX_GROUP
            || group.is_old()
            || self.waiting.load(Ordering::Acquire) == 0
        {
            self.commit(state);
        }
    }

    fn commit(&self, state: &mut State) {
        if state.open.is_none() {
            return;
        }
        let committed = state.connection.execute_batch("COMMIT");
        if committed.is_err() && !state.connection.is_autocommit() {
            // No caller gets an acknowledgement, so it is not made.
            let _ = state.connection.execute_batch("ROLLBACK");
        }
        #[cfg(test)]
        self.commits.fetch_add(1, Ordering::Relaxed);
        state.settle(committed.map_err(|error| Failure::from(&error)));
    }
}

impl State {
    fn settle(&mut self, settled: std::result::Result<(), Failure>) {
        if let Some(group) = self.open.take() {
            group.outcome.set(settled);
        }
    }

    /// The outcome of the open group, or of one that begins.
    fn join(&mut self, until: Instant) -> Result<Arc<Outcome>> {
        if let Some(group) = &self.open {
            return Ok(Arc::clone(&group.outcome));
        }
        if !self.connection.is_autocommit() {
            // A transaction that could not be rolled back when it failed: its changes are not made.
            self.connection.execute_batch("ROLLBACK")?;
        }
        self.connection.busy_timeout(until.saturating_duration_since(Instant::now()))?;
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let group = Group { begun: Instant::now(), members: 0, outcome: Arc::default() };
        Ok(Arc::clone(&self.open.insert(group).outcome))
    }

    /// Runs a change of which nothing stays if it fails.
    fn run<T>(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> sql::Result<std::result::Result<T, StoreError>>,
    ) -> sql::Result<std::result::Result<T, StoreError>> {
        // Rolled back when it is dropped.
        let part = self.connection.savepoint()?;
        let changed = change(&Transaction::new(&*part))?;
        if changed.is_ok() {
            part.commit()?;
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A change in another thread.
    type Other<'o, T> = Box<dyn FnOnce(&Changes) -> T + Send + 'o>;

    fn changes() -> Changes {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "PRAGMA foreign_keys = 1; CREATE TABLE numbers (number INTEGER PRIMARY KEY);
                 CREATE TABLE children (number REFERENCES numbers DEFERRABLE INITIALLY DEFERRED)",
            )
            .unwrap();
        Changes::new(connection)
    }

    fn insert(changes: &Changes, number: i64) -> std::result::Result<usize, NotMade> {
        changes
            .make(LIMIT, Company::Others, |t| t.execute("INSERT INTO numbers VALUES (?)", [number]).map(Ok))
    }

    fn numbers(changes: &Changes) -> Vec<i64> {
        changes.alone(|connection| {
            let mut statement = connection.prepare("SELECT number FROM numbers ORDER BY number").unwrap();
            statement.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        })
    }

    /// Makes these changes in other threads, all of which wait while the first one is made.
    fn together<T: Send>(changes: &Changes, others: Vec<Other<'_, T>>) -> (bool, Vec<T>) {
        let count = others.len();
        let (begun, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        thread::scope(|scope| {
            let first = scope.spawn(move || {
                changes.make(LIMIT, Company::Others, |t| {
                    begun.send(()).unwrap();
                    may_go.recv_timeout(LIMIT).unwrap();
                    t.execute("INSERT INTO numbers VALUES (?)", [0_i64]).map(Ok)
                })
            });
            has_begun.recv_timeout(LIMIT).unwrap();
            let others: Vec<_> =
                others.into_iter().map(|other| scope.spawn(move || other(changes))).collect();
            while changes.waiting.load(Ordering::Acquire) < count {
                thread::yield_now();
            }
            go.send(()).unwrap();
            let first = first.join().unwrap().is_ok();
            (first, others.into_iter().map(|other| other.join().unwrap()).collect())
        })
    }

    #[test]
    fn changes_that_wait_for_each_other_are_committed_together() {
        let changes = changes();
        let eight = (1..=8)
            .map(|number| -> Other<'_, bool> { Box::new(move |changes| insert(changes, number).is_ok()) });
        assert_eq!(together(&changes, eight.collect()), (true, vec![true; 8]));
        assert_eq!(changes.commits.load(Ordering::Relaxed), 1);
        assert_eq!(numbers(&changes), (0..=8).collect::<Vec<_>>());
    }

    #[test]
    fn a_failed_change_does_not_affect_others_of_its_commit() {
        let changes = changes();
        let others: Vec<Other<'_, bool>> = vec![
            Box::new(|changes| insert(changes, 1).is_ok()),
            Box::new(|changes| {
                let twice = changes.make(LIMIT, Company::Others, |t| {
                    t.execute("INSERT INTO numbers VALUES (?)", [2_i64])?;
                    t.execute("INSERT INTO numbers VALUES (?)", [2_i64]).map(Ok)
                });
                matches!(twice, Err(NotMade::Sql(_)))
            }),
            Box::new(|changes| {
                let refused = changes.make(LIMIT, Company::Others, |t| {
                    t.execute("INSERT INTO numbers VALUES (?)", [3_i64])?;
                    Ok(Err::<(), _>(StoreError::Busy { path: "refused".into() }))
                });
                matches!(refused, Err(NotMade::Refused(_)))
            }),
            Box::new(|changes| {
                let work = || {
                    changes.make(
                        LIMIT,
                        Company::Others,
                        |t| -> sql::Result<std::result::Result<(), StoreError>> {
                            t.execute("INSERT INTO numbers VALUES (?)", [4_i64])?;
                            panic!("on purpose")
                        },
                    )
                };
                catch_unwind(AssertUnwindSafe(work)).is_err()
            }),
            Box::new(|changes| insert(changes, 5).is_ok()),
        ];
        assert_eq!(together(&changes, others), (true, vec![true; 5]));
        assert_eq!(numbers(&changes), [0, 1, 5]);
    }

    #[test]
    fn a_commit_that_fails_fails_all_of_its_changes_and_none_after_them() {
        let changes = changes();
        let orphan: Other<'_, bool> = Box::new(|changes| {
            let orphan = changes.make(LIMIT, Company::Others, |t| {
                t.execute("INSERT INTO children VALUES (?)", [9_i64]).map(Ok)
            });
            matches!(orphan, Err(NotMade::Sql(_)))
        });
        assert_eq!(together(&changes, vec![orphan]), (false, vec![true]), "the first is not acknowledged");
        assert_eq!(numbers(&changes), [0_i64; 0]);
        insert(&changes, 1).ok().unwrap();
        assert_eq!(numbers(&changes), [1]);
    }

    #[test]
    fn a_change_that_may_take_long_is_committed_alone() {
        let changes = changes();
        // It neither joins a group nor leaves one open.
        let alone = |changes: &Changes, number: i64| {
            let change = changes.make(LIMIT, Company::Alone, |t| {
                t.execute("INSERT INTO numbers VALUES (?)", [number]).map(Ok)
            });
            change.is_ok()
        };
        let others: Vec<Other<'_, bool>> =
            vec![Box::new(|changes| alone(changes, 1)), Box::new(|changes| alone(changes, 2))];
        assert_eq!(together(&changes, others), (true, vec![true; 2]));
        assert_eq!(changes.commits.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn no_connection_keeps_an_open_transaction() {
        let changes = changes();
        let refused = changes
            .make(LIMIT, Company::Others, |_| Ok(Err::<(), _>(StoreError::Busy { path: "refused".into() })));
        assert!(matches!(refused, Err(NotMade::Refused(_))));
        assert!(changes.state.lock().connection.is_autocommit());
        // One that has given up when its turn comes.
        changes.waiting.fetch_add(1, Ordering::AcqRel);
        thread::scope(|scope| {
            let waits = scope.spawn(|| insert(&changes, 1).is_ok());
            while changes.state.lock().open.is_none() {
                thread::yield_now();
            }
            assert_eq!(numbers(&changes), [1]);
            assert!(waits.join().unwrap());
        });
        assert!(changes.state.lock().connection.is_autocommit());
    }
}
