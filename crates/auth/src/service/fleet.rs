//! Sessions that move between the gateways of a fleet.
//!
//! INVARIANT: a session moves here only for a client that has shown its token and its device, and
//! only if it could go on here; what is wrong with a claim changes nothing of it.

use std::sync::Arc;

use vpnd_ipc::gateway::auth::{
    Dropped, Leased, MAX_WRITES, Reason, SessionClaim, StoredSession, TakenAway, id,
};
use vpnd_ipc::request::Answer;
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_store::audit::{Event, SessionStart};
use vpnd_store::postgres::CLOCK_TOLERANCE_S;
use vpnd_store::{StoreError, User};

use super::{Service, recording};

/// Moves that are tried while others move the session, too.
const ATTEMPTS: usize = 3;

impl Answer<SessionClaim> for Service {
    async fn answer(self: &Arc<Self>, claim: SessionClaim) -> Result<Option<StoredSession>, Reason> {
        self.blocking(move |service| service.claimed(&claim)).await
    }
}

impl Answer<Dropped> for Service {
    async fn answer(self: &Arc<Self>, Dropped(sessions): Dropped) -> Result<Vec<TakenAway>, Reason> {
        self.from_store(move |service| service.taken_away(&sessions)).await
    }
}

impl Service {
    /// Makes it one of a fleet, or not.
    pub(crate) fn of_fleet(self, is_in_fleet: bool) -> Self {
        Self { is_in_fleet, ..self }
    }

    /// A generation for a session that begins.
    pub(super) fn generation(&self) -> Result<u64, StoreError> {
        if self.is_in_fleet { self.store.next_generation() } else { Ok(0) }
    }

    /// The end of the lease of a session that ends then. By the clocks of the fleet's other gateways
    /// the session may be over sooner than by this one's, which carries it.
    pub(super) fn lease_end_s(&self, expires_s: u64) -> u64 {
        let margin = if self.is_in_fleet { 2 * CLOCK_TOLERANCE_S } else { 0 };
        expires_s.saturating_add(margin)
    }

    fn claimed(&self, claim: &SessionClaim) -> Result<Option<StoredSession>, Reason> {
        let failed = |error: StoreError| Reason::cut(&error.to_string());
        let session = SessionId(claim.session.into());
        for _ in 0..ATTEMPTS {
            // Before anything else: it fails while the database is away.
            let carrier = self.store.carrier(session).map_err(failed)?;
            let Some(carrier) = carrier.filter(|carrier| !carrier.is_here) else {
                return self.session(session).map_err(failed);
            };
            let record = self.store.session(session, (self.clocks.steady)()).map_err(failed)?;
            let Some(record) = record else { return Ok(None) };
            let token = record.tokens.accept(claim.token.hash());
            if !(token & (record.device == DeviceId(claim.device.into()))) {
                return Ok(None);
            }
            if self.usable(session).map_err(failed)?.is_none() {
                return Ok(None);
            }
            if self.store.move_here(session, carrier.generation).map_err(failed)?.is_some() {
                return self.moved_here(session).map_err(failed);
            }
        }
        Err(Reason::cut("a session moves between gateways again and again"))
    }

    /// The session, as its last gateway has left it.
    fn moved_here(&self, id: SessionId) -> Result<Option<StoredSession>, StoreError> {
        let Some((session, user)) = self.usable(id)? else { return Ok(None) };
        tracing::info!(session = %id, user = &*user.name, "a session has moved here");
        self.record_move(id, &session, &user);
        self.session(id)
    }

    /// Records the beginning of the session at this gateway, which has a separate audit file.
    fn record_move(&self, id: SessionId, session: &StoredSession, user: &User) {
        let Some(audit) = &self.audit else { return };
        let profile = self.access.of(user).and_then(|profile| profile.name.clone());
        let device = DeviceId(session.device.into());
        let start = recording::start(id, user, profile.as_deref(), (device, None), session.expires_s);
        let Leased { ipv4, ipv6 } = session.addresses;
        audit.record(Event::Began(SessionStart { ipv4, ipv6, at_s: (self.clocks.wall)(), ..start }));
    }

    fn taken_away(&self, dropped: &[TakenAway]) -> Result<Vec<TakenAway>, StoreError> {
        let dropped = dropped.iter().take(MAX_WRITES).map(|taken| vpnd_store::TakenAway {
            session: SessionId(taken.session.into()),
            generation: taken.generation,
        });
        let dropped: Vec<_> = dropped.collect();
        if !dropped.is_empty() {
            self.store.dropped(&dropped)?;
        }
        let found = self.store.taken_away()?.into_iter().take(MAX_WRITES);
        let taken = found.map(|taken| TakenAway { session: id(taken.session), generation: taken.generation });
        Ok(taken.collect())
    }
}

#[cfg(test)]
mod tests;
