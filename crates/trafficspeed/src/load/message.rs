//! Numbered messages one way, over UDP or TCP, at a rate or as fast as possible.
//!
//! Every message carries its number and the instant at which it was handed to the kernel, or in an
//! open loop the one at which it was due ([`open_loop`]), so that the receiver can tell loss,
//! order, jitter and one-way delay ([`super::receiver_stats`]). Messages sent before counting
//! begins are marked and not accounted. Header, 24 bytes, big-endian: run id, kind (high byte) and
//! number, instant in nanoseconds.

pub mod imix;
pub mod open_loop;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::pace::{Due, Pace, QUANTUM_NS};
use super::payload::Payload;
use super::receiver_stats::ReceiverStats;
use super::task::{Protocol, Sockets};
use super::udp::{BATCH, Receiver, send_batch};
use super::worker_pool::{QUIET, SharedState, WorkerResult};
use crate::clock;
use open_loop::OpenLoop;

/// Length of a message's header, and so of the shortest message.
pub const HEADER_BYTES: u32 = 24;
pub const MAX_MESSAGE_BYTES: u32 = 1 << 20;
/// About how many bytes a TCP sender hands to the kernel at once, if its messages are short.
const WRITE_BYTES: usize = 16 << 10;
const READ_BYTES: usize = 256 << 10;
const WARM: u64 = 4;
const COUNTED: u64 = 5;
const KIND_SHIFT: u32 = 56;
/// Refusals in a row (the peer's port is closed) that a UDP sender bears.
const MAX_REFUSALS: u32 = 1_000;
/// Messages per second, of all streams together, up to which each leaves on its own when it is due.
/// With more, several are due at every wake of a sender, and only one that sends them together
/// keeps up.
const MOST_WHEN_DUE: f64 = 1e9 / QUANTUM_NS as f64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Messages {
    /// Random per run, so that no stranger's message is taken for ours.
    pub run_id: u64,
    /// Seed of the payload.
    pub seed: u64,
    /// Over TCP or UDP.
    pub protocol: Protocol,
    pub streams: u32,
    /// From the host that listens to the one that connects.
    pub backward: bool,
    /// Bytes of each message, header included; their mean if they are mixed.
    pub length: u32,
    /// Datagrams of the three sizes of IMIX.
    #[serde(default)]
    pub imix: bool,
    /// Payload rate of each stream; as fast as possible if absent.
    pub bits_per_second: Option<u64>,
    /// Every message leaves when it is due; UDP at a rate only.
    #[serde(default)]
    pub open_loop: Option<OpenLoop>,
    /// How the sockets are set up.
    pub sockets: Sockets,
}

impl Default for Messages {
    /// One stream of small datagrams as fast as possible.
    fn default() -> Self {
        Self {
            run_id: 0,
            seed: 1,
            protocol: Protocol::Udp,
            streams: 1,
            backward: false,
            length: 100,
            imix: false,
            bits_per_second: None,
            open_loop: None,
            sockets: Sockets::default(),
        }
    }
}

impl Messages {
    /// The first thing that is out of bounds, in words.
    pub fn problem(&self) -> Option<String> {
        let most = match self.protocol {
            Protocol::Tcp => MAX_MESSAGE_BYTES,
            Protocol::Udp => 65_000,
        };
        if !(HEADER_BYTES..=most).contains(&self.length) {
            return Some(format!(
                "messages of {} bytes asked for, {HEADER_BYTES} to {most} are possible",
                self.length
            ));
        }
        if self.imix && (self.protocol != Protocol::Udp || self.length != imix::MEAN) {
            return Some("IMIX asked for without UDP, or with another mean".to_owned());
        }
        if self.bits_per_second == Some(0) {
            return Some("a rate of zero asked for".to_owned());
        }
        let open = self.open_loop.as_ref()?;
        if self.protocol != Protocol::Udp || self.bits_per_second.is_none() {
            return Some(
                "messages that leave when they are due asked for without UDP or without a rate".to_owned(),
            );
        }
        open.problem()
    }

    /// Messages that all streams together should send; `None` without a rate.
    pub fn messages_per_second(&self) -> Option<f64> {
        let rate = self.bits_per_second? as f64 * f64::from(self.streams);
        Some(rate / (8.0 * f64::from(self.length)))
    }

    /// Messages over UDP at a rate, if it is not too high: each message leaves when it is due. A
    /// paced sender that was held up gives up what it is late with and stamps the rest when it
    /// sends, so the messages that fared worst would be missing from the delays.
    pub fn when_due(self) -> Self {
        let most = self.messages_per_second().filter(|_| self.protocol == Protocol::Udp);
        let open_loop = most.filter(|rate| *rate <= MOST_WHEN_DUE).map(|_| OpenLoop::EVEN);
        Self { open_loop, ..self }
    }

    /// Messages of the three sizes of IMIX.
    #[must_use]
    pub fn mixed(self) -> Self {
        Self { imix: true, length: imix::MEAN, ..self }
    }

    /// Bytes of the longest.
    fn longest(&self) -> usize {
        (if self.imix { imix::LARGEST } else { self.length }) as usize
    }

    /// The datagrams in `messages`, of which the first has this number and each has room for the
    /// longest.
    fn cut<'m>(&self, messages: &'m [u8], first: u64) -> impl Iterator<Item = &'m [u8]> {
        let numbered = messages.chunks(self.longest()).zip(first..);
        numbered.map(|(message, number)| &message[..self.length_of(number)])
    }

    /// Bytes of message `number`.
    fn length_of(&self, number: u64) -> usize {
        (if self.imix { imix::length_of(number) } else { self.length }) as usize
    }

    fn pace(&self, stage: &SharedState) -> Pace {
        Pace::new(self.bits_per_second, self.length, stage.schedule.start_ns)
    }
}

/// Messages with random payload, whose headers are rewritten for each batch; each has room for the
/// longest.
struct Batch<'a> {
    bytes: Vec<u8>,
    work: &'a Messages,
    /// Number of the next message, warm and counted.
    next: [u64; 2],
}

impl<'a> Batch<'a> {
    fn new(work: &'a Messages, stream: u32, most: usize) -> Self {
        let payload = Payload::new(work.seed);
        let length = work.longest();
        let mut bytes = Vec::with_capacity(most * length);
        while bytes.len() < most * length {
            let left = most * length - bytes.len();
            bytes.extend_from_slice(payload.chunk(stream, bytes.len() as u64, left));
        }
        Self { bytes, work, next: [0; 2] }
    }

    fn most(&self) -> u64 {
        (self.bytes.len() / self.work.longest()) as u64
    }

    /// Writes `count` headers and returns the messages, each with room for the longest.
    fn stamp(&mut self, count: u64, counted: bool, now_ns: u64) -> &[u8] {
        let kind = if counted { COUNTED } else { WARM } << KIND_SHIFT;
        let (first, room) = (self.next[usize::from(counted)], self.work.longest());
        let bytes = &mut self.bytes[..count as usize * room];
        for (message, number) in bytes.chunks_exact_mut(room).zip(first..) {
            message[..8].copy_from_slice(&self.work.run_id.to_be_bytes());
            message[8..16].copy_from_slice(&(kind | number).to_be_bytes());
            message[16..24].copy_from_slice(&now_ns.to_be_bytes());
        }
        bytes
    }

    /// The first `count` of the stamped messages are under way; returns their bytes.
    fn took(&mut self, count: u64, counted: bool) -> u64 {
        let first = self.next[usize::from(counted)];
        self.next[usize::from(counted)] += count;
        (first..first + count).map(|number| self.work.length_of(number) as u64).sum()
    }
}

/// The contents of a header.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    counted: bool,
    number: u64,
    sent_ns: u64,
}

impl Header {
    /// The header of a message of this run.
    fn parse(message: &[u8], run_id: u64) -> Option<Self> {
        let word = |at: usize| Some(u64::from_be_bytes(message.get(at..at + 8)?.try_into().ok()?));
        let (kind, sent_ns) = (word(8)?, word(16)?);
        let counted = match kind >> KIND_SHIFT {
            WARM => false,
            COUNTED => true,
            _ => return None,
        };
        let number = kind & ((1 << KIND_SHIFT) - 1);
        (word(0)? == run_id).then_some(Self { counted, number, sent_ns })
    }
}

/// Sends until the schedule ends; `put` hands messages, of which the first has this number, to the
/// kernel and returns how many it took.
fn send(
    stage: &SharedState,
    work: &Messages,
    mut batch: Batch<'_>,
    mut put: impl FnMut(&[u8], u64) -> Result<u64, String>,
) -> WorkerResult {
    let mut pace = work.pace(stage);
    let mut share = WorkerResult::default();
    clock::sleep_until(stage.schedule.start_ns);
    loop {
        let now = clock::now_ns();
        if !stage.runs() || now >= stage.schedule.end_ns {
            break;
        }
        let count = match pace.due(now, batch.most()) {
            Due::Wait(until) => {
                // Short enough that a word from the coordinator is last_arrival.
                clock::sleep_until(until.min(stage.schedule.end_ns).min(now + 100_000_000));
                continue;
            }
            Due::Send(count) => count,
        };
        let counted = stage.schedule.counts(now);
        let first = batch.next[usize::from(counted)];
        match put(batch.stamp(count, counted, now), first) {
            Ok(taken) => stage.meter.sent(taken, batch.took(taken, counted)),
            Err(reason) => {
                share.fault = Some(reason);
                break;
            }
        }
    }
    share.sent = batch.next[1];
    share
}

pub(super) fn send_udp(
    stage: &SharedState,
    work: &Messages,
    stream: u32,
    socket: &UdpSocket,
) -> WorkerResult {
    if let Some(open) = &work.open_loop {
        return open_loop::send(stage, work, open, stream, socket);
    }
    let batch = Batch::new(work, stream, BATCH);
    let mut refusals = 0;
    send(stage, work, batch, |messages, first| match send_batch(socket, work.cut(messages, first)) {
        Ok(taken) => {
            refusals = 0;
            Ok(taken as u64)
        }
        // No room in the kernel right now; what is not taken is not counted as sent.
        Err(error) if is_momentary(&error) => {
            clock::sleep_until(clock::now_ns() + QUANTUM_NS);
            Ok(0)
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused && refusals < MAX_REFUSALS => {
            refusals += 1;
            Ok(0)
        }
        Err(error) => Err(format!("sending datagrams of {} bytes: {error}", work.longest())),
    })
}

/// Sends over TCP and then closes this direction.
pub(super) fn send_tcp(
    stage: &SharedState,
    work: &Messages,
    stream: u32,
    mut socket: &TcpStream,
) -> WorkerResult {
    let batch = Batch::new(work, stream, (WRITE_BYTES / work.length as usize).max(1));
    let length = work.length as u64;
    let mut share = send(stage, work, batch, |messages, _| {
        let mut rest = messages;
        while !rest.is_empty() {
            match socket.write(rest) {
                Ok(taken) => rest = &rest[taken..],
                Err(error) if is_momentary(&error) && stage.aborted() => {
                    return Err("its last bytes could not be sent".into());
                }
                Err(error) if is_momentary(&error) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(messages.len() as u64 / length)
    });
    if let Err(error) = socket.shutdown(Shutdown::Write)
        && share.fault.is_none()
    {
        share.fault = Some(error.to_string());
    }
    share
}

/// A system call that timed out, was interrupted or found no room.
fn is_momentary(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
        || error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

/// A receiver's statistics, and the part of them that the meter does not have yet.
struct Accounting<'a> {
    stage: &'a SharedState,
    run_id: u64,
    /// A message with a longer delay is late.
    late_after_ns: u64,
    late: u64,
    /// The longest delay until now.
    slowest_ns: u64,
    account: ReceiverStats,
    missing_reported: i64,
    messages: u64,
    bytes: u64,
    delays: (u64, u64, u64),
}

impl<'a> Accounting<'a> {
    fn new(stage: &'a SharedState, work: &Messages) -> Self {
        let late_after_ns =
            work.open_loop.as_ref().map_or(u64::MAX, |open| u64::from(open.late_after_us) * 1_000);
        Self {
            stage,
            run_id: work.run_id,
            late_after_ns,
            late: 0,
            slowest_ns: 0,
            account: ReceiverStats::default(),
            missing_reported: 0,
            messages: 0,
            bytes: 0,
            delays: (0, 0, 0),
        }
    }

    /// Takes one message; false if it is none of this run.
    fn take(&mut self, message: &[u8], now_ns: u64) -> bool {
        let Some(header) = Header::parse(message, self.run_id) else { return false };
        if header.counted {
            let sent_ns = self.stage.schedule.here(header.sent_ns);
            let Some(delay) = self.account.take(header.number, message.len(), sent_ns, now_ns) else {
                return true;
            };
            self.late += u64::from(delay > self.late_after_ns);
            self.slowest_ns = self.slowest_ns.max(delay);
            self.delays = (self.delays.0 + 1, self.delays.1 + delay, self.delays.2.max(delay));
        }
        self.messages += 1;
        self.bytes += message.len() as u64;
        true
    }

    /// Adds what has come since the last time to the meter.
    fn report(&mut self) {
        let meter = &self.stage.meter;
        meter.received(std::mem::take(&mut self.messages), std::mem::take(&mut self.bytes));
        let (count, sum, max) = std::mem::take(&mut self.delays);
        meter.delayed(count, sum, max);
        let missing = self.account.missing().cast_signed();
        meter.missed(missing - self.missing_reported, self.account.jitter_ns);
        self.missing_reported = missing;
    }

    /// Whether nothing will come any more: what was the slowest until now may be outdone by as
    /// much.
    fn is_quiet(&self, last_arrival: Instant) -> bool {
        let slowest = Duration::from_nanos(2 * self.slowest_ns.min(u64::MAX / 2));
        self.stage.is_quiet(last_arrival, QUIET.max(slowest))
    }

    fn close(self, fault: Option<String>) -> WorkerResult {
        WorkerResult { account: Some(self.account), late: self.late, fault, ..WorkerResult::default() }
    }
}

/// Receives over UDP until the sender has ended and nothing comes any more.
pub(super) fn receive_udp(stage: &SharedState, work: &Messages, socket: &UdpSocket) -> WorkerResult {
    let mut receiver = Receiver::new(work.longest());
    let mut accounting = Accounting::new(stage, work);
    let mut last_arrival = Instant::now();
    while !stage.aborted() {
        match receiver.receive(socket) {
            Ok(()) => {
                let now = clock::now_ns();
                for message in receiver.datagrams() {
                    accounting.take(message, now);
                }
                accounting.report();
                last_arrival = Instant::now();
            }
            // Only an empty socket is quiet: a thread that gets no CPU for long may find all that
            // came meanwhile.
            Err(error) if error.kind() == ErrorKind::WouldBlock && accounting.is_quiet(last_arrival) => break,
            // Without a reader on the other side its kernel refuses; that it has ended shows as
            // silence.
            Err(error) if is_momentary(&error) || error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return accounting.close(Some(error.to_string())),
        }
    }
    accounting.close(None)
}

/// Receives over TCP until the sender closes.
pub(super) fn receive_tcp(stage: &SharedState, work: &Messages, mut socket: &TcpStream) -> WorkerResult {
    let length = work.length as usize;
    let mut buffer = vec![0; READ_BYTES.max(2 * length)];
    let mut filled = 0;
    let mut accounting = Accounting::new(stage, work);
    loop {
        match socket.read(&mut buffer[filled..]) {
            Ok(0) if filled == 0 => return accounting.close(None),
            Ok(0) => return accounting.close(Some(format!("the last {filled} bytes are no whole message"))),
            Ok(bytes) => filled += bytes,
            Err(error) if is_momentary(&error) && stage.aborted() => {
                return accounting.close(Some("the sender's end was not seen".into()));
            }
            Err(error) if is_momentary(&error) => continue,
            Err(error) => return accounting.close(Some(error.to_string())),
        }
        let now = clock::now_ns();
        let whole = filled / length * length;
        for message in buffer[..whole].chunks_exact(length) {
            if !accounting.take(message, now) {
                return accounting.close(Some("bytes came that were not sent".into()));
            }
        }
        accounting.report();
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

/// The work of one stream's end.
pub(super) fn run_udp(
    work: &Arc<Messages>,
    stream: u32,
    sends: bool,
    socket: UdpSocket,
) -> super::worker_pool::Work {
    let work = Arc::clone(work);
    Box::new(
        move |stage| {
            if sends { send_udp(stage, &work, stream, &socket) } else { receive_udp(stage, &work, &socket) }
        },
    )
}

/// Like [`run_udp`]. The connection stays open until the stream is drained.
pub(super) fn run_tcp(
    work: &Arc<Messages>,
    stream: u32,
    sends: bool,
    socket: TcpStream,
) -> super::worker_pool::Work {
    let work = Arc::clone(work);
    Box::new(move |stage| {
        if !sends {
            return receive_tcp(stage, &work, &socket);
        }
        let share = send_tcp(stage, &work, stream, &socket);
        // Closing while the last bytes are under way is safe; the peer sends nothing that could be
        // lost.
        drop(socket);
        share
    })
}

/// Time that a receiver may still wait after the end, at most.
pub(super) const DRAIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::worker_pool::{Schedule, Work, WorkerPool};

    #[test]
    fn duplicates_and_uncounted_messages_are_no_goodput() {
        let work: Work = Box::new(|stage| {
            let work = work_of(64);
            let (mut accounting, mut batch) = (Accounting::new(stage, &work), Batch::new(&work, 0, 4));
            assert!(accounting.take(batch.stamp(1, false, 10), 20));
            for _ in 0..2 {
                assert!(accounting.take(batch.stamp(1, true, 10), 30));
            }
            assert!(!accounting.take(&[0; 64], 30), "no message of this run");
            accounting.report();
            accounting.close(None)
        });
        let schedule = Schedule { start_ns: 0, begin_ns: 0, end_ns: u64::MAX, peer_ahead_ns: 0 };
        let pool = WorkerPool::begin(schedule, vec![work]).unwrap();
        let share = pool.finish(Instant::now() + Duration::from_secs(5)).remove(0);
        let account = share.account.unwrap();
        assert_eq!((account.received, account.duplicates, account.bytes), (1, 1, 64));
    }

    #[test]
    fn a_receiver_waits_for_late_messages_at_any_rate() {
        let work: Work = Box::new(|stage| {
            let mut accounting = Accounting::new(stage, &work_of(64));
            let minute = Duration::from_secs(60);
            let heard = Instant::now().checked_sub(minute).expect("the machine has run for a minute");
            while stage.runs() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(QUIET);
            let is_quiet = accounting.is_quiet(heard);
            // One came after 20 seconds, so another may 40 seconds after the end.
            accounting.take(Batch::new(&work_of(64), 0, 4).stamp(1, true, 0), 20_000_000_000);
            let fault = format!("{is_quiet} {}", accounting.is_quiet(heard));
            accounting.close(Some(fault))
        });
        let schedule = Schedule { start_ns: 0, begin_ns: 0, end_ns: u64::MAX, peer_ahead_ns: 0 };
        let pool = WorkerPool::begin(schedule, vec![work]).unwrap();
        let share = pool.finish(Instant::now() + Duration::from_secs(30)).remove(0);
        assert_eq!(share.fault.as_deref(), Some("true false"));
    }

    #[test]
    fn one_way_delays_are_of_one_clock_whichever_is_ahead() {
        for (peer_ahead_ns, sent_ns, received_ns) in
            [(5_000_000_000, 5_000_000_010, 40_010), (-5_000_000_000, 10, 5_000_040_010)]
        {
            let work: Work = Box::new(move |stage| {
                let mut accounting = Accounting::new(stage, &work_of(64));
                assert!(accounting.take(Batch::new(&work_of(64), 0, 4).stamp(1, true, sent_ns), received_ns));
                accounting.close(None)
            });
            let schedule = Schedule { start_ns: 0, begin_ns: 0, end_ns: u64::MAX, peer_ahead_ns };
            let pool = WorkerPool::begin(schedule, vec![work]).unwrap();
            let share = pool.finish(Instant::now() + Duration::from_secs(5)).remove(0);
            let delay = share.account.unwrap().delays.summary().unwrap();
            assert!((39.0..41.0).contains(&delay.max_us), "{peer_ahead_ns}: {} µs", delay.max_us);
        }
    }

    fn work_of(length: u32) -> Messages {
        Messages { run_id: 77, length, ..Messages::default() }
    }

    #[test]
    fn headers_are_read_back_and_foreign_ones_are_not() {
        let work = work_of(64);
        let mut batch = Batch::new(&work, 0, 4);
        batch.took(10, true);
        let bytes = batch.stamp(3, true, 99).to_vec();
        assert_eq!(bytes.len(), 192);
        let third = Header::parse(&bytes[128..], 77);
        assert_eq!(third, Some(Header { counted: true, number: 12, sent_ns: 99 }));
        assert_eq!(Header::parse(batch.stamp(1, false, 5), 77).map(|header| header.number), Some(0));
        assert_eq!(Header::parse(&bytes, 78), None, "another run");
        assert_eq!(Header::parse(&bytes[..23], 77), None, "too short");
        assert_eq!(Header::parse(&[0; 64], 0), None, "no kind");
    }
}
