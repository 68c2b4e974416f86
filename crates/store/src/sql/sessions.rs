//! Sessions with their token hashes, and leases of inner addresses, in SQL.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::session::{DeviceId, SessionId};

use super::columns::{address, blob, bytes, octets, optional_bytes};
use super::{
    Connection, Optional as _, Parameter as _, Result, Row, Transaction, Value, carriers, params, rows, users,
};
use crate::{
    Device, Family, HeldSession, KEPT_LEASES, Lease, LeaseOwner, LiveSession, Owner, SessionChange,
    SessionRecord, User, UserId,
};
use vpnd_config::factor::Factors;

/// Time after which addresses are free that a device has lost to its removal or to another pool,
/// seconds; or when their session ends.
const REMOVAL_S: u64 = 60;

pub(crate) fn add(t: &Transaction<'_>, session: &SessionRecord, generation: u64) -> Result<bool> {
    t.statement("DELETE FROM sessions WHERE expires_s <= ?").execute([session.started_s])?;
    let (condition, more) = carriers::has_room(t, session.most, 12);
    let sql = format!(
        "INSERT INTO sessions (id, user_id, device, settled, fresh, started_s, expires_s, epoch, amr, auth_time_s)
         SELECT ?1, id, ?3, ?4, ?5, ?6, ?7, ?9, ?10, ?11 FROM users
         WHERE id = ?2 AND enabled = 1 AND generation = ?8{condition}"
    );
    let mut values = params![
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
    ];
    values.extend(more);
    let added = t.statement(&sql).execute(values)?;
    if added == 1 {
        carriers::begin(t, session.id, session.generation)?;
    }
    Ok(added == 1)
}

pub(crate) fn by_id(c: &Connection, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>> {
    let sql = "SELECT s.id, s.user_id, s.device, s.settled, s.fresh, s.started_s, s.expires_s, s.epoch, s.amr, s.auth_time_s
               FROM sessions s JOIN users u ON u.id = s.user_id
               WHERE s.id = ? AND s.expires_s > ? AND u.enabled = 1";
    let found = c.statement(sql).query_row(params![id.0, now_s], session_from_row).optional()?;
    let Some(session) = found else { return Ok(None) };
    let generation = carriers::of(c, id)?.map_or(0, |carrier| carrier.generation);
    Ok(Some(SessionRecord { generation, ..session }))
}

/// Sessions of a fleet, in the order of their ids here.
pub(crate) fn held(c: &Connection, ids: &[SessionId], now_s: u64) -> Result<Vec<Option<HeldSession>>> {
    if c.gateway().is_none() || ids.is_empty() {
        return Ok(vec![None; ids.len()]);
    }
    let mut found = BTreeMap::new();
    for (record, is_here) in carried(c, ids, None, now_s)? {
        found.insert(record.id, (record, is_here));
    }
    let (marks, values) = rows(ids.iter().map(|id| [id.0.value()]));
    let sql = format!(
        "SELECT DISTINCT l.* FROM leases l JOIN sessions s ON s.user_id = l.user_id AND s.device = l.device
         WHERE s.id IN (VALUES {marks}) ORDER BY l.until_s DESC"
    );
    let leases: Vec<Lease> = c.statement(&sql).query_all(values, lease_from_row)?;
    let mut known: BTreeMap<UserId, Option<User>> = BTreeMap::new();
    let held = |id: &SessionId| {
        let Some((record, is_here)) = found.get(id).cloned() else { return Ok(None) };
        let user = match known.get(&record.user) {
            Some(user) => user.clone(),
            None => known.entry(record.user).or_insert(users::by_id(c, record.user)?).clone(),
        };
        let owner = LeaseOwner { user: record.user, device: record.device };
        let leases = leases.iter().filter(|lease| lease.owner == owner).copied().collect();
        Ok(user.map(|user| HeldSession { record, is_here, user, leases }))
    };
    ids.iter().map(held).collect()
}

/// Moves sessions here, as [`carriers::move_here`] has it, and reads those that have moved.
pub(crate) fn move_here(
    t: &Transaction<'_>,
    sessions: &[(SessionId, u64)],
    now_s: u64,
) -> Result<Vec<SessionRecord>> {
    let Some(gateway) = t.gateway().filter(|_| !sessions.is_empty()) else { return Ok(Vec::new()) };
    let generation = carriers::move_here(t, gateway, sessions)?;
    let ids: Vec<SessionId> = sessions.iter().map(|(id, _)| *id).collect();
    let moved = carried(t, &ids, Some(generation), now_s)?;
    Ok(moved.into_iter().map(|(record, _)| record).collect())
}

/// Those of these sessions whose carriers have them since this generation, or all; with each,
/// whether this gateway carries it.
fn carried(
    c: &Connection,
    ids: &[SessionId],
    since: Option<u64>,
    now_s: u64,
) -> Result<Vec<(SessionRecord, bool)>> {
    let (marks, values) = rows(ids.iter().map(|id| [id.0.value()]));
    let condition = if since.is_some() { " AND c.generation = ?" } else { "" };
    let sql = format!(
        "SELECT s.*, c.generation, c.gateway FROM sessions s JOIN users u ON u.id = s.user_id
         LEFT JOIN carriers c ON c.session = s.id
         WHERE u.enabled = 1 AND s.id IN (VALUES {marks}) AND s.expires_s > ?{condition}"
    );
    let values = [values, params![now_s], since.map_or(Vec::new(), |since| params![since])].concat();
    c.statement(&sql).query_all(values, |row| {
        let generation = row.get::<_, Option<u64>>("generation")?.unwrap_or_default();
        let gateway = optional_bytes(row, "gateway")?;
        // One without a carrier is not elsewhere.
        let is_here = gateway.is_none() || gateway == c.gateway();
        Ok((SessionRecord { generation, ..session_from_row(row)? }, is_here))
    })
}

pub(crate) fn missing(c: &Connection, ids: &[SessionId], now_s: u64) -> Result<Vec<SessionId>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let (marks, values) = rows(ids.iter().map(|id| [id.0.value()]));
    let values = [values, params![now_s]].concat();
    let (condition, values) = here(c, "s.id", values.len() + 1, values);
    let sql = format!(
        "SELECT s.id FROM sessions s JOIN users u ON u.id = s.user_id
         WHERE u.enabled = 1 AND s.id IN (VALUES {marks}) AND s.expires_s > ?{condition}"
    );
    let found: HashSet<SessionId> =
        c.statement(&sql).query_all(values, |row| Ok(SessionId(bytes(row, "id")?)))?;
    Ok(ids.iter().filter(|id| !found.contains(id)).copied().collect())
}

/// All sessions of users who may have one that no other gateway carries.
pub(crate) fn all(c: &Connection) -> Result<Vec<SessionRecord>> {
    let (condition, params) = here(c, "s.id", 1, Vec::new());
    let sql =
        format!("SELECT s.* FROM sessions s JOIN users u ON u.id = s.user_id WHERE u.enabled = 1{condition}");
    c.statement(&sql).query_all(params, session_from_row)
}

/// More of a condition, by which no other gateway carries the session of a column, and what is to
/// be added to its parameters, which it numbers from `number` on.
fn here(c: &Connection, session: &str, number: usize, mut params: Vec<Value>) -> (String, Vec<Value>) {
    let Some(gateway) = c.gateway() else { return (String::new(), params) };
    params.extend(params![gateway]);
    (format!(" AND {}", carriers::not_elsewhere(session, &format!("?{number}"))), params)
}

/// New tokens of sessions, and their epochs; whether each is there. Of two for one session the
/// later epoch counts.
pub(crate) fn set_tokens(t: &Transaction<'_>, all: &[(SessionId, Tokens, u32)]) -> Result<Vec<bool>> {
    let mut newest = BTreeMap::new();
    for (id, tokens, epoch) in all {
        let known = newest.entry(*id).or_insert((tokens, epoch));
        if *epoch >= *known.1 {
            *known = (tokens, epoch);
        }
    }
    if newest.is_empty() {
        return Ok(Vec::new());
    }
    let (marks, values) = rows(newest.into_iter().map(|(id, (tokens, epoch))| {
        let fresh = tokens.fresh().map(|fresh| *fresh.as_bytes());
        [id.0.value(), tokens.settled().as_bytes().value(), fresh.value(), epoch.value()]
    }));
    // Another process may have had newer ones before those that were put off here. Nor may a
    // gateway change any that has lost the session.
    let (condition, gateway) = match t.gateway() {
        Some(gateway) => (format!(" AND {}", carriers::not_elsewhere("sessions.id", "?")), params![gateway]),
        None => (String::new(), Vec::new()),
    };
    let sql = format!(
        "WITH new(id, settled, fresh, epoch) AS (VALUES {marks})
         UPDATE sessions SET settled = new.settled, fresh = new.fresh, epoch = new.epoch FROM new
         WHERE sessions.id = new.id AND sessions.epoch <= new.epoch{condition} RETURNING sessions.id AS id"
    );
    let set: HashSet<SessionId> =
        t.statement(&sql).query_all([values, gateway].concat(), |row| Ok(SessionId(bytes(row, "id")?)))?;
    Ok(all.iter().map(|(id, ..)| set.contains(id)).collect())
}

/// Ends a session, unless another gateway carries it.
pub(crate) fn end(t: &Transaction<'_>, id: SessionId, now_s: u64) -> Result<()> {
    if carriers::is_elsewhere(t, id)? {
        return Ok(());
    }
    t.execute("DELETE FROM sessions WHERE id = ?", [id.0])?;
    carriers::end(t, id)?;
    release(t, id, now_s)
}

/// Makes changes in their order; which of them were made.
pub(crate) fn change(t: &Transaction<'_>, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>> {
    let tokens_of = |change: &SessionChange| match change {
        SessionChange::Tokens(id, tokens, epoch) => Some((*id, *tokens, *epoch)),
        SessionChange::Add(..) | SessionChange::End(_) => None,
    };
    let mut done = Vec::with_capacity(changes.len());
    // Tokens that follow one another are one statement.
    for alike in changes.chunk_by(|one, next| tokens_of(one).is_some() && tokens_of(next).is_some()) {
        match &alike[0] {
            SessionChange::Add(session, generation) => done.push(add(t, session, *generation)?),
            SessionChange::Tokens(..) => {
                let tokens: Vec<_> = alike.iter().filter_map(tokens_of).collect();
                done.extend(set_tokens(t, &tokens)?);
            }
            SessionChange::End(id) => {
                end(t, *id, now_s)?;
                done.push(true);
            }
        }
    }
    Ok(done)
}

pub(crate) fn orphaned(c: &Connection, now_s: u64) -> Result<HashSet<SessionId>> {
    let (condition, values) = here(c, "leases.session", 2, params![now_s]);
    let sql = format!(
        "SELECT DISTINCT session FROM leases
         WHERE until_s > ?1 AND session NOT IN (SELECT id FROM sessions){condition}"
    );
    c.statement(&sql).query_all(values, |row| Ok(SessionId(bytes(row, "session")?)))
}

pub(crate) fn owners(c: &Connection, now_s: u64) -> Result<Vec<Owner>> {
    let sql = "SELECT u.id, u.name, u.source, count(*) AS sessions
               FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.expires_s > ? GROUP BY u.id ORDER BY u.name";
    c.statement(sql).query_all([now_s], |row| {
        Ok(Owner {
            user: row.get("name")?,
            source: row.get("source")?,
            groups: users::groups_of(c, UserId(bytes(row, "id")?))?,
            sessions: row.get("sessions")?,
        })
    })
}

pub(crate) fn live(c: &Connection, now_s: u64) -> Result<Vec<LiveSession>> {
    let (condition, values) = here(c, "s.id", 2, params![now_s]);
    let sql = format!(
        "SELECT s.id, s.user_id, u.name, u.source, s.device, s.started_s, s.expires_s, w.name AS wireguard
         FROM sessions s JOIN users u ON u.id = s.user_id
         LEFT JOIN wireguard_devices w ON w.user_id = s.user_id AND w.device = s.device
         WHERE s.expires_s > ?1{condition}"
    );
    let statement = c.statement(&sql);
    let mut found: Vec<LiveSession> = statement.query_all(values, |row| {
        Ok(LiveSession {
            id: SessionId(bytes(row, "id")?),
            owner: UserId(bytes(row, "user_id")?),
            user: row.get("name")?,
            source: row.get("source")?,
            device: DeviceId(bytes(row, "device")?),
            wireguard: row.get("wireguard")?,
            addresses: Vec::new(),
            started_s: row.get("started_s")?,
            expires_s: row.get("expires_s")?,
        })
    })?;
    let mut addresses: BTreeMap<SessionId, Vec<IpAddr>> = BTreeMap::new();
    // An address that the device has given up is still its session's, but not its own any more.
    let sql = "SELECT l.* FROM leases l JOIN sessions s
                   ON s.id = l.session AND s.user_id = l.user_id AND s.device = l.device WHERE l.until_s > ?";
    let leases = c.statement(sql);
    for lease in leases.query_all::<_, Vec<Lease>>([now_s], lease_from_row)? {
        addresses.entry(lease.session).or_default().push(lease.address);
    }
    for session in &mut found {
        session.addresses = addresses.remove(&session.id).unwrap_or_default();
    }
    Ok(found)
}

pub(crate) fn devices(c: &Connection, user: UserId) -> Result<Vec<Device>> {
    let mut devices: BTreeMap<DeviceId, Device> = BTreeMap::new();
    let new = |id| Device { id, addresses: Vec::new(), session_since_s: None, session: None };
    let leases = c.statement("SELECT * FROM leases WHERE user_id = ? ORDER BY length(address), address");
    for lease in leases.query_all::<_, Vec<Lease>>([user.0], lease_from_row)? {
        let id = lease.owner.device;
        devices.entry(id).or_insert_with(|| new(id)).addresses.push(lease.address);
    }
    let sessions = c.statement("SELECT id, device, started_s FROM sessions WHERE user_id = ?");
    let found: Vec<(DeviceId, SessionId, u64)> = sessions.query_all([user.0], |row| {
        Ok((DeviceId(bytes(row, "device")?), SessionId(bytes(row, "id")?), row.get("started_s")?))
    })?;
    for (id, session, since_s) in found {
        let device = devices.entry(id).or_insert_with(|| new(id));
        (device.session_since_s, device.session) = (Some(since_s), Some(session));
    }
    Ok(devices.into_values().collect())
}

/// Forgets a device and its sessions. Its addresses are leased to no other device until the gateway
/// has ended these.
pub(crate) fn remove_device(t: &Transaction<'_>, user: UserId, device: DeviceId) -> Result<()> {
    t.execute("DELETE FROM sessions WHERE user_id = ? AND device = ?", params![user.0, device.0])?;
    let sql = "UPDATE leases SET user_id = ?3, device = ?4 WHERE user_id = ?1 AND device = ?2";
    let [other_user, other_device] = nobodys();
    t.execute(sql, params![user.0, device.0, other_user, other_device]).map(drop)
}

pub(crate) fn lease_of(c: &Connection, owner: LeaseOwner, family: Family) -> Result<Option<Lease>> {
    let sql = "SELECT * FROM leases WHERE user_id = ? AND device = ? AND length(address) = ?
               ORDER BY until_s DESC LIMIT 1";
    let statement = c.statement(sql);
    statement.query_row(params![owner.user.0, owner.device.0, octets(family)], lease_from_row).optional()
}

pub(crate) fn forget_leases(t: &Transaction<'_>, before_s: u64) -> Result<usize> {
    let forgotten = t.execute("DELETE FROM leases WHERE until_s < ?", [before_s])?;
    carriers::forget(t, before_s)?;
    Ok(forgotten)
}

pub(crate) fn surplus(c: &Connection, user: UserId, family: Family, now_s: u64) -> Result<Option<Lease>> {
    let sql = "SELECT * FROM leases WHERE user_id = ? AND length(address) = ? AND until_s <= ?
               ORDER BY until_s DESC, address LIMIT 1 OFFSET ?";
    let statement = c.statement(sql);
    statement.query_row(params![user.0, octets(family), now_s, KEPT_LEASES], lease_from_row).optional()
}

pub(crate) fn lease_on(c: &Connection, address: IpAddr) -> Result<Option<Lease>> {
    let statement = c.statement("SELECT * FROM leases WHERE address = ?");
    statement.query_row([blob(address)], lease_from_row).optional()
}

pub(crate) fn claim(t: &Transaction<'_>, lease: &Lease, now_s: u64) -> Result<bool> {
    if carriers::is_leaving(t, lease)? {
        return Ok(false);
    }
    let elsewhere = carriers::of_device(t, lease.owner, lease.session)?;
    let address = blob(lease.address);
    let LeaseOwner { user, device } = lease.owner;
    let sql = "INSERT INTO leases (address, user_id, device, session, until_s) SELECT ?1, ?2, ?3, ?4, ?5
               WHERE NOT EXISTS (SELECT 1 FROM fixed_addresses WHERE address = ?1
                                 AND NOT (user_id = ?2 AND (device IS NULL OR device = ?3)))
               ON CONFLICT (address) DO UPDATE SET user_id = ?2, device = ?3, session = ?4, until_s = ?5
               WHERE leases.until_s <= ?6 OR (leases.user_id = ?2 AND leases.device = ?3)";
    let claimed =
        t.execute(sql, params![address, user.0, device.0, lease.session.0, lease.until_s, now_s])?;
    if claimed == 1 {
        carriers::take_away(t, &elsewhere)?;
        let others = "user_id = ?1 AND device = ?2 AND address <> ?3 AND length(address) = length(?3)";
        let sql = format!("DELETE FROM leases WHERE {others} AND (until_s <= ?4 OR session = ?5)");
        t.execute(&sql, params![user.0, device.0, address, now_s, lease.session.0])?;
        // The session that had the address may not have ended yet.
        let sql = format!(
            "UPDATE leases SET user_id = ?5, device = ?6, until_s = CASE WHEN until_s < ?4 THEN until_s ELSE ?4 END
             WHERE {others}"
        );
        let [other_user, other_device] = nobodys();
        let until_s = now_s.saturating_add(REMOVAL_S);
        t.execute(&sql, params![user.0, device.0, address, until_s, other_user, other_device])?;
    }
    Ok(claimed == 1)
}

/// An owner that is no user's device, for an address that is to be free soon.
fn nobodys() -> [[u8; 16]; 2] {
    [rand::random(), rand::random()]
}

pub(crate) fn leases(c: &Connection, family: Family) -> Result<Vec<Lease>> {
    let statement = c.statement("SELECT * FROM leases WHERE length(address) = ? ORDER BY address");
    statement.query_all([octets(family)], lease_from_row)
}

pub(crate) fn live_leases(c: &Connection, first: IpAddr, last: IpAddr, now_s: u64) -> Result<u64> {
    let (first, last) = (blob(first), blob(last));
    // Between two addresses of one family there may be some of the other, by their bytes.
    let sql = "SELECT count(*) FROM leases
               WHERE address BETWEEN ?1 AND ?2 AND length(address) = length(?1) AND until_s > ?3";
    c.statement(sql).query_row(params![first, last, now_s], |row| row.get(0))
}

pub(crate) fn release(t: &Transaction<'_>, session: SessionId, now_s: u64) -> Result<()> {
    let sql = "UPDATE leases SET until_s = ?1 WHERE session = ?2 AND until_s > ?1";
    t.execute(sql, params![now_s, session.0]).map(drop)
}

fn session_from_row(row: &Row<'_>) -> Result<SessionRecord> {
    let settled = TokenHash::from_bytes(bytes(row, "settled")?);
    let fresh = optional_bytes(row, "fresh")?;
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
        generation: 0,
        most: None,
    })
}

fn lease_from_row(row: &Row<'_>) -> Result<Lease> {
    Ok(Lease {
        address: address(row)?,
        owner: LeaseOwner { user: UserId(bytes(row, "user_id")?), device: DeviceId(bytes(row, "device")?) },
        session: SessionId(bytes(row, "session")?),
        until_s: row.get("until_s")?,
    })
}
