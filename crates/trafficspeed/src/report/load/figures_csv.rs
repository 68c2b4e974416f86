//! A line of CSV for each task of each run, with what it was and every figure.

use crate::experiment::figures::Figures;
use crate::experiment::generate::{LoadCampaign, LoadRun, NamedTask};
use crate::load::delays::DelaySummary;
use crate::report::csv;

const COLUMNS: usize = 35;

const HEAD: [&str; COLUMNS] = [
    "system",
    "congestion",
    "cipher",
    "mtu",
    "load",
    "clients",
    "repeat",
    "received_bits_per_second",
    "sent_bits_per_second",
    "received_per_second",
    "sent_per_second",
    "transactions_per_second",
    "lost_percent",
    "delivered_percent",
    "duplicates",
    "reordered",
    "timeouts",
    "jitter_us",
    "variation_p50_us",
    "variation_p95_us",
    "variation_p99_us",
    "delay_p50_us",
    "delay_p99_us",
    "delay_max_us",
    "round_trip_p50_us",
    "round_trip_p99_us",
    "round_trip_max_us",
    "searched_packets_per_second",
    "searched_limited_by_sender",
    "gateway_cpu_seconds",
    "client_cpu_seconds",
    "generator_cpu_seconds",
    "steal_percent",
    "others_percent",
    "whole",
];

/// One line for each task of each run.
pub fn csv(campaign: &LoadCampaign) -> String {
    let tasks = &campaign.settings.tasks;
    let of = |run: &'_ LoadRun| -> Vec<_> {
        let cells = |(named, figures)| (cells(campaign, run, named, figures), &campaign.environment);
        tasks.iter().zip(&run.figures).map(cells).collect()
    };
    csv::with_place(HEAD, campaign.runs.iter().flat_map(of))
}

fn cells(campaign: &LoadCampaign, run: &LoadRun, named: &NamedTask, figures: &Figures) -> [String; COLUMNS] {
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    let count = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    let variation = |share: f64| number(figures.variation.as_ref().map(|all| all.at(share)));
    let [delay, trip] = [&figures.delay, &figures.round_trip].map(|delays| {
        let of = |figure: fn(&DelaySummary) -> f64| number(delays.as_ref().map(figure));
        [of(|delay| delay.p50_us), of(|delay| delay.p99_us), of(|delay| delay.max_us)]
    });
    let [delay_p50, delay_p99, delay_max] = delay;
    let [trip_p50, trip_p99, trip_max] = trip;
    [
        run.label.clone(),
        run.congestion.to_string(),
        run.facts.cipher.clone(),
        run.facts.mtu.map_or_else(String::new, |mtu| mtu.to_string()),
        named.name.clone(),
        campaign.settings.clients.to_string(),
        run.repeat.to_string(),
        number(Some(figures.received_bits_per_second)),
        number(Some(figures.sent_bits_per_second)),
        number(figures.received_per_second),
        number(figures.sent_per_second),
        number(figures.transactions_per_second),
        number(figures.lost_percent),
        number(figures.delivered_percent),
        count(figures.duplicates),
        count(figures.reordered),
        count(figures.timeouts),
        number(figures.jitter_us),
        variation(0.5),
        variation(0.95),
        variation(0.99),
        delay_p50,
        delay_p99,
        delay_max,
        trip_p50,
        trip_p99,
        trip_max,
        number(run.search.as_ref().map(|search| search.packets_per_second)),
        run.search.as_ref().map_or_else(String::new, |search| search.limited_by_sender.to_string()),
        number(run.cpu.map(|cpu| cpu.gateway)),
        number(run.cpu.map(|cpu| cpu.clients)),
        number(run.cpu.map(|cpu| cpu.generators)),
        number(run.cpu.and_then(|cpu| cpu.steal_percent())),
        number(run.cpu.and_then(|cpu| cpu.foreign_percent())),
        run.is_whole().to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn a_line_says_how_many_clients_its_figures_are_of() {
        let mut campaign = samples::campaign(3e9);
        campaign.settings.clients = 8;
        let text = csv(&campaign);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        let at = lines[0].iter().position(|name| *name == "clients").unwrap();
        let plain = lines.iter().find(|line| line[0] == "plain routing").unwrap();
        assert_eq!((plain[at], plain[at + 1]), ("8", "1"), "{text}");
    }
}
