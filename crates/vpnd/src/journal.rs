//! The undo journal: what this process changed on the machine, so that it can be taken back even after kill -9.
//!
//! INVARIANT: a change is durable in the journal before it is applied. Whatever the moment of death, the journal
//! names all that may have been done; undoing what was not done is harmless (see [`Change::undo`]).
//!
//! One file per running process, in a directory that only root may enter. The file names its process by id,
//! start time and boot, so a reused process id is not mistaken for a living owner. Secrets never enter it: it
//! holds [`Change`]s only.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::sys::change::{Change, ChangeError, Undone};
use crate::sys::netlink::Netlink;

mod owner;
pub(crate) mod record;

pub use owner::Owner;
use record::{Contents, Record};

const EXTENSION: &str = "journal";
const UNFINISHED_EXTENSION: &str = "journal-new";
const DAMAGED_EXTENSION: &str = "journal-damaged";

/// The longest journal that is read, bytes: far more than the routes of any client need.
const MAX_LEN: u64 = 16 << 20;

/// Why the journal could not do its part.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file of the journal failed; the change was not made.
    #[error(
        "the undo journal {path} can't be {step}: {source}; without it vpnd changes nothing on this machine"
    )]
    Os {
        /// The file or directory.
        path: PathBuf,
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The change itself failed; what it left behind is undone.
    #[error("{change}: {source}")]
    Change {
        /// The change, for people.
        change: String,
        /// Why.
        source: ChangeError,
    },
}

/// Names a change in its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChangeId(u64);

/// The journal of this process.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes of whole records.
    len: u64,
    next: u64,
    active: Vec<(u64, Change)>,
}

/// What undoing a whole journal came to.
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
}

/// What became of one journal of an earlier process.
#[derive(Debug)]
pub struct Recovered {
    /// Its file.
    pub path: PathBuf,
    /// What was done with it.
    pub outcome: RecoveryOutcome,
}

/// What was done with a journal of an earlier process.
#[derive(Debug)]
pub enum RecoveryOutcome {
    /// Its process is alive; nothing was touched.
    StillRunning,
    /// It was written in another network namespace; nothing was touched. Run `vpnd cleanup` in that one.
    OtherNamespace,
    /// Its changes were undone.
    Undone {
        /// How that went.
        report: UndoReport,
        /// Lines that could not be read. The file is then kept beside, with the ending `journal-damaged`.
        damaged_lines: usize,
    },
}

impl Recovered {
    /// Nothing of it is left to do.
    pub fn is_complete(&self) -> bool {
        match &self.outcome {
            RecoveryOutcome::StillRunning | RecoveryOutcome::OtherNamespace => true,
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
            lines => write!(f, "\n  {lines} lines could not be read; the file is kept beside it"),
        }
    }
}

impl Journal {
    /// Starts the journal of this process in `directory`, which is made if need be.
    ///
    /// # Errors
    /// [`JournalError::Os`].
    pub fn create(directory: &Path) -> Result<Self, JournalError> {
        let failed = |step| move |source| os_error(directory, step, source);
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed("created"))?;
        let owner = Owner::this_process().map_err(failed("labelled"))?;
        let path = directory.join(format!("{}.{EXTENSION}", owner.file_stem()));
        let unfinished = path.with_extension(UNFINISHED_EXTENSION);
        let header = Record::Start(owner).to_line();
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&unfinished)
            .map_err(failed("created"))?;
        // Under its final name the journal has its label from the first moment on.
        file.write_all(header.as_bytes()).map_err(failed("written"))?;
        file.sync_all().map_err(failed("made durable"))?;
        fs::rename(&unfinished, &path).map_err(failed("named"))?;
        File::open(directory).and_then(|dir| dir.sync_all()).map_err(failed("made durable"))?;
        Ok(Self { path, file, len: header.len() as u64, next: 0, active: Vec::new() })
    }

    /// Writes the change down, then makes it.
    ///
    /// # Errors
    /// [`JournalError::Os`]: nothing was changed. [`JournalError::Change`]: what the failed change may have left
    /// is undone, unless what it wanted to add was there before.
    pub async fn apply(&mut self, netlink: &Netlink, change: Change) -> Result<ChangeId, JournalError> {
        let id = self.next;
        self.append(&Record::Change { id, change: change.clone() })?;
        self.next += 1;
        // Before it is made: whoever drops this future half-way still has the change undone later.
        self.active.push((id, change.clone()));
        let Err(source) = change.apply(netlink).await else { return Ok(ChangeId(id)) };
        let was_there = matches!(&source, ChangeError::Netlink(error) if error.is_already_there());
        if was_there || change.undo(netlink).await.is_ok() {
            self.append(&Record::Done { id })?;
            self.active.retain(|(other, _)| *other != id);
        }
        Err(JournalError::Change { change: change.to_string(), source })
    }

    /// Takes one change back; does nothing if that has been done.
    ///
    /// # Errors
    /// [`JournalError`]; the change stays in the journal.
    pub async fn undo(&mut self, netlink: &Netlink, id: ChangeId) -> Result<Undone, JournalError> {
        let Some(position) = self.active.iter().position(|(active, _)| *active == id.0) else {
            return Ok(Undone::WasGone);
        };
        let undone = undo(&self.active[position].1, netlink).await?;
        self.append(&Record::Done { id: id.0 })?;
        self.active.remove(position);
        Ok(undone)
    }

    /// Takes all changes back, the last first, and removes the journal if that succeeds.
    pub async fn undo_all(self, netlink: &Netlink) -> UndoReport {
        let report = undo_all(self.active.iter().map(|(_, change)| change), netlink).await;
        finish(report, &self.path, 0)
    }

    /// Appends a record and waits until it is durable. A record that could not be written in full is cut off
    /// again, so that the next one starts on a line of its own.
    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let line = record.to_line();
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.len += line.len() as u64;
                Ok(())
            }
            Err(source) => {
                let position = io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.len));
                let _ = position.and_then(|_| self.file.set_len(self.len));
                Err(os_error(&self.path, "written", source))
            }
        }
    }
}

/// Undoes the journals that processes left behind, in `directory` and for the current network namespace.
///
/// # Errors
/// [`JournalError::Os`] when the directory or a journal can't be read.
pub async fn recover(directory: &Path, netlink: &Netlink) -> Result<Vec<Recovered>, JournalError> {
    let this = Owner::this_process().map_err(|source| os_error(directory, "examined", source))?;
    let mut recovered = Vec::new();
    for path in journals(directory)? {
        if path.extension().is_some_and(|extension| extension == UNFINISHED_EXTENSION) {
            // Its process had not changed anything yet. If it is alive, it is just about to rename it.
            if !Owner::stem_is_alive(&path) {
                let _ = fs::remove_file(&path);
            }
            continue;
        }
        let contents = read(&path)?;
        let outcome = recover_one(&path, contents, &this, netlink).await;
        recovered.push(Recovered { path, outcome });
    }
    Ok(recovered)
}

async fn recover_one(path: &Path, contents: Contents, this: &Owner, netlink: &Netlink) -> RecoveryOutcome {
    let mut changes = contents.changes;
    match &contents.owner {
        Some(owner) if owner.is_alive() => return RecoveryOutcome::StillRunning,
        Some(owner) if owner.boot != this.boot => changes.retain(Change::survives_reboot),
        Some(owner) if owner.namespace != this.namespace => return RecoveryOutcome::OtherNamespace,
        // Without its label the process is known by the name of the file only.
        None if Owner::stem_is_alive(path) => return RecoveryOutcome::StillRunning,
        Some(_) | None => {}
    }
    let report = undo_all(changes.iter(), netlink).await;
    let damaged_lines = contents.damaged_lines;
    RecoveryOutcome::Undone { report: finish(report, path, damaged_lines), damaged_lines }
}

/// Undoes changes in reverse order; one that fails does not keep the others.
async fn undo_all<'a>(changes: impl DoubleEndedIterator<Item = &'a Change>, netlink: &Netlink) -> UndoReport {
    let mut report = UndoReport::default();
    for change in changes.rev() {
        match undo(change, netlink).await {
            Ok(Undone::Restored) => report.restored += 1,
            Ok(Undone::WasGone) => report.were_gone += 1,
            Ok(Undone::NotOurs) => report.not_ours.push(change.to_string()),
            Err(error) => report.failed.push(error),
        }
    }
    report
}

async fn undo(change: &Change, netlink: &Netlink) -> Result<Undone, JournalError> {
    let undone = change.undo(netlink).await;
    undone.map_err(|source| JournalError::Change { change: format!("undoing {change}"), source })
}

/// Removes a journal that has nothing left to undo, or puts a damaged one aside for people to look at.
fn finish(mut report: UndoReport, path: &Path, damaged_lines: usize) -> UndoReport {
    if !report.is_complete() {
        return report;
    }
    let done = if damaged_lines == 0 {
        fs::remove_file(path)
    } else {
        fs::rename(path, path.with_extension(DAMAGED_EXTENSION))
    };
    if let Err(source) = done {
        report.failed.push(os_error(path, "removed", source));
    }
    report
}

/// The journals in a directory, oldest process id first; none if there is no directory.
fn journals(directory: &Path) -> Result<Vec<PathBuf>, JournalError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|source| os_error(directory, "listed", source))?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| os_error(directory, "listed", source))?.path();
        if path.extension().is_some_and(|e| e == EXTENSION || e == UNFINISHED_EXTENSION) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Contents, JournalError> {
    let failed = |source| os_error(path, "read", source);
    if fs::metadata(path).map_err(failed)?.len() > MAX_LEN {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, "it is too long")));
    }
    Ok(record::parse(&fs::read(path).map_err(failed)?))
}

fn os_error(path: &Path, step: &'static str, source: io::Error) -> JournalError {
    JournalError::Os { path: path.to_owned(), step, source }
}

#[cfg(test)]
mod tests;
