//! Behaviour of [`crate::Sessions`].

use std::collections::HashSet;

use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::session::{DeviceId, SessionId};

use super::{Stand, ann, lease, named, session_of};
use crate::{Family, Lease, LeaseOwner, RevocationCause, SessionChange};

pub(crate) fn a_disabled_user_has_no_session_even_with_the_right_generation(stand: &dyn Stand) {
    let store = stand.open();
    let id = store.add_user(&ann(), 1000).unwrap();
    store.set_enabled("ann", false, 1000).unwrap();
    let generation = store.user("ann").unwrap().unwrap().generation;
    assert!(!store.add_session(&session_of(id, 1), generation).unwrap());
}

pub(crate) fn sessions_keep_their_tokens_until_they_expire_or_end(stand: &dyn Stand) {
    let store = stand.open();
    let id = store.add_user(&ann(), 1000).unwrap();
    let record = session_of(id, 1);
    assert!(store.add_session(&record, 0).unwrap());
    assert_eq!(store.session(record.id, 1999).unwrap().as_ref(), Some(&record));
    assert_eq!(store.session(record.id, 2000).unwrap(), None, "expired");
    let confirmed = Tokens::new(TokenHash::from_bytes([3; 32]));
    assert!(store.set_tokens(record.id, &confirmed, 2).unwrap());
    assert_eq!(store.session(record.id, 1500).unwrap().unwrap().tokens, confirmed);
    assert!(store.claim(&lease("10.0.0.2", 1, 1, 9000), 1000).unwrap());
    store.end_session(record.id, 1500).unwrap();
    assert_eq!(store.session(record.id, 1500).unwrap(), None);
    assert!(!store.set_tokens(record.id, &confirmed, 2).unwrap());
    assert!(store.leases(Family::V4).unwrap().iter().all(|lease| !lease.is_live(1500)));
}

pub(crate) fn changes_of_many_sessions_are_made_in_their_order(stand: &dyn Stand) {
    let store = stand.open();
    let (ann, bob) = (store.add_user(&named("ann"), 1).unwrap(), store.add_user(&named("bob"), 1).unwrap());
    store.set_enabled("bob", false, 2).unwrap();
    let [tokens, earlier] = [7, 6].map(|byte| Tokens::restore(TokenHash::from_bytes([byte; 32]), None));
    let changes = [
        SessionChange::Add(session_of(ann, 1), 0),
        SessionChange::Add(session_of(bob, 2), 0),
        SessionChange::Tokens(SessionId([1; 16]), earlier, 8),
        SessionChange::Tokens(SessionId([1; 16]), tokens, 9),
        SessionChange::Tokens(SessionId([1; 16]), earlier, 8),
        SessionChange::Tokens(SessionId([3; 16]), tokens, 9),
        SessionChange::Add(session_of(ann, 4), 0),
        SessionChange::End(SessionId([4; 16])),
        SessionChange::Tokens(SessionId([4; 16]), tokens, 9),
    ];
    let done = store.change_sessions(&changes, 1500).unwrap();
    assert_eq!(done, [true, false, true, true, true, false, true, true, false]);
    let kept = store.session(SessionId([1; 16]), 1500).unwrap().unwrap();
    assert_eq!((kept.epoch, kept.tokens), (9, tokens));
    assert_eq!(store.change_sessions(&changes[2..3], 1500).unwrap(), [false], "there are later ones");
    assert_eq!(store.session(SessionId([4; 16]), 1500).unwrap(), None);
}

pub(crate) fn a_removed_device_loses_its_session_and_addresses_and_the_others_keep_theirs(stand: &dyn Stand) {
    let store = stand.open();
    let id = store.add_user(&ann(), 1000).unwrap();
    let device = |n: u8| DeviceId([n; 16]);
    for n in [1, 2] {
        assert!(store.add_session(&session_of(id, n), 0).unwrap());
        let owner = LeaseOwner { user: id, device: device(n) };
        let v4 = Lease { owner, session: SessionId([n; 16]), ..lease(&format!("10.0.0.{n}"), 0, 0, 9000) };
        assert!(store.claim(&v4, 1000).unwrap());
    }
    let known = store.devices(id).unwrap();
    assert_eq!(known.iter().map(|device| device.id).collect::<Vec<_>>(), [device(1), device(2)]);
    assert_eq!((known[0].session_since_s, known[0].addresses.len()), (Some(1000), 1));

    assert!(!store.remove_device("ann", device(7), 2000).unwrap(), "not hers");
    assert_eq!(store.last_revocation().unwrap(), 0);
    assert!(store.remove_device("ann", device(1), 1500).unwrap());
    let event = store.revocations_since(0).unwrap().remove(0);
    assert_eq!((event.cause, event.device), (RevocationCause::Device, Some(device(1))));
    assert_eq!(store.session(SessionId([1; 16]), 1500).unwrap(), None);
    assert!(store.session(SessionId([2; 16]), 1500).unwrap().is_some());
    assert_eq!(store.devices(id).unwrap().len(), 1);
    let other = |until_s| lease("10.0.0.1", 9, 9, until_s);
    assert!(!store.claim(&other(9000), 8999).unwrap(), "its session may not have ended yet");
    assert_eq!(store.orphaned(8999).unwrap(), HashSet::from([SessionId([1; 16])]));
    store.end_session(SessionId([1; 16]), 1560).unwrap();
    assert!(store.claim(&other(9000), 1560).unwrap());
    assert!(!store.claim(&lease("10.0.0.2", 9, 9, 9000), 1560).unwrap());
}

pub(crate) fn owners_of_sessions_are_counted_with_their_groups(stand: &dyn Stand) {
    let store = stand.open();
    let (bob, ann) = (store.add_user(&named("bob"), 1).unwrap(), store.add_user(&ann(), 1).unwrap());
    store.add_user(&named("eve"), 1).unwrap();
    for (user, number) in [(ann, 1), (bob, 2), (ann, 3)] {
        assert!(store.add_session(&session_of(user, number), 0).unwrap());
    }
    let owners = store.session_owners(1999).unwrap();
    let counts: Vec<_> = owners.iter().map(|owner| (owner.user.as_str(), owner.sessions)).collect();
    assert_eq!(counts, [("ann", 2), ("bob", 1)]);
    assert_eq!((owners[0].groups.join(" "), owners[0].source.as_str()), ("admins staff".to_owned(), "local"));
    assert!(store.session_owners(2000).unwrap().is_empty(), "their time is over");
}

pub(crate) fn sessions_that_the_store_lacks_are_missing(stand: &dyn Stand) {
    let store = stand.open();
    let (ann, bob) = (store.add_user(&ann(), 1).unwrap(), store.add_user(&named("bob"), 1).unwrap());
    for (user, number) in [(ann, 1), (bob, 2), (ann, 3)] {
        assert!(store.add_session(&session_of(user, number), 0).unwrap());
    }
    let ids = [4, 3, 2, 1, 5].map(|number| SessionId([number; 16]));
    assert_eq!(store.missing_sessions(&ids, 1999).unwrap(), [ids[0], ids[4]]);
    store.set_enabled("bob", false, 1500).unwrap();
    store.end_session(ids[1], 1500).unwrap();
    assert_eq!(store.missing_sessions(&ids, 1999).unwrap(), [ids[0], ids[1], ids[2], ids[4]]);
    assert_eq!(store.missing_sessions(&ids, 2000).unwrap(), ids, "their time is over");
    assert!(store.missing_sessions(&[], 1999).unwrap().is_empty());
}
