//! Many clients of stock WireGuard's protocol in one process, towards any server: what that has to
//! do for each is the same as for a real client, which would need most of the machine for itself.
//!
//! Each has a socket, as clients have. The owner of all is [`Crowd`], on one thread; what a client
//! is comes from [`member`]. Bulk traffic (`crate::load`) goes in pairs through the server or to
//! the campus.

mod member;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;
use vpnd_crypto::{Backend, Preference, Suite, backend};
use vpnd_packet::checksum::complete;
use vpnd_proto::plane::Endpoint;
use vpnd_proto::time::Time;
use vpnd_proto::timer::TimerQueue;
use vpnd_wireguard::PublicKey;
use vpnd_wireguard::handshakes::NotAdded;
use vpnd_wireguard::message::TRANSPORT_HEADER_LEN;
use vpnd_wireguard::transport::{PADDING, Sealer};

use crate::load::socket::{CAMPUS, Received, SessionSockets};
use crate::load::{
    ACKNOWLEDGEMENT, Counts, Direction, End, Load, Plan, Stamp, Template, Templates, Transport, Turn,
};
use crate::message::{Command, KeySource, Report};
use crate::now_ns;
use crate::swarm::{MAX_DATAGRAM, PACE, SwarmError, TICK, Watch, now, write};
use member::{Member, Place, Task};

/// Merged runs that a client's socket gives before another's turn, and the one of the campus.
const RUNS: usize = 4;
const CAMPUS_RUNS: usize = 64;

/// The clients of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Address of the server.
    pub server: SocketAddr,
    /// Its public key.
    pub server_key: [u8; 32],
    pub clients: Vec<Client>,
    /// The number of the first of them.
    pub first: u32,
    /// The port of the first client; the next one has the next. Any if absent.
    pub first_port: Option<u16>,
    /// Addresses of the namespace to send from, in turn; any if there are none.
    pub sources: Vec<IpAddr>,
    /// The server's address inside.
    pub far: Ipv4Addr,
    /// The longest inner packet.
    pub mtu: u16,
    /// Handshakes under way at once, at first.
    pub at_once: u32,
    /// The file of the network namespace in which the campus is; for traffic with it.
    pub campus: Option<PathBuf>,
}

/// One client.
#[derive(Clone, Serialize, Deserialize)]
pub struct Client {
    /// Its private key.
    pub key: [u8; 32],
    /// Its address inside.
    pub inner: Ipv4Addr,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Job {
    /// Where client `number` sends from.
    fn local(&self, number: u32) -> SocketAddr {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let source = self.sources.get(number as usize % self.sources.len().max(1));
        let port = self.first_port.map_or(0, |first| first.saturating_add(number as u16));
        SocketAddr::new(source.copied().unwrap_or(any), port)
    }
}

/// Keeps the clients by commands, until these end.
///
/// # Errors
/// [`SwarmError`].
pub(crate) async fn serve(job: Job, commands: UnboundedReceiver<Command>) -> Result<(), SwarmError> {
    Crowd::new(job)?.run(commands).await
}

/// All clients of the process.
struct Crowd {
    job: Job,
    backend: Backend,
    members: Vec<Member>,
    sockets: SessionSockets,
    timers: TimerQueue<usize>,
    /// First handshakes under way.
    opening: BTreeSet<usize>,
    /// Clients whose ping was not answered yet.
    verifying: BTreeSet<usize>,
    watch: Watch,
    load: Option<Load>,
    reports: Vec<Report>,
}

impl Crowd {
    fn new(job: Job) -> Result<Self, SwarmError> {
        let choice = backend::choose(Suite::ChaCha20Poly1305, Preference::Auto);
        let backend = choice.map_err(|error| SwarmError::Suite(error.to_string()))?.backend;
        let count = job.clients.len() as u32;
        let sockets =
            SessionSockets::new(count, job.server, |number| job.local(number), job.campus.as_deref())?;
        Ok(Self {
            job,
            backend,
            members: Vec::new(),
            sockets,
            timers: TimerQueue::new(),
            opening: BTreeSet::new(),
            verifying: BTreeSet::new(),
            watch: Watch::default(),
            load: None,
            reports: Vec::new(),
        })
    }

    async fn run(mut self, mut commands: UnboundedReceiver<Command>) -> Result<(), SwarmError> {
        let mut ready = Vec::new();
        let (mut tick, mut pulse) = (tokio::time::interval(TICK), tokio::time::interval(PACE));
        for pace in [&mut tick, &mut pulse] {
            pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        loop {
            self.open_more()?;
            if !self.reports.is_empty() {
                write(&std::mem::take(&mut self.reports));
            }
            let due = self.timers.poll_timeout().map(|(at, _)| at.since(now()));
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.handle_command(command),
                    None => return Ok(()),
                },
                () = self.sockets.ready(&mut ready) => self.receive(&ready),
                () = tokio::time::sleep(due.unwrap_or(TICK)) => self.handle_timeouts(),
                _ = tick.tick() => self.ping_unverified(),
                _ = pulse.tick(), if self.watch.is_on() || self.load.is_some() => self.pulse(),
            }
        }
    }

    /// Begins first handshakes, as many at once as allowed.
    fn open_more(&mut self) -> Result<(), SwarmError> {
        while self.members.len() < self.job.clients.len()
            && self.opening.len() < self.job.at_once.max(1) as usize
        {
            let number = self.members.len();
            let client = &self.job.clients[number];
            let server = Endpoint { remote: self.job.server, local: None };
            let place = Place { server, inner: client.inner, far: self.job.far };
            let key = PublicKey(self.job.server_key);
            let member = Member::new(now(), client.key, key, place, self.backend);
            self.members.push(member.map_err(|error: NotAdded| SwarmError::Suite(error.to_string()))?);
            self.opening.insert(number);
            self.with(number, |member, tasks| member.begin(now(), tasks));
        }
        Ok(())
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Verify(count) => {
                self.verifying = (0..self.members.len().min(count as usize)).collect();
                self.ping_unverified();
            }
            Command::Load(plan) => self.set_load(plan),
            Command::CountLoad => {
                let counts = self.load.as_mut().map_or_else(Counts::default, |load| load.take_counts(now()));
                self.reports.push(Report::Loaded(counts));
            }
            Command::Watch(count) => {
                let count = self.members.len().min(count as usize);
                self.reports.extend(self.watch.begin(count, now()));
            }
            // A process has one job, and these are for sessions of vpnd's own protocol.
            Command::Open(_) | Command::OpenWireGuard(_) | Command::Talk(_) | Command::Churn(_) => {}
        }
    }

    fn handle_timeouts(&mut self) {
        while let Some(number) = self.timers.pop(now()) {
            self.with(number, |member, tasks| member.timeout(now(), tasks));
        }
    }

    fn ping_unverified(&mut self) {
        for number in self.verifying.clone() {
            self.with(number, |member, tasks| member.ping(now(), 0, tasks));
        }
    }

    /// A packet from each watched client whose turn it is, and what load there is.
    fn pulse(&mut self) {
        self.revive();
        let (mark, senders) = self.watch.turn();
        for number in senders {
            self.with(number, |member, tasks| member.ping(now(), mark, tasks));
        }
    }

    /// Passes an event to a client by `handle`, and does what follows from it.
    fn with<T>(&mut self, number: usize, handle: impl FnOnce(&mut Member, &mut Vec<Task>) -> T) -> T {
        let mut tasks = Vec::new();
        let handled = handle(&mut self.members[number], &mut tasks);
        for task in tasks {
            match task {
                Task::Send(datagram) => {
                    // A full socket loses it, as any does.
                    let _ = self.sockets.send(number, &datagram, datagram.len());
                }
                Task::Up => self.came_up(number),
                Task::Answered(mark) => {
                    if self.verifying.remove(&number) {
                        self.reports.push(Report::Answered { session: self.job.first + number as u32 });
                    } else {
                        self.watch.answered(number, mark, now());
                    }
                }
            }
        }
        match self.members[number].due() {
            Some(at) => self.timers.set(number, at),
            None => self.timers.cancel(number),
        }
        handled
    }

    fn came_up(&mut self, number: usize) {
        self.opening.remove(&number);
        let began = self.members[number].began.take();
        let took_ns = began.map_or(0, |began| now().since(began).as_nanos() as u64);
        let (session, at_ns) = (self.job.first + number as u32, now_ns());
        self.reports.push(Report::Up { session, at_ns, by: KeySource::Login, took_ns });
    }

    /// From now on the first clients send by `plan`; without one they stop.
    fn set_load(&mut self, plan: Option<Plan>) {
        self.load = None;
        let Some(plan) = plan else { return };
        let made = self.templates(&plan).and_then(|templates| {
            let datagram_len = |len| Some(Sealer::message_len(len));
            Load::new(plan, templates, datagram_len, now()).ok_or_else(|| "there is no flow".to_owned())
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
        let is_possible = match plan.direction {
            Direction::Pairs => plan.sessions.is_multiple_of(2),
            Direction::Up => self.job.campus.is_some(),
            Direction::Down | Direction::Both => false,
        };
        let is_plain = plan.small == 0 && plan.calls == 0 && plan.rate.is_none();
        // Whether a server pads the longest packets beyond its MTU is its own choice.
        let packet = plan.packet.unwrap_or(u16::MAX).min(self.job.mtu);
        let packet = packet - packet % PADDING as u16;
        // Packets of few bytes are padded to the length of an acknowledgement's.
        let is_told_apart = Sealer::message_len(packet.into()) > Sealer::message_len(ACKNOWLEDGEMENT.into());
        if !is_possible || !is_plain || !is_told_apart || plan.sessions as usize > self.members.len() {
            return Err(format!("{} clients of WireGuard have no such traffic", plan.sessions));
        }
        let template = |(flow, [from, to]): (usize, [End; 2])| {
            let address = |end: End| match end {
                End::Session(number) => self.members[number].inner,
                End::Campus => self.job.far,
            };
            let transport = if plan.direction.needs_campus() { Transport::Udp } else { Transport::Tcp };
            let len = if flow < plan.bulk_flows() { packet } else { ACKNOWLEDGEMENT };
            Templates { usual: Template::new(transport, address(from), address(to), len), small: None }
        };
        Ok(plan.ends().into_iter().enumerate().map(template).collect())
    }

    fn revive(&mut self) {
        if let Some(load) = &mut self.load {
            load.revive(now());
        }
        self.send_turns();
    }

    /// Takes what arrived at the sockets of these clients; what that makes room for is sent before
    /// the next one is looked at.
    fn receive(&mut self, ready: &[usize]) {
        let mut buffer = [0; MAX_DATAGRAM];
        for &number in ready {
            if number == CAMPUS {
                self.receive_at_campus(&mut buffer);
            } else {
                for _ in 0..RUNS {
                    let Some(run) = self.sockets.receive(number, &mut buffer) else { break };
                    self.received(number, &mut buffer[..run.first], run);
                }
            }
            self.send_turns();
        }
    }

    fn receive_at_campus(&mut self, buffer: &mut [u8]) {
        for _ in 0..CAMPUS_RUNS {
            let Some((run, from)) = self.sockets.receive_at_campus(buffer) else { return };
            let Some(load) = &mut self.load else { continue };
            let Some(&flow) = load.senders.get(&from) else { continue };
            let Some(stamp) = Template::read_payload(&buffer[..run.first]) else { continue };
            let Some(size) = load.payload_size(flow, run.first) else { continue };
            load.note_delay(flow, stamp, run);
            let payload = size.payload as u64 * run.datagrams;
            load.arrived(flow, (run.datagrams, payload), Some(stamp.number), now());
        }
    }

    /// A run of datagrams arrived for a client, of which this is the first. All but the last of a
    /// run are of one length, and that may be another flow's.
    fn received(&mut self, number: usize, first: &mut [u8], run: Received) {
        let arriving = |len| self.load.as_ref().and_then(|load| load.arriving(number, len));
        let (head, last) = (arriving(first.len()), if run.datagrams > 1 { arriving(run.last) } else { None });
        let Some((flow, size)) = head else {
            self.open(number, first);
            return;
        };
        let same = last.is_some_and(|(of, _)| of == flow);
        let packets = (run.datagrams - u64::from(run.datagrams > 1 && !same)).max(1);
        let is_sample = self.load.as_ref().is_some_and(|load| load.is_sample(flow, now()));
        let opened = is_sample.then(|| self.open(number, first)).flatten();
        let Some(load) = &mut self.load else { return };
        let stamp = opened.and_then(|_| {
            let usual = &load.templates[flow].usual;
            usual.read(first.get(TRANSPORT_HEADER_LEN..TRANSPORT_HEADER_LEN + usual.len())?)
        });
        if is_sample {
            load.opened += u64::from(stamp.is_some());
            load.strange += u64::from(stamp.is_none());
        }
        if let Some(stamp) = stamp {
            load.note_delay(flow, stamp, run);
        }
        let counts = (packets, packets * size.payload as u64);
        load.arrived(flow, counts, stamp.map(|stamp| stamp.number), now());
        if let (Some((flow, size)), false) = (last, same) {
            load.arrived(flow, (1, size.payload as u64), None, now());
        }
    }

    /// Opens a datagram in place. Nothing if it is not authentic, or carries no data.
    fn open(&mut self, number: usize, datagram: &mut [u8]) -> Option<usize> {
        let from = Endpoint { remote: self.job.server, local: None };
        self.with(number, |member, tasks| member.datagram(now(), from, datagram, tasks))
    }

    /// Bursts of the flows whose turn it is.
    fn send_turns(&mut self) {
        let Some(mut load) = self.load.take() else { return };
        let start = now();
        while let Some(turn) = load.next_turn(start) {
            let at = now();
            match self.send_burst(&mut load, turn, at) {
                Some(true) => load.sent(turn, at),
                Some(false) => load.refused(turn, at),
                // Without keys nothing was to be had.
                None => {}
            }
        }
        self.load = Some(load);
    }

    /// Whether the kernel took the burst; `None` if there was none.
    fn send_burst(&mut self, load: &mut Load, turn: Turn, at: Time) -> Option<bool> {
        let [End::Session(session), _] = load.ends[turn.flow] else { return None };
        let mut stamp = Stamp { number: load.flows[turn.flow].number(), at_ns: now_ns() };
        let Load { templates, buffer, .. } = &mut *load;
        let template = templates[turn.flow].of(turn);
        let write = |packet: &mut [u8]| {
            template.write(packet, stamp);
            // There is nothing behind WireGuard that completes checksums.
            complete(packet).expect("a template's packet is whole");
            stamp.number += 1;
        };
        let packets = (template.len(), turn.packets);
        let size = self.with(session, |member, tasks| member.burst(at, packets, buffer, write, tasks))?;
        Some(self.sockets.send(session, &buffer[..size * turn.packets as usize], size))
    }
}
