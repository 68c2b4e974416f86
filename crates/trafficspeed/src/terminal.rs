//! Standard output and standard error. Either may be a pipe whose reader has gone (`| head -1`),
//! which ends nothing: files are still to be written, and what was set up is still to be removed.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write as _, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

/// Something could not be printed.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Prints results to standard output. A failure is said here, and shows in the exit status.
pub fn print(text: &str) {
    match stdout().write_all(text.as_bytes()).and_then(|()| stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            HAS_FAILED.store(true, Ordering::Relaxed);
            say(format_args!("trafficspeed: writing to standard output: {error}"));
        }
        _ => {}
    }
}

/// Whether results could not be printed, other than to a reader that has gone.
pub fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::Relaxed)
}

/// Writes a line to standard error.
pub fn say(line: Arguments<'_>) {
    show(format_args!("{line}\n"));
}

/// Writes to standard error what is no whole line.
pub fn show(text: Arguments<'_>) {
    // One write, so that lines of several threads do not mix. There is no place left to report its
    // failure.
    let _ = stderr().write_all(text.to_string().as_bytes());
}
