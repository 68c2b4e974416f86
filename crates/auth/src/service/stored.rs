//! Sessions of the store to which clients attach.
//!
//! INVARIANT: a session goes on only as its user may have one now, with addresses of the pools.

use std::net::IpAddr;

use minicbor::bytes::ByteArray;
use vpnd_proto::session::{DeviceId, SessionId};

use super::{Service, account, latest_end_s};
use vpnd_admission::lease::Addresses;
use vpnd_admission::notices::lock;
use vpnd_ipc::gateway::auth::{Leased, StoredSession};
use vpnd_store::{Family, Lease, LeaseOwner, SessionRecord, StoreError, User};

impl Service {
    /// The session, to which a client attaches that was not there since the gateway started.
    pub(super) fn session(&self, id: SessionId) -> Result<Option<StoredSession>, StoreError> {
        Ok(self.usable(id)?.map(|(session, user)| self.taken_up(id, session, &user)))
    }

    /// A client attaches to the session.
    pub(super) fn taken_up(&self, id: SessionId, session: StoredSession, user: &User) -> StoredSession {
        let Leased { ipv4: v4, ipv6: v6 } = session.addresses;
        self.portal.heard().goes_on(id, user.id, DeviceId(session.device.into()));
        self.accounting().restored(id, user, Addresses { v4, v6 });
        lock(&self.absent).remove(id);
        session
    }

    /// The session and its user, if a client may attach to it.
    pub(super) fn usable(&self, id: SessionId) -> Result<Option<(StoredSession, User)>, StoreError> {
        let Some(record) = self.store.session(id, (self.clocks.steady)())? else { return Ok(None) };
        let Some(user) = self.store.user_by_id(record.user)? else { return Ok(None) };
        Ok(self.usable_by(&record, &user, &self.leases(&record)?).map(|session| (session, user)))
    }

    /// The session, if it is this user's and its client may go on with it.
    pub(super) fn usable_of(&self, id: SessionId, user: &User) -> Result<Option<StoredSession>, StoreError> {
        let record = self.store.session(id, (self.clocks.steady)())?;
        let Some(record) = record.filter(|record| record.user == user.id) else { return Ok(None) };
        Ok(self.usable_by(&record, user, &self.leases(&record)?))
    }

    /// The newest lease of the session's device in each family.
    fn leases(&self, record: &SessionRecord) -> Result<Vec<Lease>, StoreError> {
        let owner = LeaseOwner { user: record.user, device: record.device };
        let [v4, v6] = [Family::V4, Family::V6].map(|family| self.store.lease_of(owner, family));
        Ok(v4?.into_iter().chain(v6?).collect())
    }

    /// The session, if its user's client may go on with it; its device's leases that last longest
    /// are first.
    pub(super) fn usable_by(
        &self,
        record: &SessionRecord,
        user: &User,
        leases: &[Lease],
    ) -> Option<StoredSession> {
        let (id, now_s) = (record.id, (self.clocks.steady)());
        // The client logs in then, and is refused with the reason.
        if !user.enabled || user.has_expired((self.clocks.wall)()) {
            return None;
        }
        let profile = self.access.of(user)?;
        // A clock that was set back before this process began gives no session more than a
        // lifetime.
        let started_s = record.started_s.min(now_s);
        let lacks_factor = record.factors.missing(&profile.require).is_some();
        if lacks_factor || latest_end_s(started_s, profile.session_lifetime) <= now_s {
            return None;
        }
        // An address that another session of the device took over is no longer this one's.
        let is_its = |lease: &&Lease| lease.session == id && lease.is_live(now_s);
        let newest =
            |is_v4: bool| leases.iter().find(|lease| lease.address.is_ipv4() == is_v4).filter(is_its);
        let addresses = Leased {
            ipv4: newest(true).and_then(|lease| match lease.address {
                IpAddr::V4(v4) => Some(v4),
                IpAddr::V6(_) => None,
            }),
            ipv6: newest(false).and_then(|lease| match lease.address {
                IpAddr::V6(v6) => Some(v6),
                IpAddr::V4(_) => None,
            }),
        };
        // With other pools than it began with a session is over: nothing leads to its addresses any
        // more, or they are others' now. Its client logs in again and gets some that fit.
        let usable = (addresses.ipv4.is_some() || addresses.ipv6.is_some())
            && profile.pools().fit(addresses.ipv4, addresses.ipv6);
        let account = account(user).ok()?;
        let session = StoredSession {
            account,
            device: ByteArray::from(record.device.0),
            addresses,
            epoch: record.epoch,
            tokens: (&record.tokens).into(),
            started_s,
            factors: record.factors,
            expires_s: record.expires_s.min(latest_end_s(now_s, profile.session_lifetime)),
            generation: record.generation,
        };
        usable.then_some(session)
    }
}
