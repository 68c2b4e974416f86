//! The generators' own commands, over plain routing and through the real `vpnd`.
//!
//! ```text
//!   client 1 ══ gateway            or   client 1 ══ gateway ══ client 2
//! ```

use std::time::Duration;

use serde_json::Value;

use super::vpn::real_vpnd;
use super::{can_run, interrupted, measured, namespaces_of, number, run, start, trafficspeed, wait_until};

/// The figures of the first run's task number `at`.
fn task(report: &Value, at: usize) -> &Value {
    assert_eq!(report["whole"], true, "{report:#}");
    &report["runs"][0]["figures"][at]
}

#[test]
fn streams_run_both_ways_with_a_ping() {
    if !can_run() {
        return;
    }
    let out = tempfile::tempdir().expect("a directory");
    let line =
        "stream --vpn none --no-control --bidir --ping -P 2 --repeat 1 -t 1 -O 0.1 -i 0.25 -M 1334 -J --out";
    let report = measured(&format!("{line} {}", out.path().display()));
    for at in 0..2 {
        let stream = task(&report, at);
        assert!(number(&stream["received_bits_per_second"]) > 1e6, "{stream:#}");
        assert_eq!(stream["mss"], 1322, "time stamps take 12 bytes: {stream:#}");
        let intervals = stream["series"].as_array().expect("intervals");
        assert_eq!(intervals.len(), 4);
        // A busy machine may move nothing for a quarter of a second.
        assert!(intervals.iter().any(|point| number(&point["received_bits_per_second"]) > 0.0));
    }
    let ping = &task(&report, 2)["round_trip"];
    assert!(number(&ping["count"]) >= 5.0 && number(&ping["p50_us"]) > 0.0, "{ping:#}");
    assert!(run(&format!("report {} --flent -J", out.path().display())).status.success());
    let file = std::fs::read(out.path().join("001.flent")).expect("a file for the run");
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    for name in ["TCP download", "TCP upload", "Ping (ms) ICMP"] {
        assert_eq!(file["results"][name].as_array().map(Vec::len), Some(4), "{file:#}");
    }
}

#[test]
fn what_was_measured_is_shown_where_the_disk_is_full() {
    if !can_run() {
        return;
    }
    let disk = tempfile::tempdir().expect("a directory");
    let line = "udp --vpn none --no-control -b 4M --repeat 1 -t 0.5 -O 0.1 -J --out";
    let measurement = trafficspeed(line);
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs -o size=4k tmpfs \"$0\" && exec \"$@\""]);
    command.arg(disk.path()).arg(measurement.get_program()).args(measurement.get_args());
    let output = command.arg(disk.path().join("out")).output().expect("the program was built");
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert_eq!(words.matches("No space left on device").count(), 1, "{words}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is shown");
    assert!(number(&task(&report, 0)["messages"]) > 0.0, "{report:#}");
}

#[test]
fn requests_and_datagrams_are_counted_over_both_ip_versions() {
    if !can_run() {
        return;
    }
    let report =
        measured("rr -u --vpn none --no-control --size 516/4 --repeat 1 -t 0.5 -O 0 --ip 6 --to client -J");
    let figures = task(&report, 0);
    assert!(number(&figures["transactions_per_second"]) > 50.0, "{figures:#}");
    assert_eq!(figures["timeouts"], 0);

    let report = measured("udp --vpn none --no-control -b 4M -l 500 -R --repeat 1 -t 1 -O 0.1 -J");
    let udp = task(&report, 0);
    // A busy machine may send late, but never more than it was told.
    let packets = number(&udp["messages"]);
    assert!(packets > 100.0 && packets <= 1_010.0, "{udp:#}");
    assert_eq!(number(&udp["lost"]), 0.0, "{udp:#}");
    assert!(number(&udp["delay"]["p50_us"]) > 0.0);
}

#[test]
fn a_search_ends_with_a_rate_that_was_carried() {
    if !can_run() {
        return;
    }
    let report =
        measured("udp --vpn none --no-control --search --search-loss 5 -l 64 --repeat 1 -t 0.2 -O 0 -J");
    let search = &report["runs"][0]["search"];
    let best = number(&search["packets_per_second"]);
    let trials = search["trials"].as_array().expect("trials");
    let carried = trials.iter().filter(|trial| trial["carried"] == true);
    let fastest = carried.map(|trial| number(&trial["received_per_second"])).fold(0.0, f64::max);
    assert!(best > 0.0 && (best - fastest).abs() < 1e-6, "{search:#}");
    assert!(trials.iter().all(|trial| trial["carried"] == false || number(&trial["lost_percent"]) <= 5.0));
}

/// Datagrams longer than a packet: each trial that is too fast leaves fragments behind.
#[test]
fn a_search_with_fragments_finds_what_a_narrow_link_carries() {
    if !can_run() {
        return;
    }
    let report = measured(
        "udp --vpn none --no-control --search --search-loss 5 -l 4096 --rate 200mbit --repeat 1 -t 0.3 -O 0 -J",
    );
    let search = &report["runs"][0]["search"];
    let found = number(&search["bits_per_second"]);
    assert!((100e6..250e6).contains(&found), "{search:#}");
    let tried = search["trials"].as_array().expect("trials");
    assert!(tried.iter().any(|trial| number(&trial["lost_percent"]) > 50.0), "{search:#}");
}

#[test]
fn the_real_vpnd_carries_streams_requests_and_datagrams_to_the_gateway() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let vpnd = format!("--vpn vpnd --vpnd {} -O 0.1 -J", program.display());
    let report = measured(&format!("stream {vpnd} --repeat 1 -t 0.5 -R"));
    assert!(number(&task(&report, 0)["received_bits_per_second"]) > 1e6, "{report:#}");
    let labels: Vec<_> = report["runs"].as_array().expect("runs").iter().map(|run| &run["label"]).collect();
    assert_eq!(labels, ["vpnd", "vpnd (again)"], "measured against itself");
    assert!(number(&report["observed"]["comparison"][0]["control"]["median"]) > 0.0, "{report:#}");
    let report = measured(&format!("rr {vpnd} --no-control --repeat 1 -t 0.5 --ip 6 --no-encryption"));
    assert!(number(&task(&report, 0)["transactions_per_second"]) > 10.0, "{report:#}");
    assert_eq!(report["runs"][0]["subject"]["cipher"], "none");
}

#[test]
fn ctrl_c_shows_what_was_measured_so_far() {
    if !can_run() {
        return;
    }
    let child = start("stream --vpn none --no-control --repeat 1 -t 60 -O 0 -i 0.1 -J");
    let pid = child.id();
    wait_until("the agents are there", || super::agents_of(pid).len() == 2);
    std::thread::sleep(Duration::from_millis(1500));
    let report = interrupted(child);
    let figures = &report["runs"][0]["figures"][0];
    assert!(number(&figures["received_bits_per_second"]) > 0.0, "{report:#}");
    assert_eq!(namespaces_of(pid), [""; 0]);
}

#[test]
fn a_missing_system_is_said_and_a_table_has_definitions() {
    if !can_run() {
        return;
    }
    let output = run("stream --vpn vpnd --vpnd /nonexistent/vpnd -t 1");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/vpnd"));
    let output = run("udp --vpn none -t 0.3 -O 0 -f k");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("RFC 3550") && table.contains("kbit/s"), "{table}");
}
