//! The embedded store: what it acknowledges stays, what is damaged is refused, what is secret is
//! hidden.

use std::fs::OpenOptions;
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;

use vpnd_proto::attach::{TokenHash, Tokens};

use super::*;
use crate::conformance::{ann, external, named, session_of};
use crate::{
    AddressChange, RevocationCause, Revocations as _, Sessions as _, Store, UserChange, Users as _,
    conformance,
};

/// A directory for a store.
struct InDirectory(tempfile::TempDir);

impl conformance::Stand for InDirectory {
    fn open(&self) -> Box<dyn Store> {
        Box::new(Sqlite::open_or_create(&self.0.path().join("vpnd.db")).unwrap())
    }
}

mod conforms {
    crate::conformance::tests!(super::InDirectory(tempfile::tempdir().unwrap()));
}

fn new_store() -> (tempfile::TempDir, Sqlite) {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open_or_create(&dir.path().join("state/vpnd.db")).unwrap();
    (dir, store)
}

fn add_many(store: &Sqlite, prefix: &str, count: u32) {
    for i in 0..count {
        store.add_user(&named(&format!("{prefix}{i}")), 1).unwrap();
    }
}

#[test]
fn a_disabled_user_has_no_session_whatever_else_is_in_the_file() {
    let (dir, store) = new_store();
    let id = store.add_user(&ann(), 1000).unwrap();
    let generation = store.user("ann").unwrap().unwrap().generation;
    assert!(store.add_session(&session_of(id, 1), generation).unwrap());
    let session = session_of(id, 1).id;
    assert!(store.session(session, 1000).unwrap().is_some());
    // Disabling deletes sessions; here something else has written to the file.
    let file = rusqlite::Connection::open(dir.path().join("state/vpnd.db")).unwrap();
    file.execute_batch("UPDATE users SET enabled = 0").unwrap();
    assert!(store.session(session, 1000).unwrap().is_none());
}

#[test]
fn a_new_store_has_no_user() {
    let (_dir, store) = new_store();
    assert!(store.users().unwrap().is_empty());
    assert!(store.user("admin").unwrap().is_none() && !store.has_one_time_codes().unwrap());
}

#[test]
fn texts_that_are_statements_are_texts() {
    let (_dir, store) = new_store();
    let texts = [
        "' OR '1'='1",
        "x'; DROP TABLE users; --",
        "ann' --",
        "\" OR 1=1",
        "%",
        "_nn",
        "\\",
        "?1",
        "{column}",
    ];
    store.add_user(&named("ann"), 1).unwrap();
    for text in texts {
        assert!(store.user(text).unwrap().is_none(), "{text}");
        assert!(store.user_by_subject(text, text).unwrap().is_none(), "{text}");
        assert!(store.set_enabled(text, false, 1).is_err(), "{text}");
        assert!(store.remove_user(text, 1).is_err(), "{text}");
        let found = store.find_users(text, None, 10).unwrap();
        assert!(found.users.is_empty(), "{text} finds {:?}", found.users);
    }
    for (number, text) in texts.iter().enumerate() {
        let subject = format!("{number}{text}");
        let user = store.refresh_external(&external(&subject, &format!("user{number}"), &[text]), 1).unwrap();
        assert_eq!((user.groups.as_slice(), &user.subject), (&[(*text).to_owned()][..], &subject));
        assert!(store.user_by_subject("campus", &subject).unwrap().is_some());
    }
    assert!(store.user("ann").unwrap().unwrap().enabled, "nothing was done to her");
}

#[test]
fn changes_of_many_sessions_are_made_together_or_not_at_all() {
    let (dir, store) = new_store();
    let id = store.add_user(&ann(), 1).unwrap();
    assert!(store.add_session(&session_of(id, 1), 0).unwrap());
    let path = dir.path().join("state/vpnd.db");
    Connection::open(&path).unwrap().execute_batch("DROP TABLE leases").unwrap();
    let tokens = Tokens::restore(TokenHash::from_bytes([7; 32]), None);
    let session = SessionId([1; 16]);
    let changes = [SessionChange::Tokens(session, tokens, 9), SessionChange::End(session)];
    assert!(store.change_sessions(&changes, 1500).is_err());
    let found = store.session(session, 1500).unwrap().unwrap();
    assert_eq!(found.epoch, 1, "the first change was taken back");
}

#[test]
fn a_revoked_certificate_that_is_lost_is_damage_and_not_good_again() {
    let (_dir, store) = new_store();
    store.add_user(&ann(), 1).unwrap();
    store.revoke_certificates("ann", &[[9; 32]], 5).unwrap();
    store.change(|t| t.execute("DELETE FROM revoked_certificates", ()).map(Ok)).unwrap();
    assert!(matches!(store.user("ann"), Err(StoreError::Corrupted { .. })));
}

#[test]
fn files_are_their_owners_alone() {
    let (dir, store) = new_store();
    store.add_user(&ann(), 1).unwrap();
    store.back_up().unwrap();
    let mut seen = 0;
    for file in fs::read_dir(dir.path().join("state")).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", file.path());
        seen += 1;
    }
    assert!(seen >= 3, "database, log and backup");
    assert_eq!(fs::metadata(dir.path().join("state")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_missing_store_is_not_made_by_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vpnd.db");
    assert!(matches!(Sqlite::open(&path), Err(StoreError::Missing { .. })));
    assert!(!path.exists());
}

/// A store with many users, closed, and its path.
fn filled() -> (tempfile::TempDir, PathBuf) {
    let (dir, store) = new_store();
    add_many(&store, "user", 200);
    store.back_up().unwrap();
    drop(store);
    let path = dir.path().join("state/vpnd.db");
    (dir, path)
}

#[test]
fn a_damaged_file_is_refused_with_the_way_back() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("overwritten in the middle", |path| {
            let mut file = OpenOptions::new().write(true).open(path).unwrap();
            file.seek(std::io::SeekFrom::Start(8192)).unwrap();
            file.write_all(&[0xAB; 16_384]).unwrap();
        }),
        ("not a database", |path| fs::write(path, "once upon a time ".repeat(1000)).unwrap()),
        ("cut off", |path| OpenOptions::new().write(true).open(path).unwrap().set_len(20_480).unwrap()),
        ("another program's", |path| {
            fs::remove_file(path).unwrap();
            Connection::open(path).unwrap().execute_batch("CREATE TABLE x (y)").unwrap();
        }),
    ];
    for (what, damage) in damages {
        let (_dir, path) = filled();
        damage(&path);
        let before = fs::read(&path).unwrap();
        let error = Sqlite::open(&path).map(drop).unwrap_err();
        assert!(matches!(error, StoreError::Corrupted { .. }), "{what}: {error}");
        let text = error.to_string();
        assert!(text.contains("vpnd.db is damaged") && text.contains("vpnd.db.backup"), "{what}: {text}");
        assert!(fs::read(&path).unwrap() == before, "{what}: the damaged file is left alone");
        fs::copy(backup_path(&path), &path).unwrap();
        assert_eq!(Sqlite::open(&path).unwrap().users().unwrap().len(), 200, "{what}: the backup is good");
    }
}

#[test]
fn another_format_is_refused_and_left_alone() {
    let (_dir, path) = filled();
    let connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    assert!(matches!(Sqlite::open(&path), Err(StoreError::Newer { found: 99, .. })));
    // The versions before 0.1 had formats 1 to 7.
    for number in [1, 7] {
        connection
            .execute_batch(&format!("PRAGMA application_id = 0; PRAGMA user_version = {number}"))
            .unwrap();
        let before = fs::read(&path).unwrap();
        for error in [Sqlite::open(&path).err().unwrap(), Sqlite::inspect(&path).err().unwrap()] {
            assert!(matches!(error, StoreError::Older { .. }), "{error}");
            assert!(error.to_string().contains("before 0.1"), "{error}");
        }
        assert!(fs::read(&path).unwrap() == before);
    }
}

#[test]
fn a_full_disk_acknowledges_nothing_and_loses_nothing() {
    let (dir, store) = new_store();
    store.change(|t| t.statement("PRAGMA max_page_count = 60").query(()).map(|_| Ok(()))).unwrap();
    let mut acknowledged = Vec::new();
    let error = loop {
        let name = format!("user{}", acknowledged.len());
        match store.add_user(&named(&name), 1) {
            Ok(_) => acknowledged.push(name),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 10_000, "the limit must bite");
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    drop(store);
    let users = Sqlite::open(&dir.path().join("state/vpnd.db")).unwrap().users().unwrap();
    let mut names: Vec<String> = users.into_iter().map(|user| user.name).collect();
    names.sort_by_key(|name| name[4..].parse::<u32>().unwrap());
    assert_eq!(names, acknowledged);
}

#[test]
fn secrets_do_not_show_in_debug() {
    let (_dir, store) = new_store();
    let id = store.add_user(&ann(), 1).unwrap();
    store.add_session(&session_of(id, 1), 0).unwrap();
    let user = store.user("ann").unwrap().unwrap();
    let session = store.session(SessionId([1; 16]), 1000).unwrap().unwrap();
    let shown = format!("{:?} {user:?} {session:?} {store:?}", ann());
    for secret in ["secret-hash", "77, 77", "4d4d", "1, 1, 1", "0101010101010101010101010101010101010101"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
}

#[test]
fn damage_under_a_running_gateway_refuses_logins() {
    for damage in [
        "UPDATE users SET enabled = 1",
        "UPDATE users SET totp_secret = NULL",
        "UPDATE users SET totp_step = 0",
        "UPDATE users SET digest = NULL",
        "DELETE FROM certificates",
        "UPDATE memberships SET name = 'root' WHERE name = 'admins'",
    ] {
        let (dir, store) = new_store();
        let id = store.add_user(&ann(), 1).unwrap();
        assert!(store.use_totp_step(id, 7).unwrap());
        store.set_enabled("ann", false, 2).unwrap();
        let path = dir.path().join("state/vpnd.db");
        Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        for outcome in [store.user("ann"), store.user_by_id(id), store.users().map(|_| None)] {
            assert!(matches!(outcome, Err(StoreError::Corrupted { .. })), "{damage}: {outcome:?}");
        }
        assert!(matches!(Sqlite::open(&path), Err(StoreError::Corrupted { .. })), "{damage}");
    }
}

#[test]
fn a_user_record_older_than_its_revocations_is_refused() {
    let (dir, store) = new_store();
    store.add_user(&ann(), 1).unwrap();
    store.set_enabled("ann", false, 2).unwrap();
    let path = dir.path().join("state/vpnd.db");
    Connection::open(&path).unwrap().execute_batch("DELETE FROM revocations").unwrap();
    assert!(matches!(Sqlite::open(&path), Err(StoreError::Corrupted { .. })));
}

/// Three hundred revocations a year, which the worker carries out, and one that it has not yet.
#[test]
fn revocations_of_years_leave_few_rows_and_none_is_lost_unnoticed() {
    let (dir, store) = new_store();
    let (id, bob) = (store.add_user(&ann(), 1).unwrap(), store.add_user(&named("bob"), 1).unwrap());
    let revoke = |id, name, times: u64| {
        let work = |t: &Transaction<'_>| {
            (0..times).try_for_each(|at_s| users::revoke(t, id, name, RevocationCause::Groups, at_s))?;
            digest::renew(t, id).map(Ok)
        };
        store.change(work).unwrap();
    };
    let path = dir.path().join("state/vpnd.db");
    for year in 1..=5 {
        revoke(bob, "bob", 50);
        revoke(id, "ann", 250);
        let carried_out = store.last_revocation().unwrap();
        assert_eq!(carried_out, 300 * year + year - 1, "numbers go on");
        revoke(id, "ann", 1);
        store.forget_revocations(carried_out);
        let left = store.revocations_since(0).unwrap();
        assert_eq!(left.iter().map(|left| left.seq).collect::<Vec<_>>(), [carried_out + 1], "year {year}");
        Sqlite::open(&path).expect("it is whole");
    }
    store.remove_user("bob", 1).unwrap();
    Sqlite::open(&path).expect("without a user who had some");
    drop(store);
    let bytes = std::fs::read(&path).unwrap();
    for damage in [
        "DELETE FROM revocations",
        "DELETE FROM revocations WHERE seq = (SELECT min(seq) FROM revocations)",
        "DELETE FROM past_revocations",
        "UPDATE past_revocations SET count = count - 1",
    ] {
        std::fs::write(&path, &bytes).unwrap();
        Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        assert!(matches!(Sqlite::open(&path), Err(StoreError::Corrupted { .. })), "{damage}");
    }
}

#[test]
fn a_new_store_is_made_in_its_own_place_and_not_where_a_link_leads() {
    let dir = tempfile::tempdir().unwrap();
    let (path, elsewhere) = (dir.path().join("vpnd.db"), dir.path().join("elsewhere"));
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let error = Sqlite::open_or_create(&path).err().unwrap().to_string();
    assert!(error.contains("symbolic link") && !elsewhere.exists(), "{error}");
}

fn expiring(expires_s: u64) -> UserChange {
    UserChange { expires_s: Some(Some(expires_s)), ..UserChange::default() }
}

#[test]
fn damage_to_a_user_of_another_source_is_found() {
    for damage in [
        "UPDATE users SET source = 'local', subject = name",
        "UPDATE users SET subject = 'u2'",
        "UPDATE users SET expires_s = NULL",
        "UPDATE users SET expires_s = 9",
        "UPDATE users SET lapsed = 1",
        "UPDATE users SET note = 'x'",
        "UPDATE users SET password = 'x'",
    ] {
        let (dir, store) = new_store();
        store.refresh_external(&external("u1", "alice", &[]), 1).unwrap();
        store.modify_user("alice", &expiring(5), 1).unwrap();
        let path = dir.path().join("state/vpnd.db");
        Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        assert!(matches!(store.user("alice"), Err(StoreError::Corrupted { .. })), "{damage}");
        assert!(matches!(Sqlite::open(&path), Err(StoreError::Corrupted { .. })), "{damage}");
    }
}

#[test]
fn damage_to_a_fixed_address_is_found() {
    let (_dir, store) = new_store();
    store.add_user(&ann(), 1).unwrap();
    let addresses = vec!["10.86.0.7".parse().unwrap()];
    let addresses = Some(AddressChange { device: None, addresses });
    store.modify_user("ann", &UserChange { addresses, ..UserChange::default() }, 1).unwrap();
    let connection = Connection::open(store.path.clone()).unwrap();
    connection.execute_batch("UPDATE fixed_addresses SET address = x'0a560008'").unwrap();
    assert!(matches!(store.user("ann"), Err(StoreError::Corrupted { .. })));
}

#[test]
fn what_is_looked_for_often_is_found_by_an_index() {
    let (dir, store) = new_store();
    drop(store);
    let file = rusqlite::Connection::open(dir.path().join("state/vpnd.db")).unwrap();
    let expiry = ["users_expiry (lapsed=? AND expires_s<?)", "users_expiry (lapsed=? AND expires_s>?)"];
    let name = ["revocations_name (name=? AND at_s>?)"];
    for (query, indexes) in [(sql::accounts::DUE, &expiry[..]), (sql::events::CAUSED_SINCE, &name)] {
        let mut plan = file.prepare(&format!("EXPLAIN QUERY PLAN {query}")).unwrap();
        let steps = plan.raw_query().mapped(|row| row.get::<_, String>("detail"));
        let steps = steps.collect::<Result<Vec<_>, _>>().unwrap().join("; ");
        for index in indexes {
            assert!(steps.contains(&format!("USING INDEX {index}")), "{steps}");
        }
    }
}
