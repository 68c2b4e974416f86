//! Packets in fragments, of which the first alone has ports.

use core::time::Duration;

use super::*;

/// A number that no other packet of the test has.
type Id = u16;

/// Cuts a packet into this many fragments, the first of them 16 bytes long behind its header (32 of
/// TCP).
fn cut(packet: &[u8], id: Id, fragments: usize) -> Vec<Vec<u8>> {
    let part = if packet[9] == TCP { 32 } else { 16 };
    let payload = [&packet[20..], &[7; 500]].concat();
    (0..fragments)
        .map(|at| {
            let more = if at + 1 < fragments { 0x2000 } else { 0 };
            let mut bytes = packet[..20].to_vec();
            bytes[2..4].copy_from_slice(&(20 + part as u16).to_be_bytes());
            bytes[4..6].copy_from_slice(&id.to_be_bytes());
            bytes[6..8].copy_from_slice(&(more | (at * part / 8) as u16).to_be_bytes());
            bytes.extend(&payload[at * part..(at + 1) * part]);
            bytes
        })
        .collect()
}

/// Returns how many of these pass, one after the other.
fn pass(world: &World, fragments: &[Vec<u8>]) -> usize {
    fragments.iter().filter(|fragment| world.passes(fragment)).count()
}

/// Clients may ask one port of the campus, and nothing else passes.
fn one_port() -> World {
    let ask = rule(Verdict::Allow, &[], &[net("10.1.0.9/32")], Protocol::Udp, &[5000..=5000]);
    World::new(false, &[ask, deny(&[], &[])])
}

#[test]
fn what_is_permitted_passes_whole_both_ways_and_what_is_not_does_not_at_all() {
    let world = one_port();
    assert_eq!(pass(&world, &cut(&udp(SERVER, 5000, ALICE, 7), 1, 6)), 0, "nobody has asked");
    assert_eq!(pass(&world, &cut(&udp(ALICE, 7, SERVER, 5001), 2, 6)), 0);
    assert_eq!(pass(&world, &cut(&udp(ALICE, 7, SERVER, 5000), 3, 6)), 6);
    assert_eq!(pass(&world, &cut(&udp(SERVER, 5000, ALICE, 7), 4, 6)), 6);
    assert_eq!(pass(&world, &cut(&udp(SERVER, 5001, ALICE, 7), 5, 6)), 0);
    assert_eq!(pass(&world, &cut(&tcp(ALICE, 7, SERVER, 5000, SYN), 6, 6)), 0);
}

#[test]
fn fragments_of_other_packets_do_not_follow() {
    let world = one_port();
    let first = cut(&udp(ALICE, 7, SERVER, 5000), 3, 2).remove(0);
    assert!(world.passes(&first));
    let rest = |packet: Vec<u8>, id| cut(&packet, id, 2).remove(1);
    for other in [
        rest(udp(ALICE, 7, SERVER, 5000), 4),
        rest(udp(BOB, 7, SERVER, 5000), 3),
        rest(udp(ALICE, 7, BOB, 5000), 3),
        rest(udp(SERVER, 5000, ALICE, 7), 3),
        rest(tcp(ALICE, 7, SERVER, 5000, SYN), 3),
    ] {
        assert!(!world.passes(&other), "{other:?}");
    }
    assert!(world.passes(&rest(udp(ALICE, 7, SERVER, 5000), 3)));
}

#[test]
fn no_fragment_passes_before_its_first_one_nor_long_after() {
    let mut world = one_port();
    let fragments = cut(&udp(ALICE, 7, SERVER, 5000), 3, 3);
    assert!(!world.passes(&fragments[1]), "what it belongs to is not known yet");
    assert!(world.passes(&fragments[0]) && world.passes(&fragments[2]) && world.passes(&fragments[1]));
    world.now = world.now + Duration::from_secs(40);
    assert!(!world.passes(&fragments[1]), "no host waits for so long");
}

#[test]
fn no_first_fragment_is_needed_where_ports_decide_nothing() {
    for world in [World::new(false, &[]), World::new(false, &[allow(&[], &[net("10.1.0.0/16")])])] {
        assert!(world.passes(&later_fragment(UDP, ALICE, SERVER)));
    }
    let all_udp = World::new(false, &[rule(Verdict::Allow, &[], &[], Protocol::Udp, &[])]);
    assert!(all_udp.passes(&later_fragment(UDP, ALICE, BOB)));
    assert!(!all_udp.passes(&later_fragment(TCP, ALICE, BOB)));
    let denied = World::new(false, &[rule(Verdict::Deny, &[], &[], Protocol::Udp, &[53..=53])]);
    assert!(!denied.passes(&later_fragment(UDP, ALICE, SERVER)));
    assert!(denied.passes(&later_fragment(TCP, ALICE, SERVER)));
}

#[test]
fn a_flood_of_first_fragments_displaces_the_oldest_alone_and_takes_no_room() {
    let world = one_port();
    let packets: Vec<_> = (0..1_000).map(|id| cut(&udp(ALICE, 7, SERVER, 5000), id, 2)).collect();
    assert!(packets.iter().all(|fragments| world.passes(&fragments[0])));
    let follow = packets.iter().rev().map(|fragments| world.passes(&fragments[1]));
    assert_eq!(follow.take_while(|passes| *passes).count(), 128);
    assert_eq!(pass(&world, &cut(&udp(SERVER, 5000, ALICE, 7), 1, 2)), 2);
    assert!(world.passes(&packets[999][1]), "what the campus sends displaces nothing of the client's");
}

/// A fragment of IPv6 whose header names `next`, at this offset.
fn v6(next: u8, offset: u16, more: bool, id: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend((8 + payload.len() as u16).to_be_bytes());
    bytes.extend([44, 64]);
    for address in ["fd00::2", "fd20::9"] {
        bytes.extend(address.parse::<std::net::Ipv6Addr>().unwrap().octets());
    }
    bytes.extend([next, 0]);
    bytes.extend((offset | u16::from(more)).to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[test]
fn of_ipv6_the_first_fragment_has_the_protocol_too() {
    let rules = [
        rule(Verdict::Allow, &[], &[net("fd20::/64")], Protocol::Udp, &[53..=53]),
        rule(Verdict::Deny, &[], &[], Protocol::Udp, &[]),
    ];
    let world = World::new(false, &rules);
    let flows = Flows::new([4; 16]);
    let passes = |bytes: &[u8]| {
        let packet = Packet::parse(bytes).unwrap();
        let known = known(world.now, (&flows, Opener::Client), (&flows, Opener::Campus));
        let passes = world.policy.decide(&world.alice, Destination::Campus, &packet, &known).verdict;
        if passes == Verdict::Allow {
            flows.note_passed(world.now, Opener::Client, &packet);
        }
        passes == Verdict::Allow
    };
    let datagram = |port: u8| [0, 7, 0, port, 0, 100, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    // Options that the fragments' headers name, with the datagram behind them.
    let hidden = |port| [&[UDP, 0, 1, 4, 0, 0, 0, 0][..], &datagram(port)].concat();
    for (id, port, is_permitted) in [(1, 53, true), (2, 54, false)] {
        for (id, next, first) in [(id, UDP, datagram(port).to_vec()), (id + 10, 60, hidden(port))] {
            assert_eq!(passes(&v6(next, 0, true, id, &first)), is_permitted);
            for claimed in [next, TCP] {
                assert_eq!(passes(&v6(claimed, 24, false, id, &[9; 16])), is_permitted, "{id} {claimed}");
            }
        }
    }
    assert!(!passes(&v6(TCP, 24, false, 1 << 16 | 1, &[9; 16])), "the number has 32 bits");
}

proptest! {
    #[test]
    fn fragments_follow_the_first_one_and_no_other_passes_but_where_all_would(
        rules in prop::collection::vec(any_rule(), 0..5),
        client_to_client: bool,
        packets in prop::collection::vec((sent(), 2..4_usize), 1..20),
    ) {
        let world = World::new(client_to_client, &rules);
        let mut opened = Vec::new();
        for (id, ((pair, protocol, ports, flags), fragments)) in (1_u16..).zip(packets) {
            let (from, to) = (PARTIES[pair.0], PARTIES[pair.1]);
            let packet = match protocol {
                TCP => tcp(from.0, ports.0, to.0, ports.1, flags),
                _ => udp(from.0, ports.0, to.0, ports.1),
            };
            let early = cut(&packet, id + 1_000, 2).remove(1);
            if world.passes(&early) {
                for ports in [(5000, 22), (22, 5000), (80, 90), (90, 80), (1, 2), (22, 80)] {
                    for flags in [SYN, ACK] {
                        let about = (protocol, ports, flags);
                        let all = model::passes(&rules, client_to_client, &mut opened.clone(), (from, to), about);
                        prop_assert!(all, "alone it passes, though with {:?} it would not", about);
                    }
                }
            }
            let about = (protocol, ports, flags);
            let expected = model::passes(&rules, client_to_client, &mut opened, (from, to), about);
            let passed = pass(&world, &cut(&packet, id, fragments));
            prop_assert_eq!(passed, if expected { fragments } else { 0 }, "{:?}", (from, to, about));
        }
    }
}
