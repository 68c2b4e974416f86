//! Changes that outlive the process that made them, until its successor takes them over or a
//! command takes them back.
//!
//! A gateway that is restarted, or was killed, must not let go of its firewall and routes
//! meanwhile. INVARIANT: a change is in the successor's journal before it goes from the
//! predecessor's, so one of them names it at any moment; undoing it twice does no harm.

use std::path::Path;

use super::directory::Opened;
use super::{
    ChangeId, DAMAGED_SUFFIX, EXTENSION, Journal, JournalDirectory, JournalError, Owner, Recovered, os_error,
    record, recover_of,
};
use vpnd_sys::change::Change;
use vpnd_sys::netlink::Netlink;

/// The journals that a recovery undoes, by their keepers.
#[derive(Clone, Copy)]
pub(super) enum Due<'k> {
    /// Those without a keeper.
    Unkept,
    /// Those of this keeper.
    KeptFor(&'k str),
    /// Those of every keeper.
    Kept,
}

impl Due<'_> {
    pub(super) fn includes(self, keeper: Option<&str>) -> bool {
        match self {
            Self::Unkept => keeper.is_none(),
            Self::KeptFor(wanted) => keeper == Some(wanted),
            Self::Kept => keeper.is_some(),
        }
    }
}

impl Journal {
    /// Starts the journal of this process, whose changes stay in force after its end, and takes
    /// over what earlier ones have left for the same `keeper`.
    pub fn create_kept(directory: &JournalDirectory, keeper: &str) -> Result<Self, JournalError> {
        let mut journal = Self::create_for(directory, Some(keeper.to_owned()))?;
        let failed = |step| move |source| os_error(directory.path(), step, source);
        let this = Owner::this_process().map_err(failed("examined"))?;
        for name in directory.names().map_err(failed("listed"))? {
            if Path::new(&name).extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            let opened = directory.open_abandoned(&name);
            let Ok(Opened::Abandoned(_lock, bytes)) = opened else { continue };
            let contents = record::parse(&bytes);
            let ours = |owner: &Owner| owner.keeper.as_deref() == Some(keeper) && owner.shares_network(&this);
            if !contents.owner.as_ref().is_some_and(ours) {
                continue;
            }
            for change in contents.changes {
                journal.take_over(change)?;
            }
            let done = match contents.damaged_lines {
                0 => directory.remove(&name),
                _ => directory.rename(&name, &format!("{name}{DAMAGED_SUFFIX}")),
            };
            done.map_err(|source| os_error(&directory.path_of(&name), "removed", source))?;
        }
        Ok(journal)
    }

    /// The changes that may be in force, in the order they were made.
    pub fn in_force(&self) -> Vec<(ChangeId, Change)> {
        self.active.iter().map(|active| (ChangeId(active.id), active.change.clone())).collect()
    }

    /// Notes a change that another process has made, for this one to undo.
    pub fn take_over(&mut self, change: Change) -> Result<(), JournalError> {
        if self.active.iter().any(|active| active.change == change) {
            return Ok(());
        }
        self.note(&change).map(drop)
    }
}

/// Undoes what ended processes have left in force for `keeper`, or without one for every keeper, in
/// the current network namespace.
///
/// # Errors
/// Those of [`super::recover`].
pub async fn take_back(
    directory: &JournalDirectory,
    netlink: &Netlink,
    keeper: Option<&str>,
) -> Result<Vec<Recovered>, JournalError> {
    recover_of(directory, netlink, keeper.map_or(Due::Kept, Due::KeptFor)).await
}
