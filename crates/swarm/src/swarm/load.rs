//! Bulk traffic of the sessions (`crate::load`): when each sends, and where the packets that arrive
//! are counted.

use vpnd_proto::plane::Endpoint;
use vpnd_proto::time::Time;
use vpnd_proto::wire::HEADER_LEN;

use super::sockets::Sockets;
use super::{MAX_DATAGRAM, Swarm, now};
use crate::load::socket::{CAMPUS, Received};
use crate::load::{
    ACKNOWLEDGEMENT, CALL_PACKET, Counts, Direction, End, Load, PROBE_MARGIN, Plan, SMALL_PACKET, Size,
    Stamp, Template, Templates, Transport, Turn,
};
use crate::message::Report;
use crate::{now_ns, wall_ns};

/// Merged runs that a session's socket gives before another's turn, and the one of the campus.
const RUNS: usize = 4;
const CAMPUS_RUNS: usize = 64;

impl Swarm {
    /// From now on the first sessions send by `plan`; without one they stop.
    pub(super) fn set_load(&mut self, plan: Option<Plan>) {
        self.load = None;
        let Some(plan) = plan else { return };
        let made = self.templates(&plan).and_then(|templates| {
            self.stamp_calls(&plan)?;
            let mut first = self.members.first_mut();
            let datagram_len = |len| first.as_mut()?.datagram_len(now(), len);
            Load::new(plan, templates, datagram_len, now())
                .ok_or_else(|| "the first session has no keys".into())
        });
        match made {
            Ok(load) => {
                self.load = Some(load);
                self.send_turns();
            }
            Err(reason) => self.reports.push(Report::Broken(reason)),
        }
    }

    /// The packets of each flow.
    fn templates(&self, plan: &Plan) -> Result<Vec<Templates>, String> {
        if matches!(self.sockets, Sockets::Shared(_)) {
            return Err("bulk traffic needs a socket for each session".into());
        }
        if plan.direction.needs_campus() && self.job.campus.is_none() {
            return Err("traffic with the campus needs a namespace that it is in".into());
        }
        let is_paired = |count: u32| plan.direction != Direction::Pairs || count.is_multiple_of(2);
        let count = plan.all_sessions();
        if !is_paired(plan.sessions)
            || !is_paired(plan.calls)
            || plan.sessions == 0
            || count > self.members.len()
        {
            return Err(format!("{count} of {} sessions can't send to each other", self.members.len()));
        }
        let templates = plan.ends().into_iter().enumerate().map(|(flow, ends)| {
            let transport = if plan.direction.needs_campus() { Transport::Udp } else { Transport::Tcp };
            let beside = if flow >= plan.flows() {
                Some((Transport::Tcp, ACKNOWLEDGEMENT))
            } else {
                (flow >= plan.bulk_flows()).then_some((Transport::Udp, CALL_PACKET))
            };
            if let Some((transport, len)) = beside {
                return Ok(Templates { usual: self.template(transport, ends, Some(len))?, small: None });
            }
            let small = (plan.small > 0).then(|| self.template(transport, ends, Some(SMALL_PACKET)));
            Ok(Templates { usual: self.template(transport, ends, plan.packet)?, small: small.transpose()? })
        });
        templates.collect()
    }

    /// Packets of `len` bytes, or as long as the tunnel takes, from one end to the other.
    fn template(
        &self,
        transport: Transport,
        [from, to]: [End; 2],
        len: Option<u16>,
    ) -> Result<Template, String> {
        let inner = |number: usize| {
            let inner = self.members[number].inner();
            inner.ok_or_else(|| format!("session {} has no IPv4 address", self.session(number)))
        };
        let session = match (from, to) {
            (End::Session(number), _) | (_, End::Session(number)) => number,
            (End::Campus, End::Campus) => return Err("the campus sends itself nothing".into()),
        };
        let (_, gateway, mtu) = inner(session)?;
        let address = |end: End| match end {
            End::Session(number) => Ok::<_, String>(inner(number)?.0),
            End::Campus => Ok(gateway),
        };
        let len = len.unwrap_or(mtu).min(mtu.saturating_sub(PROBE_MARGIN));
        Ok(Template::new(transport, address(from)?, address(to)?, len))
    }

    /// Has the kernel note when the packets of calls arrive.
    fn stamp_calls(&self, plan: &Plan) -> Result<(), String> {
        let Sockets::Own(sockets) = &self.sockets else { return Ok(()) };
        let calls = plan.sessions as usize..plan.all_sessions();
        sockets.stamp(calls).map_err(|error| format!("the kernel stamps no arrivals: {error}"))
    }

    /// Reports the traffic since the last report.
    pub(super) fn count_load(&mut self) {
        let counts = self.load.as_mut().map_or_else(Counts::default, |load| load.take_counts(now()));
        self.reports.push(Report::Loaded(counts));
    }

    /// Takes what arrived at the sockets of these sessions. What that makes room for is sent before
    /// the next one is looked at: the gateway would have nothing to do until hundreds are read.
    pub(super) fn receive(&mut self, sessions: &[usize]) {
        let mut buffer = [0; MAX_DATAGRAM];
        for &number in sessions {
            if number == CAMPUS {
                self.receive_at_campus(&mut buffer);
            } else {
                self.receive_at_session(number, &mut buffer);
            }
            self.send_turns();
        }
    }

    /// Takes what arrived at the socket of a session.
    fn receive_at_session(&mut self, number: usize, buffer: &mut [u8]) {
        for _ in 0..RUNS {
            let Sockets::Own(sockets) = &self.sockets else { return };
            let Some(received) = sockets.receive(number, buffer) else { return };
            self.received(number, &mut buffer[..received.first], received);
        }
    }

    /// Takes what arrived at the campus.
    fn receive_at_campus(&mut self, buffer: &mut [u8]) {
        for _ in 0..CAMPUS_RUNS {
            let Sockets::Own(sockets) = &self.sockets else { return };
            let Some((received, from)) = sockets.receive_at_campus(buffer) else { return };
            let Some(load) = &mut self.load else { continue };
            let Some(&flow) = load.senders.get(&from) else { continue };
            // Nothing has to be opened here, so each run is looked into.
            let Some(stamp) = Template::read_payload(&buffer[..received.first]) else { continue };
            let Some(size) = load.payload_size(flow, received.first) else { continue };
            load.note_delay(flow, stamp, received);
            let payload = size.payload as u64 * received.datagrams;
            load.arrived(flow, (received.datagrams, payload), Some(stamp.number), now());
        }
    }

    /// A run of datagrams arrived for a session, of which this is the first. Those of other lengths
    /// than its partner sends are for the client: probes, and answers to them.
    fn received(&mut self, number: usize, first: &mut [u8], run: Received) {
        let arriving = |len| self.load.as_ref().and_then(|load| load.arriving(number, len));
        let head = arriving(first.len());
        // All but the last of a run are of one length.
        let last = if run.datagrams > 1 { arriving(run.last) } else { None };
        let same = last.filter(|(of, _)| head.is_some_and(|(flow, _)| flow == *of));
        if let Some((flow, size)) = head {
            let others = run.datagrams.saturating_sub(2);
            let packets = 1 + others + u64::from(same.is_some());
            let payload =
                (1 + others) * size.payload as u64 + same.map_or(0, |(_, last)| last.payload as u64);
            self.received_run((number, first), run, (flow, size), (packets, payload));
        } else {
            self.open(number, first);
        }
        // The last one may be of another flow than those before it.
        if let (Some(load), Some((flow, size)), None) = (&mut self.load, last, same) {
            load.arrived(flow, (1, size.payload as u64), None, now());
        }
    }

    /// A run of a flow arrived, with its packets and bytes of payload; of some the first
    /// one is opened.
    fn received_run(
        &mut self,
        (number, first): (usize, &mut [u8]),
        run: Received,
        (flow, size): (usize, Size),
        counts: (u64, u64),
    ) {
        let is_sample = self.load.as_ref().is_some_and(|load| load.is_sample(flow, now()));
        let stamp =
            if is_sample && self.open(number, first) { self.stamp(flow, size.payload, first) } else { None };
        let Some(load) = &mut self.load else { return };
        if is_sample {
            load.opened += u64::from(stamp.is_some());
            load.strange += u64::from(stamp.is_none());
        }
        if let Some(stamp) = stamp {
            load.note_delay(flow, stamp, run);
        }
        load.arrived(flow, counts, stamp.map(|stamp| stamp.number), now());
    }

    /// Opens a datagram in place. False if it was not authentic, or not for this session.
    fn open(&mut self, number: usize, datagram: &mut [u8]) -> bool {
        let from = Endpoint { remote: self.job.gateway, local: None };
        let mut is_own = false;
        self.with(number, |member, tasks| is_own = member.datagram(now(), datagram, from, tasks));
        is_own
    }

    fn stamp(&self, flow: usize, payload: usize, opened: &[u8]) -> Option<Stamp> {
        let Templates { usual, small } = &self.load.as_ref()?.templates[flow];
        let template =
            [Some(usual), small.as_ref()].into_iter().flatten().find(|one| one.payload() == payload)?;
        template.read(opened.get(HEADER_LEN..HEADER_LEN + template.len())?)
    }

    /// Bursts of the sessions whose turn it is.
    pub(super) fn send_turns(&mut self) {
        let Some(mut load) = self.load.take() else { return };
        let start = now();
        // Work that is due in the meantime waits until what has arrived is read.
        while let Some(turn) = load.next_turn(start) {
            self.send_burst(&mut load, turn);
        }
        self.load = Some(load);
    }

    fn send_burst(&mut self, load: &mut Load, turn: Turn) {
        let at = now();
        let number = load.flows[turn.flow].number();
        let at_ns = if load.is_call(turn.flow) { wall_ns() } else { now_ns() };
        let stamp = Stamp { number, at_ns };
        let sent = match load.ends[turn.flow] {
            [End::Session(session), _] => self.send_from_session(load, turn, (session, stamp), at),
            [End::Campus, _] => self.send_from_campus(load, turn, stamp),
        };
        match sent {
            Some(true) => load.sent(turn, at),
            Some(false) => load.refused(turn, at),
            // Without keys nothing was to be had.
            None => {}
        }
    }

    /// Whether the kernel took the burst; `None` if there was none.
    fn send_from_session(
        &mut self,
        load: &mut Load,
        turn: Turn,
        (session, mut stamp): (usize, Stamp),
        at: Time,
    ) -> Option<bool> {
        let Load { templates, buffer, .. } = &mut *load;
        let template = templates[turn.flow].of(turn);
        let mut size = None;
        self.with(session, |member, tasks| {
            let write = |packet: &mut [u8]| {
                template.write(packet, stamp);
                stamp.number += 1;
            };
            size = member.burst(at, (template.len(), turn.packets), buffer, write, tasks);
        });
        let Sockets::Own(sockets) = &self.sockets else { return None };
        let size = size?;
        Some(sockets.send(session, &buffer[..size * turn.packets as usize], size))
    }

    fn send_from_campus(&self, load: &mut Load, turn: Turn, mut stamp: Stamp) -> Option<bool> {
        let Load { templates, buffer, .. } = &mut *load;
        let template = templates[turn.flow].of(turn);
        let (size, to) = (template.payload(), template.to());
        for payload in buffer.chunks_exact_mut(size).take(turn.packets as usize) {
            Template::write_payload(payload, stamp);
            stamp.number += 1;
        }
        let Sockets::Own(sockets) = &self.sockets else { return None };
        Some(sockets.send_from_campus(&buffer[..size * turn.packets as usize], size, to))
    }

    /// Lets flows go on that would wait without end.
    pub(super) fn revive_load(&mut self) {
        if let Some(load) = &mut self.load {
            load.revive(now());
            self.send_turns();
        }
    }
}
