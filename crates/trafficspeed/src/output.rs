//! Where results go: standard output, the files of a directory, and the exit code.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use crate::cli::OutputArgs;
use crate::experiment::progress::Progress;
use crate::report::files;
use crate::report::results::Results;
use crate::terminal::{self, print};

/// The exit code where all was measured, but something only while others disturbed it.
const DISTURBED: u8 = 3;

/// Finds out that results cannot be written before an hour is spent on them, and removes those of
/// an earlier run if they are to be replaced.
///
/// # Errors
/// The directory cannot be made or written to, or has measurements of an earlier run.
pub fn prepare(output: &OutputArgs) -> anyhow::Result<()> {
    if let Some(directory) = &output.out {
        make_writable(directory)?;
        files::make_room(directory, output.force)?;
    }
    Ok(())
}

/// Makes a directory if need be, and finds out whether it can be written to.
///
/// # Errors
/// If not.
pub fn make_writable(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    tempfile::tempfile_in(directory).with_context(|| format!("writing to {}", directory.display()))?;
    Ok(())
}

/// Progress as the user wants it.
pub fn progress(output: &OutputArgs) -> Progress {
    Progress::new(output.quiet).with_unit(output.format)
}

/// Writes the measurements, from which all reports can be made again, if there is a directory.
pub fn save(results: &Results, output: &OutputArgs) -> anyhow::Result<()> {
    output.out.iter().try_for_each(|directory| Ok(files::write_measurements(directory, results)?))
}

/// Prints results as the user asked for them, writes the reports, and returns the exit code.
pub fn show(results: &Results, output: &OutputArgs) -> anyhow::Result<ExitCode> {
    if output.json {
        print(&(serde_json::to_string_pretty(&results.json())? + "\n"));
    } else if output.csv {
        print(&results.csv());
    } else {
        print(&results.document(output.chosen_unit()).text(output.wide, !output.quiet));
    }
    if let Some(directory) = &output.out {
        files::write_reports(directory, results)?;
        if !output.quiet {
            terminal::say(format_args!("Report: {}", directory.join("report.html").display()));
        }
    }
    let (interrupted, whole) = (results.is_interrupted(), results.is_whole());
    let disturbed = !interrupted && whole && results.is_disturbed();
    Ok(if disturbed { ExitCode::from(DISTURBED) } else { exit_code(interrupted, whole) })
}

/// Saves results, and shows them also where they can't be saved.
pub fn finish(results: &Results, output: &OutputArgs) -> anyhow::Result<ExitCode> {
    let saved = save(results, output);
    let shown = show(results, output);
    saved.and(shown)
}

/// The exit code of a campaign.
pub fn exit_code(interrupted: bool, whole: bool) -> ExitCode {
    match (interrupted, whole) {
        (true, _) => ExitCode::from(130),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    }
}
