//! The store in a database: it behaves as the embedded one, a lost answer is no lost change, and
//! two gateways never share it.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;

use vpnd_proto::attach::{TokenHash, Tokens};

use super::testing::{Cluster, LosesCommits, ROLE, SERVER_NAME, gateway};
use super::*;
use crate::conformance::{ann, named, session_of};
use crate::sql::{Value, copy};
use crate::sqlite::Sqlite;
use crate::{Sessions as _, Store, Users as _, WireGuardDevices as _, conformance, migrate};
use vpnd_config::database::{DatabaseFiles, DatabaseHost, PostgresSettings};

/// The server of all tests that leave it running.
fn cluster() -> Option<&'static Cluster> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start("127.0.0.1", |path| std::process::Command::new(path), "")).as_ref()
}

/// A database with tables, of gateway 1.
struct InDatabase {
    access: Access,
    dial: Arc<dyn Dial>,
    name: String,
    directory: tempfile::TempDir,
}

impl InDatabase {
    fn new() -> Option<Self> {
        cluster().map(Self::on)
    }

    fn on(cluster: &Cluster) -> Self {
        let name = cluster.database();
        let (access, dial) = cluster.access(&name);
        let dial: Arc<dyn Dial> = Arc::new(dial);
        Postgres::create(&access, &dial, &gateway(1, 1)).unwrap();
        Self { access, dial, name, directory: tempfile::tempdir().unwrap() }
    }

    fn open_as(&self, holder: Holder) -> Result<Postgres, StoreError> {
        let (limit, dial) = (Duration::from_secs(3), Arc::clone(&self.dial));
        Postgres::open_within(limit, &self.access, dial, holder, self.directory.path())
    }

    fn gateway(&self) -> Postgres {
        let dial = Arc::clone(&self.dial);
        Postgres::open(&self.access, dial, gateway(1, 1), self.directory.path()).unwrap()
    }

    fn sql(&self, sql: &str) -> String {
        cluster().unwrap().sql(&self.name, sql)
    }
}

impl conformance::Stand for InDatabase {
    fn open(&self) -> Box<dyn Store> {
        Box::new(self.gateway())
    }
}

/// Leaves the test where the machine has no PostgreSQL.
macro_rules! some {
    ($found:expr) => {
        match $found {
            Some(found) => found,
            None => return,
        }
    };
}

mod additions;
mod fleet;
mod outages;
mod scale;
mod takeover;

mod conforms {
    crate::conformance::tests!(some!(super::InDatabase::new()));
}

fn sentence<T>(outcome: Result<T, StoreError>) -> String {
    outcome.err().map_or_else(|| "no error".to_owned(), |error| error.to_string())
}

fn trouble<T>(outcome: Result<T, StoreError>) -> Trouble {
    match outcome.err() {
        Some(StoreError::Database { trouble, .. }) => trouble,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_second_gateway_is_refused_and_the_first_never_locks_itself_out() {
    let database = some!(InDatabase::new());
    let first = database.gateway();
    let other = sentence(database.open_as(gateway(2, 2)));
    assert!(other.contains("belongs to the gateway 'gw1'"), "{other}");
    // A copy of the machine has the same identity.
    let copy = sentence(database.open_as(gateway(1, 2)));
    assert!(copy.contains("in use by the running gateway 'gw1'"), "{copy}");
    // Both processes of an upgrade, and a command.
    let second = database.gateway();
    first.add_user(&ann(), 1).unwrap();
    second.add_user(&named("bob"), 1).unwrap();
    let command = database.open_as(Holder { instance: None, ..gateway(1, 1) }).unwrap();
    command.set_enabled("bob", false, 2).unwrap();
    let foreign = database.open_as(Holder { instance: None, ..gateway(2, 1) });
    assert!(matches!(trouble(foreign), Trouble::Foreign(_)));
    assert!(matches!(
        trouble(Postgres::adopt(&database.access, &database.dial, &gateway(2, 2), "gw1")),
        Trouble::InUse(_)
    ));
    drop((first, second));
    // This is like kill -9: the connections are gone without another message.
    let begun = Instant::now();
    let next = database.open_as(gateway(1, 3)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10) && next.user("ann").unwrap().is_some());
    drop(next);
    let until = Instant::now() + Duration::from_secs(30);
    let adopt = |from| Postgres::adopt(&database.access, &database.dial, &gateway(2, 2), from);
    assert!(matches!(trouble(adopt("gw7")), Trouble::Foreign(name) if name == "gw1"));
    loop {
        let begun = Instant::now();
        match adopt("gw1") {
            Err(StoreError::Database { trouble: Trouble::InUse(_), .. }) if Instant::now() < until => {}
            adopted => {
                adopted.unwrap();
                assert!(begun.elapsed() > Duration::from_secs(10), "the other one could come back");
                break;
            }
        }
    }
    assert!(matches!(trouble(database.open_as(gateway(1, 4))), Trouble::Foreign(_)));
    assert!(database.open_as(gateway(2, 5)).is_ok());
}

#[test]
fn a_copy_of_a_gateway_does_not_take_the_database_in_an_outage() {
    let database = some!(InDatabase::new());
    drop(database.gateway());
    let mut copied = gateway(1, 2);
    copied.instance.as_mut().unwrap()[8..].fill(7);
    let lock = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let until = Instant::now() + Duration::from_secs(30);
    while database.sql(lock) != "0" {
        assert!(Instant::now() < until);
    }
    // The lock is free, as after a restart of the server.
    assert!(matches!(trouble(database.open_as(copied.clone())), Trouble::InUse(_)));
    assert_eq!(database.sql("SELECT free_since IS NOT NULL FROM vpnd.holder"), "t");
    drop(database.gateway());
    assert_eq!(database.sql("SELECT free_since IS NOT NULL FROM vpnd.holder"), "f", "it is there again");
    // The machine is gone for good.
    let opened =
        Postgres::open(&database.access, Arc::clone(&database.dial), copied, database.directory.path());
    assert!(opened.unwrap().user("ann").unwrap().is_none());
}

#[test]
fn the_documented_cleanup_of_a_restored_database_works() {
    let database = some!(InDatabase::new());
    let documents = include_str!("../../../../docs/DATABASE.md");
    let truncate = documents.split('\'').find(|part| part.starts_with("TRUNCATE")).unwrap();
    let store = database.gateway();
    let id = store.add_user(&ann(), 1).unwrap();
    assert!(store.add_session(&session_of(id, 1), 0).unwrap());
    let (token, _) = crate::ApiToken::new("idm", vpnd_config::desk::DeskRole::Administrator, 1, 100);
    assert!(crate::ApiTokens::add_api_token(&store, &token).unwrap());
    let refresh = crate::RefreshToken::new("x".to_owned());
    crate::RefreshTokens::keep_refresh_token(&store, id, Some(&refresh)).unwrap();
    crate::Invitations::invite(&store, "ann", &[5; 32], 100).unwrap();
    drop(store);
    database.sql(truncate);
    let store = database.gateway();
    assert!(store.session(session_of(id, 1).id, 1500).unwrap().is_none());
    assert!(crate::ApiTokens::api_tokens(&store).unwrap().is_empty());
    assert!(crate::Invitations::invited(&store, &[5; 32], 2).unwrap().is_none());
    assert_eq!(crate::RefreshTokens::refresh_token(&store, id).unwrap(), None);
    assert!(store.add_session(&session_of(id, 2), 0).unwrap());
}

#[test]
fn a_gateway_that_is_no_longer_the_holder_changes_nothing() {
    let database = some!(InDatabase::new());
    let store = database.gateway();
    store.add_user(&ann(), 1).unwrap();
    database.sql("UPDATE vpnd.holder SET instance = '\\x00000000000000000000000000000009', name = 'gw9'");
    assert_eq!(trouble(store.add_user(&named("bob"), 1)), Trouble::InUse("gw9".to_owned()));
    database.sql("UPDATE vpnd.holder SET gateway = '\\x00000000000000000000000000000009'");
    assert_eq!(trouble(store.set_enabled("ann", false, 1)), Trouble::Foreign("gw9".to_owned()));
    assert_eq!(database.sql("SELECT name, enabled FROM vpnd.users"), "ann|1");
}

#[test]
fn a_commit_whose_answer_is_lost_is_neither_lost_nor_made_up() {
    let database = some!(InDatabase::new());
    for (passes, name) in [(true, "told"), (false, "untold")] {
        let left = Arc::new(AtomicU32::new(0));
        let dial = Arc::new(LosesCommits {
            sockets: vec![cluster().unwrap().socket()],
            left: Arc::clone(&left),
            passes,
            meanwhile: Arc::new(|| ()),
        });
        let path = database.directory.path();
        let store = Postgres::open(&database.access, dial, gateway(1, 1), path).unwrap();
        store.add_user(&named(&format!("before{name}")), 1).unwrap();
        left.store(1, Ordering::SeqCst);
        let added = store.add_user(&named(name), 1);
        assert_eq!(left.load(Ordering::SeqCst), 0, "the commit was lost");
        let count = database.sql(&format!("SELECT count(*) FROM vpnd.users WHERE name = '{name}'"));
        match added {
            Ok(_) => assert!(passes && count == "1", "{passes} {count}"),
            Err(error) => assert!(!passes && count == "0" && error.is_for_now(), "{passes} {count}: {error}"),
        }
        store.add_user(&named(&format!("after{name}")), 1).unwrap();
    }
}

/// A change whose COMMIT is lost while this happens to the server, and that is not on the server
/// that answers next.
fn lost_with_its_server(
    database: &InDatabase,
    access: &Access,
    sockets: Vec<PathBuf>,
    passes: bool,
    before: impl FnOnce(),
    meanwhile: impl Fn() + Send + Sync + 'static,
) {
    let left = Arc::new(AtomicU32::new(0));
    let dial =
        Arc::new(LosesCommits { sockets, left: Arc::clone(&left), passes, meanwhile: Arc::new(meanwhile) });
    let store = Postgres::open(access, dial, gateway(1, 1), database.directory.path()).unwrap();
    before();
    left.store(1, Ordering::SeqCst);
    let lost = store.set_enabled("ann", false, 1);
    assert_eq!(left.load(Ordering::SeqCst), 0, "the commit was lost");
    let refused = lost.expect_err("what is not there is not acknowledged");
    assert!(refused.is_for_now(), "{refused}");
    let until = Instant::now() + Duration::from_secs(30);
    let ann = loop {
        match store.user("ann") {
            Ok(ann) => break ann.unwrap(),
            Err(_) => assert!(Instant::now() < until),
        }
        sleep(Duration::from_millis(50));
    };
    assert!(ann.enabled, "it is not there");
    while let Err(error) = store.set_enabled("ann", false, 1) {
        assert!(Instant::now() < until, "{error}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_change_that_a_standby_lacks_is_not_acknowledged() {
    let primary = some!(Cluster::start("127.0.0.1", |path| std::process::Command::new(path), ""));
    let standby = primary.standby();
    let database = InDatabase::on(&primary);
    database.gateway().add_user(&ann(), 1).unwrap();
    let hosts = [&primary, &standby].map(|cluster| DatabaseHost::Socket(cluster.socket()));
    let settings = PostgresSettings { hosts: hosts.into(), ..primary.settings(&database.name) };
    let access = Access::new(&settings, &DatabaseFiles::default()).unwrap();
    let sockets = vec![primary.socket(), standby.socket()];
    let servers = Arc::new(parking_lot::Mutex::new((primary, standby)));
    let lags = Arc::clone(&servers);
    // Only the lost change has a number that the standby does not know.
    let before = || {
        let (primary, standby) = &*lags.lock();
        standby.cut_off(primary);
    };
    lost_with_its_server(&database, &access, sockets, true, before, move || {
        let (primary, standby) = &mut *servers.lock();
        primary.stop(true);
        standby.promote();
    });
}

#[test]
fn a_change_that_a_crash_undoes_is_not_acknowledged() {
    // Uncommitted data is not on the disk, so that recovery numbers transactions again.
    let settings = "wal_writer_delay = 10s\nautovacuum = off\nbgwriter_lru_maxpages = 0";
    let cluster = some!(Cluster::start("127.0.0.1", |path| std::process::Command::new(path), settings));
    let database = InDatabase::on(&cluster);
    database.gateway().add_user(&ann(), 1).unwrap();
    let (access, socket) = (database.access.clone(), cluster.socket());
    lost_with_its_server(
        &database,
        &access,
        vec![socket],
        false,
        || (),
        move || {
            cluster.kill_backends("state = 'idle in transaction'");
        },
    );
}

#[test]
fn a_commit_is_uncertain_if_the_server_stays_silent() {
    let database = some!(InDatabase::new());
    let left = Arc::new(AtomicU32::new(0));
    let name = database.name.clone();
    let meanwhile = move || {
        cluster().unwrap().sql(&name, "ALTER TABLE vpnd.marks RENAME TO moved");
    };
    let dial = Arc::new(LosesCommits {
        sockets: vec![cluster().unwrap().socket()],
        left: Arc::clone(&left),
        passes: true,
        meanwhile: Arc::new(meanwhile),
    });
    let path = database.directory.path();
    let store = Postgres::open(&database.access, dial, gateway(1, 1), path).unwrap();
    left.store(1, Ordering::SeqCst);
    assert_eq!(trouble(store.add_user(&ann(), 1)), Trouble::Uncertain);
}

#[test]
fn defaults_of_the_server_change_nothing() {
    let database = some!(InDatabase::new());
    let id = database.gateway().add_user(&ann(), 1).unwrap();
    for setting in ["default_transaction_isolation = 'serializable'", "default_transaction_read_only = on"] {
        database.sql(&format!("ALTER DATABASE {} SET {setting}", database.name));
    }
    let [one, other] = [0, 1].map(|_| database.gateway());
    std::thread::scope(|scope| {
        let (begun, holds) = std::sync::mpsc::channel();
        let disabling = scope.spawn(move || {
            one.change(|t| {
                begun.send(()).unwrap();
                // The other one waits for the lock meanwhile.
                sleep(Duration::from_millis(500));
                crate::sql::users::set_enabled(t, "ann", false, 5)
            })
        });
        holds.recv().unwrap();
        assert!(!other.add_session(&session_of(id, 1), 0).unwrap(), "it sees who was disabled meanwhile");
        disabling.join().unwrap().unwrap();
    });
}

#[test]
fn sessions_continue_while_the_database_is_unreachable() {
    let mut cluster = some!(Cluster::start("127.0.0.1", |path| std::process::Command::new(path), ""));
    let database = InDatabase::on(&cluster);
    let store = database.gateway();
    let id = store.add_user(&ann(), 1).unwrap();
    let [kept, ended, revoked] = [1, 2, 3].map(|number| session_of(id, number));
    let other = store.add_user(&named("bob"), 1).unwrap();
    let revoked = SessionRecord { user: other, ..revoked };
    for session in [&kept, &ended, &revoked] {
        assert_eq!(store.change_sessions(&[SessionChange::Add(session.clone(), 0)], 1000).unwrap(), [true]);
    }
    store.add_wireguard_device("ann", &phone(), 5).unwrap();
    store.set_enabled("bob", false, 1000).unwrap();
    crate::Revocations::revocations_since(&store, 0).unwrap();
    cluster.stop(true);
    // The first use after the end notices it.
    let tokens = Tokens::restore(TokenHash::from_bytes([7; 32]), None);
    let change = |epoch| SessionChange::Tokens(kept.id, tokens, epoch);
    assert_eq!(store.change_sessions(&[change(5)], 1500).unwrap(), [true]);
    let begun = Instant::now();
    for epoch in 6..20 {
        assert_eq!(store.change_sessions(&[change(epoch)], 1500).unwrap(), [true]);
    }
    assert_eq!(store.change_sessions(&[SessionChange::End(ended.id)], 1500).unwrap(), [true]);
    let epoch = |session: &SessionRecord| store.session(session.id, 1500).unwrap().map(|found| found.epoch);
    assert_eq!([epoch(&kept), epoch(&ended), epoch(&revoked)], [Some(19), None, None]);
    assert!(begun.elapsed() < Duration::from_secs(5), "nobody waits for it");
    let shown = |second: u8| crate::HandshakeShown { public_key: [4; 32], time: [second; 12], is_own: false };
    store.keep_handshakes(&[shown(7), shown(6)]).unwrap();
    let refused = store.change_sessions(&[SessionChange::Add(session_of(id, 4), 0)], 1500);
    let refused = sentence(refused);
    assert!(refused.contains("can't be reached") && refused.contains("new logins wait"), "{refused}");
    assert!(store.user("ann").unwrap_err().is_for_now());
    cluster.restart();
    let begun = Instant::now();
    while store.user("ann").is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it is found again");
        sleep(Duration::from_millis(50));
    }
    while store.catch_up(1500).unwrap_or(0) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        sleep(Duration::from_millis(50));
    }
    let stored = cluster.sql(&database.name, "SELECT epoch FROM vpnd.sessions ORDER BY id");
    assert_eq!(stored, "19", "and what was put off is there");
    assert_eq!(store.find_wireguard_device(&[4; 32], 0).unwrap().unwrap().device.latest, Some([7; 12]));
    store.add_session(&session_of(id, 4), 0).unwrap();
}

#[test]
fn each_trouble_has_its_sentence() {
    let cluster = some!(cluster());
    let database = some!(InDatabase::new());
    let try_with = |settings, files: &DatabaseFiles| {
        let PostgresSettings { hosts, .. } = &settings;
        let dial: Arc<dyn Dial> = Arc::new(Direct(hosts.clone()));
        let access = Access::new(&settings, files).unwrap();
        let holder = Holder { instance: None, ..gateway(1, 1) };
        let opened =
            Postgres::open_within(Duration::from_secs(30), &access, dial, holder, database.directory.path());
        sentence(opened.map(drop))
    };
    let (settings, files) = cluster.settings_with_tls(&database.name);
    assert_eq!(try_with(settings.clone(), &files), "no error");
    let named = PostgresSettings { server_name: Some(SERVER_NAME.to_owned()), ..settings.clone() };
    assert_eq!(try_with(named, &files), "no error");
    let wrong = DatabaseFiles { password: Some("wrong".to_owned().into()), ..files.clone() };
    let mut cases = vec![
        (try_with(settings.clone(), &wrong), "refuses the user of [store]"),
        (
            try_with(settings.clone(), &DatabaseFiles { password: None, ..files.clone() }),
            "asks for a password",
        ),
    ];
    let other = PostgresSettings { server_name: Some("other.example".to_owned()), ..settings.clone() };
    cases.push((try_with(other, &files), "TLS certificate that is not trusted"));
    let foreign = vpnd_pki::authority::Authority::new("other", std::time::SystemTime::now())
        .unwrap()
        .certificate_pem()
        .as_bytes()
        .to_vec();
    cases.push((
        try_with(settings.clone(), &DatabaseFiles { ca: Some(foreign), ..files.clone() }),
        "TLS certificate that is not trusted",
    ));
    let missing = PostgresSettings { database: "nowhere".to_owned(), ..settings.clone() };
    cases.push((try_with(missing, &files), "has no such database"));
    let closed = PostgresSettings { hosts: vec!["127.0.0.1:1".parse().unwrap()], ..settings.clone() };
    cases.push((try_with(closed, &files), "can't be reached (127.0.0.1:1"));
    let empty = PostgresSettings { database: cluster.database(), ..settings.clone() };
    cases.push((try_with(empty, &files), "no tables of vpnd yet"));
    database.sql("CREATE ROLE few LOGIN CONNECTION LIMIT 0");
    let few = PostgresSettings { user: "few".to_owned(), ..cluster.settings(&database.name) };
    cases.push((try_with(few, &files), "has no connection left"));
    for (number, part) in [(1, "has format 1, of an earlier vpnd"), (7, "has format 7, this vpnd supports 6")]
    {
        database.sql(&format!("UPDATE vpnd.format SET number = {number}"));
        cases.push((try_with(settings.clone(), &files), part));
    }
    for (sentence, part) in cases {
        assert!(sentence.contains(part) && !sentence.contains('\n'), "{part}: {sentence}");
    }
    database.sql("UPDATE vpnd.format SET number = 6");
    database.sql(&format!("ALTER DATABASE {} SET synchronous_commit = off", database.name));
    let store = database.gateway();
    assert_eq!((store.facts().synchronous_commit.as_str(), store.facts().fsync), ("off", false));
    let own = store.read(|c| {
        c.query_row("SELECT current_setting('synchronous_commit')", (), |row| row.get::<_, String>(0))
    });
    assert_eq!(own.unwrap(), "on", "for this store it is on all the same");
    assert_eq!(ROLE, "vpnd");
}

#[test]
fn a_standby_is_not_written_to() {
    let mut cluster = some!(Cluster::start("127.0.0.1", |path| std::process::Command::new(path), ""));
    let database = InDatabase::on(&cluster);
    let store = database.gateway();
    store.add_user(&ann(), 1).unwrap();
    cluster.stop(false);
    cluster.make_standby();
    cluster.restart();
    let refused = sentence(database.open_as(gateway(1, 1)));
    assert!(refused.contains("read-only standby"), "{refused}");
    // A gateway that was connected finds it out, and goes on.
    let until = Instant::now() + Duration::from_secs(10);
    while trouble(store.user("ann")) != Trouble::Standby {
        assert!(Instant::now() < until);
        sleep(Duration::from_millis(50));
    }
}

/// Every row of every table, whatever the engine.
fn contents(store: &impl Database) -> Vec<String> {
    let all = |c: &Connection<'_>| {
        let mut rows = Vec::new();
        for (table, columns) in copy::TABLES {
            let found = c.statement(&format!("SELECT {columns} FROM {table}")).query(())?;
            rows.extend(found.iter().map(|row| {
                let values = row.values().iter().map(|value| match value {
                    Value::Null(_) => "null".to_owned(),
                    Value::Integer(number) => number.to_string(),
                    Value::Text(text) => format!("{:?}", text.as_str()),
                    Value::Blob(bytes) => format!("{bytes:02x?}"),
                });
                format!("{table} {:?}", values.collect::<Vec<_>>())
            }));
        }
        rows.push(format!("last {}", crate::sql::events::last_revocation(c)?));
        rows.sort();
        Ok(rows)
    };
    store.read(all).unwrap()
}

fn phone() -> crate::NewWireGuardDevice {
    crate::NewWireGuardDevice {
        public_key: [4; 32],
        id: vpnd_proto::session::DeviceId([4; 16]),
        name: "phone".to_owned(),
        preshared: None,
        most: 64,
        addresses: vec!["10.0.0.100".parse().unwrap()],
    }
}

/// A store with something in each table.
fn fill(store: &Sqlite, users: u32) {
    let id = store.add_user(&ann(), 1).unwrap();
    for number in 0..users {
        let user = crate::NewUser {
            expires_s: number.is_multiple_of(3).then_some(5_000),
            note: format!("person {number} 'quoted' \u{e9}"),
            ..named(&format!("user{number}"))
        };
        store.add_user(&user, 1).unwrap();
    }
    assert!(store.add_session(&session_of(id, 1), 0).unwrap());
    store.revoke_certificates("ann", &[[9; 32]], 5).unwrap();
    let generation = store.user("ann").unwrap().unwrap().generation;
    assert!(store.add_session(&session_of(id, 2), generation).unwrap());
    store.remember_source(id, "192.0.2.1", 5).unwrap();
    for number in 0..200 {
        store.set_enabled(&format!("user{}", number % users), number % 2 == 0, 9).unwrap();
    }
    crate::Revocations::forget_revocations(store, crate::Revocations::last_revocation(store).unwrap());
    store.set_enabled("user0", false, 10).unwrap();
    let lease = crate::Lease {
        address: "10.0.0.9".parse().unwrap(),
        owner: crate::LeaseOwner { user: id, device: vpnd_proto::session::DeviceId([1; 16]) },
        session: SessionId([1; 16]),
        until_s: 900,
    };
    assert!(crate::Leases::claim(store, &lease, 5).unwrap());
    let change = crate::UserChange {
        addresses: Some(crate::AddressChange { device: None, addresses: vec!["10.0.0.99".parse().unwrap()] }),
        ..crate::UserChange::default()
    };
    store.modify_user("user1", &change, 5).unwrap();
    store.add_wireguard_device("ann", &phone(), 5).unwrap();
    crate::Invitations::invite(store, "user2", &[5; 32], 100).unwrap();
    let (token, _) = crate::ApiToken::new("idm", vpnd_config::desk::DeskRole::Administrator, 1, 100);
    assert!(crate::ApiTokens::add_api_token(store, &token).unwrap());
    let token = crate::RefreshToken::new("refresh".to_owned());
    crate::RefreshTokens::keep_refresh_token(store, id, Some(&token)).unwrap();
    crate::ProviderSessions::keep_provider_session(store, id, &[6; 32], 5).unwrap();
}

#[test]
fn a_store_moves_to_a_database_and_back_with_all_that_it_has() {
    let cluster = some!(cluster());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vpnd.db");
    let store = Sqlite::open_or_create(&path).unwrap();
    fill(&store, 300);
    let before = contents(&store);
    for (table, _) in copy::TABLES {
        assert!(before.iter().any(|row| row.starts_with(table)), "{table} has a row");
    }
    drop(store);
    let name = cluster.database();
    let (access, dial) = cluster.access(&name);
    let dial: Arc<dyn Dial> = Arc::new(dial);
    let command = Holder { instance: None, ..gateway(1, 1) };
    assert_eq!(migrate::to_postgres(&path, &access, &dial, &command).unwrap(), 301);
    let open = |holder| Postgres::open(&access, Arc::clone(&dial), holder, directory.path()).unwrap();
    let moved = open(gateway(1, 1));
    assert_eq!(contents(&moved), before);
    // More than are read at a time.
    let page = moved.find_users("user", Some("user10"), 3).unwrap();
    let names: Vec<_> = page.users.iter().map(|user| user.name.as_str()).collect();
    assert_eq!((names, page.more), (vec!["user100", "user101", "user102"], 294));
    // Numbers go on.
    let last = crate::Revocations::last_revocation(&moved).unwrap();
    moved.set_enabled("user1", false, 11).unwrap();
    assert_eq!(crate::Revocations::last_revocation(&moved).unwrap(), last + 1);
    let after = contents(&moved);
    let again = sentence(migrate::to_postgres(&path, &access, &dial, &command));
    assert!(again.contains("the gateway 'gw1' runs on it"), "{again}");
    let back = directory.path().join("back.db");
    let runs = sentence(migrate::to_sqlite(&access, &dial, &command, &back));
    assert!(runs.contains("the gateway 'gw1' runs on it") && !back.exists(), "{runs}");
    drop(moved);
    let until = Instant::now() + Duration::from_secs(30);
    while Postgres::running(&access, &dial).unwrap().is_some() && Instant::now() < until {}
    let again = sentence(migrate::to_postgres(&path, &access, &dial, &command));
    assert!(again.contains("there are users in it already"), "{again}");
    let refusal = sentence(migrate::to_sqlite(&access, &dial, &command, &path));
    assert!(refusal.contains("it is there already"), "{refusal}");
    assert_eq!(migrate::to_sqlite(&access, &dial, &command, &back).unwrap(), 301);
    let returned = Sqlite::open(&back).expect("its digests are right");
    assert_eq!(contents(&returned), after);
    assert_eq!(returned.users().unwrap().len(), 301);
}

#[test]
fn a_copy_has_all_tables_and_columns() {
    let database = some!(InDatabase::new());
    let store = Sqlite::open_or_create(&database.directory.path().join("vpnd.db")).unwrap();
    let known: Vec<String> = {
        let columns = |(table, columns): (&str, &str)| {
            columns
                .split(", ")
                .map(|column| format!("{table}.{}", column.replace('"', "")))
                .collect::<Vec<_>>()
        };
        copy::TABLES.into_iter().flat_map(columns).collect()
    };
    let of_sqlite = "SELECT m.name || '.' || p.name FROM sqlite_schema m, pragma_table_info(m.name) p
                     WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%'";
    let of_postgres = "SELECT table_name || '.' || column_name FROM information_schema.columns
                       WHERE table_schema = 'vpnd'";
    let read = |c: &Connection<'_>, sql| c.statement(sql).query_all::<String, Vec<_>>((), |row| row.get(0));
    let sqlite = store.read(|c| read(c, of_sqlite)).unwrap();
    let postgres = database.gateway().read(|c| read(c, of_postgres)).unwrap();
    let apart = [
        "users.digest",
        "wireguard_changes.number",
        "wireguard_changes.public_key",
        "revocation_number.number",
        "revocation_number.forgotten",
    ];
    let of_gateways = ["fleet.", "holder.", "carriers.", "leaving.", "format.", "marks.", "notices."];
    let is_apart = |column: &String| {
        apart.contains(&column.as_str()) || of_gateways.iter().any(|table| column.starts_with(table))
    };
    for found in [sqlite, postgres] {
        let mut found: Vec<String> = found.into_iter().filter(|column| !is_apart(column)).collect();
        let mut known = known.clone();
        found.sort();
        known.sort();
        assert_eq!(found, known);
    }
}

/// The server finishes what a start that was killed wanted, while the next one waits.
#[test]
fn a_start_waits_for_another_and_finds_its_tables() {
    let cluster = some!(cluster());
    let (access, dial) = cluster.access(&cluster.database());
    let dial: Arc<dyn Dial> = Arc::new(dial);
    let waits = "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
                 WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted";
    std::thread::scope(|scope| {
        let start = || Postgres::create(&access, &dial, &gateway(1, 1));
        let second = once(&access, &dial, async |client: &Client| {
            client.batch_execute(&format::begin_alone()).await?;
            let second = scope.spawn(start);
            while client.query_one(waits, &[]).await?.get::<_, i64>(0) == 0 {
                assert!(!second.is_finished(), "it waits");
                sleep(Duration::from_millis(10));
            }
            // One table: over many, the server has the other connection take note of them.
            let table = "CREATE SCHEMA vpnd; CREATE TABLE format (number BIGINT)";
            let format = format::FORMAT;
            client.batch_execute(&format!("{table}; INSERT INTO format VALUES ({format}); COMMIT")).await?;
            Ok(second)
        });
        second.unwrap().join().unwrap().unwrap();
    });
}
