//! Behaviour: servers of sources that have an IPv6 address at which nothing answers, and then one
//! that does, as behind a firewall that drops IPv6. The machine's own slapd and FreeRADIUS, over
//! LDAP, RADIUS in UDP and in TLS.

use std::fs;
use std::time::Instant;

use super::{ADDRESS, TIMEOUT, add_source, beside, configure_at, login_of};
use crate::client::Client;
use crate::freeradius::{self, FreeRadius};
use crate::gateway::{Gateway, Login};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process;
use crate::slapd::{self, Slapd, group, person};
use crate::traffic::ping_until;

/// An address of a station that is not there.
const SILENT: &str = "2001:db8:99::99";

/// Gives the name both addresses in the gateway's box, the silent one first.
fn name(lab: &Lab, name: &str) {
    lab.gateway.ip_batch(&format!(
        "addr replace 2001:db8:99::1/64 dev campus0 nodad\nneigh replace {SILENT} lladdr 02:00:00:00:00:99 dev campus0 nud permanent\n"
    ));
    let hosts = process::etc(lab, &lab.gateway).join("hosts");
    let mut text = fs::read_to_string(&hosts).expect("it was copied");
    text.push_str(&format!("{SILENT} {name}\n{ADDRESS} {name}\n"));
    fs::write(hosts, text).expect("it is writable");
    fs::write(process::etc(lab, &lab.gateway).join("host.conf"), "multi on\n").expect("it is writable");
    let mut resolve = process::command(lab, &lab.gateway, "getent");
    resolve.args(["ahosts", name]);
    let found = process::text(&process::run(resolve));
    assert!(
        found.starts_with(SILENT) && found.contains(ADDRESS),
        "the silent address is the first of two: {found}"
    );
}

/// Two logins with the right password get in, the second by what the first has shown.
fn log_in_twice(lab: &Lab, gateway: &mut Gateway<'_>, local: &Login, user: &str) {
    gateway.start();
    let login = login_of(lab, local, user, "right");
    for number in 1..=2 {
        let begun = Instant::now();
        let client = Client::connect(lab, number, &login);
        ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
        println!("login {number} of {user}: {:?}", begun.elapsed());
    }
    let log = gateway.process().output();
    assert!(!log.contains("a server of a source has failed"), "{log}");
}

#[test]
fn a_directory_with_a_silent_address_lets_its_users_in() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let entries = [person("ann", "right"), group("staff", &["ann"])].concat();
    let Some(slapd) = Slapd::start(ADDRESS, |program| beside(&lab, program), &entries) else { return };
    name(&lab, slapd::NAME);
    configure_at(&gateway, &slapd, slapd.password_file(), slapd::NAME);
    log_in_twice(&lab, &mut gateway, &local, "ann@uni.example");
}

#[test]
fn a_radius_server_with_a_silent_address_lets_its_users_in() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let Some(radius) = FreeRadius::start_with_tls(ADDRESS, |program| beside(&lab, program)) else { return };
    eventually("FreeRADIUS listens", TIMEOUT, || radius.log().contains("Ready to process").then_some(()));
    name(&lab, freeradius::NAME);
    let (host, at) = (freeradius::NAME, |name: &str| radius.path().join(name));
    let udp = format!(
        "servers = [\"radius://{host}:{}\"]\nsecret_file = {:?}\n",
        radius.port,
        radius.secret_file()
    );
    let tls = format!(
        "servers = [\"radsec://{host}:{}\"]\nca = {:?}\ncertificate = {:?}\nkey = {:?}\n",
        radius.radsec_port,
        at("ca.pem"),
        at("client.pem"),
        at("client-key.pem")
    );
    for servers in [udp, tls] {
        let text = format!("name = \"guests\"\nkind = \"radius\"\nrealm = \"guests.example\"\n{servers}");
        add_source(&gateway, &text);
        log_in_twice(&lab, &mut gateway, &local, "ann@guests.example");
        gateway.terminate();
    }
}
