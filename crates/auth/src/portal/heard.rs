//! From where the clients of sessions are heard, for the pages that their users see.
//!
//! INVARIANT: an entry is there only for a session that was granted here, and goes with it. Where
//! this process began after the session, nothing is known until its client moves.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_store::UserId;

/// Addresses that are remembered at most.
const MAX_ADDRESSES: usize = 1 << 20;

type Owner = (UserId, DeviceId);

#[derive(Default)]
pub(crate) struct Heard {
    owners: HashMap<SessionId, Owner>,
    addresses: HashMap<Owner, (SessionId, IpAddr)>,
}

impl Heard {
    /// A session begins.
    pub(crate) fn began(&mut self, session: SessionId, user: UserId, device: DeviceId, from: IpAddr) {
        if self.owners.len() < MAX_ADDRESSES {
            self.owners.insert(session, (user, device));
            self.addresses.insert((user, device), (session, from));
        }
    }

    /// Its client is heard from elsewhere now.
    pub(crate) fn moved(&mut self, session: SessionId, from: IpAddr) {
        let owner = self.owners.get(&session);
        if let Some((current, address)) = owner.and_then(|owner| self.addresses.get_mut(owner))
            && *current == session
        {
            *address = from;
        }
    }

    /// It is over.
    pub(crate) fn ended(&mut self, session: SessionId) {
        if let Some(owner) = self.owners.remove(&session)
            && self.addresses.get(&owner).is_some_and(|(current, _)| *current == session)
        {
            self.addresses.remove(&owner);
        }
    }

    /// The users who are heard from this address.
    pub(crate) fn users_at(&self, address: IpAddr) -> BTreeSet<UserId> {
        let there = self.addresses.iter().filter(|(_, (_, from))| from.to_canonical() == address);
        there.map(|((user, _), _)| *user).collect()
    }

    /// Where the session of this device was heard from last.
    pub(crate) fn from(&self, user: UserId, device: DeviceId) -> Option<IpAddr> {
        self.addresses.get(&(user, device)).map(|(_, address)| address.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_goes_with_its_session() {
        let (ann, device) = (UserId([1; 16]), DeviceId([2; 16]));
        let (one, two) = (SessionId([3; 16]), SessionId([4; 16]));
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut heard = Heard::default();
        heard.moved(one, address("192.0.2.9"));
        assert_eq!(heard.from(ann, device), None, "no such session was granted");
        heard.began(one, ann, device, address("192.0.2.1"));
        heard.began(two, ann, device, address("192.0.2.2"));
        heard.moved(one, address("192.0.2.9"));
        heard.ended(one);
        assert_eq!(heard.from(ann, device), Some(address("192.0.2.2")));
        heard.moved(two, address("::ffff:192.0.2.3"));
        assert_eq!(heard.from(ann, device), Some(address("192.0.2.3")));
        assert_eq!(heard.users_at(address("192.0.2.3")), [ann].into());
        assert!(heard.users_at(address("192.0.2.9")).is_empty());
        heard.ended(two);
        assert_eq!((heard.from(ann, device), heard.owners.len()), (None, 0));
    }
}
