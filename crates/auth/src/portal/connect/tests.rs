//! Logins by a browser and by a short code: what a ticket, a code and a grant are good for, and for
//! whom.

use super::super::desk::tests::Bench;
use super::super::visits::tests::ANN;
use super::*;
use crate::authenticator::Entrance;
use vpnd_ipc::gateway::portal::visits::EndVisit;
use vpnd_ipc::gateway::portal::{Browser, LogOut, OverviewQuery};
use vpnd_store::password::Password;

const VERIFIER: [u8; 32] = [7; 32];
const DEVICE: DeviceId = DeviceId([1; 16]);
/// A visit of [`ANN`]'s user.
const VISIT: VisitNumber = [5; 16];

fn connects() -> Connects {
    Connects { address: Some("https://vpn.uni.example".to_owned()), ..Connects::default() }
}

fn begun(address: &str) -> BrowserLogin {
    BrowserLogin {
        device: DEVICE.0.into(),
        source: address.parse().unwrap(),
        port: 40_000,
        state: [3; 32].into(),
        challenge: hash(&VERIFIER).into(),
        name: Text::new("pc").unwrap(),
        short_code: false,
    }
}

fn ticket(connects: &mut Connects) -> Token {
    let (ticket, code) = connects.begin(begun("192.0.2.1"), Time::ZERO).unwrap();
    assert!(code.is_none());
    ticket
}

/// Where the browser is sent with this answer.
fn led(connects: &mut Connects, ticket: &Token, visit: Option<VisitNumber>, now: Time) -> Option<(Url, u16)> {
    match connects.answer(ticket, ANN.user, visit, now)? {
        Way::Browser(url, port) => Some((url, port)),
        Way::Client => panic!("it has no code"),
    }
}

/// A login that a person has agreed to at the beginning of time.
fn granted(connects: &mut Connects) -> [u8; 32] {
    let ticket = ticket(connects);
    let (url, port) = led(connects, &ticket, Some(VISIT), Time::ZERO).unwrap();
    assert_eq!(port, 40_000);
    grant_in(&url)
}

fn grant_in(url: &Url) -> [u8; 32] {
    let query = url.strip_prefix("http://127.0.0.1:40000/?").unwrap();
    let pairs: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).collect();
    assert_eq!((pairs.len(), &*pairs["iss"]), (3, "https://vpn.uni.example"));
    assert_eq!(pairs["state"], URL_SAFE_NO_PAD.encode([3; 32]));
    URL_SAFE_NO_PAD.decode(&*pairs["code"]).unwrap().try_into().unwrap()
}

fn shown(grant: [u8; 32], verifier: [u8; 32]) -> Grant {
    Grant { grant: grant.into(), verifier: verifier.into() }
}

#[test]
fn a_grant_is_good_once_in_time_for_the_client_that_began() {
    let (mut connects, zero) = (connects(), Time::ZERO);
    let grant = granted(&mut connects);
    assert_eq!(connects.redeem(&shown(grant, VERIFIER), DEVICE, zero), Redeemed::Visit(VISIT));
    assert_eq!(connects.redeem(&shown(grant, VERIFIER), DEVICE, zero), Redeemed::Void, "twice");
    let grant = granted(&mut connects);
    let other = connects.redeem(&shown(grant, [8; 32]), DEVICE, zero);
    assert_eq!(other, Redeemed::Void, "another verifier");
    assert_eq!(connects.redeem(&shown(grant, VERIFIER), DEVICE, zero), Redeemed::Void, "it was tried");
    let grant = granted(&mut connects);
    let other = connects.redeem(&shown(grant, VERIFIER), DeviceId([2; 16]), zero);
    assert_eq!(other, Redeemed::Void, "another device");
    let grant = granted(&mut connects);
    let late = connects.redeem(&shown(grant, VERIFIER), DEVICE, zero + GRANT_LIFETIME);
    assert_eq!(late, Redeemed::Void, "too late");
    let grant = granted(&mut connects);
    let last = zero + (GRANT_LIFETIME - Duration::from_nanos(1));
    assert_eq!(connects.redeem(&shown(grant, VERIFIER), DEVICE, last), Redeemed::Visit(VISIT));
    assert_eq!((connects.logins.len(), connects.shares.taken()), (0, 0));
}

#[test]
fn a_ticket_is_answered_once_in_time_and_is_no_grant() {
    let (mut connects, zero) = (connects(), Time::ZERO);
    let first = ticket(&mut connects);
    assert_eq!(connects.redeem(&shown(*first.0, VERIFIER), DEVICE, zero), Redeemed::Void);
    assert!(connects.asked(&first, zero).is_some(), "it is not used up");
    let (url, _) = led(&mut connects, &first, None, zero).unwrap();
    assert!(url.contains("error=access_denied") && !url.contains("code="), "{url:?}");
    assert!(led(&mut connects, &first, Some(VISIT), zero).is_none(), "it was refused");
    let second = ticket(&mut connects);
    assert!(led(&mut connects, &second, Some(VISIT), zero + LIFETIME).is_none(), "too late");
    let grant = granted(&mut connects);
    assert!(connects.asked(&Token(grant.into()), zero).is_none(), "a grant is no ticket");
    assert!(led(&mut connects, &Token(grant.into()), Some(VISIT), zero).is_none());
    assert_eq!(connects.redeem(&shown(grant, VERIFIER), DEVICE, zero), Redeemed::Visit(VISIT));
}

#[test]
fn waiting_logins_of_a_crowd_do_not_block_other_networks() {
    let mut connects = connects();
    for _ in 0..2 * LIMIT {
        let _ = connects.begin(begun("192.0.2.1"), Time::ZERO);
    }
    assert!(connects.logins.len() <= LIMIT && connects.logins.len() == connects.shares.taken());
    assert!(connects.begin(begun("198.51.100.1"), Time::ZERO).is_some());
    assert!(connects.begin(begun("198.51.100.1"), Time::ZERO + LIFETIME).is_some());
    assert_eq!((connects.logins.len(), connects.shares.taken()), (1, 1));
}

#[test]
fn waiting_short_codes_of_a_crowd_do_not_block_other_networks() {
    let mut connects = with_codes();
    let mut codes = std::collections::HashSet::new();
    for _ in 0..2 * LIMIT {
        let begun = connects.begin(short("192.0.2.1"), Time::ZERO);
        codes.extend(begun.and_then(|(_, code)| code).map(Code::shown));
    }
    let taken = connects.shares.taken();
    assert!(taken <= LIMIT && connects.logins.len() == taken && codes.len() >= taken);
    let (_, code) = connects.begin(short("198.51.100.1"), Time::ZERO).unwrap();
    assert!(connects.typed(code.unwrap(), ANN.user, Time::ZERO).is_some());
}

/// Returns [`connects`] that give short codes.
fn with_codes() -> Connects {
    Connects { gives_codes: true, ..connects() }
}

fn short(address: &str) -> BrowserLogin {
    BrowserLogin { short_code: true, ..begun(address) }
}

/// A login that has begun, by its grant and its code.
fn begun_by_code(connects: &mut Connects) -> ([u8; 32], Code) {
    let (grant, code) = connects.begin(short("192.0.2.1"), Time::ZERO).unwrap();
    (grant.0.into(), code.unwrap())
}

const BOB: UserId = UserId([9; 16]);
const BOBS_VISIT: VisitNumber = [6; 16];

#[test]
fn a_short_code_is_answered_once_by_its_first_user() {
    let (mut connects, zero) = (with_codes(), Time::ZERO);
    let (grant, code) = begun_by_code(&mut connects);
    let ask = |connects: &mut Connects, grant, at| connects.redeem(&shown(grant, VERIFIER), DEVICE, at);
    assert_eq!(ask(&mut connects, grant, zero), Redeemed::Pending(INTERVAL));
    assert!(connects.asked(&Token(grant.into()), zero).is_none(), "the grant is no ticket");
    let other = if code == Code::read("BBBBBBBB").unwrap() { "CCCCCCCC" } else { "BBBBBBBB" };
    assert!(connects.typed(Code::read(other).unwrap(), ANN.user, zero).is_none());
    let first = connects.typed(code, ANN.user, zero).unwrap();
    assert!(connects.typed(code, BOB, zero).is_none(), "it was typed");
    let ticket = connects.typed(code, ANN.user, zero).unwrap();
    assert!(connects.asked(&first, zero).is_none() && connects.asked(&ticket, zero).is_some());
    // Another user's browser, with her ticket.
    assert!(
        connects.asked_of(&ticket, BOB, zero).is_none()
            && connects.asked_of(&ticket, ANN.user, zero).is_some()
    );
    assert_eq!(connects.answer(&ticket, BOB, Some(BOBS_VISIT), zero), None);
    assert_eq!(connects.redeem(&shown(*ticket.0, VERIFIER), DEVICE, zero), Redeemed::Void, "it is no grant");
    assert!(matches!(ask(&mut connects, grant, zero + INTERVAL), Redeemed::Pending(_)));
    assert_eq!(connects.answer(&ticket, ANN.user, Some(VISIT), zero), Some(Way::Client));
    assert_eq!(connects.answer(&ticket, ANN.user, None, zero), None, "it was answered");
    assert!(connects.typed(code, ANN.user, zero).is_none(), "a code is good once");
    assert_eq!(ask(&mut connects, grant, zero), Redeemed::Visit(VISIT));
    assert_eq!(ask(&mut connects, grant, zero), Redeemed::Void, "twice");
    assert_eq!((connects.logins.len(), connects.shares.taken()), (0, 0));
}

#[test]
fn a_code_is_good_in_time_and_its_grant_for_the_client_that_began() {
    let (mut connects, zero) = (with_codes(), Time::ZERO);
    let last = zero + (LIFETIME - Duration::from_nanos(1));
    let answered = |connects: &mut Connects, visit, at| {
        let (grant, code) = begun_by_code(connects);
        let ticket = connects.typed(code, ANN.user, zero).unwrap();
        (grant, connects.answer(&ticket, ANN.user, visit, at))
    };
    let ask = |connects: &mut Connects, grant, at| connects.redeem(&shown(grant, VERIFIER), DEVICE, at);
    // Typed, and confirmed, after its time.
    let (_, code) = begun_by_code(&mut connects);
    assert!(connects.typed(code, ANN.user, zero + LIFETIME).is_none());
    let (grant, way) = answered(&mut connects, Some(VISIT), zero + LIFETIME);
    assert_eq!((way, ask(&mut connects, grant, zero + LIFETIME)), (None, Redeemed::Void));
    let (grant, way) = answered(&mut connects, Some(VISIT), last);
    assert_eq!((way, ask(&mut connects, grant, last)), (Some(Way::Client), Redeemed::Visit(VISIT)));
    let (grant, _) = answered(&mut connects, Some(VISIT), zero);
    assert_eq!(ask(&mut connects, grant, zero + GRANT_LIFETIME), Redeemed::Void, "fetched too late");
    let (grant, _) = answered(&mut connects, None, zero);
    assert_eq!(ask(&mut connects, grant, zero), Redeemed::No);
    assert_eq!(ask(&mut connects, grant, zero), Redeemed::Void);
    // Another client that asks ends it, before an answer and after one.
    for (verifier, device) in [([8; 32], DEVICE), (VERIFIER, DeviceId([2; 16]))] {
        let (grant, _) = begun_by_code(&mut connects);
        assert_eq!(connects.redeem(&shown(grant, verifier), device, zero), Redeemed::Void);
        assert_eq!(ask(&mut connects, grant, zero), Redeemed::Void);
        let (grant, _) = answered(&mut connects, Some(VISIT), zero);
        assert_eq!(connects.redeem(&shown(grant, verifier), device, zero), Redeemed::Void);
        assert_eq!(ask(&mut connects, grant, zero), Redeemed::Void);
    }
    // One is left, whose time is not over.
    assert_eq!((connects.logins.len(), connects.shares.taken()), (1, 1));
}

#[test]
fn a_device_is_elsewhere_if_addresses_of_one_family_differ() {
    let is_elsewhere = |one: &str, other: &str| is_elsewhere(one.parse().unwrap(), other.parse().unwrap());
    assert!(is_elsewhere("192.0.2.1", "192.0.2.2") && is_elsewhere("2001:db8::1", "2001:db8:0:1::1"));
    assert!(!is_elsewhere("192.0.2.1", "::ffff:192.0.2.1") && !is_elsewhere("2001:db8::1", "2001:db8::2"));
    assert!(!is_elsewhere("192.0.2.1", "2001:db8::1"));
}

fn login() -> Login {
    Login {
        user: String::new(),
        password: Password::new(String::new()),
        code: None,
        certificate: None,
        source: [192, 0, 2, 1].into(),
        entrance: Entrance::Tunnel,
        device: DEVICE,
    }
}

#[tokio::test]
async fn a_device_is_approved_after_a_fresh_login_and_a_comparison() {
    let bench = Bench::new();
    let portal = &bench.portal;
    portal.switch(true);
    portal.serve_at("https://vpn.uni.example/");
    let begin = || match portal.begin_in_browser(short("192.0.2.1")) {
        BrowserLoginReply::At(at) => at,
        BrowserLoginReply::Refused(refused) => panic!("{refused:?}"),
    };
    let ann = bench.browser("ann", [198, 51, 100, 7]).await;
    let gus = bench.browser("gus", [198, 51, 100, 8]).await;
    let type_code = |browser: &Browser, code: &str| {
        bench.ask(TypedCode { browser: browser.clone(), code: Text::cut(code) })
    };
    // Codes are off by default.
    let at = begin();
    assert!(at.code.is_none() && at.url.starts_with("https://vpn.uni.example/connect/"), "{at:?}");
    assert!(matches!(type_code(&ann, "WDJB-MJHT").await, CodeEnd::Off));
    portal.give_codes(true);
    let at = begin();
    let code = at.code.unwrap();
    assert_eq!((&*at.url, code.from.0), ("https://vpn.uni.example/code", [192, 0, 2, 1].into()));

    // A portal that was taken over knows the code, and no token.
    let stranger = Browser { token: Token([7; 32].into()), ..ann.clone() };
    assert!(matches!(type_code(&stranger, &code.code).await, CodeEnd::LogIn));
    assert!(matches!(type_code(&ann, "").await, CodeEnd::Form));
    let wrong = if code.code.starts_with('B') { "CCCC-CCCC" } else { "BBBB-BBBB" };
    assert!(matches!(type_code(&ann, wrong).await, CodeEnd::Wrong));
    let entry = bench.audit.newest().remove(0);
    assert_eq!((&*entry.event, &*entry.user, &*entry.source), ("code-wrong", "ann", "198.51.100.7"));
    let CodeEnd::Found(ticket) = type_code(&ann, &code.code.to_lowercase()).await else { panic!("it waits") };
    let question =
        |browser: &Browser| bench.ask(ConnectQuery { ticket: ticket.clone(), browser: browser.clone() });
    let asked = question(&ann).await;
    assert!(matches!(asked, ConnectPage::Ask { port: None, is_elsewhere: true, .. }), "{asked:?}");
    assert!(matches!(question(&gus).await, ConnectPage::Over), "it is another user's");
    assert!(matches!(question(&stranger).await, ConnectPage::LogIn));

    let grant = Grant { grant: code.grant, verifier: VERIFIER.into() };
    let answer = |browser: &Browser, compared| {
        bench.ask(AnswerToClient {
            ticket: ticket.clone(),
            browser: browser.clone(),
            allowed: true,
            compared,
        })
    };
    assert!(matches!(answer(&ann, false).await, ConnectEnd::NotCompared));
    assert!(matches!(answer(&gus, true).await, ConnectEnd::Over));
    assert!(matches!(answer(&stranger, true).await, ConnectEnd::LogIn));
    let LoginOutcome::Refused(pending) = portal.finish_in_browser(&grant, login()) else { panic!("let in") };
    assert_eq!(pending, Refusal::Pending.retry_after_s(Some(5)));
    assert!(matches!(answer(&ann, true).await, ConnectEnd::Kept));
    let LoginOutcome::Granted(user) = portal.finish_in_browser(&grant, login()) else { panic!("not let in") };
    assert_eq!(user.name, "ann");
    let events: Vec<_> = bench.audit.newest().into_iter().map(|entry| (entry.event, entry.detail)).collect();
    assert!(
        events.contains(&("device-allowed".to_owned(), "pc, by code, at 192.0.2.1".to_owned())),
        "{events:?}"
    );

    // A guesser, who then has the right one.
    let right = begin().code.unwrap();
    let wrong = if right.code.starts_with('B') { "CCCC-CCCC" } else { "BBBB-BBBB" };
    for _ in 0..10 {
        assert!(matches!(type_code(&gus, wrong).await, CodeEnd::Wrong));
    }
    assert!(matches!(type_code(&gus, &right.code).await, CodeEnd::Wait(60)));
    assert!(matches!(type_code(&ann, &right.code).await, CodeEnd::Found(_)), "others are not kept out");
}

#[tokio::test]
async fn a_grant_ends_with_the_visit_that_made_it() {
    let bench = Bench::new();
    let portal = &bench.portal;
    portal.switch(true);
    portal.serve_at("https://vpn.uni.example");
    let granted = async |browser: &Browser| {
        let BrowserLoginReply::At(at) = portal.begin_in_browser(begun("192.0.2.1")) else {
            panic!("refused")
        };
        let (_, ticket) = at.url.rsplit_once('/').unwrap();
        let ticket: [u8; 32] = URL_SAFE_NO_PAD.decode(ticket).unwrap().try_into().unwrap();
        let ticket = Token(ticket.into());
        let answer = AnswerToClient { ticket, browser: browser.clone(), allowed: true, compared: false };
        let ConnectEnd::To { url, .. } = bench.ask(answer).await else { panic!("not allowed") };
        shown(grant_in(&url), VERIFIER)
    };
    let is_let_in = |grant: &Grant| match portal.finish_in_browser(grant, login()) {
        LoginOutcome::Granted(user) => user.name == "ann",
        LoginOutcome::Refused(refused) => {
            assert_eq!(refused, Refusal::GrantVoid.into());
            false
        }
        other => panic!("{other:?}"),
    };
    let first = bench.browser("ann", [198, 51, 100, 7]).await;
    let other = bench.browser("ann", [198, 51, 100, 7]).await;
    let (kept, signed_out) = (granted(&first).await, granted(&other).await);
    bench.ask(LogOut(other)).await;
    assert!(!is_let_in(&signed_out) && is_let_in(&kept), "that of the visit that goes on");

    // Ended by the user in another browser.
    let other = bench.browser("ann", [198, 51, 100, 7]).await;
    let grant = granted(&other).await;
    bench.ask(EndVisit { browser: first.clone(), visit: None }).await;
    assert!(!is_let_in(&grant));
    // By the cookie's use in another network.
    let stolen = bench.browser("ann", [198, 51, 100, 7]).await;
    let grant = granted(&stolen).await;
    let elsewhere = Browser { address: [192, 0, 2, 9].into(), ..stolen };
    assert!(bench.ask(OverviewQuery(elsewhere)).await.is_none());
    assert!(!is_let_in(&grant));
    // By an administrator.
    let grant = granted(&first).await;
    portal.kicked(portal.visitors()[0].0);
    assert!(!is_let_in(&grant));
}
