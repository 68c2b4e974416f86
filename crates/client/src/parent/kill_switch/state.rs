//! The kill switch's state where every user of the machine can read it: a line of text in `/run`,
//! for `vpnd status` alone. What counts are the record and the rules, which others can't read.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use vpnd_journal::kill_switch::KillSwitchRecord;
use vpnd_sys::secret_file::{self, Existing, PUBLIC_MODE};

const DIRECTORY: &str = "/run/vpnd-kill-switch";
/// The longest line that is shown, bytes.
const MAX_LEN: usize = 1_024;

/// Shows it. A failure is no reason for anything else to fail.
pub(super) fn publish(record: &KillSwitchRecord) {
    let Some(path) = path() else { return };
    let text = format!("{record}; Ctrl-C at its client, or 'vpnd cleanup', ends it\n");
    let shown = fs::create_dir(DIRECTORY).or_else(|error| match Path::new(DIRECTORY).is_dir() {
        true => Ok(()),
        false => Err(error),
    });
    let shown = shown.map_err(anyhow::Error::from).and_then(|()| {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(DIRECTORY, fs::Permissions::from_mode(0o755))?;
        Ok(secret_file::write(&path, text.as_bytes(), PUBLIC_MODE, Existing::Replace)?)
    });
    if let Err(error) = shown {
        tracing::debug!(%error, "'vpnd status' does not show the kill switch to other users");
    }
}

/// It is off.
pub(super) fn withdraw() {
    if let Some(path) = path() {
        let _ = fs::remove_file(path);
    }
}

/// The state of this network namespace's kill switch; `None` if it is off.
pub(in super::super) fn read() -> Option<String> {
    let text = fs::read_to_string(path()?).ok()?;
    Some(text.lines().next()?.chars().take(MAX_LEN).collect())
}

fn path() -> Option<PathBuf> {
    let namespace = fs::metadata("/proc/thread-self/ns/net").ok()?;
    Some(Path::new(DIRECTORY).join(namespace.ino().to_string()))
}
