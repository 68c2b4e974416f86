use super::model::Parameters;
use super::*;
use crate::experiment::environment::Environment;
use crate::experiment::outcome::{CpuUse, Taken};
use crate::observe::HostCpu;
use crate::stats::Spread;
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
                    ends_cpu_seconds: Some([0.01, 0.02]),
                    cpu: Some(CpuUse {
                        clients: 0.03,
                        gateway: 0.04,
                        foreign: 2.0,
                        host: HostCpu { steal: 1.0, idle: 49.0, ..HostCpu::default() },
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

/// `report` with `repeats` rounds that are all like its first.
pub(crate) fn repeated(mut report: BlockReport, repeats: u32) -> BlockReport {
    let first = report.cases.clone();
    for repeat in 2..=repeats {
        report.cases.extend(first.iter().cloned().map(|case| Case { repeat, ..case }));
    }
    report.repeats = repeats;
    report
}

/// Changes the throughput of some cases.
pub(crate) fn scale(report: &mut BlockReport, factor: f64, which: impl Fn(&Case) -> bool) {
    let cases = report.cases.iter_mut().filter(|case| which(case));
    cases.for_each(|case| case.bytes_per_second = case.bytes_per_second.map(|rate| rate * factor));
}

fn middle(spread: Option<Spread>) -> Option<f64> {
    spread.map(|spread| spread.median)
}

#[test]
fn ratios_peaks_and_cpu_are_formed_over_block_sizes() {
    let report = sample();
    assert_eq!(middle(report.ratio(16.0, Way::sealed(10), Way::TUNNEL)), Some(10.0));
    assert_eq!(middle(report.peak(16.0, Way::TUNNEL)), Some(20_971_520.0));
    assert_eq!(middle(report.cpu(0.0, Way::sealed(2))), Some(10.0));
    // 0.05 cores for 81,920 bytes a second, and for 256 times as much.
    let cost = middle(report.cost(0.0, Way::TUNNEL, CpuPart::TargetSide)).unwrap();
    assert!((cost - f64::midpoint(0.05 / 81_920e-9, 0.05 / 20_971_520e-9)).abs() < 1e-6, "{cost}");
    assert_eq!(report.ratio(3.0, Way::PLAIN, Way::TUNNEL), None);
    assert!(report.is_whole());
}

#[test]
fn the_cost_of_a_gigabyte_counts_both_ends_and_in_the_tunnel_the_vpn() {
    let report = sample();
    let cost = |way: Way, part: CpuPart| middle(report.cost(0.0, way, part)).unwrap();
    // 100 blocks of 8 KiB and of 2 MiB in gigabytes; the middle of both.
    let per_gigabyte = |seconds: f64| f64::midpoint(seconds / 819_200e-9, seconds / 209_715_200e-9);
    for (way, part, seconds) in [
        (Way::TUNNEL, CpuPart::Writer, 0.01),
        (Way::TUNNEL, CpuPart::WriterVpn, 0.03),
        (Way::TUNNEL, CpuPart::Target, 0.02),
        (Way::TUNNEL, CpuPart::GatewayVpn, 0.04),
        (Way::TUNNEL, CpuPart::All, 0.10),
        (Way::PLAIN, CpuPart::GatewayVpn, 0.0),
        (Way::sealed(10), CpuPart::All, 0.03),
    ] {
        let found = cost(way, part);
        assert!((found - per_gigabyte(seconds)).abs() < 1e-6, "{} {part:?}: {found}", way.name());
    }
    let ratio = middle(report.cost_ratio(0.0, (Way::sealed(10), Way::TUNNEL), CpuPart::All)).unwrap();
    assert!((ratio - 0.3).abs() < 1e-9, "{ratio}");
    // Between real hosts not all of it was counted.
    let mut unknown = sample();
    unknown.cases.iter_mut().for_each(|case| case.cpu = None);
    assert_eq!(unknown.cost(0.0, Way::TUNNEL, CpuPart::All), None);
    assert!(unknown.cost(0.0, Way::TUNNEL, CpuPart::Target).is_some());
    unknown.cases.iter_mut().for_each(|case| case.ends_cpu_seconds = None);
    assert_eq!(unknown.cost(0.0, Way::TUNNEL, CpuPart::Target), None);
    assert!(unknown.cost(0.0, Way::TUNNEL, CpuPart::TargetSide).is_some());
}

#[test]
fn a_case_with_a_problem_is_no_figure_and_the_report_is_not_whole() {
    let mut report = sample();
    report.cases[2].problem = Some("broken".into());
    assert_eq!(report.rate(0.0, 8192, Way::sealed(2)), None);
    assert!(!report.is_whole());
    assert_eq!(
        report.ratio(0.0, Way::sealed(2), Way::TUNNEL),
        None,
        "a mean over fewer sizes is another figure"
    );
    let again = BlockReport { repeats: 2, ..sample() };
    assert!(!again.is_whole(), "each case was to be measured twice");
    let mut short = sample();
    short.cases.pop();
    assert!(!short.is_whole());
}

#[test]
fn figures_have_the_spread_of_their_rounds_and_ratios_are_formed_within_each() {
    let mut again = repeated(sample(), 2);
    assert!(again.is_whole());
    scale(&mut again, 3.0, |case| case.repeat == 2);
    let spread = |spread: Option<Spread>| spread.map(|s| (s.low, s.median, s.high, s.n)).unwrap();
    assert_eq!(spread(again.rate(0.0, 8192, Way::TUNNEL)), (81_920.0, 163_840.0, 245_760.0, 2));
    let ratio = |report: &BlockReport| spread(report.ratio(0.0, Way::sealed(2), Way::TUNNEL));
    assert_eq!(ratio(&again), (2.0, 2.0, 2.0, 2), "within a round, however fast the machine was");
    scale(&mut again, 1.5, |case| case.repeat == 2 && case.way == Way::sealed(2));
    assert_eq!(ratio(&again), (2.0, 2.5, 3.0, 2));
    // The larger block carries the most: 20,971,520 bytes a second, and three times as much in the
    // other round.
    let peak = spread(again.peak(0.0, Way::TUNNEL));
    assert_eq!((peak.0, peak.2), (20_971_520.0, 3.0 * 20_971_520.0));
    assert_eq!(spread(again.cpu(0.0, Way::TUNNEL)), (5.0, 5.0, 5.0, 2));
    let cost = spread(again.cost(0.0, Way::TUNNEL, CpuPart::TargetSide));
    assert!((cost.2 - 3.0 * cost.0).abs() < 1e-6, "three times the throughput for the same CPU time");
    assert_eq!(spread(again.same(0.0, Way::PLAIN, Way::TUNNEL)), (1.0, 1.0, 1.0, 2));
    assert_eq!(again.taken(16.0), Taken { steal: Some(2.0), others: Some(4.0) });
    assert_eq!(again.taken(3.0), Taken::default(), "nothing ran at that delay");
}

#[test]
fn a_ratio_uses_the_controls_with_the_same_queue_depths() {
    let mut report = sample();
    let deep = Way::of(Route::Tunnel, 10);
    scale(&mut report, 1.5, |case| case.way == deep.again());
    let same = |report: &BlockReport, way: Way, base: Way| middle(report.same(0.0, way, base));
    assert_eq!(same(&report, Way::PLAIN, Way::TUNNEL), Some(1.0));
    assert_eq!(same(&report, Way::sealed(10), deep), Some(1.5));
    assert_eq!(same(&report, Way::sealed(2), Way::of(Route::Plain, 2)), Some(1.5));
    assert_eq!(same(&report, Way::sealed(10), Way::TUNNEL), Some(1.5), "the wider of both");
    scale(&mut report, 4.0, |case| case.way == Way::TUNNEL.again());
    assert_eq!(same(&report, Way::sealed(10), Way::TUNNEL), Some(4.0), "the wider of both");
    assert_eq!(deep.again().name(), format!("tunnel-10{}", crate::system::AGAIN));
    report.controls = vec![1];
    assert_eq!(same(&report, Way::sealed(10), deep), Some(4.0));
    report.cases.retain(|case| case.way != deep.again());
    assert!(report.is_whole());
    report.controls.clear();
    report.cases.retain(|case| !case.way.again);
    assert!(report.is_whole() && report.same(0.0, Way::sealed(10), deep).is_none());
}

#[test]
fn a_control_that_was_not_measured_leaves_a_ratio_without_one() {
    let mut report = sample();
    report.cases.retain(|case| case.way != Way::of(Route::Tunnel, 10).again());
    assert_eq!(report.same(0.0, Way::sealed(10), Way::TUNNEL), None);
    assert!(report.same(0.0, Way::PLAIN, Way::TUNNEL).is_some());
}

#[test]
fn every_round_has_all_cases_in_another_order() {
    let cases = Writes { sizes: vec![8192, 16_384], repeats: 3, ..plan(&[0], &[1, 2]).writes }.cases();
    let round = |repeat: u32| -> Vec<(u32, Way)> {
        let selected = cases.iter().filter(|case| case.2 == repeat);
        selected.map(|&(size, way, _)| (size, way)).collect()
    };
    assert!(round(2) != round(1) && round(3) != round(1) && round(3) != round(2));
    let has_all = |repeat: u32| round(1).iter().all(|case| round(repeat).contains(case));
    assert!(has_all(2) && has_all(3) && [2, 3].iter().all(|&repeat| round(repeat).len() == round(1).len()));
}

#[test]
fn a_case_that_fails_has_its_reason_and_too_many_end_the_delay() {
    let report = sample();
    let sound = report.cases[0].clone();
    let failed = Case::failed(sound.delay_ms, (sound.block_bytes, sound.way, 1), "no answer in 20 s".into());
    let mut failures = Failures::default();
    for _ in 1..MOST_FAILED {
        assert_eq!(failures.look_at(&failed, None), None);
        assert_eq!(failures.look_at(&sound, None), None);
    }
    let problem = failures.look_at(&failed, None).expect("too many");
    assert!(problem.contains("10 cases") && problem.ends_with("no answer in 20 s"), "{problem}");
    let problem = Failures::default().look_at(&sound, Some("the target")).expect("a host is lost");
    assert!(problem.starts_with("the target dropped out"), "{problem}");
    let mut broken = report;
    broken.cases[0] = failed;
    assert!(!broken.is_whole() && broken.rate(0.0, 8192, Way::TUNNEL).is_none());
}

fn refused() -> PlaceError {
    PlaceError::Precious("precious".into())
}

#[test]
fn a_plan_that_fails_takes_no_other_along_and_an_interrupt_begins_none() {
    let plans = vec![plan(&[0], &[1]); 4];
    let mut outcomes =
        vec![Ok(sample()), Err(refused()), Ok(BlockReport { interrupted: true, ..sample() })].into_iter();
    let found = one_by_one(&plans, |_| outcomes.next().expect("nothing begins after an interrupt")).unwrap();
    assert_eq!(found.len(), 3);
    assert!(found[0].is_whole() && !found[1].is_whole() && found[2].interrupted);
    assert!(found[1].cases.is_empty() && found[1].problems[0].contains(&refused().to_string()));
}

#[test]
fn a_target_that_was_refused_is_overwritten_by_no_other_plan() {
    let plans = vec![plan(&[0], &[1]); 3];
    let mut asked = Vec::new();
    let found = one_by_one(&plans, |plan| {
        asked.push(plan.place.overwrite);
        Err(refused())
    });
    assert!(matches!(found, Err(PlaceError::Precious(_))), "nothing was measured");
    assert_eq!(asked, [false; 3]);
    asked.clear();
    let found = one_by_one(&plans, |plan| {
        asked.push(plan.place.overwrite);
        if asked.len() == 1 { Err(refused()) } else { Ok(sample()) }
    });
    assert_eq!((found.unwrap().len(), &asked[..]), (3, &[false, false, true][..]), "its own blocks alone");
}

fn plan(delays: &[u64], ahead: &[u32]) -> BlockPlan {
    BlockPlan {
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
        window_bytes: 64 << 20,
        place: PlaceOptions::default(),
        subject: Subject::new(crate::system::Kind::Vpnd, Cipher::Aes256Gcm),
        programs: Programs::default(),
    }
}

#[test]
fn the_estimate_grows_with_delays_sizes_and_blocks_in_progress() {
    let short = plan(&[0], &[1]).estimate();
    assert!((short.as_secs_f64() - 10.0).abs() < 0.01, "{short:?}");
    assert!(plan(&[64], &[1]).estimate() > short + Duration::from_secs(4));
    assert!(plan(&[0], &[1, 2]).estimate() > short + Duration::from_secs(1));
    let mut ways: Vec<String> =
        plan(&[0], &[1, 2]).writes.cases().iter().map(|(_, way, _)| way.name()).collect();
    ways.sort();
    assert_eq!(ways, ["OP-1", "OP-2", "plain", "plain-2", "tunnel", "tunnel-2"]);
    let controls = |ahead: &[u32]| Writes { control: true, ..plan(&[0], ahead).writes }.controls();
    assert_eq!((controls(&[1, 2]), controls(&[1])), (vec![1, 2], vec![1]));
    let blocks = plan(&[0], &[1]).writes.blocks(3000, Protection::Plain);
    let chacha = Writes { sealing: Sealing::ChaCha20Poly1305, ..plan(&[0], &[1]).writes };
    assert_eq!(chacha.blocks(512, Protection::Sealed).sealing, Sealing::ChaCha20Poly1305);
    assert_eq!(blocks.problem(), None, "the span is made a whole number of blocks");
}
