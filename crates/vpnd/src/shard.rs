//! A shard: a pinned thread with its own runtime, TUN queue, UDP socket, buffers and keys.
//!
//! It runs each batch to completion. From the TUN device: 1. read one (super-)packet; 2. find its session; 3. cut it into
//! slices, each written behind room for a header; 4. seal in place; 5. one send for the batch. From the socket: 1. receive
//! a run of datagrams; 2. open each in place; 3. what is for another client is sealed again in the same buffer and sent;
//! the rest is rebuilt into super-packets; 4. one gathered write each to the TUN device.
//!
//! INVARIANT: no lock, no queue between threads and no decision of policy stands on these two ways; what the shard must
//! know comes as [`Order`]s between batches, and what it saw goes out as [`Event`]s.

mod batch;
pub mod devices;
mod inbound;
mod outbound;
mod oversize;
pub mod stepped;
mod writes;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::io::Interest;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot};
use vpnd_proto::ecn::Ecn;
use vpnd_proto::plane::{self, Activity, Command, Counters, Endpoint, Event, Outgoing, Plane, Role, Slot};
use vpnd_proto::policy::Policy;

use crate::clock::now;
use crate::control::quic_forwarder::QuicForwarder;
use crate::sys::process;
use crate::sys::tun::{TunOffloads, TunQueue};
use crate::sys::udp::{ShardSocket, UdpOffloads};
use devices::DatagramSocket;
use inbound::Inbound;
use outbound::Outbound;
pub use writes::TunWrites;

/// Events of all shards that wait for the control plane at most. A shard never waits for room: what does not fit stays in its
/// plane, which keeps a fixed number and has the rest told again.
pub const EVENT_QUEUE: usize = 4_096;
/// Orders that wait for a shard at most. The control plane waits for room, which always comes: a shard waits for nobody, and
/// takes orders between any two batches. So the two can't wait for each other.
const ORDER_QUEUE: usize = 1_024;
/// Datagrams that came to the wrong shard and wait for the right one at most.
const MISDIRECTED_QUEUE: usize = 512;
/// What the control plane asks of a shard.
#[derive(Debug)]
pub enum Order {
    /// For the data plane.
    Plane(Command),
    /// Answered when every order before it has been carried out.
    Barrier(oneshot::Sender<()>),
    /// The tunnel carries inner packets of this many bytes at most.
    Mtu(u16),
    /// Asks for figures.
    Report(oneshot::Sender<Report>),
}

/// What waits for a shard, in order.
enum Waiting {
    Order(Order),
    Freeze(Freeze),
}

/// Stop where you are, and tell how far the lanes have come. Goes on if it is told so, and ends if it never will be.
struct Freeze {
    progress: oneshot::Sender<Vec<plane::Progress>>,
    go_on: oneshot::Receiver<()>,
}

/// A shard's figures.
#[derive(Debug)]
pub struct Report {
    /// What was dropped, and why.
    pub counters: Counters,
    /// The traffic over this shard since the last report, of the sessions that had some.
    pub activities: Vec<(Slot, Activity)>,
    /// Offloads of the socket.
    pub udp: UdpOffloads,
    /// Offloads of what is written to the TUN device.
    pub tun: TunWrites,
}

/// A datagram that the kernel gave to the wrong shard.
#[derive(Debug)]
pub(crate) struct Misdirected {
    datagram: Box<[u8]>,
    origin: Origin,
}

/// What the kernel says of a datagram beside its contents.
#[derive(Clone, Copy, Debug)]
struct Origin {
    from: Endpoint,
    /// The congestion codepoint of its outer header.
    mark: Ecn,
}

/// What a shard is made of.
pub struct ShardSpec {
    /// Number of the shard; its lane.
    pub number: usize,
    /// Core to run on, if it is to be pinned.
    pub core: Option<usize>,
    /// How far it goes before other work of the machine: the negative of its nice value.
    pub priority: u8,
    /// Which end of the tunnel this is.
    pub role: Role,
    /// The policy to begin with.
    pub policy: Arc<Policy>,
    /// Random; keys the hashes of the route table.
    pub hash_seed: u64,
    /// Its queue of the TUN device.
    pub tun: TunQueue,
    /// The device's offloads.
    pub tun_offloads: TunOffloads,
    /// Largest inner packet that the tunnel carries, in bytes.
    pub mtu: u16,
    /// Whether outer datagrams show the DSCP of the packets inside.
    pub copy_dscp: bool,
    /// Its socket.
    pub socket: ShardSocket,
    /// Carried out before anything is received.
    pub first: Vec<Command>,
    /// Where to pass datagrams for QUIC; there is such a place only if the kernel does not steer them to QUIC itself.
    pub(crate) quic: Option<QuicForwarder>,
}

/// The control plane's ends of all shards.
pub struct Shards {
    orders: Vec<mpsc::Sender<Waiting>>,
    threads: Vec<JoinHandle<()>>,
    failure: Arc<Notify>,
}

impl Shards {
    /// Starts a thread for each of `specs`. Events arrive on `events` with their shard's number.
    ///
    /// # Errors
    /// If the operating system gives no thread or no event queue; the shards started before are stopped.
    pub fn start(specs: Vec<ShardSpec>, events: &mpsc::Sender<(usize, Event)>) -> io::Result<Self> {
        let (neighbours, mut inboxes): (Vec<_>, Vec<_>) =
            specs.iter().map(|_| mpsc::channel(MISDIRECTED_QUEUE)).unzip();
        let failure = Arc::new(Notify::new());
        let mut shards = Self { orders: Vec::new(), threads: Vec::new(), failure: Arc::clone(&failure) };
        for (spec, misdirected) in specs.into_iter().zip(inboxes.drain(..)) {
            let (orders, inbox) = mpsc::channel(ORDER_QUEUE);
            let links =
                Links { orders: inbox, misdirected, neighbours: neighbours.clone(), events: events.clone() };
            let thread = std::thread::Builder::new().name(format!("shard-{}", spec.number));
            shards.orders.push(orders);
            let failure = Arc::clone(&failure);
            // Made here, so that a lack of descriptors is known before anybody relies on the shard.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            shards.threads.push(thread.spawn(move || {
                if let Err(error) = run_thread(runtime, spec, links) {
                    tracing::error!(%error, "a shard stopped");
                    failure.notify_one();
                }
            })?);
        }
        Ok(shards)
    }

    /// Notified when a shard stopped by itself: its device or socket is gone, and the daemon cannot go on.
    #[must_use]
    pub fn failure(&self) -> Arc<Notify> {
        Arc::clone(&self.failure)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.orders.len()
    }

    /// Gives one shard's data plane an order.
    pub async fn command(&self, shard: usize, command: Command) {
        self.order(shard, Order::Plane(command)).await;
    }

    /// Tells all shards the tunnel's MTU.
    pub async fn set_mtu(&self, mtu: u16) {
        for shard in 0..self.count() {
            self.order(shard, Order::Mtu(mtu)).await;
        }
    }

    /// Waits until all shards have carried out everything ordered before.
    pub async fn barrier(&self) {
        let mut waits = Vec::with_capacity(self.count());
        for shard in 0..self.count() {
            let (done, wait) = oneshot::channel();
            self.order(shard, Order::Barrier(done)).await;
            waits.push(wait);
        }
        for wait in waits {
            // A shard that is gone has nothing left to carry out.
            let _ = wait.await;
        }
    }

    /// Asks every shard for its figures.
    pub async fn report(&self) -> Vec<Report> {
        let mut waits = Vec::with_capacity(self.count());
        for shard in 0..self.count() {
            let (reply, wait) = oneshot::channel();
            self.order(shard, Order::Report(reply)).await;
            waits.push(wait);
        }
        let mut reports = Vec::with_capacity(waits.len());
        for wait in waits {
            reports.extend(wait.await.ok());
        }
        reports
    }

    /// Stops all shards where they are: nothing is sealed, opened or read until they go on.
    ///
    /// # Errors
    /// If a shard is gone; the others go on.
    pub(crate) async fn freeze(&self) -> Result<Frozen, ShardGone> {
        let mut frozen = Frozen { progress: Vec::new(), shards: Vec::new() };
        let mut waits = Vec::with_capacity(self.count());
        for shard in 0..self.count() {
            let (progress, wait) = oneshot::channel();
            let (order, go_on) = oneshot::channel();
            let _ = self.orders[shard].send(Waiting::Freeze(Freeze { progress, go_on })).await;
            frozen.shards.push(order);
            waits.push(wait);
        }
        for wait in waits {
            match wait.await {
                Ok(progress) => frozen.progress.push(progress),
                Err(_) => {
                    frozen.go_on();
                    return Err(ShardGone);
                }
            }
        }
        Ok(frozen)
    }

    async fn order(&self, shard: usize, order: Order) {
        // A shard ends only together with the process or after a failure that it reported itself.
        let _ = self.orders[shard].send(Waiting::Order(order)).await;
    }
}

/// A shard has ended, and with it soon the daemon.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a shard has stopped")]
pub(crate) struct ShardGone;

/// Shards that stand still. Dropping it ends them.
pub(crate) struct Frozen {
    /// How far each shard's lanes have come.
    pub(crate) progress: Vec<Vec<plane::Progress>>,
    shards: Vec<oneshot::Sender<()>>,
}

impl Frozen {
    /// Lets them go on as if nothing had been. Only for whoever has given their progress to nobody who uses it.
    pub(crate) fn go_on(self) {
        for shard in self.shards {
            // One that is gone has reported that itself.
            let _ = shard.send(());
        }
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        self.orders.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A shard's queues.
struct Links {
    orders: mpsc::Receiver<Waiting>,
    misdirected: mpsc::Receiver<Misdirected>,
    neighbours: Vec<mpsc::Sender<Misdirected>>,
    events: mpsc::Sender<(usize, Event)>,
}

fn run_thread(runtime: Runtime, spec: ShardSpec, links: Links) -> io::Result<()> {
    if let Some(core) = spec.core
        && let Err(error) = process::pin_current_thread(core)
    {
        tracing::warn!(shard = spec.number, core, %error, "can't pin the shard to its core");
    }
    if spec.priority > 0
        && let Err(error) = process::prefer_current_thread(spec.priority)
    {
        tracing::warn!(
            shard = spec.number,
            priority = spec.priority,
            %error,
            "can't put the shard before other work; it needs CAP_SYS_NICE, or RLIMIT_NICE of 20 plus the priority",
        );
    }
    runtime.block_on(run(spec, links))
}

/// The loop: orders first, then whichever of the two directions has work.
async fn run(spec: ShardSpec, mut links: Links) -> io::Result<()> {
    let tun = spec.tun.into_async()?;
    let socket = spec.socket.into_async()?;
    let mut shard =
        Shard::new(spec.number, spec.role, spec.policy, spec.hash_seed, spec.tun_offloads, spec.mtu);
    (shard.neighbours, shard.quic) = (links.neighbours, spec.quic);
    shard.plane.set_copies_dscp(spec.copy_dscp);
    for command in spec.first {
        shard.obey(Order::Plane(command), socket.get_ref());
    }
    loop {
        tokio::select! {
            order = links.orders.recv() => {
                match order {
                    None => return Ok(()),
                    Some(Waiting::Order(order)) => shard.obey(order, socket.get_ref()),
                    Some(Waiting::Freeze(Freeze { progress, go_on })) => {
                        // Whoever asked may have given up; then it drops the other end, too.
                        let _ = progress.send(shard.plane.progress());
                        if go_on.await.is_err() {
                            return Ok(());
                        }
                    }
                }
            }
            // Only while the control plane is behind; otherwise events have left after the batch that brought them.
            room = links.events.reserve(), if shard.plane.has_events() => {
                if let Ok(room) = room && let Some(event) = shard.poll_event(socket.get_ref()) {
                    room.send((shard.number, event));
                }
            }
            Some(stray) = links.misdirected.recv() => shard.take_stray(stray, socket.get_ref(), tun.get_ref()),
            ready = socket.readable() => {
                let mut ready = ready?;
                if shard.receive(ready.get_inner(), tun.get_ref()) == Progress::Drained {
                    ready.clear_ready();
                }
            }
            // A device that somebody has deleted is an error and nothing else: asked for what can be read, it is silent.
            ready = tun.ready(Interest::READABLE | Interest::ERROR) => {
                let mut ready = ready?;
                let outbound = &mut shard.outbound;
                if outbound.transmit(now(), ready.get_inner(), &mut shard.plane, socket.get_ref())? == Progress::Drained {
                    ready.clear_ready();
                }
            }
        }
        shard.report_events(&links.events, socket.get_ref());
    }
}

/// Whether a source has more at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It would block.
    Drained,
    /// The other direction has its turn, then come back.
    More,
}

struct Shard {
    number: usize,
    role: Role,
    plane: Plane,
    inbound: Inbound,
    outbound: Outbound,
    neighbours: Vec<mpsc::Sender<Misdirected>>,
    quic: Option<QuicForwarder>,
}

impl Shard {
    /// A shard that has no neighbours and no door for QUIC.
    fn new(
        number: usize,
        role: Role,
        policy: Arc<Policy>,
        hash_seed: u64,
        tun_offloads: TunOffloads,
        mtu: u16,
    ) -> Self {
        Self {
            number,
            role,
            plane: Plane::new(role, policy, hash_seed),
            inbound: Inbound::new(tun_offloads),
            outbound: Outbound::new(mtu),
            neighbours: Vec::new(),
            quic: None,
        }
    }

    fn obey(&mut self, order: Order, socket: &impl DatagramSocket) {
        match order {
            Order::Plane(command) => {
                let waiting = match &command {
                    Command::Install(spec) => Some(spec.slot),
                    Command::Reach { slot, .. } => Some(*slot),
                    _ => None,
                };
                if let Some(outgoing) = self.plane.apply(command) {
                    self.originate(outgoing, socket);
                }
                if let Some(slot) = waiting {
                    self.release(slot, socket);
                }
            }
            Order::Barrier(done) => {
                // Whoever asked may have given up waiting.
                let _ = done.send(());
            }
            Order::Mtu(mtu) => self.outbound.set_mtu(mtu),
            Order::Report(reply) => {
                let _ = reply.send(self.report(socket));
            }
        }
    }

    fn report(&mut self, socket: &impl DatagramSocket) -> Report {
        Report {
            counters: self.plane.counters().clone(),
            activities: self.plane.take_activities(),
            udp: socket.offloads(),
            tun: self.inbound.writes(),
        }
    }

    /// Tells the control plane what happened, as far as it has room, and lets packets go that waited for it.
    fn report_events(&mut self, events: &mpsc::Sender<(usize, Event)>, socket: &impl DatagramSocket) {
        while self.plane.has_events() {
            match events.try_reserve() {
                Ok(room) => {
                    let Some(event) = self.poll_event(socket) else { return };
                    room.send((self.number, event));
                }
                Err(TrySendError::Full(())) => return,
                // The control plane is gone only when the daemon ends.
                Err(TrySendError::Closed(())) => drop(self.poll_event(socket)),
            }
        }
    }

    fn poll_event(&mut self, socket: &impl DatagramSocket) -> Option<Event> {
        let event = self.plane.poll_event()?;
        if let Event::Heard { slot, .. } = event {
            self.release(slot, socket);
        }
        Some(event)
    }

    /// Sends what waited for an epoch of this session.
    fn release(&mut self, slot: Slot, socket: &impl DatagramSocket) {
        let now = now();
        while let Some(packet) = self.plane.poll_waiting(now, slot) {
            self.outbound.packet(now, slot, &packet, &mut self.plane, socket);
        }
        self.outbound.flush(&mut self.plane, socket);
    }

    /// Sends a probe, a reply or a keepalive.
    fn originate(&mut self, outgoing: Outgoing, socket: &impl DatagramSocket) {
        self.outbound.originate(now(), outgoing, &mut self.plane, socket);
    }
}
