//! Tests of logins: which are let in, which are refused, and what each refusal discloses.

use std::path::Path;
use std::time::{Duration, Instant};

use vpnd_proto::admission::shares::Standing;
use vpnd_store::{LeaseOwner, PasswordHash, totp};

use super::credentials::CODES;
use super::login_record::printable;
use super::throttle::source_prefix;
use super::*;
use crate::access::Access;
use vpnd_config::ServerConfig;
use vpnd_config::factor::Factors;
use vpnd_config::testing::LEAST;
use vpnd_store::audit::testing::Recorded;
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{ExternalUser, Lease, Leases as _, NewUser, TotpSecret, UserChange, Users as _};
use vpnd_sys::logging::testing::{logged_as_json, logged_as_text};

const NOW_S: u64 = 1_234_567_890;
/// The code of [`SECRET`] at [`NOW_S`] (RFC 6238 appendix B).
const CODE: &str = "005924";
const SECRET: &[u8] = b"12345678901234567890";
const CERTIFICATE: CertificateHash = [7; 32];
const CREDENTIALS: Refused = Refusal::Credentials.retry_after_s(None);

struct Bench {
    auth: Arc<Authenticator>,
    store: Arc<Sqlite>,
    audit: Recorded,
    access: Arc<Access>,
    _dir: tempfile::TempDir,
}

/// `ann` with a password alone, `tom` with codes too, `cat` with a certificate too, `dis` who is
/// disabled.
fn bench(settings: Settings) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Sqlite::open_or_create(&dir.path().join("vpnd.db")).unwrap());
    let hasher = Hasher::with_cost(64, 1);
    for (name, totp, certificate) in [
        ("ann", None, None),
        ("tom", Some(TotpSecret::new(SECRET.to_vec())), None),
        ("cat", None, Some(CERTIFICATE)),
        ("dis", None, None),
    ] {
        let password = hasher.hash(&Password::new("right".to_owned())).unwrap();
        let user = NewUser { totp, certificate, ..NewUser::new(name, password) };
        store.add_user(&user, NOW_S).unwrap();
    }
    store.set_enabled("dis", false, NOW_S).unwrap();
    let audit = Recorded::default();
    let surroundings = Surroundings { audit: Some(audit.recorder()), ..Surroundings::default() };
    let access = Arc::clone(&surroundings.access);
    let auth = Authenticator::within(Arc::clone(&store) as _, hasher, settings, surroundings).unwrap();
    Bench { auth: Arc::new(auth), store, audit, access, _dir: dir }
}

fn settings() -> Settings {
    Settings { workers: 2, queue: 8, longest_wait: QUEUE_TIMEOUT, require_certificate: false }
}

fn login(user: &str, password: &str) -> Login {
    Login {
        user: user.to_owned(),
        password: Password::new(password.to_owned()),
        code: None,
        certificate: None,
        source: "192.0.2.1".parse().unwrap(),
        entrance: Entrance::Tunnel,
        device: DeviceId([1; 16]),
    }
}

fn with_code(code: &str) -> Login {
    Login { code: Some(Password::new(code.to_owned())), ..login("tom", "right") }
}

fn is_granted(outcome: &LoginOutcome) -> bool {
    matches!(outcome, LoginOutcome::Granted(_))
}

impl Bench {
    fn with_profiles(self, text: &str) -> Self {
        let text = format!("{}{text}", LEAST.replace("[tunnel]", "client_ca = 'ca.pem'\n[tunnel]"));
        let config = ServerConfig::parse(&text, "server.toml", Path::new("/etc/vpnd")).unwrap();
        self.access.replace(config.profiles);
        self
    }

    fn check(&self, login: &Login) -> LoginOutcome {
        self.auth.check(login, NOW_S)
    }

    /// The outcome of a login that shows a wrong code if it is asked for one.
    fn check_through(&self, login: &Login) -> LoginOutcome {
        match self.check(login) {
            LoginOutcome::CodeRequired(number) => {
                self.auth.complete(number, &Password::new("000000".to_owned()), NOW_S)
            }
            outcome => outcome,
        }
    }

    /// The login is refused without a word, and the audit log has the cause.
    fn refused(&self, login: &Login, cause: Cause) {
        let outcome = self.check_through(login);
        let LoginOutcome::Refused(refused) = outcome else { panic!("{cause:?}: {outcome:?}") };
        assert_eq!(refused, CREDENTIALS, "{cause:?} looks like any other");
        let entry = self.audit.newest().remove(0);
        assert_eq!((entry.event.as_str(), entry.detail.as_str()), ("login-refused", cause.name()));
    }
}

#[test]
fn the_right_password_lets_in_and_is_on_record() {
    let bench = bench(settings());
    let LoginOutcome::Granted(user) = bench.check(&login("ann", "right")) else { panic!("refused") };
    assert_eq!(user.name, "ann");
    let entry = bench.audit.newest().remove(0);
    assert_eq!(
        (entry.event.as_str(), entry.user.as_str(), entry.source.as_str()),
        ("login", "ann", "192.0.2.1")
    );
}

#[test]
fn every_refusal_looks_the_same_to_the_client() {
    let bench = bench(settings());
    bench.refused(&login("ann", "wrong"), Cause::WrongPassword);
    bench.refused(&login("nobody", "right"), Cause::UnknownUser);
    bench.refused(&login("dis", "right"), Cause::Disabled);
    bench.refused(&login("cat", "right"), Cause::NoCertificate);
    bench.refused(&Login { certificate: Some([8; 32]), ..login("cat", "right") }, Cause::ForeignCertificate);
    bench.refused(&with_code("000000"), Cause::WrongCode);
    bench.refused(
        &Login { code: Some(Password::new(CODE.to_owned())), ..login("tom", "wrong") },
        Cause::WrongPassword,
    );
    assert!(is_granted(&bench.check(&Login { certificate: Some(CERTIFICATE), ..login("cat", "right") })));
}

#[test]
fn a_code_is_asked_for_after_the_password_and_good_once() {
    let bench = bench(settings());
    bench.refused(&login("tom", "wrong"), Cause::WrongPassword);
    assert!(matches!(bench.check(&login("tom", "right")), LoginOutcome::CodeRequired(_)));
    assert!(is_granted(&bench.check(&with_code(CODE))));
    bench.refused(&with_code(CODE), Cause::ReplayedCode);
}

#[test]
fn codes_for_a_right_password_are_limited_whatever_the_address() {
    let bench = bench(settings());
    // Each from another provider's network, as a worker that was taken over can say.
    let from = |number: u32, guess: Login| {
        let source = std::net::Ipv4Addr::from(0x0A00_0000 + (number << 16)).into();
        Login { source, ..guess }
    };
    for number in 0..CODES {
        let guess = if number % 2 == 0 { with_code("000000") } else { login("tom", "right") };
        bench.refused(&from(number, guess), Cause::WrongCode);
    }
    bench.refused(&from(CODES, with_code(CODE)), Cause::TooManyCodes);
    bench.refused(&from(CODES + 1, login("tom", "wrong")), Cause::WrongPassword);
    let tom = bench.store.user("tom").unwrap().unwrap();
    bench.store.remember_source(tom.id, &source_prefix(with_code(CODE).source), NOW_S).unwrap();
    assert!(is_granted(&bench.check(&with_code(CODE))), "not locked out where he was before");
}

#[test]
fn every_failed_login_without_a_code_is_asked_for_one() {
    let bench = bench(settings());
    let code = Password::new(CODE.to_owned());
    for (user, password, cause) in [
        ("nobody", "right", Cause::UnknownUser),
        ("ann", "wrong", Cause::WrongPassword),
        ("tom", "wrong", Cause::WrongPassword),
        ("dis", "right", Cause::Disabled),
        ("cat", "right", Cause::NoCertificate),
    ] {
        let LoginOutcome::CodeRequired(number) = bench.check(&login(user, password)) else {
            panic!("{user}: not asked")
        };
        let before = bench.audit.newest().len();
        let outcome = bench.auth.complete(number, &code, NOW_S);
        assert!(matches!(outcome, LoginOutcome::Refused(CREDENTIALS)), "{user}: {outcome:?}");
        let log = bench.audit.newest();
        assert_eq!((log.len(), log[0].detail.as_str()), (before + 1, cause.name()), "{user}");
    }
    let LoginOutcome::CodeRequired(number) = bench.check(&login("tom", "right")) else { panic!("not asked") };
    assert!(is_granted(&bench.auth.complete(number, &code, NOW_S)));
    assert!(
        matches!(
            bench.auth.complete(number, &code, NOW_S),
            LoginOutcome::Refused(Refused { refusal: Refusal::Busy, .. })
        ),
        "a number is good once"
    );
    assert!(is_granted(&bench.check(&login("ann", "right"))), "who needs no code is not asked");
}

#[test]
fn no_login_is_asked_for_a_code_if_no_user_has_codes() {
    let bench = bench(settings());
    bench.store.remove_user("tom", NOW_S).unwrap();
    for (user, password, cause) in [
        ("nobody", "right", Cause::UnknownUser),
        ("ann", "wrong", Cause::WrongPassword),
        ("dis", "right", Cause::Disabled),
        ("cat", "right", Cause::NoCertificate),
    ] {
        let outcome = bench.check(&login(user, password));
        assert!(matches!(outcome, LoginOutcome::Refused(CREDENTIALS)), "{user}: {outcome:?}");
        assert_eq!(bench.audit.newest()[0].detail, cause.name(), "{user}");
    }
    // Guesses still count.
    let guess = Login { source: [192, 0, 2, 9].into(), ..login("zoe", "wrong") };
    let throttled =
        |_| matches!(bench.check(&guess), LoginOutcome::Refused(Refused { refusal: Refusal::Throttled, .. }));
    let throttled: Vec<_> = (0..6).map(throttled).collect();
    assert_eq!(throttled, [false, false, false, false, false, true]);
}

#[test]
fn a_right_password_without_a_code_counts_as_a_wrong_one() {
    let bench = bench(settings());
    let waits = |user: &str, password: &str, source: u8| -> Vec<bool> {
        let guess =
            |_| match bench.check(&Login { source: [192, 0, 2, source].into(), ..login(user, password) }) {
                LoginOutcome::CodeRequired(number) => {
                    bench.auth.abandon(number, NOW_S);
                    false
                }
                LoginOutcome::Refused(Refused { refusal: Refusal::Throttled, .. }) => true,
                other => panic!("{user}: {other:?}"),
            };
        (0..8).map(guess).collect()
    };
    let right = waits("tom", "right", 1);
    assert_eq!(right, [false, false, false, false, false, true, true, true]);
    assert_eq!(right, waits("ann", "wrong", 2));
    assert_eq!(right, waits("nobody", "wrong", 3));
    let log = bench.audit.newest();
    let left = log.iter().filter(|entry| entry.user == "tom" && entry.detail == Cause::NoCode.name());
    assert_eq!(left.count(), 5, "each is on record, once");
}

#[test]
fn a_code_that_follows_takes_the_guess_back() {
    let bench = bench(settings());
    for step in 0..20 {
        let now_s = NOW_S + 30 * step;
        let LoginOutcome::CodeRequired(number) = bench.auth.check(&login("tom", "right"), now_s) else {
            panic!("throttled")
        };
        let user = bench.store.user("tom").unwrap().unwrap();
        let code = totp::code_at(user.totp.as_ref().unwrap(), now_s);
        assert!(is_granted(&bench.auth.complete(number, &Password::new(code), now_s)), "{step}");
    }
}

#[test]
fn a_code_spent_on_a_wrong_password_stays_good() {
    let bench = bench(settings());
    let wrong = Login { code: Some(Password::new(CODE.to_owned())), ..login("tom", "wrong") };
    bench.refused(&wrong, Cause::WrongPassword);
    assert!(is_granted(&bench.check(&with_code(CODE))));
}

#[test]
fn everyone_needs_a_certificate_if_the_gateway_says_so() {
    let bench = bench(Settings { require_certificate: true, ..settings() });
    // Neither the password nor whether there is such a user makes a difference, and no user is
    // slowed down by it.
    for _ in 0..10 {
        for (user, password) in [("ann", "right"), ("ann", "wrong"), ("cat", "right"), ("nobody", "right")] {
            assert!(
                matches!(
                    bench.check(&login(user, password)),
                    LoginOutcome::Refused(Refused { refusal: Refusal::Certificate, .. })
                ),
                "{user}"
            );
        }
    }
    for user in ["ann", "nobody"] {
        let foreign = Login { certificate: Some(CERTIFICATE), ..login(user, "right") };
        assert!(
            matches!(
                bench.check(&foreign),
                LoginOutcome::Refused(Refused { refusal: Refusal::Certificate, .. })
            ),
            "{user}"
        );
    }
    let entry = bench.audit.newest().remove(0);
    assert_eq!(entry.detail, Cause::ForeignCertificate.name());
    bench.refused(&Login { certificate: Some(CERTIFICATE), ..login("cat", "wrong") }, Cause::WrongPassword);
    assert!(is_granted(&bench.check(&Login { certificate: Some(CERTIFICATE), ..login("cat", "right") })));
}

#[test]
fn a_revoked_certificate_is_refused_and_one_is_still_required() {
    for require_certificate in [false, true] {
        let bench = bench(Settings { require_certificate, ..settings() });
        let with = |certificate| Login { certificate, ..login("cat", "right") };
        bench.store.revoke_certificates("cat", &[CERTIFICATE], NOW_S).unwrap();
        for shown in [Some(CERTIFICATE), None, Some([8; 32])] {
            assert!(!is_granted(&bench.check(&with(shown))), "{shown:?}");
        }
        bench.store.add_certificate("cat", &[8; 32]).unwrap();
        assert!(!is_granted(&bench.check(&with(Some(CERTIFICATE)))), "it stays revoked");
        assert!(is_granted(&bench.check(&with(Some([8; 32])))), "another one is good");
    }
}

#[test]
fn guesses_slow_down_but_not_in_the_users_known_network() {
    let bench = bench(settings());
    assert!(is_granted(&bench.check(&login("ann", "right"))), "from now on this place is known");
    let from = |i: u32, password: &str| Login {
        source: std::net::Ipv4Addr::from(0x0A00_0000 + i).into(),
        ..login("ann", password)
    };
    for i in 0..60 {
        bench.check(&from(i, "wrong"));
    }
    assert!(
        matches!(
            bench.check(&from(99, "right")),
            LoginOutcome::Refused(Refused { refusal: Refusal::Throttled, .. })
        ),
        "not slowed down"
    );
    assert!(is_granted(&bench.check(&login("ann", "right"))), "not locked out");
}

#[test]
fn logins_beyond_the_allowance_write_nothing() {
    let bench = bench(settings());
    let since = Instant::now();
    let (mut granted, mut throttled) = (0, 0);
    for number in 0..60u8 {
        let from = Login {
            source: [192, 0, number, 1].into(),
            device: DeviceId([number; 16]),
            ..login("ann", "right")
        };
        match bench.check(&from) {
            LoginOutcome::Granted(_) => granted += 1,
            LoginOutcome::Refused(Refused { refusal: Refusal::Throttled, retry_after_s: Some(20) }) => {
                throttled += 1
            }
            outcome => panic!("{outcome:?}"),
        }
    }
    // One more for each 20 s that this has taken.
    assert!((30..=30 + since.elapsed().as_secs() / 20).contains(&granted), "{granted}, {throttled}");
    assert_eq!(bench.audit.newest().len() as u64, granted);
    let id = bench.store.user("ann").unwrap().unwrap().id;
    assert!(!bench.store.knows_source(id, "192.0.59.1", 0).unwrap());
    assert!(is_granted(&bench.check(&with_code(CODE))), "another user");
    bench.refused(&login("ann", "wrong"), Cause::WrongPassword);
}

#[test]
fn an_unchecked_password_is_no_guess() {
    let bench = bench(settings());
    let path = bench._dir.path().join("vpnd.db");
    let store = rusqlite::Connection::open(&path).unwrap();
    store.execute_batch("ALTER TABLE users RENAME COLUMN totp_step TO gone").unwrap();
    for _ in 0..20 {
        let outcome = bench.check(&with_code(CODE));
        assert!(matches!(outcome, LoginOutcome::Refused(CREDENTIALS)), "{outcome:?}");
    }
    store.execute_batch("ALTER TABLE users RENAME COLUMN gone TO totp_step").unwrap();
    assert!(is_granted(&bench.check(&with_code(CODE))));
}

#[test]
fn guesses_at_an_unknown_user_are_throttled_alike() {
    let bench = bench(settings());
    let waits = |user: &str| -> Vec<Option<u64>> {
        let guess = |_| match bench.check_through(&login(user, "wrong")) {
            LoginOutcome::Refused(refused) => refused.retry_after_s,
            other => panic!("{other:?}"),
        };
        (0..8).map(guess).collect()
    };
    let (unknown, known) = (waits("nobody"), waits("ann"));
    assert_eq!(unknown, known);
    assert!(known[7].is_some());
}

/// With the real cost of a hash, an unknown user must not be answered sooner than a known one.
/// Without the stand-in hash the answer takes a small part of the time in every round, however busy
/// the machine is; with it, the best times of both come together after a few rounds.
#[test]
fn an_unknown_user_takes_as_long_as_a_known_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Sqlite::open_or_create(&dir.path().join("vpnd.db")).unwrap());
    let hasher = Hasher::default();
    let password = hasher.hash(&Password::new("right".to_owned())).unwrap();
    let ann = NewUser::new("ann", password);
    store.add_user(&ann, NOW_S).unwrap();
    let auth = Authenticator::new(store, hasher, settings()).unwrap();
    let time = |user: &str, round: u8| -> Duration {
        // From another place each time, so that no guess is throttled.
        let source = std::net::Ipv4Addr::new(192, 0, 2, round).into();
        let start = Instant::now();
        auth.check(&Login { source, ..login(user, "wrong") }, NOW_S);
        start.elapsed()
    };
    let (mut known, mut unknown) = (Duration::MAX, Duration::MAX);
    for round in 0..20 {
        known = known.min(time("ann", round));
        unknown = unknown.min(time("nobody", round));
        if round >= 2 && unknown * 2 > known {
            return;
        }
    }
    panic!("known {known:?}, unknown {unknown:?}");
}

#[test]
fn a_weak_hash_is_replaced_at_the_next_login() {
    let bench = bench(settings());
    let old = bench.store.user("ann").unwrap().unwrap();
    let store = Arc::clone(&bench.store) as Arc<dyn Store>;
    let stronger = Authenticator::new(store, Hasher::with_cost(128, 1), settings()).unwrap();
    stronger.check(&login("ann", "wrong"), NOW_S);
    assert_eq!(bench.store.user("ann").unwrap().unwrap().password, old.password, "not by a wrong one");
    assert!(is_granted(&stronger.check(&login("ann", "right"), NOW_S)));
    let new = bench.store.user("ann").unwrap().unwrap();
    assert!(new.password != old.password && new.generation == old.generation, "and it is no revocation");
    assert!(is_granted(&stronger.check(&login("ann", "right"), NOW_S)));
}

#[tokio::test]
async fn more_logins_than_may_wait_are_refused_at_once() {
    let longest_wait = Duration::from_secs(120);
    let bench = bench(Settings { workers: 1, queue: 1, longest_wait, ..settings() });
    let busy = bench.auth.logins.queue.at_once().unwrap();
    let mut logins = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let auth = Arc::clone(&bench.auth);
        logins.spawn(async move { auth.log_in(login("ann", "right"), NOW_S).await });
    }
    for _ in 0..5 {
        let outcome = logins.join_next().await.unwrap().unwrap();
        assert!(
            matches!(outcome, LoginOutcome::Refused(Refused { refusal: Refusal::Busy, .. })),
            "{outcome:?}"
        );
    }
    drop(busy);
    assert!(is_granted(&logins.join_next().await.unwrap().unwrap()), "the one that waited");
    assert!(is_granted(&bench.auth.log_in(login("ann", "right"), NOW_S).await), "there is room again");
}

#[tokio::test]
async fn a_login_that_waits_too_long_for_its_turn_is_refused() {
    let bench = bench(Settings { workers: 1, longest_wait: Duration::from_millis(20), ..settings() });
    let slow = bench.auth.logins.queue.at_once().unwrap();
    let waited = bench.auth.log_in(login("ann", "right"), NOW_S);
    let waited = tokio::time::timeout(Duration::from_secs(30), waited).await;
    assert!(
        matches!(waited, Ok(LoginOutcome::Refused(Refused { refusal: Refusal::Busy, .. }))),
        "{waited:?}"
    );
    drop(slow);
    assert!(is_granted(&bench.auth.log_in(login("ann", "right"), NOW_S).await), "its place is free again");
}

#[tokio::test]
async fn known_networks_and_devices_precede_strangers() {
    let bench = bench(settings());
    let from = |device: u8, source: &str| Login {
        device: DeviceId([device; 16]),
        source: source.parse().unwrap(),
        ..login("ann", "right")
    };
    let (here, elsewhere) = ("192.0.2.1", "198.51.100.1");
    let standing = async |login: &Login| bench.auth.logins.history.standing(login, NOW_S).await;
    assert_eq!(standing(&from(1, here)).await, Standing::Stranger);
    assert!(is_granted(&bench.check(&from(1, here))));
    assert_eq!(standing(&from(2, here)).await, Standing::Known);
    let stranger = Login { user: "nobody".to_owned(), ..from(2, here) };
    assert_eq!(
        standing(&stranger).await,
        Standing::Known,
        "whoever it is: an order must not tell who exists"
    );
    assert_eq!(standing(&from(1, elsewhere)).await, Standing::Stranger);
    let owner = LeaseOwner { user: bench.store.user("ann").unwrap().unwrap().id, device: DeviceId([1; 16]) };
    let lease = Lease {
        address: "10.0.0.2".parse().unwrap(),
        owner,
        session: vpnd_proto::session::SessionId([9; 16]),
        until_s: NOW_S + 1,
    };
    assert!(bench.store.claim(&lease, NOW_S).unwrap());
    assert_eq!(standing(&from(1, elsewhere)).await, Standing::Returning);
    assert_eq!(standing(&from(2, elsewhere)).await, Standing::Stranger, "her name alone says nothing");
    let again =
        Authenticator::new(Arc::clone(&bench.store) as _, Hasher::with_cost(64, 1), settings()).unwrap();
    assert_eq!(
        again.logins.history.standing(&from(2, here), NOW_S).await,
        Standing::Known,
        "after a restart, too"
    );
}

#[test]
fn logins_are_refused_if_the_store_fails() {
    let bench = bench(settings());
    let path = bench._dir.path().join("vpnd.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("DROP TABLE memberships").unwrap();
    assert!(!is_granted(&bench.check(&login("ann", "right"))));
}

#[test]
fn a_login_shows_no_secret_in_debug() {
    let shown =
        format!("{:?}", Login { code: Some(Password::new("424242".to_owned())), ..login("ann", "hunter2") });
    assert!(!shown.contains("hunter2") && !shown.contains("424242"), "{shown}");
}

#[test]
fn names_from_outside_are_made_safe_for_logs() {
    assert_eq!(printable("an\nn\u{1b}[2J"), "an?n?[2J");
    assert_eq!(printable(&"x".repeat(1000)).len(), 64);
}

#[test]
fn codes_follow_the_clock_and_a_clock_set_back_replays_none() {
    const YEAR_S: u64 = 365 * 86_400;
    let bench = bench(settings());
    let at = |now_s: u64| is_granted(&bench.auth.check(&with_code(CODE), now_s));
    assert!(!at(NOW_S + YEAR_S) && !at(NOW_S - YEAR_S), "a year off");
    assert!(at(NOW_S));
    // A used code stays used, whatever the clock says next.
    assert!(!at(NOW_S + YEAR_S) && !at(NOW_S - YEAR_S) && !at(NOW_S));
}

#[test]
fn the_refusal_of_an_expired_user_shows_no_reason() {
    let bench = bench(settings());
    let until = |expires_s| {
        let change = UserChange { expires_s: Some(Some(expires_s)), ..UserChange::default() };
        bench.store.modify_user("ann", &change, 1).unwrap();
    };
    until(NOW_S + 1);
    assert!(is_granted(&bench.check(&login("ann", "right"))));
    until(NOW_S);
    bench.refused(&login("ann", "right"), Cause::Expired);
    bench.refused(&login("ann", "wrong"), Cause::WrongPassword);
    // More than the password shows the reason.
    let change = UserChange { expires_s: Some(Some(NOW_S)), ..UserChange::default() };
    bench.store.modify_user("tom", &change, 1).unwrap();
    bench.refused(&login("tom", "wrong"), Cause::WrongPassword);
    let LoginOutcome::CodeRequired(number) = bench.check(&login("tom", "right")) else { panic!("not asked") };
    let outcome = bench.auth.complete(number, &Password::new(CODE.to_owned()), NOW_S);
    assert!(
        matches!(outcome, LoginOutcome::Refused(Refused { refusal: Refusal::Expired, .. })),
        "{outcome:?}"
    );
    assert_eq!(bench.audit.newest().remove(0).detail, Cause::Expired.name());
}

#[test]
fn a_user_of_another_source_has_no_local_password() {
    let bench = bench(settings());
    let user = ExternalUser {
        source: "campus".to_owned(),
        subject: "u1".to_owned(),
        name: "eve".to_owned(),
        groups: vec!["staff".to_owned()],
    };
    bench.store.refresh_external(&user, NOW_S).unwrap();
    for password in ["", "right", "$", "u1"] {
        bench.refused(&login("eve", password), Cause::WrongPassword);
    }
}

#[test]
fn a_foreign_password_hash_is_replaced_at_the_first_login() {
    let bench = bench(settings());
    let bcrypt = bcrypt::hash("right", 4).unwrap();
    for (name, hash) in [("old", bcrypt.as_str()), ("dir", "{SSHA}VRnVVuh+V5b2fbnvIY1G2RD/l45zYWx0c2FsdA==")]
    {
        let hash = PasswordHash::new(hash.to_owned());
        assert!(Hasher::is_acceptable(&hash));
        bench.store.add_user(&NewUser::new(name, hash), NOW_S).unwrap();
        bench.refused(&login(name, "wrong"), Cause::WrongPassword);
        for _ in 0..2 {
            assert!(is_granted(&bench.check(&login(name, "right"))), "{name}");
            let stored = bench.store.user(name).unwrap().unwrap().password.unwrap();
            assert!(stored.expose().starts_with("$argon2id$"), "{name}: {stored:?}");
        }
    }
}

#[test]
fn refusals_in_the_log_are_bounded_and_the_others_counted() {
    let bench = bench(settings());
    let lines = logged_as_json(|| {
        for _ in 0..1_000 {
            bench.auth.logins.record.log(&login("ann", "wrong"), Cause::WrongPassword);
        }
        bench.auth.report_log();
        bench.auth.report_log();
    });
    let (last, refusals) = lines.split_last().unwrap();
    assert!((100..200).contains(&refusals.len()), "{}", refusals.len());
    let fields =
        ["user", "source", "outer", "reason"].map(|name| refusals[0][name].as_str().unwrap_or_default());
    assert_eq!(fields, ["ann", "local", "192.0.2.1", "wrong-password"]);
    assert_eq!(last["count"].as_u64(), Some(1_000 - refusals.len() as u64), "once, and all of them");
}

#[test]
fn a_name_cannot_forge_a_line_or_a_field() {
    let bench = bench(settings());
    let forger = login("ann\" source=\"x\" outer=192.0.2.9\n<6>vpnd: login\u{2028}\u{1b}[2J", "wrong");
    let text = logged_as_text(|| bench.auth.logins.record.log(&forger, Cause::UnknownUser));
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!text.contains(['\u{1b}', '\u{2028}']), "{text:?}");
    // A reader that knows quoted values finds one of each field: what the name has is inside of
    // quotes, escaped.
    assert!(text.contains(r#"user="ann\" source=\"x\" outer=192.0.2.9?<6>vpnd: login"#), "{text}");
    assert_eq!(text.matches(" source=\"").count(), 1, "{text}");
    let lines = logged_as_json(|| bench.auth.logins.record.log(&forger, Cause::UnknownUser));
    assert_eq!((lines.len(), lines[0]["outer"].as_str()), (1, Some("192.0.2.1")));
}

#[test]
fn factors_are_those_that_were_checked() {
    let bench = bench(settings());
    let factors = |login: Login| match bench.check(&login) {
        LoginOutcome::Granted(user) => user.factors.to_string(),
        outcome => panic!("{outcome:?}"),
    };
    assert_eq!(factors(login("ann", "right")), "pwd");
    // A code that was not asked for, and another user's certificate, prove nothing.
    let code = Some(Password::new("123456".to_owned()));
    assert_eq!(factors(Login { code, certificate: Some(CERTIFICATE), ..login("ann", "right") }), "pwd");
    assert_eq!(factors(Login { certificate: Some(CERTIFICATE), ..login("cat", "right") }), "pwd swk");
    let LoginOutcome::CodeRequired(number) = bench.check(&login("tom", "right")) else { panic!("not asked") };
    let outcome = bench.auth.complete(number, &Password::new(CODE.to_owned()), NOW_S);
    let LoginOutcome::Granted(tom) = outcome else { panic!("{outcome:?}") };
    assert_eq!(tom.factors.to_string(), "pwd otp");
}

/// With profiles that admit no user by a password, a right one and a wrong one have the same
/// answers, and count alike.
#[test]
fn a_right_password_of_a_refused_user_counts_as_a_wrong_one() {
    for profiles in [
        "[[profile]]\nname = 'admins'\nrequire = 'otp'\n",
        "[[profile]]\nname = 'others'\ngroups = 'others'\n",
    ] {
        let bench = bench(settings()).with_profiles(profiles);
        let answers = |password: &str, source: u8, code: Option<&str>| -> Vec<String> {
            let answer = |_| {
                let code = code.map(|code| Password::new(code.to_owned()));
                let login = Login { source: [10, source, 2, 1].into(), code, ..login("ann", password) };
                match bench.check(&login) {
                    LoginOutcome::CodeRequired(number) => {
                        let typed = Password::new("000000".to_owned());
                        format!("asked, {:?}", bench.auth.complete(number, &typed, NOW_S))
                    }
                    outcome => format!("{outcome:?}"),
                }
            };
            (0..8).map(answer).collect()
        };
        let right = answers("right", 1, None);
        assert!(right[0].starts_with("asked, Refused") && right[7].contains("Throttled"), "{right:?}");
        assert_eq!(right, answers("wrong", 2, None));
        assert_eq!(answers("right", 3, Some("123456")), answers("wrong", 4, Some("123456")));
    }
}

/// A user who has proved more than a password learns what is missing, at each attempt.
#[test]
fn the_reason_shows_after_a_second_factor() {
    let bench = bench(settings()).with_profiles("[[profile]]\nname = 'admins'\nrequire = 'otp'\n");
    let cat = Login { certificate: Some(CERTIFICATE), ..login("cat", "right") };
    for _ in 0..10 {
        let outcome = bench.check(&cat);
        assert!(
            matches!(outcome, LoginOutcome::Refused(Refused { refusal: Refusal::NeedsCode, .. })),
            "{outcome:?}"
        );
    }
    assert_eq!(bench.audit.newest().remove(0).detail, Cause::MissingFactor.name());
    let bench = bench.with_profiles("[[profile]]\nname = 'others'\ngroups = 'others'\n");
    let LoginOutcome::CodeRequired(number) = bench.check(&login("tom", "right")) else { panic!("not asked") };
    let outcome = bench.auth.complete(number, &Password::new(CODE.to_owned()), NOW_S);
    assert!(
        matches!(outcome, LoginOutcome::Refused(Refused { refusal: Refusal::NoProfile, .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_login_without_a_required_factor_is_refused_and_leaves_no_trust() {
    let bench = bench(settings()).with_profiles("[[profile]]\nname = 'admins'\nrequire = 'mfa'\n");
    bench.refused(&login("ann", "right"), Cause::MissingFactor);
    let code = Some(Password::new("000000".to_owned()));
    bench.refused(&Login { code, ..login("ann", "right") }, Cause::MissingFactor);
    let id = bench.store.user("ann").unwrap().unwrap().id;
    let prefix = source_prefix(login("ann", "right").source);
    assert!(!bench.store.knows_source(id, &prefix, 0).unwrap(), "a password alone makes no source known");
    assert!(is_granted(&bench.check(&with_code(CODE))));
    let cat = Login { certificate: Some(CERTIFICATE), ..login("cat", "right") };
    assert!(is_granted(&bench.check(&cat)));
}

const MACHINES: &str =
    "[[profile]]\nname = 'machines'\ngroups = 'machines'\nmachines = true\n[[profile]]\nname = 'people'\n";

/// With a profile for machines, which the machines `kiosk` and `cat` the user are in, and one for
/// people, which the machine `stray` is in.
fn with_machines() -> Bench {
    let bench = bench(settings()).with_profiles(MACHINES);
    for (name, group, certificate) in [("kiosk", "machines", [9; 32]), ("stray", "people", [10; 32])] {
        let (groups, certificate) = (vec![group.to_owned()], Some(certificate));
        let machine = NewUser { groups, certificate, ..NewUser::new(name, PasswordHash::none()) };
        bench.store.add_user(&machine, NOW_S).unwrap();
    }
    let change = UserChange { groups: Some(vec!["machines".to_owned()]), ..UserChange::default() };
    bench.store.modify_user("cat", &change, NOW_S).unwrap();
    bench
}

/// A login by a certificate alone.
fn shown(user: &str, certificate: CertificateHash) -> Login {
    Login { certificate: Some(certificate), ..login(user, "") }
}

#[test]
fn a_machine_is_let_in_by_its_certificate_alone() {
    let bench = with_machines();
    let LoginOutcome::Granted(machine) = bench.check(&shown("kiosk", [9; 32])) else { panic!("refused") };
    assert_eq!((machine.name.as_str(), machine.factors), ("kiosk", Factors::KEY));
    let entry = bench.audit.newest().remove(0);
    assert_eq!((entry.event.as_str(), entry.user.as_str()), ("login", "kiosk"));
    bench.refused(&login("kiosk", ""), Cause::NoCertificate);
    bench.refused(&login("kiosk", "right"), Cause::NoCertificate);
    bench.refused(&shown("kiosk", CERTIFICATE), Cause::ForeignCertificate);
    bench.store.revoke_certificates("kiosk", &[[9; 32]], NOW_S).unwrap();
    bench.refused(&shown("kiosk", [9; 32]), Cause::ForeignCertificate);
    bench.store.add_certificate("kiosk", &[11; 32]).unwrap();
    assert!(is_granted(&bench.check(&shown("kiosk", [11; 32]))), "its next one is good");
    bench.store.set_enabled("kiosk", false, NOW_S).unwrap();
    bench.refused(&shown("kiosk", [11; 32]), Cause::Disabled);
    // It has none yet.
    let groups = vec!["machines".to_owned()];
    let bare = NewUser { groups, ..NewUser::new("bare", PasswordHash::none()) };
    bench.store.add_user(&bare, NOW_S).unwrap();
    bench.refused(&login("bare", ""), Cause::NoCertificate);
    bench.refused(&shown("bare", [11; 32]), Cause::ForeignCertificate);
}

#[test]
fn no_person_and_no_machine_of_another_profile_is_let_in_by_a_certificate_alone() {
    let bench = with_machines();
    bench.refused(&shown("cat", CERTIFICATE), Cause::WrongPassword);
    assert!(is_granted(&bench.check(&Login { certificate: Some(CERTIFICATE), ..login("cat", "right") })));
    let outcome = bench.check(&shown("stray", [10; 32]));
    assert!(
        matches!(outcome, LoginOutcome::Refused(Refused { refusal: Refusal::NoProfile, .. })),
        "{outcome:?}"
    );
    // A password makes a person of it.
    let hash = Hasher::with_cost(64, 1).hash(&Password::new("right".to_owned())).unwrap();
    bench.store.set_password("kiosk", &hash, NOW_S).unwrap();
    bench.refused(&shown("kiosk", [9; 32]), Cause::WrongPassword);
    // A user of another source has no password here, either.
    let user = ExternalUser {
        source: "campus".to_owned(),
        subject: "u1".to_owned(),
        name: "eve".to_owned(),
        groups: vec!["machines".to_owned()],
    };
    bench.store.refresh_external(&user, NOW_S).unwrap();
    bench.store.add_certificate("eve", &[12; 32]).unwrap();
    bench.refused(&shown("eve", [12; 32]), Cause::WrongPassword);
}
