//! Experiment 3 as a table, JSON, CSV and a page.

pub mod html;
pub mod words;

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::published::board;
use crate::csv_table;
use crate::experiment::model::fit::Stage;
use crate::experiment::model::predict::{StageCost, Target, Way};
use crate::experiment::model::{Model, SuiteModel};
use crate::unit::{gbit, significant};

/// A table of text: what it is, its head, its rows.
pub struct Grid {
    pub title: String,
    /// The head of each column.
    pub head: Vec<&'static str>,
    /// The rows; the first column is text, the others are figures.
    pub rows: Vec<Vec<String>>,
}

/// All tables, in the order in which they are to be read.
pub fn grids(model: &Model) -> Vec<Grid> {
    let mut grids = vec![stages(model)];
    for suite in &model.suites {
        grids.push(parts(suite));
    }
    grids.push(predictions(model));
    grids.push(hand_over(model));
    grids.extend(model.suites.iter().flat_map(|suite| suite.targets.iter().map(|t| target(&suite.suite, t))));
    grids
}

pub fn table(model: &Model) -> String {
    let mut text = String::new();
    for grid in grids(model) {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(grid.head.iter());
        for row in grid.rows {
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(text, "{}\n{table}\n", grid.title).expect("writing to a string");
    }
    for line in words::lines(model) {
        writeln!(text, "{line}").expect("writing to a string");
    }
    writeln!(text, "\nOriginal ({}): {}", board::SOURCE, board::FIGURES.caption)
        .expect("writing to a string");
    let then = board::FIGURES.head.iter().zip(board::FIGURES.rows[0]);
    let then: Vec<String> = then.map(|(what, figure)| format!("{what} {figure}")).collect();
    writeln!(text, "{}", then.join(", ")).expect("writing to a string");
    for finding in board::FINDINGS {
        writeln!(text, "{finding}").expect("writing to a string");
    }
    text
}

fn stages(model: &Model) -> Grid {
    let row = |stage: &crate::experiment::model::fit::Stage| {
        let suite = stage.suite.as_ref().map_or_else(String::new, |suite| format!(", {suite}"));
        vec![
            format!("{}{suite}", stage.name),
            stage.side.clone(),
            stage.unit.clone(),
            significant(stage.line.each),
            significant(1000.0 * stage.line.per_byte),
            format!("{:.0} %", 100.0 * stage.line.worst),
        ]
    };
    Grid {
        title: "Stages on this host: a line through five sizes, worst = its largest distance from a point"
            .into(),
        head: vec!["stage", "end", "for each", "ns each", "ns per 1000 bytes", "worst"],
        rows: model.stages.iter().map(row).collect(),
    }
}

fn parts(suite: &SuiteModel) -> Grid {
    let made = &suite.ahead;
    let row = |part: &StageCost| {
        let whole = made.stages_ns(part.way);
        vec![
            part.stage.clone(),
            part.way.name().into(),
            significant(part.ns_per_byte * made.shape.mss),
            significant(part.ns_per_byte * made.shape.read / 1000.0),
            format!("{:.0} %", 100.0 * part.ns_per_byte / whole.max(f64::MIN_POSITIVE)),
        ]
    };
    let sum = |way: Way| {
        let ns = made.stages_ns(way);
        let cells = [ns * made.shape.mss, ns * made.shape.read / 1000.0].map(significant);
        [format!("all stages, {}", way.name()), way.name().into()]
            .into_iter()
            .chain(cells)
            .chain(["100 %".into()])
    };
    let rows = made.parts.iter().map(row);
    let sums = [Way::Sender, Way::Receiver].map(|way| sum(way).collect());
    Grid {
        title: format!("Where the time goes with {} ({}), full super-packets", suite.suite, suite.backend),
        head: vec!["stage", "end", "ns a packet", "µs a super-packet", "share of its end"],
        rows: rows.chain(sums).collect(),
    }
}

fn predictions(model: &Model) -> Grid {
    let cpus = model.environment.host.cpus;
    let row = |suite: &SuiteModel| {
        let none = || "-".to_owned();
        let (ahead, was, real) = (&suite.ahead, suite.as_it_was.as_ref(), suite.real.as_ref());
        let percent =
            |error: Option<f64>| error.map_or_else(none, |error| format!("{:+.0} %", 100.0 * error));
        let shared =
            was.zip(real).map(|(was, real)| was.bits_per_second(cpus, real.generator_seconds_per_gbit));
        vec![
            suite.suite.clone(),
            ahead.bottleneck().map_or_else(none, |part| format!("{} ({})", part.stage, part.way.name())),
            gbit(ahead.core_each()),
            significant(ahead.seconds_per_gbit()),
            was.map_or_else(none, |was| significant(was.seconds_per_gbit())),
            real.map_or_else(none, |real| significant(real.vpn_seconds_per_gbit())),
            percent(suite.cpu_error()),
            shared.map_or_else(none, gbit),
            real.map_or_else(none, |real| gbit(real.bits_per_second)),
            percent(suite.speed_error(cpus)),
        ]
    };
    Grid {
        title: format!(
            "Predicted and measured: one TCP stream, client to gateway host, {cpus} cores for everything"
        ),
        head: vec![
            "cipher",
            "bottleneck",
            "Gbit/s, a core each",
            "CPU s/Gbit, full",
            "as it was",
            "measured",
            "error",
            "Gbit/s, shared",
            "measured",
            "error",
        ],
        rows: model.suites.iter().map(row).collect(),
    }
}

fn hand_over(model: &Model) -> Grid {
    let figures = model.suites.iter().flat_map(|suite| model.hand_over(&suite.suite));
    let rows = figures.map(|figure| {
        let who = match figure.workers {
            0 => "inline".to_owned(),
            1 => "1 worker a flow".to_owned(),
            many => format!("{many} workers a flow"),
        };
        vec![
            figure.suite.clone(),
            who,
            figure.flows.to_string(),
            figure.threads.to_string(),
            gbit(figure.bits_per_second),
            significant(0.125 * figure.cpu_ns_per_byte),
        ]
    });
    Grid {
        title: "Crypto inline or handed to workers in batches: read, cut, seal, send, in memory".into(),
        head: vec!["cipher", "sealed", "flows", "threads", "Gbit/s", "CPU s/Gbit"],
        rows: rows.collect(),
    }
}

fn target(suite: &str, target: &Target) -> Grid {
    let rows = target.needs.iter().map(|need| {
        let ns = |value: f64| significant(1000.0 * value);
        vec![
            need.stage.clone(),
            need.way.name().into(),
            ns(need.now),
            ns(need.all_alike),
            need.alone.map_or_else(|| "not enough".into(), ns),
        ]
    });
    Grid {
        title: format!(
            "What each stage must cost for {} Gbit/s with {suite}: ns per 1000 bytes, {} for each end",
            gbit(target.bits_per_second),
            significant(1000.0 * target.budget)
        ),
        head: vec!["stage", "end", "now", "if all shrink alike", "if it alone shrinks"],
        rows: rows.collect(),
    }
}

pub fn json(model: &Model) -> Value {
    let cpus = model.environment.host.cpus;
    let suites = model.suites.iter().map(|suite| {
        json!({
            "suite": suite.suite,
            "predicted_core_each_bits_per_second": suite.ahead.core_each(),
            "predicted_seconds_per_gbit": suite.as_it_was.as_ref().map(|was| was.seconds_per_gbit()),
            "measured_seconds_per_gbit": suite.real.as_ref().map(|real| real.vpn_seconds_per_gbit()),
            "cpu_error": suite.cpu_error(),
            "measured_bits_per_second": suite.real.as_ref().map(|real| real.bits_per_second),
            "speed_error": suite.speed_error(cpus),
            "bottleneck": suite.ahead.bottleneck(),
        })
    });
    json!({
        "experiment": "model",
        "summary": suites.collect::<Vec<_>>(),
        "notes": words::lines(model),
        "model": model,
        "published": { "source": board::SOURCE, "figures": board::FIGURES, "findings": board::FINDINGS },
        "whole": model.is_whole(),
    })
}

/// The stages, a line each.
pub fn csv(model: &Model) -> String {
    let head = ["stage", "end", "unit", "suite", "ns_each", "ns_per_byte", "worst"];
    let cells = |stage: &Stage| {
        let line = stage.line;
        [
            stage.name.clone(),
            stage.side.clone(),
            stage.unit.clone(),
            stage.suite.clone().unwrap_or_default(),
            line.each.to_string(),
            line.per_byte.to_string(),
            line.worst.to_string(),
        ]
    };
    csv_table::text(head, model.stages.iter().map(cells))
}
