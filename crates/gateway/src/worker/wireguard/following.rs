//! The list of peers, as the auth process has it.

use std::time::Duration;

use vpnd_wireguard::PublicKey;

use crate::worker::auth_client::AuthClient;
use crate::worker::core::Core;
use vpnd_ipc::gateway::wireguard::{PeerChange, PeerChanges, PeersQuery};
use vpnd_ipc::requests::NoReply;

/// Interval of queries for changes, as that of revocations: what an administrator changes holds
/// within a second.
const INTERVAL: Duration = Duration::from_millis(400);

/// All peers at the start.
pub(crate) struct PeerList {
    pub(super) own: PublicKey,
    pub(super) changes: Vec<PeerChange>,
    seen: u64,
}

impl PeerList {
    /// Asks for all of them; `None` if WireGuard is not enabled.
    ///
    /// # Errors
    /// If the auth process does not reply.
    pub(crate) async fn query(auth: &AuthClient) -> Result<Option<Self>, NoReply> {
        let (mut changes, mut seen) = (Vec::new(), 0);
        loop {
            let Some(reply) = auth.request(PeersQuery(seen)).await? else { return Ok(None) };
            let PeerChanges { own, seen: last, changed } = reply;
            seen = last;
            if changed.is_empty() {
                return Ok(Some(Self { own: PublicKey(own.into()), changes, seen }));
            }
            changes.extend(changed);
        }
    }

    /// The number of its last change.
    pub(crate) const fn seen(&self) -> u64 {
        self.seen
    }
}

/// Passes changes on to the core as they come.
pub(crate) async fn follow(core: Core, auth: AuthClient, mut seen: u64) {
    loop {
        match auth.request(PeersQuery(seen)).await {
            Ok(Some(PeerChanges { seen: last, changed, .. })) => {
                seen = last;
                if !changed.is_empty() {
                    if core.change_peers(changed).await.is_err() {
                        return;
                    }
                    continue;
                }
            }
            Ok(None) | Err(NoReply::Gone(_)) => return,
            Err(NoReply::Failed(error)) => {
                tracing::error!(%error, "can't tell which WireGuard devices there are");
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
