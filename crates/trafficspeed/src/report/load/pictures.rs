//! The pictures of the generators' own commands: throughput and delay over time, and how delays are
//! distributed.

use super::searched;
use crate::experiment::figures;
use crate::experiment::generate::{LoadCampaign, LoadRun};
use crate::report::chart::Measure;
use crate::report::curves::{self, Curve};
use crate::report::page::Picture;

/// Trials of searches, then for every task the first run of each system: over time, and how delays
/// are distributed.
pub fn pictures(campaign: &LoadCampaign) -> Vec<Picture> {
    let names: Vec<String> = campaign.settings.tasks.iter().map(|named| named.name.clone()).collect();
    searched::picture(campaign).into_iter().chain(draw(&names, &campaign.runs)).collect()
}

fn draw(names: &[String], runs: &[LoadRun]) -> Vec<Picture> {
    let first = searched::first_runs(runs);
    let figures_of = |at: usize| -> Vec<Curve<'_>> {
        let runs = first.iter().enumerate();
        runs.filter_map(|(style, run)| Some((style, run.label.as_str(), run.figures.get(at)?))).collect()
    };
    let pictures = |(at, name): (usize, &String)| {
        let runs = figures_of(at);
        over_time(at, name, &runs).into_iter().chain([delays(at, name, &runs)]).flatten()
    };
    names.iter().enumerate().flat_map(pictures).collect()
}

/// The rate that is plotted: transactions where there are any, or else bits in a unit that suits
/// them.
struct Quantity {
    label: &'static str,
    divisor: Option<f64>,
}

impl Quantity {
    fn of(runs: &[Curve<'_>]) -> Self {
        if runs.iter().any(|(_, _, figures)| figures.transactions_per_second.is_some()) {
            return Self { label: "transactions per second", divisor: None };
        }
        let rates =
            runs.iter().flat_map(|(_, _, figures)| &figures.series).map(|p| p.received_bits_per_second);
        let (label, divisor) = match rates.fold(0.0, f64::max) {
            rate if rate >= 1e9 => ("received, Gbit/s", 1e9),
            rate if rate >= 1e6 => ("received, Mbit/s", 1e6),
            _ => ("received, kbit/s", 1e3),
        };
        Self { label, divisor: Some(divisor) }
    }

    fn measure(&self) -> Measure {
        Measure::higher_is_better(self.label)
    }

    fn value(&self, p: &figures::Point) -> f64 {
        self.divisor.map_or(p.received_per_second, |divisor| p.received_bits_per_second / divisor)
    }
}

/// Throughput over time, and delay: a picture each, since two axes in one would be read for each
/// other.
fn over_time(at: usize, name: &str, runs: &[Curve<'_>]) -> [Option<Picture>; 2] {
    let quantity = Quantity::of(runs);
    let title = format!("{name} over time");
    let rates = curves::over_time(&title, quantity.measure(), runs, |p| Some(quantity.value(p)));
    let (title, measure) = (format!("Delay of {title}"), Measure::lower_is_better("mean delay, ms"));
    let delays = curves::over_time(&title, measure, runs, |p| Some(p.delay_mean_us? / 1e3));
    let picture = |(file, title, caption, svg): (&str, &str, &str, Option<String>)| {
        Some(Picture::new(format!("{file}-{}", at + 1), &format!("{name}: {title}"), caption, svg?))
    };
    let delay_words =
        "Mean of each interval, one way for messages, the round trip for requests; first run of each system.";
    [
        ("time", "over time", "First run of each system.", rates),
        ("time-delay", "delay over time", delay_words, delays),
    ]
    .map(picture)
}

fn delays(at: usize, name: &str, runs: &[Curve<'_>]) -> Option<Picture> {
    let svg = curves::delays(&format!("Delays of {name}"), runs)?;
    let caption = "The share of messages or requests with at most this delay; first run of each system.";
    Some(Picture::new(format!("delay-{}", at + 1), &format!("{name}: delays"), caption, svg))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::figures::Figures;
    use crate::load::delays::DelaySummary;
    use crate::report::chart::markup::assert_well_formed;
    use crate::report::load::problems;

    fn run(label: &str, delays: bool) -> LoadRun {
        let point = |end| figures::Point {
            end,
            received_bits_per_second: 2e9,
            delay_mean_us: delays.then_some(250.0),
            ..figures::Point::default()
        };
        let curve = vec![(0.5, 200.0), (0.99, 900.0), (1.0, 4_000.0)];
        let delay = delays.then(|| DelaySummary { curve, p99_us: 900.0, ..DelaySummary::default() });
        let series = vec![point(1.0), point(2.0)];
        let figures = Figures { received_bits_per_second: 2e9, delay, series, ..Figures::default() };
        LoadRun { label: label.into(), repeat: 1, figures: vec![figures], ..LoadRun::default() }
    }

    #[test]
    fn throughput_and_delay_have_a_picture_each_in_one_colour_and_delays_their_distribution() {
        let names = ["UDP <messages>".to_owned()];
        let drawn = draw(&names, &[run("vpnd", true), run("plain", true), run("vpnd", true)]);
        let titles: Vec<&str> = drawn.iter().map(|picture| picture.name.as_str()).collect();
        assert_eq!(titles, ["time-1", "time-delay-1", "delay-1"]);
        drawn.iter().for_each(|picture| assert_well_formed(&picture.svg));
        assert!(!drawn[0].svg.contains("delay") && drawn[1].svg.contains("mean delay, ms (lower is better)"));
        for picture in &drawn {
            for style in ["class=\"line s0", "class=\"line s1"] {
                let count = picture.svg.matches(style).count();
                assert_eq!(count, 2, "{style}: one curve per system, and its key, in {}", picture.name);
            }
        }
        let bulk = draw(&names, &[run("vpnd", false)]);
        assert!(bulk.len() == 1 && !bulk[0].svg.contains("delay"), "no delay, no axis");
        assert!(bulk[0].svg.contains("received, Gbit/s"));
        let mut asked = run("vpnd", true);
        asked.figures[0].transactions_per_second = Some(9_000.0);
        assert!(draw(&names, &[asked])[0].svg.contains("transactions per second"));
        let mut slow = run("vpnd", false);
        slow.figures[0].series.iter_mut().for_each(|point| point.received_bits_per_second = 13e6);
        assert!(draw(&names, &[slow])[0].svg.contains("received, Mbit/s"));
    }

    #[test]
    fn a_run_without_a_result_is_no_picture_but_a_problem() {
        let failed = LoadRun { error: Some("did <not> come up".into()), ..run("vpnd", true) };
        assert_eq!(draw(&["x".to_owned()], std::slice::from_ref(&failed)), []);
        assert_eq!(problems(&[failed]), ["vpnd, run 1: did <not> come up"]);
        let stopped = LoadRun { stopped_early: true, ..run("vpnd", true) };
        assert_eq!(problems(&[stopped]), ["vpnd, run 1: ended early"], "as in the text");
    }
}
