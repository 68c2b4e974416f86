//! Receptions of a pair second by second, in which a standstill shows.

use super::IntervalSamples;
use crate::coordinate::message::Sample;
use crate::stats::median;

/// A pair is silent in a second in which it receives less than this share of its best second: TCP
/// that lost all and tries again sends a packet in each of its pauses, and in the slowest of usual
/// seconds, on a link that loses packets, some percent.
const SHARE: f64 = 0.01;
/// This number of silent seconds in a row is a standstill. A connection is silent for two seconds
/// only where it lost the same packet four times, since its pauses double: of equal losses of one
/// in ten packets that is one loss in ten thousand, of several connections all at once it is none.
const SILENT_SECONDS: usize = 2;
/// In fewer seconds than this, one silent second is a standstill: it would decide the figure.
const LEAST_SECONDS: usize = 5;
/// A task with fewer messages than this in a second that has any may have seconds without.
const STEADY_MESSAGES: f64 = 20.0;
/// Intervals are put together until they are as long as this, in seconds.
const SECOND: f64 = 0.95;

/// The first second in which the pair stood still, from 1, and the bits that it received in its
/// best second. Slow seconds are none: on a link that loses packets they are what was measured.
pub(super) fn standstill(samples: &[IntervalSamples]) -> Option<(usize, f64)> {
    let seconds = seconds(samples);
    let best = seconds.iter().copied().reduce(f64::max)?;
    if best == 0.0 {
        return is_dead(samples).then_some((1, best));
    }
    let in_a_row = if seconds.len() < LEAST_SECONDS { 1 } else { SILENT_SECONDS };
    let is_silent = |rates: &[f64]| rates.iter().all(|rate| *rate < SHARE * best);
    let first = seconds.windows(in_a_row).position(is_silent)?;
    Some((first + 1, best))
}

/// Whether nothing passed. Datagrams that were sent are lost then, which is a result.
fn is_dead(samples: &[IntervalSamples]) -> bool {
    let mut all = samples.iter().flat_map(|moment| moment.tasks.iter().flatten());
    all.all(|sample| sample.received_bytes == 0 && sample.sent_messages == 0)
}

/// The bits per second that a pair received in each second, in tasks that receive steadily.
fn seconds(samples: &[IntervalSamples]) -> Vec<f64> {
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

/// The course of one task at one end; `None` if it does not receive steadily.
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
    // A task that stood still for most of the time is as steady as it was before.
    messages.retain(|count| *count > 0.0);
    (messages.is_empty() || median(&messages)? >= STEADY_MESSAGES).then_some(rates)
}

#[cfg(test)]
mod tests {
    use super::super::EndReports;
    use super::*;

    /// A pair whose near end receives this much in intervals of this many seconds.
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
    fn seconds_without_anything_are_a_stall_and_slow_ones_are_not() {
        // One connection on a link that loses packets: it loses a window now and then, and waits.
        assert_eq!(bulk(&[60, 4, 45, 9, 0, 70, 3, 2, 52], 1.0), None, "slow, and silent for a second");
        let stopped = reports(&[100, 90, 40, 0, 0, 0, 0, 0].map(|bytes| (bytes * 1_000_000, 0)), 1.0);
        assert_eq!(stopped.faults(), ["stalled: nothing from second 4 on, 800 Mbit/s in the best second"]);
        // A gateway that was killed, with what was on its way.
        assert!(bulk(&[377, 310, 174, 0, 0], 1.0).is_some());
        assert!(bulk(&[100, 0, 0, 95, 110, 100], 1.0).is_some(), "a client that went on");
        assert!(bulk(&[377, 0], 1.0).is_some(), "a short measurement, of which it is half");
        assert_eq!(bulk(&[100, 20], 1.0), None, "slow");
        assert!(bulk(&[0], 1.0).is_some() && bulk(&[0; 6], 1.0).is_some(), "nothing at all");
        assert_eq!(bulk(&[], 1.0), None, "shorter than a second");
        let mut lost = reports(&[(0, 0); 3], 1.0);
        lost.samples[1].tasks[1][0].sent_messages = 9;
        assert_eq!(lost.stall(), None, "datagrams that were lost");
    }

    #[test]
    fn shorter_intervals_are_put_together_to_seconds() {
        let mut tenths = [10; 60];
        tenths[3] = 0;
        assert_eq!(bulk(&tenths, 0.1), None, "a tenth of a second is no stall");
        tenths[20..40].fill(0);
        assert!(bulk(&tenths, 0.1).is_some_and(|reason| reason.contains("from second 3 on")));
    }

    #[test]
    fn a_task_with_a_message_now_and_then_may_have_seconds_without_one() {
        let counts = |each: u64| [each, each, 0, 0, 0, each].map(|count| (count * 1_000, count));
        assert_eq!(reports(&counts(2), 1.0).stall(), None, "two pages a second");
        assert!(reports(&counts(50), 1.0).stall().is_some(), "a call");
    }
}
