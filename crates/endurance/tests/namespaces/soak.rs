//! The short form of `./x soak`: the same churn, in seconds.
//!
//! ```text
//!   two processes of sessions ── eth0 ─── gateway (vpnd server)      thirty sessions that come, go, move, and are killed
//! ```

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{PROGRAM, can_run, namespaces_of, real_vpnd};

const LINE: &str =
    "--clients 30 --users 4 --every 6 --kill-every 5 --rekey-after 4 --sample 1 --warm-up 2 --quiet";

fn soak(hours: &str, out: &std::path::Path) -> Option<Command> {
    let mut command = Command::new(PROGRAM);
    command.args(["soak", "--hours", hours, "--seed", "11"]).args(LINE.split(' ')).arg("--out").arg(out);
    command.arg("--vpnd").arg(real_vpnd()?);
    Some(command)
}

#[test]
fn a_quarter_of_a_minute_of_churn_leaves_nothing_behind_and_nothing_unexplained() {
    if !can_run() {
        return;
    }
    let out = tempfile::tempdir().expect("a directory");
    let Some(mut command) = soak("0.004", out.path()) else { return };
    let output = command.output().expect("the program was built");
    let words =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let text = std::fs::read_to_string(out.path().join("soak.json")).expect("the report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&report["unexplained"], &report["interrupted"]), (&0.into(), &false.into()), "{words}");
    assert!(report["kills"].as_u64() >= Some(1), "{words}");
    for deed in ["left", "roamed", "rekeyed", "rebound", "logins", "attaches", "answered"] {
        assert!(report["done"][deed].as_u64() > Some(0), "{deed}: {words}");
    }
    let last = report["samples"].as_array().and_then(|samples| samples.last()).expect("a sample");
    assert_eq!(
        (&last["sessions"], &last["up"], &last["away"]),
        (&30.into(), &30.into(), &0.into()),
        "{words}"
    );
    assert!(last["descriptors"].as_u64() > Some(10) && last["threads"].as_u64() > Some(2), "{last}");
    let csv = std::fs::read_to_string(out.path().join("soak.csv")).expect("the samples");
    assert!(csv.starts_with("second,pss_kib,") && csv.lines().count() > 5, "{csv}");
    for picture in ["soak.svg", "soak-descriptors.svg", "soak-sessions.svg"] {
        assert!(out.path().join(picture).is_file(), "{picture}: {words}");
    }
}

#[test]
fn an_interrupted_soak_cleans_up_and_reports_its_results() {
    if !can_run() {
        return;
    }
    let out = tempfile::tempdir().expect("a directory");
    let Some(mut command) = soak("1", out.path()) else { return };
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program was built");
    let (pid, csv) = (child.id(), out.path().join("soak.csv"));
    let deadline = Instant::now() + Duration::from_secs(60);
    let rows = || std::fs::read_to_string(&csv).unwrap_or_default().lines().count();
    while rows() < 5 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!namespaces_of(pid).is_empty(), "it runs");
    kill_process(Pid::from_raw(pid.cast_signed()).expect("a process"), Signal::INT).expect("it runs");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    assert_eq!(namespaces_of(pid), [""; 0]);
    let text = std::fs::read_to_string(out.path().join("soak.json")).expect("the report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["interrupted"], true);
}
