//! Requests that leave when they are due, answered or not: a small flow that measures the delay
//! under a load.
//!
//! A client that waits for each answer asks least while the path is slow, and leaves
//! out the very delays that it is there to measure (coordinated omission). Here every request is
//! due at a fixed instant, leaves then or as soon as its thread gets a CPU, and its round trip
//! counts from when it was due. One that the kernel has no room for, or that has no answer
//! [`ANSWER_TIMEOUT`] after the end, is lost; a loss is no delay.
//!
//! INVARIANT: memory does not depend on what is answered: of more than [`MOST_UNANSWERED`] requests
//! the oldest is given up.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::UdpSocket;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{ANSWER_TIMEOUT, Exchange, NUMBER_BYTES, is_patient};
use crate::clock;
use crate::load::delays::Delays;
use crate::load::payload::Payload;
use crate::load::worker_pool::{SharedState, WAIT_TIMEOUT, Work, WorkerResult};

/// The shortest and the longest time between two requests, in microseconds.
pub(super) const EVERY_US: std::ops::RangeInclusive<u32> = 100..=10_000_000;
/// Requests that may wait for their answers at once.
const MOST_UNANSWERED: usize = 1 << 16;

/// One stream's end at the host that asks every `every_us` microseconds.
pub(super) fn ask_udp(work: Exchange, every_us: u32, socket: UdpSocket) -> Work {
    Box::new(move |stage| {
        let mut asker = Asker::new(stage, &work, every_us, &socket);
        let fault = asker.run().err().map(|error| error.to_string());
        asker.close(fault)
    })
}

struct Asker<'a> {
    stage: &'a SharedState,
    socket: &'a UdpSocket,
    every_ns: u64,
    request: Vec<u8>,
    response_bytes: usize,
    buffer: Vec<u8>,
    unanswered: Unanswered,
    round_trips: Delays,
    lateness: Delays,
    sent: u64,
    lost: u64,
}

impl<'a> Asker<'a> {
    fn new(stage: &'a SharedState, work: &Exchange, every_us: u32, socket: &'a UdpSocket) -> Self {
        Self {
            stage,
            socket,
            every_ns: u64::from(every_us) * 1_000,
            request: Payload::new(work.seed).chunk(0, 0, work.request as usize).to_vec(),
            response_bytes: work.response as usize,
            buffer: vec![0; 65_536],
            unanswered: Unanswered::default(),
            round_trips: Delays::default(),
            lateness: Delays::default(),
            sent: 0,
            lost: 0,
        }
    }

    /// Sends all requests that are due before the schedule's end, and takes the answers.
    fn run(&mut self) -> io::Result<()> {
        // A request that the kernel has no room for is lost: waiting would hold up the next ones.
        self.socket.set_nonblocking(true)?;
        loop {
            let number = self.unanswered.next_number();
            let due_ns = self.due_ns(number);
            if due_ns >= self.stage.schedule.end_ns || !self.take_answers_until(due_ns)? {
                break;
            }
            self.ask(number, due_ns)?;
        }
        let last_ns = clock::now_ns() + ANSWER_TIMEOUT.as_nanos() as u64;
        while !self.unanswered.is_empty() && !self.stage.aborted() && clock::now_ns() < last_ns {
            self.wait_for_answer(last_ns)?;
            self.take_answers()?;
        }
        Ok(())
    }

    fn due_ns(&self, number: u64) -> u64 {
        self.stage.schedule.start_ns + number * self.every_ns
    }

    fn ask(&mut self, number: u64, due_ns: u64) -> io::Result<()> {
        self.request[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        match self.socket.send(&self.request) {
            Ok(_) => {}
            Err(error) if is_patient(&error) => {}
            Err(error) => return Err(error),
        }
        self.unanswered.add();
        self.stage.meter.sent(1, self.request.len() as u64);
        if self.stage.schedule.counts(due_ns) {
            self.sent += 1;
            self.lateness.record(clock::now_ns().saturating_sub(due_ns));
        }
        if self.unanswered.len() > MOST_UNANSWERED {
            self.lose_oldest();
        }
        Ok(())
    }

    /// Gives up the oldest request that waits; false without one.
    fn lose_oldest(&mut self) -> bool {
        let Some(number) = self.unanswered.give_up() else { return false };
        self.lost += u64::from(self.stage.schedule.counts(self.due_ns(number)));
        true
    }

    /// Takes answers until an instant; false if the work ends before it. What is due already still
    /// leaves.
    fn take_answers_until(&mut self, instant_ns: u64) -> io::Result<bool> {
        loop {
            self.take_answers()?;
            if self.stage.aborted() {
                return Ok(false);
            }
            if clock::now_ns() >= instant_ns {
                return Ok(true);
            }
            if !self.stage.runs() {
                return Ok(false);
            }
            self.wait_for_answer(instant_ns)?;
        }
    }

    /// Takes all answers that are there.
    fn take_answers(&mut self) -> io::Result<()> {
        loop {
            match self.socket.recv(&mut self.buffer) {
                Ok(bytes) => self.take(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_patient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the datagram of this many bytes in the buffer.
    fn take(&mut self, bytes: usize) {
        let now_ns = clock::now_ns();
        let number = self.buffer[..bytes].first_chunk::<NUMBER_BYTES>();
        let Some(number) = number.filter(|_| bytes == self.response_bytes) else { return };
        let number = u64::from_le_bytes(*number);
        if !self.unanswered.answer(number) {
            return;
        }
        let due_ns = self.due_ns(number);
        if self.stage.schedule.counts(due_ns) {
            let round_trip_ns = now_ns.saturating_sub(due_ns);
            self.round_trips.record(round_trip_ns);
            self.stage.meter.delayed(1, round_trip_ns, round_trip_ns);
        }
        self.stage.meter.received(1, bytes as u64);
    }

    /// Sleeps until something comes, or until an instant, but not for long.
    fn wait_for_answer(&self, instant_ns: u64) -> io::Result<()> {
        // A socket's own timeout is rounded up to the kernel's ticks, which would make each request
        // late.
        let timeout = clock::until(instant_ns).min(WAIT_TIMEOUT);
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        match poll(&mut [PollFd::new(self.socket, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn close(mut self, fault: Option<String>) -> WorkerResult {
        while self.lose_oldest() {}
        WorkerResult {
            sent: self.sent,
            timeouts: self.lost,
            round_trips: Some(self.round_trips),
            lateness: Some(self.lateness),
            fault,
            ..WorkerResult::default()
        }
    }
}

/// Which requests have no answer yet.
///
/// INVARIANT: the first one waits, unless there is none.
#[derive(Default)]
struct Unanswered {
    first: u64,
    /// Whether each request from the first on still waits.
    waits: VecDeque<bool>,
}

impl Unanswered {
    fn add(&mut self) {
        self.waits.push_back(true);
    }

    /// Whether request `number` waited; it no longer does.
    fn answer(&mut self, number: u64) -> bool {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let waited = at.and_then(|at| self.waits.get_mut(at)).is_some_and(std::mem::take);
        self.drop_answered();
        waited
    }

    /// The oldest one that waits; it no longer does.
    fn give_up(&mut self) -> Option<u64> {
        self.waits.pop_front()?;
        let number = self.first;
        self.first += 1;
        self.drop_answered();
        Some(number)
    }

    fn drop_answered(&mut self) {
        while self.waits.front() == Some(&false) {
            self.waits.pop_front();
            self.first += 1;
        }
    }

    fn next_number(&self) -> u64 {
        self.first + self.waits.len() as u64
    }

    /// Requests from the oldest one that waits to the newest.
    fn len(&self) -> usize {
        self.waits.len()
    }

    fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::load::task::Protocol;
    use crate::load::worker_pool::{Schedule, WorkerPool};

    /// A request every 10 ms for 300 ms, of which the first ten do not count.
    const REQUESTS: usize = 30;
    const COUNTED: u64 = 20;
    const EVERY_MS: u64 = 10;

    fn work() -> Exchange {
        Exchange {
            protocol: Protocol::Udp,
            request: 64,
            response: 64,
            every_us: Some(EVERY_MS as u32 * 1_000),
            ..Exchange::default()
        }
    }

    /// Asks from `late_ms` after the first request was due; the other end has all requests before
    /// it sends `answers` to them.
    fn asked(late_ms: u64, answers: fn(Vec<Vec<u8>>) -> Vec<Vec<u8>>) -> WorkerResult {
        let [near, far] = [0; 2].map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let other = std::thread::spawn(move || {
            let mut buffer = [0; 100];
            let mut request = || {
                let bytes = far.recv(&mut buffer).expect("a request, though none was answered");
                buffer[..bytes].to_vec()
            };
            let requests = (0..REQUESTS).map(|_| request()).collect();
            for answer in answers(requests) {
                far.send(&answer).unwrap();
            }
            far
        });
        let start_ns = clock::now_ns() - late_ms * 1_000_000;
        let schedule = Schedule {
            start_ns,
            begin_ns: start_ns + (REQUESTS as u64 - COUNTED) * EVERY_MS * 1_000_000,
            end_ns: start_ns + REQUESTS as u64 * EVERY_MS * 1_000_000,
            peer_ahead_ns: 0,
        };
        let every_us = work().every_us.unwrap();
        let pool = WorkerPool::begin(schedule, vec![ask_udp(work(), every_us, near)]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !pool.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(other.join().unwrap());
        pool.finish(deadline).remove(0)
    }

    #[test]
    fn a_request_leaves_while_others_wait_and_the_time_that_they_wait_counts() {
        let found = asked(0, |requests| requests);
        assert_eq!((found.sent, found.timeouts, &found.fault), (COUNTED, 0, &None));
        let trips = found.round_trips.and_then(|trips| trips.summary()).unwrap();
        assert_eq!(trips.count, COUNTED, "what was due in the warm-up does not count");
        // All were answered once the last had left: the first that counts waited for nineteen
        // others.
        assert!(trips.max_us >= 189_000.0 && trips.p50_us >= 89_000.0, "{trips:?}");
    }

    #[test]
    fn a_request_that_left_late_counts_from_when_it_was_due() {
        let found = asked(1_000, |requests| requests);
        let [trips, lateness] =
            [found.round_trips, found.lateness].map(|delays| delays.and_then(|all| all.summary()).unwrap());
        assert_eq!((found.sent, lateness.count), (COUNTED, COUNTED));
        // The last one was due 290 ms after the first, which was due a second ago.
        assert!(lateness.min_us >= 709_000.0 && trips.min_us >= 709_000.0, "{lateness:?} {trips:?}");
    }

    #[test]
    fn what_is_never_answered_is_lost_and_what_was_not_asked_is_no_answer() {
        let found = asked(0, |requests| {
            let mut strange = [vec![0; 63], vec![0xff; 64]].to_vec();
            strange.extend(requests.into_iter().step_by(2).flat_map(|request| [request.clone(), request]));
            strange
        });
        let trips = found.round_trips.and_then(|trips| trips.summary()).unwrap();
        assert_eq!((found.sent, found.timeouts, trips.count), (COUNTED, COUNTED / 2, COUNTED / 2));
    }

    #[test]
    fn the_oldest_is_given_up_and_an_answer_counts_once() {
        let mut unanswered = Unanswered::default();
        (0..4).for_each(|_| unanswered.add());
        assert!(unanswered.answer(1) && !unanswered.answer(1) && !unanswered.answer(4));
        assert_eq!((unanswered.len(), unanswered.next_number()), (4, 4), "the first one still waits");
        assert_eq!(unanswered.give_up(), Some(0));
        assert_eq!((unanswered.len(), unanswered.next_number()), (2, 4));
        assert!(!unanswered.answer(0), "it was given up");
        assert!(unanswered.answer(3) && unanswered.answer(2) && unanswered.is_empty());
        assert_eq!((unanswered.give_up(), unanswered.next_number()), (None, 4));
    }

    #[test]
    fn open_loop_requests_need_udp_a_number_and_an_interval() {
        assert_eq!(work().problem(), None);
        for wrong in [
            Exchange { protocol: Protocol::Tcp, ..work() },
            Exchange { request: 7, ..work() },
            Exchange { response: 7, ..work() },
            Exchange { every_us: Some(99), ..work() },
            Exchange { every_us: Some(10_000_001), ..work() },
        ] {
            assert!(wrong.problem().is_some(), "{wrong:?}");
        }
        let waits = Exchange { protocol: Protocol::Tcp, request: 1, every_us: None, ..work() };
        assert_eq!(waits.problem(), None);
    }
}
