//! The mark that tells whose a database is and which format it has: SQLite's `application_id` and
//! `user_version`.
//!
//! INVARIANT: a database with a mark that is not known is never written to.

use std::time::Duration;

use rusqlite::backup::Backup;
use rusqlite::{Connection, Transaction, TransactionBehavior};

/// A kind of database, in its newest format.
pub(crate) struct Format {
    /// Four letters, as a number.
    pub(crate) application: i32,
    /// Makes a database of format 1 out of an empty one.
    pub(crate) schema: &'static str,
    /// Each makes the next format out of the one before it, from format 1 on.
    pub(crate) steps: &'static [&'static str],
}

/// The state of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing is in it yet.
    Empty,
    Current,
    /// An earlier vpnd made it, with this format.
    Earlier(usize),
    /// vpnd before 0.1 made it, or that may be so.
    Older,
    /// A newer vpnd made it, with this format.
    Newer(u32),
    /// Another program made it.
    Foreign,
}

impl Format {
    pub(crate) fn find(&self, connection: &Connection) -> rusqlite::Result<Found> {
        let found = self.read(connection)?;
        if found != Found::Empty {
            return Ok(found);
        }
        let tables: u32 = connection.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
        // Mark and tables are read apart, while another process may be making them: what counts is
        // the mark after.
        match self.read(connection)? {
            Found::Empty if tables > 0 => Ok(Found::Foreign),
            found => Ok(found),
        }
    }

    /// The number of the newest format.
    pub(crate) fn number(&self) -> u32 {
        u32::try_from(self.steps.len() + 1).expect("there are few formats")
    }

    /// Brings a database that is empty, or of an earlier format, to the newest one. Another process
    /// may do so at the same time: one finds that it is done.
    pub(crate) fn bring_up(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        match self.begin(connection)? {
            Some(transaction) => self.complete(transaction),
            None => Ok(()),
        }
    }

    /// The transaction in which a database is brought up, if it has to be: no other process changes
    /// it afterwards, and nothing has been changed yet.
    pub(crate) fn begin<'c>(
        &self,
        connection: &'c mut Connection,
    ) -> rusqlite::Result<Option<Transaction<'c>>> {
        if !matches!(self.find(connection)?, Found::Empty | Found::Earlier(_)) {
            return Ok(None);
        }
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map(Some)
    }

    /// Brings up what [`Self::begin`] has begun with.
    pub(crate) fn complete(&self, transaction: Transaction<'_>) -> rusqlite::Result<()> {
        self.take_steps(&transaction)?;
        transaction.commit()
    }

    /// A copy in memory of a database of an earlier format, brought to the newest one.
    pub(crate) fn brought_up_copy(&self, connection: &Connection) -> rusqlite::Result<Connection> {
        let mut copy = Connection::open_in_memory()?;
        Backup::new(connection, &mut copy)?.run_to_completion(i32::MAX, Duration::ZERO, None)?;
        self.bring_up(&mut copy)?;
        Ok(copy)
    }

    fn take_steps(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let left = match self.find(transaction)? {
            Found::Empty => {
                transaction.execute_batch(self.schema)?;
                self.steps
            }
            Found::Earlier(number) => &self.steps[number - 1..],
            _ => return Ok(()),
        };
        left.iter().try_for_each(|step| transaction.execute_batch(step))?;
        transaction.pragma_update(None, "application_id", self.application)?;
        transaction.pragma_update(None, "user_version", self.number())
    }

    /// The state by the mark alone.
    fn read(&self, connection: &Connection) -> rusqlite::Result<Found> {
        let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let (application, number) = (pragma("application_id")?, pragma("user_version")?);
        Ok(match (application == i64::from(self.application), number) {
            (true, number) if number == i64::from(self.number()) => Found::Current,
            (true, number) if (1..i64::from(self.number())).contains(&number) => {
                Found::Earlier(usize::try_from(number).expect("it is small"))
            }
            (true, number) => Found::Newer(u32::try_from(number).unwrap_or(u32::MAX)),
            (false, 0) if application == 0 => Found::Empty,
            (false, _) if application == 0 => Found::Older,
            (false, _) => Found::Foreign,
        })
    }
}
