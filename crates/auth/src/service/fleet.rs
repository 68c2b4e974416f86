//! Sessions that move between the gateways of a fleet.
//!
//! INVARIANT: a session moves here only for a client that has shown its token and its device, and
//! only if it could go on here; what is wrong with a claim changes nothing of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use vpnd_ipc::gateway::auth::{
    DrainHere, Dropped, GatewayReport, GatewayState, GatewaysQuery, Leased, MAX_ABSENCES, MAX_ADDRESSES,
    MAX_GATEWAYS, MAX_WRITES, Reason, SessionClaim, StoredSession, TakenAway, id,
};
use vpnd_ipc::request::Answer;
use vpnd_ipc::together::Together;
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_proto::time::Time;
use vpnd_store::audit::SessionStart;
use vpnd_store::postgres::CLOCK_TOLERANCE_S;
use vpnd_store::{Absences, Begun, HeldSession, Kicks, LeaseOwner, SessionRecord, StoreError, User};
use vpnd_sys::clock::now;

use super::{Courier, Service, session_audit};
use crate::store::reported;
use vpnd_admission::notices::{Notices, lock};
use vpnd_admission::whois::Answers;

/// Interval at which notices are sent and read.
const NOTICE_INTERVAL: Duration = Duration::from_millis(400);
/// Time for a drain to begin that was permitted.
const DRAIN_BEGINS_WITHIN: Duration = Duration::from_secs(30);

/// Sessions that are read together, at most.
pub(super) const MAX_CLAIMS: usize = 128;

/// A gateway of a fleet.
pub(super) struct Member {
    notices: Arc<Notices>,
    claims: Together<SessionClaim, Option<StoredSession>>,
    answers: OnceLock<Arc<Answers>>,
    courier: OnceLock<Arc<Courier>>,
    /// Whether it has started and not reported since.
    pub(super) is_new: AtomicBool,
    /// When its drain was permitted, until the worker reports that it has begun.
    permitted: Mutex<Option<Time>>,
}

impl Member {
    /// Whether the worker's word on a drain is newer than the store's, which has one as soon as it
    /// is permitted, so that no other gateway is drained meanwhile.
    fn is_known_to_drain(&self, is_draining: bool) -> bool {
        let mut permitted = lock(&self.permitted);
        let begins = !is_draining && permitted.is_some_and(|at| now().since(at) < DRAIN_BEGINS_WITHIN);
        if !begins {
            *permitted = None;
        }
        !begins
    }
}

impl Answer<SessionClaim> for Service {
    async fn answer(self: &Arc<Self>, claim: SessionClaim) -> Result<Option<StoredSession>, Reason> {
        let member = self.fleet.as_ref().ok_or_else(|| Reason::cut(&StoreError::NoFleet.to_string()))?;
        let service = Arc::clone(self);
        member.claims.ask(claim, move |claims| service.claimed(&claims)).await
    }
}

impl Answer<Dropped> for Service {
    async fn answer(self: &Arc<Self>, Dropped(sessions): Dropped) -> Result<Vec<TakenAway>, Reason> {
        self.from_store(move |service| service.taken_away(&sessions)).await
    }
}

impl Answer<GatewayReport> for Service {
    async fn answer(self: &Arc<Self>, report: GatewayReport) -> Result<Vec<GatewayState>, Reason> {
        self.from_store(move |service| service.report(report)).await
    }
}

impl Answer<GatewaysQuery> for Service {
    async fn answer(self: &Arc<Self>, GatewaysQuery: GatewaysQuery) -> Result<Vec<GatewayState>, Reason> {
        self.from_store(Self::gateways).await
    }
}

impl Answer<DrainHere> for Service {
    async fn answer(self: &Arc<Self>, DrainHere: DrainHere) -> Result<bool, Reason> {
        self.from_store(|service| {
            let is_permitted = service.store.drain_unless_last()?;
            if let Some(member) = &service.fleet {
                *lock(&member.permitted) = is_permitted.then(now);
            }
            Ok(is_permitted)
        })
        .await
    }
}

impl Service {
    /// Makes it one of a fleet, or not.
    pub(crate) fn of_fleet(self, is_in_fleet: bool) -> Self {
        if !is_in_fleet {
            return self;
        }
        let notices = Arc::new(Notices::new(Arc::clone(&self.store)));
        self.authenticator.share(&notices);
        self.portal.share(&notices);
        Self {
            fleet: Some(Member {
                notices,
                claims: Together::new(MAX_CLAIMS),
                answers: OnceLock::new(),
                courier: OnceLock::new(),
                is_new: AtomicBool::new(false),
                permitted: Mutex::default(),
            }),
            ..self
        }
    }

    /// A session of this device is about to begin here; `most` is its user's limit, if it counts.
    pub(super) fn begun(
        &self,
        owner: LeaseOwner,
        most: Option<u64>,
        now_s: u64,
    ) -> Result<Begun, StoreError> {
        match &self.fleet {
            Some(_) => self.store.begin_session(owner, most, now_s),
            None => Ok(Begun { generation: 0, elsewhere: 0 }),
        }
    }

    /// Answers questions of other gateways from now on.
    pub(crate) fn answer_questions(&self, answers: Answers) {
        let Some(member) = &self.fleet else { return };
        let answers: Weak<Answers> = Arc::downgrade(member.answers.get_or_init(|| Arc::new(answers)));
        member.notices.subscribe(answers);
    }

    /// Carries orders to other gateways and from them from now on.
    pub(crate) fn carry_orders(&self, courier: Courier) {
        let Some(member) = &self.fleet else { return };
        let courier: Weak<Courier> = Arc::downgrade(member.courier.get_or_init(|| Arc::new(courier)));
        member.notices.subscribe(courier);
    }

    /// The kicks that wait for the store.
    pub(crate) fn kicks(&self) -> Kicks {
        self.store.kicks().clone()
    }

    pub(super) fn courier(&self) -> Option<&Courier> {
        self.fleet.as_ref()?.courier.get().map(|courier| &**courier)
    }

    /// Sends notices to the fleet and learns of others', if it is in one; never returns.
    pub(crate) async fn follow_notices(self: Arc<Self>) {
        let Some(notices) = self.fleet.as_ref().map(|member| Arc::clone(&member.notices)) else { return };
        loop {
            let (turn, service) = (Arc::clone(&notices), Arc::clone(&self));
            let turned = tokio::task::spawn_blocking(move || {
                if let Some(courier) = service.courier() {
                    courier.see();
                }
                turn.turn()?;
                service.courier().map_or(Ok(()), |courier| courier.write(&*service.store))
            });
            if let Ok(Err(error)) = turned.await {
                // The task that follows the sessions logs it, too.
                tracing::debug!(%error, "no notices of other gateways");
            }
            tokio::time::sleep(NOTICE_INTERVAL).await;
        }
    }

    fn report(&self, report: GatewayReport) -> Result<Vec<GatewayState>, StoreError> {
        let GatewayReport { address, sessions, load_percent, is_draining, away, back, mut addresses } =
            report;
        let member = self.fleet.as_ref().ok_or(StoreError::NoFleet)?;
        // The columns have signed numbers, and the worker may say anything.
        let [sessions, load_percent] = [sessions, load_percent].map(|number| number.min(u32::MAX.into()));
        let [away, back] = [away, back].map(|sessions| {
            sessions.into_iter().take(MAX_ABSENCES).map(|session| SessionId(session.into())).collect()
        });
        addresses.truncate(MAX_ADDRESSES);
        let absences = Absences { are_new: member.is_new.load(Ordering::Relaxed), away, back };
        self.store.report(&vpnd_store::GatewayReport {
            address,
            addresses,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sessions,
            load_percent,
            is_draining: member.is_known_to_drain(is_draining).then_some(is_draining),
            absences,
        })?;
        member.is_new.store(false, Ordering::Relaxed);
        let gateways = self.gateways()?;
        let alive = gateways.iter().filter(|gateway| gateway.is_alive || gateway.is_here).count();
        self.authenticator.count_gateways(u32::try_from(alive).unwrap_or(u32::MAX));
        Ok(gateways)
    }

    fn gateways(&self) -> Result<Vec<GatewayState>, StoreError> {
        let states = self.store.gateways()?;
        if let Some(courier) = self.courier() {
            courier.know(&states);
        }
        Ok(states.into_iter().take(MAX_GATEWAYS).map(reported).collect())
    }

    /// The end of the lease of a session that ends then. By the clocks of the fleet's other
    /// gateways the session may be over sooner than by this one's, which carries it.
    pub(super) fn lease_end_s(&self, expires_s: u64) -> u64 {
        let margin = if self.fleet.is_some() { 2 * CLOCK_TOLERANCE_S } else { 0 };
        expires_s.saturating_add(margin)
    }

    /// Moves sessions here that are claimed together. One that can't be read takes no other with
    /// it.
    pub(super) fn claimed(&self, claims: &[SessionClaim]) -> Vec<Result<Option<StoredSession>, Reason>> {
        self.held_here(claims).unwrap_or_else(|error| {
            if claims.len() > 1 && !error.is_for_now() {
                return claims.chunks(1).flat_map(|claim| self.claimed(claim)).collect();
            }
            let reason = Reason::cut(&error.to_string());
            claims.iter().map(|_| Err(reason.clone())).collect()
        })
    }

    fn held_here(
        &self,
        claims: &[SessionClaim],
    ) -> Result<Vec<Result<Option<StoredSession>, Reason>>, StoreError> {
        let now_s = (self.clocks.steady)();
        let ids: Vec<SessionId> = claims.iter().map(|claim| SessionId(claim.session.into())).collect();
        let mut held = self.store.held(&ids, now_s)?;
        for (held, claim) in held.iter_mut().zip(claims) {
            held.take_if(|held| !held.is_here && !self.may_move(held, claim));
        }
        // The client of a late claim was told to go elsewhere, and may have new keys there by now.
        let in_time = held.iter().zip(claims).filter(|(_, claim)| now() < claim.until);
        let to_move = in_time.filter_map(|(held, _)| held.as_ref()).filter(|held| !held.is_here);
        let to_move: Vec<_> = to_move.map(|held| (held.record.id, held.record.generation)).collect();
        let moved = self.store.move_here(&to_move, now_s)?.into_iter();
        let moved: HashMap<SessionId, SessionRecord> = moved.map(|record| (record.id, record)).collect();
        let stored = |held: Option<HeldSession>| {
            let Some(HeldSession { mut record, is_here, user, leases }) = held else { return Ok(None) };
            if !is_here {
                let left = moved.get(&record.id).cloned();
                record = left.ok_or_else(|| {
                    Reason::cut("the claim came late, or the session is over or elsewhere meanwhile")
                })?;
            }
            let Some(session) = self.usable_by(&record, &user, &leases) else { return Ok(None) };
            if !is_here {
                tracing::info!(session = %record.id, user = &*user.name, "a session has moved here");
                self.record_move(record.id, &session, &user);
            }
            Ok(Some(self.taken_up(record.id, session, &user)))
        };
        Ok(held.into_iter().map(stored).collect())
    }

    /// Whether the claim is good and the session may go on here.
    fn may_move(&self, held: &HeldSession, claim: &SessionClaim) -> bool {
        let token = held.record.tokens.accept(claim.token.hash());
        let is_good = token & (held.record.device == DeviceId(claim.device.into()));
        is_good && self.usable_by(&held.record, &held.user, &held.leases).is_some()
    }

    /// Records the beginning of the session at this gateway, which has a separate audit file.
    fn record_move(&self, id: SessionId, session: &StoredSession, user: &User) {
        let profile = self.access.of(user).and_then(|profile| profile.name.clone());
        let device = DeviceId(session.device.into());
        let start = session_audit::start(id, user, profile.as_deref(), (device, None), session.expires_s);
        let Leased { ipv4, ipv6 } = session.addresses;
        self.audit.moved_here(SessionStart { ipv4, ipv6, ..start });
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
