//! Block writes: what was acknowledged is in the target, also after the target's process was killed or the connection cut.
//!
//! ```text
//!   writer (client 1) ══ emulated link ══ target (gateway)        or, without root, both on the loopback
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use trafficspeed::load::block::content::{Content, Verified, verify};
use trafficspeed::load::block::process::{ProcessReply, ProcessRequest};
use trafficspeed::load::block::{Blocks, Protection, Secret, TargetJob, WriterJob};
use trafficspeed::load::congestion::CongestionControl;

use super::vpn::real_vpnd;
use super::{PROGRAM, can_run, measured, run, wait_until};

const BLOCK_BYTES: u32 = 16 << 10;
/// More than can be written before the end, so that no place is written twice.
const PLACES: u64 = 65_536;

/// One end's process.
struct End {
    child: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl End {
    fn start(order: &ProcessRequest) -> Self {
        let parent = std::process::id().to_string();
        let mut child = Command::new(PROGRAM)
            .args(["block-end", "--parent", &parent])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program was built");
        let line = serde_json::to_string(order).expect("JSON");
        writeln!(child.stdin.as_mut().expect("piped"), "{line}").expect("it reads");
        let answers = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, answers }
    }

    fn answer(&mut self) -> ProcessReply {
        let line = self.answers.next().expect("an answer").expect("text");
        serde_json::from_str(&line).expect("an answer")
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
        block_bytes: BLOCK_BYTES,
        span_bytes,
        congestion: CongestionControl::default(),
        ready_first: false,
    }
}

fn target(blocks: &Blocks, file: &Path) -> (End, u16) {
    let bind = Ipv4Addr::LOCALHOST.into();
    let job = TargetJob { blocks: blocks.clone(), file: file.to_owned(), sync: true, bind };
    let mut target = End::start(&ProcessRequest::Receive(job));
    let ProcessReply::Listening(port) = target.answer() else { panic!("it does not listen") };
    (target, port)
}

fn writer(blocks: &Blocks, port: u16) -> End {
    End::start(&ProcessRequest::Write(WriterJob {
        blocks: blocks.clone(),
        seed: 5,
        ahead: 8,
        warmup_ms: 0,
        duration_ms: 60_000,
        most_blocks: Some(PLACES),
        peer: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
    }))
}

/// Compares the file with the blocks that the writer knows to be acknowledged.
fn held(blocks: &Blocks, file: &File, writer: &mut End) -> (Verified, u64) {
    let ProcessReply::Wrote(wrote) = writer.answer() else { panic!("no outcome of the writer") };
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
        let (blocks, file) = (blocks(protection), tempfile::NamedTempFile::new().expect("a file"));
        let (mut target, port) = target(&blocks, file.path());
        let mut writer = writer(&blocks, port);
        wait_until("blocks arrive", || file.as_file().metadata().is_ok_and(|meta| meta.len() > 0));
        std::thread::sleep(Duration::from_millis(rand::random::<u64>() % 150));
        target.child.kill().expect("it runs");
        let (found, count) = held(&blocks, file.as_file(), &mut writer);
        assert_eq!((found.right, found.wrong), (count, 0), "round {round}");
        acknowledged += count;
    }
    assert!(acknowledged > 0, "six rounds without one answer test nothing");
}

/// Carries both directions between the ends and cuts them after so many bytes of the writer: in the middle of a block.
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
        let (blocks, file) = (blocks(Protection::Sealed), tempfile::NamedTempFile::new().expect("a file"));
        let (mut target, port) = target(&blocks, file.path());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let mut writer = writer(&blocks, listener.local_addr().expect("its address").port());
        cut_after(&listener, port, 100_000 + rand::random::<u32>() as usize % 2_000_000);
        let (found, count) = held(&blocks, file.as_file(), &mut writer);
        assert_eq!((found.right, found.wrong), (count, 0), "round {round}");
        let ProcessReply::Received(received) = target.answer() else { panic!("no outcome of the target") };
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
        "block --delays 20ms --sizes 8K --ahead 1,8 -t 0.3 --repeat 1 --span 4 --json --quiet --vpnd {}",
        program.display()
    ));
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    let cases = report["cases"].as_array().expect("cases");
    let ways: Vec<String> =
        cases.iter().map(|case| format!("{}{}", case["way"]["route"], case["way"]["ahead"])).collect();
    assert_eq!(
        ways,
        ["\"tunnel\"1", "\"plain\"1", "\"sealed\"1", "\"sealed\"8", "\"plain\"8", "\"tunnel\"8"]
    );
    let rate = |at: usize| {
        assert_eq!(cases[at]["problem"], Value::Null, "{report:#}");
        assert!(cases[at]["verified"].as_u64() > Some(0));
        cases[at]["bytes_per_second"].as_f64().expect("a rate")
    };
    // One block for each round trip of 40 ms at most; however busy the machine is, that is the ceiling.
    assert!(rate(0) <= 8192.0 / 0.040 && rate(1) <= 8192.0 / 0.040, "{report:#}");
    assert!(rate(3) <= 8.0 * 8192.0 / 0.040 && rate(3) > 2.0 * rate(2), "{report:#}");
}

#[test]
fn a_target_that_asks_first_costs_a_second_round_trip_and_a_slow_link_is_the_ceiling() {
    if !can_run() {
        return;
    }
    let line =
        "block --vpn none --cipher auto --delays 20ms --ahead 4 -t 0.3 --repeat 1 --span 8 --json --quiet";
    let report = measured(&format!("{line} --sizes 8K --r2t"));
    let rate = |report: &Value, at: usize| {
        let case = &report["cases"][at];
        assert_eq!(case["problem"], Value::Null, "{report:#}");
        case["bytes_per_second"].as_f64().expect("a rate")
    };
    assert_eq!(report["ready_first"], true);
    // Two round trips of 40 ms for each block; with four in progress, for each four.
    assert!(rate(&report, 1) <= 8192.0 / 0.080, "{report:#}");
    assert!(
        rate(&report, 2) <= 4.0 * 8192.0 / 0.080 && rate(&report, 2) > 1.5 * rate(&report, 1),
        "{report:#}"
    );
    let report = measured(&format!("{line} --sizes 256K --rate 20mbit"));
    // Answers come in bursts, so a short window may show some more than the link carries.
    assert!((0..5).all(|at| rate(&report, at) <= 1.5 * 20e6 / 8.0), "{report:#}");
    assert!(report["limits"][0].as_str().is_some_and(|limit| limit.contains("20")), "{report:#}");
}

#[test]
fn a_target_that_holds_data_is_left_alone() {
    if !can_run() {
        return;
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "precious").expect("written");
    let output = run(&format!("block --quick --vpn none --cipher auto --target {}", file.path().display()));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--overwrite"));
    assert_eq!(std::fs::read(file.path()).expect("read"), b"precious");
}
