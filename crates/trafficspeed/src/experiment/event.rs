//! The events of an experiment, for a program that follows it.
//!
//! Events carry the experiments' own plain data; how they are written is decided by whoever
//! receives them.

use super::generate::{LoadCampaign, LoadRun, Second};
use super::home::results::{HomeCampaign, HomeRun};
use super::outcome::{Interval, Run};
use super::suite::{Row, SuiteCampaign};

/// Something that has just happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Experiment 1: a measurement begins.
    RunStarted(&'a Run),
    /// Experiment 1: all hosts have reported second `number`, counted from 0.
    Interval {
        number: usize,
        totals: Interval,
    },
    /// Experiment 1: a measurement is over.
    RunEnded(&'a Run),
    /// A command of the generators begins.
    LoadStarted(&'a LoadCampaign),
    /// One of its measurements begins.
    LoadRunStarted(&'a LoadRun),
    /// One of its measurements is over.
    LoadRunEnded(&'a LoadCampaign, &'a LoadRun),
    /// The command is over.
    LoadEnded(&'a LoadCampaign),
    HomeStarted(&'a HomeCampaign),
    /// One system was measured in one round.
    HomeRunEnded(&'a HomeRun),
    HomeEnded(&'a HomeCampaign),
    SuiteStarted(&'a SuiteCampaign),
    /// One of its measurements is over.
    SuiteRowEnded(&'a Row),
    /// The suite is over.
    SuiteEnded(&'a SuiteCampaign),
    /// One interval of a measurement of the generators or of a suite.
    Second(&'a Second<'a>),
}

/// Writes an event as one line of text.
pub type EventFormat = fn(&Event<'_>) -> String;
