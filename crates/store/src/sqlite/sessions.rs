//! Sessions with their token hashes, and leases of inner addresses, in SQL.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};
use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::session::{DeviceId, SessionId};

use super::super::{
    Device, Family, KEPT_LEASES, Lease, LeaseOwner, LiveSession, Owner, SessionRecord, UserId,
};
use super::columns::{address, blob, bytes, octets, unexpected};
use super::users;
use vpnd_config::factor::Factors;

/// Time after which addresses are free that a device has lost to its removal or to another pool,
/// seconds; or when their session ends.
const REMOVAL_S: u64 = 60;

pub(super) fn add(t: &Transaction<'_>, session: &SessionRecord, generation: u64) -> rusqlite::Result<bool> {
    t.prepare_cached("DELETE FROM sessions WHERE expires_s <= ?")?.execute([session.started_s])?;
    let sql = "INSERT INTO sessions (id, user_id, device, settled, fresh, started_s, expires_s, epoch, amr, auth_time_s)
               SELECT ?1, id, ?3, ?4, ?5, ?6, ?7, ?9, ?10, ?11 FROM users WHERE id = ?2 AND enabled = 1 AND generation = ?8";
    let added = t.prepare_cached(sql)?.execute(params![
        session.id.0,
        session.user.0,
        session.device.0,
        session.tokens.settled().as_bytes(),
        session.tokens.fresh().map(|fresh| *fresh.as_bytes()),
        session.started_s,
        session.expires_s,
        generation,
        session.epoch,
        session.factors.to_string(),
        session.auth_time_s,
    ])?;
    Ok(added == 1)
}

pub(super) fn by_id(c: &Connection, id: SessionId, now_s: u64) -> rusqlite::Result<Option<SessionRecord>> {
    let sql = "SELECT s.id, s.user_id, s.device, s.settled, s.fresh, s.started_s, s.expires_s, s.epoch, s.amr, s.auth_time_s
               FROM sessions s JOIN users u ON u.id = s.user_id
               WHERE s.id = ? AND s.expires_s > ? AND u.enabled = 1";
    c.prepare_cached(sql)?.query_row(params![id.0, now_s], session_from_row).optional()
}

pub(super) fn set_tokens(
    t: &Transaction<'_>,
    id: SessionId,
    tokens: &Tokens,
    epoch: u32,
) -> rusqlite::Result<bool> {
    let fresh = tokens.fresh().map(|fresh| *fresh.as_bytes());
    // Another process may have had newer ones before those that were put off here.
    let sql = "UPDATE sessions SET settled = ?1, fresh = ?2, epoch = ?3 WHERE id = ?4 AND epoch <= ?3";
    Ok(t.prepare_cached(sql)?.execute(params![tokens.settled().as_bytes(), fresh, epoch, id.0])? == 1)
}

pub(super) fn end(t: &Transaction<'_>, id: SessionId, now_s: u64) -> rusqlite::Result<()> {
    t.execute("DELETE FROM sessions WHERE id = ?", [id.0])?;
    release(t, id, now_s)
}

pub(super) fn orphaned(c: &Connection, now_s: u64) -> rusqlite::Result<HashSet<SessionId>> {
    let sql =
        "SELECT DISTINCT session FROM leases WHERE until_s > ? AND session NOT IN (SELECT id FROM sessions)";
    c.prepare_cached(sql)?.query_map([now_s], |row| Ok(SessionId(bytes(row, "session")?)))?.collect()
}

pub(super) fn owners(c: &Connection, now_s: u64) -> rusqlite::Result<Vec<Owner>> {
    let sql = "SELECT u.id, u.name, u.source, count(*) AS sessions
               FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.expires_s > ? GROUP BY u.id ORDER BY u.name";
    let mut statement = c.prepare_cached(sql)?;
    let mut rows = statement.query([now_s])?;
    let mut owners = Vec::new();
    while let Some(row) = rows.next()? {
        owners.push(Owner {
            user: row.get("name")?,
            source: row.get("source")?,
            groups: users::groups_of(c, UserId(bytes(row, "id")?))?,
            sessions: row.get("sessions")?,
        });
    }
    Ok(owners)
}

pub(super) fn live(c: &Connection, now_s: u64) -> rusqlite::Result<Vec<LiveSession>> {
    let sql = "SELECT s.id, u.name, u.source, s.device, s.started_s, s.expires_s
               FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.expires_s > ?";
    let mut statement = c.prepare_cached(sql)?;
    let found = statement.query_map([now_s], |row| {
        Ok(LiveSession {
            id: SessionId(bytes(row, "id")?),
            user: row.get("name")?,
            source: row.get("source")?,
            device: DeviceId(bytes(row, "device")?),
            addresses: Vec::new(),
            started_s: row.get("started_s")?,
            expires_s: row.get("expires_s")?,
        })
    })?;
    let mut found = found.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut addresses: BTreeMap<SessionId, Vec<IpAddr>> = BTreeMap::new();
    // An address that the device has given up is still its session's, but not its own any more.
    let sql = "SELECT l.* FROM leases l JOIN sessions s
                   ON s.id = l.session AND s.user_id = l.user_id AND s.device = l.device WHERE l.until_s > ?";
    let mut leases = c.prepare_cached(sql)?;
    for lease in leases.query_map([now_s], lease_from_row)? {
        let lease = lease?;
        addresses.entry(lease.session).or_default().push(lease.address);
    }
    for session in &mut found {
        session.addresses = addresses.remove(&session.id).unwrap_or_default();
    }
    Ok(found)
}

pub(super) fn devices(c: &Connection, user: UserId) -> rusqlite::Result<Vec<Device>> {
    let mut devices: BTreeMap<DeviceId, Device> = BTreeMap::new();
    let new = |id| Device { id, addresses: Vec::new(), session_since_s: None };
    let mut leases =
        c.prepare_cached("SELECT * FROM leases WHERE user_id = ? ORDER BY length(address), address")?;
    for lease in leases.query_map([user.0], lease_from_row)? {
        let lease = lease?;
        let id = lease.owner.device;
        devices.entry(id).or_insert_with(|| new(id)).addresses.push(lease.address);
    }
    let mut sessions = c.prepare_cached("SELECT device, started_s FROM sessions WHERE user_id = ?")?;
    let found =
        sessions.query_map([user.0], |row| Ok((DeviceId(bytes(row, "device")?), row.get("started_s")?)))?;
    for session in found {
        let (id, since_s) = session?;
        devices.entry(id).or_insert_with(|| new(id)).session_since_s = Some(since_s);
    }
    Ok(devices.into_values().collect())
}

/// Forgets a device and its sessions. Its addresses are leased to no other device until the gateway
/// has ended these.
pub(super) fn remove_device(t: &Transaction<'_>, user: UserId, device: DeviceId) -> rusqlite::Result<()> {
    t.execute("DELETE FROM sessions WHERE user_id = ? AND device = ?", params![user.0, device.0])?;
    let sql = "UPDATE leases SET user_id = randomblob(16), device = randomblob(16)
               WHERE user_id = ?1 AND device = ?2";
    t.execute(sql, params![user.0, device.0]).map(drop)
}

pub(super) fn lease_of(c: &Connection, owner: LeaseOwner, family: Family) -> rusqlite::Result<Option<Lease>> {
    let sql = "SELECT * FROM leases WHERE user_id = ? AND device = ? AND length(address) = ?
               ORDER BY until_s DESC LIMIT 1";
    let mut statement = c.prepare_cached(sql)?;
    statement.query_row(params![owner.user.0, owner.device.0, octets(family)], lease_from_row).optional()
}

pub(super) fn forget_leases(t: &Transaction<'_>, before_s: u64) -> rusqlite::Result<usize> {
    t.execute("DELETE FROM leases WHERE until_s < ?", [before_s])
}

pub(super) fn surplus(
    c: &Connection,
    user: UserId,
    family: Family,
    now_s: u64,
) -> rusqlite::Result<Option<Lease>> {
    let sql = "SELECT * FROM leases WHERE user_id = ? AND length(address) = ? AND until_s <= ?
               ORDER BY until_s DESC, address LIMIT 1 OFFSET ?";
    let mut statement = c.prepare_cached(sql)?;
    statement.query_row(params![user.0, octets(family), now_s, KEPT_LEASES], lease_from_row).optional()
}

pub(super) fn lease_on(c: &Connection, address: IpAddr) -> rusqlite::Result<Option<Lease>> {
    let mut statement = c.prepare_cached("SELECT * FROM leases WHERE address = ?")?;
    statement.query_row([blob(address)], lease_from_row).optional()
}

pub(super) fn claim(t: &Transaction<'_>, lease: &Lease, now_s: u64) -> rusqlite::Result<bool> {
    let address = blob(lease.address);
    let LeaseOwner { user, device } = lease.owner;
    let sql = "INSERT INTO leases (address, user_id, device, session, until_s) SELECT ?1, ?2, ?3, ?4, ?5
               WHERE NOT EXISTS (SELECT 1 FROM fixed_addresses WHERE address = ?1
                                 AND NOT (user_id = ?2 AND (device IS NULL OR device = ?3)))
               ON CONFLICT DO UPDATE SET user_id = ?2, device = ?3, session = ?4, until_s = ?5
               WHERE until_s <= ?6 OR (user_id = ?2 AND device = ?3)";
    let claimed =
        t.execute(sql, params![address, user.0, device.0, lease.session.0, lease.until_s, now_s])?;
    if claimed == 1 {
        let others = "user_id = ?1 AND device = ?2 AND address <> ?3 AND length(address) = length(?3)";
        let sql = format!("DELETE FROM leases WHERE {others} AND (until_s <= ?4 OR session = ?5)");
        t.execute(&sql, params![user.0, device.0, address, now_s, lease.session.0])?;
        // The session that had the address may not have ended yet.
        let sql = format!(
            "UPDATE leases SET user_id = randomblob(16), device = randomblob(16), until_s = min(until_s, ?4) WHERE {others}"
        );
        t.execute(&sql, params![user.0, device.0, address, now_s.saturating_add(REMOVAL_S)])?;
    }
    Ok(claimed == 1)
}

pub(super) fn leases(c: &Connection, family: Family) -> rusqlite::Result<Vec<Lease>> {
    let mut statement =
        c.prepare_cached("SELECT * FROM leases WHERE length(address) = ? ORDER BY address")?;
    statement.query_map([octets(family)], lease_from_row)?.collect()
}

pub(super) fn live_leases(c: &Connection, first: IpAddr, last: IpAddr, now_s: u64) -> rusqlite::Result<u64> {
    let (first, last) = (blob(first), blob(last));
    // Between two addresses of one family there may be some of the other, by their bytes.
    let sql = "SELECT count(*) FROM leases
               WHERE address BETWEEN ?1 AND ?2 AND length(address) = length(?1) AND until_s > ?3";
    c.prepare_cached(sql)?.query_row(params![first, last, now_s], |row| row.get(0))
}

pub(super) fn release(t: &Transaction<'_>, session: SessionId, now_s: u64) -> rusqlite::Result<()> {
    let sql = "UPDATE leases SET until_s = ?1 WHERE session = ?2 AND until_s > ?1";
    t.execute(sql, params![now_s, session.0]).map(drop)
}

fn session_from_row(row: &Row<'_>) -> rusqlite::Result<SessionRecord> {
    let settled = TokenHash::from_bytes(bytes(row, "settled")?);
    let fresh: Option<Vec<u8>> = row.get("fresh")?;
    let fresh = fresh.map(|hash| hash.try_into().map_err(|_| unexpected("fresh"))).transpose()?;
    Ok(SessionRecord {
        id: SessionId(bytes(row, "id")?),
        user: UserId(bytes(row, "user_id")?),
        device: DeviceId(bytes(row, "device")?),
        epoch: row.get("epoch")?,
        tokens: Tokens::restore(settled, fresh.map(TokenHash::from_bytes)),
        started_s: row.get("started_s")?,
        expires_s: row.get("expires_s")?,
        factors: Factors::from(row.get::<_, String>("amr")?.as_str()),
        auth_time_s: row.get("auth_time_s")?,
    })
}

fn lease_from_row(row: &Row<'_>) -> rusqlite::Result<Lease> {
    Ok(Lease {
        address: address(row)?,
        owner: LeaseOwner { user: UserId(bytes(row, "user_id")?), device: DeviceId(bytes(row, "device")?) },
        session: SessionId(bytes(row, "session")?),
        until_s: row.get("until_s")?,
    })
}
