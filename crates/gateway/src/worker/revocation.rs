//! Users who were disabled, removed, given another password or other groups, by whichever process
//! did it: their sessions end, or go on by other rules.
//!
//! INVARIANT: a revocation counts as carried out only when the sessions have ended or have the new
//! groups, so that a worker that goes on from the last one, in this process or in the next, passes
//! over none.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vpnd_proto::control::{Code, UserName};
use vpnd_proto::gateway::Selector;
use vpnd_proto::session::{DeviceId, SessionId};

use crate::worker::auth_client::AuthClient;
use crate::worker::core::{Core, EndedCounts, Stopped, ToEnd};
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_ipc::gateway::auth::{self, MAX_WRITES, MissingQuery, RevocationQuery, Revoked, id};
use vpnd_ipc::requests::NoReply;

/// Interval of queries for revocations: half of what is promised, so that the promise holds.
const REVOCATION_INTERVAL: Duration = Duration::from_millis(400);
const _: () =
    assert!(REVOCATION_INTERVAL.as_millis() * 2 <= 1_000, "revocations reach sessions within a second");

/// Revocations whose sessions end in one step.
const ENDED_TOGETHER: usize = 256;

/// The number of the last revocation that was carried out, once that is known.
#[derive(Clone, Default)]
pub(super) struct Revocations(Arc<Mutex<Option<u64>>>);

impl Revocations {
    pub(super) fn get(&self) -> Option<u64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, seen: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
    }
}

/// Carries out what the store has of revocations, as they come.
pub(super) async fn carry_out_revocations(core: Core, auth: AuthClient, carried_out: Revocations) {
    let (mut before, mut is_away) = (None, false);
    loop {
        let query = RevocationQuery { seen: carried_out.get(), history: before };
        let answer = auth.request(query).await;
        is_away &= answer.is_err();
        match answer {
            Ok(auth::Revocations { seen: last, history, went_back: true, .. }) => {
                match end_missing(&core, &auth).await {
                    Ok(()) => {
                        carried_out.set(last);
                        before = Some(history);
                        continue;
                    }
                    Err(Unchecked::Auth(NoReply::Failed(error))) => {
                        tracing::error!(%error, "sessions can't be compared with the user database yet");
                    }
                    Err(Unchecked::Auth(NoReply::Gone(_)) | Unchecked::Core(Stopped)) => return,
                }
            }
            Ok(auth::Revocations { seen: last, history, found, .. }) => {
                before = Some(history);
                let may_be_more = !found.is_empty();
                if carry_out(&core, found).await.is_err() {
                    return;
                }
                // Not before: a worker that goes on from here must not pass over one.
                carried_out.set(last);
                // A reply has room for a part of what thousands of users need.
                if may_be_more {
                    continue;
                }
            }
            // The daemon is going down.
            Err(NoReply::Gone(_)) => return,
            Err(NoReply::Failed(error)) => {
                if !std::mem::replace(&mut is_away, true) {
                    tracing::error!(%error, "can't tell whether users were disabled");
                }
            }
        }
        tokio::time::sleep(REVOCATION_INTERVAL).await;
    }
}

#[derive(Debug, thiserror::Error)]
enum Unchecked {
    #[error(transparent)]
    Core(#[from] Stopped),
    #[error(transparent)]
    Auth(#[from] NoReply),
}

/// Ends the sessions that the store does not have, after it went back to an earlier state: whom it
/// has taken the rights from since does not show in another way.
async fn end_missing(core: &Core, auth: &AuthClient) -> Result<(), Unchecked> {
    let carried: Vec<_> = core.status().await?.sessions.into_iter().map(|status| status.id).collect();
    for part in carried.chunks(MAX_WRITES) {
        let missing = auth.request(MissingQuery(part.iter().map(|session| id(*session)).collect())).await?;
        let (code, text) = (Code::Token, "the gateway does not know the session any more; log in again");
        let missing = missing.into_iter().map(|session| ToEnd {
            which: Selector::Session(SessionId(session.into())),
            code,
            text: text.into(),
        });
        let ended = core.end(missing.collect()).await?.sum();
        if ended > 0 {
            tracing::warn!(sessions = ended, "sessions have ended that the user database lacks");
        }
    }
    Ok(())
}

/// Carries them out in their order. Those of one kind that follow one another are one step: a
/// change of groups looks at all sessions, and shards are asked about sessions that end.
async fn carry_out(core: &Core, found: Vec<Revoked>) -> Result<(), Stopped> {
    // One of these two is empty.
    let (mut regrouped, mut ended) = (Vec::new(), Vec::new());
    for mut revoked in found {
        match (revoked.cause, revoked.groups.take()) {
            (RevocationCause::Groups, Some(groups)) => {
                end(core, std::mem::take(&mut ended)).await?;
                regrouped.push((revoked.name, groups));
            }
            // The user is gone, and the revocation that follows ends the sessions.
            (RevocationCause::Groups, None) => {}
            _ => {
                regroup(core, std::mem::take(&mut regrouped)).await?;
                ended.push(revoked);
            }
        }
    }
    end(core, ended).await?;
    regroup(core, regrouped).await
}

async fn regroup(core: &Core, users: Vec<(UserName, Vec<String>)>) -> Result<(), Stopped> {
    if users.is_empty() {
        return Ok(());
    }
    for (name, _) in &users {
        tracing::info!(user = %name, cause = ?RevocationCause::Groups, "revoked");
    }
    let (users, sessions) = (users.len(), core.regroup(users).await?);
    tracing::info!(users, sessions, "other groups");
    Ok(())
}

async fn end(core: &Core, found: Vec<Revoked>) -> Result<(), Stopped> {
    // Others have their turn in between.
    for part in found.chunks(ENDED_TOGETHER) {
        // The store has the revocation already.
        let EndedCounts { counts, .. } = core.end(part.iter().map(to_end).collect()).await?;
        for (Revoked { name, cause, .. }, sessions) in part.iter().zip(counts) {
            tracing::info!(user = %name, ?cause, sessions, "revoked");
        }
    }
    Ok(())
}

/// The sessions that a revocation ends, and the reason for their clients.
pub(super) fn to_end(revoked: &Revoked) -> ToEnd {
    let user = revoked.name.clone();
    let (which, code) = match (revoked.cause, revoked.device) {
        (
            RevocationCause::Device
            | RevocationCause::Disconnected
            | RevocationCause::Portal
            | RevocationCause::Kicked,
            Some(device),
        ) => (Selector::Device(user, DeviceId(device.into())), Code::Kicked),
        (RevocationCause::Disconnected | RevocationCause::Kicked, None) => {
            (Selector::User(user), Code::Kicked)
        }
        (RevocationCause::NoProfile, _) => (Selector::User(user), Code::NoProfile),
        _ => (Selector::User(user), Code::Disabled),
    };
    ToEnd { which, code, text: revoked.cause.to_string().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_a_machine_without_a_profile_end_with_that_code() {
        let name = UserName::cut("kiosk");
        let (cause, device, groups) = (RevocationCause::NoProfile, None, None);
        let end = to_end(&Revoked { name: name.clone(), cause, device, groups });
        assert!(matches!(end.which, Selector::User(user) if user == name) && end.code == Code::NoProfile);
    }
}
