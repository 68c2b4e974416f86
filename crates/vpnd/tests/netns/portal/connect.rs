//! Behaviour: `vpnd connect` has its user log in in a browser: at a real OpenID provider, or with
//! password and second factor on the gateway's own pages.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;
use std::time::Instant;

use super::at_provider::with_provider;
use super::{Browser, SOON, configure, serves};
use crate::client::command;
use crate::client_service::{ANN, Machine};
use crate::gateway::{Gateway, Login, VPND, edit_toml, must, write_secret};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::openid::{Page, Traveller};
use crate::process::{self, Process};
use crate::traffic::ping_until;
use crate::wireguard::{Stock, add_device, before_the_wall, program, stays_out};
use vpnd_store::sqlite::Sqlite;
use vpnd_store::totp;

/// `vpnd connect` with a profile that says nothing of a user but that a browser logs in.
pub(super) fn in_browser(lab: &Lab, number: usize, gateway: &Gateway<'_>) -> Command {
    let profile = lab.path(format!("browser-{number}.toml"));
    if !profile.exists() {
        let path = profile.to_str().unwrap();
        must(process::run(gateway.user(&["profile", "--browser", "--profile-out", path])));
    }
    let mut command = process::command(lab, &lab.clients[number - 1], VPND);
    command.args(["connect", "--verbose"]).arg(profile).args(["--tun", crate::client::TUN]);
    for (option, name) in [("--state-dir", "state"), ("--journal-dir", "journal")] {
        command.arg(option).arg(lab.path(format!("{name}{number}")));
    }
    command
}

/// The page that the client names.
pub(super) fn page_of(client: &mut Process) -> String {
    eventually("the client names a page", SOON, || {
        client.assert_running();
        let output = client.output();
        let (_, rest) = output.split_once("log in in a browser on this machine: ")?;
        let (url, _) = rest.split_once('\n')?;
        assert!(url.starts_with(&format!("https://{GATEWAY_V4}/connect/")), "{output}");
        Some(url.to_owned())
    })
}

fn form_of(page: &str) -> String {
    let rest = page.split("name=\"form\" value=\"").nth(1).unwrap_or_else(|| panic!("no form: {page}"));
    rest.split('"').next().unwrap().to_owned()
}

pub(super) fn answer(browser: &Traveller<'_>, page: &Page, answer: &str) -> Page {
    let form = form_of(&page.body);
    let address = format!("https://{GATEWAY_V4}/connect");
    browser.request(&address, &[("form", &form), ("answer", answer)], true)
}

#[test]
fn a_client_logs_in_at_the_provider_and_needs_no_browser_later() {
    let Some(lab) = Lab::new(2) else { return };
    let Some((_provider, mut gateway)) = with_provider(&lab, "") else { return };
    let portal = gateway.file("portal.pem");
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));
    let began = Instant::now();
    let mut client = Process::start(&lab, "client1", in_browser(&lab, 1, &gateway));
    let ann = Traveller::new(&lab, &lab.clients[0], &portal);
    let page = ann.get(&page_of(&mut client));
    assert!(page.address.ends_with("/login") && page.body.contains("/oidc/start/uni"), "{page:?}");
    // No user has logged in, so nothing is asked, and no answer counts.
    assert_eq!(answer(&ann, &page, "yes").status, 403);
    let page = ann.log_in("ann");
    assert!(page.address.ends_with("/connect") && page.body.contains("ann@uni.example"), "{page:?}");
    assert!(page.body.contains("198.18.1.2"), "from where the device asks: {page:?}");
    let forged = [("form", "0"), ("answer", "yes")];
    assert_eq!(ann.request(&format!("https://{GATEWAY_V4}/connect"), &forged, true).status, 403);
    // The answer is about the client that was shown, whichever link was opened since.
    ann.get(&format!("https://{GATEWAY_V4}/connect/{}", "A".repeat(43)));
    assert_eq!(answer(&ann, &page, "yes").status, 403);
    let page = ann.get(&page_of(&mut client));
    let back = answer(&ann, &page, "yes");
    assert!(
        back.address.starts_with("http://127.0.0.1:") && back.body.contains("You are logged in"),
        "{back:?}"
    );
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
    eprintln!("from vpnd connect to the first ping, with provider and browser: {:?}", began.elapsed());
    assert_eq!(gateway.sessions()[0]["user"], "ann@uni.example");
    assert_eq!(crate::audit::recorded(&gateway, "device-allowed")[0]["user"], "ann@uni.example");
    let again = ann.get(&page_of(&mut client));
    assert!(again.status == 410 && again.body.contains("has ended"), "a link is good once: {again:?}");

    // The gateway comes back with the session, and no user has to log in.
    gateway.kill();
    gateway.start();
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
    assert_eq!(client.output().matches("/connect/").count(), 1, "{}", client.output());

    // A person who is no user here is refused before anything is asked; a "no" ends the client.
    let mut other = Process::start(&lab, "client2", in_browser(&lab, 2, &gateway));
    let bob = Traveller::new(&lab, &lab.clients[1], &portal);
    bob.get(&page_of(&mut other));
    let page = bob.log_in("bob");
    assert!(page.status == 403 && page.body.contains("has no access to the VPN"), "{page:?}");
    let page = bob.get(&page_of(&mut other));
    assert!(page.address.ends_with("/login"), "{page:?}");
    let eve = Traveller::new(&lab, &lab.clients[1], &portal);
    eve.get(&page_of(&mut other));
    let page = eve.log_in("ann");
    let back = answer(&eve, &page, "no");
    assert!(back.body.contains("was refused"), "{back:?}");
    let status = other.wait(SOON);
    assert!(!status.success() && other.output().contains("refused in the browser"), "{}", other.output());
    assert_eq!(gateway.sessions().len(), 1);
}

#[test]
fn a_logout_at_the_provider_ends_the_sessions_here() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(3) else { return };
    let Some((mut provider, mut gateway)) = with_provider(&lab, "") else { return };
    // It has to trust the pages to which it reports logouts.
    std::fs::copy(gateway.file("portal.pem"), lab.path("trusted-portal.pem")).unwrap();
    provider.stop();
    provider.restart();
    gateway.terminate();
    gateway.configure("wireguard.enabled", true);
    gateway.start();
    let local = Browser::new(&lab, &lab.clients[1], &gateway);
    serves(&local);
    let mut client = Process::start(&lab, "client1", in_browser(&lab, 1, &gateway));
    let ann = Traveller::new(&lab, &lab.clients[0], &gateway.file("portal.pem"));
    ann.get(&page_of(&mut client));
    answer(&ann, &ann.log_in("ann"), "yes");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
    let phone = Stock::start(&lab, 3, &program, &add_device(&gateway, "ann@uni.example"));
    ping_until(phone.place, CAMPUS_V4.into(), SOON);

    // Tokens that anyone can send end nothing.
    for token in ["", "x", "e30.e30.AA"] {
        assert_eq!(local.post("/oidc/logout/uni", &[("logout_token", token)]).status, 400, "{token}");
    }
    assert_eq!(local.post("/oidc/logout/other", &[("logout_token", "x")]).status, 404);
    assert!(ann.overview().is_some() && before_the_wall(&gateway) == 2);

    let since = ann.log_out_at_provider();
    eventually("her sessions are over", SOON, || (before_the_wall(&gateway) == 0).then_some(()));
    eprintln!(
        "from the logout at the provider to the end of the sessions of client and phone: {:?}",
        since.elapsed()
    );
    let status = client.wait(SOON);
    let log = client.output();
    assert!(!status.success() && log.contains("the server of this account has ended the session"), "{log}");
    assert!(ann.overview().is_none(), "and her visit, too");
    stays_out(&gateway, &phone);
    assert_eq!(crate::audit::recorded(&gateway, "logged-out")[0]["user"], "ann@uni.example");

    // A provider that names the browser's session there and no user.
    let ann = Traveller::new(&lab, &lab.clients[0], &gateway.file("portal.pem"));
    assert_eq!(ann.log_in("ann").status, 200);
    provider.mode("session");
    ann.log_out_at_provider();
    eventually("her visit is over", SOON, || ann.overview().is_none().then_some(()));
    assert_eq!(crate::audit::recorded(&gateway, "logged-out").len(), 2);
}

#[test]
fn a_client_whose_user_a_provider_knows_is_sent_to_the_browser_by_the_gateway() {
    let Some(lab) = Lab::new(2) else { return };
    let Some((_provider, gateway)) = with_provider(&lab, "") else { return };
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));
    let profile = lab.path("ann.toml");
    must(process::run(gateway.user(&["profile", "--profile-out", profile.to_str().unwrap()])));
    let credentials = lab.path("ann.password");
    write_secret(&credentials, "whatever");
    let login = Login { profile, credentials };
    let started = command(&lab, 1, &login, &["--login", "ann@uni.example"]);
    let mut client = Process::start(&lab, "client1", started);
    let ann = Traveller::new(&lab, &lab.clients[0], &gateway.file("portal.pem"));
    ann.get(&page_of(&mut client));
    answer(&ann, &ann.log_in("ann"), "yes");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);

    // Another user of the machine sees where a client waits, and answers there.
    let started = command(&lab, 2, &login, &["--login", "zoe@uni.example"]);
    let mut zoe = Process::start(&lab, "client2", started);
    let ann = Traveller::new(&lab, &lab.clients[1], &gateway.file("portal.pem"));
    ann.get(&page_of(&mut zoe));
    answer(&ann, &ann.log_in("ann"), "yes");
    eventually("the login counts for nothing", SOON, || zoe.output().contains("refused").then_some(()));
    assert_eq!(gateway.sessions().len(), 1);
}

#[test]
fn a_user_without_root_logs_in_in_a_browser() {
    let Some(lab) = Lab::new(1) else { return };
    let Some((_provider, gateway)) = with_provider(&lab, "") else { return };
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));
    let profile = lab.path("browser.toml");
    must(process::run(gateway.user(&["profile", "--browser", "--profile-out", profile.to_str().unwrap()])));
    let credentials = lab.path("none");
    let machine = Machine::new(&lab, &Login { profile, credentials });
    let mut up = Process::start(&lab, "up", machine.command(ANN, &["up"]));
    let ann = Traveller::new(&lab, &lab.clients[0], &gateway.file("portal.pem"));
    ann.get(&page_of(&mut up));
    answer(&ann, &ann.log_in("ann"), "yes");
    assert!(up.wait(SOON).success(), "{}", up.output());
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
    assert_eq!(gateway.sessions()[0]["user"], "ann@uni.example");
    must(machine.run(ANN, &["down"]));
}

#[test]
fn a_local_user_logs_in_with_a_second_factor_that_the_profile_requires() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    for user in ["ann", "bob"] {
        gateway.add_user(user);
    }
    must(process::run(gateway.user(&["modify", "ann", "--totp"])));
    configure(&gateway);
    edit_toml(&gateway.config(), |table| {
        let profiles: toml::Table = "[[profile]]\nname = 'all'\nrequire = ['otp']\n".parse().unwrap();
        table.extend(profiles);
    });
    gateway.start();
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));
    // Without an address of the pages a client can't be sent there.
    let mut client = Process::start(&lab, "client1", in_browser(&lab, 1, &gateway));
    let status = client.wait(SOON);
    assert!(
        !status.success() && client.output().contains("has no web page for logins"),
        "{}",
        client.output()
    );
    gateway.terminate();
    gateway.configure("portal.url", format!("https://{GATEWAY_V4}"));
    gateway.start();

    let browser = Browser::new(&lab, &lab.clients[0], &gateway);
    serves(&browser);
    let mut client = Process::start(&lab, "client1", in_browser(&lab, 1, &gateway));
    let url = page_of(&mut client);
    let path = url.strip_prefix(&format!("https://{GATEWAY_V4}")).unwrap();
    assert!(browser.get(path).head.contains("location: /connect"));
    assert!(browser.get("/connect").head.contains("location: /login"));
    let refused = browser.log_in("bob", "bob's password");
    assert!(!refused.head.contains("/connect"), "he lacks the factor: {refused:?}");
    let asked = browser.log_in("ann", "ann's password");
    assert_eq!(browser.get("/connect").status, 303, "the password alone is no login");
    let users = Sqlite::inspect(&gateway.file("state").join("vpnd.db")).unwrap();
    let secret = users.into_iter().find(|user| user.name == "ann").and_then(|user| user.totp).unwrap();
    let code = totp::code_at(&secret, std::time::UNIX_EPOCH.elapsed().unwrap().as_secs());
    let answered = browser.post("/login/answer", &[("form", &asked.field("form")), ("answer", &code)]);
    assert!(answered.status == 303 && answered.head.contains("location: /connect"), "{answered:?}");
    let page = browser.get("/connect");
    let policy = "form-action 'self' http://127.0.0.1:";
    assert!(page.head.contains(policy) && page.body.contains("ann (local)"), "{page:?}");
    let form = page.field("form");
    let foreign = ["--header", "Sec-Fetch-Site: cross-site"];
    let fields = [("form", form.as_str()), ("answer", "yes")];
    assert_eq!(browser.post_with("/connect", &fields, &foreign).status, 403);
    let back = browser.post("/connect", &fields);
    let (_, to) = back.head.split_once("location: ").unwrap();
    assert!(back.status == 303 && to.starts_with("http://127.0.0.1:"), "{back:?}");
    // Lower case is another grant; the client goes on waiting for its own state.
    assert!(browser.post("/connect", &fields).status == 403, "the ticket is used");
    let mut grant = process::command(&lab, &lab.clients[0], "curl");
    grant.args(["--silent", "--max-time", "10"]).arg(to.lines().next().unwrap().trim());
    let nothing = process::text(&process::run(grant));
    assert!(nothing.contains("There is nothing here"), "{nothing}");

    client.signal(rustix::process::Signal::INT);
    client.wait(SOON);
    let mut client = Process::start(&lab, "client1", in_browser(&lab, 1, &gateway));
    let url = page_of(&mut client);
    browser.get(url.strip_prefix(&format!("https://{GATEWAY_V4}")).unwrap());
    let form = browser.get("/connect").field("form");
    let mut yes = browser.curl("/connect");
    yes.args(["--location", "--data-urlencode", "answer=yes", "--data-urlencode"])
        .arg(format!("form={form}"));
    let back = process::text(&process::run(yes));
    assert!(back.contains("You are logged in"), "the visit of just now is enough: {back}");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
    assert_eq!(gateway.sessions()[0]["user"], "ann");
    must(gateway.ask(&["kick", "ann"]));
    assert!(!client.wait(SOON).success(), "{}", client.output());
    another_address_waits_for_a_start(&lab, &gateway);
}

/// After a reload the pages are where they were.
fn another_address_waits_for_a_start(lab: &Lab, gateway: &Gateway<'_>) {
    gateway.configure("portal.url", "https://vpn.uni.example");
    let said = process::text(&must(gateway.ask(&["reload"])));
    assert!(said.contains("'url' in [portal]"), "{said}");
    page_of(&mut Process::start(lab, "client1", in_browser(lab, 1, gateway)));
}
