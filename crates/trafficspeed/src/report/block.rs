//! The block experiment: the ratio table in the original's form with its figures in brackets,
//! peaks, CPU, and the model compared with the measurement.
//!
//! INVARIANT: every figure that was measured stands as a median with the spread of its rounds and
//! their number, and no ratio counts as a difference within that of the tunnel to itself.

mod cell;
mod cpu;
mod gains;
mod model;
mod notes;
mod pictures;
pub mod sweep;

use super::document::Document;
use super::noise::far;
use super::observed::Section;
use crate::experiment::block::BlockReport;
use crate::observation::Comparison;
use crate::unit::significant;

use notes::notes;
pub use pictures::pictures;

/// Differences of ways.
pub fn comparisons(report: &BlockReport) -> Vec<Comparison> {
    gains::comparisons(report)
}

/// The report of what was measured under one limit.
pub fn document(report: &BlockReport) -> Document<'_> {
    let lead = "Block writes over long delays: encrypted above TCP with several blocks in progress, compared with waiting for \
                each answer through the tunnel.";
    let mut document = begin(lead, std::slice::from_ref(report));
    document.pictures(pictures(report));
    fill(&mut document, report);
    document
}

fn begin<'a>(lead: &str, reports: &'a [BlockReport]) -> Document<'a> {
    let environment = reports.first().map(|report| &report.environment);
    let (title, heading) = ("trafficspeed block", "Encrypt ahead of the wait");
    let mut document = Document::new(title, heading, lead.to_owned(), environment);
    document.interrupted = reports.iter().any(|report| report.interrupted);
    document.problems = reports.iter().flat_map(problems).collect();
    document
}

/// The tables of one report, and how they came about.
fn fill(document: &mut Document<'_>, report: &BlockReport) {
    let judged = comparisons(report).into_iter().map(|one| one.differs_from_first);
    document.lines(super::claims::lines([&report.observations()], judged));
    document.sections(parts(report));
    document.remarks(remarks(report));
    document.section("How it was measured");
    document.lines(notes(report));
}

fn parts(report: &BlockReport) -> Vec<Section> {
    let mut parts = vec![
        gains::ratios(report),
        gains::overlap(report),
        gains::peaks(report),
        cpu::cpu(report),
        cpu::cost(report),
    ];
    // One delay shows the model: the original's if it was measured, otherwise the longest.
    let delays = &report.asked.0;
    let longest = delays.iter().copied().reduce(f64::max);
    if let Some(delay) = delays.iter().copied().find(|delay| *delay == 16.0).or(longest) {
        parts.push(model::model(report, delay));
    }
    parts
}

fn size_name(bytes: u32) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// Runs that are far from the others of their delay, size and way.
fn remarks(report: &BlockReport) -> Vec<String> {
    let (delays, sizes, _) = &report.asked;
    let mut remarks = Vec::new();
    for &delay in delays {
        for &size in sizes {
            remarks.extend(report.ways().into_iter().filter_map(|way| {
                let subject = format!("{delay} ms, {}, {}", size_name(size), way.name());
                far(&subject, &report.rates(delay, size, way), |rate| {
                    format!("{} MB/s", significant(rate / 1e6))
                })
            }));
        }
    }
    remarks
}

fn problems(report: &BlockReport) -> Vec<String> {
    let mut problems = report.problems.clone();
    for case in &report.cases {
        if let Some(problem) = &case.problem {
            let (delay, size, way) = (case.delay_ms, case.block_bytes, case.way.name());
            problems.push(format!("{delay} ms, {size} bytes, {way}: {problem}"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::block::tests::{repeated, sample};
    use crate::experiment::hosts::host_pairs::HostEnd;
    use crate::report::grid::Grid;
    use crate::report::page::Picture;

    fn text(report: &BlockReport) -> String {
        document(report).text(true, true)
    }

    #[test]
    fn the_tables_show_the_originals_figures() {
        let text = text(&sample());
        for expected in [
            "2.00 [1.90]",
            "10.0 [5.85]",
            "[7.80]",
            "5.00 [13.0]",
            "CPU seconds for each GB written",
            "0.118 / 0.239",
            "2.0 %",
            "4.0 %",
            "8 KB",
            "2 MB",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn every_table_names_the_rounds_of_each_row() {
        let report = repeated(sample(), 3);
        for Section { name: title, grid: Grid { keys, head, rows }, .. } in parts(&report) {
            assert_eq!(head[keys - 1], "n", "{title}");
            assert!(!rows.is_empty() && rows.iter().all(|row| row[keys - 1] == "3"), "{title}: {rows:?}");
            assert!(rows.iter().all(|row| row.len() == head.len()), "{title}");
        }
    }

    #[test]
    fn a_run_far_from_the_others_is_pointed_at() {
        let mut report = repeated(sample(), 3);
        assert_eq!(remarks(&report), [""; 0]);
        report.cases[0].bytes_per_second = Some(9e6);
        assert_eq!(
            remarks(&report),
            ["Look at 0 ms, 8 KB, tunnel: 9.00 MB/s is far from the median of 0.082 MB/s"]
        );
        assert!(text(&report).contains("Look at 0 ms") && document(&report).page().contains("Look at 0 ms"));
    }

    #[test]
    fn between_hosts_the_one_delay_is_drawn_over_sizes_and_the_hosts_are_named() {
        let mut report = sample();
        report.cases.retain(|case| case.delay_ms == 16.0);
        report.cases.iter_mut().for_each(|case| case.delay_ms = 3.1);
        report.asked.0 = vec![3.1];
        report.hosts = vec![HostEnd { name: "far.example".into(), ..HostEnd::default() }];
        let pictures = pictures(&report);
        let names: Vec<&str> = pictures.iter().map(|picture| picture.name.as_str()).collect();
        assert_eq!(names, ["block-sizes", "block-sizes-cpu", "block-sizes-cost"]);
        assert!(pictures[0].svg.contains("OP-10") && pictures[0].svg.contains(">2048</text>"));
        let text = text(&report);
        for (words, said) in
            [("far.example", true), ("as the hosts have them", true), ("From 1 ms on", false)]
        {
            assert_eq!(text.contains(words), said, "{words}: {text}");
        }
    }

    #[test]
    fn a_way_has_one_style_in_all_pictures() {
        let drawn = pictures(&sample());
        let style = |picture: &Picture, way: &str| {
            let label = format!(">{way}</text>");
            let key = picture.svg.lines().position(|line| line.contains(&label)).expect("a legend");
            let line = picture.svg.lines().nth(key - 2).expect("its line");
            line.split("line ").nth(1).and_then(|rest| rest.split('"').next()).map(str::to_owned)
        };
        assert!(drawn.len() > 2);
        for way in ["OP-2", "OP-10"] {
            let styles: Vec<_> = drawn.iter().map(|picture| style(picture, way)).collect();
            assert!(
                styles[0].is_some() && styles.iter().all(|style| *style == styles[0]),
                "{way}: {styles:?}"
            );
        }
    }

    #[test]
    fn problems_are_said_everywhere() {
        let mut report = sample();
        report.cases[0].problem = Some("it \"broke\" <down>".into());
        assert!(text(&report).contains("0 ms, 8192 bytes, tunnel: it \"broke\""));
        assert!(document(&report).page().contains("&lt;down&gt;"));
    }

    #[test]
    fn captions_name_the_originals_table_and_figures() {
        let pictures = pictures(&sample());
        let caption = |name: &str| {
            let found = pictures.iter().find(|picture| picture.name == name);
            found.map(|picture| picture.caption.as_str()).unwrap_or_default()
        };
        assert!(caption("block-cpu").contains("the original's table 4"), "{}", caption("block-cpu"));
        assert!(caption("block-cost").contains("figures 13 and 14"), "{}", caption("block-cost"));
    }
}
