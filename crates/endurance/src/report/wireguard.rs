//! The figures of WireGuard servers with light clients, for people.

use std::fmt::Write as _;

use crate::experiment::wireguard::{Figures, Row, WireGuardResults};
use trafficspeed::report::grid::{Grid, NARROW, wrapped};
use trafficspeed::report::noise::percent;
use trafficspeed::stats::Spread;
use trafficspeed::unit::significant;

/// Stands below the table.
const DEFINITIONS: &str = "\
Gbit/s: payload that arrived, of all clients; median and range of the rounds. CPU each: CPU seconds of all processes of the server for
each Gbit; cores: what they used. Load each: the same of the process that has all clients. Steal, others: the most that the hypervisor
and processes without a part in it took of the machine, in percent. (again): the control; a ratio means something beyond its own only.";

/// The figures as text, no line longer than a terminal.
pub fn table(results: &WireGuardResults) -> String {
    let head = [
        "server",
        "clients",
        "direction",
        "Gbit/s",
        "CPU each",
        "cores",
        "load each",
        "lost %",
        "steal",
        "others",
    ];
    let mut grid = Grid::new(3, head);
    grid.rows.extend(results.rows.iter().map(row));
    let mut text = String::new();
    let mut line = |words: &str| writeln!(text, "{words}").expect("writing to a string");
    line(&grid.text(Some(NARROW)));
    line(DEFINITIONS);
    let facts = |row: &Row| format!("{}: {}, {}", row.server, row.facts.version, row.facts.cipher);
    let mut servers: Vec<String> =
        results.rows.iter().filter(|row| !row.again && !row.runs.is_empty()).map(facts).collect();
    servers.sort();
    servers.dedup();
    servers.iter().for_each(|server| line(server));
    line(&results.environment.machine());
    for problem in &results.problems {
        line(&format!("NOT MEASURED: {problem}"));
    }
    wrapped(&text, NARROW)
}

fn row(row: &Row) -> Vec<String> {
    let values = |of: fn(&Figures) -> f64| row.runs.iter().map(of).collect::<Vec<_>>();
    let spread = |of| Spread::of(&values(of)).map_or_else(|| "-".to_owned(), |all| all.text(significant));
    let most = |of: fn(&Figures) -> Option<f64>| percent(row.runs.iter().filter_map(of).reduce(f64::max));
    vec![
        row.server.clone(),
        row.clients.to_string(),
        format!("{:?}", row.direction).to_lowercase(),
        spread(|run| run.goodput / 1e9),
        spread(|run| run.server_seconds_per_gbit),
        spread(|run| run.server_cores),
        spread(|run| run.load_seconds_per_gbit),
        spread(|run| run.lost_percent),
        most(|run| run.steal_percent),
        most(|run| run.foreign_percent),
    ]
}
