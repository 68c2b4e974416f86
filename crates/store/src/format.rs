//! The mark that tells whose a database is and which format it has: SQLite's `application_id` and
//! `user_version`.
//!
//! INVARIANT: a database with a mark that is not known is never written to.

use rusqlite::{Connection, TransactionBehavior};

/// A kind of database, in its newest format.
pub(crate) struct Format {
    /// Four letters, as a number.
    pub(crate) application: i32,
    pub(crate) number: u32,
    /// Makes a database of this format out of an empty one.
    pub(crate) schema: &'static str,
}

/// The state of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing is in it yet.
    Empty,
    Current,
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

    /// Makes the tables in a database that is empty. Another process may do so at the same time:
    /// one finds that it is done.
    pub(crate) fn make(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        if self.find(connection)? != Found::Empty {
            return Ok(());
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if self.find(&transaction)? == Found::Empty {
            transaction.execute_batch(self.schema)?;
            transaction.pragma_update(None, "application_id", self.application)?;
            transaction.pragma_update(None, "user_version", self.number)?;
        }
        transaction.commit()
    }

    /// The state by the mark alone.
    fn read(&self, connection: &Connection) -> rusqlite::Result<Found> {
        let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let (application, number) = (pragma("application_id")?, pragma("user_version")?);
        Ok(match (application == i64::from(self.application), number) {
            (true, number) if number == i64::from(self.number) => Found::Current,
            (true, number) => Found::Newer(u32::try_from(number).unwrap_or(u32::MAX)),
            (false, 0) if application == 0 => Found::Empty,
            (false, _) if application == 0 => Found::Older,
            (false, _) => Found::Foreign,
        })
    }
}
