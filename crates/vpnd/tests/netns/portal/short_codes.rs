//! Behaviour: a client on a machine without a screen shows a short code, which its user types on
//! the pages from another machine; other users, guessers and forgers get no device connected.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::connect::{in_browser, page_of};
use super::taken_over::{UNKNOWN, browser, reply, request};
use super::{Browser, SOON, configure, portal_of, serves};
use crate::client_service::{ANN, Machine};
use crate::gateway::{Gateway, Login, must};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::process::{self, Process};
use crate::taken_over::{TakenOver, channel_to_auth, stop};
use crate::traffic::ping_until;

// Numbers of requests in `crates/ipc/src/gateway/portal.rs`.
const ANSWER_TO_CLIENT: u32 = 33;
const TYPE_CODE: u32 = 35;

/// A gateway whose pages take codes, with these users.
fn with_codes<'l>(lab: &'l Lab, users: &[&str]) -> Gateway<'l> {
    let mut gateway = Gateway::init(lab);
    for user in users {
        gateway.add_user(user);
    }
    configure(&gateway);
    gateway.configure("portal.url", format!("https://{GATEWAY_V4}"));
    gateway.configure("portal.short_codes", true);
    gateway.start();
    gateway
}

/// The code that a client at this address shows.
pub(super) fn code_of(client: &mut Process, address: &str) -> String {
    eventually("the client shows a code", SOON, || {
        client.assert_running();
        let output = client.output();
        let (_, rest) = output.split_once(&format!("open https://{GATEWAY_V4}/code and type "))?;
        let (code, rest) = rest.split_once(" there")?;
        let (line, _) = rest.split_once('\n')?;
        assert!(code.len() == 9 && line.ends_with(&format!("at {address}")), "{output}");
        assert!(!output.contains("/connect/"), "no browser of this machine is meant: {output}");
        Some(code.to_owned())
    })
}

/// Types a code; the answer of the page.
fn type_code(browser: &Browser<'_>, code: &str) -> super::Answer {
    let form = browser.get("/code").field("form");
    browser.post("/code", &[("form", &form), ("code", code)])
}

fn pending(gateway: &Gateway<'_>) -> u64 {
    gateway.status()["counters"]["logins"]["pending"].as_u64().unwrap()
}

#[test]
fn a_client_without_a_screen_connects_by_a_code_that_is_typed_elsewhere() {
    let Some(lab) = Lab::new(2) else { return };
    let gateway = with_codes(&lab, &["ann", "bob"]);
    let [ann, bob] = [(); 2].map(|()| Browser::new(&lab, &lab.clients[1], &gateway));
    serves(&ann);
    let mut client = Process::start(&lab, "client1", in_browser(&lab, 1, &gateway));
    let code = code_of(&mut client, "198.18.1.2");

    // The form needs a login, and the login leads back to it.
    for (user, browser) in [("ann", &ann), ("bob", &bob)] {
        assert!(browser.get("/code").head.contains("location: /login"));
        let logged_in = browser.log_in(user, &format!("{user}'s password"));
        assert!(logged_in.status == 303 && logged_in.head.contains("location: /code"), "{logged_in:?}");
    }
    let wrong = type_code(&bob, "BBBB-BBBB");
    assert!(wrong.status == 403 && wrong.body.contains("No device waits with this code"), "{wrong:?}");
    assert_eq!(crate::audit::recorded(&gateway, "code-wrong")[0]["user"], "bob");
    let fields = [("form", ann.get("/code").field("form")), ("code", code.clone())];
    let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
    let foreign = ann.post_with("/code", &fields, &["--header", "Sec-Fetch-Site: cross-site"]);
    assert_eq!(foreign.status, 403, "another page has sent it: {foreign:?}");
    let typed = type_code(&ann, &code.to_lowercase().replace('-', " "));
    assert!(typed.status == 303 && typed.head.contains("location: /connect"), "{typed:?}");
    assert_eq!(type_code(&bob, &code).status, 403, "it was typed");

    // She sees which device asks, and that it is elsewhere, and has to say that she has compared.
    let page = ann.get("/connect");
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for part in ["198.18.1.2", &machine, "not in the network of this browser", "198.18.2.2", "ann (local)"] {
        assert!(page.body.contains(part), "{part}: {page:?}");
    }
    assert!(!page.head.contains("127.0.0.1"), "no form leads to this machine: {page:?}");
    let form = page.field("form");
    let hasty = ann.post("/connect", &[("form", &form), ("answer", "yes")]);
    assert!(hasty.status == 303 && hasty.head.contains("location: /connect"), "{hasty:?}");
    let before = pending(&gateway);
    eventually("the client asks again", SOON, || (pending(&gateway) > before).then_some(()));
    assert!(gateway.sessions().is_empty(), "it is not let in yet");
    let done = ann.post("/connect", &[("form", &form), ("answer", "yes"), ("compared", "yes")]);
    assert!(done.status == 200 && done.body.contains("Your device connects now"), "{done:?}");
    assert!(done.body.contains(">My sessions</a>"), "{done:?}");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
    assert_eq!(gateway.sessions()[0]["user"], "ann");
    let allowed = &crate::audit::recorded(&gateway, "device-allowed")[0];
    assert!(allowed["detail"].as_str().unwrap().ends_with(", by code, at 198.18.1.2"), "{allowed}");
    assert_eq!(type_code(&ann, &code).status, 403, "a code is good once");

    // A no ends the client.
    let mut other = Process::start(&lab, "client2", in_browser(&lab, 2, &gateway));
    let code = code_of(&mut other, "198.18.2.2");
    assert_eq!(type_code(&ann, &code).status, 303);
    let page = ann.get("/connect");
    assert!(!page.body.contains("not in the network of this browser"), "both are on one machine: {page:?}");
    let refused = ann.post("/connect", &[("form", &page.field("form")), ("answer", "no")]);
    assert!(refused.body.contains("The device is refused"), "{refused:?}");
    assert!(!other.wait(SOON).success());
    assert!(other.output().contains("the login was refused on the web page"), "{}", other.output());
    assert_eq!(gateway.sessions().len(), 1);

    // A guesser has to wait, with the right code, too.
    let limited = (0..12).map(|_| type_code(&bob, "BBBB-BBBB").status).find(|status| *status != 403);
    assert_eq!(limited, Some(429));
}

#[test]
fn without_short_codes_a_client_uses_the_local_browser() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = with_codes(&lab, &["ann"]);
    gateway.configure("portal.short_codes", false);
    must(gateway.ask(&["reload"]));
    let ann = Browser::new(&lab, &lab.clients[0], &gateway);
    serves(&ann);
    ann.logged_in("ann");
    let off = ann.get("/code");
    assert!(off.status == 404 && off.body.contains("do not connect by a code here"), "{off:?}");
    let mut client = Process::start(&lab, "client1", in_browser(&lab, 1, &gateway));
    let url = page_of(&mut client);
    eventually("it says what to do", SOON, || {
        let output = client.output();
        (output.contains("gives no short codes: run 'ssh -L ") && output.contains("'short_codes'"))
            .then_some(())
    });
    ann.get(url.strip_prefix(&format!("https://{GATEWAY_V4}")).unwrap());
    let form = ann.get("/connect").field("form");
    let mut yes = ann.curl("/connect");
    yes.args(["--location", "--data-urlencode", "answer=yes", "--data-urlencode"])
        .arg(format!("form={form}"));
    let back = process::text(&process::run(yes));
    assert!(back.contains("You are logged in"), "{back}");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
    // A machine with a screen needs no code.
    let mut with_screen = in_browser(&lab, 1, &gateway);
    client.signal(rustix::process::Signal::INT);
    client.wait(SOON);
    with_screen.env("DISPLAY", ":0");
    let mut client = Process::start(&lab, "client1", with_screen);
    page_of(&mut client);
    assert!(!client.output().contains("short codes"), "{}", client.output());
    gateway.terminate();
}

#[test]
fn a_user_without_root_connects_by_a_code() {
    let Some(lab) = Lab::new(2) else { return };
    let gateway = with_codes(&lab, &["ann"]);
    let ann = Browser::new(&lab, &lab.clients[1], &gateway);
    serves(&ann);
    let profile = lab.path("browser.toml");
    must(process::run(gateway.user(&["profile", "--browser", "--profile-out", profile.to_str().unwrap()])));
    let machine = Machine::new(&lab, &Login { profile, credentials: lab.path("none") });
    let mut up = Process::start(&lab, "up", machine.command(ANN, &["up"]));
    let code = code_of(&mut up, "198.18.1.2");
    ann.logged_in("ann");
    assert_eq!(type_code(&ann, &code).status, 303);
    let form = ann.get("/connect").field("form");
    ann.post("/connect", &[("form", &form), ("answer", "yes"), ("compared", "yes")]);
    assert!(up.wait(SOON).success(), "{}", up.output());
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
    must(machine.run(ANN, &["down"]));
}

#[test]
fn a_compromised_portal_approves_no_device_by_its_code() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = with_codes(&lab, &["ann"]);
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));
    let mut client = Process::start(&lab, "client1", in_browser(&lab, 1, &gateway));
    // They have typed it themselves, or read it on its way.
    let code = code_of(&mut client, "198.18.1.2");
    let seen = portal_of(&gateway);
    stop(seen.pid());
    let mut portal = TakenOver::of(seen.pid(), channel_to_auth(seen.pid(), gateway.process().id()));
    for (number, token) in [[0; 32], [0xFF; 32]].into_iter().enumerate() {
        let [typed, answered] = [1, 2].map(|n| 1_000 + 10 * number as u64 + n);
        portal.send(&request(typed, TYPE_CODE, |body| {
            body.array(2).unwrap();
            browser(body, token);
            body.str(&code).unwrap();
        }));
        assert_eq!(reply(&mut portal, typed)[..2], [0x82, 4], "no visit");
        portal.send(&request(answered, ANSWER_TO_CLIENT, |body| {
            body.array(4).unwrap().array(1).unwrap().bytes(&token).unwrap();
            browser(body, token);
            body.bool(true).unwrap().bool(true).unwrap();
        }));
        assert_eq!(reply(&mut portal, answered)[..2], [0x82, 1], "no visit");
    }
    let before = pending(&gateway);
    eventually("the client asks", SOON, || (pending(&gateway) > before).then_some(()));
    assert!(gateway.sessions().is_empty());
    portal.send(&request(9_999, UNKNOWN, |body| {
        body.array(0).unwrap();
    }));
    portal.let_go();
}
