//! Behaviour: the portal's pages, as a browser gets them. Users log in as clients do, see and end
//! their own sessions and nobody else's; what others send in their name counts for nothing; and
//! whatever becomes of the portal, the tunnel goes on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod account;
mod api;
mod at_provider;
mod connect;
mod crowds;
mod desk;
mod devices;
mod floods;
mod invitations;
mod keyboard;
mod left;
mod login_age;
mod plain;
mod policies;
mod rate;
mod refreshed;
mod relays;
mod saml;
mod short_codes;
mod taken_over;
mod walled;

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use vpnd_store::sqlite::Sqlite;
use vpnd_store::totp;

use crate::client::Client;
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::namespace::Namespace;
use crate::privileges::Seen;
use crate::process;
use crate::traffic::ping_until;

const SOON: Duration = Duration::from_secs(60);

/// A certificate and its key.
fn pair() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec![GATEWAY_V4.to_string()]).unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// Gives the gateway a portal with its own certificate and key.
pub(crate) fn configure(gateway: &Gateway<'_>) {
    let (certificate, key) = pair();
    fs::write(gateway.file("portal.pem"), certificate).unwrap();
    crate::gateway::write_secret(&gateway.file("portal-key.pem"), &key);
    gateway.configure("portal.enabled", true);
    gateway.configure("portal.listen", "[::]:443");
    gateway.configure("portal.certificate", "portal.pem");
    gateway.configure("portal.key", "portal-key.pem");
    gateway.configure("portal.name", "VPN of <Uni>");
}

/// A gateway with web pages, and `ann`'s client, which is connected.
fn with_client(lab: &Lab) -> (Gateway<'_>, Client<'_>) {
    let mut gateway = Gateway::init(lab);
    let ann = gateway.add_user("ann");
    configure(&gateway);
    gateway.start();
    let client = Client::connect(lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    (gateway, client)
}

/// An answer: its status, its head and its body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// What the one form of a page of this browser holds besides what a person types.
    pub(crate) fn field(&self, name: &str) -> String {
        let start = self.body.split(&format!("name=\"{name}\" value=\"")).nth(1);
        let value = start.and_then(|rest| rest.split('"').next());
        value.unwrap_or_else(|| panic!("no field {name} in {}", self.body)).to_owned()
    }
}

/// curl with the cookies of one browser.
pub(crate) struct Browser<'l> {
    lab: &'l Lab,
    place: &'l Namespace,
    cookies: PathBuf,
    ca: PathBuf,
}

impl<'l> Browser<'l> {
    pub(crate) fn new(lab: &'l Lab, place: &'l Namespace, gateway: &Gateway<'_>) -> Self {
        let number = (0..).map(|n| lab.path(format!("cookies-{n}"))).find(|path| !path.exists());
        let cookies = number.unwrap();
        fs::write(&cookies, "").unwrap();
        Self { lab, place, cookies, ca: gateway.file("portal.pem") }
    }

    /// The same browser, elsewhere.
    fn moved(&self, place: &'l Namespace) -> Self {
        let other = self.lab.path(format!("{}-moved", self.cookies.file_name().unwrap().display()));
        fs::copy(&self.cookies, &other).unwrap();
        Self { lab: self.lab, place, cookies: other, ca: self.ca.clone() }
    }

    fn curl(&self, path: &str) -> Command {
        let mut command = process::command(self.lab, self.place, "curl");
        command.args(["--silent", "--show-error", "--include", "--max-time", "60", "--cacert"]);
        command.arg(&self.ca).arg("--cookie").arg(&self.cookies).arg("--cookie-jar").arg(&self.cookies);
        command.arg(format!("https://{GATEWAY_V4}{path}"));
        command
    }

    fn run(command: Command) -> Answer {
        let output = must(process::run(command));
        let text = String::from_utf8(output.stdout).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        Self::run(self.curl(path))
    }

    pub(crate) fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.post_with(path, fields, &[])
    }

    fn post_with(&self, path: &str, fields: &[(&str, &str)], arguments: &[&str]) -> Answer {
        let mut command = self.curl(path);
        for (name, value) in fields {
            command.arg("--data-urlencode").arg(format!("{name}={value}"));
        }
        command.args(arguments);
        Self::run(command)
    }

    pub(crate) fn log_in(&self, user: &str, password: &str) -> Answer {
        let form = self.get("/login").field("form");
        self.post("/login", &[("form", &form), ("user", user), ("password", password)])
    }

    /// Logs in with the right password; returns the page that it leads to.
    pub(crate) fn logged_in(&self, user: &str) -> Answer {
        let answer = self.log_in(user, &format!("{user}'s password"));
        assert_eq!(answer.status, 303, "{answer:?}");
        self.overview().unwrap_or_else(|| panic!("{user} is logged in"))
    }

    /// The page of the logged-in user.
    pub(crate) fn overview(&self) -> Option<Answer> {
        let answer = self.get("/");
        match answer.status {
            200 => Some(answer),
            303 => {
                assert!(answer.head.contains("location: /login"), "{answer:?}");
                None
            }
            _ => panic!("{answer:?}"),
        }
    }
}

/// The portal's process.
fn portal_of(gateway: &Gateway<'_>) -> Seen {
    let parent = Seen::parent(gateway);
    eventually("there is a portal", SOON, || parent.child_if_any("portal"))
}

/// Waits until pages are served.
pub(crate) fn serves(browser: &Browser<'_>) {
    eventually("pages are served", SOON, || {
        let mut command = browser.curl("/style.css");
        command.args(["--output", "/dev/null"]);
        process::run(command).status.success().then_some(())
    });
}

#[test]
fn a_user_sees_and_ends_the_own_session_alone() {
    let Some(lab) = Lab::new(3) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    configure(&gateway);
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    ping_until(one.namespace(), CAMPUS_V4.into(), SOON);
    ping_until(two.namespace(), CAMPUS_V4.into(), SOON);

    let browser = Browser::new(&lab, &lab.clients[2], &gateway);
    serves(&browser);
    let page = browser.get("/login");
    for header in [
        "content-security-policy: default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'",
        "strict-transport-security: max-age=31536000",
        "x-content-type-options: nosniff",
        "x-frame-options: deny",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
    ] {
        assert!(page.head.contains(header), "{header}: {page:?}");
    }
    assert!(page.body.contains("VPN of &#60;Uni&#62;") && !page.body.contains("<script"), "{page:?}");
    let cookie = page.head.lines().find(|line| line.starts_with("set-cookie: __host-vpnd=")).unwrap();
    assert!(cookie.trim_end().ends_with("; path=/; secure; httponly; samesite=lax"), "{cookie}");

    let page = browser.logged_in("ann");
    let address = one.v4().to_string();
    // Whichever of the gateway's two addresses answered her first.
    let is_from_her = ["198.18.1.2", "fd18:1::2"].iter().any(|outer| page.body.contains(outer));
    assert!(page.body.contains(&address) && is_from_her, "hers, and from where: {page:?}");
    assert!(!page.body.contains(&two.v4().to_string()), "not his: {page:?}");
    // She tries his device, and nothing that she has not.
    let devices = |name: &str| -> Vec<String> {
        let sessions = gateway.sessions();
        let of_user = sessions.iter().filter(|session| session["user"] == name);
        of_user.map(|session| session["device"].as_str().unwrap().to_owned()).collect()
    };
    let (form, his) = (page.field("form"), devices("bob"));
    let end = |device: &str| browser.post("/sessions/end", &[("form", &form), ("device", device)]).status;
    assert_eq!((his.len(), end(&his[0]), end(&"0".repeat(32)), end("x")), (1, 404, 404, 404));
    assert_eq!(gateway.sessions().len(), 2);
    // Without the proof that the form is ours, or from another site, nothing happens.
    let hers = page.field("device");
    assert_eq!(devices("ann"), std::slice::from_ref(&hers));
    assert_eq!(browser.post("/sessions/end", &[("device", &hers)]).status, 403);
    assert_eq!(browser.post("/sessions/end", &[("form", &"0".repeat(64)), ("device", &hers)]).status, 403);
    let fields = [("form", form.as_str()), ("device", hers.as_str())];
    let foreign = browser.post_with("/sessions/end", &fields, &["--header", "Sec-Fetch-Site: cross-site"]);
    assert_eq!((foreign.status, gateway.sessions().len()), (403, 2));
    let ended = browser.post("/sessions/end", &fields);
    assert!(ended.status == 303 && ended.head.contains("location: /?ended"), "{ended:?}");
    eventually("hers is over", SOON, || (devices("ann").is_empty() && devices("bob") == his).then_some(()));
    let page = browser.get("/?ended");
    assert!(page.body.contains("The session is ended") && !page.body.contains(&address), "{page:?}");
    ping_until(two.namespace(), CAMPUS_V4.into(), SOON);
    // German, from the same catalogue.
    let german =
        browser.post_with("/x", &[], &["--request", "GET", "--header", "Accept-Language: de-DE,en;q=0.5"]);
    assert!(german.status == 404 && german.body.contains("lang=\"de\""), "{german:?}");
    assert_eq!(browser.post("/logout", &[("form", &form)]).status, 303);
    assert!(browser.overview().is_none(), "she has logged out");
    assert_eq!(crate::audit::recorded(&gateway, "portal-logout")[0]["user"], "ann");
}

#[test]
fn a_visit_ends_with_the_rights_of_its_user_and_with_its_network() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.add_user("bob");
    configure(&gateway);
    gateway.start();
    let [here, elsewhere] = [&lab.clients[0], &lab.clients[1]];
    let browser = || Browser::new(&lab, here, &gateway);
    serves(&browser());
    let refused = |answer: Answer| {
        assert_eq!(answer.status, 403, "{answer:?}");
        let (_, notice) = answer.body.split_once("role=\"alert\">").unwrap();
        notice.split_once('<').unwrap().0.to_owned()
    };
    let wrong = refused(browser().log_in("ann", "wrong"));
    assert_eq!(wrong, refused(browser().log_in("nobody", "wrong")), "it does not say which is wrong");
    assert_eq!(browser().post("/login", &[("user", "ann"), ("password", "ann's password")]).status, 403);

    // A cookie that was stolen.
    let victim = browser();
    victim.logged_in("ann");
    let thief = victim.moved(elsewhere);
    assert!(thief.overview().is_none(), "not from another network");
    assert!(victim.overview().is_none(), "and it is good for nobody any more");
    assert_eq!(crate::audit::recorded(&gateway, "portal-login")[0]["user"], "ann");
    assert_eq!(crate::audit::recorded(&gateway, "portal-ended")[0]["detail"], "another-network");

    // An administrator takes rights away.
    let (disabled, kicked) = (browser(), browser());
    disabled.logged_in("bob");
    must(process::run(gateway.user(&["disable", "bob"])));
    must(process::run(gateway.user(&["enable", "bob"])));
    assert!(disabled.overview().is_none(), "a moment is enough");
    let client = Client::connect(&lab, 2, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    kicked.logged_in("ann");
    must(gateway.ask(&["kick", "ann"]));
    eventually("her visit is over, too", SOON, || kicked.overview().is_none().then_some(()));
}

#[test]
fn the_second_factor_is_required_of_every_user() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.add_user("bob");
    gateway.add_user("ann");
    must(process::run(gateway.user(&["modify", "ann", "--totp"])));
    configure(&gateway);
    gateway.start();
    let browser = Browser::new(&lab, &lab.clients[0], &gateway);
    serves(&browser);
    // Whatever was wrong, a code is asked for.
    for (user, password) in [("ann", "wrong"), ("nobody", "wrong")] {
        let asked = browser.log_in(user, password);
        assert!(asked.status == 200 && asked.body.contains("authenticator app"), "{asked:?}");
        let form = asked.field("form");
        let refused = browser.post("/login/answer", &[("form", &form), ("answer", "123456")]);
        assert!(refused.status == 403 && refused.body.contains("or the code is wrong"), "{refused:?}");
    }
    let asked = browser.log_in("ann", "ann's password");
    assert!(browser.overview().is_none(), "the password alone lets nobody in");
    let form = asked.field("form");
    let users = Sqlite::inspect(&gateway.file("state").join("vpnd.db")).unwrap();
    let secret = users.into_iter().find(|user| user.name == "ann").and_then(|user| user.totp).unwrap();
    let code = totp::code_at(&secret, std::time::UNIX_EPOCH.elapsed().unwrap().as_secs());
    let again = browser.moved(&lab.clients[0]);
    let answer = browser.post("/login/answer", &[("form", &form), ("answer", &code)]);
    assert_eq!(answer.status, 303, "{answer:?}");
    assert!(browser.overview().is_some());
    let again = again.post("/login/answer", &[("form", &form), ("answer", &code)]);
    assert_eq!(again.status, 503, "a login has one answer: {again:?}");
}

#[test]
fn the_tunnel_survives_a_restart_of_the_portal() {
    let Some(lab) = Lab::new(2) else { return };
    let (mut gateway, client) = with_client(&lab);
    let browser = Browser::new(&lab, &lab.clients[1], &gateway);
    serves(&browser);
    browser.logged_in("ann");
    let before = portal_of(&gateway).pid();
    kill_process(before, Signal::KILL).unwrap();
    let parent = Seen::parent(&gateway);
    eventually("there is another", SOON, || {
        parent.child_if_any("portal").filter(|seen| seen.pid() != before).map(drop)
    });
    serves(&browser);
    assert!(browser.overview().is_some(), "visits are the auth process's");
    assert_eq!(gateway.sessions().len(), 1);
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);

    // Another name by a reload, and a promise for more hosts; then none at all.
    gateway.configure("portal.name", "Another name");
    gateway.configure("portal.hsts_subdomains", true);
    must(gateway.ask(&["reload"]));
    serves(&browser);
    let page = browser.overview().expect("the visit goes on");
    assert!(page.body.contains("Another name"), "{page:?}");
    let promise = page.head.lines().find_map(|line| line.strip_prefix("strict-transport-security: "));
    assert_eq!(promise.map(str::trim), Some("max-age=31536000; includesubdomains"));
    gateway.configure("portal.enabled", false);
    must(gateway.ask(&["reload"]));
    eventually("there is no portal", SOON, || parent.child_if_any("portal").is_none().then_some(()));
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    assert!(gateway.is_running());
}

#[test]
fn a_half_renewed_certificate_does_not_block_a_reload() {
    let Some(lab) = Lab::new(2) else { return };
    let (gateway, client) = with_client(&lab);
    let browser = Browser::new(&lab, &lab.clients[1], &gateway);
    serves(&browser);
    // Visits, and for how long the certificate is good: for centuries, as it is made here.
    let health = || {
        let health = gateway.status()["portal"].clone();
        let left_s = health["certificate_left_s"].as_u64().unwrap();
        assert!(health["up"] == true && health["relays"] == 0 && left_s > 86_400, "{health}");
        health["visits"].as_u64()
    };
    assert_eq!(health(), Some(0));
    // The key is new already, the certificate is not.
    let old = lab.path("old.pem");
    fs::copy(gateway.file("portal.pem"), &old).unwrap();
    let (certificate, key) = pair();
    crate::gateway::write_secret(&gateway.file("portal-key.pem"), &key);
    gateway.configure("portal.name", "Another name");
    must(gateway.ask(&["reload"]));
    let before = Browser { ca: old, ..Browser::new(&lab, &lab.clients[1], &gateway) };
    serves(&before);
    assert!(before.get("/login").body.contains("Another name"), "the rest is in force");
    let process = portal_of(&gateway).pid();
    // Nobody reloads again.
    fs::write(gateway.file("portal.pem"), certificate).unwrap();
    serves(&browser);
    browser.logged_in("ann");
    assert_eq!(health(), Some(1));
    assert_eq!(portal_of(&gateway).pid(), process, "it was handed to the one that runs");
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    // Another's key is taken over by no reload.
    let own = fs::read_to_string(gateway.file("server-key.pem")).unwrap();
    gateway.configure("portal.key", "copy.pem");
    crate::gateway::write_secret(&gateway.file("copy.pem"), &own);
    assert!(!gateway.ask(&["reload"]).status.success());
}

#[test]
fn a_gateway_whose_port_of_web_pages_is_taken_serves_its_tunnels_and_later_the_pages() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    configure(&gateway);
    let taken = lab.gateway.within(|| TcpListener::bind("[::]:443")).unwrap();
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    let log = gateway.process().output();
    assert!(log.contains("no web pages until") && log.contains("[::]:443"), "{log}");
    drop(taken);
    must(gateway.ask(&["reload"]));
    serves(&Browser::new(&lab, &lab.clients[1], &gateway));
}
