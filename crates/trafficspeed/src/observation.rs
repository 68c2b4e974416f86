//! The one table of results: what was observed of each system in each case and round, one value a
//! row. Medians, spread, A/A, ratios, claims, CSV, JSON and tables are made of it, so that they
//! mean the same in every experiment.
//!
//! INVARIANT: a ratio is formed of two values of the same round, never of two medians.
//! INVARIANT: what a broken measurement gave is listed, and counts in no median, ratio or claim.

mod quantity;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::csv_table;
use crate::stats::{Spread, distinct};

pub use quantity::{Format, Quantity, Rounds};

/// Ends the label of a system that is measured a second time in each round, as a control (A/A).
pub const AGAIN: &str = " (again)";

/// The columns of the table as CSV; the last two say where it was measured.
const HEAD: [&str; 10] =
    ["system", "case", "round", "quantity", "unit", "value", "problem", "congestion", "links", "machine"];

/// A measurement at a time: the key of its rows.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    pub system: &'a str,
    /// Congestion control of TCP: only systems under the same one are compared.
    pub congestion: &'a str,
    pub case: &'a str,
    /// From 1.
    pub round: u32,
    /// Why it does not count; empty if it was made as it should be.
    pub problem: &'a str,
    /// Others took too much of the machine meanwhile to claim anything of the case.
    pub is_disturbed: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    /// Place among the systems.
    system: usize,
    case: String,
    round: u32,
    /// The observed value; nothing if the measurement broke before that.
    found: Option<(Quantity, f64)>,
    problem: String,
    is_disturbed: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct System {
    label: String,
    congestion: String,
}

impl System {
    /// The label of the system whose control this is.
    fn control_of(&self) -> Option<String> {
        self.label.contains(AGAIN).then(|| self.label.replace(AGAIN, ""))
    }
}

/// The table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observations {
    systems: Vec<System>,
    rows: Vec<Row>,
    /// System, case and quantity of values that are lower bounds.
    bounds: BTreeSet<(usize, String, &'static str)>,
    is_emulated: bool,
}

/// A row as programs read it: without a quantity if the measurement broke before there was one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Listed<'a> {
    pub system: &'a str,
    pub case: &'a str,
    pub round: u32,
    pub quantity: &'a str,
    pub unit: &'a str,
    pub value: Option<f64>,
    pub problem: &'a str,
    pub congestion: &'a str,
}

impl Listed<'_> {
    fn csv(self, [links, machine]: [String; 2]) -> [String; HEAD.len()] {
        let value = self.value.map_or_else(String::new, |value| value.to_string());
        let [system, case, quantity, unit, problem, congestion] =
            [self.system, self.case, self.quantity, self.unit, self.problem, self.congestion]
                .map(str::to_owned);
        [system, case, self.round.to_string(), quantity, unit, value, problem, congestion, links, machine]
    }
}

/// All rounds of a quantity of one system in one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub system: String,
    pub case: String,
    pub quantity: &'static str,
    pub unit: &'static str,
    #[serde(flatten)]
    pub spread: Spread,
    /// Over all rounds, of what is counted.
    pub sum: Option<f64>,
}

/// One system compared with another, and a system compared with itself, which tells a
/// difference from chance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub system: String,
    pub case: String,
    pub quantity: &'static str,
    /// The first system.
    pub first: String,
    /// A/A: the second measurement of a system in each round divided by its first.
    pub control: Option<Spread>,
    /// This system divided by the first one.
    pub ratio_to_first: Option<Spread>,
    /// `None` where it is not judged.
    pub differs_from_first: Option<bool>,
}

/// Whether the ratios of two systems differ from those of a system to itself; `None` where too few
/// rounds were measured.
pub fn differs(ratio: Option<Spread>, same: Option<Spread>) -> Option<bool> {
    ratio?.differs_beyond(same?)
}

/// A value of each round, by its number.
pub type ByRound = BTreeMap<u32, f64>;

/// Values as those of this many rounds.
pub fn in_rounds(values: &[f64]) -> ByRound {
    (1..).zip(values.iter().copied()).collect()
}

/// Each value divided by that of `other` at the same place, where that is above zero.
pub fn divided<K: Ord + Copy>(one: &BTreeMap<K, f64>, other: &BTreeMap<K, f64>) -> BTreeMap<K, f64> {
    let ratio = |(at, value): (&K, &f64)| Some((*at, value / other.get(at).filter(|value| **value > 0.0)?));
    one.iter().filter_map(ratio).collect()
}

/// The one divided by the other, round by round: what drifts from round to round hits both.
pub fn ratio(one: &ByRound, other: &ByRound) -> Option<Spread> {
    Spread::of(&divided(one, other).into_values().collect::<Vec<_>>())
}

/// Tables as CSV below one head, each with the links and the machine of its measurements.
pub fn csv<'a>(tables: impl IntoIterator<Item = (&'a Observations, [String; 2])>) -> String {
    let rows = |(table, place): (&'a Observations, [String; 2])| {
        table.listed().map(move |row| row.csv(place.clone()))
    };
    csv_table::text(HEAD, tables.into_iter().flat_map(rows))
}

impl Observations {
    /// An empty table, of a machine whose processor is emulated or not.
    pub fn of_machine(is_emulated: bool) -> Self {
        Self { is_emulated, ..Self::default() }
    }

    /// Whether a program played the processor, so that nothing is claimed of any case.
    pub fn is_emulated(&self) -> bool {
        self.is_emulated
    }

    /// Names a system, so that it has its place in the order even if nothing is observed of it.
    pub fn name(&mut self, label: &str, congestion: &str) -> usize {
        self.systems.iter().position(|known| known.label == label).unwrap_or_else(|| {
            self.systems.push(System { label: label.to_owned(), congestion: congestion.to_owned() });
            self.systems.len() - 1
        })
    }

    /// Adds what is known of `values`.
    pub fn add(
        &mut self,
        measured: &Measured<'_>,
        values: impl IntoIterator<Item = (Quantity, Option<f64>)>,
    ) {
        let system = self.name(measured.system, measured.congestion);
        let known = |(quantity, value): (Quantity, Option<f64>)| {
            // Adding zero makes a negative zero an ordinary one, so that no table shows "-0".
            Some((quantity, value.filter(|value| value.is_finite())? + 0.0))
        };
        let mut found: Vec<_> = values.into_iter().filter_map(known).map(Some).collect();
        if found.is_empty() && !measured.problem.is_empty() {
            found.push(None);
        }
        let &Measured { case, round, problem, is_disturbed, .. } = measured;
        let row =
            |found| Row { system, case: case.into(), round, found, problem: problem.into(), is_disturbed };
        self.rows.extend(found.into_iter().map(row));
    }

    /// Notes that the values of a quantity are lower bounds: what made them could not do more.
    pub fn bound(&mut self, system: &str, case: &str, quantity: Quantity) {
        if let Some(system) = self.systems.iter().position(|known| known.label == system) {
            self.bounds.insert((system, case.to_owned(), quantity.name));
        }
    }

    /// Whether a system's values of a quantity are lower bounds.
    pub fn is_bound(&self, system: &str, case: &str, quantity: Quantity) -> bool {
        let place = self.systems.iter().position(|known| known.label == system);
        place.is_some_and(|system| self.bounds.contains(&(system, case.to_owned(), quantity.name)))
    }

    /// The systems in the order in which they were named.
    pub fn systems(&self) -> Vec<&str> {
        let systems = self.systems.iter().filter(|system| system.control_of().is_none());
        systems.map(|system| system.label.as_str()).collect()
    }

    /// The systems with controls at the end.
    pub fn systems_and_controls(&self) -> Vec<&str> {
        let controls = self.systems.iter().filter(|system| system.control_of().is_some());
        self.systems().into_iter().chain(controls.map(|system| system.label.as_str())).collect()
    }

    /// The cases in the order in which they were first observed.
    pub fn cases(&self) -> Vec<&str> {
        let observed = self.rows.iter().filter(|row| row.found.is_some());
        distinct(observed.map(|row| row.case.as_str()))
    }

    /// Round and value of each measurement of a quantity: of those that are whole, or of the
    /// others.
    fn rounds(
        &self,
        (system, case): (&str, &str),
        quantity: Quantity,
        is_whole: bool,
    ) -> impl Iterator<Item = (u32, f64)> {
        let system = self.systems.iter().position(|known| known.label == system);
        let selected = self.rows.iter().filter(move |row| Some(row.system) == system && row.case == case);
        let counted = selected.filter(move |row| row.problem.is_empty() == is_whole);
        let values = counted.filter_map(|row| Some((row.round, row.found?)));
        values.filter(move |(_, found)| found.0 == quantity).map(|(round, found)| (round, found.1))
    }

    fn whole(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.problem.is_empty() && row.found.is_some())
    }

    /// The number of whole measurements that were disturbed, and the number of all.
    pub fn disturbed(&self) -> (usize, usize) {
        let place = |row: &Row| (row.system, row.case.clone(), row.round);
        let all: BTreeSet<_> = self.whole().map(place).collect();
        let disturbed: BTreeSet<_> = self.whole().filter(|row| row.is_disturbed).map(place).collect();
        (disturbed.len(), all.len())
    }

    /// Whether a measurement of a case was disturbed, so that nothing is claimed of it; on an
    /// emulated processor each was.
    pub fn is_disturbed(&self, case: &str) -> bool {
        self.is_emulated || self.whole().any(|row| row.is_disturbed && row.case == case)
    }

    /// The most whole rounds of a system in a case.
    pub fn rounds_per_case(&self) -> usize {
        let mut rounds: BTreeMap<(usize, &str), BTreeSet<u32>> = BTreeMap::new();
        for row in self.whole() {
            rounds.entry((row.system, &row.case)).or_default().insert(row.round);
        }
        rounds.values().map(BTreeSet::len).max().unwrap_or_default()
    }

    /// The value of each whole round.
    pub fn values(&self, system: &str, case: &str, quantity: Quantity) -> Vec<f64> {
        self.rounds((system, case), quantity, true).map(|(_, value)| value).collect()
    }

    /// The values of measurements that broke.
    pub fn broken_values(&self, system: &str, case: &str, quantity: Quantity) -> Vec<f64> {
        self.rounds((system, case), quantity, false).map(|(_, value)| value).collect()
    }

    /// The value of each whole round, by its number.
    pub fn by_round(&self, place: (&str, &str), quantity: Quantity) -> ByRound {
        self.rounds(place, quantity, true).collect()
    }

    pub fn spread(&self, system: &str, case: &str, quantity: Quantity) -> Option<Spread> {
        Spread::of(&self.values(system, case, quantity))
    }

    /// One system divided by the other.
    pub fn ratio(&self, (one, other): (&str, &str), case: &str, quantity: Quantity) -> Option<Spread> {
        self.ratio_of((one, case), (other, case), quantity)
    }

    /// One system in one case divided by another, or by itself, in another.
    pub fn ratio_of(&self, one: (&str, &str), other: (&str, &str), quantity: Quantity) -> Option<Spread> {
        ratio(&self.by_round(one, quantity), &self.by_round(other, quantity))
    }

    /// A/A: a system that was measured twice in each round under this congestion control, compared
    /// with itself; `wanted` if that is one. What could not do more hardly differs from itself, and
    /// says nothing of what others may.
    pub fn control(&self, congestion: &str, wanted: &str, case: &str, quantity: Quantity) -> Option<Spread> {
        let under = self.systems.iter().filter(|system| system.congestion == congestion);
        let mut twice: Vec<(&str, String)> =
            under.filter_map(|system| Some((system.label.as_str(), system.control_of()?))).collect();
        twice.retain(|(again, first)| {
            ![*again, first].iter().any(|label| self.is_bound(label, case, quantity))
        });
        twice.sort_by_key(|(_, first)| first != wanted);
        twice.into_iter().find_map(|(again, first)| self.ratio((again, &first), case, quantity))
    }

    /// Every system compared with the first one under the same congestion control; a system alone
    /// has its A/A.
    pub fn comparisons(&self, wanted: &[(String, Quantity)]) -> Vec<Comparison> {
        let mut firsts: Vec<&System> = Vec::new();
        for system in self.systems.iter().filter(|system| system.control_of().is_none()) {
            if firsts.iter().all(|first| first.congestion != system.congestion) {
                firsts.push(system);
            }
        }
        firsts.into_iter().flat_map(|first| self.compared_with(&first.label, wanted)).collect()
    }

    /// Every other system under the same congestion control compared with `first`; a system alone
    /// has its A/A.
    pub fn compared_with(&self, first: &str, wanted: &[(String, Quantity)]) -> Vec<Comparison> {
        let Some(first) = self.systems.iter().find(|system| system.label == first) else {
            return Vec::new();
        };
        let is_other = |system: &&System| {
            system.control_of().is_none() && *system != first && system.congestion == first.congestion
        };
        let mut others: Vec<&System> = self.systems.iter().filter(is_other).collect();
        let is_alone = others.is_empty();
        others.extend(is_alone.then_some(first));
        let mut all = Vec::new();
        for (case, quantity) in wanted {
            let control = self.control(&first.congestion, &first.label, case, *quantity);
            all.extend(others.iter().map(|system| {
                let pair = (system.label.as_str(), first.label.as_str());
                let ratio = self.ratio(pair, case, *quantity).filter(|_| !is_alone);
                Comparison {
                    system: system.label.clone(),
                    case: case.clone(),
                    quantity: quantity.name,
                    first: first.label.clone(),
                    control,
                    ratio_to_first: ratio,
                    differs_from_first: self.judged(pair, case, *quantity, ratio.zip(control)),
                }
            }));
        }
        all.retain(|one| one.control.is_some() || one.ratio_to_first.is_some());
        all
    }

    /// Whether the ratio of two systems is a difference, judged by the control; `None` for too few
    /// rounds, a disturbed case, and lower bounds if what they bound may be on the
    /// other side.
    pub fn judged(
        &self,
        (one, other): (&str, &str),
        case: &str,
        quantity: Quantity,
        found: Option<(Spread, Spread)>,
    ) -> Option<bool> {
        let (ratio, control) = found?;
        let differs = ratio.differs_beyond(control).filter(|_| !self.is_disturbed(case))?;
        let holds = match [one, other].map(|system| self.is_bound(system, case, quantity)) {
            [false, false] => true,
            [true, false] => differs && ratio.median > 1.0,
            [false, true] => differs && ratio.median < 1.0,
            [true, true] => false,
        };
        holds.then_some(differs)
    }

    /// Every system, case and quantity of which something whole was observed.
    pub fn summaries(&self) -> Vec<Summary> {
        let quantities = distinct(self.rows.iter().filter_map(|row| Some(row.found?.0)));
        let mut all = Vec::new();
        for system in self.systems_and_controls() {
            for case in self.cases() {
                all.extend(quantities.iter().filter_map(|quantity| {
                    let values = self.values(system, case, *quantity);
                    let spread = Spread::of(&values)?;
                    let (quantity, unit, rounds) = (quantity.name, quantity.unit, quantity.rounds);
                    let sum = (rounds == Rounds::Sum).then(|| values.iter().sum());
                    Some(Summary { system: system.into(), case: case.into(), quantity, unit, spread, sum })
                }));
            }
        }
        all
    }

    /// Every value, and what broke without one.
    pub fn listed(&self) -> impl Iterator<Item = Listed<'_>> {
        self.rows.iter().map(|row| {
            let System { label, congestion } = &self.systems[row.system];
            let (quantity, value) = row.found.unzip();
            Listed {
                system: label,
                case: &row.case,
                round: row.round,
                quantity: quantity.map_or("", |quantity| quantity.name),
                unit: quantity.map_or("", |quantity| quantity.unit),
                value,
                problem: &row.problem,
                congestion,
            }
        })
    }
}

#[cfg(test)]
mod tests;
