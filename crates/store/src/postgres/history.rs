//! The history that a server writes. It tells apart a primary that was left behind and the one that
//! took over from it.
//!
//! A server may also have less than it had acknowledged: a standby took over that lacked the last
//! changes, or a backup was restored. A gateway notices by the mark of the last change that it has
//! made.
//!
//! INVARIANT: all connections lead to servers of one history, that of the connection for changes;
//! after a gateway has worked on one, it goes back to none before it. In a fleet no address is
//! leased after a loss until all gateways have had time to end the sessions that the database
//! lacks.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use vpnd_sys::secret_file::{self, Existing};

use super::trouble::Trouble;

/// In the state directory, the history that the gateway has worked on last.
const FILE_NAME: &str = "database.history";
const MAX_FILE: u64 = 160;

/// Time for the gateways of a fleet to connect to a server that took over or was restored, and to
/// end the sessions that it lacks.
pub(super) const SETTLING: Duration = Duration::from_secs(10);
/// The last change is remembered beyond the end of the process this often.
const KEEP_INTERVAL: Duration = Duration::from_secs(30);

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
}

/// A change, by the mark that it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) mark: [u8; 16],
    /// Grows with each change, over all gateways.
    pub(super) number: u64,
    /// The latest generation of a session before it.
    pub(super) generation: u64,
}

/// The file's content: a history, and the last change in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remembered {
    history: History,
    last: Option<Mark>,
}

impl Remembered {
    fn read(path: &Path) -> Option<Self> {
        let bytes = vpnd_sys::own_file::read(path, MAX_FILE).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let fields: Vec<&str> = text.split_whitespace().collect();
        let (history, last) = fields.split_at_checked(2)?;
        let history = History { system: history[0].parse().ok()?, timeline: history[1].parse().ok()? };
        let last = match last {
            [number, generation, mark] => Some(Mark {
                mark: u128::from_str_radix(mark, 16).ok()?.to_be_bytes(),
                number: number.parse().ok()?,
                generation: generation.parse().ok()?,
            }),
            _ => None,
        };
        Some(Self { history, last })
    }

    fn write(self, path: &Path) {
        let History { system, timeline } = self.history;
        let last = self.last.map(|Mark { mark, number, generation }| {
            format!(" {number} {generation} {:x}", u128::from_be_bytes(mark))
        });
        let text = format!("{system} {timeline}{}\n", last.unwrap_or_default());
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
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last change of this gateway that was acknowledged.
    last: Option<Mark>,
    kept: Option<Instant>,
    /// How often changes were lost.
    losses: u32,
    /// When all gateways have ended what the present server lacks.
    settled: Option<Instant>,
}

impl Histories {
    pub(super) fn of_state_dir(state_dir: &Path, is_kept: bool) -> Self {
        let (path, present) = (state_dir.join(FILE_NAME), watch::Sender::new(None));
        let last = if is_kept { Remembered::read(&path).and_then(|known| known.last) } else { None };
        Self { path, is_kept, present, state: Mutex::new(State { last, ..State::default() }) }
    }

    pub(super) fn present(&self) -> watch::Receiver<Option<History>> {
        self.present.subscribe()
    }

    /// Differs after each loss and on each other server.
    pub(super) fn number(&self) -> u64 {
        let history = self.present.borrow().unwrap_or_default();
        history.number() ^ (u64::from(self.state.lock().losses) << 32)
    }

    fn known(&self) -> Option<History> {
        let present = *self.present.borrow();
        present.or_else(|| Remembered::read(&self.path).map(|known| known.history))
    }

    /// Refuses a server from which another one has taken over.
    pub(super) fn check(&self, found: History) -> Result<(), Trouble> {
        match self.known() {
            Some(known) if found.was_left_behind(known) => Err(Trouble::LeftBehind {
                found: found.timeline,
                known: known.timeline,
                file: self.path.display().to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// A change of which the server has said that it is committed.
    pub(super) fn acknowledged(&self, last: Mark, now: Instant) {
        let mut state = self.state.lock();
        state.last = Some(last);
        let is_due = state.kept.is_none_or(|kept| now.duration_since(kept) >= KEEP_INTERVAL);
        if self.is_kept
            && is_due
            && let Some(history) = *self.present.borrow()
        {
            state.kept = Some(now);
            Remembered { history, last: Some(last) }.write(&self.path);
        }
    }

    /// The last change that this gateway knows to be made.
    pub(super) fn last(&self) -> Option<Mark> {
        self.state.lock().last
    }

    /// Changes are made on this one from now on, which lacks the last known change if it `has_lost`
    /// some.
    pub(super) fn go_on_with(&self, history: History, has_lost: bool, now: Instant) {
        let is_other = self.known().is_some_and(|known| known != history);
        let mut state = self.state.lock();
        if has_lost {
            (state.last, state.losses) = (None, state.losses.wrapping_add(1));
        }
        if is_other || has_lost {
            state.settled = Some(now + SETTLING);
        }
        let remembered = Remembered { history, last: state.last };
        if self.is_kept && Remembered::read(&self.path) != Some(remembered) {
            remembered.write(&self.path);
        }
        self.present.send_replace(Some(history));
    }

    /// Whether all gateways have ended the sessions that the present server lacks.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        self.state.lock().settled.is_none_or(|settled| now >= settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_returns_to_no_earlier_database_history() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = [1, 2].map(|timeline| History { system: 7, timeline });
        let gateway = Histories::of_state_dir(directory.path(), true);
        let now = Instant::now();
        gateway.check(first).unwrap();
        gateway.go_on_with(second, false, now);
        for histories in [gateway, Histories::of_state_dir(directory.path(), true)] {
            assert!(matches!(histories.check(first), Err(Trouble::LeftBehind { found: 1, known: 2, .. })));
            histories.check(second).unwrap();
            // Another cluster: whose it is stands in it.
            histories.check(History { system: 8, timeline: 1 }).unwrap();
        }
        let command = Histories::of_state_dir(directory.path(), false);
        command.go_on_with(History { system: 7, timeline: 3 }, false, now);
        Histories::of_state_dir(directory.path(), true).check(second).expect("a command remembers none");
    }

    #[test]
    fn the_last_change_is_remembered_and_a_loss_shows_for_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let (history, now) = (History { system: 7, timeline: 1 }, Instant::now());
        let last = Mark { mark: [171; 16], number: 12, generation: 3 };
        let gateway = Histories::of_state_dir(directory.path(), true);
        gateway.go_on_with(history, false, now);
        gateway.acknowledged(last, now);
        gateway.acknowledged(Mark { number: 13, ..last }, now);
        assert_eq!(gateway.last().unwrap().number, 13);
        let next = Histories::of_state_dir(directory.path(), true);
        assert_eq!(next.last(), Some(last), "not each change is written down");
        next.go_on_with(history, false, now);
        let number = next.number();
        assert!(next.is_settled(now));
        next.go_on_with(history, true, now);
        assert!(!next.is_settled(now) && next.is_settled(now + SETTLING));
        assert!(next.last().is_none() && next.number() != number);
        next.go_on_with(History { timeline: 2, ..history }, false, now + SETTLING);
        assert!(!next.is_settled(now + SETTLING), "another server may lack what others have made");
        let number = next.number();
        next.go_on_with(History { timeline: 2, ..history }, false, now + SETTLING);
        assert_eq!(next.number(), number);
    }
}
