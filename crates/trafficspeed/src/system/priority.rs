//! Priorities that systems may ask of the kernel's scheduler.

use serde::{Deserialize, Serialize};

use super::{Kind, Subject};

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
    /// The priorities with which `kinds` are measured if none is named: with a VPN that takes
    /// none both, so that no figure of a comparison owes something to the scheduler in silence;
    /// otherwise what each takes by itself.
    pub fn usual_priorities(kinds: &[Kind]) -> &'static [Priority] {
        let takes_none = |kind: &Kind| *kind != Kind::None && !kind.profile().has_priority;
        if kinds.iter().any(takes_none) { &[Priority::Own, Priority::Same] } else { &[Priority::Own] }
    }
}
