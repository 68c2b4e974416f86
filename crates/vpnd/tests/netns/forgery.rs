//! Behaviour: forged datagrams are dropped, and counted.

use std::net::UdpSocket;
use std::time::Duration;

use crate::client::{Client, TUN};
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, Lab};
use crate::relay::{Faults, PORT, Relay};
use crate::traffic::{TEN_MB, ping, ping_as, ping_until, transfer};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_foreign_inner_source_is_dropped_and_counted() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("policy.client_to_client", true);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    ping_until(one.namespace(), two.v4(), 5 * SECOND);

    // An unused address, and the address of another client.
    for (source, to) in [
        ("10.86.99.99".parse().unwrap(), CAMPUS_V4.into()),
        ("fd86::9999".parse().unwrap(), CAMPUS_V6.into()),
        (two.v4(), CAMPUS_V4.into()),
        (two.v6(), CAMPUS_V6.into()),
    ] {
        one.namespace().ip_batch(&format!("addr add {source} dev {TUN}\n"));
        let before = gateway.counter("foreign_source");
        assert!(!ping_as(one.namespace(), source, to, SECOND / 5), "{source} is not its address");
        gateway.counter_above("foreign_source", before);
        one.namespace().ip_batch(&format!("addr del {source} dev {TUN}\n"));
    }
    assert!(ping(one.namespace(), CAMPUS_V4.into(), 56, SECOND), "its own address still works");
}

#[test]
fn replayed_datagrams_are_dropped_and_counted() {
    let Some(lab) = Lab::new(2) else { return };
    let relay = Relay::start(&lab, Faults { record: true, ..Faults::default() });
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let recorded = relay.recorded();
    assert!(!recorded.is_empty());

    let before = gateway.counter("replayed");
    relay.replay(recorded.clone());
    let after = gateway.counter_above("replayed", before);
    assert!(after - before <= recorded.len() as u64);

    // Replayed from elsewhere they must not move the session either.
    let outer = gateway.sessions()[0]["outer"].clone();
    let attacker = lab.clients[1].within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    for datagram in &recorded {
        attacker.send_to(datagram, (GATEWAY_V4, PORT)).unwrap();
    }
    gateway.counter_above("replayed", after);
    assert_eq!(gateway.sessions()[0]["outer"], outer);
    assert!(ping(one.namespace(), CAMPUS_V4.into(), 56, SECOND));
}

#[test]
fn every_datagram_twice_is_every_packet_once() {
    let Some(lab) = Lab::new(1) else { return };
    let relay = Relay::start(&lab, Faults { seed: 2, repeat: 100, ..Faults::default() });
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let before = gateway.counter("replayed");
    transfer(one.namespace(), &lab.campus, CAMPUS_V4.into(), TEN_MB, 20 * SECOND);
    let [_, _, repeated] = relay.counts();
    let dropped = gateway.counter_above("replayed", before) - before;
    assert!(dropped > 1_000 && dropped <= repeated, "{dropped} of {repeated} were dropped at the gateway");
}

#[test]
fn noise_is_counted_and_never_answered() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let stranger = lab.clients[1].within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    stranger.connect((GATEWAY_V4, PORT)).unwrap();
    stranger.set_read_timeout(Some(SECOND / 2)).unwrap();
    let before = (gateway.counter("unknown_index"), gateway.counter("bad_header"));
    // Well-formed but for an unused index; reserved bits that are not zero; too short;
    // other first bytes.
    let mut unknown = vec![0x80; 48];
    unknown[1..4].fill(0);
    let mut reserved = unknown.clone();
    reserved[2] = 2;
    for datagram in [&unknown[..], &reserved, &[0x80], &[0x90; 64], &[0x00; 64], &[0x05; 1], &[]] {
        for _ in 0..3 {
            stranger.send(datagram).unwrap();
        }
    }
    gateway.counter_above("unknown_index", before.0);
    gateway.counter_above("bad_header", before.1);
    assert!(stranger.recv(&mut [0; 2048]).is_err(), "nobody answered");
    assert!(ping(one.namespace(), CAMPUS_V4.into(), 56, SECOND));
}
