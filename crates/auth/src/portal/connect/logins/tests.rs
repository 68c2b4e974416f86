//! Tickets, codes and grants: what each permits, and to whom.

use super::*;
use crate::portal::connect::short_code::INTERVAL;
use crate::portal::visits::tests::ANN;
use vpnd_proto::control::Text;

pub(in super::super) const VERIFIER: [u8; 32] = [7; 32];
pub(in super::super) const DEVICE: DeviceId = DeviceId([1; 16]);
/// A visit of [`ANN`]'s user.
const VISIT: VisitNumber = [5; 16];

fn logins() -> Logins {
    Logins { address: Some("https://vpn.uni.example".to_owned()), ..Logins::default() }
}

pub(in super::super) fn begun(address: &str) -> BrowserLogin {
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

fn ticket(logins: &mut Logins) -> Token {
    let (ticket, code) = logins.begin(begun("192.0.2.1"), Time::ZERO).unwrap();
    assert!(code.is_none());
    ticket
}

/// Where the browser is sent with this answer.
fn led(logins: &mut Logins, ticket: &Token, visit: Option<VisitNumber>, now: Time) -> Option<(Url, u16)> {
    match logins.answer(ticket, ANN.user, visit, now)? {
        Way::Browser(url, port) => Some((url, port)),
        Way::Client => panic!("it has no code"),
    }
}

/// A login that a person has agreed to at the beginning of time.
fn granted(logins: &mut Logins) -> [u8; 32] {
    let ticket = ticket(logins);
    let (url, port) = led(logins, &ticket, Some(VISIT), Time::ZERO).unwrap();
    assert_eq!(port, 40_000);
    grant_in(&url)
}

pub(in super::super) fn grant_in(url: &Url) -> [u8; 32] {
    let query = url.strip_prefix("http://127.0.0.1:40000/?").unwrap();
    let pairs: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).collect();
    assert_eq!((pairs.len(), &*pairs["iss"]), (3, "https://vpn.uni.example"));
    assert_eq!(pairs["state"], URL_SAFE_NO_PAD.encode([3; 32]));
    URL_SAFE_NO_PAD.decode(&*pairs["code"]).unwrap().try_into().unwrap()
}

pub(in super::super) fn shown(grant: [u8; 32], verifier: [u8; 32]) -> Grant {
    Grant { grant: grant.into(), verifier: verifier.into() }
}

#[test]
fn a_grant_is_good_once_in_time_for_the_client_that_began() {
    let (mut logins, zero) = (logins(), Time::ZERO);
    let grant = granted(&mut logins);
    assert_eq!(logins.redeem(&shown(grant, VERIFIER), DEVICE, zero), Redeemed::Visit(VISIT));
    assert_eq!(logins.redeem(&shown(grant, VERIFIER), DEVICE, zero), Redeemed::Void, "twice");
    let grant = granted(&mut logins);
    let other = logins.redeem(&shown(grant, [8; 32]), DEVICE, zero);
    assert_eq!(other, Redeemed::Void, "another verifier");
    assert_eq!(logins.redeem(&shown(grant, VERIFIER), DEVICE, zero), Redeemed::Void, "it was tried");
    let grant = granted(&mut logins);
    let other = logins.redeem(&shown(grant, VERIFIER), DeviceId([2; 16]), zero);
    assert_eq!(other, Redeemed::Void, "another device");
    let grant = granted(&mut logins);
    let late = logins.redeem(&shown(grant, VERIFIER), DEVICE, zero + GRANT_LIFETIME);
    assert_eq!(late, Redeemed::Void, "too late");
    let grant = granted(&mut logins);
    let last = zero + (GRANT_LIFETIME - Duration::from_nanos(1));
    assert_eq!(logins.redeem(&shown(grant, VERIFIER), DEVICE, last), Redeemed::Visit(VISIT));
    assert_eq!((logins.started.len(), logins.shares.taken()), (0, 0));
}

#[test]
fn a_ticket_is_answered_once_in_time_and_is_no_grant() {
    let (mut logins, zero) = (logins(), Time::ZERO);
    let first = ticket(&mut logins);
    assert_eq!(logins.redeem(&shown(*first.0, VERIFIER), DEVICE, zero), Redeemed::Void);
    assert!(logins.asked(&first, zero).is_some(), "it is not used up");
    let (url, _) = led(&mut logins, &first, None, zero).unwrap();
    assert!(url.contains("error=access_denied") && !url.contains("code="), "{url:?}");
    assert!(led(&mut logins, &first, Some(VISIT), zero).is_none(), "it was refused");
    let second = ticket(&mut logins);
    assert!(led(&mut logins, &second, Some(VISIT), zero + LIFETIME).is_none(), "too late");
    let grant = granted(&mut logins);
    assert!(logins.asked(&Token(grant.into()), zero).is_none(), "a grant is no ticket");
    assert!(led(&mut logins, &Token(grant.into()), Some(VISIT), zero).is_none());
    assert_eq!(logins.redeem(&shown(grant, VERIFIER), DEVICE, zero), Redeemed::Visit(VISIT));
}

#[test]
fn a_login_that_is_undone_leaves_its_place() {
    let (mut logins, zero) = (logins(), Time::ZERO);
    let undone = ticket(&mut logins);
    logins.abandon(&undone);
    assert!(logins.asked(&undone, zero).is_none());
    assert_eq!((logins.started.len(), logins.shares.taken()), (0, 0));
}

#[test]
fn waiting_logins_of_a_crowd_do_not_block_other_networks() {
    let mut logins = logins();
    for _ in 0..2 * LIMIT {
        let _ = logins.begin(begun("192.0.2.1"), Time::ZERO);
    }
    assert!(logins.started.len() <= LIMIT && logins.started.len() == logins.shares.taken());
    assert!(logins.begin(begun("198.51.100.1"), Time::ZERO).is_some());
    assert!(logins.begin(begun("198.51.100.1"), Time::ZERO + LIFETIME).is_some());
    assert_eq!((logins.started.len(), logins.shares.taken()), (1, 1));
}

#[test]
fn waiting_short_codes_of_a_crowd_do_not_block_other_networks() {
    let mut logins = with_codes();
    let mut codes = std::collections::HashSet::new();
    for _ in 0..2 * LIMIT {
        let begun = logins.begin(short("192.0.2.1"), Time::ZERO);
        codes.extend(begun.and_then(|(_, code)| code).map(Code::shown));
    }
    let taken = logins.shares.taken();
    assert!(taken <= LIMIT && logins.started.len() == taken && codes.len() >= taken);
    let (_, code) = logins.begin(short("198.51.100.1"), Time::ZERO).unwrap();
    assert!(logins.typed(code.unwrap(), ANN.user, Time::ZERO).is_some());
}

/// Returns [`logins`] that give short codes.
fn with_codes() -> Logins {
    Logins { gives_codes: true, ..logins() }
}

pub(in super::super) fn short(address: &str) -> BrowserLogin {
    BrowserLogin { short_code: true, ..begun(address) }
}

/// A login that has begun, by its grant and its code.
fn begun_by_code(logins: &mut Logins) -> ([u8; 32], Code) {
    let (grant, code) = logins.begin(short("192.0.2.1"), Time::ZERO).unwrap();
    (grant.0.into(), code.unwrap())
}

const BOB: UserId = UserId([9; 16]);
const BOBS_VISIT: VisitNumber = [6; 16];

#[test]
fn a_short_code_is_answered_once_by_its_first_user() {
    let (mut logins, zero) = (with_codes(), Time::ZERO);
    let (grant, code) = begun_by_code(&mut logins);
    let ask = |logins: &mut Logins, grant, at| logins.redeem(&shown(grant, VERIFIER), DEVICE, at);
    assert_eq!(ask(&mut logins, grant, zero), Redeemed::Pending(INTERVAL));
    assert!(logins.asked(&Token(grant.into()), zero).is_none(), "the grant is no ticket");
    let other = if code == Code::read("BBBBBBBB").unwrap() { "CCCCCCCC" } else { "BBBBBBBB" };
    assert!(logins.typed(Code::read(other).unwrap(), ANN.user, zero).is_none());
    let first = logins.typed(code, ANN.user, zero).unwrap();
    assert!(logins.typed(code, BOB, zero).is_none(), "it was typed");
    let ticket = logins.typed(code, ANN.user, zero).unwrap();
    assert!(logins.asked(&first, zero).is_none() && logins.asked(&ticket, zero).is_some());
    // Another user's browser, with her ticket.
    assert!(
        logins.asked_of(&ticket, BOB, zero).is_none() && logins.asked_of(&ticket, ANN.user, zero).is_some()
    );
    assert_eq!(logins.answer(&ticket, BOB, Some(BOBS_VISIT), zero), None);
    assert_eq!(logins.redeem(&shown(*ticket.0, VERIFIER), DEVICE, zero), Redeemed::Void, "it is no grant");
    assert!(matches!(ask(&mut logins, grant, zero + INTERVAL), Redeemed::Pending(_)));
    assert_eq!(logins.answer(&ticket, ANN.user, Some(VISIT), zero), Some(Way::Client));
    assert_eq!(logins.answer(&ticket, ANN.user, None, zero), None, "it was answered");
    assert!(logins.typed(code, ANN.user, zero).is_none(), "a code is good once");
    assert_eq!(ask(&mut logins, grant, zero), Redeemed::Visit(VISIT));
    assert_eq!(ask(&mut logins, grant, zero), Redeemed::Void, "twice");
    assert_eq!((logins.started.len(), logins.shares.taken()), (0, 0));
}

#[test]
fn a_code_is_good_in_time_and_its_grant_for_the_client_that_began() {
    let (mut logins, zero) = (with_codes(), Time::ZERO);
    let last = zero + (LIFETIME - Duration::from_nanos(1));
    let answered = |logins: &mut Logins, visit, at| {
        let (grant, code) = begun_by_code(logins);
        let ticket = logins.typed(code, ANN.user, zero).unwrap();
        (grant, logins.answer(&ticket, ANN.user, visit, at))
    };
    let ask = |logins: &mut Logins, grant, at| logins.redeem(&shown(grant, VERIFIER), DEVICE, at);
    // Typed, and confirmed, after its time.
    let (_, code) = begun_by_code(&mut logins);
    assert!(logins.typed(code, ANN.user, zero + LIFETIME).is_none());
    let (grant, way) = answered(&mut logins, Some(VISIT), zero + LIFETIME);
    assert_eq!((way, ask(&mut logins, grant, zero + LIFETIME)), (None, Redeemed::Void));
    let (grant, way) = answered(&mut logins, Some(VISIT), last);
    assert_eq!((way, ask(&mut logins, grant, last)), (Some(Way::Client), Redeemed::Visit(VISIT)));
    let (grant, _) = answered(&mut logins, Some(VISIT), zero);
    assert_eq!(ask(&mut logins, grant, zero + GRANT_LIFETIME), Redeemed::Void, "fetched too late");
    let (grant, _) = answered(&mut logins, None, zero);
    assert_eq!(ask(&mut logins, grant, zero), Redeemed::No);
    assert_eq!(ask(&mut logins, grant, zero), Redeemed::Void);
    // Another client that asks ends it, before an answer and after one.
    for (verifier, device) in [([8; 32], DEVICE), (VERIFIER, DeviceId([2; 16]))] {
        let (grant, _) = begun_by_code(&mut logins);
        assert_eq!(logins.redeem(&shown(grant, verifier), device, zero), Redeemed::Void);
        assert_eq!(ask(&mut logins, grant, zero), Redeemed::Void);
        let (grant, _) = answered(&mut logins, Some(VISIT), zero);
        assert_eq!(logins.redeem(&shown(grant, verifier), device, zero), Redeemed::Void);
        assert_eq!(ask(&mut logins, grant, zero), Redeemed::Void);
    }
    // One is left, whose time is not over.
    assert_eq!((logins.started.len(), logins.shares.taken()), (1, 1));
}
