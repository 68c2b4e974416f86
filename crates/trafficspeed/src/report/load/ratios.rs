//! Systems beside the first one and a system beside itself, round by round: what tells a difference from chance.

use serde_json::Value;

use crate::experiment::figures::Figures;
use crate::experiment::generate::{LoadCampaign, LoadRun};
use crate::report::grid::Grid;
use crate::report::ratio::{self, Ratio};
use crate::stats::Spread;
use crate::system::Subject;

/// Stands below the table.
pub const DEFINITIONS: &str = "\
Ratios of what was received, or of transactions, each formed within one round; median, lowest and highest of the rounds.
Each system stands beside the first one under the same congestion control.
A/A: a system that is measured a second time in each round, against itself, under the same congestion control.
A difference counts where the median lies further from 1 than any ratio of A/A did, and all rounds went the same way; of a \
single round nothing is claimed.";

/// The first run of every system, but for controls, and those of each congestion control apart: what two of these do to the
/// same system is no difference of systems.
fn groups(campaign: &LoadCampaign) -> Vec<Vec<&LoadRun>> {
    let mut groups: Vec<Vec<&LoadRun>> = Vec::new();
    for run in campaign.runs.iter().filter(|run| !is_control(run)) {
        match groups.iter_mut().find(|group| group.iter().any(|other| other.congestion == run.congestion)) {
            Some(group) if group.iter().all(|known| known.label != run.label) => group.push(run),
            Some(_) => {}
            None => groups.push(vec![run]),
        }
    }
    groups
}

/// Every system under every load and congestion control, but for the first of each; without them the one that was measured
/// twice, if one was.
fn ratios(campaign: &LoadCampaign) -> Vec<Ratio<'_>> {
    let mut all = Vec::new();
    let groups = groups(campaign);
    for (at, named) in campaign.settings.tasks.iter().enumerate() {
        for group in &groups {
            let Some(&first) = group.first() else { continue };
            let alone = group.len() == 1;
            for run in group.iter().filter(|run| alone || run.label != first.label) {
                let same = same(campaign, at, run);
                let to_first = rounds(campaign, at, &run.label, &first.label).filter(|_| !alone);
                all.push(Ratio { label: &run.label, of: &named.name, same, to_first });
            }
        }
    }
    all.retain(|ratio| ratio.same.is_some() || ratio.to_first.is_some());
    all
}

fn is_control(run: &LoadRun) -> bool {
    run.subject.is_some_and(|subject| subject.again)
}

/// The system that was measured twice under the congestion control of `run`.
fn same(campaign: &LoadCampaign, at: usize, run: &LoadRun) -> Option<Spread> {
    let alike = |other: &&LoadRun| other.congestion == run.congestion;
    let again = campaign.runs.iter().filter(alike).find(|other| is_control(other))?;
    let first = again.subject.map(|subject| Subject { again: false, ..subject });
    let first = campaign.runs.iter().filter(alike).find(|other| other.subject == first)?;
    rounds(campaign, at, &again.label, &first.label)
}

/// The one by the other.
fn rounds(campaign: &LoadCampaign, at: usize, one: &str, other: &str) -> Option<Spread> {
    let of = |label: &str, repeat: u32| {
        let mine = |run: &&LoadRun| run.is_whole() && run.label == label && run.repeat == repeat;
        campaign.runs.iter().find(mine)?.figures.get(at).map(value)
    };
    let numbers = campaign.runs.iter().filter(|run| run.label == one).map(|run| run.repeat);
    ratio::within_rounds(numbers, |repeat| of(one, repeat), |repeat| of(other, repeat))
}

fn value(figures: &Figures) -> f64 {
    figures.transactions_per_second.unwrap_or(figures.received_bits_per_second)
}

/// The ratios as a table; `None` if there are none.
pub fn grid(campaign: &LoadCampaign) -> Option<Grid> {
    let ratios = ratios(campaign);
    let groups = groups(campaign);
    let firsts: Vec<&str> = groups.iter().filter_map(|group| Some(group.first()?.label.as_str())).collect();
    (!ratios.is_empty()).then(|| ratio::grid(&ratios, "load", &firsts.join("; ")))
}

pub fn json(campaign: &LoadCampaign) -> Value {
    ratio::json(&ratios(campaign), "load")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::load::samples;
    use crate::system::{Cipher, Kind};

    /// Three rounds of a system, itself again and two others; the machine is half as fast in the second round.
    fn campaign(again: [f64; 3], others: [[f64; 3]; 2]) -> LoadCampaign {
        let mut campaign = samples::campaign(1e9);
        let model = campaign.runs[0].clone();
        let vpnd = Subject::new(Kind::Vpnd, Cipher::Auto);
        let subjects =
            [vpnd, Subject::new(Kind::Openvpn, Cipher::Auto), Subject::new(Kind::None, Cipher::None)];
        let all = subjects.into_iter().chain([vpnd.again()]);
        let rates = [[1.0; 3], others[0], others[1], again];
        campaign.runs = Vec::new();
        for (subject, rates) in all.zip(rates) {
            for (rate, repeat) in rates.iter().zip(1..) {
                let mut run = model.clone();
                (run.subject, run.label, run.repeat) = (Some(subject), subject.label(), repeat);
                let machine = if repeat == 2 { 0.5e9 } else { 1e9 };
                run.figures[0].received_bits_per_second = rate * machine;
                campaign.runs.push(run);
            }
        }
        campaign
    }

    #[test]
    fn a_difference_is_claimed_only_beyond_that_of_a_system_to_itself() {
        let campaign = campaign([0.9, 1.1, 1.0], [[1.05, 1.08, 1.02], [2.0, 3.0, 4.0]]);
        let found = ratios(&campaign);
        let labels: Vec<&str> = found.iter().map(|ratio| ratio.label).collect();
        assert_eq!(labels, ["OpenVPN", "plain routing"], "neither the first nor its control");
        let same = found[0].same.unwrap();
        assert!((same.low - 0.9).abs() < 1e-9 && (same.high - 1.1).abs() < 1e-9 && same.n == 3, "{same:?}");
        assert_eq!((found[0].differs(), found[1].differs()), (Some(false), Some(true)));
        assert!((found[1].to_first.unwrap().median - 3.0).abs() < 1e-9, "within rounds");
        let text = super::super::table(&campaign, None, None);
        assert!(text.contains("none beyond A/A") && text.contains("of vpnd"), "{text}");
        let mut once = campaign.clone();
        once.runs.retain(|run| run.repeat == 2);
        let found = ratios(&once);
        assert!(found.iter().all(|ratio| ratio.differs().is_none() && ratio.same.is_some()), "{found:?}");
    }

    #[test]
    fn without_a_control_nothing_is_claimed_and_a_system_alone_stands_beside_itself() {
        let mut without = campaign([1.0; 3], [[5.0; 3], [9.0; 3]]);
        without.runs.retain(|run| !is_control(run));
        let found = ratios(&without);
        assert!(found.iter().all(|ratio| ratio.differs().is_none() && ratio.to_first.is_some()));
        let mut alone = campaign([0.5, 1.0, 1.0], [[1.0; 3]; 2]);
        alone.runs.retain(|run| run.label.starts_with("vpnd"));
        let found = ratios(&alone);
        assert_eq!((found.len(), found[0].label, found[0].to_first), (1, "vpnd", None));
        assert_eq!(found[0].same.map(|same| same.low), Some(0.5));
        alone.runs.retain(|run| !is_control(run));
        assert_eq!((ratios(&alone), grid(&alone).is_none()), (Vec::new(), true));
    }

    #[test]
    fn systems_stand_beside_the_first_one_under_the_same_congestion_control() {
        let mut both = campaign([0.9, 1.1, 1.0], [[2.0; 3], [3.0; 3]]);
        let bbr = campaign([0.5, 1.0, 2.0], [[0.2; 3], [4.0; 3]]);
        for run in &mut both.runs {
            run.label += ", cubic";
        }
        for mut run in bbr.runs {
            (run.label, run.congestion) = (run.label + ", bbr", "bbr".parse().unwrap());
            run.figures[0].received_bits_per_second *= 10.0;
            both.runs.push(run);
        }
        let found = ratios(&both);
        let medians: Vec<(&str, f64)> =
            found.iter().map(|ratio| (ratio.label, ratio.to_first.unwrap().median)).collect();
        let expected = [
            ("OpenVPN, cubic", 2.0),
            ("plain routing, cubic", 3.0),
            ("OpenVPN, bbr", 0.2),
            ("plain routing, bbr", 4.0),
        ];
        assert!(
            medians.iter().zip(expected).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-9)
                && medians.len() == 4,
            "vpnd, bbr is the first of its own: {medians:?}"
        );
        assert!((found[1].same.unwrap().high - 1.1).abs() < 1e-9 && found[3].same.unwrap().high > 1.9);
        assert_eq!(grid(&both).unwrap().head[3], "of vpnd, cubic; vpnd, bbr");
    }

    #[test]
    fn a_round_in_which_one_of_both_broke_forms_no_ratio() {
        let mut campaign = campaign([1.0; 3], [[1.0; 3]; 2]);
        campaign.runs[1].error = Some("gone".into());
        assert_eq!(ratios(&campaign)[0].to_first.map(|ratio| ratio.n), Some(2));
    }
}
