//! One system by another, round by round, beside a system by itself (A/A), which is what tells a difference from chance.

use serde_json::{Value, json};

use super::grid::Grid;
use super::table::difference;
use crate::stats::Spread;
use crate::unit::significant;

/// One system by what it is compared by.
#[derive(Debug, PartialEq)]
pub struct Ratio<'a> {
    pub label: &'a str,
    /// The load or the figure.
    pub of: &'a str,
    /// The system that was measured twice in each round, by itself.
    pub same: Option<Spread>,
    /// This one by the first.
    pub to_first: Option<Spread>,
}

impl Ratio<'_> {
    /// Whether it differs from the first system; `None` if nothing says so: one round has no spread.
    pub fn differs(&self) -> Option<bool> {
        differs(self.to_first, self.same)
    }
}

/// Whether the ratios of two systems differ from those of a system to itself; `None` of a single round of either.
pub fn differs(to_first: Option<Spread>, same: Option<Spread>) -> Option<bool> {
    let several = |spread: Option<Spread>| spread.filter(|spread| spread.n > 1);
    Some(several(to_first)?.differs_beyond(several(same)?))
}

/// The one by the other, of the rounds in which both have a value above zero.
pub fn within_rounds(
    rounds: impl Iterator<Item = u32>,
    one: impl Fn(u32) -> Option<f64>,
    other: impl Fn(u32) -> Option<f64>,
) -> Option<Spread> {
    let positive = |value: Option<f64>| value.filter(|value| *value > 0.0);
    let ratios = rounds.filter_map(|round| Some(positive(one(round))? / positive(other(round))?));
    Spread::of(&ratios.collect::<Vec<_>>())
}

/// The ratios as a table; `of` names what the systems are compared by.
pub fn grid(ratios: &[Ratio<'_>], of: &str, first: &str) -> Grid {
    let mut grid = Grid::new(2, ["system", of, "A/A", &format!("of {first}"), "difference"]);
    let text = |spread: Option<Spread>| spread.map_or("–".into(), |spread| spread.text(significant));
    grid.rows.extend(ratios.iter().map(|ratio| {
        vec![
            ratio.label.to_owned(),
            ratio.of.to_owned(),
            text(ratio.same),
            text(ratio.to_first),
            difference(ratio.differs()).to_owned(),
        ]
    }));
    grid
}

/// The same as JSON.
pub fn json(ratios: &[Ratio<'_>], of: &str) -> Value {
    let one = |ratio: &Ratio<'_>| {
        json!({
            "system": ratio.label,
            of: ratio.of,
            "control": ratio.same,
            "ratio_to_first": ratio.to_first,
            "differs_from_first": ratio.differs(),
        })
    };
    ratios.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_round_of_either_shows_neither_a_difference_nor_that_there_is_none() {
        let spread = |values: &[f64]| Spread::of(values);
        let same = spread(&[0.9, 1.0, 1.1]);
        assert_eq!(differs(spread(&[2.0, 2.1]), same), Some(true));
        assert_eq!(differs(spread(&[1.0, 1.0]), same), Some(false));
        assert_eq!(differs(spread(&[2.0]), same), None);
        assert_eq!(differs(spread(&[2.0, 2.1]), spread(&[1.0])), None);
        assert_eq!((differs(None, same), differs(same, None)), (None, None));
    }
}
