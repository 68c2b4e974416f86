//! Experiment 3 as a page.

use super::{grids, words};
use crate::experiment::model::Model;
use crate::report::chart::{BarChart, Point};
use crate::report::page::{Page, Picture};
use crate::report::published::board;

pub fn html(model: &Model) -> String {
    let lead =
        "Each stage of the data path was measured alone; their sum predicts what the VPN costs and carries.";
    let mut page =
        Page::new("Where the time goes", "Where the time goes, and a model that predicts it", lead);
    pictures(model).iter().for_each(|picture| page.figure(picture));
    for grid in grids(model) {
        page.section(&grid.title);
        page.table(&grid.head, grid.rows);
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
    let bar = |name: String, style, y| (name, style, Point { x: 0.0, y, range: None });
    let bars = model.suites.iter().zip(0..).flat_map(|(suite, style)| {
        let predicted = suite.as_it_was.as_ref().unwrap_or(&suite.ahead).seconds_per_gbit();
        let measured = suite.real.as_ref().map(|real| real.vpn_seconds_per_gbit());
        let measured = measured.map(|cost| bar(format!("{}, measured", suite.suite), style, cost));
        std::iter::once(bar(format!("{}, predicted", suite.suite), style, predicted)).chain(measured)
    });
    let chart = BarChart {
        title: "CPU time for a Gbit, predicted and measured".into(),
        x_label: "CPU seconds per Gbit, both VPN processes".into(),
        bars: bars.collect(),
    };
    let caption = "The prediction is the sum of the stages, each measured alone, for the pieces in which the payload \
                   travelled in the measurement (full super-packets where nothing was measured).";
    let picture = |svg| Picture {
        name: "model-cost".into(),
        title: "Predicted and measured".into(),
        caption: caption.into(),
        svg,
    };
    chart.svg().map(picture).into_iter().collect()
}
