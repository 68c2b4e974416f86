//! Behaviour of [`crate::Users`].

use vpnd_proto::session::SessionId;

use super::{Stand, ann, external, named, session_of};
use crate::{
    ExternalUser, MAX_GROUPS, MAX_SOURCES_PER_USER, NewUser, PasswordHash, RevocationCause, Store,
    StoreError, UserChange,
};

fn add_many(store: &dyn Store, prefix: &str, count: u32) {
    for i in 0..count {
        store.add_user(&named(&format!("{prefix}{i}")), 1).unwrap();
    }
}

pub(crate) fn a_user_comes_back_whole_after_reopening(stand: &dyn Stand) {
    let store = stand.open();
    let id = store.add_user(&ann(), 1000).unwrap();
    drop(store);
    let store = stand.open();
    let user = store.user("ann").unwrap().unwrap();
    assert_eq!((user.id, user.enabled, user.generation, user.created_s), (id, true, 0, 1000));
    assert_eq!((user.password.as_ref(), &user.totp), (Some(&ann().password), &ann().totp));
    assert_eq!(
        (user.groups.as_slice(), user.certificates.as_slice()),
        (&["admins", "staff"].map(str::to_owned)[..], &[[9; 32]][..])
    );
    assert_eq!(store.user_by_id(id).unwrap(), Some(user.clone()));
    assert_eq!(store.users().unwrap(), [user]);
    store.add_user(&NewUser::new("kiosk", PasswordHash::none()), 1000).unwrap();
    let machine = store.user("kiosk").unwrap().unwrap();
    assert!(machine.is_machine() && !store.user("ann").unwrap().unwrap().is_machine());
}

pub(crate) fn names_are_taken_once_and_unknown_names_are_errors(stand: &dyn Stand) {
    let store = stand.open();
    store.add_user(&ann(), 1000).unwrap();
    assert!(matches!(store.add_user(&named("ann"), 1000), Err(StoreError::UserExists { .. })));
    for error in [
        store.set_enabled("bob", false, 1).unwrap_err(),
        store.remove_user("bob", 1).unwrap_err(),
        store.set_password("bob", &ann().password, 1).unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::NoSuchUser { .. }), "{error}");
    }
    assert_eq!(store.last_revocation().unwrap(), 0, "nothing happened");
}

pub(crate) fn a_user_is_found_however_the_letters_are_written(stand: &dyn Stand) {
    let store = stand.open();
    for name in ["Anna", "bob", "Zoe"] {
        store.add_user(&named(name), 1).unwrap();
    }
    let found = |name: &str| store.user(name).unwrap().map(|user| user.name);
    for (typed, name) in [("anna", "Anna"), ("ANNA", "Anna"), ("Bob", "bob"), ("zOE", "Zoe")] {
        assert_eq!(found(typed).as_deref(), Some(name), "{typed}");
    }
    for typed in ["", "ann", "anna ", "annaa", "zoe2"] {
        assert_eq!(found(typed), None, "{typed}");
    }
}

pub(crate) fn a_step_of_codes_is_used_once_and_in_order(stand: &dyn Stand) {
    let store = stand.open();
    let id = store.add_user(&ann(), 1000).unwrap();
    assert!(store.has_one_time_codes().unwrap());
    assert!(store.use_totp_step(id, 50).unwrap());
    assert!(!store.use_totp_step(id, 50).unwrap(), "again");
    assert!(!store.use_totp_step(id, 49).unwrap(), "before");
    assert!(store.use_totp_step(id, 51).unwrap());
}

pub(crate) fn known_sources_are_few_and_recent(stand: &dyn Stand) {
    let store = stand.open();
    let id = store.add_user(&ann(), 1000).unwrap();
    for i in 0..MAX_SOURCES_PER_USER + 5 {
        store.remember_source(id, &format!("192.0.2.{i}"), 1000 + i).unwrap();
    }
    assert!(!store.knows_source(id, "192.0.2.0", 0).unwrap(), "made room");
    assert!(store.knows_source(id, "192.0.2.10", 1010).unwrap());
    assert!(!store.knows_source(id, "192.0.2.10", 1011).unwrap(), "too long ago");
}

pub(crate) fn two_gateways_may_work_on_one_store(stand: &dyn Stand) {
    let store = stand.open();
    let other = stand.open();
    std::thread::scope(|scope| {
        for (who, store) in [("a", store.as_ref()), ("b", other.as_ref())] {
            scope.spawn(move || add_many(store, who, 20));
        }
    });
    assert_eq!(store.users().unwrap().len(), 40);
    other.set_enabled("a0", false, 5).unwrap();
    assert_eq!(store.last_revocation().unwrap(), 1, "seen at once by the other");
}

pub(crate) fn a_user_of_another_source_is_one_record_however_often_they_come(stand: &dyn Stand) {
    let store = stand.open();
    let first =
        store.refresh_external(&external("u1", "alice@example.edu", &["staff", "lab"]), 1000).unwrap();
    assert_eq!((first.source.as_str(), first.subject.as_str(), &first.password), ("campus", "u1", &None));
    assert_eq!((first.groups.as_slice(), first.created_s), (&["lab", "staff"].map(str::to_owned)[..], 1000));
    let again = store.refresh_external(&external("u1", "alice@example.edu", &["lab"]), 2000).unwrap();
    assert_eq!((again.id, again.created_s, again.groups), (first.id, 1000, vec!["lab".to_owned()]));
    store.set_enabled("alice@example.edu", false, 3000).unwrap();
    let disabled = store.refresh_external(&external("u1", "alice@example.edu", &["lab"]), 4000).unwrap();
    assert!(!disabled.enabled, "a login at the source gives back nothing that was taken here");
    assert!(matches!(
        store.set_password("alice@example.edu", &PasswordHash::new("x".to_owned()), 1),
        Err(StoreError::External { .. })
    ));
    drop(store);
    assert_eq!(stand.open().users().unwrap(), [disabled]);
}

/// Security: who was disabled before the first login is disabled at it.
pub(crate) fn a_user_of_another_source_can_be_disabled_before_the_first_login(stand: &dyn Stand) {
    let store = stand.open();
    let name = "staff5@uni.example";
    let expected = store.refresh_external(&ExternalUser::expected("campus", name), 1).unwrap();
    store.set_enabled(name, false, 2).unwrap();
    let user = store.refresh_external(&external("u5", name, &["staff"]), 3).unwrap();
    assert_eq!((user.id, user.subject.as_str(), user.enabled), (expected.id, "u5", false));
    assert_eq!(user.groups, ["staff"]);
    // It was for that source alone, and another subject with the name is another user.
    let other = ExternalUser { source: "guests".to_owned(), ..external("u5", name, &[]) };
    assert!(matches!(store.refresh_external(&other, 4), Err(StoreError::NameTaken { .. })));
    assert!(matches!(
        store.refresh_external(&external("u6", name, &[]), 5),
        Err(StoreError::NameTaken { .. })
    ));
    drop(store);
    assert_eq!(stand.open().users().unwrap(), [user]);
}

/// Security: a server that ignores accents vouches for every spelling of a disabled user's name.
pub(crate) fn a_user_whom_the_source_knows_by_name_has_one_spelling(stand: &dyn Stand) {
    let store = stand.open();
    let by_name = |name: &str| store.refresh_external(&external(name, name, &[]), 1);
    by_name("muller@uni.example").unwrap();
    by_name("weiß@uni.example").unwrap();
    store.set_enabled("muller@uni.example", false, 2).unwrap();
    for other in ["müller@uni.example", "mullér@uni.example", "weiss@uni.example"] {
        assert!(matches!(by_name(other), Err(StoreError::Unusable { .. })), "{other}");
    }
    for same in ["muller@uni.example", "weiß@uni.example", "mueller@uni.example"] {
        by_name(same).unwrap();
    }
    // Elsewhere a name is an attribute of an entry, and both may be there.
    store.refresh_external(&external("u7", "müller@uni.example", &[]), 3).unwrap();
}

pub(crate) fn an_answer_about_a_user_who_was_removed_meanwhile_makes_no_record(stand: &dyn Stand) {
    let store = stand.open();
    let user = external("u1", "alice@example.edu", &["staff"]);
    assert!(matches!(store.update_external(&user, 1), Err(StoreError::NoSuchUser { .. })));
    store.refresh_external(&user, 2).unwrap();
    let changed = store.update_external(&external("u1", "alice@example.edu", &["lab"]), 3).unwrap();
    assert_eq!(changed.groups, ["lab"]);
    store.remove_user("alice@example.edu", 4).unwrap();
    assert!(matches!(store.update_external(&user, 5), Err(StoreError::NoSuchUser { .. })));
    assert!(store.users().unwrap().is_empty());
}

pub(crate) fn a_name_belongs_to_one_subject_and_a_new_name_ends_the_sessions_of_the_old(stand: &dyn Stand) {
    let store = stand.open();
    store.add_user(&named("Ann"), 1).unwrap();
    let taken =
        |user: ExternalUser| matches!(store.refresh_external(&user, 5), Err(StoreError::NameTaken { .. }));
    assert!(taken(external("u9", "ann", &[])), "a local user has it, in other letters");
    let id = store.refresh_external(&external("u1", "alice", &[]), 1).unwrap().id;
    assert!(taken(external("u2", "alice", &[])), "recycled by the directory");
    assert!(taken(ExternalUser { source: "other".to_owned(), ..external("u1", "alice", &[]) }));
    assert!(
        matches!(store.add_user(&named("Alice"), 1), Err(StoreError::UserExists { name }) if name == "alice")
    );

    assert!(store.add_session(&session_of(id, 1), 0).unwrap());
    let renamed = store.refresh_external(&external("u1", "alice.b", &[]), 6).unwrap();
    assert_eq!((renamed.id, renamed.name.as_str(), renamed.generation), (id, "alice.b", 1));
    assert_eq!(store.session(SessionId([1; 16]), 1000).unwrap(), None);
    let revocation = store.revocations_since(0).unwrap().remove(0);
    assert_eq!((revocation.name.as_str(), revocation.cause), ("alice", RevocationCause::Renamed));
}

/// Security: or the source could free the name of a user who is disabled here, and let it in for
/// another subject.
pub(crate) fn who_may_not_log_in_keeps_the_name(stand: &dyn Stand) {
    let store = stand.open();
    let renamed = || store.refresh_external(&external("u1", "alice.b", &["lab"]), 5000).unwrap();
    let taken = || store.refresh_external(&external("u2", "alice", &[]), 5000);
    let id = store.refresh_external(&external("u1", "alice", &[]), 1).unwrap().id;
    store.set_enabled("alice", false, 2).unwrap();
    let user = renamed();
    assert_eq!((user.id, user.name.as_str(), user.groups), (id, "alice", vec!["lab".to_owned()]));
    assert!(matches!(taken(), Err(StoreError::NameTaken { .. })));
    store.set_enabled("alice", true, 3).unwrap();
    let expiry = UserChange { expires_s: Some(Some(4000)), ..UserChange::default() };
    store.modify_user("alice", &expiry, 3).unwrap();
    assert_eq!(renamed().name, "alice");
    let expiry = UserChange { expires_s: Some(None), ..UserChange::default() };
    store.modify_user("alice", &expiry, 4).unwrap();
    assert_eq!(renamed().name, "alice.b", "at the next login after that");
    assert!(taken().is_ok());
}

pub(crate) fn a_source_can_not_store_just_anything(stand: &dyn Stand) {
    let store = stand.open();
    let many: Vec<String> = (0..=MAX_GROUPS).map(|i| format!("g{i}")).collect();
    for user in [
        ExternalUser { source: "local".to_owned(), ..external("ann", "ann", &[]) },
        external("", "ann", &[]),
        external("u\n1", "ann", &[]),
        external("u1", "Ann", &[]),
        external("u1", "a  b", &[]),
        external("u1", "ann", &["x\u{9b}"]),
        external("u1", "ann", &[&"x".repeat(129)]),
        ExternalUser { groups: many, ..external("u1", "ann", &[]) },
    ] {
        let refused = store.refresh_external(&user, 1);
        assert!(matches!(refused, Err(StoreError::Unusable { .. })), "{user:?}: {refused:?}");
    }
    assert!(store.users().unwrap().is_empty());
}

pub(crate) fn a_list_has_pages_that_have_everybody_once(stand: &dyn Stand) {
    let store = stand.open();
    add_many(&*store, "User", 7);
    store.add_user(&ann(), 1).unwrap();
    store.set_enabled("User3", false, 2).unwrap();
    let (mut names, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = store.find_users("", after.as_deref(), 3).unwrap();
        assert!(page.users.len() <= 3);
        let Some(last) = page.users.last() else { break };
        assert_eq!(page.more, 8 - names.len() as u64 - page.users.len() as u64);
        after = Some(last.name.clone());
        names.extend(page.users.into_iter().map(|user| (user.name, user.enabled)));
    }
    let expected: Vec<_> = store.users().unwrap().into_iter().map(|user| (user.name, user.enabled)).collect();
    assert_eq!(names, expected);
    let found = store.find_users("ser3", None, 9).unwrap();
    assert_eq!((found.users.len(), found.users[0].enabled, found.more), (1, false, 0));
    assert_eq!(store.find_users("nobody", None, 9).unwrap(), crate::UserPage::default());
}
