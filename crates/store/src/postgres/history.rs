//! The history that a server writes. It tells apart a primary that was left behind and the one that
//! took over from it.
//!
//! INVARIANT: all connections lead to servers of one history, that of the connection for changes;
//! after a gateway has worked on one, it goes back to none before it.

use std::path::{Path, PathBuf};

use tokio::sync::watch;
use vpnd_sys::secret_file::{self, Existing};

use super::trouble::Trouble;

/// In the state directory, the history that the gateway has worked on last.
const FILE_NAME: &str = "database.history";
const MAX_FILE: u64 = 64;

/// A server's history. Whatever is restored or takes over goes on with another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The cluster's number (`system_identifier`).
    pub system: u64,
    /// Grows with each standby that takes over, and each restored backup.
    pub timeline: u32,
}

impl History {
    pub(super) fn number(self) -> u64 {
        self.system.rotate_left(32) ^ u64::from(self.timeline)
    }

    fn was_left_behind(self, known: Self) -> bool {
        self.system == known.system && self.timeline < known.timeline
    }

    fn read(path: &Path) -> Option<Self> {
        let bytes = vpnd_sys::own_file::read(path, MAX_FILE).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (system, timeline) = text.trim().split_once(' ')?;
        Some(Self { system: system.parse().ok()?, timeline: timeline.parse().ok()? })
    }

    fn write(self, path: &Path) {
        let text = format!("{} {}\n", self.system, self.timeline);
        if let Err(error) = secret_file::write(path, text.as_bytes(), 0o600, Existing::Replace) {
            tracing::warn!(%error, path = %path.display(), "the history of the user database is not remembered");
        }
    }
}

/// The histories that the gateway has worked on.
pub(super) struct Histories {
    path: PathBuf,
    /// Whether it is remembered, as a gateway does.
    is_kept: bool,
    /// The history of the connection for changes.
    present: watch::Sender<Option<History>>,
}

impl Histories {
    pub(super) fn of_state_dir(state_dir: &Path, is_kept: bool) -> Self {
        Self { path: state_dir.join(FILE_NAME), is_kept, present: watch::Sender::new(None) }
    }

    pub(super) fn present(&self) -> watch::Receiver<Option<History>> {
        self.present.subscribe()
    }

    /// Refuses a server from which another one has taken over.
    pub(super) fn check(&self, found: History) -> Result<(), Trouble> {
        let known = *self.present.borrow();
        match known.or_else(|| History::read(&self.path)) {
            Some(known) if found.was_left_behind(known) => Err(Trouble::LeftBehind {
                found: found.timeline,
                known: known.timeline,
                file: self.path.display().to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// Changes are made on this one from now on.
    pub(super) fn go_on_with(&self, history: History) {
        if self.is_kept && History::read(&self.path) != Some(history) {
            history.write(&self.path);
        }
        self.present.send_replace(Some(history));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_goes_back_to_no_earlier_history() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = [1, 2].map(|timeline| History { system: 7, timeline });
        let gateway = Histories::of_state_dir(directory.path(), true);
        gateway.check(first).unwrap();
        gateway.go_on_with(second);
        for histories in [gateway, Histories::of_state_dir(directory.path(), true)] {
            assert!(matches!(histories.check(first), Err(Trouble::LeftBehind { found: 1, known: 2, .. })));
            histories.check(second).unwrap();
            // Another cluster: whose it is stands in it.
            histories.check(History { system: 8, timeline: 1 }).unwrap();
        }
        let command = Histories::of_state_dir(directory.path(), false);
        command.go_on_with(History { system: 7, timeline: 3 });
        Histories::of_state_dir(directory.path(), true).check(second).expect("a command remembers none");
    }
}
