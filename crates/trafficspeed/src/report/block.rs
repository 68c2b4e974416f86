//! The block experiment: the ratio table in the original's form with the original's figures beside ours, peaks, CPU, and
//! the model beside the measurement.

mod notes;
mod pictures;
pub mod sweep;

use std::fmt::Write as _;

use super::csv::with_place;
use super::grid::Grid;
use super::noise::{TAKEN, far, percent};
use super::page::Page;
use crate::experiment::block::original;
use crate::experiment::block::{BlockReport, Case, Route, Way};
use crate::stats::{Spread, median};
use crate::unit::significant;

use notes::notes;
pub use pictures::pictures;

/// A heading, what it means, the head of a table and its rows.
pub struct Section {
    pub title: String,
    pub caption: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// The report as text, tables at most so wide.
pub fn table(report: &BlockReport, width: Option<usize>) -> String {
    let mut text = String::new();
    for part in parts(report) {
        let grid = Grid { keys: 1, head: part.head, rows: part.rows };
        writeln!(text, "{}\n{}\n{}\n", part.title, part.caption, grid.text(width))
            .expect("writing to a string");
    }
    for line in remarks(report).into_iter().chain(notes(report)).chain(problems(report)) {
        writeln!(text, "{line}").expect("writing to a string");
    }
    text
}

/// The report as one page.
pub fn html(report: &BlockReport) -> String {
    let lead = "Block writes over long delays: encrypted above TCP with several blocks in progress, against waiting for \
                each answer through the tunnel.";
    let mut page = Page::new("trafficspeed block", "Encrypt ahead of the wait", lead);
    for problem in problems(report) {
        page.paragraph("warning", &problem);
    }
    pictures(report).iter().for_each(|picture| page.figure(picture));
    fill_page(&mut page, report);
    page.finish()
}

/// The tables of one report, and how they came about.
fn fill_page(page: &mut Page, report: &BlockReport) {
    for part in parts(report) {
        page.section(&part.title);
        page.paragraph("", &part.caption);
        let head: Vec<&str> = part.head.iter().map(String::as_str).collect();
        page.table(&head, part.rows);
    }
    let remarks = remarks(report);
    if !remarks.is_empty() {
        page.list("problems", &remarks);
    }
    page.section("How it was measured");
    page.list("", &notes(report));
    let e = &report.environment;
    page.facts([
        ("Machine".to_owned(), e.machine()),
        ("Command".to_owned(), e.command_line.clone()),
        ("Begun".to_owned(), e.started.clone()),
    ]);
}

const CSV_COLUMNS: usize = 18;

const CSV_HEAD: [&str; CSV_COLUMNS] = [
    "link_bits_per_second",
    "target_cores",
    "delay_ms",
    "block_bytes",
    "way",
    "run",
    "bytes_per_second",
    "target_cpu_percent",
    "acknowledged",
    "verified",
    "blocks_per_sync",
    "problem",
    "congestion",
    "steal_percent",
    "others_percent",
    "sealed_with",
    "tunnel_cipher",
    "round_trips",
];

/// The cases as CSV.
pub fn csv(report: &BlockReport) -> String {
    csv_of(std::slice::from_ref(report))
}

/// The cases of several reports.
fn csv_of(reports: &[BlockReport]) -> String {
    let rows = reports.iter().flat_map(|report| {
        report.cases.iter().map(move |case| (csv_cells(report, case), &report.environment))
    });
    with_place(CSV_HEAD, rows)
}

fn csv_cells(report: &BlockReport, case: &Case) -> [String; CSV_COLUMNS] {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
    // A case has the cipher that protected its own blocks.
    let on = |route: Route, cipher: &str| {
        if case.way.route == route { cipher.to_owned() } else { String::new() }
    };
    [
        report.rate_bits.map_or(String::new(), |bits| bits.to_string()),
        number(report.cores),
        case.delay_ms.to_string(),
        case.block_bytes.to_string(),
        case.way.name(),
        case.repeat.to_string(),
        number(case.bytes_per_second),
        number(case.target_cpu_percent),
        case.acknowledged.to_string(),
        case.verified.to_string(),
        format!("{:.2}", case.blocks_per_sync),
        case.problem.clone().unwrap_or_default(),
        report.congestion.to_string(),
        number(case.cpu.and_then(|cpu| cpu.steal_percent())),
        number(case.cpu.and_then(|cpu| cpu.foreign_percent())),
        on(Route::Sealed, report.sealing.name()),
        on(Route::Tunnel, &report.facts.cipher),
        if report.ready_first { "2" } else { "1" }.into(),
    ]
}

fn parts(report: &BlockReport) -> Vec<Section> {
    let mut parts = vec![ratios(report), overlap(report), peaks(report), cpu(report)];
    // One delay shows the model: the original's if it was measured, otherwise the longest.
    let delays = &report.asked.0;
    let longest = delays.iter().copied().reduce(f64::max);
    if let Some(delay) = delays.iter().copied().find(|delay| *delay == 16.0).or(longest) {
        parts.push(model(report, delay));
    }
    parts
}

fn original_ratio(delay_ms: f64, ahead: u32) -> Option<f64> {
    let (_, row) = original::RATIOS.iter().find(|(delay, _)| f64::from(*delay) == delay_ms)?;
    Some(row[original::AHEAD.iter().position(|n| *n == ahead)?])
}

fn beside(ours: Option<f64>, original: Option<f64>) -> String {
    let original = original.map_or(String::new(), |value| format!(" ({})", significant(value)));
    format!("{}{original}", number(ours))
}

/// The same with the spread of the rounds.
fn spread_beside(ours: Option<f64>, rounds: Option<Spread>, original: Option<f64>) -> String {
    let range = rounds.filter(|rounds| rounds.n > 1).map_or(String::new(), |rounds| {
        format!(", {}–{}", significant(rounds.low), significant(rounds.high))
    });
    let original = original.map_or(String::new(), |value| format!(" ({})", significant(value)));
    format!("{}{range}{original}", number(ours))
}

/// Follows a ratio of which several rounds show no difference beyond that of the tunnel to itself; one round shows neither.
fn no_difference(rounds: Option<Spread>, same: Option<Spread>) -> &'static str {
    match rounds.zip(same) {
        Some((rounds, same)) if rounds.is_within(same) => " ≈",
        _ => "",
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or("–".into(), significant)
}

fn mb(value: Option<f64>) -> String {
    number(value.map(|value| value / 1e6))
}

fn ratios(report: &BlockReport) -> Section {
    let (delays, _, ahead) = &report.asked;
    let mut reached = (0, 0);
    let mut rows = Vec::new();
    for &delay in delays {
        let mut row = vec![format!("{delay} ms")];
        for &n in ahead {
            let (ours, then) = (report.ratio(delay, Way::sealed(n)), original_ratio(delay, n));
            if let (Some(ours), Some(then)) = (ours, then)
                && delay >= 1.0
            {
                reached = (reached.0 + u32::from(ours >= then), reached.1 + 1);
            }
            let (rounds, same) =
                (report.ratio_spread(delay, Way::sealed(n), Way::TUNNEL), report.same(delay, Way::TUNNEL));
            row.push(spread_beside(ours, rounds, then) + no_difference(rounds, same));
        }
        let (plain, same) =
            (report.ratio_spread(delay, Way::PLAIN, Way::TUNNEL), report.same(delay, Way::TUNNEL));
        row.push(spread_beside(report.ratio(delay, Way::PLAIN), plain, None) + no_difference(plain, same));
        row.push(same.map_or("–".into(), |same| same.text(significant)));
        row.extend(taken(report, delay));
        rows.push(row);
    }
    let mut head = vec!["one-way delay".to_owned()];
    head.extend(ahead.iter().map(|n| format!("OP-{n}")));
    head.extend(["plain", "A/A", "steal", "others"].map(str::to_owned));
    let mut caption = String::from(
        "Mean over block sizes, of the medians of the runs, then the lowest and the highest of a run; OP-n: n blocks in progress, \
         sealed above TCP; plain: no VPN, no encryption, no overlap. A/A: the tunnel's second measurement in each round by its \
         first; ≈: several rounds show no difference beyond that. ",
    ) + TAKEN;
    if let (passed, 1..) = reached {
        let of = reached.1;
        write!(
            caption,
            " In parentheses the original against IPsec (3DES, 2006). From 1 ms on, {passed} of {of} figures reach or \
             pass the original's."
        )
        .expect("writing to a string");
    }
    Section {
        title: format!("Throughput as a multiple of {} with no overlap", report.system),
        caption,
        head,
        rows,
    }
}

/// What encrypting ahead gains beyond having as many blocks in progress.
fn overlap(report: &BlockReport) -> Section {
    let (delays, sizes, ahead) = &report.asked;
    let several: Vec<u32> = ahead.iter().copied().filter(|ahead| *ahead > 1).collect();
    let deepest = report.deepest_control();
    let rows = delays.iter().map(|&delay| {
        let beside = |route: Route, ahead: u32| {
            let ratio = |&size: &u32| {
                let control = report.rate(delay, size, Way::of(route, ahead))?;
                Some(report.rate(delay, size, Way::sealed(ahead))? / control)
            };
            let ratio = median(&sizes.iter().filter_map(ratio).collect::<Vec<_>>());
            let by = Way::of(route, ahead);
            let rounds = report.ratio_spread(delay, Way::sealed(ahead), by);
            format!("{}{}", number(ratio), no_difference(rounds, report.same(delay, by)))
        };
        let cells =
            several.iter().flat_map(|&ahead| [Route::Tunnel, Route::Plain].map(|route| beside(route, ahead)));
        let same = report.same(delay, deepest).map_or("–".into(), |same| same.text(significant));
        std::iter::once(format!("{delay} ms")).chain(cells).chain([same]).collect()
    });
    let head =
        several.iter().flat_map(|ahead| [format!("OP-{ahead} / tunnel-{ahead}"), format!("/ plain-{ahead}")]);
    Section {
        title: "What encrypting ahead gains beside as many blocks in progress without it".into(),
        caption: "Median over block sizes of OP-n divided by the tunnel, and by no encryption at all, with the same n in progress. \
                  Around 1: the gain over waiting for each answer is that of the queue's depth alone. A/A: the tunnel's second measurement in each round by its first, with as many in \
                  progress as the column says; ≈: several rounds show no difference beyond that."
            .into(),
        head: std::iter::once("one-way delay".to_owned())
            .chain(head)
            .chain([format!("A/A of {}", deepest.name())])
            .collect(),
        rows: rows.collect(),
    }
}

/// The number of blocks in progress that carried most.
fn best_sealed(report: &BlockReport, delay: f64) -> Option<Way> {
    let all = report.asked.2.iter().map(|&n| Way::sealed(n));
    let measured = all.filter_map(|way| Some((way, report.peak(delay, way)?)));
    measured.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(way, _)| way)
}

fn peaks(report: &BlockReport) -> Section {
    let delays = &report.asked.0;
    let rows = delays.iter().map(|&delay| {
        let best = best_sealed(report, delay).and_then(|way| report.peak(delay, way));
        let then = original::PEAKS.iter().find(|(ms, _)| f64::from(*ms) == delay).map(|(_, row)| *row);
        let cell =
            |ours: Option<f64>, at: usize| beside(ours.map(|value| value / 1e6), then.map(|row| row[at]));
        vec![
            format!("{delay} ms"),
            cell(report.peak(delay, Way::PLAIN), 0),
            cell(report.peak(delay, Way::TUNNEL), 1),
            cell(best, 2),
        ]
    });
    Section {
        title: "Best throughput of any block size, MB/s".into(),
        caption:
            "Bytes of acknowledged blocks per second. In parentheses the original: plain, IPsec, theirs."
                .into(),
        head: ["one-way delay", "plain", "tunnel", "best OP-n"].map(str::to_owned).into(),
        rows: rows.collect(),
    }
}

fn cpu(report: &BlockReport) -> Section {
    let (delays, _, ahead) = &report.asked;
    let rows = delays.iter().map(|&delay| {
        let then = original::CPU.iter().find(|(ms, ..)| f64::from(*ms) == delay);
        let mut row = vec![
            format!("{delay} ms"),
            beside(report.cpu(delay, Way::TUNNEL), then.map(|(_, ipsec, _)| *ipsec)),
        ];
        for &n in ahead {
            let at = original::AHEAD.iter().position(|known| *known == n);
            let then = then.zip(at).map(|((_, _, columns), at)| columns[at]);
            row.push(beside(report.cpu(delay, Way::sealed(n)), then));
        }
        row
    });
    let mut head = vec!["one-way delay".to_owned(), "tunnel".to_owned()];
    head.extend(ahead.iter().map(|n| format!("OP-{n}")));
    Section {
        title: "CPU use at the target, % of one core".into(),
        caption: if report.hosts.is_empty() {
            "Mean over block sizes: the target's process and, with the tunnel, the VPN's process on its side; the \
             kernel's interrupt time belongs to no process and is not in it. In parentheses the original, which was \
             that of the whole machine."
        } else {
            "Mean over block sizes: the target's process alone. What a VPN's processes and the kernel take beside it \
             is not in it."
        }
        .into(),
        head,
        rows: rows.collect(),
    }
}

fn model(report: &BlockReport, delay: f64) -> Section {
    let rtt = 2.0 * delay / 1e3;
    let p = &report.parameters;
    let rows = report.asked.1.iter().map(|&size| {
        let block = f64::from(size);
        let measured = |way| mb(report.rate(delay, size, way));
        let then = original::MODEL_16_MS.iter().find(|(bytes, _)| *bytes == size && delay == 16.0);
        let then = |from: usize| {
            then.map_or("–".into(), |(_, row)| format!("{:.3} / {:.3}", row[from], row[from + 1]))
        };
        vec![
            size_name(size),
            mb(Some(p.without_overlap(block, rtt))),
            mb(Some(p.one_round_trip(block, rtt, 1))),
            measured(Way::TUNNEL),
            then(0),
            mb(Some(p.two_in_progress(block, rtt))),
            mb(Some(p.one_round_trip(block, rtt, 2))),
            measured(Way::sealed(2)),
            then(2),
        ]
    });
    let head = [
        "block",
        "no overlap: model",
        "one round trip",
        "measured",
        "original: model / measured",
        "OP-2: model",
        "one round trip",
        "measured",
        "original: model / measured",
    ];
    Section {
        title: format!("The model beside the measurement at {delay} ms one way, MB/s"),
        caption: format!(
            "No overlap: block / (2·RTT + block/lower + block/encrypt + block/decrypt); OP-2: block / (RTT + \
             block/lower + block/encrypt). Measured on this host, MB/s: lower {}, encrypt {}, decrypt {} with {} (original: {}, \
             {}); writing and syncing a block {} ms. {}\"one round trip\" is n·block / (RTT + block/lower + block/encrypt + block/decrypt + sync), at most \
             what the slowest stage carries.",
            mb(Some(p.lower)),
            mb(Some(p.encrypt)),
            mb(Some(p.decrypt)),
            report.sealing.name(),
            original::LOWER,
            original::ENCRYPT,
            significant(p.commit_seconds * 1e3),
            if report.ready_first {
                "Measured with two round trips for a block (R2T), as the model assumes; "
            } else {
                "Our protocol needs one round trip for a block, the model assumes two: "
            },
        ),
        head: head.map(str::to_owned).into(),
        rows: rows.collect(),
    }
}

fn size_name(bytes: u32) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// Of the machine, during the cases at a delay; two cells.
fn taken(report: &BlockReport, delay: f64) -> [String; 2] {
    let taken = report.taken(delay);
    [taken.steal, taken.others].map(percent)
}

/// Runs that are far from the others of their delay, size and way.
fn remarks(report: &BlockReport) -> Vec<String> {
    let (delays, sizes, _) = &report.asked;
    let mut remarks = Vec::new();
    for &delay in delays {
        for &size in sizes {
            remarks.extend(report.ways().into_iter().filter_map(|way| {
                let of = format!("{delay} ms, {}, {}", size_name(size), way.name());
                far(&of, &report.rates(delay, size, way), |rate| format!("{} MB/s", significant(rate / 1e6)))
            }));
        }
    }
    remarks
}

fn problems(report: &BlockReport) -> Vec<String> {
    let mut problems = report.problems.clone();
    for case in &report.cases {
        if let Some(problem) = &case.problem {
            let (delay, size, way) = (case.delay_ms, case.block_bytes, case.way.name());
            problems.push(format!("{delay} ms, {size} bytes, {way}: {problem}"));
        }
    }
    if report.interrupted {
        problems.push("Interrupted: the figures are of what was measured until then.".into());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::block::tests::sample;
    use crate::experiment::hosts::host_pairs::HostEnd;
    use crate::load::block::seal::Sealing;
    use crate::report::page::Picture;

    #[test]
    fn the_original_stands_beside_ours() {
        let text = table(&sample(), None);
        for expected in [
            "2.00 (1.90)",
            "10.0 (5.85)",
            "2 of 2 figures",
            "(7.8",
            "5.00 (13.0)",
            "0.118 / 0.239",
            "25.0 %",
            "50.0 %",
            "8 KB",
            "2 MB",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn a_run_far_from_the_others_is_pointed_at() {
        let mut report = sample();
        report.repeats = 3;
        let first = report.cases.clone();
        for repeat in 2..=3 {
            report.cases.extend(first.iter().cloned().map(|case| Case { repeat, ..case }));
        }
        assert_eq!(remarks(&report), [""; 0]);
        report.cases[0].bytes_per_second = Some(9e6);
        assert_eq!(
            remarks(&report),
            ["Look at 0 ms, 8 KB, tunnel: 9.00 MB/s is far from the median of 0.082 MB/s"]
        );
        assert!(table(&report, None).contains("Look at 0 ms") && html(&report).contains("Look at 0 ms"));
    }

    #[test]
    fn between_hosts_the_one_delay_is_drawn_over_sizes_and_the_hosts_are_named() {
        let mut report = sample();
        report.cases.retain(|case| case.delay_ms == 16.0);
        report.cases.iter_mut().for_each(|case| case.delay_ms = 3.1);
        report.asked.0 = vec![3.1];
        report.hosts = vec![HostEnd { name: "far.example".into(), ..HostEnd::default() }];
        let pictures = pictures(&report);
        assert_eq!((pictures.len(), pictures[0].name.as_str()), (1, "block-sizes"));
        assert!(pictures[0].svg.contains("OP-10") && pictures[0].svg.contains(">2048</text>"));
        let text = table(&report, None);
        for (words, said) in [("far.example", true), ("as the hosts have them", true), ("0 of 0", false)] {
            assert_eq!(text.contains(words), said, "{words}: {text}");
        }
    }

    #[test]
    fn a_way_has_one_style_in_all_pictures() {
        let drawn = pictures(&sample());
        let style = |picture: &Picture, way: &str| {
            let label = format!(">{way}</text>");
            let key = picture.svg.lines().position(|line| line.contains(&label)).expect("a legend");
            let line = picture.svg.lines().nth(key - 2).expect("its line");
            line.split("line ").nth(1).and_then(|rest| rest.split('"').next()).map(str::to_owned)
        };
        assert!(drawn.len() > 2);
        for way in ["OP-2", "OP-10"] {
            let styles: Vec<_> = drawn.iter().map(|picture| style(picture, way)).collect();
            assert!(
                styles[0].is_some() && styles.iter().all(|style| *style == styles[0]),
                "{way}: {styles:?}"
            );
        }
    }

    #[test]
    fn problems_are_said_everywhere_and_csv_has_a_line_for_each_case() {
        let mut report = sample();
        report.cases[0].problem = Some("it \"broke\" <down>".into());
        assert!(table(&report, None).contains("0 ms, 8192 bytes, tunnel: it \"broke\""));
        assert!(html(&report).contains("&lt;down&gt;"));
        let csv = csv(&report);
        assert_eq!(csv.lines().count(), 1 + report.cases.len());
        assert!(csv.contains("\"it \"\"broke\"\" <down>\""));
    }

    #[test]
    fn with_several_blocks_in_progress_the_tunnel_with_as_many_is_the_control() {
        let mut report = sample();
        report.repeats = 2;
        let first = report.cases.clone();
        report.cases.extend(first.into_iter().map(|case| Case { repeat: 2, ..case }));
        // OP-10 has 10 and tunnel-10 has 9.1: a difference, unless tunnel-10 differs as much from itself.
        let cells = |report: &BlockReport| overlap(report).rows[0][3..].to_vec();
        assert_eq!(overlap(&report).head.last().map(String::as_str), Some("A/A of tunnel-10"));
        assert_eq!(cells(&report), ["1.10", "0.667", "1.00 (1.00–1.00)"]);
        let deep = Way::of(Route::Tunnel, 10).again();
        for case in report.cases.iter_mut().filter(|case| case.way == deep) {
            case.bytes_per_second = case.bytes_per_second.map(|rate| rate * 1.2);
        }
        assert_eq!(cells(&report), ["1.10 ≈", "0.667", "1.20 (1.20–1.20)"]);
    }

    #[test]
    fn csv_tells_the_cipher_of_each_case_and_the_round_trips_of_a_block() {
        let mut report = sample();
        (report.sealing, report.facts.cipher) = (Sealing::ChaCha20Poly1305, "aes-128-gcm".into());
        let ends = |report: &BlockReport, way: Way| {
            let case = report.cases.iter().find(|case| case.way == way).expect("measured");
            csv_cells(report, case)[CSV_COLUMNS - 3..].join(",")
        };
        assert_eq!(CSV_HEAD[CSV_COLUMNS - 3..].join(","), "sealed_with,tunnel_cipher,round_trips");
        assert_eq!(ends(&report, Way::sealed(2)), "chacha20-poly1305,,1");
        assert_eq!(ends(&report, Way::PLAIN), ",,1");
        report.ready_first = true;
        assert_eq!(ends(&report, Way::TUNNEL), ",aes-128-gcm,2");
        assert!(table(&report, None).contains("with chacha20-poly1305 (original"), "the model's constants");
    }
}
