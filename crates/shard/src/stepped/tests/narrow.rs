//! Packets that a narrow path does not carry: those that waited for an epoch, and super-packets.

use vpnd_packet::mss::clamp_mss;

use super::accounting::{CAMPUS, CLIENT, Host, host, install, ip};
use super::*;

const SLOT: Slot = Slot { index: 0, generation: 0 };
/// A datagram of this size carries a packet that is 32 bytes shorter.
const PATH: u16 = 1_200;

fn read(host: &mut Host, packet: Vec<u8>) {
    host.tun().reads.borrow_mut().push_back(packet);
    while host.transmit().unwrap() == Progress::More {}
}

/// A UDP packet of `len` bytes that may not be cut.
fn udp(len: usize) -> Vec<u8> {
    let mut udp = vec![0x9C, 0x40, 1, 0xBB, 0, 0, 0, 0];
    udp.resize(len - 20, 0x5A);
    udp[4..6].copy_from_slice(&(len as u16 - 20).to_be_bytes());
    ip(VirtioHeader::default(), 17, CAMPUS, CLIENT, &udp)
}

/// A SYN with an MSS.
fn syn(mss: u16) -> Vec<u8> {
    let mut tcp =
        vec![0x9C, 0x40, 1, 0xBB, 0, 0, 0, 1, 0, 0, 0, 0, 0x60, 2, 0xFF, 0xFF, 0, 0, 0, 0, 2, 4, 0, 0];
    tcp[22..].copy_from_slice(&mss.to_be_bytes());
    ip(VirtioHeader::default(), 6, CAMPUS, CLIENT, &tcp)
}

fn is_too_big(packet: &[u8]) -> bool {
    packet[9] == 1 && packet[20..22] == [3, 4]
}

#[test]
fn what_waited_for_an_epoch_fits_the_path_that_is_there_then() {
    let (mut gateway, mut client) = (host(Role::Gateway, &[]), host(Role::Client, &[]));
    gateway.command(Command::Retire { slot: SLOT, epoch: 1 });
    read(&mut gateway, udp(1_300));
    read(&mut gateway, syn(1_460));
    read(&mut gateway, udp(1_168));
    assert_eq!(gateway.socket().sent.take().len() + gateway.tun().packets.take().len(), 0, "all wait");
    gateway.command(Command::PathSize { slot: SLOT, size: PATH });
    install(&mut gateway, true);
    let answers = gateway.tun().packets.take();
    assert!(answers.len() == 1 && is_too_big(&answers[0]), "the campus learns of the first: {answers:?}");
    let sent = gateway.socket().sent.take();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|datagram| datagram.len() <= usize::from(PATH)));

    client.socket().inbox.borrow_mut().extend(sent);
    while client.receive() == Progress::More {}
    let mut arrived = client.tun().packets.take();
    assert_eq!(arrived.len(), 2);
    let clamped = clamp_mss(&mut arrived[0], PATH - 32).unwrap();
    assert!(!clamped, "its MSS fits: {:?}", &arrived[0][40..44]);
    assert_eq!(arrived[0][40..44], [2, 4, 4, 104], "1,168 bytes without the headers");
}

#[test]
fn a_super_packet_that_is_too_big_costs_one_message_of_those_allowed() {
    let mut gateway = host(Role::Gateway, &[]);
    gateway.command(Command::PathSize { slot: SLOT, size: PATH });
    let header = VirtioHeader {
        flags: VirtioHeader::NEEDS_CSUM,
        gso_type: VirtioHeader::GSO_TCPV4,
        hdr_len: 40.into(),
        gso_size: 1_360.into(),
        csum_start: 20.into(),
        csum_offset: 16.into(),
    };
    let mut tcp = vec![0; 20 + 40 * 1_360];
    tcp[..4].copy_from_slice(&[0x9C, 0x40, 1, 0xBB]);
    tcp[12..14].copy_from_slice(&[0x50, 0x10]);
    // 32 messages may go at once.
    for _ in 0..20 {
        read(&mut gateway, ip(header, 6, CAMPUS, CLIENT, &tcp));
    }
    let answers = gateway.tun().packets.take();
    assert!(answers.len() == 20 && answers.iter().all(|answer| is_too_big(answer)), "{}", answers.len());
    assert_eq!(gateway.report().counters.dropped(DropReason::TooBig), 20 * 40);
}
