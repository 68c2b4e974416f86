//! Columns as values.

use std::net::IpAddr;

use rusqlite::Row;

use super::super::Family;

/// A column that does not hold what this program writes there.
pub(super) fn unexpected(column: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(
        0,
        rusqlite::types::Type::Blob,
        format!("unexpected content of {column}").into(),
    )
}

/// A column that holds exactly `N` bytes.
pub(super) fn bytes<const N: usize>(row: &Row<'_>, column: &'static str) -> rusqlite::Result<[u8; N]> {
    row.get_ref(column)?.as_blob()?.try_into().map_err(|_| unexpected(column))
}

/// The row's address.
pub(super) fn address(row: &Row<'_>) -> rusqlite::Result<IpAddr> {
    let raw = row.get_ref("address")?.as_blob()?;
    let v4 = <[u8; 4]>::try_from(raw).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(raw).map(IpAddr::from)).map_err(|_| unexpected("address"))
}

pub(super) fn octets(family: Family) -> u32 {
    match family {
        Family::V4 => 4,
        Family::V6 => 16,
    }
}

pub(super) fn blob(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
