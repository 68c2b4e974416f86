//! Several clients that measure at once: each has its part of the tasks, and all their reports are
//! put together as those of one client with the streams of all.
//!
//! INVARIANT: no sum is overstated: rates are the bytes of all clients over the longest time that
//! one of them counted. A client that got nothing is part of what was found and no fault: a run
//! without it would show the better rounds alone.

use super::fresh;
use crate::coordinate::message::{Measurement, Sample, TaskEnd};
use crate::experiment::figures::{self, Figures};
use crate::experiment::pair_run::{EndReports, IntervalSamples};
use crate::load::task::{Findings, Task};

/// The clients' own ends; the others are their partners.
const NEAR: usize = 0;

/// The parts of `clients` clients in the tasks of all of them together, each with run ids of its
/// own.
pub(super) fn parts(tasks: &[Task], clients: u32) -> Vec<Vec<Task>> {
    let part = |number: u32| -> Vec<Task> {
        tasks.iter().map(|task| fresh(&task.of_one(clients, number))).collect()
    };
    (0..clients).map(part).collect()
}

/// The reports of all clients as those of one.
pub(super) fn together(clients: &[EndReports]) -> EndReports {
    let end = |side: usize| {
        let ends: Vec<&Measurement> = clients.iter().map(|client| &client.ends[side]).collect();
        end_of(side, &ends)
    };
    // An interval that not all have reported has no sum.
    let intervals = clients.iter().map(|client| client.samples.len()).min().unwrap_or(0);
    let samples = (0..intervals).map(|number| {
        let moments: Vec<&IntervalSamples> = clients.iter().map(|client| &client.samples[number]).collect();
        moment_of(&moments)
    });
    EndReports { ends: [end(0), end(1)], samples: samples.collect() }
}

fn end_of(side: usize, ends: &[&Measurement]) -> Measurement {
    let most = |value: fn(&Measurement) -> f64| ends.iter().copied().map(value).fold(0.0, f64::max);
    // From the agreed instant on: an end that began to count late has counted for less time by as
    // much.
    let since_start = most(|end| end.seconds + end.late_ms / 1e3);
    let drops = ends.iter().map(|end| end.socket_drops);
    let tasks = ends.iter().map(|end| end.tasks.len()).min().unwrap_or(0);
    let task = |at: usize| task_of(&ends.iter().map(|end| &end.tasks[at]).collect::<Vec<_>>());
    Measurement {
        seconds: most(|end| end.seconds),
        late_ms: 1e3 * (since_start - most(|end| end.seconds)),
        sending_seconds: most(|end| end.sending_seconds),
        stopped_early: ends.iter().any(|end| end.stopped_early),
        cpu_seconds: ends.iter().map(|end| end.cpu_seconds).sum(),
        // Each client is its own host; the partners are on one, and each of them has counted
        // all that it dropped.
        socket_drops: if side == NEAR { drops.sum() } else { drops.max().unwrap_or(0) },
        tasks: (0..tasks).map(task).collect(),
    }
}

fn task_of(ends: &[&TaskEnd]) -> TaskEnd {
    TaskEnd {
        window: sample_of(&ends.iter().map(|end| &end.window).collect::<Vec<_>>()),
        stream_bytes: ends.iter().flat_map(|end| end.stream_bytes.iter().copied()).collect(),
        found: Findings::of_clients(&ends.iter().map(|end| &end.found).collect::<Vec<_>>()),
    }
}

/// The sums of all clients; the delays are each client's own.
fn sample_of(samples: &[&Sample]) -> Sample {
    let sum = |count: fn(&Sample) -> u64| -> u64 { samples.iter().copied().map(count).sum() };
    let jitters: f64 = samples.iter().map(|sample| sample.jitter_us).sum();
    Sample {
        sent_messages: sum(|sample| sample.sent_messages),
        sent_bytes: sum(|sample| sample.sent_bytes),
        received_messages: sum(|sample| sample.received_messages),
        received_bytes: sum(|sample| sample.received_bytes),
        missing: samples.iter().map(|sample| sample.missing).sum(),
        jitter_us: jitters / samples.len().max(1) as f64,
        ..Sample::default()
    }
}

/// One interval of all clients.
fn moment_of(moments: &[&IntervalSamples]) -> IntervalSamples {
    let seconds = |side: usize| moments.iter().map(|moment| moment.seconds[side]).fold(0.0, f64::max);
    let tasks = |side: usize| -> Vec<Sample> {
        let count = moments.iter().map(|moment| moment.tasks[side].len()).min().unwrap_or(0);
        let task =
            |at: usize| sample_of(&moments.iter().map(|moment| &moment.tasks[side][at]).collect::<Vec<_>>());
        (0..count).map(task).collect()
    };
    IntervalSamples { seconds: [seconds(0), seconds(1)], tasks: [tasks(0), tasks(1)] }
}

/// The figures of each client alone, client by client and task by task, where `tasks` are those of
/// all clients together. Their course over time is left to the sum.
pub(super) fn figures(tasks: &[Task], clients: &[EndReports]) -> Vec<Vec<Figures>> {
    let count = clients.len() as u32;
    let figures_of = |(reports, number): (&EndReports, u32)| -> Vec<Figures> {
        let alone = |(task, at): (&Task, usize)| Figures {
            series: Vec::new(),
            ..figures::figures(&task.of_one(count, number), at, reports)
        };
        tasks.iter().zip(0..).map(alone).collect()
    };
    clients.iter().zip(0..).map(figures_of).collect()
}

/// Faults of single clients, in words.
pub(super) fn faults(clients: &[EndReports]) -> Vec<String> {
    let mut faults = Vec::new();
    for (reports, number) in clients.iter().zip(1..) {
        faults.extend(reports.faults().into_iter().map(|reason| format!("client {number}: {reason}")));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::delays::DelaySummary;
    use crate::load::message::Messages;

    /// The task of each client: 1,000 messages of 100 bytes in a second.
    fn task() -> Task {
        Task::Messages(Messages { length: 100, bits_per_second: Some(800_000), ..Messages::default() })
    }

    fn end(seconds: f64, drops: u64, window: Sample, found: Findings) -> Measurement {
        Measurement {
            seconds,
            sending_seconds: seconds,
            socket_drops: drops,
            cpu_seconds: 0.5,
            tasks: vec![TaskEnd { window, found, ..TaskEnd::default() }],
            ..Measurement::default()
        }
    }

    /// A client that sends 1,000 messages, of which `received` arrive at its partner in time.
    fn client(received: u64, seconds: f64) -> EndReports {
        let sent = Sample { sent_messages: 1_000, sent_bytes: 100_000, ..Sample::default() };
        let came = Sample {
            received_messages: received,
            received_bytes: 100 * received,
            missing: 3,
            delay_mean_us: Some(250.0),
            delay_max_us: Some(900.0),
            jitter_us: received as f64,
            ..Sample::default()
        };
        let sends = Findings { messages_sent: 1_000, ..Findings::default() };
        let takes = Findings {
            messages_received: received,
            delay: Some(DelaySummary::default()),
            ..Findings::default()
        };
        let moment = IntervalSamples { seconds: [seconds; 2], tasks: [vec![sent], vec![came]] };
        EndReports {
            ends: [end(1.0, 5, sent, sends), end(seconds, 7, came, takes)],
            samples: vec![moment.clone(), moment],
        }
    }

    #[test]
    fn rates_are_summed_over_the_longest_time_and_loss_is_that_of_the_sum() {
        let (all, each) = (task().of_clients(2), [client(1_000, 1.0), client(500, 2.0)]);
        let reports = together(&each);
        let sum = figures::figures(&all, 0, &reports);
        assert_eq!((sum.received_bits_per_second, sum.received_per_second), (600_000.0, Some(750.0)));
        assert_eq!((sum.sent_bits_per_second, sum.sent_per_second), (1_600_000.0, Some(2_000.0)));
        assert_eq!((sum.messages, sum.lost, sum.lost_percent), (Some(2_000), Some(500), Some(25.0)));
        assert_eq!(sum.delivered_percent, Some(75.0), "of what all clients were to send");
        assert_eq!(sum.delay, None, "percentiles do not add up");
        assert_eq!((reports.ends[0].cpu_seconds, reports.ends[0].socket_drops), (1.0, 10));
        assert_eq!(reports.ends[1].socket_drops, 7, "the partners are on one host");
    }

    #[test]
    fn an_end_that_began_late_does_not_lengthen_the_time_of_all() {
        let mut late = client(1_000, 1.0);
        (late.ends[0].seconds, late.ends[0].late_ms) = (0.75, 250.0);
        let ends = together(&[client(1_000, 1.0), late.clone()]).ends;
        assert_eq!((ends[0].seconds, ends[0].late_ms), (1.0, 0.0));
        let ends = together(&[late.clone(), late]).ends;
        assert_eq!((ends[0].seconds, ends[0].late_ms), (0.75, 250.0));
    }

    #[test]
    fn each_client_keeps_its_own_figures() {
        let by_client = figures(&[task().of_clients(2)], &[client(1_000, 1.0), client(500, 2.0)]);
        let first_task = |client: usize| &by_client[client][0];
        assert_eq!(
            (first_task(0).received_per_second, first_task(1).received_per_second),
            (Some(1_000.0), Some(250.0))
        );
        assert_eq!(
            (first_task(0).delivered_percent, first_task(1).delivered_percent),
            (Some(100.0), Some(50.0))
        );
        assert!(first_task(0).delay.is_some() && first_task(0).series.is_empty());
    }

    #[test]
    fn an_interval_is_the_sum_of_all_clients() {
        let slow = client(500, 2.0);
        let reports = together(&[client(1_000, 1.0), slow.clone()]);
        let came = reports.samples[0].tasks[1][0];
        assert_eq!((came.received_messages, came.missing, came.jitter_us), (1_500, 6, 750.0));
        assert_eq!((came.delay_mean_us, came.delay_max_us), (None, None));
        assert_eq!(reports.samples[0].seconds, [2.0; 2]);
        let short = EndReports { samples: vec![slow.samples[0].clone()], ..slow.clone() };
        assert_eq!(together(&[slow, short]).samples.len(), 1, "no sum of an interval that one client lacks");
    }

    #[test]
    fn the_rate_is_split_equally_and_each_client_has_its_own_run_id() {
        let parts = parts(&[task().of_clients(3)], 3);
        let message_part = |client: usize| match parts[client].as_slice() {
            [Task::Messages(work)] => work.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(parts.len(), 3);
        assert!((0..3).all(|client| message_part(client).streams == 1
            && message_part(client).bits_per_second == Some(800_000)));
        assert!(
            message_part(0).run_id != message_part(1).run_id && message_part(0).seed != message_part(1).seed
        );
    }

    #[test]
    fn faults_name_their_client_and_one_that_got_nothing_is_none() {
        let mut broken = client(1_000, 1.0);
        broken.ends[0].tasks[0].found.faults.push("stream 0: gone".into());
        assert_eq!(faults(&[client(1, 1.0), broken]), ["client 2: stream 0: gone"]);
        assert_eq!(faults(&[client(0, 1.0), client(9, 1.0)]), [""; 0]);
    }
}
