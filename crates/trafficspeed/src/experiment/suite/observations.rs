//! The table of a suite: each quantity that a case is about, and what the machine spent meanwhile.

use super::{Row, SuiteCampaign};
use crate::experiment::outcome::Taken;
use crate::experiment::quantities::of_cpu;
use crate::observation::{Measured, Observations, Quantity};

/// The load average of the last minute as a measurement with CPU hogs began.
const LOAD_AVERAGE: Quantity = Quantity::new("load average", "").decimals(2);
/// 1 where the sender was the limit of a rate, which then is at least that.
const LIMITED_BY_SENDER: Quantity = Quantity::count("rates that the sender limited");
const LINK_MTU: Quantity = Quantity::new("MTU of the links", "bytes");

/// The name of a case in the whole suite.
pub fn case(section: &str, name: &str) -> String {
    format!("{section}: {name}")
}

impl SuiteCampaign {
    pub fn observations(&self) -> Observations {
        let mut table = Observations::of_machine(self.environment.is_emulated());
        for row in &self.rows {
            let congestion = row.case.task.congestion().to_string();
            let trials = row.search.as_ref().map(|search| search.taken).unwrap_or_default();
            let measured = Measured {
                system: &row.label,
                congestion: &congestion,
                case: &case(&row.case.section, &row.case.name),
                round: row.repeat,
                problem: row.error.as_deref().unwrap_or_default(),
                is_disturbed: Taken::most(&row.cpu).is_disturbed() || trials.is_disturbed(),
            };
            table.add(&measured, observed(row));
            let bounds = row.case.quantities.iter().filter(|quantity| row.is_limited_by_sender(**quantity));
            for quantity in bounds.filter(|_| row.error.is_none()) {
                table.bound(&row.label, measured.case, quantity.observed());
            }
        }
        table
    }
}

fn observed(row: &Row) -> Vec<(Quantity, Option<f64>)> {
    let Some(figures) = &row.figures else { return Vec::new() };
    let mut all: Vec<(Quantity, Option<f64>)> =
        row.case.quantities.iter().map(|quantity| (quantity.observed(), quantity.of(figures))).collect();
    let limited = row.case.quantities.iter().any(|quantity| row.is_limited_by_sender(*quantity));
    all.extend([
        (LIMITED_BY_SENDER, limited.then_some(1.0)),
        (LOAD_AVERAGE, row.load_average),
        (LINK_MTU, row.link_mtu.map(f64::from)),
    ]);
    all.extend(of_cpu(row.cpu.as_ref()));
    all
}
