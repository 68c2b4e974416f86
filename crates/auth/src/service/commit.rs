//! Changes of sessions on their way to the store.
//!
//! INVARIANT: a change that is not durable is reported for its session, and takes no other with it.

use std::collections::HashSet;

use vpnd_proto::session::SessionId;

use vpnd_store::{SessionChange, Sessions};

/// Writes all changes in one step. If that can't be done each is tried by itself, for one that
/// fails must not take the others with it. Returns the sessions whose changes are not in the store.
pub(super) fn write(sessions: &dyn Sessions, changes: &[SessionChange], now_s: u64) -> HashSet<SessionId> {
    if changes.is_empty() {
        return HashSet::new();
    }
    match sessions.change_sessions(changes, now_s) {
        Ok(done) => {
            let failed = changes.iter().zip(done).filter(|(_, done)| !done);
            let failed: HashSet<SessionId> = failed.filter_map(|(change, _)| session_of(change)).collect();
            for session in &failed {
                tracing::warn!(%session, "the user was disabled, removed or given another password meanwhile, or has logged in at another gateway up to the limit");
            }
            failed
        }
        Err(_) if changes.len() > 1 => {
            changes.iter().flat_map(|change| write(sessions, std::slice::from_ref(change), now_s)).collect()
        }
        Err(error) => {
            tracing::error!(%error, "a change of sessions could not be stored");
            changes.iter().filter_map(session_of).collect()
        }
    }
}

/// The session that the change is about.
fn session_of(change: &SessionChange) -> Option<SessionId> {
    match change {
        SessionChange::Add(record, _) => Some(record.id),
        SessionChange::Tokens(id, ..) | SessionChange::End(id) => Some(*id),
    }
}
