//! Which gateway carries a session, in SQL.
//!
//! INVARIANT: a gateway changes a session only while it is the carrier. In the embedded store,
//! which has one gateway, all of this has no effect.

use vpnd_proto::session::SessionId;

use super::columns::bytes;
use super::{Connection, Optional as _, Parameter as _, Result, Row, Transaction, Value, params, rows};
use crate::{Absences, Begun, Lease, LeaseOwner, TakenAway};

/// A condition: no other gateway than the one of the parameter carries the session of this column.
pub(crate) fn not_elsewhere(session: &str, parameter: &str) -> String {
    format!("NOT EXISTS (SELECT 1 FROM carriers c WHERE c.session = {session} AND c.gateway <> {parameter})")
}

pub(crate) fn next_generation(t: &Transaction<'_>) -> Result<u64> {
    t.execute("UPDATE fleet SET generation = generation + 1", ())?;
    t.query_row("SELECT generation FROM fleet", (), |row| row.get("generation"))
}

/// A condition: the device of this session counts for its user's limit, which one does not that
/// reaches the portal alone.
const COUNTS: &str = "NOT EXISTS (SELECT 1 FROM wireguard_devices w
    WHERE w.user_id = s.user_id AND w.device = s.device AND w.walled_s IS NOT NULL)";

/// A session of this device is about to begin at this gateway. If its user has as many as they may,
/// a client's makes room that is away from another gateway.
pub(crate) fn make_room(
    t: &Transaction<'_>,
    gateway: [u8; 16],
    owner: LeaseOwner,
    most: Option<u64>,
    now_s: u64,
) -> Result<Begun> {
    let generation = next_generation(t)?;
    let Some(most) = most else { return Ok(Begun { generation, elsewhere: 0 }) };
    let others = format!(
        "FROM sessions s JOIN carriers c ON c.session = s.id
         WHERE s.user_id = ?1 AND s.device <> ?2 AND s.expires_s > ?3 AND {COUNTS}"
    );
    let params = || params![owner.user.0, owner.device.0, now_s, gateway];
    let sql = format!(
        "SELECT count(*) AS sessions, count(CASE WHEN c.gateway <> ?4 THEN 1 END) AS elsewhere {others}"
    );
    let read = |row: &Row<'_>| Ok((row.get::<_, u64>("sessions")?, row.get::<_, u64>("elsewhere")?));
    let (sessions, mut elsewhere) = t.query_row(&sql, params(), read)?;
    if elsewhere > 0 && sessions >= most {
        let sql = format!(
            "SELECT c.gateway, c.session, l.address FROM leases l JOIN carriers c ON c.session = l.session
             WHERE c.session = (SELECT c.session {others} AND c.gateway <> ?4 AND c.away = 1
                 ORDER BY s.started_s, s.id LIMIT 1)"
        );
        let away: Vec<Elsewhere> = t.statement(&sql).query_all(params(), elsewhere_from_row)?;
        take_away(t, &away)?;
        elsewhere -= u64::from(!away.is_empty());
    }
    Ok(Begun { generation, elsewhere })
}

/// More of a condition for a new session, whose user and device are the second and the third
/// parameter and which begins at the sixth: that the user has room for it at all gateways, and what
/// is to be added to its parameters.
pub(crate) fn has_room(t: &Transaction<'_>, most: Option<u64>, number: usize) -> (String, Vec<Value>) {
    let (Some(gateway), Some(most)) = (t.gateway(), most) else { return (String::new(), Vec::new()) };
    // A client that is away from this gateway makes room here, or has made it.
    let condition = format!(
        " AND (SELECT count(*) FROM sessions s JOIN carriers c ON c.session = s.id
               WHERE s.user_id = ?2 AND s.device <> ?3 AND s.expires_s > ?6 AND {COUNTS}
               AND (c.gateway <> ?{number} OR c.away = 0)) < ?{}",
        number + 1
    );
    (condition, params![gateway, most])
}

/// Notes which clients are away from this gateway.
pub(crate) fn note_away(t: &Transaction<'_>, gateway: [u8; 16], absences: &Absences) -> Result<()> {
    let Absences { are_new, away, back } = absences;
    if *are_new {
        t.execute("UPDATE carriers SET away = 1 WHERE gateway = ?", [gateway])?;
    }
    let named = [(away, true), (back, false)];
    let named = named.iter().flat_map(|(sessions, is_away)| sessions.iter().map(|id| (id.0, *is_away)));
    let named: Vec<[Value; 2]> = named.map(|(id, is_away)| [id.value(), is_away.value()]).collect();
    if named.is_empty() {
        return Ok(());
    }
    let (marks, values) = rows(named);
    // Most of the sessions that are new to the gateway are here as it has them.
    let sql = format!(
        "WITH new(session, away) AS (VALUES {marks})
         UPDATE carriers SET away = new.away FROM new
         WHERE carriers.gateway = ? AND carriers.session = new.session AND carriers.away <> new.away"
    );
    t.execute(&sql, [values, params![gateway]].concat()).map(drop)
}

/// A session begins at this gateway.
pub(crate) fn begin(t: &Transaction<'_>, session: SessionId, generation: u64) -> Result<()> {
    let Some(gateway) = t.gateway() else { return Ok(()) };
    let sql = "INSERT INTO carriers (session, gateway, generation) VALUES (?1, ?2, ?3)
               ON CONFLICT (session) DO UPDATE SET gateway = ?2, generation = ?3, away = 0";
    t.execute(sql, params![session.0, gateway, generation]).map(drop)
}

/// The carrier of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carrier {
    /// Grows with each move, over all sessions.
    pub(crate) generation: u64,
    /// Whether it is this gateway.
    pub(crate) is_here: bool,
}

pub(crate) fn of(c: &Connection, session: SessionId) -> Result<Option<Carrier>> {
    let Some(gateway) = c.gateway() else { return Ok(None) };
    let statement = c.statement("SELECT gateway, generation FROM carriers WHERE session = ?");
    let carrier = statement.query_row([session.0], |row| {
        Ok(Carrier { generation: row.get("generation")?, is_here: bytes::<16>(row, "gateway")? == gateway })
    });
    carrier.optional()
}

/// Whether another gateway carries the session.
pub(crate) fn is_elsewhere(c: &Connection, session: SessionId) -> Result<bool> {
    Ok(of(c, session)?.is_some_and(|carrier| !carrier.is_here))
}

/// The session is over here.
pub(crate) fn end(t: &Transaction<'_>, session: SessionId) -> Result<()> {
    let Some(gateway) = t.gateway() else { return Ok(()) };
    let sql = "DELETE FROM carriers WHERE session = ? AND gateway = ?";
    t.execute(sql, params![session.0, gateway]).map(drop)
}

/// Moves sessions to this gateway that are not over and still have these generations; their new
/// one, which no other session has.
pub(crate) fn move_here(
    t: &Transaction<'_>,
    gateway: [u8; 16],
    sessions: &[(SessionId, u64)],
) -> Result<u64> {
    let next = next_generation(t)?;
    let (marks, pairs) = rows(sessions.iter().map(|(id, generation)| [id.0.value(), generation.value()]));
    let sql = format!(
        "INSERT INTO leaving (gateway, session, generation, address)
         SELECT c.gateway, c.session, ?, l.address FROM carriers c JOIN leases l ON l.session = c.session
         WHERE c.gateway <> ? AND (c.session, c.generation) IN (VALUES {marks})
         AND EXISTS (SELECT 1 FROM sessions s WHERE s.id = c.session)
         ON CONFLICT (gateway, session, address) DO UPDATE SET generation = excluded.generation"
    );
    t.execute(&sql, [params![next, gateway], pairs.clone()].concat())?;
    let sql = format!(
        "UPDATE carriers SET gateway = ?, generation = ?, away = 0
         WHERE (session, generation) IN (VALUES {marks})
         AND EXISTS (SELECT 1 FROM sessions s WHERE s.id = carriers.session)"
    );
    t.execute(&sql, [params![gateway, next], pairs].concat())?;
    Ok(next)
}

/// An address of a session at another gateway.
pub(crate) struct Elsewhere {
    session: SessionId,
    gateway: [u8; 16],
    address: Vec<u8>,
}

/// The sessions of this device at other gateways, whose place a session takes that begins here.
pub(crate) fn of_device(c: &Connection, owner: LeaseOwner, begins: SessionId) -> Result<Vec<Elsewhere>> {
    let Some(gateway) = c.gateway() else { return Ok(Vec::new()) };
    let sql = "SELECT c.gateway, c.session, l.address
               FROM leases l JOIN carriers c ON c.session = l.session
               WHERE l.user_id = ? AND l.device = ? AND l.session <> ? AND c.gateway <> ?";
    let statement = c.statement(sql);
    statement.query_all(params![owner.user.0, owner.device.0, begins.0, gateway], elsewhere_from_row)
}

fn elsewhere_from_row(row: &Row<'_>) -> Result<Elsewhere> {
    Ok(Elsewhere {
        session: SessionId(bytes(row, "session")?),
        gateway: bytes(row, "gateway")?,
        address: row.blob("address")?.to_vec(),
    })
}

/// These are over: their gateways drop them.
pub(crate) fn take_away(t: &Transaction<'_>, sessions: &[Elsewhere]) -> Result<()> {
    for Elsewhere { session, gateway, address } in sessions {
        // The gateway may have a later generation than the database, which may have lost its last
        // move.
        let sql = "INSERT INTO leaving (gateway, session, generation, address)
                   SELECT ?, ?, generation, ? FROM fleet WHERE true
                   ON CONFLICT (gateway, session, address) DO UPDATE SET generation = excluded.generation";
        t.execute(sql, params![gateway, session.0, address])?;
        t.execute("DELETE FROM sessions WHERE id = ?", [session.0])?;
        t.execute("DELETE FROM carriers WHERE session = ?", [session.0])?;
    }
    Ok(())
}

/// Whether a gateway may still send packets of this address's to a device that has lost it.
pub(crate) fn is_leaving(c: &Connection, lease: &Lease) -> Result<bool> {
    if c.gateway().is_none() {
        return Ok(false);
    }
    let sql = "SELECT 1 FROM leaving WHERE address = ?1 AND NOT EXISTS (
                   SELECT 1 FROM leases WHERE address = ?1 AND user_id = ?2 AND device = ?3)";
    let LeaseOwner { user, device } = lease.owner;
    c.statement(sql).exists(params![super::columns::blob(lease.address), user.0, device.0])
}

pub(crate) fn taken_away(c: &Connection, gateway: [u8; 16]) -> Result<Vec<TakenAway>> {
    let sql = "SELECT session, max(generation) AS generation FROM leaving WHERE gateway = ? GROUP BY session";
    c.statement(sql).query_all([gateway], taken_from_row)
}

pub(crate) fn dropped(t: &Transaction<'_>, gateway: [u8; 16], sessions: &[TakenAway]) -> Result<()> {
    if sessions.is_empty() {
        return Ok(());
    }
    let dropped = |taken: &TakenAway| [taken.session.0.value(), taken.generation.value()];
    let (marks, values) = rows(sessions.iter().map(dropped));
    let sql = format!(
        "WITH dropped(session, generation) AS (VALUES {marks})
         DELETE FROM leaving WHERE gateway = ? AND EXISTS (
             SELECT 1 FROM dropped d WHERE d.session = leaving.session AND d.generation >= leaving.generation)"
    );
    t.execute(&sql, [values, params![gateway]].concat()).map(drop)
}

/// Forgets who carried sessions that are over by the clock and have no addresses.
pub(crate) fn forget(t: &Transaction<'_>, now_s: u64) -> Result<()> {
    if t.gateway().is_none() {
        return Ok(());
    }
    let sql = "DELETE FROM carriers AS c WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = c.session)
               AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.session = c.session AND l.until_s > ?)";
    t.execute(sql, [now_s]).map(drop)
}

fn taken_from_row(row: &Row<'_>) -> Result<TakenAway> {
    Ok(TakenAway { session: SessionId(bytes(row, "session")?), generation: row.get("generation")? })
}
