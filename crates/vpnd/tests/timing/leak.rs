//! Whether two kinds of work take differently long, as "Dude, is my code constant time?" does it
//! (O. Reparaz, J. Balasch, I. Verbauwhede, 2017): both kinds in random order, Welch's t-test over
//! all measurements, over those below each of many thresholds (the long tail of a machine's
//! interruptions hides small differences), and over squares of deviations.
//!
//! Pure but for the clock and the work that is measured.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Thresholds that measurements are cropped at.
const CROPS: usize = 100;
/// Measurements at the beginning, which only set the thresholds.
const FIRST: usize = 1_000;
/// A test over fewer measurements of a kind says nothing.
const LEAST: f64 = 200.0;
/// Interval of progress reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Mean and variance as they grow (Welford).
#[derive(Clone, Copy, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
    }

    fn variance(&self) -> f64 {
        self.squares / (self.count - 1.0)
    }
}

/// Welch's test of two kinds of values.
#[derive(Clone, Copy, Default)]
struct Welch([Moments; 2]);

impl Welch {
    fn add(&mut self, kind: usize, value: f64) {
        self.0[kind].add(value);
    }

    fn t(&self) -> f64 {
        let [one, other] = &self.0;
        if one.count < LEAST || other.count < LEAST {
            return 0.0;
        }
        let error = (one.variance() / one.count + other.variance() / other.count).sqrt();
        if error > 0.0 { (one.mean - other.mean) / error } else { 0.0 }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// The t whose size is largest, of all tests.
    pub(crate) t: f64,
    /// The mean of the second kind less that of the first in the test over nine tenths of all
    /// measurements, nanoseconds.
    pub(crate) difference_ns: f64,
    /// The mean there, nanoseconds.
    pub(crate) mean_ns: f64,
    /// Measurements.
    pub(crate) samples: usize,
}

/// All tests over what has been measured.
struct Tests {
    all: Welch,
    /// Below nine tenths of the first measurements.
    most: Welch,
    squares: Welch,
    /// Each below its threshold.
    cropped: Vec<(f64, Welch)>,
    nine_tenths: f64,
    samples: usize,
}

impl Tests {
    /// `first`: sorted measurements that only set the thresholds.
    fn new(first: &[f64]) -> Self {
        let threshold = |number: usize| {
            let share = 1.0 - 0.5f64.powf(10.0 * (number + 1) as f64 / CROPS as f64);
            first[((first.len() as f64 * share) as usize).min(first.len() - 1)]
        };
        Self {
            all: Welch::default(),
            most: Welch::default(),
            squares: Welch::default(),
            cropped: (0..CROPS).map(|number| (threshold(number), Welch::default())).collect(),
            nine_tenths: first[first.len() * 9 / 10],
            samples: 0,
        }
    }

    fn add(&mut self, kind: usize, ns: f64) {
        self.all.add(kind, ns);
        if ns < self.nine_tenths {
            self.most.add(kind, ns);
        }
        // Deviations from a mean that is known by then.
        if self.samples > FIRST {
            self.squares.add(kind, (ns - self.all.0[kind].mean).powi(2));
        }
        for (threshold, test) in &mut self.cropped {
            if ns < *threshold {
                test.add(kind, ns);
            }
        }
        self.samples += 1;
    }

    fn found(&self) -> Found {
        let tests = self.cropped.iter().map(|(_, test)| test).chain([&self.all, &self.squares]).map(Welch::t);
        let t = tests.fold(0.0, |largest: f64, t| if t.abs() > largest.abs() { t } else { largest });
        let [one, other] = &self.most.0;
        let (mean_ns, difference_ns) = (one.mean, other.mean - one.mean);
        Found { t, difference_ns, mean_ns, samples: self.samples }
    }
}

/// Does `work` of kind 0 or 1, chosen by a coin for each of `samples`, and compares how long it
/// takes. What `work` needs is made by `prepare` outside the measurement.
pub(crate) fn look<T>(
    samples: usize,
    seed: u64,
    mut prepare: impl FnMut(usize, &mut StdRng) -> T,
    mut work: impl FnMut(T),
) -> Found {
    look_at(samples, seed, |kind, random| {
        let prepared = prepare(kind, random);
        let begun = Instant::now();
        work(prepared);
        begun.elapsed()
    })
}

/// Compares durations from elsewhere, of kind 0 or 1. Reports its progress on standard error, if
/// that takes long.
pub(crate) fn look_at(
    samples: usize,
    seed: u64,
    mut duration: impl FnMut(usize, &mut StdRng) -> Duration,
) -> Found {
    let mut random = StdRng::seed_from_u64(seed);
    let mut measure = || {
        let kind = usize::from(random.random::<bool>());
        (kind, duration(kind, &mut random).as_nanos() as f64)
    };
    let mut first: Vec<f64> = (0..FIRST.min(samples)).map(|_| measure().1).collect();
    first.sort_by(f64::total_cmp);
    let mut tests = Tests::new(&first);
    let mut said = Instant::now();
    for number in 1..=samples {
        let (kind, ns) = measure();
        tests.add(kind, ns);
        if said.elapsed() > REPORT_INTERVAL {
            said = Instant::now();
            eprintln!("{number} of {samples}: |t| = {:.2} so far", tests.found().t.abs());
        }
    }
    tests.found()
}
