//! The tunnels of a network namespace, as their clients have noted them: a locked file for each,
//! which lasts as long as the lock.

use std::io;

use super::JournalDirectory;

/// Begins the names of those of this network namespace.
///
/// # Errors
/// If the namespace can't be examined.
pub fn places() -> io::Result<String> {
    let namespace = rustix::fs::stat("/proc/self/ns/net")?.st_ino;
    Ok(format!("tunnel-{namespace}-"))
}

/// The states that were noted last, that of the oldest tunnel first.
///
/// # Errors
/// If they can't be read.
pub fn states(directory: &JournalDirectory) -> io::Result<Vec<String>> {
    let places = places()?;
    let mut states = Vec::new();
    for name in directory.names()?.iter().filter(|name| name.starts_with(&places)) {
        states.extend(directory.read_held(name)?);
    }
    Ok(states)
}
