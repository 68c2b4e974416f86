//! Bulk traffic of the sessions (`crate::load`): when each sends, and where the packets that arrive are counted.

use vpnd_proto::plane::Endpoint;
use vpnd_proto::wire::HEADER_LEN;

use super::sockets::Sockets;
use super::{MAX_DATAGRAM, Swarm, now};
use crate::load::socket::Received;
use crate::load::{Counts, Load, PROBE_MARGIN, Plan, Stamp, Template};
use crate::message::Report;
use crate::now_ns;

/// Merged runs that a session's socket gives before another's turn.
const RUNS: usize = 4;

impl Swarm {
    /// From now on the first sessions send by `plan`; without one they stop.
    pub(super) fn set_load(&mut self, plan: Option<Plan>) {
        self.load = None;
        let Some(plan) = plan else { return };
        match self.templates(&plan) {
            Ok(templates) => {
                self.load = Some(Load::new(plan, templates, now()));
                self.send_turns();
            }
            Err(why) => self.reports.push(Report::Broken(why)),
        }
    }

    /// What each session sends to its partner.
    fn templates(&self, plan: &Plan) -> Result<Vec<Template>, String> {
        if matches!(self.sockets, Sockets::Shared(_)) {
            return Err("bulk traffic needs a socket for each session".into());
        }
        let count = plan.sessions as usize;
        if !count.is_multiple_of(2) || count > self.members.len() {
            return Err(format!("{count} sessions can't send to each other in pairs"));
        }
        let inner = |number: usize| {
            let inner = self.members[number].inner();
            inner.ok_or_else(|| format!("session {} has no IPv4 address", self.session(number)))
        };
        let template = |number: usize| {
            let ((from, mtu), (to, _)) = (inner(number)?, inner(number ^ 1)?);
            Ok(Template::new(from, to, plan.packet.unwrap_or(mtu).min(mtu.saturating_sub(PROBE_MARGIN))))
        };
        (0..count).map(template).collect()
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
            for _ in 0..RUNS {
                let Sockets::Own(sockets) = &self.sockets else { return };
                let Some(received) = sockets.receive(number, &mut buffer) else { break };
                self.received(number, &mut buffer[..received.first], received);
            }
        }
        self.send_turns();
    }

    /// A run of datagrams arrived for a session, of which this is the first. Those of other lengths than its partner sends are
    /// for the client: probes, and answers to them.
    fn received(&mut self, number: usize, first: &mut [u8], run: Received) {
        let flow = number ^ 1;
        let bulk =
            self.load.as_ref().filter(|load| flow < load.flows.len()).map_or(0, |load| load.datagram_len);
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
        let (at, at_ns) = (now(), now_ns());
        let Load { templates, flows, buffer, burst, datagram_len, .. } = &mut *load;
        let (template, mut number, count) = (&templates[flow], flows[flow].number(), *burst);
        let mut size = None;
        self.with(flow, |member, tasks| {
            let write = |packet: &mut [u8]| {
                template.write(packet, Stamp { number, at_ns });
                number += 1;
            };
            size = member.burst(at, (template.len(), count), buffer, write, tasks);
        });
        let Sockets::Own(sockets) = &self.sockets else { return };
        let Some(size) = size else { return };
        *datagram_len = size;
        if sockets.send(flow, &buffer[..size * count as usize], size) {
            load.sent(flow, count, at);
        } else {
            load.refused += count;
        }
    }

    /// Lets flows go on that would wait for ever.
    pub(super) fn revive_load(&mut self) {
        if let Some(load) = &mut self.load {
            load.revive(now());
            self.send_turns();
        }
    }
}
