//! Tables of observations, what systems differ in, and measurements that a reader should look at.

use super::grid::Grid;
use super::noise::far;
use super::table::difference;
use crate::experiment::environment::Environment;
use crate::observation::{self, Comparison, Observations, Quantity};
use crate::stats::Spread;
use crate::unit::{Unit, significant};

/// Stands below tables of medians.
pub const MEDIANS: &str = "\
Medians of n rounds, the lowest and the highest in parentheses; counts are of all rounds together.
≥: at least that, since the sender could not send more, or too many requests had no answer. !: of measurements that broke, where none is whole; they count in nothing.";

/// Precedes a figure that the sender limited.
pub const AT_LEAST: &str = "≥ ";

/// Stands below a table of comparisons.
pub const RATIOS: &str = "\
Differences: ratios within one round; median, lowest and highest of the rounds. Each system is compared with the one in the \
head, under the same congestion control. A/A: a system that is measured a second time in each round, against itself. A difference counts where the \
median lies further from 1 than any ratio of A/A did, and than the highest ratio from the lowest; of fewer than five rounds nothing is claimed.";

/// One table of a report under its heading.
pub struct Section {
    pub name: String,
    /// The meaning, if its heading does not say all.
    pub caption: String,
    pub grid: Grid,
}

impl Section {
    pub fn new(name: impl Into<String>, grid: Grid) -> Self {
        Self { name: name.into(), caption: String::new(), grid }
    }
}

/// The sections that have rows, without columns that have no figure.
pub fn sections(all: impl IntoIterator<Item = (&'static str, Grid)>) -> Vec<Section> {
    let filled = all.into_iter().filter(|(_, grid)| !grid.rows.is_empty());
    filled.map(|(name, grid)| Section::new(name, grid.without_empty())).collect()
}

/// A row for each system and case of which there is a value, rates in `unit`.
pub fn grid(table: &Observations, cases: &[String], quantities: &[Quantity], unit: Option<Unit>) -> Grid {
    let head = ["system", "load", "n"].map(str::to_owned).into_iter();
    let mut grid = Grid::new(3, head.chain(quantities.iter().map(|quantity| quantity.head())));
    for system in table.systems_and_controls() {
        for case in cases {
            let whole = quantities.iter().map(|quantity| table.values(system, case, *quantity));
            let mut values: Vec<Vec<f64>> = whole.collect();
            let is_whole = values.iter().any(|values| !values.is_empty());
            if !is_whole {
                let broken = quantities.iter().map(|quantity| table.broken_values(system, case, *quantity));
                values = broken.collect();
            }
            let n = values.iter().map(Vec::len).max().unwrap_or_default();
            let mark = if is_whole { "" } else { " !" };
            let cells = quantities.iter().zip(&values).map(|(quantity, values)| {
                let text = quantity.text(values, unit);
                let at_least = if table.is_bound(system, case, *quantity) { AT_LEAST } else { "" };
                text.map_or_else(|| "–".to_owned(), |text| format!("{at_least}{text}{mark}"))
            });
            if n > 0 {
                let keys = [system.to_owned(), case.clone(), n.to_string()];
                grid.rows.push(keys.into_iter().chain(cells).collect());
            }
        }
    }
    grid
}

/// Differences of systems.
pub fn differences(comparisons: &[Comparison]) -> Grid {
    let mut firsts: Vec<&str> = comparisons.iter().map(|one| one.first.as_str()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let head = ["system", "figure", "A/A", &format!("relative to {}", firsts.join("; ")), "difference"];
    let mut grid = Grid::new(2, head);
    let text = |spread: Option<Spread>| spread.map_or("–".into(), |spread| spread.text(significant));
    grid.rows.extend(comparisons.iter().map(|one| {
        let figure = format!("{}: {}", one.case, one.quantity);
        let differs = difference(one.differs_from_first).to_owned();
        vec![one.system.clone(), figure, text(one.control), text(one.ratio_to_first), differs]
    }));
    grid
}

/// Lines above the tables of a report: how far its claims go.
pub fn claims(table: &Observations, wanted: &[(String, Quantity)]) -> Vec<String> {
    let comparisons = table.comparisons(wanted);
    let compared = comparisons.iter().filter(|one| one.ratio_to_first.is_some());
    super::claims::lines([table], compared.map(|one| one.differs_from_first))
}

/// Rounds that are far from the others of their system.
pub fn remarks(table: &Observations, wanted: &[(String, Quantity)], unit: Option<Unit>) -> Vec<String> {
    let mut remarks = Vec::new();
    for system in table.systems_and_controls() {
        remarks.extend(wanted.iter().filter_map(|(case, quantity)| {
            let subject = format!("{system}, {case}, {}", quantity.name);
            let show = |value: f64| quantity.text(&[value], unit).unwrap_or_default();
            far(&subject, &table.values(system, case, *quantity), show)
        }));
    }
    remarks
}

/// Tables as CSV below one head, each with the place of its measurement.
pub fn csv<'a>(tables: impl IntoIterator<Item = (Observations, &'a Environment)>) -> String {
    let tables: Vec<(Observations, &Environment)> = tables.into_iter().collect();
    let place =
        |environment: &Environment| [environment.links.clone().unwrap_or_default(), environment.machine()];
    observation::csv(tables.iter().map(|(table, environment)| (table, place(environment))))
}
