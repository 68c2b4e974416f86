//! The tables for people.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::problems::{place, problems};
use super::summary::{Spread, Summary, labels, summarise};
use crate::experiment::outcome::Campaign;
use crate::unit::Unit;
use crate::unit::significant;

/// Stands below every table.
pub const DEFINITIONS: &str = "\
Communication throughput: bytes received + bytes sent by all measuring hosts, per second (the definition of TrafficSpeed, 2006).
Goodput: bytes received only, each byte once (what iperf3 users expect). Medians; spread: lowest to highest of the repeats.
Fairness: Jain's index over all connections, 1 = all equal.
CPU: CPU seconds per second of the VPN processes, user and system; CPU s/Gbit: CPU seconds per Gbit of goodput that went through the tunnel.
Steal, others: the most of the machine that the hypervisor took and that processes without a part in the measurement used.
Only runs count in which each client's tunnel device carried at least 95 % of its bytes, each way, by the kernel's own counters.";

/// Stands below a table of ratios.
pub const RATIOS: &str = "\
Ratios of goodput, each formed within one round at one number of clients; median, lowest and highest of the rounds.";

/// The results of a campaign as text, throughput in `unit`.
pub fn table(campaign: &Campaign, unit: Unit) -> String {
    let summaries = summarise(campaign);
    let mut text = String::new();
    let mut say = |line: &str| writeln!(text, "{line}").expect("writing to a string");
    if !summaries.is_empty() {
        say(&grid(&summaries, unit).to_string());
        say(DEFINITIONS);
    }
    if campaign.baseline.is_some() || summaries.iter().any(|s| s.repeats > 1 && s.ratio_to_plain.is_some()) {
        say(&ratios(&summaries, campaign.baseline.as_deref()).to_string());
        say(RATIOS);
    }
    for label in labels(campaign) {
        if let Some(facts) = facts_line(campaign, &label) {
            say(&facts);
        }
    }
    // A run that went past the VPN gives no figure of it, not even an incomplete one.
    let incomplete = |run: &&_| !is_shown(run) && run.goodput() > 0.0 && run.bypass().is_none();
    for run in campaign.runs.iter().filter(incomplete) {
        let (communication, goodput) = (unit.figure(run.communication()), unit.figure(run.goodput()));
        say(&format!("{}: incomplete: {communication} {} ({goodput} goodput)", place(run), unit.name()));
    }
    problems(campaign).iter().for_each(|problem| say(problem));
    if campaign.interrupted {
        say("Interrupted: the figures are of what was measured until then.");
    }
    text
}

/// Whether a run's figure is in the table, or in that of another attempt.
fn is_shown(run: &crate::experiment::outcome::Run) -> bool {
    run.is_whole() || run.superseded
}

/// Version, ciphers and MTU of a system that ran.
fn facts_line(campaign: &Campaign, label: &str) -> Option<String> {
    let systems = super::systems::systems(campaign);
    let system = systems.iter().find(|system| system.label == label)?;
    let mtu = system.mtu.iter().map(|mtu| format!(", MTU {mtu}")).collect::<String>();
    Some(format!("{label}: {}, cipher {}{mtu}", system.version, system.cipher))
}

fn grid(summaries: &[Summary], unit: Unit) -> Table {
    let mut table = empty([
        "system",
        "clients",
        &format!("communication, {}", unit.name()),
        "spread",
        &format!("goodput, {}", unit.name()),
        "fairness",
        "gateway CPU",
        "client CPU",
        "gateway CPU s/Gbit",
        "all CPU s/Gbit",
        "busy",
        "steal",
        "others",
    ]);
    for s in summaries {
        // A system that has no processes used no time of theirs.
        let cpu = |value: Option<f64>| optional(value.filter(|_| s.gateway_seconds_per_gbit.is_some()));
        table.add_row([
            s.label.clone(),
            s.clients.to_string(),
            unit.figure(s.communication.median),
            spread(s, unit),
            unit.figure(s.goodput.median),
            optional(s.stream_fairness),
            cpu(s.gateway_cpus),
            cpu(s.client_cpus),
            optional(s.gateway_seconds_per_gbit.map(|cost| cost.median)),
            optional(s.vpn_seconds_per_gbit.map(|cost| cost.median)),
            percent(s.busy_percent),
            percent(s.steal_percent),
            percent(s.foreign_percent),
        ]);
    }
    align(&mut table);
    table
}

fn ratios(summaries: &[Summary], baseline: Option<&str>) -> Table {
    let mut head: Vec<String> =
        ["system", "clients", "rounds", "of plain", "lowest to highest"].map(Into::into).into();
    head.extend(baseline.iter().flat_map(|name| [format!("of {name}"), "lowest to highest".into()]));
    let mut table = empty(head.iter().map(String::as_str));
    for s in summaries {
        let mut row = vec![s.label.clone(), s.clients.to_string(), s.repeats.to_string()];
        row.extend(ratio(s.ratio_to_plain));
        if baseline.is_some() {
            row.extend(ratio(s.ratio_to_baseline));
        }
        table.add_row(row);
    }
    align(&mut table);
    table
}

fn ratio(spread: Option<Spread>) -> [String; 2] {
    spread.map_or(["–".into(), "–".into()], |s| {
        [significant(s.median), format!("{} to {}", significant(s.low), significant(s.high))]
    })
}

fn empty<'a>(head: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(head);
    table
}

fn align(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn optional(value: Option<f64>) -> String {
    value.map_or("–".into(), significant)
}

fn percent(value: Option<f64>) -> String {
    value.map_or("–".into(), |v| format!("{v:.1} %"))
}

fn spread(s: &Summary, unit: Unit) -> String {
    if s.repeats < 2 {
        return "–".into();
    }
    format!("{} to {}", unit.figure(s.communication.low), unit.figure(s.communication.high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;

    #[test]
    fn the_table_holds_medians_spread_ratios_definitions_and_failures() {
        let text = table(&samples::campaign(), Unit::Gbit);
        for expected in [
            "vpnd, aes-256-gcm",
            "plain routing",
            "16.3",
            "16.2 to 16.5",
            "0.340",
            "0.337 to 0.343",
            "Jain",
            "did> not come up",
        ] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        assert!(!text.contains("Interrupted") && !text.contains("of vpnd"));
    }

    #[test]
    fn another_unit_and_a_baseline_are_shown() {
        let mut campaign = samples::campaign();
        campaign.baseline = Some("vpnd, aes-256-gcm".into());
        campaign.runs[0].facts.version = "vpnd 9".into();
        campaign.runs[0].facts.mtu = Some(1420);
        let text = table(&campaign, Unit::Mbit);
        for expected in ["Mbit/s", "16320", "of vpnd", "2.94", "vpnd 9", "MTU 1420"] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
    }

    #[test]
    fn a_run_that_went_past_the_vpn_shows_its_problem_and_no_figure() {
        let mut campaign = samples::campaign();
        campaign.runs.truncate(1);
        campaign.runs[0].carried[0].tunnel.sent.bytes = 0;
        let text = table(&campaign, Unit::Gbit);
        assert!(text.contains("only 75 % of the bytes went through the tunnel"), "{text}");
        assert!(!text.contains("Gbit/s"), "{text}");
    }

    #[test]
    fn nothing_measured_is_said_without_an_empty_table() {
        let mut campaign = samples::campaign();
        campaign.runs.retain(|run| run.error.is_some());
        campaign.interrupted = true;
        let text = table(&campaign, Unit::Gbit);
        assert!(!text.contains("communication") && text.contains("Interrupted"), "{text}");
    }
}
