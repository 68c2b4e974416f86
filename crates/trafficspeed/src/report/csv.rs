//! One CSV line per run, for spreadsheets and statistics programs; and the columns that every CSV of figures ends with.

use super::summary::limit_percent;
use crate::csv_table;
use crate::experiment::environment::Environment;
use crate::experiment::outcome::{Campaign, RemoteEnd, Run, Settings};
use crate::lab::cpu_limit::CpuLimit;

/// The last columns of every CSV: a line has to tell by itself where it was measured.
const PLACE: [&str; 2] = ["links", "machine"];

/// Lines of figures, each with the links and the machine on which they were measured.
pub fn with_place<'a, const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = ([String; N], &'a Environment)>,
) -> String {
    let place =
        |environment: &Environment| [environment.links.clone().unwrap_or_default(), environment.machine()];
    csv_table::joined((head, PLACE), rows.into_iter().map(|(row, environment)| (row, place(environment))))
}

const COLUMNS: usize = 31;

const HEADER: [&str; COLUMNS] = [
    "system",
    "clients",
    "repeat",
    "started_utc",
    "seconds",
    "communication_bits_per_second",
    "goodput_bits_per_second",
    "received_bytes",
    "sent_bytes",
    "jain_streams",
    "jain_pairs",
    "gateway_cpu_seconds",
    "client_cpu_seconds",
    "generator_cpu_seconds",
    "gbit_per_gateway_cpu_second",
    "host_busy_percent",
    "host_steal_percent",
    "host_foreign_percent",
    "gateway_cpu_seconds_per_gbit",
    "vpn_cpu_seconds_per_gbit",
    "attempt",
    "whole",
    "problems",
    "congestion",
    "cipher",
    "streams_per_pair",
    "ip",
    "to",
    "verify",
    "gateway_cpu_limit_cores",
    "gateway_cpu_limit_used_percent",
];

/// The runs of a campaign as CSV with a header.
pub fn csv(campaign: &Campaign) -> String {
    let limit = campaign.environment.gateway_cpu;
    let fields = |run| (fields(run, &campaign.settings, limit), &campaign.environment);
    with_place(HEADER, campaign.runs.iter().map(fields))
}

fn fields(run: &Run, settings: &Settings, limit: Option<CpuLimit>) -> [String; COLUMNS] {
    let optional = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.6}"));
    let cpu = run.cpu;
    [
        run.label.clone(),
        run.clients.to_string(),
        run.repeat.to_string(),
        run.started.clone(),
        format!("{:.6}", run.seconds()),
        format!("{:.0}", run.communication()),
        format!("{:.0}", run.goodput()),
        run.received().to_string(),
        run.sent().to_string(),
        optional(run.stream_fairness()),
        optional(run.pair_fairness()),
        optional(cpu.map(|cpu| cpu.gateway)),
        optional(cpu.map(|cpu| cpu.clients)),
        optional(cpu.map(|cpu| cpu.generators)),
        optional(run.gbit_per_gateway_second()),
        optional(run.busy_percent()),
        optional(run.steal_percent()),
        optional(run.foreign_percent()),
        optional(run.seconds_per_gbit().map(|(gateway, _)| gateway)),
        optional(run.seconds_per_gbit().map(|(_, all)| all)),
        run.attempt.to_string(),
        run.is_whole().to_string(),
        run.problems().join("; "),
        settings.congestion.to_string(),
        run.facts.cipher.clone(),
        settings.streams.to_string(),
        settings.ip.to_string(),
        match settings.far {
            RemoteEnd::Gateway => "gateway".to_owned(),
            RemoteEnd::Client => "client".to_owned(),
        },
        settings.verify.to_string(),
        optional(limit.map(CpuLimit::cores)),
        optional(limit.and_then(|limit| limit_percent(run, limit))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;

    #[test]
    fn every_run_is_a_line_with_as_many_fields_as_the_header() {
        let text = csv(&samples::campaign());
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 20);
        assert!(
            lines[2].starts_with("plain routing,2,1,2026-01-01T00:00:00Z,2.000000,48000000000,24000000000,")
        );
        assert!(lines[1].starts_with("\"vpnd, aes-256-gcm\",2,1,"));
        assert!(lines.iter().skip(1).all(|line| line.contains(",cubic,") && line.contains(",client,false,")));
        assert!(lines[1].contains(",client,false,,,"), "no limit: {}", lines[1]);
        let mut limited = samples::campaign();
        limited.environment.gateway_cpu = Some("1".parse().unwrap());
        let limited = csv(&limited);
        assert!(limited.lines().nth(1).unwrap().contains(",client,false,1.000000,50.000000,"), "{limited}");
        assert!(lines[19].contains("\"vpnd <did> not come up & \"\"died\"\"\""), "{}", lines[19]);
    }
}
