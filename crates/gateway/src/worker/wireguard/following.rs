//! The list of peers, as the auth process has it.

use std::net::IpAddr;
use std::time::Duration;

use vpnd_wireguard::PublicKey;

use crate::worker::auth_client::AuthClient;
use crate::worker::core::Core;
use vpnd_ipc::gateway::wireguard::{DevicesQuery, PeerChange, PeerChanges, PeersQuery};
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
    let mut is_away = false;
    loop {
        let answer = auth.request(PeersQuery(seen)).await;
        is_away &= answer.is_err();
        match answer {
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
                if !std::mem::replace(&mut is_away, true) {
                    tracing::error!(%error, "can't tell which WireGuard devices there are");
                }
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Has handshakes begun with the devices that have talked to these addresses, which are this
/// machine's now: their sessions were another gateway's of the fleet. Tries until the database has
/// answered.
pub(crate) async fn take_over(core: Core, auth: AuthClient, addresses: Vec<IpAddr>) {
    let mut after = None;
    loop {
        let query = DevicesQuery { addresses: addresses.clone(), after };
        match auth.request(query).await {
            Ok(found) => {
                let Some(last) = found.last() else { return };
                after = Some(last.key);
                if core.begin_peers(found).await.is_err() {
                    return;
                }
            }
            Err(NoReply::Gone(_)) => return,
            Err(NoReply::Failed(error)) => {
                tracing::warn!(%error, "can't tell which WireGuard devices talk to this machine's new addresses");
                tokio::time::sleep(INTERVAL).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vpnd_ipc::gateway::auth::{AuthRequest, Reason};
    use vpnd_ipc::request::{Numbered, encoded};

    use super::*;
    use crate::worker::testing;

    #[test]
    fn an_outage_is_logged_once() {
        let text = testing::logged(async {
            let (auth, process) = testing::auth();
            let changes = || PeerChanges { own: [1; 32].into(), seen: 0, changed: Vec::new() };
            let away = || Err(Reason::cut("it is away"));
            // The last one says that WireGuard is not enabled, which ends it.
            let answers = [away(), away(), away(), Ok(Some(changes())), away(), away(), Ok(None)];
            let ((core, _auth), answer) = (testing::core(), async move {
                for answer in answers {
                    let asked: Numbered<AuthRequest> = process.receive().await.unwrap().unwrap().message;
                    let content = encoded::<Option<PeerChanges>>(&answer);
                    process.send(&Numbered { number: asked.number, content }, &[]).await.unwrap();
                }
            });
            tokio::join!(follow(core, auth, 0), answer);
        });
        let outages = text.lines().filter(|line| line.contains("can't tell which WireGuard devices"));
        assert_eq!(outages.count(), 2, "{text}");
    }
}
