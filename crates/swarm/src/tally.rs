//! The sum of all sessions' reports. Pure: reports in, figures out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::load;
use crate::message::{KeySource, Report};

/// Kinds of failures that are kept apart; the rest counts as one.
const MAX_KINDS: usize = 32;

/// Many sessions that come up at about the same time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Storm {
    /// Sessions that came up.
    pub up: u32,
    /// New keys by password. A session may get keys more than once.
    pub logins: u32,
    /// New keys by token.
    pub attaches: u32,
    /// Until the last session was up, in seconds.
    pub seconds: f64,
    /// Sessions that came up, per second of these.
    pub per_second: f64,
    /// Sessions that came up in each second.
    pub timeline: Vec<u32>,
    /// From the first datagram of a connection to the first answer in its keys.
    pub latency_ms: Percentiles,
    /// Attempts that came to nothing, by cause; the clients tried again by themselves.
    pub failures: BTreeMap<String, u32>,
    /// Clients that stopped for good.
    pub gave_up: u32,
}

/// Sessions that send a packet every few milliseconds while something happens to their gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Watched {
    /// Processes that have reported theirs.
    pub processes: u32,
    pub sent: u64,
    pub answered: u64,
    /// The longest time between two answers of one session, in milliseconds.
    pub gap_ms: f64,
}

/// The distribution of a time, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half are not longer.
    pub p50: f64,
    /// Nine of ten are not longer.
    pub p90: f64,
    /// Ninety-nine of a hundred are not longer.
    pub p99: f64,
    pub max: f64,
}

impl Percentiles {
    /// The percentiles of `values`, by the nearest rank; all zero if there are none.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let rank = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1) - 1;
            values.get(rank).copied().unwrap_or_default()
        };
        Self { p50: rank(50), p90: rank(90), p99: rank(99), max: rank(100) }
    }
}

/// The reports since the storm began.
#[derive(Debug)]
pub struct Tally {
    began_ns: u64,
    up: BTreeSet<u32>,
    first_ups: Vec<u64>,
    latencies_ms: Vec<f64>,
    storm: Storm,
    answered: BTreeSet<u32>,
    /// Packets of talkers: sent, answered.
    pub talked: (u64, u64),
    pub watched: Watched,
    /// A process can't go on.
    pub broken: Option<String>,
    /// The last report of bulk traffic.
    pub loaded: Option<load::Counts>,
}

impl Tally {
    /// A storm that begins at `began_ns`: what happened before is not part of it, whenever its
    /// report arrives.
    pub fn new(began_ns: u64) -> Self {
        Self {
            began_ns,
            up: BTreeSet::new(),
            first_ups: Vec::new(),
            latencies_ms: Vec::new(),
            storm: Storm::default(),
            answered: BTreeSet::new(),
            talked: (0, 0),
            watched: Watched::default(),
            broken: None,
            loaded: None,
        }
    }

    pub fn note(&mut self, report: Report) {
        match report {
            Report::Up { at_ns, .. } | Report::Failed { at_ns, .. } | Report::GaveUp { at_ns, .. }
                if at_ns < self.began_ns => {}
            Report::Up { session, at_ns, by, took_ns } => {
                match by {
                    KeySource::Login => self.storm.logins += 1,
                    KeySource::Attach => self.storm.attaches += 1,
                }
                self.latencies_ms.push(took_ns as f64 / 1e6);
                if self.up.insert(session) {
                    self.first_ups.push(at_ns);
                }
            }
            Report::Failed { reason, .. } => {
                let full =
                    self.storm.failures.len() >= MAX_KINDS && !self.storm.failures.contains_key(&reason);
                let kind = if full { "other".to_owned() } else { reason };
                *self.storm.failures.entry(kind).or_default() += 1;
            }
            Report::GaveUp { reason, .. } => {
                self.storm.gave_up += 1;
                *self.storm.failures.entry(format!("gave up: {reason}")).or_default() += 1;
            }
            Report::Answered { session } => {
                self.answered.insert(session);
            }
            Report::Talked { sent, answered } => {
                self.talked.0 += sent;
                self.talked.1 += answered;
            }
            Report::Watched { sent, answered, gaps_ns } => {
                self.watched.processes += 1;
                self.watched.sent += sent;
                self.watched.answered += answered;
                let gap_ns = gaps_ns.into_iter().max().unwrap_or_default();
                self.watched.gap_ms = self.watched.gap_ms.max(gap_ns as f64 / 1e6);
            }
            // Only in a soak test, whose coordinator counts by itself.
            Report::Status { .. } | Report::Unexplained { .. } => {}
            Report::Loaded(counts) => self.loaded = Some(counts),
            Report::Broken(reason) => self.broken = Some(reason),
        }
    }

    /// Sessions that are up.
    pub fn up(&self) -> u32 {
        self.up.len() as u32
    }

    /// Clients that stopped for good.
    pub fn gave_up(&self) -> u32 {
        self.storm.gave_up
    }

    /// Sessions that carried a packet both ways.
    pub fn answered(&self) -> u32 {
        self.answered.len() as u32
    }

    pub fn storm(&self) -> Storm {
        let last = self.first_ups.iter().max().copied().unwrap_or(self.began_ns);
        let seconds = (last - self.began_ns) as f64 / 1e9;
        let mut timeline = vec![0; if self.up.is_empty() { 0 } else { seconds as usize + 1 }];
        for at_ns in &self.first_ups {
            timeline[((at_ns - self.began_ns) as f64 / 1e9) as usize] += 1;
        }
        Storm {
            up: self.up(),
            seconds,
            per_second: if seconds > 0.0 { f64::from(self.up()) / seconds } else { 0.0 },
            timeline,
            latency_ms: Percentiles::of(self.latencies_ms.clone()),
            ..self.storm.clone()
        }
    }
}

/// The slope of the straight line that fits best, of `y` over `x`; `None` if `x` does not vary.
pub fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|p| p.0), mean(|p| p.1));
    let along: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (spread > 0.0).then(|| along / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn up(session: u32, at_ns: u64, by: KeySource) -> Report {
        Report::Up { session, at_ns, by, took_ns: 5_000_000 }
    }

    #[test]
    fn a_storm_counts_each_session_once_and_nothing_from_before() {
        let mut tally = Tally::new(10 * SECOND);
        tally.note(up(9, 9 * SECOND, KeySource::Login));
        tally.note(up(1, 10 * SECOND + 1, KeySource::Attach));
        tally.note(up(2, 12 * SECOND, KeySource::Login));
        tally.note(up(1, 15 * SECOND, KeySource::Attach));
        tally.note(Report::Failed { session: 3, at_ns: 9 * SECOND, reason: "early".into() });
        tally.note(Report::Failed { session: 3, at_ns: 11 * SECOND, reason: "busy".into() });
        tally.note(Report::GaveUp { session: 4, at_ns: 11 * SECOND, reason: "no".into() });
        let storm = tally.storm();
        assert_eq!((storm.up, storm.logins, storm.attaches, storm.gave_up), (2, 1, 2, 1));
        assert_eq!(storm.timeline, [1, 0, 1]);
        assert!((storm.seconds - 2.0).abs() < 1e-9 && (storm.per_second - 1.0).abs() < 1e-9);
        assert_eq!(storm.failures.keys().collect::<Vec<_>>(), ["busy", "gave up: no"]);
        assert!((storm.latency_ms.max - 5.0).abs() < 1e-9);
    }

    #[test]
    fn the_longest_gap_of_all_processes_counts() {
        let mut tally = Tally::new(0);
        for gaps_ns in [vec![2_000_000], vec![1_000_000, 9_000_000, 3_000_000], vec![]] {
            tally.note(Report::Watched { sent: 10, answered: 9, gaps_ns });
        }
        let Watched { processes, sent, answered, gap_ms } = tally.watched;
        assert_eq!((processes, sent, answered), (3, 30, 27));
        assert!((gap_ms - 9.0).abs() < 1e-9);
    }

    #[test]
    fn a_storm_without_sessions_has_empty_statistics() {
        let storm = Tally::new(5).storm();
        assert_eq!((storm.up, storm.timeline.len()), (0, 0));
        assert_eq!(storm.latency_ms, Percentiles::default());
    }

    #[test]
    fn causes_are_bounded() {
        let mut tally = Tally::new(0);
        for n in 0..100 {
            tally.note(Report::Failed { session: n, at_ns: 1, reason: format!("cause {n}") });
        }
        let failures = tally.storm().failures;
        assert_eq!((failures.len(), failures["other"]), (MAX_KINDS + 1, 68));
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let hundred = Percentiles::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(hundred, Percentiles { p50: 50.0, p90: 90.0, p99: 99.0, max: 100.0 });
        assert_eq!(Percentiles::of(vec![7.0]).p50, 7.0);
    }

    #[test]
    fn the_slope_of_a_line_is_found() {
        let line: Vec<_> = (0..10).map(|x| (f64::from(x), 3.0 * f64::from(x) + 100.0)).collect();
        assert!((slope(&line).unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(slope(&[(1.0, 2.0), (1.0, 9.0)]), None);
        assert_eq!(slope(&[]), None);
    }
}
