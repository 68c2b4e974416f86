//! The end of a kill switch that a person asks for, while no client keeps it.
//!
//! INVARIANT: whatever else is broken, the rules go: a file system that is full or can't be
//! written, a damaged record, no way to know which client keeps it, another process that never
//! releases the lock. A record that can't be removed is marked as ended until the machine restarts,
//! so the keeper does not put it in force again.

use anyhow::Context as _;

use super::state;
use vpnd_journal::JournalDirectory;
use vpnd_journal::kill_switch::{Found, KillSwitchPlace};
use vpnd_sys::nft::KillSwitchRules;

/// Ends the kill switch that a client of this user has left; a line for that user, unless none is
/// on, or a client keeps it, whose end opens the network.
///
/// # Errors
/// If it can't be ended, or found out whether there is one.
pub(in super::super) async fn reopen(
    directory: &JournalDirectory,
    user: u32,
) -> anyhow::Result<Option<&'static str>> {
    let place = KillSwitchPlace::of_this_namespace(directory)?;
    let is_users = match place.find()? {
        Found::Nothing => return Ok(None),
        _ if state::is_ended() || matches!(place.holder(), Ok(Some(_))) => return Ok(None),
        Found::Record(record) => record.is_of(user),
        Found::Unreadable(_) => user == 0,
    };
    if !is_users {
        return Ok(Some(
            "the kill switch stays on: another user or an administrator has switched it on, and an administrator ends it with \
             `vpnd cleanup`",
        ));
    }
    end_at(&place).await?;
    Ok(Some("the kill switch is off: this machine's network is open"))
}

/// Ends the kill switch, for `vpnd cleanup`; a line for people, and whether that is done.
pub(in super::super) async fn clean_up(
    directory: Option<&JournalDirectory>,
) -> anyhow::Result<Option<(String, bool)>> {
    let Some(place) = directory.map(KillSwitchPlace::of_this_namespace).and_then(Result::ok) else {
        // A keeper that has the directory open would put the rules back.
        state::mark_ended();
        let was_there = KillSwitchRules::remove().await?;
        return Ok(was_there.then(|| ("the kill switch is off".to_owned(), true)));
    };
    let holder = place.holder();
    if let Ok(Some(process)) = holder {
        let line = format!(
            "the kill switch stays on: the client that keeps it is running (process {process}); end that first, by Ctrl-C or \
             'systemctl stop', then try again"
        );
        return Ok(Some((line, false)));
    }
    let was_there = end_at(&place).await?;
    let Err(error) = holder else {
        return Ok(was_there.then(|| ("the kill switch is off".to_owned(), true)));
    };
    let removed = place.remove_holder();
    tracing::debug!(?removed, "what stood where the client that keeps it is named");
    let line = format!(
        "the kill switch is off, but it can't be read which client keeps it ({error}): if it comes back, end that client, then \
         try again"
    );
    Ok(Some((line, false)))
}

/// Ends the switch of this place; returns whether there was one.
///
/// # Errors
/// If the rules can't be removed, or only the record can't, with what to do.
pub(super) async fn end_at(place: &KillSwitchPlace) -> anyhow::Result<bool> {
    let turn = place.turn().inspect_err(|error| tracing::warn!(%error, "it is ended without a lock")).ok();
    let forgotten = place.forget(turn.as_ref());
    if forgotten.is_err() {
        // Before the rules go, whose removal the keeper notices.
        state::mark_ended();
    }
    let was_there = KillSwitchRules::remove().await?;
    state::withdraw();
    let was_written = forgotten.context(
        "the kill switch is off until this machine restarts, but its record can't be removed: make the file system writable, then \
         'vpnd cleanup'",
    )?;
    Ok(was_there || was_written)
}
