//! From where the clients of sessions are heard, for the pages that their users see.
//!
//! INVARIANT: an entry is there only for a session that was granted here or is the store's, and
//! goes with it. Where this process began after the session, its address is not known until its
//! client moves. The store keeps when and in which network a device was there last.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use vpnd_admission::keeper::Keeper;
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_store::{Sighting, Store, UserId, client_network};
use vpnd_sys::clock::wall_s;

/// Addresses that are remembered at most.
const MAX_ADDRESSES: usize = 1 << 20;

/// Sightings of this time are stored together.
const PAUSE: Duration = Duration::from_secs(2);
/// Sightings of one write.
const PART: usize = 256;

pub(crate) type Owner = (UserId, DeviceId);

pub(crate) struct Heard {
    owners: HashMap<SessionId, Owner>,
    addresses: HashMap<Owner, (SessionId, IpAddr)>,
    /// Devices whose configuration is another one's, too, until their sessions end.
    in_two_places: HashSet<Owner>,
    sightings: Keeper<Owner, Sighting>,
    /// Whether networks are kept.
    keeps_networks: bool,
}

impl Heard {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let sightings = Keeper::start(PAUSE, move |seen: Vec<(Owner, Sighting)>| {
            let seen: Vec<Sighting> = seen.into_iter().map(|(_, sighting)| sighting).collect();
            // Other writes wait no longer than for one part.
            for part in seen.chunks(PART) {
                if let Err(error) = store.keep_sightings(part) {
                    tracing::error!(%error, "it could not be stored when devices were there last");
                    return;
                }
            }
        });
        Self {
            owners: HashMap::new(),
            addresses: HashMap::new(),
            in_two_places: HashSet::new(),
            sightings,
            keeps_networks: true,
        }
    }

    /// Whether networks of clients are kept from now on.
    pub(crate) fn keep_networks(&mut self, do_keep: bool) {
        self.keeps_networks = do_keep;
    }

    fn saw(&self, (user, device): Owner, from: Option<IpAddr>) {
        let network = from.filter(|_| self.keeps_networks).map(client_network);
        let sighting = Sighting { user, device, at_s: wall_s(), network };
        self.sightings.keep([((user, device), sighting)]);
    }

    /// A session of the store goes on.
    pub(crate) fn goes_on(&mut self, session: SessionId, user: UserId, device: DeviceId) {
        if self.owners.len() < MAX_ADDRESSES {
            self.owners.insert(session, (user, device));
        }
    }

    /// A session begins.
    pub(crate) fn began(&mut self, session: SessionId, user: UserId, device: DeviceId, from: IpAddr) {
        if self.owners.len() < MAX_ADDRESSES {
            self.owners.insert(session, (user, device));
            self.addresses.insert((user, device), (session, from));
            self.saw((user, device), Some(from));
        }
    }

    /// The user and the device of a session.
    pub(crate) fn owner(&self, session: SessionId) -> Option<Owner> {
        self.owners.get(&session).copied()
    }

    /// Its client is heard from elsewhere now.
    pub(crate) fn moved(&mut self, session: SessionId, from: IpAddr) {
        let Some(owner) = self.owners.get(&session).copied() else { return };
        let (current, address) = self.addresses.entry(owner).or_insert((session, from));
        if *current == session {
            *address = from;
            self.saw(owner, Some(from));
        }
    }

    /// Two devices use the configuration of the session's one.
    pub(crate) fn in_two_places(&mut self, session: SessionId) {
        self.in_two_places.extend(self.owners.get(&session));
    }

    /// It is over.
    pub(crate) fn ended(&mut self, session: SessionId) {
        let Some(owner) = self.owners.remove(&session) else { return };
        self.in_two_places.remove(&owner);
        match self.addresses.get(&owner) {
            Some((current, from)) if *current == session => {
                self.saw(owner, Some(*from));
                self.addresses.remove(&owner);
            }
            // Another one of the device goes on.
            Some(_) => {}
            None => self.saw(owner, None),
        }
    }

    /// The users who are heard from this address.
    pub(crate) fn users_at(&self, address: IpAddr) -> BTreeSet<UserId> {
        let matching = self.addresses.iter().filter(|(_, (_, from))| from.to_canonical() == address);
        matching.map(|((user, _), _)| *user).collect()
    }

    /// Whether two devices use this one's configuration.
    pub(crate) fn is_in_two_places(&self, user: UserId, device: DeviceId) -> bool {
        self.in_two_places.contains(&(user, device))
    }

    /// Where the session of this device was heard from last.
    pub(crate) fn from(&self, user: UserId, device: DeviceId) -> Option<IpAddr> {
        self.addresses.get(&(user, device)).map(|(_, address)| address.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_store::sqlite::Sqlite;
    use vpnd_store::{
        KnownDevices as _, NewUser, NewWireGuardDevice, PasswordHash, Users as _, WireGuardDevices as _,
    };

    #[test]
    fn an_outer_address_is_dropped_with_its_session() {
        let (ann, device) = (UserId([1; 16]), DeviceId([2; 16]));
        let (one, two) = (SessionId([3; 16]), SessionId([4; 16]));
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        let mut heard = Heard::new(Arc::new(store));
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
        assert!(!heard.is_in_two_places(ann, device));
        heard.in_two_places(two);
        assert!(heard.is_in_two_places(ann, device));
        heard.ended(two);
        assert!(!heard.is_in_two_places(ann, device), "with its session");
        assert_eq!((heard.from(ann, device), heard.owners.len()), (None, 0));
        // One that began before this process.
        heard.goes_on(one, ann, device);
        assert_eq!(heard.from(ann, device), None);
        heard.moved(one, address("192.0.2.4"));
        assert_eq!(heard.from(ann, device), Some(address("192.0.2.4")));
    }

    #[test]
    fn the_last_contact_of_a_device_is_stored_without_forbidden_networks() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap());
        let ann = store.add_user(&NewUser::new("ann", PasswordHash::new("none".to_owned())), 1).unwrap();
        for number in [1, 2] {
            let device = NewWireGuardDevice {
                public_key: [number; 32],
                id: DeviceId([number; 16]),
                name: String::new(),
                preshared: None,
                most: 64,
                addresses: Vec::new(),
            };
            store.add_wireguard_device("ann", &device, 10).unwrap();
        }
        let mut heard = Heard::new(Arc::clone(&store) as _);
        heard.began(SessionId([1; 16]), ann, DeviceId([1; 16]), [192, 0, 2, 1].into());
        heard.keep_networks(false);
        heard.began(SessionId([2; 16]), ann, DeviceId([2; 16]), [192, 0, 2, 1].into());
        // The keeper stores the rest when it ends.
        drop(heard);
        let mut known = Vec::new();
        for _ in 0..1_000 {
            known = store.known_devices(ann).unwrap();
            if known.iter().all(|known| known.seen_s.is_some()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let networks: Vec<_> =
            known.iter().map(|known| (known.seen_s.is_some(), known.network.as_deref())).collect();
        assert_eq!(networks, [(true, Some("192.0.2.0/24")), (true, None)]);
    }
}
