//! One part of a suite's report: its cases side by side, a row for each system, and what says how
//! far the figures go.

use super::super::grid::Grid;
use super::super::noise::far_beyond;
use super::super::observed::AT_LEAST;
use crate::experiment::outcome::Taken;
use crate::experiment::suite::observations::case;
use crate::experiment::suite::{Quantity, Row, SuiteCampaign};
use crate::observation::{ByRound, Comparison, Observations};
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
    /// Each system's value in each round; a measurement that broke leaves its round out.
    pub values: Vec<ByRound>,
    /// Whether a measurement of each system was limited by its sender: the median is a lower bound
    /// then.
    pub limited_by_sender: Vec<bool>,
    /// A system's second measurement in each round divided by its first.
    pub control: Option<Spread>,
    /// Each system compared with the first one.
    pub compared: Vec<Option<Comparison>>,
    /// The most of the machine that the hypervisor took, and other processes, in percent.
    pub steal: Option<f64>,
    pub others: Option<f64>,
    /// The share is too large to claim anything.
    pub is_disturbed: bool,
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
    let table = campaign.observations();
    for section in &mut sections {
        let rows: Vec<&Row> = campaign.rows.iter().filter(|row| row.case.section == section.name).collect();
        for shown in &mut section.rows {
            let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.case.name == shown.case).collect();
            shown.compare(&table, (&section.name, &section.columns), &rows);
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
        for (name, cell) in feet {
            let cells: Vec<Option<String>> = self.rows.iter().map(cell).collect();
            if cells.iter().any(Option::is_some) {
                let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "–".into()));
                grid.rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
            }
        }
        grid
    }

    /// The mean rates, a row for each case and a column for each system.
    pub fn means(&self) -> Grid {
        let mut grid = Grid::new(1, std::iter::once("case".to_owned()).chain(self.columns.iter().cloned()));
        for row in self.rows.iter().filter(|row| row.quantity.is_rate()) {
            let cells = (0..self.columns.len()).map(|at| {
                let rates = row.rates(at);
                let mean = rates.iter().sum::<f64>() / rates.len() as f64;
                if rates.is_empty() { "–".to_owned() } else { significant(mean) }
            });
            grid.rows.push(std::iter::once(row.case.clone()).chain(cells).collect());
        }
        grid
    }

    /// Each system compared with the first.
    pub fn comparisons(&self) -> impl Iterator<Item = &Comparison> {
        self.rows.iter().flat_map(|row| row.compared.iter().flatten())
    }

    /// Rates that a reader should look at: runs far from the others, and IPv4 and IPv6 that differ
    /// without reason, both by more than a system from itself.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for (at, label) in self.columns.iter().enumerate() {
            for row in self.rows.iter().filter(|row| row.quantity.is_rate()) {
                let name = row.head();
                remarks.extend(far_beyond(
                    &format!("{label}, {name}"),
                    row.same(),
                    &row.rates(at),
                    significant,
                ));
                let Some(other) = self.over_ipv6(row) else { continue };
                let same = row.same().max(other.same());
                let pair = row.spread(at).zip(other.spread(at));
                if let Some((v4, v6)) = pair.filter(|(v4, v6)| are_unlike(*v4, *v6, same)) {
                    let (v4, v6) = (v4.text(significant), v6.text(significant));
                    remarks.push(format!("Look at {label}, {name}: {v4}, and {v6} over IPv6"));
                }
            }
        }
        remarks
    }

    /// The quantity and case over IPv6, if `row` is one over IPv4.
    fn over_ipv6(&self, row: &SectionRow) -> Option<&SectionRow> {
        let case = format!("IPv6{}", row.case.strip_prefix("IPv4")?);
        self.rows.iter().find(|other| other.case == case && other.quantity == row.quantity)
    }
}

/// Whether two figures differ by more than those of one system, the highest of which is `same`
/// times the lowest.
fn are_unlike(one: Spread, other: Spread, same: f64) -> bool {
    let (high, low) = (one.median.max(other.median), one.median.min(other.median));
    one.is_apart_from(other) && high > ALIKE.max(same) * low
}

impl SectionRow {
    fn new(case: &str, quantity: Quantity) -> Self {
        Self {
            case: case.to_owned(),
            quantity,
            values: Vec::new(),
            limited_by_sender: Vec::new(),
            control: None,
            compared: Vec::new(),
            steal: None,
            others: None,
            is_disturbed: false,
        }
    }

    /// Fills in what `table` has of this case, and how the systems compare within each round;
    /// `rows` are its measurements.
    fn compare(&mut self, table: &Observations, (section, columns): (&str, &[String]), rows: &[&Row]) {
        let (observed, case) = (self.quantity.observed(), case(section, &self.case));
        let values = |label: &String| table.by_round((label, &case), observed);
        self.values = columns.iter().map(values).collect();
        self.limited_by_sender = columns.iter().map(|label| table.is_bound(label, &case, observed)).collect();
        let all = columns.first().map(|first| table.compared_with(first, &[(case.clone(), observed)]));
        let all = all.unwrap_or_default();
        self.control = all.first().and_then(|one| one.control);
        let compared =
            |label: &String| all.iter().find(|one| one.system == *label && one.ratio_to_first.is_some());
        self.compared = columns.iter().map(|label| compared(label).cloned()).collect();
        let taken = Taken::most(rows.iter().filter_map(|row| row.cpu.as_ref()));
        (self.steal, self.others) = (taken.steal, taken.others);
        self.is_disturbed = table.is_disturbed(&case);
    }

    /// Case and quantity as a head.
    pub fn head(&self) -> String {
        let (name, unit) = self.quantity.name();
        format!("{}: {name}, {unit}", self.case)
    }

    /// A system's value in each round that gave one.
    pub fn rates(&self, column: usize) -> Vec<f64> {
        self.values.get(column).into_iter().flat_map(|rounds| rounds.values().copied()).collect()
    }

    pub fn spread(&self, column: usize) -> Option<Spread> {
        Spread::of(&self.rates(column))
    }

    /// Whether a system's figure is a lower bound: its sender could not send more.
    pub fn is_limited_by_sender(&self, column: usize) -> bool {
        self.limited_by_sender.get(column).copied().unwrap_or(false)
    }

    /// Whether a system differs from the first one; `None` if that is not judged.
    pub fn differs_from_first(&self, column: usize) -> Option<bool> {
        self.compared.get(column)?.as_ref()?.differs_from_first
    }

    /// The ratio of two measurements of the same system at most, where one
    /// was measured twice.
    fn same(&self) -> f64 {
        self.control.map_or(1.0, Spread::widest_ratio)
    }

    /// A system's figure with its spread, whether it is a lower bound, and whether it differs from
    /// that of the first system.
    pub fn cell(&self, column: usize) -> String {
        let Some(spread) = self.spread(column) else { return "–".into() };
        let bound = if self.is_limited_by_sender(column) { AT_LEAST } else { "" };
        let is_within = column > 0 && self.differs_from_first(column) == Some(false);
        let mark = if is_within { NO_DIFFERENCE } else { "" };
        format!("{bound}{}{mark}", spread.text(significant))
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
    use crate::experiment::generate::SearchOutcome;
    use crate::report::suite::tests::campaign;

    /// Five rounds of two systems and of the second again, with `limited` of both found at what
    /// the sender could do.
    fn bounded(mbit: [f64; 2], limited: [bool; 2]) -> SuiteCampaign {
        let mut campaign = campaign();
        let model = campaign.rows[0].clone();
        let labels = ["plain routing", "aes-256-gcm", "aes-256-gcm (again)"];
        let row_of = |(label, at): (&str, usize), repeat| {
            let search = Some(SearchOutcome { limited_by_sender: limited[at], ..SearchOutcome::default() });
            let mut row = Row { label: label.into(), repeat, search, ..model.clone() };
            row.figures.as_mut().unwrap().received_bits_per_second = mbit[at] * 1e6;
            row
        };
        let all = || labels.into_iter().zip([0, 1, 1]);
        campaign.rows = (1..=5)
            .flat_map(|round| all().map(move |named| (named, round)))
            .map(|(named, round)| row_of(named, round))
            .collect();
        campaign
    }

    #[test]
    fn a_figure_limited_by_its_sender_is_a_lower_bound() {
        for (mbit, limited, cells, differs) in [
            ([100.0, 50.0], [false, false], ["100 (100–100)", "50.0 (50.0–50.0)"], Some(true)),
            ([100.0, 50.0], [true, false], ["≥ 100 (100–100)", "50.0 (50.0–50.0)"], Some(true)),
            ([100.0, 50.0], [false, true], ["100 (100–100)", "≥ 50.0 (50.0–50.0)"], None),
            // A system measured twice here differs from itself by what the sender does, which says
            // nothing of the first system.
            ([50.0, 100.0], [false, true], ["50.0 (50.0–50.0)", "≥ 100 (100–100)"], None),
            ([50.0, 100.0], [true, false], ["≥ 50.0 (50.0–50.0)", "100 (100–100)"], None),
            ([50.0, 50.0], [true, true], ["≥ 50.0 (50.0–50.0)", "≥ 50.0 (50.0–50.0)"], None),
            ([50.0, 50.0], [false, true], ["50.0 (50.0–50.0)", "≥ 50.0 (50.0–50.0)"], None),
            ([50.0, 50.0], [false, false], ["50.0 (50.0–50.0)", "50.0 (50.0–50.0) ≈"], Some(false)),
        ] {
            let section = sections(&bounded(mbit, limited)).remove(0);
            let rates = &section.rows[0];
            assert_eq!([rates.cell(0), rates.cell(1)], cells, "{limited:?}");
            assert_eq!(rates.differs_from_first(1), differs, "{mbit:?} {limited:?}");
            assert_eq!(section.rows[1].cell(0), "0.500 (0.500–0.500)", "a loss is no bound");
        }
    }
}
