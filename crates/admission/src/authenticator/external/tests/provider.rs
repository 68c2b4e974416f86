//! Users of OpenID providers: their refresh tokens, their devices, and what strangers can do to
//! them.

use super::*;

#[tokio::test]
async fn failed_guesses_do_not_block_logins_confirmed_by_a_provider() {
    let bench = Bench::new(&[
        ("ann's", accepted_as("ann@sso.example", "1", &["staff"])),
        ("bob's", accepted_as("bob@sso.example", "2", &["staff"])),
    ]);
    let log_in = async |code: &str| {
        bench.auth.log_in_at_provider(redeem(code), [192, 0, 2, 1].into(), DeviceId([1; 16]), NOW).await
    };
    // Bob has codes here, and came from elsewhere.
    let bob = ExternalUser {
        source: "uni".to_owned(),
        subject: "2".to_owned(),
        name: "bob@sso.example".to_owned(),
        groups: Vec::new(),
    };
    bench.store.refresh_external(&bob, NOW).unwrap();
    let totp = UserChange { totp: Some(Some(TotpSecret::new(vec![7; 20]))), ..UserChange::default() };
    bench.store.modify_user(&bob.name, &totp, NOW).unwrap();
    let stranger = |number: u32| {
        let source = std::net::IpAddr::from((number << 12).to_be_bytes());
        let login = Login { source, entrance: Entrance::Portal, ..login("", "") };
        bench.auth.logins.guesses.admit(&login, Person::named(&number.to_string()), false, NOW).unwrap()
    };
    assert_eq!((1..5_000).filter(|number| stranger(*number).is_ok()).count(), 1_600);
    assert!(matches!(log_in("ann's").await, LoginOutcome::Granted(_)));
    let LoginOutcome::Refused(refused) = log_in("bob's").await else { panic!("his code can be guessed") };
    assert_eq!(refused.refusal, Refusal::Throttled);
}

#[tokio::test]
async fn a_provider_login_keeps_by_which_session_its_user_may_be_logged_out() {
    use vpnd_store::ProviderSessions as _;
    let bench = Bench::new(&[
        ("ann's", accepted_as("ann@sso.example", "1", &["staff"])),
        ("bob's", accepted_as("bob@sso.example", "2", &["staff"])),
    ]);
    for code in ["ann's", "bob's"] {
        let address = "192.0.2.1".parse().unwrap();
        bench.auth.log_in_at_provider(redeem(code), address, DeviceId([1; 16]), NOW).await;
    }
    let users = |session: u8| {
        let users = bench.store.users_of_provider_session("uni", &[session; 32]).unwrap();
        users.into_iter().map(|user| user.name).collect::<Vec<_>>()
    };
    assert_eq!(users(b'a'), ["ann@sso.example"]);
    assert_eq!(users(b'b'), ["bob@sso.example"]);
    assert!(users(b'c').is_empty());
}

#[tokio::test]
async fn a_provider_is_asked_by_the_token_of_the_login_and_then_by_the_next_one() {
    use crate::authenticator::recheck::Outcome;
    let bench = Bench::new(&[
        ("ann's", accepted_as("ann@sso.example", "1", &["staff"])),
        ("first", accepted_as("ann@sso.example", "1", &["vpn"])),
        ("first+", accepted_as("ann@sso.example", "another", &["staff"])),
        ("first++", Err(Reason::cut("down"))),
        ("void", Ok(Verdict::Refused(SourceRefusal::UnknownUser))),
        ("held", Ok(Verdict::Refused(SourceRefusal::UnknownUser))),
    ]);
    let address = "192.0.2.1".parse().unwrap();
    bench.auth.log_in_at_provider(redeem("ann's"), address, DeviceId([1; 16]), NOW).await;
    let user = || bench.store.user("ann@sso.example").unwrap().unwrap();
    let seal = bench.auth.shown.tokens.seal();
    let token = || {
        let sealed = bench.store.refresh_token(user().id).unwrap()?;
        assert_eq!(seal.open(UserId([9; 16]), &sealed), None, "it is in clear, or anybody's");
        seal.open(user().id, &sealed).map(|token| token.to_string())
    };
    assert_eq!(token().as_deref(), Some("first"));
    let uni = bench.auth.sources.provider("uni").unwrap();
    let recheck = async || bench.auth.rechecks.recheck_user(&uni, &LiveUser::of(&user())).await;
    assert_eq!(recheck().await, Outcome::Confirmed);
    assert_eq!((token().as_deref(), &user().groups[..]), (Some("first+"), &["vpn".to_owned()][..]));
    assert_eq!(recheck().await, Outcome::Absent, "somebody else has her token");
    assert_eq!(token().as_deref(), Some("first++"), "the next one is kept in any case");
    assert_eq!(recheck().await, Outcome::NoAnswer);
    let keep = |text: &str| {
        bench.store.keep_refresh_token(user().id, Some(&seal.seal(user().id, text))).unwrap();
    };
    keep("void");
    assert_eq!(recheck().await, Outcome::Absent, "the provider lets her in no more");
    let clear = vpnd_store::RefreshToken::new("first".to_owned());
    bench.store.keep_refresh_token(user().id, Some(&clear)).unwrap();
    assert_eq!(recheck().await, Outcome::NoToken, "one that the gateway has not sealed is none");
    bench.store.keep_refresh_token(user().id, None).unwrap();
    assert_eq!(recheck().await, Outcome::NoToken, "without a token nobody can be asked");
    let asked = || bench.asked.lock().unwrap().iter().filter(|(_, token)| token == "held").count();
    assert!(bench.auth.shown.tokens.is_idle(), "nothing is left to be remembered");
    keep("held");
    let two = async { tokio::join!(recheck(), recheck()) };
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(asked(), 1, "the second one waits");
        bench.held.add_permits(2);
    };
    assert_eq!(tokio::join!(two, meanwhile).0, (Outcome::Absent, Outcome::Absent));
    assert_eq!(asked(), 2);
}

#[tokio::test]
async fn a_refresh_token_that_may_be_used_up_is_not_used_again() {
    use crate::authenticator::recheck::Outcome;
    let bench = Bench::new(&[("ann's", accepted_as("ann@sso.example", "1", &["staff"]))]);
    let address = "192.0.2.1".parse().unwrap();
    bench.auth.log_in_at_provider(redeem("ann's"), address, DeviceId([1; 16]), NOW).await;
    let user = bench.store.user("ann@sso.example").unwrap().unwrap();
    let uni = bench.auth.sources.provider("uni").unwrap();
    let recheck = async || bench.auth.rechecks.recheck_user(&uni, &LiveUser::of(&user)).await;
    let say = |reply: Reply| drop(bench.replies.lock().unwrap().insert("first".to_owned(), reply));
    let refused = || Ok(Verdict::Refused(SourceRefusal::UnknownUser));
    say(Err(Reason::cut("no answer in time")));
    assert_eq!(recheck().await, Outcome::NoAnswer);
    say(refused());
    assert_eq!(recheck().await, Outcome::NoToken);
    assert_eq!(recheck().await, Outcome::NoToken, "however often");
    // Another login has another one.
    let seal = bench.auth.shown.tokens.seal();
    bench.store.keep_refresh_token(user.id, Some(&seal.seal(user.id, "first"))).unwrap();
    assert_eq!(recheck().await, Outcome::Absent);
    assert!(bench.auth.shown.tokens.is_idle());
}

#[tokio::test]
async fn a_device_whose_user_has_to_log_in_at_the_provider_reaches_the_pages() {
    use crate::authenticator::device::DeviceOutcome;
    let bench = Bench::new(&[
        ("ann's", accepted_as("ann@sso.example", "1", &["staff"])),
        ("down", Err(Reason::cut("down"))),
        ("void", Ok(Verdict::Refused(SourceRefusal::UnknownUser))),
    ]);
    let address = "192.0.2.1".parse().unwrap();
    bench.auth.log_in_at_provider(redeem("ann's"), address, DeviceId([1; 16]), NOW).await;
    let user = bench.store.user("ann@sso.example").unwrap().unwrap();
    let (key, id) = ([7; 32], DeviceId([7; 16]));
    let device = NewWireGuardDevice {
        public_key: key,
        id,
        name: "phone".to_owned(),
        preshared: None,
        most: 64,
        addresses: vec![[10, 86, 0, 5].into()],
    };
    bench.store.add_wireguard_device(&user.name, &device, NOW).unwrap();
    let admit = async |has_pages| bench.auth.admit_device(key, address, has_pages, (NOW, NOW)).await;
    let seal = bench.auth.shown.tokens.seal();
    let keep = |text: &str| {
        bench.store.keep_refresh_token(user.id, Some(&seal.seal(user.id, text))).unwrap();
    };
    let is_walled = || bench.store.find_wireguard_device(&key, 0).unwrap().unwrap().device.walled_s.is_some();
    let asked = || bench.asked.lock().unwrap().len();
    keep("down");
    assert!(matches!(admit(true).await, DeviceOutcome::Refused(_)));
    for token in [Some("void"), None] {
        match token {
            Some(token) => keep(token),
            None => bench.store.keep_refresh_token(user.id, None).unwrap(),
        }
        assert!(matches!(admit(false).await, DeviceOutcome::Refused(_)), "there are no pages");
        assert!(!is_walled());
        assert!(matches!(admit(true).await, DeviceOutcome::ToPages(..)), "{token:?}");
        let before = asked();
        assert!(is_walled() && matches!(admit(true).await, DeviceOutcome::ToPages(..)));
        assert_eq!(asked(), before, "the provider is asked no more");
        assert!(bench.store.renew_wireguard_device(&user.name, id, NOW).unwrap());
    }
}
