//! Priorities that systems may ask of the kernel's scheduler.

use serde::{Deserialize, Serialize};

use super::{Kind, Subject};
use crate::stats::distinct;

/// The priority that a system may ask of the kernel's scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// The priority that its makers deliver.
    #[default]
    Own,
    /// One for all systems: nice value 0.
    Same,
}

impl Subject {
    /// The priorities with which `kinds` are measured if none is named: among VPNs of several
    /// makers both, so that no figure of a comparison owes something to the scheduler in silence;
    /// otherwise what each takes by itself.
    pub fn usual_priorities(kinds: &[Kind]) -> &'static [Priority] {
        let vpns = kinds.iter().filter(|kind| **kind != Kind::None);
        let rivals = distinct(vpns.map(|kind| kind.family())).len() > 1;
        if rivals { &[Priority::Own, Priority::Same] } else { &[Priority::Own] }
    }
}
