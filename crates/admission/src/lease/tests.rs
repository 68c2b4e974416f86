//! Leases against the real store, in order of events; time is a number.

use proptest::prelude::*;
use vpnd_proto::session::DeviceId;

use super::*;
use vpnd_config::Tunnel;
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{AddressChange, NewUser, PasswordHash, Sessions as _, UserChange, UserId, Users as _};

struct Bench {
    store: Sqlite,
    pools: Pools,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new(v4: &str, v6: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&dir.path().join("vpnd.db")).unwrap();
        let tunnel = Tunnel {
            pool_v4: Some(v4.parse().unwrap()),
            pool_v6: v6.map(|net| net.parse().unwrap()),
            ..Tunnel::default()
        };
        Self { store, pools: Pools::rest(&tunnel, &[]), _dir: dir }
    }

    fn acquire(&self, owner: LeaseOwner, session: u8, now_s: u64) -> Result<Addresses, LeaseError> {
        self.acquired(owner, session, now_s).map(|acquired| acquired.addresses)
    }

    fn acquired(&self, owner: LeaseOwner, session: u8, now_s: u64) -> Result<Acquired, LeaseError> {
        acquire(&self.pools, &self.store, anything(owner), SessionId([session; 16]), now_s, now_s + 100)
    }
}

#[test]
fn a_user_with_ever_new_devices_takes_a_bounded_part() {
    let bench = Bench::new("10.0.0.0/22", Some("fd00::/112"));
    let rows = || [Family::V4, Family::V6].map(|family| bench.store.leases(family).unwrap().len());
    let other = bench.acquire(owner(2, 1), 200, 1000).unwrap();
    for number in 0..200u8 {
        let now_s = 1000 + 10 * u64::from(number);
        bench.acquire(owner(1, number), number, now_s).unwrap();
        bench.store.end_session(SessionId([number; 16]), now_s + 1).unwrap();
    }
    assert_eq!(rows(), [34, 34], "33 of the user, and that of another");
    // The newest keep theirs, and so does who else has been here.
    let newest = bench.store.lease_of(owner(1, 199), Family::V4).unwrap().unwrap();
    assert_eq!(bench.acquire(owner(1, 199), 201, 5000).unwrap().v4.map(IpAddr::from), Some(newest.address));
    assert_eq!(bench.acquire(owner(2, 1), 202, 5000).unwrap(), other);
}

#[test]
fn expired_leases_are_forgotten_and_live_ones_are_kept() {
    let bench = Bench::new("10.0.0.0/24", None);
    bench.acquire(owner(1, 1), 1, 1000).unwrap();
    bench.acquire(owner(2, 1), 2, 1500).unwrap();
    assert_eq!(bench.store.forget_leases(1100).unwrap(), 0, "it ends then");
    assert_eq!(bench.store.forget_leases(1101).unwrap(), 1);
    assert_eq!(bench.store.leases(Family::V4).unwrap().len(), 1);
}

fn owner(user: u8, device: u8) -> LeaseOwner {
    LeaseOwner { user: UserId([user; 16]), device: DeviceId([device; 16]) }
}

#[test]
fn addresses_of_other_pools_are_not_held() {
    let bench = Bench::new("10.86.0.0/16", Some("fd00:1::/64"));
    let leased = bench.acquire(owner(1, 1), 1, 1000).unwrap();
    assert!(bench.pools.fit(leased.v4, leased.v6));
    for (v4, v6) in
        [("10.87.0.0/16", Some("fd00:1::/64")), ("10.86.0.0/16", Some("fd00:2::/64")), ("10.86.0.0/16", None)]
    {
        assert!(!Bench::new(v4, v6).pools.fit(leased.v4, leased.v6), "{v4} and {v6:?}");
    }
}

#[test]
fn the_use_of_a_pool_counts_live_leases_of_its_own() {
    // The first four bytes of these IPv6 addresses lie between those of the IPv4 pool.
    let bench = Bench::new("32.1.0.0/16", Some("2001:db8::/64"));
    bench.acquire(owner(1, 1), 1, 1000).unwrap();
    bench.acquire(owner(2, 1), 2, 1050).unwrap();
    let taken = |pools: &Pools, now_s| -> Vec<(String, u64)> {
        let usage = usage(std::slice::from_ref(pools), &bench.store, now_s).unwrap();
        usage.iter().map(|usage| (usage.pool.to_string(), usage.taken)).collect()
    };
    let counts = |v4, v6| vec![("32.1.0.0/16".to_owned(), v4), ("2001:db8::/64".to_owned(), v6)];
    assert_eq!(taken(&bench.pools, 1060), counts(2, 2));
    assert_eq!(taken(&bench.pools, 1120), counts(1, 1), "a lease is over at its deadline");
    bench.store.end_session(SessionId([2; 16]), 1121).unwrap();
    assert_eq!(taken(&bench.pools, 1121), counts(0, 0));
    let other = Bench::new("32.2.0.0/16", None);
    assert_eq!(taken(&other.pools, 1060), [("32.2.0.0/16".to_owned(), 0)]);
}

#[test]
fn a_returning_device_gets_its_addresses_again() {
    let bench = Bench::new("10.86.0.0/16", Some("fd00:1::/64"));
    let first = bench.acquire(owner(1, 1), 1, 1000).unwrap();
    assert!(first.v4.is_some() && first.v6.is_some());
    bench.store.end_session(SessionId([1; 16]), 1010).unwrap();
    for session in 10..40 {
        bench.acquire(owner(session, 1), session, 2000).unwrap();
    }
    assert_eq!(bench.acquire(owner(1, 1), 2, 5_000_000).unwrap(), first);
}

#[test]
fn a_fixed_address_is_its_users_alone() {
    let bench = Bench::new("10.86.0.0/29", Some("fd00:1::/64"));
    let add = |name: &str| {
        let user = NewUser::new(name, PasswordHash::new("$argon2id$secret-hash".to_owned()));
        bench.store.add_user(&user, 1).unwrap()
    };
    let fix_at = |now_s, name: &str, device: Option<u8>, addresses: &[&str]| {
        let device = device.map(|device| DeviceId([device; 16]));
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let change = AddressChange { device, addresses };
        bench.store.modify_user(name, &UserChange { addresses: Some(change), ..UserChange::default() }, now_s)
    };
    let fix = |name: &str, device, addresses: &[&str]| fix_at(1_000, name, device, addresses);
    let (ann, bob) = (add("ann"), add("bob"));
    let owner_of = |user, device| LeaseOwner { user, device: DeviceId([device; 16]) };
    let v4 = |owner, session, now_s| bench.acquire(owner, session, now_s).unwrap().v4.unwrap().octets()[3];
    fix("ann", None, &["10.86.0.4", "fd00:1::7"]).unwrap();
    fix("ann", Some(9), &["10.86.0.6"]).unwrap();
    // The pool has 2 to 6: the others get 2, 3 and 5, and no more.
    let mut others: Vec<u8> = (1..=3).map(|device| v4(owner_of(bob, device), device, 1_000)).collect();
    others.sort_unstable();
    assert_eq!(others, [2, 3, 5]);
    assert!(bench.acquire(owner_of(bob, 4), 4, 1_000).is_err(), "those of ann are not for him");
    let first = bench.acquired(owner_of(ann, 1), 11, 1_000).unwrap();
    assert_eq!(first.addresses.v4, Some([10, 86, 0, 4].into()));
    assert_eq!(first.addresses.v6, Some("fd00:1::7".parse().unwrap()));
    assert!(!first.are_own, "nobody knows who had it");
    assert_eq!(v4(owner_of(ann, 9), 12, 1_000), 6, "that of the device");
    assert!(
        bench.acquire(owner_of(ann, 2), 13, 1_000).is_err(),
        "her other device has none, and the pool is full"
    );
    assert!(bench.acquired(owner_of(ann, 1), 14, 1_050).unwrap().are_own);
    // Long after all leases have ended, it is still hers.
    others = (1..=3).map(|device| v4(owner_of(bob, device), 20 + device, 9_000)).collect();
    others.sort_unstable();
    assert_eq!(others, [2, 3, 5]);
    assert!(bench.acquire(owner_of(bob, 5), 25, 9_000).is_err());
    assert_eq!(v4(owner_of(ann, 2), 26, 9_000), 4, "another of her devices");

    let refusal = |result: Result<(), StoreError>| result.unwrap_err().to_string();
    assert!(refusal(fix("bob", None, &["10.86.0.4"])).contains("it is one of 'ann' already"));
    let held = format!("10.86.0.{}", others[0]);
    assert!(refusal(fix("ann", Some(3), &[&held])).contains("a session of 'bob' has it"), "{held}");
    assert_eq!(bench.store.user("ann").unwrap().unwrap().fixed_addresses.len(), 3, "nothing has changed");
    // A pool that has lost it gives another, and a user who is removed gives it back.
    let narrow = Bench::new("10.86.0.0/30", None);
    assert!(
        acquire(&narrow.pools, &bench.store, anything(owner_of(ann, 1)), SessionId([30; 16]), 10_000, 10_100)
            .is_ok()
    );
    bench.store.remove_user("ann", 10_000).unwrap();
    fix_at(20_000, "bob", None, &["10.86.0.6", "fd00:1::7"]).unwrap();
}

#[test]
fn addresses_are_own_only_if_the_device_was_their_last_holder() {
    let bench = Bench::new("10.86.0.0/29", None);
    let are_own = |device, session, now_s| bench.acquired(owner(1, device), session, now_s).unwrap().are_own;
    assert!(!are_own(1, 1, 1_000), "nobody knows who had it");
    assert!(are_own(1, 2, 1_010));
    // Five devices are all that this pool has room for.
    for device in 2..=6 {
        assert!(!are_own(device, device, 2_000), "device {device}");
    }
    assert!(!are_own(1, 7, 3_000), "another one has had it since");
}

#[test]
fn two_devices_of_a_user_get_different_addresses() {
    let bench = Bench::new("10.86.0.0/29", Some("fd00:1::/64"));
    let (a, b) = (bench.acquire(owner(1, 1), 1, 1000).unwrap(), bench.acquire(owner(1, 2), 2, 1000).unwrap());
    assert!(a.v4 != b.v4 && a.v6 != b.v6, "{a:?} {b:?}");
}

#[test]
fn a_full_pool_is_an_error_until_the_oldest_lease_ends() {
    let bench = Bench::new("10.86.0.0/29", None);
    let leased: Vec<_> =
        (0..5).map(|i| bench.acquire(owner(i, 0), i, 1000 + u64::from(i)).unwrap()).collect();
    let reserved = [0, 1, 7].map(|host| Some(Ipv4Addr::new(10, 86, 0, host)));
    assert!(leased.iter().all(|addresses| !reserved.contains(&addresses.v4)), "{leased:?}");
    let error = bench.acquire(owner(9, 0), 9, 1050).unwrap_err();
    assert_eq!(
        error.to_string(),
        "all 5 addresses of the pool 10.86.0.0/29 are in use; make the pool larger or sessions shorter"
    );
    // The leases of owners 0 and 1 have ended by now; 0's ended first.
    assert_eq!(bench.acquire(owner(9, 0), 9, 1101).unwrap(), leased[0]);
    assert_eq!(bench.acquire(owner(8, 0), 8, 1101).unwrap(), leased[1]);
    assert!(bench.acquire(owner(7, 0), 7, 1101).is_err());
}

#[test]
fn no_address_stays_behind_if_one_family_is_used_up() {
    let bench = Bench::new("10.86.0.0/29", Some("fd00:1::/125"));
    for i in 0..5 {
        bench.acquire(owner(i, 0), i, 1000).unwrap();
    }
    assert!(bench.acquire(owner(9, 0), 9, 1000).is_err());
    let bench = Bench::new("10.86.0.0/16", Some("fd00:1::/125"));
    for i in 0..6 {
        bench.acquire(owner(i, 0), i, 1000).unwrap();
    }
    assert!(bench.acquire(owner(9, 0), 9, 1000).is_err());
    let live =
        bench.store.leases(Family::V4).unwrap().into_iter().filter(|lease| lease.is_live(1000)).count();
    assert_eq!(live, 6);
}

#[test]
fn a_pool_that_changed_gives_a_new_address() {
    let mut bench = Bench::new("10.86.0.0/24", None);
    let before = bench.acquire(owner(1, 1), 1, 1000).unwrap();
    bench.pools = Bench::new("10.99.0.0/24", None).pools;
    let after = bench.acquire(owner(1, 1), 2, 1001).unwrap();
    assert_ne!(before, after);
    assert_eq!(after.v4.unwrap().octets()[1], 99);
}

#[derive(Clone, Debug)]
enum Step {
    Login { user: u8, device: u8 },
    End { which: usize },
    Wait { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6u8, 0..3u8).prop_map(|(user, device)| Step::Login { user, device }),
        2 => any::<usize>().prop_map(|which| Step::End { which }),
        1 => (1..80u64).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The model: who holds which address until when. A live address is only ever given to its own
    /// owner.
    #[test]
    fn no_two_live_leases_share_an_address(steps in proptest::collection::vec(step(), 1..60)) {
        let bench = Bench::new("10.86.0.0/28", None);
        let mut held: Vec<(LeaseOwner, u8, Ipv4Addr, u64)> = Vec::new();
        let (mut now_s, mut session) = (1000, 0u8);
        for step in steps {
            match step {
                Step::Wait { seconds } => now_s += seconds,
                Step::End { which } if !held.is_empty() => {
                    let (_, session, _, _) = held.swap_remove(which % held.len());
                    bench.store.end_session(SessionId([session; 16]), now_s).unwrap();
                }
                Step::End { .. } => {}
                Step::Login { user, device } => {
                    session += 1;
                    let who = owner(user, device);
                    held.retain(|(other, _, _, until)| *until > now_s && *other != who);
                    match bench.acquire(who, session, now_s) {
                        Ok(addresses) => {
                            let address = addresses.v4.unwrap();
                            prop_assert!(held.iter().all(|(_, _, taken, _)| *taken != address));
                            held.push((who, session, address, now_s + 100));
                        }
                        Err(error) => prop_assert_eq!(held.len(), 13, "{}", error),
                    }
                }
            }
        }
    }
}

fn anything(owner: LeaseOwner) -> Wanted {
    Wanted { owner, addresses: SourceAddresses::default() }
}

#[test]
fn an_address_of_the_source_is_leased_if_it_is_in_the_pool_and_free() {
    let bench = Bench::new("10.86.0.0/24", Some("fd00:1::/64"));
    let lease = |owner, session: u8, v4: [u8; 4], now_s| {
        let v6 = "fd00:1::7".parse().unwrap();
        let wanted = Wanted { owner, addresses: SourceAddresses { ipv4: Some(v4.into()), ipv6: Some(v6) } };
        let acquired =
            acquire(&bench.pools, &bench.store, wanted, SessionId([session; 16]), now_s, now_s + 100)
                .unwrap();
        (acquired.addresses.v4 == Some(v4.into()), acquired.addresses.v6 == Some(v6))
    };
    let (ann, bob) = (owner(1, 1), owner(2, 1));
    // She had another one before.
    bench.acquire(ann, 1, 1_000).unwrap();
    assert_eq!(lease(ann, 2, [10, 86, 0, 77], 1_010), (true, true));
    assert_eq!(lease(bob, 3, [10, 86, 0, 77], 1_020), (false, false), "ann's session has them");
    assert_eq!(lease(owner(3, 1), 4, [10, 9, 8, 7], 1_020), (false, false), "it is in no pool");
    assert_eq!(lease(owner(4, 1), 5, [10, 86, 0, 1], 1_020), (false, false), "it is the gateway's own");
    assert_eq!(lease(bob, 6, [10, 86, 0, 77], 5_000), (true, true), "her session has ended");
}
