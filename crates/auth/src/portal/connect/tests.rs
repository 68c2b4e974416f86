//! Logins by a browser and by a short code, as the portal and clients ask for them.

use super::logins::tests::{DEVICE, VERIFIER, begun, grant_in, short, shown};
use super::*;
use crate::portal::desk::tests::Bench;
use vpnd_admission::authenticator::Entrance;
use vpnd_ipc::gateway::portal::visits::EndVisit;
use vpnd_ipc::gateway::portal::{Browser, LogOut, OverviewQuery};
use vpnd_store::password::Password;

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

fn ticket_at(at: &LoginAt) -> Token {
    let (_, ticket) = at.url.rsplit_once('/').unwrap();
    let ticket: [u8; 32] = URL_SAFE_NO_PAD.decode(ticket).unwrap().try_into().unwrap();
    Token(ticket.into())
}

#[tokio::test]
async fn a_user_answers_at_a_pace_and_fills_no_audit_file() {
    let bench = Bench::new();
    let portal = &bench.portal;
    portal.switch(true);
    portal.serve_at("https://vpn.uni.example");
    let refuse = async |browser: &Browser| {
        let BrowserLoginReply::At(at) = portal.begin_in_browser(begun("192.0.2.1")) else {
            panic!("refused")
        };
        let (ticket, browser) = (ticket_at(&at), browser.clone());
        bench.ask(AnswerToClient { ticket, browser, allowed: false, compared: false }).await
    };
    let gus = bench.browser("gus", [198, 51, 100, 8]).await;
    for _ in 0..1_000 {
        let end = refuse(&gus).await;
        assert!(matches!(end, ConnectEnd::To { .. } | ConnectEnd::Wait(_)), "{end:?}");
    }
    let recorded = bench.audit.newest();
    let refusals = recorded.iter().filter(|entry| entry.event == "device-refused").count();
    // Slow machines let some time pass.
    assert!((ANSWERS as usize..ANSWERS as usize + 10).contains(&refusals), "{refusals}");
    assert!(matches!(refuse(&gus).await, ConnectEnd::Wait(20)));
    let ann = bench.browser("ann", [198, 51, 100, 7]).await;
    assert!(matches!(refuse(&ann).await, ConnectEnd::To { .. }), "others are not kept out");
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
        let ticket = ticket_at(&at);
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
