//! The figures of a gateway's capacity, for people.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::chart::{Horizontal, LineChart, Point, Series, standalone};
use super::grid::{Grid, NARROW, wrapped};
use crate::experiment::capacity::results::{CapacityResults, Case, Figures, Row};
use crate::experiment::capacity::words;
use crate::stats::Spread;
use crate::unit::{gbit, significant};

/// Stands below the table.
const DEFINITIONS: [&str; 7] = [
    "Gbit/s: payload that arrived, all sessions together.",
    "Gateway: its CPU seconds for each Gbit, median (lowest-highest) of the rounds. Times fewest: the same over that of the fewest \
     sessions; times real: over that of as many real clients on the same gateway, 1 if the load is a fair stand-in.",
    "Load: CPU seconds of whoever makes the traffic, for each Gbit; of real clients those of the VPN's processes alone.",
    "Jain: over the sessions' goodputs.",
    "Lost: on the way through the gateway, by the numbers of the packets that were opened.",
    "Delay: from sealing to receiving, of the packets that were opened; it holds the queues that saturation makes.",
    "Sessions send in turns, so that the bytes on their way stay within their limit: it is a closed loop, which no rate outruns.",
];

/// The figures as text, no line longer than a terminal.
pub fn table(results: &CapacityResults) -> String {
    wrapped(&text(results), NARROW)
}

fn text(results: &CapacityResults) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        writeln!(text, "{words}").expect("writing to a string");
    };
    line(grid(results).text(Some(NARROW)));
    DEFINITIONS.into_iter().for_each(|words| line(words.into()));
    line(format!(
        "{} rounds of {} s, cases in turns; {} sessions logged in all the time in one process, a socket each; {} KiB on their way at \
         most; of every {} merged runs of a session one authenticated and opened{}; gateway: {}",
        results.repeats,
        significant(results.seconds),
        results.sessions,
        results.in_flight / 1_024,
        results.sample,
        opened(results),
        results.facts.version
    ));
    line(results.environment.machine());
    for problem in &results.problems {
        line(format!("Problem: {problem}"));
    }
    if results.interrupted {
        line("Interrupted: the figures are of what was measured until then.".into());
    }
    text
}

/// The share of all packets that was looked at.
fn opened(results: &CapacityResults) -> String {
    let runs = results.rows.iter().flat_map(|row| &row.runs).filter_map(|figures| figures.opened);
    let (opened, arrived) = runs.fold((0, 0), |(a, b), (opened, arrived)| (a + opened, b + arrived));
    if arrived == 0 {
        return String::new();
    }
    format!(" ({} % of all packets)", significant(100.0 * opened as f64 / arrived as f64))
}

fn grid(results: &CapacityResults) -> Grid {
    let head = [
        "load",
        "sessions",
        "packet",
        "burst",
        "Gbit/s",
        "packets/s",
        "gateway CPU s/Gbit",
        "times fewest",
        "times real",
        "load CPU s/Gbit",
        "Jain",
        "lost %",
        "delay ms p50",
        "p99",
        "steal %",
        "foreign %",
    ];
    let mut table = Grid::new(4, head);
    table.rows.extend(results.rows.iter().map(|row| cells(results, row)));
    table
}

fn cells(results: &CapacityResults, row: &Row) -> Vec<String> {
    let (load, packet, burst) = match row.case {
        Case::Made { burst, direction, .. } => {
            let packet = row.runs.first().and_then(|figures| figures.packet);
            (words(direction), packet.map_or_else(dash, |bytes| bytes.to_string()), burst.to_string())
        }
        Case::Real { .. } => ("real clients", dash(), dash()),
    };
    let spread = |of: fn(&Figures) -> Option<f64>| row.spread(of);
    let show = |value: Option<Spread>| value.map_or_else(dash, |value| value.text(significant));
    let number = |value: Option<f64>| value.map_or_else(dash, significant);
    let median = |of: fn(&Figures) -> Option<f64>| number(spread(of).map(|spread| spread.median));
    vec![
        load.into(),
        row.case.sessions().to_string(),
        packet,
        burst,
        spread(|figures| Some(figures.goodput)).map_or_else(dash, |rate| rate.text(gbit)),
        median(|figures| figures.packets_per_second),
        show(row.cost()),
        number(results.relative_cost(row)),
        number(results.against_real(row)),
        median(|figures| Some(figures.load_seconds_per_gbit)),
        median(|figures| figures.fairness),
        median(|figures| figures.lost_percent),
        median(|figures| Some(figures.delay_ms?.p50)),
        median(|figures| Some(figures.delay_ms?.p99)),
        median(|figures| figures.steal_percent),
        median(|figures| figures.foreign_percent),
    ]
}

fn dash() -> String {
    "-".into()
}

/// The cost over the sessions, as a file of its own.
pub fn picture(results: &CapacityResults) -> Option<String> {
    let kinds: BTreeSet<_> = results.rows.iter().map(kind).collect();
    let of_kind = |(style, label): (usize, String)| {
        let rows = results.rows.iter().filter(|row| kind(row) == label);
        let points =
            rows.filter_map(|row| Some(Point::of(row.case.sessions().into(), row.cost()?))).collect();
        Series { label, style, points }
    };
    let series: Vec<Series> = kinds.into_iter().enumerate().map(of_kind).collect();
    let counts: BTreeSet<u32> = results.rows.iter().map(|row| row.case.sessions()).collect();
    let chart = LineChart {
        title: "The gateway's cost as active sessions grow".into(),
        x_label: "active sessions".into(),
        y_label: "CPU seconds of the gateway for each Gbit".into(),
        horizontal: Horizontal::Doubling(counts.into_iter().map(f64::from).collect()),
        series,
    };
    Some(standalone::svg(&chart.svg()?))
}

/// What the cases of one line have in common.
fn kind(row: &Row) -> String {
    match row.case {
        Case::Made { direction, packet: None, burst, .. } => {
            format!("{}, full packets, bursts of {burst}", words(direction))
        }
        Case::Made { direction, packet: Some(bytes), burst, .. } => {
            format!("{}, {bytes} B, bursts of {burst}", words(direction))
        }
        Case::Real { .. } => "real clients".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::capacity::results::samples;

    #[test]
    fn the_table_has_each_case_with_its_ratios_and_fits_a_terminal() {
        let table = table(&samples::results());
        for words in [
            "in pairs",
            "real clients",
            "1024",
            "0.120 (0.110–0.130)",
            "1.20",
            "1.25",
            "1.00 % of all packets",
        ] {
            assert!(table.contains(words), "{words}:\n{table}");
        }
        assert!(table.lines().all(|line| line.chars().count() <= NARROW), "{table}");
    }

    #[test]
    fn the_picture_has_a_line_for_each_kind_of_load() {
        let picture = picture(&samples::results()).unwrap();
        assert!(picture.contains("in pairs, full packets, bursts of 44") && picture.contains("real clients"));
    }

    #[test]
    fn without_a_measurement_there_is_no_figure_and_no_picture() {
        let mut results = samples::results();
        results.rows.iter_mut().for_each(|row| row.runs.clear());
        results.problems.push("no session is up".into());
        assert_eq!(picture(&results), None);
        assert!(table(&results).contains("Problem: no session is up"));
    }
}
