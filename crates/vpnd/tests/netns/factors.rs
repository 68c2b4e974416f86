//! Logins with a second factor at a RADIUS server: a real client at a terminal, a real FreeRADIUS
//! in the gateway's box.

use std::io::Write as _;
use std::process::{ChildStdin, Command};
use std::time::Duration;

use rustix::process::Signal;
use vpnd_proto::control::Code;

use crate::client::{self, Client};
use crate::freeradius::FreeRadius;
use crate::gateway::{Gateway, Login, edit_toml, must};
use crate::identity::{add_source, beside, login_of};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::portal::{Browser, configure, serves};
use crate::process::{self, Process};
use crate::theft::{Speaker, in_her_box};
use crate::traffic::ping_until;

const ADDRESS: &str = "127.0.0.1";
const TIMEOUT: Duration = Duration::from_secs(30);
const ASKS: &str = "The gateway asks: Code from your token: ";

/// A gateway that asks a FreeRADIUS, which listens.
fn start<'l>(lab: &'l Lab, rest: &str) -> Option<(Gateway<'l>, FreeRadius, Login)> {
    let mut gateway = Gateway::init(lab);
    gateway.install();
    let local = gateway.add_user("local");
    let radius = FreeRadius::start(ADDRESS, |program| beside(lab, program))?;
    add_source(&gateway, &radius.source(ADDRESS, rest));
    gateway.start();
    // It tries again by itself as long as the server does not listen yet.
    let ann = login_of(lab, &local, "ann@guests.example", "right");
    Client::connect(lab, 1, &ann).interrupt();
    Some((gateway, radius, local))
}

/// `vpnd connect` at a terminal.
pub(crate) fn at_terminal(lab: &Lab, number: usize, login: &Login) -> (Process, ChildStdin) {
    let words = client::arguments(lab, number, login);
    let words: Vec<String> =
        words.iter().map(|word| format!("'{}'", word.to_str().expect("a test's path"))).collect();
    let namespace = &lab.clients[number - 1];
    let mut command: Command = process::command(lab, namespace, "script");
    command.args(["-qefc", &words.join(" "), "/dev/null"]).env("SHELL", "/bin/sh");
    Process::start_at_terminal(lab, "terminal", command)
}

fn shows(process: &Process, text: &str) {
    eventually(&format!("the client shows {text:?}"), TIMEOUT, || {
        process.output().contains(text).then_some(())
    });
}

fn is_in(gateway: &Gateway<'_>, user: &str) {
    eventually(&format!("{user} is in"), TIMEOUT, || {
        gateway.sessions().iter().any(|session| session["user"] == user).then_some(())
    });
}

#[test]
fn a_challenge_is_answered_at_the_terminal_and_not_asked_again() {
    let Some(lab) = Lab::new(2) else { return };
    let Some((mut gateway, mut radius, local)) = start(&lab, "") else { return };
    let token = login_of(&lab, &local, "token@guests.example", "right");
    let (client, mut keyboard) = at_terminal(&lab, 1, &token);
    shows(&client, ASKS);
    keyboard.write_all(b"123456\n").expect("the terminal is there");
    is_in(&gateway, "token@guests.example");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), TIMEOUT);
    assert!(!client.output().contains("123456"), "a code is not shown:\n{}", client.output());

    // A choice is shown while it is typed, and leads to a code.
    let menu = login_of(&lab, &local, "menu@guests.example", "right");
    let (second, mut keys) = at_terminal(&lab, 2, &menu);
    shows(&second, "The gateway asks: 1 = token, 2 = SMS: ");
    keys.write_all(b"1\n").expect("the terminal is there");
    shows(&second, ASKS);
    keys.write_all(b"654321\n").expect("the terminal is there");
    shows(&second, "the login was refused");

    // Without the server, and with another gateway process, the session's token is all it takes.
    radius.kill();
    must(gateway.upgrade());
    ping_until(&lab.clients[0], CAMPUS_V4.into(), TIMEOUT);
    gateway.kill();
    gateway.start();
    is_in(&gateway, "token@guests.example");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), TIMEOUT);
    assert_eq!(client.output().matches(ASKS).count(), 1, "{}", client.output());
}

#[test]
fn a_client_without_challenges_gets_the_reason() {
    let Some(lab) = Lab::new(1) else { return };
    let Some((gateway, _radius, local)) = start(&lab, "") else { return };
    let token = login_of(&lab, &local, "token@guests.example", "right");
    let (status, output) = Client::refused(&lab, 1, &token, &[]);
    assert_eq!(status, 3, "{output}");
    assert!(output.contains("Code from your token:") && output.contains("in a terminal"), "{output}");
    // A client without the feature for challenges.
    in_her_box(&lab, async || {
        let speaker = Speaker::new(&token.profile, 1);
        let mut line = speaker.dial().await;
        let login = speaker.login_with(&line, "token@guests.example", "right");
        assert_eq!(line.ask(&login).await.err(), Some(Code::Credentials));
    });
    assert!(gateway.sessions().is_empty());
}

/// Logs in on the web pages: by a challenge, and by an approval that `radius` gives in the end.
fn on_the_pages(lab: &Lab, gateway: &Gateway<'_>, radius: &FreeRadius) {
    let browser = |number: usize| Browser::new(lab, &lab.clients[number], gateway);
    let answer = |browser: &Browser<'_>, form: &str, code: &str| {
        browser.post("/login/answer", &[("form", form), ("answer", code)]).status
    };
    configure(gateway);
    must(gateway.ask(&["reload"]));
    let token = browser(0);
    serves(&token);
    let asked = token.log_in("token@guests.example", "right");
    assert!(asked.status == 200 && asked.body.contains("Code from your token"), "{asked:?}");
    let form = asked.field("form");
    assert_eq!(answer(&browser(0), &form, "123456"), 403, "another browser");
    assert_eq!(answer(&token, &form, "123456"), 303);
    assert!(token.overview().is_some_and(|page| page.body.contains("token@guests.example")));
    let wrong = browser(0);
    let asked = wrong.log_in("token@guests.example", "right");
    assert_eq!(answer(&wrong, &asked.field("form"), "654321"), 403);
    assert_eq!(answer(&wrong, &asked.field("form"), "123456"), 503, "an answer counts once");

    radius.take_approval_back();
    let phone = browser(0);
    let asked = phone.log_in("phone@guests.example", "right");
    assert!(asked.status == 303 && asked.head.contains("location: /login/wait"), "{asked:?}");
    assert_eq!(phone.get("/login/wait").status, 200, "it waits");
    assert!(phone.overview().is_none());
    radius.approve();
    eventually("the login is approved", TIMEOUT, || (phone.get("/login/wait").status == 303).then_some(()));
    assert!(phone.overview().is_some_and(|page| page.body.contains("phone@guests.example")));
}

#[test]
fn a_pending_approval_delays_no_other_login() {
    let Some(lab) = Lab::new(2) else { return };
    let rest = "push = true\nmax_logins = 1\n";
    let Some((gateway, radius, local)) = start(&lab, rest) else { return };
    let phone = login_of(&lab, &local, "phone@guests.example", "right");
    let waiting = Process::start(&lab, "phone", client::command(&lab, 1, &phone, &[]));
    shows(&waiting, "approve the login on your phone");
    // Ctrl-C ends the wait.
    waiting.signal(Signal::INT);
    let mut waiting = waiting;
    assert!(waiting.wait(Duration::from_secs(10)).success(), "{}", waiting.output());

    let waiting = Process::start(&lab, "phone", client::command(&lab, 1, &phone, &[]));
    shows(&waiting, "approve the login on your phone");
    let ann = login_of(&lab, &local, "ann@guests.example", "right");
    let other = Client::connect(&lab, 2, &ann);
    ping_until(other.namespace(), CAMPUS_V4.into(), TIMEOUT);
    assert_eq!(gateway.sessions().len(), 1);
    radius.approve();
    is_in(&gateway, "phone@guests.example");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), TIMEOUT);
    drop(waiting);
    on_the_pages(&lab, &gateway, &radius);
}

/// Two sources of the same server, `guests` and `others`; in each one login may wait for a person.
fn of_two_sources<'l>(lab: &'l Lab, rest: &str) -> Option<(Gateway<'l>, FreeRadius, Login)> {
    let (gateway, radius, local) = start(lab, rest)?;
    edit_toml(&gateway.config(), |table| {
        let sources = table["source"].as_array_mut().expect("there is one");
        let mut other = sources[0].clone();
        let keys = other.as_table_mut().expect("a section");
        keys.insert("name".to_owned(), "others".into());
        keys.insert("realm".to_owned(), "others.example".into());
        sources.push(other);
    });
    must(gateway.upgrade());
    Some((gateway, radius, local))
}

#[test]
fn a_source_with_too_many_pending_approvals_refuses_more() {
    let Some(lab) = Lab::new(3) else { return };
    let Some((gateway, _radius, local)) = of_two_sources(&lab, "max_waiting = 1\n") else { return };
    let token = login_of(&lab, &local, "token@guests.example", "right");
    let (first, mut keyboard) = at_terminal(&lab, 1, &token);
    shows(&first, ASKS);
    let full = || gateway.status()["counters"]["logins"]["waiting_full"].as_u64().unwrap_or(0);
    assert_eq!(full(), 0);

    // The second waits for room, and reports that.
    let menu = login_of(&lab, &local, "menu@guests.example", "right");
    let (second, mut keys) = at_terminal(&lab, 2, &menu);
    shows(&second, "too many logins wait for their second factor");
    assert!(full() > 0);
    assert!(!second.output().contains("The gateway asks"), "{}", second.output());

    // A user who needs no room gets in, and so does one of another source who does.
    let ann = login_of(&lab, &local, "ann@guests.example", "right");
    Client::connect(&lab, 3, &ann).interrupt();
    let other = login_of(&lab, &local, "token@others.example", "right");
    let (third, mut others_keyboard) = at_terminal(&lab, 3, &other);
    shows(&third, ASKS);
    others_keyboard.write_all(b"123456\n").expect("the terminal is there");
    is_in(&gateway, "token@others.example");

    // An answer makes room.
    keyboard.write_all(b"123456\n").expect("the terminal is there");
    is_in(&gateway, "token@guests.example");
    eventually("the second is asked", Duration::from_secs(120), || {
        second.output().contains("1 = token, 2 = SMS").then_some(())
    });
    keys.write_all(b"1\n").expect("the terminal is there");
    shows(&second, ASKS);
    keys.write_all(b"123456\n").expect("the terminal is there");
    is_in(&gateway, "menu@guests.example");
}

#[test]
fn a_late_approval_counts_and_no_second_server_is_asked_meanwhile() {
    /// Longer than all servers together have for a login without approval.
    const LATE: Duration = Duration::from_secs(12);
    let Some(lab) = Lab::new(1) else { return };
    let Some((gateway, radius, local)) = start(&lab, "push = true\npush_timeout_s = 60\n") else { return };
    let Some(second) = FreeRadius::start(ADDRESS, |program| beside(&lab, program)) else { return };
    // Its person would be asked, too.
    let asked = second.path().join("asked");
    std::fs::write(second.path().join("phone"), format!("touch {}\n", asked.display()))
        .expect("there is room");
    edit_toml(&gateway.config(), |table| {
        let servers = table["source"][0].get_mut("servers").expect("there is one").as_array_mut();
        servers.expect("a list").push(format!("radius://{ADDRESS}:{}", second.port).into());
    });
    must(gateway.upgrade());
    let phone = login_of(&lab, &local, "phone@guests.example", "right");
    let waiting = Process::start(&lab, "phone", client::command(&lab, 1, &phone, &[]));
    shows(&waiting, "approve the login on your phone");
    std::thread::sleep(LATE);
    assert!(gateway.sessions().is_empty());
    assert!(!waiting.output().contains("try again"), "{}", waiting.output());
    radius.approve();
    is_in(&gateway, "phone@guests.example");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), TIMEOUT);
    assert!(!asked.exists(), "a second server has asked");
    assert_eq!(waiting.output().matches("approve the login").count(), 1, "{}", waiting.output());
}
