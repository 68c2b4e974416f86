//! Rate limits of sessions: what the shards get of them, and when.

use crate::plane::Limits;
use crate::rate::{Buckets, RateGroup, Rates, SessionLimits};

use super::*;

const LIMITS: SessionLimits = SessionLimits {
    rates: Rates { down: 3, up: 2 },
    user: Rates { down: 5, up: 4 },
    group: Some(RateGroup(1)),
};

fn limited(gateway: &mut Gateway, connection: u64, limits: SessionLimits) -> Vec<Effect> {
    let who = Authenticated { limits, ..who("ann", 1) };
    gateway.login(NOW, ConnectionId(connection), who, &offer(2), secret()).expect("it is granted");
    effects(gateway)
}

/// The limits that each shard gets with sessions or after them.
fn given(effects: Vec<Effect>) -> Vec<(usize, Limits)> {
    let given = effects.into_iter().filter_map(|effect| match effect {
        Effect::Command { shard, command: Command::Open(spec) } => Some((shard, spec.limits?)),
        Effect::Command { shard, command: Command::Limit { limits, .. } } => Some((shard, limits)),
        _ => None,
    });
    given.collect()
}

fn buckets(given: &[(usize, Limits)]) -> Arc<Buckets> {
    assert_eq!(given.iter().map(|(shard, _)| *shard).collect::<Vec<_>>(), [0, 1], "each shard once");
    assert!(Arc::ptr_eq(&given[0].1.buckets, &given[1].1.buckets), "they share the buckets");
    Arc::clone(&given[0].1.buckets)
}

#[test]
fn shards_get_limits_with_a_session_and_the_same_buckets_as_long_as_it_lasts() {
    let mut gateway = gateway(config(2));
    let granted = limited(&mut gateway, 1, LIMITS);
    let answer = established(&granted);
    let first = given(granted);
    assert_eq!(first[0].1.limits, LIMITS);
    let shared = buckets(&first);

    gateway.attach(NOW, ConnectionId(2), &claim(&answer), &offer(2), secret()).expect("the token is good");
    assert!(given(effects(&mut gateway)).is_empty(), "an attach brings no buckets");

    let other = SessionLimits { rates: Rates { down: 9, up: 0 }, ..SessionLimits::default() };
    gateway.set_limits(NOW, &[], |_| other);
    let changed = given(effects(&mut gateway));
    assert_eq!(changed[0].1.limits, other);
    assert!(Arc::ptr_eq(&shared, &buckets(&changed)), "nor does another limit");
    gateway.set_limits(NOW, &[], |_| other);
    assert!(given(effects(&mut gateway)).is_empty(), "who keeps a limit costs the shards nothing");
    assert_eq!(gateway.sessions().next().expect("it is there").limits, other);
}

#[test]
fn the_sessions_of_a_user_share_buckets_as_long_as_there_is_one() {
    let mut gateway = gateway(config(1));
    let mut user_of = |connection, user: &str, device| {
        let who = Authenticated { limits: LIMITS, ..who(user, device) };
        gateway.login(NOW, ConnectionId(connection), who, &offer(2), secret()).expect("it is granted");
        let [(_, limits)] = given(effects(&mut gateway)).try_into().expect("one shard");
        limits.user
    };
    let phone = user_of(1, "ann", 1);
    let laptop = user_of(2, "ann", 2);
    assert!(phone.number == laptop.number && Arc::ptr_eq(&phone.buckets, &laptop.buckets));
    let bob = user_of(3, "bob", 3);
    assert_ne!(bob.number, phone.number);
    assert!(!Arc::ptr_eq(&bob.buckets, &phone.buckets));
    // The number of a user who has left is free, their buckets are not.
    for connection in [1, 2] {
        let session = gateway.session_of(ConnectionId(connection)).expect("it is there");
        gateway.end(&Selector::Session(session), Code::Disabled, "");
        let carl = format!("carl-{connection}");
        let who = Authenticated { limits: LIMITS, ..who(&carl, 3 + connection as u8) };
        effects(&mut gateway);
        let connection = ConnectionId(10 + connection);
        gateway.login(NOW, connection, who, &offer(2), secret()).expect("it is granted");
        let [(_, next)] = given(effects(&mut gateway)).try_into().expect("one shard");
        assert_eq!(next.user.number == phone.number, connection == ConnectionId(12), "{connection:?}");
        assert!(!Arc::ptr_eq(&next.user.buckets, &phone.buckets));
    }
}

#[test]
fn groups_keep_their_buckets_and_a_removed_group_has_no_limit() {
    let mut gateway = gateway(config(1));
    let mut set = |downs: &[u64]| {
        let groups: Vec<Rates> = downs.iter().map(|down| Rates { down: *down, up: 0 }).collect();
        gateway.set_limits(NOW, &groups, |_| SessionLimits::default());
        let [Effect::Command { command: Command::Groups(groups), .. }] = &effects(&mut gateway)[..] else {
            panic!("one command for the only shard")
        };
        Arc::clone(groups)
    };
    let before = set(&[7, 8]);
    let after = set(&[9]);
    assert_eq!(after.iter().map(|group| group.rates.down).collect::<Vec<_>>(), [9, 0]);
    for (before, after) in before.iter().zip(after.iter()) {
        assert!(Arc::ptr_eq(&before.buckets, &after.buckets));
    }
}

#[test]
fn a_session_that_is_handed_over_is_limited_in_the_next_process() {
    let mut old = gateway(config(2));
    limited(&mut old, 1, SessionLimits::default());
    let [handed] = old.hand_over(vec![Vec::new(); 2]).try_into().expect("one session");
    let mut next = gateway(config(2));
    next.take_over(NOW, handed, crate::policy::Principal::default(), LIMITS).expect("it fits");
    let given = given(effects(&mut next));
    assert_eq!(given[0].1.limits, LIMITS);
    buckets(&given);
}

#[test]
fn a_new_lifetime_ends_live_sessions_when_it_is_over_and_leaves_the_others() {
    let mut gateway = gateway(config(1));
    login(&mut gateway, 1, "ann", 1);
    login(&mut gateway, 2, "bob", 2);
    let ann = gateway.session_of(ConnectionId(1)).expect("she is there");
    let soon = NOW + Duration::from_secs(9);
    gateway.set_deadlines(|session| (session == ann).then_some(soon));
    gateway.handle_timeout(NOW + Duration::from_secs(8));
    assert_eq!((effects(&mut gateway).len(), gateway.sessions().count()), (0, 2));
    gateway.handle_timeout(soon);
    let close = effects(&mut gateway).into_iter().find_map(|effect| match effect {
        Effect::Send { connection, message: Message::Close(close) } => Some((connection, close.code)),
        _ => None,
    });
    assert_eq!(close, Some((ConnectionId(1), Code::Lifetime)));
    assert_eq!(gateway.sessions().map(|session| session.user.to_string()).collect::<Vec<_>>(), ["bob"]);
}
