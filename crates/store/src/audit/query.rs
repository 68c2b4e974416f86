//! Answers from the audit file: who had an address at a time, and everything between two times.
//!
//! INVARIANT: an answer about a time that is not covered is marked; a query uses an index, however
//! many sessions there are.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use minicbor::{Decode, Encode};
use rusqlite::{OptionalExtension as _, Row, ToSql, params};

use super::{AuditError, AuditFile, CLOCK_SET_BACK};
use vpnd_sys::port_blocks::{Block, PortBlocks};

/// The interval at which a gateway notes that all is recorded, seconds.
pub(crate) const HEARTBEAT_S: u64 = 10;
/// Seconds without a heartbeat after which events count as not recorded.
const STALE_S: u64 = 3 * HEARTBEAT_S;
/// Sessions of one address that are looked at, from the newest that had begun by the time in
/// question. Where the clock was never set back, the answer is among those that began within that
/// second and the one before them.
const LOOKED_AT: u32 = 32;
/// Largest expected difference between the clock of a complaint's author and ours, seconds.
const CLOCK_ERROR_S: u64 = 60;

/// Anything that is recorded. Times are seconds since 1970 by the wall clock. What is `None` does
/// not belong to this kind, was not recorded, or has been erased.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Record {
    /// `session`, `outer-address`, `public-ports`, `gap`, or the name of an event.
    #[n(0)]
    pub kind: String,
    /// When it began, or when it was.
    #[n(1)]
    pub at_s: u64,
    /// `None` while a session goes on.
    #[n(2)]
    pub until_s: Option<u64>,
    #[n(3)]
    pub user: Option<String>,
    #[n(4)]
    pub source: Option<String>,
    #[n(5)]
    pub profile: Option<String>,
    #[n(6)]
    pub device: Option<String>,
    #[n(7)]
    pub ipv4: Option<Ipv4Addr>,
    #[n(8)]
    pub ipv6: Option<Ipv6Addr>,
    #[n(9)]
    pub outer: Option<String>,
    #[n(10)]
    pub session: Option<String>,
    /// Why a session ended or a login was refused; what an administrator did.
    #[n(11)]
    pub detail: Option<String>,
    /// The administrator.
    #[n(12)]
    pub by: Option<String>,
    /// The ports by which the inner address was seen from outside at that time, where each has its
    /// own block.
    #[n(13)]
    pub public: Option<Block>,
}

/// A time for which events are missing.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Gap {
    #[n(0)]
    pub from_s: u64,
    #[n(1)]
    pub to_s: u64,
    /// How many, if that is known.
    #[n(2)]
    pub lost: Option<u64>,
    #[n(3)]
    pub cause: String,
}

/// The answer to the question who had an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Answer {
    /// More than one of an inner address only where the clock was set back.
    #[n(0)]
    pub found: Vec<Record>,
    /// A time without a record in which the question lies: the answer is uncertain.
    #[n(1)]
    pub gap: Option<Gap>,
    /// When recording began.
    #[n(2)]
    pub since_s: Option<u64>,
    /// The blocks of ports in force at that time, in their text form.
    #[n(3)]
    pub blocks: Option<String>,
    /// Whether others were in force moments before or after.
    #[n(4)]
    pub blocks_changed: bool,
    /// Whether a client's outer address was asked about, of which some of that time are not
    /// recorded.
    #[n(5)]
    pub outer_left_out: bool,
}

/// Range of an export.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Range {
    #[n(0)]
    pub from_s: u64,
    #[n(1)]
    pub to_s: u64,
    /// Only what is recorded of this user; gaps are everybody's.
    #[n(2)]
    pub user: Option<String>,
}

/// Where the next part of an export begins: a table, and a row of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Cursor {
    #[n(0)]
    table: u8,
    #[n(1)]
    after: i64,
}

impl Cursor {
    /// Before logins, refusals and deeds, and behind sessions and outer addresses.
    pub const ENTRIES: Self = Self { table: 2, after: 0 };
}

/// The form that programs get and send back.
impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.table, self.after)
    }
}

impl FromStr for Cursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (table, after) = text.split_once('.').ok_or(())?;
        Ok(Self { table: table.parse().map_err(drop)?, after: after.parse().map_err(drop)? })
    }
}

/// Rows of one part of an export, at most.
const PART: u32 = 500;
/// The event of outer addresses that were too many to be recorded.
pub(super) const OUTER_LEFT_OUT: &str = "outer-addresses-left-out";
/// The kind of a session's record.
const SESSION: &str = "session";

pub(super) const OF_IPV4: &str =
    "SELECT * FROM sessions WHERE ipv4 = ?1 AND start_s <= ?2 ORDER BY start_s DESC, seq DESC LIMIT ?3";
pub(super) const OF_IPV6: &str =
    "SELECT * FROM sessions WHERE ipv6 = ?1 AND start_s <= ?2 ORDER BY start_s DESC, seq DESC LIMIT ?3";

/// The newest sessions whose client was heard from ?1 by ?2.
pub(super) const HEARD_AT: &str =
    "SELECT s.*, m.lane, m.at_s AS heard_s, m.rowid AS place FROM moves m JOIN sessions s ON s.seq = m.session
    WHERE m.outer_address = ?1 AND m.at_s <= ?2 ORDER BY m.at_s DESC, m.rowid DESC LIMIT ?3";

type FromRow = fn(&Row<'_>) -> rusqlite::Result<Record>;

/// The tables of an export, each with its rows after ?1 that concern the time from ?2 to ?3 and the
/// user ?4.
const TABLES: [(&str, FromRow); 4] = [
    (
        "SELECT *, seq AS place FROM sessions WHERE seq > ?1 AND start_s <= ?3 AND (end_s IS NULL OR end_s >= ?2)
             AND (?4 IS NULL OR user = ?4) ORDER BY seq LIMIT ?5",
        session_from_row,
    ),
    (
        "SELECT s.*, m.at_s, m.outer_address AS moved_to, m.left_out, m.rowid AS place
         FROM moves m JOIN sessions s ON s.seq = m.session
         WHERE m.rowid > ?1 AND m.at_s BETWEEN ?2 AND ?3 AND (?4 IS NULL OR s.user = ?4) ORDER BY m.rowid LIMIT ?5",
        move_from_row,
    ),
    (
        "SELECT *, seq AS place FROM entries WHERE seq > ?1 AND at_s BETWEEN ?2 AND ?3 AND (?4 IS NULL OR user = ?4)
         ORDER BY seq LIMIT ?5",
        entry_from_row,
    ),
    (
        "SELECT *, rowid AS place FROM gaps WHERE rowid > ?1 AND from_s <= ?3 AND to_s >= ?2 AND (?4 IS NULL OR 1)
         ORDER BY rowid LIMIT ?5",
        gap_record_from_row,
    ),
];

impl AuditFile {
    /// The session that had an inner address at a time, or whose block has a port of a public
    /// address; all of its blocks without a port. If there is none, the one whose client was heard
    /// from that address and port. `now_s` is the present.
    pub fn who_had(
        &self,
        address: IpAddr,
        port: Option<u16>,
        at_s: u64,
        now_s: u64,
    ) -> Result<Answer, AuditError> {
        let set_back = "SELECT EXISTS (SELECT 1 FROM gaps WHERE cause = ?)";
        let set_back: bool = self.connection.query_row(set_back, [CLOCK_SET_BACK], |row| row.get(0))?;
        // Times are whole seconds: at the end of one session the next may have begun.
        let newest_s = if set_back { None } else { Some(at_s) };
        let then = self.blocks_at(at_s)?;
        let (mut found, mut outer_left_out) = (Vec::new(), false);
        match (address, then.as_ref().and_then(Option::as_ref)) {
            (IpAddr::V4(public), Some(blocks)) if blocks.addresses.contains(&public) => {
                for inner in behind(blocks, public, port) {
                    found.extend(self.sessions_at(inner.into(), at_s, newest_s)?);
                }
            }
            _ => {
                found = self.sessions_at(address, at_s, newest_s)?;
                if let Some(port) = port.filter(|_| found.is_empty()) {
                    found = self.sessions_heard_at(SocketAddr::new(address, port), at_s, newest_s)?;
                    outer_left_out = self.are_outer_left_out(at_s)?;
                }
            }
        }
        if let Some(Some(blocks)) = &then {
            found
                .iter_mut()
                .for_each(|record| record.public = record.ipv4.and_then(|v4| blocks.block_of(v4)));
        }
        let around = [at_s.saturating_sub(CLOCK_ERROR_S), at_s.saturating_add(CLOCK_ERROR_S)];
        let mut blocks_changed = false;
        for moment in around {
            let others = self.blocks_at(moment)?;
            blocks_changed |= others.is_some() && then.is_some() && others != then;
        }
        let since_s = self.connection.query_row("SELECT min(started_s) FROM runs", (), |row| row.get(0))?;
        let blocks = then.flatten().map(String::from);
        let gap = self.gap_at(at_s, now_s)?;
        Ok(Answer { found, gap, since_s, blocks, blocks_changed, outer_left_out })
    }

    /// The sessions of which a lane was heard from an outer address last, and from no other one
    /// before that time. With `newest_s` they are looked at to the first that was heard before
    /// that.
    fn sessions_heard_at(
        &self,
        outer: SocketAddr,
        at_s: u64,
        newest_s: Option<u64>,
    ) -> Result<Vec<Record>, AuditError> {
        let outer = outer.to_string();
        let mut statement = self.connection.prepare_cached(HEARD_AT)?;
        let mut rows = statement.query(params![outer, at_s, LOOKED_AT])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let session = Record { outer: Some(outer.clone()), ..session_from_row(row)? };
            let lane: [i64; 3] = [row.get("seq")?, row.get("lane")?, row.get("place")?];
            let sql = "SELECT EXISTS (SELECT 1 FROM moves
                       WHERE session = ?1 AND lane = ?2 AND rowid > ?3 AND at_s < ?4 AND outer_address <> ?5)";
            let [seq, lane, place] = lane;
            let mut later = self.connection.prepare_cached(sql)?;
            let has_left: bool = later.query_row(params![seq, lane, place, at_s, outer], |row| row.get(0))?;
            let heard_s: u64 = row.get("heard_s")?;
            if !has_left && session.until_s.is_none_or(|until_s| at_s <= until_s) {
                found.push(session);
            }
            if newest_s.is_some_and(|newest_s| heard_s < newest_s) {
                break;
            }
        }
        Ok(found)
    }

    /// Whether outer addresses of a time are not recorded, because there were too many.
    fn are_outer_left_out(&self, at_s: u64) -> rusqlite::Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM moves WHERE at_s BETWEEN ?1 AND ?2 AND left_out > 0)
                       OR EXISTS (SELECT 1 FROM entries WHERE at_s BETWEEN ?1 AND ?2 AND event = ?3)";
        let until_s = at_s.saturating_add(CLOCK_ERROR_S);
        self.connection
            .prepare_cached(sql)?
            .query_row(params![at_s, until_s, OUTER_LEFT_OUT], |row| row.get(0))
    }

    /// The sessions that had an inner address at a time. With `newest_s` they are looked at to the
    /// first that began before that.
    fn sessions_at(
        &self,
        address: IpAddr,
        at_s: u64,
        newest_s: Option<u64>,
    ) -> Result<Vec<Record>, AuditError> {
        let (sql, key) = match address {
            IpAddr::V4(v4) => (OF_IPV4, v4.octets().to_vec()),
            IpAddr::V6(v6) => (OF_IPV6, v6.octets().to_vec()),
        };
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map(params![key, at_s, LOOKED_AT], |row| {
            Ok((row.get::<_, i64>("seq")?, session_from_row(row)?))
        })?;
        let mut found = Vec::new();
        for row in rows {
            let (seq, mut session) = row?;
            let began_s = session.at_s;
            if session.until_s.is_none_or(|until_s| at_s <= until_s) {
                session.outer = self.outer_at(seq, at_s)?.or(session.outer);
                found.push(session);
            }
            if newest_s.is_some_and(|newest_s| began_s < newest_s) {
                break;
            }
        }
        Ok(found)
    }

    /// The blocks of ports in force at a time: those of the run that had begun last, for they stay
    /// when it ends. `None` before all runs.
    fn blocks_at(&self, at_s: u64) -> Result<Option<Option<PortBlocks>>, AuditError> {
        let sql =
            "SELECT port_blocks FROM runs WHERE started_s <= ? ORDER BY started_s DESC, id DESC LIMIT 1";
        let text = self.connection.prepare_cached(sql)?.query_row([at_s], |row| row.get(0)).optional()?;
        text.map(|text: Option<String>| text.map(parse).transpose()).transpose()
    }

    /// The blocks of ports, each from when it came into force.
    fn blocks_in_force(&self) -> Result<Vec<BlocksFrom>, AuditError> {
        let sql = "SELECT started_s, port_blocks FROM runs ORDER BY started_s, id";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut runs: Vec<(u64, Option<String>)> = rows.collect::<Result<_, _>>()?;
        runs.dedup_by(|next, before| next.1 == before.1);
        runs.into_iter().map(|(from_s, text)| Ok((from_s, text.map(parse).transpose()?))).collect()
    }

    /// The outer address of a session at a time, if it had another than at its login.
    fn outer_at(&self, seq: i64, at_s: u64) -> rusqlite::Result<Option<String>> {
        // The first comes with the port, moments after the login.
        let sql = "SELECT outer_address FROM moves WHERE session = ?1
                   ORDER BY (at_s <= ?2) DESC, CASE WHEN at_s <= ?2 THEN -at_s ELSE at_s END LIMIT 1";
        self.connection.prepare_cached(sql)?.query_row(params![seq, at_s], |row| row.get(0)).optional()
    }

    /// The time without a record in which this one lies.
    fn gap_at(&self, at_s: u64, now_s: u64) -> rusqlite::Result<Option<Gap>> {
        // A run without an end was killed: whatever came after its last sign of life is missing, up
        // to the next run. The last one may go on, and notes that at intervals.
        let sql = "SELECT from_s, to_s, lost, cause FROM (
                       SELECT from_s, to_s, lost, cause FROM gaps
                       UNION ALL
                       SELECT r.alive_s, coalesce(n.started_s, ?2), NULL, 'the gateway was killed, or could not write'
                       FROM runs r LEFT JOIN runs n ON n.id = (SELECT min(id) FROM runs WHERE id > r.id)
                       WHERE r.ended_s IS NULL AND (n.id IS NOT NULL OR r.alive_s + ?3 < ?2))
                   WHERE from_s <= ?1 AND to_s >= ?1 LIMIT 1";
        let gap = |row: &Row<'_>| {
            Ok(Gap { from_s: row.get(0)?, to_s: row.get(1)?, lost: row.get(2)?, cause: row.get(3)? })
        };
        self.connection.prepare_cached(sql)?.query_row(params![at_s, now_s, STALE_S], gap).optional()
    }

    /// The records of an export after `cursor`, and where it goes on; `None` at its end.
    pub fn export(&self, range: &Range, cursor: Cursor) -> Result<(Vec<Record>, Option<Cursor>), AuditError> {
        self.export_rows(range, cursor, PART)
    }

    /// Reads a part of at most `rows` rows.
    pub fn export_rows(
        &self,
        range: &Range,
        cursor: Cursor,
        rows: u32,
    ) -> Result<(Vec<Record>, Option<Cursor>), AuditError> {
        let part = rows.clamp(1, PART);
        let Some((sql, read)) = TABLES.get(usize::from(cursor.table)) else { return Ok((Vec::new(), None)) };
        let mut statement = self.connection.prepare_cached(sql)?;
        let parameters: [&dyn ToSql; 5] = [&cursor.after, &range.from_s, &range.to_s, &range.user, &part];
        let rows = statement.query_map(parameters, |row| Ok((row.get::<_, i64>("place")?, read(row)?)))?;
        let rows: Vec<(i64, Record)> = rows.collect::<Result<_, _>>()?;
        let next = match rows.last() {
            Some((place, _)) if rows.len() == part as usize => Cursor { after: *place, ..cursor },
            _ => Cursor { table: cursor.table + 1, after: 0 },
        };
        let goes_on = usize::from(next.table) < TABLES.len();
        let in_force = self.blocks_in_force()?;
        let records = rows.into_iter().flat_map(|(_, record)| with_ports(record, &in_force, range));
        Ok((records.collect(), goes_on.then_some(next)))
    }
}

/// The blocks of ports from a time on.
type BlocksFrom = (u64, Option<PortBlocks>);

fn parse(text: String) -> Result<PortBlocks, AuditError> {
    text.parse().map_err(|()| AuditError::Damaged(format!("these are no blocks of ports: {text}")))
}

/// A record with the ports of its time; behind a session, a record for each time within `range` at
/// which it got others.
fn with_ports(record: Record, in_force: &[BlocksFrom], range: &Range) -> Vec<Record> {
    let Some(ipv4) = record.ipv4 else { return vec![record] };
    let block = |(_, blocks): &BlocksFrom| blocks.as_ref()?.block_of(ipv4);
    let (before, after) = in_force.split_at(in_force.partition_point(|(from_s, _)| *from_s <= record.at_s));
    let first = Record { public: before.last().and_then(block), ..record };
    let mut records = vec![first.clone()];
    if first.kind == SESSION {
        let mut public = first.public;
        for blocks in
            after.iter().take_while(|(from_s, _)| first.until_s.is_none_or(|until_s| *from_s <= until_s))
        {
            let others = block(blocks);
            let is_asked_for = (range.from_s..=range.to_s).contains(&blocks.0);
            if std::mem::replace(&mut public, others) != others && is_asked_for {
                let (kind, at_s) = ("public-ports".to_owned(), blocks.0);
                records.push(Record { kind, at_s, until_s: None, detail: None, public, ..first.clone() });
            }
        }
    }
    records
}

/// The inner addresses with blocks of a public address: that of this port, or all.
fn behind(blocks: &PortBlocks, public: Ipv4Addr, port: Option<u16>) -> Vec<Ipv4Addr> {
    match port {
        Some(port) => blocks.inner_of(public, port).into_iter().collect(),
        None => {
            let range = blocks.clients_of(public).map(|(first, last)| u32::from(first)..=u32::from(last));
            range.into_iter().flatten().map(Ipv4Addr::from).collect()
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn session_from_row(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record {
        kind: SESSION.to_owned(),
        at_s: row.get("start_s")?,
        until_s: row.get("end_s")?,
        user: row.get("user")?,
        source: row.get("source")?,
        profile: row.get("profile")?,
        device: row.get::<_, Option<[u8; 16]>>("device")?.map(|device| hex(&device)),
        ipv4: row.get::<_, Option<[u8; 4]>>("ipv4")?.map(Ipv4Addr::from),
        ipv6: row.get::<_, Option<[u8; 16]>>("ipv6")?.map(Ipv6Addr::from),
        outer: row.get("outer_address")?,
        session: Some(hex(&row.get::<_, [u8; 16]>("session")?)),
        detail: row.get("reason")?,
        by: None,
        public: None,
    })
}

fn move_from_row(row: &Row<'_>) -> rusqlite::Result<Record> {
    let (session, left_out): (_, u32) = (session_from_row(row)?, row.get("left_out")?);
    Ok(Record {
        kind: "outer-address".to_owned(),
        at_s: row.get("at_s")?,
        outer: row.get("moved_to")?,
        until_s: None,
        detail: (left_out > 0).then(|| format!("{left_out} addresses before this one are not recorded")),
        ..session
    })
}

fn entry_from_row(row: &Row<'_>) -> rusqlite::Result<Record> {
    let given = |text: String| (!text.is_empty()).then_some(text);
    Ok(Record {
        kind: row.get("event")?,
        at_s: row.get("at_s")?,
        user: row.get("user")?,
        outer: row.get("outer_address")?,
        detail: given(row.get("detail")?),
        by: given(row.get("by")?),
        ..Record::default()
    })
}

fn gap_record_from_row(row: &Row<'_>) -> rusqlite::Result<Record> {
    let (cause, lost): (String, Option<u64>) = (row.get("cause")?, row.get("lost")?);
    let detail = lost.map_or_else(|| cause.clone(), |lost| format!("{cause}; {lost} events are missing"));
    Ok(Record {
        kind: "gap".to_owned(),
        at_s: row.get("from_s")?,
        until_s: row.get("to_s")?,
        detail: Some(detail),
        ..Record::default()
    })
}
