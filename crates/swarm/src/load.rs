//! Bulk traffic over many sessions of one process, with as few cycles as it can be made with
//! (`vpnd-endurance capacity`).
//!
//! Sessions work in pairs, each sending to its partner through the gateway, or with the campus: a
//! socket in the gateway's namespace, which this process has, too. The inner packets are made up
//! beforehand, sealed side by side, and go out as one segmented send (UDP GSO); they are received
//! merged (UDP GRO), and of each merged run only the first datagram is copied. Of these, one in
//! [`Plan::sample`] is authenticated and opened. Its number says how many packets of the flow came
//! before it, so losses are counted exactly although most packets are never looked at.
//!
//! Bulk flows send as fast as their turns come (a closed loop), or at a rate whatever becomes of it
//! (an open loop). Further sessions can send calls as well: small packets at a steady pace,
//! each of which is opened. In pairs receivers acknowledge the runs that arrive, since what a
//! gateway carries for real clients holds acknowledgements in separate datagrams.

mod acknowledge;
mod flow;
mod pace;
mod packet;
mod plan;
pub(crate) mod socket;

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use vpnd_proto::time::Time;

use crate::tally::Percentiles;
use crate::{now_ns, wall_ns};
use acknowledge::Acknowledger;
pub use acknowledge::{USUAL_ACK_DELAY_MS, USUAL_ACKNOWLEDGE};
pub(crate) use flow::Flow;
use pace::Pacer;
pub use packet::{ACKNOWLEDGEMENT, LEAST_PACKET};
pub(crate) use packet::{PORT, Transport};
pub(crate) use packet::{Stamp, Template};
pub(crate) use plan::End;
pub use plan::{Direction, Plan};
use socket::Received;

/// The longest delay that has its own bucket, in microseconds.
const MOST_DELAY_US: u64 = 60_000_000;
/// The most packets of one segmented send: every kernel with UDP GSO takes as many.
pub const MOST_BURST: u16 = 64;
/// The most bytes of one segmented send, as vpnd's own clients send them: with its headers the
/// kernel must not have to cut it.
pub(crate) const MOST_BURST_BYTES: usize = 65_535 - 8 - 40 - 18;

/// Bytes of a call's inner packet: 20 ms of speech by G.711, as RTP over UDP and IPv4.
pub const CALL_PACKET: u16 = 200;
/// The time between two packets of a call.
pub const CALL_PACE: Duration = Duration::from_millis(20);
/// Bytes of the small packets among bulk traffic.
pub const SMALL_PACKET: u16 = 64;

/// Full packets are this many bytes below the tunnel's maximum: then no probe of the path is
/// as long as they are and merged into a run of them, where it would go unnoticed.
pub(crate) const PROBE_MARGIN: u16 = 8;

/// The counts of a process's traffic over some time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// The time that they are of, in nanoseconds.
    pub took_ns: u64,
    /// Bytes of an inner packet that is not small.
    pub packet: u16,
    /// Packets that were handed to the kernel.
    pub sent: u64,
    /// Packets that the kernel did not take.
    pub refused: u64,
    /// Packets that arrived.
    pub arrived: u64,
    /// Bytes of payload of each session that arrived: those to its partner, or to and from the
    /// campus.
    pub payloads: Vec<u64>,
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
    /// The calls, if there are any.
    pub calls: Option<CallCounts>,
    /// The acknowledgements, if there are any. They count in none of the above but what was refused
    /// and what was opened.
    pub acknowledgements: Option<AcknowledgementCounts>,
}

/// The counts of acknowledgements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcknowledgementCounts {
    pub sent: u64,
    pub arrived: u64,
    /// By the numbers of later ones.
    pub lost: u64,
    /// Merged runs in which they arrived.
    pub runs: u64,
}

impl AcknowledgementCounts {
    /// Lost ones in percent of those of which it is known.
    pub fn lost_percent(&self) -> f64 {
        percent(self.lost, self.arrived)
    }
}

/// The counts of calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallCounts {
    /// Packets whose time came. Nothing is left out because the process was late.
    pub sent: u64,
    pub arrived: u64,
    /// Packets that did not arrive, by the numbers of later ones.
    pub lost: u64,
    /// From the send call to the moment at which the receiving socket's kernel had it, in
    /// milliseconds: how late the process itself gets to reading is not in it.
    pub delay_ms: Percentiles,
}

impl CallCounts {
    /// Lost packets in percent of those of which it is known.
    pub fn lost_percent(&self) -> f64 {
        percent(self.lost, self.arrived)
    }
}

fn percent(lost: u64, arrived: u64) -> f64 {
    100.0 * lost as f64 / (lost + arrived).max(1) as f64
}

impl Counts {
    /// Lost packets in percent of those of which it is known.
    pub fn lost_percent(&self) -> f64 {
        percent(self.lost, self.arrived)
    }

    /// Payload bits per second of the flow of each session.
    pub fn goodputs(&self) -> Vec<f64> {
        let rate = |bytes: &u64| *bytes as f64 * 8e9 / self.took_ns.max(1) as f64;
        self.payloads.iter().map(rate).collect()
    }
}

/// Packets of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Bytes of the datagrams that they become.
    pub(crate) datagram: usize,
    /// Bytes of payload in each.
    pub(crate) payload: usize,
}

/// The packets of a flow: its usual ones, and the small ones among them.
#[derive(Clone, Debug)]
pub(crate) struct Templates {
    pub(crate) usual: Template,
    pub(crate) small: Option<Template>,
}

impl Templates {
    pub(crate) fn of(&self, turn: Turn) -> &Template {
        self.small.as_ref().filter(|_| turn.is_small).unwrap_or(&self.usual)
    }
}

/// A burst that is to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) flow: usize,
    pub(crate) packets: u64,
    pub(crate) is_small: bool,
}

/// The traffic under way.
pub(crate) struct Load {
    pub(crate) plan: Plan,
    pub(crate) flows: Vec<Flow>,
    /// The ends of each flow, the sending one first.
    pub(crate) ends: Vec<[End; 2]>,
    /// The packets of each flow.
    pub(crate) templates: Vec<Templates>,
    /// Sessions that wait for their turn to send, in order.
    turns: VecDeque<usize>,
    /// When the turns of flows with a rate come, and those of calls.
    paced: Option<Pacer>,
    calls: Option<Pacer>,
    acknowledger: Option<Acknowledger>,
    /// Packets that may be on their way over all sessions.
    limit: u64,
    in_flight: u64,
    /// Packets of one burst.
    burst: u64,
    /// The datagrams of bulk flows, small ones last, that of calls, and that of acknowledgements.
    sizes: Vec<Size>,
    call: Option<Size>,
    acknowledgement: Option<Size>,
    /// Which flow comes to the campus from which address.
    pub(crate) senders: HashMap<Ipv4Addr, usize>,
    since: Time,
    before: Vec<Flow>,
    sent: u64,
    pub(crate) refused: u64,
    pub(crate) opened: u64,
    pub(crate) strange: u64,
    delays_us: Histogram<u64>,
    call_delays_us: Histogram<u64>,
    /// Where bursts are sealed.
    pub(crate) buffer: Vec<u8>,
}

impl Load {
    /// `templates` has one entry for each flow of the plan, all bulk ones of one length, as all
    /// calls and all acknowledgements; `datagram_len` gives the length of the datagram that carries
    /// this many bytes.
    pub(crate) fn new(
        plan: Plan,
        templates: Vec<Templates>,
        mut datagram_len: impl FnMut(usize) -> Option<usize>,
        now: Time,
    ) -> Option<Self> {
        let (bulk, greedy) = (plan.bulk_flows(), u64::from(plan.greedy.max(1)));
        let mut size = |template: &Template| {
            Some(Size { datagram: datagram_len(template.len())?, payload: template.payload() })
        };
        let first = templates.first()?;
        let (usual, small) = (size(&first.usual)?, first.small.as_ref().map(&mut size));
        let sizes = [Some(usual)].into_iter().chain(small).collect::<Option<Vec<_>>>()?;
        let mut size_of = |flows: std::ops::Range<usize>| match templates.get(flows)?.first() {
            Some(first) => Some(Some(size(&first.usual)?)),
            None => Some(None),
        };
        let (call, acknowledgement) = (size_of(bulk..plan.flows())?, size_of(plan.flows()..templates.len())?);
        let packet = first.usual.len();
        let fits = MOST_BURST_BYTES / usual.datagram.max(packet);
        let burst = u64::from(plan.burst.clamp(1, MOST_BURST)).min(fits.max(1) as u64);
        // A single burst may always go.
        let limit = (plan.in_flight / packet as u64).max(burst);
        // Together they can have all on its way that may be, however few they are.
        let window = (limit / burst / (bulk as u64 - 1 + greedy)).max(flow::BURSTS);
        let mut flows = vec![Flow::default(); templates.len()];
        flows.iter_mut().for_each(|flow| flow.set_window(window));
        flows[0].set_window(window * greedy);
        let ends = plan.ends();
        let to_campus =
            ends.iter().zip(&templates).enumerate().filter(|(_, (ends, _))| ends[1] == End::Campus);
        let senders = to_campus.map(|(flow, (_, templates))| (templates.usual.from(), flow)).collect();
        let histogram = || Histogram::new_with_bounds(1, MOST_DELAY_US, 3).expect("the bounds are constants");
        let burst_bits = burst * packet as u64 * 8;
        let every = |rate: u64| Duration::from_nanos(burst_bits * 1_000_000_000 / rate.max(1));
        let mut load = Self {
            turns: VecDeque::new(),
            paced: plan.rate.map(|rate| Pacer::new(0..bulk, every(rate), now)),
            calls: (plan.calls > 0).then(|| Pacer::new(bulk..plan.flows(), CALL_PACE, now)),
            acknowledger: plan.has_acknowledgements().then(|| {
                let delay = Duration::from_millis(plan.ack_delay_ms.into());
                Acknowledger::new(plan.acknowledge, delay, bulk)
            }),
            limit,
            in_flight: 0,
            burst,
            sizes,
            call,
            acknowledgement,
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
            delays_us: histogram(),
            call_delays_us: histogram(),
            buffer: vec![0; MOST_BURST_BYTES],
        };
        // One after the other, then each as often as it may.
        for _ in 0..window * greedy {
            (0..bulk).for_each(|flow| load.give_turn(flow));
        }
        Some(load)
    }

    /// Whether a flow is a call.
    pub(crate) fn is_call(&self, flow: usize) -> bool {
        (self.plan.bulk_flows()..self.plan.flows()).contains(&flow)
    }

    /// Whether a flow is of bulk traffic, which its turns and the limit are for.
    fn is_bulk(&self, flow: usize) -> bool {
        flow < self.plan.bulk_flows()
    }

    /// Whether some of it is sent by the clock.
    pub(crate) fn is_timed(&self) -> bool {
        self.paced.is_some() || self.calls.is_some()
    }

    /// The next burst to send: calls first, then acknowledgements, then what a rate demands, or
    /// whose turn it is while more may be on its way.
    pub(crate) fn next_turn(&mut self, now: Time) -> Option<Turn> {
        if let Some(flow) = self.calls.as_mut().and_then(|calls| calls.next(now)) {
            return Some(Turn { flow, packets: 1, is_small: false });
        }
        let due = self.acknowledger.as_mut().and_then(|acknowledger| acknowledger.next(now));
        if let Some((flow, packets)) = due {
            let flow = self.plan.acknowledgements_of(flow)?;
            return Some(Turn { flow, packets, is_small: false });
        }
        let flow = match &mut self.paced {
            Some(paced) => paced.next(now)?,
            None if self.in_flight + self.burst > self.limit => return None,
            None => {
                let flow = self.turns.pop_front()?;
                self.flows[flow].turn_taken();
                flow
            }
        };
        let small = u64::from(self.plan.small);
        // Spread evenly: this number of a hundred bursts in a row.
        let burst = self.flows[flow].next_burst() + flow as u64;
        let is_small = self.templates[flow].small.is_some() && (burst * small) % 100 < small;
        Some(Turn { flow, packets: self.burst, is_small })
    }

    fn give_turn(&mut self, flow: usize) {
        if self.paced.is_none() && self.flows[flow].wants_turn(self.burst) {
            self.turns.push_back(flow);
        }
    }

    /// A burst was sent.
    pub(crate) fn sent(&mut self, turn: Turn, now: Time) {
        if self.is_bulk(turn.flow) {
            self.in_flight += turn.packets;
            self.sent += turn.packets;
        }
        self.flows[turn.flow].sent(turn.packets, now);
    }

    /// The kernel did not take a burst. Packets of calls and acknowledgements are lost by that:
    /// their time has passed.
    pub(crate) fn refused(&mut self, turn: Turn, now: Time) {
        self.refused += turn.packets;
        if !self.is_bulk(turn.flow) {
            self.sent(turn, now);
        }
    }

    /// The flow that a datagram of this length belongs to when it arrives at a session, and the
    /// size of its packets.
    pub(crate) fn arriving(&self, session: usize, datagram: usize) -> Option<(usize, Size)> {
        let flow = self.plan.arriving_at(session)?;
        let sizes = if self.is_call(flow) { self.call.as_slice() } else { &self.sizes };
        if let Some(size) = sizes.iter().find(|size| size.datagram == datagram) {
            return Some((flow, *size));
        }
        // In pairs each session sends the flow with its number.
        let back = self.plan.acknowledgements_of(session)?;
        Some((back, self.acknowledgement.filter(|size| size.datagram == datagram)?))
    }

    /// The size of a flow's packets by the length of their payload, which is all that the campus
    /// has.
    pub(crate) fn payload_size(&self, flow: usize, payload: usize) -> Option<Size> {
        let sizes = if self.is_call(flow) { self.call.as_slice() } else { &self.sizes };
        sizes.iter().find(|size| size.payload == payload).copied()
    }

    /// Whether the run of a flow that arrives now is to be looked into.
    pub(crate) fn is_sample(&self, flow: usize, now: Time) -> bool {
        // Not the same ones of all flows: of thousands each has few, and some must be among them at
        // any time.
        let number = self.flows[flow].runs() + flow as u64;
        let is_turn = number.is_multiple_of(u64::from(self.plan.sample.max(1)));
        is_turn || self.is_call(flow) || self.is_bulk(flow) && self.flows[flow].wants_opening(now)
    }

    /// A run of packets with its bytes of payload has arrived; `first` is the number of
    /// its first one, if that was opened.
    pub(crate) fn arrived(&mut self, flow: usize, run: (u64, u64), first: Option<u64>, now: Time) {
        self.change(flow, |account| account.arrived(run, first, now));
        let is_bulk = self.is_bulk(flow);
        if let Some(acknowledger) = self.acknowledger.as_mut().filter(|_| is_bulk) {
            acknowledger.run_arrived(flow, now);
        }
    }

    fn change(&mut self, flow: usize, change: impl FnOnce(&mut Flow)) {
        let is_bulk = self.is_bulk(flow);
        let account = &mut self.flows[flow];
        let before = account.in_flight();
        change(account);
        if is_bulk {
            self.in_flight = (self.in_flight + account.in_flight()).saturating_sub(before);
            self.give_turn(flow);
        }
    }

    /// Notes the delay of an opened packet: until now, or for a call until its socket had it. That
    /// of acknowledgements does not count.
    pub(crate) fn note_delay(&mut self, flow: usize, stamp: Stamp, run: Received) {
        if flow >= self.plan.flows() {
            return;
        }
        let until = if self.is_call(flow) { run.at_ns.unwrap_or_else(wall_ns) } else { now_ns() };
        self.delayed(flow, until.saturating_sub(stamp.at_ns));
    }

    fn delayed(&mut self, flow: usize, ns: u64) {
        let delays = if self.is_call(flow) { &mut self.call_delays_us } else { &mut self.delays_us };
        delays.saturating_record((ns / 1_000).max(1));
    }

    /// Gives up packets of flows in which nothing arrives any more, and gives a turn to those whose
    /// last one came to nothing because there were no keys or the kernel had no room.
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
        let (bulk, all, sessions) =
            (self.plan.bulk_flows(), self.plan.flows(), (self.plan.sessions as usize).max(1));
        let of_bulk = |count: fn(&Flow) -> u64| since(count)[..bulk].iter().sum();
        let of_calls = |count: fn(&Flow) -> u64| since(count)[bulk..all].iter().sum();
        let of_answers = |count: fn(&Flow) -> u64| since(count)[all..].iter().sum();
        let mut payloads = vec![0; sessions];
        let of_flows = since(Flow::payload);
        of_flows[..bulk].iter().enumerate().for_each(|(flow, bytes)| payloads[flow % sessions] += bytes);
        let counts = Counts {
            took_ns: now.since(self.since).as_nanos() as u64,
            packet: self.templates.first().map_or(0, |templates| templates.usual.len()) as u16,
            sent: std::mem::take(&mut self.sent),
            refused: std::mem::take(&mut self.refused),
            arrived: of_bulk(Flow::all_arrived),
            payloads,
            lost: of_bulk(Flow::lost),
            reordered: since(Flow::reordered).iter().sum(),
            runs: of_bulk(Flow::runs),
            opened: std::mem::take(&mut self.opened),
            strange: std::mem::take(&mut self.strange),
            delay_ms: percentiles(&self.delays_us),
            calls: self.calls.as_ref().map(|_| CallCounts {
                sent: of_calls(Flow::number),
                arrived: of_calls(Flow::all_arrived),
                lost: of_calls(Flow::lost),
                delay_ms: percentiles(&self.call_delays_us),
            }),
            acknowledgements: self.acknowledger.as_ref().map(|_| AcknowledgementCounts {
                sent: of_answers(Flow::number),
                arrived: of_answers(Flow::all_arrived),
                lost: of_answers(Flow::lost),
                runs: of_answers(Flow::runs),
            }),
        };
        self.since = now;
        self.before.clone_from(&self.flows);
        self.delays_us.reset();
        self.call_delays_us.reset();
        counts
    }
}

fn percentiles(delays_us: &Histogram<u64>) -> Percentiles {
    let ms = |share| delays_us.value_at_quantile(share) as f64 / 1e3;
    if delays_us.is_empty() {
        return Percentiles::default();
    }
    Percentiles { p50: ms(0.5), p90: ms(0.9), p99: ms(0.99), max: ms(1.0) }
}

#[cfg(test)]
mod tests {
    use super::plan::tests::plan;
    use super::*;

    fn load_of(plan: Plan) -> Load {
        let template = |len| Template::new(Transport::Tcp, [10, 86, 0, 2].into(), [10, 86, 0, 3].into(), len);
        let bulk =
            Templates { usual: template(1_000), small: (plan.small > 0).then(|| template(SMALL_PACKET)) };
        let one = |len| Templates { usual: template(len), small: None };
        let mut templates = vec![bulk; plan.bulk_flows()];
        templates.resize(plan.flows(), one(CALL_PACKET));
        templates.resize(plan.ends().len(), one(ACKNOWLEDGEMENT));
        Load::new(plan, templates, |len| Some(len + 32), at(0)).unwrap()
    }

    fn load() -> Load {
        load_of(plan(4))
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(0) + Duration::from_millis(ms)
    }

    /// Sends all that may go at this time. Returns the flows.
    fn send_all(load: &mut Load, now: Time) -> Vec<usize> {
        let mut flows = Vec::new();
        while let Some(turn) = load.next_turn(now) {
            load.sent(turn, now);
            flows.push(turn.flow);
        }
        flows
    }

    fn arrived(load: &mut Load, flow: usize, packets: u64, first: u64, now: Time) {
        load.arrived(flow, (packets, packets * 948), Some(first), now);
    }

    #[test]
    fn what_is_on_its_way_stays_within_the_limit_and_sessions_take_turns() {
        let mut load = load();
        assert_eq!(
            send_all(&mut load, at(0)),
            [0, 1, 2],
            "34 packets of 1,000 bytes are three bursts of ten"
        );
        arrived(&mut load, 1, 5, 0, at(1));
        assert_eq!(load.next_turn(at(1)), None, "half a burst makes no room for one");
        arrived(&mut load, 1, 5, 5, at(1));
        assert_eq!(load.next_turn(at(1)).unwrap().flow, 3, "who waited longest");
    }

    #[test]
    fn losses_are_found_by_packet_numbers_and_the_flow_continues() {
        let mut load = load();
        send_all(&mut load, at(0));
        // The first seven packets of session 0's burst are lost.
        arrived(&mut load, 0, 3, 7, at(1));
        let counts = load.take_counts(at(10));
        assert_eq!((counts.lost, counts.arrived, counts.reordered), (7, 3, 0));
        assert!((counts.lost_percent() - 70.0).abs() < 1e-9);
        assert_eq!(load.next_turn(at(10)).unwrap().flow, 3);
        assert_eq!(load.take_counts(at(20)).lost, 0, "each loss counts once");
    }

    #[test]
    fn a_flow_whose_packets_are_all_lost_sends_again_after_a_while() {
        let mut load = load();
        send_all(&mut load, at(0));
        load.revive(at(100));
        assert_eq!(load.next_turn(at(100)), None, "they may still come");
        load.revive(at(2_000));
        assert!(load.next_turn(at(2_000)).is_some());
        assert_eq!(load.take_counts(at(2_000)).lost, 30);
    }

    #[test]
    fn a_greedy_session_has_as_much_on_its_way_as_so_many_others() {
        let mut load = load_of(Plan { greedy: 5, in_flight: 160_000, ..plan(4) });
        assert_eq!(bursts(&send_all(&mut load, at(0))), [10, 2, 2, 2]);
    }

    #[test]
    fn few_sessions_have_as_much_on_their_way_as_many() {
        for sessions in [2, 4, 8] {
            let mut load = load_of(Plan { in_flight: 400_000, ..plan(sessions) });
            let sent = bursts(&send_all(&mut load, at(0)));
            assert_eq!(sent, vec![40 / sessions as usize; sessions as usize]);
            // Each burst that arrives makes room for the next, at its own sender first.
            arrived(&mut load, 1, 10, 0, at(1));
            assert_eq!(send_all(&mut load, at(1)), [1]);
        }
    }

    #[test]
    fn runs_are_acknowledged_before_more_is_sent_and_acknowledgements_are_counted_apart() {
        let mut load = load_of(Plan { acknowledge: 100, ack_delay_ms: 5, ..plan(4) });
        send_all(&mut load, at(0));
        for number in 0..7 {
            arrived(&mut load, 1, 1, number, at(1));
        }
        let back = load.plan.acknowledgements_of(1).unwrap();
        let turn = load.next_turn(at(1)).unwrap();
        assert_eq!(turn, Turn { flow: back, packets: 7, is_small: false });
        load.sent(turn, at(1));
        let in_flight = load.in_flight;
        assert_eq!(in_flight, 30 - 7);
        // The last two of them, at the session that sent the flow.
        let (flow, _) = load.arriving(1, 88).unwrap();
        assert_eq!(flow, back);
        load.arrived(flow, (2, 32), Some(5), at(2));
        assert_eq!(load.in_flight, in_flight);
        assert_eq!(
            load.next_turn(at(2)).map(|turn| turn.flow),
            Some(3),
            "nobody acknowledges an acknowledgement"
        );
        let counts = load.take_counts(at(2));
        assert_eq!((counts.arrived, counts.lost, counts.payloads), (7, 0, vec![0, 7 * 948, 0, 0]));
        let wanted = AcknowledgementCounts { sent: 7, arrived: 2, lost: 5, runs: 1 };
        assert_eq!(counts.acknowledgements, Some(wanted));
        assert_eq!(load_of(plan(4)).take_counts(at(2)).acknowledgements, None);
    }

    #[test]
    fn arriving_packets_are_distinguished_by_their_length() {
        let load = load_of(Plan { acknowledge: 100, small: 10, calls: 2, ..plan(4) });
        let arriving = |session, len| load.arriving(session, len).map(|(flow, size)| (flow, size.payload));
        assert_eq!(arriving(0, 1_032), Some((1, 948)));
        assert_eq!(arriving(0, 96), Some((1, 24)), "a small one of the same flow");
        assert_eq!(arriving(0, 88), Some((6, 16)), "what its own flow is answered by");
        assert_eq!((arriving(0, 500), arriving(4, 232), arriving(4, 88)), (None, Some((5, 148)), None));
    }

    /// Bursts of each flow.
    fn bursts(flows: &[usize]) -> Vec<usize> {
        let count = |flow| flows.iter().filter(|&&sent| sent == flow).count();
        (0..=flows.iter().copied().max().unwrap_or(0)).map(count).collect()
    }

    #[test]
    fn a_rate_is_kept_whatever_becomes_of_the_packets() {
        // A burst of 80,000 bits in 10 ms.
        let mut load = load_of(Plan { rate: Some(8_000_000), in_flight: 0, ..plan(4) });
        for ms in 0..100 {
            send_all(&mut load, at(ms));
            if ms == 50 {
                load.revive(at(ms));
            }
        }
        assert_eq!(load.take_counts(at(100)).sent, 4 * 10 * 10);
    }

    #[test]
    fn small_bursts_are_spread_among_the_others() {
        let mut load = load_of(Plan { small: 25, in_flight: 1 << 20, ..plan(4) });
        let mut small = 0;
        for number in 0..100 {
            let turn = load.next_turn(at(number)).unwrap();
            load.sent(turn, at(number));
            small += u64::from(turn.is_small);
            let first = load.flows[turn.flow].number() - 10;
            arrived(&mut load, turn.flow, 10, first, at(number));
        }
        assert_eq!(small, 25);
    }

    #[test]
    fn calls_keep_their_pace_and_count_what_was_due_while_the_process_was_late() {
        let mut load = load_of(Plan { calls: 2, in_flight: 0, sample: 1_000, ..plan(4) });
        let calls = |flows: Vec<usize>| flows.iter().filter(|&&flow| flow >= 4).count();
        assert_eq!(calls(send_all(&mut load, at(1_000))), 2 * 50, "all that was due, although nobody looked");
        assert!(load.is_sample(4, at(1_000)) && load.is_sample(5, at(1_000)), "each packet is opened");
        (0..50)
            .filter(|number| *number != 7)
            .for_each(|number| load.arrived(4, (1, 0), Some(number), at(1_000)));
        load.delayed(4, 2_000_000);
        let calls = load.take_counts(at(1_000)).calls.unwrap();
        assert_eq!((calls.sent, calls.arrived, calls.lost), (100, 49, 1));
        assert!((calls.delay_ms.p50 - 2.0).abs() < 0.01 && (calls.lost_percent() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn samples_are_spread_over_flows() {
        let mut load = load_of(Plan { sample: 4, ..plan(4) });
        let sampled =
            |load: &Load, ms| -> Vec<bool> { (0..4).map(|flow| load.is_sample(flow, at(ms))).collect() };
        assert_eq!(sampled(&load, 0), [true; 4], "nothing was opened yet");
        send_all(&mut load, at(0));
        (0..4).for_each(|flow| load.arrived(flow, (4, 0), Some(3), at(1)));
        assert_eq!(sampled(&load, 40), [false, false, false, true], "not the same ones of all flows");
        assert_eq!(sampled(&load, 41), [true; 4], "it is too long ago");
    }

    #[test]
    fn rates_are_of_the_payload() {
        let counts = Counts { took_ns: 1_000_000_000, payloads: vec![1_000_000, 0], ..Counts::default() };
        assert_eq!(counts.goodputs(), [8e6, 0.0]);
    }
}
