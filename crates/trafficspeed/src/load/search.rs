//! Finds the highest rate that the path carries with (nearly) no loss, after RFC 2544 §26.1.
//!
//! The caller makes trials at the rates that [`RateSearch::next`] names and tells how each ended.
//! The limits close in until they are within the resolution. Unlike a machine that does nothing
//! else, ours is disturbed now and then: a rate counts as too high only when two trials at it
//! failed.

/// Trials after which the search ends whatever is known.
const MOST_TRIALS: u32 = 40;
/// The share of the first rate below which a path carries nothing worth searching for.
const LEAST_SHARE: f64 = 0.005;

/// A search under way.
#[derive(Clone, Debug)]
pub struct RateSearch {
    /// Highest rate that was carried.
    low: f64,
    /// Lowest rate that was not; at first the highest that is tried.
    high: f64,
    least: f64,
    /// How close the limits must come, as a share of the upper one.
    resolution: f64,
    failures: u32,
    trials: u32,
    tried_high: bool,
}

impl RateSearch {
    /// A search below `most` that ends when it knows the rate to `resolution` (0.02: two percent).
    pub fn new(most: f64, resolution: f64) -> Self {
        Self {
            low: 0.0,
            high: most,
            least: most * LEAST_SHARE,
            resolution,
            failures: 0,
            trials: 0,
            tried_high: false,
        }
    }

    /// The rate of the next trial; `None` when the search is over.
    pub fn next(&self) -> Option<f64> {
        if self.trials >= MOST_TRIALS || self.high <= self.least {
            return None;
        }
        if !self.tried_high {
            return Some(self.high);
        }
        (self.high - self.low > self.resolution * self.high).then(|| f64::midpoint(self.low, self.high))
    }

    /// Tells how the trial at the rate that `next` named has ended.
    pub fn record(&mut self, carried: bool) {
        let Some(rate) = self.next() else { return };
        self.trials += 1;
        if !carried && self.failures == 0 {
            self.failures = 1;
            return;
        }
        self.failures = 0;
        if carried {
            self.low = rate;
        } else {
            self.high = rate;
        }
        self.tried_high = true;
    }

    /// The highest rate that was carried so far; zero if none was.
    pub fn found(&self) -> f64 {
        self.low
    }

    /// The number of trials that were made.
    pub fn trials(&self) -> u32 {
        self.trials
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a path that carries `limit`; `hiccup` names a trial that fails for another reason.
    fn search(limit: f64, most: f64, hiccup: Option<u32>) -> RateSearch {
        let mut search = RateSearch::new(most, 0.02);
        while let Some(rate) = search.next() {
            search.record(rate <= limit && hiccup != Some(search.trials()));
        }
        search
    }

    #[test]
    fn the_limit_is_found_to_the_resolution() {
        for limit in [1.0, 37.0, 250.0, 499.0, 999.9] {
            let found = search(limit, 1_000.0, None).found();
            assert!(found <= limit && found >= limit * 0.97 - 1.0, "{found} of {limit}");
        }
    }

    #[test]
    fn a_path_that_carries_everything_needs_one_trial_and_one_that_carries_nothing_ends() {
        let all = search(f64::MAX, 1_000.0, None);
        assert_eq!((all.found(), all.trials()), (1_000.0, 1));
        let nothing = search(-1.0, 1_000.0, None);
        assert_eq!(nothing.found(), 0.0);
        assert!(nothing.trials() <= 18, "{}", nothing.trials());
        assert_eq!(RateSearch::new(0.0, 0.02).next(), None);
    }

    #[test]
    fn one_disturbed_trial_does_not_change_the_result() {
        let undisturbed = search(600.0, 1_000.0, None).found();
        for trial in 0..8 {
            let found = search(600.0, 1_000.0, Some(trial)).found();
            assert!((found - undisturbed).abs() < 1e-9, "trial {trial}: {found} {undisturbed}");
        }
    }
}
