//! All rounds of one system drawn together: of a flow, or of everything that ran at the same time.

use crate::experiment::figures::Figures;
use crate::experiment::home::flow::{Case, Flow};
use crate::experiment::home::results::{CaseResult, HomeCampaign};
use crate::stats::{Spread, quantile};

/// A flow of one system in one case.
pub struct FlowGroup<'a> {
    pub label: &'a str,
    pub case: Case,
    pub flow: Flow,
    /// Of the rounds that stand.
    pub runs: Vec<&'a Figures>,
}

/// A case of one system.
pub struct CaseGroup<'a> {
    pub label: &'a str,
    pub case: Case,
    /// Of the rounds that stand.
    pub runs: Vec<&'a CaseResult>,
}

/// The systems in the order they first appear, controls at the end.
pub fn labels(campaign: &HomeCampaign) -> Vec<&str> {
    let mut labels = campaign.labels();
    for run in campaign.runs.iter().filter(|run| run.is_control()) {
        if !labels.contains(&run.label.as_str()) {
            labels.push(&run.label);
        }
    }
    labels
}

/// Each of `flows` of each system, among all others and alone, where there are figures.
pub fn flows<'a>(campaign: &'a HomeCampaign, flows: &[Flow]) -> Vec<FlowGroup<'a>> {
    let mut groups = Vec::new();
    for label in labels(campaign) {
        for &flow in flows {
            let cases = [Case::AtOnce, flow.alone()];
            groups.extend(cases.map(|case| FlowGroup::of(campaign, label, case, flow)));
        }
    }
    groups.retain(|group| !group.runs.is_empty());
    groups
}

/// Each case of each system, where there are figures.
pub fn cases(campaign: &HomeCampaign) -> Vec<CaseGroup<'_>> {
    let of = |label| {
        Case::ALL.map(|case| {
            let runs = campaign.runs.iter().filter(|run| run.label == label);
            CaseGroup { label, case, runs: runs.filter_map(|run| run.case(case)).collect() }
        })
    };
    let groups = labels(campaign).into_iter().flat_map(of);
    groups.filter(|group| !group.runs.is_empty()).collect()
}

impl<'a> FlowGroup<'a> {
    pub fn of(campaign: &'a HomeCampaign, label: &'a str, case: Case, flow: Flow) -> Self {
        let runs = campaign.runs.iter().filter(|run| run.label == label);
        Self { label, case, flow, runs: runs.filter_map(|run| run.figures(case, flow)).collect() }
    }

    /// The spread of a figure over the rounds that have it.
    pub fn spread(&self, of: impl Fn(&Figures) -> Option<f64>) -> Option<Spread> {
        Spread::of(&self.runs.iter().filter_map(|figures| of(figures)).collect::<Vec<_>>())
    }

    /// Packets that came after a later one, and all that came, over all rounds.
    pub fn out_of_order(&self) -> (u64, u64) {
        self.runs.iter().fold((0, 0), |(late, came), figures| {
            let arrived = figures.messages.unwrap_or(0).saturating_sub(figures.lost.unwrap_or(0));
            (late + figures.reordered.unwrap_or(0), came + arrived)
        })
    }

    /// Pages over all rounds.
    pub fn pages(&self) -> usize {
        self.runs.iter().map(|figures| figures.pages_ms.len()).sum()
    }

    /// Of the pages of all rounds together, the time that this share of them took at most.
    pub fn page_ms(&self, share: f64) -> Option<f64> {
        quantile(&self.runs.iter().flat_map(|figures| figures.pages_ms.clone()).collect::<Vec<_>>(), share)
    }
}

impl CaseGroup<'_> {
    /// The spread of a figure over the rounds that have it.
    pub fn spread(&self, of: impl Fn(&CaseResult) -> Option<f64>) -> Option<Spread> {
        Spread::of(&self.runs.iter().filter_map(|run| of(run)).collect::<Vec<_>>())
    }
}
