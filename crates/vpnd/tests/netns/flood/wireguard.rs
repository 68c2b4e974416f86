//! Behaviour: floods of WireGuard's first messages from forged addresses touch no login of our own
//! protocol, end no session of a device, and keep no device from its next handshake.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use vpnd_wireguard::PublicKey;

use super::withstand;
use crate::gateway::Gateway;
use crate::lab::{GATEWAY_V4, Lab, eventually};
use crate::relay::PORT;
use crate::wireguard::fleet::{self, Fleet, first_message};
use crate::wireguard::{handshakes, key_of, sessions_of};

/// Devices with a session.
const DEVICES: usize = 3;
/// The first number that no device has.
const UNKNOWN: usize = 1_000;
/// Messages of different keys.
const KEYS: usize = 64;
/// Time for a handshake that has to show a cookie: stock clients do 5 s after they got it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Floods a gateway that serves devices with what `flight` makes of its public key and a device's
/// message that it has answered. `counted` is the metric that grows by it.
fn flood(counted: &str, is_answered: bool, flight: impl FnOnce(PublicKey, Vec<u8>) -> Vec<Vec<u8>>) {
    let Some(lab) = Lab::new(4) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("wireguard.enabled", true);
    let users = ["ann", "bob", "carol"].map(|name| gateway.add_user(name));
    let key = key_of(&gateway, "ann");
    fleet::add(&gateway, "ann", 0..DEVICES);
    gateway.start();
    let recorded = first_message(0, key, key);
    let socket = lab.clients[0].within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    socket.send_to(&recorded, SocketAddr::from((GATEWAY_V4, PORT))).unwrap();
    eventually("a device has sent it", TIMEOUT, || {
        (!sessions_of(&gateway, "wireguard").is_empty()).then_some(())
    });
    let mut devices = Fleet::new(&lab.clients[0], DEVICES, key, PORT);
    devices.begin();
    devices.all_beyond(&[0; DEVICES], TIMEOUT);
    let ids = || -> Vec<String> {
        let sessions = sessions_of(&gateway, "wireguard");
        let mut ids: Vec<_> = sessions.iter().map(|session| session["id"].to_string()).collect();
        ids.sort();
        ids
    };
    let before = ids();
    assert_eq!(before.len(), DEVICES);
    let bytes = withstand(&lab, &gateway, &users, &flight(key, recorded), || {
        let done = devices.done();
        devices.begin();
        let time = devices.all_beyond(&done, TIMEOUT);
        println!("devices          keys renewed within {:.2} s", time.as_secs_f64());
    });
    assert!(handshakes(&gateway, counted) > 0, "the flood came that far");
    assert_eq!(bytes[1] > 0, is_answered, "{bytes:?}");
    assert_eq!(ids(), before, "the devices' sessions are the same");
}

#[test]
fn handshakes_for_another_key_affect_no_session() {
    let other = PublicKey([9; 32]);
    flood("wrong_mac", false, |key, _| (0..KEYS).map(|number| first_message(number, key, other)).collect());
}

#[test]
fn handshakes_of_unknown_keys_affect_no_session() {
    flood("unknown_key", true, |key, _| {
        (UNKNOWN..UNKNOWN + KEYS).map(|number| first_message(number, key, key)).collect()
    });
}

#[test]
fn replayed_handshakes_affect_no_session() {
    flood("replayed", true, |_, recorded| vec![recorded]);
}
