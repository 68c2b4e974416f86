//! A task: one kind of load between two hosts, the same value for both of them.
//!
//! Its stages: the listening host opens a [`ListeningTask`] and tells its ports, the other
//! [`Task::reach`]es them; both then have a [`Ready`] task, [`Ready::begin`] it at an agreed
//! instant, read its sums while it is [`Running`], and finish it. Several tasks may run at once,
//! for example round trips beside bulk data.

mod clients;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use socket2::SockRef;

use super::congestion::CongestionControl;
use super::delays::{DelaySummary, Delays};
use super::exchange::{self, Exchange};
use super::message::{self, Messages};
use super::page::{self, Pages};
use super::receiver_stats::ReceiverStats;
use super::tcp::{self, ConnectError, Listener, Shape, Stream, Transfer, Way, connect_all};
use super::udp::{UdpListener, drops_at, reach};
use super::worker_pool::{Reading, Schedule, WAIT_TIMEOUT, Work, WorkerPool, WorkerResult};

/// Most tasks of one measurement.
pub const MAX_TASKS: usize = 8;
/// Most streams of a task that gives each a thread.
pub const MAX_THREADED_STREAMS: u32 = 128;
/// Largest socket buffer that may be asked for.
pub const MAX_WINDOW: u32 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    Tcp,
    Udp,
}

/// How a task's sockets are set up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sockets {
    /// Bytes of the send and receive buffer; the kernel's choice if absent.
    pub window: Option<u32>,
    /// Largest TCP segment in bytes, TCP options included; the path decides if absent.
    pub mss: Option<u32>,
    /// For TCP only.
    pub congestion: CongestionControl,
}

/// One kind of load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// TCP connections as fast as they go.
    Bulk(tcp::Job),
    /// Numbered messages one way.
    Messages(Messages),
    Exchange(Exchange),
    Pages(Pages),
}

impl Task {
    /// The first thing that is out of bounds, in words.
    pub fn problem(&self) -> Option<String> {
        let (streams, sockets, own) = match self {
            Self::Bulk(job) => return job.problem(),
            Self::Messages(work) => (work.streams, &work.sockets, work.problem()),
            Self::Exchange(work) => (work.streams, &work.sockets, work.problem()),
            Self::Pages(work) => (work.streams, &work.sockets, work.problem()),
        };
        if streams == 0 || streams > MAX_THREADED_STREAMS {
            return Some(format!("{streams} streams asked for, 1 to {MAX_THREADED_STREAMS} are possible"));
        }
        if sockets.window.is_some_and(|bytes| bytes > MAX_WINDOW) {
            return Some(format!("socket buffers of more than {MAX_WINDOW} bytes asked for"));
        }
        own
    }

    /// The connections of the task as the TCP generator makes them; `None` over UDP.
    fn connections(&self) -> Option<tcp::Job> {
        let (run_id, seed, streams, protocol, sockets) = match self {
            Self::Bulk(job) => return Some(job.clone()),
            Self::Messages(work) => (work.run_id, work.seed, work.streams, work.protocol, &work.sockets),
            Self::Exchange(work) => (work.run_id, work.seed, work.streams, work.protocol, &work.sockets),
            Self::Pages(work) => (work.run_id, work.seed, work.streams, Protocol::Tcp, &work.sockets),
        };
        (protocol == Protocol::Tcp).then_some(tcp::Job {
            run_id,
            seed,
            streams,
            write_bytes: 1,
            congestion: sockets.congestion,
            shape: Shape { way: Way::Forward, window: sockets.window, mss: sockets.mss },
            ..tcp::Job::default()
        })
    }

    pub fn congestion(&self) -> CongestionControl {
        match self {
            Self::Bulk(job) => job.congestion,
            Self::Messages(work) => work.sockets.congestion,
            Self::Exchange(work) => work.sockets.congestion,
            Self::Pages(work) => work.sockets.congestion,
        }
    }

    pub fn set_congestion(&mut self, congestion: CongestionControl) {
        match self {
            Self::Bulk(job) => job.congestion = congestion,
            Self::Messages(work) => work.sockets.congestion = congestion,
            Self::Exchange(work) => work.sockets.congestion = congestion,
            Self::Pages(work) => work.sockets.congestion = congestion,
        }
    }

    fn udp(&self) -> (u64, u32, Option<u32>) {
        match self {
            Self::Bulk(job) => (job.run_id, job.streams, job.shape.window),
            Self::Messages(work) => (work.run_id, work.streams, work.sockets.window),
            Self::Exchange(work) => (work.run_id, work.streams, work.sockets.window),
            Self::Pages(work) => (work.run_id, work.streams, work.sockets.window),
        }
    }

    /// Opens the listening end on `address`.
    pub fn listen(&self, address: IpAddr) -> Result<ListeningTask, ConnectError> {
        Ok(ListeningTask(match self.connections() {
            Some(job) => Inner::Tcp(Listener::bind(SocketAddr::new(address, 0), &job)?),
            None => {
                let (_, streams, window) = self.udp();
                Inner::Udp(UdpListener::bind(address, streams, window)?)
            }
        }))
    }

    /// Reaches the listening end, trying again until `timeout` is over.
    pub fn reach(
        self,
        peer: IpAddr,
        ports: &[u16],
        timeout: Duration,
        stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Ready, ConnectError> {
        let sockets = match self.connections() {
            Some(job) => {
                let port = ports.first().copied().unwrap_or_default();
                Connected::Tcp(connect_all(SocketAddr::new(peer, port), &job, timeout, stopped)?)
            }
            None => {
                let (run_id, _, window) = self.udp();
                Connected::Udp(reach(peer, ports, run_id, window, timeout, stopped)?)
            }
        };
        Ok(Ready { task: self, sockets, connector: true })
    }
}

/// The listening end of a task.
#[derive(Debug)]
pub struct ListeningTask(Inner);

#[derive(Debug)]
enum Inner {
    Tcp(Listener),
    Udp(UdpListener),
}

impl ListeningTask {
    /// Where the other end is to come.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn ports(&self) -> io::Result<Vec<u16>> {
        match &self.0 {
            Inner::Tcp(listener) => Ok(vec![listener.port()?]),
            Inner::Udp(door) => door.ports(),
        }
    }

    /// Waits until every stream of the task is there.
    pub fn meet(
        self,
        task: Task,
        timeout: Duration,
        stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Ready, ConnectError> {
        let sockets = match self.0 {
            Inner::Tcp(listener) => {
                let job = task.connections().expect("a TCP task has a TCP door");
                Connected::Tcp(listener.accept_all(&job, timeout, stopped)?)
            }
            Inner::Udp(door) => Connected::Udp(door.meet(task.udp().0, timeout, stopped)?),
        };
        Ok(Ready { task, sockets, connector: false })
    }
}

/// A connected task that waits for its start.
#[derive(Debug)]
pub struct Ready {
    task: Task,
    sockets: Connected,
    connector: bool,
}

#[derive(Debug)]
enum Connected {
    Tcp(Vec<Stream>),
    Udp(Vec<UdpSocket>),
}

impl Ready {
    /// Starts the threads; they move data from `schedule.start_ns` on.
    ///
    /// # Errors
    /// When the system gives no thread or no socket option.
    pub fn begin(self, schedule: Schedule) -> io::Result<Running> {
        let udp = match &self.sockets {
            Connected::Tcp(_) => Vec::new(),
            Connected::Udp(sockets) => sockets.iter().map(UdpSocket::try_clone).collect::<Result<_, _>>()?,
        };
        let mss = match &self.sockets {
            Connected::Tcp(streams) => {
                streams.first().and_then(|stream| SockRef::from(&stream.socket).tcp_mss().ok())
            }
            Connected::Udp(_) => None,
        };
        let kind = match (self.task, self.sockets) {
            (Task::Bulk(job), Connected::Tcp(streams)) => {
                let sends = streams.iter().map(|stream| stream.sends).collect();
                Kind::Bulk { transfer: Transfer::begin(streams, &job, schedule.start_ns)?, sends }
            }
            (task, sockets) => {
                Kind::WorkerPool(WorkerPool::begin(schedule, works(&task, sockets, self.connector)?)?)
            }
        };
        Ok(Running { kind, mss, udp })
    }
}

/// One piece of work for each stream.
fn works(task: &Task, sockets: Connected, connector: bool) -> io::Result<Vec<Work>> {
    match (task, sockets) {
        (Task::Messages(work), sockets) => {
            let (sends, work) = (connector != work.backward, Arc::new(work.clone()));
            Ok(match sockets {
                Connected::Tcp(streams) => {
                    let sockets = plain(streams)?.into_iter().zip(0..);
                    sockets.map(|(socket, at)| message::run_tcp(&work, at, sends, socket)).collect()
                }
                Connected::Udp(sockets) => {
                    let sockets = sockets.into_iter().zip(0..);
                    sockets.map(|(socket, at)| message::run_udp(&work, at, sends, socket)).collect()
                }
            })
        }
        (Task::Exchange(work), Connected::Tcp(streams)) => {
            let run = if connector { exchange::ask_tcp } else { exchange::answer_tcp };
            Ok(plain(streams)?.into_iter().map(|socket| run(work.clone(), socket)).collect())
        }
        (Task::Exchange(work), Connected::Udp(sockets)) => {
            let run = if connector { exchange::ask_udp } else { exchange::answer_udp };
            Ok(sockets.into_iter().map(|socket| run(work.clone(), socket)).collect())
        }
        (Task::Pages(work), Connected::Tcp(streams)) => {
            let sockets = plain(streams)?;
            Ok(if connector { page::ask(work, sockets) } else { page::answer(work, sockets) })
        }
        (Task::Pages(_), Connected::Udp(_)) => unreachable!("pages have connections"),
        (Task::Bulk(_), _) => unreachable!("bulk data have workers of their own, over TCP only"),
    }
}

/// Sockets for separate threads: blocking, but not for long, and without Nagle's wait.
fn plain(streams: Vec<Stream>) -> io::Result<Vec<TcpStream>> {
    let set = |stream: Stream| {
        let socket = stream.socket;
        socket.set_nonblocking(false)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(WAIT_TIMEOUT))?;
        socket.set_write_timeout(Some(WAIT_TIMEOUT))?;
        Ok(socket)
    };
    streams.into_iter().map(set).collect()
}

/// A task under way.
pub struct Running {
    kind: Kind,
    mss: Option<u32>,
    /// Its UDP sockets: those of the threads are closed when the drops at them are counted.
    udp: Vec<UdpSocket>,
}

enum Kind {
    Bulk { transfer: Transfer, sends: Vec<bool> },
    WorkerPool(WorkerPool),
}

impl Running {
    /// The sums so far.
    pub fn read(&self) -> Reading {
        self.read_streams().0
    }

    /// The sums so far, and those of each connection of bulk data in the order of
    /// [`Findings::streams`].
    pub fn read_streams(&self) -> (Reading, Vec<u64>) {
        match &self.kind {
            Kind::WorkerPool(pool) => (pool.read(), Vec::new()),
            Kind::Bulk { transfer, sends } => {
                let (mut reading, streams) = (Reading::default(), transfer.snapshot());
                for (bytes, sends) in streams.iter().zip(sends) {
                    *(if *sends { &mut reading.sent_bytes } else { &mut reading.received_bytes }) += bytes;
                }
                (reading, streams)
            }
        }
    }

    /// Whether every stream broke.
    pub fn broke_down(&self) -> bool {
        match &self.kind {
            Kind::Bulk { transfer, .. } => transfer.broke_down(),
            Kind::WorkerPool(pool) => pool.broke_down(),
        }
    }

    /// Asks for the end without waiting for it.
    pub fn stop(&self) {
        if let Kind::WorkerPool(pool) = &self.kind {
            pool.stop();
        }
    }

    /// Stops sending, waits up to `timeout` for what is under way, and closes.
    pub fn finish(self, timeout: Duration) -> Findings {
        let mut findings = match self.kind {
            Kind::WorkerPool(pool) => Findings::of(pool.finish(Instant::now() + timeout.min(message::DRAIN))),
            Kind::Bulk { transfer, .. } => {
                let totals = transfer.finish(timeout);
                let bytes_of =
                    |sends: bool| totals.iter().filter(move |t| t.sends == sends).map(|t| t.bytes).sum();
                let name = |t: &tcp::StreamTotal| Some(format!("stream {}: {}", t.index, t.fault.as_ref()?));
                let (bytes_sent, bytes_received) = (bytes_of(true), bytes_of(false));
                Findings {
                    bytes_sent,
                    bytes_received,
                    faults: totals.iter().filter_map(name).collect(),
                    streams: totals,
                    ..Findings::default()
                }
            }
        };
        findings.mss = self.mss;
        findings.socket_drops = drops_at(&self.udp);
        findings
    }
}

/// The findings of one end of a task over its whole life, besides the sums.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// Messages or questions that this end sent while they counted.
    pub messages_sent: u64,
    /// Different messages that this end received of those that counted.
    pub messages_received: u64,
    /// Bytes that this end sent, bulk data only: from the start to the end of draining.
    pub bytes_sent: u64,
    /// Bytes that this end received: bulk data as above, messages only those that counted.
    pub bytes_received: u64,
    /// Messages that came more than once.
    pub duplicates: u64,
    /// Messages that came after a later one.
    pub reordered: u64,
    /// Messages that came too late to be of use, where they say when that is.
    #[serde(default)]
    pub late: u64,
    /// Lateness of this end's messages, where they are due at fixed instants.
    #[serde(default)]
    pub lateness: Option<DelaySummary>,
    /// Duration of each page, ms; those that never came until they were given up.
    #[serde(default)]
    pub pages_ms: Vec<f64>,
    /// Questions that were not answered in time, pages that never were whole.
    pub timeouts: u64,
    /// Mean of the streams' jitter (RFC 3550) at the end, in microseconds; at a receiver of
    /// messages.
    pub jitter_us: Option<f64>,
    /// One-way delays at a receiver of messages.
    pub delay: Option<DelaySummary>,
    /// Differences of neighbours' delays there.
    #[serde(default)]
    pub variation: Option<DelaySummary>,
    /// Round trips at the end that asks; of pages the time until they were whole.
    pub round_trip: Option<DelaySummary>,
    /// Largest segment of the first TCP connection as the kernel had it at the start, without
    /// options.
    pub mss: Option<u32>,
    /// Datagrams that the kernel dropped at this end's sockets, since they were not taken in time;
    /// also those that did not count.
    #[serde(default)]
    pub socket_drops: u64,
    /// Faults of single streams.
    pub faults: Vec<String>,
    /// Each connection of bulk data, by its number.
    pub streams: Vec<tcp::StreamTotal>,
}

impl Findings {
    fn of(shares: Vec<WorkerResult>) -> Self {
        let mut found = Self::default();
        let (mut delays, mut trips) = (Delays::default(), Delays::default());
        let (mut variation, mut lateness) = (Delays::default(), Delays::default());
        let mut jitters = Vec::new();
        for (share, at) in shares.into_iter().zip(0..) {
            found.messages_sent += share.sent;
            found.timeouts += share.timeouts;
            found.late += share.late;
            found.pages_ms.extend(share.pages_ms);
            found.faults.extend(share.fault.map(|reason| format!("stream {at}: {reason}")));
            if let Some(account) = share.account {
                found.add(&account);
                delays.add(&account.delays);
                variation.add(&account.variation);
                jitters.push(account.jitter_ns / 1e3);
            }
            if let Some(own) = share.lateness {
                lateness.add(&own);
            }
            if let Some(own) = share.round_trips {
                trips.add(&own);
            }
        }
        found.jitter_us = (!jitters.is_empty()).then(|| jitters.iter().sum::<f64>() / jitters.len() as f64);
        found.delay = delays.summary();
        found.variation = variation.summary();
        found.lateness = lateness.summary();
        found.round_trip = trips.summary();
        found
    }

    fn add(&mut self, account: &ReceiverStats) {
        self.messages_received += account.received;
        self.bytes_received += account.bytes;
        self.duplicates += account.duplicates;
        self.reordered += account.reordered;
    }
}

#[cfg(test)]
mod tests;
