//! The figures of real paths as CSV.

use crate::experiment::figures::Figures;
use crate::experiment::home::flow::Flow;
use crate::experiment::home::results::{CaseResult, HomeCampaign, HomeRun, HomeSettings};
use crate::experiment::outcome::CpuUse;
use crate::load::delays::DelaySummary;
use crate::report::csv::with_place;

const HEAD: [&str; 29] = [
    "system",
    "round",
    "load",
    "flow",
    "received_bits_per_second",
    "lost_percent",
    "missed_percent",
    "duplicates",
    "out_of_order",
    "delay_p50_ms",
    "delay_p95_ms",
    "delay_p99_ms",
    "delay_max_ms",
    "variation_p50_ms",
    "variation_p95_ms",
    "variation_p99_ms",
    "left_late_p99_ms",
    "pages",
    "page_p50_ms",
    "page_p95_ms",
    "never_whole",
    "gateway_cpu_seconds",
    "client_cpu_seconds",
    "generator_cpu_seconds",
    "seconds",
    "whole",
    "congestion",
    "steal_percent",
    "others_percent",
];

/// One line for each flow of each measurement.
pub fn csv(campaign: &HomeCampaign) -> String {
    let HomeCampaign { settings, environment, .. } = campaign;
    let of = |run: &'_ HomeRun| -> Vec<_> {
        let cases = run.cases.iter().flat_map(|case| case.flows.iter().map(move |flow| (case, flow)));
        let line = |(case, (flow, figures)): (_, &(Flow, Figures))| {
            (cells((run, settings), case, *flow, figures), environment)
        };
        cases.map(line).collect()
    };
    with_place(HEAD, campaign.runs.iter().flat_map(of))
}

fn cells(
    (run, settings): (&HomeRun, &HomeSettings),
    case: &CaseResult,
    flow: Flow,
    figures: &Figures,
) -> [String; 29] {
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    let count = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    let at = |all: Option<&DelaySummary>, share: f64| number(all.map(|all| all.at(share) / 1e3));
    let (delay, variation) = (Figures::delay_of(figures), figures.variation.as_ref());
    let page = |share: f64| number(crate::stats::quantile(&figures.pages_ms, share));
    let cpu = |of: fn(&CpuUse) -> f64| number(case.cpu.as_ref().map(of));
    let pages = (flow == Flow::Pages).then_some(figures.pages_ms.len() as u64);
    [
        run.label.clone(),
        run.repeat.to_string(),
        case.case.name().to_owned(),
        flow.name().to_owned(),
        number(Some(figures.received_bits_per_second)),
        number(figures.lost_percent),
        number(figures.missed_percent),
        count(figures.duplicates),
        count(figures.reordered),
        at(delay, 0.5),
        at(delay, 0.95),
        at(delay, 0.99),
        at(delay, 1.0),
        at(variation, 0.5),
        at(variation, 0.95),
        at(variation, 0.99),
        at(figures.lateness.as_ref(), 0.99),
        count(pages),
        page(0.5),
        page(0.95),
        count(pages.and(figures.timeouts)),
        cpu(|cpu| cpu.gateway),
        cpu(|cpu| cpu.clients),
        cpu(|cpu| cpu.generators),
        cpu(|cpu| cpu.seconds),
        case.problems.is_empty().to_string(),
        settings.congestion.to_string(),
        number(case.cpu.and_then(|cpu| cpu.steal_percent())),
        number(case.cpu.and_then(|cpu| cpu.foreign_percent())),
    ]
}
