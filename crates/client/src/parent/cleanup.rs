//! Undoing what clients have left behind that were killed, and showing the clients that run.

use anyhow::bail;

use super::kill_switch;
use crate::args::{CleanupArgs, ConnectArgs};
use vpnd_journal::{self as journal, JournalDirectory};
use vpnd_sys::netlink::Netlink;
use vpnd_sys::text::{format_chain, harmless};

/// `vpnd cleanup`: undoes what killed clients left behind.
///
/// # Errors
/// If a journal can't be read or not all could be undone.
pub async fn cleanup(args: &CleanupArgs) -> anyhow::Result<()> {
    let opened = JournalDirectory::open(&args.journal_dir);
    if let Some(user) = args.kill_switch_of {
        if let Some(directory) = opened?
            && let Some(line) = kill_switch::reopen(&directory, user).await?
        {
            println!("{line}");
        }
        return Ok(());
    }
    let changes = match &opened {
        Ok(Some(directory)) => undo_changes(directory).await,
        _ => Ok(true),
    };
    let directory = opened.as_ref().ok().and_then(Option::as_ref);
    let kill_switch = if args.keep_kill_switch { Ok(true) } else { end_kill_switch(directory).await };
    let opened = opened.map(|_| true).map_err(anyhow::Error::from);
    // Whatever is broken keeps nothing else from being undone.
    let mut complete = true;
    for outcome in [changes, kill_switch, opened] {
        complete &= outcome.unwrap_or_else(|error| {
            println!("{}", format_chain(&error));
            false
        });
    }
    if complete { Ok(()) } else { bail!("not everything could be undone; see above, then try again") }
}

/// Ends the kill switch; returns whether that is done.
async fn end_kill_switch(directory: Option<&JournalDirectory>) -> anyhow::Result<bool> {
    let Some((line, is_done)) = kill_switch::clean_up(directory).await? else { return Ok(true) };
    println!("{line}");
    Ok(is_done)
}

/// Undoes what is in the journals of killed clients; returns whether that was all.
async fn undo_changes(directory: &JournalDirectory) -> anyhow::Result<bool> {
    let mut complete = true;
    for recovered in journal::recover(directory, &Netlink::open()?).await? {
        println!("{recovered}");
        complete &= recovered.is_complete();
    }
    Ok(complete)
}

/// The kill switch of this machine, if one is on, for people.
#[must_use]
pub fn kill_switch_state() -> Option<String> {
    kill_switch::state().map(|state| harmless(&state))
}

/// The kill switch and the tunnels of this machine, each with its gateway and its state, as far as
/// they can be read: for `vpnd status` without a gateway.
#[must_use]
pub fn states() -> Vec<String> {
    let directory = JournalDirectory::open(vpnd_config::JOURNAL_DIRECTORY.as_ref()).ok().flatten();
    let states =
        directory.and_then(|directory| journal::tunnels::states(&directory).ok()).unwrap_or_default();
    kill_switch_state().into_iter().chain(states.iter().map(|state| harmless(state))).collect()
}

/// A client that was killed may have left routes that would now lead nowhere. With it, where this
/// client's journal goes.
pub(super) async fn clean_up_after_others(args: &ConnectArgs) -> anyhow::Result<JournalDirectory> {
    let netlink = Netlink::open()?;
    let directory = JournalDirectory::create(&args.journal_dir)?;
    journal::undo_what_was_left(&directory, &netlink).await?;
    Ok(directory)
}
