//! Reports of the gateways of a fleet, in SQL. Only databases have them.
//!
//! INVARIANT: times are those of the database's clock. That a gateway is connected is the server's
//! word: it holds the lock of the gateway's start.

use std::net::IpAddr;

use super::columns::optional_bytes;
use super::{Connection, Result, Row, Transaction, carriers, notices, params};
use crate::{GatewayReport, GatewayState};

/// Silence after which a gateway that is not connected counts as stopped.
const STOPPED_SILENCE_S: u64 = 60;

pub(crate) fn report(t: &Transaction<'_>, gateway: [u8; 16], report: &GatewayReport) -> Result<()> {
    let GatewayReport { address, addresses, version, sessions, load_percent, is_draining, absences } = report;
    // A drain that was only just permitted here is not in the report yet.
    let sql = "UPDATE holder SET heard = clock_timestamp(), address = coalesce(?, host(inet_client_addr()), '-') || ?,
                   version = ?, sessions = ?, load_percent = ?, draining = coalesce(?, draining),
                   held = (SELECT count(*) FROM carriers c WHERE c.gateway = holder.gateway)
               WHERE gateway = ?";
    let address = address.map(|address| address.to_string());
    let others: String = addresses.iter().map(|address| format!(" {address}")).collect();
    let is_draining = is_draining.map(u64::from);
    t.execute(sql, params![address, others, version, sessions, load_percent, is_draining, gateway])?;
    carriers::note_away(t, gateway, absences)?;
    notices::forget(t)
}

pub(crate) fn all(c: &Connection, gateway: [u8; 16]) -> Result<Vec<GatewayState>> {
    // The second number of a lock is the beginning of the instance, as `holder` takes it.
    let sql = "SELECT name, address, version, sessions, held, load_percent, draining,
                   (gateway = ?)::int AS is_here,
                   (CASE WHEN heard > clock_timestamp() THEN 0
                        ELSE extract(epoch FROM clock_timestamp() - heard) END)::bigint AS heard_s,
                   EXISTS (SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted
                       AND l.classid::bigint = x'76706e64'::bigint
                       AND l.objid::bigint = ('x' || encode(substr(h.instance, 1, 4), 'hex'))::bit(32)::bigint
                       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))::int
                       AS is_connected
               FROM holder h ORDER BY name";
    c.statement(sql).query_all(params![gateway], from_row)
}

pub(crate) fn drain_unless_last(t: &Transaction<'_>, gateway: [u8; 16]) -> Result<bool> {
    let is_other = |state: &GatewayState| !state.is_here && state.is_alive() && !state.is_draining;
    let has_other = all(t, gateway)?.iter().any(is_other);
    if has_other {
        t.execute("UPDATE holder SET draining = 1 WHERE gateway = ?", params![gateway])?;
    }
    Ok(has_other)
}

pub(crate) fn agree_on_wireguard_key(
    t: &Transaction<'_>,
    gateway: [u8; 16],
    public: &[u8; 32],
) -> Result<bool> {
    let agreed: Option<[u8; 32]> =
        t.query_row("SELECT wireguard FROM fleet", (), |row| optional_bytes(row, "wireguard"))?;
    if agreed == Some(*public) {
        return Ok(true);
    }
    if agreed.is_some() && !may_change_wireguard_key(t, gateway)? {
        return Ok(false);
    }
    t.execute("UPDATE fleet SET wireguard = ?", params![public]).map(|_| true)
}

/// Whether neither another gateway nor a device goes by the key that was agreed on: those that are
/// stopped get the file of the one that is first. One that was heard a moment ago may be connecting
/// again.
fn may_change_wireguard_key(t: &Transaction<'_>, gateway: [u8; 16]) -> Result<bool> {
    let gateways = all(t, gateway)?;
    if gateways.len() <= 1 {
        return Ok(true);
    }
    let devices: u64 = t.query_row("SELECT count(*) FROM wireguard_devices", (), |row| row.get(0))?;
    let is_silent = |state: &GatewayState| {
        !state.is_connected && state.heard_s.is_none_or(|heard_s| heard_s > STOPPED_SILENCE_S)
    };
    Ok(devices == 0 && gateways.iter().all(|state| state.is_here || is_silent(state)))
}

fn from_row(row: &Row<'_>) -> Result<GatewayState> {
    let text: Option<String> = row.get("address")?;
    // The gateway's own, then those at which clients reach it.
    let mut addresses = text.iter().flat_map(|text| text.split(' ')).map(|word| word.parse::<IpAddr>().ok());
    Ok(GatewayState {
        name: row.get("name")?,
        is_here: row.get("is_here")?,
        is_connected: row.get("is_connected")?,
        heard_s: row.get("heard_s")?,
        address: addresses.next().flatten(),
        addresses: addresses.flatten().collect(),
        version: row.get("version")?,
        sessions: row.get("sessions")?,
        held: row.get("held")?,
        load_percent: row.get("load_percent")?,
        is_draining: row.get("draining")?,
    })
}
