//! Emulated links between real namespaces.
//!
//! ```text
//!   client 1 (TAP eth0) ══ emulator ══ (TAP c1) gateway
//! ```
//!
//! Judged are lower bounds of delays, order, and counts that the seed decides: none depends on how
//! busy the machine is.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use trafficspeed::lab::cpu_limit::{self, CpuLimit};

use super::{can_run, measured, namespaces_of, report_of, run, start, wait_until};

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} is missing in {value:#}"))
}

#[test]
fn packets_take_at_least_the_delay_asked_for_each_way_and_keep_their_order() {
    if !can_run() {
        return;
    }
    let checked = measured("link-check --delay 20ms --delay-down 5ms -t 1 --probes 200 -J");
    for (way, delay_us) in [("up", 20_000.0), ("down", 5_000.0)] {
        let shortest = number(&checked, &format!("/{way}/probes/delay/min_us"));
        // Histograms keep three digits.
        assert!(shortest >= delay_us * 0.999, "{way}: {shortest} us");
        assert_eq!(number(&checked, &format!("/{way}/probes/overtaken")), 0.0);
        assert_eq!(number(&checked, &format!("/{way}/probes/arrived")), 200.0);
        assert_eq!(number(&checked, &format!("/{way}/emulator/overrun")), 0.0);
        assert!(number(&checked, &format!("/{way}/bits_per_second")) > 0.0, "TCP crosses");
    }
    assert_eq!(checked["super_packets"], true);
}

#[test]
fn chance_does_what_was_asked_for_and_the_rate_is_not_exceeded() {
    if !can_run() {
        return;
    }
    let line = "link-check --loss 20% --reorder 10% --reorder-late 30ms --rate 8mbit -t 2 --probes 500 -J";
    let checked = measured(line);
    for way in ["up", "down"] {
        // Out of 1,000 packets; the standard deviations are about 13 and 9.
        let lost = 1000.0 - number(&checked, &format!("/{way}/probes/arrived"));
        assert!((130.0..280.0).contains(&lost), "{way}: {lost} lost");
        assert_eq!(number(&checked, &format!("/{way}/probes/twice")), 0.0);
        assert!(number(&checked, &format!("/{way}/probes/overtaken")) > 20.0);
        let rate = number(&checked, &format!("/{way}/bits_per_second"));
        // Losses leave 80 % of the rate.
        assert!(rate < 8_000_000.0, "{way}: {rate} bit/s");
        // The kernel may refuse a packet or two while the machine is busy.
        assert!(number(&checked, &format!("/{way}/emulator/refused")) < 10.0);
    }
    assert_eq!(checked["super_packets"], false);
}

#[test]
fn an_experiment_runs_over_emulated_links_reports_them_and_leaves_nothing() {
    if !can_run() {
        return;
    }
    let line = "--clients 2 --vpn none -P 2 -t 1 -O 0 --verify --json --delay 3ms --ip 6";
    let child = start(line);
    let pid = child.id();
    let report = report_of(child, 0);
    assert_eq!(report["whole"], true, "{report:#}");
    let links = report["environment"]["links"].as_str().expect("links");
    assert!(links.contains("each way delay 3 ms"), "{links}");
    assert!(report["runs"][0]["facts"]["notes"].to_string().contains("emulated links, down"), "{report:#}");
    assert_eq!(namespaces_of(pid), [""; 0]);
}

#[test]
fn settings_that_contradict_each_other_are_refused_before_anything_is_made() {
    if !can_run() {
        return;
    }
    for (line, expected) in
        [("--delay 1ms --jitter 2ms", "before they were sent"), ("--delay 1ms --queue 10p", "needs a rate")]
    {
        let output = run(&format!("--clients 2 --vpn none -t 1 {line}"));
        assert_eq!(output.status.code(), Some(2), "{line}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected), "{line}: {said}");
    }
}

#[test]
fn a_cpu_limit_is_removed_with_what_has_forked_away_from_its_namespace() {
    if !can_run() {
        return;
    }
    let limit: CpuLimit = "50%".parse().expect("a limit");
    if let Err(error) = limit.check() {
        eprintln!("\n*** SKIPPED: {error} ***\n");
        return;
    }
    let name = format!("test{}", std::process::id());
    for _ in 0..2 {
        limit.apply(&name).expect("a group");
        let group =
            ["", "/cpu", "/cpu,cpuacct"].map(|place| format!("/sys/fs/cgroup{place}/trafficspeed-{name}"));
        let group = group.iter().find(|group| Path::new(group).is_dir()).expect("the group");
        // One process is not waited for, so it stays in the group when its parent is ended.
        let script = format!("echo $$ > '{group}/cgroup.procs'; sleep 1000 & exec sleep 1000");
        let mut child = Command::new("sh").args(["-c", &script]).spawn().expect("sh runs");
        let ids = || fs::read_to_string(format!("{group}/cgroup.procs")).unwrap_or_default();
        wait_until("both are in the group", || ids().lines().count() == 2);
        cpu_limit::remove(&name).expect("it is empty soon");
        assert!(!child.wait().expect("it is ours").success(), "it was killed");
    }
}
