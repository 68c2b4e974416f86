use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::{ICMPV6, tcp_flag};

/// An IPv4 packet with `options` (padded by the caller to words), any payload, and no valid
/// checksum.
fn v4(options: &[u8], place: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header_len = 20 + options.len();
    let mut bytes = vec![0x40 | (header_len / 4) as u8, 0xB9];
    bytes.extend(((header_len + payload.len()) as u16).to_be_bytes());
    bytes.extend([0, 7]);
    bytes.extend(place.to_be_bytes());
    bytes.extend([64, protocol, 0, 0, 10, 8, 0, 2, 10, 1, 0, 9]);
    bytes.extend(options);
    bytes.extend(payload);
    bytes
}

fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x6B, 0x90, 0, 1];
    bytes.extend((payload.len() as u16).to_be_bytes());
    bytes.extend([next, 63]);
    bytes.extend([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    bytes.extend([0xFD, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9]);
    bytes.extend(payload);
    bytes
}

fn tcp(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x1F, 0x90, 0, 80, 0, 0, 0, 5, 0, 0, 0, 6, 0x60, tcp_flag::ACK, 2, 0, 0, 0, 0, 0];
    bytes.extend([1, 1, 1, 0]);
    bytes.extend(payload);
    bytes
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 53, 0x30, 0x39];
    bytes.extend(((8 + payload.len()) as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

/// One IPv6 extension header of eight bytes.
fn extension(next: u8) -> [u8; 8] {
    [next, 0, 1, 4, 0, 0, 0, 0]
}

fn fragment_header(next: u8, offset: u16, more: bool) -> [u8; 8] {
    let [high, low] = (offset | u16::from(more)).to_be_bytes();
    [next, 0, high, low, 0, 0, 0, 1]
}

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn error(bytes: &[u8]) -> PacketError {
    packet(bytes).expect_err("the packet should have been refused")
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn plain_tcp_over_v4() {
    let mut bytes = v4(&[], 0x4000, TCP, &tcp(b"hello"));
    bytes.extend([0xEE; 9]);
    let packet = packet(&bytes).unwrap();
    assert_eq!(packet.version(), Version::V4);
    assert_eq!(packet.total_len(), 20 + 24 + 5);
    assert_eq!((packet.src(), packet.dst()), (ip("10.8.0.2"), ip("10.1.0.9")));
    assert_eq!(packet.ports(), Some((8080, 80)));
    assert_eq!((packet.dscp(), packet.ecn() as u8, packet.hop_limit()), (46, 1, 64));
    assert_eq!(
        (packet.protocol(), packet.transport_offset(), packet.headers_len()),
        (TCP, Some(20), Some(44))
    );
    assert!(packet.dont_fragment() && !packet.is_partial() && packet.fragment().is_none());
    let tcp = packet.tcp().unwrap();
    assert_eq!((tcp.seq(), tcp.ack(), tcp.flags(), tcp.window()), (5, 6, tcp_flag::ACK, 512));
    assert_eq!(tcp.options(), [1, 1, 1, 0]);
}

#[test]
fn plain_udp_over_v6() {
    let bytes = v6(UDP, &udp(b"query"));
    let packet = packet(&bytes).unwrap();
    assert_eq!((packet.src(), packet.dst()), (ip("fd00::2"), ip("fd00:0:0:1::9")));
    assert_eq!(packet.ports(), Some((53, 12345)));
    assert_eq!((packet.dscp(), packet.ecn() as u8, packet.hop_limit()), (46, 1, 63));
    assert_eq!(packet.headers_len(), Some(48));
    assert!(packet.tcp().is_none());
}

#[test]
fn the_partial_bit_is_no_part_of_the_version() {
    for mut bytes in [v4(&[], 0, TCP, &tcp(b"x")), v6(UDP, &udp(b"x"))] {
        bytes[0] |= PARTIAL_CHECKSUM;
        assert!(packet(&bytes).unwrap().is_partial());
    }
}

#[test]
fn a_partial_checksum_needs_a_whole_transport_header() {
    let mut short_udp = udp(b"xy");
    short_udp[5] -= 1;
    for mut bytes in [
        v4(&[], 0, 1, &[8, 0, 0, 0]),
        v4(&[], 0x2000, TCP, &tcp(&[0; 8])),
        v4(&[], 3, UDP, &[0; 8]),
        v4(&[], 0, UDP, &short_udp),
        v6(FRAGMENT, &join(&[&fragment_header(UDP, 0, false), &udp(b"x")])),
    ] {
        assert!(packet(&bytes).is_ok());
        bytes[0] |= PARTIAL_CHECKSUM;
        assert_eq!(error(&bytes), PacketError::Partial);
    }
}

#[test]
fn wrong_versions_and_lengths() {
    assert_eq!(error(&[]), PacketError::Truncated);
    assert_eq!(error(&[0x10; 40]), PacketError::Version);
    assert_eq!(error(&[0x95; 40]), PacketError::Version);
    let good = v4(&[], 0, TCP, &tcp(b"hello"));
    assert_eq!(error(&good[..19]), PacketError::Truncated);
    assert_eq!(error(&good[..good.len() - 1]), PacketError::Truncated);
    let mut bytes = good.clone();
    bytes[0] = 0x44;
    assert_eq!(error(&bytes), PacketError::HeaderLength);
    let mut bytes = good;
    bytes[2..4].copy_from_slice(&19_u16.to_be_bytes());
    assert_eq!(error(&bytes), PacketError::HeaderLength);
    let good = v6(TCP, &tcp(b"hello"));
    assert_eq!(error(&good[..39]), PacketError::Truncated);
    assert_eq!(error(&good[..good.len() - 1]), PacketError::Truncated);
}

#[test]
fn transport_headers_must_fit() {
    assert_eq!(error(&v4(&[], 0, TCP, &tcp(b"")[..19])), PacketError::Transport);
    assert_eq!(error(&v4(&[], 0, TCP, &tcp(b"")[..23])), PacketError::Transport);
    let mut low = tcp(b"");
    low[12] = 0x40;
    assert_eq!(error(&v6(TCP, &low)), PacketError::Transport);
    assert_eq!(error(&v6(UDP, &udp(b"")[..7])), PacketError::Transport);
    let mut long = udp(b"abc");
    long[5] += 1;
    assert_eq!(error(&v6(UDP, &long)), PacketError::Transport);
    long[5] = 7;
    assert_eq!(error(&v6(UDP, &long)), PacketError::Transport);
}

#[test]
fn sources_that_are_no_host() {
    for source in [[0, 0, 0, 0], [0, 1, 2, 3], [127, 0, 0, 1], [224, 0, 0, 1], [239, 9, 9, 9], [255; 4]] {
        let mut bytes = v4(&[], 0, UDP, &udp(b""));
        bytes[12..16].copy_from_slice(&source);
        assert_eq!(error(&bytes), PacketError::Source, "{source:?}");
    }
    for source in ["::", "::1", "ff02::1", "::ffff:10.8.0.2", "::10.8.0.2"] {
        let mut bytes = v6(UDP, &udp(b""));
        let IpAddr::V6(address) = ip(source) else { unreachable!() };
        bytes[8..24].copy_from_slice(&address.octets());
        assert_eq!(error(&bytes), PacketError::Source, "{source}");
        bytes.copy_within(8..24, 24);
        bytes[8] = 0xFD;
        let multicast = source.starts_with("ff");
        assert_eq!(packet(&bytes).err(), (!multicast).then_some(PacketError::Destination), "{source}");
    }
    let mut bytes = v4(&[], 0, UDP, &udp(b""));
    bytes[16] = 127;
    assert_eq!(error(&bytes), PacketError::Destination);
}

#[test]
fn source_routing_is_refused() {
    for kind in [OPTION_LOOSE_SOURCE_ROUTE, OPTION_STRICT_SOURCE_ROUTE] {
        let bytes = v4(&[OPTION_NOP, kind, 7, 4, 10, 0, 0, 1], 0, UDP, &udp(b""));
        assert_eq!(error(&bytes), PacketError::SourceRouting);
    }
    // Behind the end of the list nothing is read any more.
    assert!(packet(&v4(&[OPTION_END, OPTION_LOOSE_SOURCE_ROUTE, 3, 4], 0, UDP, &udp(b""))).is_ok());
    let routing = |kind, left| v6(ROUTING, &join(&[&[UDP, 0, kind, left, 0, 0, 0, 0], &udp(b"")]));
    assert_eq!(error(&routing(0, 0)), PacketError::SourceRouting);
    assert_eq!(error(&routing(2, 1)), PacketError::SourceRouting);
    assert_eq!(packet(&routing(2, 0)).unwrap().ports(), Some((53, 12345)));
}

#[test]
fn malformed_options() {
    assert!(packet(&v4(&[7, 4, 4, 0], 0, UDP, &udp(b""))).is_ok());
    for options in [[7, 0, 0, 0], [7, 1, 0, 0], [7, 5, 4, 0], [1, 1, 1, 7]] {
        assert_eq!(error(&v4(&options, 0, UDP, &udp(b""))), PacketError::Options, "{options:?}");
    }
}

#[test]
fn extension_headers_are_walked() {
    let authentication = [UDP, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let chain =
        join(&[&extension(60), &extension(ROUTING), &[51, 0, 4, 0, 0, 0, 0, 0], &authentication, &udp(b"q")]);
    let bytes = v6(HOP_BY_HOP, &chain);
    let packet = packet(&bytes).unwrap();
    assert_eq!((packet.protocol(), packet.transport_offset()), (UDP, Some(40 + 36)));
    assert_eq!(packet.ports(), Some((53, 12345)));
}

#[test]
fn extension_chains_are_bounded() {
    let options = |count: usize| {
        let mut chain = extension(60).repeat(count);
        let last = chain.len() - 8;
        chain[last] = ICMPV6;
        v6(60, &join(&[&chain, &[128, 0, 0, 0]]))
    };
    assert_eq!(packet(&options(8)).unwrap().icmp(), Some((128, 0)));
    assert_eq!(error(&options(9)), PacketError::Extensions);
    let mut long = vec![UDP, 31];
    long.resize(256, 0);
    assert!(packet(&v6(60, &join(&[&long, &udp(b"")]))).is_ok());
    long[1] = 32;
    long.resize(264, 0);
    assert_eq!(error(&v6(60, &join(&[&long, &udp(b"")]))), PacketError::Extensions);
    assert_eq!(
        error(&v6(60, &join(&[&extension(HOP_BY_HOP), &extension(UDP), &udp(b"")]))),
        PacketError::Extensions
    );
    assert_eq!(error(&v6(60, &extension(60)[..7])), PacketError::Extensions);
    assert_eq!(error(&v6(60, &[])), PacketError::Extensions);
    let twice = join(&[&fragment_header(FRAGMENT, 0, false), &fragment_header(UDP, 0, false), &udp(b"")]);
    assert_eq!(error(&v6(FRAGMENT, &twice)), PacketError::Extensions);
}

#[test]
fn fragments() {
    let bytes = v4(&[], 0x2000, UDP, &udp(&[0; 8]));
    let first = packet(&bytes).unwrap();
    assert_eq!(first.fragment(), Some(Fragment { offset: 0, more: true }));
    assert_eq!(first.ports(), Some((53, 12345)));
    let bytes = v4(&[], 2, UDP, &[9; 5]);
    let last = packet(&bytes).unwrap();
    assert_eq!(last.fragment(), Some(Fragment { offset: 16, more: false }));
    assert_eq!((last.ports(), last.transport_offset(), last.src()), (None, None, ip("10.8.0.2")));
    let bytes = v6(FRAGMENT, &join(&[&fragment_header(TCP, 1232, true), &[9; 16]]));
    let middle = packet(&bytes).unwrap();
    assert_eq!(middle.fragment(), Some(Fragment { offset: 1232, more: true }));
    assert_eq!((middle.protocol(), middle.ports(), middle.tcp().is_none()), (TCP, None, true));
    let bytes = v6(FRAGMENT, &join(&[&fragment_header(TCP, 0, false), &tcp(b"atomic")]));
    assert_eq!(packet(&bytes).unwrap().ports(), Some((8080, 80)));
}

#[test]
fn fragments_that_hide_or_overwrite_headers() {
    let refused = [
        // The first fragment cuts the TCP or UDP header.
        v4(&[], 0x2000, TCP, &tcp(b"")[..16]),
        v6(FRAGMENT, &join(&[&fragment_header(TCP, 0, true), &tcp(b"")[..16]])),
        // A later one lies where the first has its TCP header.
        v4(&[], 1, TCP, &[0; 8]),
        v4(&[], 2, TCP, &[0; 8]),
        v6(FRAGMENT, &join(&[&fragment_header(60, 16, false), &[0; 8]])),
        // Beyond the largest packet, not in units of eight, empty.
        v4(&[], 0x1FFF, UDP, &[0; 16]),
        v4(&[], 0x2003, UDP, &[0; 9]),
        v4(&[], 3, UDP, &[]),
    ];
    for bytes in refused {
        assert_eq!(error(&bytes), PacketError::Fragment, "{bytes:02x?}");
    }
    // A chain of extension headers that goes on in the next fragment (RFC 7112).
    let cut = v6(FRAGMENT, &join(&[&fragment_header(60, 0, true), &[TCP, 1, 0, 0, 0, 0, 0, 0]]));
    assert_eq!(error(&cut), PacketError::Extensions);
}

/// Reads everything a packet offers, so that arbitrary bytes exercise every accessor.
fn read_all(packet: &Packet<'_>) {
    let _ = (packet.src(), packet.dst(), packet.traffic_class(), packet.hop_limit(), packet.dont_fragment());
    let _ = (packet.ports(), packet.icmp(), packet.tcp().map(|tcp| (tcp.seq(), tcp.options().len())));
    assert!(packet.headers_len().is_none_or(|len| len <= packet.total_len() && len <= crate::MAX_HEADERS));
    assert!(packet.transport_offset().is_none_or(|at| at <= packet.total_len()));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), v6: bool, partial: bool) {
        if let Some(first) = bytes.first_mut() {
            *first = if v6 { 0x60 } else { 0x40 | (*first & 0x0F) } | if partial { PARTIAL_CHECKSUM } else { 0 };
        }
        if let Ok(packet) = packet(&bytes) {
            read_all(&packet);
        }
    }

    #[test]
    fn damaged_packets_never_panic(
        which in 0_usize..4,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut: prop::sample::Index,
    ) {
        let mut bytes = match which {
            0 => v4(&[7, 4, 4, 0], 0, TCP, &tcp(b"payload")),
            1 => v6(TCP, &tcp(b"payload")),
            2 => v6(HOP_BY_HOP, &join(&[&extension(FRAGMENT), &fragment_header(UDP, 0, true), &udp(&[0; 8])])),
            _ => v4(&[], 0x2000, UDP, &udp(&[0; 8])),
        };
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(packet) = packet(&bytes) {
            read_all(&packet);
        }
    }
}
