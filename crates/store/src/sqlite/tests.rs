//! The embedded store: what it acknowledges stays, what is damaged is refused, what is secret is hidden.

use std::io::{Seek as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;

use vpnd_proto::attach::TokenHash;
use vpnd_proto::session::DeviceId;

use super::*;
use crate::{AddressChange, MAX_GROUPS, MAX_SOURCES_PER_USER, Revocation, RevocationCause, TotpSecret};
use vpnd_config::factor::Factors;

fn new_store() -> (tempfile::TempDir, Sqlite) {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open_or_create(&dir.path().join("state/vpnd.db")).unwrap();
    (dir, store)
}

fn ann() -> NewUser {
    NewUser {
        totp: Some(TotpSecret::new(vec![77; 20])),
        groups: vec!["staff".to_owned(), "admins".to_owned()],
        certificate: Some([9; 32]),
        ..NewUser::new("ann", PasswordHash::new("$argon2id$secret-hash".to_owned()))
    }
}

fn named(name: &str) -> NewUser {
    NewUser { name: name.to_owned(), certificate: None, totp: None, ..ann() }
}

fn add_many(store: &Sqlite, prefix: &str, count: u32) {
    for i in 0..count {
        store.add_user(&named(&format!("{prefix}{i}")), 1).unwrap();
    }
}

fn session_of(user: UserId, id: u8) -> SessionRecord {
    SessionRecord {
        id: SessionId([id; 16]),
        user,
        device: DeviceId([id; 16]),
        epoch: 1,
        tokens: Tokens::restore(TokenHash::from_bytes([1; 32]), Some(TokenHash::from_bytes([2; 32]))),
        started_s: 1000,
        expires_s: 2000,
        factors: Factors::PASSWORD.and(Factors::ONE_TIME_CODE),
        auth_time_s: 900,
    }
}

fn lease(address: &str, user: u8, session: u8, until_s: u64) -> Lease {
    Lease {
        address: address.parse().unwrap(),
        owner: LeaseOwner { user: UserId([user; 16]), device: DeviceId([user; 16]) },
        session: SessionId([session; 16]),
        until_s,
    }
}

#[test]
fn a_user_comes_back_whole_after_reopening() {
    let (dir, store) = new_store();
    let id = store.add_user(&ann(), 1000).unwrap();
    drop(store);
    let store = Sqlite::open(&dir.path().join("state/vpnd.db")).unwrap();
    let user = store.user("ann").unwrap().unwrap();
    assert_eq!((user.id, user.enabled, user.generation, user.created_s), (id, true, 0, 1000));
    assert_eq!((user.password.as_ref(), &user.totp), (Some(&ann().password), &ann().totp));
    assert_eq!(
        (user.groups.as_slice(), user.certificates.as_slice()),
        (&["admins", "staff"].map(str::to_owned)[..], &[[9; 32]][..])
    );
    assert_eq!(store.user_by_id(id).unwrap(), Some(user.clone()));
    assert_eq!(store.users().unwrap(), [user]);
}

#[test]
fn names_are_taken_once_and_unknown_names_are_errors() {
    let (_dir, store) = new_store();
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

#[test]
fn taking_rights_away_is_an_event_and_voids_sessions() {
    let (_dir, store) = new_store();
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
}

#[test]
fn a_disabled_user_has_no_session_even_with_the_right_generation() {
    let (_dir, store) = new_store();
    let id = store.add_user(&ann(), 1000).unwrap();
    store.set_enabled("ann", false, 1000).unwrap();
    let generation = store.user("ann").unwrap().unwrap().generation;
    assert!(!store.add_session(&session_of(id, 1), generation).unwrap());
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
fn sessions_keep_their_tokens_until_they_expire_or_end() {
    let (_dir, store) = new_store();
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

#[test]
fn changes_of_many_sessions_are_made_together_or_not_at_all() {
    let (dir, store) = new_store();
    let (ann, bob) = (store.add_user(&named("ann"), 1).unwrap(), store.add_user(&named("bob"), 1).unwrap());
    store.set_enabled("bob", false, 2).unwrap();
    let tokens = Tokens::restore(TokenHash::from_bytes([7; 32]), None);
    let changes = [
        SessionChange::Add(session_of(ann, 1), 0),
        SessionChange::Add(session_of(bob, 2), 0),
        SessionChange::Tokens(SessionId([1; 16]), tokens, 9),
        SessionChange::Tokens(SessionId([3; 16]), tokens, 9),
        SessionChange::Add(session_of(ann, 4), 0),
        SessionChange::End(SessionId([4; 16])),
    ];
    let done = store.change_sessions(&changes, 1500).unwrap();
    assert_eq!(done, [true, false, true, false, true, true]);
    assert_eq!(store.session(SessionId([1; 16]), 1500).unwrap().map(|session| session.epoch), Some(9));
    assert_eq!(store.session(SessionId([4; 16]), 1500).unwrap(), None);

    let path = dir.path().join("state/vpnd.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("DROP TABLE leases").unwrap();
    let end = SessionChange::End(SessionId([1; 16]));
    assert!(store.change_sessions(&[changes[2].clone(), end], 1500).is_err());
    assert!(store.session(SessionId([1; 16]), 1500).unwrap().is_some(), "the first change was taken back");
}

#[test]
fn a_step_of_codes_is_used_once_and_in_order() {
    let (_dir, store) = new_store();
    let id = store.add_user(&ann(), 1000).unwrap();
    assert!(store.has_one_time_codes().unwrap());
    assert!(store.use_totp_step(id, 50).unwrap());
    assert!(!store.use_totp_step(id, 50).unwrap(), "again");
    assert!(!store.use_totp_step(id, 49).unwrap(), "before");
    assert!(store.use_totp_step(id, 51).unwrap());
}

#[test]
fn an_address_has_one_owner_at_a_time() {
    let (_dir, store) = new_store();
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
    store.renew(SessionId([2; 16]), 9500).unwrap();
    let owner = lease("fd00::2", 2, 2, 0).owner;
    for (family, address) in [(Family::V4, "10.0.0.3"), (Family::V6, "fd00::2")] {
        let found = store.lease_of(owner, family).unwrap().unwrap();
        assert_eq!((found.address, found.until_s), (address.parse::<IpAddr>().unwrap(), 9500));
    }
}

#[test]
fn known_sources_are_few_and_recent() {
    let (_dir, store) = new_store();
    let id = store.add_user(&ann(), 1000).unwrap();
    for i in 0..MAX_SOURCES_PER_USER + 5 {
        store.remember_source(id, &format!("192.0.2.{i}"), 1000 + i).unwrap();
    }
    assert!(!store.knows_source(id, "192.0.2.0", 0).unwrap(), "made room");
    assert!(store.knows_source(id, "192.0.2.10", 1010).unwrap());
    assert!(!store.knows_source(id, "192.0.2.10", 1011).unwrap(), "too long ago");
}

#[test]
fn two_processes_may_work_on_one_file() {
    let (dir, store) = new_store();
    let other = Sqlite::open(&dir.path().join("state/vpnd.db")).unwrap();
    std::thread::scope(|scope| {
        for (who, store) in [("a", &store), ("b", &other)] {
            scope.spawn(move || add_many(store, who, 20));
        }
    });
    assert_eq!(store.users().unwrap().len(), 40);
    other.set_enabled("a0", false, 5).unwrap();
    assert_eq!(store.last_revocation().unwrap(), 1, "seen at once by the other");
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
    store.change(|t| t.pragma_update(None, "max_page_count", 60).map(Ok)).unwrap();
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
fn damage_under_a_running_gateway_lets_nobody_in() {
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
fn a_user_of_an_older_time_than_the_revocations_is_refused() {
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
fn a_revoked_certificate_ends_what_was_granted_and_is_found_again() {
    let (dir, store) = new_store();
    let id = store.add_user(&ann(), 1).unwrap();
    let other = store.add_user(&named("bob"), 1).unwrap();
    for (user, session) in [(id, 1), (other, 2)] {
        assert!(store.add_session(&session_of(user, session), 0).unwrap());
    }
    store.revoke_certificates("ann", &[[9; 32], [7; 32]], 5).unwrap();
    drop(store);
    let store = Sqlite::open(&dir.path().join("state/vpnd.db")).unwrap();
    let user = store.user("ann").unwrap().unwrap();
    assert_eq!(user.certificates, [[9; 32]], "it stays hers");
    assert_eq!(user.revoked_certificates, [[9; 32]], "and one that is not hers is not");
    assert!(store.session(SessionId([1; 16]), 1001).unwrap().is_none());
    assert!(store.session(SessionId([2; 16]), 1001).unwrap().is_some());
    assert!(!store.add_session(&session_of(id, 3), 0).unwrap(), "a login that was under way");
    assert_eq!(store.revocations_since(0).unwrap()[0].cause, RevocationCause::Certificate);
    // A row that is lost is damage, and not a certificate that is good again.
    store.change(|t| t.execute("DELETE FROM revoked_certificates", ()).map(Ok)).unwrap();
    assert!(matches!(store.user("ann"), Err(StoreError::Corrupted { .. })));
}

#[test]
fn a_new_store_is_made_in_its_own_place_and_not_where_a_link_leads() {
    let dir = tempfile::tempdir().unwrap();
    let (path, elsewhere) = (dir.path().join("vpnd.db"), dir.path().join("elsewhere"));
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let error = Sqlite::open_or_create(&path).err().unwrap().to_string();
    assert!(error.contains("symbolic link") && !elsewhere.exists(), "{error}");
}

fn external(subject: &str, name: &str, groups: &[&str]) -> ExternalUser {
    ExternalUser {
        source: "campus".to_owned(),
        subject: subject.to_owned(),
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
    }
}

#[test]
fn a_user_of_another_source_is_one_record_however_often_they_come() {
    let (dir, store) = new_store();
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
    assert_eq!(Sqlite::open(&dir.path().join("state/vpnd.db")).unwrap().users().unwrap(), [disabled]);
}

/// Security: who was disabled before the first login is disabled at it.
#[test]
fn a_user_of_another_source_can_be_disabled_before_the_first_login() {
    let (dir, store) = new_store();
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
    assert_eq!(Sqlite::open(&dir.path().join("state/vpnd.db")).unwrap().users().unwrap(), [user]);
}

#[test]
fn an_answer_about_a_user_who_was_removed_meanwhile_makes_no_record() {
    let (_dir, store) = new_store();
    let user = external("u1", "alice@example.edu", &["staff"]);
    assert!(matches!(store.update_external(&user, 1), Err(StoreError::NoSuchUser { .. })));
    store.refresh_external(&user, 2).unwrap();
    let changed = store.update_external(&external("u1", "alice@example.edu", &["lab"]), 3).unwrap();
    assert_eq!(changed.groups, ["lab"]);
    store.remove_user("alice@example.edu", 4).unwrap();
    assert!(matches!(store.update_external(&user, 5), Err(StoreError::NoSuchUser { .. })));
    assert!(store.users().unwrap().is_empty());
}

#[test]
fn a_name_belongs_to_one_subject_and_a_new_name_ends_the_sessions_of_the_old() {
    let (_dir, store) = new_store();
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

#[test]
fn a_source_can_not_store_just_anything() {
    let (_dir, store) = new_store();
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

fn expiring(expires_s: u64) -> UserChange {
    UserChange { expires_s: Some(Some(expires_s)), ..UserChange::default() }
}

#[test]
fn the_end_of_a_users_time_is_a_revocation_once() {
    let (_dir, store) = new_store();
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
fn a_change_of_groups_keeps_sessions_and_voids_logins_under_way() {
    let (_dir, store) = new_store();
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

#[test]
fn a_removed_device_loses_its_session_and_addresses_and_the_others_keep_theirs() {
    let (_dir, store) = new_store();
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

#[test]
fn an_address_that_a_device_gives_up_for_another_is_nobodys_until_its_session_has_ended() {
    let (_dir, store) = new_store();
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

#[test]
fn a_user_is_found_however_the_letters_are_written() {
    let (_dir, store) = new_store();
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
