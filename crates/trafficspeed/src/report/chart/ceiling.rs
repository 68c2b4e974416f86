//! The one line that is no rival of the others: plain routing, which reaches several times what any
//! VPN does. On their axis it would leave them no room, so there it is named with its figures.

use super::Series;
use super::line::highest;
use crate::unit::significant;

/// How its labels begin.
const CEILING: &str = "plain routing";
/// It is left out where it is this many times as high as the best of the others.
const DWARFS: f64 = 2.0;

/// Whether a label is of plain routing.
pub(super) fn is_ceiling(label: &str) -> bool {
    label.starts_with(CEILING)
}

/// The highest value that the axis has to hold, of values with their labels.
pub(super) fn top<'a>(values: impl Iterator<Item = (&'a str, f64)>) -> Option<f64> {
    let (mut all, mut others): (Option<f64>, Option<f64>) = (None, None);
    for (label, value) in values {
        all = Some(all.map_or(value, |most| most.max(value)));
        if !is_ceiling(label) {
            others = Some(others.map_or(value, |most| most.max(value)));
        }
    }
    others.filter(|most| all.is_some_and(|all| *most > 0.0 && all >= DWARFS * most)).or(all)
}

/// Parts that a chart draws for one system.
pub(super) trait Drawn {
    fn label(&self) -> &str;
    fn values(&self) -> Vec<f64>;
    /// The highest place that it needs; nothing without a value.
    fn highest(&self) -> Option<f64> {
        self.values().into_iter().reduce(f64::max)
    }
}

impl Drawn for Series {
    fn label(&self) -> &str {
        &self.label
    }

    fn values(&self) -> Vec<f64> {
        self.points.iter().map(|point| point.y).collect()
    }

    fn highest(&self) -> Option<f64> {
        highest([self])
    }
}

/// The series that are drawn, without those that have no value, and what is said of those that are
/// beyond the axis; `None` if there is no value.
pub(super) fn split<T: Drawn>(series: &[T]) -> Option<(Vec<&T>, Option<String>)> {
    let filled: Vec<(&T, f64)> = series.iter().filter_map(|one| Some((one, one.highest()?))).collect();
    let top = top(filled.iter().map(|(one, highest)| (one.label(), *highest)))?;
    let is_beyond = |(one, highest): &(&T, f64)| is_ceiling(one.label()) && *highest > top;
    let (beyond, drawn): (Vec<_>, Vec<_>) = filled.into_iter().partition(is_beyond);
    let note = |(one, _): &(&T, f64)| {
        let (low, high) = crate::stats::range(&one.values())?;
        let [low, high] = [low, high].map(significant);
        let range = if low == high { low } else { format!("{low} to {high}") };
        Some(format!("{}: {range}, beyond this axis", one.label()))
    };
    let notes: Vec<String> = beyond.iter().filter_map(note).collect();
    Some((drawn.into_iter().map(|(one, _)| one).collect(), (!notes.is_empty()).then(|| notes.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::super::Point;
    use super::*;

    fn series(label: &str, values: [f64; 2]) -> Series {
        let point = |(y, x)| Point { x, y, range: None };
        Series {
            label: label.into(),
            style: 0,
            points: values.into_iter().zip([2.0, 4.0]).map(point).collect(),
        }
    }

    #[test]
    fn plain_routing_far_above_the_others_is_only_named() {
        let all = [
            series("vpnd", [4.0, 5.0]),
            series("plain routing", [20.0, 30.0]),
            series("OpenVPN", [1.0, 1.0]),
        ];
        let (drawn, note) = split(&all).unwrap();
        assert_eq!(drawn.iter().map(|one| one.label.as_str()).collect::<Vec<_>>(), ["vpnd", "OpenVPN"]);
        assert_eq!(note.as_deref(), Some("plain routing: 20.0 to 30.0, beyond this axis"));
        let close = [series("vpnd", [4.0, 5.0]), series("plain routing", [6.0, 7.0])];
        assert_eq!(split(&close).map(|(drawn, note)| (drawn.len(), note)), Some((2, None)));
        let alone = [series("plain routing", [6.0, 7.0])];
        assert_eq!(split(&alone).map(|(drawn, note)| (drawn.len(), note)), Some((1, None)));
        let fast = [series("vpnd", [60.0, 70.0]), series("OpenVPN", [1.0, 1.0])];
        assert_eq!(
            split(&fast).map(|(drawn, note)| (drawn.len(), note)),
            Some((2, None)),
            "a VPN is a rival"
        );
        assert_eq!(split::<Series>(&[]), None);
    }
}
