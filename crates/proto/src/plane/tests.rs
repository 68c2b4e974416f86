use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use vpnd_crypto::{Backend, EpochSecret, Suite};

use super::*;
use crate::control::{FEATURE_ECN, FEATURES};
use crate::policy::{Principal, Verdict};
use crate::rate::Segments;
use crate::wire::{HEADER_LEN, Header};
use vpnd_packet::PARTIAL_CHECKSUM;
use vpnd_packet::ecn::{Ecn, Unused};

mod accounting;
mod features;
mod halves;
mod limits;
mod path;
mod wireguard;

const GATEWAY: &str = "192.0.2.1:4433";
const ALICE: u32 = 0;
const BOB: u32 = 1;
const START: Time = Time::from_nanos(1_000_000_000);

fn policy(client_to_client: bool) -> Arc<Policy> {
    Arc::new(Policy::without_rules(client_to_client))
}

fn access<const N: usize>(policy: Policy, principals: [(Slot, Principal); N]) -> Command {
    Command::Access(Access { policy: Some(Arc::new(policy)), principals: principals.into() })
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint { remote: address.parse().unwrap(), local: None }
}

fn slot(place: u32) -> Slot {
    Slot { index: place, generation: 0 }
}

/// Client number `place` has 10.0.0.(10 + place).
fn address(place: u32) -> IpNet {
    format!("10.0.0.{}/32", 10 + place).parse().unwrap()
}

/// A gateway with one shard, and clients with one lane each.
struct Net {
    now: Time,
    gateway: Plane,
    clients: Vec<Plane>,
}

impl Net {
    fn new(client_to_client: bool) -> Self {
        let mut net = Self {
            now: START,
            gateway: Plane::new(Role::Gateway, policy(client_to_client), 7),
            clients: Vec::new(),
        };
        for place in [ALICE, BOB] {
            let mut client = Plane::new(Role::Client, policy(false), 7);
            let spec = |slot| SessionSpec {
                slot,
                addresses: vec![address(place)],
                principal: Principal::default(),
                limits: None,
                flows: Arc::default(),
                path: Arc::default(),
            };
            client.apply(Command::Open(spec(slot(0))));
            net.gateway.apply(Command::Open(spec(slot(place))));
            net.clients.push(client);
            net.install(place, 1, FEATURES);
        }
        net
    }

    /// Gives both ends the keys of an epoch.
    fn install(&mut self, place: u32, epoch: u32, features: u32) {
        let [gateway, client] = self.keys(place, epoch, features);
        self.gateway.apply(Command::Install(Box::new(gateway)));
        self.clients[place as usize].apply(Command::Install(Box::new(client)));
    }

    /// An epoch as the gateway and the client need it.
    fn keys(&self, place: u32, epoch: u32, features: u32) -> [EpochSpec; 2] {
        let secret = [u8::try_from(epoch * 16 + place).unwrap(); 32];
        let spec = |slot, own, peer, endpoint| EpochSpec {
            slot,
            epoch,
            suite: Suite::Aes128Gcm,
            backend: Backend::Ring,
            lab: None,
            secret: Arc::new(EpochSecret::new(secret)),
            features,
            lane: 0,
            peer_index: Index(peer),
            peer_lane: 0,
            endpoint,
            receive: vec![ReceiveSpec { index: Index(own), lanes: vec![0] }],
            reject_at: self.now + Duration::from_secs(180),
        };
        let at_gateway = 0x100 * (epoch * 16 + place);
        let at_client = at_gateway + 0x8000;
        [
            spec(slot(place), at_gateway, at_client, None),
            spec(slot(0), at_client, at_gateway, Some(endpoint(GATEWAY))),
        ]
    }

    /// A datagram of a client with this plaintext.
    fn client_sends(&mut self, place: u32, plaintext: &[u8]) -> Vec<u8> {
        seal(&mut self.clients[place as usize], self.now, slot(0), plaintext)
            .expect("the client has an epoch")
    }

    fn gateway_gets(&mut self, datagram: &[u8], from: &str) -> Result<Opened, DropReason> {
        open(&mut self.gateway, self.now, &mut datagram.to_vec(), from, Ecn::NotEct)
    }

    /// Has the gateway receive from every client, so that it can seal for all.
    fn meet(&mut self) {
        for (place, from) in [(ALICE, "198.51.100.1:1000"), (BOB, "198.51.100.2:2000")] {
            let hello = self.client_sends(place, &[]);
            assert_eq!(self.gateway_gets(&hello, from), Ok(Opened::Consumed));
        }
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.gateway.poll_event()).collect()
    }
}

fn open(
    plane: &mut Plane,
    now: Time,
    datagram: &mut [u8],
    from: &str,
    mark: Ecn,
) -> Result<Opened, DropReason> {
    let header = Header::parse(datagram).map_err(|_| DropReason::BadHeader)?;
    plane
        .open(now, header, datagram, Origin { from: endpoint(from), mark, congested: false })
        .map_err(Dropped::reason)
}

/// Seals a packet for another client, as a shard does: in the buffer in which it was opened.
fn forward(
    plane: &mut Plane,
    now: Time,
    to: Slot,
    datagram: &mut [u8],
    len: usize,
) -> Result<Sealed, DropReason> {
    let mut sender = plane.sender(now, to).map_err(|no_sender| no_sender.give_up().reason())?;
    sender.seal_packet(datagram, len).map_err(Dropped::reason)
}

/// The session that a packet of the TUN device is for.
fn route(plane: &mut Plane, now: Time, packet: &[u8]) -> Result<Slot, DropReason> {
    match plane.route(now, &Packet::parse(packet).unwrap()) {
        Ok(sender) => Ok(sender.slot()),
        Err(no_sender) => Err(no_sender.give_up().reason()),
    }
}

fn seal(plane: &mut Plane, now: Time, slot: Slot, plaintext: &[u8]) -> Result<Vec<u8>, DropReason> {
    let mut datagram = vec![0; HEADER_LEN + plaintext.len() + 48];
    datagram[HEADER_LEN..HEADER_LEN + plaintext.len()].copy_from_slice(plaintext);
    let mut sender = plane.sender(now, slot).map_err(|no_sender| no_sender.give_up().reason())?;
    let sealed = sender.seal(&mut datagram, plaintext.len()).map_err(Dropped::reason)?;
    datagram.truncate(sealed.len);
    Ok(datagram)
}

/// A UDP packet between two inner hosts, each given by the last byte of its address in 10.0.0.0/24.
fn packet(from: u8, to: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
    packet.extend([0x10, 0, 0x20, 0, 0, 12, 0, 0, 1, 2, 3, 4]);
    let sum = vpnd_packet::checksum::ipv4_header(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn a_packet_goes_to_the_tun_device_and_back() {
    let mut net = Net::new(false);
    let sent = packet(10, 200);
    let mut datagram = net.client_sends(ALICE, &sent);
    let opened = open(&mut net.gateway, net.now, &mut datagram, "198.51.100.1:1000", Ecn::NotEct);
    let Ok(Opened::Tun(checked)) = opened else { panic!("{opened:?}") };
    assert_eq!(&datagram[checked.range()], &sent);

    let reply = packet(200, 10);
    let to = route(&mut net.gateway, net.now, &reply).unwrap();
    let mut datagram = seal(&mut net.gateway, net.now, to, &reply).unwrap();
    let opened = open(&mut net.clients[0], net.now, &mut datagram, GATEWAY, Ecn::NotEct);
    let Ok(Opened::Tun(checked)) = opened else { panic!("{opened:?}") };
    assert_eq!(&datagram[checked.range()], &reply);
    let activity = net.gateway.activity(slot(ALICE)).unwrap();
    assert_eq!((activity.rx_packets, activity.tx_packets, activity.rx_bytes), (1, 1, 32));
}

#[test]
fn a_session_never_takes_the_address_of_another_one() {
    let mut net = Net::new(false);
    let free: IpNet = "10.0.0.99/32".parse().unwrap();
    let spec = SessionSpec {
        slot: slot(7),
        addresses: vec![free, address(BOB)],
        principal: Principal::default(),
        limits: None,
        flows: Arc::default(),
        path: Arc::default(),
    };
    net.gateway.apply(Command::Open(spec.clone()));
    assert_eq!(net.gateway.counters().dropped(DropReason::AddressTaken), 1);
    assert_eq!(net.gateway.forwarding.session_of(address(BOB).addr()), Some(slot(BOB)));
    assert_eq!(net.gateway.forwarding.session_of(free.addr()), None, "all of its addresses, or none");

    net.gateway.apply(Command::Close(slot(BOB)));
    net.gateway.apply(Command::Open(spec));
    assert_eq!(net.gateway.forwarding.session_of(address(BOB).addr()), Some(slot(7)));
}

#[test]
fn a_datagram_is_taken_for_a_sessions_only_from_where_its_peer_is() {
    let mut net = Net::new(false);
    let claim = |net: &Net, datagram: &[u8], from: &str| {
        net.gateway.claim(Header::parse(datagram).unwrap(), endpoint(from))
    };
    let home = "198.51.100.1:1000";
    let datagram = net.client_sends(ALICE, &[]);
    assert_eq!(claim(&net, &datagram, home), Claim::Unproven, "nothing has come yet");
    net.meet();
    assert_eq!(claim(&net, &datagram, home), Claim::Known(slot(ALICE)));
    for elsewhere in ["198.51.100.1:1001", "198.51.100.2:2000", "203.0.113.66:1000"] {
        assert_eq!(claim(&net, &datagram, elsewhere), Claim::Unproven, "{elsewhere}");
    }
    // The next epoch's first datagram comes from where the last one's came from.
    net.install(ALICE, 2, 1);
    let next = seal(&mut net.clients[0], net.now, slot(0), &[]).unwrap();
    assert_ne!(Header::parse(&next).unwrap().index, Header::parse(&datagram).unwrap().index);
    assert_eq!(claim(&net, &next, home), Claim::Known(slot(ALICE)));
    // Only an authentic datagram moves it, and looking changes nothing.
    let mut forged = net.client_sends(ALICE, &[]);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(net.gateway_gets(&forged, "203.0.113.66:1000"), Err(DropReason::NotAuthentic));
    assert_eq!(claim(&net, &datagram, "203.0.113.66:1000"), Claim::Unproven);
    net.gateway.apply(Command::Close(slot(ALICE)));
    assert_eq!(claim(&net, &datagram, home), Claim::Nobody);
}

#[test]
fn activity_of_a_session_is_reported_once_per_use() {
    let mut net = Net::new(false);
    net.meet();
    net.gateway.take_activities();
    assert_eq!(net.gateway.take_activities(), []);
    for _ in 0..3 {
        let mut datagram = net.client_sends(ALICE, &packet(10, 200));
        open(&mut net.gateway, net.now, &mut datagram, "198.51.100.1:1000", Ecn::NotEct).unwrap();
    }
    let activities = net.gateway.take_activities();
    assert_eq!(activities.len(), 1);
    assert_eq!((activities[0].0, activities[0].1.rx_packets), (slot(ALICE), 3));
    let reply = packet(200, 10);
    let to = route(&mut net.gateway, net.now, &reply).unwrap();
    seal(&mut net.gateway, net.now, to, &reply).unwrap();
    let activities = net.gateway.take_activities();
    assert_eq!(
        (activities[0].1.rx_packets, activities[0].1.tx_packets),
        (0, 1),
        "what was told before is not told again"
    );
    net.gateway.apply(Command::Close(slot(ALICE)));
    assert_eq!(net.gateway.take_activities(), []);
}

#[test]
fn clients_reach_each_other_only_if_policy_says_so() {
    for allowed in [false, true] {
        let mut net = Net::new(allowed);
        net.meet();
        let mut datagram = net.client_sends(ALICE, &packet(10, 11));
        let opened = open(&mut net.gateway, net.now, &mut datagram, "198.51.100.1:1000", Ecn::NotEct);
        if !allowed {
            assert_eq!(opened, Err(DropReason::Policy));
            assert_eq!(net.gateway.counters().dropped(DropReason::Policy), 1);
            continue;
        }
        assert_eq!(opened, Ok(Opened::Forward { to: slot(BOB), len: 32 }));
        let sealed = forward(&mut net.gateway, net.now, slot(BOB), &mut datagram, 32).unwrap();
        assert_eq!((sealed.len, sealed.outer.endpoint), (datagram.len(), endpoint("198.51.100.2:2000")));
        let opened = open(&mut net.clients[1], net.now, &mut datagram, GATEWAY, Ecn::NotEct);
        let Ok(Opened::Tun(checked)) = opened else { panic!("{opened:?}") };
        assert_eq!(&datagram[checked.range()], with_hops(packet(10, 11), 63), "routed once");
    }
}

/// With another time to live, and the checksum for it.
fn with_hops(mut packet: Vec<u8>, left: u8) -> Vec<u8> {
    packet[8] = left;
    let sum = vpnd_packet::checksum::ipv4_header(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn a_packet_between_clients_is_routed_once_and_ends_where_its_hops_do() {
    let mut net = Net::new(true);
    net.meet();
    for (hops, goes_on) in [(64, true), (2, true), (1, false), (0, false)] {
        let sent = with_hops(packet(10, 11), hops);
        let mut datagram = net.client_sends(ALICE, &sent);
        let opened = open(&mut net.gateway, net.now, &mut datagram, "198.51.100.1:1000", Ecn::NotEct);
        let inside = &datagram[HEADER_LEN..HEADER_LEN + sent.len()];
        if goes_on {
            assert_eq!(opened, Ok(Opened::Forward { to: slot(BOB), len: 32 }));
            assert_eq!(inside, with_hops(sent, hops - 1));
        } else {
            assert_eq!(opened, Ok(Opened::Expired { slot: slot(ALICE), len: 32 }));
            assert_eq!(inside, sent, "it is quoted as it came");
        }
        // The kernel routes what goes to the campus, and decrements there.
        let sent = with_hops(packet(10, 200), hops);
        let mut datagram = net.client_sends(ALICE, &sent);
        let opened = open(&mut net.gateway, net.now, &mut datagram, "198.51.100.1:1000", Ecn::NotEct);
        let Ok(Opened::Tun(checked)) = opened else { panic!("{opened:?}") };
        assert_eq!(&datagram[checked.range()], sent);
    }
    assert_eq!(net.gateway.counters().dropped(DropReason::HopLimit), 2);
    assert_eq!(net.gateway.activity(slot(ALICE)).unwrap().rx_packets, 6, "what was dropped is no traffic");
}

/// With another traffic class, and the checksum for it.
fn with_class(mut packet: Vec<u8>, class: u8) -> Vec<u8> {
    packet[1] = class;
    with_hops(packet, 64)
}

#[test]
fn outer_marks_arrive() {
    let mut net = Net::new(true);
    net.meet();
    for (inner, mark, expected) in [
        (0b10, Ecn::NotEct, Some(0b10)),
        (0b10, Ecn::Ect0, Some(0b10)),
        (0b10, Ecn::Ce, Some(0b11)),
        (0b01, Ecn::Ce, Some(0b11)),
        (0b00, Ecn::Ect0, Some(0b00)),
        (0b00, Ecn::Ce, None),
    ] {
        // Another DSCP, which stays.
        let dscp = 46 << 2;
        for to in [200, 11] {
            let mut datagram = net.client_sends(ALICE, &with_class(packet(10, to), dscp | inner));
            let opened = open(&mut net.gateway, net.now, &mut datagram, "198.51.100.1:1000", mark);
            let Some(expected) = expected else {
                assert_eq!(opened, Err(DropReason::Congestion));
                continue;
            };
            let hops = if to == 200 { 64 } else { 63 };
            let wanted = with_hops(with_class(packet(10, to), dscp | expected), hops);
            assert!(matches!(opened, Ok(Opened::Tun(_) | Opened::Forward { .. })), "{opened:?}");
            assert_eq!(datagram[HEADER_LEN..HEADER_LEN + 32], wanted, "{inner} in {mark:?}");
        }
    }
    // A message that is no packet has no mark to lose.
    let mut probe = net.client_sends(ALICE, &[0x10, 0, 0, 9]);
    let opened = open(&mut net.gateway, net.now, &mut probe, "198.51.100.1:1000", Ecn::Ce);
    assert!(matches!(opened, Ok(Opened::Probe { .. })), "{opened:?}");
}

#[test]
fn congestion_here_marks_what_is_ecn_capable_and_drops_the_rest() {
    let mut net = Net::new(true);
    net.meet();
    for (class, expected) in [(0b00, None), (0b01, Some(0b11)), (0b10, Some(0b11)), (0b11, Some(0b11))] {
        let dscp = 46 << 2;
        for to in [200, 11] {
            let mut datagram = net.client_sends(ALICE, &with_class(packet(10, to), dscp | class));
            let header = Header::parse(&datagram).unwrap();
            let origin = Origin { from: endpoint("198.51.100.1:1000"), mark: Ecn::NotEct, congested: true };
            let opened = net.gateway.open(net.now, header, &mut datagram, origin);
            let Some(expected) = expected else {
                assert_eq!(opened.map(|_| ()).unwrap_err().reason(), DropReason::Overload);
                continue;
            };
            assert!(matches!(opened, Ok(Opened::Tun(_) | Opened::Forward { .. })), "{opened:?}");
            // With the checksum of its header.
            let hops = if to == 200 { 64 } else { 63 };
            let wanted = with_hops(with_class(packet(10, to), dscp | expected), hops);
            assert_eq!(datagram[HEADER_LEN..HEADER_LEN + 32], wanted, "{class}");
        }
    }
    assert_eq!(
        (net.gateway.counters().total(), net.gateway.counters().dropped(DropReason::Overload)),
        (2, 2)
    );
    assert!(Unused::ALL.into_iter().all(|one| net.gateway.counters().unused_marks(one) == 0));
}

#[test]
fn unused_combinations_of_marks_are_counted_and_others_not() {
    let marks = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];
    let count = |net: &Net| Unused::ALL.map(|one| net.gateway.counters().unused_marks(one));
    let mut net = Net::new(true);
    net.meet();
    let mut counted = [0; Unused::ALL.len()];
    for (inner, mark) in marks.into_iter().flat_map(|inner| marks.map(|mark| (inner, mark))) {
        for to in [200, 11] {
            let mut datagram = net.client_sends(ALICE, &with_class(packet(10, to), inner as u8));
            let mut forged = datagram.clone();
            *forged.last_mut().unwrap() ^= 1;
            let from = "198.51.100.1:1000";
            assert_eq!(
                open(&mut net.gateway, net.now, &mut forged, from, mark),
                Err(DropReason::NotAuthentic)
            );
            let before = net.gateway.counters().total();
            let opened = open(&mut net.gateway, net.now, &mut datagram, from, mark);
            if let Some(place) = Unused::ALL.iter().position(|one| inner.unused_in(mark) == Some(*one)) {
                counted[place] += 1;
            }
            assert_eq!(count(&net), counted, "{inner:?} in {mark:?}");
            let dropped = net.gateway.counters().total() - before;
            assert_eq!(dropped, u64::from(opened.is_err()), "the counter is no drop");
        }
    }
    assert_eq!(counted, [2; Unused::ALL.len()]);
    let mut all = net.gateway.counters().clone();
    all.merge(net.gateway.counters());
    assert_eq!(Unused::ALL.map(|one| all.unused_marks(one)), [4; Unused::ALL.len()]);
}

#[test]
fn the_outer_header_shows_marks_to_those_who_know_them_and_the_kind_of_traffic_if_asked_to() {
    for (features, copies_dscp, expected) in
        [(FEATURE_ECN, false, 0b10), (0, false, 0), (FEATURE_ECN, true, 46 << 2 | 0b10), (0, true, 46 << 2)]
    {
        let mut net = Net::new(false);
        net.clients[0].set_copies_dscp(copies_dscp);
        net.install(ALICE, 2, features);
        let mut datagram = vec![0; 128];
        let sent = with_class(packet(10, 200), 46 << 2 | 0b10);
        datagram[HEADER_LEN..HEADER_LEN + sent.len()].copy_from_slice(&sent);
        let mut sender = net.clients[0].sender(net.now, slot(0)).unwrap();
        let sealed = sender.seal(&mut datagram, sent.len()).unwrap();
        assert_eq!(sealed.outer.traffic_class, expected, "features {features}, DSCP {copies_dscp}");
        assert_eq!(sender.outer(46 << 2 | 0b10), sealed.outer);
        let probe = Outgoing::Probe { slot: slot(0), id: 1, size: 4 };
        let sealed = net.clients[0].originate(net.now, probe, &mut datagram).unwrap();
        assert_eq!(sealed.outer.traffic_class, 0, "a probe shows the path without marks");
    }
}

#[test]
fn policy_holds_towards_the_campus_and_from_it() {
    use crate::policy::{Names, Protocol, RuleSpec, Selector};
    let mut net = Net::new(false);
    net.meet();
    let deny = |from, to| RuleSpec {
        action: Verdict::Deny,
        from: vec![from],
        to: vec![to],
        protocol: Protocol::Any,
        ports: Vec::new(),
    };
    let closed = Selector::Net("10.0.0.200/32".parse().unwrap());
    let rules = [deny(Selector::Clients, closed.clone()), deny(closed, Selector::Clients)];
    let policy = Policy::compile(&rules, false, &mut Names::default()).unwrap();
    net.gateway.apply(access(policy, []));
    for (host, open) in [(200, false), (201, true)] {
        let datagram = net.client_sends(ALICE, &packet(10, host));
        let out = net.gateway_gets(&datagram, "198.51.100.1:1000");
        // Asking whom a packet is for counts and changes nothing.
        let recipient = net.gateway.recipient(net.now, &Packet::parse(&packet(host, 10)).unwrap());
        let back = route(&mut net.gateway, net.now, &packet(host, 10));
        assert_eq!(recipient, back);
        if open {
            assert!(matches!(out, Ok(Opened::Tun(_))), "{out:?}");
            assert_eq!(back, Ok(slot(ALICE)));
        } else {
            assert_eq!(out, Err(DropReason::Policy));
            assert_eq!(back, Err(DropReason::Policy));
        }
    }
    assert_eq!(net.gateway.counters().dropped(DropReason::Policy), 2);
}

#[test]
fn new_groups_hold_for_a_session_that_is_open() {
    use crate::policy::{Names, Protocol, RuleSpec, Selector};
    let mut net = Net::new(true);
    net.meet();
    let deny = |to: Selector| RuleSpec {
        action: Verdict::Deny,
        from: vec![Selector::Group("barred".to_owned())],
        to: vec![to],
        protocol: Protocol::Any,
        ports: Vec::new(),
    };
    let mut names = Names::default();
    let to_barred = RuleSpec { from: vec![Selector::Any], ..deny(Selector::Group("barred".to_owned())) };
    let rules = [deny(Selector::Any), to_barred];
    net.gateway.apply(access(Policy::compile(&rules, true, &mut names).unwrap(), []));
    for (groups, open) in [(vec![], true), (vec!["barred"], false), (vec!["other"], true)] {
        let principal = names.principal("alice", groups);
        let of_before = Slot { generation: 7, ..slot(BOB) };
        let principals = [(slot(ALICE), principal.clone()), (of_before, names.principal("x", ["barred"]))];
        net.gateway.apply(Command::Access(Access { policy: None, principals: principals.into() }));
        let out = net.client_sends(ALICE, &packet(10, 200));
        assert_eq!(net.gateway_gets(&out, "198.51.100.1:1000").is_ok(), open, "{principal:?}");
        let to_alice = net.client_sends(BOB, &packet(11, 10));
        assert_eq!(net.gateway_gets(&to_alice, "198.51.100.2:2000").is_ok(), open, "{principal:?}");
        let of_bob = net.client_sends(BOB, &packet(11, 200));
        assert!(net.gateway_gets(&of_bob, "198.51.100.2:2000").is_ok(), "Bob's slot had another tenant then");
    }
}

#[test]
fn a_packet_with_the_source_of_another_client_is_dropped() {
    let mut net = Net::new(true);
    net.meet();
    for (from, to) in [(11, 200), (11, 10), (12, 11), (200, 11)] {
        let datagram = net.client_sends(ALICE, &packet(from, to));
        assert_eq!(net.gateway_gets(&datagram, "198.51.100.1:1000"), Err(DropReason::ForeignSource));
    }
}

#[test]
fn a_client_takes_only_what_is_for_it() {
    let mut net = Net::new(true);
    net.meet();
    let mut datagram = seal(&mut net.gateway, net.now, slot(ALICE), &packet(200, 11)).unwrap();
    assert_eq!(
        open(&mut net.clients[0], net.now, &mut datagram, GATEWAY, Ecn::NotEct),
        Err(DropReason::NotForUs)
    );
}

#[test]
fn link_local_packets_of_a_client_are_dropped() {
    let mut net = Net::new(false);
    for (source, expected) in [
        ("10.0.0.10", Ok(slot(0))),
        ("169.254.7.7", Err(DropReason::ForeignSource)),
        ("2001:db8::10", Ok(slot(0))),
        ("fe80::10", Err(DropReason::ForeignSource)),
    ] {
        let solicitation = match source.parse().unwrap() {
            IpAddr::V4(v4) => {
                let mut packet = packet(10, 200);
                packet[12..16].copy_from_slice(&v4.octets());
                packet[10..12].fill(0);
                let sum = vpnd_packet::checksum::ipv4_header(&packet[..20]);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
                packet
            }
            IpAddr::V6(v6) => {
                // A router solicitation (RFC 4861 section 4.1) without options.
                let mut packet = vec![0x60, 0, 0, 0, 0, 8, 58, 255];
                packet.extend(v6.octets());
                packet.extend("ff02::2".parse::<core::net::Ipv6Addr>().unwrap().octets());
                packet.extend([133, 0, 0, 0, 0, 0, 0, 0]);
                packet
            }
        };
        assert_eq!(route(&mut net.clients[0], net.now, &solicitation), expected, "from {source}");
    }
    assert_eq!(net.clients[0].counters().dropped(DropReason::ForeignSource), 2);
}

#[test]
fn a_replay_is_dropped_and_moves_nothing() {
    let mut net = Net::new(false);
    let old = net.client_sends(ALICE, &packet(10, 200));
    let new = net.client_sends(ALICE, &packet(10, 200));
    assert!(net.gateway_gets(&new, "198.51.100.1:1000").is_ok());
    net.events();
    assert_eq!(net.gateway_gets(&new, "203.0.113.9:9"), Err(DropReason::Replayed));
    // Delivered late and for the first time, but not the newest: the packet counts, its address
    // does not.
    assert!(net.gateway_gets(&old, "203.0.113.9:9").is_ok());
    assert_eq!(net.events(), []);
    let sealed = net.gateway.sender(net.now, slot(ALICE)).unwrap().endpoint();
    assert_eq!(sealed, endpoint("198.51.100.1:1000"));
}

#[test]
fn the_newest_authentic_datagram_moves_the_endpoint() {
    let mut net = Net::new(false);
    net.meet();
    net.events();
    let hopped = net.client_sends(ALICE, &[]);
    assert!(net.gateway_gets(&hopped, "203.0.113.9:9").is_ok());
    assert_eq!(net.events(), [], "moving at once again would let a peer flood the control plane");
    net.now = net.now + Duration::from_millis(20);
    let roamed = net.client_sends(ALICE, &[]);
    assert!(net.gateway_gets(&roamed, "203.0.113.9:9").is_ok());
    assert_eq!(
        net.events(),
        [Event::Heard { slot: slot(ALICE), epoch: 1, lane: 0, endpoint: endpoint("203.0.113.9:9") }]
    );
    assert_eq!(net.gateway.sender(net.now, slot(ALICE)).unwrap().endpoint(), endpoint("203.0.113.9:9"));
}

#[test]
fn a_forgery_changes_nothing() {
    let mut net = Net::new(false);
    let good = net.client_sends(ALICE, &packet(10, 200));
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert!(net.gateway_gets(&bad, "203.0.113.9:9").is_err(), "byte {at}");
    }
    assert_eq!(net.events(), []);
    assert_eq!(net.gateway.activity(slot(ALICE)), Some(Activity::default()));
    assert!(net.gateway_gets(&good, "198.51.100.1:1000").is_ok(), "the real one is still good");
}

#[test]
fn lanes_stay_in_their_index() {
    let mut net = Net::new(false);
    let mut datagram = net.client_sends(ALICE, &[]);
    datagram[1] = 1;
    assert_eq!(net.gateway_gets(&datagram, "198.51.100.1:1000"), Err(DropReason::WrongLane));
}

#[test]
fn the_gateway_seals_with_a_new_epoch_once_it_was_heard() {
    let mut net = Net::new(false);
    net.meet();
    net.install(ALICE, 2, 1);
    let index = |datagram: &[u8]| Header::parse(datagram).unwrap().index;
    let before = seal(&mut net.gateway, net.now, slot(ALICE), &packet(200, 10)).unwrap();
    let hello = net.client_sends(ALICE, &[]);
    net.gateway_gets(&hello, "198.51.100.1:1000").unwrap();
    let after = seal(&mut net.gateway, net.now, slot(ALICE), &packet(200, 10)).unwrap();
    assert_ne!(index(&before), index(&after));
    for mut datagram in [before, after] {
        assert!(open(&mut net.clients[0], net.now, &mut datagram, GATEWAY, Ecn::NotEct).is_ok());
    }
}

#[test]
fn a_late_datagram_does_not_revive_the_old_epoch() {
    let mut net = Net::new(false);
    net.meet();
    let old = net.client_sends(ALICE, &[]);
    net.install(ALICE, 2, 1);
    let hello = net.client_sends(ALICE, &[]);
    net.gateway_gets(&hello, "198.51.100.1:1000").unwrap();
    // Later than a lane may move again: otherwise the old word would not be listened to anyway.
    net.now = net.now + Duration::from_secs(1);
    net.events();
    net.gateway_gets(&old, "198.51.100.1:1001").unwrap();
    assert!(matches!(net.events()[..], [Event::Heard { epoch: 1, .. }]), "it was heard");
    let sealed = seal(&mut net.gateway, net.now, slot(ALICE), &packet(200, 10)).unwrap();
    assert_eq!(Header::parse(&sealed).unwrap().index, Index(0x100 * 32 + 0x8000));
}

#[test]
fn a_retired_epoch_neither_opens_nor_seals() {
    let mut net = Net::new(false);
    net.meet();
    let datagram = net.client_sends(ALICE, &packet(10, 200));
    net.gateway.apply(Command::Retire { slot: slot(ALICE), epoch: 1 });
    assert_eq!(net.gateway_gets(&datagram, "198.51.100.1:1000"), Err(DropReason::UnknownIndex));
    let refused = seal(&mut net.gateway, net.now, slot(ALICE), &packet(200, 10));
    assert_eq!(refused, Err(DropReason::NoEpoch));
}

#[test]
fn the_epoch_before_one_that_ends_unconfirmed_seals_again() {
    let mut net = Net::new(false);
    net.meet();
    // Nothing was heard in the second, so its peer may not have it.
    net.install(ALICE, 2, 1);
    net.install(ALICE, 3, 1);
    let hello = net.client_sends(ALICE, &[]);
    net.gateway_gets(&hello, "198.51.100.1:1000").unwrap();
    net.events();
    // The control plane did not learn in time that the third was heard.
    net.gateway.apply(Command::Retire { slot: slot(ALICE), epoch: 3 });
    let sealed = seal(&mut net.gateway, net.now, slot(ALICE), &packet(200, 10)).unwrap();
    assert_eq!(Header::parse(&sealed).unwrap().index, Index(0x100 * 16 + 0x8000));
    assert_eq!(net.events(), [], "none is wanted");
}

#[test]
fn an_expired_epoch_asks_for_a_new_one_and_packets_wait() {
    let mut net = Net::new(false);
    net.meet();
    net.events();
    net.now = net.now + Duration::from_secs(180);
    for _ in 0..70 {
        net.gateway.sender(net.now, slot(ALICE)).unwrap_err().queue(&packet(200, 10));
    }
    assert_eq!(net.events(), [Event::EpochWanted { slot: slot(ALICE) }]);
    assert_eq!(net.gateway.counters().dropped(DropReason::NoEpoch), 6, "64 wait");
    assert_eq!(net.gateway.poll_waiting(net.now, slot(ALICE)), None);
    net.install(ALICE, 2, 1);
    let hello = net.client_sends(ALICE, &[]);
    net.gateway_gets(&hello, "198.51.100.1:1000").unwrap();
    let waited = std::iter::from_fn(|| net.gateway.poll_waiting(net.now, slot(ALICE))).count();
    assert_eq!(waited, 64);
}

#[test]
fn a_closed_session_leaves_nothing_behind() {
    let mut net = Net::new(true);
    net.meet();
    assert_eq!(net.gateway.receivers.len(), 2);
    net.gateway.apply(Command::Close(slot(BOB)));
    assert_eq!(net.gateway.receivers.len(), 1, "its keys are gone with it");
    let datagram = net.client_sends(BOB, &packet(11, 200));
    assert_eq!(net.gateway_gets(&datagram, "198.51.100.2:2000"), Err(DropReason::UnknownIndex));
    assert_eq!(route(&mut net.gateway, net.now, &packet(10, 11)), Err(DropReason::NoRoute));
    // The index is given out again; a command about its former tenant does not concern the new one.
    let next = Slot { index: BOB, generation: 1 };
    net.gateway.apply(Command::Open(SessionSpec {
        slot: next,
        addresses: vec![address(BOB)],
        principal: Principal::default(),
        limits: None,
        flows: Arc::default(),
        path: Arc::default(),
    }));
    net.gateway.apply(Command::Close(slot(BOB)));
    net.events();
    assert_eq!(route(&mut net.gateway, net.now, &packet(10, 11)), Err(DropReason::NoEpoch));
    assert_eq!(net.events(), [Event::EpochWanted { slot: next }]);
}

#[test]
fn a_peer_without_the_feature_gets_complete_checksums() {
    let mut net = Net::new(true);
    net.meet();
    net.install(BOB, 2, 0);
    let hello = net.client_sends(BOB, &[]);
    net.gateway_gets(&hello, "198.51.100.2:2000").unwrap();
    let mut partial = packet(10, 11);
    partial[0] |= PARTIAL_CHECKSUM;
    let mut datagram = net.client_sends(ALICE, &partial);
    open(&mut net.gateway, net.now, &mut datagram, "198.51.100.1:1000", Ecn::NotEct).unwrap();
    forward(&mut net.gateway, net.now, slot(BOB), &mut datagram, 32).unwrap();
    let Ok(Opened::Tun(checked)) = open(&mut net.clients[1], net.now, &mut datagram, GATEWAY, Ecn::NotEct)
    else {
        panic!("the packet is good")
    };
    let packet = checked.packet(&datagram);
    assert!(!packet.is_partial() && vpnd_packet::checksum::verify(&packet));
}

#[test]
fn probes_are_answered_and_answers_reported() {
    let mut net = Net::new(false);
    let probe = Outgoing::Probe { slot: slot(0), id: 9, size: 600 };
    let mut datagram = vec![0; 1_000];
    let sealed = net.clients[0].originate(net.now, probe, &mut datagram).unwrap();
    let opened = net.gateway_gets(&datagram[..sealed.len], "198.51.100.1:1000");
    assert_eq!(opened, Ok(Opened::Probe { slot: slot(ALICE), id: 9, size: 600, padded: false }));
    let reply = Outgoing::Reply { slot: slot(ALICE), id: 9, size: 600, padded: false };
    let sealed = net.gateway.originate(net.now, reply, &mut datagram).unwrap();
    assert_eq!(
        open(&mut net.clients[0], net.now, &mut datagram[..sealed.len], GATEWAY, Ecn::NotEct),
        Ok(Opened::Consumed)
    );
    let reported = std::iter::from_fn(|| net.clients[0].poll_event())
        .any(|event| event == Event::ProbeReply { slot: slot(0), lane: 0, id: 9, size: 600 });
    assert!(reported);
    assert_eq!(net.gateway.activity(slot(ALICE)).unwrap().tx_packets, 0, "no use of the tunnel");
}

#[test]
fn a_gateway_drops_replies_that_it_has_not_asked_for() {
    let mut net = Net::new(false);
    let mut datagram = vec![0; 1_000];
    for id in 0..5_000 {
        let reply = Outgoing::Reply { slot: slot(0), id, size: 4, padded: false };
        let sealed = net.clients[0].originate(net.now, reply, &mut datagram).unwrap();
        let opened = net.gateway_gets(&datagram[..sealed.len], "198.51.100.1:1000");
        assert_eq!(opened, Err(DropReason::UnaskedReply));
    }
    let events: Vec<_> = std::iter::from_fn(|| net.gateway.poll_event()).collect();
    assert!(matches!(events[..], [Event::Heard { .. }]), "the client was heard, once: {events:?}");
    assert_eq!(net.gateway.counters().dropped(DropReason::UnaskedReply), 5_000);
}

#[test]
fn events_without_room_are_counted_and_reported_later() {
    let mut net = Net::new(false);
    // No owner takes events, and others have filled the queue.
    let other = Event::RekeyDue { slot: slot(9), epoch: 1 };
    let mut filled = 0;
    while net.gateway.reports.push(other) {
        filled += 1;
    }
    assert_eq!(filled, reports::MAX_EVENTS);
    let says = |net: &mut Net| {
        let hello = net.client_sends(ALICE, &[]);
        assert_eq!(net.gateway_gets(&hello, "198.51.100.1:1000"), Ok(Opened::Consumed), "datagrams go on");
    };
    (0..3).for_each(|_| says(&mut net));
    assert!(matches!(net.gateway.sender(net.now, slot(BOB)), Err(NoSender::NoEpoch(_))));
    for taken in 0..filled {
        assert_eq!(net.gateway.poll_event(), Some(other), "event {taken}");
    }
    assert_eq!(net.gateway.poll_event(), None, "no more than the queue holds were kept");
    // One that did not fit into the test's own filling, three times a client that was heard, one
    // epoch that is wanted.
    assert_eq!(net.gateway.counters().dropped(DropReason::EventQueue), 1 + 3 + 1);
    says(&mut net);
    assert!(matches!(net.gateway.sender(net.now, slot(BOB)), Err(NoSender::NoEpoch(_))));
    let heard = net.gateway.poll_event();
    assert!(matches!(heard, Some(Event::Heard { slot: who, .. }) if who == slot(ALICE)), "{heard:?}");
    assert_eq!(net.gateway.poll_event(), Some(Event::EpochWanted { slot: slot(BOB) }));
}
