//! The tables of experiment 3.

use crate::experiment::model::costs::Cost;
use crate::experiment::model::fit::Stage;
use crate::experiment::model::original::Row;
use crate::experiment::model::real::Real;
use crate::experiment::model::sum::{Part, Target};
use crate::experiment::model::{Again, Compared, Model};
use crate::observation::{in_rounds, ratio};
use crate::report::grid::Grid;
use crate::report::noise;
use crate::report::observed::Section;
use crate::stats::{CLAIM_ROUNDS, Spread};
use crate::unit::{gbit, significant};

/// All tables, in the order in which they are to be read.
pub fn sections(model: &Model) -> Vec<Section> {
    let mut sections = vec![sums(model)];
    sections.extend(control(model));
    sections.extend(first_cases(model).filter_map(parts));
    sections.push(costs(model));
    sections.push(alone(model));
    sections.push(hand_over(model));
    sections.extend(original(model));
    let targets = first_cases(model).flat_map(|one| one.targets.iter().map(|target| needs(one, target)));
    sections.extend(targets);
    sections
}

/// The first case of each suite.
fn first_cases(model: &Model) -> impl Iterator<Item = &Compared> {
    let first = model.sums.first().map(|one| one.case);
    model.sums.iter().filter(move |one| Some(one.case) == first)
}

fn none() -> String {
    "-".to_owned()
}

/// An error with its sign.
pub fn percent(error: Option<f64>) -> String {
    // Adding zero makes what is rounded to a negative zero an ordinary one.
    error.map_or_else(none, |error| format!("{:+.0} %", (100.0 * error).round() + 0.0))
}

/// The error, marked if it is no larger than what the same cipher with the same load was off from
/// itself.
fn marked(error: Option<f64>, same: Option<Spread>) -> String {
    let is_within = |(error, same): (f64, Spread)| {
        let ratio = 1.0 + error;
        ratio > 0.0 && same.n >= CLAIM_ROUNDS && ratio.max(1.0 / ratio) <= same.widest_ratio()
    };
    let mark = if error.zip(same).is_some_and(is_within) { " ≈" } else { "" };
    percent(error) + mark
}

fn sums(model: &Model) -> Section {
    let row = |one: &Compared| {
        let again = model.control.iter().find(|again| again.suite == one.suite && again.case == one.case);
        let [cpu, _] = again.map_or([None; 2], |again| against_itself(model, again));
        let real = one.real.as_ref();
        vec![
            one.suite.clone(),
            format!("{} x {}", one.case.packet, one.case.streams),
            one.sum.as_ref().map_or_else(none, |sum| significant(sum.seconds_per_gbit())),
            real.map_or_else(none, |real| {
                let (low, high) = real.cpu_range;
                let middle = significant(real.vpn_seconds_per_gbit());
                format!("{middle} ({}-{})", significant(low), significant(high))
            }),
            marked(one.off(), cpu),
            real.map_or_else(none, |real| {
                Spread::of(&real.each).map_or_else(|| gbit(real.bits_per_second), |rates| rates.text(gbit))
            }),
            real.map_or_else(none, |real| format!("{:.1}", real.cpus)),
            real.map_or(0, |real| real.each.len()).to_string(),
            noise::percent(real.and_then(|real| real.taken.steal)),
            noise::percent(real.and_then(|real| real.taken.others)),
        ]
    };
    Section::new(
        "Sums and measurements: TCP to the gateway's host; load: bytes of a packet x streams; CPU: s/Gbit of the VPN",
        Grid::of(
            1,
            [
                "cipher",
                "load",
                "CPU sum",
                "measured (range)",
                "error",
                "Gbit/s",
                "cores",
                "n",
                "steal",
                "others",
            ],
            model.sums.iter().map(row).collect(),
        ),
    )
}

/// The second measurement of a turn relative to the first, of the VPN's CPU seconds for a Gbit and
/// of throughput.
pub fn against_itself<'a>(model: &'a Model, again: &'a Again) -> [Option<Spread>; 2] {
    let alike = |one: &&Compared| one.suite == again.suite && one.case == again.case;
    let first = model.sums.iter().find(alike).and_then(|one| one.real.as_ref());
    let quantities: [fn(&Real) -> &Vec<f64>; 2] = [|real| &real.cpu_each, |real| &real.each];
    quantities.map(|quantity| {
        let (again, first) = (quantity(again.real.as_ref()?), quantity(first?));
        ratio(&in_rounds(again), &in_rounds(first))
    })
}

/// The cipher that was measured twice in each turn, if one was.
fn control(model: &Model) -> Option<Section> {
    let name = &model.control.first()?.suite;
    let row = |again: &Again| {
        let [cpu, speed] = against_itself(model, again);
        let text = |spread: Option<Spread>| spread.map_or_else(none, |spread| spread.text(significant));
        let load = format!("{} x {}", again.case.packet, again.case.streams);
        vec![load, text(cpu), text(speed), speed.map_or(0, |speed| speed.n).to_string()]
    };
    Some(Section::new(
        format!("A/A: {name}, its second measurement in each turn / its first; median (lowest-highest)"),
        Grid::of(1, ["load", "CPU s/Gbit", "Gbit/s", "n"], model.control.iter().map(row).collect()),
    ))
}

fn parts(one: &Compared) -> Option<Section> {
    let (sum, beside) = (one.sum.as_ref()?, one.real.as_ref().map(|real| real.beside));
    let vpn = sum.seconds_per_gbit();
    let whole = vpn + beside.map_or(0.0, |beside| beside.generators + beside.kernel);
    let share = |part: f64, sum: f64| format!("{:.0} %", 100.0 * part / sum.max(f64::MIN_POSITIVE));
    let row = |part: &Part| {
        vec![
            part.stage.clone(),
            part.end.name().into(),
            part.kind.name().into(),
            significant(1000.0 * part.seconds),
            share(part.seconds, vpn),
            beside.map_or_else(none, |_| share(part.seconds, whole)),
        ]
    };
    let mut rows: Vec<Vec<String>> = sum.parts.iter().map(row).collect();
    let blank = String::new;
    rows.push(vec![
        "all stages".into(),
        blank(),
        blank(),
        significant(1000.0 * vpn),
        "100 %".into(),
        share(vpn, whole),
    ]);
    if let Some(real) = &one.real {
        let rest = real.vpn_seconds_per_gbit() - vpn;
        rows.push(vec![
            "measured beyond them".into(),
            blank(),
            blank(),
            significant(1000.0 * rest),
            share(rest, vpn),
            blank(),
        ]);
    }
    Some(Section::new(
        format!(
            "Where the time goes with {} ({}), packets of {} bytes, streams: {}",
            one.suite, one.backend, one.case.packet, one.case.streams
        ),
        Grid::of(1, ["stage", "end", "kind", "CPU ms/Gbit", "of the VPN's", "saved without it"], rows),
    ))
}

/// The fitted costs in words: `1,020 ns a call, 0.1 ns a byte`.
pub fn terms(cost: &Cost) -> String {
    let some = cost.terms.iter().filter(|(_, ns)| *ns > 0.0);
    let words: Vec<String> =
        some.map(|(unit, ns)| format!("{} a {}", significant(*ns), unit.name())).collect();
    if words.is_empty() { "nothing measurable".into() } else { words.join(", ") }
}

fn costs(model: &Model) -> Section {
    let row = |cost: &Cost| {
        let suite = cost.suite.as_ref().map_or_else(String::new, |suite| format!(", {suite}"));
        vec![
            format!("{}{suite}", cost.stage),
            cost.end.name().into(),
            terms(cost),
            format!("{:.0} %", 100.0 * cost.spread),
            format!("{:.0} %", 100.0 * cost.worst),
            format!("{} of {}", cost.runs, cost.sizes),
        ]
    };
    Section::new(
        "Stages of a running tunnel: CPU ns, fitted over sizes; off = median and largest distance of a run from the fit",
        Grid::of(
            1,
            ["stage", "end", "ns", "off", "worst", "runs, sizes"],
            model.costs.iter().map(row).collect(),
        ),
    )
}

fn alone(model: &Model) -> Section {
    let row = |stage: &Stage| {
        let suite = stage.suite.as_ref().map_or_else(String::new, |suite| format!(", {suite}"));
        vec![
            format!("{}{suite}", stage.name),
            stage.side.clone(),
            stage.unit.clone(),
            significant(stage.line.each),
            significant(1000.0 * stage.line.per_byte),
            format!("{:.0} %", 100.0 * stage.line.worst),
        ]
    };
    Section::new(
        "The same work repeated alone, with warm caches and idle devices (not in the sums): a line through five sizes",
        Grid::of(
            1,
            ["stage", "end", "for each", "ns each", "ns per 1000 bytes", "worst"],
            model.stages.iter().map(row).collect(),
        ),
    )
}

fn hand_over(model: &Model) -> Section {
    let figures = model.raw.suites.iter().flat_map(|suite| model.hand_over(&suite.name));
    let rows = figures.map(|figure| {
        let who = match figure.workers {
            0 => "inline".to_owned(),
            1 => "1 worker a flow".to_owned(),
            many => format!("{many} workers a flow"),
        };
        vec![
            figure.suite.clone(),
            who,
            figure.flows.to_string(),
            figure.threads.to_string(),
            format!("{} ({}-{})", gbit(figure.bits_per_second), gbit(figure.range[0]), gbit(figure.range[1])),
            figure.repeats.to_string(),
            significant(0.125 * figure.cpu_ns_per_byte),
        ]
    });
    Section::new(
        "Crypto inline or handed to workers on threads of their own: read, cut, seal, send, in memory; median (range)",
        Grid::of(1, ["cipher", "sealed", "flows", "threads", "Gbit/s", "runs", "CPU s/Gbit"], rows.collect()),
    )
}

/// The original's table, if it was measured.
fn original(model: &Model) -> Option<Section> {
    let row = |row: &Row| {
        let figure = match &row.error {
            Some(_) => none(),
            None => {
                let [middle, low, high] =
                    [row.bits_per_second, row.range.0, row.range.1].map(|rate| significant(rate / 1e6));
                format!("{middle} ({low}-{high})")
            }
        };
        vec![
            row.system.clone(),
            significant(row.link_bits_per_second as f64 / 1e6),
            figure,
            row.repeats.to_string(),
            significant(row.vpn_seconds_per_gbit),
            noise::percent(row.taken.steal),
            noise::percent(row.taken.others),
        ]
    };
    let limit = model.original_cpu.map_or_else(String::new, |limit| format!("; gateway {limit}"));
    let caption = format!(
        "As the original: one stream, packets of 1280 bytes, links of limited rate (Ethernet frames){limit}; goodput in Mbit/s"
    );
    let head =
        ["algorithm", "link Mbit/s", "Mbit/s (range)", "runs", "CPU s/Gbit of the VPN", "steal", "others"];
    let grid = Grid::of(1, head, model.original.iter().map(row).collect());
    (!model.original.is_empty()).then(|| Section::new(caption, grid))
}

fn needs(one: &Compared, target: &Target) -> Section {
    let rows = target.needs.iter().map(|need| {
        let ms = |value: f64| significant(1000.0 * value);
        vec![
            need.stage.clone(),
            need.end.name().into(),
            ms(need.now),
            ms(need.all_alike),
            need.alone.map_or_else(|| "not enough".into(), ms),
        ]
    });
    let ms = |seconds: f64| significant(1000.0 * seconds);
    let verdict = if target.reached { "reached as it is" } else { "not reached" };
    Section::new(
        format!(
            "{} Gbit/s with {}: {verdict}. CPU ms/Gbit: {} to be had, {} needed now (generators and kernel {}, beyond the stages {})",
            gbit(target.bits_per_second),
            one.suite,
            ms(target.budget),
            ms(target.now),
            ms(target.fixed),
            ms(target.unexplained)
        ),
        Grid::of(1, ["stage", "end", "now", "if all shrink alike", "if it alone shrinks"], rows.collect()),
    )
}
