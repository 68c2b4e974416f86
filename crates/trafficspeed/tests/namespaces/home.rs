//! Real paths: everything at once over an emulated link, over plain routing and through the real
//! `vpnd`.
//!
//! ```text
//!   client 1 (TAP eth0) ══ emulator ══ (TAP c1) gateway        a download, an upload, a call, pages
//! ```
//!
//! Judged are bounds that the link sets, and counts that no busy machine changes.

use serde_json::Value;

use super::vpn::real_vpnd;
use super::{can_run, measured, number, report_again, run};

/// A figure of a system's flow beside all others: the median of its rounds, or of what is counted
/// the sum.
fn observed(report: &Value, system: &str, flow: &str, quantity: &str) -> f64 {
    let case = format!("{flow}, all at once");
    let all = report["observed"]["summary"].as_array().expect("a summary");
    let is_it =
        |one: &&Value| one["system"] == system && one["case"] == case.as_str() && one["quantity"] == quantity;
    let found = all.iter().find(is_it);
    let found = found.unwrap_or_else(|| panic!("no {system}, {case}, {quantity} in {report:#}"));
    found["sum"].as_f64().unwrap_or_else(|| number(&found["median"]))
}

const CALL: [&str; 4] = ["voice down", "voice up", "video down", "video up"];

/// Bounds of a link of 10 ms ± 2 ms, 2 % of losses and 20 Mbit/s with a queue of 50 ms.
fn check_bounds(report: &Value, system: &str) {
    let figure = |flow: &str, quantity: &str| observed(report, system, flow, quantity);
    for flow in CALL {
        assert!(figure(flow, "delay p50") >= 8_000.0, "{system}, {flow}: {report:#}");
        // Nothing that keeps the order below reorders above.
        assert_eq!(figure(flow, "out of order"), 0.0, "{system}, {flow}");
    }
    for flow in ["download", "upload"] {
        let rate = figure(flow, "received");
        assert!(rate > 10_000.0 && rate < 20e6, "{system}, {flow}: {rate}");
    }
    // Over 20 ms to and fro, with answers of a megabyte at 20 Mbit/s.
    assert_eq!(figure("pages", "pages"), 2.0, "{report:#}");
    assert!(figure("pages", "page p50") > 420_000.0, "{report:#}");
}

/// Losses of a case's frames on the link, in percent, up and down.
fn link_losses(run: &Value) -> [f64; 2] {
    [0, 1].map(|way| {
        let cases = run["cases"].as_array().expect("cases");
        let sum = |name: &str| cases.iter().map(|case| number(&case["link"][way][name])).sum::<f64>();
        assert_eq!(sum("spoilt"), 0.0, "{run:#}");
        100.0 * sum("lost") / sum("entered")
    })
}

#[test]
fn a_home_gets_no_more_than_its_link_gives_through_a_vpn_and_without() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let report = measured(&format!(
        "home --vpn none,vpnd --no-control --repeat 1 -t 2 -O 1.5 --alone 0 --delay 10ms --loss 2% --rate 20mbit --queue 50ms -J \
         --vpnd {} --out {}",
        program.display(),
        directory.path().display()
    ));
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    assert_eq!(report["settings"]["queue"][1], "50 ms");
    for (system, run) in ["plain routing", "vpnd"].into_iter().zip(report["runs"].as_array().expect("runs")) {
        check_bounds(&report, system);
        assert_eq!(run["cases"].as_array().map(Vec::len), Some(1));
        // Among some thousand frames; losses hit those of every system alike.
        for lost in link_losses(run) {
            assert!((0.8..4.0).contains(&lost), "{system}: {lost} % lost, {run:#}");
        }
    }
    // The client's and the gateway's processes are those of the VPN alone.
    let gateway = |run: usize| number(&report["runs"][run]["cases"][0]["cpu"]["gateway"]);
    assert!(gateway(0) == 0.0 && gateway(1) > 0.0, "{report:#}");
    assert_eq!(number(&report["link"]["up"]["probes"]["overtaken"]), 0.0);
    let pictures = report_again(directory.path(), &report);
    assert_eq!(pictures, ["download.svg", "pages.svg", "upload.svg", "voice-down.svg", "voice-up.svg"]);
}

#[test]
fn each_part_is_measured_alone_too_and_a_table_says_what_its_words_mean() {
    if !can_run() {
        return;
    }
    let line =
        "home --vpn none --no-control --repeat 1 -t 2 -O 1.5 --alone 2 --delay 2ms --jitter 0 --loss 0%";
    let output = run(line);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table} {}", String::from_utf8_lossy(&output.stderr));
    for expected in [
        "download alone",
        "call alone",
        "RFC 4737",
        "Link alone, down: delay 2.00 ± 0.000 ms asked for",
        "queue of 100 ms",
    ] {
        assert!(table.contains(expected), "{expected} is missing in {table}");
    }
}

#[test]
fn a_link_that_cannot_be_is_refused_before_anything_is_made() {
    if !can_run() {
        return;
    }
    let output = run("home --vpn none --delay 1ms");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && words.contains("before they were sent"), "{words}");
}

#[test]
fn reordered_and_late_packets_are_reported() {
    if !can_run() {
        return;
    }
    let report = measured(
        "home --vpn none --no-control --repeat 1 -t 2 -O 1.5 --alone 0 --delay 160ms --loss 0% --reorder 20% --reorder-late 20ms -J",
    );
    for flow in CALL {
        let figure = |quantity: &str| observed(&report, "plain routing", flow, quantity);
        // Each is under way for 158 ms at least, and of no use after 150.
        assert_eq!(figure("missed"), 100.0, "{report:#}");
        assert!(figure("lost") < 50.0, "{report:#}");
        // Ten packets at once leave late ones behind.
        assert!(flow.starts_with("voice") || figure("out of order") > 0.0, "{report:#}");
    }
}
