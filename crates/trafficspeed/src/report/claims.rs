//! Lines above a report's figures: how many comparisons were judged, and how many of them
//! chance alone would claim; or why none were.

use crate::observation::Observations;
use crate::stats::{CLAIM_ROUNDS, FALSE_CLAIMS};
use crate::unit::significant;

/// The only line about measurements on an emulated processor.
pub const EMULATED: &str = "This processor is emulated, so nothing is claimed: measure on a real one.";

/// Follows a ratio that is not shown to be a difference: ≈ for none beyond A/A, ? where nothing
/// says so.
pub fn mark(differs: Option<bool>) -> &'static str {
    match differs {
        Some(true) => "",
        Some(false) => " ≈",
        None => " ?",
    }
}

/// The lines about `judged`, each comparison that a report shows: whether it is a difference, or
/// `None` where nothing was judged.
pub fn lines<'a>(
    tables: impl IntoIterator<Item = &'a Observations>,
    judged: impl IntoIterator<Item = Option<bool>>,
) -> Vec<String> {
    let (mut disturbed, mut all, mut rounds) = (0, 0, 0);
    for table in tables {
        if table.is_emulated() {
            return vec![EMULATED.to_owned()];
        }
        let counted = table.disturbed();
        (disturbed, all) = (disturbed + counted.0, all + counted.1);
        rounds = rounds.max(table.rounds_per_case());
    }
    let judged: Vec<Option<bool>> = judged.into_iter().collect();
    let (known, differ) = judged
        .iter()
        .flatten()
        .fold((0_u32, 0_u32), |(known, differ), differs| (known + 1, differ + u32::from(*differs)));
    let mut lines = Vec::new();
    if disturbed > 0 {
        lines.push(format!(
            "{disturbed} of {all} measurements were disturbed by other load on this machine in every attempt, so nothing is claimed \
             of their cases: measure again while it is quiet."
        ));
    }
    if known > 0 {
        let chance = significant(FALSE_CLAIMS * f64::from(known));
        lines.push(format!(
            "Comparisons: {known}, of which {differ} differ beyond A/A. If all systems were equal, chance would claim {chance} on average \
             at most."
        ));
    } else if !judged.is_empty() && disturbed == 0 {
        lines.push(if rounds < CLAIM_ROUNDS {
            format!("Figures without verdicts: it takes {CLAIM_ROUNDS} rounds to tell a difference from chance, and these are {rounds}.")
        } else {
            "Figures without verdicts: no system was measured a second time in each round (A/A).".to_owned()
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{Measured, Quantity};

    const RATE: Quantity = Quantity::rate("received");

    fn table(rounds: u32, disturbed: u32) -> Observations {
        let mut table = Observations::default();
        for round in 1..=rounds {
            let measured = Measured {
                system: "vpnd",
                congestion: "cubic",
                case: "download",
                round,
                problem: "",
                is_disturbed: round <= disturbed,
            };
            table.add(&measured, [(RATE, Some(1.0)), (Quantity::count("lost"), Some(0.0))]);
        }
        table
    }

    #[test]
    fn comparisons_are_reported_with_expected_false_claims() {
        let judged = (0..50).map(|at| (at < 40).then_some(at < 12));
        assert_eq!(
            lines([&table(5, 0)], judged),
            [
                "Comparisons: 40, of which 12 differ beyond A/A. If all systems were equal, chance would claim 0.800 on average \
                 at most."
            ]
        );
        assert_eq!(lines([&table(3, 0)], []), [""; 0], "nothing is compared");
    }

    #[test]
    fn nothing_is_claimed_of_an_emulated_processor() {
        let emulated = Observations::of_machine(true);
        assert!(emulated.is_disturbed("download"));
        assert_eq!(lines([&table(5, 0), &emulated], [Some(true), Some(false)]), [EMULATED]);
    }

    #[test]
    fn without_a_verdict_the_reason_is_said() {
        let lines_of = |rounds, disturbed| lines([&table(rounds, disturbed)], [None, None]);
        assert_eq!(
            lines_of(3, 0),
            [
                "Figures without verdicts: it takes 5 rounds to tell a difference from chance, and these are 3."
            ]
        );
        assert!(lines_of(5, 0)[0].contains("no system was measured a second time"));
        assert_eq!(lines_of(5, 2).len(), 1);
        assert!(lines_of(5, 2)[0].starts_with("2 of 5 measurements were disturbed"), "{:?}", lines_of(5, 2));
    }
}
