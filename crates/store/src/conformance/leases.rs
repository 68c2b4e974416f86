//! Behaviour of [`crate::Leases`].

use std::net::IpAddr;

use vpnd_proto::session::{DeviceId, SessionId};

use super::{Stand, ann, lease};
use crate::{AddressChange, Family, KEPT_LEASES, Lease, LeaseOwner, StoreError, UserChange, UserId};

pub(crate) fn an_address_has_one_owner_at_a_time(stand: &dyn Stand) {
    let store = stand.open();
    assert!(store.claim(&lease("10.0.0.2", 1, 1, 2000), 1000).unwrap());
    assert!(!store.claim(&lease("10.0.0.2", 2, 2, 9000), 1999).unwrap(), "it is live");
    assert!(store.claim(&lease("10.0.0.2", 1, 3, 2500), 1999).unwrap(), "its owner may");
    assert!(!store.claim(&lease("10.0.0.2", 2, 2, 9000), 2499).unwrap());
    assert!(store.claim(&lease("10.0.0.2", 2, 2, 9000), 2500).unwrap(), "it has ended");
    assert!(store.claim(&lease("10.0.0.3", 2, 2, 9000), 2500).unwrap());
    assert_eq!(
        store.leases(Family::V4).unwrap(),
        [lease("10.0.0.3", 2, 2, 9000)],
        "the one before is let go"
    );
    assert!(store.claim(&lease("fd00::2", 2, 2, 9000), 2500).unwrap(), "the other family is apart");
    let owner = lease("fd00::2", 2, 2, 0).owner;
    for (family, address) in [(Family::V4, "10.0.0.3"), (Family::V6, "fd00::2")] {
        let found = store.lease_of(owner, family).unwrap().unwrap();
        assert_eq!((found.address, found.until_s), (address.parse::<IpAddr>().unwrap(), 9000));
    }
    store.release(SessionId([2; 16]), 3000).unwrap();
    assert!(store.claim(&lease("10.0.0.3", 1, 1, 9000), 3000).unwrap(), "it was let go");
    let pair = ["10.0.0.3", "fd00::2"].map(|address| lease(address, 2, 4, 9000));
    assert_eq!(store.claim_all(&pair, 3001).unwrap(), [false, true], "each by itself");
    assert_eq!(store.leases(Family::V6).unwrap(), pair[1..]);
}

pub(crate) fn an_address_that_a_device_gives_up_for_another_is_nobodys_until_its_session_has_ended(
    stand: &dyn Stand,
) {
    let store = stand.open();
    let own = |address: &str| lease(address, 1, 1, 9000);
    assert!(store.claim(&own("10.0.0.1"), 1000).unwrap());
    let again = Lease { session: SessionId([2; 16]), ..own("10.0.1.1") };
    assert!(store.claim(&again, 1000).unwrap());
    let other = |address: &str| lease(address, 9, 9, 9000);
    assert_eq!(store.lease_of(again.owner, Family::V4).unwrap(), Some(again));
    assert!(!store.claim(&other("10.0.0.1"), 1059).unwrap());
    assert!(store.claim(&other("10.0.0.1"), 1060).unwrap());

    let third = Lease { session: SessionId([3; 16]), ..own("10.0.2.1") };
    assert!(store.claim(&third, 2000).unwrap());
    assert!(!store.claim(&lease("10.0.1.1", 8, 8, 9000), 2001).unwrap());
    store.end_session(SessionId([2; 16]), 2002).unwrap();
    assert!(store.claim(&lease("10.0.1.1", 8, 8, 9000), 2002).unwrap(), "the session has ended");
}

pub(crate) fn a_fixed_address_is_its_users_alone(stand: &dyn Stand) {
    let store = stand.open();
    let id = store.add_user(&ann(), 1000).unwrap();
    let device = DeviceId([1; 16]);
    let fix = |device, addresses: &[&str]| {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let addresses = Some(AddressChange { device, addresses });
        store.modify_user("ann", &UserChange { addresses, ..UserChange::default() }, 1000)
    };
    fix(None, &["10.0.0.9"]).unwrap();
    fix(Some(device), &["10.0.0.7", "fd00::7"]).unwrap();
    let owner = |device| LeaseOwner { user: id, device: DeviceId([device; 16]) };
    let v4 = ["10.0.0.7", "10.0.0.9"].map(|address| address.parse::<IpAddr>().unwrap());
    assert_eq!(store.fixed_addresses(owner(1), Family::V4).unwrap(), v4, "the device's own first");
    assert_eq!(store.fixed_addresses(owner(2), Family::V4).unwrap(), v4[1..]);
    assert_eq!(store.fixed_for_others(owner(2), Family::V4).unwrap(), v4[..1]);
    assert!(!store.claim(&Lease { owner: owner(2), ..lease("10.0.0.7", 0, 2, 9000) }, 1000).unwrap());
    assert!(store.claim(&Lease { owner: owner(1), ..lease("10.0.0.7", 0, 1, 9000) }, 1000).unwrap());
    assert!(!store.claim(&lease("10.0.0.9", 9, 9, 9000), 1000).unwrap());
    assert!(store.claim(&lease("10.0.0.5", 9, 9, 9000), 1000).unwrap());
    assert!(matches!(fix(None, &["10.0.0.5"]), Err(StoreError::AddressTaken { .. })), "a session has it");
    assert_eq!(store.fixed_addresses(owner(2), Family::V4).unwrap(), v4[1..], "nothing was changed");
}

pub(crate) fn leases_are_counted_and_forgotten(stand: &dyn Stand) {
    let store = stand.open();
    let device = |number: u8| LeaseOwner { user: UserId([1; 16]), device: DeviceId([number; 16]) };
    let kept = u8::try_from(KEPT_LEASES).unwrap();
    for number in 1..=kept + 1 {
        let until_s = 2000 + u64::from(number);
        let lease = Lease { owner: device(number), ..lease(&format!("10.0.0.{number}"), 0, number, until_s) };
        assert!(store.claim(&lease, 1000).unwrap());
    }
    let within = |now_s| {
        let [first, last] = ["10.0.0.1", "10.0.0.9"].map(|address| address.parse().unwrap());
        store.live_leases(first, last, now_s).unwrap()
    };
    assert_eq!((within(1000), within(2005)), (9, 4));
    let surplus = |now_s| store.surplus(UserId([1; 16]), Family::V4, now_s).unwrap();
    assert_eq!(surplus(2000 + u64::from(kept)), None);
    assert_eq!(surplus(9000).map(|lease| lease.address), Some("10.0.0.1".parse().unwrap()), "the oldest");
    assert_eq!(store.lease_on("10.0.0.2".parse().unwrap()).unwrap().map(|lease| lease.until_s), Some(2002));
    assert_eq!(store.forget_leases(2003).unwrap(), 2);
    assert_eq!(store.lease_on("10.0.0.2".parse().unwrap()).unwrap(), None);
    assert_eq!(store.leases(Family::V4).unwrap().len(), usize::from(kept) - 1);
}
