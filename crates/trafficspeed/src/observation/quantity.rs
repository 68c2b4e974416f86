//! Observed quantities: name and unit, and how values are shown.

use crate::stats::Spread;
use crate::unit::{Unit, significant};

/// An observed quantity. Its name stands for it: no two of an experiment have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity {
    pub name: &'static str,
    pub unit: &'static str,
    pub rounds: Rounds,
    pub format: Format,
}

/// The way in which several rounds of a quantity are summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// Their median, with the lowest and the highest.
    Spread,
    Median,
    Sum,
    /// The highest.
    Most,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Significant,
    Decimals(usize),
    /// Bits per second, in the unit that the user wants or that suits them.
    Rate,
    /// Microseconds, or milliseconds where those suit better.
    Time,
}

impl Quantity {
    pub const fn new(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, rounds: Rounds::Spread, format: Format::Significant }
    }

    /// A throughput in bit/s.
    pub const fn rate(name: &'static str) -> Self {
        Self { format: Format::Rate, ..Self::new(name, "bit/s") }
    }

    /// A time in µs.
    pub const fn time(name: &'static str) -> Self {
        Self { format: Format::Time, ..Self::new(name, "µs") }
    }

    /// Something that is counted; all rounds count together.
    pub const fn count(name: &'static str) -> Self {
        Self { rounds: Rounds::Sum, ..Self::new(name, "").decimals(0) }
    }

    #[must_use]
    pub const fn decimals(self, digits: usize) -> Self {
        Self { format: Format::Decimals(digits), ..self }
    }

    #[must_use]
    pub const fn together(self, rounds: Rounds) -> Self {
        Self { rounds, ..self }
    }

    /// Name and unit, as the head of a column; a unit that differs from row to row stands in the
    /// cells.
    pub fn head(self) -> String {
        match self.format {
            _ if self.unit.is_empty() => self.name.to_owned(),
            Format::Rate | Format::Time => self.name.to_owned(),
            Format::Significant | Format::Decimals(_) => format!("{}, {}", self.name, self.unit),
        }
    }

    /// Several rounds as text, rates in `unit`; `None` of nothing.
    pub fn text(self, values: &[f64], unit: Option<Unit>) -> Option<String> {
        let spread = Spread::of(values)?;
        let one = |value: f64| Spread { median: value, low: value, high: value, n: 1 };
        let shown = match self.rounds {
            Rounds::Spread => spread,
            Rounds::Median => one(spread.median),
            Rounds::Sum => one(values.iter().sum()),
            Rounds::Most => one(spread.high),
        };
        Some(match self.format {
            Format::Significant => shown.text(significant),
            Format::Decimals(digits) => shown.text(|value| format!("{value:.digits$}")),
            Format::Rate => {
                let unit = unit.unwrap_or_else(|| Unit::suitable(shown.median));
                format!("{} {}", shown.text(|rate| unit.figure(rate)), unit.name())
            }
            Format::Time if shown.median.abs() < 1e3 => format!("{} µs", shown.text(significant)),
            Format::Time => format!("{} ms", shown.scaled(1e3).text(significant)),
        })
    }
}
