//! Behaviour: what uses a feature that the ends have not agreed on is unknown to the one that
//! receives it (PROTOCOL §3.4).

use super::*;
use crate::control::{
    FEATURE_BATCHES, FEATURE_HALVES, FEATURE_PARTIAL_CHECKSUM, FEATURE_PATH_CONFIRM, FEATURE_PATH_SIZE,
};
use vpnd_packet::PARTIAL_CHECKSUM;

const HOME: &str = "198.51.100.1:1000";

/// Two ends that have agreed on other features: such as of a peer that does not keep to what was
/// agreed on.
fn net(agreed_at_gateway: u32, agreed_at_client: u32) -> Net {
    let mut net = Net::new(false);
    let ([gateway, _], [_, client]) =
        (net.keys(ALICE, 2, agreed_at_gateway), net.keys(ALICE, 2, agreed_at_client));
    net.gateway.apply(Command::Install(Box::new(gateway)));
    net.clients[0].apply(Command::Install(Box::new(client)));
    net.meet();
    net
}

/// Returns the gateway's result for a plaintext of the client.
fn received(agreed: u32, plaintext: &[u8], mark: Ecn) -> (Result<Opened, DropReason>, Vec<u8>) {
    let mut net = net(agreed, FEATURES);
    let mut datagram = net.client_sends(ALICE, plaintext);
    let opened = open(&mut net.gateway, net.now, &mut datagram, HOME, mark);
    (opened, datagram[HEADER_LEN..HEADER_LEN + plaintext.len()].to_vec())
}

#[test]
fn a_message_of_a_feature_is_unknown_without_it() {
    let padded = |first: u8, second: u8| [first, second, 0, 0, 6, 0];
    for (feature, plaintext, with) in [
        (FEATURE_PATH_SIZE, &padded(0x10, 1)[..], None),
        (FEATURE_PATH_SIZE, &padded(0x11, 1), Some(DropReason::UnaskedReply)),
        (FEATURE_HALVES, &[0x13, 0, 1], None),
        (FEATURE_BATCHES, &[0x10, 2, 0, 0, 0, 0], None),
        (FEATURE_BATCHES, &[0x12, 1], None),
    ] {
        let (opened, _) = received(FEATURES & !feature, plaintext, Ecn::NotEct);
        assert_eq!(opened, Err(DropReason::UnknownInband), "{plaintext:?}");
        let (opened, _) = received(feature, plaintext, Ecn::NotEct);
        assert_eq!(opened.err(), with, "{plaintext:?}");
    }
    let mut net = net(FEATURES, FEATURES & !FEATURE_PATH_SIZE);
    let mut datagram = vec![0; 64];
    let check = Outgoing::PathCheck(slot(ALICE));
    let len = net.gateway.originate(net.now, check, &mut datagram).unwrap().len;
    let opened = open(&mut net.clients[0], net.now, &mut datagram[..len], GATEWAY, Ecn::NotEct);
    assert_eq!(opened, Err(DropReason::UnknownInband), "a path check");
}

#[test]
fn a_gateway_answers_by_a_batch_at_most_twice_a_second() {
    let mut net = net(FEATURES, FEATURES);
    let mut answered = 0;
    for _ in 0..100 {
        net.now = net.now + Duration::from_millis(50);
        let probe = net.client_sends(ALICE, &[0x10, 2, 0xF8, 0xFF, 0, 0]);
        match net.gateway_gets(&probe, HOME) {
            Ok(Opened::BatchProbe { slot: from, id: 0xFFF8, size: 6 }) if from == slot(ALICE) => {
                answered += 1
            }
            other => assert_eq!(other, Ok(Opened::Consumed)),
        }
    }
    assert_eq!(answered, 10, "in five seconds");
    let batch = Outgoing::Batch { slot: slot(ALICE), id: 0xFFFC, size: 6, replies: true };
    let ids: Vec<_> = batch
        .parts()
        .map(|part| match part {
            Outgoing::Reply { id, size: 6, padded: true, .. } => id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, [0xFFFC, 0xFFFD, 0xFFFE, 0xFFFF, 0, 1, 2, 3]);
}

#[test]
fn only_a_gateway_receives_batch_loss_reports() {
    let mut net = net(FEATURES, FEATURES);
    let report = net.client_sends(ALICE, &[0x12, 1]);
    let address = endpoint(HOME).remote;
    assert_eq!(net.gateway_gets(&report, HOME), Ok(Opened::BatchesLost(address)));
    for outgoing in
        [Outgoing::BatchesLost(slot(ALICE)), Outgoing::BatchProbe { slot: slot(ALICE), id: 1, size: 6 }]
    {
        let mut datagram = vec![0; 64];
        let len = net.gateway.originate(net.now, outgoing, &mut datagram).unwrap().len;
        let opened = open(&mut net.clients[0], net.now, &mut datagram[..len], GATEWAY, Ecn::NotEct);
        assert_eq!(opened, Err(DropReason::UnknownInband), "{outgoing:?} at a client");
    }
}

#[test]
fn a_client_that_loses_batches_is_sent_single_datagrams_and_no_other_is() {
    const BOBS: &str = "198.51.100.2:2000";
    let mut net = net(FEATURES, FEATURES);
    let single = |net: &mut Net| {
        [ALICE, BOB].map(|client| net.gateway.sender(net.now, slot(client)).unwrap().outer(0).single)
    };
    assert_eq!(single(&mut net), [false, false]);
    net.now = net.now + Duration::from_secs(1);
    let report = net.client_sends(ALICE, &[0x12, 1]);
    assert!(net.gateway_gets(&report, BOBS).is_ok(), "another client's address, forged");
    assert_eq!(single(&mut net), [true, false]);
    net.now = net.now + Duration::from_secs(1);
    let moved = net.client_sends(ALICE, &[]);
    assert_eq!(net.gateway_gets(&moved, HOME), Ok(Opened::Consumed));
    assert_eq!(single(&mut net), [false, false], "the path is another one");
}

#[test]
fn an_unfilled_checksum_is_malformed_without_the_feature() {
    let mut sent = packet(10, 200);
    sent[0] |= PARTIAL_CHECKSUM;
    let (opened, _) = received(FEATURES & !FEATURE_PARTIAL_CHECKSUM, &sent, Ecn::NotEct);
    assert_eq!(opened, Err(DropReason::BadPacket));
    let (opened, _) = received(FEATURE_PARTIAL_CHECKSUM, &sent, Ecn::NotEct);
    assert!(matches!(opened, Ok(Opened::Tun(_))), "{opened:?}");
}

#[test]
fn an_outer_mark_means_nothing_without_the_feature() {
    let sent = with_class(packet(10, 200), 0b10);
    for (agreed, inside) in [(FEATURES, 0b11), (FEATURES & !FEATURE_ECN, 0b10)] {
        let (opened, packet) = received(agreed, &sent, Ecn::Ce);
        assert!(matches!(opened, Ok(Opened::Tun(_))), "{opened:?}");
        assert_eq!(packet[1], inside);
    }
    // Nor is a packet dropped for one that can carry no mark.
    let (opened, _) = received(0, &packet(10, 200), Ecn::Ce);
    assert!(matches!(opened, Ok(Opened::Tun(_))), "{opened:?}");
}

#[test]
fn a_datagram_with_the_flag_confirm_is_dropped_unread_without_the_feature() {
    for (agreed, expected) in
        [(FEATURES, None), (FEATURES & !FEATURE_PATH_CONFIRM, Some(DropReason::BadHeader))]
    {
        let mut net = net(agreed, FEATURES);
        net.clients[0].apply(Command::PathSize { slot: slot(0), size: 1_200 });
        let len = 1_180;
        let mut large = [packet(200, 10), vec![0; len - 32]].concat();
        large[2..4].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        let mut datagram = seal(&mut net.gateway, net.now, slot(ALICE), &with_hops(large, 64)).unwrap();
        open(&mut net.clients[0], net.now, &mut datagram, GATEWAY, Ecn::NotEct).unwrap();
        let answer = net.client_sends(ALICE, &packet(10, 200));
        assert!(Header::parse(&answer).unwrap().confirm);
        let before = net.gateway.activity(slot(ALICE)).unwrap();
        assert_eq!(net.gateway_gets(&answer, HOME).err(), expected);
        let after = net.gateway.activity(slot(ALICE)).unwrap();
        assert_eq!(after.rx_datagrams - before.rx_datagrams, u64::from(expected.is_none()));
    }
}
