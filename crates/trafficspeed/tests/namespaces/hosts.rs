//! The generators and the loads of experiment 2 between hosts: here processes of one machine, over
//! loopback.
//!
//! ```text
//!   coordinator ── token ── serve (far, listens)
//!             └─── token ── serve (near, the client)
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use trafficspeed::load::block::content::{Content, verify};
use trafficspeed::load::block::seal::Sealing;
use trafficspeed::load::block::{Blocks, Protection, Secret};
use trafficspeed::load::congestion::CongestionControl;

use super::{
    Served, interrupted, measured, number, report_again, report_of, run, signal, start, token, wait_until,
};

/// Hosts that hold a token.
struct Hosts {
    served: Vec<Served>,
    token: PathBuf,
    _directory: tempfile::TempDir,
}

impl Hosts {
    fn start(count: usize) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let token = token(directory.path(), "token");
        let served = (0..count).map(|_| Served::start(&token)).collect();
        Self { served, token, _directory: directory }
    }

    /// The arguments that pair them, two by two.
    fn pairs(&self) -> String {
        let pair = |two: &[Served]| format!("--pair {}={} ", two[0].address, two[1].address);
        let pairs: String = self.served.chunks(2).map(pair).collect();
        format!("{pairs}--token-file {}", self.token.display())
    }
}

#[test]
fn streams_requests_and_datagrams_need_no_lab() {
    let hosts = Hosts::start(2);
    let pairs = hosts.pairs();
    let report =
        measured(&format!("stream {pairs} --label wire --bidir --ping --repeat 1 -t 1 -O 0.1 -i 0.5 -J"));
    let run = &report["runs"][0];
    assert_eq!((&report["whole"], &run["label"]), (&true.into(), &"wire".into()), "{run:#}");
    for at in 0..2 {
        assert!(number(&run["figures"][at]["received_bits_per_second"]) > 1e6, "{run:#}");
    }
    assert!(number(&run["figures"][2]["round_trip"]["p50_us"]) > 0.0);
    for at in 0..2 {
        assert_eq!(run["hosts"][at]["name"], hosts.served[1 - at].address, "the near end comes first");
        assert!(number(&run["hosts"][at]["clock_offset_ms"]).abs() < 50.0, "{run:#}");
    }
    let out = tempfile::tempdir().expect("a directory");
    let line = format!("rr {pairs} -u --size 64/64 --repeat 1 -t 0.5 -O 0 -J --out {}", out.path().display());
    let report = measured(&line);
    assert_eq!(report_again(out.path(), &report), ["delay-1.svg", "time-1.svg", "time-delay-1.svg"]);
    assert!(number(&report["runs"][0]["figures"][0]["transactions_per_second"]) > 10.0);
    let report = measured(&format!("udp {pairs} --search --search-loss 5 -l 64 --repeat 1 -t 0.2 -O 0 -J"));
    assert!(number(&report["runs"][0]["search"]["packets_per_second"]) > 0.0, "{report:#}");
}

#[test]
fn a_lost_host_ends_only_its_pair() {
    let mut hosts = Hosts::start(4);
    let line = format!("udp {} -b 4M -l 500 -t 4 -O 0 -i 0.25 --repeat 2 -J", hosts.pairs());
    let child = start(&line);
    std::thread::sleep(Duration::from_millis(3500));
    // The first pair's near end, which sends.
    hosts.served[1].child.kill().expect("it runs");
    let report = report_of(child, 1);
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 4, "two repetitions of two pairs");
    let gone = &hosts.served[1].address;
    for first in [&runs[0], &runs[2]] {
        assert!(first["error"].as_str().is_some_and(|why| why.contains(gone)), "{first:#}");
    }
    let figures = &runs[0]["figures"][0];
    assert!(number(&figures["received_per_second"]) > 0.0, "the far end's part is kept: {figures:#}");
    assert_eq!(figures["lost"], Value::Null, "what takes both ends is not said");
    for second in [&runs[1], &runs[3]] {
        assert_eq!(second["error"], Value::Null, "{second:#}");
        assert!(number(&second["figures"][0]["received_per_second"]) > 10.0);
    }
}

#[test]
fn a_missing_pair_is_reported_with_the_result_of_the_other() {
    let hosts = Hosts::start(2);
    let output =
        run(&format!("stream {} --pair 127.0.0.1:1=127.0.0.1:2 --repeat 1 -t 0.5 -O 0 -J", hosts.pairs()));
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report["runs"][0]["error"], Value::Null, "{report:#}");
    let problem = report["runs"][1]["error"].as_str().expect("a problem");
    assert!(
        problem.contains("cannot reach 127.0.0.1:1") && problem.contains("trafficspeed serve"),
        "{problem}"
    );
}

#[test]
fn every_interval_is_a_point_of_the_series() {
    let hosts = Hosts::start(2);
    let report = measured(&format!("udp {} -b 2M --repeat 1 -t 1 -O 0 -i 0.25 -J", hosts.pairs()));
    let series = report["runs"][0]["figures"][0]["series"].as_array().expect("points");
    // A machine that stood still for a while has fewer and longer ones.
    let last = number(&series.last().expect("a point")["end"]);
    assert!(series.len() == 4 || last > 1.1, "{series:#?}");
    assert!(series.iter().all(|point| number(&point["received_bits_per_second"]) > 0.0), "{series:#?}");
}

#[test]
fn the_loads_of_experiment_2_run_between_hosts_without_ciphers_and_hogs() {
    let hosts = Hosts::start(2);
    let line = "suite ipsec --quick --repeat 1 -t 0.5 -O 0 --part transaction,video --no-sweep -J";
    let report = measured(&format!("{line} {}", hosts.pairs()));
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3 + 1, "three kinds of requests, and the video on an idle machine");
    assert!(rows.iter().all(|row| row["case"]["ip"] == 4 && row["case"]["hogs"] == 0));
    assert!(rows.iter().all(|row| number(&row["figures"]["received_bits_per_second"]) > 0.0), "{rows:#?}");
}

/// A host that holds the target and one that writes, on addresses of which the second plays the one
/// inside a VPN.
struct BlockHosts {
    target: Served,
    writer: Served,
    token: PathBuf,
    directory: tempfile::TempDir,
}

impl BlockHosts {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (token, place) = (token(directory.path(), "token"), directory.path().join("blocks"));
        std::fs::create_dir(&place).expect("a directory");
        let leave = format!("--block-target {} --block-space 4", place.display());
        let (target, writer) = (Served::start_with(&token, &leave), Served::start(&token));
        Self { target, writer, token, directory }
    }

    fn line(&self, more: &str) -> String {
        let (target, writer, token) = (&self.target.address, &self.writer.address, self.token.display());
        format!("block --pair {target}/127.0.0.2={writer} --token-file {token} --span 4 -J {more}")
    }

    /// The files of the target.
    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.directory.path().join("blocks")).expect("it is there");
        entries.flatten().map(|entry| entry.path()).collect()
    }
}

#[test]
fn blocks_between_hosts_need_permission_and_arrive_unchanged() {
    let mut hosts = BlockHosts::start();
    let out = tempfile::tempdir().expect("a directory");
    let line =
        hosts.line(&format!("--sizes 8K,64K --ahead 4 -t 0.2 --repeat 1 --out {}", out.path().display()));
    let report = measured(&line);
    let cases = report["cases"].as_array().expect("cases");
    assert_eq!(
        cases.len(),
        2 * 7,
        "two sizes; tunnel, plain, OP-4, plain-4, tunnel-4, and the tunnel and tunnel-4 again: {report:#}"
    );
    for case in cases {
        assert_eq!(case["problem"], Value::Null, "{case:#}");
        assert!(number(&case["verified"]) > 0.0 && number(&case["bytes_per_second"]) > 0.0, "{case:#}");
    }
    let far = report["hosts"][1]["name"].as_str().expect("a name");
    assert!(far.starts_with(&hosts.target.address), "the near host comes first: {far}");
    assert_eq!(
        report_again(out.path(), &report),
        ["block-sizes-cost.svg", "block-sizes-cpu.svg", "block-sizes.svg"]
    );

    let refused = run(&hosts.line("--sizes 8K -t 0.2").replace("--span 4", "--span 8"));
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("8388608 bytes are to be written, and 4194304 may be"), "{said}");

    let [file] = &hosts.files()[..] else { panic!("the target has one file") };
    signal(&hosts.target.child, Signal::INT);
    hosts.target.child.wait().expect("it ends");
    assert!(!file.exists(), "it is removed at the end");
}

#[test]
fn a_host_whose_owner_allows_no_blocks_refuses_them() {
    let hosts = Hosts::start(2);
    let pairs = hosts.pairs().replacen('=', "/127.0.0.2=", 1);
    let output = run(&format!("block {pairs} --quick"));
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&hosts.served[0].address) && said.contains("--block-target"), "{said}");
}

/// Kills one of the hosts while blocks are written; the report.
fn killed_while_writing(hosts: &mut BlockHosts, kills_target: bool) -> Value {
    let line = hosts.line("--sizes 4K --ahead 4 -t 20");
    let mut child = start(&line);
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let begun = lines.by_ref().map_while(Result::ok).any(|line| line.contains("one-way delay"));
    std::thread::spawn(move || lines.for_each(drop));
    assert!(begun, "it measures");
    std::thread::sleep(Duration::from_millis(1000));
    let victim = if kills_target { &mut hosts.target } else { &mut hosts.writer };
    victim.child.kill().expect("it runs");
    let report = report_of(child, 1);
    let gone = if kills_target { &hosts.target.address } else { &hosts.writer.address };
    for said in [&report["cases"][0]["problem"], &report["problems"][0]] {
        assert!(said.as_str().is_some_and(|why| why.contains(gone)), "{report:#}");
    }
    assert!(number(&report["cases"][0]["acknowledged"]) > 0.0, "{report:#}");
    report
}

/// Whether the file holds all of its places as they were acknowledged, of 4 MiB in blocks of 4 KiB,
/// 4 in progress at most.
fn holds(file: &Path, acknowledged: u64) -> bool {
    let blocks = Blocks {
        secret: Secret::random(),
        protection: Protection::Plain,
        sealing: Sealing::default(),
        block_bytes: 4096,
        span_bytes: 4 << 20,
        congestion: CongestionControl::default(),
        ready_first: false,
    };
    let file = File::open(file).expect("it is there");
    let read = |offset: u64, data: &mut [u8]| file.read_exact_at(data, offset);
    let found =
        verify(&blocks, &Content::new(1), acknowledged, acknowledged + 4, read).expect("it can be read");
    found.wrong == 0 && found.right > 0
}

#[test]
fn acknowledged_blocks_survive_a_killed_target() {
    let mut hosts = BlockHosts::start();
    let report = killed_while_writing(&mut hosts, true);
    let acknowledged = report["cases"][0]["acknowledged"].as_u64().expect("a number");
    let [file] = &hosts.files()[..] else { panic!("a killed host leaves its file") };
    assert!(holds(file, acknowledged), "{acknowledged}");
    assert!(!holds(file, acknowledged + 1024), "other blocks would not be taken for these");
}

#[test]
fn when_the_writer_is_killed_the_target_says_what_it_acknowledged_and_compares_it() {
    let mut hosts = BlockHosts::start();
    let report = killed_while_writing(&mut hosts, false);
    let case = &report["cases"][0];
    assert!(number(&case["verified"]) > 0.0, "{case:#}");
    let [file] = &hosts.files()[..] else { panic!("the target has one file") };
    assert!(holds(file, case["acknowledged"].as_u64().expect("a number")));
}

#[test]
fn interrupting_block_writes_between_hosts_shows_what_was_measured_and_frees_the_hosts() {
    let hosts = BlockHosts::start();
    let line = hosts.line("--sizes 4K --ahead 4 -t 0.3").replace("4K", "4K,8K,16K,32K,64K,128K");
    let child = start(&line);
    std::thread::sleep(Duration::from_secs(4));
    interrupted(child);
    let mut next = None;
    wait_until("the hosts are free for the next", || {
        let output = run(&hosts.line("--sizes 4K --ahead 4 -t 0.2 --repeat 1"));
        next = output.status.success().then_some(output);
        next.is_some()
    });
}
