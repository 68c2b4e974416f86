//! Statements that the engines share, carried out by SQLite.

use rusqlite::types::{ToSqlOutput, Value as SqliteValue, ValueRef};
use rusqlite::{Connection, Row, ToSql, params_from_iter};
use zeroize::Zeroizing;

use crate::sql::{Dialect, Engine, Kind, Result, Rows, SqlError, Value};

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Null(_) => ToSqlOutput::Owned(SqliteValue::Null),
            Self::Integer(number) => ToSqlOutput::Owned(SqliteValue::Integer(*number)),
            Self::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Self::Blob(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}

impl Engine for Connection {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn query(&self, sql: &str, params: &[Value]) -> Result<Rows> {
        let mut statement = self.prepare_cached(sql)?;
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let count = columns.len();
        let mut rows = statement.query(params_from_iter(params))?;
        let mut values = Vec::new();
        while let Some(row) = rows.next()? {
            values.push((0..count).map(|column| value(row, column)).collect::<Result<_>>()?);
        }
        Ok(Rows { columns, values })
    }

    fn execute(&self, sql: &str, params: &[Value]) -> Result<usize> {
        Ok(self.prepare_cached(sql)?.execute(params_from_iter(params))?)
    }
}

fn value(row: &Row<'_>, column: usize) -> Result<Value> {
    Ok(match row.get_ref(column)? {
        // Which type it would have had makes no difference here.
        ValueRef::Null => Value::Null(Kind::Blob),
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Text(text) => {
            let text = std::str::from_utf8(text).map_err(|_| SqlError::Unexpected("a text".to_owned()))?;
            Value::Text(Zeroizing::new(text.to_owned()))
        }
        ValueRef::Blob(bytes) => Value::Blob(Zeroizing::new(bytes.to_vec())),
        ValueRef::Real(_) => return Err(SqlError::Unexpected("a number".to_owned())),
    })
}
