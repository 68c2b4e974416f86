//! Statements that the engines share, carried out by PostgreSQL, for callers that wait.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Row, Statement};
use zeroize::Zeroizing;

use super::trouble::{Fault, Trouble};
use crate::sql::{Dialect, Engine, Kind, Result, Rows, Value};

/// Limit for the reply to one statement, after which the connection is given up.
const REPLY_TIMEOUT: Duration = Duration::from_secs(12);

/// A connection with the statements that are prepared on it.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) client: Arc<Client>,
    statements: Arc<Mutex<HashMap<String, Statement>>>,
    runtime: Handle,
    gateway: [u8; 16],
    /// When all of what is done here has to be over.
    deadline: Option<Instant>,
}

impl Session {
    /// For this gateway.
    pub(super) fn new(client: Arc<Client>, runtime: Handle, gateway: [u8; 16]) -> Self {
        Self { client, statements: Arc::default(), runtime, gateway, deadline: None }
    }

    /// Limits the connection's replies to this time.
    pub(super) fn within(self, deadline: Option<Instant>) -> Self {
        Self { deadline, ..self }
    }

    /// Carries out statements without parameters.
    pub(super) fn batch(&self, sql: &str) -> Result<(), Fault> {
        let (client, sql) = (Arc::clone(&self.client), sql.to_owned());
        self.wait(async move { Ok(client.batch_execute(&sql).await?) })
    }

    /// Has a task carried out by the connections' thread, and blocks this one until it has ended.
    fn wait<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let limit = left.map_or(REPLY_TIMEOUT, |left| left.min(REPLY_TIMEOUT));
        let (sender, receiver) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            let done = tokio::time::timeout(limit, task).await;
            let silent = || Fault::Lost(format!("no reply within {:.1} s", limit.as_secs_f32()));
            // A caller that is gone needs no answer.
            let _ = sender.send(done.unwrap_or_else(|_| Err(silent())));
        });
        receiver.recv().unwrap_or_else(|_| Err(Fault::Lost("this process is ending".to_owned())))
    }

    fn prepared(&self, sql: &str, params: &[Value]) -> Result<Statement, Fault> {
        if let Some(known) = self.statements.lock().get(sql) {
            return Ok(known.clone());
        }
        let types: Vec<Type> = params.iter().map(|value| kind_type(value.kind())).collect();
        let (client, numbered) = (Arc::clone(&self.client), numbered(sql));
        let statement = self.wait(async move { Ok(client.prepare_typed(&numbered, &types).await?) })?;
        self.statements.lock().insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

impl Engine for Session {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn gateway(&self) -> Option<[u8; 16]> {
        Some(self.gateway)
    }

    fn query(&self, sql: &str, params: &[Value]) -> Result<Rows> {
        let statement = self.prepared(sql, params)?;
        let columns: Vec<String> =
            statement.columns().iter().map(|column| column.name().to_owned()).collect();
        let (client, params) = (Arc::clone(&self.client), params.to_vec());
        let found: Vec<Row> = self.wait(async move {
            let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|value| value as _).collect();
            Ok(client.query(&statement, &params).await?)
        })?;
        let value = |row: &Row, column| {
            row.try_get::<_, Value>(column)
                .map_err(|error| Fault::Trouble(Trouble::Failed(error.to_string())).into())
        };
        let row = |row: &Row| (0..columns.len()).map(|column| value(row, column)).collect();
        let values = found.iter().map(row).collect::<Result<_>>()?;
        Ok(Rows { columns, values })
    }

    fn execute(&self, sql: &str, params: &[Value]) -> Result<usize> {
        let statement = self.prepared(sql, params)?;
        let (client, params) = (Arc::clone(&self.client), params.to_vec());
        let changed = self.wait(async move {
            let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|value| value as _).collect();
            Ok(client.execute(&statement, &params).await?)
        })?;
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }
}

/// `?` and `?N` as PostgreSQL writes them.
fn numbered(sql: &str) -> String {
    let mut parts = sql.split('?');
    let mut numbered = parts.next().unwrap_or_default().to_owned();
    for (place, part) in (1..).zip(parts) {
        numbered.push('$');
        if !part.starts_with(|first: char| first.is_ascii_digit()) {
            numbered.push_str(&place.to_string());
        }
        numbered.push_str(part);
    }
    numbered
}

fn kind_type(kind: Kind) -> Type {
    match kind {
        Kind::Integer => Type::INT8,
        Kind::Text => Type::TEXT,
        Kind::Blob => Type::BYTEA,
    }
}

impl ToSql for Value {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null(_) => Ok(IsNull::Yes),
            Self::Integer(number) => number.to_sql(&Type::INT8, out),
            Self::Text(text) => text.as_str().to_sql(&Type::TEXT, out),
            Self::Blob(bytes) => bytes.as_slice().to_sql(&Type::BYTEA, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        [Type::INT8, Type::TEXT, Type::BYTEA].contains(ty)
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(match *ty {
            Type::BOOL => Self::Integer(bool::from_sql(ty, raw)?.into()),
            Type::INT4 => Self::Integer(i32::from_sql(ty, raw)?.into()),
            Type::INT8 => Self::Integer(i64::from_sql(ty, raw)?),
            Type::BYTEA => Self::Blob(Zeroizing::new(raw.to_vec())),
            _ => Self::Text(Zeroizing::new(String::from_sql(ty, raw)?)),
        })
    }

    fn from_sql_null(ty: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self::Null(match *ty {
            Type::BYTEA => Kind::Blob,
            Type::TEXT => Kind::Text,
            _ => Kind::Integer,
        }))
    }

    fn accepts(ty: &Type) -> bool {
        [Type::BOOL, Type::INT4, Type::INT8, Type::BYTEA, Type::TEXT, Type::UNKNOWN].contains(ty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_in_their_order_or_as_they_say() {
        assert_eq!(numbered("SELECT ? WHERE a = ? AND b IN (?)"), "SELECT $1 WHERE a = $2 AND b IN ($3)");
        assert_eq!(numbered("SELECT ?2 WHERE a = ?1 OR b > ?12"), "SELECT $2 WHERE a = $1 OR b > $12");
        assert_eq!(numbered("SELECT 1"), "SELECT 1");
    }
}
