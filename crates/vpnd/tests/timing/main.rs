//! Whether the time of a refused login tells that a user exists: an unknown name against a wrong password, through all that
//! the auth process does for a login (store, throttle, password, audit), by statistics (`leak`).
//!
//! The short form looks only whether the harness can see a difference, and that none is there that a few thousand logins
//! show; `./x timing` takes as many as it is told. The cost of a password is lowered for many logins: what it adds is the
//! same for both kinds, and its noise would hide what is looked for.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod leak;
mod packets;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use rand::RngExt as _;
use rand::rngs::StdRng;
use vpnd::auth::password::{Hasher, Password};
use vpnd::auth::{Authenticator, LONGEST_WAIT, Login, Outcome, Settings};
use vpnd::store::sqlite::Sqlite;
use vpnd::store::{NewUser, Store};
use vpnd_proto::session::DeviceId;

/// The bar.
const MOST_T: f64 = 5.0;
const USERS: usize = 500;
/// Logins are so far apart that no guess is throttled.
const APART_S: u64 = 7 * 86_400;

fn number(name: &str, otherwise: u32) -> u32 {
    std::env::var(name)
        .ok()
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// Work of a length that a compiler can't shorten.
fn spin(rounds: u64) {
    black_box((0..rounds).fold(1u64, |value, n| black_box(value.wrapping_mul(n | 1))));
}

#[test]
fn the_harness_sees_a_difference_of_a_fiftieth_and_none_where_there_is_none() {
    let differing = leak::look(20_000, 1, |kind, _| if kind == 0 { 5_000 } else { 5_100 }, spin);
    assert!(differing.t.abs() > 10.0 && differing.difference_ns > 0.0, "{differing:?}");
    let same = leak::look(20_000, 2, |_, _| 5_000, spin);
    assert!(same.t.abs() < MOST_T, "{same:?}");
    // One in a thousand takes much longer: only the squares of deviations show it.
    let rarely =
        |kind, random: &mut StdRng| if kind == 1 && random.random_range(0..20) == 0 { 50_000 } else { 5_000 };
    assert!(leak::look(20_000, 3, rarely, spin).t.abs() > 10.0);
}

/// A gateway's users and how it checks logins, in memory as far as the system allows.
struct Gateway {
    auth: Authenticator,
    /// Names of each kind: that nobody has, and that users have. All have been tried before, for what is remembered of
    /// wrong guesses has to do with names alone.
    names: [Vec<String>; 2],
    now_s: u64,
    _dir: tempfile::TempDir,
}

fn name(random: &mut StdRng) -> String {
    format!("{:08x}", random.random::<u32>())
}

impl Gateway {
    fn new(memory_kib: u32, passes: u32, random: &mut StdRng) -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let store = Arc::new(Sqlite::open_or_create(&dir.path().join("vpnd.db")).unwrap());
        // A hash says what it cost, so users are made at the cost that is measured.
        let hasher = Hasher::with_cost(memory_kib, passes);
        let password = hasher.hash(&Password::generate()).unwrap();
        let names: BTreeSet<String> = std::iter::repeat_with(|| name(random)).take(2 * USERS).collect();
        let (unknown, known): (Vec<_>, Vec<_>) = names.into_iter().partition(|_| random.random());
        for name in &known {
            let (name, password) = (name.clone(), password.clone());
            let user = NewUser { name, password, totp: None, groups: vec![], certificate: None };
            store.add_user(&user, 1).unwrap();
        }
        let settings =
            Settings { workers: 1, queue: 1, longest_wait: LONGEST_WAIT, require_certificate: false };
        let auth = Authenticator::new(store as Arc<dyn Store>, hasher, settings).unwrap();
        Self { auth, names: [unknown, known], now_s: 1_000_000_000, _dir: dir }
    }

    /// A login that is wrong: of kind 0 by a user who does not exist, of kind 1 by one who does.
    fn wrong(&mut self, kind: usize, random: &mut StdRng) -> (Login, u64) {
        self.now_s += APART_S;
        let names = &self.names[kind];
        let login = Login {
            user: names[random.random_range(0..names.len())].clone(),
            password: Password::new(format!("{:016x}", random.random::<u64>())),
            code: None,
            certificate: None,
            source: std::net::Ipv4Addr::from_bits(random.random::<u32>()).into(),
            device: DeviceId(random.random()),
        };
        (login, self.now_s)
    }
}

#[test]
fn an_unknown_user_takes_as_long_as_a_wrong_password() {
    let samples = number("VPND_TIMING_SAMPLES", 3_000) as usize;
    let (memory_kib, passes) = (number("VPND_TIMING_KIB", 64), number("VPND_TIMING_PASSES", 1));
    let seed = u64::from(number("VPND_TIMING_SEED", 1));
    let mut random = rand::SeedableRng::seed_from_u64(seed);
    let gateway = std::cell::RefCell::new(Gateway::new(memory_kib, passes, &mut random));
    let found = leak::look(
        samples,
        seed,
        |kind, random| gateway.borrow_mut().wrong(kind, random),
        |(login, now_s)| {
            let gateway = gateway.borrow();
            let outcome = match gateway.auth.check(&login, now_s) {
                Outcome::CodeWanted(number) => {
                    gateway.auth.complete(number, &Password::new("000000".to_owned()), now_s)
                }
                other => panic!("{other:?}"),
            };
            assert!(matches!(outcome, Outcome::Refused(no) if no.retry_after_s.is_none()), "{outcome:?}");
        },
    );
    println!(
        "{} logins, password of {memory_kib} KiB and {passes} passes, seed {seed}: |t| = {:.2}; {:.1} us each, \
         a known user takes {:+.0} ns",
        found.samples,
        found.t.abs(),
        found.mean_ns / 1e3,
        found.difference_ns
    );
    assert!(found.t.abs() < MOST_T, "{found:?}");
}
