//! The results of any experiment with reports, and every form in which they can be shown.
//!
//! They are also the file from which all of these can be made again, so they hold everything that
//! is shown.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::document::Document;
use super::{block, home, load, model, observed, suite, table};
use crate::experiment::block::BlockReport;
use crate::experiment::environment::Environment;
use crate::experiment::generate::{LoadCampaign, LoadRun};
use crate::experiment::home::observations::compared;
use crate::experiment::home::results::HomeCampaign;
use crate::experiment::model::Model;
use crate::experiment::outcome::{Campaign, Run};
use crate::experiment::suite::SuiteCampaign;
use crate::observation::{Comparison, Observations};
use crate::unit::Unit;

/// The results, by experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "experiment", content = "found")]
pub enum Results {
    /// Experiment 1: in the lab, `run`, `compare`. Its file is older than this enum, and is the
    /// campaign alone.
    #[serde(skip)]
    Traffic(Box<Campaign>),
    /// `stream`, `rr`, `udp`.
    Load(Box<LoadCampaign>),
    /// `home`.
    Home(Box<HomeCampaign>),
    /// `suite ipsec`, `suite aead`.
    Suite(Box<SuiteCampaign>),
    /// `model`.
    Model(Box<Model>),
    /// `block`.
    Block(Box<BlockReport>),
    /// Blocks under several limits of link and CPU.
    BlockSweep(Vec<BlockReport>),
}

impl Results {
    pub fn json(&self) -> Value {
        super::json::json(self)
    }

    /// Its name.
    pub fn experiment(&self) -> String {
        match self {
            Self::Traffic(_) => "traffic".into(),
            Self::Load(found) => found.command.clone(),
            Self::Home(_) => "home".into(),
            Self::Suite(found) => format!("suite {}", found.name),
            Self::Model(_) => "model".into(),
            Self::Block(_) | Self::BlockSweep(_) => "block".into(),
        }
    }

    /// Differences of systems.
    pub fn comparisons(&self) -> Vec<Comparison> {
        match self {
            Self::Traffic(campaign) => campaign.comparisons(&campaign.observations()).concat(),
            Self::Load(found) => found.observations().comparisons(&found.compared()),
            Self::Home(found) => found.observations().comparisons(&compared()),
            Self::Suite(found) => suite::comparisons(found),
            Self::Model(_) => Vec::new(),
            Self::Block(found) => block::comparisons(found),
            Self::BlockSweep(found) => found.iter().flat_map(block::comparisons).collect(),
        }
    }

    /// The table of observations, under each limit one, with the place of its measurement.
    pub fn observations(&self) -> Vec<(Observations, &Environment)> {
        match self {
            Self::Traffic(campaign) => vec![(campaign.observations(), &campaign.environment)],
            Self::Load(found) => vec![(found.observations(), &found.environment)],
            Self::Home(found) => vec![(found.observations(), &found.environment)],
            Self::Suite(found) => vec![(found.observations(), &found.environment)],
            Self::Model(found) => vec![(found.observations(), &found.environment)],
            Self::Block(found) => vec![(found.observations(), &found.environment)],
            Self::BlockSweep(found) => {
                found.iter().map(|report| (report.observations(), &report.environment)).collect()
            }
        }
    }

    pub fn csv(&self) -> String {
        observed::csv(self.observations())
    }

    /// The report, with rates in `unit` where the experiment leaves that open; `None`: the one that
    /// suits each.
    pub fn document(&self, unit: Option<Unit>) -> Document<'_> {
        match self {
            Self::Traffic(campaign) => table::document(campaign, unit.unwrap_or_default()),
            Self::Load(found) => load::document(found, unit),
            Self::Home(found) => home::document(found),
            Self::Suite(found) => suite::document(found),
            Self::Model(found) => model::document(found),
            Self::Block(found) => block::document(found),
            Self::BlockSweep(found) => block::sweep::document(found),
        }
    }

    /// Whether the user ended it early.
    pub fn is_interrupted(&self) -> bool {
        match self {
            Self::Traffic(campaign) => campaign.interrupted,
            Self::Load(found) => found.interrupted,
            Self::Home(found) => found.interrupted,
            Self::Suite(found) => found.interrupted,
            Self::Model(found) => found.interrupted,
            Self::Block(found) => found.interrupted,
            Self::BlockSweep(found) => found.iter().any(|report| report.interrupted),
        }
    }

    /// Whether something that stands was measured while others used more of the machine than the
    /// user allows.
    pub fn is_disturbed(&self) -> bool {
        let Self::Traffic(campaign) = self else { return false };
        campaign.runs.iter().any(|run| run.is_whole() && run.disturbance.is_some())
    }

    /// Whether all that was asked for was measured as it should be.
    pub fn is_whole(&self) -> bool {
        match self {
            Self::Traffic(campaign) => {
                let is_good = |run: &Run| run.superseded || (run.is_whole() && run.failures().is_empty());
                campaign.runs.iter().all(is_good)
            }
            Self::Load(found) => found.runs.iter().all(LoadRun::is_whole),
            Self::Home(found) => found.is_whole(),
            Self::Suite(found) => found.is_whole(),
            Self::Model(found) => found.is_whole(),
            Self::Block(found) => found.is_whole(),
            Self::BlockSweep(found) => found.iter().all(BlockReport::is_whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::block::tests::sample;
    use crate::report::chart::markup::assert_well_formed;
    use crate::report::files;
    use crate::report::grid::NARROW;
    use crate::report::grid::tests::assert_narrow;
    use crate::report::suite::tests::campaign;

    #[test]
    fn all_reports_can_be_made_again_from_the_file() {
        let traffic = crate::experiment::outcome::samples::campaign();
        for results in [
            Results::Traffic(Box::new(traffic)),
            Results::Suite(Box::new(campaign())),
            Results::Home(Box::new(crate::experiment::home::results::samples::campaign())),
            Results::Block(Box::new(sample())),
            Results::BlockSweep(crate::report::block::sweep::tests::samples()),
        ] {
            let directory = tempfile::tempdir().unwrap();
            files::write_measurements(directory.path(), &results).unwrap();
            let again = files::read(directory.path()).unwrap();
            assert_eq!((again.json(), again.csv()), (results.json(), results.csv()));
            let shown = |results: &Results| {
                let document = results.document(None);
                (document.page(), document.text(false, true))
            };
            assert_eq!(shown(&again), shown(&results));
            assert_stands_alone(&shown(&again).0);
            let pictures = again.document(None).into_pictures();
            assert!(!pictures.is_empty() && pictures == results.document(None).into_pictures());
            pictures.iter().for_each(|picture| assert_well_formed(&picture.svg));
            let mut names: Vec<_> = pictures.iter().map(|picture| &picture.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), pictures.len());
            files::write_reports(directory.path(), &again).unwrap();
            for name in ["report.json", "report.csv", "report.html"] {
                assert!(std::fs::metadata(directory.path().join(name)).unwrap().len() > 100, "{name}");
            }
        }
    }

    /// The page is well-formed and needs nothing from elsewhere.
    fn assert_stands_alone(page: &str) {
        assert_well_formed(page);
        // The name of SVG's own language is no place to load anything from.
        let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for outside in
            ["<script", "<link", "<img", "<iframe", "src=", "href=", "@import", "url(", "http:", "https:"]
        {
            assert!(!page.contains(outside), "the page needs nothing from elsewhere, but has {outside}");
        }
    }

    #[test]
    fn each_line_of_a_csv_says_congestion_control_links_and_machine() {
        let mut all = extreme();
        all.push(Results::Model(Box::new(crate::experiment::model::made_up::model(&[0.0, 0.1]))));
        all.push(Results::BlockSweep(crate::report::block::sweep::tests::samples()));
        for results in all {
            let text = results.csv();
            let mut lines = text.split_terminator("\r\n");
            let head: Vec<&str> = lines.next().unwrap().split(',').collect();
            assert!(head.contains(&"congestion") && head.ends_with(&["links", "machine"]), "{head:?}");
            let mut count = 0;
            for line in lines {
                assert!(line.contains(",cubic,") && line.contains("Machine: "), "{line}");
                count += 1;
            }
            assert!(count > 0, "{head:?}");
        }
    }

    /// Values that no measurement has, with names as long as the longest.
    fn extreme() -> Vec<Results> {
        let mut traffic = crate::experiment::outcome::samples::campaign();
        traffic.baseline = Some("strongSwan in user space, aes-256-cbc-hmac-sha-256, no priority".into());
        for run in &mut traffic.runs {
            run.clients *= 1_000;
            run.label = format!("{}, aes-256-cbc-hmac-sha-256, no priority", run.label);
            for outcome in
                run.pairs.iter_mut().flat_map(|pair| &mut pair.ends).filter_map(|end| end.outcome.as_mut())
            {
                outcome.streams.iter_mut().for_each(|stream| stream.bytes *= 123_456);
            }
        }
        let mut suite = campaign();
        for row in &mut suite.rows {
            row.label = format!("{}, aes-256-cbc-hmac-sha-256, without AES instructions", row.label);
            row.case.name =
                format!("{}, messages of 8192 bytes, socket buffers of 32768, with CPU hogs", row.case.name);
            if let Some(figures) = &mut row.figures {
                figures.received_bits_per_second *= 1.234_567e9;
            }
        }
        let mut home = crate::experiment::home::results::samples::campaign();
        for run in &mut home.runs {
            run.label = format!("{}, aes-256-cbc-hmac-sha-256, no priority", run.label);
        }
        let mut blocks = sample();
        blocks.asked.2 = (1..=16).collect();
        for case in &mut blocks.cases {
            case.bytes_per_second = case.bytes_per_second.map(|rate| rate * 1.234_567e9);
        }
        let load = crate::report::load::samples::campaign(1.234_567e15);
        vec![
            Results::Traffic(Box::new(traffic)),
            Results::Suite(Box::new(suite)),
            Results::Home(Box::new(home)),
            Results::Block(Box::new(blocks)),
            Results::Load(Box::new(load)),
        ]
    }

    #[test]
    fn no_table_is_wider_than_a_terminal_unless_it_is_wanted_whole() {
        for results in extreme() {
            let document = results.document(Some(Unit::Kbit));
            assert_narrow(&document.text(false, true));
            let wide = document.text(true, true);
            assert!(wide.lines().any(|line| line.chars().count() > NARROW), "{wide}");
            assert!(wide.contains("instructions: "), "the processor belongs to each report: {wide}");
        }
    }
}
