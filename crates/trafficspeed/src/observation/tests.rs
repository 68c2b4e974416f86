use super::*;
use crate::stats::five;
use crate::unit::Unit;

const RATE: Quantity = Quantity::rate("received");
const LOST: Quantity = Quantity::new("lost", "%").decimals(2);
const DROPS: Quantity = Quantity::count("dropped");
const CASE: &str = "download";

/// Values of each system, round by round, under a congestion control.
fn table(systems: &[(&str, &str, &[f64])]) -> Observations {
    let mut table = Observations::default();
    for &(system, congestion, values) in systems {
        for (value, round) in values.iter().zip(1..) {
            let measured =
                Measured { system, congestion, case: CASE, round, problem: "", is_disturbed: false };
            table.add(&measured, [(RATE, Some(*value)), (LOST, None)]);
        }
    }
    table
}

/// The second round is one in which the machine was half as fast.
fn drifting(again: [f64; 3], others: [[f64; 3]; 2]) -> Observations {
    let drift = |values: [f64; 3]| five([values[0], values[1] * 0.5, values[2]]);
    table(&[
        ("vpnd", "cubic", &drift([1.0; 3])),
        ("OpenVPN", "cubic", &drift(others[0])),
        ("vpnd (again)", "cubic", &drift(again)),
        ("plain", "cubic", &drift(others[1])),
    ])
}

fn compared(table: &Observations) -> Vec<Comparison> {
    table.comparisons(&[(CASE.to_owned(), RATE)])
}

#[test]
fn rounds_are_drawn_together_as_their_quantity_says() {
    let values = [2e6, 4e6, 3e6];
    let text = |quantity: Quantity, values: &[f64]| quantity.text(values, None).unwrap();
    assert_eq!(text(RATE, &values), "3.00 (2.00–4.00) Mbit/s");
    assert_eq!(RATE.text(&values, Some(Unit::Kbit)).unwrap(), "3000 (2000–4000) kbit/s");
    assert_eq!(text(Quantity::time("delay"), &[90.0, 110.0]), "100 (90.0–110) µs");
    assert_eq!(text(Quantity::time("delay"), &[12_345.0]), "12.3 ms");
    assert_eq!((text(LOST, &[0.5]), text(DROPS, &[3.0, 4.0])), ("0.50".into(), "7".into()));
    assert_eq!(text(LOST.together(Rounds::Most), &[1.0, 9.0, 2.0]), "9.00");
    assert_eq!(text(LOST.together(Rounds::Median), &[1.0, 9.0, 2.0]), "2.00");
    assert_eq!((RATE.text(&[], None), LOST.head(), DROPS.head()), (None, "lost, %".into(), "dropped".into()));
}

#[test]
fn systems_keep_their_order_and_controls_come_last() {
    let mut table = Observations::default();
    table.name("broken", "cubic");
    let more = drifting([1.0; 3], [[1.0; 3]; 2]);
    for row in &more.rows {
        let system = &more.systems[row.system];
        let key = Measured {
            system: &system.label,
            congestion: &system.congestion,
            case: &row.case,
            round: row.round,
            problem: "",
            is_disturbed: false,
        };
        let (quantity, value) = row.found.unwrap();
        table.add(&key, [(quantity, Some(value))]);
    }
    assert_eq!(table.systems(), ["broken", "vpnd", "OpenVPN", "plain"]);
    assert_eq!(table.systems_and_controls().last(), Some(&"vpnd (again)"));
    assert_eq!(table.cases(), [CASE]);
    let summary = &table.summaries()[0];
    assert_eq!((summary.system.as_str(), summary.spread.n, summary.sum), ("vpnd", 5, None));
    assert!(table.summaries().iter().all(|one| one.system != "broken" && one.quantity == "received"));
}

#[test]
fn a_difference_is_claimed_only_beyond_that_of_a_system_to_itself() {
    let found = compared(&drifting([0.9, 1.1, 1.0], [[1.05, 1.08, 1.02], [2.0, 3.0, 4.0]]));
    let systems: Vec<&str> = found.iter().map(|one| one.system.as_str()).collect();
    assert_eq!(systems, ["OpenVPN", "plain"], "neither the first nor its control");
    let same = found[0].control.unwrap();
    assert!((same.low - 0.9).abs() < 1e-9 && (same.high - 1.1).abs() < 1e-9 && same.n == 5, "{same:?}");
    assert_eq!([found[0].differs_from_first, found[1].differs_from_first], [Some(false), Some(true)]);
    assert!((found[1].ratio_to_first.unwrap().median - 3.0).abs() < 1e-9, "formed within rounds");
}

#[test]
fn disturbed_cases_claim_nothing() {
    let mut table = drifting([0.9, 1.1, 1.0], [[1.0; 3], [2.0, 3.0, 4.0]]);
    let verdicts =
        |table: &Observations| compared(table).iter().map(|one| one.differs_from_first).collect::<Vec<_>>();
    assert_eq!((verdicts(&table), table.disturbed()), (vec![Some(false), Some(true)], (0, 20)));
    table.rows[0].is_disturbed = true;
    assert_eq!((verdicts(&table), table.disturbed()), (vec![None, None], (1, 20)));
    assert!(compared(&table)[1].ratio_to_first.is_some(), "its figures stand");
    table.rows[0].problem = "ended early".into();
    assert_eq!(table.disturbed(), (0, 19), "what broke counts in nothing anyway");
}

#[test]
fn a_ratio_is_of_one_round_and_nothing_is_divided_by_nothing() {
    let found = divided(&in_rounds(&[10.0, 0.0, 90.0, 4.0]), &in_rounds(&[10.0, 10.0, 0.0]));
    assert_eq!(found, ByRound::from([(1, 1.0), (2, 0.0)]));
    // The ratio of the medians, 40 and 10, would be 4.
    let spread = ratio(&in_rounds(&[10.0, 40.0, 90.0]), &in_rounds(&[10.0, 10.0, 100.0])).unwrap();
    assert_eq!((spread.low, spread.median, spread.high, spread.n), (0.9, 1.0, 4.0, 3));
}

#[test]
fn without_a_control_nothing_is_claimed() {
    let without = compared(&table(&[("vpnd", "cubic", &[1.0; 3]), ("plain", "cubic", &[9.0; 3])]));
    assert!(without[0].ratio_to_first.is_some() && without[0].differs_from_first.is_none());
    let alone = table(&[("vpnd", "cubic", &[1.0; 3]), ("vpnd (again)", "cubic", &[0.5, 1.0, 1.0])]);
    let found = compared(&alone);
    assert_eq!((found.len(), found[0].system.as_str(), found[0].ratio_to_first), (1, "vpnd", None));
    assert_eq!(found[0].control.map(|same| same.low), Some(0.5));
    assert_eq!(compared(&table(&[("vpnd", "cubic", &[1.0; 3])])), []);
}

#[test]
fn systems_are_compared_with_the_first_one_under_the_same_congestion_control() {
    let found = compared(&table(&[
        ("vpnd, cubic", "cubic", &[1.0; 3]),
        ("vpnd, bbr", "bbr", &[10.0; 3]),
        ("plain, cubic", "cubic", &[3.0; 3]),
        ("plain, bbr", "bbr", &[40.0; 3]),
        ("vpnd (again), cubic", "cubic", &[0.9, 1.1, 1.0]),
        ("vpnd (again), bbr", "bbr", &[5.0, 10.0, 20.0]),
    ]));
    let ratios: Vec<_> =
        found.iter().map(|one| (one.first.as_str(), one.ratio_to_first.unwrap().median)).collect();
    assert_eq!(ratios, [("vpnd, cubic", 3.0), ("vpnd, bbr", 4.0)]);
    assert!((found[0].control.unwrap().high - 1.1).abs() < 1e-9);
    assert!((found[1].control.unwrap().high - 2.0).abs() < 1e-9);
}

#[test]
fn broken_measurements_are_listed_but_not_counted() {
    let mut broken = drifting([1.0; 3], [[1.0; 3]; 2]);
    broken.rows[0].problem = "ended early".into();
    assert_eq!(broken.values("vpnd", CASE, RATE), [0.5, 1.0, 1.0, 1.0]);
    assert_eq!(broken.broken_values("vpnd", CASE, RATE), [1.0]);
    let ratios = compared(&broken);
    assert!(ratios.iter().all(|one| one.ratio_to_first.is_some_and(|ratio| ratio.n == 4)), "{ratios:?}");
    assert_eq!(ratios[0].control.map(|same| same.n), Some(4), "of that round there is no A/A either");
    let gone = Measured {
        system: "new",
        congestion: "cubic",
        case: CASE,
        round: 4,
        problem: "gone",
        is_disturbed: false,
    };
    broken.add(&gone, []);
    let text = csv([(&broken, ["a, b".into(), "Machine".into()])]);
    let lines: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(lines[0], HEAD.join(","));
    assert_eq!(lines[1], "vpnd,download,1,received,bit/s,1,ended early,cubic,\"a, b\",Machine");
    assert_eq!(lines.len(), 1 + 4 * 5 + 1, "what is not known has no row");
    assert_eq!(lines[21], "new,download,4,,,,gone,cubic,\"a, b\",Machine", "but what broke has one");
}
