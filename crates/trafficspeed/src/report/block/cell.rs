//! The texts of the tables' cells: a median with the spread of its rounds, the original's figure,
//! and whether a ratio is a difference.

use crate::experiment::block::BlockReport;
use crate::observation::differs;
use crate::report::claims::mark;
use crate::report::noise::percent;
use crate::stats::Spread;
use crate::unit::significant;

/// Stands in the caption of every table.
pub(super) const SPREAD: &str = "Median of n rounds, the lowest and the highest in parentheses.";

/// Stands in the caption of every table of ratios.
pub(super) const RATIOS: &str = "\
Ratios are formed within each round. A/A: the tunnel's second measurement in each round / its first. ≈: no difference beyond \
A/A; ?: not judged, for fewer than five rounds, no A/A or a disturbed machine.";

pub(super) fn figure(ours: Option<Spread>) -> String {
    ours.map_or("–".into(), |ours| ours.text(significant))
}

/// Bytes per second in MB/s.
pub(super) fn mb(ours: Option<Spread>) -> String {
    figure(ours.map(|ours| ours.scaled(1e6)))
}

/// With the original's figure in brackets.
pub(super) fn with_original(ours: Option<Spread>, original: Option<f64>) -> String {
    let original = original.map_or(String::new(), |value| format!(" [{}]", significant(value)));
    format!("{}{original}", figure(ours))
}

/// Follows a ratio that is not shown to be a difference, compared with the tunnel's A/A.
pub(super) fn judged(ratio: Option<Spread>, same: Option<Spread>) -> &'static str {
    if ratio.is_none() { "" } else { mark(differs(ratio, same)) }
}

/// The number of rounds of a row's figures: the least, and the most if that differs.
pub(super) fn rounds(figures: impl IntoIterator<Item = Option<Spread>>) -> String {
    let counts = figures.into_iter().flatten().map(|figure| figure.n);
    let (least, most) =
        counts.fold((usize::MAX, 0), |(least, most), count| (least.min(count), most.max(count)));
    match (least, most) {
        (_, 0) => "0".into(),
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least}–{most}"),
    }
}

/// Share of the machine that others took during the cases at a delay; two cells.
pub(super) fn taken(report: &BlockReport, delay: f64) -> [String; 2] {
    let taken = report.taken(delay);
    [taken.steal, taken.others].map(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[f64]) -> Option<Spread> {
        Spread::of(values)
    }

    #[test]
    fn a_figure_has_its_spread_and_the_originals_in_brackets() {
        assert_eq!(with_original(spread(&[2.0, 1.5, 3.0]), Some(2.5)), "2.00 (1.50–3.00) [2.50]");
        assert_eq!(with_original(spread(&[2.0]), None), "2.00");
        assert_eq!(with_original(None, Some(1.0)), "– [1.00]");
        assert_eq!(mb(spread(&[2e6, 4e6])), "3.00 (2.00–4.00)");
    }

    #[test]
    fn a_ratio_is_a_difference_only_beyond_that_of_the_tunnel_to_itself() {
        let same = spread(&[0.9, 1.1, 1.0, 1.0, 1.0]);
        assert_eq!(judged(spread(&[2.0; 5]), same), "");
        assert_eq!(judged(spread(&[1.0; 5]), same), " ≈");
        assert_eq!(judged(spread(&[2.0; 4]), same), " ?", "four rounds");
        assert_eq!(judged(spread(&[2.0; 5]), spread(&[1.0; 4])), " ?");
        assert_eq!(judged(spread(&[2.0; 5]), None), " ?", "no control, or a disturbed machine");
        assert_eq!(judged(None, same), "");
    }

    #[test]
    fn a_row_shows_its_number_of_rounds() {
        assert_eq!(rounds([spread(&[1.0; 3]), None, spread(&[1.0; 3])]), "3");
        assert_eq!(rounds([spread(&[1.0; 3]), spread(&[1.0; 2])]), "2–3");
        assert_eq!(rounds([None]), "0");
    }
}
