//! Experiment 1's load: bulk TCP data between all pairs of a fleet at once, in the lab and between
//! real hosts alike.
//!
//! It is one bulk task for each pair ([`pair_run`](super::pair_run)); here it becomes the results
//! of a run.

use std::time::Duration;

use super::figures::{Figures, figures};
use super::outcome::{End, HostOutcome, Interval, Pair, Settings};
use super::pair_run::{IntervalSamples, Observer, PairResult, PairRun, Times};
use super::progress::Progress;
use crate::coordinate::fleet::Fleet;
use crate::load::exchange::Exchange;
use crate::load::task::{Protocol, Task};
use crate::load::tcp::{Job, Shape};

/// Bytes of a request of the probe, and of its answer.
const PROBE_BYTES: u32 = 64;

/// The work of each of `pairs` pairs: the first also has a probe, whose requests leave when
/// they are due.
pub(super) fn tasks(settings: &Settings, pairs: usize) -> Vec<Vec<Task>> {
    let run_id: u64 = rand::random();
    let mut all: Vec<Vec<Task>> = (0..pairs as u64).map(|pair| vec![task(settings, run_id, pair)]).collect();
    if let Some(first) = all.first_mut().filter(|_| settings.probe_every_ms > 0) {
        first.push(Task::Exchange(Exchange {
            run_id: rand::random(),
            seed: settings.seed,
            protocol: Protocol::Udp,
            request: PROBE_BYTES,
            response: PROBE_BYTES,
            every_us: Some(settings.probe_every_ms * 1_000),
            ..Exchange::default()
        }));
    }
    all
}

/// Figures of the probe, if the pair had one and its ends reported.
pub(super) fn probe(tasks: &[Task], result: &PairResult) -> Option<Figures> {
    let probe = tasks.get(1).filter(|_| result.error.is_none())?;
    Some(figures(probe, 1, &result.reports))
}

pub(super) fn times(settings: &Settings) -> Times {
    Times {
        warmup: Duration::from_secs_f64(settings.warmup_seconds),
        duration: Duration::from_secs_f64(settings.seconds),
        interval: Duration::from_secs(1),
    }
}

/// The results of the runs: each pair's in their order, and the totals of every second.
pub(super) fn collect(
    fleet: &Fleet,
    runs: &[PairRun<'_>],
    results: Vec<PairResult>,
) -> (Vec<Pair>, Vec<Interval>) {
    let intervals = totals(&results);
    let pairs = runs.iter().zip(results).map(|(run, result)| pair_of(fleet, run, result)).collect();
    (pairs, intervals)
}

/// Every pair gets its own run id and payload seed.
fn task(settings: &Settings, run_id: u64, pair: u64) -> Task {
    Task::Bulk(Job {
        run_id: run_id.wrapping_add(pair),
        seed: settings.seed.wrapping_add(pair),
        streams: settings.streams,
        threads: settings.threads,
        write_bytes: settings.write_bytes,
        verify: settings.verify,
        congestion: settings.congestion,
        shape: Shape::default(),
    })
}

fn pair_of(fleet: &Fleet, run: &PairRun<'_>, result: PairResult) -> Pair {
    let stall = result.reports.stall();
    let [near, far] = result.reports.ends;
    let ends = [(run.far, far), (run.near, near)].map(|(agent, measurement)| {
        let offset = fleet.offset(agent);
        End {
            name: fleet.name(agent).to_owned(),
            host: fleet.host(agent).clone(),
            clock_offset_ms: offset.ns as f64 / 1e6,
            clock_uncertainty_ms: offset.uncertainty_ns as f64 / 1e6,
            // An end that did not report has measured no task.
            outcome: (!measurement.tasks.is_empty()).then(|| HostOutcome::of(measurement)),
        }
    });
    Pair { ends, error: result.error.map(|error| error.to_string()), stall }
}

/// The bytes of each second, of all hosts that reported it, those of pairs that failed later
/// included.
fn totals(results: &[PairResult]) -> Vec<Interval> {
    let mut totals = Vec::new();
    for result in results {
        for (number, moment) in result.reports.samples.iter().enumerate() {
            add(&mut totals, number, moment);
        }
    }
    totals
}

fn add(totals: &mut Vec<Interval>, number: usize, moment: &IntervalSamples) {
    if totals.len() <= number {
        totals.resize(number + 1, Interval::default());
    }
    let total = &mut totals[number];
    // The first task is the load; a probe is not.
    for load in moment.tasks.iter().filter_map(|tasks| tasks.first()) {
        total.received += load.received_bytes;
        total.sent += load.sent_bytes;
        total.hosts += 1;
    }
    let [_, listener] = &moment.tasks;
    total.forward += listener.first().map_or(0, |load| load.received_bytes);
}

/// Shows every second that all pairs have reported.
pub(super) struct SecondsObserver<'a> {
    progress: &'a Progress,
    title: &'a str,
    seconds: usize,
    totals: Vec<Interval>,
    pairs: usize,
    shown: usize,
}

impl<'a> SecondsObserver<'a> {
    pub(super) fn new(progress: &'a Progress, title: &'a str, settings: &Settings) -> Self {
        let seconds = Duration::from_secs_f64(settings.seconds).as_secs() as usize;
        Self { progress, title, seconds, totals: Vec::new(), pairs: 0, shown: 0 }
    }

    fn show(&mut self) {
        let hosts = 2 * self.pairs as u32;
        while let Some(total) = self.totals.get(self.shown).filter(|total| total.hosts >= hosts) {
            self.shown += 1;
            self.progress.second(self.title, self.shown, self.seconds, *total);
        }
    }
}

impl Observer for SecondsObserver<'_> {
    fn interval(&mut self, number: usize, moment: &IntervalSamples) {
        add(&mut self.totals, number, moment);
        self.show();
    }

    fn pairs_left(&mut self, count: usize) {
        self.pairs = count;
        self.show();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinate::message::Sample;
    use crate::experiment::pair_run::EndReports;

    fn moment(received: [Option<u64>; 2]) -> IntervalSamples {
        let sample = |bytes| {
            let load = Sample { received_bytes: bytes, sent_bytes: 1, ..Sample::default() };
            vec![load, Sample { received_bytes: 9, sent_bytes: 9, ..Sample::default() }]
        };
        IntervalSamples {
            seconds: [1.0; 2],
            tasks: received.map(|bytes| bytes.map_or_else(Vec::new, sample)),
        }
    }

    #[test]
    fn the_first_pair_has_a_probe_unless_disabled() {
        let settings = crate::experiment::outcome::samples::campaign().settings;
        let all = tasks(&settings, 3);
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1]);
        assert!(all.iter().flatten().all(|task| task.problem().is_none()), "{all:?}");
        let result = PairResult::default();
        assert!(probe(&all[0], &result).is_some() && probe(&all[1], &result).is_none());
        let without = tasks(&Settings { probe_every_ms: 0, ..settings }, 3);
        assert!(without.iter().all(|tasks| tasks.len() == 1));
    }

    #[test]
    fn the_totals_count_every_host_that_reported_a_second() {
        let result =
            |samples| PairResult { reports: EndReports { samples, ..EndReports::default() }, error: None };
        let whole = result(vec![moment([Some(1), Some(2)]), moment([Some(3), Some(4)])]);
        let half = result(vec![moment([None, Some(10)])]);
        let interval = |received, sent, forward, hosts| Interval { received, sent, forward, hosts };
        let expected = [interval(13, 3, 12, 3), interval(7, 2, 4, 2)];
        assert_eq!(totals(&[whole, half]), expected);
    }

    #[test]
    fn a_second_is_shown_once_all_pairs_that_are_left_have_reported_it() {
        let settings = crate::experiment::outcome::samples::campaign().settings;
        let progress = Progress::new(true);
        let mut observer = SecondsObserver::new(&progress, "t", &settings);
        observer.pairs_left(2);
        for (number, shown) in [(0, 0), (0, 1), (1, 1)] {
            observer.interval(number, &moment([Some(1), Some(1)]));
            assert_eq!(observer.shown, shown);
        }
        observer.pairs_left(1);
        assert_eq!(observer.shown, 2, "the pair that failed is waited for no longer");
    }
}
