//! Names in rules, and stores that can't be read.

use super::*;
use crate::admin_store::InThisProcess;
use vpnd_config::review::testing::{Bench, ROUTES};
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{NewUser, PasswordHash, Users as _};

/// The store with `ann`, who is in `staff`.
fn store(bench: &Bench) -> Sqlite {
    let store = Sqlite::open_or_create(&bench.dir.path().join("state/vpnd.db")).unwrap();
    let ann = NewUser {
        groups: vec!["staff".to_owned()],
        ..NewUser::new("ann", PasswordHash::new("$argon2id$".to_owned()))
    };
    store.add_user(&ann, wall_s()).unwrap();
    store
}

#[test]
fn a_session_that_may_have_more_than_its_group_is_a_warning() {
    let bench = Bench::new();
    let review = |rates: &str| {
        let text = format!("{ROUTES}[[limits.groups]]\nname = 'staff'\n{rates}\n");
        let review = bench.review(&text);
        assert!(review.errors.is_empty(), "{:?}", review.errors);
        review.warnings
    };
    assert!(review("rate_down = '10mbit'\nsession_rate_down = '10mbit'").is_empty());
    assert!(review("session_rate_down = '10mbit'").is_empty(), "there is no limit for all");
    let more = review("rate_up = '10mbit'\nsession_rate_up = '1.5gbit'");
    assert!(
        more.len() == 1 && more[0].message.contains("may have 1.5gbit up, more than the 10mbit"),
        "{more:?}"
    );
    let more = review("user_rate_up = '10mbit'\nsession_rate_up = '20mbit'");
    assert!(
        more.len() == 1 && more[0].message.contains("each session of the group 'staff' may have 20mbit up"),
        "{more:?}"
    );
    let more = review("rate_up = '10mbit'\nuser_rate_up = '20mbit'");
    assert!(more.len() == 1 && more[0].message.contains("each user of the group 'staff'"), "{more:?}");
    let store = store(&bench);
    let users: Vec<_> = store.users().unwrap().iter().map(UserSummary::from).collect();
    let warnings = |name: &str| {
        let text = format!("{ROUTES}[[limits.groups]]\nname = '{name}'\n");
        of_users(&bench.config(&text), Ok(&users)).warnings
    };
    assert!(warnings("staff").is_empty());
    let staf = warnings("staf");
    assert!(staf.len() == 1 && staf[0].message.contains("did you mean 'staff'?"), "{staf:?}");
}

#[test]
fn a_store_that_is_missing_damaged_or_unreadable_is_an_error_in_its_own_words() {
    let bench = Bench::new();
    let config = bench.config(ROUTES);
    let path = config.server.store_path();
    let found = || {
        let users = InThisProcess.open(&config, Opening::Inspect).and_then(|mut store| store.users());
        of_users(&config, users.as_deref())
    };
    let missing = found().errors;
    assert!(missing[0].message.contains("no user store"), "{missing:?}");
    drop(store(&bench));
    assert!(found().errors.is_empty());
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[20..100].fill(0xA5);
    std::fs::write(&path, &bad).unwrap();
    let damaged = found().errors;
    assert!(damaged[0].message.contains("damaged"), "{damaged:?}");
    assert_eq!(std::fs::read(&path).unwrap(), bad, "looking changes nothing");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("vpnd.db", &path).unwrap();
    let link = found().errors;
    assert!(link[0].message.contains("is a symbolic link"), "not missing: {link:?}");
    let state = bench.dir.path().join("state");
    std::fs::rename(&state, state.with_extension("gone")).unwrap();
    std::fs::write(&state, "").unwrap();
    let unreadable = found().errors;
    assert!(unreadable[0].message.contains("can't be opened"), "not missing: {unreadable:?}");
}

#[test]
fn the_names_in_rules_are_held_against_the_store() {
    let bench = Bench::new();
    let store = store(&bench);
    let users: Vec<_> = store.users().unwrap().iter().map(UserSummary::from).collect();
    let review = |from: &str| {
        let extra = format!("{ROUTES}[[policy.rules]]\naction = 'allow'\nfrom = ['{from}']\n");
        of_users(&bench.config(&extra), Ok(&users)).warnings
    };
    for good in ["group:staff", "user:ann", "any", "10.0.0.0/8"] {
        assert!(review(good).is_empty(), "{good}");
    }
    let staf = review("group:staf");
    assert!(staf.len() == 1 && staf[0].message.contains("did you mean 'staff'?"), "{staf:?}");
    let bob = review("user:bob");
    assert!(bob.len() == 1 && bob[0].message.contains("no user 'bob'"), "{bob:?}");
    assert_eq!(of_users(&bench.config(ROUTES), Ok(&[])).warnings.len(), 1, "nobody can log in");
    let source = "[[source]]\nname = 'a'\nkind = 'ldap'\nrealm = 'a.example'\nservers = 'ldaps://a'\nbase = 'b'\n\
                  user_dn = 'uid={user}'\n";
    let with_source = of_users(&bench.config(&format!("{ROUTES}{source}")), Ok(&[]));
    assert!(with_source.warnings.is_empty(), "users of a directory need no record: {with_source:?}");
}
