//! The TCP generator: many connections of one pair, half carrying data each way, as fast as they
//! go.
//!
//! Stages: [`Listener::accept_all`] / [`connect_all`] make the connections; [`Transfer::begin`]
//! starts worker threads that wait for the agreed instant; the caller reads [`Transfer::snapshot`]
//! at the instants that bound the measurement; [`Transfer::finish`] stops the senders and drains
//! the receivers, so that the bytes sent and received can be compared.
//!
//! To stay clear of being the bottleneck: few threads with epoll, large writes from one shared
//! buffer, socket buffers left to the kernel's autotuning, and receives that discard in the kernel
//! (MSG_TRUNC) unless the payload is to be checked.

mod connect;
mod worker;

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub(super) use connect::socket_for;
pub use connect::{ConnectError, Listener, connect_all};

use crate::load::congestion::CongestionControl;
use crate::load::payload::Payload;
use worker::Worker;

/// Most connections of one pair; a bound on what a coordinator may ask of an agent.
pub const MAX_STREAMS: u32 = 1024;
/// Most worker threads of one agent.
pub const MAX_THREADS: u32 = 64;

/// The work of one agent for its pair. Both ends get the same, but for `threads`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Random per run and pair; each connection shows it, so that no stranger's connection is taken
    /// for ours.
    pub run_id: u64,
    /// Seed of the payload.
    pub seed: u64,
    /// Connections of the pair; by default the first half (rounded up) carries data from the
    /// connecting host.
    pub streams: u32,
    pub threads: u32,
    /// Bytes handed to the kernel by one send call.
    pub write_bytes: u32,
    /// Read and check every byte instead of discarding it in the kernel.
    pub verify: bool,
    pub congestion: CongestionControl,
    /// Which way the data go, and the sockets' other options.
    #[serde(default)]
    pub shape: Shape,
}

impl Default for Job {
    /// One stream of one thread.
    fn default() -> Self {
        Self {
            run_id: 0,
            seed: 1,
            streams: 1,
            threads: 1,
            write_bytes: 256 * 1024,
            verify: false,
            congestion: CongestionControl::default(),
            shape: Shape::default(),
        }
    }
}

/// Which way the data of a job go, and how its sockets are set up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    pub way: Way,
    /// Bytes of each socket's send and receive buffer; the kernel tunes them if absent.
    pub window: Option<u32>,
    /// Largest segment in bytes, TCP options included (`TCP_MAXSEG`); the path decides if absent.
    pub mss: Option<u32>,
}

/// The directions of a job's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The first half (rounded up) from the connecting host, the others to it.
    #[default]
    Halves,
    /// All from the connecting host.
    Forward,
    /// All to the connecting host.
    Backward,
}

impl Job {
    /// Whether the host that connects (rather than the one that listens) sends on `stream`.
    pub fn connector_sends(&self, stream: u32) -> bool {
        match self.shape.way {
            Way::Halves => stream < self.streams.div_ceil(2),
            Way::Forward => true,
            Way::Backward => false,
        }
    }

    /// The first thing that is out of bounds, in words.
    pub fn problem(&self) -> Option<String> {
        if self.streams == 0 || self.streams > MAX_STREAMS {
            return Some(format!("{} streams asked for, 1 to {MAX_STREAMS} are possible", self.streams));
        }
        if self.threads == 0 || self.threads > MAX_THREADS {
            return Some(format!("{} threads asked for, 1 to {MAX_THREADS} are possible", self.threads));
        }
        if !(1..=1 << 20).contains(&self.write_bytes) {
            return Some(format!(
                "writes of {} bytes asked for, 1 to 1048576 are possible",
                self.write_bytes
            ));
        }
        None
    }
}

/// One connection of the pair as this host sees it.
#[derive(Debug)]
pub struct Stream {
    /// Number within the pair, the same on both hosts.
    pub index: u32,
    /// Whether this host sends (else it receives).
    pub sends: bool,
    pub(crate) socket: TcpStream,
}

/// The bytes of one connection over its whole life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTotal {
    /// Number within the pair.
    pub index: u32,
    /// Whether this host sent.
    pub sends: bool,
    /// Bytes from the start to the end of draining.
    pub bytes: u64,
    /// A receiver saw the sender's orderly end; a sender could announce it.
    pub complete: bool,
    /// Why the connection broke or which payload was wrong.
    pub fault: Option<String>,
}

const RUN: u8 = 0;
const DRAIN: u8 = 1;
const ABORT: u8 = 2;

/// State that the caller and the worker threads share.
struct Shared {
    phase: AtomicU8,
    /// Bytes per connection, in the order of the streams handed to `begin`.
    bytes: Box<[AtomicU64]>,
    /// The number of connections that ended with a fault.
    broken: AtomicUsize,
    payload: Payload,
    job: Job,
}

pub struct Transfer {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<Vec<StreamTotal>>>,
}

impl Transfer {
    /// Starts the worker threads; they move data from `start_ns` (CLOCK_MONOTONIC) on.
    ///
    /// # Errors
    /// When the system gives no thread or epoll instance.
    pub fn begin(streams: Vec<Stream>, job: &Job, start_ns: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            phase: AtomicU8::new(RUN),
            bytes: streams.iter().map(|_| AtomicU64::new(0)).collect(),
            broken: AtomicUsize::new(0),
            payload: Payload::new(job.seed),
            job: job.clone(),
        });
        let threads = (job.threads as usize).min(streams.len());
        let mut shares: Vec<Vec<(usize, Stream)>> = (0..threads).map(|_| Vec::new()).collect();
        for (slot, stream) in streams.into_iter().enumerate() {
            shares[slot % threads].push((slot, stream));
        }
        let mut transfer = Self { shared, workers: Vec::new() };
        for share in shares {
            let worker = Worker::new(Arc::clone(&transfer.shared), share)?;
            let thread = std::thread::Builder::new().name("load".into());
            transfer.workers.push(thread.spawn(move || worker.run(start_ns))?);
        }
        Ok(transfer)
    }

    /// Bytes of each connection so far, in the order of the streams handed to [`Transfer::begin`].
    pub fn snapshot(&self) -> Vec<u64> {
        self.shared.bytes.iter().map(|n| n.load(Ordering::Relaxed)).collect()
    }

    /// Whether every connection broke. The peer's orderly end is none: it may come just before our
    /// own.
    pub fn broke_down(&self) -> bool {
        self.shared.broken.load(Ordering::Relaxed) == self.shared.bytes.len()
    }

    /// Stops sending, waits up to `timeout` for what is under way, and closes.
    pub fn finish(mut self, timeout: Duration) -> Vec<StreamTotal> {
        self.shared.phase.store(DRAIN, Ordering::Relaxed);
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline && self.workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.shared.phase.store(ABORT, Ordering::Relaxed);
        let mut totals: Vec<StreamTotal> = self
            .workers
            .drain(..)
            .flat_map(|worker| worker.join().expect("a worker thread does not panic"))
            .collect();
        totals.sort_by_key(|total| total.index);
        totals
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.shared.phase.store(ABORT, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
