//! The cost of each inner packet beside encryption: header, checks, replay window, routes, policy.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use vpnd_packet::{Packet, SourceFilter};
use vpnd_proto::flows::{Flows, Opener, known};
use vpnd_proto::policy::{Destination, Names, Policy, Principal, Protocol, RuleSpec, Selector, Verdict};
use vpnd_proto::replay::ReplayWindow;
use vpnd_proto::route::RouteTable;
use vpnd_proto::time::Time;
use vpnd_proto::wire::{Header, Index};

use crate::stage::{Load, Name, Side, Stage, Unit};
use crate::traffic::{CAMPUS, CLIENT, packet};

/// Clients in the route table.
const CLIENTS: u32 = 10_000;

/// All stages of this module for packets of `len` bytes.
pub fn stages(len: usize) -> Vec<Stage> {
    vec![route(len), write_header(len), read_header(len), replay(len), parse(len), policy(len)]
}

/// Stages in place of the policy by default where policy has to remember flows.
pub fn flow_stages(len: usize) -> Vec<Stage> {
    vec![policy_with_flows(len), reply_by_flows(len)]
}

fn one(len: usize) -> Load {
    Load { packets: 1, bytes: len }
}

/// Reading the packet's header and finding the session of its destination among many.
fn route(len: usize) -> Stage {
    let mut table = RouteTable::new(0x5EED);
    for client in 0..CLIENTS {
        table
            .insert(IpAddr::V4(Ipv4Addr::from_bits(0x0A08_0000 + client)).into(), client)
            .expect("a free address");
    }
    table.insert("10.0.0.0/8".parse().expect("a network"), 0).expect("a free prefix");
    let bytes = packet(CAMPUS, CLIENT, len);
    let mut client = 0;
    Stage::plain(Name::new("parse and route", Side::Sender, Unit::SuperPacket), one(len), move || {
        client = (client + 7919) % CLIENTS;
        black_box(Packet::parse(black_box(&bytes)).expect("a good packet"));
        black_box(table.lookup(IpAddr::V4(Ipv4Addr::from_bits(0x0A08_0000 + client))));
    })
}

fn write_header(len: usize) -> Stage {
    let mut counter = 0;
    Stage::plain(Name::new("write header", Side::Sender, Unit::Packet), one(len), move || {
        counter += 1;
        black_box(
            Header { lane: 1, confirm: false, index: Index(7), counter: black_box(counter) }.to_bytes(),
        );
    })
}

fn read_header(len: usize) -> Stage {
    let bytes = Header { lane: 1, confirm: false, index: Index(7), counter: 9 }.to_bytes();
    Stage::plain(Name::new("read header", Side::Receiver, Unit::Packet), one(len), move || {
        black_box(Header::parse(black_box(&bytes)).expect("a data header"));
    })
}

fn replay(len: usize) -> Stage {
    let mut window = ReplayWindow::new();
    let mut counter = 0;
    Stage::plain(Name::new("replay window", Side::Receiver, Unit::Packet), one(len), move || {
        counter += 1;
        assert!(window.check(black_box(counter)) && window.commit(counter), "counters grow");
    })
}

/// Checking the opened packet and its source.
fn parse(len: usize) -> Stage {
    let bytes = packet(CLIENT, CAMPUS, len);
    let filter = SourceFilter::new([IpAddr::V4(CLIENT.into()).into()]);
    Stage::plain(Name::new("parse and check source", Side::Receiver, Unit::Packet), one(len), move || {
        let packet = Packet::parse(black_box(&bytes)).expect("a good packet");
        assert!(filter.permits(&packet), "the source is the client's own");
        black_box(packet.dst());
    })
}

/// Where the packet goes and whether it may, by a gateway's default policy.
fn policy(len: usize) -> Stage {
    let mut table = RouteTable::new(0x5EED);
    table.insert(IpAddr::V4(CLIENT.into()).into(), 0_u32).expect("a free address");
    let policy = Policy::without_rules(true);
    let bytes = packet(CLIENT, CAMPUS, len);
    let from = Principal::default();
    Stage::plain(Name::new("policy and route", Side::Receiver, Unit::Packet), one(len), move || {
        let packet = Packet::parse(&bytes).expect("a good packet");
        black_box(table.lookup(black_box(CAMPUS.into())));
        black_box(policy.decide(black_box(&from), Destination::Campus, black_box(&packet), &|_| false));
    })
}

/// A policy that lets clients use the campus and nothing else, so that replies pass only in flows
/// that are remembered.
fn closed() -> Policy {
    let any = |action, from: &[Selector]| RuleSpec {
        action,
        from: from.to_vec(),
        to: Vec::new(),
        protocol: Protocol::Any,
        ports: Vec::new(),
    };
    let rules = [any(Verdict::Allow, &[Selector::Clients]), any(Verdict::Deny, &[])];
    Policy::compile(&rules, false, &mut Names::new()).expect("good rules")
}

/// A client's packet by such a policy: its flow is known already, as that of nearly every packet.
fn policy_with_flows(len: usize) -> Stage {
    let (policy, flows, now) = (closed(), Flows::new([7; 16]), Time::from_nanos(1 << 50));
    let bytes = packet(CLIENT, CAMPUS, len);
    let from = Principal::default();
    Stage::plain(Name::new("policy that remembers", Side::Receiver, Unit::Packet), one(len), move || {
        let packet = Packet::parse(black_box(&bytes)).expect("a good packet");
        let known = known(now, (&flows, Opener::Client), (&flows, Opener::Campus));
        let decision = policy.decide(&from, Destination::Campus, &packet, &known);
        assert!(decision.opens && decision.verdict == Verdict::Allow, "it opens a flow");
        flows.enter(black_box(now), Opener::Client, &packet);
    })
}

/// The reply to it.
fn reply_by_flows(len: usize) -> Stage {
    let (policy, flows, now) = (closed(), Flows::new([7; 16]), Time::from_nanos(1 << 50));
    let (bytes, mut request) = (packet(CAMPUS, CLIENT, len), packet(CLIENT, CAMPUS, len));
    // All packets of this module have the same ports.
    request[20..24].rotate_left(2);
    flows.enter(now, Opener::Client, &Packet::parse(&request).expect("a good packet"));
    let to = Principal::default();
    Stage::plain(Name::new("policy for a reply", Side::Receiver, Unit::Packet), one(len), move || {
        let packet = Packet::parse(black_box(&bytes)).expect("a good packet");
        let known = known(black_box(now), (&flows, Opener::Campus), (&flows, Opener::Client));
        let decision = policy.decide_from_campus(&to, &packet, &known);
        assert!(decision.verdict == Verdict::Allow, "its flow is known");
    })
}
