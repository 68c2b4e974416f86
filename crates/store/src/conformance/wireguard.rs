//! Behaviour of [`crate::WireGuardDevices`].

use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::DeviceId;

use super::{Stand, named, session_of};
use crate::{
    HandshakeShown, NewUser, NewWireGuardDevice, OwnedDevice, PresharedKey, RevocationCause, Store,
    StoreError, UserChange, WireGuardDevice,
};

fn phone(number: u8) -> NewWireGuardDevice {
    NewWireGuardDevice {
        public_key: [number; 32],
        id: DeviceId([number; 16]),
        name: format!("phone {number}"),
        preshared: Some(PresharedKey::new([7; 32])),
        most: 64,
        addresses: vec![[10, 86, 0, number].into(), format!("fd86::{number}").parse().unwrap()],
    }
}

fn device(store: &dyn Store, number: u8) -> Option<WireGuardDevice> {
    store.find_wireguard_device(&[number; 32], 0).unwrap().map(|found| found.device)
}

pub(crate) fn a_wireguard_device_is_one_users_and_comes_back_whole(stand: &dyn Stand) {
    let store = stand.open();
    let ann = store.add_user(&named("ann"), 1000).unwrap();
    store.add_user(&named("bob"), 1000).unwrap();
    store.add_wireguard_device("ann", &phone(2), 1500).unwrap();
    drop(store);
    let store = stand.open();
    let found = device(store.as_ref(), 2).unwrap();
    let wanted = WireGuardDevice {
        public_key: [2; 32],
        user: ann,
        id: DeviceId([2; 16]),
        name: "phone 2".to_owned(),
        preshared: Some(PresharedKey::new([7; 32])),
        renewed_s: 1500,
        walled_s: None,
        latest: None,
        latest_own: None,
        outer: None,
        may_connect: true,
    };
    assert_eq!(found, wanted);
    assert_eq!(store.user("ann").unwrap().unwrap().fixed_addresses.len(), 2, "its addresses are its own");
    let taken =
        store.add_wireguard_device("bob", &NewWireGuardDevice { id: DeviceId([3; 16]), ..phone(2) }, 1);
    assert!(matches!(taken, Err(StoreError::KeyTaken { holder }) if holder == "ann"));
    let addresses = phone(2).addresses;
    let taken = store.add_wireguard_device("bob", &NewWireGuardDevice { addresses, ..phone(3) }, 1);
    assert!(matches!(taken, Err(StoreError::AddressTaken { .. })));
    assert!(matches!(store.add_wireguard_device("eve", &phone(3), 1), Err(StoreError::NoSuchUser { .. })));
    assert_eq!(store.wireguard_devices().unwrap(), [wanted], "what was refused has changed nothing");
    store.add_wireguard_device("bob", &phone(4), 1).unwrap();
    let keys_of = |name: &str| {
        let devices = store.wireguard_devices_of(store.user(name).unwrap().unwrap().id).unwrap();
        devices.into_iter().map(|device| device.public_key[0]).collect::<Vec<_>>()
    };
    assert_eq!((keys_of("ann"), keys_of("bob")), (vec![2], vec![4]));
}

pub(crate) fn a_user_has_as_many_wireguard_devices_as_the_next_one_allows(stand: &dyn Stand) {
    let store = stand.open();
    store.add_user(&named("ann"), 1000).unwrap();
    store.add_user(&named("bob"), 1000).unwrap();
    let add = |user: &str, number: u8, most: u64| {
        store.add_wireguard_device(user, &NewWireGuardDevice { most, ..phone(number) }, 1500)
    };
    add("ann", 2, 2).unwrap();
    add("ann", 3, 2).unwrap();
    for most in [2, 1] {
        let refused = add("ann", 4, most);
        assert!(matches!(&refused, Err(StoreError::TooManyDevices { most: found, .. }) if *found == most));
    }
    assert_eq!(store.wireguard_devices().unwrap().len(), 2, "none was removed");
    add("bob", 5, 2).unwrap();
    add("ann", 4, 3).unwrap();
}

pub(crate) fn timestamps_of_handshakes_only_become_later(stand: &dyn Stand) {
    let store = stand.open();
    store.add_user(&named("ann"), 1000).unwrap();
    store.add_wireguard_device("ann", &phone(2), 1500).unwrap();
    let shown = |time: u8, is_own| HandshakeShown { public_key: [2; 32], time: [time; 12], is_own };
    let gone = HandshakeShown { public_key: [9; 32], ..shown(1, false) };
    let kept = store.keep_handshakes(&[shown(5, false), gone, shown(3, true), shown(4, false)]).unwrap();
    assert_eq!(kept, [true, true, true, false]);
    assert_eq!(store.keep_handshakes(&[shown(2, true), shown(5, false)]).unwrap(), [false; 2]);
    let remote = "192.0.2.1:51820".parse().unwrap();
    let outer = Endpoint { remote, local: Some([198, 51, 100, 1].into()) };
    store.keep_outer(&[(DeviceId([2; 16]), None), (DeviceId([2; 16]), Some(outer))]).unwrap();
    let found = device(store.as_ref(), 2).unwrap();
    assert_eq!((found.latest, found.latest_own, found.outer), (Some([5; 12]), Some([3; 12]), Some(outer)));
    store.keep_outer(&[(DeviceId([2; 16]), None)]).unwrap();
    assert_eq!(device(store.as_ref(), 2).unwrap().outer, None);
    assert!(store.forget_handshakes("ann", DeviceId([2; 16])).unwrap());
    assert!(!store.forget_handshakes("ann", DeviceId([9; 16])).unwrap());
    let found = device(store.as_ref(), 2).unwrap();
    assert_eq!((found.latest, found.latest_own), (None, Some([3; 12])));
}

pub(crate) fn a_walled_device_is_so_until_it_is_renewed(stand: &dyn Stand) {
    let store = stand.open();
    store.add_user(&named("ann"), 1000).unwrap();
    store.add_wireguard_device("ann", &phone(2), 1500).unwrap();
    let id = DeviceId([2; 16]);
    store.wall_wireguard_device(id, 1600).unwrap();
    store.wall_wireguard_device(id, 1700).unwrap();
    store.wall_wireguard_device(DeviceId([9; 16]), 1700).unwrap();
    assert_eq!(device(store.as_ref(), 2).unwrap().walled_s, Some(1600));
    assert!(!store.renew_wireguard_device("ann", DeviceId([9; 16]), 1800).unwrap());
    assert!(store.renew_wireguard_device("ann", id, 1800).unwrap());
    let renewed = device(store.as_ref(), 2).unwrap();
    assert_eq!((renewed.walled_s, renewed.renewed_s), (None, 1800));
}

pub(crate) fn a_removed_wireguard_device_is_gone_with_its_addresses_and_sessions(stand: &dyn Stand) {
    let store = stand.open();
    let ann = store.add_user(&named("ann"), 1000).unwrap();
    store.add_wireguard_device("ann", &phone(2), 1500).unwrap();
    store.add_wireguard_device("ann", &phone(3), 1500).unwrap();
    assert!(store.remove_device("ann", DeviceId([2; 16]), 1600).unwrap(), "it never had a session");
    assert!(store.add_session(&session_of(ann, 3), 1).unwrap());
    assert!(store.remove_device("ann", DeviceId([3; 16]), 1600).unwrap());
    assert_eq!(store.wireguard_devices().unwrap(), []);
    assert!(store.user("ann").unwrap().unwrap().fixed_addresses.is_empty());
    assert!(store.live_sessions(1600).unwrap().is_empty());
    let causes = store.revocations_since(0).unwrap().into_iter().map(|revocation| revocation.cause);
    assert_eq!(causes.collect::<Vec<_>>(), [RevocationCause::Device; 2]);
    store.add_wireguard_device("ann", &phone(2), 1700).unwrap();
    store.remove_user("ann", 1800).unwrap();
    assert_eq!(store.wireguard_devices().unwrap(), []);
}

pub(crate) fn each_change_of_who_may_have_which_device_shows(stand: &dyn Stand) {
    let store = stand.open();
    store.add_user(&named("bob"), 1000).unwrap();
    store.add_wireguard_device("bob", &phone(3), 1500).unwrap();
    let mut last = store.wireguard_changes(None).unwrap().last;
    let mut changes = |change: &dyn Fn()| {
        change();
        let changes = store.wireguard_changes(Some(last)).unwrap();
        assert!(!changes.are_all);
        last = changes.last;
        let key = |key: &[u8; 32]| key[0];
        let changed: Vec<_> = changes.devices.iter().map(|owned| key(&owned.device.public_key)).collect();
        (changed, changes.removed.iter().map(key).collect::<Vec<_>>())
    };
    // One device alone, whatever else there is.
    let (none, it, removed) = ((vec![], vec![]), (vec![2], vec![]), (vec![], vec![2]));
    let id = DeviceId([2; 16]);
    let modify = |change: &UserChange| store.modify_user("ann", change, 1600).unwrap();
    let groups = |groups: &[&str]| UserChange {
        groups: Some(groups.iter().map(|group| (*group).to_owned()).collect()),
        ..UserChange::default()
    };
    let shown = HandshakeShown { public_key: [2; 32], time: [1; 12], is_own: false };
    assert_eq!(changes(&|| assert!(store.add_user(&named("ann"), 1000).is_ok())), none, "without a device");
    assert_eq!(changes(&|| store.add_wireguard_device("ann", &phone(2), 1500).unwrap()), it);
    assert_eq!(changes(&|| store.set_enabled("ann", false, 1600).unwrap()), it);
    assert!(!device(store.as_ref(), 2).unwrap().may_connect);
    assert_eq!(changes(&|| store.set_enabled("ann", true, 1600).unwrap()), it);
    assert!(device(store.as_ref(), 2).unwrap().may_connect);
    assert_eq!(changes(&|| modify(&groups(&["staff", "it"]))), it, "in groups");
    assert_eq!(changes(&|| modify(&groups(&["it"]))), it, "out of one");
    assert_eq!(changes(&|| store.wall_wireguard_device(id, 1600).unwrap()), it);
    assert_eq!(changes(&|| assert!(store.renew_wireguard_device("ann", id, 1600).unwrap())), it);
    assert_eq!(changes(&|| drop(store.keep_handshakes(&[shown]).unwrap())), none, "a handshake is none");
    assert_eq!(changes(&|| assert!(store.forget_handshakes("ann", id).unwrap())), it);
    assert_eq!(changes(&|| assert!(store.remove_device("ann", id, 1700).unwrap())), removed);
    assert_eq!(changes(&|| store.add_wireguard_device("ann", &phone(2), 1500).unwrap()), it);
    assert_eq!(changes(&|| store.remove_user("ann", 1800).unwrap()), removed, "with its user");
}

pub(crate) fn devices_come_with_what_their_users_profiles_depend_on(stand: &dyn Stand) {
    let store = stand.open();
    let groups = vec!["it".to_owned(), "staff".to_owned()];
    store.add_user(&NewUser { groups: groups.clone(), ..named("ann") }, 1000).unwrap();
    store.add_user(&NewUser { groups: Vec::new(), ..named("bob") }, 1000).unwrap();
    store.add_wireguard_device("ann", &phone(2), 1500).unwrap();
    store.add_wireguard_device("bob", &phone(3), 1500).unwrap();
    let all = store.wireguard_changes(None).unwrap();
    assert!(all.are_all);
    let devices: Vec<_> = all.devices.iter().map(|owned| owned.device.clone()).collect();
    assert_eq!(devices, store.wireguard_devices().unwrap());
    let owner = |owned: &OwnedDevice| (owned.user_name.clone(), owned.source.clone(), owned.groups.clone());
    let owned_by = |name: &str, groups: Vec<String>| (name.to_owned(), crate::LOCAL.to_owned(), groups);
    let owners: Vec<_> = all.devices.iter().map(owner).collect();
    assert_eq!(owners, [owned_by("ann", groups), owned_by("bob", Vec::new())]);
    // A number that is not known any more, or not yet.
    for count in [512, 0] {
        let groups = Some((0..count).map(|number: u16| number.to_string()).collect());
        store.modify_user("bob", &UserChange { groups, ..UserChange::default() }, 1600).unwrap();
    }
    let now = store.wireguard_changes(Some(all.last)).unwrap();
    assert_eq!((now.are_all, now.devices.len()), (true, 2));
    assert!(store.wireguard_changes(Some(now.last + 1)).unwrap().are_all);
    assert_eq!(store.wireguard_changes(Some(now.last - 999)).unwrap().devices.len(), 1);
}
