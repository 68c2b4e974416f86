//! Tables against a list that remembers everything.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use vpnd_packet::UDP;

const START: Time = Time::from_nanos(u64::MAX / 4);

fn packet(protocol: u8, source: u16, port: u16) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    bytes.extend(source.to_be_bytes());
    bytes.extend(port.to_be_bytes());
    bytes.extend([0, 20, 0, 0, 0, 0, 0, 1, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    bytes
}

fn key(protocol: u8, source: u16, port: u16) -> FlowKey {
    FlowKey::of_opener(&Packet::parse(&packet(protocol, source, port)).unwrap()).unwrap()
}

fn enter(flows: &Flows, now: Time, protocol: u8, source: u16) {
    flows.enter(now, Opener::Client, &Packet::parse(&packet(protocol, source, 53)).unwrap());
}

fn knows(flows: &Flows, now: Time, protocol: u8, source: u16) -> bool {
    flows.knows(now, Opener::Client, &key(protocol, source, 53))
}

proptest! {
    #[test]
    fn agrees_with_a_list_while_it_has_room(
        steps in prop::collection::vec((0..60_u64, any::<bool>(), 0..40_u16), 1..200),
    ) {
        let flows = Flows::new([3; SEED_LEN]);
        let mut list = HashMap::new();
        let mut now = START;
        for (seconds, is_tcp, source) in steps {
            now = now + Duration::from_secs(seconds);
            let protocol = if is_tcp { TCP } else { UDP };
            let idle = if is_tcp { 2 * 3_600 + 240 } else { 300 };
            let since = list.get(&(protocol, source)).map(|since| (now - *since).as_secs());
            // Within two units of the limit either is right.
            if since.is_none_or(|since: u64| since.abs_diff(idle) > 9) {
                let expected = since.is_some_and(|since| since < idle);
                prop_assert_eq!(knows(&flows, now, protocol, source), expected, "{:?}", since);
            }
            if seconds % 2 == 0 {
                enter(&flows, now, protocol, source);
                list.insert((protocol, source), now);
            }
        }
    }
}

#[test]
fn a_shard_whose_clock_is_behind_knows_what_another_has_entered() {
    let flows = Flows::new([3; SEED_LEN]);
    enter(&flows, START + Duration::from_secs(5), UDP, 1);
    assert!(knows(&flows, START, UDP, 1));
}

#[test]
fn a_flood_of_datagrams_displaces_few_connections() {
    let flows = Flows::new([3; SEED_LEN]);
    for source in 0..100 {
        enter(&flows, START, TCP, source);
    }
    let now = START + Duration::from_secs(60);
    for source in 0..60_000 {
        enter(&flows, now, UDP, source);
        assert!(knows(&flows, now, UDP, source), "the newest is known");
    }
    assert_eq!(flows.by_client.entries().count(), SETS * WAYS, "the room is fixed");
    let known = (0..100).filter(|source| knows(&flows, now, TCP, *source)).count();
    assert!(known >= 95, "{known} of 100 connections");
}

#[test]
fn no_flow_is_taken_for_another() {
    let flows = Flows::new([3; SEED_LEN]);
    enter(&flows, START, UDP, 5_000);
    let known = key(UDP, 5_000, 53);
    assert!(flows.knows(START, Opener::Client, &known) && !flows.knows(START, Opener::Campus, &known));
    let addresses: [IpAddr; 4] = [
        [10, 0, 0, 3].into(),
        Ipv4Addr::UNSPECIFIED.into(),
        Ipv6Addr::LOCALHOST.into(),
        Ipv6Addr::from(1 << 64).into(),
    ];
    let others = addresses
        .into_iter()
        .flat_map(|address| [FlowKey { opener: address, ..known }, FlowKey { responder: address, ..known }]);
    let ports = (0..=u16::MAX).filter(|port| *port != 53).map(|port| key(UDP, 5_000, port));
    for other in others.chain(ports).chain([key(TCP, 5_000, 53), key(UDP, 53, 5_000)]) {
        assert!(!flows.knows(START, Opener::Client, &other), "{other:?}");
    }
}

#[test]
fn seeds_make_different_places() {
    let exported = [[3; SEED_LEN], [4; SEED_LEN]].map(|seed| {
        let flows = Flows::new(seed);
        enter(&flows, START, UDP, 1);
        flows.export().split_off(SEED_LEN + 8)
    });
    assert_ne!(exported[0], exported[1]);
}
