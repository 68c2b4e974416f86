//! The few statistics that reports use.

use serde::{Deserialize, Serialize};

/// A value is far from the others if it is this many times as far from the median as the middle one
/// of all distances …
const FAR_DISTANCES: f64 = 5.0;
/// … and differs from the median by this share of it: among values that hardly differ no one is far
/// from the others.
const FAR_SHARE: f64 = 0.25;
/// Fewer values have no others to be far from.
const FAR_LEAST: usize = 3;
/// Rounds without which neither a difference nor its absence is claimed: of comparisons of equal
/// systems three rounds would claim a difference in 12 %, five in [`FALSE_CLAIMS`] at most.
pub const CLAIM_ROUNDS: usize = 5;
/// The share of comparisons of equal systems in which a difference is claimed by chance, at most,
/// also where one is much noisier than the other; a test of this module shows it.
pub const FALSE_CLAIMS: f64 = 0.02;

/// A median with the lowest and the highest of as many values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// The number of values.
    pub n: usize,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(values: &[f64]) -> Option<Self> {
        let (low, high) = range(values)?;
        Some(Self { median: median(values)?, low, high, n: values.len() })
    }

    /// Each value divided by `unit`.
    pub fn scaled(self, unit: f64) -> Self {
        Self { median: self.median / unit, low: self.low / unit, high: self.high / unit, n: self.n }
    }

    /// Text: the median, and the lowest and highest in parentheses if there are several values.
    pub fn text(self, show: impl Fn(f64) -> String) -> String {
        match self.n {
            0 | 1 => show(self.median),
            _ => format!("{} ({}–{})", show(self.median), show(self.low), show(self.high)),
        }
    }

    /// Whether no value of the one lies among those of the other.
    pub fn is_apart_from(self, other: Self) -> bool {
        self.low > other.high || self.high < other.low
    }

    /// For a ratio of a system to itself: how many times as much as the other one of two
    /// measurements of the same gave at most, whichever it was.
    pub fn widest_ratio(self) -> f64 {
        self.high.max(1.0 / self.low.max(f64::MIN_POSITIVE)).max(1.0)
    }

    /// For a ratio of two systems: whether it is a difference, which takes a median further from 1
    /// than `same`, the ratios of a system to itself, ever were, and than the highest value is from
    /// the lowest: the other system may be noisier than the one that was measured twice. All values
    /// are then on the same side of 1. `None` of fewer than [`CLAIM_ROUNDS`] of either.
    pub fn differs_beyond(self, same: Self) -> Option<bool> {
        (self.n.min(same.n) >= CLAIM_ROUNDS).then(|| self.is_beyond(same))
    }

    /// The comparison for any number of rounds.
    fn is_beyond(self, same: Self) -> bool {
        let most = same.widest_ratio().max(self.high / self.low);
        self.median > most || self.median < 1.0 / most
    }
}

/// The values that lie far from the others: usually something happened to these measurements.
pub fn outliers(values: &[f64]) -> Vec<f64> {
    let Some(middle) = median(values).filter(|_| values.len() >= FAR_LEAST) else { return Vec::new() };
    let distance = |value: &f64| (value - middle).abs();
    let usual = median(&values.iter().map(distance).collect::<Vec<_>>()).unwrap_or_default();
    let is_far =
        |value: &&f64| distance(value) > FAR_DISTANCES * usual && distance(value) > FAR_SHARE * middle.abs();
    values.iter().filter(is_far).copied().collect()
}

/// Jain's fairness index: 1 if all are equal, 1/n if one has everything. `None` if there is nothing
/// to compare.
pub fn jain(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

/// The middle value, or the mean of the two middle ones.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// The value below which the share `share` (0 to 1) of all lies, interpolated between neighbours.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, part) = (place.floor(), place.fract());
    let low = sorted[below as usize];
    let high = sorted.get(below as usize + 1).copied().unwrap_or(low);
    Some(low + (high - low) * part)
}

/// Each of the values once, in the order in which they first come.
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut known = Vec::new();
    for value in values {
        if !known.contains(&value) {
            known.push(value);
        }
    }
    known
}

/// The smallest and the largest value.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    Some((low, high))
}

/// Five rounds with the median, the lowest and the highest of three.
#[cfg(test)]
pub(crate) fn five<T: Copy>([a, b, c]: [T; 3]) -> [T; 5] {
    [a, b, c, a, c]
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::seq::SliceRandom as _;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    #[test]
    fn jain_is_one_for_equals_and_one_nth_for_a_monopoly() {
        assert_eq!(jain(&[3.0; 7]), Some(1.0));
        assert!((jain(&[5.0, 0.0, 0.0, 0.0]).unwrap() - 0.25).abs() < 1e-12);
        assert!((jain(&[1.0, 2.0, 3.0]).unwrap() - 36.0 / 42.0).abs() < 1e-12);
        assert_eq!((jain(&[]), jain(&[0.0, 0.0])), (None, None));
    }

    #[test]
    fn median_and_range_of_odd_even_and_empty_samples() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(&[]), None);
        assert_eq!(range(&[2.0, -1.0, 7.0]), Some((-1.0, 7.0)));
        assert_eq!(range(&[]), None);
    }

    #[test]
    fn one_value_far_from_the_others_is_found_and_small_differences_are_not() {
        assert_eq!(outliers(&[100.0, 102.0, 30.0]), [30.0]);
        assert_eq!(outliers(&[61.0, 15.0, 60.0, 62.0]), [15.0]);
        assert!(outliers(&[100.0, 100.1, 110.0]).is_empty(), "a tenth is no event");
        assert!(outliers(&[10.0, 20.0, 40.0]).is_empty(), "all differ");
        assert!(outliers(&[1.0, 900.0]).is_empty(), "of two values neither is the odd one");
    }

    #[test]
    fn a_difference_is_one_only_beyond_that_of_a_system_to_itself() {
        let ratio = |values: &[f64]| Spread::of(values).unwrap();
        let same = ratio(&[0.8, 1.0, 1.0, 1.0, 1.1]);
        assert!((same.widest_ratio() - 1.25).abs() < 1e-9);
        let differs = |values: &[f64]| ratio(values).differs_beyond(same);
        assert_eq!(differs(&[1.2, 1.3, 1.3, 1.3, 1.4]), Some(true));
        assert_eq!(differs(&[0.65, 0.7, 0.7, 0.7, 0.75]), Some(true));
        assert_eq!(differs(&[0.6, 0.7, 0.7, 0.7, 0.9]), Some(false), "rounds differ as much");
        assert_eq!(differs(&[1.1, 1.2, 1.2, 1.2, 1.4]), Some(false), "its median is within");
        assert_eq!(differs(&[0.9, 1.4, 1.4, 1.4, 1.6]), Some(false), "one round went the other way");
        assert_eq!(same.differs_beyond(same), Some(false));
        assert_eq!(differs(&[2.0; 4]), None, "four rounds");
        assert_eq!(ratio(&[2.0; 5]).differs_beyond(ratio(&[1.0; 4])), None, "four rounds of A/A");
        assert!(ratio(&[1.0, 2.0]).is_apart_from(ratio(&[2.5])) && !ratio(&[1.0, 2.0]).is_apart_from(same));
        assert_eq!(ratio(&[2.0]).text(|v| v.to_string()), "2");
        assert_eq!(ratio(&[2.0, 4.0, 3.0]).text(|v| v.to_string()), "3 (2–4)");
    }

    /// The first system, itself again, and another that is equal, round by round: the share of
    /// comparisons in which a difference is claimed, with `noise` as the factor by which a
    /// measurement of each of the three is off.
    fn false_claims(rounds: usize, mut noise: impl FnMut(&mut ChaCha8Rng, usize) -> f64) -> f64 {
        const COMPARISONS: u32 = 20_000;
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let claims = (0..COMPARISONS).filter(|_| {
            let mut ratios = [vec![], vec![]];
            for _ in 0..rounds {
                let [first, again, other] = [0, 1, 2].map(|at| noise(&mut random, at));
                ratios[0].push(again / first);
                ratios[1].push(other / first);
            }
            let [same, ratio] = ratios.map(|values| Spread::of(&values).expect("there are rounds"));
            ratio.is_beyond(same)
        });
        claims.count() as f64 / f64::from(COMPARISONS)
    }

    #[test]
    fn equal_systems_hardly_ever_differ_however_much_noisier_one_is() {
        // A/A of this machine's campaigns lies between 0.87 and 1.30, most of it within 5 %: small
        // differences with a slow run now and then.
        let quiet = |random: &mut ChaCha8Rng, _: usize| random.random_range(0.97..1.03);
        let usual = |random: &mut ChaCha8Rng, _: usize| {
            let small = random.random_range(0.97..1.03);
            if random.random_bool(0.1) { small * random.random_range(0.75..1.0) } else { small }
        };
        let wild = |random: &mut ChaCha8Rng, _: usize| random.random_range(0.0_f64..1.0).powi(3) + 0.1;
        // Only the other one is noisy, so that A/A says nothing of it.
        let unequal = |random: &mut ChaCha8Rng, at: usize| match at {
            2 => random.random_range(0.8..1.2),
            _ => random.random_range(0.995..1.005),
        };
        let rates =
            [false_claims(5, quiet), false_claims(5, usual), false_claims(5, wild), false_claims(5, unequal)];
        assert!(rates.iter().all(|rate| *rate > 0.0 && *rate < FALSE_CLAIMS), "{rates:?}");
        assert!(rates[3] > 0.01, "why chance is said to claim as many: {rates:?}");
        let seven = false_claims(7, unequal);
        assert!(seven < rates[3] / 2.0, "{seven}");
        // Why fewer rounds claim nothing.
        let fewer = [false_claims(2, unequal), false_claims(3, unequal)];
        assert!(fewer[0] > 0.2 && fewer[1] > 0.1, "{fewer:?}");
    }

    /// The test with noise that goes on from one measurement to the next (AR(1)): each differs by
    /// `persistence` of what the one before differed by, and something new. The three take their
    /// turns among other systems, in shuffled order or always in the same.
    fn false_claims_of_persistent_noise(persistence: f64, is_shuffled: bool) -> f64 {
        const OTHERS: usize = 4;
        let mut turns: Vec<usize> = (0..3 + OTHERS).collect();
        let mut at = turns.len();
        let mut logarithm = 0.0_f64;
        let mut next = [0.0; 3];
        false_claims(5, move |random, _| {
            if at >= 3 {
                if is_shuffled {
                    turns.shuffle(random);
                }
                for turn in &turns {
                    // Near enough to a normal distribution.
                    let new: f64 = (0..4).map(|_| random.random_range(-0.03..0.03)).sum();
                    logarithm = persistence * logarithm + new;
                    if let Some(one) = next.get_mut(*turn) {
                        *one = logarithm.exp();
                    }
                }
                at = 0;
            }
            at += 1;
            next[at - 1]
        })
    }

    #[test]
    fn persistent_noise_adds_no_claims_in_shuffled_rounds() {
        let rates = [0.5, 0.9, 0.99].map(|persistence| false_claims_of_persistent_noise(persistence, true));
        assert!(rates.iter().all(|rate| *rate > 0.0 && *rate < FALSE_CLAIMS), "{rates:?}");
        let fixed = false_claims_of_persistent_noise(0.99, false);
        assert!(fixed > rates[2], "why turns are shuffled: {fixed}");
    }

    #[test]
    fn quantiles_lie_between_the_values_and_agree_with_the_median() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!((quantile(&values, 0.0), quantile(&values, 1.0)), (Some(1.0), Some(4.0)));
        assert_eq!((quantile(&values, 0.25), quantile(&values, 0.5)), (Some(1.75), median(&values)));
        assert_eq!((quantile(&[7.0], 0.9), quantile(&[], 0.5)), (Some(7.0), None));
    }
}
