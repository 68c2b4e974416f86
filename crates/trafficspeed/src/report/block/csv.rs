//! The cases of the block experiment as CSV. New columns go behind the others, before those of the place.

use crate::experiment::block::{BlockReport, Case, Route};
use crate::report::csv::with_place;

const COLUMNS: usize = 23;

const HEAD: [&str; COLUMNS] = [
    "link_bits_per_second",
    "target_cores",
    "delay_ms",
    "block_bytes",
    "way",
    "run",
    "bytes_per_second",
    "target_cpu_percent",
    "acknowledged",
    "verified",
    "blocks_per_sync",
    "problem",
    "congestion",
    "steal_percent",
    "others_percent",
    "sealed_with",
    "tunnel_cipher",
    "round_trips",
    "turn",
    "writer_cpu_seconds",
    "target_cpu_seconds",
    "writer_vpn_cpu_seconds",
    "gateway_vpn_cpu_seconds",
];

/// The cases as CSV, a line each, in the order in which they were measured.
pub fn csv(report: &BlockReport) -> String {
    csv_of(std::slice::from_ref(report))
}

/// The cases of several reports.
pub(super) fn csv_of(reports: &[BlockReport]) -> String {
    let rows = reports.iter().flat_map(|report| {
        let cases = report.cases.iter().zip(1..);
        cases.map(move |(case, turn)| (cells(report, case, turn), &report.environment))
    });
    with_place(HEAD, rows)
}

fn cells(report: &BlockReport, case: &Case, turn: u32) -> [String; COLUMNS] {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
    // A case has the cipher that protected its own blocks.
    let on = |route: Route, cipher: &str| {
        if case.way.route == route { cipher.to_owned() } else { String::new() }
    };
    let seconds = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.6}"));
    let ends = case.ends_cpu_seconds;
    // Without the tunnel there is no VPN to count.
    let vpn = case.vpn_cpu_seconds().filter(|_| case.way.route == Route::Tunnel);
    [
        report.rate_bits.map_or(String::new(), |bits| bits.to_string()),
        number(report.cores),
        case.delay_ms.to_string(),
        case.block_bytes.to_string(),
        case.way.name(),
        case.repeat.to_string(),
        number(case.bytes_per_second),
        number(case.target_cpu_percent),
        case.acknowledged.to_string(),
        case.verified.to_string(),
        format!("{:.2}", case.blocks_per_sync),
        case.problem.clone().unwrap_or_default(),
        report.congestion.to_string(),
        number(case.cpu.and_then(|cpu| cpu.steal_percent())),
        number(case.cpu.and_then(|cpu| cpu.foreign_percent())),
        on(Route::Sealed, report.sealing.name()),
        on(Route::Tunnel, &report.facts.cipher),
        if report.ready_first { "2" } else { "1" }.into(),
        turn.to_string(),
        seconds(ends.map(|[writer, _]| writer)),
        seconds(ends.map(|[_, target]| target)),
        seconds(vpn.map(|[near, _]| near)),
        seconds(vpn.map(|[_, gateway]| gateway)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::block::Way;
    use crate::experiment::block::tests::{repeated, sample};
    use crate::load::block::seal::Sealing;

    fn read(report: &BlockReport, way: Way, columns: [&str; 3]) -> String {
        let case = report.cases.iter().find(|case| case.way == way).expect("measured");
        let cells = cells(report, case, 1);
        let at = |name: &str| HEAD.iter().position(|column| *column == name).expect("a column");
        columns.map(|name| cells[at(name)].clone()).join(",")
    }

    #[test]
    fn csv_tells_the_cipher_of_each_case_and_the_round_trips_of_a_block() {
        let mut report = sample();
        (report.sealing, report.facts.cipher) = (Sealing::ChaCha20Poly1305, "aes-128-gcm".into());
        let ends = |report: &BlockReport, way: Way| {
            read(report, way, ["sealed_with", "tunnel_cipher", "round_trips"])
        };
        assert_eq!(ends(&report, Way::sealed(2)), "chacha20-poly1305,,1");
        assert_eq!(ends(&report, Way::PLAIN), ",,1");
        report.ready_first = true;
        assert_eq!(ends(&report, Way::TUNNEL), ",aes-128-gcm,2");
    }

    #[test]
    fn csv_has_the_cpu_time_of_both_ends_and_of_the_vpn_where_it_carried_the_blocks() {
        let mut report = sample();
        let ends = |report: &BlockReport, way| {
            read(report, way, ["writer_cpu_seconds", "target_cpu_seconds", "run"])
        };
        let vpn = |report: &BlockReport, way| {
            read(report, way, ["writer_vpn_cpu_seconds", "gateway_vpn_cpu_seconds", "run"])
        };
        assert_eq!(ends(&report, Way::PLAIN), "0.010000,0.020000,1");
        assert_eq!(
            (vpn(&report, Way::TUNNEL), vpn(&report, Way::PLAIN)),
            ("0.030000,0.040000,1".to_owned(), ",,1".to_owned())
        );
        report.cases.iter_mut().for_each(|case| case.ends_cpu_seconds = None);
        assert_eq!(ends(&report, Way::PLAIN), ",,1", "older reports do not know");
    }

    #[test]
    fn every_repeat_has_its_line_with_its_place_in_the_order() {
        let report = repeated(sample(), 3);
        let text = csv(&report);
        let mut lines = csv::Reader::from_reader(text.as_bytes());
        let head = lines.headers().expect("a head").clone();
        let at = |name: &str| head.iter().position(|column| column == name).expect("a column");
        let (turn, run) = (at("turn"), at("run"));
        let found: Vec<(String, String)> = lines
            .records()
            .map(|record| record.expect("a line"))
            .map(|record| (record[turn].to_owned(), record[run].to_owned()))
            .collect();
        let expected = report.cases.iter().zip(1..);
        let expected: Vec<(String, String)> =
            expected.map(|(case, turn): (_, u32)| (turn.to_string(), case.repeat.to_string())).collect();
        assert_eq!(found, expected);
        assert_eq!(head.iter().take(6).last(), Some("run"), "older columns stay where they were");
    }
}
