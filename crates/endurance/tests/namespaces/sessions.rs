//! Many sessions of the real `vpnd` from one process, and back after each kind of restart and an
//! upgrade of its gateway.
//!
//! ```text
//!   one process ── eth0 ─── gateway (vpnd server)        a hundred sessions, no TUN device but the gateway's
//! ```

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{can_run, endurance, measured, namespaces_of, real_vpnd, run};

#[test]
fn ctrl_c_ends_it_shows_what_was_measured_and_leaves_nothing() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let line = format!("sessions --count 20 --users 2 --idle 60 --json --vpnd {}", program.display());
    let child = endurance(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it was built");
    let deadline = Instant::now() + Duration::from_secs(60);
    while namespaces_of(child.id()).is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(1500));
    let pid = child.id();
    assert!(!namespaces_of(pid).is_empty(), "it runs");
    kill_process(Pid::from_raw(pid.cast_signed()).expect("a process"), Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{words}");
    assert_eq!(namespaces_of(pid), [""; 0]);
    if output.stdout.is_empty() {
        // On a busy machine nothing may have been measured yet.
        assert!(words.contains("interrupted"), "{words}");
        return;
    }
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report["interrupted"], true, "{report:#}");
}

#[test]
fn a_hundred_sessions_log_in_carry_packets_and_reattach() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let line = format!(
        "sessions --count 100 --users 4 --talkers 10 --idle 2 --patience 60 --restart kill,clean,upgrade --json --vpnd {}",
        program.display()
    );
    let report = measured(&line);
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    let login = &report["login"];
    assert_eq!((&login["storm"]["up"], &login["answered"]), (&100.into(), &100.into()), "{report:#}");
    assert_eq!(login["storm"]["logins"], 100);
    let (sent, answered) = (report["talked"][0].as_u64(), report["talked"][1].as_u64());
    assert!(sent >= Some(10) && answered > Some(0) && answered <= sent, "{sent:?} {answered:?}");
    let restarts = report["restarts"].as_array().expect("restarts");
    let kinds: Vec<_> = restarts.iter().filter_map(|restart| restart["how"].as_str()).collect();
    assert_eq!(kinds, ["kill", "clean", "upgrade"]);
    let watched = |when: &str| {
        let seen = &restarts[2]["watched"][when];
        (seen["sent"].as_u64(), seen["answered"].as_u64(), seen["gap_ms"].as_f64())
    };
    for when in ["before", "meanwhile"] {
        let (sent, answered, gap_ms) = watched(when);
        assert!(answered > Some(100) && answered <= sent, "{when}: {:#}", restarts[2]);
        assert!(gap_ms > Some(0.0) && gap_ms < Some(10_000.0), "{when}: {:#}", restarts[2]);
    }
    for restart in restarts {
        let phase = &restart["phase"];
        assert_eq!((&phase["storm"]["up"], &phase["answered"]), (&100.into(), &100.into()), "{restart:#}");
        assert_eq!((&phase["storm"]["logins"], &phase["storm"]["gave_up"]), (&0.into(), &0.into()));
        // The processes of before an upgrade take along what they used.
        assert_eq!(
            phase["gateway_cpu_seconds"].as_f64() > Some(0.0),
            restart["how"] != "upgrade",
            "{restart:#}"
        );
        assert!(phase["memory"]["pss_kib"].as_u64() > Some(1_000));
    }
    // The share of others is reported for each phase. CPU time of a killed gateway is not in it,
    // so no share is beyond the whole.
    let phases = restarts.iter().map(|restart| &restart["phase"]).chain([login, &report["idle"]]);
    for taken in phases.map(|phase| &phase["taken"]) {
        let share = |of: &str| taken[of].as_f64().is_some_and(|percent| (0.0..=100.0).contains(&percent));
        // The kernel counts in ticks: of a phase that is shorter nothing is known.
        assert!(taken["steal"].is_null() || (share("steal") && share("others")), "{report:#}");
    }
    assert!(
        login["taken"]["others"].is_number() && report["idle"]["taken"]["others"].is_number(),
        "{report:#}"
    );
    assert!(report["machine"]["seconds"].as_f64() > Some(0.0), "{report:#}");
}

#[test]
fn a_gateway_that_is_missing_is_named_before_anything_is_made() {
    if !can_run() {
        return;
    }
    let output = run("sessions --count 2 --vpnd /nonexistent/vpnd");
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("/nonexistent/vpnd"), "{words}");
    assert_eq!(namespaces_of(std::process::id()), [""; 0]);
}

#[test]
fn results_of_an_earlier_run_stay_unless_they_may_be_replaced() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().display();
    for (name, line) in [
        (
            "sessions.json",
            format!("sessions --count 2 --vpnd {} --out {out}/sessions.json", program.display()),
        ),
        ("capacity.json", format!("capacity --sessions 2 --program vpnd={} --out {out}", program.display())),
        ("soak.csv", format!("soak --hours 0.001 --vpnd {} --out {out}", program.display())),
    ] {
        let file = directory.path().join(name);
        std::fs::write(&file, "an hour's work").expect("it is writable");
        let output = run(&line);
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {words}");
        assert!(words.contains("--force") && words.contains(name), "{line}: {words}");
        assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "an hour's work");
        std::fs::remove_file(file).expect("it is there");
    }
    let file = directory.path().join("sessions.json");
    std::fs::write(&file, "an hour's work").expect("it is writable");
    let line = format!(
        "sessions --count 2 --idle 1 --restart none --vpnd {} --out {} --force",
        program.display(),
        file.display()
    );
    measured(&(line + " --json"));
    assert!(std::fs::read_to_string(file).expect("it is there").contains("\"login\""));
}
