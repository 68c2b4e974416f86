//! The results of any experiment with reports, and every form in which they can be shown.
//!
//! They are also the file from which all of these can be made again, so they hold everything that is shown.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::page::Picture;
use super::{block, csv, html, load, load_page, model, pictures, suite, table};
use crate::experiment::block::BlockReport;
use crate::experiment::generate::{LoadCampaign, LoadRun};
use crate::experiment::model::Model;
use crate::experiment::outcome::{Campaign, Run};
use crate::experiment::suite::SuiteCampaign;
use crate::unit::Unit;

/// The results, by experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "experiment", content = "found")]
pub enum Results {
    /// Experiment 1: in the lab, `run`, `compare`. Its file is older than this enum, and is the campaign alone.
    #[serde(skip)]
    Traffic(Box<Campaign>),
    /// `stream`, `rr`, `udp`.
    Load(Box<LoadCampaign>),
    /// `suite ipsec`, `suite aead`.
    Suite(Box<SuiteCampaign>),
    /// `model`.
    Model(Box<Model>),
    /// `block`.
    Block(Box<BlockReport>),
}

impl Results {
    pub fn json(&self) -> Value {
        match self {
            Self::Traffic(campaign) => super::json::json(campaign),
            Self::Load(found) => load::json(found),
            Self::Suite(found) => suite::json(found),
            Self::Model(found) => model::json(found),
            Self::Block(found) => json!(found),
        }
    }

    pub fn csv(&self) -> String {
        match self {
            Self::Traffic(campaign) => csv::csv(campaign),
            Self::Load(found) => load::csv(found),
            Self::Suite(found) => suite::csv(found),
            Self::Model(found) => model::csv(found),
            Self::Block(found) => block::csv(found),
        }
    }

    pub fn html(&self) -> String {
        match self {
            Self::Traffic(campaign) => html::html(campaign),
            Self::Load(found) => load_page::html(found),
            Self::Suite(found) => suite::html::html(found),
            Self::Model(found) => model::html::html(found),
            Self::Block(found) => block::html(found),
        }
    }

    /// For people, with rates in `unit` where the experiment leaves that open; `None`: the one that suits each.
    pub fn table(&self, unit: Option<Unit>) -> String {
        match self {
            Self::Traffic(campaign) => table::table(campaign, unit.unwrap_or_default()),
            Self::Load(found) => load::table(found, unit),
            Self::Suite(found) => suite::table(found),
            Self::Model(found) => model::table(found),
            Self::Block(found) => block::table(found),
        }
    }

    /// The pictures of the page, each with a name of its own.
    pub fn pictures(&self) -> Vec<Picture> {
        match self {
            Self::Traffic(campaign) => pictures::pictures(campaign),
            Self::Load(found) => load_page::pictures(found),
            Self::Suite(found) => suite::html::pictures(found),
            Self::Model(found) => model::html::pictures(found),
            Self::Block(found) => block::pictures(found),
        }
    }

    /// Whether the user ended it early.
    pub fn is_interrupted(&self) -> bool {
        match self {
            Self::Traffic(campaign) => campaign.interrupted,
            Self::Load(found) => found.interrupted,
            Self::Suite(found) => found.interrupted,
            Self::Model(found) => found.interrupted,
            Self::Block(found) => found.interrupted,
        }
    }

    /// Whether all that was asked for was measured as it should be.
    pub fn is_whole(&self) -> bool {
        match self {
            Self::Traffic(campaign) => {
                let is_good = |run: &Run| run.superseded || (run.is_whole() && run.failures().is_empty());
                campaign.runs.iter().all(is_good)
            }
            Self::Load(found) => found.runs.iter().all(LoadRun::is_whole),
            Self::Suite(found) => found.is_whole(),
            Self::Model(found) => found.is_whole(),
            Self::Block(found) => found.is_whole(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::block::tests::sample;
    use crate::report::files;
    use crate::report::suite::tests::campaign;

    #[test]
    fn all_reports_can_be_made_again_from_the_file() {
        let traffic = crate::experiment::outcome::samples::campaign();
        for results in [
            Results::Traffic(Box::new(traffic)),
            Results::Suite(Box::new(campaign())),
            Results::Block(Box::new(sample())),
        ] {
            let directory = tempfile::tempdir().unwrap();
            files::write_measurements(directory.path(), &results).unwrap();
            let again = files::read(directory.path()).unwrap();
            assert_eq!((again.json(), again.csv()), (results.json(), results.csv()));
            assert_eq!((again.html(), again.table(None)), (results.html(), results.table(None)));
            let pictures = again.pictures();
            assert!(!pictures.is_empty() && pictures == results.pictures());
            let mut names: Vec<_> = pictures.iter().map(|picture| &picture.name).collect();
            names.dedup();
            assert_eq!(names.len(), pictures.len());
            files::write_reports(directory.path(), &again).unwrap();
            for name in ["report.json", "report.csv", "report.html"] {
                assert!(std::fs::metadata(directory.path().join(name)).unwrap().len() > 100, "{name}");
            }
        }
    }

    #[test]
    fn a_damaged_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("measurements.json"), "{\"experiment\":\"moon\"}").unwrap();
        let error = files::read(directory.path()).unwrap_err().to_string();
        assert!(error.contains("measurements.json") && error.contains("moon"), "{error}");
    }
}
