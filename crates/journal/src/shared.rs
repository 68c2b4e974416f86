//! A change that several clients of a machine need at the same time: it is in the journal of each,
//! and is taken back with the last, unless another program needs it by then.
//!
//! Each process that needs it holds a locked file in the directory of the journals. INVARIANT: such
//! a file of this boot and network namespace exists, locked or not, as long as vpnd has made the
//! change and neither taken it back nor left it to another program; so a setting of another program
//! is never taken for vpnd's. A process that looks at these files holds the lock of all of them
//! ([`Turn`]).

use std::io;

use super::{ChangeId, Journal, JournalDirectory, JournalError, Owner, os_error};
use vpnd_sys::change::Change;
use vpnd_sys::lock::LockedFile;
use vpnd_sys::netlink::Netlink;

/// Begins the names of the files; boot, network namespace and journal follow.
const PREFIX: &str = "src-valid-mark-";
/// The file whose lock a process holds while it looks at the others.
const TURN: &str = "src-valid-mark";

/// This process's need of a change; ends when dropped.
#[derive(Debug)]
pub(super) struct Need {
    id: ChangeId,
    _file: LockedFile,
}

/// The right to look at the needs of all processes, and to change what they are about.
pub(super) struct Turn<'d> {
    directory: &'d JournalDirectory,
    /// Begins the names of the files of this boot and network namespace.
    prefix: String,
    _lock: LockedFile,
}

impl<'d> Turn<'d> {
    /// Waits for the others.
    pub(super) fn wait(directory: &'d JournalDirectory) -> io::Result<Self> {
        let this = Owner::this_process()?;
        let prefix = format!("{PREFIX}{}-{}-", this.boot, this.namespace.1);
        let turn = Self { directory, prefix, _lock: directory.wait_for(TURN)? };
        for name in directory.names()? {
            // A restart of the machine takes the change back.
            if name.starts_with(PREFIX) && !name.starts_with(&format!("{PREFIX}{}-", this.boot)) {
                directory.remove(&name)?;
            }
        }
        Ok(turn)
    }

    /// The files of processes, those that live and those that were killed.
    fn names(&self) -> io::Result<Vec<String>> {
        let names = self.directory.names()?.into_iter();
        Ok(names.filter(|name| name.starts_with(&self.prefix)).collect())
    }

    /// Whether a living process needs the change.
    pub(super) fn is_needed(&self) -> io::Result<bool> {
        let mut needed = false;
        for name in self.names()? {
            needed |= self.directory.take(&name)?.is_none();
        }
        Ok(needed)
    }

    /// Notes that vpnd has taken the change back, or left it to another program.
    pub(super) fn forget(&self) -> io::Result<()> {
        self.names()?.iter().try_for_each(|name| self.directory.remove(name))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // While it is locked: a process that waits for it makes another.
        let _ = self.directory.remove(TURN);
    }
}

impl Journal {
    /// Makes a change that other processes of this machine may need, too: the last one to end takes
    /// it back. `None` if it is in force and vpnd has not made it, so that it stays.
    ///
    /// # Errors
    /// Like [`Journal::apply`].
    pub async fn apply_shared(
        &mut self,
        netlink: &Netlink,
        change: Change,
    ) -> Result<Option<ChangeId>, JournalError> {
        let path = self.file.path();
        let path = path.as_path();
        let failed = |step| move |source| os_error(path, step, source);
        let directory = self.file.directory().try_clone().map_err(failed("opened"))?;
        let turn = Turn::wait(&directory).map_err(failed("locked"))?;
        let change = match change.is_in_force() {
            true if turn.names().map_err(failed("listed"))?.is_empty() => return Ok(None),
            // Other programs that have rules now may have found it in force.
            true => change,
            false => {
                let made = change.clone().beside_others(netlink).await;
                made.map_err(|source| JournalError::Change { change: change.to_string(), source })?
            }
        };
        let name = format!("{}{}", turn.prefix, self.file.stem());
        let file = directory.take(&name).map_err(failed("locked"))?;
        let file = file.ok_or_else(|| failed("locked")(io::ErrorKind::AlreadyExists.into()))?;
        let id = match self.apply(netlink, change).await {
            Ok(id) => id,
            Err(error) => {
                let _ = directory.remove(&name);
                return Err(error);
            }
        };
        self.needs.push(Need { id, _file: file });
        Ok(Some(id))
    }

    /// This process does not need the change any more.
    pub(super) fn end_need(&mut self, id: ChangeId) {
        self.needs.retain(|need| need.id != id);
    }
}
