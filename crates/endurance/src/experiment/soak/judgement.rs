//! Judges the samples of a soak test. Pure.

use serde::Serialize;

use super::sample::Sample;
use super::trend::Trend;

/// Growth of memory that is allowed, KiB an hour.
const MAX_KIB_AN_HOUR: f64 = 1024.0;
/// A shorter test says nothing about a slope: what a heap grows by while it finds its size would
/// fill hours. It is judged by the growth itself.
const SHORTEST_FOR_SLOPE_S: f64 = 1800.0;
const MAX_KIB_OF_SHORT: f64 = 16.0 * 1024.0;
/// Descriptors and threads may differ by this number from one moment to another.
const SLACK: f64 = 4.0;

/// The judgement of the time after the warm-up.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Judgement {
    /// Seconds that were judged.
    pub seconds: f64,
    /// Proportional memory of the gateway's processes, KiB an hour.
    pub kib_an_hour: Option<Trend>,
    /// Their descriptors, an hour.
    pub descriptors_an_hour: Option<Trend>,
    /// Their threads, an hour.
    pub threads_an_hour: Option<Trend>,
    /// The lowest memory of the last third less that of the first, KiB.
    pub kib_grown: Option<f64>,
    pub problems: Vec<String>,
    pub doubts: Vec<String>,
}

/// Judges the samples from second `from` on.
pub fn judge(samples: &[Sample], from: f64) -> Judgement {
    let judged: Vec<&Sample> = samples.iter().filter(|sample| sample.second >= from).collect();
    let (Some(first), Some(last)) = (judged.first(), judged.last()) else {
        let problems = vec!["nothing was seen after the warm-up".into()];
        return Judgement { problems, ..Judgement::default() };
    };
    let seconds = last.second - first.second;
    let points = |of: fn(&Sample) -> f64| {
        judged.iter().map(|sample| (sample.second / 3600.0, of(sample))).collect::<Vec<_>>()
    };
    let memory = points(|sample| sample.memory.pss_kib as f64);
    let mut judgement = Judgement {
        seconds,
        kib_an_hour: Trend::of(&memory),
        descriptors_an_hour: Trend::of(&points(|sample| sample.descriptors.into())),
        threads_an_hour: Trend::of(&points(|sample| sample.threads.into())),
        kib_grown: grown(&memory),
        ..Judgement::default()
    };
    judgement.judge_memory();
    for (name, trend) in
        [("descriptors", judgement.descriptors_an_hour), ("threads", judgement.threads_an_hour)]
    {
        let growth =
            trend.filter(|trend| trend.low > 0.0).map_or(0.0, |trend| trend.slope * seconds / 3600.0);
        if growth >= SLACK {
            judgement.problems.push(format!("the gateway's {name} grew by {growth:.0}"));
        }
    }
    judgement
}

impl Judgement {
    fn judge_memory(&mut self) {
        if self.seconds < SHORTEST_FOR_SLOPE_S {
            self.doubts.push("too short for a slope of memory; its growth was judged instead".into());
            if let Some(kib) = self.kib_grown.filter(|kib| *kib > MAX_KIB_OF_SHORT) {
                self.problems.push(format!("the gateway's memory grew by {:.1} MiB", kib / 1024.0));
            }
            return;
        }
        match self.kib_an_hour {
            None => self.problems.push("too few samples for a slope".into()),
            Some(trend) if trend.low > MAX_KIB_AN_HOUR => {
                let slope = trend.slope / 1024.0;
                self.problems.push(format!("the gateway's memory grows by {slope:.2} MiB an hour"));
            }
            Some(trend) if trend.high > MAX_KIB_AN_HOUR => {
                self.doubts.push("the slope of memory may be above 1 MiB an hour: run it for longer".into());
            }
            Some(_) => {}
        }
    }
}

fn grown(points: &[(f64, f64)]) -> Option<f64> {
    let third = points.len() / 3;
    let lowest = |part: &[(f64, f64)]| part.iter().map(|(_, y)| *y).reduce(f64::min);
    Some(lowest(&points[points.len() - third..])? - lowest(&points[..third])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trafficspeed::observe::memory::Memory;

    /// A look every five seconds, with `kib` and `descriptors` by the hour.
    fn seen(hours: f64, kib: f64, descriptors: f64) -> Vec<Sample> {
        let at = |n: u32| {
            let second = f64::from(n) * 5.0;
            let (hour, wobble) = (second / 3600.0, f64::from(n * 7919 % 101));
            Sample {
                second,
                memory: Memory { rss_kib: 0, pss_kib: (60_000.0 + wobble + kib * hour) as u64 },
                descriptors: (70.0 + descriptors * hour) as u32,
                threads: 9,
                ..Sample::default()
            }
        };
        (0..(hours * 720.0) as u32).map(at).collect()
    }

    #[test]
    fn a_slope_above_the_bar_is_a_problem_and_one_below_is_none() {
        let grows = judge(&seen(2.0, 2_000.0, 0.0), 600.0);
        assert!(grows.problems.len() == 1 && grows.problems[0].contains("1.95 MiB an hour"), "{grows:?}");
        let still = judge(&seen(2.0, 300.0, 0.0), 600.0);
        assert!(still.problems.is_empty() && still.doubts.is_empty(), "{still:?}");
        assert!((still.seconds - 6_595.0).abs() < 1.0);
    }

    #[test]
    fn growing_descriptors_are_a_problem() {
        let judgement = judge(&seen(1.0, 0.0, 10.0), 0.0);
        assert!(
            judgement.problems.len() == 1 && judgement.problems[0].contains("descriptors"),
            "{judgement:?}"
        );
        assert!(judge(&seen(1.0, 0.0, 2.0), 0.0).problems.is_empty());
    }

    #[test]
    fn a_short_test_is_judged_by_growth_and_says_so() {
        let short = judge(&seen(0.1, 100_000.0, 0.0), 0.0);
        assert!(short.problems.is_empty() && short.doubts.len() == 1, "10 MiB in six minutes: {short:?}");
        assert_eq!(judge(&seen(0.1, 400_000.0, 0.0), 0.0).problems.len(), 1);
        assert_eq!(judge(&seen(0.1, 0.0, 0.0), 1e9).problems.len(), 1, "nothing seen is not enough");
    }

    #[test]
    fn a_slope_that_may_be_too_high_is_a_doubt() {
        let mut unsure = seen(0.6, 0.0, 0.0);
        for (sample, n) in unsure.iter_mut().zip(0..) {
            sample.memory.pss_kib += u64::from(n * 7919u32 % 40_009);
        }
        let judgement = judge(&unsure, 0.0);
        assert!(judgement.problems.is_empty() && judgement.doubts.len() == 1, "{judgement:?}");
    }
}
