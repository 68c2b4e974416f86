//! Packets that come in two halves: the same checks, the same destinations, and none of them twice.

use super::*;
use crate::control::FEATURE_HALVES;
use vpnd_packet::Checked;

const FROM_ALICE: &str = "198.51.100.1:1000";

/// Gives both clients an epoch in which packets may come in halves.
fn net(client_to_client: bool) -> Net {
    let mut net = Net::new(client_to_client);
    for place in [ALICE, BOB] {
        net.install(place, 2, FEATURE_HALVES);
    }
    net.meet();
    // The greeting is no use of the tunnel that a test looks for.
    net.clients[0].take_activities();
    net
}

/// The datagrams of a packet in halves.
fn halves(plane: &mut Plane, now: Time, slot: Slot, packet: &[u8]) -> [Vec<u8>; 2] {
    let mut sender = plane.sender(now, slot).expect("there is an epoch");
    assert!(sender.joins_halves());
    [false, true].map(|second| {
        let mut datagram = vec![0; HEADER_LEN + packet.len() + 48];
        let sealed = sender.seal_half(&mut datagram, packet, second).expect("there is room");
        datagram.truncate(sealed.len);
        datagram
    })
}

/// A packet that was joined.
fn joined(to: Option<Slot>, packet: &[u8]) -> Opened {
    Opened::Joined { to, packet: Checked::new(&Packet::parse(packet).unwrap(), 0) }
}

/// Sends a packet of Alice's in halves.
fn alice_sends(net: &mut Net, packet: &[u8]) -> Result<Opened, DropReason> {
    let [first, second] = halves(&mut net.clients[0], net.now, slot(0), packet);
    assert_eq!(net.gateway_gets(&first, FROM_ALICE), Ok(Opened::Consumed));
    net.gateway_gets(&second, FROM_ALICE)
}

#[test]
fn a_packet_in_halves_arrives_once_and_is_counted_once() {
    let mut net = net(false);
    let sent = packet(10, 200);
    let [first, second] = halves(&mut net.clients[0], net.now, slot(0), &sent);
    for (datagram, opened) in [
        (&second, Ok(Opened::Consumed)),
        (&second, Err(DropReason::Replayed)),
        (&first, Ok(joined(None, &sent))),
        (&first, Err(DropReason::Replayed)),
        (&second, Err(DropReason::Replayed)),
    ] {
        assert_eq!(net.gateway_gets(datagram, FROM_ALICE), opened);
    }
    assert_eq!(net.gateway.joined()[..sent.len()], sent);
    let seen = net.gateway.activity(slot(ALICE)).unwrap();
    assert_eq!((seen.rx_packets, seen.rx_bytes, seen.rx_halved), (1, sent.len() as u64, 1));
    let seen = net.clients[0].activity(slot(0)).unwrap();
    assert_eq!((seen.tx_packets, seen.tx_bytes, seen.tx_halved), (1, sent.len() as u64, 1));
}

#[test]
fn a_packet_in_halves_passes_the_checks_of_a_whole_one() {
    let mut net = net(false);
    assert_eq!(alice_sends(&mut net, &packet(66, 200)), Err(DropReason::ForeignSource));
    assert_eq!(alice_sends(&mut net, &packet(10, 11)), Err(DropReason::Policy));
    assert_eq!(alice_sends(&mut net, &[0x12, 0]), Err(DropReason::BadPacket), "no in-band message");
    let [first, second] = halves(&mut net.gateway, net.now, slot(ALICE), &packet(200, 66));
    let client = &mut net.clients[0];
    let mut get = |mut datagram: Vec<u8>| open(client, net.now, &mut datagram, GATEWAY, Ecn::NotEct);
    assert_eq!((get(first), get(second)), (Ok(Opened::Consumed), Err(DropReason::NotForUs)));
}

#[test]
fn a_packet_in_halves_reaches_another_client() {
    let mut net = net(true);
    let sent = packet(10, 11);
    let opened = alice_sends(&mut net, &sent);
    assert_eq!(opened, Ok(joined(Some(slot(BOB)), &sent)));
    assert_eq!(net.gateway.joined()[..sent.len()], with_hops(sent, 63), "routed once");
    assert_eq!(alice_sends(&mut net, &with_hops(packet(10, 11), 1)), Ok(Opened::Consumed));
    assert_eq!(net.gateway.counters().dropped(DropReason::HopLimit), 1);
}

#[test]
fn a_half_that_stays_alone_is_counted() {
    let mut net = net(false);
    let [first, _] = halves(&mut net.clients[0], net.now, slot(0), &packet(10, 200));
    net.gateway_gets(&first, FROM_ALICE).unwrap();
    assert_eq!(net.gateway.counters().dropped(DropReason::HalfAlone), 0);
    net.gateway.apply(Command::Retire { slot: slot(ALICE), epoch: 2 });
    assert_eq!(net.gateway.counters().dropped(DropReason::HalfAlone), 1);
}

#[test]
fn halves_and_packets_that_wait_are_counted_when_their_session_ends() {
    let mut net = net(false);
    let [first, _] = halves(&mut net.clients[0], net.now, slot(0), &packet(10, 200));
    net.gateway_gets(&first, FROM_ALICE).unwrap();
    net.now = net.now + Duration::from_secs(180);
    net.gateway.sender(net.now, slot(ALICE)).unwrap_err().queue(&packet(200, 10));
    assert_eq!(net.gateway.counters().total(), 0);
    net.gateway.apply(Command::Close(slot(ALICE)));
    let dropped = |reason| net.gateway.counters().dropped(reason);
    assert_eq!((dropped(DropReason::HalfAlone), dropped(DropReason::NoSession)), (1, 1));
}
