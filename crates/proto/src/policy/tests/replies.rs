//! Packets that pass as replies, and packets that only look like replies.

use core::time::Duration;

use super::*;
use crate::flows::SEED_LEN;

const ROUTER: &str = "10.1.0.1";
const RST: u8 = tcp_flag::RST;

/// Alice may ask bob for `protocol` at these ports.
fn one_way(protocol: Protocol, ports: &[RangeInclusive<u16>]) -> World {
    World::new(false, &[rule(Verdict::Allow, &[user("alice")], &[user("bob")], protocol, ports)])
}

/// Staff may use the campus, and nothing else passes.
fn closed_campus() -> World {
    let staff = rule(Verdict::Allow, &[group("staff")], &[net("10.1.0.0/24")], Protocol::Any, &[]);
    World::new(false, &[staff, deny(&[], &[])])
}

fn error(from: &str, to: &str, kind: u8, about: &[u8]) -> Vec<u8> {
    ip(ICMP, from, to, 0, &[&[kind, 3, 0, 0, 0, 0, 0, 0], &about[..28]].concat())
}

#[test]
fn the_source_port_opens_nothing() {
    let world = one_way(Protocol::Udp, &[53..=53]);
    for port in [22, 53, 5000, 5001] {
        assert!(!world.passes(&udp(BOB, 53, ALICE, port)), "nobody has asked from {port}");
    }
    assert!(world.passes(&udp(ALICE, 5000, BOB, 53)));
    assert!(world.passes(&udp(BOB, 53, ALICE, 5000)));
    assert!(!world.passes(&udp(BOB, 53, ALICE, 5001)) && !world.passes(&udp(BOB, 54, ALICE, 5000)));
}

#[test]
fn no_answer_passes_without_its_connection() {
    let world = one_way(Protocol::Tcp, &[]);
    for flags in [ACK, RST, SYN | ACK] {
        assert!(!world.passes(&tcp(BOB, 22, ALICE, 5000, flags)), "a scan: {flags}");
    }
    assert!(world.passes(&tcp(ALICE, 5000, BOB, 22, SYN)));
    for flags in [ACK, RST, SYN | ACK] {
        assert!(world.passes(&tcp(BOB, 22, ALICE, 5000, flags)));
        assert!(!world.passes(&tcp(BOB, 22, ALICE, 5001, flags)), "another port");
    }
    assert!(!world.passes(&tcp(BOB, 22, ALICE, 5000, SYN)));
}

#[test]
fn a_responder_keeps_no_flow() {
    let mut world = one_way(Protocol::Udp, &[]);
    assert!(world.passes(&udp(ALICE, 5000, BOB, 53)));
    for _ in 0..10 {
        world.now = world.now + Duration::from_secs(29);
        assert!(world.passes(&udp(BOB, 53, ALICE, 5000)));
    }
    world.now = world.now + Duration::from_secs(29);
    assert!(!world.passes(&udp(BOB, 53, ALICE, 5000)), "alice has been silent for five minutes");
    assert!(world.passes(&udp(ALICE, 5000, BOB, 53)));
    assert!(world.passes(&udp(BOB, 53, ALICE, 5000)));
}

#[test]
fn a_silent_connection_lasts_for_two_hours() {
    let mut world = one_way(Protocol::Tcp, &[]);
    assert!(world.passes(&tcp(ALICE, 5000, BOB, 22, SYN)));
    world.now = world.now + Duration::from_secs(2 * 3_600);
    assert!(world.passes(&tcp(BOB, 22, ALICE, 5000, ACK)));
    world.now = world.now + Duration::from_secs(300);
    assert!(!world.passes(&tcp(BOB, 22, ALICE, 5000, ACK)));
}

#[test]
fn a_ping_is_answered_and_nothing_else_is() {
    let world = one_way(Protocol::Icmp, &[]);
    let echo = |from, to, kind, id| ip(ICMP, from, to, 0, &[kind, 0, 0, 0, 0, id, 0, 1]);
    assert!(!world.passes(&echo(BOB, ALICE, 0, 7)));
    assert!(world.passes(&echo(ALICE, BOB, 8, 7)));
    assert!(world.passes(&echo(BOB, ALICE, 0, 7)));
    assert!(!world.passes(&echo(BOB, ALICE, 0, 8)), "another identifier");
    assert!(!world.passes(&echo(BOB, ALICE, 14, 7)), "another question");
}

#[test]
fn an_error_is_a_reply_to_the_packet_that_it_is_about() {
    let world = one_way(Protocol::Udp, &[53..=53]);
    let question = udp(ALICE, 5000, BOB, 53);
    assert!(!world.passes(&error(BOB, ALICE, 3, &question)), "she has not asked");
    assert!(world.passes(&question));
    assert!(world.passes(&error(BOB, ALICE, 3, &question)));
    assert!(!world.passes(&error(BOB, ALICE, 3, &udp(ALICE, 5000, BOB, 54))));
    assert!(!world.passes(&error(BOB, ALICE, 3, &udp(BOB, 53, ALICE, 5000))), "it quotes his own");
    assert!(!world.passes(&error(BOB, ALICE, 5, &question)), "no error but a redirection");
    let short = ip(ICMP, BOB, ALICE, 0, &[&[3, 3, 0, 0, 0, 0, 0, 0], &question[..22]].concat());
    assert!(!world.passes(&short), "it quotes no ports");

    let to_campus = tcp(ALICE, 5000, "10.1.0.9", 443, SYN);
    let world = closed_campus();
    assert!(!world.passes(&error(ROUTER, ALICE, 11, &to_campus)));
    assert!(world.passes(&to_campus));
    assert!(world.passes(&error(ROUTER, ALICE, 11, &to_campus)), "a router on the way");
    assert!(!world.passes(&error(ROUTER, BOB, 11, &to_campus)), "to somebody else");
    assert!(world.passes(&tcp(BOB, 1, ALICE, 2, SYN)) == world.passes(&error(BOB, ALICE, 3, &to_campus)));
}

#[test]
fn nothing_is_remembered_where_both_directions_pass() {
    let management = deny(&[], &[net("10.1.0.66/32")]);
    let clients = allow(&[Selector::Clients], &[Selector::Clients]);
    for rules in [vec![], vec![management, clients, allow(&[], &[net("10.1.0.0/24")])]] {
        let world = World::new(rules.is_empty(), &rules);
        for packet in [
            udp(ALICE, 1, SERVER, 2),
            udp(SERVER, 2, ALICE, 1),
            udp(SERVER, 3, ALICE, 4),
            udp(ALICE, 1, BOB, 2),
            tcp(BOB, 2, ALICE, 1, SYN),
        ] {
            assert!(world.passes(&packet), "{rules:?}");
        }
        assert!(world.remembers_nothing(), "{rules:?}");
    }
    let world = closed_campus();
    assert!(world.passes(&udp(ALICE, 1, SERVER, 2)) && !world.remembers_nothing());
}

#[test]
fn inbound_flows_do_not_displace_outbound_ones() {
    let rules = [
        rule(Verdict::Allow, &[user("alice")], &[net("10.1.0.0/24")], Protocol::Udp, &[53..=53]),
        rule(Verdict::Allow, &[net("10.1.0.0/24")], &[user("alice")], Protocol::Udp, &[]),
        deny(&[], &[]),
    ];
    let world = World::new(false, &rules[..]);
    assert!(world.passes(&udp(ALICE, 5000, SERVER, 53)));
    for port in 1024..60_000 {
        assert!(world.passes(&udp(SERVER, port, ALICE, 7)));
    }
    // By the second rule it passes anyway; without it, as a reply.
    let known = |key: &FlowKey| world.flows[0].knows(world.now, Opener::Client, key);
    let reply = udp(SERVER, 53, ALICE, 5000);
    assert!(known(&FlowKey::of_reply(&Packet::parse(&reply).unwrap()).unwrap()));
    assert!(world.passes(&udp(ALICE, 7, SERVER, 59_999)), "the newest is known, too");
}

#[test]
fn flows_continue_in_another_process() {
    let mut world = one_way(Protocol::Any, &[]);
    for port in 1..=20 {
        assert!(world.passes(&udp(ALICE, port, BOB, 53)));
        assert!(world.passes(&tcp(ALICE, port, BOB, 22, SYN)));
    }
    let exported = world.flows[0].export();
    assert_eq!(exported.len(), SEED_LEN + 8 + 40 * 10, "only what is there");
    assert!(Flows::import(&exported[..exported.len() - 1]).is_none(), "it is torn");
    world.flows[0] = Flows::import(&exported).unwrap();
    for port in 1..=20 {
        assert!(world.passes(&udp(BOB, 53, ALICE, port)) && world.passes(&tcp(BOB, 22, ALICE, port, ACK)));
    }
    assert!(!world.passes(&udp(BOB, 53, ALICE, 21)));
}

#[test]
fn after_a_restart_connections_are_believed_for_two_minutes() {
    let mut world = one_way(Protocol::Any, &[]);
    world.flows[0].excuse(world.now);
    world.now = world.now + Duration::from_secs(119);
    assert!(world.passes(&tcp(BOB, 22, ALICE, 5000, ACK)));
    assert!(!world.passes(&tcp(BOB, 22, ALICE, 5000, SYN)), "this opens one");
    assert!(!world.passes(&udp(BOB, 53, ALICE, 5000)), "without a connection its opener asks again");
    world.now = world.now + Duration::from_secs(2);
    assert!(!world.passes(&tcp(BOB, 22, ALICE, 5000, ACK)));
}
