//! The suites with the real `vpnd`, cut down to what a test needs.
//!
//! ```text
//!   client 1 ══ gateway, CPU hogs meanwhile
//! ```

use serde_json::Value;

use super::vpn::real_vpnd;
use super::{can_run, measured, report_again, run};

/// The medians of a quantity, of all systems and cases of a section.
fn medians(report: &Value, section: &str, quantity: &str) -> Vec<f64> {
    let all = report["observed"]["summary"].as_array().expect("a summary").iter();
    let is_it = |one: &&Value| {
        one["quantity"] == quantity && one["case"].as_str().is_some_and(|case| case.starts_with(section))
    };
    all.filter(is_it).map(|one| one["median"].as_f64().expect("a median")).collect()
}

#[test]
fn ipsec_parts_are_measured_idle_and_with_hogs_and_written_as_reports() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let out = tempfile::tempdir().expect("a directory");
    let line = format!(
        "suite ipsec --quick --repeat 1 --no-control -t 1 -O 0 --part video --no-sweep --cipher auth-only --hogs 1 --vpnd {} --out {} -J",
        program.display(),
        out.path().display()
    );
    let report = measured(&line);
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    let received = medians(&report, "Live video over UDP", "received");
    // Two systems, idle and loaded.
    assert_eq!(received.len(), 4);
    assert!(received.iter().all(|packets| *packets > 0.0 && *packets < 4_000.0), "{received:?}");
    let hogs: Vec<_> =
        report["rows"].as_array().expect("rows").iter().map(|row| &row["case"]["hogs"]).collect();
    assert_eq!(hogs, [0, 1, 0, 1]);
    let loads = report["rows"].as_array().expect("rows").iter().map(|row| row["load_average"].is_number());
    assert_eq!(loads.collect::<Vec<_>>(), [false, true, false, true]);
    assert!(
        report["stages"][1]["facts"]["cipher"].as_str().is_some_and(|used| used.starts_with("auth-only"))
    );
    let html = std::fs::read_to_string(out.path().join("report.html")).expect("a page");
    assert!(html.contains("<svg") && html.contains("KAME"));
    let csv = std::fs::read_to_string(out.path().join("report.csv")).expect("CSV");
    for quantity in [",throughput,Mbit/s,", ",jitter (RFC 3550),ms,", ",steal,%,"] {
        assert_eq!(csv.matches(quantity).count(), 4, "{quantity}: {csv}");
    }
    assert_eq!(
        report_again(out.path(), &report),
        [
            "suite-1-1-delay.svg",
            "suite-1-1-jitter.svg",
            "suite-1-1.svg",
            "suite-1-2-delay.svg",
            "suite-1-2-jitter.svg",
            "suite-1-2.svg",
        ]
    );
}

#[test]
fn without_aes_instructions_vpnd_chooses_the_cipher_that_needs_none() {
    if !can_run() || std::env::consts::ARCH != "x86_64" {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let line = format!(
        "suite aead --quick -t 1 -O 0 --repeat 1 --no-control --code without-aes --cipher chacha20-poly1305 --vpnd {} -J",
        program.display()
    );
    let report = measured(&line);
    let choice = &report["choices"][0];
    let chosen = choice["chosen"].as_str().expect("a choice");
    assert!(chosen.starts_with("chacha20-poly1305") && chosen.contains("aws-lc"), "{choice:#}");
    assert_eq!(
        (&choice["fastest"], &choice["right"]),
        (&"chacha20-poly1305".into(), &Value::Null),
        "one round: {choice:#}"
    );
    let mss: Vec<_> =
        report["rows"].as_array().expect("rows").iter().map(|row| &row["figures"]["mss"]).collect();
    assert!(!mss.is_empty() && mss.iter().all(|mss| **mss == 1_322), "time stamps take 12 bytes: {mss:?}");
}

#[test]
fn flows_have_completion_times_and_packets_of_mixed_sizes_a_rate_in_every_report() {
    if !can_run() {
        return;
    }
    let out = tempfile::tempdir().expect("a directory");
    let line = "suite flows --quick --vpn none --repeat 1 --no-control -t 0.5 -O 0.1 -J --out";
    let report = measured(&format!("{line} {}", out.path().display()));
    for (section, quantity, count) in [
        ("Short flows, one after the other", "flow completion, 95 %", 3),
        ("Flows, 32 at a time", "flows", 2),
        ("UDP stream", "received", 1),
    ] {
        let found = medians(&report, section, quantity);
        assert!(found.len() == count && found.iter().all(|value| *value > 0.0), "{section}: {found:?}");
    }
    let csv = std::fs::read_to_string(out.path().join("report.csv")).expect("CSV");
    assert_eq!(csv.matches("\"flow completion, 99 %\",ms,").count(), 5, "{csv}");
    assert!(report_again(out.path(), &report).contains(&"suite-1-ipv4.svg".to_owned()));
}

#[test]
fn a_missing_program_and_unknown_names_are_said_before_anything_changes() {
    let output = run("suite ipsec --cipher rot13");
    assert!(String::from_utf8_lossy(&output.stderr).contains("chacha20-poly1305"));
    assert_eq!(output.status.code(), Some(2));
    for (line, known) in [("suite rot13", "ipsec, aead"), ("moon", "lab, compare, run")] {
        let output = run(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("unrecognized subcommand") && said.contains(known), "{said}");
        assert!(!said.contains("swarm"), "what is for trafficspeed itself is not offered: {said}");
    }
}
