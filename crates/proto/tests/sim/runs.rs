//! Runs a scenario with several seeds and names the seed of a failure.

/// Prints the seed if the scenario panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with SIM_SEED={}", self.0);
        }
    }
}

/// Runs `scenario` with `default` seeds, or with what `SIM_SEED` and `SIM_RUNS` say.
pub(crate) fn with_seeds(default: u64, scenario: impl Fn(u64)) {
    let number =
        |name| std::env::var(name).ok().map(|value| value.parse().expect("a seed or count is a number"));
    let seeds = match (number("SIM_SEED"), number("SIM_RUNS")) {
        (Some(seed), runs) => seed..seed + runs.unwrap_or(1),
        (None, runs) => 0..runs.unwrap_or(default),
    };
    for seed in seeds {
        let _seed = Seed(seed);
        scenario(seed);
    }
}
