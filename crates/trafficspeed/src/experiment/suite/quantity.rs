//! The figures that a suite's report shows.

use serde::{Deserialize, Serialize};

use crate::experiment::figures::Figures;
use crate::observation;

/// A figure that a report shows of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    Throughput,
    /// Messages that arrived per second.
    Packets,
    /// Messages that never arrived, of those that were sent.
    Loss,
    /// Messages that arrived, of those that the rate asked for.
    Delivered,
    /// Requests answered per second.
    Transactions,
    /// Median of the round trips.
    RoundTrip,
    Delay,
    /// 99 % of the one-way delays were at most this long.
    Delay99,
    Jitter,
    /// Half of the differences of neighbours' delays were at most this long.
    Variation50,
    Variation95,
    Variation99,
    /// Flows that were completed per second, each over a separate connection.
    Flows,
    /// Half of them took at most this long.
    Flow50,
    Flow95,
    Flow99,
}

impl Quantity {
    /// Its name and unit.
    pub fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Throughput => ("throughput", "Mbit/s"),
            Self::Packets => ("received", "packets/s"),
            Self::Loss => ("lost", "%"),
            Self::Delivered => ("delivered", "%"),
            Self::Transactions => ("transactions", "1/s"),
            Self::RoundTrip => ("round trip, median", "µs"),
            Self::Delay => ("one-way delay, mean", "ms"),
            Self::Delay99 => ("one-way delay, 99 %", "ms"),
            Self::Jitter => ("jitter (RFC 3550)", "ms"),
            Self::Variation50 => ("delay variation, 50 %", "ms"),
            Self::Variation95 => ("delay variation, 95 %", "ms"),
            Self::Variation99 => ("delay variation, 99 %", "ms"),
            Self::Flows => ("flows", "1/s"),
            Self::Flow50 => ("flow completion, 50 %", "ms"),
            Self::Flow95 => ("flow completion, 95 %", "ms"),
            Self::Flow99 => ("flow completion, 99 %", "ms"),
        }
    }

    /// It in the table of observations.
    pub fn observed(self) -> observation::Quantity {
        let (name, unit) = self.name();
        observation::Quantity::new(name, unit)
    }

    /// Whether it says how much is carried in a time, of which more is better. Delays and losses
    /// near zero differ by their nature.
    pub fn is_rate(self) -> bool {
        matches!(self, Self::Throughput | Self::Packets | Self::Transactions | Self::Flows)
    }

    /// Its value in that unit.
    pub fn of(self, figures: &Figures) -> Option<f64> {
        let variation = |share: f64| figures.variation.as_ref().map(|variation| variation.at(share) / 1e3);
        let round_trip = |share: f64| figures.round_trip.as_ref().map(|trip| trip.at(share) / 1e3);
        match self {
            Self::Throughput => Some(figures.received_bits_per_second / 1e6),
            Self::Packets => figures.received_per_second,
            Self::Loss => figures.lost_percent,
            Self::Delivered => figures.delivered_percent,
            Self::Transactions | Self::Flows => figures.transactions_per_second,
            Self::RoundTrip => figures.round_trip.as_ref().map(|trip| trip.p50_us),
            Self::Delay => figures.delay.as_ref().map(|delay| delay.mean_us / 1e3),
            Self::Delay99 => figures.delay.as_ref().map(|delay| delay.p99_us / 1e3),
            Self::Jitter => figures.jitter_us.map(|jitter| jitter / 1e3),
            Self::Variation50 => variation(0.5),
            Self::Variation95 => variation(0.95),
            Self::Variation99 => variation(0.99),
            Self::Flow50 => round_trip(0.5),
            Self::Flow95 => round_trip(0.95),
            Self::Flow99 => round_trip(0.99),
        }
    }
}
