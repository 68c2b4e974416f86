//! The records of one source on their way to its servers.
//!
//! Invariants: the caller that adds a record never waits; records are at most [`MAX_WAITING`], and
//! each that is given up is counted. Records of one session arrive in their order; one that no
//! server takes does not hold up those of others for long.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use vpnd_proto::time::Time;

use crate::idp_client::IdpClient;
use vpnd_config::source::Source;
use vpnd_ipc::gateway::auth::AccountingHealth;
use vpnd_ipc::gateway::idp::{AccountingEvent, AccountingRecord, MAX_RECORDS};
use vpnd_sys::clock::now;

/// Records that wait, at most: an hour of a server's absence with 1,600 sessions that begin and end
/// in it and one record of each between.
const MAX_WAITING: usize = 16_384;
/// Records among which those are looked for that can be sent together.
const WINDOW: usize = 64;
/// Records at a time as long as no server answers. Two, or one that the servers never take would
/// keep all others back.
const PROBES: usize = 2;
/// How often a record may fail while others arrive.
const MAX_FAILURES: u32 = 5;
/// Time for which a gateway's start waits to be the first record. Some servers never answer it.
const START_PRECEDENCE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time over that of the source for a reply to arrive.
const REPLY_MARGIN: Duration = Duration::from_secs(2);

pub(super) struct Ledger {
    pub(super) source: Source,
    queue: Mutex<Queue>,
    added: Notify,
}

#[derive(Default)]
struct Queue {
    /// In the order of their numbers.
    waiting: VecDeque<Waiting>,
    last: u64,
    sent: u64,
    lost: u64,
}

#[derive(Clone)]
struct Waiting {
    number: u64,
    record: AccountingRecord,
    since: Time,
    failures: u32,
}

impl Ledger {
    pub(super) fn new(source: &Source) -> Self {
        Self { source: source.clone(), queue: Mutex::default(), added: Notify::new() }
    }

    /// Takes over a record.
    pub(super) fn add(&self, record: AccountingRecord, since: Time) {
        self.queue().add(record, since);
        self.added.notify_one();
    }

    pub(super) fn health(&self) -> AccountingHealth {
        let queue = self.queue();
        AccountingHealth { sent: queue.sent, lost: queue.lost, waiting: queue.waiting.len() as u64 }
    }

    /// Sends what is added; never returns.
    pub(super) async fn deliver(&self, idp: &IdpClient) {
        let (mut pause, mut at_once) = (FIRST_PAUSE, MAX_RECORDS);
        loop {
            let batch = self.queue().batch(at_once, now());
            if batch.is_empty() {
                self.added.notified().await;
                continue;
            }
            let sent = batch.iter().map(|waiting| self.send(idp, waiting));
            let sent = futures_util::future::join_all(sent).await;
            let results: Vec<_> = batch.iter().map(|waiting| waiting.number).zip(sent).collect();
            if self.queue().settle(&results) {
                (pause, at_once) = (FIRST_PAUSE, MAX_RECORDS);
            } else {
                tokio::time::sleep(pause).await;
                (pause, at_once) = ((pause * 2).min(LONGEST_PAUSE), PROBES);
            }
        }
    }

    /// Sends one record; whether a server has it.
    async fn send(&self, idp: &IdpClient, waiting: &Waiting) -> bool {
        let delay_s = u32::try_from(now().since(waiting.since).as_secs()).unwrap_or(u32::MAX);
        let record = AccountingRecord { delay_s, ..waiting.record.clone() };
        let longest = self.source.reply_timeout() + REPLY_MARGIN;
        idp.request(record, longest).await.is_ok()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn add(&mut self, record: AccountingRecord, since: Time) {
        if self.waiting.len() >= MAX_WAITING {
            self.lost += 1;
            if matches!(record.event, AccountingEvent::Interim(_)) {
                // The next one says as much.
                return;
            }
            self.waiting.pop_front();
        }
        self.last += 1;
        self.waiting.push_back(Waiting { number: self.last, record, since, failures: 0 });
    }

    /// The records to be sent now: the oldest, but one of each session.
    fn batch(&self, at_once: usize, now: Time) -> Vec<Waiting> {
        let (mut batch, mut sessions) = (Vec::new(), HashSet::new());
        for waiting in self.waiting.iter().take(WINDOW) {
            let is_new = waiting.record.session.as_ref().is_none_or(|session| sessions.insert(&*session.id));
            if is_new {
                batch.push(waiting.clone());
            }
            let is_first = waiting.record.session.is_none() && now.since(waiting.since) < START_PRECEDENCE;
            if is_first || batch.len() >= at_once {
                break;
            }
        }
        batch
    }

    /// Takes note of what became of a batch; whether any of it has arrived.
    fn settle(&mut self, results: &[(u64, bool)]) -> bool {
        let any = results.iter().any(|(_, arrived)| *arrived);
        for (number, arrived) in results {
            // It may have made room for another meanwhile, and was counted then.
            let Ok(at) = self.waiting.binary_search_by_key(number, |waiting| waiting.number) else {
                continue;
            };
            if *arrived {
                self.waiting.remove(at);
                self.sent += 1;
            } else if any {
                self.waiting[at].failures += 1;
                if self.waiting[at].failures >= MAX_FAILURES {
                    tracing::warn!(
                        "a record of accounting is given up: the server takes others and not this one"
                    );
                    self.waiting.remove(at);
                    self.lost += 1;
                }
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_ipc::gateway::idp::Usage;
    use vpnd_ipc::gateway::idp::testing::record;
    use vpnd_proto::control::Text;

    fn of(session: usize, event: AccountingEvent) -> AccountingRecord {
        let mut record = record(event);
        if let Some(session_of) = &mut record.session {
            session_of.id = Text::cut(&session.to_string());
        }
        record
    }

    fn start(session: usize) -> AccountingRecord {
        of(session, AccountingEvent::Start)
    }

    fn numbers(batch: &[Waiting]) -> Vec<u64> {
        batch.iter().map(|waiting| waiting.number).collect()
    }

    #[test]
    fn records_of_a_session_arrive_in_their_order() {
        let mut queue = Queue::default();
        for session in [1, 2, 1, 3] {
            queue.add(start(session), Time::ZERO);
        }
        assert_eq!(numbers(&queue.batch(8, Time::ZERO)), [1, 2, 4]);
        assert!(queue.settle(&[(1, false), (2, true), (4, true)]));
        assert_eq!(
            numbers(&queue.batch(8, Time::ZERO)),
            [1],
            "the second of the session waits for the first"
        );
        queue.settle(&[(1, true)]);
        assert_eq!((numbers(&queue.batch(8, Time::ZERO)), queue.sent), (vec![3], 3));
    }

    #[test]
    fn a_record_that_no_server_takes_is_given_up_and_counted() {
        let mut queue = Queue::default();
        queue.add(start(0), Time::ZERO);
        for _ in 0..100 {
            assert!(!queue.settle(&[(1, false)]), "nobody takes any: it waits");
        }
        for session in 1..=5 {
            queue.add(start(session), Time::ZERO);
            let batch = numbers(&queue.batch(PROBES, Time::ZERO));
            assert_eq!(batch, [1, session as u64 + 1], "others are sent beside it");
            queue.settle(&[(1, false), (batch[1], true)]);
        }
        assert_eq!((queue.waiting.len(), queue.lost, queue.sent), (0, 1, 5));
    }

    #[test]
    fn the_accounting_on_record_is_sent_first_for_a_limited_time() {
        let mut queue = Queue::default();
        queue.add(of(0, AccountingEvent::On), Time::ZERO);
        queue.add(start(1), Time::ZERO);
        assert_eq!(numbers(&queue.batch(8, Time::ZERO)), [1]);
        assert_eq!(numbers(&queue.batch(8, Time::ZERO + START_PRECEDENCE)), [1, 2]);
    }

    #[test]
    fn a_full_queue_counts_what_it_loses() {
        let mut queue = Queue::default();
        for session in 0..MAX_WAITING {
            queue.add(start(session), Time::ZERO);
        }
        queue.add(of(1, AccountingEvent::Interim(Usage::default())), Time::ZERO);
        assert_eq!((queue.waiting.len(), queue.lost, queue.waiting[0].number), (MAX_WAITING, 1, 1));
        queue.add(start(MAX_WAITING), Time::ZERO);
        assert_eq!(
            (queue.waiting.len(), queue.lost, queue.waiting[0].number),
            (MAX_WAITING, 2, 2),
            "the oldest"
        );
        // The one that made room was on its way.
        queue.settle(&[(1, true)]);
        assert_eq!((queue.waiting.len(), queue.sent), (MAX_WAITING, 0));
    }
}
