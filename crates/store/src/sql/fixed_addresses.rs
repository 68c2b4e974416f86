//! Fixed addresses in SQL.
//!
//! INVARIANT: an address is fixed for one user at most, and it becomes so only while no session of
//! another user has it.

use std::net::IpAddr;

use vpnd_proto::session::DeviceId;

use super::columns::{address, blob, octets, optional_bytes};
use super::users::StoreResult;
use super::{Connection, Optional as _, Result, Transaction, params};
use crate::{AddressChange, Family, FixedAddress, LeaseOwner, StoreError, UserId};

/// Makes these the user's, or the device's, in place of those before.
pub(crate) fn set(
    t: &Transaction<'_>,
    id: UserId,
    name: &str,
    change: &AddressChange,
    now_s: u64,
) -> StoreResult<()> {
    let device = change.device.map(|device| device.0);
    t.execute(
        "DELETE FROM fixed_addresses WHERE user_id = ? AND device IS NOT DISTINCT FROM ?",
        params![id.0, device],
    )?;
    for address in &change.addresses {
        if let Some(holder) = holder(t, id, device, *address, now_s)? {
            let (address, name) = (*address, name.to_owned());
            return Ok(Err(StoreError::AddressTaken { address, name, holder }));
        }
        let sql = "INSERT INTO fixed_addresses (address, user_id, device) VALUES (?, ?, ?)";
        t.execute(sql, params![blob(*address), id.0, device])?;
    }
    Ok(Ok(()))
}

/// Returns who has the address already, if that is not this user or device.
fn holder(
    c: &Connection,
    id: UserId,
    device: Option<[u8; 16]>,
    address: IpAddr,
    now_s: u64,
) -> Result<Option<String>> {
    let sql = "SELECT u.name FROM fixed_addresses f JOIN users u ON u.id = f.user_id WHERE f.address = ?";
    let fixed: Option<String> = c.query_row(sql, [blob(address)], |row| row.get(0)).optional()?;
    if let Some(name) = fixed {
        return Ok(Some(format!("it is one of '{name}' already; choose another")));
    }
    let sql = "SELECT u.name FROM leases l LEFT JOIN users u ON u.id = l.user_id
               WHERE l.address = ?1 AND l.until_s > ?2 AND NOT (l.user_id = ?3 AND (?4 IS NULL OR l.device = ?4))";
    let leased: Option<Option<String>> =
        c.query_row(sql, params![blob(address), now_s, id.0, device], |row| row.get(0)).optional()?;
    Ok(leased.map(|name| match name {
        Some(name) => {
            format!("a session of '{name}' has it; choose another, or end that with 'vpnd kick {name}' first")
        }
        None => "a session that has ended had it until now; try again in a minute".to_owned(),
    }))
}

/// Forgets those of a device.
pub(crate) fn remove_device(t: &Transaction<'_>, id: UserId, device: DeviceId) -> Result<()> {
    let sql = "DELETE FROM fixed_addresses WHERE user_id = ? AND device = ?";
    t.execute(sql, params![id.0, device.0]).map(drop)
}

/// All of a user.
pub(crate) fn of_user(c: &Connection, id: UserId) -> Result<Vec<FixedAddress>> {
    let sql =
        "SELECT address, device FROM fixed_addresses WHERE user_id = ? ORDER BY length(address), address";
    let statement = c.statement(sql);
    statement.query_all([id.0], |row| {
        Ok(FixedAddress { address: address(row)?, device: optional_bytes(row, "device")?.map(DeviceId) })
    })
}

/// Those that this owner may have, its own before those of any of the user's devices.
pub(crate) fn of_owner(c: &Connection, owner: LeaseOwner, family: Family) -> Result<Vec<IpAddr>> {
    let sql = "SELECT address FROM fixed_addresses
               WHERE user_id = ? AND (device IS NULL OR device = ?) AND length(address) = ?
               ORDER BY device IS NULL, address";
    let statement = c.statement(sql);
    statement.query_all(params![owner.user.0, owner.device.0, octets(family)], address)
}

/// Those that this owner can't have.
pub(crate) fn of_others(c: &Connection, owner: LeaseOwner, family: Family) -> Result<Vec<IpAddr>> {
    let sql = "SELECT address FROM fixed_addresses
               WHERE NOT (user_id = ? AND (device IS NULL OR device = ?)) AND length(address) = ? ORDER BY address";
    let statement = c.statement(sql);
    statement.query_all(params![owner.user.0, owner.device.0, octets(family)], address)
}
