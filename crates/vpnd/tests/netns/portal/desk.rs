//! Behaviour: the help desk and administrators find users and change them, with a reason and on the
//! record; each role does what it may, from the configured networks alone, and never without a form
//! of ours.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use super::{Answer, Browser, SOON, configure, serves};
use crate::client::Client;
use crate::gateway::{Gateway, INNER_V4, must};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::process;
use crate::traffic::{ping, ping_until};

/// curl's argument by which pages are asked for at the gateway's inner address.
fn inside() -> String {
    format!("{GATEWAY_V4}:443:{INNER_V4}:443")
}

impl Browser<'_> {
    /// Asks through the tunnel of its place.
    fn tunnelled(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.post_with(path, fields, &["--connect-to", &inside()])
    }

    fn log_in_tunnelled(&self, user: &str) {
        let form = self.tunnelled("/login", &[]).field("form");
        let password = format!("{user}'s password");
        let fields = [("form", form.as_str()), ("user", user), ("password", &password)];
        assert_eq!(self.tunnelled("/login", &fields).status, 303, "{user}");
    }

    /// A change by the form of the desk's page.
    fn change(&self, deed: &str, user: &str, reason: &str) -> u16 {
        let form = self.tunnelled("/desk", &[]);
        let form =
            if form.status == 200 { form.field("form") } else { self.tunnelled("/", &[]).field("form") };
        let fields = [("form", form.as_str()), ("user", user), ("reason", reason)];
        self.tunnelled(&format!("/desk/{deed}"), &fields).status
    }
}

/// The state of a user as `vpnd user show` has it.
fn shown(gateway: &Gateway<'_>, user: &str) -> serde_json::Value {
    let output = must(process::run(gateway.user(&["show", user, "--json"])));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A gateway with people of each role and a guest, with `ann`'s tunnel, by which the pages are
/// reached, and `gus`'s.
fn with_people(lab: &Lab) -> (Gateway<'_>, Client<'_>, Client<'_>) {
    let mut gateway = Gateway::init(lab);
    let (ann, gus) = (gateway.add_user("ann"), gateway.add_user("gus"));
    for name in ["dora", "vic"] {
        gateway.add_user(name);
    }
    for (name, group) in [("ann", "admins"), ("dora", "desk"), ("vic", "viewers")] {
        must(process::run(gateway.user(&["modify", name, "--group", group])));
    }
    must(process::run(gateway.user(&["modify", "gus", "--sponsor", "ann", "--expires", "2030-01-31"])));
    configure(&gateway);
    gateway.configure("portal.url", format!("https://{GATEWAY_V4}"));
    for (key, group) in
        [("viewer_groups", "viewers"), ("help_desk_groups", "desk"), ("administrator_groups", "admins")]
    {
        gateway.configure(&format!("portal.{key}"), group);
    }
    gateway.start();
    let tunnel = Client::connect(lab, 1, &ann);
    let guest = Client::connect(lab, 2, &gus);
    ping_until(tunnel.namespace(), CAMPUS_V4.into(), SOON);
    ping_until(guest.namespace(), CAMPUS_V4.into(), SOON);
    (gateway, tunnel, guest)
}

/// A viewer sees the sessions that there are, with what they carry now, and from which networks.
fn sessions_are_listed(viewer: &Browser<'_>, nobody: &Browser<'_>, tunnel: &Client<'_>, guest: &Client<'_>) {
    assert_eq!(nobody.tunnelled("/desk/sessions", &[]).status, 403);
    let page = eventually("the worker has reported twice", SOON, || {
        ping_until(guest.namespace(), CAMPUS_V4.into(), SOON);
        let page = viewer.tunnelled("/desk/sessions", &[]);
        (page.status == 200 && page.body.contains("; now ")).then_some(page)
    });
    for (user, client) in [("ann", tunnel), ("gus", guest)] {
        assert!(page.body.contains(&format!("href=\"/desk/user?name={user}\"")), "{page:?}");
        assert!(page.body.contains(&client.v4().to_string()), "{page:?}");
    }
    assert!(page.body.contains("198.18.2.0/24") && !page.body.contains("198.18.2.2"), "{page:?}");
    assert!(page.body.contains("2 sessions; "), "{page:?}");
    // A packet to an address without a session is dropped.
    ping(guest.namespace(), std::net::Ipv4Addr::new(10, 86, 200, 200).into(), 56, Duration::from_millis(100));
    let first = page.body.find("name=ann").zip(page.body.find("name=gus"));
    assert!(first.is_some_and(|(ann, gus)| ann < gus), "by user: {page:?}");
    assert!(viewer.tunnelled("/desk/sessions?order=rate", &[]).body.contains("href=\"/desk/sessions\""));
}

/// The state of the gateway, with its health and what the pages have refused; the page.
fn state_is_shown(gateway: &Gateway<'_>, admin: &Browser<'_>) -> Answer {
    let state = eventually("the worker has told of itself", SOON, || {
        Some(admin.tunnelled("/desk", &[])).filter(|state| state.body.contains("Certificate of the gateway"))
    });
    assert!(state.body.contains("Sessions by access profile") && state.body.contains("1 of"), "{state:?}");
    assert!(state.body.contains("<h2>Health</h2>"), "{state:?}");
    assert!(state.body.contains("<h2>Dropped packets since the gateway"), "{state:?}");
    eventually("forms that were no page's are counted", SOON, || {
        let page = admin.tunnelled("/desk", &[]);
        (page.body.contains(" (form)</dt>") && page.status == 200).then_some(())
    });
    assert!(gateway.status()["counters"]["portal_refusals"]["form"].as_u64() > Some(0));
    state
}

/// Administrators add users, who choose their password by a link, and give no role.
fn administrators_add_users(gateway: &Gateway<'_>, admin: &Browser<'_>, desk: &Browser<'_>, state: &Answer) {
    let form = desk.tunnelled("/desk", &[]).field("form");
    assert!(state.body.contains("action=\"/desk/add\""), "{state:?}");
    assert!(state.body.contains("Certificate of these pages</dt><dd>good for "), "{state:?}");
    assert!(!desk.tunnelled("/desk", &[]).body.contains("action=\"/desk/add\""));
    let add = |browser: &Browser<'_>, form: &str, groups: &str| {
        let fields = [
            ("form", form),
            ("user", "eva"),
            ("groups", groups),
            ("until", "2030-01-31"),
            ("sponsor", "ann"),
            ("note", ""),
            ("reason", "guest 4715"),
        ];
        browser.tunnelled("/desk/add", &fields)
    };
    let own = state.field("form");
    assert_eq!(add(desk, &form, "guests").status, 403, "the help desk adds nobody");
    assert_eq!(add(admin, &form, "guests").status, 403, "no form of ours");
    for groups in ["admins", "guests desk", "viewers"] {
        assert_eq!(add(admin, &own, groups).status, 403, "{groups}");
    }
    assert_eq!(add(admin, &own, "guests a/b").status, 422);
    let added = add(admin, &own, " guests  physics ");
    assert!(added.status == 200 && added.body.contains("/invitation/"), "{added:?}");
    let eva = shown(gateway, "eva");
    assert_eq!((&eva["groups"], &eva["sponsor"]), (&serde_json::json!(["guests", "physics"]), &"ann".into()));
    let recorded = crate::audit::recorded(gateway, "user-added");
    let recorded = recorded.iter().find(|record| record["user"] == "eva").unwrap();
    assert_eq!(recorded["by"], "ann on the web pages");
    assert!(recorded["detail"].as_str().unwrap().ends_with(": guest 4715"), "{recorded}");
    assert_eq!(add(admin, &own, "guests").status, 409, "there is one");
}

#[test]
fn each_role_at_the_desk_does_what_it_may() {
    let Some(lab) = Lab::new(3) else { return };
    let (gateway, tunnel, guest) = with_people(&lab);

    // Outside there is no desk, for any user.
    let outside = Browser::new(&lab, &lab.clients[2], &gateway);
    serves(&outside);
    assert_eq!(outside.get("/desk").status, 303, "not without a login");
    let page = outside.logged_in("ann");
    assert!(!page.body.contains("href=\"/desk\"") && !page.body.contains("action=\"/desk\""), "{page:?}");
    let form = page.field("form");
    let closed = outside.get("/desk");
    assert!(closed.status == 403 && closed.body.contains("networks of administration"), "{closed:?}");
    let fields = [("form", form.as_str()), ("user", "gus"), ("reason", "x")];
    assert_eq!(outside.post("/desk/disable", &fields).status, 403);

    let browser = |user: &str| {
        let browser = Browser::new(&lab, tunnel.namespace(), &gateway);
        browser.log_in_tunnelled(user);
        browser
    };
    let [admin, desk, viewer, nobody] = ["ann", "dora", "vic", "gus"].map(browser);
    assert!(admin.tunnelled("/", &[]).body.contains("action=\"/desk\""));
    assert_eq!(nobody.tunnelled("/desk", &[]).status, 403);
    assert_eq!(nobody.change("disable", "vic", "because"), 403);

    // A viewer looks, and changes nothing.
    let without_reason = format!("/desk/users?text={}", guest.v4());
    let by_address = format!("{without_reason}&reason=call+4710");
    assert_eq!(viewer.tunnelled(&by_address, &[]).status, 403, "who has an address is a question");
    assert_eq!(desk.tunnelled(&without_reason, &[]).status, 422);
    let found = desk.tunnelled(&by_address, &[]);
    assert!(found.status == 200 && found.body.contains("href=\"/desk/user?name=gus\""), "{found:?}");
    let page = viewer.tunnelled("/desk/user?name=gus", &[]);
    assert!(page.body.contains(&guest.v4().to_string()) && page.body.contains("198.18.2.2"), "{page:?}");
    eventually("the worker has told of the session", SOON, || {
        viewer.tunnelled("/desk/user?name=gus", &[]).body.contains(" received, ").then_some(())
    });
    assert!(page.body.contains("Your role does not allow this") && !page.body.contains("/desk/disable"));
    assert_eq!(viewer.change("disable", "gus", "because"), 403);

    sessions_are_listed(&viewer, &nobody, &tunnel, &guest);

    // The help desk says why, by a form of ours, and changes nobody who is above it.
    assert_eq!(desk.change("disable", "gus", ""), 422);
    let fields = [("user", "gus"), ("reason", "call 4711")];
    assert_eq!(desk.tunnelled("/desk/disable", &fields).status, 403, "no form of ours");
    assert_eq!(desk.change("disable", "ann", "because"), 403);
    assert_eq!(desk.change("disable", "nobody", "because"), 404);
    assert_eq!(shown(&gateway, "gus")["state"], "enabled");
    assert_eq!(gateway.sessions().len(), 2, "nothing was changed");
    assert_eq!(desk.change("kick", "gus", "call 4711"), 303);
    let kicked = &crate::audit::recorded(&gateway, "kicked")[0];
    assert_eq!((&kicked["user"], &kicked["detail"]), (&"gus".into(), &"call 4711".into()));
    assert_eq!(kicked["by"], "dora on the web pages");
    assert_eq!(kicked["outer"], tunnel.v4().to_string());
    assert!(nobody.tunnelled("/", &[]).status == 303, "his visit is over, too");
    assert_eq!(desk.change("disable", "gus", "call 4712"), 303);
    assert_eq!(shown(&gateway, "gus")["state"], "disabled");
    eventually("his session is over", SOON, || (gateway.sessions().len() == 1).then_some(()));
    assert_eq!(desk.change("enable", "gus", "call 4713"), 303);
    assert_eq!(shown(&gateway, "gus")["state"], "enabled");
    let form = desk.tunnelled("/desk", &[]).field("form");
    let fields =
        [("form", form.as_str()), ("user", "gus"), ("reason", "stays longer"), ("until", "2027-06-30")];
    assert_eq!(desk.tunnelled("/desk/extend", &fields).status, 303);
    let page = desk.tunnelled("/desk/user?name=gus&done=1", &[]);
    assert!(page.body.contains("2027-06-30") && page.body.contains("It is done"), "{page:?}");

    // The question of who had the address is recorded.
    let address = tunnel.v4().to_string();
    let fields = [("form", form.as_str()), ("address", &address), ("reason", "complaint 4714")];
    let answer = desk.tunnelled("/desk/whois", &fields);
    assert!(answer.status == 200 && answer.body.contains("<dd>ann</dd>"), "{answer:?}");
    assert_eq!(crate::audit::recorded(&gateway, "whois")[0]["by"], "dora on the web pages");
    assert_eq!(desk.tunnelled("/desk/whois", &fields[..2]).status, 422, "not without a reason");
    let state = state_is_shown(&gateway, &admin);
    administrators_add_users(&gateway, &admin, &desk, &state);
    // An administrator changes the help desk, which is out at once.
    assert_eq!(admin.change("disable", "ann", "because"), 403, "nobody changes themselves");
    assert_eq!(admin.change("disable", "dora", "has left"), 303);
    assert_eq!(desk.tunnelled("/desk", &[]).status, 303);
}
