//! The outer addresses at which clients are heard, on their way to the audit file.
//!
//! INVARIANT: an address of a lane that the audit file does not have is written at once, [`BURST`]
//! of a session and after that one for each [`INTERVAL`], whatever its client does. Where lanes are
//! is written as soon as there is room, with the number of addresses that were left out. This
//! module must not know whose sessions they are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::SessionId;
use vpnd_proto::time::Time;
use vpnd_proto::wire::MAX_CLIENT_LANES;

use vpnd_ipc::gateway::auth::{Write, id};
use vpnd_sys::allowance::Allowance;

/// Addresses of a session at once: those of all lanes of a client that moves right after its login.
const BURST: u32 = 2 * MAX_CLIENT_LANES as u32;
/// Interval of one more.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct OuterAddresses {
    sessions: HashMap<SessionId, Lanes>,
    /// Those of which something is to be written.
    behind: BTreeSet<SessionId>,
}

/// Where the lanes of a session's client are.
struct Lanes {
    allowance: Allowance,
    /// The addresses that the audit file has.
    written: BTreeMap<u8, Endpoint>,
    /// Lanes that are elsewhere since.
    late: BTreeMap<u8, Endpoint>,
    /// Addresses that were left before they were written.
    left_out: u32,
}

impl OuterAddresses {
    /// A lane is heard from this address.
    pub(super) fn heard(
        &mut self,
        now: Time,
        session: SessionId,
        lane: u8,
        outer: Endpoint,
    ) -> Option<Write> {
        let lanes = self.sessions.entry(session).or_default();
        lanes.heard(lane, outer);
        let write = lanes.next(now, session);
        if lanes.is_behind() {
            self.behind.insert(session);
        }
        write
    }

    /// The writes for which there is room now; called about once a second.
    pub(super) fn late(&mut self, now: Time) -> Vec<Write> {
        let mut writes = Vec::new();
        self.behind.retain(|session| {
            let Some(lanes) = self.sessions.get_mut(session) else { return false };
            writes.extend(std::iter::from_fn(|| lanes.next(now, *session)));
            lanes.is_behind()
        });
        writes
    }

    /// The session is over: what is still to be written of it.
    pub(super) fn forget(&mut self, session: SessionId) -> Vec<Write> {
        self.behind.remove(&session);
        let Some(mut lanes) = self.sessions.remove(&session) else { return Vec::new() };
        std::iter::from_fn(|| lanes.take(session)).collect()
    }

    /// Other processes go on with all sessions.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            allowance: Allowance::new(BURST, INTERVAL),
            written: BTreeMap::new(),
            late: BTreeMap::new(),
            left_out: 0,
        }
    }
}

impl Lanes {
    fn heard(&mut self, lane: u8, outer: Endpoint) {
        let before = self.late.remove(&lane);
        if self.written.get(&lane) != Some(&outer) {
            self.late.insert(lane, outer);
        }
        let was_left = before.is_some_and(|before| before != outer);
        self.left_out = self.left_out.saturating_add(was_left.into());
    }

    fn is_behind(&self) -> bool {
        !self.late.is_empty() || self.left_out > 0
    }

    fn next(&mut self, now: Time, session: SessionId) -> Option<Write> {
        if self.is_behind() && self.allowance.take(now) { self.take(session) } else { None }
    }

    /// The next lane that is elsewhere. The number of addresses that were left out goes with any.
    fn take(&mut self, session: SessionId) -> Option<Write> {
        let known = || self.written.first_key_value().filter(|_| self.left_out > 0);
        let (lane, outer) =
            self.late.first_key_value().or_else(known).map(|(lane, outer)| (*lane, *outer))?;
        self.late.remove(&lane);
        self.written.insert(lane, outer);
        Some(Write::Moved { session: id(session), outer, lane, left_out: std::mem::take(&mut self.left_out) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId([1; 16]);

    fn at(port: u16) -> Endpoint {
        Endpoint { remote: ([192, 0, 2, 1], port).into(), local: None }
    }

    /// Lane, port and number of those left out, of each.
    fn shown(writes: impl IntoIterator<Item = Write>) -> Vec<(u8, u16, u32)> {
        let shown = writes.into_iter().map(|write| match write {
            Write::Moved { outer, lane, left_out, .. } => (lane, outer.remote.port(), left_out),
            other => panic!("{other:?}"),
        });
        shown.collect()
    }

    #[test]
    fn each_address_of_a_lane_is_written_at_once_and_once() {
        let (mut outer, now) = (OuterAddresses::default(), Time::ZERO);
        let mut heard = |lane, port| shown(outer.heard(now, SESSION, lane, at(port)));
        assert_eq!((heard(0, 1), heard(0, 1)), (vec![(0, 1, 0)], vec![]));
        assert_eq!((heard(1, 2), heard(0, 3), heard(1, 2)), (vec![(1, 2, 0)], vec![(0, 3, 0)], vec![]));
        assert_eq!(heard(0, 1), [(0, 1, 0)], "back again");
        assert_eq!((shown(outer.late(now)), shown(outer.forget(SESSION))), (vec![], vec![]));
    }

    #[test]
    fn outer_address_changes_are_recorded_at_a_limited_rate() {
        let mut outer = OuterAddresses::default();
        let (mut written, mut left_out, mut last) = (0, 0, None);
        // 50 a second on each of 16 lanes for 20 s, as many as shards report.
        let moves = 20 * 50 * 16_u32;
        for n in 0..moves {
            let now = Time::ZERO + Duration::from_millis(u64::from(n) * 20_000 / u64::from(moves));
            let mut writes: Vec<Write> =
                outer.heard(now, SESSION, (n % 16) as u8, at(n as u16)).into_iter().collect();
            if n % 800 == 0 {
                writes.extend(outer.late(now));
            }
            for (_, _, more) in shown(writes) {
                (written, left_out) = (written + 1, left_out + more);
            }
        }
        assert!((40..=BURST + 20).contains(&written), "{written}");
        // At the end each lane is where it was heard last, and each address was written or counted.
        for (lane, port, more) in shown(outer.forget(SESSION)) {
            assert_eq!(u32::from(port), moves - 16 + u32::from(lane));
            (written, left_out, last) = (written + 1, left_out + more, Some(lane));
        }
        assert_eq!((written + left_out, last), (moves, Some(15)));
    }

    #[test]
    fn a_client_that_is_back_where_it_was_has_what_it_left_counted() {
        let (mut outer, mut now) = (OuterAddresses::default(), Time::ZERO);
        let ports = (1..=BURST as u16).chain([900, BURST as u16]);
        let writes: Vec<Write> = ports.filter_map(|port| outer.heard(now, SESSION, 0, at(port))).collect();
        assert_eq!(writes.len(), BURST as usize);
        assert_eq!(shown(outer.late(now)), []);
        now = now + INTERVAL;
        assert_eq!(shown(outer.late(now)), [(0, BURST as u16, 1)]);
        assert_eq!(shown(outer.late(now + INTERVAL)), []);
    }
}
