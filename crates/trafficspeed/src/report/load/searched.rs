//! Trials of the searches of `udp --search`: the delivered share over the offered rate, as table
//! and picture.

use crate::experiment::generate::{LoadCampaign, LoadRun};
use crate::report::delivered::{self, Share};
use crate::report::grid::Grid;
use crate::report::page::Picture;
use crate::unit::significant;

/// Stands above the table.
pub const TITLE: &str = "Delivered of what was offered";

/// The first run of each system that was measured, whose place is the system's style in all
/// pictures.
pub fn first_runs(runs: &[LoadRun]) -> Vec<&LoadRun> {
    let mut first: Vec<&LoadRun> = Vec::new();
    let is_control = |run: &LoadRun| run.subject.is_some_and(|subject| subject.again);
    for run in runs.iter().filter(|run| run.error.is_none() && !is_control(run)) {
        if first.iter().all(|known| known.label != run.label) {
            first.push(run);
        }
    }
    first
}

/// Each system with its style and what its searches tried.
fn systems(campaign: &LoadCampaign) -> Vec<(String, usize, Vec<Share>)> {
    let Some(named) = campaign.settings.tasks.first() else { return Vec::new() };
    let tried = |(style, first): (usize, &LoadRun)| {
        let selected = campaign.runs.iter().filter(|run| run.label == first.label);
        let searches = selected.filter_map(|run| Some((&named.task, run.search.as_ref()?)));
        (first.label.clone(), style, delivered::shares(searches))
    };
    first_runs(&campaign.runs).into_iter().enumerate().map(tried).collect()
}

/// A row for each system and rate.
pub fn grid(campaign: &LoadCampaign) -> Grid {
    let mut grid = Grid::new(1, ["system", "offered, Mbit/s", "delivered, %", "trials, n"]);
    for (label, _, shares) in systems(campaign) {
        grid.rows.extend(shares.iter().map(|share| {
            let delivered = share.delivered.text(|percent| format!("{percent:.1}"));
            vec![label.clone(), significant(share.offered), delivered, share.delivered.n.to_string()]
        }));
    }
    grid
}

pub fn picture(campaign: &LoadCampaign) -> Option<Picture> {
    let svg = delivered::curve(TITLE, systems(campaign).into_iter())?;
    Some(Picture::new("delivered", TITLE, delivered::CAPTION, svg))
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use crate::load::task::Task;
    use crate::report::delivered::tests::search;
    use crate::report::load::{document, pictures};

    #[test]
    fn search_trials_are_a_table_and_a_curve() {
        let mut campaign = samples::campaign(3e9);
        assert!(grid(&campaign).rows.is_empty() && picture(&campaign).is_none(), "nothing was searched");
        let Some(Task::Messages(work)) = campaign.settings.tasks.first().map(|named| &named.task) else {
            panic!("the sample sends messages")
        };
        let messages = |megabits: f64| megabits * 1e6 / (8.0 * f64::from(work.length));
        let tried = search(&[(100e6, messages(100.0)), (200e6, messages(50.0))]);
        for run in campaign.runs.iter_mut().filter(|run| run.label == "plain routing") {
            run.search = Some(tried.clone());
        }
        let rows = grid(&campaign).rows;
        assert_eq!(rows[0], ["plain routing", "100", "100.0 (100.0–100.0)", "3"]);
        assert_eq!(rows[1], ["plain routing", "200", "25.0 (25.0–25.0)", "3"]);
        let text = document(&campaign, None).text(false, true);
        assert!(text.contains(TITLE) && text.contains("25.0 (25.0–25.0)"), "{text}");
        let drawn = pictures::pictures(&campaign);
        let curve = drawn.iter().find(|picture| picture.name == "delivered").unwrap();
        assert!(curve.svg.contains("delivered, % (higher is better)"));
        assert!(curve.svg.contains("class=\"line s1") && !curve.svg.contains("class=\"line s0"));
        assert!(document(&campaign, None).page().contains("25.0 (25.0–25.0)"));
    }
}
