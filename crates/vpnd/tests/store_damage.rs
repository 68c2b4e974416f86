//! The gateway's store with bytes changed, cut off or lost: it is as it was, or it is refused with
//! a clear word. A user who was disabled or removed stays so, whatever happens to the files.
//!
//! Damage is pseudo-random from a printed seed (`VPND_STORE_DAMAGE_SEED` sets it), but no byte that
//! identifies a user is left out. Each damage is done to a fresh copy.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use tempfile::TempDir;
use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{
    NewUser, PasswordHash, SessionRecord, Sessions as _, StoreError, TotpSecret, User, Users as _,
};

const RANDOM_DAMAGES: usize = 400;

fn seed() -> u64 {
    let seed = std::env::var("VPND_STORE_DAMAGE_SEED")
        .map_or(u64::from(std::process::id()), |text| text.parse().unwrap());
    println!("VPND_STORE_DAMAGE_SEED={seed}");
    seed
}

fn new_user(name: &str) -> NewUser {
    NewUser {
        totp: Some(TotpSecret::new(vec![7; 20])),
        groups: vec!["staff".to_owned()],
        certificate: Some(std::array::from_fn(|at| name.as_bytes()[at % name.len()])),
        ..NewUser::new(name, PasswordHash::new(format!("$argon2id$hash of {name}")))
    }
}

fn session_of(user: &User, id: u8) -> SessionRecord {
    SessionRecord {
        id: SessionId([id; 16]),
        user: user.id,
        device: DeviceId([id; 16]),
        epoch: 1,
        tokens: Tokens::new(TokenHash::from_bytes([id; 32])),
        started_s: 1_000,
        expires_s: 9_000,
        factors: vpnd_config::factor::Factors::PASSWORD,
        auth_time_s: 900,
        generation: 0,
        most: None,
    }
}

/// In memory where that is possible: what counts here is what is in the files, not that it reached
/// a disk.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The files of a store at one moment, and what users it had.
struct Image {
    database: Vec<u8>,
    log: Vec<u8>,
    users: Vec<User>,
}

impl Image {
    /// The disk's contents now, as a power cut would leave them.
    fn take(store: &Sqlite, path: &Path) -> Self {
        let log = fs::read(beside(path, "-wal")).unwrap_or_default();
        Self { database: fs::read(path).unwrap(), log, users: store.users().unwrap() }
    }

    /// Puts it into a fresh directory.
    fn put(&self, database: &[u8], log: Option<&[u8]>) -> (TempDir, PathBuf) {
        let directory = directory();
        let path = directory.path().join("vpnd.db");
        fs::write(&path, database).unwrap();
        if let Some(log) = log {
            fs::write(beside(&path, "-wal"), log).unwrap();
        }
        (directory, path)
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// A store with bob, with ann, who is disabled, and without carol, who was removed.
fn store() -> (TempDir, PathBuf, Sqlite) {
    let directory = directory();
    let path = directory.path().join("vpnd.db");
    let store = Sqlite::open_or_create(&path).unwrap();
    for name in ["ann", "bob", "carol"] {
        store.add_user(&new_user(name), 1_000).unwrap();
        let user = store.user(name).unwrap().unwrap();
        assert!(store.add_session(&session_of(&user, name.as_bytes()[0]), 0).unwrap());
    }
    store.set_enabled("ann", false, 1_100).unwrap();
    store.remove_user("carol", 1_100).unwrap();
    (directory, path, store)
}

/// Opens what is left. `None` if it is refused with a clear word; the state that it shows
/// otherwise. However that goes, ann and carol don't get in.
fn look(path: &Path, what: &str) -> Option<Vec<User>> {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let store = match Sqlite::open(path) {
            Ok(store) => store,
            Err(error) => {
                assert_clear(&error);
                return None;
            }
        };
        let ann = store.user("ann");
        if let Ok(Some(ann)) = &ann {
            assert!(!ann.enabled, "a disabled user is back");
        }
        assert!(!matches!(store.user("carol"), Ok(Some(_))), "a removed user is back");
        for session in [b'a', b'c'] {
            assert!(
                !matches!(store.session(SessionId([session; 16]), 2_000), Ok(Some(_))),
                "a session is back"
            );
        }
        match store.users() {
            Ok(users) => Some(users),
            Err(error) => {
                assert_clear(&error);
                None
            }
        }
    }));
    outcome.unwrap_or_else(|_| panic!("with {what}"))
}

fn assert_clear(error: &StoreError) {
    let text = error.to_string();
    assert!(text.contains("vpnd.db"), "it names the file: {text}");
    assert!(
        !matches!(error, StoreError::Busy { .. } | StoreError::Full { .. }),
        "it names a wrong cause: {text}"
    );
}

/// Changes of bytes: a bit, a byte, and stretches of garbage and of nothing, anywhere in `range`.
fn damages(random: &mut StdRng, range: Range<usize>) -> (Range<usize>, Vec<u8>, &'static str) {
    let at = random.random_range(range.clone());
    let (length, kind) = match random.random_range(0..4) {
        0 => (1, "a changed bit"),
        1 => (1, "a changed byte"),
        2 => (random.random_range(1..2_000), "garbage"),
        _ => (random.random_range(1..2_000), "zeros"),
    };
    let stretch = at..(at + length).min(range.end);
    let mut bytes = vec![0; stretch.len()];
    if kind != "zeros" {
        random.fill_bytes(&mut bytes);
    }
    (stretch, bytes, kind)
}

/// Applies a damage; bits and bytes are changed whatever they were.
fn damaged(good: &[u8], (stretch, bytes, kind): &(Range<usize>, Vec<u8>, &'static str)) -> Vec<u8> {
    let mut bad = good.to_vec();
    match *kind {
        "a changed bit" => bad[stretch.start] ^= 1 << (bytes[0] % 8),
        "a changed byte" => bad[stretch.start] ^= bytes[0] | 1,
        _ => bad[stretch.clone()].copy_from_slice(bytes),
    }
    bad
}

#[test]
fn a_database_with_changed_bytes() {
    let (_directory, path, store) = store();
    let image = Image::take(&store, &path);
    assert_eq!(image.log.len(), 0, "a revocation stands in the main file");
    let mut random = StdRng::seed_from_u64(seed());
    let mut refused = 0;
    for _ in 0..RANDOM_DAMAGES {
        let damage = damages(&mut random, 0..image.database.len());
        let (_copy, path) = image.put(&damaged(&image.database, &damage), None);
        let damaged = format!("{} at {:?}", damage.2, damage.0);
        match look(&path, &damaged) {
            None => refused += 1,
            Some(users) => assert_eq!(users, image.users, "{damaged}"),
        }
    }
    assert!(refused > RANDOM_DAMAGES / 10, "damage was done: {refused} refused");
}

#[test]
fn every_byte_of_a_disabled_user() {
    let (_directory, path, store) = store();
    let image = Image::take(&store, &path);
    // The row, with its header before the name; old versions of it lie in free space and are hit as
    // well.
    let name = b"ann$argon2id";
    let rows: Vec<usize> =
        (0..image.database.len() - name.len()).filter(|at| image.database[*at..].starts_with(name)).collect();
    assert!(!rows.is_empty(), "the user's row is found");
    let mut refused = 0;
    for at in rows.iter().flat_map(|row| row - 40..row + 120) {
        for change in [0x01, 0x02, 0x08, 0x80, 0xff] {
            let mut bad = image.database.clone();
            bad[at] ^= change;
            let (_copy, path) = image.put(&bad, None);
            let damaged = format!("{change:#x} at {at}");
            match look(&path, &damaged) {
                None => refused += 1,
                Some(users) => assert_eq!(users, image.users, "{damaged}"),
            }
        }
    }
    assert!(refused > 300, "the row was hit: {refused} refused");
}

#[test]
fn a_database_that_is_cut_off() {
    let (_directory, path, store) = store();
    let image = Image::take(&store, &path);
    let mut random = StdRng::seed_from_u64(seed());
    let pages = (1..image.database.len() / 4096).map(|page| page * 4096);
    let lengths: Vec<usize> = [1, 2, 99, 100]
        .into_iter()
        .chain(pages)
        .chain((0..60).map(|_| random.random_range(1..image.database.len())))
        .collect();
    for length in lengths {
        let (_copy, path) = image.put(&image.database[..length], None);
        // A page that held nothing yet is no loss.
        if let Some(users) = look(&path, &format!("{length} bytes left")) {
            assert_eq!(users, image.users, "{length} bytes left");
        }
    }
    // Nothing at all is a store that was never used, unless there is a backup of one that was.
    let (_copy, path) = image.put(&[], None);
    assert_eq!(look(&path, "nothing left"), Some(Vec::new()), "nobody gets in");
    let (_copy, path) = image.put(&[], None);
    fs::write(path.with_extension("db.backup"), &image.database).unwrap();
    assert_eq!(look(&path, "nothing left but a backup"), None);
}

/// Changes after a revocation, as a crash leaves them: the log holds them, and may be lost in part
/// or as a whole.
#[test]
fn a_log_that_is_damaged_cut_off_or_lost() {
    let (_directory, path, store) = store();
    let mut states = vec![store.users().unwrap()];
    for n in 0..8 {
        store.add_user(&new_user(&format!("dave{n}")), 1_200).unwrap();
        states.push(store.users().unwrap());
        store
            .remember_source(store.user("bob").unwrap().unwrap().id, &format!("192.0.2.{n}"), 1_200)
            .unwrap();
        let bob = store.user("bob").unwrap().unwrap();
        store.use_totp_step(bob.id, 100 + n).unwrap();
    }
    let image = Image::take(&store, &path);
    assert!(image.log.len() > 20_000, "there is something to lose: {} bytes", image.log.len());
    let mut random = StdRng::seed_from_u64(seed());
    let mut fewer = 0;
    for round in 0..RANDOM_DAMAGES / 2 {
        let (log, what) = if round % 2 == 0 {
            let length = random.random_range(0..image.log.len());
            (image.log[..length].to_vec(), format!("a log of {length} bytes"))
        } else {
            let damage = damages(&mut random, 0..image.log.len());
            (damaged(&image.log, &damage), format!("{} at {:?} of the log", damage.2, damage.0))
        };
        let (_copy, path) = image.put(&image.database, Some(&log));
        if let Some(users) = look(&path, &what) {
            assert!(states.contains(&users), "{what}: it is a state that there was");
            fewer += usize::from(users != image.users);
        }
    }
    assert!(fewer > RANDOM_DAMAGES / 10, "changes were lost: {fewer} times");
    let (_copy, path) = image.put(&image.database, None);
    assert_eq!(look(&path, "no log").as_ref(), Some(&states[0]));
    let (_copy, path) = image.put(&image.database, Some(&image.log));
    assert_eq!(look(&path, "the whole log"), Some(image.users), "without damage nothing is lost");
}
