//! Where results go and how they look; the same for every command that measures.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use crate::unit::Unit;

/// Where results go.
#[derive(Clone, Debug, Default, Args)]
pub struct OutputArgs {
    /// Write report.json, report.csv, report.html and the measurements into this directory.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace the measurements of an earlier run in that directory.
    #[arg(long)]
    pub force: bool,
    /// Print the JSON report instead of the table.
    #[arg(short = 'J', long)]
    pub json: bool,
    /// Print CSV, one line per measurement, instead of the table.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Unit of throughput in tables: k, m, g, t for bits in steps of 1000, K, M, G, T for bytes in
    /// steps of 1024.
    #[arg(short = 'f', long = "format", value_name = "[kmgtKMGT]", default_value = "g", value_parser = Unit::of_letter)]
    pub format: Unit,
    /// Tables as wide as they are, instead of at most 120 columns with the rest below.
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    pub wide: bool,
    /// No progress on standard error.
    #[arg(short, long, action = ArgAction::SetTrue)]
    pub quiet: bool,
}

impl OutputArgs {
    /// The unit that the user chose; `None`: the one that suits each rate, where small and large
    /// ones stand side by side.
    pub fn chosen_unit(&self) -> Option<Unit> {
        (self.format != Unit::default()).then_some(self.format)
    }
}
