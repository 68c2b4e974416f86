//! Hostile senders: recorded datagrams that come again, and floods of those who know the gateway's
//! public key, as everybody does who has ever had a configuration.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::relay::{Faults, Relay};
use vpnd_wireguard::mac::{HandshakeMessage as _, Mac1Key};
use vpnd_wireguard::message::Message;
use zerocopy::IntoBytes as _;

use super::*;

#[test]
fn replayed_datagrams_of_a_wireguard_device_change_nothing() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(2) else { return };
    let (gateway, file) = gateway_for_phone(&lab);
    let relay = Relay::start(&lab, Faults { record: true, record_all: true, ..Faults::default() });
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    let before = sessions_of(&gateway, "wireguard");
    let recorded = relay.recorded();
    let is_first = |datagram: &&Vec<u8>| datagram.len() == 148 && datagram[0] == 1;
    assert!(recorded.iter().any(|datagram| is_first(&datagram)));
    assert!(recorded.iter().any(|datagram| datagram[0] == 4));
    // From somewhere else, as who has recorded them would.
    let elsewhere = lab.clients[1].within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let replay = || {
        let refused = handshakes(&gateway, "replayed");
        for datagram in &recorded {
            elsewhere.send_to(datagram, (GATEWAY_V4, file.port())).unwrap();
        }
        eventually("its handshake is refused", PATIENCE, || {
            (handshakes(&gateway, "replayed") > refused).then_some(())
        });
    };
    replay();
    gateway.counter_above("replayed", 0);
    // The gateway's next process has the keys, and knows what was received with them.
    must(gateway.upgrade());
    let before_upgrade = gateway.counter("replayed");
    replay();
    gateway.counter_above("replayed", before_upgrade);
    assert!(ping(phone.place, CAMPUS_V4.into(), 56, PATIENCE));
    assert!(ping(&lab.campus, phone.v4(), 56, PATIENCE), "the device is where it was");
    let after = sessions_of(&gateway, "wireguard");
    assert_eq!((&after[0]["id"], &after[0]["outer"]), (&before[0]["id"], &before[0]["outer"]));
}

/// First messages of which the first MAC alone is right.
fn junk(gateway: PublicKey, count: u64) -> Vec<Vec<u8>> {
    let message = |number: u64| {
        let mut bytes = [0x5A; 148];
        bytes[..4].copy_from_slice(&[1, 0, 0, 0]);
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        let Ok(Message::Initiation(message)) = Message::parse(&bytes) else { panic!("148 bytes of type 1") };
        let mut message = *message;
        message.stamp(&Mac1Key::new(gateway), None);
        message.as_bytes().to_vec()
    };
    (0..count).map(message).collect()
}

#[test]
fn a_flood_with_a_valid_mac1_gets_cookies_and_affects_no_session() {
    /// More than all hosts together may begin handshakes without a proof of their addresses.
    const HOSTS: u8 = 100;
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(4) else { return };
    let (gateway, file) = gateway_for_phone(&lab);
    let bob = gateway.add_user("bob");
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    let session = sessions_of(&gateway, "wireguard")[0]["id"].clone();
    let hosts = (100..100 + HOSTS).map(|host| format!("addr add 198.18.4.{host}/24 dev {UPLINK}\n"));
    lab.clients[3].ip_batch(&hosts.collect::<String>());
    let bind = |host| lab.clients[3].within(|| UdpSocket::bind(format!("198.18.4.{host}:0"))).unwrap();
    let sockets: Vec<UdpSocket> = (100..100 + HOSTS).map(bind).collect();
    let messages = junk(file.get("Peer.PublicKey").parse().unwrap(), 1_000);
    let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (socket, message) in sockets.iter().cycle().zip(messages.iter().cycle()) {
                let _ = socket.send_to(message, (GATEWAY_V4, file.port()));
                if sent.fetch_add(1, Ordering::Relaxed) % 16 == 0 {
                    std::thread::sleep(SECOND / 1_000);
                }
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let laptop = Client::connect(&lab, 2, &bob);
        ping_until(laptop.namespace(), CAMPUS_V4.into(), PATIENCE);
        // A peer with a cookie gets through: stock clients do five seconds later.
        let tablet = Stock::start(&lab, 3, &program, &add_device_for(&gateway, "ann", "tablet"));
        ping_until(tablet.place, CAMPUS_V4.into(), PATIENCE);
        ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
        over.store(true, Ordering::Relaxed);
    });
    let sent = sent.into_inner();
    let (cookies, passed) = (handshakes(&gateway, "cookies"), handshakes(&gateway, "passed"));
    println!("{sent} sent, {cookies} asked for a proof, {passed} passed on");
    assert!(cookies > 0 && passed < sent / 2);
    let sessions = sessions_of(&gateway, "wireguard");
    assert!(sessions.iter().any(|other| other["id"] == session), "the device's session is the same");
}
