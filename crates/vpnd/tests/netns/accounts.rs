//! Behaviour: what an administrator changes of a user holds for the sessions that are up.

use std::net::Ipv6Addr;
use std::time::Duration;

use toml::Value;

use crate::client::Client;
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// Limit for what takes half a second on a machine that has nothing else to do.
const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn a_change_of_groups_holds_for_live_sessions() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    let rule: toml::Table =
        "action = \"deny\"\nfrom = \"group:barred\"\nto = \"10.200.0.0/24\"".parse().expect("a rule");
    gateway.configure("policy.rules", Value::Array(vec![Value::Table(rule)]));
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    for client in [&one, &two] {
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    }
    let sessions = || gateway.sessions().iter().map(|session| session["id"].clone()).collect::<Vec<_>>();
    let before = sessions();
    for _ in 0..2 {
        must(process::run(gateway.user(&["modify", "ann", "--add-group", "barred"])));
        eventually("the rule for the new group holds", TIMEOUT, || {
            (!ping(one.namespace(), CAMPUS_V4.into(), 56, SECOND)).then_some(())
        });
        assert!(ping(two.namespace(), CAMPUS_V4.into(), 56, SECOND), "others don't notice");
        must(process::run(gateway.user(&["modify", "ann", "--remove-group", "barred"])));
        ping_until(one.namespace(), CAMPUS_V4.into(), TIMEOUT);
    }
    assert_eq!(sessions(), before, "no session has ended for it");
}

#[test]
fn a_removed_device_is_disconnected_and_the_other_stays() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &ann);
    ping_until(two.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let listed = process::text(&process::run(gateway.user(&["devices", "ann"])));
    let of_one = one.v4().to_string();
    let line = listed.lines().find(|line| line.split_whitespace().any(|word| word == of_one));
    let device = line.and_then(|line| line.split_whitespace().next()).expect(&listed).to_owned();
    must(process::run(gateway.user(&["devices", "ann", "--remove", &device])));
    assert!(!one.process().wait(TIMEOUT).success());
    assert!(one.process().output().contains("this device was removed"), "{}", one.process().output());
    assert_eq!(gateway.sessions().len(), 1);
    assert!(ping(two.namespace(), CAMPUS_V4.into(), 56, SECOND));
}

#[test]
fn a_fixed_address_is_its_users_after_the_next_login() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    let v6 = gateway.sessions()[0]["inner_v6"].as_str().expect("it has one").parse().expect("an address");
    let v6 = Ipv6Addr::from_bits(Ipv6Addr::to_bits(v6) & !0xffff | 0xbeef).to_string();
    must(process::run(gateway.user(&["modify", "ann", "--address", "10.86.99.7", "--address", &v6])));
    let bobs = process::run(gateway.user(&["modify", "bob", "--address", "10.86.99.7"]));
    assert!(!bobs.status.success() && process::text(&bobs).contains("one of 'ann' already"), "{bobs:?}");
    assert_ne!(one.v4().to_string(), "10.86.99.7", "a session keeps what it has");
    one.interrupt();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let sessions = gateway.sessions();
    let session = sessions.iter().find(|session| session["user"] == "ann").expect("hers");
    assert_eq!((&session["inner_v4"], &session["inner_v6"]), (&"10.86.99.7".into(), &v6.as_str().into()));
    assert_ne!(two.v4().to_string(), "10.86.99.7");
}

#[test]
fn an_account_that_expires_ends_its_session() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    must(process::run(gateway.user(&["modify", "ann", "--expires", "2020-01-01"])));
    assert!(!one.process().wait(TIMEOUT).success());
    assert!(one.process().output().contains("expired"), "{}", one.process().output());
}
