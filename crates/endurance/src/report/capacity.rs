//! The figures of a gateway's capacity, for people.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::experiment::capacity::results::{
    CapacityResults, Case, Figures, RelativeCost, Row, SATURATED_PERCENT,
};
use crate::experiment::capacity::words::{again, describe, direction_words, limited, name, row_name};
use trafficspeed::report::chart::{Horizontal, LineChart, Measure, Point, Series, standalone};
use trafficspeed::report::claims::{EMULATED, mark};
use trafficspeed::report::grid::{Grid, NARROW, wrapped};
use trafficspeed::report::noise::{TAKEN, far, percent};
use trafficspeed::stats::Spread;
use trafficspeed::unit::{gbit, significant};

/// Stands below the table.
const DEFINITIONS: [&str; 11] = [
    "Gbit/s: payload that arrived, all sessions together.",
    "Gateway: its CPU seconds for each Gbit, median (lowest-highest) of the rounds. Times as many sessions: the same over that of those, in \
     the same setting and round; times real: over that of as many real clients on the same gateway, 1 if the load is a fair stand-in. ≈: within \
     what the case that was measured twice was of itself, or not in all rounds on the same side of 1. ?: fewer than five rounds, no case measured \
     twice or a disturbed machine show neither.",
    "Acks: acknowledgements that arrived, each a packet of 56 B; how many side by side; and how many were lost. Other losses and delays are \
     without them.",
    "KiB at once: what came to the gateway's links in a super-packet on average, acknowledgements included. The longer, the less a Gbit \
     costs, so cases differ in cost where they differ in this.",
    "Gateway wakes: how often its threads had slept and were woken, for each Gbit. Where sender, gateway and receiver share cores, wake-ups \
     are a large part of the cost.",
    "Load: CPU seconds of the traffic generator, for each Gbit; of real clients those of the VPN's processes alone. Its wakes: how often \
     its threads had slept; a sender wakes them, and the gateway pays for that.",
    "Jain: over the sessions' goodputs. First's part: what the first session carried, for each of the others' median.",
    "Lost: on the way through the gateway, by the numbers of the packets that were opened.",
    "Delay: from sealing to receiving, of the packets that were opened; it holds the queues that saturation makes.",
    "Sessions send in turns, so that the bytes on their way stay within their limit: a closed loop, which no rate outruns; with a rate \
     each sends when its time has come, whatever becomes of it.",
    "Calls: packets of 200 B each 20 ms, all opened; delay from the send call to the kernel's note that the receiving socket had them.",
];

/// The figures as text, no line longer than a terminal.
pub fn table(results: &CapacityResults) -> String {
    wrapped(&text(results), NARROW)
}

fn text(results: &CapacityResults) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        writeln!(text, "{words}").expect("writing to a string");
    };
    line(grid(results).text(Some(NARROW)));
    if results.environment.is_emulated() {
        line(EMULATED.to_owned());
    }
    DEFINITIONS.into_iter().chain([TAKEN]).for_each(|words| line(words.into()));
    same(results).into_iter().chain(remarks(results)).chain(unlike(results)).for_each(&mut line);
    line(format!(
        "{} rounds of {} s, cases in turns, in another order in each round; {} sessions logged in all the time in one \
         process, a socket each; {} on their way at most; of every {} merged runs of a session, and of those in 40 ms, one at least \
         authenticated and opened{}; gateway: {}",
        results.repeats,
        significant(results.seconds),
        results.sessions,
        in_flight(results),
        results.sample,
        opened(results),
        results.facts.version
    ));
    saturation(results).into_iter().chain(polling(results)).for_each(&mut line);
    line(results.environment.machine());
    for problem in &results.problems {
        line(format!("Problem: {problem}"));
    }
    if results.interrupted {
        line("Interrupted: the figures are of what was measured until then.".into());
    }
    text
}

/// The ratio of the case that was measured twice to itself.
fn same(results: &CapacityResults) -> Option<String> {
    let (row, [cost, goodput]) = results.against_itself()?;
    Some(format!(
        "A/A: {}, measured twice in each round, the second by the first: cost {}, throughput {}. The cost differed by up to {:.0} %; of \
         other cases it may differ by more.",
        name(row.case),
        cost.text(significant),
        goodput.text(significant),
        100.0 * (cost.widest_ratio() - 1.0)
    ))
}

/// Rounds that are far from the others of their case.
fn remarks(results: &CapacityResults) -> Vec<String> {
    let outliers = |row: &Row| {
        let values = |outliers: Value| row.runs.iter().filter_map(outliers).collect::<Vec<_>>();
        let cost = far(&row_name(row), &values(|figures| Some(figures.gateway_seconds_per_gbit)), |cost| {
            format!("{} gateway CPU s/Gbit", significant(cost))
        });
        let rate = |rate: f64| format!("{} Gbit/s", gbit(rate));
        cost.into_iter().chain(far(&row_name(row), &values(|figures| Some(figures.goodput)), rate))
    };
    results.rows.iter().flat_map(outliers).collect()
}

/// Made traffic that comes in other lengths than that of as many real clients, and which burst
/// would be as long.
fn unlike(results: &CapacityResults) -> Vec<String> {
    let at_once = |row: &Row| Some(row.spread(|figures| figures.received_at_once)?.median);
    let difference = |row: &Row| {
        let traffic = row.case.traffic()?;
        let (made, real) = (at_once(row)?, at_once(results.real_row(row)?)?);
        let burst = (f64::from(traffic.burst) * real / made).round().max(1.0);
        (burst != f64::from(traffic.burst)).then(|| {
            format!(
                "{}: {} KiB came to the gateway at once, of as many real clients {}; --burst {burst} is about as long.",
                row_name(row),
                significant(made / 1_024.0),
                significant(real / 1_024.0)
            )
        })
    };
    results.first_rows().filter_map(difference).collect()
}

/// The bytes on their way at most, by whether the gateway was limited.
fn in_flight(results: &CapacityResults) -> String {
    let in_flight = |is_limited: bool| {
        let rows = results.rows.iter().filter(|row| row.case.gateway_cpu().is_some() == is_limited);
        let kib: BTreeSet<u64> = rows.filter_map(|row| Some(row.in_flight? / 1_024)).collect();
        let words: Vec<String> = kib.iter().map(u64::to_string).collect();
        (!kib.is_empty()).then(|| format!("{} KiB", words.join(" or ")))
    };
    match (in_flight(false), in_flight(true)) {
        (usual, None) => usual.unwrap_or_else(dash),
        (None, Some(limited)) => limited,
        (Some(usual), Some(limited)) => format!("{usual}, {limited} where the gateway was limited,"),
    }
}

/// Whether a gateway with limited CPU time was the bottleneck.
fn saturation(results: &CapacityResults) -> Vec<String> {
    let shares = results.rows.iter().flat_map(|row| &row.runs).filter_map(|figures| figures.quota_percent);
    let Some(least) = shares.reduce(f64::min) else { return Vec::new() };
    let mut lines = vec![format!(
        "Quota: what the gateway's programs used of the CPU time that they were limited to; {SATURATED_PERCENT} % and more: the gateway was \
         the bottleneck. Time in which it had to stand still is none of its CPU time."
    )];
    let others = results.unsaturated();
    if others.is_empty() {
        lines.push(format!(
            "The gateway was the bottleneck wherever it was limited (at least {} %).",
            significant(least)
        ));
    }
    lines.extend(others.into_iter().map(|(row, percent)| {
        format!(
            "Not the gateway was the bottleneck of {}: it used {} % of its quota.",
            row_name(row),
            significant(percent)
        )
    }));
    lines
}

fn polling(results: &CapacityResults) -> Option<String> {
    let microseconds = results.busy_poll_us?;
    Some(format!(
        "Polling: the gateway and real clients looked for the next packet for {microseconds} us instead of sleeping at once; the seconds for \
         each Gbit that this took are part of the gateway's, at most as many as are shown, since other threads' turns in between count."
    ))
}

/// The share of all packets that was looked at.
fn opened(results: &CapacityResults) -> String {
    let runs = results.rows.iter().flat_map(|row| &row.runs).filter_map(|figures| figures.opened);
    let (opened, arrived) = runs.fold((0, 0), |(a, b), (opened, arrived)| (a + opened, b + arrived));
    if arrived == 0 {
        return String::new();
    }
    format!(" ({} % of all packets)", significant(100.0 * opened as f64 / arrived as f64))
}

/// A column that names a case.
type Key = fn(Case) -> Option<String>;
/// A column with a figure.
type Value = fn(&Figures) -> Option<f64>;

/// Columns that are there only if some case differs from the usual in it.
const KEYS: [(&str, Key); 7] = [
    ("gateway cores", |case| case.gateway_cpu().map(|limit| significant(limit.cores()))),
    ("acks %", |case| case.traffic()?.unusual_acknowledge().map(|percent| percent.to_string())),
    ("ack delay ms", |case| case.traffic()?.unusual_ack_delay_ms().map(|delay_ms| delay_ms.to_string())),
    ("small %", |case| {
        case.traffic().filter(|traffic| traffic.small > 0).map(|traffic| traffic.small.to_string())
    }),
    ("Mbit/s each", |case| case.traffic()?.rate.map(|rate| significant(rate as f64 / 1e6))),
    ("first as", |case| {
        case.traffic().filter(|traffic| traffic.greedy > 1).map(|traffic| traffic.greedy.to_string())
    }),
    ("calls", |case| {
        case.traffic().filter(|traffic| traffic.calls > 0).map(|traffic| traffic.calls.to_string())
    }),
];

/// Columns that are there only if some case has the figure.
const VALUES: [(&str, Value); 20] = [
    ("packets/s", |figures| figures.packets_per_second),
    ("KiB at once", |figures| figures.received_at_once.map(|bytes| bytes / 1_024.0)),
    ("gateway wakes/Gbit", |figures| Some(figures.gateway_wakes_per_gbit)),
    ("gateway's cores", |figures| Some(figures.gateway_cores)),
    ("quota %", |figures| figures.quota_percent),
    ("polling s/Gbit", |figures| figures.polling_seconds_per_gbit),
    ("acks/Gbit", |figures| figures.acknowledgements_per_gbit),
    ("side by side", |figures| {
        let counts = figures.acknowledgements.filter(|counts| counts.runs > 0)?;
        Some(counts.arrived as f64 / counts.runs as f64)
    }),
    ("acks lost %", |figures| Some(figures.acknowledgements?.lost_percent())),
    ("load CPU s/Gbit", |figures| Some(figures.load_seconds_per_gbit)),
    ("load wakes/Gbit", |figures| Some(figures.load_wakes_per_gbit)),
    ("Jain", |figures| figures.fairness),
    ("first's part", |figures| figures.greedy_share),
    ("delivered %", |figures| figures.delivered_percent),
    ("lost %", |figures| figures.lost_percent),
    ("delay ms p50", |figures| Some(figures.delay_ms?.p50)),
    ("p99", |figures| Some(figures.delay_ms?.p99)),
    ("calls lost %", |figures| Some(figures.calls.as_ref()?.lost_percent())),
    ("calls ms p50", |figures| Some(figures.calls.as_ref()?.delay_ms.p50)),
    ("calls p99", |figures| Some(figures.calls.as_ref()?.delay_ms.p99)),
];

fn grid(results: &CapacityResults) -> Grid {
    let keys: Vec<_> =
        KEYS.into_iter().filter(|(_, key)| results.rows.iter().any(|row| key(row.case).is_some())).collect();
    let has =
        |value: Value| results.rows.iter().flat_map(|row| &row.runs).any(|figures| value(figures).is_some());
    let values: Vec<_> = VALUES.into_iter().filter(|(_, value)| has(*value)).collect();
    let head = ["load", "sessions", "packet", "burst"].into_iter();
    let head = head.chain(keys.iter().map(|(name, _)| *name));
    let relative = results.base_sessions().map_or_else(dash, |base| format!("times {base} sessions"));
    let head = head.chain(["Gbit/s", "gateway CPU s/Gbit", &relative, "times real"]);
    let mut table = Grid::new(4 + keys.len(), head.chain(values.iter().map(|(name, _)| *name)));
    table.head.extend(["steal", "others"].map(str::to_owned));
    table.rows.extend(results.rows.iter().map(|row| cells(results, row, &keys, &values)));
    table
}

fn cells(
    results: &CapacityResults,
    row: &Row,
    keys: &[(&str, Key)],
    values: &[(&str, Value)],
) -> Vec<String> {
    let (load, packet, burst) = match row.case {
        Case::Made { traffic, .. } => {
            let packet = row.runs.first().and_then(|figures| figures.packet);
            let packet = packet.map_or_else(dash, |bytes| bytes.to_string());
            (direction_words(traffic.direction), packet, traffic.burst.to_string())
        }
        Case::Real { .. } => ("real clients", dash(), dash()),
    };
    let show = |value: Option<Spread>| value.map_or_else(dash, |value| value.text(significant));
    let number = |value: Option<f64>| value.map_or_else(dash, significant);
    let ratio = |value: Option<RelativeCost>| {
        value.map_or_else(dash, |RelativeCost { ratio, differs }| ratio.text(significant) + mark(differs))
    };
    let mut cells = vec![format!("{load}{}", again(row)), row.case.sessions().to_string(), packet, burst];
    cells.extend(keys.iter().map(|(_, key)| key(row.case).unwrap_or_else(dash)));
    cells.extend([
        row.spread(|figures| Some(figures.goodput)).map_or_else(dash, |rate| rate.text(gbit)),
        show(row.cost()),
        ratio(results.relative_cost(row)),
        ratio(results.against_real(row)),
    ]);
    cells.extend(values.iter().map(|(_, value)| number(row.spread(value).map(|spread| spread.median))));
    let most = |value: Value| percent(row.spread(value).map(|spread| spread.high));
    cells.extend([most(|figures| figures.steal_percent), most(|figures| figures.foreign_percent)]);
    cells
}

fn dash() -> String {
    "-".into()
}

/// The cost over the sessions, as a separate file.
pub fn picture(results: &CapacityResults) -> Option<String> {
    let kinds: BTreeSet<_> = results.first_rows().map(kind).collect();
    let of_kind = |(style, label): (usize, String)| {
        let rows = results.first_rows().filter(|row| kind(row) == label);
        let points =
            rows.filter_map(|row| Some(Point::of(row.case.sessions().into(), row.cost()?))).collect();
        Series { label, style, points }
    };
    let series: Vec<Series> = kinds.into_iter().enumerate().map(of_kind).collect();
    let counts: BTreeSet<u32> = results.rows.iter().map(|row| row.case.sessions()).collect();
    let chart = LineChart {
        title: "The gateway's cost as active sessions grow".into(),
        x_label: "active sessions".into(),
        measure: Measure::lower_is_better("gateway's CPU seconds per Gbit"),
        horizontal: Horizontal::Doubling(counts.into_iter().map(f64::from).collect()),
        series,
    };
    Some(standalone::svg(&chart.svg()?))
}

/// The part that the cases of one line have in common.
fn kind(row: &Row) -> String {
    let load = row.case.traffic().map_or_else(|| "real clients".into(), describe);
    load + &limited(row.case.gateway_cpu())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::capacity::results::samples;

    #[test]
    fn the_table_has_each_case_with_its_ratios_and_fits_a_terminal() {
        let table = table(&samples::results());
        for words in [
            "in pairs",
            "real clients",
            "1024",
            "0.120 (0.110–0.130)",
            "1.20",
            "1.25",
            "steal",
            "1.00 % of all packets",
        ] {
            assert!(table.contains(words), "{words}:\n{table}");
        }
        assert!(table.lines().all(|line| line.chars().count() <= NARROW), "{table}");
    }

    #[test]
    fn a_case_by_itself_is_shown_and_what_does_not_go_beyond_is_marked() {
        let mut results = samples::results();
        let before = text(&results);
        for words in [
            "in pairs (again)",
            "cost 1.02 (1.00–1.04), throughput 1.00 (1.00–1.00)",
            "by up to 4 %",
            "1.20 (1.10–1.30)",
        ] {
            assert!(before.contains(words), "{words}:\n{before}");
        }
        assert!(before.contains("1.02 (1.00–1.04) ≈") && !before.contains("(1.10–1.30) ≈"), "{before}");
        results.rows[3].runs[1].gateway_seconds_per_gbit = 0.14;
        let after = text(&results);
        assert!(after.contains("by up to 40 %") && after.contains("1.20 (1.10–1.30) ≈"), "{after}");
    }

    #[test]
    fn a_burst_is_named_that_is_as_long_as_what_real_clients_send_at_once() {
        let mut results = samples::results();
        assert!(!text(&results).contains("--burst"), "nothing was counted");
        for (number, bytes) in [(0, 55_000.0), (1, 55_000.0), (2, 48_750.0), (3, 55_000.0)] {
            results.rows[number].runs.iter_mut().for_each(|figures| figures.received_at_once = Some(bytes));
        }
        let said = text(&results);
        assert!(
            said.contains("53.7 KiB came to the gateway at once, of as many real clients 47.6; --burst 39"),
            "{said}"
        );
        assert_eq!(said.matches("--burst").count(), 1, "1,024 have no real clients beside them: {said}");
        results.rows[2].runs.iter_mut().for_each(|figures| figures.received_at_once = Some(54_900.0));
        assert!(!text(&results).contains("--burst"), "it is as long already");
    }

    #[test]
    fn what_others_took_and_rounds_far_off_are_said() {
        let mut results = samples::results();
        let row = &mut results.rows[1];
        row.runs[0].steal_percent = Some(1.0);
        row.runs[1].steal_percent = Some(7.0);
        row.runs.push(Figures { gateway_seconds_per_gbit: 0.1, ..row.runs[0].clone() });
        row.runs.push(Figures { goodput: 1e9, ..row.runs[0].clone() });
        let table = table(&results);
        for words in ["7.0 %", "1.00 Gbit/s is far from the median of 5.00 Gbit/s"] {
            assert!(table.contains(words), "{words}:\n{table}");
        }
    }

    #[test]
    fn the_picture_has_a_line_for_each_kind_of_load() {
        let picture = picture(&samples::results()).unwrap();
        assert!(picture.contains("in pairs, full packets, bursts of 44") && picture.contains("real clients"));
        // The control is no second point of its line.
        let mut results = samples::results();
        results.rows.retain(|row| !row.again);
        assert_eq!(super::picture(&results), Some(picture));
    }

    #[test]
    fn a_limited_gateway_is_shown_with_what_it_used_and_where_it_was_no_bottleneck() {
        let mut results = samples::results();
        let limit = "0.4".parse().ok();
        results.rows.retain(|row| row.case.traffic().is_some());
        for (row, percent) in results.rows.iter_mut().zip([99.0, 80.0, 99.0]) {
            let Case::Made { gateway_cpu, .. } = &mut row.case else { panic!("{:?}", row.case) };
            *gateway_cpu = limit;
            row.in_flight = Some(6 << 20);
            row.runs.iter_mut().for_each(|figures| figures.quota_percent = Some(percent));
        }
        let text = text(&results);
        for words in ["bottleneck of 1024 sessions", "it used 80.0 % of its quota", "6144 KiB on their way"] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(!text.contains("bottleneck of 8 sessions"), "{text}");
        let picture = picture(&results).unwrap();
        assert!(picture.contains("gateway limited to 0.4 of a core"));
    }

    #[test]
    fn without_a_measurement_there_is_no_figure_and_no_picture() {
        let mut results = samples::results();
        results.rows.iter_mut().for_each(|row| row.runs.clear());
        results.problems.push("no session is up".into());
        assert_eq!(picture(&results), None);
        assert!(table(&results).contains("Problem: no session is up"));
    }
}
