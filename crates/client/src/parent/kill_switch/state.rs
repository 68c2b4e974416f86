//! The kill switch's state where every user of the machine can read it: a line of text in `/run`,
//! for `vpnd status`; and that a person has ended it where the record can't be removed. What counts
//! otherwise are the record and the rules, which others can't read.

use std::fs;
use std::io;
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
    let how = if record.user == 0 { "Ctrl-C at its client, or" } else { "'vpnd down' of its user, or" };
    let text = format!("{record}; {how} 'vpnd cleanup', ends it\n");
    let shown = make_directory().map_err(anyhow::Error::from);
    let shown =
        shown.and_then(|()| Ok(secret_file::write(&path, text.as_bytes(), PUBLIC_MODE, Existing::Replace)?));
    if let Err(error) = shown {
        tracing::debug!(%error, "'vpnd status' does not show the kill switch to other users");
    }
    // A new one: what was said of the one before does not count.
    let _ = fs::remove_file(mark_of(&path));
}

/// It is off.
pub(super) fn withdraw() {
    if let Some(path) = path() {
        let _ = fs::remove_file(path);
    }
}

/// A person has ended it, though its record can't be removed.
pub(super) fn mark_ended() {
    let Some(mark) = path().map(|path| mark_of(&path)) else { return };
    let marked = make_directory().and_then(|()| fs::write(mark, ""));
    if let Err(error) = marked {
        tracing::error!(%error, "the kill switch can't be marked as ended: stop vpnd-kill-switch, which puts it back");
    }
}

/// Whether a person has ended the one that is written down.
pub(super) fn is_ended() -> bool {
    path().is_some_and(|path| mark_of(&path).exists())
}

fn mark_of(path: &Path) -> PathBuf {
    path.with_extension("ended")
}

fn make_directory() -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    match fs::create_dir(DIRECTORY) {
        Err(_) if Path::new(DIRECTORY).is_dir() => {}
        made => made?,
    }
    fs::set_permissions(DIRECTORY, fs::Permissions::from_mode(0o755))
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
