//! Bulk traffic of the sessions (`crate::load`): when each sends, and where the packets that arrive are counted.

use vpnd_proto::plane::Endpoint;
use vpnd_proto::time::Time;
use vpnd_proto::wire::HEADER_LEN;

use super::sockets::Sockets;
use super::{MAX_DATAGRAM, Swarm, now};
use crate::load::socket::{CAMPUS, Received};
use crate::load::{Counts, Direction, End, Load, PROBE_MARGIN, Plan, Stamp, Template, Transport};
use crate::message::Report;
use crate::now_ns;

/// Merged runs that a session's socket gives before another's turn, and the one of the campus.
const RUNS: usize = 4;
const CAMPUS_RUNS: usize = 64;

impl Swarm {
    /// From now on the first sessions send by `plan`; without one they stop.
    pub(super) fn set_load(&mut self, plan: Option<Plan>) {
        self.load = None;
        let Some(plan) = plan else { return };
        let made = self.templates(&plan).and_then(|templates| {
            let len = templates.first().map_or(0, Template::len);
            let datagram_len = self.members.first_mut().and_then(|member| member.datagram_len(now(), len));
            Ok(Load::new(plan, templates, datagram_len.ok_or("the first session has no keys")?, now()))
        });
        match made {
            Ok(load) => {
                self.load = Some(load);
                self.send_turns();
            }
            Err(why) => self.reports.push(Report::Broken(why)),
        }
    }

    /// The packets of each flow.
    fn templates(&self, plan: &Plan) -> Result<Vec<Template>, String> {
        if matches!(self.sockets, Sockets::Shared(_)) {
            return Err("bulk traffic needs a socket for each session".into());
        }
        if plan.direction.needs_campus() && self.job.campus.is_none() {
            return Err("traffic with the campus needs a namespace that it is in".into());
        }
        let count = plan.sessions as usize;
        let paired = plan.direction != Direction::Pairs || count.is_multiple_of(2);
        if !paired || count > self.members.len() {
            return Err(format!("{count} of {} sessions can't send to each other", self.members.len()));
        }
        let inner = |number: usize| {
            let inner = self.members[number].inner();
            inner.ok_or_else(|| format!("session {} has no IPv4 address", self.session(number)))
        };
        let template = |[from, to]: [End; 2]| {
            let session = match (from, to) {
                (End::Session(number), _) | (_, End::Session(number)) => number,
                (End::Campus, End::Campus) => return Err("the campus sends itself nothing".into()),
            };
            let (_, gateway, mtu) = inner(session)?;
            let address = |end: End| match end {
                End::Session(number) => Ok::<_, String>(inner(number)?.0),
                End::Campus => Ok(gateway),
            };
            let len = plan.packet.unwrap_or(mtu).min(mtu.saturating_sub(PROBE_MARGIN));
            let transport = if plan.direction.needs_campus() { Transport::Udp } else { Transport::Tcp };
            Ok(Template::new(transport, address(from)?, address(to)?, len))
        };
        plan.direction.ends(count).into_iter().map(template).collect()
    }

    /// Reports the traffic since the last report.
    pub(super) fn count_load(&mut self) {
        let counts = self.load.as_mut().map_or_else(Counts::default, |load| load.take_counts(now()));
        self.reports.push(Report::Loaded(counts));
    }

    /// Takes what arrived at the sockets of these sessions.
    pub(super) fn receive(&mut self, sessions: &[usize]) {
        let mut buffer = [0; MAX_DATAGRAM];
        for &number in sessions {
            if number == CAMPUS {
                self.receive_at_campus(&mut buffer);
                continue;
            }
            for _ in 0..RUNS {
                let Sockets::Own(sockets) = &self.sockets else { return };
                let Some(received) = sockets.receive(number, &mut buffer) else { break };
                self.received(number, &mut buffer[..received.first], received);
            }
        }
        self.send_turns();
    }

    /// Takes what arrived at the campus.
    fn receive_at_campus(&mut self, buffer: &mut [u8]) {
        for _ in 0..CAMPUS_RUNS {
            let Sockets::Own(sockets) = &self.sockets else { return };
            let Some((received, from)) = sockets.receive_at_campus(buffer) else { return };
            let Some(load) = &mut self.load else { continue };
            let Some(&flow) = load.senders.get(&from) else { continue };
            // Nothing has to be opened here, so each run is looked into.
            let stamp = Template::read_payload(&buffer[..received.first]);
            let is_bulk = received.first == load.templates[flow].payload();
            let Some(stamp) = stamp.filter(|_| is_bulk) else { continue };
            load.delayed(now_ns().saturating_sub(stamp.at_ns));
            load.arrived(flow, received.datagrams, Some(stamp.number), now());
        }
    }

    /// A run of datagrams arrived for a session, of which this is the first. Those of other lengths than its partner sends are
    /// for the client: probes, and answers to them.
    fn received(&mut self, number: usize, first: &mut [u8], run: Received) {
        let arriving = |load: &Load| {
            let flow = load.plan.direction.arriving_at(number, load.plan.sessions as usize)?;
            Some((flow, load.datagram_len))
        };
        let (flow, bulk) = self.load.as_ref().and_then(arriving).unwrap_or_default();
        let is_bulk = first.len() == bulk;
        let Some(load) = self.load.as_mut().filter(|_| is_bulk) else {
            self.open(number, first);
            if let Some(load) = self.load.as_mut().filter(|_| run.datagrams > 1 && run.last == bulk) {
                load.arrived(flow, 1, None, now());
            }
            return;
        };
        let datagrams = run.datagrams - u64::from(run.last != bulk);
        let is_sample = load.is_sample(flow);
        let stamp = if is_sample && self.open(number, first) { self.stamp(flow, first) } else { None };
        let Some(load) = &mut self.load else { return };
        if is_sample {
            load.opened += u64::from(stamp.is_some());
            load.strange += u64::from(stamp.is_none());
        }
        if let Some(stamp) = stamp {
            load.delayed(now_ns().saturating_sub(stamp.at_ns));
        }
        load.arrived(flow, datagrams, stamp.map(|stamp| stamp.number), now());
    }

    /// Opens a datagram in place. False if it was not authentic, or not for this session.
    fn open(&mut self, number: usize, datagram: &mut [u8]) -> bool {
        let from = Endpoint { remote: self.job.gateway, local: None };
        let mut is_own = false;
        self.with(number, |member, tasks| is_own = member.datagram(now(), datagram, from, tasks));
        is_own
    }

    fn stamp(&self, flow: usize, opened: &[u8]) -> Option<Stamp> {
        let template = &self.load.as_ref()?.templates[flow];
        template.read(opened.get(HEADER_LEN..HEADER_LEN + template.len())?)
    }

    /// Bursts of the sessions whose turn it is.
    fn send_turns(&mut self) {
        let Some(mut load) = self.load.take() else { return };
        while let Some(flow) = load.next_turn() {
            self.send_burst(&mut load, flow);
        }
        self.load = Some(load);
    }

    fn send_burst(&mut self, load: &mut Load, flow: usize) {
        let at = now();
        let sent = match load.ends[flow] {
            [End::Session(number), _] => self.send_from_session(load, flow, number, at),
            [End::Campus, _] => self.send_from_campus(load, flow),
        };
        match sent {
            Some(true) => load.sent(flow, load.burst, at),
            Some(false) => load.refused += load.burst,
            // Without keys nothing was to be had.
            None => {}
        }
    }

    /// Whether the kernel took the burst; `None` if there was none.
    fn send_from_session(&mut self, load: &mut Load, flow: usize, number: usize, at: Time) -> Option<bool> {
        let Load { templates, flows, buffer, burst, .. } = &mut *load;
        let (template, mut stamp) =
            (&templates[flow], Stamp { number: flows[flow].number(), at_ns: now_ns() });
        let mut size = None;
        self.with(number, |member, tasks| {
            let write = |packet: &mut [u8]| {
                template.write(packet, stamp);
                stamp.number += 1;
            };
            size = member.burst(at, (template.len(), *burst), buffer, write, tasks);
        });
        let Sockets::Own(sockets) = &self.sockets else { return None };
        let size = size?;
        Some(sockets.send(number, &buffer[..size * *burst as usize], size))
    }

    fn send_from_campus(&self, load: &mut Load, flow: usize) -> Option<bool> {
        let Load { templates, flows, buffer, burst, .. } = &mut *load;
        let (size, to) = (templates[flow].payload(), templates[flow].to());
        let mut stamp = Stamp { number: flows[flow].number(), at_ns: now_ns() };
        for payload in buffer.chunks_exact_mut(size).take(*burst as usize) {
            Template::write_payload(payload, stamp);
            stamp.number += 1;
        }
        let Sockets::Own(sockets) = &self.sockets else { return None };
        Some(sockets.send_from_campus(&buffer[..size * *burst as usize], size, to))
    }

    /// Lets flows go on that would wait for ever.
    pub(super) fn revive_load(&mut self) {
        if let Some(load) = &mut self.load {
            load.revive(now());
            self.send_turns();
        }
    }
}
