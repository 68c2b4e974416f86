//! Files of released versions: this one opens them, and all that was put into them is there.
//!
//! `kept/README.md` says how they were made. INVARIANT: a file here never changes; another format
//! adds another file.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use vpnd_config::factor::Factors;
use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_sys::own_file;

use crate::audit::query::Gap;
use crate::audit::testing::all;
use crate::audit::{AuditEntry, AuditFile, Event, Move, SessionStart};
use crate::sqlite::{Replacement, Sqlite};
use crate::{
    AddressChange, ExternalUser, Family, Lease, LeaseOwner, LiveUser, NewUser, PasswordHash, RevocationCause,
    SessionRecord, Store, StoreError, TotpSecret, UserChange, UserId,
};

const STORE_0_1: &[u8] = include_bytes!("kept/0.1.db");
const AUDIT_0_1: &[u8] = include_bytes!("kept/0.1-audit.sqlite");

/// Some of everything, as it was put into `0.1.db`.
fn fill(store: &dyn Store) {
    let ann = NewUser {
        totp: Some(TotpSecret::new(vec![77; 20])),
        groups: vec!["staff".to_owned(), "admins".to_owned()],
        certificate: Some([9; 32]),
        expires_s: Some(5_000_000_000),
        sponsor: Some("head".to_owned()),
        note: "Grüße".to_owned(),
        ..NewUser::new("Ann", PasswordHash::new("$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaA".to_owned()))
    };
    let id = store.add_user(&ann, 1000).unwrap();
    store.add_certificate("Ann", &[8; 32]).unwrap();
    store.revoke_certificates("Ann", &[[9; 32]], 1001).unwrap();
    assert!(store.use_totp_step(id, 50).unwrap());
    store.remember_source(id, "192.0.2.0/24", 1002).unwrap();
    let device = DeviceId([1; 16]);
    for (device, address) in [(None, "10.86.0.9"), (Some(device), "fd86::7")] {
        let addresses = Some(AddressChange { device, addresses: vec![address.parse().unwrap()] });
        store.modify_user("Ann", &UserChange { addresses, ..UserChange::default() }, 1003).unwrap();
    }
    store.add_user(&NewUser::new("bob", PasswordHash::new("$2b$04$bcrypt".to_owned())), 1004).unwrap();
    for _ in 0..70 {
        store.set_enabled("bob", false, 1005).unwrap();
    }
    store.forget_revocations(60);
    let external = ExternalUser {
        source: "campus".to_owned(),
        subject: "uid=cat,dc=example".to_owned(),
        name: "cat@uni.example".to_owned(),
        groups: vec!["students".to_owned()],
    };
    let cat = LiveUser::of(&store.refresh_external(&external, 1006).unwrap());
    store.end_device(&cat, device, RevocationCause::Disconnected, 1007).unwrap();
    for cause in [RevocationCause::Source, RevocationCause::Unconfirmed, RevocationCause::Renamed] {
        store.end_sessions(&cat, cause, 1008).unwrap();
    }
    for (number, user, fresh) in [(1, id, true), (2, cat.id, false)] {
        let generation = store.user_by_id(user).unwrap().unwrap().generation;
        let session = SessionId([number; 16]);
        let fresh = fresh.then(|| TokenHash::from_bytes([2; 32]));
        let record = SessionRecord {
            id: session,
            user,
            device: DeviceId([number; 16]),
            epoch: 3,
            tokens: Tokens::restore(TokenHash::from_bytes([number; 32]), fresh),
            started_s: 2000,
            expires_s: 4_000_000_000,
            factors: Factors::PASSWORD.and(Factors::ONE_TIME_CODE),
            auth_time_s: 1999,
            generation: 0,
            most: None,
        };
        assert!(store.add_session(&record, generation).unwrap());
        for address in [format!("10.86.0.{number}"), format!("fd86::{number}")] {
            let owner = LeaseOwner { user, device: DeviceId([number; 16]) };
            let lease = Lease { address: address.parse().unwrap(), owner, session, until_s: 4_000_000_000 };
            assert!(store.claim(&lease, 2000).unwrap());
        }
    }
}

/// All that a store has, with names in place of the identifiers that it makes up.
fn contents(store: &dyn Store) -> Vec<String> {
    let mut lines = Vec::new();
    let name = |id: UserId| store.user_by_id(id).unwrap().map(|user| user.name);
    for mut user in store.users().unwrap() {
        let id = std::mem::replace(&mut user.id, UserId::NOBODY);
        let secrets =
            (user.password.as_ref().map(PasswordHash::expose), user.totp.as_ref().map(TotpSecret::expose));
        lines.push(format!("{user:?} {secrets:?}"));
        lines.push(format!("{:?}", store.devices(id).unwrap()));
        lines.push(format!("{:?}", store.knows_source(id, "192.0.2.0/24", 1002).unwrap()));
    }
    lines.push(format!(
        "{:?} {:?}",
        store.newest_sources(9).unwrap(),
        store.users_with_sessions("campus").unwrap().len()
    ));
    for mut session in store.live_sessions(2000).unwrap() {
        let mut record = store.session(session.id, 2000).unwrap().unwrap();
        let (settled, fresh) =
            (*record.tokens.settled().as_bytes(), record.tokens.fresh().map(|fresh| *fresh.as_bytes()));
        let user = name(std::mem::replace(&mut record.user, UserId::NOBODY));
        assert_eq!(name(std::mem::replace(&mut session.owner, UserId::NOBODY)), user);
        lines.push(format!("{session:?} {record:?} {user:?} {settled:?} {fresh:?}"));
    }
    for mut lease in [Family::V4, Family::V6].into_iter().flat_map(|family| store.leases(family).unwrap()) {
        let user = name(std::mem::replace(&mut lease.owner.user, UserId::NOBODY));
        lines.push(format!("{lease:?} {user:?}"));
    }
    for mut revocation in store.revocations_since(0).unwrap() {
        revocation.user = UserId::NOBODY;
        lines.push(format!("{revocation:?}"));
    }
    lines.push(format!("{}", store.last_revocation().unwrap()));
    lines
}

#[test]
fn a_store_of_0_1_is_read_completely_and_stays_usable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vpnd.db");
    let made = Sqlite::open_or_create(&directory.path().join("made.db")).unwrap();
    fill(&made);
    fs::write(&path, STORE_0_1).unwrap();
    assert_eq!(Sqlite::inspect(&path).unwrap().len(), 3);
    let kept = Sqlite::open(&path).unwrap();
    let (kept_contents, made_contents) = (contents(&kept), contents(&made));
    assert!(made_contents.len() > 20, "{made_contents:#?}");
    assert_eq!(kept_contents, made_contents);
    let kept: &dyn Store = &kept;
    let ann = kept.user("ann").unwrap().unwrap();
    assert!(!kept.use_totp_step(ann.id, 50).unwrap() && kept.use_totp_step(ann.id, 51).unwrap());
    kept.set_enabled("bob", true, 3000).unwrap();
    kept.remove_user("cat@uni.example", 3000).unwrap();
    Sqlite::open(&path).expect("it is whole");
}

/// The format of a store, and its users.
fn format_and_users(path: &Path) -> (i64, Vec<String>) {
    let connection = rusqlite::Connection::open(path).unwrap();
    let format = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    (format, Sqlite::inspect(path).unwrap().into_iter().map(|user| user.name).collect())
}

#[test]
fn a_store_of_0_1_is_kept_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vpnd.db");
    let [copy, unfinished] = ["db.format1", "db.format1.new"].map(|end| path.with_extension(end));
    fs::write(&path, STORE_0_1).unwrap();
    let before = format_and_users(&path);
    assert_eq!((before.0, before.1.len(), copy.exists()), (1, 3, false), "looking at it changes nothing");
    // Without a copy the store stays as it is.
    fs::create_dir(&unfinished).unwrap();
    assert!(matches!(Sqlite::open(&path), Err(StoreError::Failed { .. })));
    assert_eq!(format_and_users(&path), before);
    fs::remove_dir(&unfinished).unwrap();

    let store: Box<dyn Store> = Box::new(Sqlite::open(&path).unwrap());
    store.set_enabled("bob", true, 3000).unwrap();
    assert_eq!(format_and_users(&path), (2, before.1.clone()));
    assert_eq!(format_and_users(&copy), before);
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!unfinished.exists());
    drop(store);
    // Brought back by it and changed, the store is kept again.
    fs::copy(&copy, &path).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch("DELETE FROM leases").unwrap();
    drop(Sqlite::open(&path).unwrap());
    let leases: i64 = rusqlite::Connection::open(&copy)
        .unwrap()
        .query_row("SELECT count(*) FROM leases", (), |row| row.get(0))
        .unwrap();
    assert_eq!((format_and_users(&copy), leases), (before, 0));

    fs::remove_file(&copy).unwrap();
    drop(Sqlite::open(&path).unwrap());
    let mut replacement = Replacement::new(&path).unwrap();
    replacement.write(STORE_0_1).unwrap();
    assert!(replacement.publish().unwrap());
    let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
    assert!(!names.iter().any(|name| name.contains("format")), "no other is kept: {names:?}");
}

/// Some of everything, as it was put into `0.1-audit.sqlite`.
fn fill_audit(file: &mut AuditFile) {
    let blocks = "10.86.0.0/28 to 192.0.2.1 ports 20000-21599 by 100".parse().unwrap();
    let run = file.begin_run(900, Some(&blocks)).unwrap();
    let session = SessionId([1; 16]);
    let start = SessionStart {
        session,
        user: "ann".to_owned(),
        source: "local".to_owned(),
        profile: "staff".to_owned(),
        device: DeviceId([2; 16]),
        outer: Some([198, 51, 100, 7].into()),
        ipv4: Some([10, 86, 0, 2].into()),
        ipv6: Some("fd86::2".parse().unwrap()),
        at_s: 1000,
        expires_s: 9000,
    };
    let open = SessionStart { session: SessionId([3; 16]), user: "bob".to_owned(), ..start.clone() };
    let outer = "198.51.100.8:4711".parse().unwrap();
    let entry = AuditEntry {
        at_s: 1500,
        event: "login-refused".to_owned(),
        user: "eve".to_owned(),
        source: "198.51.100.9".to_owned(),
        detail: "wrong".to_owned(),
        by: String::new(),
    };
    file.record(&[
        Event::Began(start),
        Event::Moved { session, at_s: 1200, to: Move { lane: 1, outer, left_out: 2 } },
        Event::Ended { session, at_s: 2000, reason: "bye".to_owned() },
        Event::Began(open),
        Event::Entry(entry),
    ])
    .unwrap();
    file.record_gap(&Gap { from_s: 1600, to_s: 1700, lost: Some(4), cause: "no room".to_owned() }).unwrap();
    file.alive(run, 2500).unwrap();
}

#[test]
fn an_audit_file_of_0_1_is_read_completely_and_stays_usable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.sqlite");
    let mut made = AuditFile::open_or_create(&directory.path().join("made.sqlite")).unwrap();
    fill_audit(&mut made);
    own_file::open_or_create(&path).unwrap().write_all(AUDIT_0_1).unwrap();
    let mut kept = AuditFile::open(&path).unwrap();
    let shown = |file: &AuditFile| format!("{:#?}", all(file));
    assert_eq!(shown(&kept), shown(&made));
    assert!(shown(&kept).contains("198.51.100.8") && shown(&kept).contains("20200"));
    kept.record(&[Event::Ended { session: SessionId([3; 16]), at_s: 3000, reason: "bye".to_owned() }])
        .unwrap();
    assert!(kept.open_sessions().unwrap().is_empty());
}
