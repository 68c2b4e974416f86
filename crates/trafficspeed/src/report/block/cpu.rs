//! The CPU time that blocks take: in use at the target, and for each GB at both ends and in the VPN
//! between them.

use super::cell::{RATIOS, SPREAD, figure, judged, rounds, with_original};
use crate::experiment::block::{BlockReport, CpuPart, Route, Way, original};
use crate::report::grid::Grid;
use crate::report::observed::Section;

/// CPU use at the target: the original's table 4.
pub(super) fn cpu(report: &BlockReport) -> Section {
    let (delays, _, ahead) = &report.asked;
    let again = report.measured_again().into_iter().map(Way::again);
    let ways: Vec<Way> =
        [Way::TUNNEL].into_iter().chain(ahead.iter().map(|&n| Way::sealed(n))).chain(again).collect();
    let rows = delays.iter().map(|&delay| {
        let used: Vec<_> = ways.iter().map(|&way| report.cpu(delay, way)).collect();
        let cells = ways.iter().zip(&used).map(|(&way, &ours)| with_original(ours, original_cpu(delay, way)));
        [format!("{delay} ms"), rounds(used.iter().copied())].into_iter().chain(cells).collect()
    });
    let where_from = if report.hosts.is_empty() {
        "the target's process and, with the tunnel, the VPN's process on its side; the kernel's interrupt time belongs to no \
         process and is not in it. In brackets the original, which was that of the whole machine."
    } else {
        "the target's process alone, without the CPU time of a VPN's processes and of the kernel."
    };
    Section {
        name: "CPU use at the target, % of one core".into(),
        caption: format!("{SPREAD} Mean over block sizes: {where_from}"),
        grid: Grid {
            keys: 2,
            head: ["one-way delay".to_owned(), "n".to_owned()]
                .into_iter()
                .chain(ways.iter().map(|way| way.name()))
                .collect(),
            rows: rows.collect(),
        },
    }
}

fn original_cpu(delay_ms: f64, way: Way) -> Option<f64> {
    let (_, ipsec, columns) = original::CPU.iter().find(|(ms, ..)| f64::from(*ms) == delay_ms)?;
    match way {
        Way::TUNNEL => Some(*ipsec),
        Way { route: Route::Sealed, ahead, .. } => {
            original::AHEAD.iter().position(|known| *known == ahead).map(|at| columns[at])
        }
        Way { .. } => None,
    }
}

/// The columns of the costs.
const PARTS: [(CpuPart, &str); 6] = [
    (CpuPart::Writer, "writer"),
    (CpuPart::WriterVpn, "its VPN"),
    (CpuPart::Target, "target"),
    (CpuPart::GatewayVpn, "VPN at the gateway"),
    (CpuPart::TargetSide, "target's side"),
    (CpuPart::All, "all"),
];

/// CPU time for each GB, by way: of the target's side the original's figures 13 and 14 have it.
pub(super) fn cost(report: &BlockReport) -> Section {
    let (delays, _, ahead) = &report.asked;
    let most = ahead.iter().copied().max().filter(|most| *most > 1);
    let deep =
        most.into_iter().flat_map(|ahead| [Route::Tunnel, Route::Plain].map(|route| Way::of(route, ahead)));
    let again = report.measured_again().into_iter().map(Way::again);
    let ways: Vec<Way> = [Way::TUNNEL, Way::PLAIN]
        .into_iter()
        .chain(ahead.iter().map(|&n| Way::sealed(n)))
        .chain(deep)
        .chain(again)
        .collect();
    let row = |delay: f64, way: Way| {
        let costs = PARTS.map(|(part, _)| report.cost(delay, way, part));
        // The tunnel that is measured again is compared with its first measurement, with as many in
        // progress.
        let baseline = if way.again { Way { again: false, ..way } } else { Way::TUNNEL };
        let same = report.same_cost(delay, (way, baseline), CpuPart::All);
        let pair = Some((way, baseline)).filter(|_| way != baseline);
        let ratio = pair.and_then(|pair| report.cost_ratio(delay, pair, CpuPart::All));
        let mark = if way.again { "" } else { judged(ratio, same) };
        let mut row = vec![format!("{delay} ms"), way.name(), rounds(costs.into_iter().chain([ratio]))];
        row.extend(costs.map(figure));
        row.push(figure(ratio) + mark);
        row
    };
    let names = ["one-way delay", "way", "n"].into_iter().chain(PARTS.map(|(_, name)| name));
    Section {
        name: "CPU seconds for each GB written".into(),
        caption: format!(
            "{SPREAD} CPU time of processes for each GB of acknowledged blocks, median over block sizes, each column separately. \
             Target's side: the target and the VPN at the gateway, as in the original's figures 13 and 14. The kernel's interrupt time is in \
             none of them, and the VPN's is counted in ticks of the kernel, coarse where few bytes were written. All / tunnel: \
             relative to the tunnel with no overlap; for a tunnel that is measured again, relative to its first measurement (A/A). \
             {RATIOS}"
        ),
        grid: Grid {
            keys: 3,
            head: names.chain(["all / tunnel"]).map(str::to_owned).collect(),
            rows: delays
                .iter()
                .flat_map(|&delay| ways.iter().map(move |&way| (delay, way)))
                .map(|(delay, way)| row(delay, way))
                .collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::block::tests::{repeated, sample};

    #[test]
    fn cpu_use_has_its_spread_and_the_tunnels_second_measurement() {
        let mut report = repeated(sample(), 2);
        let busier = report.cases.iter_mut().filter(|case| case.repeat == 2 && case.way == Way::TUNNEL);
        busier.for_each(|case| case.target_cpu_percent = Some(9.0));
        let Grid { head, rows, .. } = cpu(&report).grid;
        assert_eq!(head[1..], ["n", "tunnel", "OP-2", "OP-10", "tunnel (again)", "tunnel-10 (again)"]);
        assert_eq!(rows[1][1..4], ["2", "7.00 (5.00–9.00) [13.0]", "10.0 (10.0–10.0) [29.9]"]);
        assert_eq!(rows[1][5], "5.00 (5.00–5.00)");
    }

    #[test]
    fn the_cost_of_a_gigabyte_counts_both_ends_and_the_gateway_and_is_relative_to_the_tunnel() {
        let mut report = repeated(sample(), 5);
        report.asked.1 = vec![2 << 20];
        report.cases.retain(|case| case.block_bytes == 2 << 20);
        // 100 blocks of 2 MiB: 0.2097 GB.
        let dearer = report
            .cases
            .iter_mut()
            .filter(|case| [2, 4].contains(&case.repeat) && case.way == Way::sealed(10));
        dearer.for_each(|case| case.ends_cpu_seconds = Some([0.02, 0.04]));
        let row_of = |report: &BlockReport, way: &str| {
            let Grid { head, rows, .. } = cost(report).grid;
            let row = rows.into_iter().find(|row| row[0] == "16 ms" && row[1] == way).expect("a row");
            assert_eq!(head.len(), row.len());
            row
        };
        let tunnel = row_of(&report, "tunnel");
        assert_eq!(
            tunnel[2..7],
            ["5", "0.048 (0.048–0.048)", "0.143 (0.143–0.143)", "0.095 (0.095–0.095)", "0.191 (0.191–0.191)"]
        );
        assert_eq!(tunnel[8..], ["0.477 (0.477–0.477)", "–"]);
        let sealed = row_of(&report, "OP-10");
        assert_eq!(sealed[3], "0.048 (0.048–0.095)");
        assert_eq!(sealed[9], "0.300 (0.300–0.600)");
        assert_eq!(row_of(&report, "tunnel-10 (again)")[9], "1.00 (1.00–1.00)");
        // A tunnel that differs as much from itself leaves no difference.
        let unsteady = report.cases.iter_mut().filter(|case| case.way == Way::TUNNEL.again());
        unsteady.for_each(|case| case.ends_cpu_seconds = Some([0.5, 0.5]));
        assert_eq!(row_of(&report, "OP-10")[9], "0.300 (0.300–0.600) ≈");
        assert!(row_of(&repeated(sample(), 1), "OP-10")[9].ends_with('?'), "one round");
    }
}
