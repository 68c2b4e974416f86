//! The slope of a noisy series, and how sure it is: Theil and Sen's estimator with Sen's confidence
//! interval (P. K. Sen, 1968). Outliers, such as a sample in the middle of a storm, hardly move it.

use serde::Serialize;

use trafficspeed::stats::median;

/// Groups into which a series is cut before its slope is taken, each counting as its lowest value:
/// what is held for a moment, such as the memory of a password's check, is no growth. Neighbours
/// depend on each other; groups that are long against that don't, and the interval is honest.
const GROUPS: usize = 120;
/// Two-sided 95 % of the normal distribution.
const Z: f64 = 1.959_964;

/// A slope with its interval of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trend {
    pub slope: f64,
    /// It is hardly lower.
    pub low: f64,
    /// It is hardly higher.
    pub high: f64,
}

impl Trend {
    /// The trend of points (x, y) in order of x; `None` for fewer than eight.
    pub fn of(points: &[(f64, f64)]) -> Option<Self> {
        let points = grouped(points);
        let mut slopes = Vec::new();
        for (at, (x, y)) in points.iter().enumerate() {
            let later = points[at + 1..].iter().filter(|(later, _)| later > x);
            slopes.extend(later.map(|(later, value)| (value - y) / (later - x)));
        }
        if points.len() < 8 || slopes.is_empty() {
            return None;
        }
        slopes.sort_by(f64::total_cmp);
        let (count, pairs) = (points.len() as f64, slopes.len() as f64);
        let deviation = (count * (count - 1.0) * (2.0 * count + 5.0) / 18.0).sqrt();
        let rank = |rank: f64| slopes[(rank.max(0.0) as usize).min(slopes.len() - 1)];
        Some(Self {
            slope: median(&slopes)?,
            low: rank((pairs - Z * deviation) / 2.0 - 1.0),
            high: rank(f64::midpoint(pairs, Z * deviation)),
        })
    }
}

fn grouped(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let size = points.len().div_ceil(GROUPS).max(1);
    let lowest = |group: &[(f64, f64)]| group.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
    points.chunks(size).map(|group| (group[group.len() / 2].0, lowest(group))).collect()
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// A line with noise, and every tenth point far off.
    fn noisy(slope: f64, count: u32, seed: u64) -> Vec<(f64, f64)> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let noise = move |n| if n % 10 == 3 { 5_000.0 } else { random.random_range(-20.0..20.0) };
        let xs = 0..count;
        xs.scan(noise, |noise, n| Some((f64::from(n), 1_000.0 + slope * f64::from(n) + noise(n)))).collect()
    }

    #[test]
    fn a_slope_is_found_below_noise_and_outliers_and_the_interval_holds_it() {
        let mut held = 0;
        for seed in 0..100 {
            let trend = Trend::of(&noisy(0.05, 3_000, seed)).unwrap();
            assert!((trend.slope - 0.05).abs() < 0.01, "{trend:?}");
            assert!(trend.low <= trend.slope && trend.slope <= trend.high);
            held += u32::from(trend.low <= 0.05 && 0.05 <= trend.high);
        }
        assert!(held >= 85, "the interval holds the truth in {held} of 100");
    }

    #[test]
    fn a_flat_series_has_none_and_few_points_say_nothing() {
        let flat = Trend::of(&noisy(0.0, 3_000, 1)).unwrap();
        assert!(flat.low < 0.0 && 0.0 < flat.high, "{flat:?}");
        let still: Vec<_> = (0..50).map(|n| (f64::from(n), 7.0)).collect();
        assert_eq!(Trend::of(&still), Some(Trend { slope: 0.0, low: 0.0, high: 0.0 }));
        assert_eq!(Trend::of(&still[..7]), None);
        assert_eq!(Trend::of(&[(1.0, 2.0); 9]), None);
    }
}
