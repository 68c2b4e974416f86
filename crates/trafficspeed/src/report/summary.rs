//! Repetitions of the same measurement drawn together.

use serde::Serialize;

use super::stats::{median, range};
use crate::experiment::outcome::{Campaign, Run};
use crate::system::Kind;

/// The whole runs of one system at one number of clients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The system.
    pub label: String,
    /// Hosts that measure.
    pub clients: u32,
    /// Runs that count.
    pub repeats: u32,
    /// Communication throughput in bit/s: median, lowest, highest.
    pub communication: Spread,
    /// Goodput in bit/s: median, lowest, highest.
    pub goodput: Spread,
    /// Median of Jain's index over all connections.
    pub stream_fairness: Option<f64>,
    /// Median of Jain's index over the pairs.
    pub pair_fairness: Option<f64>,
    /// Median CPU seconds per second of the gateway's VPN processes.
    pub gateway_cpus: Option<f64>,
    /// The same of all clients' VPN processes.
    pub client_cpus: Option<f64>,
    /// Median Gbit of goodput per CPU second of the gateway.
    pub gbit_per_gateway_second: Option<f64>,
    /// Median share of the machine that was in use, in percent.
    pub busy_percent: Option<f64>,
    /// Highest share of the machine that other tenants took, in percent.
    pub steal_percent: Option<f64>,
    /// Median goodput divided by that of plain routing at the same number of clients.
    pub ratio_to_plain: Option<f64>,
}

/// A median with its range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The middle.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let (low, high) = range(values).unwrap_or_default();
        Self { median: median(values).unwrap_or_default(), low, high }
    }
}

/// One summary per system and number of clients, in the order they first appear. Broken runs do not count.
pub fn summarise(campaign: &Campaign) -> Vec<Summary> {
    let mut groups: Vec<(&str, u32, Vec<&Run>)> = Vec::new();
    for run in campaign.runs.iter().filter(|run| run.is_whole()) {
        match groups.iter_mut().find(|(label, clients, _)| *label == run.label && *clients == run.clients) {
            Some((_, _, runs)) => runs.push(run),
            None => groups.push((&run.label, run.clients, vec![run])),
        }
    }
    let plain: Vec<(u32, f64)> = groups
        .iter()
        .filter(|(_, _, runs)| runs[0].subject.is_some_and(|subject| subject.kind == Kind::None))
        .map(|(_, clients, runs)| (*clients, each(runs, |run| Some(run.goodput())).unwrap_or_default()))
        .collect();
    let mut summaries: Vec<Summary> = groups
        .iter()
        .map(|(label, clients, runs)| {
            let ceiling = plain.iter().find(|(n, _)| n == clients).map(|(_, goodput)| *goodput);
            summary(label, *clients, runs, ceiling)
        })
        .collect();
    let order: Vec<String> = labels(campaign);
    summaries.sort_by_key(|s| (order.iter().position(|label| *label == s.label), s.clients));
    summaries
}

/// The systems of a campaign in the order they first appear, those without a result included.
pub fn labels(campaign: &Campaign) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    for run in &campaign.runs {
        if !labels.contains(&run.label) {
            labels.push(run.label.clone());
        }
    }
    labels
}

fn summary(label: &str, clients: u32, runs: &[&Run], ceiling: Option<f64>) -> Summary {
    let values = |of: fn(&Run) -> f64| runs.iter().map(|run| of(run)).collect::<Vec<_>>();
    let goodput = Spread::of(&values(Run::goodput));
    let per_second = |of: fn(&crate::experiment::outcome::CpuUse) -> f64| {
        each(runs, |run| run.cpu.filter(|cpu| cpu.seconds > 0.0).map(|cpu| of(&cpu) / cpu.seconds))
    };
    let steal: Vec<f64> = runs.iter().filter_map(|run| run.steal_percent()).collect();
    Summary {
        label: label.to_owned(),
        clients,
        repeats: runs.len() as u32,
        communication: Spread::of(&values(Run::communication)),
        goodput,
        stream_fairness: each(runs, Run::stream_fairness),
        pair_fairness: each(runs, Run::pair_fairness),
        gateway_cpus: per_second(|cpu| cpu.gateway),
        client_cpus: per_second(|cpu| cpu.clients),
        gbit_per_gateway_second: each(runs, Run::gbit_per_gateway_second),
        busy_percent: each(runs, Run::busy_percent),
        steal_percent: range(&steal).map(|(_, high)| high),
        ratio_to_plain: ceiling.filter(|ceiling| *ceiling > 0.0).map(|ceiling| goodput.median / ceiling),
    }
}

/// The median of what `of` finds in each run.
fn each(runs: &[&Run], of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    median(&runs.iter().filter_map(|run| of(run)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;

    #[test]
    fn repeats_are_drawn_together_and_compared_with_plain_routing() {
        let summaries = summarise(&samples::campaign());
        let order: Vec<_> = summaries.iter().map(|s| (s.label.as_str(), s.clients, s.repeats)).collect();
        assert_eq!(
            order,
            [
                ("vpnd, aes-256-gcm", 2, 3),
                ("vpnd, aes-256-gcm", 4, 3),
                ("vpnd, aes-256-gcm", 8, 3),
                ("plain routing", 2, 3),
                ("plain routing", 4, 3),
                ("plain routing", 8, 3),
            ],
            "the failed run at 16 clients has no place"
        );
        let two = &summaries[0];
        assert!((two.goodput.median - 8.16e9).abs() < 1.0 && (two.goodput.low - 8.08e9).abs() < 1.0);
        assert!((two.communication.high - 16.48e9).abs() < 1.0);
        assert!((two.ratio_to_plain.unwrap() - 1.02 / 3.0).abs() < 1e-9);
        assert!((two.gateway_cpus.unwrap() - 0.5).abs() < 1e-9);
    }
}
