//! A shard: a pinned thread with its own runtime, TUN queue, UDP socket, buffers and keys.
//!
//! It runs each batch to completion. [`Shard::transmit`], from the TUN device: 1. read one
//! (super-)packet; 2. find its session;
//! 3. cut it into slices, each written behind room for a header; 4. seal in place; 5. one send for
//!    the batch.
//! [`Shard::receive`], from the socket: 1. receive a run of datagrams; 2. find the session of each
//! and open it in place; 3. a packet for another client is sealed again in the same buffer and
//! sent; the others are rebuilt into super-packets; 4. one gathered write each to the TUN device.
//!
//! INVARIANTS: no lock, no queue between threads and no decision of policy stands on these two
//! ways; the control plane's [`ShardMessage`]s are handled between batches, and [`Event`]s leave
//! after them. A dropped packet is counted once, in the plane's [`Counters`].
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

mod backlog;
mod batch;
mod busy_poll;
mod codel;
pub mod devices;
mod fair_queue;
mod hand_off;
pub mod handshake_queue;
mod inbound;
mod marks;
mod outbound;
mod overload;
mod oversize;
pub mod quic_forwarder;
mod sealer;
mod shard;
pub mod stepped;
mod stir;
pub mod suites;
#[cfg(feature = "testing")]
pub mod testing;
mod thread;
mod tunnel;
mod writes;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use vpnd_proto::plane::{self, Activity, Command, Counters, DataHeader, Event, Origin, Role, Slot};
use vpnd_proto::policy::Policy;
use vpnd_proto::wire::Index;

use crate::handshake_queue::HandshakeQueue;
use crate::quic_forwarder::QuicForwarder;
pub use busy_poll::PollCounts;
use shard::Shard;
use stir::Stir;
use vpnd_sys::clock::now;
use vpnd_sys::tun::{TunOffloads, TunQueue};
use vpnd_sys::udp::{ShardSocket, UdpOffloads};
pub use writes::TunWrites;

/// Events of all shards that wait for the control plane at most. A shard never waits for room: an
/// event that finds none stays in its plane, which keeps a fixed number and reports the others
/// again.
pub const EVENT_QUEUE: usize = 4_096;
/// Messages that wait for a shard at most. The control plane waits for room, which always comes: a
/// shard waits for no other thread, and takes messages between any two batches. So the two can't
/// wait for each other.
const MESSAGE_QUEUE: usize = 1_024;
/// Datagrams that came to the wrong shard and wait for the right one at most.
const MISDIRECTED_QUEUE: usize = 512;

/// Logs, once in a process, that batches to `peer` are lost and no longer sent.
pub fn warn_of_lost_batches(peer: SocketAddr) {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        tracing::warn!(
            to = %peer.ip().to_canonical(),
            "batches of datagrams (UDP segmentation offload) are lost on the way to this peer, single ones are not: it is \
             sent single ones, slower, and batches are tried again after ten minutes. Some kernels and drivers damage \
             batches: `vpnd doctor` on this machine names them, and an update cures them. `udp_gso = false` in [offload] \
             keeps batches from being tried"
        );
    });
}

/// A message of the control plane to a shard.
#[derive(Debug)]
pub enum ShardMessage {
    /// For the data plane.
    Plane(Command),
    /// Answered when every message before it has been handled.
    Barrier(oneshot::Sender<()>),
    /// The tunnel carries inner packets of this many bytes at most.
    Mtu(u16),
    /// Requests figures.
    Report(oneshot::Sender<Report>),
}

/// An entry of a shard's queue.
enum Queued {
    Message(ShardMessage),
    Freeze(Freeze),
}

/// Makes a shard stop where it is and send how far its lanes have come. It resumes when it receives
/// `resume`, and ends if that is dropped.
struct Freeze {
    progress: oneshot::Sender<ShardProgress>,
    resume: oneshot::Receiver<()>,
}

/// How far a shard has come that stands still.
struct ShardProgress {
    lanes: Vec<plane::Progress>,
    opened: Vec<(Index, u64)>,
}

/// A shard's figures.
#[derive(Debug)]
pub struct Report {
    /// Drops by reason.
    pub counters: Counters,
    /// The traffic over this shard since the last report, of the sessions that had some.
    pub activities: Vec<(Slot, Activity)>,
    /// Offloads of the socket.
    pub udp: UdpOffloads,
    /// Offloads of what is written to the TUN device.
    pub tun: TunWrites,
    /// Costs and gains of polling.
    pub poll: PollCounts,
}

/// A datagram that the kernel gave to the wrong shard.
#[derive(Debug)]
pub(crate) struct Misdirected {
    header: DataHeader,
    datagram: Box<[u8]>,
    origin: Origin,
}

/// A shard's settings and devices.
pub struct ShardSpec {
    /// Number of the shard; its lane.
    pub number: usize,
    /// Core to run on, if it is to be pinned.
    pub core: Option<usize>,
    /// Its priority over other work of the machine: the negative of its nice value. With 0 it has
    /// no shorter time slice than other threads, either.
    pub priority: u8,
    /// Time for which it polls for the next packet before it sleeps, if that is likely to come in
    /// time; 0 is never.
    pub busy_poll: Duration,
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
    /// Handled before anything is received.
    pub first: Vec<Command>,
    /// Where to pass datagrams for QUIC; there is such a place only if the kernel does not steer
    /// them to QUIC itself.
    pub quic: Option<QuicForwarder>,
    /// Where to pass messages of WireGuard's handshakes, if stock WireGuard clients are served.
    pub wireguard: Option<HandshakeQueue>,
}

/// The control plane's ends of all shards.
pub struct Shards {
    queues: Vec<mpsc::Sender<Queued>>,
    threads: Vec<JoinHandle<()>>,
    failure: Arc<Notify>,
    stir: Arc<Stir>,
}

impl Shards {
    /// Starts a thread for each of `specs`. Their events arrive on `events`.
    ///
    /// # Errors
    /// If the operating system gives no thread or no event queue; the shards started before are
    /// stopped.
    pub fn start(specs: Vec<ShardSpec>, events: &mpsc::Sender<Event>) -> io::Result<Self> {
        let (neighbours, mut inboxes): (Vec<_>, Vec<_>) =
            specs.iter().map(|_| mpsc::channel(MISDIRECTED_QUEUE)).unzip();
        let failure = Arc::new(Notify::new());
        let stir = Arc::<Stir>::default();
        let mut shards = Self {
            queues: Vec::new(),
            threads: Vec::new(),
            failure: Arc::clone(&failure),
            stir: Arc::clone(&stir),
        };
        for (spec, misdirected) in specs.into_iter().zip(inboxes.drain(..)) {
            let (queue, inbox) = mpsc::channel(MESSAGE_QUEUE);
            let stir = Arc::clone(&stir);
            let (neighbours, events) = (neighbours.clone(), events.clone());
            let links = Links { inbox, misdirected, neighbours, events, stir };
            let thread = std::thread::Builder::new().name(format!("shard-{}", spec.number));
            shards.queues.push(queue);
            let failure = Arc::clone(&failure);
            // Made here, so that a lack of descriptors is known before anybody relies on the shard.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            shards.threads.push(thread.spawn(move || {
                if let Err(error) = thread::run_thread(runtime, spec, links) {
                    tracing::error!(%error, "a shard stopped");
                    failure.notify_one();
                }
            })?);
        }
        Ok(shards)
    }

    /// Notified when a shard stopped by itself: its device or socket is gone, and the daemon cannot
    /// go on.
    #[must_use]
    pub fn failure(&self) -> Arc<Notify> {
        Arc::clone(&self.failure)
    }

    /// From now on [`Shards::stirred`] reports the next packets, in either direction.
    pub fn await_packets(&self) {
        self.stir.arm();
    }

    /// Waits until packets have passed since [`Shards::await_packets`]. Safe to cancel.
    pub async fn stirred(&self) {
        self.stir.noted().await;
    }

    /// Returns their number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.queues.len()
    }

    /// Sends a command to one shard's data plane.
    pub async fn command(&self, shard: usize, command: Command) {
        self.send(shard, ShardMessage::Plane(command)).await;
    }

    /// Sends the tunnel's MTU to all shards.
    pub async fn set_mtu(&self, mtu: u16) {
        for shard in 0..self.count() {
            self.send(shard, ShardMessage::Mtu(mtu)).await;
        }
    }

    /// Waits until all shards have handled everything sent before.
    pub async fn barrier(&self) {
        let mut waits = Vec::with_capacity(self.count());
        for shard in 0..self.count() {
            let (done, wait) = oneshot::channel();
            self.send(shard, ShardMessage::Barrier(done)).await;
            waits.push(wait);
        }
        for wait in waits {
            // A shard that is gone has nothing left to handle.
            let _ = wait.await;
        }
    }

    /// The figures of every shard.
    pub async fn report(&self) -> Vec<Report> {
        let mut waits = Vec::with_capacity(self.count());
        for shard in 0..self.count() {
            let (reply, wait) = oneshot::channel();
            self.send(shard, ShardMessage::Report(reply)).await;
            waits.push(wait);
        }
        let mut reports = Vec::with_capacity(waits.len());
        for wait in waits {
            reports.extend(wait.await.ok());
        }
        reports
    }

    /// Stops all shards where they are: nothing is sealed, opened or read until they resume.
    ///
    /// # Errors
    /// If a shard is gone; the others resume.
    pub async fn freeze(&self) -> Result<Frozen, ShardGone> {
        let mut frozen = Frozen { progress: Vec::new(), opened: HashMap::new(), shards: Vec::new() };
        let mut waits = Vec::with_capacity(self.count());
        for shard in 0..self.count() {
            let (progress, wait) = oneshot::channel();
            let (resumer, resume) = oneshot::channel();
            let _ = self.queues[shard].send(Queued::Freeze(Freeze { progress, resume })).await;
            frozen.shards.push(resumer);
            waits.push(wait);
        }
        for wait in waits {
            match wait.await {
                Ok(ShardProgress { lanes, opened }) => {
                    frozen.progress.push(lanes);
                    frozen.opened.extend(opened);
                }
                Err(_) => {
                    frozen.resume();
                    return Err(ShardGone);
                }
            }
        }
        Ok(frozen)
    }

    async fn send(&self, shard: usize, message: ShardMessage) {
        // A shard ends only together with the process or after a failure that it reported itself.
        let _ = self.queues[shard].send(Queued::Message(message)).await;
    }
}

/// A shard has ended, and with it soon the daemon.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a shard has stopped")]
pub struct ShardGone;

/// Shards that stand still. Dropping it ends them.
pub struct Frozen {
    /// How far each shard's lanes have come.
    pub progress: Vec<Vec<plane::Progress>>,
    /// The highest counter that was opened for each index of stock WireGuard clients.
    pub opened: HashMap<Index, u64>,
    shards: Vec<oneshot::Sender<()>>,
}

impl Frozen {
    /// Resumes them where they stopped. Only if nothing uses the progress that they sent: two
    /// shards would seal with one counter.
    pub fn resume(self) {
        for shard in self.shards {
            // One that is gone has reported that itself.
            let _ = shard.send(());
        }
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A shard's queues.
struct Links {
    inbox: mpsc::Receiver<Queued>,
    misdirected: mpsc::Receiver<Misdirected>,
    neighbours: Vec<mpsc::Sender<Misdirected>>,
    events: mpsc::Sender<Event>,
    stir: Arc<Stir>,
}

/// Whether a source has more at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It would block.
    Drained,
    /// The other direction has its turn, then come back.
    More,
}

#[cfg(test)]
mod tests;
