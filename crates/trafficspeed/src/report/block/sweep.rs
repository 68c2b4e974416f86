//! Block writes under several rates of the link and shares of the CPU: the report of each, and
//! curves over both.

use super::cell::{figure, judged, mb, rounds, taken};
use super::gains::best_sealed;
use super::pictures::{megabytes, style};
use super::{begin, fill};
use crate::experiment::block::{BlockReport, Route, Way};
use crate::report::chart::{Horizontal, LineChart, Measure, Point, Series};
use crate::report::document::Document;
use crate::report::grid::Grid;
use crate::report::noise::TAKEN;
use crate::report::page::Picture;
use crate::stats::distinct;
use crate::unit::significant;

/// Stands below the table.
const DEFINITIONS: &str = "\
Round trips: 2 where the target asks for each block before its data are sent (R2T), as the original's iSCSI did.
Best throughput of any block size, MB/s of acknowledged blocks: median of n rounds, the lowest and the highest in parentheses.
Gain: the best OP-n divided by the tunnel with no overlap, mean over block sizes within each round.
≈: no difference beyond A/A, the tunnel relative to itself, with one block in progress or with the most; ?: not judged, for fewer than \
five rounds, no A/A or a disturbed machine.
At equal n: the same, divided by the tunnel with as many blocks in progress, so the gain of encrypting ahead itself.";

/// The limits of a report and the round trips of a block in words, for a row and for a heading.
fn limits(report: &BlockReport) -> [String; 3] {
    let rate =
        report.rate_bits.map_or("none".into(), |bits| format!("{} Mbit/s", significant(bits as f64 / 1e6)));
    let cpu = report.cores.map_or("none".into(), |cores| format!("{} %", significant(cores * 100.0)));
    [rate, cpu, if report.ready_first { "2" } else { "1" }.into()]
}

fn grid(reports: &[BlockReport]) -> Grid {
    let head = [
        "link",
        "CPU of target",
        "round trips",
        "one-way delay",
        "n",
        "plain",
        "tunnel",
        "best OP-n",
        "gain",
        "at equal n",
        "steal",
        "others",
    ];
    let mut grid = Grid::new(5, head);
    for report in reports {
        grid.rows.extend(report.asked.0.iter().map(|&delay| row(report, delay)));
    }
    grid
}

/// A delay under the limits of a report.
fn row(report: &BlockReport, delay: f64) -> Vec<String> {
    let best = best_sealed(report, delay);
    let peak = |way: Way| report.peak(delay, way);
    let [plain, tunnel] = [Way::PLAIN, Way::TUNNEL].map(peak);
    let most = best.and_then(peak);
    let gain = |to: fn(Way) -> Way| {
        let (way, base) = best.map(|best| (best, to(best)))?;
        Some((report.ratio(delay, way, base)?, report.same(delay, way, base)))
    };
    let gains = [gain(|_| Way::TUNNEL), gain(|best| Way::of(Route::Tunnel, best.ahead))];
    let all = [plain, tunnel, most].into_iter().chain(gains.map(|gain| gain.map(|(ratio, _)| ratio)));
    let [rate, cpu, trips] = limits(report);
    let mut row = vec![rate, cpu, trips, format!("{delay} ms"), rounds(all), mb(plain), mb(tunnel)];
    row.push(best.map_or("–".into(), |best| format!("{} {}", best.name(), mb(most))));
    row.extend(gains.map(|gain| {
        let ratio = gain.map(|(ratio, _)| ratio);
        figure(ratio) + judged(ratio, gain.and_then(|(_, same)| same))
    }));
    row.extend(taken(report, delay));
    row
}

/// The report of what was measured under each limit.
pub fn document(reports: &[BlockReport]) -> Document<'_> {
    let lead = "Block writes over long delays, with one and two round trips a block, or several rates of the link and shares of the target's CPU.";
    let mut document = begin(lead, reports);
    document.pictures(curves(reports));
    document.section("Under each limit");
    document.table(grid(reports));
    document.words(DEFINITIONS);
    document.words(TAKEN);
    for (report, number) in reports.iter().zip(1..) {
        let [rate, cpu, trips] = limits(report);
        document.section(&format!(
            "Limit of the link: {rate}; of the target's CPU: {cpu}; round trips of a block: {trips}"
        ));
        fill(&mut document, report);
        let named =
            |picture: Picture| Picture { name: format!("limit-{number}-{}", picture.name), ..picture };
        document.pictures(super::pictures(report).into_iter().map(named).collect());
    }
    document
}

/// A limit that reports differ in: what it is called, and its value.
type Axis = (&'static str, &'static str, fn(&BlockReport) -> Option<f64>);

const AXES: [Axis; 2] = [
    ("rate", "rate of the link, Mbit/s", |report| Some(report.rate_bits? as f64 / 1e6)),
    ("cpu", "CPU of the target, % of a core", |report| Some(report.cores? * 100.0)),
];

/// Throughput over each limit that has several values, a picture for every delay and every value of
/// the other limit.
fn curves(reports: &[BlockReport]) -> Vec<Picture> {
    let mut all = Vec::new();
    for (axis, other) in [(AXES[0], AXES[1]), (AXES[1], AXES[0])] {
        let what_else = |report: &BlockReport| ((other.2)(report), report.ready_first);
        for (value, number) in distinct(reports.iter().map(what_else)).into_iter().zip(1..) {
            let along: Vec<&BlockReport> =
                reports.iter().filter(|report| what_else(report) == value).collect();
            let delays = along.first().map(|report| report.asked.0.clone()).unwrap_or_default();
            let limit =
                value.0.map_or(String::new(), |value| format!(", {}: {}", other.1, significant(value)));
            let at = limit + if value.1 { ", two round trips" } else { "" };
            all.extend(delays.into_iter().filter_map(|delay| curve(&along, axis, delay, number, &at)));
        }
    }
    all
}

fn curve(along: &[&BlockReport], axis: Axis, delay: f64, number: usize, at: &str) -> Option<Picture> {
    let mut points: Vec<(f64, &BlockReport)> =
        along.iter().filter_map(|&report| Some(((axis.2)(report)?, report))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup_by(|a, b| a.0 == b.0);
    if points.len() < 2 {
        return None;
    }
    let ahead = points[0].1.asked.2.iter().map(|&ahead| Way::sealed(ahead));
    let series = [Way::PLAIN, Way::TUNNEL].into_iter().chain(ahead).map(|way| Series {
        label: way.name(),
        style: style(points[0].1, way),
        points: points
            .iter()
            .filter_map(|(x, report)| Some(Point::of(*x, megabytes(report.peak(delay, way))?)))
            .collect(),
    });
    let title = format!("Best throughput at {delay} ms one way{at}");
    let svg = LineChart {
        title: title.clone(),
        x_label: axis.1.into(),
        measure: Measure::higher_is_better("acknowledged blocks, MB/s"),
        horizontal: Horizontal::Doubling(points.iter().map(|(x, _)| *x).collect()),
        series: series.collect(),
    }
    .svg()?;
    let name = format!("block-{}-{number}-{}", axis.0, delay.to_string().replace('.', "-"));
    let caption = "Of any block size; the bars reach from the least to the most of all runs. OP-n: n blocks in progress, sealed above \
                   TCP; plain: no VPN.";
    Some(Picture::new(name, &title, caption, svg))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiment::block::tests::sample;
    use crate::report::chart::markup::assert_well_formed;
    use crate::report::observed;

    /// Two rates and two shares of the CPU; throughput goes with both.
    pub(crate) fn samples() -> Vec<BlockReport> {
        let limits = [(100_000_000, 0.1), (100_000_000, 0.5), (1_000_000_000, 0.1), (1_000_000_000, 0.5)];
        let report_of = |(rate, cores): (u64, f64)| {
            let mut report = sample();
            (report.rate_bits, report.cores) = (Some(rate), Some(cores));
            for case in &mut report.cases {
                case.bytes_per_second = case.bytes_per_second.map(|value| value * cores * rate as f64 / 1e8);
            }
            report
        };
        limits.into_iter().map(report_of).collect()
    }

    #[test]
    fn each_limit_has_its_row_and_its_curve_for_every_value_of_the_other() {
        let reports = samples();
        let rows = grid(&reports).rows;
        assert_eq!(rows.len(), 4 * 2, "two delays");
        assert_eq!(rows[0][..4], ["100 Mbit/s", "10.0 %", "1", "0 ms"]);
        assert!(rows[0][7].starts_with("OP-10 ") && rows[0][8] == "10.0 ?", "{:?}", rows[0]);
        let drawn = curves(&reports);
        let names: Vec<&str> = drawn.iter().map(|picture| picture.name.as_str()).collect();
        assert_eq!(names.len(), 2 * 2 * 2);
        assert!(names.contains(&"block-rate-1-0") && names.contains(&"block-cpu-2-16"), "{names:?}");
        drawn.iter().for_each(|picture| assert_well_formed(&picture.svg));
        assert!(curves(&reports[..1]).is_empty(), "one value is no curve");
        let mut trips = vec![reports[0].clone(), reports[0].clone()];
        trips[1].ready_first = true;
        assert_eq!(
            grid(&trips).rows.iter().map(|row| row[2].as_str()).collect::<Vec<_>>(),
            ["1", "1", "2", "2"]
        );
        assert!(curves(&trips).is_empty(), "of different round trips no curve is made");
    }

    #[test]
    fn a_case_says_its_limits() {
        let reports = samples();
        let csv = observed::csv(reports.iter().map(|report| (report.observations(), &report.environment)));
        let cases: usize = reports.iter().map(|report| report.cases.len()).sum();
        assert_eq!(csv.matches(",throughput,bytes/s,").count(), cases);
        assert_eq!(csv.matches("system,case,round").count(), 1, "one head");
        assert!(csv.contains("\"link of 100 Mbit/s, 10.0 % of a core, 0 ms, 8192 bytes\""), "{csv}");
    }
}
