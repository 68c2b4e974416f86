//! The pictures of the block experiment.

use crate::experiment::block::outcome::ways;
use crate::experiment::block::{BlockReport, CpuPart, Route, Way};
use crate::report::chart::{Horizontal, LineChart, Measure, Point, Series};
use crate::report::page::Picture;
use crate::stats::Spread;

/// Over the delay: the gain of each number of blocks in progress, and what each way carries at
/// best. For each delay: what each way carries over the size of a block.
pub fn pictures(report: &BlockReport) -> Vec<Picture> {
    let sizes = report.asked.0.iter().flat_map(|&delay| over_sizes(report, delay));
    if report.asked.0.len() == 1 {
        return sizes.collect();
    }
    let ahead = || report.asked.2.iter().map(|&n| Way::sealed(n));
    let gain = over_delays(
        report,
        "Throughput over delay, as a multiple of that through the tunnel",
        Measure::higher_is_better("times the tunnel with no overlap"),
        [Way::PLAIN].into_iter().chain(ahead()).collect(),
        |delay, way| report.ratio(delay, way, Way::TUNNEL),
    );
    let best = over_delays(
        report,
        "Best throughput over delay",
        Measure::higher_is_better("acknowledged blocks, MB/s"),
        [Way::PLAIN, Way::TUNNEL].into_iter().chain(ahead()).collect(),
        |delay, way| megabytes(report.peak(delay, way)),
    );
    let tunnel_and_ahead = || [Way::TUNNEL].into_iter().chain(ahead()).collect::<Vec<_>>();
    let cpu = over_delays(
        report,
        "CPU use at the target over delay",
        Measure::neither_is_better("CPU at the target, % of a core"),
        tunnel_and_ahead(),
        |delay, way| report.cpu(delay, way),
    );
    let cost = over_delays(
        report,
        "CPU at the target per throughput over delay",
        Measure::lower_is_better("CPU seconds per GB"),
        tunnel_and_ahead(),
        |delay, way| report.cost(delay, way, CpuPart::TargetSide),
    );
    let picture = |name: &str, title: &str, caption: &str, svg: Option<String>| {
        Some(Picture::new(name, title, caption, svg?))
    };
    let ways = "OP-n: n blocks in progress, sealed above TCP; plain: no VPN, no encryption, no overlap. The bars reach from the least \
                to the most of all rounds.";
    let gain =
        picture("block-ratio", "Gain over the tunnel", &format!("Mean over block sizes. {ways}"), gain);
    let best = picture("block-best", "Best throughput", &format!("Of any block size. {ways}"), best);
    let cpu = picture(
        "block-cpu",
        "CPU use at the target",
        "Mean over block sizes, as the original's table 4; the bars as above.",
        cpu,
    );
    let words = "CPU time for each byte that was acknowledged, median over block sizes; the original's figures 13 and 14 have it over the \
                 size of a block, at 16 and 64 ms. The bars as above.";
    let cost = picture("block-cost", "CPU per throughput", words, cost);
    [gain, best, cpu, cost].into_iter().flatten().chain(sizes).collect()
}

fn over_delays(
    report: &BlockReport,
    title: &str,
    measure: Measure,
    ways: Vec<Way>,
    value: impl Fn(f64, Way) -> Option<Spread>,
) -> Option<String> {
    let delays = &report.asked.0;
    let end = delays.iter().copied().reduce(f64::max).filter(|end| *end > 0.0)?;
    let series = ways.into_iter().map(|way| {
        let style = style(report, way);
        let point = |&x: &f64| Some(Point::of(x, value(x, way)?));
        Series { label: way.name(), style, points: delays.iter().filter_map(point).collect() }
    });
    LineChart {
        title: title.into(),
        x_label: "one-way delay, ms".into(),
        measure,
        horizontal: Horizontal::Linear(end),
        series: series.collect(),
    }
    .svg()
}

pub(super) fn megabytes(bytes: Option<Spread>) -> Option<Spread> {
    bytes.map(|bytes| bytes.scaled(1e6))
}

/// The style of a way: the same in all pictures.
pub(super) fn style(report: &BlockReport, way: Way) -> usize {
    ways(&report.asked.2, &[]).iter().position(|known| *known == way).unwrap_or(0)
}

/// A quantity over the size of a block: file and title, axis, and its value.
type OverSizes = ([&'static str; 2], Measure, fn(&BlockReport, f64, u32, Way) -> Option<Spread>);

/// Throughput, CPU use and CPU per throughput over the size of a block.
fn over_sizes(report: &BlockReport, delay: f64) -> Vec<Picture> {
    let all: [OverSizes; 3] = [
        (
            ["block-sizes", "Throughput"],
            Measure::higher_is_better("acknowledged blocks, MB/s"),
            |report, delay, size, way| megabytes(report.rate(delay, size, way)),
        ),
        (
            ["block-sizes-cpu", "CPU use at the target"],
            Measure::neither_is_better("CPU at the target, % of a core"),
            BlockReport::cpu_of,
        ),
        (
            ["block-sizes-cost", "CPU at the target per throughput"],
            Measure::lower_is_better("CPU seconds per GB"),
            BlockReport::cost_of,
        ),
    ];
    all.into_iter().filter_map(|wanted| over_size(report, delay, wanted)).collect()
}

fn over_size(
    report: &BlockReport,
    delay: f64,
    ([name, title], measure, value): OverSizes,
) -> Option<Picture> {
    let (_, sizes, ahead) = &report.asked;
    let kilobytes = |size: u32| f64::from(size) / 1024.0;
    let most = ahead.iter().copied().max().filter(|most| *most > 1);
    let controls =
        most.into_iter().flat_map(|ahead| [Route::Plain, Route::Tunnel].map(|route| Way::of(route, ahead)));
    let ways =
        [Way::PLAIN, Way::TUNNEL].into_iter().chain(ahead.iter().map(|&n| Way::sealed(n))).chain(controls);
    let series = ways.map(|way| {
        let style = style(report, way);
        let point = |&size: &u32| Some(Point::of(kilobytes(size), value(report, delay, size, way)?));
        Series { label: way.name(), style, points: sizes.iter().filter_map(point).collect() }
    });
    let svg = LineChart {
        title: format!("{title} over the size of a block"),
        x_label: "block, KB".into(),
        measure,
        horizontal: Horizontal::Doubling(sizes.iter().map(|&size| kilobytes(size)).collect()),
        series: series.collect(),
    }
    .svg()?;
    let caption = format!(
        "At {delay} ms one way; the bars reach from the least to the most of all runs. OP-n: n blocks in progress, sealed above \
         TCP; plain: no VPN, no encryption; plain and tunnel wait for each answer, plain-n and tunnel-n have n in progress."
    );
    let name = match report.asked.0[..] {
        [_] => name.to_owned(),
        _ => format!("{name}-{}", delay.to_string().replace('.', "-")),
    };
    Some(Picture::new(name, &format!("{title} at {delay} ms"), &caption, svg))
}
