//! Priorities that systems may ask of the kernel's scheduler.

use serde::{Deserialize, Serialize};

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
