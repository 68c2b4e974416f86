//! Behaviour of [`crate::Revocations`].

use vpnd_proto::session::{DeviceId, SessionId};

use super::{Stand, ann, external, named, session_of};
use crate::{LiveUser, NewUser, PasswordHash, Revocation, RevocationCause, StoreError, UserChange};

fn expiring(expires_s: u64) -> UserChange {
    UserChange { expires_s: Some(Some(expires_s)), ..UserChange::default() }
}

pub(crate) fn taking_rights_away_is_an_event_and_voids_sessions(stand: &dyn Stand) {
    let store = stand.open();
    let id = store.add_user(&ann(), 1000).unwrap();
    let changes: [(&dyn Fn(), RevocationCause); 3] = [
        (&|| store.set_enabled("ann", false, 1100).unwrap(), RevocationCause::Disabled),
        (&|| store.set_password("ann", &ann().password, 1100).unwrap(), RevocationCause::Password),
        (&|| store.remove_user("ann", 1100).unwrap(), RevocationCause::Removed),
    ];
    for (seq, (change, cause)) in (0..).zip(changes) {
        store.set_enabled("ann", true, 1050).unwrap();
        assert_eq!(store.last_revocation().unwrap(), seq, "enabling is no revocation");
        let generation = store.user("ann").unwrap().unwrap().generation;
        assert!(store.add_session(&session_of(id, 1), generation).unwrap());
        change();
        assert_eq!(store.session(SessionId([1; 16]), 1200).unwrap(), None, "{cause:?}");
        assert!(!store.add_session(&session_of(id, 2), generation).unwrap(), "{cause:?}: it came too late");
        let new = store.revocations_since(seq).unwrap();
        assert_eq!(new, [Revocation { seq: seq + 1, user: id, name: "ann".to_owned(), cause, device: None }]);
    }
    assert_eq!(store.last_revocation().unwrap(), 3);
    store.add_user(&ann(), 1200).unwrap();
    let before = store.user("ann").unwrap().unwrap();
    let change = || store.change_own_password(&before, &PasswordHash::new("own".to_owned()), 1300).unwrap();
    assert!(change() && !change(), "what was revoked meanwhile is not undone");
    assert_eq!(store.last_revocation().unwrap(), 4);
}

pub(crate) fn a_revoked_certificate_ends_what_was_granted_and_is_found_again(stand: &dyn Stand) {
    let store = stand.open();
    let id = store.add_user(&ann(), 1).unwrap();
    let other = store.add_user(&named("bob"), 1).unwrap();
    for (user, session) in [(id, 1), (other, 2)] {
        assert!(store.add_session(&session_of(user, session), 0).unwrap());
    }
    store.revoke_certificates("ann", &[[9; 32], [7; 32]], 5).unwrap();
    drop(store);
    let store = stand.open();
    let user = store.user("ann").unwrap().unwrap();
    assert_eq!(user.certificates, [[9; 32]], "it stays hers");
    assert_eq!(user.revoked_certificates, [[9; 32]], "and one that is not hers is not");
    assert!(store.session(SessionId([1; 16]), 1001).unwrap().is_none());
    assert!(store.session(SessionId([2; 16]), 1001).unwrap().is_some());
    assert!(!store.add_session(&session_of(id, 3), 0).unwrap(), "a login that was under way");
    assert_eq!(store.revocations_since(0).unwrap()[0].cause, RevocationCause::Certificate);
}

pub(crate) fn the_end_of_a_users_time_is_a_revocation_once(stand: &dyn Stand) {
    let store = stand.open();
    let id = store.add_user(&NewUser { expires_s: Some(5000), ..named("guest") }, 1000).unwrap();
    store.add_user(&named("ann"), 1000).unwrap();
    assert!(store.add_session(&session_of(id, 1), 0).unwrap());
    assert_eq!(store.end_expired(4999).unwrap(), 0);
    assert!(store.session(SessionId([1; 16]), 1000).unwrap().is_some());
    assert_eq!((store.end_expired(5000).unwrap(), store.end_expired(5001).unwrap()), (1, 0));
    assert_eq!(store.session(SessionId([1; 16]), 1000).unwrap(), None);
    assert!(!store.add_session(&session_of(id, 2), 0).unwrap(), "a login that was under way");
    let found = store.revocations_since(0).unwrap();
    assert_eq!((found.len(), found[0].name.as_str(), found[0].cause), (1, "guest", RevocationCause::Expired));

    store.modify_user("guest", &expiring(9000), 1).unwrap();
    assert_eq!((store.end_expired(8999).unwrap(), store.end_expired(9000).unwrap()), (0, 1), "and once more");
    assert_eq!(store.end_expired(100).unwrap(), 0, "the clock was set back, the user has time again");
    assert_eq!(store.end_expired(9000).unwrap(), 1);
    let user = store.user("guest").unwrap().unwrap();
    assert!(user.has_expired(9000) && !user.has_expired(8999));
    store.modify_user("guest", &UserChange { expires_s: Some(None), ..UserChange::default() }, 1).unwrap();
    assert!(!store.user("guest").unwrap().unwrap().has_expired(u64::MAX));
}

pub(crate) fn a_change_of_groups_keeps_sessions_and_voids_logins_under_way(stand: &dyn Stand) {
    let store = stand.open();
    let id = store.add_user(&ann(), 1000).unwrap();
    assert!(store.add_session(&session_of(id, 1), 0).unwrap());
    let into = |groups: &[&str]| UserChange {
        groups: Some(groups.iter().map(|group| (*group).to_owned()).collect()),
        ..UserChange::default()
    };
    store.modify_user("ann", &into(&["staff", "admins", "staff"]), 1100).unwrap();
    assert_eq!(store.last_revocation().unwrap(), 0, "these are the groups that she has");
    store.modify_user("ann", &into(&["lab"]), 1100).unwrap();
    let found = store.revocations_since(0).unwrap();
    assert_eq!((found.len(), found[0].cause, found[0].device), (1, RevocationCause::Groups, None));
    assert!(store.session(SessionId([1; 16]), 1100).unwrap().is_some());
    assert!(!store.add_session(&session_of(id, 2), 0).unwrap(), "it would have the groups of before");
    assert!(store.add_session(&session_of(id, 2), 1).unwrap());
    assert_eq!(store.user("ann").unwrap().unwrap().groups, ["lab"]);

    store.refresh_external(&external("u1", "alice", &["a"]), 1).unwrap();
    assert!(matches!(store.modify_user("alice", &into(&["root"]), 1), Err(StoreError::External { .. })));
    store.refresh_external(&external("u1", "alice", &["a"]), 2).unwrap();
    assert_eq!(store.last_revocation().unwrap(), 1, "nothing new");
    store.refresh_external(&external("u1", "alice", &["a", "b"]), 2).unwrap();
    assert_eq!(store.revocations_since(1).unwrap()[0].cause, RevocationCause::Groups);
}

pub(crate) fn sessions_end_with_their_cause_and_the_user_may_log_in_again(stand: &dyn Stand) {
    let store = stand.open();
    let user = store.refresh_external(&external("u1", "alice", &["staff"]), 1000).unwrap();
    for id in [1, 2] {
        assert!(store.add_session(&session_of(user.id, id), 0).unwrap());
    }
    let live = store.users_with_sessions("campus").unwrap();
    assert_eq!(live, [LiveUser::of(&user)]);
    let device = DeviceId([1; 16]);
    store.end_device(&live[0], device, RevocationCause::Disconnected, 1000).unwrap();
    assert_eq!(store.session(SessionId([1; 16]), 1000).unwrap(), None);
    assert!(store.session(SessionId([2; 16]), 1000).unwrap().is_some());
    for (number, cause) in
        (1..).zip([RevocationCause::Source, RevocationCause::Unconfirmed, RevocationCause::Disconnected])
    {
        store.end_sessions(&live[0], cause, 1000).unwrap();
        let found = store.revocations_since(number).unwrap();
        assert_eq!(
            found,
            [Revocation { seq: number + 1, user: user.id, name: user.name.clone(), cause, device: None }]
        );
    }
    let first = store.revocations_since(0).unwrap().remove(0);
    assert_eq!((first.cause, first.device), (RevocationCause::Disconnected, Some(device)));
    assert!(store.users_with_sessions("campus").unwrap().is_empty());
    let now = store.user("alice").unwrap().unwrap();
    assert!(now.enabled && store.add_session(&session_of(user.id, 3), now.generation).unwrap());
}

pub(crate) fn revocations_that_were_carried_out_are_forgotten_once_there_are_many(stand: &dyn Stand) {
    let store = stand.open();
    store.add_user(&ann(), 1).unwrap();
    for at_s in 0..100 {
        store.set_enabled("ann", false, at_s).unwrap();
    }
    store.forget_revocations(99);
    assert_eq!(store.revocations_since(0).unwrap().len(), 1, "the last was not carried out");
    assert_eq!(store.last_revocation().unwrap(), 100, "numbers go on");
    drop(store);
    let user = stand.open().user("ann").unwrap().unwrap();
    assert_eq!((user.generation, user.enabled), (100, false));
}
