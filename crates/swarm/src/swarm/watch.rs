//! Sessions whose packets are watched closely while something happens to their gateway.
//!
//! Each watched session sends a packet every [`PACE`], or more rarely if there are more than
//! [`AT_ONCE`] of them, answered or not; what counts is the longest time between two answers of
//! each session. INVARIANT: a session that is not answered to the end has its gap reckoned to the
//! end.

use std::time::Duration;

use vpnd_proto::time::Time;

use super::{Swarm, now};
use crate::message::Report;

/// Between two packets of a watched session: how finely a gap is seen.
pub(crate) const PACE: Duration = Duration::from_millis(5);
/// Packets that are sent together at most, so that the load stays small however many are watched.
const AT_ONCE: usize = 50;

/// The sessions that are watched: the first ones of the process.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// When each was last answered, or its watch began, and the longest time until an answer.
    sessions: Vec<(Time, Duration)>,
    /// Marks the packets of this watch: what was sent before may be answered during it.
    mark: u16,
    /// Counts the times at which packets were sent.
    pulses: usize,
    sent: u64,
    answered: u64,
}

impl Watch {
    /// Watches the first `count` sessions from now on. Returns the report of those that were
    /// watched until now, if any were.
    pub(crate) fn begin(&mut self, count: usize, now: Time) -> Option<Report> {
        let report = self.is_on().then(|| self.report(now));
        *self = self.next(count, now);
        report
    }

    /// The first `count` sessions are watched from now on, after this watch.
    fn next(&self, count: usize, now: Time) -> Self {
        // No mark is 0, which is that of other packets.
        let mark = self.mark.checked_add(1).unwrap_or(1);
        Self { sessions: vec![(now, Duration::ZERO); count], mark, ..Self::default() }
    }

    /// Whether a session is watched at all.
    pub(crate) fn is_on(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// The sessions whose turn it is to send, which they do, and the mark of their packets.
    pub(crate) fn turn(&mut self) -> (u16, impl Iterator<Item = usize> + use<>) {
        let turns = self.sessions.len().div_ceil(AT_ONCE).max(1);
        self.pulses += 1;
        let senders = (self.pulses % turns..self.sessions.len()).step_by(turns);
        self.sent += senders.len() as u64;
        (self.mark, senders)
    }

    /// Notes an answer. False if the session is not watched. One to an earlier packet shows that
    /// there is no gap, no more.
    pub(crate) fn answered(&mut self, number: usize, mark: u16, now: Time) -> bool {
        let Some((last, longest)) = self.sessions.get_mut(number) else { return false };
        *longest = now.since(*last).max(*longest);
        *last = now;
        self.answered += u64::from(mark == self.mark);
        true
    }

    fn report(&self, now: Time) -> Report {
        let gaps = self.sessions.iter().map(|(last, longest)| now.since(*last).max(*longest));
        let gaps_ns = gaps.map(|gap| gap.as_nanos() as u64).collect();
        Report::Watched { sent: self.sent, answered: self.answered, gaps_ns }
    }
}

impl Swarm {
    /// Watches the first `count` sessions, and reports those that were watched until now.
    pub(super) fn watch(&mut self, count: usize) {
        self.reports.extend(self.watch.begin(count.min(self.members.len()), now()));
    }

    /// A packet from each watched session whose turn it is.
    pub(super) fn pulse(&mut self) {
        self.revive_load();
        let (mark, senders) = self.watch.turn();
        for number in senders {
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

    fn gaps_ms(watch: &Watch, now: Time) -> Vec<u64> {
        let Report::Watched { gaps_ns, .. } = watch.report(now) else { panic!("another report") };
        gaps_ns.into_iter().map(|gap_ns| gap_ns / 1_000_000).collect()
    }

    #[test]
    fn few_send_at_every_pulse_and_many_in_turns() {
        let mut few = Watch::default().next(AT_ONCE, at(0));
        assert!((0..3).all(|_| few.turn().1.count() == AT_ONCE));
        let mut many = Watch::default().next(2 * AT_ONCE + 1, at(0));
        let mut sent: Vec<usize> = (0..3).flat_map(|_| many.turn().1).collect();
        assert_eq!(sent.len(), 2 * AT_ONCE + 1);
        sent.sort_unstable();
        sent.dedup();
        assert_eq!(sent.len(), 2 * AT_ONCE + 1, "each has one turn of three");
        assert_eq!(Watch::default().turn().1.count(), 0);
    }

    #[test]
    fn the_longest_gap_of_each_session_counts_and_lasts_to_the_end() {
        let mut watch = Watch::default().next(2, at(1_000));
        assert!(watch.is_on() && !Watch::default().is_on());
        assert!(watch.answered(0, 1, at(1_010)) && watch.answered(1, 1, at(1_005)));
        assert!(!watch.answered(2, 1, at(1_012)), "it is not watched");
        assert_eq!(gaps_ms(&watch, at(1_012)), [10, 7]);
        assert!(watch.answered(1, 1, at(1_055)) && watch.answered(0, 1, at(1_056)));
        assert_eq!(gaps_ms(&watch, at(1_060)), [46, 50]);
        assert_eq!(gaps_ms(&watch, at(2_056)), [1_000, 1_001], "they are not answered any more");
        let gaps_ns = vec![46_000_000, 50_000_000];
        assert_eq!(watch.report(at(1_060)), Report::Watched { sent: 0, answered: 4, gaps_ns });
    }

    #[test]
    fn what_was_sent_before_is_no_answer_of_this_watch_and_no_gap() {
        let mut watch = Watch::default();
        assert_eq!(watch.begin(1, at(0)), None);
        assert_eq!((watch.turn().0, watch.turn().1.count()), (1, 1));
        let before = watch.begin(1, at(100));
        assert_eq!(before, Some(Report::Watched { sent: 2, answered: 0, gaps_ns: vec![100_000_000] }));
        assert!(
            watch.answered(0, 1, at(110)) && watch.answered(0, 2, at(130)) && watch.answered(0, 0, at(131))
        );
        assert_eq!(
            watch.report(at(131)),
            Report::Watched { sent: 0, answered: 1, gaps_ns: vec![20_000_000] }
        );
    }
}
