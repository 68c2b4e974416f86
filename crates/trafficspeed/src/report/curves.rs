//! Curves of what the generators reported: over time, and how delays are distributed.

use super::chart::{CdfChart, Horizontal, LineChart, Measure, Point, Series, cdf};
use crate::experiment::figures::{self, Figures};

/// A system's style and label, and what it had.
pub type Curve<'a> = (usize, &'a str, &'a Figures);

/// One line for each system over time.
pub fn over_time(
    title: &str,
    measure: Measure,
    curves: &[Curve<'_>],
    value: impl Fn(&figures::Point) -> Option<f64>,
) -> Option<String> {
    let line = |(style, label, figures): &Curve<'_>| {
        let point = |point: &figures::Point| Some(Point { x: point.end, y: value(point)?, range: None });
        let points = figures.series.iter().filter_map(point).collect();
        Series { label: (*label).to_owned(), style: *style, points }
    };
    let points = curves.iter().flat_map(|(_, _, figures)| &figures.series);
    LineChart {
        title: title.to_owned(),
        x_label: "seconds since the end of the warm-up".into(),
        measure,
        horizontal: Horizontal::Linear(points.map(|point| point.end).fold(0.0, f64::max)),
        series: curves.iter().map(line).collect(),
    }
    .svg()
}

/// How each system's delays, or its round trips, are distributed.
pub fn delays(title: &str, curves: &[Curve<'_>]) -> Option<String> {
    let curve = |(style, label, figures): &Curve<'_>| {
        let shares = figures.delay_of()?.curve.iter().map(|(share, us)| (us / 1e3, *share));
        Some(cdf::of_shares(label, *style, &shares.collect::<Vec<_>>()))
    };
    let (title, series) = (title.to_owned(), curves.iter().filter_map(curve).collect());
    CdfChart { title, measure: Measure::lower_is_better("delay, ms"), series }.svg()
}
