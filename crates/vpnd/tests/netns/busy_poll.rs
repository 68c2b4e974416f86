//! Behaviour: gateway and client look for the next packet instead of sleeping (`busy_poll_us`).
//! Traffic passes, a new version takes over, and both end as always.

use std::time::Duration;

use toml::Value;

use crate::client::Client;
use crate::gateway::{Gateway, edit_toml, must};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::traffic::ping;

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);
/// The longest that can be configured.
const BUSY_POLL_US: i64 = 10_000;

#[test]
fn a_polling_gateway_carries_traffic_is_upgraded_and_ends() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("server.busy_poll_us", BUSY_POLL_US);
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        let tunnel = profile.get_mut("tunnel").and_then(Value::as_table_mut).expect("a section");
        tunnel.insert("busy_poll_us".to_owned(), Value::Integer(BUSY_POLL_US));
    });
    gateway.start();
    let mut client = Client::connect(&lab, 1, &ann);
    let before = found_after(&gateway, &client, 0);
    must(gateway.upgrade());
    let carried = found(&gateway);
    assert!(carried >= before, "counts go on: {before} before the upgrade, {carried} after it");
    found_after(&gateway, &client, carried);
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "nobody had to log in again");
    client.interrupt();
    gateway.terminate();
}

#[test]
fn nothing_polls_unless_it_is_configured() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, client) = Client::alone(&lab);
    for _ in 0..100 {
        ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND);
    }
    let status = gateway.status();
    let counts = status["counters"]["polling"].as_object().expect("counts");
    assert!(counts.len() == 4 && counts.values().all(|count| *count == 0), "{counts:?}");
}

/// Sends requests, each after the answer to the one before, until polling has found more packets
/// than `before`.
fn found_after(gateway: &Gateway<'_>, client: &Client<'_>, before: u64) -> u64 {
    eventually("polling finds packets", LIMIT, || {
        for _ in 0..50 {
            ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND);
        }
        let found = found(gateway);
        (found > before).then_some(found)
    })
}

fn found(gateway: &Gateway<'_>) -> u64 {
    gateway.status()["counters"]["polling"]["found"].as_u64().expect("a count")
}
