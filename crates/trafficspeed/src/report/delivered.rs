//! The share of what was offered over UDP that arrived: a curve of all trials of the searches
//! for the highest rate.

use super::chart::{Horizontal, LineChart, Measure, Point, Series};
use crate::experiment::generate::SearchOutcome;
use crate::load::task::Task;
use crate::stats::Spread;

/// Stands below a picture.
pub const CAPTION: &str = "Each trial of the searches for the highest rate, and some above it; trials at nearly the same rate are \
                           one point, their median with whiskers from the lowest to the highest.";

/// Trials at nearly the same rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Mbit/s of payload.
    pub offered: f64,
    /// Percent of it that arrived.
    pub delivered: Spread,
}

/// The trials of all searches of one system, from the lowest rate; rates that differ by less than a
/// tenth or so are one.
pub fn shares<'a>(searches: impl Iterator<Item = (&'a Task, &'a SearchOutcome)>) -> Vec<Share> {
    let trials_of = |(task, search): (&Task, &'a SearchOutcome)| {
        let length = match task {
            Task::Messages(work) => work.length,
            _ => 0,
        };
        search.trials.iter().filter_map(move |trial| {
            let (offered, share) = trial.delivered(length)?;
            Some((offered * 8.0 * f64::from(length) / 1e6, share))
        })
    };
    let mut all: Vec<(f64, f64)> = searches.flat_map(trials_of).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let place = |rate: f64| (rate.ln() * 10.0).round() as i64;
    let share = |same: &[(f64, f64)]| {
        let (rates, shares): (Vec<f64>, Vec<f64>) = same.iter().copied().unzip();
        Some(Share { offered: Spread::of(&rates)?.median, delivered: Spread::of(&shares)? })
    };
    all.chunk_by(|a, b| place(a.0) == place(b.0)).filter_map(share).collect()
}

/// The curves of several systems: label, style and trials of each. Nothing if nothing was searched.
pub fn curve(title: &str, systems: impl Iterator<Item = (String, usize, Vec<Share>)>) -> Option<String> {
    let point = |share: &Share| Point::of(share.offered, share.delivered);
    let line = |(label, style, shares): (String, usize, Vec<Share>)| {
        let points: Vec<Point> = shares.iter().map(point).collect();
        (!points.is_empty()).then_some(Series { label, style, points })
    };
    let series: Vec<Series> = systems.filter_map(line).collect();
    let end = series.iter().flat_map(|series| &series.points).map(|point| point.x).reduce(f64::max)?;
    LineChart {
        title: title.to_owned(),
        x_label: "offered rate, Mbit/s of payload".into(),
        measure: Measure::higher_is_better("delivered, %"),
        horizontal: Horizontal::Linear(end),
        series,
    }
    .svg()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiment::generate::SearchTrial;

    /// A search with trials: asked in bit/s, received in messages a second.
    pub(crate) fn search(trials: &[(f64, f64)]) -> SearchOutcome {
        let trial = |(asked, received): &(f64, f64)| SearchTrial {
            asked_bits_per_second: Some(*asked),
            received_per_second: *received,
            ..SearchTrial::default()
        };
        SearchOutcome { trials: trials.iter().map(trial).collect(), ..SearchOutcome::default() }
    }
}
