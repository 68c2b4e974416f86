//! The time that a call of a stage takes: many short samples and their median, so that other work
//! of the machine now and then falls out.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::stage::{Load, Name, Stage};

/// Duration of a sample: much longer than reading the clock, much shorter than a scheduler's time
/// slice.
const SAMPLE: Duration = Duration::from_micros(200);
/// Fewest samples, whatever the time.
const LEAST_SAMPLES: usize = 5;

/// A measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Sampled {
    /// Which stage.
    #[serde(flatten)]
    pub name: Name,
    /// The work of a call.
    #[serde(flatten)]
    pub load: Load,
    /// Median nanoseconds for each call.
    pub ns: f64,
    /// The lower and the upper quartile.
    pub quartiles: [f64; 2],
    /// Samples taken.
    pub samples: usize,
}

/// Measures one stage for about `time`.
pub fn sample(stage: &mut Stage, time: Duration) -> Sampled {
    let began = Instant::now();
    // The first calls fill caches and are not counted.
    let mut calls = 1;
    while stage.run(calls) < SAMPLE && calls < 1 << 20 && began.elapsed() < time {
        calls *= 2;
    }
    let mut samples = Vec::new();
    while samples.len() < LEAST_SAMPLES || began.elapsed() < time {
        samples.push(stage.run(calls).as_secs_f64() * 1e9 / calls as f64);
    }
    samples.sort_by(f64::total_cmp);
    let quantile = |share: f64| samples[(share * (samples.len() - 1) as f64).round() as usize];
    Sampled {
        name: stage.name,
        load: stage.load,
        ns: quantile(0.5),
        quartiles: [quantile(0.25), quantile(0.75)],
        samples: samples.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::{Side, Unit};

    #[test]
    fn a_rare_interruption_does_not_move_the_median() {
        let mut run = 0_u32;
        let load = Load { packets: 1, bytes: 100 };
        let mut stage = Stage::timed(Name::new("test", Side::Hub, Unit::Packet), load, move |calls| {
            run += 1;
            let stolen = if run.is_multiple_of(10) { 5_000_000 } else { 0 };
            Duration::from_nanos(100 * calls + stolen)
        });
        let sampled = sample(&mut stage, Duration::from_millis(20));
        assert!((sampled.ns - 100.0).abs() < 1.0 && sampled.samples >= LEAST_SAMPLES, "{sampled:?}");
    }
}
