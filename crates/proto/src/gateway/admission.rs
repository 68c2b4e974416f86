//! Granting sessions and new epochs: logins and attaches, offers, limits (PROTOCOL §3.3, §4, §5).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use vpnd_crypto::EpochSecret;

use super::session::{Addresses, Epoch, Session, SessionRecord, WireGuard};
use super::{Effect, Gateway, Reason};
use crate::attach::{Token, TokenHash, Tokens};
use crate::control::{Code, Established, Explanation, List, Message, Offer, Refused, UserName};
use crate::flows::Flows;
use crate::plane::{Command, Slot};
use crate::policy::{Principal, ProfileId};
use crate::rate::SessionLimits;
use crate::session::{ConnectionId, DeviceId, LocalSuite, SessionId, choose_suite, random_bytes};
use crate::time::Time;
use crate::wire::Index;
use crate::wireguard::{PADDING, Sealer};

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
    /// Time without a packet of the client after which it ends, if shorter than the gateway's.
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

/// The result of a login or an attach that was granted.
struct Grant<'a> {
    connection: ConnectionId,
    offer: &'a Offer,
    suite: LocalSuite,
    secret: EpochSecret,
    /// For the next attach; its hash stands in the session already.
    token: Token,
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
    fn begin_session(&mut self, now: Time, who: Authenticated, token: TokenHash) -> Option<Slot> {
        if let Some(before) = self.sessions.table.by_device(&who.user, who.device) {
            self.sessions.end(before, Code::Superseded, Code::Superseded.explanation());
        }
        self.make_room(&who);
        self.sessions.end_holders(who.addresses);
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
        let flows = Flows::new(random_bytes(&mut self.random));
        self.sessions.insert(now, record, flows)
    }

    /// Whether a claim fits a session that is here.
    #[must_use]
    pub fn accepts(&self, now: Time, claim: &Claim) -> bool {
        let session = self.sessions.table.by_id(claim.session).and_then(|slot| self.sessions.table.get(slot));
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
        let good = self.sessions.table.by_id(claim.session).filter(|slot| {
            let session = self.sessions.table.get(*slot);
            session.is_some_and(|session| claim.is_good(now, &session.record))
        });
        let Some(slot) = good else { return Err(self.refuse(connection, Code::Token)) };
        let principal = self.sessions.table.get(slot).map(|session| &session.record.principal);
        if principal.and_then(|principal| self.settings_of(principal)).is_none() {
            return Err(self.refuse(connection, Code::NoProfile));
        }
        if self.sessions.table.get(slot).is_some_and(|session| self.is_closed_to(session)) {
            return Err(self.refuse(connection, Code::Drain));
        }
        let suite = match self.check_offer(connection, offer) {
            Ok(suite) => suite,
            Err(code) => return Err(self.refuse(connection, code)),
        };
        let token = Token::from_bytes(random_bytes(&mut self.random));
        if let Some(session) = self.sessions.table.get_mut(slot) {
            session.record.tokens.issue(claim.token.hash(), token.hash());
        }
        self.establish(now, slot, Grant { connection, offer, suite, secret, token });
        Ok(claim.session)
    }

    /// Makes a pending epoch for the session and answers the client.
    fn establish(&mut self, now: Time, slot: Slot, grant: Grant<'_>) {
        self.sessions.erase(slot, |session| session.pending.take());
        let Some(session) = self.sessions.table.get_mut(slot) else { return };
        let before = session.current.as_ref().map_or(&[][..], |epoch| &epoch.indexes);
        let indexes = self.sessions.indexes.allocate(grant.offer.indexes.len(), before, &mut self.random);
        session.record.epoch += 1;
        let endpoints = vec![None; indexes.len()];
        let epoch = Epoch {
            number: session.record.epoch,
            suite: grant.suite,
            indexes,
            peer_indexes: grant.offer.indexes.iter().copied().map(Index).collect(),
            features: self.config.features & grant.offer.features,
            lab: self.config.lab.filter(|_| grant.offer.lab),
            secret: Arc::new(grant.secret),
            endpoints,
            began: now,
            confirmed: None,
        };
        session.pending = Some(epoch.clone());
        session.features = epoch.features;
        session.heard = now;
        let record = session.record.clone();
        let network = self.settings_of(&record.principal).map(|settings| &settings.network);
        let network = network.map(|template| record.addresses.network(template)).unwrap_or_default();
        let network = network.within(epoch.features);
        let Some(session) = self.sessions.table.get_mut(slot) else { return };
        let opening = (!core::mem::replace(&mut session.open, true)).then(|| session.spec());
        if let Some(spec) = opening {
            self.sessions.command_all(|_| Command::Open(spec.clone()));
        }
        self.sessions.install(slot, &epoch);
        self.sessions.timers.set((slot, Reason::Unconfirmed), now + self.sessions.waits.confirm_within);
        self.sessions.timers.set((slot, Reason::DeadPeer), now + self.sessions.waits.dead_peer);
        self.sessions.timers.cancel((slot, Reason::Wake));

        let established = Established {
            session: record.id,
            epoch: epoch.number,
            suite: epoch.suite.suite.id(),
            indexes: List::new(epoch.indexes.iter().map(|index| index.0).collect())
                .expect("there are as many as the offer had, which is of the same type"),
            gateway_lanes: self.config.shards as u8,
            features: epoch.features,
            token: grant.token,
            network,
            timers: self.sessions.waits.to_message(),
        };
        self.sessions.effects.push_back(Effect::Persist(record));
        let (connection, message) = (grant.connection, Message::Established(Box::new(established)));
        self.sessions.send(connection, message);
        self.renew(connection, epoch.features);
        if let Some(before) = self.sessions.table.connect(slot, connection) {
            self.sessions.close_connection(before, Code::Superseded, Code::Superseded.explanation());
        }
    }

    /// Lets a device in that has shown its key, and carries packets of `mtu` bytes at most. Takes
    /// the place of the device's session before. The effects are to be carried out before the
    /// shards are given keys.
    ///
    /// # Errors
    /// If there is no room for it, no profile, or the gateway is being drained.
    pub fn admit_wireguard(&mut self, now: Time, who: Authenticated, mtu: u16) -> Result<Slot, Code> {
        if self.draining {
            return Err(Code::Drain);
        }
        self.check_room(&who)?;
        let token = Token::from_bytes(random_bytes(&mut self.random));
        let slot = self.begin_session(now, who, token.hash()).ok_or(Code::Internal)?;
        // Packets are padded: none makes a datagram larger than the path for which `mtu` was meant.
        let padded = usize::from(mtu) / PADDING * PADDING;
        let size = Sealer::message_len(padded).try_into().unwrap_or(u16::MAX);
        let Some(session) = self.sessions.table.get_mut(slot) else { return Err(Code::Internal) };
        session.wireguard = Some(WireGuard { endpoint: None, handshake: now, two_places: None });
        (session.open, session.path_size) = (true, Some(size));
        let (spec, record) = (session.spec(), session.record.clone());
        self.sessions.command_all(|_| Command::Open(spec.clone()));
        self.sessions.command_all(|_| Command::PathSize { slot, size });
        self.sessions.effects.push_back(Effect::Persist(record));
        Ok(slot)
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

    /// Whether there is room for a session of this user and device, once others made room that may.
    fn check_room(&self, who: &Authenticated) -> Result<(), Code> {
        self.settings_of(&who.principal).ok_or(Code::NoProfile)?;
        let table = &self.sessions.table;
        let before = table.by_device(&who.user, who.device).and_then(|slot| table.get(slot));
        if before.is_some_and(|before| is_walled(&who.principal) || !is_walled(&before.record.principal)) {
            return Ok(());
        }
        if self.is_full_for(who) && self.least_needed(who).is_none() { Err(Code::TooMany) } else { Ok(()) }
    }

    fn is_full_for(&self, who: &Authenticated) -> bool {
        self.is_user_full(who) || self.sessions.table.len() + self.elsewhere >= self.config.max_sessions
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
            let walled = self.sessions.table.iter().filter(|session| is_walled(&session.record.principal));
            walled.min_by_key(|session| session.last_heard())
        };
        let may_be_anyones = !is_walled(&who.principal) && !self.is_user_full(who);
        oldest.or_else(|| if may_be_anyones { walled() } else { None }).map(|session| session.slot)
    }

    /// The user's sessions, of which those of walled devices are others.
    fn alike<'g>(&'g self, who: &'g Authenticated) -> impl Iterator<Item = &'g Session> {
        let of_user = self.sessions.table.of_user(&who.user);
        of_user.filter(|session| is_walled(&session.record.principal) == is_walled(&who.principal))
    }

    fn check_offer(&self, connection: ConnectionId, offer: &Offer) -> Result<LocalSuite, Code> {
        let distinct: BTreeSet<u32> = offer.indexes.iter().copied().collect();
        let well_formed = !offer.indexes.is_empty() && distinct.len() == offer.indexes.len();
        if !well_formed || self.sessions.table.by_connection(connection).is_some() {
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
            self.sessions.end(slot, Code::Superseded, Code::Superseded.explanation());
        }
    }

    fn refuse(&mut self, connection: ConnectionId, code: Code) -> Code {
        let text = Explanation::cut(code.explanation());
        let message = Message::Refused(Refused { code, text, retry_after_ms: None });
        self.sessions.send(connection, message);
        self.sessions.effects.push_back(Effect::CloseConnection { connection, code });
        code
    }
}

fn is_walled(principal: &Principal) -> bool {
    principal.profile() == ProfileId::WALLED
}
