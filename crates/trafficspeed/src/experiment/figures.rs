//! The figures of one task, made of what its two ends reported.
//!
//! Rates are per second of the end that counted. Loss counts messages by their numbers, from the
//! first that counted to the last, whenever they arrived.

use serde::{Deserialize, Serialize};

use super::pair_run::{EndReports, IntervalSamples};
use crate::coordinate::message::{Measurement, TaskEnd};
use crate::load::delays::DelaySummary;
use crate::load::message::Messages;
use crate::load::task::Task;
use crate::load::tcp::Way;

/// The figures of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Bits of payload that arrived, per second.
    pub received_bits_per_second: f64,
    /// Bits of payload that were sent, per second.
    pub sent_bits_per_second: f64,
    /// Messages that arrived, per second; absent for bulk data.
    pub received_per_second: Option<f64>,
    /// Messages that were sent, per second; absent for bulk data.
    pub sent_per_second: Option<f64>,
    /// Requests answered per second.
    pub transactions_per_second: Option<f64>,
    /// Messages that were sent, of those that count; of requests only where each leaves when it is
    /// due.
    pub messages: Option<u64>,
    /// Messages that never arrived.
    pub lost: Option<u64>,
    /// Their share, in percent.
    pub lost_percent: Option<f64>,
    /// Share of the messages that the rate asked for which arrived, percent, at most 100. A
    /// sender that gets no CPU skips what it should have sent, and none of that is lost on the way;
    /// absent without a rate.
    pub delivered_percent: Option<f64>,
    /// Messages that came twice.
    pub duplicates: Option<u64>,
    /// Messages that came after a later one.
    pub reordered: Option<u64>,
    /// Messages that came, but too late to be of use.
    pub late: Option<u64>,
    /// Messages that never came or came too late, in percent of those that were sent.
    pub missed_percent: Option<f64>,
    /// Lateness of messages: the generator's own part of their delay.
    pub lateness: Option<DelaySummary>,
    /// Duration of each page, ms.
    pub pages_ms: Vec<f64>,
    /// Questions without an answer, pages that never were whole.
    pub timeouts: Option<u64>,
    /// Jitter (RFC 3550), in microseconds.
    pub jitter_us: Option<f64>,
    pub delay: Option<DelaySummary>,
    /// How the differences of neighbouring messages' delays are distributed.
    pub variation: Option<DelaySummary>,
    pub round_trip: Option<DelaySummary>,
    /// Largest TCP segment without options, as the sender's kernel had it.
    pub mss: Option<u32>,
    pub series: Vec<Point>,
}

/// One interval of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Its end, in seconds from the beginning.
    pub end: f64,
    /// Its length.
    pub seconds: f64,
    /// Bits of payload that arrived, per second.
    pub received_bits_per_second: f64,
    /// Messages that arrived, or transactions, per second.
    pub received_per_second: f64,
    /// Messages that turned out to be missing, less those that came late; `None` if nothing came,
    /// for then it is unknown.
    pub missing: Option<i64>,
    /// Mean one-way delay or round trip, in microseconds.
    pub delay_mean_us: Option<f64>,
    /// The longest, in microseconds.
    pub delay_max_us: Option<f64>,
    pub jitter_us: f64,
}

/// Which end receives: 0 the near one, 1 the far one; for requests the end that asks.
fn receiver(task: &Task) -> usize {
    match task {
        Task::Bulk(job) => usize::from(job.shape.way != Way::Backward),
        Task::Messages(work) => usize::from(!work.backward),
        Task::Exchange(_) | Task::Pages(_) => 0,
    }
}

/// The figures of task number `at`. Of an end that was lost there are none, and nothing that takes
/// both.
pub fn figures(task: &Task, at: usize, reports: &EndReports) -> Figures {
    let to = receiver(task);
    let end = |side: usize| reports.ends[side].tasks.get(at);
    let ends = end(1 - to).zip(end(to));
    let (sending_end, receiving_end) =
        (end(1 - to).cloned().unwrap_or_default(), end(to).cloned().unwrap_or_default());
    let per_second = |count: u64, side: usize| {
        let end = &reports.ends[side];
        // Messages end with the schedule, and so does the time that they are divided by, however
        // late the last reading was.
        let sending = Some(end.sending_seconds - end.late_ms / 1e3);
        let is_message = matches!(task, Task::Messages(_));
        per(count as f64, sending.filter(|seconds| is_message && *seconds > 0.0).unwrap_or(end.seconds))
    };
    let mut figures = Figures {
        received_bits_per_second: 8.0 * per_second(receiving_end.window.received_bytes, to),
        sent_bits_per_second: 8.0 * per_second(sending_end.window.sent_bytes, 1 - to),
        mss: sending_end.found.mss,
        series: series(reports, at, to),
        ..Figures::default()
    };
    match task {
        Task::Bulk(_) => {}
        Task::Messages(work) => {
            figures.received_per_second = end(to).map(|end| per_second(end.window.received_messages, to));
            figures.sent_per_second = end(1 - to).map(|end| per_second(end.window.sent_messages, 1 - to));
            figures.jitter_us = receiving_end.found.jitter_us;
            figures.delay.clone_from(&receiving_end.found.delay);
            figures.variation.clone_from(&receiving_end.found.variation);
            ends.iter().for_each(|(sending_end, receiving_end)| figures.lose(sending_end, receiving_end));
            if work.open_loop.is_some() {
                ends.iter()
                    .for_each(|(sending_end, receiving_end)| figures.be_late(sending_end, receiving_end));
            }
            let delivered = |(sending_end, receiving_end)| {
                delivered_percent(work, &reports.ends[1 - to], sending_end, receiving_end)
            };
            figures.delivered_percent = ends.and_then(delivered);
        }
        Task::Exchange(_) | Task::Pages(_) => {
            figures.pages_ms.clone_from(&receiving_end.found.pages_ms);
            figures.sent_bits_per_second = 8.0 * per_second(receiving_end.window.sent_bytes, to);
            figures.transactions_per_second = end(to).map(|end| per_second(end.window.received_messages, to));
            figures.timeouts = end(to).map(|end| end.found.timeouts);
            figures.round_trip.clone_from(&receiving_end.found.round_trip);
            if matches!(task, Task::Exchange(work) if work.every_us.is_some()) {
                end(to).into_iter().for_each(|end| figures.go_unanswered(end));
            }
        }
    }
    figures
}

impl Figures {
    /// One-way delays, or round trips.
    pub fn delay_of(&self) -> Option<&DelaySummary> {
        self.delay.as_ref().or(self.round_trip.as_ref())
    }

    fn lose(&mut self, sender: &TaskEnd, receiver: &TaskEnd) {
        let (sent, found) = (sender.found.messages_sent, &receiver.found);
        let lost = sent.saturating_sub(found.messages_received);
        self.messages = Some(sent);
        self.lost = Some(lost);
        self.lost_percent = (sent > 0).then(|| 100.0 * lost as f64 / sent as f64);
        self.duplicates = Some(found.duplicates);
        self.reordered = Some(found.reordered);
    }

    fn be_late(&mut self, sender: &TaskEnd, receiver: &TaskEnd) {
        let (sent, late) = (sender.found.messages_sent, receiver.found.late);
        self.late = Some(late);
        self.missed_percent =
            (sent > 0).then(|| 100.0 * (late + self.lost.unwrap_or(0)) as f64 / sent as f64);
        self.lateness.clone_from(&sender.found.lateness);
    }

    /// Takes the requests that left when they were due: of these, and only these, some are lost
    /// without holding up the others.
    fn go_unanswered(&mut self, asker: &TaskEnd) {
        let (sent, lost) = (asker.found.messages_sent, asker.found.timeouts);
        self.messages = Some(sent);
        self.lost = Some(lost);
        self.lost_percent = (sent > 0).then(|| 100.0 * lost as f64 / sent as f64);
        self.lateness.clone_from(&asker.found.lateness);
    }
}

/// Share of the messages that the rate asked for while they counted which arrived, percent.
fn delivered_percent(
    work: &Messages,
    sender: &Measurement,
    sending_end: &TaskEnd,
    receiving_end: &TaskEnd,
) -> Option<f64> {
    // Messages count from the agreed instant to the agreed end, however late the agent's readings
    // were.
    let asked = work.messages_per_second()? * sender.sending_seconds;
    // A sender that was held up at the end of the warm-up makes up for it while messages count.
    // Those were asked for, too: without them more than all would arrive.
    let asked = asked.max(sending_end.found.messages_sent as f64);
    // A duplicate that comes very late is no longer known as one.
    (asked > 0.0).then(|| (100.0 * receiving_end.found.messages_received as f64 / asked).min(100.0))
}

fn series(reports: &EndReports, at: usize, to: usize) -> Vec<Point> {
    let mut end = 0.0;
    let moments = reports.samples.iter().filter_map(|moment| {
        let point = point(at, to, moment, end)?;
        end = point.end;
        Some(point)
    });
    moments.collect()
}

/// One interval of task number `at`, which begins `begin` seconds after the warm-up, as its
/// receiving end saw it.
fn point(at: usize, receiver: usize, moment: &IntervalSamples, begin: f64) -> Option<Point> {
    let (sample, seconds) = (moment.tasks[receiver].get(at)?, moment.seconds[receiver]);
    Some(Point {
        end: begin + seconds,
        seconds,
        received_bits_per_second: 8.0 * per(sample.received_bytes as f64, seconds),
        received_per_second: per(sample.received_messages as f64, seconds),
        missing: (sample.received_messages > 0 || sample.missing != 0).then_some(sample.missing),
        delay_mean_us: sample.delay_mean_us,
        delay_max_us: sample.delay_max_us,
        jitter_us: sample.jitter_us,
    })
}

fn per(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}

/// Bytes that arrived at the near and the far end, of those that were accounted: never more than
/// what crossed.
pub fn arrived(tasks: &[Task], reports: &EndReports) -> [u64; 2] {
    let at = |side: usize| {
        let ends = reports.ends[side].tasks.iter().zip(tasks);
        ends.map(|(end, task)| match task {
            Task::Exchange(_) | Task::Pages(_) => end.window.received_bytes,
            Task::Bulk(_) | Task::Messages(_) => end.found.bytes_received,
        })
        .sum()
    };
    [at(0), at(1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinate::message::Sample;
    use crate::experiment::pair_run::IntervalSamples;
    use crate::load::exchange::Exchange;
    use crate::load::task::Findings;

    fn messages(backward: bool) -> Task {
        Task::Messages(Messages { backward, length: 100, ..Messages::default() })
    }

    fn sender() -> TaskEnd {
        let window = Sample { sent_messages: 1_000, sent_bytes: 100_000, ..Sample::default() };
        TaskEnd {
            window,
            found: Findings { messages_sent: 990, ..Findings::default() },
            ..TaskEnd::default()
        }
    }

    fn receiver() -> TaskEnd {
        let window = Sample { received_messages: 980, received_bytes: 98_000, ..Sample::default() };
        let found = Findings {
            messages_received: 970,
            bytes_received: 97_000,
            duplicates: 3,
            reordered: 2,
            jitter_us: Some(7.0),
            ..Findings::default()
        };
        TaskEnd { window, found, ..TaskEnd::default() }
    }

    /// The receiver's window is twice as long as the sender's.
    fn reports(near: TaskEnd, far: TaskEnd, seconds: [f64; 2]) -> EndReports {
        let end = |end: &TaskEnd, seconds| Measurement {
            seconds,
            sending_seconds: seconds,
            tasks: vec![end.clone()],
            ..Measurement::default()
        };
        let moment = IntervalSamples { seconds, tasks: [vec![near.window], vec![far.window]] };
        EndReports {
            ends: [end(&near, seconds[0]), end(&far, seconds[1])],
            samples: vec![moment.clone(), moment],
        }
    }

    #[test]
    fn message_rates_use_the_sending_time_not_the_reading_time() {
        let mut late = reports(sender(), receiver(), [1.0, 1.0]);
        let expected = figures(&messages(false), 0, &late);
        for end in &mut late.ends {
            // Read a tenth of a second late at the beginning, and a quarter at the end.
            (end.seconds, end.late_ms, end.sending_seconds) = (1.15, 100.0, 1.1);
        }
        let found = figures(&messages(false), 0, &late);
        assert_eq!(found.received_per_second, expected.received_per_second);
        assert_eq!(found.received_bits_per_second, expected.received_bits_per_second);
        assert_eq!(found.sent_per_second, expected.sent_per_second);
    }

    #[test]
    fn each_end_is_counted_by_its_own_time_and_loss_by_the_numbers() {
        for (backward, reports) in [
            (false, reports(sender(), receiver(), [1.0, 2.0])),
            (true, reports(receiver(), sender(), [2.0, 1.0])),
        ] {
            let figures = figures(&messages(backward), 0, &reports);
            let close = |is: f64, expected: f64| assert!((is - expected).abs() < 1e-9, "{is} {expected}");
            close(figures.sent_bits_per_second, 800_000.0);
            close(figures.received_bits_per_second, 392_000.0);
            close(figures.received_per_second.unwrap(), 490.0);
            assert_eq!((figures.messages, figures.lost), (Some(990), Some(20)));
            close(figures.lost_percent.unwrap(), 100.0 * 20.0 / 990.0);
            assert_eq!((figures.duplicates, figures.reordered), (Some(3), Some(2)));
            assert_eq!(figures.series.len(), 2);
            close(figures.series[1].end, 4.0);
            close(figures.series[1].received_per_second, 490.0);
            let side = usize::from(!backward);
            assert_eq!(arrived(&[messages(backward)], &reports)[side], 97_000);
        }
    }

    #[test]
    fn what_an_interval_without_arrivals_lost_is_not_known() {
        let missing = |received_messages, missing| {
            let sample = Sample { received_messages, missing, ..Sample::default() };
            let moment = IntervalSamples { tasks: [vec![sample], vec![sample]], seconds: [1.0, 1.0] };
            point(0, 1, &moment, 0.0).unwrap().missing
        };
        assert_eq!([missing(5, 0), missing(5, 2), missing(0, 0)], [Some(0), Some(2), None]);
    }

    #[test]
    fn what_a_starved_sender_skipped_was_not_delivered() {
        // 100 bytes at 1.6 Mbit/s: 2,000 messages in the second, of which 990 were sent and 970
        // came.
        let mut task = messages(false);
        let Task::Messages(work) = &mut task else { unreachable!() };
        work.bits_per_second = Some(1_600_000);
        let figures = figures(&task, 0, &reports(sender(), receiver(), [1.0, 1.0]));
        assert!((figures.delivered_percent.unwrap() - 48.5).abs() < 1e-9);
        assert_eq!(figures.lost, Some(20), "and what was sent and lost stays what it is");
    }

    #[test]
    fn the_delivered_share_never_exceeds_all() {
        // 100 bytes at 784 kbit/s: 980 messages in the second, of which 990 were sent, ten of them
        // late from the warm-up.
        let mut task = messages(false);
        let Task::Messages(work) = &mut task else { unreachable!() };
        work.bits_per_second = Some(784_000);
        let delivered = |task: &Task, reports: &EndReports| figures(task, 0, reports).delivered_percent;
        let mut all = reports(sender(), receiver(), [1.0, 1.0]);
        assert!((delivered(&task, &all).unwrap() - 100.0 * 970.0 / 990.0).abs() < 1e-9);
        all.ends[1].tasks[0].found.messages_received = 995;
        assert_eq!(delivered(&task, &all), Some(100.0));
        let Task::Messages(work) = &mut task else { unreachable!() };
        work.bits_per_second = Some(1_600_000);
        all.ends[1].tasks[0].found.messages_received = 970;
        (all.ends[0].seconds, all.ends[0].late_ms) = (0.75, 250.0);
        assert!((delivered(&task, &all).unwrap() - 48.5).abs() < 1e-9, "a whole second counted");
    }

    #[test]
    fn requests_that_leave_when_they_are_due_are_lost_without_an_answer() {
        let mut end = sender();
        end.found.timeouts = 99;
        end.found.lateness = Some(DelaySummary { max_us: 3.0, ..DelaySummary::default() });
        let figures_of = |every_us| {
            let Task::Exchange(work) = requests() else { unreachable!() };
            let task = Task::Exchange(Exchange { every_us, ..work });
            figures(&task, 0, &reports(end.clone(), receiver(), [1.0, 1.0]))
        };
        let due = figures_of(Some(10_000));
        assert_eq!(
            (due.messages, due.lost, due.lost_percent, due.timeouts),
            (Some(990), Some(99), Some(10.0), Some(99))
        );
        assert_eq!(due.lateness.map(|late| late.max_us), Some(3.0));
        let waits = figures_of(None);
        assert_eq!(
            (waits.messages, waits.lost, waits.lost_percent, waits.timeouts),
            (None, None, None, Some(99))
        );
    }

    fn requests() -> Task {
        Task::Exchange(Exchange { ..Exchange::default() })
    }

    #[test]
    fn transactions_are_those_of_the_end_that_asks() {
        let reports = reports(receiver(), sender(), [2.0, 1.0]);
        let figures = figures(&requests(), 0, &reports);
        assert_eq!(figures.transactions_per_second, Some(490.0));
        assert_eq!((figures.lost, figures.received_per_second), (None, None));
    }

    #[test]
    fn ends_that_reported_nothing_have_no_figures() {
        assert_eq!(figures(&messages(false), 0, &EndReports::default()), Figures::default());
    }

    #[test]
    fn figures_of_one_end_remain_when_the_other_is_lost() {
        let mut reports = reports(sender(), receiver(), [1.0, 2.0]);
        reports.ends[0] = Measurement::default();
        let figures = figures(&messages(false), 0, &reports);
        assert_eq!(figures.received_per_second, Some(490.0));
        assert_eq!((figures.sent_per_second, figures.lost), (None, None));
        assert_eq!(figures.jitter_us, Some(7.0));
    }
}
