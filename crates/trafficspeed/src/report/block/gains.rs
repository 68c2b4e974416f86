//! The gains of several blocks in progress: over the tunnel that waits, over as many without
//! sealing above TCP, and the best that each way carries.

use super::cell::{RATIOS, SPREAD, figure, judged, mb, rounds, taken, with_original};
use crate::experiment::block::observations::THROUGHPUT;
use crate::experiment::block::{BlockReport, Route, Way, original};
use crate::observation::{Comparison, differs};
use crate::report::grid::Grid;
use crate::report::noise::TAKEN;
use crate::report::observed::Section;
use crate::stats::Spread;

fn original_ratio(delay_ms: f64, way: Way) -> Option<f64> {
    let (_, row) = original::RATIOS.iter().find(|(delay, _)| f64::from(*delay) == delay_ms)?;
    let at = original::AHEAD.iter().position(|ahead| *ahead == way.ahead)?;
    (way.route == Route::Sealed).then(|| row[at])
}

/// Figures next to the original's, from 1 ms on: at 0 ms its CPU was the limit and ours is not.
#[derive(Default)]
struct Reached {
    above: u32,
    below: u32,
    neither: u32,
}

impl Reached {
    /// Counts a figure, unless too few rounds or no A/A leave open what it is.
    fn add(&mut self, ours: Option<Spread>, original: Option<f64>, same: Option<Spread>) {
        let (Some(ours), Some(original), Some(same)) = (ours, original, same) else { return };
        let ratio = ours.scaled(original);
        let count = match ratio.differs_beyond(same) {
            None => return,
            Some(true) if ratio.median > 1.0 => &mut self.above,
            Some(true) => &mut self.below,
            Some(false) => &mut self.neither,
        };
        *count += 1;
    }

    /// `None` where nothing can be claimed.
    fn sentence(&self) -> Option<String> {
        let Self { above, below, neither } = *self;
        let all = above + below + neither;
        (all > 0).then(|| {
            format!(
                "From 1 ms on, {above} of {all} figures are above the original's by more than A/A, {below} are below it, \
                 {neither} neither."
            )
        })
    }
}

/// Everything as a multiple of the tunnel that waits for each answer.
pub(super) fn ratios(report: &BlockReport) -> Section {
    let (delays, _, ahead) = &report.asked;
    let ways: Vec<Way> = ahead.iter().map(|&n| Way::sealed(n)).chain([Way::PLAIN]).collect();
    let controls = report.measured_again();
    let mut reached = Reached::default();
    let mut rows = Vec::new();
    for &delay in delays {
        let (mut figures, mut cells) = (Vec::new(), Vec::new());
        for &way in &ways {
            let then = original_ratio(delay, way);
            let ratio = report.ratio(delay, way, Way::TUNNEL);
            let same = report.same(delay, way, Way::TUNNEL);
            if delay >= 1.0 {
                reached.add(ratio, then, same);
            }
            cells.push(with_original(ratio, then) + judged(ratio, same));
            figures.push(ratio);
        }
        for &control in &controls {
            let same = report.ratio(delay, control.again(), control);
            cells.push(figure(same));
            figures.push(same);
        }
        let names = [format!("{delay} ms"), rounds(figures)];
        rows.push(names.into_iter().chain(cells).chain(taken(report, delay)).collect());
    }
    let head = ["one-way delay", "n"].map(str::to_owned).into_iter();
    let head = head.chain(ways.iter().map(|way| way.name())).chain(controls.iter().map(|way| control(*way)));
    let mut caption = format!(
        "{SPREAD} Mean over block sizes. OP-n: n blocks in progress, sealed above TCP; plain: no VPN, no encryption, no \
         overlap. {RATIOS} Where one block in progress is compared with several, the wider A/A of both counts. {TAKEN} In \
         brackets the original, relative to IPsec (3DES, 2006)."
    );
    if let Some(sentence) = reached.sentence() {
        caption = format!("{caption} {sentence}");
    }
    Section {
        name: format!("Throughput as a multiple of {} with no overlap", report.system),
        caption,
        grid: Grid { keys: 2, head: head.chain(["steal", "others"].map(str::to_owned)).collect(), rows },
    }
}

/// Each ratio in the tables.
pub(super) fn comparisons(report: &BlockReport) -> Vec<Comparison> {
    let ahead = report.asked.2.iter().map(|&n| Way::sealed(n));
    let to_tunnel = ahead.chain([Way::PLAIN]).map(|way| (way, Way::TUNNEL));
    let pairs: Vec<(Way, Way)> = to_tunnel.chain(as_many_in_progress(report)).collect();
    let compare = |(delay, (way, base)): (f64, (Way, Way))| {
        let (ratio, control) = (report.ratio(delay, way, base)?, report.same(delay, way, base));
        Some(Comparison {
            system: way.name(),
            case: format!("{delay} ms, mean over block sizes"),
            quantity: THROUGHPUT.name,
            first: base.name(),
            control,
            ratio_to_first: Some(ratio),
            differs_from_first: differs(Some(ratio), control),
        })
    };
    let all = report.asked.0.iter().flat_map(|&delay| pairs.iter().map(move |&pair| (delay, pair)));
    all.filter_map(compare).collect()
}

/// Each way that seals ahead, and those with as many blocks in progress that do not.
fn as_many_in_progress(report: &BlockReport) -> Vec<(Way, Way)> {
    let several = report.asked.2.iter().filter(|&&ahead| ahead > 1);
    several
        .flat_map(|&n| [Route::Tunnel, Route::Plain].map(|route| (Way::sealed(n), Way::of(route, n))))
        .collect()
}

/// The head of the column with the A/A of a way.
pub(super) fn control(way: Way) -> String {
    format!("A/A of {}", way.name())
}

/// The gain of encrypting ahead beyond having as many blocks in progress.
pub(super) fn overlap(report: &BlockReport) -> Section {
    let delays = &report.asked.0;
    let pairs = as_many_in_progress(report);
    let deepest = report.deepest_control();
    let rows = delays.iter().map(|&delay| {
        let same = report.ratio(delay, deepest.again(), deepest);
        let ratios: Vec<_> = pairs.iter().map(|&(way, base)| report.ratio(delay, way, base)).collect();
        let cells = pairs
            .iter()
            .zip(&ratios)
            .map(|(&(way, base), &ratio)| figure(ratio) + judged(ratio, report.same(delay, way, base)));
        let names = [format!("{delay} ms"), rounds(ratios.iter().copied().chain([same]))];
        names.into_iter().chain(cells).chain([figure(same)]).collect()
    });
    let head = ["one-way delay", "n"].map(str::to_owned).into_iter();
    let names = pairs.iter().map(|(way, base)| format!("{} / {}", way.name(), base.name()));
    Section {
        name: "Gain of encrypting ahead relative to as many blocks in progress without it".into(),
        caption: format!(
            "{SPREAD} Mean over block sizes of OP-n divided by the tunnel, and by no encryption at all, with the same n in \
             progress. Around 1: the gain over waiting for each answer is that of the queue's depth alone. {RATIOS} Here it has \
             as many in progress as its column says."
        ),
        grid: Grid {
            keys: 2,
            head: head.chain(names).chain([control(deepest)]).collect(),
            rows: rows.collect(),
        },
    }
}

/// The number of blocks in progress that carried most.
pub(super) fn best_sealed(report: &BlockReport, delay: f64) -> Option<Way> {
    let all = report.asked.2.iter().map(|&n| Way::sealed(n));
    let measured = all.filter_map(|way| Some((way, report.peak(delay, way)?.median)));
    measured.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(way, _)| way)
}

/// Best throughput of any block size.
pub(super) fn peaks(report: &BlockReport) -> Section {
    let again: Vec<Way> = report.measured_again().into_iter().map(Way::again).collect();
    let rows = report.asked.0.iter().map(|&delay| {
        let sealed = best_sealed(report, delay);
        let best = sealed.and_then(|way| report.peak(delay, way));
        let then = original::PEAKS.iter().find(|(ms, _)| f64::from(*ms) == delay).map(|(_, row)| *row);
        let cell = |ours: Option<Spread>, at: usize| {
            with_original(ours.map(|ours| ours.scaled(1e6)), then.map(|row| row[at]))
        };
        let [plain, tunnel] = [Way::PLAIN, Way::TUNNEL].map(|way| report.peak(delay, way));
        let others: Vec<_> = again.iter().map(|&way| report.peak(delay, way)).collect();
        let all = [plain, tunnel, best].into_iter().chain(others.iter().copied());
        let mut row =
            vec![format!("{delay} ms"), rounds(all), cell(plain, 0), cell(tunnel, 1), cell(best, 2)];
        row.push(sealed.map_or("–".into(), Way::name));
        row.extend(others.into_iter().map(mb));
        row
    });
    let head = ["one-way delay", "n", "plain", "tunnel", "best OP-n", "which"].map(str::to_owned);
    Section {
        name: "Best throughput of any block size, MB/s".into(),
        caption: format!(
            "Bytes of acknowledged blocks per second, of the block size and the n with the highest median. {SPREAD} The tunnel \
             that is measured again shows what the same differs from itself. In brackets the original: plain, IPsec, its own method."
        ),
        grid: Grid {
            keys: 2,
            head: head.into_iter().chain(again.iter().map(|way| way.name())).collect(),
            rows: rows.collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::block::tests::{repeated, sample, scale};

    #[test]
    fn with_several_blocks_in_progress_the_tunnel_with_as_many_is_the_control() {
        let mut report = repeated(sample(), 5);
        // OP-10 has 10 and tunnel-10 has 9.1: a difference, unless tunnel-10 differs as much from
        // itself.
        let cells = |report: &BlockReport| overlap(report).grid.rows[0][4..].to_vec();
        let head = overlap(&report).grid.head;
        assert_eq!(head[4..], ["OP-10 / tunnel-10", "OP-10 / plain-10", "A/A of tunnel-10"]);
        assert_eq!(cells(&report), ["1.10 (1.10–1.10)", "0.667 (0.667–0.667)", "1.00 (1.00–1.00)"]);
        let deep = Way::of(Route::Tunnel, 10).again();
        scale(&mut report, 1.2, |case| case.way == deep);
        assert_eq!(cells(&report), ["1.10 (1.10–1.10) ≈", "0.667 (0.667–0.667)", "1.20 (1.20–1.20)"]);
        let once = overlap(&sample()).grid.rows[0][4..].to_vec();
        assert_eq!(once, ["1.10 ?", "0.667 ?", "1.00"], "one round shows no difference");
    }

    #[test]
    fn ratios_have_both_controls_and_the_number_of_rounds() {
        let mut report = repeated(sample(), 5);
        scale(&mut report, 1.5, |case| case.repeat == 3 && case.way == Way::sealed(10));
        let Grid { head, rows, .. } = ratios(&report).grid;
        let names = ["n", "OP-2", "OP-10", "plain", "A/A of tunnel", "A/A of tunnel-10", "steal", "others"];
        assert_eq!(head[1..], names);
        assert_eq!(
            rows[1][..5],
            ["16 ms", "5", "2.00 (2.00–2.00) [1.90]", "10.0 (10.0–15.0) [5.85]", "1.50 (1.50–1.50)"]
        );
        let deep = Way::of(Route::Tunnel, 10).again();
        scale(&mut report, 30.0, |case| case.way == deep);
        assert!(
            ratios(&report).grid.rows[1][3].ends_with(" ≈"),
            "several in progress differ from themselves"
        );
        assert!(!ratios(&report).grid.rows[1][4].ends_with('≈'), "plain has one in progress");
    }

    #[test]
    fn nothing_is_claimed_of_the_original_within_the_tunnels_distance_from_itself() {
        let claims = |report: &BlockReport| ratios(report).caption.contains("From 1 ms on");
        assert!(!claims(&repeated(sample(), 4)), "four rounds");
        let mut report = repeated(sample(), 5);
        let says = |report: &BlockReport, words: &str| {
            let caption = ratios(report).caption;
            assert!(caption.contains(words), "{words}: {caption}");
        };
        // OP-2 has 2.00 and the original 1.90; OP-10 has 10.0 and the original 5.85.
        says(&report, "2 of 2 figures are above the original's by more than A/A, 0 are below it, 0 neither");
        scale(&mut report, 1.2, |case| case.way == Way::TUNNEL.again());
        says(&report, "1 of 2 figures are above the original's by more than A/A, 0 are below it, 1 neither");
        scale(&mut report, 0.1, |case| case.way == Way::sealed(10));
        says(&report, "0 of 2 figures are above the original's by more than A/A, 1 are below it, 1 neither");
        report.controls.clear();
        report.cases.retain(|case| !case.way.again);
        assert!(!claims(&report), "no A/A");
    }

    #[test]
    fn peaks_have_their_spread_and_the_tunnel_that_was_measured_again() {
        let mut report = repeated(sample(), 2);
        scale(&mut report, 1.5, |case| case.repeat == 2 && case.way == Way::TUNNEL);
        let Grid { head, rows, .. } = peaks(&report).grid;
        assert_eq!(head[5..], ["which", "tunnel (again)", "tunnel-10 (again)"]);
        let row = &rows[1];
        assert_eq!(row[1], "2");
        assert_eq!((row[3].as_str(), row[5].as_str()), ("26.2 (21.0–31.5) [2.30]", "OP-10"));
        assert_eq!(row[6], "21.0 (21.0–21.0)");
    }
}
