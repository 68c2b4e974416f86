//! The undo journal: what this process changed on the machine, so that it can be taken back even
//! after kill -9.
//!
//! INVARIANT: a change is durable in the journal before it is applied. Whatever the moment of
//! death, the journal names all that may have been done; undoing what was not done is harmless (see
//! [`Change::undo`]).
//!
//! One file per running process, locked while it lives, in a directory that only the privileged
//! process writes ([`JournalDirectory`]). A journal is undone only if it lies there, belongs to
//! this user and names its process; and it is kept shorter than what is read. It has no secrets.
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use vpnd_sys::change::{Change, ChangeError, Undone};
use vpnd_sys::netlink::Netlink;

mod directory;
mod file;
mod kept;
pub mod kill_switch;
mod owner;
pub mod record;
mod shared;
pub mod tunnels;

pub use directory::JournalDirectory;
use directory::Opened;
use file::JournalFile;
pub use kept::take_back;
pub use owner::Owner;
use record::{Contents, Record};
use shared::{Need, Turn};

const EXTENSION: &str = "journal";
/// Ends the name of a file that is about to take a journal's place.
const UNFINISHED_SUFFIX: &str = "-new";
/// Ends the name of a journal that was undone as far as it could be read.
const DAMAGED_SUFFIX: &str = "-damaged";

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file of the journal failed; the change was not made.
    #[error(
        "the undo journal {path} can't be {step}: {source}; without it vpnd changes nothing on this machine (--journal-dir, or \
         'journal_dir' in [server] of a gateway, chooses another place)"
    )]
    Os { path: PathBuf, step: &'static str, source: io::Error },
    /// A user without privileges could have written in the directory.
    #[error(
        "{path} can't hold undo journals: {reason}; choose a directory that only the user of vpnd writes (--journal-dir, or \
         'journal_dir' in [server] of a gateway)"
    )]
    Untrusted {
        /// The directory, or one above it.
        path: PathBuf,
        reason: String,
    },
    /// More changes are in force than a journal holds.
    #[error("the undo journal {0} is full, so nothing more is changed on this machine")]
    Full(PathBuf),
    /// The change itself failed; what it left behind is undone.
    #[error("{change}: {source}")]
    Change {
        /// The change, for people.
        change: String,
        source: ChangeError,
    },
}

/// Names a change in its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChangeId(u64);

/// The journal of this process.
#[derive(Debug)]
pub struct Journal {
    file: JournalFile,
    header: String,
    next: u64,
    active: Vec<Active>,
    /// Changes that this process needs and did not make alone.
    needs: Vec<Need>,
}

/// A change that may be in force.
#[derive(Debug)]
struct Active {
    id: u64,
    change: Change,
    line: String,
}

/// Result of undoing a whole journal.
#[derive(Debug, Default)]
pub struct UndoReport {
    /// Changes taken back.
    pub restored: usize,
    /// Changes that were gone already.
    pub were_gone: usize,
    /// Changes that someone else has changed since; they stay.
    pub not_ours: Vec<String>,
    /// Changes that could not be taken back; the journal is kept for another attempt.
    pub failed: Vec<JournalError>,
}

impl UndoReport {
    /// Nothing is left to do.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty()
    }

    /// Nothing was there.
    fn is_empty(&self) -> bool {
        self.is_complete() && self.restored == 0 && self.not_ours.is_empty()
    }
}

/// A journal of an earlier process, and the result of its recovery.
#[derive(Debug)]
pub struct Recovered {
    pub path: PathBuf,
    pub outcome: RecoveryOutcome,
}

/// Result of the recovery of one journal.
#[derive(Debug)]
pub enum RecoveryOutcome {
    /// Its process is alive; nothing was touched.
    StillRunning,
    /// It was written in another network namespace; nothing was touched. Run `vpnd cleanup` in that
    /// one.
    OtherNamespace,
    /// Its changes stay in force until another process takes them over or back; nothing was
    /// touched.
    Kept,
    /// It is not what the privileged process writes; nothing was touched. Why, for people.
    Refused(String),
    /// Its changes were undone.
    Undone {
        report: UndoReport,
        /// Lines that could not be read. The file is then kept beside, with the ending
        /// `journal-damaged`.
        damaged_lines: usize,
    },
}

impl Recovered {
    /// Nothing of it is left to do.
    pub fn is_complete(&self) -> bool {
        match &self.outcome {
            RecoveryOutcome::StillRunning | RecoveryOutcome::OtherNamespace | RecoveryOutcome::Kept => true,
            RecoveryOutcome::Refused(_) => false,
            RecoveryOutcome::Undone { report, damaged_lines } => report.is_complete() && *damaged_lines == 0,
        }
    }
}

impl fmt::Display for Recovered {
    /// For people, with a line for each change that was not taken back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        let (report, damaged_lines) = match &self.outcome {
            RecoveryOutcome::StillRunning => return f.write_str("its program is running; left alone"),
            RecoveryOutcome::OtherNamespace => {
                return f.write_str("of another network namespace; run `vpnd cleanup` in that one");
            }
            RecoveryOutcome::Kept => {
                return f
                    .write_str("of a gateway, for its next start; `vpnd server --teardown` takes it back");
            }
            RecoveryOutcome::Refused(reason) => {
                return write!(f, "not undone: {reason}; look who has written it, then remove it");
            }
            RecoveryOutcome::Undone { report, damaged_lines } => (report, damaged_lines),
        };
        write!(f, "{} changes undone, {} were gone", report.restored, report.were_gone)?;
        for change in &report.not_ours {
            write!(f, "\n  left as it is, changed by someone else since: {change}")?;
        }
        for error in &report.failed {
            write!(f, "\n  not undone: {error}")?;
        }
        match damaged_lines {
            0 => Ok(()),
            lines => write!(f, "\n  {lines} lines could not be read; the file is kept next to it"),
        }
    }
}

impl Journal {
    /// Starts the journal of this process.
    ///
    /// # Errors
    /// [`JournalError::Os`].
    pub fn create(directory: &JournalDirectory) -> Result<Self, JournalError> {
        Self::create_for(directory, None)
    }

    fn create_for(directory: &JournalDirectory, keeper: Option<String>) -> Result<Self, JournalError> {
        let failed = |step| move |source| os_error(directory.path(), step, source);
        let owner = Owner { keeper, ..Owner::this_process().map_err(failed("labelled"))? };
        let header = Record::Start(owner).to_line();
        let file = JournalFile::create(directory, &header).map_err(failed("created"))?;
        Ok(Self { file, header, next: 0, active: Vec::new(), needs: Vec::new() })
    }

    /// Writes the change down, then makes it.
    ///
    /// # Errors
    /// [`JournalError::Os`], [`JournalError::Full`]: nothing was changed. [`JournalError::Change`]:
    /// what the failed change may have left is undone, unless what it wanted to add was there
    /// before.
    pub async fn apply(&mut self, netlink: &Netlink, change: Change) -> Result<ChangeId, JournalError> {
        let id = self.note(&change)?;
        let Err(source) = change.apply(netlink).await else { return Ok(ChangeId(id)) };
        if source.is_already_there() || change.undo(netlink).await.is_ok() {
            self.done(id)?;
        }
        Err(JournalError::Change { change: change.to_string(), source })
    }

    /// Writes the change down, then makes it in place of `old`, for what the kernel replaces as a
    /// whole: undoing either takes back both. If it fails, `old` stays in force.
    ///
    /// # Errors
    /// Like [`Journal::apply`].
    pub async fn replace(
        &mut self,
        netlink: &Netlink,
        old: ChangeId,
        change: Change,
    ) -> Result<(), JournalError> {
        let line = Record::Change { id: old.0, change: change.clone() }.to_line();
        self.write(&line)?;
        let made = change.apply(netlink).await;
        let Some(active) = self.active.iter_mut().find(|active| active.id == old.0) else { return Ok(()) };
        if let Err(source) = made {
            let before = active.line.clone();
            self.write(&before)?;
            return Err(JournalError::Change { change: change.to_string(), source });
        }
        (active.change, active.line) = (change, line);
        Ok(())
    }

    /// Writes the change down, then makes it where `old` is, for what the kernel keeps one of at a
    /// place. Both are in the journal until it is made. If it fails, `old` stays in force.
    ///
    /// # Errors
    /// Like [`Journal::apply`].
    pub async fn supersede(
        &mut self,
        netlink: &Netlink,
        old: ChangeId,
        change: Change,
    ) -> Result<ChangeId, JournalError> {
        let id = self.note(&change)?;
        if let Err(source) = change.replace(netlink).await {
            self.done(id)?;
            return Err(JournalError::Change { change: change.to_string(), source });
        }
        self.done(old.0)?;
        Ok(ChangeId(id))
    }

    /// Makes a change again that should be in force, for another program may have taken it back; a
    /// route that it altered is replaced.
    ///
    /// # Errors
    /// [`JournalError::Change`].
    pub async fn renew(&self, netlink: &Netlink, id: ChangeId) -> Result<(), JournalError> {
        let Some(active) = self.active.iter().find(|active| active.id == id.0) else { return Ok(()) };
        match active.change.replace(netlink).await {
            Err(source) if !source.is_already_there() => {
                Err(JournalError::Change { change: active.change.to_string(), source })
            }
            _ => Ok(()),
        }
    }

    /// Takes one change back; does nothing if that has been done.
    ///
    /// # Errors
    /// [`JournalError`]; the change stays in the journal.
    pub async fn undo(&mut self, netlink: &Netlink, id: ChangeId) -> Result<Undone, JournalError> {
        let Some(active) = self.active.iter().find(|active| active.id == id.0) else {
            return Ok(Undone::WasGone);
        };
        let change = active.change.clone();
        self.end_need(id);
        let undone = undo(&change, self.file.directory(), netlink).await?;
        self.done(id.0)?;
        Ok(undone)
    }

    /// Takes all changes back, the last first, and removes the journal if that succeeds.
    pub async fn undo_all(self, netlink: &Netlink) -> UndoReport {
        drop(self.needs);
        let (directory, name, _lock) = self.file.into_parts();
        let report = undo_all(self.active.iter().map(|active| &active.change), &directory, netlink).await;
        finish(report, &directory, &name, 0)
    }

    /// Notes that a change may be in force from now on; with its number.
    fn note(&mut self, change: &Change) -> Result<u64, JournalError> {
        let id = self.next;
        let line = Record::Change { id, change: change.clone() }.to_line();
        let in_force: usize = self.active.iter().map(|active| active.line.len()).sum();
        if (in_force + line.len()) as u64 > file::MAX_IN_FORCE {
            return Err(JournalError::Full(self.file.path()));
        }
        self.write(&line)?;
        self.next += 1;
        // Before it is made: if the future of that is dropped half-way, the change is still undone
        // later.
        self.active.push(Active { id, change: change.clone(), line });
        Ok(id)
    }

    /// Notes that a change is not in force.
    fn done(&mut self, id: u64) -> Result<(), JournalError> {
        self.write(&Record::Done { id }.to_line())?;
        self.active.retain(|active| active.id != id);
        Ok(())
    }

    /// Appends a line; before that, if the journal has become long, leaves out of it what is done
    /// with.
    fn write(&mut self, line: &str) -> Result<(), JournalError> {
        if self.file.is_due(line.len()) {
            let in_force = self.active.iter().map(|active| active.line.as_str());
            let text: String = std::iter::once(self.header.as_str()).chain(in_force).collect();
            self.file.rewrite(&text).map_err(|source| os_error(&self.file.path(), "rewritten", source))?;
        }
        self.file.append(line).map_err(|source| os_error(&self.file.path(), "written", source))
    }
}

/// Undoes the journals that processes left behind in `directory`, for this network namespace.
///
/// # Errors
/// [`JournalError::Os`] when the directory can't be read.
pub async fn recover(
    directory: &JournalDirectory,
    netlink: &Netlink,
) -> Result<Vec<Recovered>, JournalError> {
    recover_of(directory, netlink, kept::Due::Unkept).await
}

/// Recovers the journals that are due.
async fn recover_of(
    directory: &JournalDirectory,
    netlink: &Netlink,
    due: kept::Due<'_>,
) -> Result<Vec<Recovered>, JournalError> {
    let failed = |step| move |source| os_error(directory.path(), step, source);
    let this = Owner::this_process().map_err(failed("examined"))?;
    let mut recovered = Vec::new();
    for name in directory.names().map_err(failed("listed"))? {
        let is_journal = Path::new(&name).extension().is_some_and(|extension| extension == EXTENSION);
        if !is_journal && !name.ends_with(&format!(".{EXTENSION}{UNFINISHED_SUFFIX}")) {
            continue;
        }
        let outcome = match directory.open_abandoned(&name) {
            Ok(Opened::Gone) => continue,
            Ok(Opened::Abandoned(..)) if !is_journal => {
                // All that is in it is in the journal whose place it did not take any more.
                let _ = directory.remove(&name);
                continue;
            }
            Ok(_) if !is_journal => continue,
            Ok(Opened::InUse) => RecoveryOutcome::StillRunning,
            Ok(Opened::Untrusted(reason)) => RecoveryOutcome::Refused(reason),
            Ok(Opened::Abandoned(_lock, bytes)) => {
                recover_one(directory, &name, record::parse(&bytes), &this, due, netlink).await
            }
            Err(error) => RecoveryOutcome::Refused(format!("it can't be read: {error}")),
        };
        recovered.push(Recovered { path: directory.path_of(&name), outcome });
    }
    Ok(recovered)
}

/// Does the same before a daemon changes anything itself, and logs it.
///
/// # Errors
/// [`JournalError::Os`] when the directory can't be read. A journal that can't be undone is no
/// reason not to start.
pub async fn undo_what_was_left(directory: &JournalDirectory, netlink: &Netlink) -> Result<(), JournalError> {
    for recovered in recover(directory, netlink).await? {
        match &recovered.outcome {
            RecoveryOutcome::Kept | RecoveryOutcome::StillRunning | RecoveryOutcome::OtherNamespace => {
                tracing::debug!(%recovered, "left the journal of another process alone");
            }
            _ if !recovered.is_complete() => {
                tracing::error!(%recovered, "an earlier run left something behind");
            }
            RecoveryOutcome::Undone { report, .. } if report.is_empty() => {
                tracing::debug!(%recovered, "removed a journal of which nothing was in force");
            }
            _ => tracing::info!(%recovered, "undid what an earlier run left behind"),
        }
    }
    Ok(())
}

async fn recover_one(
    directory: &JournalDirectory,
    name: &str,
    contents: Contents,
    this: &Owner,
    due: kept::Due<'_>,
    netlink: &Netlink,
) -> RecoveryOutcome {
    let mut changes = contents.changes;
    match &contents.owner {
        Some(owner) if owner.has_lost_its_network(this) => changes.retain(Change::survives_reboot),
        Some(owner) if !owner.shares_network(this) => return RecoveryOutcome::OtherNamespace,
        Some(owner) if !due.includes(owner.keeper.as_deref()) => return RecoveryOutcome::Kept,
        Some(_) => {}
        // Its process died before it could change anything.
        None if changes.is_empty() && contents.damaged_lines == 0 => {}
        None => return RecoveryOutcome::Refused("it does not begin with its process".to_owned()),
    }
    let report = undo_all(changes.iter(), directory, netlink).await;
    let damaged_lines = contents.damaged_lines;
    RecoveryOutcome::Undone { report: finish(report, directory, name, damaged_lines), damaged_lines }
}

/// Undoes changes in reverse order; one that fails does not keep the others.
async fn undo_all<'a>(
    changes: impl DoubleEndedIterator<Item = &'a Change>,
    directory: &JournalDirectory,
    netlink: &Netlink,
) -> UndoReport {
    let mut report = UndoReport::default();
    for change in changes.rev() {
        match undo(change, directory, netlink).await {
            Ok(Undone::Restored) => report.restored += 1,
            Ok(Undone::WasGone) => report.were_gone += 1,
            Ok(Undone::NotOurs) => report.not_ours.push(change.to_string()),
            Err(error) => report.failed.push(error),
        }
    }
    report
}

/// Takes a change back, unless another process needs it, which has it in its own journal.
async fn undo(
    change: &Change,
    directory: &JournalDirectory,
    netlink: &Netlink,
) -> Result<Undone, JournalError> {
    let failed = |step| move |source| os_error(directory.path(), step, source);
    let turn = change.is_shared().then(|| Turn::wait(directory)).transpose().map_err(failed("locked"))?;
    if let Some(turn) = &turn
        && turn.is_needed().map_err(failed("listed"))?
    {
        return Ok(Undone::WasGone);
    }
    let undone = change.undo(netlink).await;
    let undone =
        undone.map_err(|source| JournalError::Change { change: format!("undoing {change}"), source })?;
    if let Some(turn) = &turn {
        turn.forget().map_err(failed("cleared"))?;
    }
    Ok(undone)
}

/// Removes a journal that has nothing left to undo, or puts a damaged one aside for people to look
/// at.
fn finish(
    mut report: UndoReport,
    directory: &JournalDirectory,
    name: &str,
    damaged_lines: usize,
) -> UndoReport {
    if !report.is_complete() {
        return report;
    }
    let done = if damaged_lines == 0 {
        directory.remove(name)
    } else {
        directory.rename(name, &format!("{name}{DAMAGED_SUFFIX}"))
    };
    if let Err(source) = done {
        report.failed.push(os_error(&directory.path_of(name), "removed", source));
    }
    report
}

fn os_error(path: &Path, step: &'static str, source: io::Error) -> JournalError {
    JournalError::Os { path: path.to_owned(), step, source }
}

#[cfg(test)]
mod tests;
