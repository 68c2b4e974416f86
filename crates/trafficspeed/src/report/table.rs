//! The table for people.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::summary::{Spread, Summary, labels, summarise};
use super::{gbit, significant};
use crate::experiment::outcome::Campaign;

/// What stands below every table.
pub const DEFINITIONS: &str = "\
Communication throughput: bytes received + bytes sent by all measuring hosts, per second (the definition of TrafficSpeed, 2006).
Goodput: bytes received only, each byte once (what iperf3 users expect). Both in Gbit/s, decimal.
Spread: lowest to highest of the repeats. Fairness: Jain's index over all connections, 1 = all equal.
CPU: CPU seconds per second of the VPN processes, user and system; Gbit/CPU s: goodput that went through the tunnel, per CPU second of the gateway.
Only runs count in which each client's tunnel device carried at least 95 % of its bytes, each way, by the kernel's own counters.";

/// The results of a campaign as text.
pub fn table(campaign: &Campaign) -> String {
    let summaries = summarise(campaign);
    let mut text = String::new();
    if !summaries.is_empty() {
        writeln!(text, "{}", grid(&summaries)).expect("writing to a string");
        writeln!(text, "{DEFINITIONS}").expect("writing to a string");
    }
    for label in labels(campaign) {
        let runs = campaign.runs.iter().filter(|run| run.label == label);
        let (whole, broken): (Vec<_>, Vec<_>) = runs.partition(|run| run.is_whole());
        for run in &broken {
            let name = format!("{label}, {} clients, run {}", run.clients, run.repeat);
            let goodput = run.goodput();
            // What went past the VPN is no figure of it, not even an incomplete one.
            if goodput > 0.0 && run.bypass().is_none() {
                let communication = gbit(run.communication());
                writeln!(text, "{name}: incomplete: {communication} Gbit/s ({} goodput)", gbit(goodput))
                    .expect("writing to a string");
            }
            for problem in run.problems() {
                writeln!(text, "{name}: {problem}").expect("writing to a string");
            }
        }
        for run in whole {
            for problem in run.problems() {
                writeln!(text, "{label}, {} clients, run {}: {problem}", run.clients, run.repeat)
                    .expect("writing to a string");
            }
        }
    }
    if campaign.interrupted {
        writeln!(text, "Interrupted: the figures are of what was measured until then.")
            .expect("writing to a string");
    }
    text
}

fn grid(summaries: &[Summary]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header([
        "system",
        "clients",
        "communication",
        "spread",
        "goodput",
        "of plain",
        "fairness",
        "gateway CPU",
        "client CPU",
        "Gbit/CPU s",
        "machine busy",
        "steal",
    ]);
    let optional =
        |value: Option<f64>, unit: &str| value.map_or("–".into(), |v| format!("{}{unit}", significant(v)));
    for s in summaries {
        // A system that has no processes used no time of theirs.
        let cpu = |value: Option<f64>| optional(value.filter(|_| s.gbit_per_gateway_second.is_some()), "");
        table.add_row([
            s.label.clone(),
            s.clients.to_string(),
            gbit(s.communication.median),
            spread(s.communication, s.repeats),
            gbit(s.goodput.median),
            optional(s.ratio_to_plain.map(|ratio| 100.0 * ratio), " %"),
            optional(s.stream_fairness, ""),
            cpu(s.gateway_cpus),
            cpu(s.client_cpus),
            optional(s.gbit_per_gateway_second, ""),
            optional(s.busy_percent, " %"),
            optional(s.steal_percent, " %"),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn spread(spread: Spread, repeats: u32) -> String {
    if repeats < 2 { "–".into() } else { format!("{} to {}", gbit(spread.low), gbit(spread.high)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;

    #[test]
    fn the_table_holds_medians_spread_definitions_and_failures() {
        let text = table(&samples::campaign());
        for expected in [
            "vpnd, aes-256-gcm",
            "plain routing",
            "16.3",
            "16.2 to 16.5",
            "34.0 %",
            "Jain",
            "did> not come up",
        ] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        assert!(!text.contains("Interrupted"));
    }

    #[test]
    fn a_run_that_went_past_the_vpn_shows_its_problem_and_no_figure() {
        let mut campaign = samples::campaign();
        campaign.runs.truncate(1);
        campaign.runs[0].carried[0].tunnel.sent.bytes = 0;
        let text = table(&campaign);
        assert!(text.contains("only 75 % of the bytes went through the tunnel"), "{text}");
        assert!(!text.contains("Gbit/s"), "{text}");
    }

    #[test]
    fn nothing_measured_is_said_without_an_empty_table() {
        let mut campaign = samples::campaign();
        campaign.runs.retain(|run| run.error.is_some());
        campaign.interrupted = true;
        let text = table(&campaign);
        assert!(!text.contains("communication") && text.contains("Interrupted"), "{text}");
    }
}
