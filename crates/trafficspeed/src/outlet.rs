//! Where results go: standard output, the files of a directory, and the exit code.

use std::fs;
use std::io::{ErrorKind, Write as _, stdout};
use std::process::ExitCode;

use anyhow::Context;

use crate::cli::OutputArgs;
use crate::experiment::progress::Progress;

/// Finds out that results cannot be written before an hour is spent on them.
///
/// # Errors
/// The directory cannot be made or written to.
pub fn prepare(output: &OutputArgs) -> anyhow::Result<()> {
    if let Some(directory) = &output.out {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        tempfile::tempfile_in(directory).with_context(|| format!("writing to {}", directory.display()))?;
    }
    Ok(())
}

/// Progress and events as the user wants them.
pub fn progress(output: &OutputArgs) -> Progress {
    Progress::new(output.quiet).with_events(output.json_stream).with_unit(output.format)
}

/// Prints what the user wants to see and writes the files; the first two are JSON and CSV. Events were printed as they
/// happened.
///
/// # Errors
/// A file cannot be written.
pub fn present(
    output: &OutputArgs,
    files: &[(&str, &str)],
    table: impl Fn() -> String,
) -> anyhow::Result<()> {
    if output.json {
        print(files[0].1);
    } else if output.csv {
        print(files[1].1);
    } else if !output.json_stream {
        print(&table());
    }
    let Some(directory) = &output.out else { return Ok(()) };
    for (name, text) in files {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// What the exit code says of a campaign.
pub fn verdict(interrupted: bool, whole: bool) -> ExitCode {
    match (interrupted, whole) {
        (true, _) => ExitCode::from(130),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    }
}

/// Prints to standard output, which may be a pipe whose reader has gone; files are still to be written then.
pub fn print(text: &str) {
    match stdout().write_all(text.as_bytes()).and_then(|()| stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("trafficspeed: writing to standard output: {error}");
        }
        _ => {}
    }
}
