//! One part of a suite's report: its cases side by side, a row for each system, and what says how far the figures go.

use super::super::grid::Grid;
use super::super::noise::far;
use crate::experiment::outcome::Taken;
use crate::experiment::suite::{Quantity, Row, SuiteCampaign};
use crate::stats::{Spread, range};
use crate::system::AGAIN;
use crate::unit::significant;

/// Figures over IPv4 and IPv6 that differ by more than this are pointed at.
const ALIKE: f64 = 1.5;
/// Follows a figure that does not differ from that of the first system beyond the A/A spread.
const NO_DIFFERENCE: &str = " ≈";

/// One part of the report: cases with their quantities, for each system.
pub struct Section {
    pub name: String,
    /// The systems, without the second measurement of one of them.
    pub columns: Vec<String>,
    /// The system that was measured a second time.
    pub control: Option<String>,
    pub rows: Vec<SectionRow>,
}

/// One case and quantity.
pub struct SectionRow {
    pub case: String,
    pub quantity: Quantity,
    /// The repeats' values for each system.
    pub values: Vec<Vec<f64>>,
    /// The round of each of these values: a measurement that broke leaves its round out.
    pub rounds: Vec<Vec<u32>>,
    /// A system's second measurement in each round divided by its first.
    pub control: Option<Spread>,
    /// The same for each system by the first one.
    pub to_first: Vec<Option<Spread>>,
    /// The most of the machine that the hypervisor took, and other processes, in percent.
    pub steal: Option<f64>,
    pub others: Option<f64>,
}

/// The parts of a campaign, in the order in which they were measured.
pub fn sections(campaign: &SuiteCampaign) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for row in &campaign.rows {
        let name = row.case.section.clone();
        let at = sections.iter().position(|section| section.name == name).unwrap_or_else(|| {
            sections.push(Section { name, columns: Vec::new(), control: None, rows: Vec::new() });
            sections.len() - 1
        });
        sections[at].add(row);
    }
    for section in &mut sections {
        let rows: Vec<&Row> = campaign.rows.iter().filter(|row| row.case.section == section.name).collect();
        for of in &mut section.rows {
            let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.case.name == of.case).collect();
            of.compare(&section.columns, &rows);
        }
    }
    sections
}

impl Section {
    fn add(&mut self, row: &Row) {
        let is_control = row.label.contains(AGAIN);
        if is_control {
            self.control = Some(row.label.replace(AGAIN, ""));
        }
        let column = self.columns.iter().position(|label| *label == row.label);
        if column.is_none() && !is_control {
            self.columns.push(row.label.clone());
        }
        for &quantity in &row.case.quantities {
            let same = |known: &SectionRow| known.case == row.case.name && known.quantity == quantity;
            if !self.rows.iter().any(same) {
                self.rows.push(SectionRow::new(&row.case.name, quantity));
            }
        }
    }

    /// The figures as a table: a row for each system, then what says how far they go.
    pub fn grid(&self) -> Grid {
        let mut grid = Grid::new(1, std::iter::once("system".to_owned()));
        grid.head.extend(self.rows.iter().map(SectionRow::head));
        for (at, label) in self.columns.iter().enumerate() {
            let cells = self.rows.iter().map(|row| row.cell(at));
            grid.rows.push(std::iter::once(label.clone()).chain(cells).collect());
        }
        let ratio = |spread: Spread| spread.text(significant);
        let percent = |value: f64| format!("{value:.1}");
        type Foot<'a> = (&'a str, Box<dyn Fn(&SectionRow) -> Option<String> + 'a>);
        let against_itself = format!("A/A: {} against itself", self.control.as_deref().unwrap_or("a system"));
        let feet: [Foot<'_>; 4] = [
            ("runs, n", Box::new(SectionRow::count)),
            (&against_itself, Box::new(|row| row.control.map(ratio))),
            ("steal, most, %", Box::new(|row| row.steal.map(percent))),
            ("others, most, %", Box::new(|row| row.others.map(percent))),
        ];
        for (name, of) in feet {
            let cells: Vec<Option<String>> = self.rows.iter().map(of).collect();
            if cells.iter().any(Option::is_some) {
                let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "–".into()));
                grid.rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
            }
        }
        grid
    }

    /// Figures that a reader should look at: runs far from the others, and IPv4 and IPv6 that differ without reason.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for (at, label) in self.columns.iter().enumerate() {
            for row in &self.rows {
                let name = row.head();
                remarks.extend(far(&format!("{label}, {name}"), &row.values[at], significant));
                let pair = self.over_ipv6(row).and_then(|other| row.spread(at).zip(other.spread(at)));
                if let Some((v4, v6)) = pair.filter(|(v4, v6)| are_unlike(*v4, *v6)) {
                    let (v4, v6) = (v4.text(significant), v6.text(significant));
                    remarks.push(format!("Look at {label}, {name}: {v4} beside {v6} over IPv6"));
                }
            }
        }
        remarks
    }

    /// The same quantity of the same case over IPv6, if `row` is one over IPv4.
    fn over_ipv6(&self, row: &SectionRow) -> Option<&SectionRow> {
        let case = format!("IPv6{}", row.case.strip_prefix("IPv4")?);
        // Delays and losses near zero differ by their nature.
        let is_rate =
            matches!(row.quantity, Quantity::Throughput | Quantity::Transactions | Quantity::Packets);
        self.rows.iter().find(|other| is_rate && other.case == case && other.quantity == row.quantity)
    }
}

fn are_unlike(one: Spread, other: Spread) -> bool {
    let (high, low) = (one.median.max(other.median), one.median.min(other.median));
    one.is_apart_from(other) && high > ALIKE * low
}

impl SectionRow {
    fn new(case: &str, quantity: Quantity) -> Self {
        Self {
            case: case.to_owned(),
            quantity,
            values: Vec::new(),
            rounds: Vec::new(),
            control: None,
            to_first: Vec::new(),
            steal: None,
            others: None,
        }
    }

    /// Fills in the values of `rows`, all of this case, and how the systems compare within each round.
    fn compare(&mut self, columns: &[String], rows: &[&Row]) {
        let quantity = self.quantity;
        let of = |label: &str| {
            let mine = rows.iter().filter(|row| row.label == label);
            mine.filter_map(|row| Some((row.repeat, row.value(quantity)?))).collect::<Vec<_>>()
        };
        let ratios = |these: &[(u32, f64)], those: &[(u32, f64)]| {
            let ratio = |(round, value): &(u32, f64)| {
                let other = those.iter().find(|(other, _)| other == round)?.1;
                (other > 0.0).then(|| value / other)
            };
            Spread::of(&these.iter().filter_map(ratio).collect::<Vec<_>>())
        };
        let all: Vec<Vec<(u32, f64)>> = columns.iter().map(|label| of(label)).collect();
        self.to_first = all.iter().map(|these| ratios(these, all.first()?)).collect();
        self.rounds = all.iter().map(|values| values.iter().map(|(round, _)| *round).collect()).collect();
        self.values = all.iter().map(|values| values.iter().map(|(_, value)| *value).collect()).collect();
        let twice = rows.iter().find(|row| row.label.contains(AGAIN));
        self.control = twice.and_then(|row| ratios(&of(&row.label), &of(&row.label.replace(AGAIN, ""))));
        let taken = Taken::most(rows.iter().filter_map(|row| row.cpu.as_ref()));
        (self.steal, self.others) = (taken.steal, taken.others);
    }

    /// Case and quantity as a head.
    pub fn head(&self) -> String {
        let (name, unit) = self.quantity.name();
        format!("{}: {name}, {unit}", self.case)
    }

    pub fn spread(&self, column: usize) -> Option<Spread> {
        Spread::of(self.values.get(column)?)
    }

    /// A system's figure with its spread, and whether it differs from that of the first system.
    pub fn cell(&self, column: usize) -> String {
        let Some(spread) = self.spread(column) else { return "–".into() };
        let to_first = self.to_first.get(column).copied().flatten().filter(|_| column > 0);
        let is_within = to_first.zip(self.control).is_some_and(|(ratio, same)| ratio.is_within(same));
        let mark = if is_within { NO_DIFFERENCE } else { "" };
        format!("{}{mark}", spread.text(significant))
    }

    /// The number of runs: from the fewest of a system to the most.
    fn count(&self) -> Option<String> {
        let counts: Vec<f64> = self.values.iter().map(|values| values.len() as f64).collect();
        let (low, high) = range(&counts)?;
        Some(if low < high { format!("{low}–{high}") } else { high.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::suite::tests::campaign;

    #[test]
    fn a_single_round_neither_shows_a_difference_nor_that_there_is_none() {
        let marks = |rounds: u32| {
            let mut campaign = campaign();
            let model = campaign.rows[0].clone();
            let of = |label: &str, repeat| Row { label: label.into(), repeat, ..model.clone() };
            let labels = ["plain routing", "aes-256-gcm", "aes-256-gcm (again)"];
            campaign.rows = (1..=rounds).flat_map(|round| labels.map(|label| of(label, round))).collect();
            let row = &sections(&campaign)[0].rows[0];
            assert_eq!(row.rounds, [(1..=rounds).collect::<Vec<_>>(), (1..=rounds).collect()]);
            row.cell(1).ends_with(NO_DIFFERENCE)
        };
        assert!(marks(2) && !marks(1));
    }
}
