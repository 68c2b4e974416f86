//! Behaviour of [`crate::KnownDevices`].

use vpnd_proto::session::DeviceId;

use super::{Stand, lease, named};
use crate::{KnownDevice, Lease, LeaseOwner, NewWireGuardDevice, Sighting, UserId};

pub(crate) fn a_device_is_known_from_its_first_to_its_last_day(stand: &dyn Stand) {
    let store = stand.open();
    let (ann, bob) = (store.add_user(&named("ann"), 1).unwrap(), store.add_user(&named("bob"), 1).unwrap());
    let add = |user: &str, number: u8, now_s| {
        let device = NewWireGuardDevice {
            public_key: [number; 32],
            id: DeviceId([number; 16]),
            name: String::new(),
            preshared: None,
            most: 64,
            addresses: Vec::new(),
        };
        store.add_wireguard_device(user, &device, now_s).unwrap();
    };
    let seen = |user: UserId, number: u8, at_s, network: Option<&str>| {
        let (device, network) = (DeviceId([number; 16]), network.map(str::to_owned));
        store.keep_sightings(&[Sighting { user, device, at_s, network }]).unwrap();
    };
    let known = |number: u8, added_s, seen_s, network: Option<&str>| KnownDevice {
        device: DeviceId([number; 16]),
        added_s,
        seen_s,
        network: network.map(str::to_owned),
    };
    add("ann", 1, 10);
    add("ann", 2, 20);
    add("bob", 3, 30);
    assert_eq!(store.known_devices(ann).unwrap(), [known(1, 10, None, None), known(2, 20, None, None)]);
    seen(ann, 1, 50, Some("198.51.100.0/24"));
    seen(ann, 1, 60, None);
    assert_eq!(store.known_devices(ann).unwrap()[0], known(1, 10, Some(60), Some("198.51.100.0/24")));
    seen(ann, 1, 70, Some("2001:db8:1::/48"));
    assert_eq!(store.known_devices(ann).unwrap()[0], known(1, 10, Some(70), Some("2001:db8:1::/48")));
    // Without an address or a key there is no device, nor without a user.
    seen(ann, 9, 80, None);
    seen(ann, 3, 80, None);
    seen(UserId([9; 16]), 9, 80, None);
    assert_eq!(store.known_devices(ann).unwrap().len(), 2);
    assert!(store.known_devices(UserId([9; 16])).unwrap().is_empty());
    assert_eq!(store.known_devices(bob).unwrap(), [known(3, 30, None, None)]);
    assert!(store.remove_device("ann", DeviceId([1; 16]), 90).unwrap());
    assert_eq!(store.known_devices(ann).unwrap(), [known(2, 20, None, None)]);
    store.remove_user("ann", 91).unwrap();
    assert!(store.known_devices(ann).unwrap().is_empty());
    drop(store);
    assert_eq!(stand.open().known_devices(bob).unwrap(), [known(3, 30, None, None)]);
}

pub(crate) fn devices_that_are_seen_together_are_each_kept(stand: &dyn Stand) {
    let store = stand.open();
    let (ann, bob) = (store.add_user(&named("ann"), 1).unwrap(), store.add_user(&named("bob"), 1).unwrap());
    for (user, number) in [(ann, 1), (ann, 2), (bob, 3)] {
        let owner = LeaseOwner { user, device: DeviceId([number; 16]) };
        assert!(store.claim(&Lease { owner, ..lease(&format!("10.0.0.{number}"), 0, 0, 9000) }, 1).unwrap());
    }
    let seen = |user, number, at_s, network: Option<&str>| {
        let network = network.map(str::to_owned);
        Sighting { user, device: DeviceId([number; 16]), at_s, network }
    };
    let known = |user| {
        let known = store.known_devices(user).unwrap().into_iter();
        known.map(|known| (known.device.0[0], known.added_s, known.seen_s, known.network)).collect::<Vec<_>>()
    };
    let network = |text: &str| Some(text.to_owned());
    let (first, second) = ("198.51.100.0/24", "2001:db8:1::/48");
    store.keep_sightings(&[seen(ann, 2, 40, Some(first)), seen(bob, 3, 50, None)]).unwrap();
    // One is of a user whom the store does not know, and one has no address.
    let all = [
        seen(ann, 1, 60, Some(second)),
        seen(UserId([9; 16]), 1, 60, None),
        seen(ann, 2, 70, None),
        seen(bob, 4, 80, None),
        seen(bob, 3, 90, Some(first)),
    ];
    store.keep_sightings(&all).unwrap();
    assert_eq!(known(ann), [(1, 60, Some(60), network(second)), (2, 40, Some(70), network(first))]);
    assert_eq!(known(bob), [(3, 50, Some(90), network(first))]);
    store.keep_sightings(&[]).unwrap();
}
