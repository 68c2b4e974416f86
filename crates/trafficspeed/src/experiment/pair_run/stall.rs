//! What a pair receives second by second, in which a standstill shows.

use super::IntervalSamples;
use crate::coordinate::message::Sample;
use crate::stats::median;

/// A pair stalls in a second in which it receives less than this share of its median second …
pub(super) const SHARE: f64 = 0.2;
/// … of so many seconds at least: of fewer none is usual.
pub(super) const LEAST_SECONDS: usize = 5;
/// A task with fewer messages than this in a usual second may have a second without any.
const STEADY_MESSAGES: f64 = 20.0;
/// Intervals are put together until they are as long as this, in seconds.
const SECOND: f64 = 0.95;

/// The bits per second that a pair received in each second, in tasks that receive steadily.
pub(super) fn seconds(samples: &[IntervalSamples]) -> Vec<f64> {
    let tasks = |side: usize| samples.iter().map(|moment| moment.tasks[side].len()).max().unwrap_or(0);
    let mut all: Vec<f64> = Vec::new();
    for side in [0, 1] {
        for at in 0..tasks(side) {
            let Some(rates) = of_task(samples, side, at) else { continue };
            all.resize(all.len().max(rates.len()), 0.0);
            all.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate);
        }
    }
    all
}

/// The same of one task at one end; `None` if it does not receive steadily.
fn of_task(samples: &[IntervalSamples], side: usize, at: usize) -> Option<Vec<f64>> {
    let (mut rates, mut messages) = (Vec::new(), Vec::new());
    let (mut sum, mut length) = ((0, 0), 0.0);
    for moment in samples {
        let Sample { received_bytes, received_messages, .. } =
            moment.tasks[side].get(at).cloned().unwrap_or_default();
        sum = (sum.0 + received_bytes, sum.1 + received_messages);
        length += moment.seconds[side];
        if length >= SECOND {
            rates.push(sum.0 as f64 * 8.0 / length);
            messages.push(sum.1 as f64 / length);
            (sum, length) = ((0, 0), 0.0);
        }
    }
    let has_messages = messages.iter().any(|count| *count > 0.0);
    (!has_messages || median(&messages)? >= STEADY_MESSAGES).then_some(rates)
}

#[cfg(test)]
mod tests {
    use super::super::EndReports;
    use super::*;

    /// A pair whose near end receives so much in intervals of so many seconds.
    fn reports(received: &[(u64, u64)], seconds: f64) -> EndReports {
        let moment = |&(bytes, messages): &(u64, u64)| {
            let sample = Sample { received_bytes: bytes, received_messages: messages, ..Sample::default() };
            IntervalSamples { seconds: [seconds; 2], tasks: [vec![sample], vec![Sample::default()]] }
        };
        EndReports { samples: received.iter().map(moment).collect(), ..EndReports::default() }
    }

    fn bulk(megabytes: &[u64], seconds: f64) -> Option<String> {
        let received: Vec<(u64, u64)> = megabytes.iter().map(|bytes| (bytes * 1_000_000, 0)).collect();
        reports(&received, seconds).stall()
    }

    #[test]
    fn a_second_far_below_the_pairs_median_is_a_stall_and_two_of_few_seconds_are_not() {
        assert_eq!(bulk(&[100, 90, 110, 20, 95], 1.0), None, "a fifth");
        let stalled = reports(&[100, 90, 110, 17, 0, 95].map(|bytes| (bytes * 1_000_000, 0)), 1.0);
        assert_eq!(stalled.faults(), ["stalled: 136 Mbit/s in second 4, 740 Mbit/s in the median second"]);
        assert_eq!(bulk(&[100, 90, 110, 0], 1.0), None, "too few seconds");
        assert_eq!((bulk(&[], 1.0), bulk(&[0; 6], 1.0)), (None, None));
    }

    #[test]
    fn shorter_intervals_are_put_together_to_seconds() {
        let mut tenths = [10; 60];
        tenths[3] = 0;
        assert_eq!(bulk(&tenths, 0.1), None, "a tenth of a second is no stall");
        tenths[20..30].fill(0);
        assert!(bulk(&tenths, 0.1).is_some_and(|why| why.contains("in second 3")));
    }

    #[test]
    fn a_task_with_a_message_now_and_then_may_have_a_second_without_one() {
        let counts = |each: u64| [each, each, 0, each, each, each].map(|count| (count * 1_000, count));
        assert_eq!(reports(&counts(2), 1.0).stall(), None, "two pages a second");
        assert!(reports(&counts(50), 1.0).stall().is_some(), "a call");
    }
}
