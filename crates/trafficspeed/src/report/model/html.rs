//! Experiment 3 as a page.

use super::{grids, words};
use crate::experiment::model::Model;
use crate::report::page::Page;
use crate::report::published::board;

/// The page.
pub fn html(model: &Model) -> String {
    let lead =
        "Each stage of the data path was measured alone; their sum predicts what the VPN costs and carries.";
    let mut page =
        Page::new("Where the time goes", "Where the time goes, and a model that predicts it", lead);
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
