//! The figures of one way of writing at one delay, round by round, and what the rounds say
//! together.
//!
//! INVARIANT: a ratio is formed of two figures of the same round and block size, never of two
//! medians. INVARIANT: a round counts with all block sizes that were asked for or not at all, so
//! that its mean is of the same sizes as that of the other rounds and ways: one that was
//! interrupted has only the first sizes of its turn, and one in which a size failed lacks it.

use std::collections::{BTreeMap, BTreeSet};

use crate::observation::divided;
use crate::stats::{Spread, median};

/// A figure for each round and block size, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rounds(BTreeMap<(u32, u32), f64>);

impl FromIterator<((u32, u32), f64)> for Rounds {
    fn from_iter<I: IntoIterator<Item = ((u32, u32), f64)>>(figures: I) -> Self {
        Self(figures.into_iter().collect())
    }
}

impl Rounds {
    /// Each divided by that of `other` in the same round and at the same block size, where that is
    /// above zero.
    #[must_use]
    pub fn divided_by(&self, other: &Self) -> Self {
        Self(divided(&self.0, &other.0))
    }

    /// The mean over these block sizes of each round.
    pub fn means(&self, sizes: &[u32]) -> Option<Spread> {
        self.spread(sizes, |values| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// The median over these block sizes of each round.
    pub fn medians(&self, sizes: &[u32]) -> Option<Spread> {
        self.spread(sizes, |values| median(values).unwrap_or_default())
    }

    fn spread(&self, sizes: &[u32], of_round: impl Fn(&[f64]) -> f64) -> Option<Spread> {
        let rounds: BTreeSet<u32> = self.0.keys().map(|(round, _)| *round).collect();
        let whole = |round: &u32| {
            let values: Option<Vec<f64>> =
                sizes.iter().map(|size| self.0.get(&(*round, *size)).copied()).collect();
            values.map(|values| of_round(&values))
        };
        Spread::of(&rounds.iter().filter_map(whole).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(figures: &[(u32, u32, f64)]) -> Rounds {
        figures.iter().map(|&(round, size, value)| ((round, size), value)).collect()
    }

    #[test]
    fn a_round_without_one_of_the_sizes_does_not_count() {
        let all = rounds(&[(1, 8, 1.0), (1, 16, 3.0), (2, 8, 3.0), (2, 16, 5.0)]);
        let cut = rounds(&[(1, 8, 1.0), (1, 16, 3.0), (2, 8, 3.0), (2, 16, 5.0), (3, 16, 99.0)]);
        let means = all.means(&[8, 16]).unwrap();
        assert_eq!((means.low, means.high, means.n), (2.0, 4.0, 2));
        assert_eq!(cut.means(&[8, 16]), Some(means));
        assert_eq!(cut.means(&[8, 16, 32]), None, "a size that failed in every round");
        assert_eq!(rounds(&[]).means(&[8]), None);
    }

    #[test]
    fn a_mean_follows_each_size_and_a_median_the_middle_one() {
        let figures = rounds(&[(1, 8, 1.0), (1, 16, 2.0), (1, 32, 9.0)]);
        let middle = |spread: Option<Spread>| spread.map(|spread| spread.median);
        assert_eq!(
            (middle(figures.means(&[8, 16, 32])), middle(figures.medians(&[8, 16, 32]))),
            (Some(4.0), Some(2.0))
        );
    }
}
