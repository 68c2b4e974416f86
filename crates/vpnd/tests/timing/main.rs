//! Whether the time of a refused login discloses that a user exists, or that a password is right:
//! an unknown name against a wrong password, and a wrong password against the right one of a user
//! who needs a one-time code too. Through all that the auth process does for a login (store,
//! throttle, password, code, audit), by statistics (`leak`).
//!
//! The short form looks only whether the harness can see a difference, and that none is there that
//! a few thousand logins show; `./x timing` takes as many as it is given. The cost of a password is
//! lowered for many logins: what it adds is the same for both kinds, and its noise would hide what
//! is looked for.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod leak;
mod packets;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use vpnd_admission::authenticator::{Authenticator, Entrance, Login, LoginOutcome, QUEUE_TIMEOUT, Settings};
use vpnd_proto::session::DeviceId;
use vpnd_store::password::{Hasher, Password};
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{NewUser, Store, TotpSecret, Users as _};

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

/// A machine's time for work of this length: a few percent more or less, and now and then an
/// interruption of any length.
fn on_a_machine(length: Duration, random: &mut StdRng) -> Duration {
    let interrupted = random.random_range(0..50) == 0;
    let interruption = if interrupted { random.random_range(0..200_000) } else { 0 };
    length.mul_f64(random.random_range(0.9..1.1)) + Duration::from_nanos(interruption)
}

/// Durations are drawn here, so that the answer does not depend on what else this machine does.
#[test]
fn the_harness_sees_a_difference_of_a_fiftieth_and_none_where_there_is_none() {
    const LENGTH: Duration = Duration::from_micros(5);
    for seed in 0..20 {
        let differing = leak::look_at(20_000, seed, |kind, random| {
            on_a_machine(if kind == 0 { LENGTH } else { LENGTH * 51 / 50 }, random)
        });
        assert!(differing.t.abs() > 10.0 && differing.difference_ns > 0.0, "seed {seed}: {differing:?}");
        let same = leak::look_at(20_000, seed, |_, random| on_a_machine(LENGTH, random));
        assert!(same.t.abs() < MOST_T, "seed {seed}: {same:?}");
        // One in twenty of a kind takes ten times as long.
        let rarely = leak::look_at(20_000, seed, |kind, random| {
            let is_longer = kind == 1 && random.random_range(0..20) == 0;
            on_a_machine(if is_longer { LENGTH * 10 } else { LENGTH }, random)
        });
        assert!(rarely.t.abs() > 10.0, "seed {seed}: {rarely:?}");
    }
}

/// Work twice as long is distinguished on any machine, however busy.
#[test]
fn the_harness_measures_by_the_clock() {
    let differing = leak::look(5_000, 1, |kind, _| if kind == 0 { 5_000 } else { 10_000 }, spin);
    assert!(differing.t.abs() > 10.0 && differing.difference_ns > 0.0, "{differing:?}");
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pair {
    /// A user who does not exist, and one who does.
    Names,
    /// A wrong password, and the right one without its code.
    Passwords,
    /// Passwords, with a wrong code.
    PasswordsWithCode,
}

/// Has the length of those that are tried.
const RIGHT: &str = "0123456789abcdef";
const WRONG_CODE: &str = "000000";

/// A gateway's users and how it checks logins, in memory as far as the system allows.
struct Gateway {
    auth: Authenticator,
    pair: Pair,
    /// Names of each kind: unused ones, and those of users. All have been tried before, for
    /// what is remembered of wrong guesses has to do with names alone.
    names: [Vec<String>; 2],
    now_s: u64,
    _dir: tempfile::TempDir,
}

fn name(random: &mut StdRng) -> String {
    format!("{:08x}", random.random::<u32>())
}

impl Gateway {
    fn new(pair: Pair, memory_kib: u32, passes: u32, random: &mut StdRng) -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let store = Arc::new(Sqlite::open_or_create(&dir.path().join("vpnd.db")).unwrap());
        // A hash says what it cost, so users are made at the cost that is measured.
        let hasher = Hasher::with_cost(memory_kib, passes);
        let password = hasher.hash(&Password::new(RIGHT.to_owned())).unwrap();
        let names: BTreeSet<String> = std::iter::repeat_with(|| name(random)).take(2 * USERS).collect();
        let (unknown, known): (Vec<_>, Vec<_>) = names.into_iter().partition(|_| random.random());
        for name in &known {
            let (name, password) = (name.clone(), password.clone());
            let totp = (pair != Pair::Names).then(|| TotpSecret::new(vec![7; 20]));
            let user = NewUser { totp, ..NewUser::new(&name, password) };
            store.add_user(&user, 1).unwrap();
        }
        let settings =
            Settings { workers: 1, queue: 1, longest_wait: QUEUE_TIMEOUT, require_certificate: false };
        let auth = Authenticator::new(store as Arc<dyn Store>, hasher, settings).unwrap();
        Self { auth, pair, names: [unknown, known], now_s: 1_000_000_000, _dir: dir }
    }

    /// A login that is refused, of one of the two kinds that are compared.
    fn wrong(&mut self, kind: usize, random: &mut StdRng) -> (Login, u64) {
        self.now_s += APART_S;
        let wrong = format!("{:016x}", random.random::<u64>());
        let (names, password) = match self.pair {
            Pair::Names => (&self.names[kind], wrong),
            Pair::Passwords | Pair::PasswordsWithCode => {
                (&self.names[1], if kind == 1 { RIGHT.to_owned() } else { wrong })
            }
        };
        let login = Login {
            user: names[random.random_range(0..names.len())].clone(),
            password: Password::new(password),
            code: (self.pair == Pair::PasswordsWithCode).then(|| Password::new(WRONG_CODE.to_owned())),
            certificate: None,
            source: std::net::Ipv4Addr::from_bits(random.random::<u32>()).into(),
            entrance: Entrance::Tunnel,
            device: DeviceId(random.random()),
        };
        (login, self.now_s)
    }
}

#[test]
fn an_unknown_user_takes_as_long_as_a_wrong_password() {
    compare(Pair::Names, "a known user");
}

#[test]
fn a_right_password_without_its_code_takes_as_long_as_a_wrong_one() {
    compare(Pair::Passwords, "a right password");
}

#[test]
fn a_right_password_with_a_wrong_code_takes_as_long_as_a_wrong_one() {
    compare(Pair::PasswordsWithCode, "a right password");
}

fn compare(pair: Pair, second: &str) {
    let samples = number("VPND_TIMING_SAMPLES", 3_000) as usize;
    let (memory_kib, passes) = (number("VPND_TIMING_KIB", 64), number("VPND_TIMING_PASSES", 1));
    let seed = u64::from(number("VPND_TIMING_SEED", 1));
    let mut random = rand::SeedableRng::seed_from_u64(seed);
    let gateway = std::cell::RefCell::new(Gateway::new(pair, memory_kib, passes, &mut random));
    let found = leak::look(
        samples,
        seed,
        |kind, random| gateway.borrow_mut().wrong(kind, random),
        |(login, now_s)| {
            let gateway = gateway.borrow();
            let outcome = match gateway.auth.check(&login, now_s) {
                LoginOutcome::CodeRequired(number) => {
                    gateway.auth.complete(number, &Password::new(WRONG_CODE.to_owned()), now_s)
                }
                // The code was sent with it.
                other => other,
            };
            assert!(
                matches!(outcome, LoginOutcome::Refused(no) if no.retry_after_s.is_none()),
                "{outcome:?}"
            );
        },
    );
    println!(
        "{} logins, password of {memory_kib} KiB and {passes} passes, seed {seed}: |t| = {:.2}; {:.1} us each, \
         {second} takes {:+.0} ns",
        found.samples,
        found.t.abs(),
        found.mean_ns / 1e3,
        found.difference_ns
    );
    assert!(found.t.abs() < MOST_T, "{found:?}");
}
