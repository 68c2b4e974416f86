//! The results of any experiment with reports, and every form in which they can be shown.
//!
//! They are also the file from which all of these can be made again, so they hold everything that
//! is shown.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::grid::{NARROW, wrapped};
use super::observed::{self, MEDIANS, RATIOS};
use super::page::Picture;
use super::{block, home, html, load, load_page, model, pictures, suite, table};
use crate::experiment::block::BlockReport;
use crate::experiment::environment::Environment;
use crate::experiment::generate::{LoadCampaign, LoadRun};
use crate::experiment::home::results::HomeCampaign;
use crate::experiment::model::Model;
use crate::experiment::outcome::{Campaign, Run};
use crate::experiment::suite::SuiteCampaign;
use crate::lab::topology::Topology;
use crate::observation::Observations;
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
    /// The same under several limits of link and CPU.
    BlockSweep(Vec<BlockReport>),
}

impl Results {
    pub fn json(&self) -> Value {
        match self {
            Self::Traffic(campaign) => super::json::json(campaign),
            Self::Load(found) => load::json(found),
            Self::Home(found) => home::json(found),
            Self::Suite(found) => suite::json(found),
            Self::Model(found) => model::json(found),
            Self::Block(found) => json!(found),
            Self::BlockSweep(found) => json!({ "sweep": found }),
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

    pub fn html(&self) -> String {
        match self {
            Self::Traffic(campaign) => html::html(campaign),
            Self::Load(found) => load_page::html(found),
            Self::Home(found) => home::page::html(found),
            Self::Suite(found) => suite::html::html(found),
            Self::Model(found) => model::html::html(found),
            Self::Block(found) => block::html(found),
            Self::BlockSweep(found) => block::sweep::html(found),
        }
    }

    /// For people, with rates in `unit` where the experiment leaves that open; `None`: the one that
    /// suits each. No line is longer than a terminal, unless it is wanted `wide`. With what each
    /// word means, if it is to be explained.
    pub fn table(&self, unit: Option<Unit>, wide: bool, explains: bool) -> String {
        let width = (!wide).then_some(NARROW);
        let mut text = match self {
            Self::Traffic(campaign) => table::table(campaign, unit.unwrap_or_default(), width),
            Self::Load(found) => load::table(found, unit, width),
            Self::Home(found) => home::table(found, width),
            Self::Suite(found) => suite::table(found, width),
            Self::Model(found) => model::table(found, width),
            Self::Block(found) => block::table(found, width),
            Self::BlockSweep(found) => block::sweep::table(found, width),
        };
        if !explains {
            for definitions in self.definitions() {
                text = text.replace(&format!("{definitions}\n"), "");
            }
        }
        if let Some(environment) = self.environment() {
            let method = environment.topology.and_then(Topology::method);
            text.extend(method.map(|method| format!("Method, {method}.\n")));
            text.push_str(&(environment.machine() + "\n"));
        }
        width.map_or(text.clone(), |width| wrapped(&text, width))
    }

    /// What stands below its tables for readers who do not know the words yet.
    fn definitions(&self) -> &'static [&'static str] {
        match self {
            Self::Traffic(_) => &[table::DEFINITIONS, table::RATIOS],
            Self::Load(_) => &[MEDIANS, load::DEFINITIONS, RATIOS, load::clients::DEFINITIONS],
            Self::Home(_) => &[MEDIANS, home::DEFINITIONS, RATIOS],
            Self::Suite(_) => &[suite::DEFINITIONS],
            Self::Model(_) | Self::Block(_) => &[],
            Self::BlockSweep(_) => &[block::sweep::DEFINITIONS],
        }
    }

    fn environment(&self) -> Option<&Environment> {
        Some(match self {
            Self::Traffic(found) => &found.environment,
            Self::Load(found) => &found.environment,
            Self::Home(found) => &found.environment,
            Self::Suite(found) => &found.environment,
            Self::Model(found) => &found.environment,
            Self::Block(found) => &found.environment,
            Self::BlockSweep(found) => &found.first()?.environment,
        })
    }

    /// The pictures of the page, each with a name of its own.
    pub fn pictures(&self) -> Vec<Picture> {
        match self {
            Self::Traffic(campaign) => pictures::pictures(campaign),
            Self::Load(found) => load_page::pictures(found),
            Self::Home(found) => home::page::pictures(found),
            Self::Suite(found) => suite::html::pictures(found),
            Self::Model(found) => model::html::pictures(found),
            Self::Block(found) => block::pictures(found),
            Self::BlockSweep(found) => block::sweep::pictures(found),
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
    use crate::report::files;
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
            assert_eq!(
                (again.html(), again.table(None, false, true)),
                (results.html(), results.table(None, false, true))
            );
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
            row.case.name = format!(
                "{}, messages of 8192 bytes, socket buffers of 32768, beside CPU hogs",
                row.case.name
            );
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
            assert_narrow(&results.table(Some(Unit::Kbit), false, true));
            let wide = results.table(Some(Unit::Kbit), true, true);
            assert!(wide.lines().any(|line| line.chars().count() > NARROW), "{wide}");
            assert!(wide.contains("instructions: "), "the processor belongs to each report: {wide}");
            let short = results.table(Some(Unit::Kbit), true, false);
            for definitions in results.definitions() {
                assert!(!short.contains(definitions), "{short}");
            }
            let explained = results.definitions().iter().any(|definitions| wide.contains(definitions));
            assert_eq!(explained, wide.len() > short.len(), "what is not there can't be left out: {wide}");
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
