//! Sessions whose packets are watched closely while something happens to their gateway.
//!
//! Each watched session sends a packet every [`PACE`], answered or not; what counts is the longest
//! time between two answers of one session. INVARIANT: a session that is not answered to the end
//! has its gap reckoned to the end.

use std::time::Duration;

use vpnd_proto::time::Time;

use super::{Swarm, now};
use crate::message::Report;

/// Between two packets of a watched session: how finely a gap is seen.
pub(crate) const PACE: Duration = Duration::from_millis(5);

/// The sessions that are watched: the first ones of the process.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// When each was last answered, or its watch began.
    last_answers: Vec<Time>,
    /// Marks the packets of this watch: what was sent before may be answered during it.
    mark: u16,
    longest: Duration,
    sent: u64,
    answered: u64,
}

impl Watch {
    /// The first `count` sessions are watched from now on, after this watch.
    fn next(&self, count: usize, now: Time) -> Self {
        // No mark is 0, which is that of other packets.
        let mark = self.mark.checked_add(1).unwrap_or(1);
        Self { last_answers: vec![now; count], mark, ..Self::default() }
    }

    /// Whether a session is watched at all.
    pub(super) fn is_on(&self) -> bool {
        !self.last_answers.is_empty()
    }

    /// Notes an answer. False if the session is not watched. One to an earlier packet shows that
    /// there is no gap, no more.
    fn answered(&mut self, number: usize, mark: u16, now: Time) -> bool {
        let Some(last) = self.last_answers.get_mut(number) else { return false };
        self.longest = self.longest.max(now.since(*last));
        *last = now;
        self.answered += u64::from(mark == self.mark);
        true
    }

    fn report(&self, now: Time) -> Report {
        let open = self.last_answers.iter().map(|last| now.since(*last)).max().unwrap_or_default();
        let gap_ns = self.longest.max(open).as_nanos() as u64;
        Report::Watched { sent: self.sent, answered: self.answered, gap_ns }
    }
}

impl Swarm {
    /// Watches the first `count` sessions, and reports those that were watched until now.
    pub(super) fn watch(&mut self, count: usize) {
        if self.watch.is_on() {
            self.reports.push(self.watch.report(now()));
        }
        self.watch = self.watch.next(count.min(self.members.len()), now());
    }

    /// A packet from each watched session.
    pub(super) fn pulse(&mut self) {
        self.revive_load();
        let mark = self.watch.mark;
        for number in 0..self.watch.last_answers.len() {
            self.watch.sent += 1;
            self.with(number, |member, tasks| member.ping(now(), mark, tasks));
        }
    }

    /// A packet with this mark came back.
    pub(super) fn answered(&mut self, number: usize, mark: u16) {
        if self.verifying.remove(&number) {
            self.reports.push(Report::Answered { session: self.session(number) });
        } else if !self.watch.answered(number, mark, now()) {
            self.talked.1 += 1;
            self.packet_answered(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn gap_ms(watch: &Watch, now: Time) -> u64 {
        let Report::Watched { gap_ns, .. } = watch.report(now) else { panic!("another report") };
        gap_ns / 1_000_000
    }

    #[test]
    fn the_longest_gap_is_that_of_one_session_and_lasts_to_the_end() {
        let mut watch = Watch::default().next(2, at(1_000));
        assert!(watch.is_on() && !Watch::default().is_on());
        assert!(watch.answered(0, 1, at(1_010)) && watch.answered(1, 1, at(1_005)));
        assert!(!watch.answered(2, 1, at(1_012)), "it is not watched");
        assert_eq!(gap_ms(&watch, at(1_012)), 10);
        assert!(watch.answered(1, 1, at(1_055)) && watch.answered(0, 1, at(1_056)));
        assert_eq!(gap_ms(&watch, at(1_060)), 50);
        assert_eq!(gap_ms(&watch, at(2_056)), 1_001, "session 1 is not answered any more");
        assert_eq!(watch.report(at(1_060)), Report::Watched { sent: 0, answered: 4, gap_ns: 50_000_000 });
    }

    #[test]
    fn what_was_sent_before_is_no_answer_of_this_watch_and_no_gap() {
        let mut watch = Watch::default().next(1, at(0)).next(1, at(100));
        assert!(
            watch.answered(0, 1, at(110)) && watch.answered(0, 2, at(130)) && watch.answered(0, 0, at(131))
        );
        assert_eq!(watch.report(at(131)), Report::Watched { sent: 0, answered: 1, gap_ns: 20_000_000 });
    }
}
