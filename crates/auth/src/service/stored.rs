//! Sessions of the store to which clients attach.
//!
//! INVARIANT: a session goes on only as its user may have one now, with addresses of the pools.

use minicbor::bytes::ByteArray;
use vpnd_proto::session::{DeviceId, SessionId};

use super::{Service, account, latest_end_s};
use crate::lease::Addresses;
use vpnd_ipc::gateway::auth::{Leased, StoredSession};
use vpnd_store::{Family, LeaseOwner, SessionRecord, StoreError, User};

impl Service {
    /// The session, to which a client attaches that was not there since the gateway started.
    pub(super) fn session(&self, id: SessionId) -> Result<Option<StoredSession>, StoreError> {
        let Some((session, user)) = self.usable(id)? else { return Ok(None) };
        let Leased { ipv4: v4, ipv6: v6 } = session.addresses;
        self.portal.heard().goes_on(id, user.id, DeviceId(session.device.into()));
        self.accounting().restored(id, &user, Addresses { v4, v6 });
        self.absent().remove(id);
        Ok(Some(session))
    }

    /// The session and its user, if a client may attach to it.
    pub(super) fn usable(&self, id: SessionId) -> Result<Option<(StoredSession, User)>, StoreError> {
        let Some(record) = self.store.session(id, (self.clocks.steady)())? else { return Ok(None) };
        let Some(user) = self.store.user_by_id(record.user)? else { return Ok(None) };
        Ok(self.usable_by(record, &user)?.map(|session| (session, user)))
    }

    /// The session, if it is this user's and its client may go on with it.
    pub(super) fn usable_of(&self, id: SessionId, user: &User) -> Result<Option<StoredSession>, StoreError> {
        let record = self.store.session(id, (self.clocks.steady)())?;
        match record.filter(|record| record.user == user.id) {
            Some(record) => self.usable_by(record, user),
            None => Ok(None),
        }
    }

    fn usable_by(&self, record: SessionRecord, user: &User) -> Result<Option<StoredSession>, StoreError> {
        let (id, now_s, store) = (record.id, (self.clocks.steady)(), self.store.as_ref());
        // The client logs in then, and is refused with the reason.
        if !user.enabled || user.has_expired((self.clocks.wall)()) {
            return Ok(None);
        }
        let Some(profile) = self.access.of(user) else { return Ok(None) };
        // A clock that was set back before this process began gives no session more than a
        // lifetime.
        let started_s = record.started_s.min(now_s);
        let lacks_factor = record.factors.missing(&profile.require).is_some();
        if lacks_factor || latest_end_s(started_s, profile.session_lifetime) <= now_s {
            return Ok(None);
        }
        let owner = LeaseOwner { user: record.user, device: record.device };
        let leased = |family| -> Result<_, StoreError> {
            // An address that another session of the device took over is no longer this one's.
            let lease = store.lease_of(owner, family)?;
            Ok(lease.filter(|lease| lease.session == id && lease.is_live(now_s)).map(|lease| lease.address))
        };
        let addresses = Leased {
            ipv4: leased(Family::V4)?.and_then(|address| match address {
                std::net::IpAddr::V4(v4) => Some(v4),
                std::net::IpAddr::V6(_) => None,
            }),
            ipv6: leased(Family::V6)?.and_then(|address| match address {
                std::net::IpAddr::V6(v6) => Some(v6),
                std::net::IpAddr::V4(_) => None,
            }),
        };
        // With other pools than it began with a session is over: nothing leads to its addresses any
        // more, or they are others' now. Its client logs in again and gets some that fit.
        let usable = (addresses.ipv4.is_some() || addresses.ipv6.is_some())
            && profile.pools().fit(addresses.ipv4, addresses.ipv6);
        let Ok(account) = account(user) else { return Ok(None) };
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
        Ok(usable.then_some(session))
    }
}
