//! Experiment 3 as a page.

use super::section::sections;
use super::words;
use crate::experiment::model::Model;
use crate::report::chart::{BarChart, Measure, Point};
use crate::report::page::{Page, Picture};
use crate::report::published::board;

pub fn html(model: &Model) -> String {
    let lead = "The stages of a running tunnel were measured on this host, and summed over what passes for a Gbit; then the \
                real VPN carried each case.";
    let mut page = Page::new("Where the time goes", &words::title(&model.judgement), lead);
    pictures(model).iter().for_each(|picture| page.figure(picture));
    for section in sections(model) {
        page.section(&section.title);
        page.table(&section.head, section.rows);
    }
    page.section("What the figures say");
    page.list("", &words::lines(model));
    page.section("The original");
    page.paragraph("", board::SOURCE);
    let rows = board::FIGURES.rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect());
    page.table(board::FIGURES.head, rows);
    page.notes([board::FIGURES.caption].into_iter().chain(board::FINDINGS));
    page.section("How to repeat it");
    page.commands(std::slice::from_ref(&model.environment.command_line));
    page.finish()
}

/// The cost of a Gbit in the VPN's processes: predicted, and measured if it was.
pub fn pictures(model: &Model) -> Vec<Picture> {
    let style_of = |suite: &str| model.raw.suites.iter().position(|known| known.name == suite).unwrap_or(0);
    let bars = model.predictions.iter().flat_map(|one| {
        let style = style_of(&one.suite);
        let name = format!("{}, {} bytes, streams: {}", one.suite, one.case.packet, one.case.streams);
        let bar = |what: &str, y, range| (format!("{name}, {what}"), style, Point { x: 0.0, y, range });
        let predicted = one.predicted.as_ref().map(|made| bar("predicted", made.seconds_per_gbit(), None));
        let measured = one.real.as_ref();
        let measured =
            measured.map(|real| bar("measured", real.vpn_seconds_per_gbit(), Some(real.cpu_range)));
        predicted.into_iter().chain(measured)
    });
    let chart = BarChart {
        title: "CPU time for a Gbit, predicted and measured".into(),
        measure: Measure::lower_is_better("CPU seconds per Gbit, both VPN processes"),
        bars: bars.collect(),
    };
    let caption = "The prediction is the sum of the stages over what passed in the run without a cipher (for that one: in its own \
                   run). The whisker of a measurement is the range of its repetitions.";
    let picture = |svg| Picture {
        name: "model-cost".into(),
        title: "Predicted and measured".into(),
        caption: caption.into(),
        svg,
    };
    chart.svg().map(picture).into_iter().collect()
}
