//! A stock WireGuard client beside clients of our own.

use vpnd_crypto::Secret;

use super::*;
use crate::wireguard::{MAX_RANGE, Opened as Plaintext, Opener, Sealer, TransportHeader};

const PHONE: u32 = 5;
const HOME: &str = "198.51.100.5:5000";
const AT_GATEWAY: Index = Index(0x500);
const AT_PHONE: Index = Index(0x77);

/// A network with a WireGuard client, its keys and what it has received with.
struct Wire {
    net: Net,
    sealer: Arc<Sealer>,
    opener: Opener,
}

impl Wire {
    /// `sealing` if the gateway has a key to send with.
    fn new(sealing: bool) -> Self {
        let mut net = Net::new(true);
        net.meet();
        let spec = SessionSpec {
            slot: slot(PHONE),
            addresses: vec![address(PHONE)],
            principal: Principal::default(),
            limits: None,
            flows: Arc::default(),
            path: Arc::default(),
        };
        net.gateway.apply(Command::Open(spec));
        net.events();
        let key = |number| Secret::new([number; 32]);
        let sealer = Sealer::new(START, Backend::Ring, &key(1), AT_GATEWAY).unwrap();
        let opener = Opener::new(START, Backend::Ring, &key(2)).unwrap();
        let mut wire = Self { net, sealer: Arc::new(sealer), opener };
        let opener = Box::new(Opener::new(START, Backend::Ring, &key(1)).unwrap());
        wire.command(WireGuardCommand::Open { slot: slot(PHONE), index: AT_GATEWAY, opener });
        if sealing {
            let sealer = Arc::new(Sealer::new(START, Backend::Ring, &key(2), AT_PHONE).unwrap());
            wire.command(WireGuardCommand::Seal { slot: slot(PHONE), sealer, endpoint: endpoint(HOME) });
        }
        wire
    }

    fn command(&mut self, command: WireGuardCommand) {
        assert_eq!(self.net.gateway.apply(Command::WireGuard(command)), None);
    }

    fn phone_sends(&self, packet: &[u8]) -> Vec<u8> {
        let mut message = vec![0; Sealer::message_len(packet.len())];
        message[HEADER_LEN..HEADER_LEN + packet.len()].copy_from_slice(packet);
        self.sealer.reserve(START, 1).unwrap().seal(&mut message, packet.len()).unwrap();
        message
    }

    fn gateway_opens(&mut self, message: &mut [u8], from: &str) -> Result<Opened, DropReason> {
        let header = TransportHeader::parse(message).unwrap();
        let origin = Origin { from: endpoint(from), mark: Ecn::NotEct, congested: false };
        self.net.gateway.open(self.net.now, header, message, origin).map_err(Dropped::reason)
    }

    /// The packet in a message to the phone, with its padding, and the message's counter.
    fn phone_opens(&mut self, message: &mut [u8]) -> (Vec<u8>, u64) {
        let header = TransportHeader::parse(message).unwrap();
        assert_eq!(header.receiver, AT_PHONE);
        let Plaintext { len, .. } = self.opener.open(START, header, message).unwrap();
        (message[HEADER_LEN..HEADER_LEN + len].to_vec(), header.counter)
    }
}

/// A packet of 37 bytes, which WireGuard pads.
fn odd(from: u8, to: u8) -> Vec<u8> {
    let mut packet = packet(from, to);
    packet.extend([9; 5]);
    (packet[3], packet[25]) = (37, 17);
    let sum = vpnd_packet::checksum::ipv4_header(&{
        packet[10..12].fill(0);
        packet[..20].to_vec()
    });
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn the_padding_of_stock_clients_is_removed() {
    let mut wire = Wire::new(true);
    let sent = odd(15, 200);
    let mut message = wire.phone_sends(&sent);
    let opened = wire.gateway_opens(&mut message.clone(), HOME);
    let Ok(Opened::Tun(checked)) = opened else { panic!("{opened:?}") };
    assert_eq!(checked.range().len(), 37);
    assert_eq!(wire.gateway_opens(&mut message, HOME), Err(DropReason::Replayed));
    let activity = wire.net.gateway.activity(slot(PHONE)).unwrap();
    assert_eq!((activity.rx_datagrams, activity.rx_packets, activity.rx_bytes), (1, 1, 37));

    let reply = odd(200, 15);
    assert_eq!(route(&mut wire.net.gateway, START, &reply), Ok(slot(PHONE)));
    let mut message = seal(&mut wire.net.gateway, START, slot(PHONE), &reply).unwrap();
    assert_eq!(message.len(), 16 + 48 + 16);
    assert_eq!(wire.phone_opens(&mut message).0, [&reply[..], &[0; 11]].concat());
    let activity = wire.net.gateway.activity(slot(PHONE)).unwrap();
    assert_eq!((activity.tx_packets, activity.tx_bytes), (1, 37));
    assert_eq!(wire.gateway_opens(&mut wire.phone_sends(&[]), HOME), Ok(Opened::Consumed), "a keepalive");
}

#[test]
fn a_stock_client_sends_from_its_own_address_alone_and_only_packets() {
    let mut wire = Wire::new(true);
    for (plaintext, reason) in [
        (odd(10, 200), DropReason::ForeignSource),
        (vec![0x10, 0, 0, 0], DropReason::BadPacket),
        (vec![0x13, 0, 0x45, 0], DropReason::BadPacket),
        (vec![0xFF; 3], DropReason::BadPacket),
    ] {
        assert_eq!(wire.gateway_opens(&mut wire.phone_sends(&plaintext), HOME), Err(reason), "{plaintext:?}");
    }
    let mut partial = odd(15, 200);
    partial[0] |= PARTIAL_CHECKSUM;
    assert_eq!(wire.gateway_opens(&mut wire.phone_sends(&partial), HOME), Err(DropReason::BadPacket));
    let activity = wire.net.gateway.activity(slot(PHONE)).unwrap();
    assert_eq!((activity.rx_packets, activity.last_rx_contents), (0, wire.net.now), "the peer has spoken");
}

#[test]
fn a_syn_announces_no_more_than_the_client_carries() {
    let mut wire = Wire::new(true);
    wire.net.gateway.apply(Command::PathSize { slot: slot(PHONE), size: Sealer::message_len(1_280) as u16 });
    let mut announced = |mss: u16| {
        let mut packet = packet(15, 200);
        packet.truncate(20);
        packet.extend([0xC3, 0x50, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x60, 2, 0, 0, 0, 0, 0, 0, 2, 4]);
        packet.extend(mss.to_be_bytes());
        (packet[3], packet[9]) = (44, 6);
        packet[10..12].fill(0);
        let sum = vpnd_packet::checksum::ipv4_header(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut message = wire.phone_sends(&packet);
        let opened = wire.gateway_opens(&mut message, HOME);
        let Ok(Opened::Tun(checked)) = opened else { panic!("{opened:?}") };
        let opened = &message[checked.range()];
        u16::from_be_bytes([opened[42], opened[43]])
    };
    assert_eq!([1_460, 1_200].map(&mut announced), [1_240, 1_200]);
}

#[test]
fn a_request_for_a_page_that_a_walled_client_may_not_reach_is_to_be_answered() {
    use crate::policy::{ProfileId, RuleSet};
    let mut wire = Wire::new(true);
    let none = RuleSet::without_rules(false).with_reach(&[]);
    let policy = Policy::of_profiles([(ProfileId::WALLED, none)]).with_redirect(b"elsewhere");
    let walled = Principal::default().in_profile(ProfileId::WALLED);
    wire.net.gateway.apply(access(policy, [(slot(PHONE), walled)]));
    let mut syn = |host: u8, port: u8| {
        let mut packet = packet(15, host);
        packet.truncate(20);
        packet.extend([0xC3, 0x50, 0, port, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
        (packet[3], packet[9]) = (40, 6);
        packet[10..12].fill(0);
        let sum = vpnd_packet::checksum::ipv4_header(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut message = wire.phone_sends(&packet);
        wire.gateway_opens(&mut message, HOME)
    };
    // A host of the campus, another client, and an address of the pools.
    for host in [200, 10, 99] {
        assert_eq!(syn(host, 80), Ok(Opened::Redirect { slot: slot(PHONE), len: 40 }), "{host}");
        assert_eq!(syn(host, 81), Ok(Opened::Refused { slot: slot(PHONE), len: 40 }), "{host}");
    }
    assert_eq!(wire.net.gateway.redirect().as_deref(), Some(&b"elsewhere"[..]));
}

#[test]
fn what_a_walled_client_may_not_reach_is_refused_at_once_and_counted_once() {
    use crate::policy::{ProfileId, RuleSet};
    let mut wire = Wire::new(true);
    let sets = [ProfileId::WALLED, ProfileId::IMPLIED].map(|profile| {
        let none = RuleSet::without_rules(false).with_reach(&[]);
        (profile, none)
    });
    let policy = Policy::of_profiles(sets);
    let mut opened = |profile, packet: &[u8]| {
        let principal = Principal::default().in_profile(profile);
        wire.net.gateway.apply(access(policy.clone(), [(slot(PHONE), principal)]));
        let mut message = wire.phone_sends(packet);
        wire.gateway_opens(&mut message, HOME)
    };
    let ping = {
        let mut ping = odd(15, 200);
        ping[9] = 1;
        ping[10..12].fill(0);
        let sum = vpnd_packet::checksum::ipv4_header(&ping[..20]);
        ping[10..12].copy_from_slice(&sum.to_be_bytes());
        ping
    };
    let refused = Ok(Opened::Refused { slot: slot(PHONE), len: 37 });
    assert_eq!(opened(ProfileId::WALLED, &odd(15, 200)), refused, "UDP to the campus");
    assert_eq!(opened(ProfileId::WALLED, &odd(15, 10)), refused, "and to another client");
    assert_eq!(opened(ProfileId::WALLED, &ping), Err(DropReason::Policy), "it has no port");
    assert_eq!(opened(ProfileId::WALLED, &odd(10, 200)), Err(DropReason::ForeignSource), "it is another's");
    assert_eq!(opened(ProfileId::IMPLIED, &odd(15, 200)), Err(DropReason::Policy), "it is not walled");
    let counters = wire.net.gateway.counters();
    assert_eq!((counters.dropped(DropReason::Policy), counters.total()), (4, 5));
    assert_eq!(
        wire.net.gateway.activity(slot(PHONE)).unwrap().rx_packets,
        0,
        "what was dropped is no traffic"
    );
}

#[test]
fn both_kinds_of_clients_reach_each_other() {
    let mut wire = Wire::new(true);
    let sent = odd(15, 10);
    let mut message = wire.phone_sends(&sent);
    assert_eq!(wire.gateway_opens(&mut message, HOME), Ok(Opened::Forward { to: slot(ALICE), len: 37 }));
    let sealed = forward(&mut wire.net.gateway, START, slot(ALICE), &mut message, 37).unwrap();
    let opened = open(&mut wire.net.clients[0], START, &mut message[..sealed.len], GATEWAY, Ecn::NotEct);
    let Ok(Opened::Tun(checked)) = opened else { panic!("{opened:?}") };
    assert_eq!(&message[checked.range()], with_hops(sent, 63));

    let sent = packet(10, 15);
    let mut datagram = wire.net.client_sends(ALICE, &sent);
    let opened = open(&mut wire.net.gateway, START, &mut datagram, "198.51.100.1:1000", Ecn::NotEct);
    assert_eq!(opened, Ok(Opened::Forward { to: slot(PHONE), len: 32 }));
    let sealed = forward(&mut wire.net.gateway, START, slot(PHONE), &mut datagram, 32).unwrap();
    assert_eq!((sealed.len, sealed.outer.endpoint), (datagram.len(), endpoint(HOME)));
    assert_eq!(wire.phone_opens(&mut datagram).0, with_hops(sent, 63));
}

#[test]
fn a_first_message_and_a_newer_one_from_elsewhere_are_reported_once() {
    let mut wire = Wire::new(false);
    let messages: Vec<_> = (0..6).map(|_| wire.phone_sends(&odd(15, 200))).collect();
    let heard = |wire: &mut Wire, number: usize, from: &str| {
        wire.gateway_opens(&mut messages[number].clone(), from).unwrap();
        wire.net.now = wire.net.now + Duration::from_millis(50);
        let endpoints = wire.net.events().into_iter().map(|event| match event {
            Event::WireGuardOpened { slot: of, index: AT_GATEWAY, endpoint, opened } => {
                assert_eq!((of, opened), (slot(PHONE), Plaintext { len: 48, newest: true }));
                endpoint
            }
            event => panic!("{event:?}"),
        });
        endpoints.collect::<Vec<_>>()
    };
    assert_eq!(heard(&mut wire, 1, HOME), [endpoint(HOME)]);
    assert_eq!(heard(&mut wire, 0, "203.0.113.66:1"), [], "an older one moves nothing");
    assert_eq!(heard(&mut wire, 2, HOME), []);
    let moved = endpoint("203.0.113.7:1");
    assert_eq!(heard(&mut wire, 3, "203.0.113.7:1"), [moved]);
    wire.command(WireGuardCommand::Move { slot: slot(PHONE), endpoint: endpoint("203.0.113.66:1") });
    assert_eq!(heard(&mut wire, 4, "203.0.113.7:1"), [moved], "another's handshake does not keep it away");
    assert_eq!(heard(&mut wire, 5, "203.0.113.7:1"), []);
    assert_eq!(wire.net.gateway.opened_by_wireguard().collect::<Vec<_>>(), [(AT_GATEWAY, 5)]);
}

#[test]
fn packets_for_a_stock_client_wait_for_its_key_and_ask_once() {
    let mut wire = Wire::new(false);
    let waits = |wire: &mut Wire| {
        let packet = odd(200, 15);
        match wire.net.gateway.route(START, &Packet::parse(&packet).unwrap()) {
            Err(NoSender::NoEpoch(mut queue)) => queue.push(&packet),
            other => panic!("{other:?}"),
        }
        wire.net.events()
    };
    let wanted = [Event::EpochWanted { slot: slot(PHONE) }];
    assert_eq!(waits(&mut wire), wanted);
    assert_eq!(waits(&mut wire), []);
    wire.command(WireGuardCommand::Unanswered(slot(PHONE)));
    assert_eq!(waits(&mut wire), wanted, "no key came of the first request");
    let sealer = Arc::new(Sealer::new(START, Backend::Ring, &Secret::new([2; 32]), AT_PHONE).unwrap());
    wire.command(WireGuardCommand::Seal { slot: slot(PHONE), sealer, endpoint: endpoint(HOME) });
    assert!(wire.net.gateway.poll_waiting(START, slot(PHONE)).is_some());
    wire.command(WireGuardCommand::Move { slot: slot(PHONE), endpoint: endpoint("203.0.113.7:1") });
    assert_eq!(wire.net.gateway.sender(START, slot(PHONE)).unwrap().endpoint(), endpoint("203.0.113.7:1"));
    // The key ends by its time.
    let old = START + Duration::from_secs(180);
    assert!(matches!(wire.net.gateway.sender(old, slot(PHONE)), Err(NoSender::NoEpoch(_))));
    wire.command(WireGuardCommand::Unseal(slot(PHONE)));
    assert_eq!(wire.net.gateway.poll_waiting(START, slot(PHONE)), None);
}

#[test]
fn what_was_reserved_for_one_packet_is_never_used_for_a_later_one() {
    let mut wire = Wire::new(true);
    let packet = odd(200, 15);
    let mut counters = Vec::new();
    for count in [1, 3, 40, 1] {
        let mut datagrams = Vec::new();
        let mut sender = wire.net.gateway.sender(START, slot(PHONE)).unwrap();
        assert_eq!(sender.admit(Segments { len: 37, last_len: 37, count }), count);
        // Only a part of what was admitted is sealed.
        for _ in 0..count.min(20) {
            let mut datagram = vec![0; Sealer::message_len(37)];
            datagram[HEADER_LEN..][..37].copy_from_slice(&packet);
            sender.seal(&mut datagram, 37).unwrap();
            datagrams.push(datagram);
        }
        counters.extend(datagrams.iter_mut().map(|datagram| wire.phone_opens(datagram).1));
    }
    let first_of_last = 4 + 2 * u64::from(MAX_RANGE);
    assert_eq!(counters[..24], (0..24).collect::<Vec<_>>());
    assert_eq!(counters[24..], [first_of_last], "gaps are no matter, and nothing comes late");
}

#[test]
fn nothing_is_opened_once_the_session_or_the_index_is_over() {
    for command in [Command::Close(slot(PHONE)), Command::WireGuard(WireGuardCommand::Close(AT_GATEWAY))] {
        let mut wire = Wire::new(true);
        let mut message = wire.phone_sends(&odd(15, 200));
        let header = TransportHeader::parse(&message).unwrap();
        assert_eq!(wire.net.gateway.claim(header, endpoint(HOME)), Claim::Known(slot(PHONE)));
        assert_eq!(wire.net.gateway.claim(header, endpoint(GATEWAY)), Claim::Unproven);
        wire.net.gateway.apply(command);
        assert_eq!(wire.net.gateway.claim(header, endpoint(HOME)), Claim::Nobody);
        assert_eq!(wire.gateway_opens(&mut message, HOME), Err(DropReason::UnknownIndex));
        assert!(wire.net.gateway.wireguard.is_empty(), "its key is erased");
    }
}
