//! Behaviour: what goes in comes out. Pings and 10 MB each way, compared, between client, gateway,
//! campus and another client, with IPv4 and IPv6 inside, under each suite; and over IPv6 outside.

use std::time::Duration;

use crate::client::Client;
use crate::gateway::{Gateway, INNER_V4, INNER_V6, edit_toml, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V6, Lab, eventually};
use crate::traffic::{TEN_MB, ping, ping_until, transfer};

const LIMIT: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn aes_128_gcm() {
    everything_arrives("aes-128-gcm", &[]);
}

#[test]
fn aes_256_gcm() {
    everything_arrives("aes-256-gcm", &[]);
}

#[test]
fn chacha20_poly1305() {
    everything_arrives("chacha20-poly1305", &[]);
}

#[test]
fn lab_suites_where_both_ends_insist() {
    for suite in ["none", "auth-only", "aes-256-cbc-hmac-sha-256"] {
        everything_arrives(suite, &["--insecure-lab"]);
    }
}

fn everything_arrives(suite: &str, switches: &[&str]) {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("policy.client_to_client", true);
    gateway.configure("policy.client_to_gateway", true);
    gateway.configure("crypto.suites", strings(&[suite]));
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start_with(switches);
    let arguments = [&["--suite", suite], switches].concat();
    let one = Client::connect_with(&lab, 1, &ann, &arguments);
    let two = Client::connect_with(&lab, 2, &bob, &arguments);

    let from = one.namespace();
    let [inner_v4, inner_v6] = [INNER_V4, INNER_V6].map(|address| address.parse().expect("an address"));
    for to in [inner_v4, inner_v6, CAMPUS_V4.into(), CAMPUS_V6.into(), two.v4(), two.v6()] {
        ping_until(from, to, 5 * SECOND);
        // More than one inner packet: fragments must find their way too. The first answer may be
        // lost while its sender learns how large packets may be.
        assert!((0..3).any(|_| ping(from, to, 4_000, SECOND)), "a large ping to {to}");
    }
    ping_until(two.namespace(), one.v4(), 5 * SECOND);
    for session in gateway.sessions() {
        assert_eq!(session["suite"], suite);
    }
    transfer(from, &lab.gateway, inner_v4, TEN_MB, LIMIT);
    transfer(from, &lab.gateway, inner_v6, TEN_MB, LIMIT);
    transfer(from, &lab.campus, CAMPUS_V4.into(), TEN_MB, LIMIT);
    transfer(from, &lab.campus, CAMPUS_V6.into(), TEN_MB, LIMIT);
    transfer(from, two.namespace(), two.v4(), TEN_MB, LIMIT);
    transfer(from, two.namespace(), two.v6(), TEN_MB, LIMIT);
}

#[test]
fn over_ipv6_outside() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        let server = profile["server"].as_table_mut().expect("a section");
        server.insert("addresses".to_owned(), vec![format!("[{GATEWAY_V6}]:4433")].into());
    });
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    eventually("the outer address is IPv6", LIMIT, || {
        gateway.sessions()[0]["outer"].to_string().contains("fd18:1::2").then_some(())
    });
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    transfer(one.namespace(), &lab.campus, CAMPUS_V4.into(), TEN_MB, LIMIT);
    transfer(one.namespace(), &lab.campus, CAMPUS_V6.into(), TEN_MB, LIMIT);
}

#[test]
fn masqueraded_by_nftables() {
    let Some(lab) = Lab::new(1) else { return };
    // The campus does not know the way back to the inner addresses.
    lab.campus.ip_batch("route del default via 10.200.0.1\nroute del default via fd20::1\n");
    let mut gateway = Gateway::init(&lab);
    gateway.configure("nat.mode", "nftables");
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    ping_until(one.namespace(), CAMPUS_V6.into(), 5 * SECOND);
    transfer(one.namespace(), &lab.campus, CAMPUS_V4.into(), TEN_MB, LIMIT);
}
