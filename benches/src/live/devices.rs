//! A shard's devices with a clock around each system call.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::rc::Rc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use vpnd_shard::devices::{DatagramSocket, PacketDevice};
use vpnd_sys::tun::TunQueue;
use vpnd_sys::udp::{RecvMeta, SendOutcome, ShardSocket, Transmit, UdpOffloads};

use super::End;

/// Calls and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Their number.
    pub calls: u64,
    /// CPU time in all of them, in nanoseconds.
    pub ns: f64,
}

/// The account of one kind of system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// Those that moved something.
    pub work: Timed,
    /// Those that found nothing to move.
    pub empty: Timed,
    /// Super-packets, or runs of datagrams.
    pub messages: u64,
    /// Bytes moved, headers included.
    pub bytes: u64,
}

impl Calls {
    fn add(&mut self, ns: f64, messages: u64, bytes: u64) {
        let which = if messages > 0 { &mut self.work } else { &mut self.empty };
        which.calls += 1;
        which.ns += ns.max(0.0);
        self.messages += messages;
        self.bytes += bytes;
    }

    /// The difference from `earlier`.
    #[must_use]
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let less = |now: Timed, then: Timed| Timed { calls: now.calls - then.calls, ns: now.ns - then.ns };
        Self {
            work: less(self.work, earlier.work),
            empty: less(self.empty, earlier.empty),
            messages: self.messages - earlier.messages,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

/// CPU time of the calling thread, in nanoseconds.
pub(super) fn thread_cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// How often the calling thread has slept.
pub(super) fn wake_ups() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
}

/// The clock around system calls, if they are to be timed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopwatch {
    /// The cost of reading the clock, in nanoseconds; without one nothing is timed.
    overhead: Option<f64>,
}

impl Stopwatch {
    /// A clock whose own cost is the median of many readings; off it reads none.
    pub(super) fn new(is_on: bool) -> Self {
        Self { overhead: is_on.then(clock_overhead) }
    }

    pub(super) fn start(self) -> f64 {
        if self.overhead.is_some() { thread_cpu() } else { 0.0 }
    }

    /// Nanoseconds since `start`, without reading the clock.
    pub(super) fn since(self, start: f64) -> f64 {
        self.overhead.map_or(0.0, |overhead| thread_cpu() - start - overhead)
    }

    /// Nanoseconds that reading it so often took.
    pub(super) fn readings(self, count: u64) -> f64 {
        self.overhead.unwrap_or_default() * count as f64
    }
}

fn clock_overhead() -> f64 {
    let mut samples: Vec<f64> = (0..1001)
        .map(|_| {
            let start = thread_cpu();
            thread_cpu() - start
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// A TUN queue with its account.
pub(super) struct TimedTun {
    pub(super) device: Rc<AsyncFd<TunQueue>>,
    pub(super) account: Rc<RefCell<End>>,
    pub(super) watch: Stopwatch,
}

impl PacketDevice for TimedTun {
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let start = self.watch.start();
        let read = self.device.get_ref().try_read(buf);
        let ns = self.watch.since(start);
        let bytes = *read.as_ref().unwrap_or(&0) as u64;
        self.account.borrow_mut().read.add(ns, u64::from(bytes > 0), bytes);
        read
    }

    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let start = self.watch.start();
        let written = self.device.get_ref().try_write_vectored(parts);
        let ns = self.watch.since(start);
        let bytes = *written.as_ref().unwrap_or(&0) as u64;
        self.account.borrow_mut().write.add(ns, u64::from(bytes > 0), bytes);
        written
    }
}

/// A shard's socket with its account, which sends runs of some datagrams at most.
pub(super) struct TimedSocket {
    pub(super) device: Rc<AsyncFd<ShardSocket>>,
    pub(super) account: Rc<RefCell<End>>,
    pub(super) watch: Stopwatch,
    pub(super) pieces: usize,
}

impl TimedSocket {
    fn send_piece(&self, piece: &Transmit<'_>) -> SendOutcome {
        let start = self.watch.start();
        let outcome = self.device.get_ref().try_send(piece);
        let ns = self.watch.since(start);
        let sent = outcome == SendOutcome::Sent;
        let bytes = if sent { piece.contents.len() as u64 } else { 0 };
        self.account.borrow_mut().send.add(ns, u64::from(sent), bytes);
        outcome
    }
}

impl DatagramSocket for TimedSocket {
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        let start = self.watch.start();
        let received = self.device.get_ref().try_recv(bufs, meta);
        let ns = self.watch.since(start);
        let count = *received.as_ref().unwrap_or(&0);
        let bytes = meta[..count].iter().map(|meta| meta.len as u64).sum();
        self.account.borrow_mut().receive.add(ns, count as u64, bytes);
        received
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome {
        let whole = transmit.contents.len().max(1);
        let segment = transmit.segment_size.unwrap_or(whole);
        let mut gone = 0;
        for contents in transmit.contents.chunks(segment * self.pieces) {
            let segment_size = transmit.segment_size.filter(|size| *size < contents.len());
            match self.send_piece(&Transmit { contents, segment_size, ..transmit.clone() }) {
                SendOutcome::Sent => gone += contents.len(),
                SendOutcome::WouldBlock { done, lost } => {
                    return SendOutcome::WouldBlock { done: gone + done, lost };
                }
                SendOutcome::Dropped { reason, lost } => {
                    let left = (transmit.contents.len() - gone - contents.len()).div_ceil(segment);
                    return SendOutcome::Dropped { reason, lost: lost + left };
                }
            }
        }
        SendOutcome::Sent
    }

    fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize {
        // Runs one by one, so that each has its own time; a batch of one stream is one run
        // mostly.
        transmits.iter().take_while(|transmit| self.try_send(transmit) == SendOutcome::Sent).count()
    }

    fn wait_writable(&self, timeout: Duration) -> Duration {
        self.device.get_ref().wait_writable(timeout)
    }

    fn offloads(&self) -> UdpOffloads {
        self.device.get_ref().offloads()
    }
}
