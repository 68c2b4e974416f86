//! Columns as values.

use std::net::IpAddr;

use super::{Result, Row, SqlError};
use crate::Family;

/// A column that does not hold what this program writes there.
pub(crate) fn unexpected(column: &str) -> SqlError {
    SqlError::Unexpected(column.to_owned())
}

/// A column that holds exactly `N` bytes.
pub(crate) fn bytes<const N: usize>(row: &Row<'_>, column: &'static str) -> Result<[u8; N]> {
    row.blob(column)?.try_into().map_err(|_| unexpected(column))
}

/// A column that holds exactly `N` bytes or nothing.
pub(crate) fn optional_bytes<const N: usize>(row: &Row<'_>, column: &'static str) -> Result<Option<[u8; N]>> {
    let found: Option<Vec<u8>> = row.get(column)?;
    found.map(|found| found.try_into().map_err(|_| unexpected(column))).transpose()
}

/// The row's address.
pub(crate) fn address(row: &Row<'_>) -> Result<IpAddr> {
    let raw = row.blob("address")?;
    let v4 = <[u8; 4]>::try_from(raw).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(raw).map(IpAddr::from)).map_err(|_| unexpected("address"))
}

pub(crate) fn octets(family: Family) -> u32 {
    match family {
        Family::V4 => 4,
        Family::V6 => 16,
    }
}

pub(crate) fn blob(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
