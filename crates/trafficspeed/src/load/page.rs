//! Pages: at every tick several requests at once over kept TCP connections, and how long it takes
//! until the last answer is there.
//!
//! A page is due whether the one before has come or not, and its time counts from the instant at
//! which it was due: on a path that makes one page wait the next ones wait behind it, as they would
//! in front of a person. The requests of a page are dealt out to the connections in turn, each of
//! which asks for one after the other. All pages are alike: the lengths of their answers grow from
//! the smallest to the largest by one factor.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::delays::Delays;
use super::exchange::{LENGTH_BYTES, Silence, read_exact, send_answer, write_all};
use super::message::open_loop::wait_until;
use super::payload::Payload;
use super::task::Sockets;
use super::worker_pool::{SharedState, Work, WorkerResult};
use crate::clock;

/// Most requests of a page.
const MAX_REQUESTS: u32 = 1_000;
/// Largest request.
const MAX_REQUEST_BYTES: u32 = 60_000;
/// Largest answer.
const MAX_ANSWER_BYTES: u32 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pages {
    pub run_id: u64,
    /// Seed of the payload.
    pub seed: u64,
    /// Connections, kept from page to page.
    pub streams: u32,
    /// Requests of a page.
    pub requests: u32,
    /// Bytes of a request.
    pub request: u32,
    /// Bytes of a page's smallest answer.
    pub smallest: u32,
    /// Bytes of its largest.
    pub largest: u32,
    /// Milliseconds from one page to the next.
    pub every_ms: u32,
    /// How the sockets are set up.
    pub sockets: Sockets,
}

impl Pages {
    /// The first thing that is out of bounds, in words.
    pub fn problem(&self) -> Option<String> {
        let Self { streams, requests, request, smallest, largest, every_ms, .. } = *self;
        if !(streams..=MAX_REQUESTS).contains(&requests) {
            return Some(format!(
                "pages of {requests} requests asked for, {streams} (one for each connection) to {MAX_REQUESTS} are possible"
            ));
        }
        if !(LENGTH_BYTES as u32..=MAX_REQUEST_BYTES).contains(&request) {
            return Some(format!(
                "requests of {request} bytes asked for, {LENGTH_BYTES} to {MAX_REQUEST_BYTES} are possible"
            ));
        }
        if smallest == 0 || smallest > largest || largest > MAX_ANSWER_BYTES {
            return Some(format!(
                "answers of {smallest} to {largest} bytes asked for, 1 to {MAX_ANSWER_BYTES} are possible, the smaller first"
            ));
        }
        let wrong = !(10..=60_000).contains(&every_ms);
        wrong.then(|| format!("a page every {every_ms} ms asked for, 10 to 60000 are possible"))
    }

    /// The lengths of a page's answers.
    pub fn lengths(&self) -> Vec<u32> {
        let (smallest, largest) = (f64::from(self.smallest), f64::from(self.largest));
        let last = f64::from(self.requests.saturating_sub(1).max(1));
        let length = |at: u32| (smallest * (largest / smallest).powf(f64::from(at) / last)).round() as u32;
        (0..self.requests).map(length).collect()
    }

    /// Those for which connection `stream` asks.
    fn lengths_of(&self, stream: u32) -> Vec<u32> {
        self.lengths().into_iter().skip(stream as usize).step_by(self.streams.max(1) as usize).collect()
    }
}

/// The pages that some connections are done with and others are not.
#[derive(Debug)]
struct Pending {
    streams: u32,
    /// By page: connections that are not done with it, and whether it can still be whole.
    pages: Mutex<BTreeMap<u64, (u32, bool)>>,
}

impl Pending {
    fn new(streams: u32) -> Self {
        Self { streams, pages: Mutex::default() }
    }

    /// A connection has its part of a page, or will never have it. The last one learns whether the
    /// page is whole.
    fn done(&self, page: u64, part_is_whole: bool) -> Option<bool> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, whole) = pages.entry(page).or_insert((self.streams, true));
        *left -= 1;
        *whole &= part_is_whole;
        let (left, whole) = (*left, *whole);
        if left > 0 {
            return None;
        }
        pages.remove(&page);
        Some(whole)
    }
}

/// The work of the host that asks, on each of its connections.
pub(super) fn ask(work: &Pages, sockets: Vec<TcpStream>) -> Vec<Work> {
    let pending = Arc::new(Pending::new(work.streams));
    let payload = Payload::new(work.seed);
    let task = |(socket, stream): (TcpStream, u32)| -> Work {
        let (pending, work) = (Arc::clone(&pending), work.clone());
        let request = payload.chunk(0, 0, work.request as usize).to_vec();
        Box::new(move |stage| ask_on(&work, &pending, (socket, stream), request, stage))
    };
    sockets.into_iter().zip(0..).map(task).collect()
}

fn ask_on(
    work: &Pages,
    pending: &Pending,
    (mut socket, stream): (TcpStream, u32),
    mut request: Vec<u8>,
    stage: &SharedState,
) -> WorkerResult {
    let lengths = work.lengths_of(stream);
    let mut answer = vec![0; lengths.iter().copied().max().unwrap_or(0) as usize];
    let mut over = false;
    let mut share = WorkerResult { round_trips: Some(Delays::default()), ..WorkerResult::default() };
    for page in 0.. {
        let due_ns = stage.schedule.start_ns + page * u64::from(work.every_ms) * 1_000_000;
        if due_ns >= stage.schedule.end_ns || !(wait_until(stage, due_ns) || due_ns <= clock::now_ns()) {
            break;
        }
        // A page that was due and can't come any more counts too: a path that lets pages wait must
        // not look better for it.
        let mut is_whole = !over;
        for &length in &lengths {
            if over {
                break;
            }
            request[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
            let answer = &mut answer[..length as usize];
            let fetched = write_all(&mut socket, &request, &|| stage.aborted())
                .and_then(|()| read_exact(&mut socket, answer, &|| stage.aborted()));
            match fetched {
                Ok(()) => stage.meter.received(0, u64::from(length)),
                Err(silence) => {
                    (over, is_whole) = (true, false);
                    share.fault = silence.fault();
                }
            }
        }
        if let Some(whole) = pending.done(page, is_whole) {
            note(&mut share, stage, due_ns, whole);
        }
    }
    share
}

/// A page is over, whole or not.
fn note(share: &mut WorkerResult, stage: &SharedState, due_ns: u64, whole: bool) {
    let took_ns = clock::now_ns().saturating_sub(due_ns);
    if whole {
        stage.meter.received(1, 0);
        stage.meter.delayed(1, took_ns, took_ns);
    }
    if stage.schedule.counts(due_ns) {
        share.sent += 1;
        share.timeouts += u64::from(!whole);
        share.pages_ms.push(took_ns as f64 / 1e6);
        share.round_trips.get_or_insert_default().record(took_ns);
    }
}

/// The work of the host that answers, on each of its connections.
pub(super) fn answer(work: &Pages, sockets: Vec<TcpStream>) -> Vec<Work> {
    let payload = Arc::new(Payload::new(work.seed));
    sockets.into_iter().map(|socket| answer_on(work.clone(), Arc::clone(&payload), socket)).collect()
}

/// Answers until the other end closes.
fn answer_on(work: Pages, payload: Arc<Payload>, mut socket: TcpStream) -> Work {
    Box::new(move |stage| {
        let mut request = vec![0; work.request as usize];
        let mut share = WorkerResult::default();
        let over = || stage.aborted();
        loop {
            let answered = read_exact(&mut socket, &mut request, &over).and_then(|()| {
                stage.meter.received(1, u64::from(work.request));
                send_answer(&mut socket, &payload, &request, work.largest, &over)
            });
            match answered {
                Ok(()) => {}
                // The other end closes once it has all its pages, or gives up those that are left.
                Err(Silence::Broken(reason)) if stage.runs() => {
                    share.fault = Some(reason);
                    return share;
                }
                Err(_) => return share,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Pages {
        Pages {
            run_id: 1,
            seed: 1,
            streams: 6,
            requests: 12,
            request: 400,
            smallest: 10_000,
            largest: 300_000,
            every_ms: 1_000,
            sockets: Sockets::default(),
        }
    }

    #[test]
    fn answers_grow_from_the_smallest_to_the_largest_and_each_is_asked_for_once() {
        let lengths = pages().lengths();
        assert_eq!((lengths.len(), lengths[0], lengths[11]), (12, 10_000, 300_000));
        assert!(lengths.is_sorted());
        let mut dealt: Vec<u32> = (0..6).flat_map(|stream| pages().lengths_of(stream)).collect();
        dealt.sort_unstable();
        assert_eq!(dealt, lengths);
        assert_eq!(pages().lengths_of(5), [lengths[5], lengths[11]]);
        assert_eq!(Pages { requests: 1, streams: 1, ..pages() }.lengths(), [10_000]);
    }

    #[test]
    fn a_page_is_over_when_its_last_part_is_and_whole_if_all_are() {
        let pending = Pending::new(2);
        assert_eq!(pending.done(0, true), None);
        assert_eq!(pending.done(1, true), None, "the first connection is a page ahead");
        assert_eq!(pending.done(0, true), Some(true));
        assert_eq!(pending.done(1, false), Some(false));
        assert!(pending.pages.lock().unwrap().is_empty());
    }

    #[test]
    fn pages_that_cannot_be_made_are_refused() {
        assert_eq!(pages().problem(), None);
        for wrong in [
            Pages { requests: 5, ..pages() },
            Pages { requests: MAX_REQUESTS + 1, ..pages() },
            Pages { request: 3, ..pages() },
            Pages { smallest: 0, ..pages() },
            Pages { smallest: 300_001, ..pages() },
            Pages { largest: MAX_ANSWER_BYTES + 1, ..pages() },
            Pages { every_ms: 9, ..pages() },
        ] {
            assert!(wrong.problem().is_some(), "{wrong:?}");
        }
    }
}
