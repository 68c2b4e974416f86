//! Behaviour: a user who is removed from the directory is out by the next re-check: the client's
//! session, a WireGuard device and the visit of the pages end, and none of them comes back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use super::{Browser, SOON, configure, serves};
use crate::client::Client;
use crate::gateway::{Gateway, edit_toml, must};
use crate::identity::{add_source, beside, login_of};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process;
use crate::slapd::{ADMIN, Slapd, person};
use crate::traffic::{ping, ping_until};
use crate::wireguard::{Configuration, Stock, program};

const ADDRESS: &str = "127.0.0.1";

#[test]
fn a_removed_directory_user_loses_sessions_visits_and_devices() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(3) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let command = |program: &str| beside(&lab, program);
    let people = [person("ann", "right"), person("bob", "right")].concat();
    let Some(slapd) = Slapd::start(ADDRESS, command, &people) else { return };
    let source = format!(
        "name = 'staff'\nkind = 'ldap'\nrealm = 'uni.example'\nservers = ['ldaps://{ADDRESS}:{}']\nca = {:?}\n\
         bind_dn = '{ADMIN}'\nbind_password_file = {:?}\nbase = 'ou=people,dc=uni,dc=example'\ntimeout_ms = 2000\n\
         recheck_s = 2\n",
        slapd.tls,
        slapd.ca(),
        slapd.password_file()
    );
    add_source(&gateway, &source);
    configure(&gateway);
    edit_toml(&gateway.config(), |table| {
        let wireguard: toml::Table = "[wireguard]\nenabled = true\n".parse().unwrap();
        table.extend(wireguard);
    });
    gateway.start();

    let ann = Browser::new(&lab, &lab.clients[2], &gateway);
    let bob = Browser::new(&lab, &lab.clients[2], &gateway);
    serves(&ann);
    for (browser, name) in [(&ann, "ann"), (&bob, "bob")] {
        assert_eq!(browser.log_in(&format!("{name}@uni.example"), "right").status, 303);
        assert!(browser.overview().is_some(), "{name} is on the pages");
    }
    let client = Client::connect(&lab, 1, &login_of(&lab, &local, "ann@uni.example", "right"));
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    let mut add =
        gateway.vpnd(&["device", "add", "--user", "ann@uni.example", "--wireguard", "--name", "phone"]);
    add.arg("--config").arg(gateway.config());
    let text = process::text(&must(process::run(add)));
    let phone = Stock::start(&lab, 2, &program, &Configuration::parse(&text));
    ping_until(phone.place, CAMPUS_V4.into(), SOON);
    assert_eq!(gateway.sessions().len(), 2);

    slapd.modify(&command, ADDRESS, "dn: uid=ann,ou=people,dc=uni,dc=example\nchangetype: delete\n");
    let since = Instant::now();
    eventually("her sessions are over", SOON, || gateway.sessions().is_empty().then_some(()));
    eprintln!("from the removal in the directory to the end of both sessions: {:?}", since.elapsed());
    assert!(ann.overview().is_none(), "her visit is over");
    assert!(bob.overview().is_some(), "his goes on");
    let mut client = client.into_process();
    client.wait(SOON);
    assert!(client.output().contains("gone or disabled in its directory"), "{}", client.output());
    // Her phone tries again and again, by itself.
    for _ in 0..5 {
        let limit = Duration::from_secs(1);
        assert!(!ping(phone.place, CAMPUS_V4.into(), 56, limit), "her phone is in again");
        assert!(gateway.sessions().is_empty());
    }
    assert_eq!(ann.log_in("ann@uni.example", "right").status, 403);
}
