//! Delays: every one recorded, in a histogram of fixed size, and its summary.
//!
//! A mean hides what users feel, so all delays of a measurement go into an HDR histogram (three
//! significant digits from a nanosecond to a minute), whatever their number; summaries are read
//! from it at the end.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest delay that has its own bucket, in nanoseconds; longer ones count as this long.
const LONGEST_NS: u64 = 60_000_000_000;
/// Shares at which a summary gives the delay, for the curve of the distribution.
const SHARES: [f64; 21] = [
    0.001, 0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995,
    0.999, 0.9999, 1.0,
];

/// Delays as they are measured.
#[derive(Clone, Debug)]
pub struct Delays(Histogram<u64>);

impl Default for Delays {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds and digits are valid"))
    }
}

impl Delays {
    pub fn record(&mut self, delay_ns: u64) {
        self.0.saturating_record(delay_ns.max(1));
    }

    /// Adds all delays of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both histograms have the same bounds");
    }

    /// The summary; `None` if nothing was recorded.
    pub fn summary(&self) -> Option<DelaySummary> {
        if self.0.is_empty() {
            return None;
        }
        let micros = |ns: u64| ns as f64 / 1e3;
        let at = |share: f64| micros(self.0.value_at_quantile(share));
        Some(DelaySummary {
            count: self.0.len(),
            mean_us: self.0.mean() / 1e3,
            deviation_us: self.0.stdev() / 1e3,
            min_us: micros(self.0.min()),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: micros(self.0.max()),
            curve: SHARES.map(|share| (share, at(share))).to_vec(),
        })
    }
}

/// The distribution of many delays, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DelaySummary {
    /// Their number.
    pub count: u64,
    pub mean_us: f64,
    pub deviation_us: f64,
    pub min_us: f64,
    /// Half were at most this long.
    pub p50_us: f64,
    /// 90 % were at most this long.
    pub p90_us: f64,
    /// 99 % were at most this long.
    pub p99_us: f64,
    /// 99.9 % were at most this long.
    pub p999_us: f64,
    pub max_us: f64,
    /// The distribution: pairs of a share and the delay that this share did not exceed.
    pub curve: Vec<(f64, f64)>,
}

impl DelaySummary {
    /// The delay that the share `share` of all did not exceed, interpolated between those of the
    /// curve.
    pub fn at(&self, share: f64) -> f64 {
        let next = self.curve.partition_point(|(known, _)| *known < share);
        let Some(&(above, delay)) = self.curve.get(next) else { return self.max_us };
        let Some(&(below, shorter)) = next.checked_sub(1).and_then(|at| self.curve.get(at)) else {
            return delay;
        };
        let part = (share - below) / (above - below);
        shorter * (1.0 - part) + delay * part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_values_to_three_digits() {
        let mut delays = Delays::default();
        (1..=10_000).for_each(|n| delays.record(n * 1_000));
        let summary = delays.summary().unwrap();
        let close = |is: f64, expected: f64| assert!((is / expected - 1.0).abs() < 2e-3, "{is} {expected}");
        assert_eq!(summary.count, 10_000);
        close(summary.min_us, 1.0);
        close(summary.mean_us, 5_000.5);
        close(summary.p50_us, 5_000.0);
        close(summary.p90_us, 9_000.0);
        close(summary.p99_us, 9_900.0);
        close(summary.p999_us, 9_990.0);
        close(summary.max_us, 10_000.0);
        close(summary.deviation_us, 2_886.8);
        close(summary.at(0.95), 9_500.0);
        close(summary.at(0.56), 5_600.0);
        close(summary.at(2.0), 10_000.0);
        assert!(summary.curve.windows(2).all(|pair| pair[0].1 <= pair[1].1));
    }

    #[test]
    fn sums_hold_both_and_extremes_saturate() {
        let (mut one, mut other) = (Delays::default(), Delays::default());
        assert_eq!(one.summary(), None);
        one.record(0);
        other.record(u64::MAX);
        one.add(&other);
        let summary = one.summary().unwrap();
        assert_eq!(summary.count, 2);
        assert!(summary.max_us >= 59e6 && summary.max_us < 61e6, "{summary:?}");
    }
}
