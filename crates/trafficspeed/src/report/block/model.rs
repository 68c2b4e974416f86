//! The model compared with the measurement, at one delay.

use super::cell::{SPREAD, mb, rounds};
use super::size_name;
use crate::experiment::block::{BlockReport, Way, original};
use crate::report::grid::Grid;
use crate::report::observed::Section;
use crate::unit::significant;

pub(super) fn model(report: &BlockReport, delay: f64) -> Section {
    let rtt = 2.0 * delay / 1e3;
    let p = &report.parameters;
    let rows = report.asked.1.iter().map(|&size| {
        let block = f64::from(size);
        let [one, two] = [Way::TUNNEL, Way::sealed(2)].map(|way| report.rate(delay, size, way));
        let then = original::MODEL_16_MS.iter().find(|(bytes, _)| *bytes == size && delay == 16.0);
        let then = |from: usize| {
            then.map_or("–".into(), |(_, row)| format!("{:.3} / {:.3}", row[from], row[from + 1]))
        };
        vec![
            size_name(size),
            rounds([one, two]),
            rate(p.without_overlap(block, rtt)),
            rate(p.one_round_trip(block, rtt, 1)),
            mb(one),
            then(0),
            rate(p.two_in_progress(block, rtt)),
            rate(p.one_round_trip(block, rtt, 2)),
            mb(two),
            then(2),
        ]
    });
    let head = [
        "block",
        "n",
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
        name: format!("Model and measurement at {delay} ms one way, MB/s"),
        caption: format!(
            "{SPREAD} No overlap: block / (2·RTT + block/lower + block/encrypt + block/decrypt); OP-2: block / (RTT + \
             block/lower + block/encrypt). Measured on this host, MB/s: lower {}, encrypt {}, decrypt {} with {} (original: {}, \
             {}); writing and syncing a block {} ms: lower is of one connection at the first delay, the others are means over all cases, so \
             that what the model says has no spread. {}\"one round trip\" is n·block / (RTT + block/lower + block/encrypt + block/decrypt + sync), at most \
             what the slowest stage carries.",
            rate(p.lower),
            rate(p.encrypt),
            rate(p.decrypt),
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
        grid: Grid { keys: 2, head: head.map(str::to_owned).into(), rows: rows.collect() },
    }
}

/// Bytes per second in MB/s.
fn rate(value: f64) -> String {
    significant(value / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::block::tests::{repeated, sample, scale};
    use crate::load::block::seal::Sealing;

    #[test]
    fn the_measurement_has_its_spread_next_to_the_model() {
        let mut report = repeated(sample(), 2);
        scale(&mut report, 2.0, |case| case.repeat == 2 && case.way == Way::TUNNEL);
        let Section { grid: Grid { head, rows, .. }, caption, .. } = model(&report, 16.0);
        assert_eq!((head[1].as_str(), head[4].as_str()), ("n", "measured"));
        assert_eq!((rows[0][0].as_str(), rows[0][1].as_str()), ("8 KB", "2"));
        assert_eq!(rows[0][4], "0.123 (0.082–0.164)");
        assert_eq!(rows[0][5], "0.118 / 0.239");
        assert!(caption.contains("lower 1000, encrypt 4000, decrypt 4000"), "{caption}");
        report.sealing = Sealing::ChaCha20Poly1305;
        assert!(model(&report, 16.0).caption.contains("with chacha20-poly1305 (original"));
    }
}
