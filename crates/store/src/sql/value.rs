//! Values of SQL, and rows of them. What they hold may be secret, so it is overwritten when it
//! goes.

use std::fmt;

use zeroize::Zeroizing;

use super::{Result, SqlError};

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Integer,
    Text,
    Blob,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Null(Kind),
    Integer(i64),
    Text(Zeroizing<String>),
    Blob(Zeroizing<Vec<u8>>),
}

/// A value of a row, without a copy.
pub(crate) enum ValueRef<'v> {
    Null,
    Integer(i64),
    Text(&'v str),
    Blob(&'v [u8]),
}

impl<'v> From<&'v Value> for ValueRef<'v> {
    fn from(value: &'v Value) -> Self {
        match value {
            Value::Null(_) => Self::Null,
            Value::Integer(integer) => Self::Integer(*integer),
            Value::Text(text) => Self::Text(text),
            Value::Blob(blob) => Self::Blob(blob),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind())
    }
}

impl Value {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Null(kind) => *kind,
            Self::Integer(_) => Kind::Integer,
            Self::Text(_) => Kind::Text,
            Self::Blob(_) => Kind::Blob,
        }
    }
}

/// A value that may stand for a `?`.
pub(crate) trait Parameter {
    const KIND: Kind;
    fn value(&self) -> Value;
}

impl<T: Parameter + ?Sized> Parameter for &T {
    const KIND: Kind = T::KIND;

    fn value(&self) -> Value {
        (**self).value()
    }
}

impl<T: Parameter> Parameter for Option<T> {
    const KIND: Kind = T::KIND;

    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Null(T::KIND), Parameter::value)
    }
}

/// Numbers and times beyond 63 bits are the greatest number there is.
macro_rules! integers {
    ($($integer:ty),+) => {$(
        impl Parameter for $integer {
            const KIND: Kind = Kind::Integer;

            fn value(&self) -> Value {
                Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
            }
        }
    )+};
}

integers!(i64, u32, u64, usize);

impl Parameter for bool {
    const KIND: Kind = Kind::Integer;

    fn value(&self) -> Value {
        Value::Integer((*self).into())
    }
}

impl Parameter for str {
    const KIND: Kind = Kind::Text;

    fn value(&self) -> Value {
        Value::Text(Zeroizing::new(self.to_owned()))
    }
}

impl Parameter for String {
    const KIND: Kind = Kind::Text;

    fn value(&self) -> Value {
        self.as_str().value()
    }
}

impl Parameter for [u8] {
    const KIND: Kind = Kind::Blob;

    fn value(&self) -> Value {
        Value::Blob(Zeroizing::new(self.to_vec()))
    }
}

impl Parameter for Vec<u8> {
    const KIND: Kind = Kind::Blob;

    fn value(&self) -> Value {
        self.as_slice().value()
    }
}

impl<const N: usize> Parameter for [u8; N] {
    const KIND: Kind = Kind::Blob;

    fn value(&self) -> Value {
        self.as_slice().value()
    }
}

/// The parameters of a statement, in their order.
pub(crate) trait Params {
    fn values(self) -> Vec<Value>;
}

impl Params for () {
    fn values(self) -> Vec<Value> {
        Vec::new()
    }
}

impl Params for Vec<Value> {
    fn values(self) -> Vec<Value> {
        self
    }
}

impl<T: Parameter, const N: usize> Params for [T; N] {
    fn values(self) -> Vec<Value> {
        self.iter().map(Parameter::value).collect()
    }
}

/// Parameters of several types.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::sql::Parameter::value(&$value)),*]
    };
}
pub(crate) use params;

/// Rows of parameters for `VALUES`: their marks, and the values in their order. There are as many
/// rows as a power of two, the last ones alike: statements differ little, so that few are prepared.
///
/// # Panics
/// If there is no row.
pub(crate) fn rows<const N: usize>(rows: impl IntoIterator<Item = [Value; N]>) -> (String, Vec<Value>) {
    let mut values: Vec<Value> = rows.into_iter().flatten().collect();
    let (last, count) = (values[values.len() - N..].to_vec(), (values.len() / N).next_power_of_two());
    while values.len() < count * N {
        values.extend_from_slice(&last);
    }
    let row = format!("({})", ["?"; N].join(", "));
    (vec![row; count].join(", "), values)
}

/// A type that a column can be read as.
pub(crate) trait FromValue: Sized {
    fn from_value(value: &Value) -> Option<Self>;
}

impl FromValue for u64 {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }
}

impl FromValue for u32 {
    fn from_value(value: &Value) -> Option<Self> {
        u64::from_value(value).and_then(|number| u32::try_from(number).ok())
    }
}

impl FromValue for bool {
    fn from_value(value: &Value) -> Option<Self> {
        u64::from_value(value).map(|number| number != 0)
    }
}

impl FromValue for String {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) => Some(text.to_string()),
            _ => None,
        }
    }
}

impl FromValue for Vec<u8> {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Blob(bytes) => Some(bytes.to_vec()),
            _ => None,
        }
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Null(_) => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

/// Names a column: by its place, or by its name.
pub(crate) trait Column: Copy {
    fn place(self, columns: &[String]) -> Option<usize>;
    fn name(self) -> String;
}

impl Column for usize {
    fn place(self, columns: &[String]) -> Option<usize> {
        (self < columns.len()).then_some(self)
    }

    fn name(self) -> String {
        format!("column {self}")
    }
}

impl Column for &str {
    fn place(self, columns: &[String]) -> Option<usize> {
        columns.iter().position(|column| column == self)
    }

    fn name(self) -> String {
        self.to_owned()
    }
}

/// The answer to a query.
pub(crate) struct Rows {
    pub(crate) columns: Vec<String>,
    pub(crate) values: Vec<Vec<Value>>,
}

impl Rows {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        self.values.iter().map(|values| Row { columns: &self.columns, values })
    }
}

pub(crate) struct Row<'r> {
    columns: &'r [String],
    values: &'r [Value],
}

impl<'r> Row<'r> {
    pub(crate) fn get<C: Column, T: FromValue>(&self, column: C) -> Result<T> {
        self.value(column).and_then(T::from_value).ok_or_else(|| SqlError::Unexpected(column.name()))
    }

    /// The bytes in a column.
    pub(crate) fn blob<C: Column>(&self, column: C) -> Result<&'r [u8]> {
        match self.value(column) {
            Some(Value::Blob(bytes)) => Ok(bytes),
            _ => Err(SqlError::Unexpected(column.name())),
        }
    }

    pub(crate) fn values(&self) -> &'r [Value] {
        self.values
    }

    fn value<C: Column>(&self, column: C) -> Option<&'r Value> {
        self.values.get(column.place(self.columns)?)
    }
}
