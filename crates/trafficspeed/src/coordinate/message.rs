//! The messages between coordinator and agent: one JSON value per line.
//!
//! Instants are nanoseconds on the *agent's* CLOCK_MONOTONIC; the coordinator translates.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::load::block::content::Verified;
use crate::load::block::target::Received;
use crate::load::block::writer::Wrote;
use crate::load::block::{Blocks, WriterJob};
use crate::load::task::{Findings, Task};
use crate::load::worker_pool::Reading;
use crate::observe::HostInfo;

/// The version of these messages. Both sides must have the same.
pub const VERSION: u32 = 9;
/// The longest that an agent waits for connections, in milliseconds.
pub const MAX_CONNECT_MS: u64 = 600_000;
/// Longest measurement an agent accepts, in milliseconds: a day.
pub const MAX_DURATION_MS: u64 = 86_400_000;
/// Most samples of one measurement.
pub const MAX_SAMPLES: u64 = 100_000;

/// From the coordinator to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// The first line: which version the coordinator speaks.
    Hello {
        /// See [`VERSION`].
        version: u32,
    },
    /// Asks for the agent's clock.
    Clock,
    /// Open a door for each task.
    Prepare {
        tasks: Vec<Task>,
        /// The address to listen on; the ports are the system's choice.
        bind: IpAddr,
        /// Time to wait for the other host's connections, in milliseconds: others may connect
        /// before it.
        timeout_ms: u64,
    },
    /// Come to the doors of the other host.
    Reach {
        tasks: Vec<Task>,
        peer: IpAddr,
        /// Its ports, task by task.
        ports: Vec<Vec<u16>>,
    },
    /// Work on the connected tasks.
    Begin {
        /// When, on the agent's clock.
        at_ns: u64,
        /// Time before counting begins.
        warmup_ms: u64,
        /// Time that is counted.
        duration_ms: u64,
        interval_ms: u64,
        /// The other host's clock less this agent's, so that one-way delays are of one clock.
        peer_ahead_ns: i64,
    },
    /// Where may blocks be written?
    BlockPlace,
    /// Be the target of one connection, in that place.
    TakeBlocks {
        blocks: Blocks,
        /// Sync before each answer.
        sync: bool,
        /// The address to listen on; the port is the system's choice.
        bind: IpAddr,
    },
    /// Be the writer of one connection.
    WriteBlocks(WriterJob),
    /// Compare what the place holds with what was acknowledged.
    VerifyBlocks {
        blocks: Blocks,
        /// Seed of their content.
        seed: u64,
        /// The number of acknowledged ones.
        acknowledged: u64,
        /// The number of sent ones.
        sent: u64,
    },
    /// End what is going on; if data moves, report what was measured so far.
    Stop,
}

/// From an agent to its coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The answer to `Hello`.
    Hello {
        /// See [`VERSION`].
        version: u32,
        host: HostInfo,
    },
    /// The answer to `Clock`.
    Clock {
        /// Now, on the agent's clock.
        now_ns: u64,
    },
    /// The target of blocks listens.
    Listening { port: u16 },
    /// All connections of the tasks are made.
    Connected,
    /// The agent's doors are open.
    Prepared {
        /// Their ports, task by task.
        ports: Vec<Vec<u16>>,
    },
    /// An interval of the work is over.
    Sample {
        /// Number of the interval, from 0 at the end of the warm-up.
        number: u64,
        /// Its real length.
        seconds: f64,
        /// Each task's part of it at this end.
        tasks: Vec<Sample>,
    },
    /// The work is over.
    Measured(Measurement),
    /// Blocks may be written here.
    BlockPlace {
        /// For people.
        description: String,
        /// Its size.
        bytes: u64,
    },
    /// The target's connection is over.
    TookBlocks(Received),
    /// The writer's connection is over.
    WroteBlocks(Wrote),
    /// The contents of the place.
    VerifiedBlocks(Verified),
    /// The agent could not do what it was told.
    Failed { why: String },
}

/// One end of a task in an interval, or in the whole measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Messages or requests sent; none for bulk data.
    pub sent_messages: u64,
    pub sent_bytes: u64,
    /// Messages received; at the end that asks, answers.
    pub received_messages: u64,
    pub received_bytes: u64,
    /// Messages that turned out to be missing, less those that came late.
    pub missing: i64,
    /// Mean of the delays (one way, or the round trip), in microseconds; absent if there were none.
    pub delay_mean_us: Option<f64>,
    /// The longest of them since the reading before, in microseconds.
    pub delay_max_us: Option<f64>,
    /// Jitter at its end (RFC 3550), in microseconds.
    pub jitter_us: f64,
}

impl Sample {
    /// The difference of two readings.
    pub fn between(earlier: &Reading, later: &Reading) -> Self {
        let delays = later.delays - earlier.delays;
        let sum = (later.delay_sum_ns - earlier.delay_sum_ns) as f64;
        Self {
            sent_messages: later.sent_messages - earlier.sent_messages,
            sent_bytes: later.sent_bytes - earlier.sent_bytes,
            received_messages: later.received_messages - earlier.received_messages,
            received_bytes: later.received_bytes - earlier.received_bytes,
            missing: later.missing - earlier.missing,
            delay_mean_us: (delays > 0).then(|| sum / delays as f64 / 1e3),
            delay_max_us: (delays > 0).then(|| later.delay_max_ns as f64 / 1e3),
            jitter_us: later.jitter_ns as f64 / 1e3,
        }
    }
}

/// One agent's measurement of all tasks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Seconds between the two readings that bound the measurement.
    pub seconds: f64,
    /// How late the first reading was after the agreed instant, in milliseconds.
    pub late_ms: f64,
    /// Seconds in which a sender was to send what counts: from the agreed instant to the agreed
    /// end, or until it was stopped.
    pub sending_seconds: f64,
    /// Stopped before its time.
    pub stopped_early: bool,
    /// CPU seconds of the agent itself within the measurement.
    pub cpu_seconds: f64,
    /// Datagrams that this host's kernel threw away at full sockets, the generator's and others.
    pub socket_drops: u64,
    pub tasks: Vec<TaskEnd>,
}

impl Measurement {
    /// Datagrams that this host's kernel threw away because the generator did not take them in
    /// time.
    pub fn generator_drops(&self) -> u64 {
        self.tasks.iter().map(|task| task.found.socket_drops).fold(0, u64::saturating_add)
    }

    /// Whether the end came so late that the measurement was over before it began to count.
    pub fn is_void(&self) -> bool {
        !self.tasks.is_empty() && !self.stopped_early && self.seconds == 0.0
    }
}

/// One end of a task: its sums, and its findings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskEnd {
    pub window: Sample,
    /// Bytes of each connection within the measurement, bulk data only; in the order of
    /// [`Findings::streams`].
    pub stream_bytes: Vec<u64>,
    pub found: Findings,
}
