//! Active sessions of the real `vpnd` from one process, beside real clients on the same gateway.
//!
//! ```text
//!   client 1, 2 ── eth0 ──┐
//!                         gateway (vpnd server)
//!   one process ── eth0 ──┘                        sixteen sessions that send to each other, no TUN device
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use vpnd_swarm::load::{USUAL_ACK_DELAY_MS, USUAL_ACKNOWLEDGE};

use super::{can_run, endurance, measured, real_vpnd, run};

#[test]
fn sessions_without_devices_carry_bulk_traffic_and_real_clients_stand_beside_them() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let report = measured(&format!(
        "capacity --sessions 2,16 --packet full,64 --burst 8 --real 2 --repeat 1 -t 1 -O 0.5 --json --program vpnd={}",
        program.display()
    ));
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    let rows = report["rows"].as_array().expect("rows");
    let cases: Vec<String> = rows.iter().map(|row| row["case"].to_string()).collect();
    let made = |sessions: u32, packet: &str| {
        format!(
            r#"{{"made":{{"gateway_cpu":null,"sessions":{sessions},"traffic":{{"ack_delay_ms":{USUAL_ACK_DELAY_MS},"acknowledge":{USUAL_ACKNOWLEDGE},"burst":8,"calls":0,"direction":"pairs","greedy":1,"packet":{packet},"rate":null,"small":0}}}}}}"#
        )
    };
    let real = r#"{"real":{"clients":2,"gateway_cpu":null}}"#.to_owned();
    let wanted = [made(2, "null"), made(16, "null"), made(2, "64"), made(16, "64"), real, made(2, "null")];
    assert_eq!(cases, wanted);
    let again: Vec<_> = rows.iter().map(|row| row["again"] == true).collect();
    assert_eq!(again, [false, false, false, false, false, true], "what the others are compared with");
    for row in rows {
        let figures = &row["runs"][0];
        let number = |name: &str| figures[name].as_f64();
        assert!(number("goodput") > Some(0.0) && number("gateway_seconds_per_gbit") > Some(0.0), "{row:#}");
        // More than the headers of an empty packet, and no more than a super-packet has.
        let at_once = number("received_at_once");
        assert!(at_once > Some(60.0) && at_once < Some(65_550.0), "{row:#}");
        if row["case"]["made"] != Value::Null {
            let (opened, arrived) = (figures["opened"][0].as_u64(), figures["opened"][1].as_u64());
            assert!(opened > Some(0) && opened < arrived, "{row:#}");
            assert!(figures["delay_ms"]["p50"].as_f64() > Some(0.0), "{row:#}");
            assert!(number("gateway_wakes_per_gbit") > Some(0.0), "{row:#}");
            // Each had its turns, and what is on its way fits every queue.
            assert!(number("fairness") > Some(0.5) && number("lost_percent") < Some(5.0), "{row:#}");
            let (answers, runs) = (&figures["acknowledgements"], number("acknowledgements_per_gbit"));
            assert!(answers["arrived"].as_u64() > Some(0) && runs > Some(0.0), "{row:#}");
            assert!(answers["runs"].as_u64() <= answers["arrived"].as_u64(), "{row:#}");
            assert!(number("gateway_cores") > Some(0.0), "{row:#}");
            assert_eq!(
                (&figures["quota_percent"], &figures["polling_seconds_per_gbit"]),
                (&Value::Null, &Value::Null)
            );
        }
    }
}

#[test]
fn a_gateway_is_limited_and_released_in_turns_and_polling_is_counted() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let report = measured(&format!(
        "capacity --sessions 4 --gateway-cpu 0.2,all --acknowledge 0 --busy-poll 200 --repeat 2 -t 1 -O 0.5 --json --program vpnd={}",
        program.display()
    ));
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    assert_eq!(report["busy_poll_us"], 200);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3, "both limits, and the first once more");
    let runs =
        rows.iter().flat_map(|row| row["runs"].as_array().expect("runs").iter().map(move |run| (row, run)));
    for (row, figures) in runs {
        let (cores, quota) = (figures["gateway_cores"].as_f64(), figures["quota_percent"].as_f64());
        let is_limited = row["case"]["made"]["gateway_cpu"] != Value::Null;
        assert_eq!(quota.is_some(), is_limited, "{row:#}");
        // The scheduler pays back what was too much only after a while.
        assert!(cores > Some(0.0) && (!is_limited || cores < Some(0.3)), "{row:#}");
        assert!(figures["polling_seconds_per_gbit"].as_f64() >= Some(0.0), "{row:#}");
        assert_eq!(figures["acknowledgements"], Value::Null, "{row:#}");
    }
}

#[test]
fn sessions_send_to_the_campus_and_receive_from_it() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let report = measured(&format!(
        "capacity --sessions 6 --direction up,down,both --packet 500 --burst 16 --repeat 1 -t 1 -O 0.5 --json --program vpnd={}",
        program.display()
    ));
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    let rows = report["rows"].as_array().expect("rows");
    let directions: Vec<_> =
        rows.iter().map(|row| row["case"]["made"]["traffic"]["direction"].as_str()).collect();
    assert_eq!(directions, [Some("up"), Some("down"), Some("both"), Some("up")]);
    for row in rows {
        let figures = &row["runs"][0];
        assert!(figures["packets_per_second"].as_f64() > Some(0.0), "{row:#}");
        assert!(figures["fairness"].as_f64() > Some(0.5), "each session has a part: {row:#}");
    }
}

#[test]
fn calls_stand_beside_traffic_with_a_rate_and_small_packets() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let report = measured(&format!(
        "capacity --sessions 4 --direction pairs,both --burst 4 --rate 2mbit --small 25 --calls 2 --repeat 1 -t 2 -O 0.5 --json --program \
         vpnd={}",
        program.display()
    ));
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3);
    for (row, flows) in rows.iter().zip([2.0, 4.0, 2.0]) {
        let (figures, calls) = (&row["runs"][0], &row["runs"][0]["calls"]);
        let sent = calls["sent"].as_f64();
        // Two sessions with 50 packets a second for two seconds, twice as many in both directions;
        // the ends of the window are not sharp.
        assert!(sent > Some(flows * 50.0 * 1.8) && sent < Some(flows * 50.0 * 4.0), "{row:#}");
        assert!(calls["delay_ms"]["p50"].as_f64() > Some(0.0), "{row:#}");
        assert!(calls["arrived"].as_f64() > sent.map(|sent| 0.8 * sent), "{row:#}");
        let delivered = figures["delivered_percent"].as_f64();
        assert!(delivered > Some(60.0) && delivered < Some(130.0), "{row:#}");
    }
}

/// Datagrams that the gateway of a running measurement has dropped because more came than it can
/// handle; `None` if it does not answer.
fn overload(program: &Path, measurement: u32) -> Option<u64> {
    let name = format!("{measurement}-");
    let is_its = |path: &PathBuf| {
        path.is_dir() && path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name))
    };
    let directory =
        fs::read_dir("/run/trafficspeed").ok()?.flatten().map(|entry| entry.path()).find(is_its)?;
    let mut command = Command::new(program);
    let status =
        command.args(["status", "--json", "--socket"]).arg(directory.join("vpnd/admin.sock")).output();
    let status: Value = serde_json::from_slice(&status.expect("the program is there").stdout).ok()?;
    status["counters"]["drops"]["overload"].as_u64()
}

/// The gateway gets a quarter of a core, so that it is the bottleneck on any machine. The first
/// session has as much on its way as 64 others: with one queue for all it carried five to nine
/// times as much as they did (Jain's index 0.22 to 0.37), and calls lost a fifth.
#[test]
fn a_gateway_that_cannot_keep_up_serves_its_sessions_by_turns() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let line = format!(
        "capacity --sessions 16 --greedy 64 --calls 2 --gateway-cpu 0.25 --in-flight 16384 --repeat 3 -t 1.5 -O 1 --json --program vpnd={}",
        program.display()
    );
    let mut child =
        endurance(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it was built");
    let mut dropped = 0;
    while child.try_wait().expect("it is a child").is_none() {
        dropped = dropped.max(overload(&program, child.id()).unwrap_or(0));
        std::thread::sleep(Duration::from_millis(200));
    }
    let output = child.wait_with_output().expect("it has ended");
    let words = String::from_utf8_lossy(&output.stderr);
    if words.contains("no control group for CPU time") {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{words}");
        eprintln!("\n*** SKIPPED: {words} ***\n");
        return;
    }
    assert!(output.status.success(), "{words}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    // A packet that came out of order would be one, too.
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    assert!(dropped > 0, "it kept up: {report:#}");
    let rounds = report["rows"][0]["runs"].as_array().expect("rounds");
    // A machine that does not let the load run for long leaves the greedy session's backlog alone
    // at the gateway for that time.
    let is_fair = |figures: &&Value| {
        let calls = &figures["calls"];
        let (arrived, lost) =
            (calls["arrived"].as_f64().unwrap_or(0.0), calls["lost"].as_f64().unwrap_or(0.0));
        figures["fairness"].as_f64() > Some(0.8) && arrived > 0.0 && lost < 0.03 * (arrived + lost)
    };
    assert!(rounds.iter().any(|figures| is_fair(&figures)), "{report:#}");
}

#[test]
fn sessions_that_cannot_be_paired_are_refused_before_anything_is_made() {
    if !can_run() {
        return;
    }
    let output = run("capacity --sessions 3");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && words.contains("even numbers"), "{words}");
}
