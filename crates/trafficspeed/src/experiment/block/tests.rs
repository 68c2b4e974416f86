use super::model::Parameters;
use super::*;
use crate::experiment::environment::Environment;
use crate::experiment::outcome::{CpuUse, Taken};
use crate::observe::HostCpu;
use crate::system::SystemInfo;

/// Made-up results: OP-n is n times as fast as the tunnel.
pub(crate) fn sample() -> BlockReport {
    let (delays, sizes, ahead) = (vec![0.0, 16.0], vec![8192, 2 << 20], vec![2, 10]);
    let mut cases = Vec::new();
    for &delay_ms in &delays {
        for &block_bytes in &sizes {
            for way in outcome::ways(&ahead, &[1, 10]) {
                let factor = match way.route {
                    Route::Tunnel => 0.9 * f64::from(way.ahead - 1) + 1.0,
                    Route::Plain => 1.5 * f64::from(way.ahead),
                    Route::Sealed => f64::from(way.ahead),
                };
                cases.push(Case {
                    delay_ms,
                    block_bytes,
                    way,
                    repeat: 1,
                    bytes_per_second: Some(factor * f64::from(block_bytes) * 10.0),
                    target_cpu_percent: Some(5.0 * factor),
                    acknowledged: 100,
                    verified: 32,
                    blocks_per_sync: 1.0,
                    cpu: Some(CpuUse {
                        foreign: 2.0,
                        host: HostCpu { steal: 1.0, idle: 3.0, ..HostCpu::default() },
                        ..CpuUse::default()
                    }),
                    problem: None,
                });
            }
        }
    }
    BlockReport {
        environment: Environment::default(),
        hosts: Vec::new(),
        system: "vpnd, aes-256-gcm".into(),
        facts: SystemInfo::default(),
        target: "file x".into(),
        synced: true,
        seconds: 1.0,
        congestion: CongestionControl::default(),
        window_bytes: 64 << 20,
        repeats: 1,
        control: true,
        controls: vec![1, 10],
        ready_first: false,
        sealing: Sealing::default(),
        tunnel_asked: Some(Cipher::Aes256Gcm),
        limits: Vec::new(),
        rate_bits: None,
        cores: None,
        asked: (delays, sizes, ahead),
        cases,
        parameters: Parameters { lower: 1e9, encrypt: 4e9, decrypt: 4e9, commit_seconds: 0.001 },
        links: vec!["delay 0 ms: emulated links, up: fine".into()],
        problems: Vec::new(),
        interrupted: false,
    }
}

#[test]
fn ratios_peaks_and_cpu_are_formed_over_block_sizes() {
    let report = sample();
    assert_eq!(report.ratio(16.0, Way::sealed(10)), Some(10.0));
    assert_eq!(report.peak(16.0, Way::TUNNEL), Some(20_971_520.0));
    assert_eq!(report.cpu(0.0, Way::sealed(2)), Some(10.0));
    // 0.05 cores for 81,920 bytes a second, and for 256 times as much.
    let cost = report.cost(0.0, Way::TUNNEL).unwrap();
    assert!((cost - f64::midpoint(0.05 / 81_920e-9, 0.05 / 20_971_520e-9)).abs() < 1e-6, "{cost}");
    assert_eq!(report.ratio(3.0, Way::PLAIN), None);
    assert!(report.is_whole());
}

#[test]
fn a_case_with_a_problem_is_no_figure_and_the_report_is_not_whole() {
    let mut report = sample();
    report.cases[2].problem = Some("broken".into());
    assert_eq!(report.rate(0.0, 8192, Way::sealed(2)), None);
    assert!(!report.is_whole());
    assert_eq!(report.ratio(0.0, Way::sealed(2)), Some(2.0), "the other block size still counts");
    let mut again = sample();
    again.repeats = 2;
    assert!(!again.is_whole(), "each case was to be measured twice");
    let more: Vec<Case> = again
        .cases
        .iter()
        .map(|case| Case {
            bytes_per_second: case.bytes_per_second.map(|rate| 3.0 * rate),
            repeat: 2,
            ..case.clone()
        })
        .collect();
    again.cases.extend(more);
    assert!(again.is_whole());
    assert_eq!(again.rate(0.0, 8192, Way::TUNNEL), Some(2.0 * 81_920.0), "the median of both");
    let spread = again.ratio_spread(0.0, Way::sealed(2), Way::TUNNEL).unwrap();
    assert_eq!(
        (spread.low, spread.high, spread.n),
        (2.0, 2.0, 2),
        "within a round, however fast the machine was"
    );
    let faster = again.cases.iter_mut().filter(|case| case.repeat == 2 && case.way == Way::sealed(2));
    faster.for_each(|case| case.bytes_per_second = case.bytes_per_second.map(|rate| rate * 1.5));
    let spread = again.ratio_spread(0.0, Way::sealed(2), Way::TUNNEL).unwrap();
    assert_eq!((spread.low, spread.median, spread.high), (2.0, 2.5, 3.0));
    // The larger block carries the most: 20,971,520 bytes a second, and three times as much in the other round.
    assert_eq!(again.peak_range(0.0, Way::TUNNEL), Some((20_971_520.0, 3.0 * 20_971_520.0)));
    assert_eq!(again.cpu_range(0.0, Way::TUNNEL), Some((5.0, 5.0)));
    let (least, most) = again.cost_range(0.0, Way::TUNNEL).unwrap();
    assert!((most - 3.0 * least).abs() < 1e-6, "three times the throughput for the same CPU time");
    let same = again.same(0.0, Way::TUNNEL).unwrap();
    assert_eq!((same.low, same.high, same.n), (1.0, 1.0, 2));
    assert_eq!(again.taken(16.0), Taken { steal: Some(25.0), others: Some(50.0) });
    assert_eq!(again.taken(3.0), Taken::default(), "nothing ran at that delay");
    let mut short = sample();
    short.cases.pop();
    assert!(!short.is_whole());
}

#[test]
fn several_blocks_in_progress_are_judged_by_the_control_that_has_as_many() {
    let mut report = sample();
    let deep = Way::of(Route::Tunnel, 10);
    let unsteady = report.cases.iter_mut().filter(|case| case.way == deep.again());
    unsteady.for_each(|case| case.bytes_per_second = case.bytes_per_second.map(|rate| rate * 1.5));
    let middle = |report: &BlockReport, by: Way| report.same(0.0, by).map(|same| same.median);
    assert_eq!((middle(&report, Way::TUNNEL), middle(&report, deep)), (Some(1.0), Some(1.5)));
    assert_eq!(middle(&report, Way::of(Route::Plain, 2)), Some(1.5));
    assert_eq!(deep.again().name(), format!("tunnel-10{}", crate::system::AGAIN));
    // As in older reports, which do not say with how many: one.
    report.controls.clear();
    assert_eq!(middle(&report, deep), Some(1.0));
    report.cases.retain(|case| case.way != deep.again());
    assert!(report.is_whole());
    report.control = false;
    report.cases.retain(|case| !case.way.again);
    assert!(report.is_whole() && report.same(0.0, deep).is_none());
}

#[test]
fn an_older_report_had_aes_256_gcm_above_tcp() {
    let mut json = serde_json::to_value(BlockReport { sealing: Sealing::Aes128Gcm, ..sample() }).unwrap();
    let read = |json: &serde_json::Value| serde_json::from_value::<BlockReport>(json.clone()).unwrap();
    assert_eq!(read(&json).sealing, Sealing::Aes128Gcm);
    for name in ["sealing", "tunnel_asked", "controls"] {
        assert!(json.as_object_mut().unwrap().remove(name).is_some(), "{name}");
    }
    assert_eq!((read(&json).sealing, read(&json).tunnel_asked), (Sealing::Aes256Gcm, None));
}

#[test]
fn the_estimate_grows_with_delays_sizes_and_blocks_in_progress() {
    let plan = |delays: &[u64], ahead: &[u32]| BlockPlan {
        delays: delays.iter().map(|ms| Span { ns: ms * 1_000_000 }).collect(),
        writes: Writes {
            sizes: vec![8192],
            ahead: ahead.to_vec(),
            duration: Duration::from_secs(1),
            sync: true,
            span_bytes: 1 << 20,
            seed: 1,
            congestion: CongestionControl::default(),
            repeats: 1,
            ready_first: false,
            sealing: Sealing::default(),
            control: false,
        },
        rate: None,
        cpu: None,
        place: PlaceOptions::default(),
        subject: Subject::new(crate::system::Kind::Vpnd, Cipher::Aes256Gcm),
        programs: Programs::default(),
    };
    let short = plan(&[0], &[1]).estimate();
    assert!((short.as_secs_f64() - 8.5).abs() < 0.01, "{short:?}");
    assert!(plan(&[64], &[1]).estimate() > short + Duration::from_secs(4));
    assert!(plan(&[0], &[1, 2]).estimate() > short + Duration::from_secs(1));
    let ways: Vec<String> = plan(&[0], &[1, 2]).writes.cases().iter().map(|(_, way, _)| way.name()).collect();
    assert_eq!(ways, ["tunnel", "plain", "OP-1", "OP-2", "plain-2", "tunnel-2"]);
    let controls = |ahead: &[u32]| Writes { control: true, ..plan(&[0], ahead).writes }.controls();
    assert_eq!((controls(&[1, 2]), controls(&[1])), (vec![1, 2], vec![1]));
    let blocks = plan(&[0], &[1]).writes.blocks(3000, Protection::Plain);
    let chacha = Writes { sealing: Sealing::ChaCha20Poly1305, ..plan(&[0], &[1]).writes };
    assert_eq!(chacha.blocks(512, Protection::Sealed).sealing, Sealing::ChaCha20Poly1305);
    assert_eq!(blocks.problem(), None, "the span is made a whole number of blocks");
}
