//! A process that works on the gateway's store is killed at many moments; what it acknowledged must
//! be there, and nothing half-done.
//!
//! The program runs itself: the victim carries out operations that follow from a seed and a number,
//! and says after each that it is done. The driver kills it with SIGKILL after some of them, within
//! a time that it has measured one to take, opens the store as a restarted gateway would, and
//! compares every table with a second store on which the acknowledged operations were carried out
//! undisturbed. The operation that was under way may have been done as a whole or not at all.
//! `VPND_STORE_KILLS` sets how many kills, `VPND_STORE_KILL_SEED` which.
//!
//! Both engines are tried: the file, and a database, where a killed victim must not keep the next
//! one out either (`VPND_STORE_DATABASE_KILLS` sets how many kills).
//!
//! SIGKILL does not simulate a loss of power: that commits reach the disk is SQLite's
//! `synchronous = FULL`.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is how this test fails, as in a test of the standard harness"
)]

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rusqlite::Connection;
use rusqlite::types::Value;
use vpnd_config::database::{DatabaseFiles, DatabaseHost, PostgresSettings};
use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_store::postgres::testing::{self, Cluster};
use vpnd_store::postgres::{Access, Dial, Direct, Holder, Postgres};
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{
    Lease, LeaseOwner, NewUser, PasswordHash, SessionChange, SessionRecord, Store, StoreError, TotpSecret,
    User, UserId,
};

const PART: &str = "VPND_STORE_KILL_PART";
const DEFAULT_KILLS: u64 = 120;
/// A victim of a database takes longer to open it.
const DEFAULT_DATABASE_KILLS: u64 = 24;
/// One of this many kills hits a store that is just being made.
const NEW_STORE_EVERY: u64 = 8;
/// More operations than are waited for before a kill.
const ACKNOWLEDGED: u32 = 8;

fn main() -> ExitCode {
    if let Ok(first) = std::env::var(PART) {
        let place = Place::from_arguments(std::env::args_os().skip(1).collect());
        victim(&place, number("SEED", 0), first.parse().unwrap());
    } else if asked_for() {
        driver();
        database_driver();
    }
    ExitCode::SUCCESS
}

/// Whether the words after `cargo test --` choose this test, as they do with the standard harness.
fn asked_for() -> bool {
    let mut filters = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    filters.peek().is_none() || filters.any(|filter| "store_kill".contains(&filter))
}

fn number(what: &str, default: u64) -> u64 {
    let name = match what {
        "SEED" => "VPND_STORE_KILL_SEED",
        "DATABASE" => "VPND_STORE_DATABASE_KILLS",
        _ => "VPND_STORE_KILLS",
    };
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// A store of either engine.
enum Kept {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Kept {
    fn back_up(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(store) => store.back_up(),
            Self::Postgres(_) => Ok(()),
        }
    }
}

impl Deref for Kept {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Sqlite(store) => store,
            Self::Postgres(store) => store,
        }
    }
}

/// Where a store is.
#[derive(Clone)]
enum Place {
    File(PathBuf),
    /// By the server's socket and the database's name, with a state directory.
    Database(PathBuf, String, PathBuf),
}

impl Place {
    fn from_arguments(arguments: Vec<OsString>) -> Self {
        match arguments.as_slice() {
            [socket, name, state] => {
                Self::Database(socket.into(), name.to_str().unwrap().to_owned(), state.into())
            }
            [path, ..] => Self::File(path.into()),
            [] => panic!("no store is named"),
        }
    }

    fn arguments(&self) -> Vec<OsString> {
        match self {
            Self::File(path) => vec![path.into()],
            Self::Database(socket, name, state) => vec![socket.into(), name.into(), state.into()],
        }
    }

    /// Opens it as a gateway that starts, or makes it first.
    fn open(&self, create: bool) -> Result<Kept, StoreError> {
        let (socket, name, state) = match self {
            Self::File(path) if create => return Sqlite::open_or_create(path).map(Kept::Sqlite),
            Self::File(path) => return Sqlite::open(path).map(Kept::Sqlite),
            Self::Database(socket, name, state) => (socket, name, state),
        };
        let settings = PostgresSettings {
            hosts: vec![DatabaseHost::Socket(socket.clone())],
            server_name: None,
            database: name.clone(),
            user: testing::ROLE.to_owned(),
            password: None,
            identity: None,
            ca: None,
        };
        let access = Access::new(&settings, &DatabaseFiles::default()).unwrap();
        let dial: Arc<dyn Dial> = Arc::new(Direct(settings.hosts));
        let mut instance: [u8; 16] = rand::random();
        // Each start is one of the same running system, and so waits for none before it.
        instance[8..].fill(1);
        let holder = Holder::of_state_dir(state, Some(instance)).unwrap();
        if create {
            Postgres::create(&access, &dial, &holder)?;
        }
        Postgres::open(&access, dial, holder, state).map(Kept::Postgres)
    }
}

// ----
// operations ----------------------------------------------------------------------------------

/// Carries out operation `n`; what it says, in words that are the same on every store.
fn operate(store: &Kept, seed: u64, n: u64) -> String {
    let mut random = StdRng::seed_from_u64(seed.wrapping_mul(1 << 32).wrapping_add(n));
    let (now_s, name) = (1_000 + n, format!("user{}", random.random_range(0..6)));
    let user = store.user(&name).unwrap();
    let done = match random.random_range(0..13) {
        0..=2 => store.add_user(&new_user(&name, n), now_s).map(|_| "added".to_owned()),
        3 => told(store.set_enabled(&name, false, now_s)),
        4 => told(store.set_enabled(&name, true, now_s)),
        5 => told(store.remove_user(&name, now_s)),
        6 => told(store.set_password(&name, &password(n), now_s)),
        7 => told(store.use_totp_step(id_of(&user), n)),
        8 => told(store.remember_source(id_of(&user), &format!("192.0.2.{}", n % 50), now_s)),
        9 => told(store.claim(&lease(&user, random.random_range(2..20), n), now_s)),
        10 => told(store.end_session(SessionId(narrow(n % 16)), now_s)),
        11 => told(store.back_up()),
        _ => told(store.change_sessions(&session_changes(&mut random, user.as_ref(), n), now_s)),
    };
    match done {
        Ok(said) => said,
        Err(error @ (StoreError::UserExists { .. } | StoreError::NoSuchUser { .. })) => error.to_string(),
        Err(error) => panic!("operation {n}: {error}"),
    }
}

fn told<T: std::fmt::Debug>(outcome: Result<T, StoreError>) -> Result<String, StoreError> {
    outcome.map(|value| format!("{value:?}"))
}

fn id_of(user: &Option<User>) -> UserId {
    user.as_ref().map_or(UserId([0; 16]), |user| user.id)
}

fn new_user(name: &str, n: u64) -> NewUser {
    NewUser {
        totp: n.is_multiple_of(2).then(|| TotpSecret::new(vec![7; 20])),
        groups: (0..n % 3).map(|group| format!("group{group}")).collect(),
        certificate: n.is_multiple_of(3).then(|| wide(n)),
        ..NewUser::new(name, password(n))
    }
}

fn password(n: u64) -> PasswordHash {
    // Long enough for rows that need several pages now and then.
    PasswordHash::new(format!("hash {n} {}", "x".repeat(usize::try_from(n % 7).unwrap() * 900)))
}

fn wide(n: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&n.to_be_bytes());
    bytes
}

fn narrow(n: u64) -> [u8; 16] {
    std::array::from_fn(|at| wide(n)[at])
}

fn lease(user: &Option<User>, host: u8, n: u64) -> Lease {
    Lease {
        address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)),
        owner: LeaseOwner { user: id_of(user), device: DeviceId(narrow(n % 3)) },
        session: SessionId(narrow(n % 16)),
        until_s: 1_000 + n + 20,
    }
}

/// Changes of several sessions, which must become true together: a login, other tokens, ends.
fn session_changes(random: &mut StdRng, user: Option<&User>, n: u64) -> Vec<SessionChange> {
    let mut changes = vec![
        SessionChange::Tokens(SessionId(narrow(random.random_range(0..16))), tokens(n), 7),
        SessionChange::End(SessionId(narrow(random.random_range(0..16)))),
        SessionChange::End(SessionId(narrow(1_000_000 + random.random_range(0..=n)))),
    ];
    if let Some(user) = user {
        let session = SessionRecord {
            id: SessionId(narrow(1_000_000 + n)),
            user: user.id,
            device: DeviceId(narrow(n % 3)),
            epoch: 1,
            tokens: tokens(n + 1),
            started_s: 1_000 + n,
            expires_s: 1_000 + n + 200,
            factors: vpnd_config::factor::Factors::PASSWORD,
            auth_time_s: n,
            generation: 0,
            most: None,
        };
        changes.insert(0, SessionChange::Add(session, user.generation));
    }
    changes
}

fn tokens(n: u64) -> Tokens {
    Tokens::restore(
        TokenHash::from_bytes(wide(n)),
        n.is_multiple_of(2).then(|| TokenHash::from_bytes(wide(n + 1))),
    )
}

// ---- the
// victim ----------------------------------------------------------------------------------

/// Works until it is killed, from operation `first` on.
fn victim(place: &Place, seed: u64, first: u64) {
    let mut out = std::io::stdout().lock();
    let mut say = |word: &str| writeln!(out, "{word}").and_then(|()| out.flush()).unwrap();
    say("starting");
    let store = place.open(true).unwrap();
    say("open");
    for n in first.. {
        let said = operate(&store, seed, n);
        say(&format!("{n} {said}"));
    }
}

fn start_victim(place: &Place, seed: u64, first: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(place.arguments())
        .env(PART, first.to_string())
        .env("VPND_STORE_KILL_SEED", seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

// ---- the
// driver ----------------------------------------------------------------------------------

/// The store under attack, and a model of what it must hold.
struct Trial {
    seed: u64,
    place: Place,
    reference: Kept,
    /// All rows of the store, and of the reference.
    contents: Box<dyn Fn() -> [Vec<String>; 2]>,
    next: u64,
    under_way_and_done: u32,
    /// Operations that victims were seen to acknowledge, and the time that these took.
    seen: u32,
    taken: Duration,
}

fn driver() {
    let kills = number("KILLS", DEFAULT_KILLS);
    let seed = number("SEED", u64::from(std::process::id()));
    println!("store_kill: seed {seed}, {kills} kills");
    let directory = tempfile::tempdir().unwrap();
    let reference_path = directory.path().join("reference.db");
    let path = directory.path().join("vpnd.db");
    let begun = Instant::now();
    let reference = Kept::Sqlite(Sqlite::open_or_create(&reference_path).unwrap());
    let making = begun.elapsed();
    let mut trial = Trial {
        seed,
        place: Place::File(path.clone()),
        reference,
        contents: Box::new(move || [contents(&path), contents(&reference_path)]),
        next: 0,
        under_way_and_done: 0,
        seen: 0,
        taken: Duration::ZERO,
    };
    let mut random = StdRng::seed_from_u64(seed);
    for kill in 0..kills {
        if kill % NEW_STORE_EVERY == 0 {
            let path = directory.path().join(format!("new{kill}/vpnd.db"));
            killed_while_making(&Place::File(path), &mut random, seed, making);
        } else {
            trial.kill_once(&mut random);
        }
    }
    trial.report(kills);
}

fn database_driver() {
    let Some(cluster) = Cluster::start("127.0.0.1", |program| Command::new(program), "") else { return };
    let kills = number("DATABASE", DEFAULT_DATABASE_KILLS);
    let seed = number("SEED", u64::from(std::process::id()));
    println!("store_kill: seed {seed}, {kills} kills, in a database");
    let cluster = Arc::new(cluster);
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        let state = directory.path().join(name);
        fs::create_dir(&state).unwrap();
        Place::Database(cluster.socket(), cluster.database(), state)
    };
    let [tried, reference] = ["tried", "reference"].map(place);
    let names = [&tried, &reference].map(|place| match place {
        Place::Database(_, name, _) => name.clone(),
        Place::File(_) => unreachable!("it is a database"),
    });
    let server = Arc::clone(&cluster);
    let begun = Instant::now();
    let reference = reference.open(true).unwrap();
    let making = begun.elapsed();
    let mut trial = Trial {
        seed,
        reference,
        place: tried,
        contents: Box::new(move || names.each_ref().map(|name| database_contents(&server, name))),
        next: 0,
        under_way_and_done: 0,
        seen: 0,
        taken: Duration::ZERO,
    };
    let mut random = StdRng::seed_from_u64(seed);
    for kill in 0..kills {
        if kill % NEW_STORE_EVERY == 0 {
            killed_while_making(&place(&format!("new{kill}")), &mut random, seed, making);
        } else {
            trial.kill_once(&mut random);
        }
    }
    trial.report(kills);
}

impl Trial {
    fn report(self, kills: u64) {
        let Self { next, under_way_and_done, .. } = self;
        println!("store_kill: {next} operations kept, {under_way_and_done} of them never acknowledged");
        assert!(next > kills / 10, "the victims did something: {next} operations");
    }

    fn kill_once(&mut self, random: &mut StdRng) {
        let mut child = start_victim(&self.place, self.seed, self.next);
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while line.trim() != "open" {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "seed {}: the store opens", self.seed);
        }
        let (begun, acknowledged) = (Instant::now(), random.random_range(0..ACKNOWLEDGED));
        let mut said = String::new();
        for _ in 0..acknowledged {
            assert!(lines.read_line(&mut said).unwrap() > 0, "seed {}: the victim works", self.seed);
        }
        self.seen += acknowledged;
        self.taken += begun.elapsed();
        // Some operations take longer than others.
        let operation = self.taken / self.seen.max(1);
        std::thread::sleep(operation.mul_f64(random.random_range(0.0..2.0)));
        child.kill().unwrap();
        child.wait().unwrap();
        lines.read_to_string(&mut said).unwrap();
        // A line without its end was not said.
        for acknowledged in said.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let expected = format!("{} {}\n", self.next, operate(&self.reference, self.seed, self.next));
            assert_eq!(acknowledged, expected, "seed {}", self.seed);
            self.next += 1;
        }
        self.compare();
        if let Place::File(path) = &self.place {
            check_backup(path);
        }
    }

    /// A restarted gateway finds what was acknowledged, with or without the operation that was
    /// under way.
    fn compare(&mut self) {
        let store = self.place.open(false).unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        let [found, known] = (self.contents)();
        if found != known {
            operate(&self.reference, self.seed, self.next);
            self.next += 1;
            self.under_way_and_done += 1;
            let [_, expected] = (self.contents)();
            assert_eq!(found, expected, "seed {}, after operation {}", self.seed, self.next - 1);
        }
        drop(store);
    }
}

/// A first start that is killed at any moment does not stand in the way of the second. One that
/// nothing disturbed took as long as `making`.
fn killed_while_making(place: &Place, random: &mut StdRng, seed: u64, making: Duration) {
    let mut child = start_victim(place, seed, 0);
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    std::thread::sleep(making.mul_f64(random.random_range(0.0..1.5)));
    child.kill().unwrap();
    child.wait().unwrap();
    let store = place.open(true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    store.users().unwrap();
}

/// A backup is whole whenever there is one.
fn check_backup(path: &Path) {
    let backup = path.with_extension("db.backup");
    if backup.exists() {
        // Opened elsewhere, because opening makes files next to it.
        let copy = path.with_extension("copy");
        fs::copy(&backup, &copy).unwrap();
        Sqlite::open(&copy).unwrap();
        fs::remove_file(&copy).unwrap();
    }
}

/// The contents of a database.
fn database_contents(cluster: &Cluster, name: &str) -> Vec<String> {
    let sql = format!("SET search_path = vpnd; {}", queries().join("; "));
    let mut rows: Vec<String> = cluster.sql(name, &sql).lines().map(str::to_owned).collect();
    rows.sort();
    rows
}

/// Every row of every table. Users are identified by their names, for their identifiers are random.
fn queries() -> [String; 7] {
    let who = "coalesce((SELECT name FROM users u WHERE u.id = user_id), 'nobody')";
    [
        "SELECT name, password, enabled, generation, totp_secret, totp_step, created_s FROM users".to_owned(),
        format!("SELECT {who}, name FROM memberships"),
        format!("SELECT {who}, sha256 FROM certificates"),
        format!("SELECT {who}, source, seen_s FROM sources"),
        format!("SELECT id, {who}, device, settled, fresh, started_s, epoch, expires_s FROM sessions"),
        // The device of an address that was given up is made up, too.
        format!(
            "SELECT address, {who}, CASE WHEN {who} <> 'nobody' THEN device END, session, until_s FROM leases"
        ),
        "SELECT seq, name, cause, at_s FROM revocations".to_owned(),
    ]
}

fn contents(path: &Path) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    let mut rows = Vec::new();
    for sql in queries() {
        let mut statement = connection.prepare(&sql).unwrap();
        let columns = statement.column_count();
        let text = statement.query_map((), |row| {
            let values: Vec<Value> = (0..columns).map(|column| row.get(column)).collect::<Result<_, _>>()?;
            Ok(format!("{} {values:?}", &sql[sql.find("FROM").unwrap_or(0)..]))
        });
        rows.extend(text.unwrap().map(Result::unwrap));
    }
    rows.sort();
    rows
}
