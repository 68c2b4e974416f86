//! Bulk traffic over many sessions of one process, with as few cycles as it can be made with (`trafficspeed capacity`).
//!
//! Sessions work in pairs, each sending to its partner through the gateway, or with the campus: a socket in the gateway's
//! namespace, which this process has, too. The inner packets are made up beforehand, sealed
//! side by side, and go out as one segmented send (UDP GSO); they are received merged (UDP GRO), and of each merged run only
//! the first datagram is copied. Of these, one in [`Plan::sample`] is authenticated and opened. Its number says how many
//! packets of the flow came before it, so losses are counted exactly although most packets are never looked at.

mod flow;
mod packet;
pub(crate) mod socket;

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use vpnd_proto::time::Time;

use crate::tally::Percentiles;
pub(crate) use flow::Flow;
pub use packet::LEAST_PACKET;
pub(crate) use packet::{PORT, Transport};
pub(crate) use packet::{Stamp, Template};

/// The longest delay that is told apart, in microseconds.
const MOST_DELAY_US: u64 = 60_000_000;
/// The most packets of one segmented send: every kernel with UDP GSO takes as many.
pub const MOST_BURST: u16 = 64;
/// The most bytes of one segmented send, as vpnd's own clients send them: with its headers the kernel must not have to cut it.
pub(crate) const MOST_BURST_BYTES: usize = 65_535 - 8 - 40 - 18;

/// Full packets are so many bytes shorter than the tunnel would take: then no probe of the path is as long as they are and merged
/// into a run of them, where nobody would see it.
pub(crate) const PROBE_MARGIN: u16 = 8;

/// Who sends to whom.
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

    /// The ends of each flow between so many sessions.
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
    /// The first so many sessions have a part in it; an even number if they work in pairs.
    pub sessions: u32,
    pub direction: Direction,
    /// Bytes of each inner packet; as long as the tunnel takes if absent.
    pub packet: Option<u16>,
    /// Packets that a session sends one behind the other: those of one segmented send.
    pub burst: u16,
    /// Bytes on their way over all sessions at most. Sessions that would send more wait for their turn.
    pub in_flight: u64,
    /// Of so many merged runs of a flow, one is authenticated and opened.
    pub sample: u32,
}

/// The counts of a process's traffic over some time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// The time that they are of, in nanoseconds.
    pub took_ns: u64,
    /// Bytes of an inner packet, and those of them that are payload.
    pub packet: u16,
    pub payload: u16,
    /// Packets that were handed to the kernel.
    pub sent: u64,
    /// Packets that the kernel did not take.
    pub refused: u64,
    /// Packets of each session that arrived: those to its partner, or to and from the campus.
    pub arrived: Vec<u64>,
    /// Packets that were lost between.
    pub lost: u64,
    /// Opened packets that came behind a later one.
    pub reordered: u64,
    /// Merged runs that were received.
    pub runs: u64,
    /// Packets that were authenticated and opened.
    pub opened: u64,
    /// Packets that should have been opened, and were not authentic or not of the flow.
    pub strange: u64,
    /// From sealing to receiving, of the opened packets, in milliseconds.
    pub delay_ms: Percentiles,
}

impl Counts {
    /// Packets that arrived, of all flows.
    pub fn all_arrived(&self) -> u64 {
        self.arrived.iter().sum()
    }

    /// Lost packets in percent of those of which it is known.
    pub fn lost_percent(&self) -> f64 {
        let known = self.lost + self.all_arrived();
        100.0 * self.lost as f64 / known.max(1) as f64
    }

    /// Payload bits per second of the flow of each session.
    pub fn goodputs(&self) -> Vec<f64> {
        let bits = f64::from(self.payload) * 8.0;
        let rate = |packets: &u64| *packets as f64 * bits * 1e9 / self.took_ns.max(1) as f64;
        self.arrived.iter().map(rate).collect()
    }
}

/// The traffic under way.
pub(crate) struct Load {
    pub(crate) plan: Plan,
    pub(crate) flows: Vec<Flow>,
    /// The ends of each flow, the sending one first.
    pub(crate) ends: Vec<[End; 2]>,
    /// The packets of each flow.
    pub(crate) templates: Vec<Template>,
    /// Sessions that wait for their turn to send, in order.
    turns: VecDeque<usize>,
    /// Packets that may be on their way over all sessions.
    limit: u64,
    in_flight: u64,
    /// Packets of one burst.
    pub(crate) burst: u64,
    /// Bytes of the datagrams that they become.
    pub(crate) datagram_len: usize,
    /// Which flow comes to the campus from which address.
    pub(crate) senders: HashMap<Ipv4Addr, usize>,
    since: Time,
    before: Vec<Flow>,
    sent: u64,
    pub(crate) refused: u64,
    pub(crate) opened: u64,
    pub(crate) strange: u64,
    delays_us: Histogram<u64>,
    /// Where bursts are sealed.
    pub(crate) buffer: Vec<u8>,
}

impl Load {
    /// `templates` has one for each flow of the plan, all of one length.
    pub(crate) fn new(plan: Plan, templates: Vec<Template>, datagram_len: usize, now: Time) -> Self {
        let packet = templates.first().map_or(LEAST_PACKET, Template::len);
        let fits = MOST_BURST_BYTES / datagram_len.max(packet);
        let burst = u64::from(plan.burst.clamp(1, MOST_BURST)).min(fits.max(1) as u64);
        let flows = vec![Flow::default(); templates.len()];
        let ends = plan.direction.ends(plan.sessions as usize);
        let to_campus =
            ends.iter().zip(&templates).enumerate().filter(|(_, (ends, _))| ends[1] == End::Campus);
        let senders = to_campus.map(|(flow, (_, template))| (template.from(), flow)).collect();
        let delays_us = Histogram::new_with_bounds(1, MOST_DELAY_US, 3).expect("the bounds are constants");
        let mut load = Self {
            turns: VecDeque::new(),
            // A single burst may always go.
            limit: (plan.in_flight / packet as u64).max(burst),
            in_flight: 0,
            burst,
            datagram_len,
            senders,
            since: now,
            before: flows.clone(),
            flows,
            ends,
            templates,
            plan,
            sent: 0,
            refused: 0,
            opened: 0,
            strange: 0,
            delays_us,
            buffer: vec![0; MOST_BURST_BYTES],
        };
        // One after the other, then each once more.
        for _ in 0..2 {
            (0..load.flows.len()).for_each(|flow| load.give_turn(flow));
        }
        load
    }

    /// The next session whose turn it is to send a burst, while more may be on its way.
    pub(crate) fn next_turn(&mut self) -> Option<usize> {
        if self.in_flight + self.burst > self.limit {
            return None;
        }
        let flow = self.turns.pop_front()?;
        self.flows[flow].turn_taken();
        Some(flow)
    }

    fn give_turn(&mut self, flow: usize) {
        if self.flows[flow].wants_turn(self.burst) {
            self.turns.push_back(flow);
        }
    }

    /// So many packets of a flow were sent in its turn.
    pub(crate) fn sent(&mut self, flow: usize, packets: u64, now: Time) {
        self.in_flight += packets;
        self.sent += packets;
        self.flows[flow].sent(packets, now);
    }

    /// Whether the run of a flow that arrives now is to be looked into.
    pub(crate) fn is_sample(&self, flow: usize) -> bool {
        // Not the same ones of all flows: of thousands each has few, and some must be among them at any time.
        (self.flows[flow].runs() + flow as u64).is_multiple_of(u64::from(self.plan.sample.max(1)))
    }

    /// A run of packets of a flow has arrived; `first` is the number of its first one, if that was opened.
    pub(crate) fn arrived(&mut self, flow: usize, packets: u64, first: Option<u64>, now: Time) {
        self.change(flow, |account| account.arrived(packets, first, now));
    }

    fn change(&mut self, flow: usize, change: impl FnOnce(&mut Flow)) {
        let account = &mut self.flows[flow];
        let before = account.in_flight();
        change(account);
        self.in_flight = (self.in_flight + account.in_flight()).saturating_sub(before);
        self.give_turn(flow);
    }

    /// Notes the delay of an opened packet.
    pub(crate) fn delayed(&mut self, ns: u64) {
        self.delays_us.saturating_record((ns / 1_000).max(1));
    }

    /// Gives up packets of flows in which nothing arrives any more, and gives a turn to those whose last one came to nothing
    /// because there were no keys or the kernel had no room.
    pub(crate) fn revive(&mut self, now: Time) {
        for flow in 0..self.flows.len() {
            self.change(flow, |account| account.expire(now));
        }
    }

    /// The counts since the last call.
    pub(crate) fn take_counts(&mut self, now: Time) -> Counts {
        let since = |count: fn(&Flow) -> u64| -> Vec<u64> {
            let pairs = self.flows.iter().zip(&self.before);
            pairs.map(|(flow, before)| count(flow).saturating_sub(count(before))).collect()
        };
        let sessions = (self.plan.sessions as usize).max(1);
        let mut arrived = vec![0; sessions];
        since(Flow::all_arrived)
            .iter()
            .enumerate()
            .for_each(|(flow, packets)| arrived[flow % sessions] += packets);
        let ms = |share| self.delays_us.value_at_quantile(share) as f64 / 1e3;
        let delay_ms = Percentiles { p50: ms(0.5), p90: ms(0.9), p99: ms(0.99), max: ms(1.0) };
        let counts = Counts {
            took_ns: now.since(self.since).as_nanos() as u64,
            packet: self.templates.first().map_or(0, Template::len) as u16,
            payload: self.templates.first().map_or(0, Template::payload) as u16,
            sent: std::mem::take(&mut self.sent),
            refused: std::mem::take(&mut self.refused),
            arrived,
            lost: since(Flow::lost).iter().sum(),
            reordered: since(Flow::reordered).iter().sum(),
            runs: since(Flow::runs).iter().sum(),
            opened: std::mem::take(&mut self.opened),
            strange: std::mem::take(&mut self.strange),
            delay_ms: if self.delays_us.is_empty() { Percentiles::default() } else { delay_ms },
        };
        self.since = now;
        self.before.clone_from(&self.flows);
        self.delays_us.reset();
        counts
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PLAN: Plan = Plan {
        sessions: 4,
        direction: Direction::Pairs,
        packet: None,
        burst: 10,
        in_flight: 34_000,
        sample: 1,
    };

    fn load() -> Load {
        let template = Template::new(Transport::Tcp, [10, 86, 0, 2].into(), [10, 86, 0, 3].into(), 1_000);
        Load::new(PLAN, vec![template; 4], 1_032, Time::from_nanos(0))
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(0) + Duration::from_millis(ms)
    }

    #[test]
    fn what_is_on_its_way_stays_within_the_limit_and_sessions_take_turns() {
        let mut load = load();
        let mut sent = Vec::new();
        while let Some(flow) = load.next_turn() {
            load.sent(flow, load.burst, at(0));
            sent.push(flow);
        }
        assert_eq!(sent, [0, 1, 2], "34 packets of 1,000 bytes are three bursts of ten");
        load.arrived(1, 5, Some(0), at(1));
        assert_eq!(load.next_turn(), None, "half a burst makes no room for one");
        load.arrived(1, 5, Some(5), at(1));
        assert_eq!(load.next_turn(), Some(3), "who waited longest");
    }

    #[test]
    fn losses_are_found_by_the_number_of_a_later_packet_and_the_flow_goes_on() {
        let mut load = load();
        for _ in 0..3 {
            let flow = load.next_turn().unwrap();
            load.sent(flow, load.burst, at(0));
        }
        // Of the burst of session 0 the first seven are lost.
        load.arrived(0, 3, Some(7), at(1));
        let counts = load.take_counts(at(10));
        assert_eq!((counts.lost, counts.all_arrived(), counts.reordered), (7, 3, 0));
        assert!((counts.lost_percent() - 70.0).abs() < 1e-9);
        assert_eq!(load.next_turn(), Some(3));
        assert_eq!(load.take_counts(at(20)).lost, 0, "each loss counts once");
    }

    #[test]
    fn a_flow_whose_packets_are_all_lost_sends_again_after_a_while() {
        let mut load = load();
        while let Some(flow) = load.next_turn() {
            load.sent(flow, load.burst, at(0));
        }
        load.revive(at(100));
        assert_eq!(load.next_turn(), None, "they may still come");
        load.revive(at(2_000));
        assert!(load.next_turn().is_some());
        assert_eq!(load.take_counts(at(2_000)).lost, 30);
    }

    #[test]
    fn samples_are_spread_over_flows() {
        let load = Load::new(
            Plan { sample: 4, ..PLAN },
            vec![Template::new(Transport::Tcp, [10, 86, 0, 2].into(), [10, 86, 0, 3].into(), 1_000); 4],
            1_032,
            at(0),
        );
        let sampled: Vec<bool> = (0..4).map(|flow| load.is_sample(flow)).collect();
        assert_eq!(sampled, [true, false, false, false], "not the first run of each");
    }

    #[test]
    fn every_flow_ends_where_it_is_expected() {
        for direction in [Direction::Pairs, Direction::Up, Direction::Down, Direction::Both] {
            for (flow, [_, to]) in direction.ends(4).into_iter().enumerate() {
                match to {
                    End::Session(session) => assert_eq!(direction.arriving_at(session, 4), Some(flow)),
                    End::Campus => assert!(direction.needs_campus() && flow < 4),
                }
            }
            assert_eq!(direction.arriving_at(4, 4), None);
        }
        assert_eq!(Direction::Up.arriving_at(0, 4), None);
    }

    #[test]
    fn rates_are_of_the_payload() {
        let counts =
            Counts { took_ns: 1_000_000_000, payload: 1_000, arrived: vec![1_000, 0], ..Counts::default() };
        assert_eq!(counts.goodputs(), [8e6, 0.0]);
    }
}
