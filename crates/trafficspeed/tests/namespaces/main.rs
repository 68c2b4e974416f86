//! The real program in real network namespaces: here over plain routing, in `vpn` through VPNs, in
//! `compare` one after the other.
//!
//! ```text
//!   c1 ── gateway (kernel routing) ── c2        one pair, four connections, about a second
//! ```
//!
//! These tests need root. Without it they skip with a loud message, and fail where CI=true.

mod block;
mod compare;
mod home;
mod hosts;
mod interrupt;
mod link;
mod load;
mod model;
mod peers;
mod routers;
mod suite;
mod verify;
mod vpn;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_trafficspeed");

/// One cleanup at a time: each takes what any killed run left, also the run of another test.
static CLEANING: Mutex<()> = Mutex::new(());

fn cleaning() -> MutexGuard<'static, ()> {
    // A test that failed while it held the lock has no state that the next could find broken.
    CLEANING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the test can run. A skip is loud; in CI it is a failure.
fn can_run() -> bool {
    if rustix::process::geteuid().is_root() {
        // Programs inherit the priority of the thread that starts them: the ends of a measurement
        // must not be late beside many other tests.
        let _ = rustix::process::setpriority_process(None, -10);
        return true;
    }
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "namespace tests need root, and CI must run them");
    eprintln!(
        "\n*** SKIPPED: this test needs root to make network namespaces; run the tests with sudo ***\n"
    );
    false
}

fn trafficspeed(line: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(line.split_whitespace());
    if line.starts_with("--clients") {
        // One measurement of each system, where a test does not ask for more.
        command.args(["--no-control", "--repeat", "1"]);
    } else if line.starts_with("run ") {
        command.args(["--repeat", "1"]);
    }
    command
}

fn run(line: &str) -> Output {
    trafficspeed(line).output().expect("the program was built")
}

/// Starts a measurement for [`report_of`].
fn start(line: &str) -> Child {
    let mut command = trafficspeed(line);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program was built")
}

/// The report of a measurement that ends with this exit code.
fn report_of(child: Child, code: i32) -> Value {
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a report")
}

/// The report of what was measured until Ctrl-C.
fn interrupted(child: Child) -> Value {
    signal(&child, Signal::INT);
    let report = report_of(child, 130);
    assert_eq!(report["interrupted"], true);
    report
}

fn measured(line: &str) -> Value {
    let output = run(line);
    let words = String::from_utf8_lossy(&output.stderr);
    // 3: everything was measured, on a machine that others used.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{line}: {} {words}", output.status);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {words}"))
}

/// Makes the reports in `directory` again; the pictures' names. Nothing may differ from what was
/// shown before.
fn report_again(directory: &Path, before: &Value) -> Vec<String> {
    let output = run(&format!("report {} --svg -J", directory.display()));
    let words = String::from_utf8_lossy(&output.stderr);
    let again: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {words}"));
    assert_eq!(&again, before);
    let names = fs::read_dir(directory).expect("a directory").flatten();
    let mut names: Vec<String> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.ends_with(".svg"));
    names.sort();
    names
}

/// Each value of a quantity, with what was wrong with its measurement.
fn listed<'a>(report: &'a Value, quantity: &str) -> Vec<(f64, &'a str)> {
    let rows = report["observed"]["values"].as_array().expect("values").iter();
    let rows = rows.filter(|row| row["quantity"] == quantity);
    rows.map(|row| (row["value"].as_f64().expect("a value"), row["problem"].as_str().expect("a text")))
        .collect()
}

/// The values of a quantity, of measurements that were all as they should be.
fn values(report: &Value, quantity: &str) -> Vec<f64> {
    let listed = listed(report, quantity);
    assert!(!listed.is_empty() && listed.iter().all(|(_, problem)| problem.is_empty()), "{report:#}");
    listed.into_iter().map(|(value, _)| value).collect()
}

/// The fault of the first measurement that broke, of the systems whose names begin so.
fn first_problem<'a>(report: &'a Value, system: &str) -> &'a str {
    let rows = report["observed"]["values"].as_array().expect("values").iter();
    let mut broken = rows.filter(|row| row["system"].as_str().is_some_and(|name| name.starts_with(system)));
    let problem = broken.find_map(|row| row["problem"].as_str().filter(|problem| !problem.is_empty()));
    problem.unwrap_or_else(|| panic!("no problem of {system} in {report:#}"))
}

/// The namespaces that process `pid` made.
fn namespaces_of(pid: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/run/netns") else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let (gateway, client, host) = (format!("ts{pid}g"), format!("ts{pid}c"), format!("ts{pid}h"));
    names.filter(|name| *name == gateway || name.starts_with(&client) || name.starts_with(&host)).collect()
}

/// Starts a long measurement and waits until all its namespaces are there and traffic can flow.
fn start_long() -> Child {
    let mut child = start("--clients 2 --vpn none -P 2 -t 60 -O 0 --json");
    let deadline = Instant::now() + Duration::from_secs(20);
    while agents_of(child.id()).len() < 2 {
        if Instant::now() > deadline {
            // The message below says what happened; the child must not outlive it.
            let _ = child.kill();
            panic!("no agents after 20 s");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(1500));
    child
}

/// The process id of a long measurement that was killed, and whose agents have ended.
fn killed() -> u32 {
    let mut child = start_long();
    let pid = child.id();
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    wait_until("the agents end with their parent", || agents_of(pid).is_empty());
    pid
}

/// The generator processes that `parent` started.
fn agents_of(parent: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let needle = format!("agent\0--parent\0{parent}\0");
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&needle)
    })
    .collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a child has a positive id");
    kill_process(pid, signal).expect("the child is not reaped yet");
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn both_ip_versions_carry_every_byte_half_each_way_and_leave_nothing() {
    if !can_run() {
        return;
    }
    for ip in ["4", "6"] {
        let report = measured(&format!("--clients 2 --vpn none -P 4 -t 1 -O 0.2 --verify --json --ip {ip}"));
        assert_eq!((&report["whole"], report["problems"].as_array().map(Vec::len)), (&true.into(), Some(0)));
        let ends = &report["runs"][0]["pairs"][0]["ends"];
        let streams = ends[1]["outcome"]["streams"].as_array().expect("streams");
        assert_eq!(streams.iter().filter(|stream| stream["sends"] == true).count(), 2, "half each way");
        assert!(streams.iter().all(|stream| stream["bytes"].as_u64() > Some(0)), "{streams:#?}");
        for at in 0..4 {
            // After draining, both ends of a stream have counted the same bytes.
            let total =
                |end: usize| ends[end]["outcome"]["streams"][at]["total_bytes"].as_u64().expect("bytes");
            assert_eq!(total(0), total(1), "stream {at} over IPv{ip}");
        }
        let (goodput, communication) = (values(&report, "goodput")[0], values(&report, "communication")[0]);
        assert!(goodput > 0.0 && communication > goodput * 1.5, "{goodput} {communication}");
    }
}

#[test]
fn links_without_offload_and_two_pairs_work_and_reports_are_written() {
    if !can_run() {
        return;
    }
    let out = tempfile::tempdir().expect("a directory");
    let line =
        format!("--clients 2,4 --vpn none -P 2 -t 1 -O 0 --offload off --out {}", out.path().display());
    let output = run(&line);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table} {}", String::from_utf8_lossy(&output.stderr));
    assert!(table.contains("plain routing") && table.contains("Jain"), "{table}");
    let csv = fs::read_to_string(out.path().join("report.csv")).expect("a CSV report");
    assert_eq!(csv.matches(",goodput,bit/s,").count(), 2, "{csv}");
    let html = fs::read_to_string(out.path().join("report.html")).expect("an HTML report");
    assert!(
        html.contains("<svg") && html.contains("offload off"),
        "the page holds the picture and the set-up"
    );
    let json = fs::read(out.path().join("report.json")).expect("a JSON report");
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(json["runs"][1]["clients"], 4);
}

#[test]
fn ctrl_c_shows_what_was_measured_and_removes_the_lab() {
    if !can_run() {
        return;
    }
    let child = start_long();
    let pid = child.id();
    let report = interrupted(child);
    assert!(listed(&report, "goodput")[0].0 > 0.0, "{report:#}");
    assert_eq!(namespaces_of(pid), [""; 0]);
    assert_eq!(agents_of(pid), [0; 0]);
}

#[test]
fn after_kill_9_no_process_is_left_and_cleanup_removes_the_namespaces() {
    if !can_run() {
        return;
    }
    let _alone = cleaning();
    let pid = killed();
    assert_eq!(namespaces_of(pid).len(), 3, "nothing but cleanup can remove them now");

    let output = run("cleanup");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    assert!(said.contains(&format!("removed namespace ts{pid}g")), "{said}");
    assert_eq!(namespaces_of(pid), [""; 0]);
    let records = fs::read_dir("/run/trafficspeed").expect("records").flatten();
    let own = records.filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("{pid}-")));
    assert_eq!(own.count(), 0, "its record and directory are gone too");
}

#[test]
fn cleanup_leaves_a_namespace_that_took_an_old_name() {
    if !can_run() {
        return;
    }
    let _alone = cleaning();
    let pid = killed();
    // Another namespace now stands under the name of the second client. It is made while
    // the old one is there, so that the kernel cannot give it the same inode.
    let (foreign, name) = (format!("tsforeign{pid}"), format!("ts{pid}c2"));
    let shell = format!(
        "ip netns add {foreign} && ip netns delete {name} && touch /run/netns/{name} && \
         mount --bind /run/netns/{foreign} /run/netns/{name}"
    );
    let prepared = Command::new("sh").args(["-c", &shell]).status().expect("a shell").success();
    let output = run("cleanup");
    let left = namespaces_of(pid);
    for name in [&name, &foreign] {
        // The assertions below say what matters; here nothing is to be left.
        let _ = Command::new("ip").args(["netns", "delete", name]).status();
    }
    assert!(prepared);
    assert_eq!(left, [name], "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("not the one that was made"));
}

#[test]
fn cleanup_leaves_the_lab_of_a_living_process_alone() {
    if !can_run() {
        return;
    }
    let _alone = cleaning();
    let child = start_long();
    let output = run("cleanup");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let present = namespaces_of(child.id()).len();
    signal(&child, Signal::INT);
    child.wait_with_output().expect("it ends");
    assert_eq!(present, 3, "{said}");
    assert!(said.contains("which still runs"), "{said}");
}

#[test]
fn a_system_that_is_missing_is_said_before_anything_changes() {
    if !can_run() {
        return;
    }
    let output = run("--clients 2 --vpn vpnd --vpnd /nonexistent/vpnd -t 1");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/vpnd"));

    // Beside another system it is a line of the report, and the other goes on.
    let output = run("--clients 2 --vpn vpnd,none --vpnd /nonexistent/vpnd -P 2 -t 1 -O 0 --json");
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert!(first_problem(&report, "vpnd").contains("/nonexistent/vpnd"));
    assert_eq!(values(&report, "goodput").len(), 1, "{report:#}");
}

/// `trafficspeed serve` on its own loopback port.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(token: &Path) -> Self {
        Self::start_with(token, "")
    }

    fn start_with(token: &Path, more: &str) -> Self {
        let mut child = trafficspeed(&format!("serve --listen 127.0.0.1:0 {more} --token-file"))
            .arg(token)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program was built");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let waiting = |line: &String| line.contains("waiting for a coordinator");
        let line = lines.by_ref().map(|line| line.expect("text")).find(waiting).expect("it serves");
        let address = line.rsplit(' ').next().expect("an address").to_owned();
        // The rest is read so that the child never waits for a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have been ended by the test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn token(directory: &Path, name: &str) -> std::path::PathBuf {
    let path = directory.join(name);
    assert!(Command::new(PROGRAM).arg("token").arg(&path).output().expect("built").status.success());
    path
}

#[test]
fn hosts_that_serve_are_measured_by_a_coordinator_with_the_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let token = token(directory.path(), "token");
    let (a, b) = (Served::start(&token), Served::start(&token));
    let pair = format!("{}={}", a.address, b.address);
    let line = format!(
        "run --pair {pair} --token-file {} -P 4 -t 1 -O 0.2 --verify --probe 20 --json",
        token.display()
    );
    let report = measured(&line);
    assert!(values(&report, "round trip p50")[0] > 0.0, "{report:#}");
    assert!(report["whole"] == true && values(&report, "goodput")[0] > 0.0, "{report:#}");
    let offset = report["runs"][0]["pairs"][0]["ends"][0]["clock_offset_ms"].as_f64().expect("an offset");
    assert!(offset.abs() < 50.0, "the same machine has the same clock: {offset} ms");
    // A second coordinator is welcome after the first.
    measured(&line);
}

#[test]
fn a_coordinator_with_another_token_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (right, wrong) = (token(directory.path(), "right"), token(directory.path(), "wrong"));
    let (a, b) = (Served::start(&right), Served::start(&right));
    let pair = format!("{}={}", a.address, b.address);
    let output = run(&format!("run --pair {pair} --token-file {} -t 1", wrong.display()));
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("does not hold the same token"), "{said}");
}

#[test]
fn a_host_that_drops_out_is_reported_and_the_other_pair_is_collected() {
    let directory = tempfile::tempdir().expect("a directory");
    let token = token(directory.path(), "token");
    let mut hosts: Vec<Served> = (0..4).map(|_| Served::start(&token)).collect();
    let pairs = format!(
        "--pair {}={} --pair {}={}",
        hosts[0].address, hosts[1].address, hosts[2].address, hosts[3].address
    );
    let line = format!("run {pairs} --token-file {} -P 2 -t 3 -O 0 --json", token.display());
    let child = start(&line);
    std::thread::sleep(Duration::from_millis(2500));
    hosts[0].child.kill().expect("it runs");
    let report = report_of(child, 1);
    let run = &report["runs"][0];
    let problems = report["problems"].to_string();
    assert!(problems.contains(&hosts[0].address), "{problems}");
    let other = &run["pairs"][1];
    assert_eq!(other["error"], Value::Null, "{other:#}");
    assert!(other["ends"][0]["outcome"]["streams"][0]["bytes"].as_u64() > Some(0), "{other:#}");
    assert!(run["pairs"][0]["ends"][1]["outcome"].is_object(), "its peer still reports: {problems}");
}
