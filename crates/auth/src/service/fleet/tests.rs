//! Two gateways' auth processes on one database.

mod browser_logins;
mod simulation;

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use minicbor::bytes::ByteArray;
use sha2::{Digest as _, Sha256};
use vpnd_ipc::gateway::auth::{
    BrowserLogin, BrowserLoginReply, Commit, DrainHere, Dropped, GatewayReport, GatewaysQuery, LoginReply,
    LoginRequest, MissingQuery, RevocationQuery, SessionClaim, TokenHashes, Traffic, Write,
};
use vpnd_ipc::gateway::portal::connect::{
    AnswerToClient, CodeEnd, ConnectEnd, ConnectPage, ConnectQuery, TypedCode,
};
use vpnd_ipc::gateway::portal::desk::{AskWhois, Caller};
use vpnd_ipc::gateway::portal::visits::BrowserKind;
use vpnd_ipc::gateway::portal::{Browser, LogOut, LoginStep, OverviewQuery, PortalLogin, Token};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::request::Answer;
use vpnd_proto::attach::{Token as AttachToken, Tokens};
use vpnd_proto::control::{Code, Grant, SecretText, Text, UserName};
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_proto::time::Time;
use vpnd_store::Store;
use vpnd_store::audit::testing::all;
use vpnd_store::audit::whois::Recording;
use vpnd_store::audit::{self, AuditFile, Event, SessionStart};
use vpnd_store::postgres::testing::{Cluster, gateway};
use vpnd_store::postgres::{Dial, Holder, Postgres};
use vpnd_sys::clock::{Clocks, now};

use super::Service;
use crate::portal::Portal;
use crate::portal::desk::Desk;
use crate::service::tests::{access, ask, granted, login, profiles, service_on};
use vpnd_admission::whois::Answers;

/// The services of gateways of one fleet.
struct Pair {
    services: [Arc<Service>; 2],
    directories: [tempfile::TempDir; 2],
    cluster: Cluster,
    database: String,
}

fn pair() -> Option<Pair> {
    pair_with(&vpnd_config::AccessProfiles::of_everybody())
}

fn pair_with(profiles: &vpnd_config::AccessProfiles) -> Option<Pair> {
    let cluster = Cluster::start("127.0.0.1", |path| std::process::Command::new(path), "")?;
    let database = cluster.database();
    let (way, dial) = cluster.access(&database);
    let dial: Arc<dyn Dial> = Arc::new(dial);
    let holder = |number| Holder { fleet: Some("campus".to_owned()), ..gateway(number, number) };
    Postgres::create(&way, &dial, &holder(1)).unwrap();
    let directories = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let service = |number: u8| {
        let directory = directories[usize::from(number) - 1].path();
        let store = Postgres::open(&way, Arc::clone(&dial), holder(number), directory).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let service = service_on(store, Clocks::default(), access(profiles.clone()));
        Arc::new(service.of_fleet(true))
    };
    let services = [1, 2].map(service);
    Some(Pair { services, directories, cluster, database })
}

const TOKEN: [u8; 32] = [5; 32];

fn keep(session: ByteArray<16>, epoch: u32) -> Commit {
    let tokens = TokenHashes::from(&Tokens::new(AttachToken::from_bytes(TOKEN).hash()));
    Commit(vec![Write::Keep { session, tokens, epoch }])
}

fn claim(session: ByteArray<16>, token: [u8; 32], device: u8) -> SessionClaim {
    let (token, device) = (AttachToken::from_bytes(token), [device; 16].into());
    SessionClaim { session, token, device, until: Time::from_nanos(u64::MAX) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_moves_for_its_own_device_and_token_alone() {
    let Some(pair) = pair() else { return };
    let [first, second] = &pair.services;
    let session = granted(first, 1).await;
    assert!(ask(first, keep(session, 1)).await.failed.is_empty());
    for wrong in [claim(session, [6; 32], 1), claim(session, TOKEN, 2), claim([9; 16].into(), TOKEN, 1)] {
        assert!(ask(second, wrong).await.is_none());
    }
    assert!(ask(first, Dropped(Vec::new())).await.is_empty(), "it is where it was");
    let stays = ask(first, claim(session, TOKEN, 1)).await.expect("it is this gateway's");

    let moved = ask(second, claim(session, TOKEN, 1)).await.expect("it moves");
    assert!(moved.generation > stays.generation && stays.generation > 0);
    assert_eq!((moved.addresses.ipv4, moved.epoch), (stays.addresses.ipv4, stays.epoch));
    let taken = ask(first, Dropped(Vec::new())).await;
    assert_eq!((taken.len(), taken[0].session), (1, session));
    assert!(taken[0].ends(stays.generation) && !taken[0].ends(moved.generation + 1));
    assert_eq!(ask(first, MissingQuery(vec![session])).await, [session]);
    assert_eq!(
        ask(first, keep(session, 9)).await.failed,
        [session],
        "its tokens are the other one's to change"
    );
    assert!(ask(first, Commit(vec![Write::End(session)])).await.failed.is_empty());
    assert!(ask(first, Dropped(taken)).await.is_empty(), "it has dropped it");
    assert!(ask(second, claim(session, TOKEN, 1)).await.is_some(), "and the other one goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_after_its_deadline_moves_no_session() {
    let Some(pair) = pair() else { return };
    let [first, second] = &pair.services;
    let session = granted(first, 1).await;
    assert!(ask(first, keep(session, 1)).await.failed.is_empty());
    let late = || SessionClaim { until: now(), ..claim(session, TOKEN, 1) };
    assert!(second.answer(late()).await.is_err());
    assert!(ask(first, Dropped(Vec::new())).await.is_empty(), "it is where its client may have gone");
    assert!(ask(first, late()).await.is_some(), "what is here moves nowhere");
    assert!(ask(second, claim(session, TOKEN, 1)).await.is_some(), "a claim in time is good");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_session_does_not_block_the_moves_of_others() {
    let Some(pair) = pair() else { return };
    let [first, second] = &pair.services;
    let mut claims = Vec::new();
    for device in 1..=3 {
        let session = granted(first, device).await;
        assert!(ask(first, keep(session, 1)).await.failed.is_empty());
        claims.push(claim(session, TOKEN, device));
    }
    let damaged = "UPDATE vpnd.sessions SET epoch = -1 WHERE device = '\\x02020202020202020202020202020202'";
    pair.cluster.sql(&pair.database, damaged);
    let service = Arc::clone(second);
    let found = tokio::task::spawn_blocking(move || service.claimed(&claims)).await.unwrap();
    let moved: Vec<_> = found.iter().map(|found| found.as_ref().map(Option::is_some).ok()).collect();
    assert_eq!(moved, [Some(true), None, Some(true)]);
}

fn report(sessions: u64, is_draining: bool) -> GatewayReport {
    let (away, back, addresses) = (Vec::new(), Vec::new(), Vec::new());
    let load_percent = u64::MAX;
    GatewayReport { address: None, sessions, load_percent, is_draining, away, back, addresses }
}

async fn elsewhere(service: &Arc<Service>, device: u8) -> (ByteArray<16>, u64) {
    match ask(service, login("right", device)).await {
        LoginReply::Granted(granted) => (granted.session, granted.elsewhere),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_a_user_count_at_all_gateways() {
    let two = profiles("[[profile]]\nname = 'all'\nmax_sessions_per_user = 2\n");
    let Some(pair) = pair_with(&two) else { return };
    let [first, second] = &pair.services;
    let [one, two] = [elsewhere(first, 1).await, elsewhere(first, 2).await];
    assert_eq!((one.1, two.1), (0, 0));
    for (session, _) in [one, two] {
        assert!(ask(first, keep(session, 1)).await.failed.is_empty());
    }
    let (third, others) = elsewhere(second, 3).await;
    assert_eq!(others, 2, "the worker refuses it");
    assert_eq!(ask(second, keep(third, 1)).await.failed, [third], "nor is it kept, were it not refused");
    assert_eq!(elsewhere(second, 1).await.1, 1, "the device's own session is none of the others");

    // Two logins at the same time that do not know of one another.
    let Some(pair) = pair_with(&profiles("[[profile]]\nname = 'all'\nmax_sessions_per_user = 1\n")) else {
        return;
    };
    let [first, second] = &pair.services;
    let [(one, _), (two, others)] = [elsewhere(first, 1).await, elsewhere(second, 2).await];
    assert_eq!(others, 0);
    assert!(ask(first, keep(one, 1)).await.failed.is_empty());
    assert_eq!(ask(second, keep(two, 1)).await.failed, [two]);

    // A client that is away makes room, as at one gateway.
    ask(first, GatewayReport { away: vec![one], ..report(1, false) }).await;
    let (three, others) = elsewhere(second, 3).await;
    assert_eq!(others, 0);
    let taken = ask(first, Dropped(Vec::new())).await;
    assert_eq!(taken.iter().map(|taken| taken.session).collect::<Vec<_>>(), [one]);
    assert!(ask(second, keep(three, 1)).await.failed.is_empty());
    ask(second, GatewayReport { away: vec![three], ..report(1, false) }).await;
    ask(second, GatewayReport { back: vec![three], ..report(1, false) }).await;
    assert_eq!(elsewhere(first, 4).await.1, 1, "one that is back makes none");
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_count_at_all_gateways() {
    let Some(pair) = pair() else { return };
    for service in pair.services.iter().chain(&pair.services) {
        ask(service, report(0, false)).await;
    }
    let mut checked = 0;
    for service in pair.services.iter().cycle().take(24) {
        match ask(service, login("wrong", 1)).await {
            LoginReply::CodeRequired(_) => checked += 1,
            LoginReply::Refused(refused) => assert_eq!(refused.refusal, Refusal::Throttled),
            other => panic!("{other:?}"),
        }
    }
    // Waits may be over on a busy machine. Each by itself, they would check ten.
    assert!((5..=8).contains(&checked), "{checked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_of_a_user_count_at_all_gateways() {
    let Some(pair) = pair() else { return };
    let [first, second] = &pair.services;
    let log_in = async |service: &Arc<Service>| match ask(service, login("right", 1)).await {
        LoginReply::Granted(granted) => {
            ask(service, Commit(vec![Write::End(granted.session)])).await;
            true
        }
        LoginReply::Refused(refused) => {
            assert_eq!(refused.refusal, Refusal::Throttled);
            false
        }
        other => panic!("{other:?}"),
    };
    let mut granted = 0;
    while log_in(first).await {
        granted += 1;
    }
    assert!((30..35).contains(&granted), "{granted}");
    turn(&pair);
    assert!(!log_in(second).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_is_not_drained_unless_another_one_is_alive() {
    let Some(pair) = pair() else { return };
    let [first, second] = &pair.services;
    let report = || report(u64::MAX, false);
    ask(first, report()).await;
    assert!(!ask(first, DrainHere).await);
    ask(second, report()).await;
    assert!(ask(first, DrainHere).await);
    assert!(!ask(second, DrainHere).await, "the first is being drained");
    // A report that was on its way says nothing of it.
    ask(first, report()).await;
    assert!(!ask(second, DrainHere).await, "its worker has not begun yet");
    let states = ask(second, GatewaysQuery).await;
    assert_eq!(states.iter().map(|state| state.is_draining).collect::<Vec<_>>(), [true, false]);
    assert!(states.iter().all(|state| state.is_alive && state.sessions == u64::from(u32::MAX)));
    // It begins, and is cancelled.
    for is_draining in [true, false] {
        ask(first, self::report(0, is_draining)).await;
        assert_eq!(ask(second, GatewaysQuery).await[0].is_draining, is_draining);
    }
    assert!(ask(second, DrainHere).await);
}

async fn at_portal<R: vpnd_ipc::request::Request>(service: &Arc<Service>, request: R) -> R::Reply
where
    Portal: Answer<R>,
{
    service.portal().answer(request).await.unwrap()
}

/// Gateways send and read notices, as they do several times a second.
fn turn(pair: &Pair) {
    for service in pair.services.iter().chain(&pair.services) {
        service.fleet.as_ref().unwrap().notices.turn().unwrap();
    }
}

/// A browser in which ann has logged in at this gateway.
async fn browser_at(service: &Arc<Service>, address: [u8; 4]) -> Browser {
    let (address, kind) = (address.into(), BrowserKind::default());
    let password = SecretText::new("right").unwrap();
    let login = PortalLogin { user: UserName::new("ann").unwrap(), password, address };
    match at_portal(service, login).await {
        LoginStep::LoggedIn(token) => Browser { token, address, kind },
        other => panic!("{other:?}"),
    }
}

async fn is_let_in(service: &Arc<Service>, grant: &Grant) -> bool {
    match ask(service, LoginRequest { grant: Some(grant.clone()), ..login("", 1) }).await {
        LoginReply::Granted(_) => true,
        LoginReply::Refused(refused) => {
            assert_eq!(refused.refusal, Refusal::GrantVoid);
            false
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_in_a_browser_may_be_at_any_gateway_and_counts_once() {
    let Some(pair) = pair() else { return };
    let [first, second] = &pair.services;
    for service in &pair.services {
        service.portal().switch(true);
        service.portal().serve_at("https://vpn.uni.example");
        service.portal().give_codes(true);
    }
    let browser = browser_at(first, [198, 51, 100, 7]).await;
    turn(&pair);
    assert!(at_portal(second, OverviewQuery(browser.clone())).await.is_some(), "a cookie is good at both");

    for short_code in [true, false] {
        let begun = BrowserLogin {
            device: [1; 16].into(),
            source: [192, 0, 2, 1].into(),
            port: 40_000,
            state: [3; 32].into(),
            challenge: <[u8; 32]>::from(Sha256::digest([4; 32])).into(),
            name: Text::cut("pc"),
            short_code,
        };
        let BrowserLoginReply::At(at) = ask(first, begun).await else { panic!("it was refused") };
        let ticket = match &at.code {
            Some(code) => {
                let typed = TypedCode { browser: browser.clone(), code: Text::cut(&code.code) };
                let CodeEnd::Found(ticket) = at_portal(second, typed).await else { panic!("it is unknown") };
                ticket
            }
            None => {
                let (_, ticket) = at.url.rsplit_once('/').unwrap();
                Token(<[u8; 32]>::try_from(URL_SAFE_NO_PAD.decode(ticket).unwrap()).unwrap().into())
            }
        };
        let question = ConnectQuery { ticket: ticket.clone(), browser: browser.clone() };
        assert!(matches!(at_portal(second, question).await, ConnectPage::Ask { .. }));
        let answer = || AnswerToClient {
            ticket: ticket.clone(),
            browser: browser.clone(),
            allowed: true,
            compared: true,
        };
        let ended = at_portal(second, answer()).await;
        assert!(matches!(at_portal(first, answer()).await, ConnectEnd::Over), "it was answered");
        let grant = match (&at.code, &ended) {
            (Some(code), ConnectEnd::Kept) => code.grant,
            (None, ConnectEnd::To { url, .. }) => {
                let query = url.split_once('?').unwrap().1;
                let grant =
                    form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "code").unwrap().1;
                <[u8; 32]>::try_from(URL_SAFE_NO_PAD.decode(grant.as_ref()).unwrap()).unwrap().into()
            }
            other => panic!("{other:?}"),
        };
        let grant = Grant { grant, verifier: [4; 32].into() };
        turn(&pair);
        // Shown to both at the same moment.
        let (one, other) = tokio::join!(is_let_in(first, &grant), is_let_in(second, &grant));
        assert!(one ^ other, "{one} {other}");
        assert!(!is_let_in(first, &grant).await && !is_let_in(second, &grant).await);
    }

    // A guesser who goes from one gateway to the other.
    let wrong = || TypedCode { browser: browser.clone(), code: Text::cut("BBBB-BBBB") };
    for _ in 0..10 {
        at_portal(first, wrong()).await;
    }
    turn(&pair);
    assert!(matches!(at_portal(second, wrong()).await, CodeEnd::Wait(_)));

    at_portal(second, LogOut(browser.clone())).await;
    turn(&pair);
    for service in &pair.services {
        assert!(at_portal(service, OverviewQuery(browser.clone())).await.is_none(), "logged out at both");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_a_kick_ends_visits_and_a_device_removal_does_not() {
    let Some(pair) = pair() else { return };
    let [first, _] = &pair.services;
    let mut sessions = Vec::new();
    for device in 1..=5 {
        let session = granted(first, device).await;
        assert!(ask(first, keep(session, 1)).await.failed.is_empty());
        sessions.push(session);
    }
    let kicked = |session: &ByteArray<16>| {
        let (code, traffic) = (Code::Kicked, Traffic::default());
        [Write::Ended { session: *session, code, traffic }, Write::End(*session)]
    };
    first.portal().switch(true);
    browser_at(first, [198, 51, 100, 7]).await;
    let revocations = |seen| RevocationQuery { seen, history: None };
    let seen = ask(first, revocations(None)).await.seen;
    assert!(first.store.remove_device("ann", DeviceId([1; 16]), 1).unwrap());
    let found = ask(first, revocations(Some(seen))).await;
    assert_eq!(found.found.len(), 1);
    ask(first, Commit(kicked(&sessions.remove(0)).into())).await;
    assert_eq!(first.portal().visitors().len(), 1);

    assert!(ask(first, revocations(Some(found.seen))).await.found.is_empty(), "it is carried out");
    pair.cluster.pause(true);
    let begun = Instant::now();
    let done = ask(first, Commit(sessions.iter().flat_map(kicked).collect())).await;
    let elapsed = begun.elapsed();
    pair.cluster.pause(false);
    assert!(done.failed.is_empty() && first.portal().visitors().is_empty());
    // The store puts changes off after two.
    assert!(elapsed < Duration::from_secs(4), "the control plane waits: {elapsed:?}");
}

const DESK: &str = "[portal]\nenabled = true\ncertificate = 'p'\nkey = 'k'\nhelp_desk_groups = 'staff'\n";

#[tokio::test(flavor = "multi_thread")]
async fn the_desk_finds_the_holder_of_an_address_at_any_gateway() {
    let Some(pair) = pair() else { return };
    let [first, second] = &pair.services;
    let config = |number: usize| {
        let state_dir = pair.directories[number].path().display();
        vpnd_config::testing::smallest(&format!("[server]\nstate_dir = '{state_dir}'\n{DESK}"))
    };
    let file = |number: usize| pair.directories[number].path().join(audit::FILE_NAME);
    for (number, service) in pair.services.iter().enumerate() {
        AuditFile::open_or_create(&file(number)).unwrap();
        service.portal().set_desk(Desk::of(&config(number)));
        ask(service, report(0, false)).await;
    }
    let recording = Recording::of(&config(1));
    second.answer_questions(Answers::new("gw2".to_owned(), recording, file(1)));
    let session = SessionStart {
        session: SessionId([7; 16]),
        user: "bob".to_owned(),
        source: "local".to_owned(),
        profile: String::new(),
        device: DeviceId([7; 16]),
        outer: None,
        ipv4: Some([10, 0, 0, 3].into()),
        ipv6: None,
        at_s: 1,
        expires_s: u64::MAX / 4,
    };
    AuditFile::open(&file(1)).unwrap().record(&[Event::Began(session)]).unwrap();

    let browser = browser_at(first, [10, 86, 0, 9]).await;
    let [address, reason] = ["10.0.0.3", "complaint 4711"];
    let question = AskWhois {
        caller: Caller::Browser(browser),
        address: Text::cut(address),
        at: Text::default(),
        reason: Text::cut(reason),
    };
    let following = tokio::spawn(Arc::clone(second).follow_notices());
    let answer = at_portal(first, question).await.unwrap();
    following.abort();
    let found = &answer.found[0];
    assert_eq!((found.user.as_deref(), found.gateway.as_deref()), (Some("bob"), Some("gw2")), "{answer:?}");
    let doubts = answer.notes.iter().all(|note| note.starts_with("UNCERTAIN: "));
    assert!(doubts, "that the first one has none says nothing: {answer:?}");
    assert!(answer.notes.iter().any(|note| note.starts_with("UNCERTAIN: gw2: ")), "{answer:?}");
    let asked = all(&AuditFile::open(&file(1)).unwrap()).into_iter().find(|record| record.kind == "whois");
    assert_eq!(asked.and_then(|asked| asked.by).as_deref(), Some("ann on the web pages at gw1"));
}
