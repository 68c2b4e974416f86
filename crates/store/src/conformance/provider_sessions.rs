//! Behaviour of [`crate::ProviderSessions`].

use super::{Stand, external};
use crate::UserId;
use crate::provider_sessions::MAX_PROVIDER_SESSIONS;

pub(crate) fn a_session_at_a_provider_leads_to_its_user_while_it_is_among_the_latest(stand: &dyn Stand) {
    let store = stand.open();
    let [ann, bob] = ["ann", "bob"].map(|name| {
        store.refresh_external(&external(name, &format!("{name}@uni.example"), &[]), 1).unwrap().id
    });
    let [first, shared] = [[1; 32], [2; 32]];
    store.keep_provider_session(ann, &first, 10).unwrap();
    store.keep_provider_session(ann, &shared, 11).unwrap();
    store.keep_provider_session(bob, &shared, 11).unwrap();
    store.keep_provider_session(UserId([9; 16]), &[3; 32], 11).unwrap();
    drop(store);
    let store = stand.open();
    let users_of = |source: &str, session: &[u8; 32]| {
        let users = store.users_of_provider_session(source, session).unwrap();
        let mut ids: Vec<UserId> = users.into_iter().map(|user| user.id).collect();
        ids.sort_by_key(|id| *id != ann);
        ids
    };
    assert_eq!((users_of("campus", &first), users_of("campus", &shared)), (vec![ann], vec![ann, bob]));
    assert!(users_of("another", &first).is_empty(), "another provider's users");
    assert!(users_of("campus", &[3; 32]).is_empty() && users_of("campus", &[4; 32]).is_empty());
    // The oldest make room; one that is used again is not old.
    store.keep_provider_session(ann, &first, 12).unwrap();
    for number in 0..MAX_PROVIDER_SESSIONS - 1 {
        store.keep_provider_session(ann, &[100 + number as u8; 32], 20 + number as u64).unwrap();
    }
    assert_eq!((users_of("campus", &first), users_of("campus", &shared)), (vec![ann], vec![bob]));
    store.forget_provider_sessions(ann).unwrap();
    assert!(users_of("campus", &first).is_empty() && users_of("campus", &[100; 32]).is_empty());
    assert_eq!(users_of("campus", &shared), [bob]);
    store.remove_user("bob@uni.example", 30).unwrap();
    assert!(users_of("campus", &shared).is_empty());
}
