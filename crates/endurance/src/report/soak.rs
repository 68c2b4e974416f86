//! A soak test's results in words, and as pictures.

use std::fmt::Write as _;

use crate::experiment::soak::results::SoakResults;
use crate::experiment::soak::sample::Sample;
use crate::experiment::soak::trend::Trend;
use trafficspeed::report::chart::{Horizontal, LineChart, Measure, Point, Series, standalone};

/// Names of the pictures' files.
pub const PICTURES: [&str; 3] = ["soak.svg", "soak-descriptors.svg", "soak-sessions.svg"];

/// Points of a line in the picture.
const MAX_POINTS: usize = 600;

/// The results in words.
pub fn text(results: &SoakResults) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        writeln!(text, "{words}").expect("writing to a string");
    };
    let (done, verdict) = (&results.done, &results.verdict);
    line(format!("{} sessions in {} processes, seed {}", results.clients, results.processes, results.seed));
    line(format!(
        "Done: {} left and came back, {} moved, {} lost their control connection, {} sockets with all their \
         connections moved, {} processes killed",
        done.left, done.roamed, done.rekeyed, done.rebound, results.kills
    ));
    line(format!(
        "Keys: {} by password, {} by token; {} attempts repeated; packets: {} sent, {} answered",
        done.logins, done.attaches, done.failed, done.sent, done.answered
    ));
    line(format!("Judged: {:.0} s after the warm-up", verdict.seconds));
    line(format!("Memory: {}", words(verdict.kib_an_hour, 1024.0, "MiB an hour")));
    if let Some(kib) = verdict.kib_grown {
        line(format!("Lowest memory of the last third less that of the first: {:.2} MiB", kib / 1024.0));
    }
    line(format!("Descriptors: {}", words(verdict.descriptors_an_hour, 1.0, "an hour")));
    line(format!("Threads: {}", words(verdict.threads_an_hour, 1.0, "an hour")));
    line(format!("Unexplained: {}", results.unexplained));
    if results.after_stalls > 0 {
        line(format!("After a standstill of the machine or of a process: {} more", results.after_stalls));
    }
    line(results.environment.machine());
    for (reason, count) in &results.failures {
        line(format!("{count} attempts were repeated: {reason}"));
    }
    for problem in results.problems.iter().chain(&verdict.problems) {
        line(format!("Problem: {problem}"));
    }
    for doubt in &verdict.doubts {
        line(format!("Not sure: {doubt}"));
    }
    if results.interrupted {
        line("Interrupted: the figures are of what was seen until then.".into());
    }
    text
}

/// Memory, descriptors, and sessions over time: separate files with their names. An axis has
/// one unit.
pub fn pictures(results: &SoakResults) -> Vec<(&'static str, String)> {
    let stride = results.samples.len().div_ceil(MAX_POINTS).max(1);
    let series = |label: &str, style, of: fn(&Sample) -> f64| {
        let samples = results.samples.iter().step_by(stride);
        let points = samples.map(|sample| Point { x: sample.second, y: of(sample), range: None });
        Series { label: label.into(), style, points: points.collect() }
    };
    let memory = vec![series("memory", 0, |sample| sample.memory.pss_kib as f64 / 1024.0)];
    let descriptors = vec![series("descriptors", 1, |sample| sample.descriptors.into())];
    let sessions = vec![
        series("sessions", 2, |sample| sample.sessions.into()),
        series("away", 3, |sample| sample.away.into()),
    ];
    let picture = |(name, title, measure, series): (_, &str, _, _)| {
        let chart = LineChart {
            title: title.into(),
            x_label: "seconds since the first login".into(),
            measure,
            horizontal: Horizontal::Linear(results.samples.last().map_or(0.0, |sample| sample.second)),
            series,
        };
        Some((name, standalone::svg(&chart.svg()?)))
    };
    let [of_memory, of_descriptors, of_sessions] = PICTURES;
    let memory = (of_memory, "A gateway's memory over time", Measure::lower_is_better("MiB"), memory);
    let descriptors = (
        of_descriptors,
        "A gateway's descriptors over time",
        Measure::lower_is_better("descriptors"),
        descriptors,
    );
    let sessions = (of_sessions, "Sessions over time", Measure::neither_is_better("sessions"), sessions);
    [memory, descriptors, sessions].into_iter().filter_map(picture).collect()
}

fn words(trend: Option<Trend>, unit: f64, name: &str) -> String {
    let Some(Trend { slope, low, high }) = trend else { return "too few samples".into() };
    format!("{:+.3} {name} (95 %: {:+.3} to {:+.3})", slope / unit, low / unit, high / unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::soak::results::samples;

    #[test]
    fn words_and_a_line_have_the_figures_and_the_picture_has_few_points() {
        let mut results = samples::results();
        results.judge(60.0);
        results.failures.insert("refused: busy".into(), 3);
        let text = text(&results);
        for expected in [
            "seed 3",
            "+0.000 MiB an hour",
            "3 attempts were repeated: refused: busy",
            "Judged: 1939 s",
            "Machine: ",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(results.line().contains("second 1999: 0 up") && results.line().contains("60.0 MiB"));
        let drawn = pictures(&results);
        let names: Vec<&str> = drawn.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, PICTURES);
        let has = |picture: usize, words: &str| drawn[picture].1.contains(words);
        assert!(has(0, "MiB") && !has(0, "descriptors"), "an axis has one unit");
        assert!(has(1, "descriptors") && !has(1, "MiB"), "an axis has one unit");
        for (name, svg) in drawn {
            assert!(svg.len() < 60_000, "{name}: {}", svg.len());
        }
        assert_eq!(pictures(&SoakResults { samples: vec![], ..results }), []);
    }
}
