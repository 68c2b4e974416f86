//! SQL as the engines of the store share it: statements, values and rows.
//!
//! INVARIANT: a statement means the same to SQLite and to PostgreSQL. Parameters are `?` or `?N`,
//! numbers have 64 bits, truth is 0 or 1, text is ordered by its bytes; what can't be written so
//! depends on [`Dialect`]. This module must not know where a database is.

pub(crate) mod accounts;
mod api_tokens;
pub(crate) mod carriers;
pub(crate) mod columns;
pub(crate) mod copy;
mod database;
pub(crate) mod digest;
pub(crate) mod events;
mod fixed_addresses;
mod gateways;
pub(crate) mod invitations;
mod known_devices;
mod notices;
mod provider_sessions;
mod refresh_tokens;
pub(crate) mod sessions;
pub(crate) mod users;
mod value;
pub(crate) mod wireguard;

use std::ops::Deref;

pub(crate) use database::Database;
pub(crate) use value::{Kind, Parameter, Params, Row, Rows, Value, ValueRef, params, rows};

pub(crate) type Result<T, E = SqlError> = std::result::Result<T, E>;

/// A statement that was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SqlError {
    #[error("there is no such row")]
    NoRow,
    /// A column does not hold what this program writes there.
    #[error("unexpected content of {0}")]
    Unexpected(String),
    #[error("{0}")]
    Damaged(&'static str),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Postgres(#[from] crate::postgres::Fault),
}

/// The differences between the engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// An expression by which texts that differ in the case of ASCII letters alone are equal.
    pub(crate) fn without_case(self, text: &str) -> String {
        match self {
            Self::Sqlite => format!("{text} COLLATE NOCASE"),
            Self::Postgres => format!("lower({text} COLLATE \"C\")"),
        }
    }

    /// Whether rows have digests. A server checks its pages by itself
    /// (`initdb --data-checksums`).
    pub(crate) fn has_digests(self) -> bool {
        self == Self::Sqlite
    }
}

/// Carries out single statements.
pub(crate) trait Engine {
    fn dialect(&self) -> Dialect;
    /// The gateway that works here, where others may share the database.
    fn gateway(&self) -> Option<[u8; 16]> {
        None
    }
    fn query(&self, sql: &str, params: &[Value]) -> Result<Rows>;
    /// Passes the values of all rows on, in their order.
    fn visit(&self, sql: &str, params: &[Value], visitor: &mut dyn FnMut(ValueRef<'_>)) -> Result<()> {
        let rows = self.query(sql, params)?;
        rows.values.iter().flatten().for_each(|value| visitor(value.into()));
        Ok(())
    }
    /// The number of rows that were changed.
    fn execute(&self, sql: &str, params: &[Value]) -> Result<usize>;
}

/// One moment of a database.
pub(crate) struct Connection<'e>(&'e dyn Engine);

/// A change of a database that is under way; all of it becomes true, or nothing.
pub(crate) struct Transaction<'e>(Connection<'e>);

/// A statement with its connection.
pub(crate) struct Statement<'e, 's> {
    engine: &'e dyn Engine,
    sql: &'s str,
}

impl<'e> Connection<'e> {
    pub(crate) fn new(engine: &'e dyn Engine) -> Self {
        Self(engine)
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.0.dialect()
    }

    /// See [`Engine::gateway`].
    pub(crate) fn gateway(&self) -> Option<[u8; 16]> {
        self.0.gateway()
    }

    pub(crate) fn statement<'s>(&self, sql: &'s str) -> Statement<'e, 's> {
        Statement { engine: self.0, sql }
    }

    /// The number of rows that were changed.
    pub(crate) fn execute(&self, sql: &str, params: impl Params) -> Result<usize> {
        self.statement(sql).execute(params)
    }

    /// Reads the first row.
    ///
    /// # Errors
    /// [`SqlError::NoRow`] if there is none; see [`Optional`].
    pub(crate) fn query_row<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<T> {
        self.statement(sql).query_row(params, read)
    }
}

impl<'e> Transaction<'e> {
    /// The transaction that an engine has begun.
    pub(crate) fn new(engine: &'e dyn Engine) -> Self {
        Self(Connection::new(engine))
    }
}

impl<'e> Deref for Transaction<'e> {
    type Target = Connection<'e>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Statement<'_, '_> {
    pub(crate) fn execute(&self, params: impl Params) -> Result<usize> {
        self.engine.execute(self.sql, &params.values())
    }

    pub(crate) fn query(&self, params: impl Params) -> Result<Rows> {
        self.engine.query(self.sql, &params.values())
    }

    /// Passes the values of all rows on, in their order, and keeps none.
    pub(crate) fn visit(&self, params: impl Params, mut visitor: impl FnMut(ValueRef<'_>)) -> Result<()> {
        self.engine.visit(self.sql, &params.values(), &mut visitor)
    }

    pub(crate) fn query_row<T>(
        &self,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<T> {
        self.query(params)?.iter().next().map_or(Err(SqlError::NoRow), |row| read(&row))
    }

    /// Reads all rows.
    pub(crate) fn query_all<T, C: FromIterator<T>>(
        &self,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<C> {
        let mut read = read;
        self.query(params)?.iter().map(|row| read(&row)).collect()
    }

    pub(crate) fn exists(&self, params: impl Params) -> Result<bool> {
        Ok(self.query(params)?.iter().next().is_some())
    }
}

/// A row that there may be.
pub(crate) trait Optional<T> {
    fn optional(self) -> Result<Option<T>>;
}

impl<T> Optional<T> for Result<T> {
    fn optional(self) -> Result<Option<T>> {
        match self {
            Err(SqlError::NoRow) => Ok(None),
            found => found.map(Some),
        }
    }
}
