//! The traits of a store, for whatever database carries out their statements.

use std::collections::HashSet;
use std::net::IpAddr;

use vpnd_proto::attach::Tokens;
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_sys::clock::Clocks;

use super::{
    Connection, Transaction, accounts, carriers, digest, events, fixed_addresses, gateways, notices,
    sessions, users,
};
use crate::put_off::{PutOff, Wall};
use crate::{
    Begun, CertificateHash, Device, ExternalUser, Family, Fleet, GatewayReport, GatewayState, HandshakeShown,
    HeldSession, Kicks, Lease, LeaseOwner, Leases, LiveSession, LiveUser, NewUser, Notices, Owner,
    PasswordHash, Revocation, RevocationCause, Revocations, SessionChange, SessionRecord, Sessions,
    StoreError, TakenAway, User, UserChange, UserId, UserImport, UserPage, Users,
};

/// Revocations that may be kept though they were carried out, so that not each is a change of its
/// own.
const KEPT_REVOCATIONS: u64 = 64;
/// Revocations that are kept where other gateways may not have read them yet.
const KEPT_FOR_OTHERS: u64 = 10_000;

/// Reads and changes as a whole.
pub(crate) trait Database: Send + Sync {
    /// Runs a query that sees one moment.
    fn read<T>(&self, query: impl FnOnce(&Connection<'_>) -> super::Result<T>) -> Result<T, StoreError>;

    /// Runs a change and commits it, or changes nothing. Changes follow one another: each sees all
    /// that was committed before it.
    fn change<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> super::Result<Result<T, StoreError>>,
    ) -> Result<T, StoreError>;

    /// Runs a change that takes rights away, which nothing may undo once it is acknowledged.
    fn revoke<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> super::Result<Result<T, StoreError>>,
    ) -> Result<T, StoreError>;

    /// A session, with what was put off.
    fn find_session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError>;

    /// Moves sessions to this gateway, as [`Fleet::move_here`] has it.
    fn take_over(&self, moves: &[(SessionId, u64)], now_s: u64) -> Result<Vec<SessionRecord>, StoreError> {
        self.change(|t| sessions::move_here(t, moves, now_s).map(Ok))
    }

    /// Changes sessions, or puts that off.
    fn alter_sessions(&self, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError>;

    /// Keeps timestamps of handshakes, or puts that off.
    fn keep_shown_handshakes(&self, shown: &[HandshakeShown]) -> Result<Vec<bool>, StoreError>;

    /// Keeps that a device was walled, or puts that off.
    fn wall_device(&self, wall: Wall) -> Result<(), StoreError>;

    /// Changes that were put off. Walls and timestamps are to be read there before the store is
    /// read.
    fn put_off(&self) -> &PutOff;

    /// The user, who may not log in if they are disabled by a kick that was put off.
    fn kicked(&self, user: User) -> Result<User, StoreError> {
        Ok(User { enabled: user.enabled && !self.put_off().kicks().holds(&user.name)?, ..user })
    }

    /// Learns of revocations that someone has made.
    fn learnt_of(&self, _revocations: &[Revocation]) {}

    /// Whether other gateways share it.
    fn is_shared(&self) -> bool {
        false
    }

    /// Refuses to lease addresses while other gateways may have sessions of which the database has
    /// lost the leases.
    fn may_lease(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// See [`Revocations::history`].
    fn present_history(&self) -> u64 {
        0
    }

    /// See [`Revocations::begin_again`].
    fn learn_again(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl<D: Database> Users for D {
    fn add_user(&self, user: &NewUser, now_s: u64) -> Result<UserId, StoreError> {
        self.change(|t| users::add(t, user, now_s))
    }

    fn user(&self, name: &str) -> Result<Option<User>, StoreError> {
        let found = self.read(|c| users::by_name(c, name))?;
        // A name that no user has takes as long.
        let is_held = self.put_off().kicks().holds(found.as_ref().map_or(name, |user| &user.name))?;
        Ok(found.map(|user| User { enabled: user.enabled && !is_held, ..user }))
    }

    fn user_by_id(&self, id: UserId) -> Result<Option<User>, StoreError> {
        self.read(|c| users::by_id(c, id))?.map(|user| self.kicked(user)).transpose()
    }

    fn user_by_subject(&self, source: &str, subject: &str) -> Result<Option<User>, StoreError> {
        let found = self.read(|c| match accounts::by_subject(c, source, subject)? {
            Some((id, _)) => users::by_id(c, id),
            None => Ok(None),
        })?;
        found.map(|user| self.kicked(user)).transpose()
    }

    fn find_users(&self, part: &str, after: Option<&str>, limit: usize) -> Result<UserPage, StoreError> {
        let mut page = self.read(|c| users::find(c, part, after, limit))?;
        for user in &mut page.users {
            user.enabled &= !self.put_off().kicks().holds(&user.name)?;
        }
        Ok(page)
    }

    fn users(&self) -> Result<Vec<User>, StoreError> {
        self.read(users::all)?.into_iter().map(|user| self.kicked(user)).collect()
    }

    fn set_enabled(&self, name: &str, enabled: bool, now_s: u64) -> Result<(), StoreError> {
        let change = |t: &Transaction<'_>| users::set_enabled(t, name, enabled, now_s);
        if enabled { self.change(change) } else { self.revoke(change) }
    }

    fn refresh_external(&self, user: &ExternalUser, now_s: u64) -> Result<User, StoreError> {
        self.kicked(self.change(|t| accounts::refresh_external(t, user, now_s))?)
    }

    fn update_external(&self, user: &ExternalUser, now_s: u64) -> Result<User, StoreError> {
        self.kicked(self.change(|t| accounts::update_external(t, user, now_s))?)
    }

    fn modify_user(&self, name: &str, change: &UserChange, now_s: u64) -> Result<(), StoreError> {
        self.revoke(|t| accounts::modify(t, name, change, now_s))
    }

    fn import_users(&self, users: &[UserImport], now_s: u64) -> Result<(), StoreError> {
        self.revoke(|t| accounts::import(t, users, now_s))
    }

    fn set_password(&self, name: &str, password: &PasswordHash, now_s: u64) -> Result<(), StoreError> {
        self.revoke(|t| users::set_password(t, name, password, now_s))
    }

    fn change_own_password(
        &self,
        user: &User,
        password: &PasswordHash,
        now_s: u64,
    ) -> Result<bool, StoreError> {
        self.revoke(|t| users::change_own_password(t, user, password, now_s))
    }

    fn rehash(&self, id: UserId, old: &PasswordHash, new: &PasswordHash) -> Result<(), StoreError> {
        self.change(|t| users::rehash(t, id, old, new).map(Ok))
    }

    fn remove_user(&self, name: &str, now_s: u64) -> Result<(), StoreError> {
        self.revoke(|t| users::remove(t, name, now_s))
    }

    fn add_certificate(&self, name: &str, certificate: &CertificateHash) -> Result<(), StoreError> {
        self.change(|t| users::add_certificate(t, name, certificate))
    }

    fn revoke_certificates(
        &self,
        name: &str,
        certificates: &[CertificateHash],
        now_s: u64,
    ) -> Result<(), StoreError> {
        self.revoke(|t| users::revoke_certificates(t, name, certificates, now_s))
    }

    fn has_one_time_codes(&self) -> Result<bool, StoreError> {
        self.read(users::have_one_time_codes)
    }

    fn use_totp_step(&self, id: UserId, step: u64) -> Result<bool, StoreError> {
        self.change(|t| users::use_totp_step(t, id, step).map(Ok))
    }

    fn knows_source(&self, id: UserId, source: &str, since_s: u64) -> Result<bool, StoreError> {
        self.read(|c| users::knows_source(c, id, source, since_s))
    }

    fn newest_sources(&self, limit: usize) -> Result<Vec<(String, u64)>, StoreError> {
        self.read(|c| users::newest_sources(c, limit))
    }

    fn remember_source(&self, id: UserId, source: &str, now_s: u64) -> Result<(), StoreError> {
        self.change(|t| users::remember_source(t, id, source, now_s).map(Ok))
    }
}

impl<D: Database> Sessions for D {
    fn add_session(&self, session: &SessionRecord, generation: u64) -> Result<bool, StoreError> {
        self.change(|t| sessions::add(t, session, generation).map(Ok))
    }

    fn session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError> {
        self.find_session(id, now_s)
    }

    fn set_tokens(&self, id: SessionId, tokens: &Tokens, epoch: u32) -> Result<bool, StoreError> {
        self.change(|t| Ok(Ok(sessions::set_tokens(t, &[(id, *tokens, epoch)])?.contains(&true))))
    }

    fn end_session(&self, id: SessionId, now_s: u64) -> Result<(), StoreError> {
        self.change(|t| sessions::end(t, id, now_s).map(Ok))
    }

    fn change_sessions(&self, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError> {
        self.alter_sessions(changes, now_s)
    }

    fn missing_sessions(&self, ids: &[SessionId], now_s: u64) -> Result<Vec<SessionId>, StoreError> {
        self.read(|c| sessions::missing(c, ids, now_s))
    }

    fn live_sessions(&self, now_s: u64) -> Result<Vec<LiveSession>, StoreError> {
        self.read(|c| sessions::live(c, now_s))
    }

    fn session_owners(&self, now_s: u64) -> Result<Vec<Owner>, StoreError> {
        self.read(|c| sessions::owners(c, now_s))
    }

    fn users_with_sessions(&self, source: &str) -> Result<Vec<LiveUser>, StoreError> {
        self.read(|c| accounts::with_sessions(c, source))
    }

    fn devices(&self, id: UserId) -> Result<Vec<Device>, StoreError> {
        self.read(|c| sessions::devices(c, id))
    }

    fn remove_device(&self, name: &str, device: DeviceId, now_s: u64) -> Result<bool, StoreError> {
        self.revoke(|t| accounts::remove_device(t, name, device, now_s))
    }
}

impl<D: Database> Leases for D {
    fn lease_of(&self, owner: LeaseOwner, family: Family) -> Result<Option<Lease>, StoreError> {
        self.read(|c| sessions::lease_of(c, owner, family))
    }

    fn fixed_addresses(&self, owner: LeaseOwner, family: Family) -> Result<Vec<IpAddr>, StoreError> {
        self.read(|c| fixed_addresses::of_owner(c, owner, family))
    }

    fn fixed_for_others(&self, owner: LeaseOwner, family: Family) -> Result<Vec<IpAddr>, StoreError> {
        self.read(|c| fixed_addresses::of_others(c, owner, family))
    }

    fn claim(&self, lease: &Lease, now_s: u64) -> Result<bool, StoreError> {
        Ok(self.claim_all(std::slice::from_ref(lease), now_s)?.contains(&true))
    }

    fn claim_all(&self, leases: &[Lease], now_s: u64) -> Result<Vec<bool>, StoreError> {
        // On the connection that makes the change.
        self.change(|t| match self.may_lease() {
            Ok(()) => leases
                .iter()
                .map(|lease| sessions::claim(t, lease, now_s))
                .collect::<super::Result<_>>()
                .map(Ok),
            Err(refused) => Ok(Err(refused)),
        })
    }

    fn surplus(&self, user: UserId, family: Family, now_s: u64) -> Result<Option<Lease>, StoreError> {
        self.read(|c| sessions::surplus(c, user, family, now_s))
    }

    fn lease_on(&self, address: IpAddr) -> Result<Option<Lease>, StoreError> {
        self.read(|c| sessions::lease_on(c, address))
    }

    fn leases(&self, family: Family) -> Result<Vec<Lease>, StoreError> {
        self.read(|c| sessions::leases(c, family))
    }

    fn live_leases(&self, first: IpAddr, last: IpAddr, now_s: u64) -> Result<u64, StoreError> {
        self.read(|c| sessions::live_leases(c, first, last, now_s))
    }

    fn release(&self, session: SessionId, now_s: u64) -> Result<(), StoreError> {
        self.change(|t| sessions::release(t, session, now_s).map(Ok))
    }

    fn orphaned(&self, now_s: u64) -> Result<HashSet<SessionId>, StoreError> {
        self.read(|c| sessions::orphaned(c, now_s))
    }

    fn forget_leases(&self, before_s: u64) -> Result<usize, StoreError> {
        self.change(|t| sessions::forget_leases(t, before_s).map(Ok))
    }
}

impl<D: Database> Revocations for D {
    fn end_sessions(&self, user: &LiveUser, cause: RevocationCause, now_s: u64) -> Result<(), StoreError> {
        self.revoke(|t| {
            users::revoke(t, user.id, &user.name, cause, now_s)?;
            digest::renew(t, user.id).map(Ok)
        })
    }

    fn end_device(
        &self,
        user: &LiveUser,
        device: DeviceId,
        cause: RevocationCause,
        now_s: u64,
    ) -> Result<(), StoreError> {
        self.revoke(|t| accounts::end_device(t, user.id, &user.name, device, cause, now_s).map(Ok))
    }

    fn end_expired(&self, now_s: u64) -> Result<usize, StoreError> {
        // Asked several times a second, so the write transaction is only for when there is
        // something to write.
        if self.read(|c| accounts::due(c, now_s))?.is_empty() {
            return Ok(0);
        }
        self.revoke(|t| accounts::end_expired(t, now_s).map(Ok))
    }

    fn last_revocation(&self) -> Result<u64, StoreError> {
        self.read(events::last_revocation)
    }

    fn last_forgotten(&self) -> Result<u64, StoreError> {
        self.read(events::last_forgotten)
    }

    fn history(&self) -> u64 {
        self.present_history()
    }

    fn begin_again(&self) -> Result<(), StoreError> {
        self.learn_again()
    }

    fn revocations_since(&self, seq: u64) -> Result<Vec<Revocation>, StoreError> {
        let revocations = self.read(|c| events::revocations_since(c, seq))?;
        self.learnt_of(&revocations);
        Ok(revocations)
    }

    fn forget_revocations(&self, carried_out: u64) {
        let for_others = if self.is_shared() { KEPT_FOR_OTHERS } else { 0 };
        let carried_out = carried_out.saturating_sub(for_others);
        let forget = || match self.read(|c| events::count_until(c, carried_out))? {
            0..=KEPT_REVOCATIONS => Ok(()),
            _ => self.change(|t| events::forget_until(t, carried_out).map(Ok)),
        };
        // The next call does it.
        if let Err(error) = forget() {
            tracing::debug!(%error, "revocations that were carried out are not forgotten");
        }
    }
}

impl<D: Database> Fleet for D {
    fn begin_session(&self, owner: LeaseOwner, most: Option<u64>, now_s: u64) -> Result<Begun, StoreError> {
        self.change(|t| match t.gateway() {
            Some(gateway) => carriers::make_room(t, gateway, owner, most, now_s).map(Ok),
            None => Ok(Err(StoreError::NoFleet)),
        })
    }

    fn held(&self, ids: &[SessionId], now_s: u64) -> Result<Vec<Option<HeldSession>>, StoreError> {
        let found = self.read(|c| sessions::held(c, ids, now_s))?;
        let newest = |held: HeldSession| -> Result<Option<HeldSession>, StoreError> {
            let (record, user) = (self.put_off().newest(Some(held.record))?, self.kicked(held.user)?);
            let is_usable = user.enabled;
            Ok(record.filter(|_| is_usable).map(|record| HeldSession { record, user, ..held }))
        };
        found.into_iter().map(|held| held.map_or(Ok(None), newest)).collect()
    }

    fn move_here(&self, moves: &[(SessionId, u64)], now_s: u64) -> Result<Vec<SessionRecord>, StoreError> {
        let moved = if moves.is_empty() { Vec::new() } else { self.take_over(moves, now_s)? };
        moved.into_iter().filter_map(|session| self.put_off().newest(Some(session)).transpose()).collect()
    }

    fn taken_away(&self) -> Result<Vec<TakenAway>, StoreError> {
        self.read(|c| match c.gateway() {
            Some(gateway) => carriers::taken_away(c, gateway),
            None => Ok(Vec::new()),
        })
    }

    fn dropped(&self, sessions: &[TakenAway]) -> Result<(), StoreError> {
        self.change(|t| match t.gateway() {
            Some(gateway) => carriers::dropped(t, gateway, sessions).map(Ok),
            None => Ok(Err(StoreError::NoFleet)),
        })
    }

    fn report(&self, report: &GatewayReport) -> Result<(), StoreError> {
        self.change(|t| match t.gateway() {
            Some(gateway) => gateways::report(t, gateway, report).map(Ok),
            None => Ok(Err(StoreError::NoFleet)),
        })
    }

    fn gateways(&self) -> Result<Vec<GatewayState>, StoreError> {
        self.read(|c| match c.gateway() {
            Some(gateway) => gateways::all(c, gateway),
            None => Ok(Vec::new()),
        })
    }

    fn agree_on_wireguard_key(&self, public: &[u8; 32]) -> Result<bool, StoreError> {
        self.change(|t| match t.gateway() {
            Some(gateway) => gateways::agree_on_wireguard_key(t, gateway, public).map(Ok),
            None => Ok(Err(StoreError::NoFleet)),
        })
    }

    fn notices(&self, after: u64) -> Result<Notices, StoreError> {
        self.read(|c| match c.gateway() {
            Some(_) => notices::since(c, after),
            None => Ok(Notices::default()),
        })
    }

    fn leave_notice(
        &self,
        origin: [u8; 16],
        after: u64,
        decide: &mut dyn FnMut(Notices) -> Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        self.change(|t| {
            if t.gateway().is_none() {
                return Ok(Err(StoreError::NoFleet));
            }
            match decide(notices::since(t, after)?) {
                Some(body) => notices::leave(t, origin, &body).map(Ok),
                None => Ok(Ok(())),
            }
        })
    }

    fn drain_unless_last(&self) -> Result<bool, StoreError> {
        self.change(|t| match t.gateway() {
            Some(gateway) => gateways::drain_unless_last(t, gateway).map(Ok),
            None => Ok(Err(StoreError::NoFleet)),
        })
    }

    fn kicks(&self) -> &Kicks {
        self.put_off().kicks()
    }

    fn write_kicks(
        &self,
        is_sent: &dyn Fn(&[u8; 16]) -> bool,
        writes_others: bool,
        clocks: Clocks,
    ) -> Result<usize, StoreError> {
        self.put_off().kicks().write(self, is_sent, writes_others, clocks)
    }
}
