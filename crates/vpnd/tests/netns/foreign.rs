//! Behaviour: routes of other programs in a client's routing table, and rules that name it, are no
//! reason to give up, and stay as they are; what an earlier client has left behind without a
//! journal is taken away.

use std::fs;
use std::time::Duration;

use crate::cleanup::look_at;
use crate::client::{Client, journal};
use crate::gateway::{Gateway, Login, edit_toml};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab};
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
/// Interfaces of a new namespace have numbers like these.
const NUMBERS: std::ops::Range<u32> = 2..40;
const TABLE_BASE: u32 = 30_000;

fn gateway(lab: &Lab) -> (Gateway<'_>, Login) {
    let mut gateway = Gateway::init(lab);
    gateway.configure("nat.mode", "nftables");
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| profile["tunnel"]["routes"] = "all".into());
    gateway.start();
    (gateway, ann)
}

/// Connects a client beside what these lines of `ip` have made, and ends it.
fn connects_beside(lab: &Lab, ann: &Login, lines: &str) {
    lab.clients[0].ip_batch(lines);
    let before = look_at(lab, &lab.clients[0]);
    let mut client = Client::connect(lab, 1, ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    ping_until(client.namespace(), CAMPUS_V6.into(), 10 * SECOND);
    let said = client.process().output();
    assert!(said.contains("so it takes another"), "{said}");
    client.interrupt();
    assert_eq!(look_at(lab, &lab.clients[0]), before, "what was somebody else's is there as before");
}

#[test]
fn foreign_routes_in_vpnds_table_are_left_alone() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = gateway(&lab);
    let lines = NUMBERS.map(|number| {
        let table = TABLE_BASE + number;
        format!("route add blackhole default table {table}\nroute add blackhole 10.86.0.1 table {table}\n")
    });
    connects_beside(&lab, &ann, &lines.collect::<String>());
}

#[test]
fn foreign_rules_for_vpnds_table_are_left_alone() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = gateway(&lab);
    let lines = NUMBERS
        .map(|number| format!("rule add priority 31000 to 192.0.2.0/24 lookup {}\n", TABLE_BASE + number));
    connects_beside(&lab, &ann, &lines.collect::<String>());
}

#[test]
fn leftovers_without_a_journal_are_removed() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    edit_toml(&gateway.config(), |config| {
        config["tunnel"].as_table_mut().expect("a section").remove("pool_v6");
    });
    gateway.configure("push.routes", crate::gateway::strings(&["0.0.0.0/0"]));
    gateway.configure("nat.mode", "nftables");
    let ann = gateway.add_user("ann");
    gateway.start();
    let before = look_at(&lab, &lab.clients[0]);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    client.kill();
    fs::remove_dir_all(journal(&lab, 1)).expect("the client has made it");
    let left = lab.clients[0].ip(&["-6", "route", "show", "table", "all"]);
    assert!(left.contains("unreachable"), "{left}");

    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    assert!(client.process().output().contains("without a journal"), "{}", client.process().output());
    client.interrupt();
    assert!(!lab.clients[0].ip(&["-6", "route", "show", "table", "all"]).contains("unreachable default"));
    assert_eq!(look_at(&lab, &lab.clients[0]), before);
}
