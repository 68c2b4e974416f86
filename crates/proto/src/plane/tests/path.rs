//! Behaviour: a path whose large datagrams arrive is not checked, if the peer confirms them
//! (PROTOCOL §13.2).

use super::*;
use crate::control::{FEATURE_PATH_CONFIRM, FEATURE_PATH_SIZE};

const HOME: &str = "198.51.100.1:1000";
const SIZE: u16 = 1_400;

/// Counts of a download.
struct Download {
    checks: usize,
    flagged: usize,
}

/// A packet between two inner hosts that fills the path.
fn large(from: u8, to: u8) -> Vec<u8> {
    let mut large = [packet(from, to), vec![0; 1_330]].concat();
    let len = u16::try_from(large.len()).unwrap();
    large[2..4].copy_from_slice(&len.to_be_bytes());
    with_hops(large, 64)
}

/// For three seconds a large packet each 10 ms, and the client answers each with a small one.
fn download(features: u32) -> Download {
    let mut net = Net::new(false);
    net.install(ALICE, 2, features);
    for plane in [&mut net.gateway, &mut net.clients[0]] {
        plane.apply(Command::PathSize { slot: slot(0), size: SIZE });
    }
    let large = large(200, 10);
    let hello = net.client_sends(ALICE, &[]);
    net.gateway_gets(&hello, HOME).unwrap();
    let mut seen = Download { checks: 0, flagged: 0 };
    for _ in 0..300 {
        net.now = net.now + Duration::from_millis(10);
        let mut datagram = seal(&mut net.gateway, net.now, slot(ALICE), &large).unwrap();
        assert!(datagram.len() + 32 > SIZE.into() && datagram.len() <= SIZE.into());
        seen.checks += std::iter::from_fn(|| net.gateway.poll_path_check()).count();
        open(&mut net.clients[0], net.now, &mut datagram, GATEWAY, Ecn::NotEct).unwrap();
        let answer = net.client_sends(ALICE, &packet(10, 200));
        seen.flagged += usize::from(Header::parse(&answer).unwrap().confirm);
        net.gateway_gets(&answer, HOME).unwrap();
    }
    seen
}

#[test]
fn a_download_whose_datagrams_are_confirmed_is_asked_about_once() {
    let seen = download(FEATURE_PATH_SIZE | FEATURE_PATH_CONFIRM);
    assert_eq!((seen.checks, seen.flagged), (1, 300));
    let seen = download(FEATURE_PATH_SIZE);
    assert_eq!((seen.checks, seen.flagged), (3, 0), "to a peer without the feature nothing has changed");
}

#[test]
fn a_client_that_states_no_size_is_sent_packets_of_any_size() {
    let mut net = Net::new(false);
    net.meet();
    let exceeds = |net: &mut Net, len| net.gateway.sender(net.now, slot(ALICE)).unwrap().exceeds_path(len);
    assert!(!exceeds(&mut net, 9_000));
    net.gateway.apply(Command::PathSize { slot: slot(ALICE), size: 1_000 });
    assert_eq!(
        (exceeds(&mut net, 1_168), exceeds(&mut net, 1_169)),
        (false, true),
        "datagrams of 1,200 bytes at least"
    );
}

#[test]
fn probes_of_a_flood_are_dropped_but_for_as_many_as_a_search_has() {
    let mut net = Net::new(false);
    let (mut datagram, mut answered) = (vec![0; 1_000], [0_u64; 2]);
    for answers in &mut answered {
        for id in 0..10_000 {
            net.now = net.now + Duration::from_micros(100);
            let probe = match id % 2 {
                0 => Outgoing::PathProbe { slot: slot(0), id, size: 600, known: None },
                _ => Outgoing::Probe { slot: slot(0), id, size: 600 },
            };
            let sealed = net.clients[0].originate(net.now, probe, &mut datagram).unwrap();
            match net.gateway_gets(&datagram[..sealed.len], HOME) {
                Ok(Opened::Probe { .. }) => *answers += 1,
                other => assert_eq!(other, Err(DropReason::RateLimit)),
            }
        }
    }
    assert!((600..=613).contains(&answered[0]) && (99..=101).contains(&answered[1]), "{answered:?}");
    let dropped = net.gateway.counters().dropped(DropReason::RateLimit);
    assert_eq!(dropped, 20_000 - answered.iter().sum::<u64>());
}

/// A gateway of two shards, of which the second one only sends, and a client with one lane.
fn two_shards() -> (Net, Plane) {
    let mut net = Net::new(false);
    let mut second = Plane::new(Role::Gateway, policy(false), 7);
    let session = SessionSpec {
        slot: slot(ALICE),
        addresses: vec![address(ALICE)],
        principal: Principal::default(),
        limits: None,
        flows: Arc::default(),
        path: Arc::default(),
    };
    let [keys, mut client] = net.keys(ALICE, 2, FEATURE_PATH_SIZE | FEATURE_PATH_CONFIRM);
    client.receive[0].lanes = vec![0, 1];
    let sends = EpochSpec { lane: 1, receive: Vec::new(), ..keys.clone() };
    for (plane, keys) in [(&mut net.gateway, keys), (&mut second, sends)] {
        plane.apply(Command::Open(session.clone()));
        plane.apply(Command::Install(Box::new(keys)));
        plane.apply(Command::PathSize { slot: slot(ALICE), size: SIZE });
        let endpoint = endpoint(HOME);
        plane.apply(Command::Reach { slot: slot(ALICE), epoch: 2, lane: 0, endpoint });
    }
    net.clients[0].apply(Command::Install(Box::new(client)));
    net.clients[0].apply(Command::PathSize { slot: slot(0), size: SIZE });
    (net, second)
}

#[test]
fn what_one_shard_sent_is_confirmed_to_another() {
    let (mut net, mut second) = two_shards();
    let large = large(200, 10);
    let mut checks = Vec::new();
    for step in 0..300 {
        net.now = net.now + Duration::from_millis(10);
        let mut datagram = seal(&mut second, net.now, slot(ALICE), &large).unwrap();
        checks.extend(std::iter::from_fn(|| second.poll_path_check()).map(|_| step));
        open(&mut net.clients[0], net.now, &mut datagram, GATEWAY, Ecn::NotEct).unwrap();
        let answer = net.client_sends(ALICE, &packet(10, 200));
        // In the last second its answers are lost.
        if step < 200 {
            net.gateway_gets(&answer, HOME).unwrap();
        }
    }
    assert_eq!(checks[0], 0, "before anything has come back");
    assert_eq!(checks[1], 220, "200 ms after the last confirmation: {checks:?}");
}

#[test]
fn what_one_shard_received_is_confirmed_by_another() {
    let (mut net, mut second) = two_shards();
    let flagged = |second: &mut Plane, now| {
        let answer = seal(second, now, slot(ALICE), &packet(200, 10)).unwrap();
        Header::parse(&answer).unwrap().confirm
    };
    assert!(!flagged(&mut second, net.now), "nothing has come");
    for _ in 0..3 {
        for millis in [0, 5, 40, 900] {
            let datagram = net.client_sends(ALICE, &large(10, 200));
            net.gateway_gets(&datagram, HOME).unwrap();
            net.now = net.now + Duration::from_millis(millis);
        }
        assert!(flagged(&mut second, net.now), "one has come within a second");
        assert!(!flagged(&mut second, net.now), "it is confirmed already");
    }
    let datagram = net.client_sends(ALICE, &large(10, 200));
    net.gateway_gets(&datagram, HOME).unwrap();
    assert!(!flagged(&mut second, net.now + Duration::from_millis(1_001)), "it came too long ago");
}
