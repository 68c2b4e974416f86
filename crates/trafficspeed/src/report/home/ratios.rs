//! Systems beside the first one and a system beside itself, round by round: what tells a difference from chance.

use serde_json::Value;

use super::Grid;
use super::groups::FlowGroup;
use crate::experiment::figures::Figures;
use crate::experiment::home::flow::{Case, Flow};
use crate::experiment::home::results::{HomeCampaign, HomeRun};
use crate::report::noise::far;
use crate::report::ratio::{self, Ratio};
use crate::stats::{Spread, median};
use crate::unit::significant;

/// Stands below the table.
pub const DEFINITIONS: &str = "\
Differences, everything at once: ratios within one round; median, lowest and highest of the rounds. A/A: a system that is measured \
a second time in each round, against itself. A difference counts where the median lies further from 1 than any ratio of A/A did, and \
all rounds went the same way; of a single round nothing is claimed.";

/// A figure that systems are compared by.
struct Quantity {
    name: &'static str,
    flow: Flow,
    of: fn(&Figures) -> Option<f64>,
    /// Its unit in words, and as so many of those that `of` gives.
    unit: &'static str,
    scale: f64,
}

const QUANTITIES: [Quantity; 7] = [
    Quantity { name: "download", flow: Flow::Download, of: rate, unit: "Mbit/s", scale: 1e6 },
    Quantity { name: "upload", flow: Flow::Upload, of: rate, unit: "Mbit/s", scale: 1e6 },
    Quantity {
        name: "voice down, delay p50",
        flow: Flow::VoiceDown,
        of: |figures| delay(figures, 0.5),
        unit: "ms",
        scale: 1e3,
    },
    Quantity {
        name: "voice down, delay p99",
        flow: Flow::VoiceDown,
        of: |figures| delay(figures, 0.99),
        unit: "ms",
        scale: 1e3,
    },
    Quantity {
        name: "voice up, delay p50",
        flow: Flow::VoiceUp,
        of: |figures| delay(figures, 0.5),
        unit: "ms",
        scale: 1e3,
    },
    Quantity {
        name: "voice up, delay p99",
        flow: Flow::VoiceUp,
        of: |figures| delay(figures, 0.99),
        unit: "ms",
        scale: 1e3,
    },
    Quantity {
        name: "pages, median time",
        flow: Flow::Pages,
        of: |figures| median(&figures.pages_ms),
        unit: "ms",
        scale: 1.0,
    },
];

fn rate(figures: &Figures) -> Option<f64> {
    Some(figures.received_bits_per_second)
}

fn delay(figures: &Figures, share: f64) -> Option<f64> {
    Some(figures.delay.as_ref()?.at(share))
}

fn ratios(campaign: &HomeCampaign) -> Vec<Ratio<'_>> {
    let labels = campaign.labels();
    let Some((&first, others)) = labels.split_first() else { return Vec::new() };
    // A system alone stands beside itself.
    let alone = [first];
    let shown = if others.is_empty() { &alone[..] } else { others };
    let mut all = Vec::new();
    for quantity in &QUANTITIES {
        let same = same(campaign, quantity);
        for &label in shown {
            let to_first = rounds(campaign, quantity, label, first).filter(|_| !others.is_empty());
            all.push(Ratio { label, of: quantity.name, same, to_first });
        }
    }
    all.retain(|ratio| ratio.same.is_some() || ratio.to_first.is_some());
    all
}

/// The system that was measured twice in each round, by itself.
fn same(campaign: &HomeCampaign, quantity: &Quantity) -> Option<Spread> {
    let again = campaign.runs.iter().find(|run| run.is_control())?;
    let first = campaign
        .runs
        .iter()
        .find(|run| !run.is_control() && run.subject.map(crate::system::Subject::again) == again.subject)?;
    rounds(campaign, quantity, &again.label, &first.label)
}

/// The one by the other.
fn rounds(campaign: &HomeCampaign, quantity: &Quantity, one: &str, other: &str) -> Option<Spread> {
    let of = |label: &str, repeat: u32| {
        let mine = |run: &&HomeRun| run.label == label && run.repeat == repeat;
        (quantity.of)(campaign.runs.iter().find(mine)?.figures(Case::AtOnce, quantity.flow)?)
    };
    let numbers = campaign.runs.iter().filter(|run| run.label == one).map(|run| run.repeat);
    ratio::within_rounds(numbers, |repeat| of(one, repeat), |repeat| of(other, repeat))
}

/// The ratios as a table.
pub fn grid(campaign: &HomeCampaign) -> Grid {
    let first = campaign.labels().first().copied().unwrap_or_default();
    ratio::grid(&ratios(campaign), "figure", first)
}

/// Rounds that are far from the others of their system.
pub fn remarks(campaign: &HomeCampaign) -> Vec<String> {
    let of = |label: &str, quantity: &Quantity| {
        let group = FlowGroup::of(campaign, label, Case::AtOnce, quantity.flow);
        let values: Vec<f64> = group.runs.iter().filter_map(|figures| (quantity.of)(figures)).collect();
        far(&format!("{label}, {}", quantity.name), &values, |value| {
            format!("{} {}", significant(value / quantity.scale), quantity.unit)
        })
    };
    let of_label = |label| QUANTITIES.iter().filter_map(move |quantity| of(label, quantity));
    super::groups::labels(campaign).into_iter().flat_map(of_label).collect()
}

pub fn json(campaign: &HomeCampaign) -> Value {
    ratio::json(&ratios(campaign), "figure")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::home::results::samples;

    #[test]
    fn a_difference_is_claimed_only_beyond_that_of_a_system_to_itself() {
        let mut campaign = samples::campaign();
        let found = ratios(&campaign);
        assert!(found.iter().all(|ratio| ratio.label == "OpenVPN" && ratio.differs() == Some(true)));
        assert!((found[0].to_first.unwrap().median - 0.5).abs() < 1e-9, "half the download, in every round");
        assert!((found[0].same.unwrap().median - 1.0 / 1.02).abs() < 1e-9);
        // The control was four times as slow once.
        let vpnd = campaign.runs[0].subject.unwrap();
        campaign.runs[2] = samples::run(vpnd.again(), 1, 4.0);
        assert!(ratios(&campaign).iter().all(|ratio| ratio.differs() == Some(false)));
        let mut once = campaign.clone();
        once.runs.retain(|run| run.repeat == 2);
        assert!(ratios(&once).iter().all(|ratio| ratio.differs().is_none() && ratio.same.is_some()));
        campaign.runs.retain(|run| !run.is_control());
        assert!(ratios(&campaign).iter().all(|ratio| ratio.differs().is_none() && ratio.to_first.is_some()));
        campaign.runs.retain(|run| run.label == "vpnd");
        assert!(ratios(&campaign).is_empty());
    }

    #[test]
    fn a_round_far_from_the_others_is_pointed_at() {
        let mut campaign = samples::campaign();
        assert_eq!(remarks(&campaign), [""; 0]);
        let vpnd = campaign.runs[0].subject.unwrap();
        campaign.runs[0] = samples::run(vpnd, 1, 4.0);
        let found = remarks(&campaign);
        assert_eq!(found.len(), QUANTITIES.len(), "{found:?}");
        assert!(found[0].starts_with("Look at vpnd, download: ") && found[0].contains("Mbit/s"), "{found:?}");
    }

    #[test]
    fn a_round_in_which_one_of_both_broke_forms_no_ratio() {
        let mut campaign = samples::campaign();
        campaign.runs[1].cases[0].problems.push("gone".into());
        assert_eq!(ratios(&campaign)[0].to_first.map(|ratio| ratio.n), Some(2));
    }
}
