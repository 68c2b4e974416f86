//! Kicks that the store does not keep, because it is damaged or its disk full.
//!
//! INVARIANT: while this process runs, no client goes on with the session of such a kick, and its
//! WireGuard device gets none until it is renewed. Each is tried again until the store keeps it: the
//! administrator was told that it does not.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use vpnd_proto::control::Code;
use vpnd_proto::session::{DeviceId, SessionId};

use super::{MAX_GRANTS, Service};
use vpnd_ipc::gateway::auth::Write;
use vpnd_store::audit::Event;
use vpnd_store::{StoreError, UserId};

/// Time between two tries.
const INTERVAL: Duration = Duration::from_secs(1);

/// The user and the device of a session.
type Owner = (UserId, DeviceId);

/// One kick.
#[derive(Clone, Copy)]
struct Kick {
    /// `None` if only the store knows.
    owner: Option<Owner>,
    at_s: u64,
}

/// The kicks by session.
#[derive(Default)]
pub(super) struct Kicks(HashMap<SessionId, Kick>);

impl Kicks {
    /// Whether the session is over.
    pub(super) fn has(&self, session: SessionId) -> bool {
        self.0.contains_key(&session)
    }

    /// Whether the device, renewed last at that time, has to be renewed.
    pub(super) fn holds(&self, device: DeviceId, renewed_s: u64) -> bool {
        let is_of_it = |kick: &Kick| kick.owner.is_some_and(|(_, kicked)| kicked == device);
        self.0.values().any(|kick| is_of_it(kick) && kick.at_s >= renewed_s)
    }
}

impl Service {
    /// The user and the device of a session: as this process remembers, which neither waits for the
    /// store nor fails with it, or else by the store.
    pub(super) fn owner_of(&self, session: SessionId, now_s: u64) -> Result<Option<Owner>, StoreError> {
        let remembered = self.portal.heard().owner(session);
        if remembered.is_some() {
            return Ok(remembered);
        }
        let record = self.store.session(session, now_s)?;
        Ok(record.map(|record| (record.user, record.device)))
    }

    /// The sessions that these writes kick, with their owners, before they are over.
    pub(super) fn kicked(&self, writes: &[Write]) -> Vec<(SessionId, Option<Owner>)> {
        let kicked = writes.iter().filter_map(|write| match write {
            Write::Ended { session, code: Code::Kicked, .. } => Some(SessionId((*session).into())),
            _ => None,
        });
        let with_owner = |session| (session, self.portal.heard().owner(session));
        kicked.map(with_owner).collect()
    }

    /// Has the kicks tried again of which a change has failed.
    pub(super) fn try_later(&self, kicked: Vec<(SessionId, Option<Owner>)>, failed: &HashSet<SessionId>) {
        let at_s = (self.clocks.wall)();
        let mut kicks = self.kicks();
        for (session, owner) in kicked.into_iter().filter(|(session, _)| failed.contains(session)) {
            if kicks.0.len() < MAX_GRANTS {
                kicks.0.insert(session, Kick { owner, at_s });
            }
        }
    }

    /// Tries kicks until the store keeps them; never returns.
    pub(crate) async fn keep_kicks(self: Arc<Self>) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if !self.kicks().0.is_empty() {
                let service = Arc::clone(&self);
                // After a panic in it all is tried again.
                let _ = tokio::task::spawn_blocking(move || service.try_kicks()).await;
            }
        }
    }

    pub(super) fn try_kicks(&self) {
        let waiting: Vec<_> = self.kicks().0.iter().map(|(session, kick)| (*session, *kick)).collect();
        for (session, kick) in waiting {
            match self.keep_kick(session, kick) {
                Ok(()) => {
                    self.kicks().0.remove(&session);
                    tracing::info!(%session, "the user store keeps a kick that it did not keep before");
                }
                Err(error) => tracing::debug!(%error, %session, "a kick is still not kept"),
            }
        }
    }

    fn keep_kick(&self, session: SessionId, Kick { owner, at_s }: Kick) -> Result<(), StoreError> {
        let now_s = (self.clocks.steady)();
        let record = self.store.session(session, now_s)?;
        let owner = owner.or(record.as_ref().map(|record| (record.user, record.device)));
        if let Some((user, device)) = owner {
            let devices = self.store.wireguard_devices_of(user)?;
            // One that was renewed since is let in.
            if devices.iter().any(|found| found.id == device && found.renewed_s <= at_s) {
                self.store.wall_wireguard_device(device, at_s)?;
            }
        }
        self.store.end_session(session, now_s)?;
        if let (Some(_), Some(audit)) = (record, &self.audit) {
            let (at_s, reason) = ((self.clocks.wall)(), Code::Kicked.name().to_owned());
            audit.record(Event::Ended { session, at_s, reason });
        }
        Ok(())
    }

    pub(super) fn kicks(&self) -> MutexGuard<'_, Kicks> {
        self.kicks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
