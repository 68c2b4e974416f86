//! Statements that the engines share, carried out by SQLite.

use rusqlite::types::{ToSqlOutput, Value as SqliteValue, ValueRef};
use rusqlite::{Connection, Row, ToSql, params_from_iter};
use zeroize::Zeroizing;

use crate::sql::{self, Dialect, Engine, Kind, Result, Rows, SqlError, Value};

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

    fn visit(&self, sql: &str, params: &[Value], visitor: &mut dyn FnMut(sql::ValueRef<'_>)) -> Result<()> {
        let mut statement = self.prepare_cached(sql)?;
        let count = statement.column_count();
        let mut rows = statement.query(params_from_iter(params))?;
        while let Some(row) = rows.next()? {
            for column in 0..count {
                visitor(borrowed(row, column)?);
            }
        }
        Ok(())
    }

    fn execute(&self, sql: &str, params: &[Value]) -> Result<usize> {
        Ok(self.prepare_cached(sql)?.execute(params_from_iter(params))?)
    }
}

fn value(row: &Row<'_>, column: usize) -> Result<Value> {
    Ok(match borrowed(row, column)? {
        // Which type it would have had makes no difference here.
        sql::ValueRef::Null => Value::Null(Kind::Blob),
        sql::ValueRef::Integer(number) => Value::Integer(number),
        sql::ValueRef::Text(text) => Value::Text(Zeroizing::new(text.to_owned())),
        sql::ValueRef::Blob(bytes) => Value::Blob(Zeroizing::new(bytes.to_vec())),
    })
}

fn borrowed<'r>(row: &'r Row<'_>, column: usize) -> Result<sql::ValueRef<'r>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Null => sql::ValueRef::Null,
        ValueRef::Integer(number) => sql::ValueRef::Integer(number),
        ValueRef::Text(text) => {
            let text = std::str::from_utf8(text).map_err(|_| SqlError::Unexpected("a text".to_owned()))?;
            sql::ValueRef::Text(text)
        }
        ValueRef::Blob(bytes) => sql::ValueRef::Blob(bytes),
        ValueRef::Real(_) => return Err(SqlError::Unexpected("a number".to_owned())),
    })
}
