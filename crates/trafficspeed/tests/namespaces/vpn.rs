//! VPNs in the lab: a stand-in that keeps vpnd's command line, and the real `vpnd`.
//!
//! ```text
//!   c1 eth0 ─── gateway ─── eth0 c2      the links; what goes over them in clear is no result
//!      tun0 ═══════════════ tun0         the tunnel; it must carry what is measured
//! ```

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    PROGRAM, agents_of, can_run, cleaning, first_problem, listed, measured, namespaces_of, report_of, signal,
    start, trafficspeed, values, wait_until,
};

/// A stand-in for `vpnd` that keeps its command-line contract and carries packets by the kernel's
/// routing, so that the adapter's own steps are tested whatever state the real one is in, and that
/// can go wrong on purpose.
fn stand_in(directory: &Path) -> PathBuf {
    let path = directory.join("vpnd");
    fs::write(&path, include_str!("stand_in_vpnd.sh")).expect("a script");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    path
}

/// The report of a measurement through a stand-in that goes wrong as `fault` says, and the whole
/// output.
fn faulty(fault: &str, value: &str) -> (Value, Output) {
    let directory = tempfile::tempdir().expect("a directory");
    let program = stand_in(directory.path());
    let line = format!("--clients 2 --vpn vpnd --vpnd {} -P 2 -t 1 -O 0 --json", program.display());
    let mut command = trafficspeed(&line);
    command.env(fault, value).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the program was built");
    let pid = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(namespaces_of(pid), [""; 0]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(
        report["observed"]["summary"].as_array().map(Vec::len),
        Some(0),
        "no figure of it counts: {report:#}"
    );
    assert_eq!(report["whole"], false);
    (report, output)
}

#[test]
fn the_vpnd_adapter_configures_connects_measures_and_ends_everything() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = stand_in(directory.path());
    let line = format!(
        "--clients 4 --vpn vpnd --cipher aes-256-gcm --no-encryption --vpnd {} -P 2 -t 1 -O 0 --json",
        program.display()
    );
    let report = measured(&line);
    assert!(
        report["whole"] == true && values(&report, "goodput").iter().all(|rate| *rate > 0.0),
        "{report:#}"
    );
    for (at, cipher) in ["aes-256-gcm", "none"].into_iter().enumerate() {
        let run = &report["runs"][at];
        assert_eq!(run["facts"]["version"], "vpnd 0.0.0 (stand-in)");
        assert_eq!(run["facts"]["cipher"], format!("{cipher} (shell)"));
        assert_eq!(run["facts"]["mtu"], 1500);
        assert_carried(run, 4);
    }
}

/// Every client's tunnel device counted at least its payload, both ways.
fn assert_carried(run: &Value, clients: usize) {
    let carried = run["carried"].as_array().expect("a list");
    assert_eq!(carried.len(), clients);
    for client in carried {
        for way in ["sent", "received"] {
            let payload = client[format!("payload_{way}")].as_u64();
            assert!(payload > Some(0), "{client:#}");
            assert!(client["tunnel"][way]["bytes"].as_u64() >= payload, "{client:#}");
            assert!(client["underlay"][way]["bytes"].as_u64() >= payload, "{client:#}");
        }
    }
}

#[test]
fn without_a_route_into_the_tunnel_nothing_is_measured() {
    if !can_run() {
        return;
    }
    let (report, _) = faulty("STAND_IN_NO_ROUTE", "yes");
    let problem = first_problem(&report, "vpnd");
    assert!(
        problem.contains("nothing was measured: client 1 would reach client 2 at 10.86.0.2"),
        "{problem}"
    );
    assert!(
        problem.contains("through eth0, not through the tunnel device tun0; check the routes"),
        "{problem}"
    );
    assert_eq!(report["runs"][0]["pairs"].as_array().map(Vec::len), Some(0), "{report:#}");
}

#[test]
fn traffic_outside_the_tunnel_makes_the_run_broken() {
    if !can_run() {
        return;
    }
    let (report, output) = faulty("STAND_IN_BYPASS", "yes");
    let streams = &report["runs"][0]["pairs"][0]["ends"][0]["outcome"]["streams"];
    assert!(streams[0]["bytes"].as_u64() > Some(0), "it was fast, and wrong: {report:#}");
    let problem = first_problem(&report, "vpnd");
    assert!(problem.starts_with("only ") && problem.contains("went through the tunnel"), "{problem}");
    assert!(problem.contains("check the routes"), "{problem}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(problem) && !said.contains("Gbit/s"), "no figure is shown: {said}");
}

#[test]
fn a_tunnel_that_leads_past_the_links_makes_the_run_broken() {
    if !can_run() {
        return;
    }
    let (report, _) = faulty("STAND_IN_OTHER_LINK", "yes");
    let problem = first_problem(&report, "vpnd");
    assert!(problem.contains("of the tunnel's bytes crossed the links of the lab"), "{problem}");
}

/// The process that stands in for a gateway, in the lab of process `parent`.
fn stand_in_gateway(parent: u32) -> Option<Pid> {
    let lab = fs::metadata(format!("/run/netns/ts{parent}g")).ok()?.ino();
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let is_it = |pid: &i32| {
        let namespace = fs::metadata(format!("/proc/{pid}/ns/net"));
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        namespace.is_ok_and(|namespace| namespace.ino() == lab) && command.starts_with(b"sleep\x001000")
    };
    let found = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_it);
    found.and_then(Pid::from_raw)
}

#[test]
fn a_gateway_that_is_killed_while_something_is_measured_makes_the_run_broken() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = stand_in(directory.path());
    let line = format!("--clients 2 --vpn vpnd --vpnd {} -P 2 -t 3 -O 0 --json", program.display());
    let child = start(&line);
    let parent = child.id();
    wait_until("two clients have agents", || agents_of(parent).len() == 2);
    kill_process(stand_in_gateway(parent).expect("a gateway"), Signal::KILL).expect("it runs");
    let report = report_of(child, 1);
    // The kernel of the gateway still carried everything.
    assert!(listed(&report, "goodput")[0].0 > 0.0, "{report:#}");
    let problem = first_problem(&report, "vpnd");
    assert!(problem.contains("of the VPN ended before the measurement did"), "{problem}");
    assert_eq!(report["whole"], false);
    assert_eq!(report["observed"]["summary"].as_array().map(Vec::len), Some(0), "{report:#}");
}

#[test]
fn ctrl_c_during_the_start_of_a_system_ends_it_soon() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = stand_in(directory.path());
    let line = format!("--clients 2 --vpn vpnd --vpnd {} -t 1 --json", program.display());
    let child = trafficspeed(&line)
        .env("STAND_IN_NEVER_UP", "yes")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was built");
    let pid = child.id();
    wait_until("the lab is made", || namespaces_of(pid).len() == 3);
    std::thread::sleep(Duration::from_millis(500));
    let since = Instant::now();
    signal(&child, Signal::INT);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    assert!(String::from_utf8_lossy(&output.stdout).contains("interrupted before it was up"));
    assert_eq!(namespaces_of(pid), [""; 0]);
}

#[test]
fn a_client_that_is_refused_shows_its_log_and_leaves_nothing() {
    if !can_run() {
        return;
    }
    let (report, _) = faulty("STAND_IN_REFUSES", "client2");
    let problem = first_problem(&report, "vpnd");
    assert!(problem.contains("vpnd connect (client 2) ended"), "{problem}");
    assert!(problem.contains("| login refused: wrong password"), "{problem}");
}

/// The real `vpnd`, which cargo puts beside this package's own program. It belongs to another
/// package, so testing this one alone does not build it: then the test is skipped loudly, and fails
/// where CI=true.
pub(super) fn real_vpnd() -> Option<PathBuf> {
    let path = Path::new(PROGRAM).with_file_name("vpnd");
    if path.is_file() {
        return Some(path);
    }
    let missing =
        format!("{} is not built; run `cargo build -p vpnd`, or test the whole workspace", path.display());
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{missing}");
    eprintln!("\n*** SKIPPED: {missing} ***\n");
    None
}

#[test]
fn the_real_vpnd_carries_every_byte_of_both_ip_versions_and_unprotected_if_told_so() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    for (options, protected) in [("--ip 4", true), ("--ip 6", true), ("--no-encryption --cipher none", false)]
    {
        let line = format!(
            "--clients 2 --vpn vpnd --vpnd {} -P 4 -t 1 -O 0.2 --verify --json {options}",
            program.display()
        );
        let report = measured(&line);
        let run = &report["runs"][0];
        assert_eq!(report["whole"], true, "{report:#}");
        assert_carried(run, 2);
        let cipher = run["facts"]["cipher"].as_str().expect("a cipher");
        assert_eq!(!cipher.starts_with("none"), protected, "{cipher}");
        assert!(values(&report, "goodput per gateway CPU second")[0] > 0.0, "{report:#}");
    }
}

#[test]
fn vpnd_with_its_users_in_postgresql_carries_every_byte() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    if !Path::new("/usr/lib/postgresql").exists() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "this test needs postgresql: ./x setup");
        eprintln!("\n*** SKIPPED: there is no PostgreSQL; run `./x setup` ***\n");
        return;
    }
    let line = format!(
        "--clients 2 --vpn vpnd-postgres --vpnd {} -P 2 -t 1 -O 0.2 --verify --json",
        program.display()
    );
    let report = measured(&line);
    let run = &report["runs"][0];
    assert_eq!((&report["whole"], &run["label"]), (&true.into(), &"vpnd (PostgreSQL)".into()), "{report:#}");
    assert_carried(run, 2);
    assert!(run["facts"]["notes"].to_string().contains("in postgres (PostgreSQL) "), "{run:#}");
    let programs = run["programs"].as_array().expect("a list");
    let of_gateway = programs.iter().filter(|of| of["role"] == "gateway");
    let commands: Vec<String> = of_gateway.map(|of| of["command"].to_string()).collect();
    assert!(commands.iter().any(|command| command.contains("postgres")), "{commands:?}");
}

/// A WireGuard client that `./x setup` has built.
fn stock_client(name: &str) -> Option<PathBuf> {
    let path = Path::new(PROGRAM).parent()?.with_file_name("tools").join(name);
    if path.exists() {
        return Some(path);
    }
    let missing = format!("{} is not built; run `./x setup`", path.display());
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{missing}");
    eprintln!("\n*** SKIPPED: {missing} ***\n");
    None
}

#[test]
fn vpnd_carries_every_byte_of_stock_wireguard_clients_to_each_other_and_to_the_gateway() {
    if !can_run() {
        return;
    }
    let (Some(vpnd), Some(client)) = (real_vpnd(), stock_client("wireguard-go")) else { return };
    for options in ["--clients 2 --ip 4", "--clients 1 --to gateway --ip 6"] {
        let line = format!(
            "{options} --vpn vpnd-wireguard-go --vpnd {} --program wireguard-go={} -P 2 -t 1 -O 0.2 --verify --json",
            vpnd.display(),
            client.display()
        );
        let report = measured(&line);
        let run = &report["runs"][0];
        assert_eq!(
            (&report["whole"], &run["label"]),
            (&true.into(), &"vpnd serving wireguard-go".into()),
            "{report:#}"
        );
        assert_carried(run, if options.contains("gateway") { 1 } else { 2 });
        let facts = &run["facts"];
        assert!(
            facts["cipher"].as_str().is_some_and(|cipher| cipher.starts_with("chacha20-poly1305 (")),
            "{facts}"
        );
        assert_eq!(facts["mtu"], 1_420, "{facts}");
        let role =
            |role: &str| run["programs"].as_array().into_iter().flatten().find(|of| of["role"] == role);
        let runs = |of: &str, name: &str| role(of).is_some_and(|of| of["command"].to_string().contains(name));
        assert!(runs("gateway", "vpnd server") && runs("client", "wireguard-go"), "{run:#}");
        assert!(values(&report, "goodput per gateway CPU second")[0] > 0.0, "{report:#}");
    }
}

/// The script that `trafficspeed lab --help` shows, as the user would have typed it off.
fn example(directory: &Path) -> PathBuf {
    script(directory, "up", include_str!("../../assets/example-up.sh"))
}

fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).expect("a script");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    path
}

#[test]
fn the_example_of_a_system_of_ones_own_is_measured_over_both_ip_versions() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let up = example(directory.path());
    let trace = directory.path().join("trace");
    let down = script(
        directory.path(),
        "down",
        &format!("#!/bin/sh\nset -eu\necho \"$TRAFFICSPEED_GATEWAY\" >>{}\n", trace.display()),
    );
    for ip in ["4", "6"] {
        let line = format!(
            "--clients 4 --vpn command --command-up mine={up} --command-up other={up} --command-down mine={down} -P 2 \
             -t 1 -O 0 --json --ip {ip} --cipher aes-256-gcm",
            up = up.display(),
            down = down.display()
        );
        let child = start(&line);
        let pid = child.id();
        let report = report_of(child, 0);
        assert_eq!(report["whole"], true, "{report:#}");
        for (at, name) in ["mine, aes-256-gcm", "other, aes-256-gcm"].into_iter().enumerate() {
            let run = &report["runs"][at];
            assert_eq!(run["label"], name, "{run:#}");
            assert_eq!(run["facts"]["version"], "example 1.0");
            assert_eq!(run["facts"]["cipher"], "none, asked for aes-256-gcm");
            assert_eq!(run["facts"]["mtu"], 1500);
            assert_carried(run, 4);
        }
        let traced = fs::read_to_string(&trace).expect("the other script ran");
        assert_eq!(traced.matches(&format!("ts{pid}g\n")).count(), 1, "only one has such a script: {traced}");
        assert_eq!(namespaces_of(pid), [""; 0]);
    }
}

#[test]
fn a_failing_script_shows_its_log_and_others_continue() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let known = "echo client 1 eth0 10.0.0.1 >>$TRAFFICSPEED_ANSWER";
    for (text, expected) in [
        ("echo no licence found >&2; exit 3", ["command-up failed (exit status: 3)", "| no licence found"]),
        ("echo done", ["reading the answer of --command-up", "No such file"]),
        ("echo hello >$TRAFFICSPEED_ANSWER", ["command-up answered wrongly: line 1", "`hello`"]),
        (known, ["command-up answered wrongly", "no line for client 2"]),
        (
            &format!("{known}; echo client 2 tun7 10.0.0.2 >>$TRAFFICSPEED_ANSWER"),
            ["command-up answered wrongly", "client 2 has no device tun7"],
        ),
        (
            // No process can have this number.
            &format!(
                "{known}; echo client 2 eth0 10.0.0.2 >>$TRAFFICSPEED_ANSWER; echo process client 4194305 >>$TRAFFICSPEED_ANSWER"
            ),
            ["command-up answered wrongly", "process 4194305 is not there"],
        ),
    ] {
        let up = script(directory.path(), "up", &format!("#!/bin/sh\n{text}\n"));
        let line =
            format!("--clients 2 --vpn command,none --command-up {} -P 2 -t 0.5 -O 0 --json", up.display());
        let output = trafficspeed(&line).output().expect("the program was built");
        assert_eq!(output.status.code(), Some(1), "{text}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        let problem = first_problem(&report, "");
        assert!(expected.iter().all(|words| problem.contains(words)), "{text}: {problem}");
        let other = &report["runs"][1];
        assert_eq!(other["pairs"].as_array().map(Vec::len), Some(1), "the other system goes on: {other:#}");
    }
}

#[test]
fn a_missing_cipher_is_reported_once_and_is_no_failure() {
    if !can_run() {
        return;
    }
    let line = "--clients 2 --vpn wireguard-go,none --cipher aes-256-gcm -P 2 -t 0.5 -O 0 --json";
    let output = trafficspeed(line).output().expect("the program was built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let sentence = "wireguard-go has no aes-256-gcm and is not measured; it has chacha20-poly1305";
    assert_eq!(said.matches(sentence).count(), 1, "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(1), "{report:#}");
    let other = &report["runs"][0];
    assert_eq!(other["pairs"].as_array().map(Vec::len), Some(1), "the other system is measured: {other:#}");
    let output = trafficspeed("--clients 2 --vpn wireguard-go --cipher aes-256-gcm -t 0.5")
        .output()
        .expect("as above");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && said.contains("has no aes-256-gcm"),
        "nothing is left to measure: {said}"
    );
}

#[test]
fn what_a_script_started_is_ended_by_cleanup_after_kill_9() {
    if !can_run() {
        return;
    }
    let _alone = cleaning();
    let directory = tempfile::tempdir().expect("a directory");
    let pids = directory.path().join("pids");
    // A separate session and a lost parent: nothing but its namespace shows whose it is.
    let text = format!("#!/bin/sh\nsetsid sleep 1000 &\necho $! >>{}\nwait\n", pids.display());
    let up = script(directory.path(), "up", &text);
    let line = format!("--clients 2 --vpn command --command-up {} -t 1 --json", up.display());
    let mut child = trafficspeed(&line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("built");
    let started = || fs::read_to_string(&pids).unwrap_or_default().trim().parse::<u32>().ok();
    wait_until("the script has started its process", || started().is_some());
    let pid = started().expect("it is there");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let runs = || Path::new(&format!("/proc/{pid}")).exists();
    let survived = runs();
    let output = trafficspeed("cleanup").output().expect("the program was built");
    assert!(survived, "otherwise this test shows nothing");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    wait_until("cleanup ends the process", || !runs());
    assert_eq!(namespaces_of(child.id()), [""; 0]);
}

#[test]
fn programs_with_fixed_places_see_directories_of_their_own() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    // Where every WireGuard puts its socket, each of the three must be alone, and the machine must
    // see none.
    let text = "#!/bin/sh\ntouch /var/run/wireguard/$(ip netns identify $$).test\nsleep 0.5\nls /var/run/wireguard\nexit 7\n";
    let program = script(directory.path(), "wireguard", text);
    let line =
        format!("--clients 2 --vpn wireguard-go --program wireguard-go={} -t 1 --json", program.display());
    let child = start(&line);
    let pid = child.id();
    let report = report_of(child, 1);
    let problem = first_problem(&report, "");
    assert!(problem.contains("ended (exit status: 7)"), "{problem}");
    assert!(problem.ends_with(&format!("its log ends:\n    | ts{pid}g.test")), "{problem}");
    let sockets = fs::read_dir("/var/run/wireguard").expect("made by the adapter").flatten();
    let own = sockets.filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("ts{pid}")));
    assert_eq!(own.count(), 0);
}
