//! One part of a suite's report: its cases side by side, a row for each system, and what says how
//! far the figures go.

use super::super::grid::Grid;
use super::super::noise::far_beyond;
use super::super::observed::AT_LEAST;
use crate::experiment::outcome::Taken;
use crate::experiment::suite::observations::case;
use crate::experiment::suite::{Quantity, Row, SuiteCampaign};
use crate::observation::{ByRound, Comparison, Observations};
use crate::stats::{Spread, distinct, range};
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
    /// The figure of each system, in the order of the columns.
    pub cells: Vec<Cell>,
    /// A system's second measurement in each round divided by its first.
    pub control: Option<Spread>,
    /// The most of the machine that the hypervisor took, and other processes.
    pub taken: Taken,
    /// The share is too large to claim anything.
    pub is_disturbed: bool,
}

/// The figure of a system.
#[derive(Default)]
pub struct Cell {
    /// Its value in each round; a measurement that broke leaves its round out.
    pub values: ByRound,
    /// The sender limited a measurement, so the median is a lower bound.
    pub is_limited_by_sender: bool,
    /// The system compared with the first one.
    pub compared: Option<Comparison>,
}

/// The parts of a campaign, in the order in which they were measured.
pub fn sections(campaign: &SuiteCampaign) -> Vec<Section> {
    let table = campaign.observations();
    let names = distinct(campaign.rows.iter().map(|row| row.case.section.as_str()));
    names.into_iter().map(|name| Section::new(name, campaign, &table)).collect()
}

impl Section {
    fn new(name: &str, campaign: &SuiteCampaign, table: &Observations) -> Self {
        let rows: Vec<&Row> = campaign.rows.iter().filter(|row| row.case.section == name).collect();
        let labels = distinct(rows.iter().map(|row| row.label.clone()));
        let (controls, columns): (Vec<String>, Vec<String>) =
            labels.into_iter().partition(|label| label.contains(AGAIN));
        let shown = |row: &&Row| {
            let case = row.case.name.clone();
            row.case.quantities.clone().into_iter().map(move |quantity| (case.clone(), quantity))
        };
        let shown = distinct(rows.iter().flat_map(shown)).into_iter();
        let rows = shown.map(|shown| SectionRow::new(name, shown, &columns, &rows, table)).collect();
        let control = controls.last().map(|label| label.replace(AGAIN, ""));
        Self { name: name.to_owned(), columns, control, rows }
    }

    /// The figures as a table: a row for each system, then what says how far they go.
    pub fn grid(&self) -> Grid {
        let mut grid = Grid::new(1, std::iter::once("system".to_owned()));
        grid.head.extend(self.rows.iter().map(SectionRow::head));
        for (at, label) in self.columns.iter().enumerate() {
            let cells = self.rows.iter().map(|row| row.cells[at].text());
            grid.rows.push(std::iter::once(label.clone()).chain(cells).collect());
        }
        let ratio = |spread: Spread| spread.text(significant);
        let percent = |value: f64| format!("{value:.1}");
        type Foot<'a> = (&'a str, Box<dyn Fn(&SectionRow) -> Option<String> + 'a>);
        let against_itself = format!("A/A: {} against itself", self.control.as_deref().unwrap_or("a system"));
        let feet: [Foot<'_>; 4] = [
            ("runs, n", Box::new(SectionRow::count)),
            (&against_itself, Box::new(|row| row.control.map(ratio))),
            ("steal, most, %", Box::new(|row| row.taken.steal.map(percent))),
            ("others, most, %", Box::new(|row| row.taken.others.map(percent))),
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
            let cells = row.cells.iter().map(|cell| {
                let mean = cell.values.values().sum::<f64>() / cell.values.len() as f64;
                if cell.values.is_empty() { "–".to_owned() } else { significant(mean) }
            });
            grid.rows.push(std::iter::once(row.case.clone()).chain(cells).collect());
        }
        grid
    }

    /// Each system compared with the first.
    pub fn comparisons(&self) -> impl Iterator<Item = &Comparison> {
        self.rows.iter().flat_map(|row| &row.cells).filter_map(|cell| cell.compared.as_ref())
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
                    &row.cells[at].rates(),
                    significant,
                ));
                let Some(other) = self.over_ipv6(row) else { continue };
                let same = row.same().max(other.same());
                let pair = row.cells[at].spread().zip(other.cells[at].spread());
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
    /// What `table` has of a case and quantity, and how the systems compare within each round;
    /// `rows` are the measurements of the section.
    fn new(
        section: &str,
        (name, quantity): (String, Quantity),
        columns: &[String],
        rows: &[&Row],
        table: &Observations,
    ) -> Self {
        let (observed, case) = (quantity.observed(), case(section, &name));
        let all = columns.first().map(|first| table.compared_with(first, &[(case.clone(), observed)]));
        let all = all.unwrap_or_default();
        let compared =
            |label: &String| all.iter().find(|one| one.system == *label && one.ratio_to_first.is_some());
        let cell = |label: &String| Cell {
            values: table.by_round((label, &case), observed),
            is_limited_by_sender: table.is_bound(label, &case, observed),
            compared: compared(label).cloned(),
        };
        let measured = rows.iter().filter(|row| row.case.name == name);
        Self {
            quantity,
            cells: columns.iter().map(cell).collect(),
            control: all.first().and_then(|one| one.control),
            taken: Taken::most(measured.filter_map(|row| row.cpu.as_ref())),
            is_disturbed: table.is_disturbed(&case),
            case: name,
        }
    }

    /// Case and quantity as a head.
    pub fn head(&self) -> String {
        let (name, unit) = self.quantity.name();
        format!("{}: {name}, {unit}", self.case)
    }

    /// The ratio of two measurements of the same system at most, where one
    /// was measured twice.
    fn same(&self) -> f64 {
        self.control.map_or(1.0, Spread::widest_ratio)
    }

    /// The number of runs: from the fewest of a system to the most.
    fn count(&self) -> Option<String> {
        let counts: Vec<f64> = self.cells.iter().map(|cell| cell.values.len() as f64).collect();
        let (low, high) = range(&counts)?;
        Some(if low < high { format!("{low}–{high}") } else { high.to_string() })
    }
}

impl Cell {
    fn rates(&self) -> Vec<f64> {
        self.values.values().copied().collect()
    }

    pub fn spread(&self) -> Option<Spread> {
        Spread::of(&self.rates())
    }

    /// Whether the system differs from the first one; `None` if that is not judged.
    fn differs_from_first(&self) -> Option<bool> {
        self.compared.as_ref()?.differs_from_first
    }

    /// The figure with its spread, whether it is a lower bound, and whether it differs from that of
    /// the first system.
    pub fn text(&self) -> String {
        let Some(spread) = self.spread() else { return "–".into() };
        let bound = if self.is_limited_by_sender { AT_LEAST } else { "" };
        let mark = if self.differs_from_first() == Some(false) { NO_DIFFERENCE } else { "" };
        format!("{bound}{}{mark}", spread.text(significant))
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
            let rates = &section.rows[0].cells;
            assert_eq!([rates[0].text(), rates[1].text()], cells, "{limited:?}");
            assert_eq!(rates[1].differs_from_first(), differs, "{mbit:?} {limited:?}");
            assert_eq!(section.rows[1].cells[0].text(), "0.500 (0.500–0.500)", "a loss is no bound");
        }
    }
}
