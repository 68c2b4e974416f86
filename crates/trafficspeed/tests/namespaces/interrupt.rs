//! Ctrl-C in the middle of every kind of measurement: what was measured is shown, and nothing stays
//! behind.
//!
//! The plain experiment, `compare`, `stream` and block writes between hosts have their own tests
//! besides others.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::vpn::real_vpnd;
use super::{PROGRAM, can_run, cleaning, namespaces_of, run, signal, start, wait_until};

/// Starts a measurement that takes minutes and waits until its lab stands and something runs in it.
fn start_lab(line: &str) -> Child {
    let child = start(line);
    wait_until("its lab stands", || !namespaces_of(child.id()).is_empty());
    std::thread::sleep(Duration::from_millis(1500));
    child
}

/// Processes that belong to the measurement of process `pid`, by what trafficspeed tells each of
/// its own.
fn helpers_of(pid: u32) -> usize {
    let entries = std::fs::read_dir("/proc").expect("proc is there").flatten();
    let needle = format!("--parent\0{pid}\0");
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(&needle)).count()
}

#[test]
fn ctrl_c_ends_every_experiment_shows_what_was_measured_and_leaves_nothing() {
    if !can_run() {
        return;
    }
    let Some(vpnd) = real_vpnd() else { return };
    let stages = Path::new(PROGRAM).with_file_name("vpnd-stages");
    let model = format!("model --cipher aes-256-gcm --millis 1 -t 60 -J --stages {}", stages.display());
    for line in [
        "block --delays 5ms --sizes 8K,16K --ahead 1 -t 60 --span 4 -J",
        "suite ipsec -t 60 -O 0 --part stream --no-sweep -J",
        "suite aead -t 60 -J",
        &model,
    ] {
        let child = start_lab(&format!("{line} --vpnd {}", vpnd.display()));
        let pid = child.id();
        signal(&child, Signal::INT);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130), "{line}");
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(namespaces_of(pid), [""; 0], "{line}");
        wait_until("its processes end with it", || helpers_of(pid) == 0);
        if output.stdout.is_empty() {
            // On a busy machine nothing may have been measured yet.
            assert!(words.contains("interrupted"), "{line}: {words}");
            continue;
        }
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        assert_eq!(report["interrupted"], true, "{line}: {report:#}");
    }
}

#[test]
fn a_second_ctrl_c_gives_up_at_once_and_cleanup_removes_the_rest() {
    if !can_run() {
        return;
    }
    let _alone = cleaning();
    let mut child = start_lab("--clients 2 --vpn none -P 2 -t 60 -O 0");
    let pid = child.id();
    // The second comes while the first is being obeyed; if that was faster, there is nothing left
    // to give up.
    signal(&child, Signal::INT);
    signal(&child, Signal::INT);
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert!(run("cleanup").status.success());
    assert_eq!(namespaces_of(pid), [""; 0]);
    wait_until("its processes end with it", || helpers_of(pid) == 0);
}
