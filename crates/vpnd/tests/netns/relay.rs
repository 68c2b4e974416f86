//! A bad network: what clients send to the gateway's UDP port passes through here, both ways, and
//! gets lost, late, doubled and written down as ordered.
//!
//! Numbered as a datagram meets it: 1. `net` redirects it to the relay's port; 2. its sender gets a
//! *flow*, a socket towards the gateway; 3. dice decide its fate; 4. it waits in the queue for its
//! time; 5. it is sent on. To the gateway each flow looks like a client behind a NAT:
//! [`Relay::rebind`] gives all flows new ports.
//!
//! Invariants: the dice are seeded; the number of flows, waiting and recorded datagrams is bounded.
//! This module knows one thing of the protocol: data datagrams begin with 0x80.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::lab::{GATEWAY_V4, Lab};

/// The UDP port of the gateway that the relay stands before.
pub(crate) const PORT: u16 = 4433;

const MAX_FLOWS: usize = 64;
const MAX_WAITING: usize = 10_000;
const MAX_RECORDED: usize = 1_000;
const DATA: u8 = 0x80;

/// Faults of the link, for each direction; none by default.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) seed: u64,
    /// Datagrams of a hundred that are lost.
    pub(crate) lose: u32,
    /// Datagrams of a hundred that wait for up to 5 ms and so arrive after later ones.
    pub(crate) delay: u32,
    /// Datagrams of a hundred that arrive twice.
    pub(crate) repeat: u32,
    /// Delay of every datagram.
    pub(crate) latency: Duration,
    /// Whether data datagrams towards the gateway are recorded.
    pub(crate) record: bool,
    /// Whether handshakes and control messages are recorded with them.
    pub(crate) record_all: bool,
}

/// The relay at work; ends with its value.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    rebind: AtomicBool,
    lost: AtomicU64,
    delayed: AtomicU64,
    repeated: AtomicU64,
    recorded: Mutex<Vec<Vec<u8>>>,
    replay: Mutex<Vec<Vec<u8>>>,
}

impl Relay {
    /// Puts the relay between all clients of the laboratory and its gateway.
    pub(crate) fn start(lab: &Lab, faults: Faults) -> Self {
        let listen = lab.net.within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).expect("a port is free");
        let port = listen.local_addr().expect("it is bound").port();
        let from: Vec<String> =
            (1..=lab.clients.len()).map(|n| format!("\"{}\"", Lab::port(n as u8))).collect();
        let from = from.join(", ");
        // Clients dial by IPv6 too where IPv4 takes long, and no datagram may bypass the relay.
        lab.net.nft(&format!(
            "add table ip relay\n\
             add chain ip relay in {{ type nat hook prerouting priority dstnat; }}\n\
             add rule ip relay in iifname {{ {from} }} udp dport {PORT} redirect to :{port}\n\
             add table ip6 relay\n\
             add chain ip6 relay in {{ type filter hook prerouting priority dstnat; }}\n\
             add rule ip6 relay in iifname {{ {from} }} udp dport {PORT} drop\n",
        ));
        let shared = Arc::new(Shared::default());
        let work = Arc::clone(&shared);
        let (entered, enters) = std::sync::mpsc::channel();
        let handle = lab.net.handle();
        let thread = thread::spawn(move || {
            handle.enter();
            entered.send(()).expect("the laboratory waits for it");
            Worker::new(listen, faults, work).run();
        });
        enters.recv().expect("the relay's thread enters its namespace");
        Self { shared, thread: Some(thread) }
    }

    /// From the next datagram on, every flow has a new port: what a NAT does that has restarted.
    pub(crate) fn rebind(&self) {
        self.shared.rebind.store(true, Ordering::Relaxed);
    }

    /// Data datagrams that went to the gateway, the oldest first.
    pub(crate) fn recorded(&self) -> Vec<Vec<u8>> {
        self.shared.recorded.lock().expect("no panic holds it").clone()
    }

    /// Sends datagrams to the gateway once more, on the path of one of the flows.
    pub(crate) fn replay(&self, datagrams: Vec<Vec<u8>>) {
        self.shared.replay.lock().expect("no panic holds it").extend(datagrams);
    }

    /// Datagrams lost, delayed and repeated until now.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.shared.lost, &self.shared.delayed, &self.shared.repeated]
            .map(|count| count.load(Ordering::Relaxed))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Flow {
    client: SocketAddr,
    socket: UdpSocket,
    /// Time of its client's last datagram.
    heard: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Towards {
    Gateway,
    Client,
}

/// A datagram that waits: when, in which order, for which flow.
type Waiting = Reverse<(Instant, u64, usize, Towards, Vec<u8>)>;

struct Worker {
    listen: UdpSocket,
    faults: Faults,
    dice: StdRng,
    flows: Vec<Flow>,
    waiting: BinaryHeap<Waiting>,
    order: u64,
    buffer: Vec<u8>,
    shared: Arc<Shared>,
}

impl Worker {
    fn new(listen: UdpSocket, faults: Faults, shared: Arc<Shared>) -> Self {
        listen.set_nonblocking(true).expect("a socket can be made non-blocking");
        let dice = StdRng::seed_from_u64(faults.seed);
        let (flows, waiting) = (Vec::new(), BinaryHeap::new());
        Self { listen, faults, dice, flows, waiting, order: 0, buffer: vec![0; 65_536], shared }
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.wait();
            if self.shared.rebind.swap(false, Ordering::Relaxed) {
                self.flows.iter_mut().for_each(|flow| flow.socket = towards_gateway());
            }
            self.receive_from_clients();
            self.receive_from_gateway();
            self.send_due();
            self.send_replays();
        }
    }

    fn wait(&self) {
        let next = self.waiting.peek().map(|Reverse((at, ..))| at.saturating_duration_since(Instant::now()));
        let limit = next.unwrap_or(Duration::from_millis(20)).min(Duration::from_millis(20));
        let sockets = self.flows.iter().map(|flow| &flow.socket).chain([&self.listen]);
        let mut descriptors: Vec<_> = sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let limit = Timespec::try_from(limit).expect("20 ms can be expressed");
        // An interrupted wait is a short wait.
        let _ = poll(&mut descriptors, Some(&limit));
    }

    fn receive_from_clients(&mut self) {
        loop {
            let (length, client) = match self.listen.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A destination that has gone makes the next call fail; the one after is good
                // again.
                Err(_) => continue,
            };
            let flow = self.flow_of(client);
            let datagram = self.buffer[..length].to_vec();
            if self.faults.record && (self.faults.record_all || datagram.first() == Some(&DATA)) {
                let mut recorded = self.shared.recorded.lock().expect("no panic holds it");
                if recorded.len() < MAX_RECORDED {
                    recorded.push(datagram.clone());
                }
            }
            self.accept(flow, Towards::Gateway, datagram);
        }
    }

    fn receive_from_gateway(&mut self) {
        for flow in 0..self.flows.len() {
            // Bounded, so that one busy flow does not starve the others.
            for _ in 0..256 {
                let Ok(length) = self.flows[flow].socket.recv(&mut self.buffer) else { break };
                let datagram = self.buffer[..length].to_vec();
                self.accept(flow, Towards::Client, datagram);
            }
        }
    }

    fn flow_of(&mut self, client: SocketAddr) -> usize {
        let heard = Instant::now();
        if let Some(known) = self.flows.iter().position(|flow| flow.client == client) {
            self.flows[known].heard = heard;
            return known;
        }
        let new = Flow { client, socket: towards_gateway(), heard };
        if self.flows.len() < MAX_FLOWS {
            self.flows.push(new);
            return self.flows.len() - 1;
        }
        // Acts as a NAT whose table is full: the flow that was silent for longest is forgotten,
        // with all that waits for it.
        let silent =
            (0..MAX_FLOWS).min_by_key(|&flow| self.flows[flow].heard).expect("there is at least one flow");
        self.waiting.retain(|Reverse((_, _, flow, ..))| *flow != silent);
        self.flows[silent] = new;
        silent
    }

    fn accept(&mut self, flow: usize, towards: Towards, datagram: Vec<u8>) {
        if self.dice.random_range(0..100) < self.faults.lose || self.waiting.len() >= MAX_WAITING {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let copies = if self.dice.random_range(0..100) < self.faults.repeat { 2 } else { 1 };
        self.shared.repeated.fetch_add(copies - 1, Ordering::Relaxed);
        for _ in 0..copies {
            let late = self.dice.random_range(0..100) < self.faults.delay;
            let delay =
                if late { Duration::from_micros(self.dice.random_range(100..5_000)) } else { Duration::ZERO };
            let delay = self.faults.latency + delay;
            self.shared.delayed.fetch_add(u64::from(late), Ordering::Relaxed);
            self.order += 1;
            self.waiting.push(Reverse((Instant::now() + delay, self.order, flow, towards, datagram.clone())));
        }
    }

    fn send_due(&mut self) {
        let now = Instant::now();
        while self.waiting.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, _, flow, towards, datagram))) = self.waiting.pop() else { return };
            let flow = &self.flows[flow];
            // A full or refusing socket loses the datagram, as networks do.
            let _ = match towards {
                Towards::Gateway => flow.socket.send(&datagram),
                Towards::Client => self.listen.send_to(&datagram, flow.client),
            };
        }
    }

    fn send_replays(&mut self) {
        let replays = std::mem::take(&mut *self.shared.replay.lock().expect("no panic holds it"));
        let Some(flow) = self.flows.last() else { return };
        for datagram in replays {
            let _ = flow.socket.send(&datagram);
        }
    }
}

/// A socket towards the gateway from a fresh port. The calling thread is in the namespace `net`.
fn towards_gateway() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port is free");
    socket.connect((GATEWAY_V4, PORT)).expect("there is a route");
    socket.set_nonblocking(true).expect("a socket can be made non-blocking");
    socket
}
