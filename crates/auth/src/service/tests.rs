//! The auth process against a worker that asks for more than it may.

mod clock_steps;
mod wireguard;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use vpnd_admission::authenticator::{QUEUE_TIMEOUT, Settings, Surroundings};
use vpnd_config::Tunnel;
use vpnd_config::factor::Factors;
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_ipc::channel::pair;
use vpnd_ipc::gateway::auth::{
    Abandon, Carried, Commit, MAX_FRAME, MissingQuery, RevocationQuery, SessionQuery, StatusQuery,
    StoredSession, TokenHashes, TypedAnswer,
};
use vpnd_ipc::gateway::idp::SourceLimits;
use vpnd_ipc::gateway::refusal::Refused;
use vpnd_ipc::request::{Answer, AnsweredBy, Request};
use vpnd_proto::control::Code;
use vpnd_store::audit::Event;
use vpnd_store::audit::testing::Recorded;
use vpnd_store::password::Hasher;
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{Family, Kick, NewUser, UserChange};

fn service(directory: &Path) -> Arc<Service> {
    service_with(directory, None, Clocks::default())
}

/// Starts over on the same store if there is one.
fn service_with(directory: &Path, lifetime: Option<Duration>, clocks: Clocks) -> Arc<Service> {
    let profiles = vpnd_config::AccessProfiles::of_everybody().with_session_lifetime(lifetime);
    service_for(directory, clocks, access(profiles))
}

pub(super) fn access(profiles: vpnd_config::AccessProfiles) -> Arc<Access> {
    let tunnel = Tunnel { pool_v4: Some("10.0.0.0/29".parse().unwrap()), ..Tunnel::default() };
    Arc::new(Access::new(profiles, &tunnel))
}

fn service_for(directory: &Path, clocks: Clocks, access: Arc<Access>) -> Arc<Service> {
    let store = Sqlite::open_or_create(&directory.join("vpnd.db")).unwrap();
    Arc::new(service_on(Arc::new(store), clocks, access))
}

pub(super) fn service_on(store: Arc<dyn Store>, clocks: Clocks, access: Arc<Access>) -> Service {
    let hasher = Hasher::with_cost(8, 1);
    let user = NewUser {
        groups: vec!["staff".to_owned()],
        ..NewUser::new("ann", hasher.hash(&Password::new("right".to_owned())).unwrap())
    };
    if store.user("ann").unwrap().is_none() {
        store.add_user(&user, 1).unwrap();
        // Codes are asked for where any user has them.
        let totp = Some(vpnd_store::TotpSecret::new(vec![7; 20]));
        let holder = NewUser { totp, ..NewUser::new("holder", user.password.clone()) };
        store.add_user(&holder, 1).unwrap();
    }
    let settings = Settings { workers: 1, queue: 4, longest_wait: QUEUE_TIMEOUT, require_certificate: false };
    let surroundings = Surroundings { access: Arc::clone(&access), ..Surroundings::default() };
    let authenticator = Authenticator::within(Arc::clone(&store), hasher, settings, surroundings).unwrap();
    Service::new(store, authenticator, access, 8, clocks)
}

pub(super) fn login(password: &str, device: u8) -> LoginRequest {
    LoginRequest {
        user: UserName::new("ann").unwrap(),
        password: vpnd_proto::control::SecretText::new(password).unwrap(),
        code: None,
        certificate: None,
        source: [192, 0, 2, 1].into(),
        device: [device; 16].into(),
        grant: None,
    }
}

pub(super) async fn ask<R: Request>(service: &Arc<Service>, request: R) -> R::Reply
where
    Service: Answer<R>,
{
    service.answer(request).await.unwrap()
}

pub(super) async fn granted(service: &Arc<Service>, device: u8) -> ByteArray<16> {
    match ask(service, login("right", device)).await {
        LoginReply::Granted(granted) => granted.session,
        other => panic!("{other:?}"),
    }
}

fn keep(session: ByteArray<16>) -> Commit {
    let hash = vpnd_proto::attach::TokenHash::from_bytes([7; 32]);
    let tokens = TokenHashes::from(&vpnd_proto::attach::Tokens::new(hash));
    Commit(vec![Write::Keep { session, tokens, epoch: 1 }])
}

fn with_recorder(directory: &Path, access: Arc<Access>) -> (Arc<Service>, Recorded) {
    let audit = Recorded::default();
    let service = service_for(directory, Clocks::default(), access);
    let service = Arc::into_inner(service).expect("nobody else has it").with_audit(audit.recorder());
    (Arc::new(service), audit)
}

/// Commits, and counts the sessions that could not be kept.
async fn failed(service: &Arc<Service>, request: Commit) -> usize {
    ask(service, request).await.failed.len()
}

#[tokio::test]
async fn a_session_is_stored_only_for_the_user_who_logged_in() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let invented = ByteArray::from([9; 16]);
    assert_eq!(failed(&service, keep(invented)).await, 1, "nobody logged in for it");
    assert!(ask(&service, SessionQuery(invented)).await.is_none());

    let session = granted(&service, 1).await;
    assert_eq!(failed(&service, keep(session)).await, 0);
    assert_eq!(
        failed(&service, keep(session)).await,
        0,
        "from now on these are new tokens of a session that is kept"
    );
    let stored = ask(&service, SessionQuery(session)).await.expect("it is kept");
    assert_eq!((&*stored.account.name, stored.account.groups.as_slice()), ("ann", &["staff".to_owned()][..]));
    assert!(stored.addresses.ipv4.is_some());

    assert_eq!(failed(&service, Commit(vec![Write::End(session)])).await, 0);
    assert_eq!(failed(&service, keep(session)).await, 1, "a grant is good once");
}

#[tokio::test]
async fn a_grant_is_void_once_its_user_is_disabled() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let seen = ask(&service, RevocationQuery { seen: None, history: None }).await.seen;
    let session = granted(&service, 1).await;
    service.store.set_enabled("ann", false, 2).unwrap();
    assert_eq!(failed(&service, keep(session)).await, 1);
    let found = ask(&service, RevocationQuery { seen: Some(seen), history: None }).await.found;
    assert_eq!((found.len(), found[0].cause), (1, RevocationCause::Disabled));
}

#[tokio::test]
async fn a_wrong_password_and_a_full_pool_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let LoginReply::CodeRequired(number) = ask(&service, login("wrong", 1)).await else {
        panic!("not asked")
    };
    let typed = vpnd_proto::control::SecretText::new("123456").unwrap();
    ask(&service, Abandon(number)).await;
    let late = TypedAnswer { login: number, answer: typed, device: [1; 16].into() };
    let reply = ask(&service, late).await;
    assert!(
        matches!(reply, LoginReply::Refused(Refused { refusal: Refusal::Busy, .. })),
        "it is over: {reply:?}"
    );
    for device in 1..=5 {
        granted(&service, device).await;
    }
    assert!(matches!(
        ask(&service, login("right", 6)).await,
        LoginReply::Refused(Refused { refusal: Refusal::NoAddress, .. })
    ));
}

#[tokio::test]
async fn the_status_counts_addresses_that_are_taken() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let taken = async || {
        let AuthStatus { pools, sources, .. } = ask(&service, StatusQuery).await;
        assert!(sources.is_empty());
        assert_eq!((pools.len(), &*pools[0].pool, pools[0].total), (1, "10.0.0.0/29", 5));
        pools[0].taken
    };
    assert_eq!(taken().await, 0);
    let session = granted(&service, 1).await;
    granted(&service, 2).await;
    assert_eq!(failed(&service, keep(session)).await, 0);
    assert_eq!(taken().await, 2);
    assert_eq!(failed(&service, Commit(vec![Write::End(session)])).await, 0);
    assert_eq!(taken().await, 1);
}

#[tokio::test]
async fn a_user_has_no_more_logins_under_way_than_sessions() {
    let directory = tempfile::tempdir().unwrap();
    let access = access(profiles("[[profile]]\nname = 'all'\nmax_sessions_per_user = 2\n"));
    let service = service_for(directory.path(), Clocks::default(), access);
    let [first, second] = [granted(&service, 1).await, granted(&service, 2).await];
    for device in 3..=5 {
        let reply = ask(&service, login("right", device)).await;
        assert!(matches!(reply, LoginReply::Refused(Refused { refusal: Refusal::Busy, .. })), "{reply:?}");
    }
    let now_s = (service.clocks.steady)();
    assert_eq!(service.store.leases(Family::V4).unwrap().len(), 2, "the others have taken no address");
    // The worker keeps one and refuses the other.
    assert_eq!(failed(&service, keep(first)).await, 0);
    assert_eq!(failed(&service, Commit(vec![Write::End(second)])).await, 0);
    granted(&service, 3).await;
    assert!(service.store.leases(Family::V4).unwrap().iter().any(|lease| lease.is_live(now_s)));
}

#[tokio::test]
async fn an_impossible_message_of_the_worker_closes_its_channel() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let writes = vec![Write::End(ByteArray::from([1; 16])); MAX_WRITES + 1];
    assert!(service.answer(Commit(writes)).await.is_err());
    let (ours, theirs) = pair().unwrap();
    let worker = Channel::new(ours, MAX_FRAME).unwrap();
    worker.send(&"no request", &[]).await.unwrap();
    assert!(service.run(Channel::new(theirs, MAX_FRAME).unwrap()).await.is_err());
}

#[tokio::test]
async fn no_answer_holds_a_hash() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let hash = service.store.user("ann").unwrap().unwrap().password.unwrap();
    let salt_and_hash = hash.expose().rsplit('$').next().unwrap().to_owned();
    let session = granted(&service, 1).await;
    ask(&service, keep(session)).await;
    let requests = [
        AuthRequest::from(login("right", 1)),
        SessionQuery(session).into(),
        RevocationQuery { seen: Some(0), history: None }.into(),
    ];
    for request in requests {
        let bytes = request.answered_by(&service).await.0;
        let found = bytes.windows(salt_and_hash.len()).any(|window| window == salt_and_hash.as_bytes());
        assert!(!found);
    }
}

const YEAR_S: u64 = 365 * 86_400;
const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn a_machine_in_groups_of_people_is_out() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[[profile]]\nname = 'machines'\ngroups = 'machines'\nmachines = true\n[[profile]]\nname = 'people'\n";
    let least = vpnd_config::testing::LEAST.replace("[tunnel]", "client_ca = 'ca.pem'\n[tunnel]");
    let config = vpnd_config::ServerConfig::parse(&(least + text), "server.toml", Path::new("/etc/vpnd"));
    let service = service_for(directory.path(), Clocks::default(), access(config.unwrap().profiles));
    let machine = NewUser {
        groups: vec!["machines".to_owned()],
        ..NewUser::new("kiosk", vpnd_store::PasswordHash::none())
    };
    service.store.add_user(&machine, 1).unwrap();
    let regrouped = async |user: &str, group: &str| {
        let seen = Some(ask(&service, RevocationQuery { seen: None, history: None }).await.seen);
        let change = UserChange { groups: Some(vec![group.to_owned()]), ..UserChange::default() };
        service.store.modify_user(user, &change, 2).unwrap();
        let mut found = ask(&service, RevocationQuery { seen, history: None }).await.found;
        assert_eq!(found.len(), 1);
        let revoked = found.remove(0);
        (revoked.cause, revoked.groups)
    };
    let goes_on = |group: &str| (RevocationCause::Groups, Some(vec![group.to_owned()]));
    assert_eq!(regrouped("ann", "students").await, goes_on("students"));
    assert_eq!(regrouped("kiosk", "students").await, (RevocationCause::NoProfile, None));
    assert_eq!(regrouped("kiosk", "machines").await, goes_on("machines"));
}

/// Clocks that the test below sets.
static WALL_S: AtomicU64 = AtomicU64::new(0);
static STEADY_S: AtomicU64 = AtomicU64::new(0);

#[tokio::test]
async fn a_clock_step_of_a_year_neither_ends_nor_transfers_sessions() {
    let clocks =
        Clocks { wall: || WALL_S.load(Ordering::Relaxed), steady: || STEADY_S.load(Ordering::Relaxed) };
    let set = |wall_s, steady_s| {
        WALL_S.store(wall_s, Ordering::Relaxed);
        STEADY_S.store(steady_s, Ordering::Relaxed);
    };
    let directory = tempfile::tempdir().unwrap();
    let began_s = 10 * YEAR_S;
    let restart = || service_with(directory.path(), Some(DAY), clocks);
    set(began_s, began_s);
    let service = restart();
    let mut sessions = Vec::new();
    for device in 1..=5 {
        let session = granted(&service, device).await;
        assert_eq!(failed(&service, keep(session)).await, 0);
        sessions.push(session);
    }
    let known = async |service: &Arc<Service>, session| ask(service, SessionQuery(session)).await;
    // While it runs, nothing happens: the pool is as full as it was, and sessions get their new
    // keys.
    for wall_s in [began_s + YEAR_S, began_s - YEAR_S] {
        set(wall_s, began_s + 60);
        assert!(
            matches!(
                ask(&service, login("right", 6)).await,
                LoginReply::Refused(Refused { refusal: Refusal::NoAddress, .. })
            ),
            "no address is free"
        );
        for session in &sessions {
            assert_eq!(failed(&service, keep(*session)).await, 0, "new tokens");
            assert!(known(&service, *session).await.is_some());
        }
    }
    // It starts again while the clock is a year back: sessions last, but for no longer than one
    // that begins now.
    set(began_s - YEAR_S, began_s - YEAR_S);
    let stored = known(&restart(), sessions[0]).await.unwrap();
    assert_eq!(stored.expires_s, began_s - YEAR_S + DAY.as_secs());
    // A year on: everybody logs in again, and may.
    set(began_s + YEAR_S, began_s + YEAR_S);
    let service = restart();
    assert!(known(&service, sessions[0]).await.is_none());
    granted(&service, 6).await;
}

/// The wall clock of the test below.
static CALENDAR_S: AtomicU64 = AtomicU64::new(1_000_000);

#[tokio::test]
async fn the_sessions_of_a_user_end_when_the_users_time_does() {
    let directory = tempfile::tempdir().unwrap();
    let clocks = Clocks { wall: || CALENDAR_S.load(Ordering::Relaxed), steady: || 1_000 };
    let service = service_with(directory.path(), None, clocks);
    let change = UserChange { expires_s: Some(Some(1_000_500)), ..UserChange::default() };
    service.store.modify_user("ann", &change, 1).unwrap();
    let revoked = async || {
        let found = ask(&service, RevocationQuery { seen: Some(0), history: None }).await.found;
        found.into_iter().map(|revoked| (revoked.name.to_string(), revoked.cause)).collect::<Vec<_>>()
    };
    let session = granted(&service, 1).await;
    assert_eq!(failed(&service, keep(session)).await, 0);
    let late = granted(&service, 2).await;
    assert!(revoked().await.is_empty());
    let kept = async || ask(&service, SessionQuery(session)).await.is_some();
    assert!(kept().await);

    CALENDAR_S.store(1_000_500, Ordering::Relaxed);
    assert!(!kept().await, "nobody attaches, though no revocation is made yet");
    for _ in 0..2 {
        assert_eq!(revoked().await, [("ann".to_owned(), RevocationCause::Expired)], "once");
    }
    assert_eq!(failed(&service, keep(late)).await, 1, "a grant of before is void");
}

/// Profiles as configured, after the smallest configuration.
pub(super) fn profiles(text: &str) -> vpnd_config::AccessProfiles {
    vpnd_config::testing::smallest(text).profiles
}

#[tokio::test]
async fn a_user_without_a_profile_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let access = access(profiles("[[profile]]\nname = 'staff'\ngroups = 'staff'\n"));
    let service = service_for(directory.path(), Clocks::default(), Arc::clone(&access));
    let session = granted(&service, 1).await;
    assert_eq!(failed(&service, keep(session)).await, 0);
    let is_there = async || ask(&service, SessionQuery(session)).await.is_some();
    assert!(is_there().await);

    access.replace(profiles("[[profile]]\nname = 'guests'\ngroups = 'guests'\n"));
    for password in ["right", "wrong"] {
        let answer = ask(&service, login(password, 2)).await;
        assert!(matches!(answer, LoginReply::CodeRequired(_)), "{password}: {answer:?}");
    }
    assert!(!is_there().await, "nor does a session of before come back");
    // A reload between the check of the password and the lease.
    let user = service.store.user("ann").unwrap().unwrap();
    let mut user = Authenticated::here(user, Factors::PASSWORD);
    assert!(matches!(
        service.admit(&user, DeviceId([3; 16]), None, false).unwrap(),
        LoginReply::Refused(Refused { refusal: Refusal::Credentials, .. })
    ));
    user.factors = user.factors.and(Factors::ONE_TIME_CODE);
    assert!(matches!(
        service.admit(&user, DeviceId([3; 16]), None, false).unwrap(),
        LoginReply::Refused(Refused { refusal: Refusal::NoProfile, .. })
    ));
}

#[tokio::test]
async fn a_source_limits_sessions_and_makes_none_longer() {
    let clocks = Clocks { wall: || 1_000, steady: || 1_000 };
    let directory = tempfile::tempdir().unwrap();
    let lasting = profiles("[[profile]]\nname = 'staff'\nsession_lifetime_s = 100\n");
    let service = service_for(directory.path(), clocks, access(lasting));
    let user = service.store.user("ann").unwrap().unwrap();
    for (number, (session_s, expected)) in
        (1..).zip([(None, 1_100), (Some(20), 1_020), (Some(200), 1_100), (Some(u32::MAX), 1_100)])
    {
        let limits = SourceLimits { session_s, idle_s: session_s };
        let ann = Authenticated { limits, ..Authenticated::here(user.clone(), Factors::PASSWORD) };
        let LoginReply::Granted(granted) = service.admit(&ann, DeviceId([number; 16]), None, false).unwrap()
        else {
            panic!("{session_s:?}")
        };
        assert_eq!((granted.expires_s, granted.idle_timeout_s), (expected, session_s));
    }
}

#[tokio::test]
async fn a_shorter_lifetime_holds_for_old_sessions_and_a_longer_for_new_ones() {
    static STEADY_S: AtomicU64 = AtomicU64::new(1_000);
    let clocks = Clocks { wall: || 1_000, steady: || STEADY_S.load(Ordering::Relaxed) };
    let lasting = |lifetime_s: u64| {
        profiles(&format!("[[profile]]\nname = 'staff'\nsession_lifetime_s = {lifetime_s}\n"))
    };
    let directory = tempfile::tempdir().unwrap();
    let access = access(lasting(100));
    let service = service_for(directory.path(), clocks, Arc::clone(&access));
    let session = granted(&service, 1).await;
    assert_eq!(failed(&service, keep(session)).await, 0);
    let stored = async || {
        let stored = ask(&service, SessionQuery(session)).await;
        stored.map(|stored| (stored.started_s, stored.expires_s))
    };
    assert_eq!(stored().await, Some((1_000, 1_100)));
    STEADY_S.store(1_050, Ordering::Relaxed);
    access.replace(lasting(51));
    assert!(stored().await.is_some());
    access.replace(lasting(50));
    assert_eq!(stored().await, None, "its time is over");
    access.replace(lasting(500));
    assert_eq!(stored().await, Some((1_000, 1_100)), "as it was granted");
}

/// Everything about addresses that a profile has for itself: full, kept, and lost.
#[tokio::test]
async fn addresses_are_those_of_the_profile_and_others_end_the_session() {
    let of_staff = |pool: &str| profiles(&format!("[[profile]]\nname = 'staff'\ngroups = 'staff'\n{pool}\n"));
    let directory = tempfile::tempdir().unwrap();
    let tunnel = Tunnel { pool_v4: Some("10.86.0.0/24".parse().unwrap()), ..Tunnel::default() };
    let access = Arc::new(Access::new(of_staff("pool_v4 = '10.86.0.8/30'"), &tunnel));
    let service = service_for(directory.path(), Clocks::default(), Arc::clone(&access));
    let session = granted(&service, 1).await;
    assert_eq!(failed(&service, keep(session)).await, 0);
    let address = async || {
        let stored = ask(&service, SessionQuery(session)).await;
        stored.and_then(|stored| stored.addresses.ipv4)
    };
    let first = address().await.expect("it is kept");
    assert!((9..=10).contains(&first.octets()[3]), "{first}");
    granted(&service, 2).await;
    let full = ask(&service, login("right", 3)).await;
    assert!(matches!(full, LoginReply::Refused(Refused { refusal: Refusal::NoAddress, .. })), "{full:?}");
    let status = ask(&service, StatusQuery).await;
    let pools: Vec<_> = status.pools.iter().map(|pool| (&*pool.pool, pool.taken, pool.total)).collect();
    assert_eq!(pools, [("10.86.0.8/30", 2, 2)]);

    access.replace(of_staff("pool_v4 = '10.86.0.0/28'"));
    assert_eq!(address().await, Some(first), "it is in the new one, too");
    for pool in ["pool_v4 = '10.86.0.16/28'", "pool_v4 = '10.86.0.16/28'\n[[profile]]\nname = 'b'"] {
        access.replace(of_staff(pool));
        assert_eq!(address().await, None, "{pool}");
    }
    access.replace(of_staff("users = 'bob'\npool_v4 = '10.86.0.8/30'\n[[profile]]\nname = 'others'"));
    assert_eq!(address().await, None, "another profile has it for itself");
    let LoginReply::Granted(granted) = ask(&service, login("right", 1)).await else { panic!("let in") };
    let other = granted.addresses.ipv4.unwrap();
    assert!(!(8..12).contains(&other.octets()[3]), "{other}");
}

#[tokio::test]
async fn a_worker_can_neither_invent_a_record_nor_take_one_back() {
    let directory = tempfile::tempdir().unwrap();
    let access = access(profiles("[[profile]]\nname = 'staff'\ngroups = 'staff'\n"));
    let (service, audit) = with_recorder(directory.path(), access);
    // A session without a login.
    let invented = ByteArray::from([9; 16]);
    assert_eq!(failed(&service, keep(invented)).await, 1);
    let ended = |session, code| Write::Ended { session, code, traffic: Default::default() };
    let over = Commit(vec![ended(invented, Code::Bye)]);
    assert_eq!(failed(&service, over).await, 0);
    assert!(audit.events().is_empty(), "{:?}", audit.events());

    // The session's user and addresses are those of the login, not of a message.
    let session = granted(&service, 1).await;
    assert_eq!(failed(&service, keep(session)).await, 0);
    let events = audit.events();
    let [Event::Began(start)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(
        (start.user.as_str(), start.source.as_str(), start.profile.as_str()),
        ("ann", "local", "staff")
    );
    assert_eq!((start.outer, start.device), (Some([192, 0, 2, 1].into()), DeviceId([1; 16])));
    assert!(start.ipv4.is_some_and(|v4| v4.octets()[..3] == [10, 0, 0]), "{start:?}");

    // A reason alone ends nothing on record while the session goes on in the store, and neither do
    // new tokens begin another.
    let over = Commit(vec![ended(session, Code::Bye)]);
    assert_eq!(failed(&service, over).await, 0);
    assert_eq!(failed(&service, keep(session)).await, 0);
    assert_eq!(audit.events().len(), 1, "{:?}", audit.events());
    let end = Commit(vec![ended(session, Code::Kicked), Write::End(session)]);
    assert_eq!(failed(&service, end).await, 0);
    let events = audit.events();
    let [_, Event::Ended { session: over, reason, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((over.0, reason.as_str()), (*session, "kicked"));
}

#[tokio::test]
async fn a_kicked_session_ends_although_the_store_fails() {
    let directory = tempfile::tempdir().unwrap();
    let (service, audit) = with_recorder(directory.path(), access(profiles("")));
    let session = granted(&service, 1).await;
    assert_eq!(failed(&service, keep(session)).await, 0);
    let sql = |sql| {
        let path = directory.path().join(vpnd_config::STORE_FILE_NAME);
        rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
    };
    sql("CREATE TRIGGER broken BEFORE DELETE ON sessions BEGIN SELECT RAISE(ABORT, 'broken'); END");
    let end = |code| {
        let traffic = vpnd_ipc::gateway::auth::Traffic::default();
        Commit(vec![Write::Ended { session, code, traffic }, Write::End(session)])
    };
    assert_eq!(failed(&service, end(Code::Kicked)).await, 0);
    let after_restart = self::service(directory.path());
    for service in [&service, &after_restart] {
        assert!(ask(service, SessionQuery(session)).await.is_none());
    }
    let ended = |event: &Event| matches!(event, Event::Ended { reason, .. } if reason == "kicked");
    assert_eq!(audit.events().iter().filter(|event| ended(event)).count(), 1, "it is over");
}

#[tokio::test]
async fn a_user_disabled_by_an_order_has_no_old_or_new_session() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let [before, under_way] = [granted(&service, 1).await, granted(&service, 2).await];
    assert_eq!(failed(&service, keep(before)).await, 0);
    assert!(ask(&service, SessionQuery(before)).await.is_some());
    let kick = Kick { id: [1; 16], user: "ann".to_owned(), at_s: 1, is_disable: true, source: None };
    service.store.kicks().take(&kick, 1).unwrap();
    assert!(ask(&service, SessionQuery(before)).await.is_none());
    assert_eq!(failed(&service, keep(under_way)).await, 1);
    assert!(!matches!(ask(&service, login("right", 3)).await, LoginReply::Granted(_)));
}

#[tokio::test]
async fn the_store_lists_live_sessions_and_not_granted_ones() {
    let directory = tempfile::tempdir().unwrap();
    let (service, audit) =
        with_recorder(directory.path(), access(vpnd_config::AccessProfiles::of_everybody()));
    let session = granted(&service, 1).await;
    assert_eq!(failed(&service, keep(session)).await, 0);
    granted(&service, 2).await;
    let now_s = (service.clocks.steady)();
    let live = service.store.live_sessions(now_s).unwrap();
    assert_eq!(live.len(), 1, "one that was only granted is none: {live:?}");
    let [Event::Began(start)] = &audit.events()[..] else { panic!("not one") };
    let found = SessionStart::from(live[0].clone());
    assert_eq!((found.session, &found.user, found.ipv4), (start.session, &start.user, start.ipv4));
    assert!(service.store.live_sessions(found.expires_s).unwrap().is_empty());
}

fn code_for(store: &Arc<dyn Store>, code: &str) -> LoginRequest {
    assert!(store.user("ann").unwrap().is_some_and(|user| user.totp.is_some()));
    LoginRequest { code: vpnd_proto::control::SecretText::new(code).ok(), ..login("right", 1) }
}

/// The worker sends a code, which is checked here. It has no other way to have a factor, nor to
/// keep a session of fewer.
#[tokio::test]
async fn a_profile_that_requires_a_factor_has_no_session_without() {
    // RFC 6238, appendix B.
    const SECRET: &[u8] = b"12345678901234567890";
    let clocks = Clocks { wall: || 59, steady: || 1_000 };
    let strict = || profiles("[[profile]]\nname = 'admins'\nrequire = 'otp'\n");
    let directory = tempfile::tempdir().unwrap();
    let access = access(profiles("[[profile]]\nname = 'admins'\n"));
    let service = service_for(directory.path(), clocks, Arc::clone(&access));
    let before = granted(&service, 1).await;
    assert_eq!(failed(&service, keep(before)).await, 0);
    let is_there = async |service: &Arc<Service>, session| {
        ask(service, SessionQuery(session)).await.map(|session| session.factors.to_string())
    };
    assert_eq!(is_there(&service, before).await.as_deref(), Some("pwd"));
    let pending = granted(&service, 2).await;

    access.replace(strict());
    assert_eq!(is_there(&service, before).await, None, "a session by the password alone");
    assert!(matches!(ask(&service, login("right", 3)).await, LoginReply::CodeRequired(_)));
    // A reload between the check and the lease, and a session that is kept after it.
    let user = service.store.user("ann").unwrap().unwrap();
    let factors = Factors::PASSWORD.and(Factors::KEY).and(Factors::APPROVAL);
    let ann = Authenticated::here(user, factors);
    let reply = service.admit(&ann, DeviceId([3; 16]), None, false).unwrap();
    assert!(matches!(reply, LoginReply::Refused(Refused { refusal: Refusal::NeedsCode, .. })), "{reply:?}");
    let ann = Authenticated { factors: Factors::PASSWORD, ..ann };
    assert!(matches!(
        service.admit(&ann, DeviceId([3; 16]), None, false).unwrap(),
        LoginReply::Refused(Refused { refusal: Refusal::Credentials, .. })
    ));
    assert_eq!(failed(&service, keep(pending)).await, 0);
    assert_eq!(is_there(&service, pending).await, None);

    let totp = Some(Some(vpnd_store::TotpSecret::new(SECRET.to_vec())));
    service.store.modify_user("ann", &UserChange { totp, ..UserChange::default() }, 1).unwrap();
    let LoginReply::CodeRequired(number) = ask(&service, login("right", 1)).await else {
        panic!("not asked")
    };
    let answer = vpnd_proto::control::SecretText::new("000000").unwrap();
    let wrong = TypedAnswer { login: number, answer, device: [1; 16].into() };
    assert!(matches!(
        ask(&service, wrong).await,
        LoginReply::Refused(Refused { refusal: Refusal::Credentials, .. })
    ));
    let LoginReply::Granted(granted) = ask(&service, code_for(&service.store, "287082")).await else {
        panic!("the code is right")
    };
    assert_eq!(failed(&service, keep(granted.session)).await, 0);
    drop(service);
    let service = service_for(directory.path(), clocks, Arc::clone(&access));
    assert_eq!(is_there(&service, granted.session).await.as_deref(), Some("pwd otp"), "the store has it");
    let record = service.store.session(SessionId(granted.session.into()), 1_000).unwrap().unwrap();
    assert_eq!(record.auth_time_s, 59);
}

/// A process that takes a session out of the store may have another clock, and the gateway may
/// carry it for a moment.
#[tokio::test]
async fn a_lease_ends_some_time_after_its_session_was_taken_out() {
    static NOW_S: AtomicU64 = AtomicU64::new(1_000_000);
    let directory = tempfile::tempdir().unwrap();
    let clocks = Clocks { steady: || NOW_S.load(Ordering::Relaxed), ..Clocks::default() };
    let service = service_with(directory.path(), None, clocks);
    let [ann, other] = [granted(&service, 1).await, granted(&service, 2).await];
    assert_eq!(failed(&service, keep(ann)).await, 0);
    let taken = || service.status().unwrap().pools[0].taken;
    let mut since = HashMap::new();
    let mut after = |seconds| {
        NOW_S.fetch_add(seconds, Ordering::Relaxed);
        service.end_orphans(&mut since, 60).unwrap();
        taken()
    };
    assert_eq!(after(60), 2, "one is kept, the other may be soon");
    for wall_s in [1, 2_000_000] {
        service.store.remove_device("ann", DeviceId([1; 16]), wall_s).unwrap();
        assert_eq!(after(1), 2);
    }
    assert_eq!(after(57), 2);
    assert_eq!(after(2), 1, "the session is over for a minute");
    assert_eq!(after(60), 0, "and nobody has used the grant of {other:?}");
    ask(&service, keep(granted(&service, 3).await)).await;
    service.store.set_enabled("ann", false, 1).unwrap();
    service.begin(true).unwrap();
    assert_eq!(taken(), 0, "before the gateway carries any session");
}

#[tokio::test]
async fn earlier_sessions_time_out_and_end_if_no_longer_permitted() {
    let directory = tempfile::tempdir().unwrap();
    let before = service(directory.path());
    let mut sessions = Vec::new();
    for device in 1..=3 {
        let session = granted(&before, device).await;
        ask(&before, keep(session)).await;
        sessions.push(SessionId(session.into()));
    }
    let other_pool = |pool: &str| {
        let tunnel = Tunnel { pool_v4: Some(pool.parse().unwrap()), ..Tunnel::default() };
        Arc::new(Access::new(vpnd_config::AccessProfiles::of_everybody(), &tunnel))
    };
    let stored =
        |service: &Arc<Service>| service.store.live_sessions((service.clocks.steady)()).unwrap().len();

    let (after, audit) = with_recorder(directory.path(), access(vpnd_config::AccessProfiles::of_everybody()));
    after.begin(true).unwrap();
    assert!(after.session(sessions[0]).unwrap().is_some());
    assert_eq!(stored(&after), 3);
    after.end_absent();
    assert_eq!((stored(&after), after.status().unwrap().pools[0].taken), (1, 1));
    assert!(after.session(sessions[0]).unwrap().is_some(), "its client has come back");
    let reasons = |audit: &Recorded| -> Vec<String> {
        let ends = audit.events().into_iter().filter_map(|event| match event {
            Event::Ended { reason, .. } => Some(reason),
            _ => None,
        });
        ends.collect()
    };
    assert_eq!(reasons(&audit), ["idle", "idle"]);

    // An upgrade: the worker has taken one session over, and the client of the other never came
    // back.
    ask(&after, keep(granted(&after, 4).await)).await;
    let other = after.store.live_sessions((after.clocks.steady)()).unwrap();
    let other = other.into_iter().find(|session| session.id != sessions[0]).unwrap().id;
    let (upgraded, audit) =
        with_recorder(directory.path(), access(vpnd_config::AccessProfiles::of_everybody()));
    upgraded.begin(false).unwrap();
    ask(&upgraded, Carried(vec![sessions[0].0.into()])).await;
    upgraded.end_absent();
    assert!(upgraded.usable(sessions[0]).unwrap().is_some(), "the worker carries it");
    assert!(upgraded.usable(other).unwrap().is_none());
    assert_eq!(reasons(&audit), ["idle"]);

    let (later, audit) = with_recorder(directory.path(), other_pool("10.1.0.0/29"));
    later.begin(true).unwrap();
    later.end_misfits(true);
    assert_eq!((stored(&later), reasons(&audit)), (0, vec!["token".to_owned()]));
}

#[tokio::test]
async fn a_rolled_back_store_is_noticed_and_missing_sessions_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let session = granted(&service, 1).await;
    assert_eq!(failed(&service, keep(session)).await, 0);
    let ask_after = |seen, history| RevocationQuery { seen: Some(seen), history };
    let last = ask(&service, RevocationQuery { seen: None, history: None }).await;
    // More were carried out than there are, or they are others.
    for query in [ask_after(last.seen + 3, None), ask_after(last.seen, Some(last.history + 1))] {
        let back = ask(&service, query).await;
        assert!(back.went_back && back.found.is_empty());
        assert_eq!((back.seen, back.history), (last.seen, last.history));
    }
    service.store.set_enabled("ann", false, 2).unwrap();
    let after = ask(&service, ask_after(last.seen, Some(last.history))).await;
    assert!(!after.went_back && after.found.len() == 1);
    let unknown = ByteArray::from([9; 16]);
    service.store.set_enabled("ann", true, 2).unwrap();
    let other = granted(&service, 2).await;
    assert_eq!(failed(&service, keep(other)).await, 0);
    let missing = ask(&service, MissingQuery(vec![unknown, session, other])).await;
    assert_eq!(missing, [unknown, session]);
}
