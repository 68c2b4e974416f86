//! The threads of one task: they start together, watch the same clock and phase, and count into one
//! meter.
//!
//! INVARIANT: no thread blocks for longer than [`WAIT_TIMEOUT`] without looking at the phase, so a
//! pool always ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::delays::Delays;
use super::receiver_stats::ReceiverStats;
use crate::clock;

/// Time that a system call may wait.
pub(super) const WAIT_TIMEOUT: Duration = Duration::from_millis(50);
/// A datagram that has not come this long after the last one will not come, unless others took half
/// as long.
pub(super) const QUIET: Duration = Duration::from_millis(200);

const RUN: u8 = 0;
const DRAIN: u8 = 1;
const ABORT: u8 = 2;

/// The instants of a measurement, on this host's clock in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Data begin to move.
    pub start_ns: u64,
    pub begin_ns: u64,
    /// Counting ends, and sending too.
    pub end_ns: u64,
    /// The other host's clock less this one's, in nanoseconds.
    pub peer_ahead_ns: i64,
}

impl Schedule {
    /// Whether what is sent at `now_ns` is counted.
    pub fn counts(&self, now_ns: u64) -> bool {
        (self.begin_ns..self.end_ns).contains(&now_ns)
    }

    /// An instant of the other host's clock on this one's. What it says comes from outside, so it
    /// may be any.
    pub fn here(&self, theirs_ns: u64) -> u64 {
        theirs_ns.wrapping_sub(self.peer_ahead_ns.cast_unsigned())
    }
}

pub(super) struct SharedState {
    phase: AtomicU8,
    /// When senders were told to stop, on this host's clock; 0 while they go on.
    stopped_ns: AtomicU64,
    pub(super) schedule: Schedule,
    pub(super) meter: Meter,
}

/// Sums over all threads of a task, read at any time.
#[derive(Default)]
pub(super) struct Meter {
    sent_messages: AtomicU64,
    sent_bytes: AtomicU64,
    received_messages: AtomicU64,
    received_bytes: AtomicU64,
    missing: AtomicI64,
    delays: AtomicU64,
    delay_sum_ns: AtomicU64,
    delay_max_ns: AtomicU64,
    jitter_ns: AtomicU64,
    broken: AtomicUsize,
}

/// The sums at one instant. `delay_max_ns` is of the time since the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub sent_messages: u64,
    pub sent_bytes: u64,
    /// Messages received; transactions at the end that asks.
    pub received_messages: u64,
    pub received_bytes: u64,
    /// Messages that should have come and have not.
    pub missing: i64,
    pub delays: u64,
    pub delay_sum_ns: u64,
    /// The longest since the last reading.
    pub delay_max_ns: u64,
    /// The jitter now (RFC 3550).
    pub jitter_ns: u64,
}

impl Meter {
    pub(super) fn sent(&self, messages: u64, bytes: u64) {
        self.sent_messages.fetch_add(messages, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn received(&self, messages: u64, bytes: u64) {
        self.received_messages.fetch_add(messages, Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn delayed(&self, count: u64, sum_ns: u64, max_ns: u64) {
        self.delays.fetch_add(count, Ordering::Relaxed);
        self.delay_sum_ns.fetch_add(sum_ns, Ordering::Relaxed);
        self.delay_max_ns.fetch_max(max_ns, Ordering::Relaxed);
    }

    pub(super) fn missed(&self, more: i64, jitter_ns: f64) {
        self.missing.fetch_add(more, Ordering::Relaxed);
        self.jitter_ns.store(jitter_ns as u64, Ordering::Relaxed);
    }

    fn read(&self) -> Reading {
        let load = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        Reading {
            sent_messages: load(&self.sent_messages),
            sent_bytes: load(&self.sent_bytes),
            received_messages: load(&self.received_messages),
            received_bytes: load(&self.received_bytes),
            missing: self.missing.load(Ordering::Relaxed),
            delays: load(&self.delays),
            delay_sum_ns: load(&self.delay_sum_ns),
            delay_max_ns: self.delay_max_ns.swap(0, Ordering::Relaxed),
            jitter_ns: load(&self.jitter_ns),
        }
    }
}

impl SharedState {
    /// Whether senders go on.
    pub(super) fn runs(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == RUN
    }

    /// Whether all is to end at once.
    pub(super) fn aborted(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == ABORT
    }

    /// Whether a receiver that last heard something at `heard` may leave: `silence` ago, and no
    /// less since senders were told to stop, however rarely they send.
    pub(super) fn is_quiet(&self, heard: Instant, silence: Duration) -> bool {
        let stopped_ns = self.stopped_ns.load(Ordering::Relaxed);
        let stopped = Duration::from_nanos(clock::now_ns().saturating_sub(stopped_ns));
        self.aborted() || (!self.runs() && heard.elapsed() > silence && stopped > silence)
    }
}

/// The result of one thread.
#[derive(Default)]
pub(super) struct WorkerResult {
    /// Messages that counted when they were sent.
    pub(super) sent: u64,
    pub(super) account: Option<ReceiverStats>,
    /// Round trips of the end that asks.
    pub(super) round_trips: Option<Delays>,
    /// Questions that were not answered in time.
    pub(super) timeouts: u64,
    /// Messages that came, but too late to be of use.
    pub(super) late: u64,
    /// Lateness of messages.
    pub(super) lateness: Option<Delays>,
    /// Duration of each page, one after the other.
    pub(super) pages_ms: Vec<f64>,
    /// Why it ended before its time.
    pub(super) fault: Option<String>,
}

/// The work of one thread.
pub(super) type Work = Box<dyn FnOnce(&SharedState) -> WorkerResult + Send>;

pub(super) struct WorkerPool {
    stage: Arc<SharedState>,
    hands: Vec<JoinHandle<WorkerResult>>,
}

impl WorkerPool {
    pub(super) fn begin(schedule: Schedule, works: Vec<Work>) -> io::Result<Self> {
        let (phase, stopped_ns) = (AtomicU8::new(RUN), AtomicU64::new(0));
        let stage = Arc::new(SharedState { phase, stopped_ns, schedule, meter: Meter::default() });
        let mut pool = Self { stage, hands: Vec::new() };
        for work in works {
            let stage = Arc::clone(&pool.stage);
            let hand = std::thread::Builder::new().name("load".into()).spawn(move || {
                let share = work(&stage);
                if share.fault.is_some() {
                    stage.meter.broken.fetch_add(1, Ordering::Relaxed);
                }
                share
            })?;
            pool.hands.push(hand);
        }
        Ok(pool)
    }

    pub(super) fn read(&self) -> Reading {
        self.stage.meter.read()
    }

    pub(super) fn broke_down(&self) -> bool {
        self.stage.meter.broken.load(Ordering::Relaxed) == self.hands.len()
    }

    /// Whether all threads have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.hands.iter().all(JoinHandle::is_finished)
    }

    /// Tells senders to stop and receivers to leave once nothing comes any more.
    pub(super) fn stop(&self) {
        // The first time counts.
        let _ =
            self.stage.stopped_ns.compare_exchange(0, clock::now_ns(), Ordering::Relaxed, Ordering::Relaxed);
        self.stage.phase.store(DRAIN, Ordering::Relaxed);
    }

    /// Waits until `deadline` for what is under way.
    pub(super) fn finish(mut self, deadline: Instant) -> Vec<WorkerResult> {
        self.stop();
        while Instant::now() < deadline && !self.has_ended() {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.stage.phase.store(ABORT, Ordering::Relaxed);
        let hands = self.hands.drain(..);
        hands.map(|hand| hand.join().expect("a load thread does not panic")).collect()
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.stage.phase.store(ABORT, Ordering::Relaxed);
    }
}
