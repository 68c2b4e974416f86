//! Which traffic is wanted: who sends to whom, in which packets, and how fast.

use serde::{Deserialize, Serialize};

/// The direction of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Each session to its partner.
    Pairs,
    /// Each session to the campus.
    Up,
    /// The campus to each session.
    Down,
    /// Both of these.
    Both,
}

impl Direction {
    /// Whether the campus has a part in it.
    pub fn needs_campus(self) -> bool {
        self != Self::Pairs
    }

    /// The number of flows between these sessions.
    fn flows(self, sessions: usize) -> usize {
        if self == Self::Both { 2 * sessions } else { sessions }
    }

    /// The ends of each flow between these sessions.
    pub(crate) fn ends(self, sessions: usize) -> Vec<[End; 2]> {
        let up = (0..sessions).map(|session| [End::Session(session), End::Campus]);
        let down = (0..sessions).map(|session| [End::Campus, End::Session(session)]);
        match self {
            Self::Pairs => (0..sessions).map(|session| [session, session ^ 1].map(End::Session)).collect(),
            Self::Up => up.collect(),
            Self::Down => down.collect(),
            Self::Both => up.chain(down).collect(),
        }
    }

    /// The flow that arrives at a session, if there is one.
    pub(crate) fn arriving_at(self, session: usize, sessions: usize) -> Option<usize> {
        let flow = match self {
            Self::Pairs => session ^ 1,
            Self::Up => return None,
            Self::Down => session,
            Self::Both => sessions + session,
        };
        (session < sessions).then_some(flow)
    }
}

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Session(usize),
    Campus,
}

/// The traffic of a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The number of sessions that have a part in it, the first ones; even if they work in pairs.
    pub sessions: u32,
    pub direction: Direction,
    /// Bytes of each inner packet; as long as the tunnel takes if absent.
    pub packet: Option<u16>,
    /// Packets that a session sends one behind the other: those of one segmented send.
    pub burst: u16,
    /// Bytes on their way over all sessions at most. Sessions that would send more wait for their
    /// turn.
    pub in_flight: u64,
    /// Merged runs of a flow for each one that is authenticated and opened.
    pub sample: u32,
    /// Bits of inner packets that each flow sends in a second, whatever becomes of them; as fast as
    /// it can if absent.
    pub rate: Option<u64>,
    /// Bursts of a flow that are of small packets, out of a hundred.
    pub small: u32,
    /// The first session may have as much on its way as this number of others: it stands for one
    /// with as many connections.
    pub greedy: u32,
    /// Sessions after those that have calls with each other, or with the campus.
    pub calls: u32,
    /// Merged runs from its partner that a session answers by an acknowledgement, out of a hundred.
    /// Traffic with the campus is UDP and has none.
    pub acknowledge: u32,
    /// Milliseconds for which an acknowledgement waits at most until others go with it.
    pub ack_delay_ms: u32,
}

impl Plan {
    /// Sessions with a part in it.
    #[must_use]
    pub fn all_sessions(&self) -> usize {
        (self.sessions + self.calls) as usize
    }

    /// The ends of all flows: those of bulk traffic, then those of calls, then the acknowledgements
    /// of each of the first.
    pub(crate) fn ends(&self) -> Vec<[End; 2]> {
        let bulk = self.direction.ends(self.sessions as usize);
        let behind = |end: End| match end {
            End::Session(number) => End::Session(number + self.sessions as usize),
            End::Campus => End::Campus,
        };
        let calls = self.direction.ends(self.calls as usize).into_iter().map(|ends| ends.map(behind));
        let back = bulk.iter().filter(|_| self.has_acknowledgements()).map(|[from, to]| [*to, *from]);
        bulk.iter().copied().chain(calls).chain(back).collect()
    }

    /// Whether what arrives is acknowledged.
    pub(crate) fn has_acknowledgements(&self) -> bool {
        self.direction == Direction::Pairs && self.acknowledge > 0
    }

    /// The flow of the acknowledgements of a bulk flow, if it has any.
    pub(crate) fn acknowledgements_of(&self, flow: usize) -> Option<usize> {
        (self.has_acknowledgements() && flow < self.bulk_flows()).then(|| self.flows() + flow)
    }

    /// The flow of bulk traffic, or that of a call, which arrives at a session, if there is one.
    pub(crate) fn arriving_at(&self, session: usize) -> Option<usize> {
        let sessions = self.sessions as usize;
        match session.checked_sub(sessions) {
            None => self.direction.arriving_at(session, sessions),
            Some(call) => {
                let flow = self.direction.arriving_at(call, self.calls as usize)?;
                Some(self.direction.flows(sessions) + flow)
            }
        }
    }

    /// Flows of bulk traffic; those of calls come behind them.
    pub(crate) fn bulk_flows(&self) -> usize {
        self.direction.flows(self.sessions as usize)
    }

    /// Flows of bulk traffic and of calls; acknowledgements come behind them.
    pub(crate) fn flows(&self) -> usize {
        self.bulk_flows() + self.direction.flows(self.calls as usize)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Bursts of ten between these sessions, one at a time.
    pub(in super::super) fn plan(sessions: u32) -> Plan {
        Plan {
            sessions,
            direction: Direction::Pairs,
            packet: None,
            burst: 10,
            in_flight: 34_000,
            sample: 1,
            rate: None,
            small: 0,
            greedy: 1,
            calls: 0,
            acknowledge: 0,
            ack_delay_ms: 0,
        }
    }

    #[test]
    fn every_flow_ends_where_it_is_expected() {
        for direction in [Direction::Pairs, Direction::Up, Direction::Down, Direction::Both] {
            let plan = Plan { direction, calls: 2, acknowledge: 100, ..plan(4) };
            let ends = plan.ends();
            for (flow, [from, to]) in ends[..plan.flows()].iter().enumerate() {
                match to {
                    End::Session(session) => assert_eq!(plan.arriving_at(*session), Some(flow)),
                    End::Campus => assert!(direction.needs_campus()),
                }
                let is_call =
                    [from, to].iter().any(|end| matches!(end, End::Session(number) if *number >= 4));
                assert_eq!(is_call, flow >= plan.bulk_flows());
            }
            assert_eq!(plan.arriving_at(6), None);
        }
        assert_eq!(Plan { direction: Direction::Up, ..plan(4) }.arriving_at(0), None);
    }

    #[test]
    fn acknowledgements_return_to_the_sender_of_bulk_traffic() {
        let plan = Plan { calls: 2, acknowledge: 50, ..plan(4) };
        let ends = plan.ends();
        for flow in 0..plan.bulk_flows() {
            let [from, to] = ends[flow];
            assert_eq!(ends[plan.acknowledgements_of(flow).unwrap()], [to, from]);
        }
        assert_eq!(plan.acknowledgements_of(4), None, "a call's packets are not acknowledged");
        for without in [Plan { acknowledge: 0, ..plan }, Plan { direction: Direction::Both, ..plan }] {
            assert_eq!((without.ends().len(), without.acknowledgements_of(0)), (without.flows(), None));
        }
    }
}
