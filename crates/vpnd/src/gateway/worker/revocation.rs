//! Users who were disabled, removed or given another password, by whichever process did it: their sessions end.
//!
//! INVARIANT: a revocation counts as carried out only when the sessions have ended, so that whoever goes on from the last one,
//! in this process or in the next, passes over none.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vpnd_proto::control::Code;
use vpnd_proto::gateway::Selector;

use crate::gateway::messages::auth::{AuthReply, AuthRequest};
use crate::gateway::worker::auth_client::AuthClient;
use crate::gateway::worker::core::Core;

/// Interval of queries for revocations: half of what is promised, so that the promise holds.
const REVOCATION_INTERVAL: Duration = Duration::from_millis(400);
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

/// Ends the sessions of users who were disabled, removed or given another password, by whichever process did it.
pub(super) async fn end_revoked(core: Core, auth: AuthClient, carried_out: Revocations) {
    loop {
        match auth.request(AuthRequest::Revocations(carried_out.get())).await {
            Ok(AuthReply::Revocations { seen: last, found }) => {
                for revoked in found {
                    let user = Selector::User(revoked.name.clone());
                    let ended = core.end(user, Code::Disabled, revoked.cause.to_string()).await;
                    let Ok(count) = ended else { return };
                    tracing::info!(user = %revoked.name, cause = ?revoked.cause, sessions = count, "revoked");
                }
                // Not before: whoever goes on from here must not pass over one.
                carried_out.set(last);
            }
            Ok(AuthReply::Failed(error)) => tracing::error!(%error, "can't tell whether users were disabled"),
            Ok(_) => tracing::error!("can't tell whether users were disabled: the answer makes no sense"),
            // The daemon is going down.
            Err(_) => return,
        }
        tokio::time::sleep(REVOCATION_INTERVAL).await;
    }
}
