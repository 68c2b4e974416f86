//! How values are distributed: the share at or below each value, over a logarithmic axis, as latencies need it.

use super::axis::Axis;
use super::canvas::{BELOW, Canvas, LEFT, PLOT_HEIGHT, RIGHT, WIDTH, legend_height};
use super::line::{draw, keys};
use super::{Point, Series};

/// Points of a drawn curve; more would not be seen.
const MOST_POINTS: usize = 400;

/// Distributions over a common axis.
#[derive(Clone, Debug, PartialEq)]
pub struct CdfChart {
    /// What it shows.
    pub title: String,
    /// What is distributed, with its unit.
    pub x_label: String,
    /// The curves; see [`of_samples`], [`of_histogram`] and [`of_shares`].
    pub series: Vec<Series>,
}

/// The distribution of `samples`, in any order. Values that are not above zero cannot be shown and are left out.
pub fn of_samples(label: &str, style: usize, samples: &[f64]) -> Series {
    let mut sorted: Vec<f64> =
        samples.iter().copied().filter(|value| value.is_finite() && *value > 0.0).collect();
    sorted.sort_by(f64::total_cmp);
    let total = sorted.len();
    let stride = total.div_ceil(MOST_POINTS).max(1);
    let shown = sorted.iter().enumerate().filter(|(at, _)| at % stride == 0 || at + 1 == total);
    let points = shown.map(|(at, value)| point(*value, (at + 1) as f64 / total as f64)).collect();
    Series { label: label.to_owned(), style, points }
}

/// The distribution of a histogram: how many values there are up to each bound that are above the one before, bounds
/// in rising order.
pub fn of_histogram(label: &str, style: usize, buckets: &[(f64, u64)]) -> Series {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    let mut below = 0;
    let mut points = Vec::new();
    for (bound, count) in buckets.iter().filter(|(bound, count)| *count > 0 && *bound > 0.0) {
        below += count;
        points.push(point(*bound, below as f64 / total as f64));
    }
    Series { label: label.to_owned(), style, points }
}

/// The distribution that a program has drawn up already: values and the share that is at or below each.
pub fn of_shares(label: &str, style: usize, shares: &[(f64, f64)]) -> Series {
    let shown = shares.iter().filter(|(value, _)| value.is_finite() && *value > 0.0);
    Series {
        label: label.to_owned(),
        style,
        points: shown.map(|(value, share)| point(*value, *share)).collect(),
    }
}

fn point(x: f64, share: f64) -> Point {
    Point { x, y: 100.0 * share, range: None }
}

impl CdfChart {
    /// The picture, or nothing if there is no value.
    pub fn svg(&self) -> Option<String> {
        let values = || self.series.iter().flat_map(|series| &series.points).map(|point| point.x);
        let (low, high) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
        let keys = keys(&self.series);
        let top = legend_height(&keys);
        let bottom = top + PLOT_HEIGHT;
        let vertical = Axis::from_zero(100.0, bottom, top);
        let horizontal = Axis::logarithmic(low, high, LEFT, WIDTH - RIGHT);
        let mut canvas = Canvas::new(&self.title, bottom + BELOW);
        canvas.legend(&keys);
        canvas.grid(&vertical, "share at or below, %", top, WIDTH - RIGHT);
        canvas.ticks(&horizontal, &self.x_label, bottom);
        self.series.iter().for_each(|series| draw(&mut canvas, series, &horizontal, &vertical));
        Some(canvas.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::super::markup::assert_well_formed;
    use super::*;

    fn shares(series: &Series) -> Vec<(f64, f64)> {
        series.points.iter().map(|point| (point.x, point.y)).collect()
    }

    #[test]
    fn samples_and_histograms_add_up_to_all_of_them() {
        let samples = of_samples("a", 0, &[4.0, 1.0, 2.0, 2.0, 0.0, f64::NAN]);
        assert_eq!(shares(&samples), [(1.0, 25.0), (2.0, 50.0), (2.0, 75.0), (4.0, 100.0)]);
        let histogram = of_histogram("b", 1, &[(1.0, 1), (2.0, 2), (3.0, 0), (4.0, 1)]);
        assert_eq!(shares(&histogram), [(1.0, 25.0), (2.0, 75.0), (4.0, 100.0)]);
        let drawn = of_shares("d", 3, &[(0.0, 0.1), (2.0, 0.5), (9.0, 1.0)]);
        assert_eq!(shares(&drawn), [(2.0, 50.0), (9.0, 100.0)]);
        let many: Vec<f64> = (1..=10_000).map(f64::from).collect();
        let thinned = of_samples("c", 2, &many);
        assert!(thinned.points.len() <= MOST_POINTS + 1);
        assert_eq!(shares(&thinned).last(), Some(&(10_000.0, 100.0)));
    }

    #[test]
    fn the_picture_has_a_logarithmic_axis_and_nothing_is_no_picture() {
        let series = vec![of_samples("a <b>", 0, &[0.05, 0.3, 2.0, 40.0])];
        let chart = CdfChart { title: "t".into(), x_label: "latency, ms".into(), series };
        let svg = chart.svg().unwrap();
        assert_well_formed(&svg);
        for expected in [">0.1</text>", ">10</text>", ">100</text>", "latency, ms", "a &lt;b&gt;"] {
            assert!(svg.contains(expected), "{expected} is missing in {svg}");
        }
        assert_eq!(CdfChart { series: vec![of_samples("a", 0, &[])], ..chart.clone() }.svg(), None);
        let one = CdfChart { series: vec![of_samples("a", 0, &[3.0])], ..chart };
        assert_well_formed(&one.svg().unwrap());
    }
}
