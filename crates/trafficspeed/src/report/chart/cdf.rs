//! How values are distributed: the share at or below each value, over a logarithmic axis, as
//! latencies need it.

use super::axis::Axis;
use super::canvas::{BELOW, Canvas, LEFT, PLOT_HEIGHT, RIGHT, WIDTH, legend_height};
use super::line::{draw, keys};
use super::{Measure, Point, Series};

/// Distributions over a common axis.
#[derive(Clone, Debug, PartialEq)]
pub struct CdfChart {
    pub title: String,
    /// The horizontal axis.
    pub measure: Measure,
    /// The curves; see [`of_shares`].
    pub series: Vec<Series>,
}

/// A distribution: values and the share that is at or below each. What is not above zero cannot be
/// shown and is left out.
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
        canvas.ticks(&horizontal, &self.measure.label(), bottom);
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
    fn what_a_logarithmic_axis_cannot_show_is_left_out() {
        let drawn = of_shares("d", 3, &[(0.0, 0.1), (f64::NAN, 0.2), (2.0, 0.5), (9.0, 1.0)]);
        assert_eq!(shares(&drawn), [(2.0, 50.0), (9.0, 100.0)]);
    }

    #[test]
    fn the_picture_has_a_logarithmic_axis_and_nothing_is_no_picture() {
        let series = vec![of_shares("a <b>", 0, &[(0.05, 0.25), (0.3, 0.5), (2.0, 0.75), (40.0, 1.0)])];
        let chart = CdfChart { title: "t".into(), measure: Measure::lower_is_better("latency, ms"), series };
        let svg = chart.svg().unwrap();
        assert_well_formed(&svg);
        for expected in
            [">0.1</text>", ">10</text>", ">100</text>", "latency, ms (lower is better)", "a &lt;b&gt;"]
        {
            assert!(svg.contains(expected), "{expected} is missing in {svg}");
        }
        assert_eq!(CdfChart { series: vec![of_shares("a", 0, &[])], ..chart.clone() }.svg(), None);
        let one = CdfChart { series: vec![of_shares("a", 0, &[(3.0, 1.0)])], ..chart };
        assert_well_formed(&one.svg().unwrap());
    }
}
