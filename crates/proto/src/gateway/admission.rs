//! Granting sessions and new epochs: logins and attaches, offers, limits (PROTOCOL §3.3, §4, §5).

use std::collections::BTreeSet;
use std::time::Duration;

use vpnd_crypto::EpochSecret;

use super::epoch::Grant;
use super::session::{Addresses, Session, SessionRecord};
use super::{Effect, Gateway};
use crate::attach::{Token, TokenHash, Tokens};
use crate::control::{Code, Explanation, Message, Offer, Refused, UserName};
use crate::plane::Slot;
use crate::policy::{Principal, ProfileId};
use crate::rate::SessionLimits;
use crate::session::{ConnectionId, DeviceId, LocalSuite, SessionId, choose_suite, random_bytes};
use crate::time::Time;

/// A login whose credentials were good.
#[derive(Clone, Debug)]
pub struct Authenticated {
    /// The name of the session that begins: random, so that it is unused.
    pub session: SessionId,
    /// The user.
    pub user: UserName,
    /// The session's user and groups, as policy knows them.
    pub principal: Principal,
    /// Its rate limits.
    pub limits: SessionLimits,
    /// On which device, which has proved itself on the connection.
    pub device: DeviceId,
    /// The inner addresses leased to it.
    pub addresses: Addresses,
    /// The session ends no later than this.
    pub deadline: Time,
    /// Time without a packet of the client after which it ends, if that is shorter than the
    /// gateway's.
    pub idle_timeout: Option<Duration>,
    /// Sessions of the user at other gateways, which count for the user's limit.
    pub elsewhere: usize,
}

/// A client's proof of its session, in place of a password.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Which session.
    pub session: SessionId,
    /// Its token.
    pub token: Token,
    /// The device that has proved itself on the connection, not one that it merely names.
    pub device: DeviceId,
}

impl Claim {
    /// Whether all that is shown fits the session. A token alone does not, and a mismatch changes
    /// nothing of the session: the true device can attach with the same token afterwards.
    fn is_good(&self, now: Time, record: &SessionRecord) -> bool {
        let token = record.tokens.accept(self.token.hash());
        token & (self.device == record.device) & (now < record.deadline)
    }
}

impl Gateway {
    /// A user has logged in on `connection`, whose exporter gave `secret`. Replaces the session of
    /// the same device, and ends one that has an address of the new one.
    ///
    /// # Errors
    /// If it was refused; the effects that send the client the reason are there already.
    pub fn login(
        &mut self,
        now: Time,
        connection: ConnectionId,
        who: Authenticated,
        offer: &Offer,
        secret: EpochSecret,
    ) -> Result<SessionId, Code> {
        let suite = match self.admit(&who, connection, offer) {
            Ok(suite) => suite,
            Err(code) => return Err(self.refuse(connection, code)),
        };
        let (id, token) = (who.session, Token::from_bytes(random_bytes(&mut self.random)));
        // The name is the only thing that may still be another one's.
        let Some(slot) = self.begin_session(now, who, token.hash()) else {
            return Err(self.refuse(connection, Code::Internal));
        };
        self.establish(now, slot, Grant { connection, offer, suite, secret, token });
        Ok(id)
    }

    /// Makes the session of an admitted user, which replaces that of the same device, and any with
    /// one of its addresses. `None` if the session's name is taken.
    pub(super) fn begin_session(&mut self, now: Time, who: Authenticated, token: TokenHash) -> Option<Slot> {
        if let Some(before) = self.table.by_device(&who.user, who.device) {
            self.end_session(before, Code::Superseded, Code::Superseded.explanation());
        }
        self.make_room(&who);
        self.end_holders(who.addresses);
        let record = SessionRecord {
            id: who.session,
            user: who.user,
            device: who.device,
            principal: who.principal,
            limits: who.limits,
            addresses: who.addresses,
            deadline: who.deadline,
            idle_timeout: who.idle_timeout,
            epoch: 0,
            tokens: Tokens::new(token),
        };
        self.insert(now, record).ok()
    }

    /// Whether a claim fits a session that is here.
    #[must_use]
    pub fn accepts(&self, now: Time, claim: &Claim) -> bool {
        let session = self.table.by_id(claim.session).and_then(|slot| self.table.get(slot));
        session.is_some_and(|session| claim.is_good(now, &session.record))
    }

    /// A client claims a session on `connection`, whose exporter gave `secret` (PROTOCOL §5).
    /// Whatever is wrong with the claim, the answer is the same.
    ///
    /// # Errors
    /// If it was refused; the effects that send the client the reason are there already.
    pub fn attach(
        &mut self,
        now: Time,
        connection: ConnectionId,
        claim: &Claim,
        offer: &Offer,
        secret: EpochSecret,
    ) -> Result<SessionId, Code> {
        let good = self.table.by_id(claim.session).filter(|slot| {
            let session = self.table.get(*slot);
            session.is_some_and(|session| claim.is_good(now, &session.record))
        });
        let Some(slot) = good else { return Err(self.refuse(connection, Code::Token)) };
        let principal = self.table.get(slot).map(|session| &session.record.principal);
        if principal.and_then(|principal| self.settings_of(principal)).is_none() {
            return Err(self.refuse(connection, Code::NoProfile));
        }
        if self.table.get(slot).is_some_and(|session| self.is_closed_to(session)) {
            return Err(self.refuse(connection, Code::Drain));
        }
        let suite = match self.check_offer(connection, offer) {
            Ok(suite) => suite,
            Err(code) => return Err(self.refuse(connection, code)),
        };
        let token = Token::from_bytes(random_bytes(&mut self.random));
        if let Some(session) = self.table.get_mut(slot) {
            session.record.tokens.issue(claim.token.hash(), token.hash());
        }
        self.establish(now, slot, Grant { connection, offer, suite, secret, token });
        Ok(claim.session)
    }

    fn admit(
        &self,
        who: &Authenticated,
        connection: ConnectionId,
        offer: &Offer,
    ) -> Result<LocalSuite, Code> {
        if self.draining {
            return Err(Code::Drain);
        }
        let suite = self.check_offer(connection, offer)?;
        self.check_room(who)?;
        Ok(suite)
    }

    /// Whether there is room for a session of this user and device, once others have made room that
    /// may.
    pub(super) fn check_room(&self, who: &Authenticated) -> Result<(), Code> {
        self.settings_of(&who.principal).ok_or(Code::NoProfile)?;
        let before = self.table.by_device(&who.user, who.device).and_then(|slot| self.table.get(slot));
        if before.is_some_and(|before| is_walled(&who.principal) || !is_walled(&before.record.principal)) {
            return Ok(());
        }
        if self.is_full_for(who) && self.least_needed(who).is_none() { Err(Code::TooMany) } else { Ok(()) }
    }

    fn is_full_for(&self, who: &Authenticated) -> bool {
        self.is_user_full(who) || self.table.len() + self.elsewhere >= self.config.max_sessions
    }

    fn is_user_full(&self, who: &Authenticated) -> bool {
        let most = self.settings_of(&who.principal).map_or(0, |settings| settings.max_sessions_per_user);
        !is_walled(&who.principal) && self.alike(who).count() + who.elsewhere >= most
    }

    /// The session that makes room for another one of this user. If they have as many as they may,
    /// it is one whose device is away. If all users together have, it may be that of any device
    /// that reaches the portal alone.
    fn least_needed(&self, who: &Authenticated) -> Option<Slot> {
        let away = self.alike(who).filter(|session| session.is_detached());
        let oldest = away.min_by_key(|session| session.last_heard());
        let walled = || {
            let walled = self.table.iter().filter(|session| is_walled(&session.record.principal));
            walled.min_by_key(|session| session.last_heard())
        };
        let may_be_anyones = !is_walled(&who.principal) && !self.is_user_full(who);
        oldest.or_else(|| if may_be_anyones { walled() } else { None }).map(|session| session.slot)
    }

    /// The user's sessions, of which those of walled devices are others.
    fn alike<'g>(&'g self, who: &'g Authenticated) -> impl Iterator<Item = &'g Session> {
        let of_user = self.table.of_user(&who.user);
        of_user.filter(|session| is_walled(&session.record.principal) == is_walled(&who.principal))
    }

    fn check_offer(&self, connection: ConnectionId, offer: &Offer) -> Result<LocalSuite, Code> {
        let distinct: BTreeSet<u32> = offer.indexes.iter().copied().collect();
        let well_formed = !offer.indexes.is_empty() && distinct.len() == offer.indexes.len();
        if !well_formed || self.table.by_connection(connection).is_some() {
            return Err(Code::BadRequest);
        }
        let lab = self.config.lab.is_some() && offer.lab;
        choose_suite(&self.config.suites, &offer.suites, lab).ok_or(Code::NoSuite)
    }

    /// A user at the limit loses a session whose device is away, rather than being locked out until
    /// that one's lifetime is over, and devices that reach the portal alone keep no device out.
    fn make_room(&mut self, who: &Authenticated) {
        if !self.is_full_for(who) {
            return;
        }
        if let Some(slot) = self.least_needed(who) {
            self.end_session(slot, Code::Superseded, Code::Superseded.explanation());
        }
    }

    fn refuse(&mut self, connection: ConnectionId, code: Code) -> Code {
        let text = Explanation::cut(code.explanation());
        let message = Message::Refused(Refused { code, text, retry_after_ms: None });
        self.effects.push_back(Effect::Send { connection, message });
        self.effects.push_back(Effect::CloseConnection { connection, code });
        code
    }
}

fn is_walled(principal: &Principal) -> bool {
    principal.profile() == ProfileId::WALLED
}
