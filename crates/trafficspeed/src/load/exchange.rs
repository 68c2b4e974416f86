//! Requests and responses: one at a time on each stream, the round trip of every one recorded.
//!
//! The host that connects asks, the other answers, with sizes of the user's choice (netperf's RR);
//! or each request leaves when it is due, whatever became of the ones before ([`when_due`]), or
//! each has a separate connection ([`flows`]). A UDP question that waits for its turn and is not
//! answered within [`ANSWER_TIMEOUT`] counts as a timeout, and so does one that is still not
//! answered when the time ends and has waited longer than any other: a path that stalls and never
//! recovers must not look better for it. The first bytes of a datagram, as many as both sizes allow
//! up to 8, are the question's number: a late answer is not taken for the next one's.

mod flows;
mod when_due;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::delays::Delays;
use super::payload::Payload;
use super::task::{Protocol, Sockets};
use super::worker_pool::{QUIET, SharedState, Work, WorkerResult};
use crate::clock;

/// Time that a datagram's answer may take.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest request or response.
pub const MAX_BYTES: u32 = 60_000;
const NUMBER_BYTES: usize = 8;
/// A request that names the length of its answer begins with that.
pub(super) const LENGTH_BYTES: usize = 4;

// Unknown fields are allowed: results of earlier versions hold a rest between an answer and the
// next question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    pub run_id: u64,
    /// Seed of the payload.
    pub seed: u64,
    /// Over TCP or UDP.
    pub protocol: Protocol,
    /// The number that ask at once.
    pub streams: u32,
    /// Bytes of a request.
    pub request: u32,
    /// Bytes of a response.
    pub response: u32,
    /// Microseconds from one request of a stream to the next, each of which leaves when it is due;
    /// absent: as soon as the one before is answered. UDP only.
    #[serde(default)]
    pub every_us: Option<u32>,
    /// Bytes of the responses, in turn, each over a separate connection; none: `response` over the
    /// kept connection. TCP only.
    #[serde(default)]
    pub flows: Vec<u32>,
    /// How the sockets are set up.
    pub sockets: Sockets,
}

impl Default for Exchange {
    /// One byte asked and answered over one connection.
    fn default() -> Self {
        Self {
            run_id: 0,
            seed: 1,
            protocol: Protocol::Tcp,
            streams: 1,
            request: 1,
            response: 1,
            every_us: None,
            flows: Vec::new(),
            sockets: Sockets::default(),
        }
    }
}

impl Exchange {
    /// The first thing that is out of bounds, in words.
    pub fn problem(&self) -> Option<String> {
        let wrong = [self.request, self.response].into_iter().find(|bytes| !(1..=MAX_BYTES).contains(bytes));
        if let Some(bytes) = wrong {
            return Some(format!("requests of {bytes} bytes asked for, 1 to {MAX_BYTES} are possible"));
        }
        if !self.flows.is_empty() {
            return flows::problem(self);
        }
        let every_us = self.every_us?;
        if self.protocol != Protocol::Udp || self.number_bytes() < NUMBER_BYTES {
            return Some(format!(
                "requests that leave when they are due asked for without UDP or with less than {NUMBER_BYTES} bytes"
            ));
        }
        let (least, most) = when_due::EVERY_US.into_inner();
        (!when_due::EVERY_US.contains(&every_us))
            .then(|| format!("a request every {every_us} µs asked for, {least} to {most} are possible"))
    }

    /// Bytes of the response to request `number`, from 1.
    fn response_to(&self, number: u64) -> u32 {
        let at = (number.saturating_sub(1) % self.flows.len().max(1) as u64) as usize;
        self.flows.get(at).copied().unwrap_or(self.response)
    }

    fn number_bytes(&self) -> usize {
        NUMBER_BYTES.min(self.request as usize).min(self.response as usize)
    }
}

/// Why no answer came.
pub(super) enum Silence {
    /// The measurement is over.
    Over,
    /// This one is lost; the next may come.
    Lost,
    /// The other end closed the stream.
    Closed,
    /// The stream is of no more use.
    Broken(String),
}

impl Silence {
    /// The stream's fault, if it has one.
    pub(super) fn fault(self) -> Option<String> {
        match self {
            Self::Over | Self::Lost => None,
            Self::Closed => Some("the other end closed".into()),
            Self::Broken(reason) => Some(reason),
        }
    }
}

impl From<io::Error> for Silence {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// One stream's end at the host that asks.
pub(super) fn ask_tcp(work: Exchange, mut socket: TcpStream) -> Work {
    if !work.flows.is_empty() {
        return flows::ask(work, socket);
    }
    Box::new(move |stage| {
        let request = Payload::new(work.seed).chunk(0, 0, work.request as usize).to_vec();
        let mut response = vec![0; work.response as usize];
        ask(stage, &work, |_| {
            write_all(&mut socket, &request, &|| !stage.runs())?;
            read_exact(&mut socket, &mut response, &|| !stage.runs())
        })
    })
}

/// Like [`ask_tcp`], over UDP.
pub(super) fn ask_udp(work: Exchange, socket: UdpSocket) -> Work {
    if let Some(every_us) = work.every_us {
        return when_due::ask_udp(work, every_us, socket);
    }
    Box::new(move |stage| {
        let mut request = Payload::new(work.seed).chunk(0, 0, work.request as usize).to_vec();
        let mut buffer = vec![0; 65_536];
        let number_bytes = work.number_bytes();
        ask(stage, &work, |number| {
            request[..number_bytes].copy_from_slice(&number.to_le_bytes()[..number_bytes]);
            send(&socket, &request)?;
            let asked = Instant::now();
            loop {
                let expected = |buffer: &[u8], bytes: usize| {
                    bytes == work.response as usize && buffer[..number_bytes] == request[..number_bytes]
                };
                match socket.recv(&mut buffer) {
                    Ok(bytes) if expected(&buffer, bytes) => return Ok(()),
                    Ok(_) => {}
                    Err(error) if is_patient(&error) => {}
                    Err(error) => return Err(error.into()),
                }
                if !stage.runs() {
                    return Err(Silence::Over);
                }
                if asked.elapsed() > ANSWER_TIMEOUT {
                    return Err(Silence::Lost);
                }
            }
        })
    })
}

/// Asks until the schedule ends; `once` asks question `number` and waits for its answer.
fn ask(
    stage: &SharedState,
    work: &Exchange,
    mut once: impl FnMut(u64) -> Result<(), Silence>,
) -> WorkerResult {
    let mut share = WorkerResult::default();
    let mut round_trips = Delays::default();
    clock::sleep_until(stage.schedule.start_ns);
    let (mut number, mut longest) = (0, 0);
    loop {
        let asked = clock::now_ns();
        if !stage.runs() || asked >= stage.schedule.end_ns {
            break;
        }
        let counted = stage.schedule.counts(asked);
        number += 1;
        match once(number) {
            Ok(()) => {
                let round_trip = clock::now_ns() - asked;
                longest = longest.max(round_trip);
                if counted {
                    round_trips.record(round_trip);
                    stage.meter.delayed(1, round_trip, round_trip);
                    share.sent += 1;
                }
                stage.meter.sent(1, u64::from(work.request));
                stage.meter.received(1, u64::from(work.response_to(number)));
            }
            Err(Silence::Lost) => share.timeouts += u64::from(counted),
            Err(Silence::Over) => {
                let now = clock::now_ns();
                // One that has waited less than others took says nothing: its answer may be under
                // way.
                if now > stage.schedule.begin_ns && now - asked > longest {
                    note_unanswered(&mut share, &mut round_trips, work.protocol, now - asked);
                }
                break;
            }
            Err(silence) => {
                share.fault = silence.fault();
                break;
            }
        }
    }
    share.round_trips = Some(round_trips);
    share
}

/// A question is still not answered when the time is over, `age_ns` after it was asked, which is
/// longer than any other took.
fn note_unanswered(share: &mut WorkerResult, round_trips: &mut Delays, protocol: Protocol, age_ns: u64) {
    share.timeouts += 1;
    // A stream loses nothing, so the answer takes at least this long. A datagram may be lost, which
    // is no delay.
    if protocol == Protocol::Tcp {
        round_trips.record(age_ns);
    }
}

/// One stream's end at the host that answers: until the other closes.
pub(super) fn answer_tcp(work: Exchange, mut socket: TcpStream) -> Work {
    if !work.flows.is_empty() {
        return flows::answer(work, socket);
    }
    Box::new(move |stage| {
        let response = Payload::new(work.seed).chunk(1, 0, work.response as usize).to_vec();
        let mut request = vec![0; work.request as usize];
        let mut share = WorkerResult::default();
        loop {
            let over = || !stage.runs();
            let done = read_exact(&mut socket, &mut request, &over)
                .and_then(|()| write_all(&mut socket, &response, &over));
            match done {
                Ok(()) => stage.meter.received(1, u64::from(work.request)),
                Err(silence) => {
                    // The other end closes when its time is over, and so the last thing heard is
                    // its end.
                    share.fault = silence.fault().filter(|_| stage.runs() && !is_over(stage));
                    return share;
                }
            }
        }
    })
}

/// Like [`answer_tcp`], over UDP: until nothing comes any more.
pub(super) fn answer_udp(work: Exchange, socket: UdpSocket) -> Work {
    Box::new(move |stage| {
        let mut response = Payload::new(work.seed).chunk(1, 0, work.response as usize).to_vec();
        let mut buffer = vec![0; 65_536];
        let number_bytes = work.number_bytes();
        let mut share = WorkerResult::default();
        let mut heard = Instant::now();
        // Requests that left when they were due may be on their way for as long as an answer is
        // awaited.
        let awaited = |every_us: u32| ANSWER_TIMEOUT + Duration::from_micros(every_us.into());
        let silence = work.every_us.map_or(QUIET, awaited);
        while !stage.aborted() {
            match socket.recv(&mut buffer) {
                Ok(bytes) if bytes == work.request as usize => {
                    response[..number_bytes].copy_from_slice(&buffer[..number_bytes]);
                    stage.meter.received(1, u64::from(work.request));
                    heard = Instant::now();
                    if let Err(Silence::Broken(reason)) = send(&socket, &response) {
                        share.fault = Some(reason);
                        return share;
                    }
                }
                Ok(_) => {}
                // Only an empty socket is quiet.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && stage.is_quiet(heard, silence) => {
                    break;
                }
                Err(error) if is_patient(&error) => {}
                Err(error) => {
                    share.fault = Some(error.to_string());
                    return share;
                }
            }
        }
        share
    })
}

fn is_over(stage: &SharedState) -> bool {
    clock::now_ns() + 1_000_000 >= stage.schedule.end_ns
}

/// A call that timed out, or heard of a port that is closed already or not yet open.
fn is_patient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
    )
}

fn send(socket: &UdpSocket, datagram: &[u8]) -> Result<(), Silence> {
    match socket.send(datagram) {
        Ok(_) => Ok(()),
        // A request that could not be sent is not answered, which counts as a timeout.
        Err(error) if is_patient(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes all of `bytes` unless it is `over` first.
pub(super) fn write_all(
    socket: &mut TcpStream,
    bytes: &[u8],
    over: &dyn Fn() -> bool,
) -> Result<(), Silence> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match socket.write(rest) {
            Ok(taken) => rest = &rest[taken..],
            Err(error) if is_patient(&error) && error.kind() != ErrorKind::ConnectionRefused => {
                if over() {
                    return Err(Silence::Over);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Fills `bytes` unless it is `over` first.
pub(super) fn read_exact(
    socket: &mut TcpStream,
    bytes: &mut [u8],
    over: &dyn Fn() -> bool,
) -> Result<(), Silence> {
    let mut filled = 0;
    while filled < bytes.len() {
        match socket.read(&mut bytes[filled..]) {
            Ok(0) => return Err(Silence::Closed),
            Ok(read) => filled += read,
            Err(error) if is_patient(&error) && error.kind() != ErrorKind::ConnectionRefused => {
                if over() {
                    return Err(Silence::Over);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Sends as many bytes as the request asks for, which may be no more than `most`.
pub(super) fn send_answer(
    socket: &mut TcpStream,
    payload: &Payload,
    request: &[u8],
    most: u32,
    over: &dyn Fn() -> bool,
) -> Result<(), Silence> {
    let length = request.first_chunk::<LENGTH_BYTES>().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    if length > most {
        return Err(Silence::Broken(format!("an answer of {length} bytes was asked for, more than {most}")));
    }
    let mut sent = 0;
    while sent < length {
        let chunk = payload.chunk(0, u64::from(sent), (length - sent) as usize);
        write_all(socket, chunk, over)?;
        sent += chunk.len() as u32;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::load::worker_pool::{Schedule, WorkerPool};

    /// The findings where `answered` questions take `delay` each and the next is not answered until
    /// the time is over.
    fn stalled(protocol: Protocol, answered: u64, delay: Duration) -> WorkerResult {
        let work = Exchange { protocol, ..Exchange::default() };
        let is_asked = Arc::new(AtomicBool::new(false));
        let last = Arc::clone(&is_asked);
        let hand: Work = Box::new(move |stage| {
            ask(stage, &work, |number| {
                if number <= answered {
                    std::thread::sleep(delay);
                    return Ok(());
                }
                last.store(true, Ordering::Relaxed);
                while stage.runs() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Silence::Over)
            })
        });
        let schedule = Schedule { start_ns: 0, begin_ns: 0, end_ns: u64::MAX, peer_ahead_ns: 0 };
        let pool = WorkerPool::begin(schedule, vec![hand]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_asked.load(Ordering::Relaxed) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(100));
        pool.finish(deadline).remove(0)
    }

    #[test]
    fn a_question_that_the_end_finds_unanswered_counts_with_its_age() {
        for answered in [0, 3] {
            let share = stalled(Protocol::Tcp, answered, Duration::from_millis(1));
            let trips = share.round_trips.and_then(|trips| trips.summary()).unwrap();
            assert_eq!((share.timeouts, share.sent, trips.count), (1, answered, answered + 1));
            assert!(trips.max_us >= 90_000.0 && share.fault.is_none(), "{trips:?}");
        }
        let share = stalled(Protocol::Udp, 3, Duration::from_millis(1));
        let trips = share.round_trips.and_then(|trips| trips.summary()).unwrap();
        assert_eq!((share.timeouts, trips.count), (1, 3), "a datagram that may be lost is no delay");
    }

    #[test]
    fn a_question_that_was_only_just_asked_says_nothing() {
        let mut share = WorkerResult::default();
        for _ in 0..10 {
            share = stalled(Protocol::Tcp, 1, Duration::from_millis(1_000));
            if share.timeouts == 0 {
                break;
            }
        }
        assert_eq!((share.timeouts, share.sent), (0, 1));
    }
}
