//! Block writes: what was acknowledged is in the target, also after the target's process was killed
//! or the connection cut.
//!
//! ```text
//!   writer (client 1) ══ emulated link ══ target (gateway)        or, without root, both on the loopback
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command as Process, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use trafficspeed::coordinate::message::{Command, Report};
use trafficspeed::load::block::content::{Content, Verified, verify};
use trafficspeed::load::block::seal::Sealing;
use trafficspeed::load::block::{Blocks, Protection, Secret, WriterJob};
use trafficspeed::load::congestion::CongestionControl;

use super::vpn::real_vpnd;
use super::{PROGRAM, can_run, measured, report_of, run, start, wait_until};

const BLOCK_BYTES: u32 = 16 << 10;
/// More than can be written before the end, so that no place is written twice.
const PLACES: u64 = 65_536;

/// One end's process.
struct End {
    child: Child,
    reports: Lines<BufReader<ChildStdout>>,
}

impl End {
    fn start(place: Option<&Path>, command: &Command) -> Self {
        let parent = std::process::id().to_string();
        let mut agent = Process::new(PROGRAM);
        agent.args(["agent", "--parent", &parent]);
        place.into_iter().for_each(|place| {
            agent.arg("--block-place").arg(place);
        });
        let mut child =
            agent.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program was built");
        let line = serde_json::to_string(command).expect("JSON");
        writeln!(child.stdin.as_mut().expect("piped"), "{line}").expect("it reads");
        let reports = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, reports }
    }

    fn report(&mut self) -> Report {
        let line = self.reports.next().expect("a report").expect("text");
        serde_json::from_str(&line).expect("a report")
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // It may have been ended by the test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn blocks(protection: Protection) -> Blocks {
    let span_bytes = PLACES * u64::from(BLOCK_BYTES);
    Blocks {
        secret: Secret::random(),
        protection,
        sealing: Sealing::default(),
        block_bytes: BLOCK_BYTES,
        span_bytes,
        congestion: CongestionControl::default(),
        ready_first: false,
    }
}

fn target(blocks: &Blocks, file: &Path) -> (End, u16) {
    let bind = Ipv4Addr::LOCALHOST.into();
    let take = Command::TakeBlocks { blocks: blocks.clone(), sync: true, bind };
    let mut target = End::start(Some(file), &take);
    let Report::Listening { port } = target.report() else { panic!("it does not listen") };
    (target, port)
}

fn writer(blocks: &Blocks, port: u16) -> End {
    let job = WriterJob {
        blocks: blocks.clone(),
        seed: 5,
        ahead: 8,
        warmup_ms: 0,
        duration_ms: 60_000,
        most_blocks: Some(PLACES),
        peer: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
    };
    End::start(None, &Command::WriteBlocks(job))
}

/// A file with the places of all blocks, and nothing in them.
fn places() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(PLACES * u64::from(BLOCK_BYTES)).expect("a sparse file");
    file
}

/// Compares the file with the blocks that the writer knows to be acknowledged.
fn held(blocks: &Blocks, file: &File, writer: &mut End) -> (Verified, u64) {
    let Report::WroteBlocks(wrote) = writer.report() else { panic!("no outcome of the writer") };
    assert!(wrote.fault.is_some(), "the connection was cut: {wrote:?}");
    assert!(wrote.acknowledged < PLACES);
    let read = |offset: u64, data: &mut [u8]| file.read_exact_at(data, offset);
    let found =
        verify(blocks, &Content::new(5), wrote.acknowledged, wrote.sent, read).expect("the file is there");
    (found, wrote.acknowledged)
}

#[test]
fn what_was_acknowledged_is_in_the_file_whenever_the_target_is_killed() {
    let mut acknowledged = 0;
    for round in 0..6 {
        let protection = if round % 2 == 0 { Protection::Sealed } else { Protection::Plain };
        let (blocks, file) = (blocks(protection), places());
        let (mut target, port) = target(&blocks, file.path());
        let mut writer = writer(&blocks, port);
        wait_until("blocks arrive", || file.as_file().metadata().is_ok_and(|meta| meta.blocks() > 0));
        std::thread::sleep(Duration::from_millis(rand::random::<u64>() % 150));
        target.child.kill().expect("it runs");
        let (found, count) = held(&blocks, file.as_file(), &mut writer);
        assert_eq!((found.right, found.wrong), (count, 0), "round {round}");
        acknowledged += count;
    }
    assert!(acknowledged > 0, "six rounds without one answer test nothing");
}

/// Carries both directions between the ends and cuts them after this many bytes of the writer: in
/// the middle of a block.
fn cut_after(listener: &TcpListener, port: u16, bytes: usize) {
    let (near, _) = listener.accept().expect("the writer comes");
    let far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the target is there");
    let (back_from, back_to) = (far.try_clone().expect("a handle"), near.try_clone().expect("a handle"));
    std::thread::spawn(move || std::io::copy(&mut &back_from, &mut &back_to));
    let mut some = std::io::Read::take(&near, bytes as u64);
    std::io::copy(&mut some, &mut &far).expect("both ends are there");
    for end in [near, far] {
        // An end that has closed already is cut as well.
        let _ = end.shutdown(std::net::Shutdown::Both);
    }
}

#[test]
fn what_was_acknowledged_is_in_the_file_wherever_the_connection_is_cut() {
    for round in 0..4 {
        let (blocks, file) = (blocks(Protection::Sealed), places());
        let (mut target, port) = target(&blocks, file.path());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let mut writer = writer(&blocks, listener.local_addr().expect("its address").port());
        cut_after(&listener, port, 100_000 + rand::random::<u32>() as usize % 2_000_000);
        let (found, count) = held(&blocks, file.as_file(), &mut writer);
        assert_eq!((found.right, found.wrong), (count, 0), "round {round}");
        let Report::TookBlocks(received) = target.report() else { panic!("no outcome of the target") };
        assert!(received.acknowledged >= count && received.written >= received.acknowledged, "{received:?}");
        // Beyond are whole blocks: the first that never came is still empty.
        let mut next = vec![1; BLOCK_BYTES as usize];
        let offset = received.written * u64::from(BLOCK_BYTES);
        let read = file.as_file().read_at(&mut next, offset).expect("the file is there");
        assert!(next[..read].iter().all(|byte| *byte == 0), "a part of a block was written");
    }
}

#[test]
fn blocks_in_progress_overtake_waiting_through_the_tunnel() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let report = measured(&format!(
        "block --r2t off --delays 20ms --sizes 8K --ahead 1,8 -t 0.3 --repeat 2 --span 4 --json --quiet --vpnd {}",
        program.display()
    ));
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    let cases = report["cases"].as_array().expect("cases");
    let (again, first): (Vec<&Value>, Vec<&Value>) =
        cases[..8].iter().partition(|case| case["way"]["again"] == true);
    let names = |cases: &[&Value]| -> Vec<String> {
        cases.iter().map(|case| format!("{}{}", case["way"]["route"], case["way"]["ahead"])).collect()
    };
    assert_eq!(report["sealing"], report["tunnel_asked"], "one cipher in the tunnel and above TCP");
    assert_eq!(
        names(&first),
        ["\"tunnel\"1", "\"plain\"1", "\"sealed\"1", "\"sealed\"8", "\"plain\"8", "\"tunnel\"8"]
    );
    let mut controls = names(&again);
    controls.sort();
    assert_eq!(controls, ["\"tunnel\"1", "\"tunnel\"8"], "the tunnel as its own control: {report:#}");
    assert!(cases.iter().all(|case| case["verified"].as_u64() > Some(0)), "{report:#}");
    // One block for each round trip of 40 ms at most, or eight; however busy the machine is, that
    // is the ceiling. What is above the ceiling of one has overtaken the wait, and a busy machine
    // may keep all but one case below it.
    let ceiling = 8192.0 / 0.040;
    for case in &cases[..8] {
        let most = case["way"]["ahead"].as_f64().expect("a number");
        let rates: Vec<f64> = (0..cases.len())
            .filter(|at| cases[*at]["way"] == case["way"])
            .map(|at| rate(&report, at))
            .collect();
        assert_eq!(rates.len(), 2, "the second round has all cases");
        assert!(rates.iter().all(|rate| *rate <= most * ceiling), "{report:#}");
        assert!(most <= 1.0 || rates.iter().any(|rate| *rate > ceiling), "{report:#}");
    }
}

/// The gateway's main process in the lab of process `parent`.
fn gateway(parent: u32) -> Option<Pid> {
    let lab = std::fs::metadata(format!("/run/netns/ts{parent}g")).ok()?.ino();
    let pids = std::fs::read_dir("/proc").ok()?.flatten();
    let is_it = |pid: &i32| {
        let namespace = std::fs::metadata(format!("/proc/{pid}/ns/net"));
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_server = command.split(|byte| *byte == 0).nth(1) == Some(b"server");
        is_server && namespace.is_ok_and(|namespace| namespace.ino() == lab)
    };
    let found = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_it).min();
    found.and_then(Pid::from_raw)
}

/// Bytes that the client of the lab of process `parent` has sent into its tunnel.
fn sent_into_tunnel(parent: u32) -> u64 {
    let shown = Process::new("ip").args(["-n", &format!("ts{parent}c1"), "-s", "-j", "link"]).output();
    let devices: Value = serde_json::from_slice(&shown.expect("iproute2").stdout).unwrap_or_default();
    let tunnels = devices
        .as_array()
        .into_iter()
        .flatten()
        .filter(|device| ["lo", "eth0"].iter().all(|name| device["ifname"] != *name));
    tunnels.filter_map(|device| device["stats64"]["tx"]["bytes"].as_u64()).sum()
}

#[test]
fn a_case_fails_when_a_vpn_process_ends() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let child = start(&format!(
        "block --r2t off --delays 5ms --sizes 64K --ahead 1 -t 5 --repeat 1 --no-control --span 4 --no-sync --json --quiet --vpnd {}",
        program.display()
    ));
    let parent = child.id();
    let deadline = Instant::now() + Duration::from_secs(60);
    while sent_into_tunnel(parent) < 1 << 20 {
        assert!(Instant::now() < deadline, "blocks are written through the tunnel");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(gateway(parent).expect("a gateway"), Signal::KILL).expect("it runs");
    let report = report_of(child, 1);
    let is_ended = |case: &&Value| {
        case["problem"]
            .as_str()
            .is_some_and(|why| why.contains("of the VPN ended before the measurement did"))
    };
    let ended: Vec<&Value> = report["cases"].as_array().expect("cases").iter().filter(is_ended).collect();
    assert_eq!(ended.len(), 1, "{report:#}");
    assert_eq!((&ended[0]["way"]["route"], &ended[0]["bytes_per_second"]), (&"tunnel".into(), &Value::Null));
    assert!(report["problems"].to_string().contains("nothing more was measured"), "{report:#}");
}

fn rate(report: &Value, at: usize) -> f64 {
    let case = &report["cases"][at];
    assert_eq!(case["problem"], Value::Null, "{report:#}");
    case["bytes_per_second"].as_f64().expect("a rate")
}

#[test]
fn ready_to_transfer_costs_a_second_round_trip_and_the_link_bounds_the_rate() {
    if !can_run() {
        return;
    }
    // Answers are the kernel's alone: a disk that is busy with something else is not what is
    // tested.
    let line = "block --vpn none --delays 20ms --ahead 4 -t 0.3 --repeat 2 --no-control --span 8 --no-sync --json --quiet";
    let report = measured(&format!("{line} --sizes 8K --r2t"));
    assert_eq!(report["ready_first"], true);
    // Two round trips of 40 ms for each block; with four in progress, for each four.
    let ceiling = 8192.0 / 0.080;
    let sealed = [rate(&report, 2), rate(&report, 9 - 2)];
    assert!(rate(&report, 1) <= ceiling && sealed.iter().all(|rate| *rate <= 4.0 * ceiling), "{report:#}");
    assert!(sealed.iter().any(|rate| *rate > ceiling), "{report:#}");
    let report = measured(&format!("{line} --sizes 256K --r2t off --rate 20mbit"));
    // A rate is that of 4 k blocks, k at least 2, of which the link may have carried three before
    // the first answer that counts.
    assert!((0..10).all(|at| rate(&report, at) <= 8.0 / 5.0 * 20e6 / 8.0), "{report:#}");
    assert!(report["limits"][0].as_str().is_some_and(|limit| limit.contains("20")), "{report:#}");
}

#[test]
fn a_target_that_holds_data_is_left_alone() {
    if !can_run() {
        return;
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "precious").expect("written");
    let output = run(&format!("block --quick --vpn none --target {}", file.path().display()));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--overwrite"));
    assert_eq!(std::fs::read(file.path()).expect("read"), b"precious");
}
