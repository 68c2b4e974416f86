//! Slicing and rebuilding against a plain model of segmentation: whatever is cut, sent and merged
//! again must be, byte for byte, what software segmentation with full checksums puts on the wire.

#[path = "model/segment.rs"]
mod segment;

use proptest::prelude::*;
use vpnd_packet::Packet;
use vpnd_packet::checksum;
use vpnd_packet::offload::{
    Held, Needs, OffloadError, PeerFeatures, Rebuilder, Rebuilt, Slicer, TunFeatures, VirtioHeader,
};
use zerocopy::IntoBytes;

const ALL: TunFeatures = TunFeatures { vnet_header: true, checksum: true, tcp: true, udp: true };
const PARTIAL: PeerFeatures = PeerFeatures { partial_checksum: true };
const FULL: PeerFeatures = PeerFeatures { partial_checksum: false };

/// A packet as an application's stack would make it before segmentation.
#[derive(Clone, Debug)]
struct Super {
    v6: bool,
    tcp: bool,
    flags: u8,
    options: usize,
    id: u16,
    dont_fragment: bool,
    class: u8,
    seq: u32,
    payload: Vec<u8>,
    gso_size: usize,
}

impl Super {
    fn transport(&self) -> usize {
        if self.v6 { 40 } else { 20 }
    }

    fn headers(&self) -> usize {
        self.transport() + if self.tcp { 20 + self.options * 4 } else { 8 }
    }

    /// The packet with full checksums.
    fn bytes(&self) -> Vec<u8> {
        let l4_len = self.headers() - self.transport() + self.payload.len();
        let mut bytes = if self.v6 { self.ipv6_header(l4_len) } else { self.ipv4_header(l4_len) };
        bytes.extend([0x9C, 0x40, 0x01, 0xBB]);
        if self.tcp {
            bytes.extend(self.seq.to_be_bytes());
            bytes.extend([1, 2, 3, 4, (5 + self.options as u8) << 4, self.flags, 0x01, 0xF6, 0, 0, 0, 0]);
            bytes.extend((0..self.options * 4).map(|i| if i % 4 == 3 { 0 } else { 1 }));
        } else {
            bytes.extend((l4_len as u16).to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend(&self.payload);
        segment::fill_checksums(&mut bytes, self.transport(), self.tcp);
        bytes
    }

    fn ipv4_header(&self, l4_len: usize) -> Vec<u8> {
        let mut bytes = vec![0x45, self.class];
        bytes.extend((20 + l4_len as u16).to_be_bytes());
        bytes.extend(self.id.to_be_bytes());
        bytes.extend([if self.dont_fragment { 0x40 } else { 0 }, 0, 64, if self.tcp { 6 } else { 17 }, 0, 0]);
        bytes.extend([10, 8, 0, 2, 10, 1, 0, 9]);
        bytes
    }

    fn ipv6_header(&self, l4_len: usize) -> Vec<u8> {
        let mut bytes = vec![0x60 | self.class >> 4, self.class << 4, 0x12, 0x34];
        bytes.extend((l4_len as u16).to_be_bytes());
        bytes.extend([if self.tcp { 6 } else { 17 }, 64]);
        bytes.extend([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        bytes.extend([0xFD, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9]);
        bytes
    }

    /// The virtio header that the kernel would put in front of it.
    fn header(&self) -> VirtioHeader {
        let kind = match (self.tcp, self.v6) {
            (true, false) => VirtioHeader::GSO_TCPV4,
            (true, true) => VirtioHeader::GSO_TCPV6,
            (false, _) => VirtioHeader::GSO_UDP_L4,
        };
        let ecn = if self.tcp && self.flags & 0x80 != 0 { VirtioHeader::GSO_ECN } else { 0 };
        let cut = self.payload.len() > self.gso_size;
        VirtioHeader {
            flags: VirtioHeader::NEEDS_CSUM,
            gso_type: if cut { kind | ecn } else { 0 },
            hdr_len: (self.headers() as u16).into(),
            gso_size: (if cut { self.gso_size as u16 } else { 0 }).into(),
            csum_start: (self.transport() as u16).into(),
            csum_offset: (if self.tcp { 16_u16 } else { 6 }).into(),
        }
    }

    /// Returns what has to arrive on a wire.
    fn expected(&self) -> Vec<Vec<u8>> {
        segment::split(&self.bytes(), self.transport(), self.tcp, self.gso_size)
    }

    fn slices(&self, peer: PeerFeatures) -> Vec<Vec<u8>> {
        let bytes = self.bytes();
        let packet = Packet::parse(&bytes).expect("a good packet");
        let slicer = Slicer::new(&self.header(), &packet, peer).expect("a super-packet that can be cut");
        (0..slicer.count()).map(|i| write(&slicer, i)).collect()
    }
}

fn write(slicer: &Slicer<'_>, i: usize) -> Vec<u8> {
    let mut out = vec![0xA5; slicer.slice_len(i) + 3];
    let len = slicer.write(i, &mut out);
    assert_eq!(out[len..], [0xA5; 3], "a slice is as long as announced");
    out.truncate(len);
    out
}

/// Puts packets into one buffer, pushes them in order and returns what would be written to the TUN
/// device.
fn rebuild(packets: &[Vec<u8>], features: TunFeatures) -> Vec<Vec<u8>> {
    let mut rebuilder = Rebuilder::new(features);
    rebuild_with(&mut rebuilder, packets)
}

fn rebuild_with(rebuilder: &mut Rebuilder, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut buffer = vec![0xEE; 5];
    let mut places = Vec::new();
    for packet in packets {
        places.push(buffer.len());
        buffer.extend(packet);
        buffer.extend([0xEE; 17]);
    }
    let mut written = Vec::new();
    let mut count = 0;
    for at in places {
        let packet = Packet::parse(&buffer[at..]).expect("a good packet");
        rebuilder.push(&buffer, &packet, |rebuilt| {
            count += rebuilt.packets();
            written.push(collect(rebuilt));
        });
    }
    rebuilder.flush(&buffer, |rebuilt| {
        count += rebuilt.packets();
        written.push(collect(rebuilt));
    });
    assert_eq!(count, packets.len(), "each packet is emitted once");
    written
}

fn collect(rebuilt: &Rebuilt<'_>) -> Vec<u8> {
    rebuilt.io_slices().flat_map(|slice| slice.to_vec()).collect()
}

/// Returns what arrives on a wire behind a TUN device with virtio headers.
fn deliver(written: &[Vec<u8>]) -> Vec<Vec<u8>> {
    written.iter().flat_map(|bytes| segment::deliver(bytes)).collect()
}

fn tcp(v6: bool, payload: usize, gso_size: usize) -> Super {
    Super {
        v6,
        tcp: true,
        flags: 0x10,
        options: 3,
        id: 0xFFFE,
        dont_fragment: true,
        class: 0,
        seq: u32::MAX - 2000,
        payload: (0..payload).map(|i| (i * 31 + i / 255) as u8).collect(),
        gso_size,
    }
}

fn udp(v6: bool, payload: usize, gso_size: usize) -> Super {
    Super { tcp: false, ..tcp(v6, payload, gso_size) }
}

fn super_packet() -> impl Strategy<Value = Super> {
    let numbers = (any::<u16>(), any::<u32>(), any::<u8>(), prop_oneof![1_usize..80, 500_usize..1500]);
    let shape = (any::<bool>(), any::<bool>(), 0_usize..=10, any::<bool>());
    let flags = prop_oneof![Just(0x10_u8), Just(0x18), Just(0x90), Just(0x11), Just(0xD9), Just(0x50)];
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..2000),
        (1_usize..60_000, any::<u8>())
            .prop_map(|(len, seed)| (0..len).map(|i| (i * 7) as u8 ^ seed).collect()),
    ];
    (numbers, shape, flags, payload).prop_map(
        |((id, seq, class, gso_size), (v6, tcp, options, dont_fragment), flags, payload)| Super {
            v6,
            tcp,
            flags,
            options,
            id,
            dont_fragment,
            class,
            seq,
            payload,
            gso_size,
        },
    )
}

#[test]
fn a_peer_without_partial_checksums_gets_what_software_makes() {
    for packet in
        [tcp(false, 4001, 1400), tcp(true, 4001, 1400), udp(false, 4001, 1400), udp(true, 4001, 1400)]
    {
        assert_eq!(packet.slices(FULL), packet.expected());
    }
}

#[test]
fn partial_slices_are_whole_but_for_the_checksum() {
    for packet in
        [tcp(false, 4001, 1400), tcp(true, 4001, 1400), udp(false, 4001, 1400), udp(true, 4001, 1400)]
    {
        for (mut slice, expected) in packet.slices(PARTIAL).into_iter().zip(packet.expected()) {
            assert_eq!(slice[0] & 0x80, 0x80);
            checksum::complete(&mut slice).unwrap();
            assert_eq!(slice, expected);
        }
    }
}

#[test]
fn a_run_becomes_one_super_packet_again() {
    for packet in
        [tcp(false, 40_001, 1400), tcp(true, 40_001, 1400), udp(false, 40_001, 1400), udp(true, 40_001, 1400)]
    {
        for peer in [PARTIAL, FULL] {
            let written = rebuild(&packet.slices(peer), ALL);
            assert_eq!(written.len(), 1);
            assert_eq!(&written[0][..10], packet.header().as_bytes());
            assert_eq!(deliver(&written), packet.expected());
        }
    }
}

#[test]
fn flags_stay_where_they_belong() {
    let packet = Super { flags: 0xD9, ..tcp(false, 3000, 1000) };
    let slices = packet.slices(PARTIAL);
    let flags: Vec<u8> = slices.iter().map(|slice| slice[33]).collect();
    assert_eq!(flags, [0xD0, 0x50, 0x59]);
    let written = rebuild(&slices, ALL);
    assert_eq!(written.len(), 1);
    assert_eq!(written[0][1], VirtioHeader::GSO_TCPV4 | VirtioHeader::GSO_ECN);
    assert_eq!(deliver(&written), packet.expected());
}

#[test]
fn without_offloads_packets_come_out_complete_and_unmerged() {
    let plain = TunFeatures { vnet_header: false, ..ALL };
    let no_checksum = TunFeatures { checksum: false, ..ALL };
    for packet in [tcp(false, 4001, 1400), udp(true, 4001, 1400)] {
        assert_eq!(rebuild(&packet.slices(PARTIAL), plain), packet.expected());
        let with_headers = rebuild(&packet.slices(PARTIAL), no_checksum);
        assert_eq!(with_headers.len(), packet.expected().len());
        assert_eq!(deliver(&with_headers), packet.expected());
    }
}

#[test]
fn each_kind_of_merging_has_its_switch() {
    let (tcp, udp) = (tcp(false, 3000, 1000), udp(false, 3000, 1000));
    let (no_tcp, no_udp) = (TunFeatures { tcp: false, ..ALL }, TunFeatures { udp: false, ..ALL });
    let count = |packet: &Super, features| {
        let written = rebuild(&packet.slices(PARTIAL), features);
        assert_eq!(deliver(&written), packet.expected());
        written.len()
    };
    assert_eq!((count(&tcp, no_tcp), count(&udp, no_tcp)), (3, 1));
    assert_eq!((count(&tcp, no_udp), count(&udp, no_udp)), (1, 3));
}

#[test]
fn a_wrong_checksum_is_handed_on_and_never_declared_good() {
    for damaged in 0..4 {
        let packet = tcp(false, 4000, 1000);
        let mut slices = packet.slices(FULL);
        *slices[damaged].last_mut().unwrap() ^= 1;
        let delivered = deliver(&rebuild(&slices, ALL));
        assert_eq!(delivered, slices, "packet {damaged} arrives as it was sent");
    }
}

#[test]
fn udp_without_a_checksum_stays_without() {
    let mut slices = udp(false, 3000, 1000).slices(FULL);
    for slice in &mut slices {
        slice[26..28].fill(0);
    }
    let written = rebuild(&slices, ALL);
    assert_eq!(written.len(), 3);
    assert_eq!(deliver(&written), slices);
}

#[test]
fn partial_and_complete_packets_are_not_mixed() {
    let packet = tcp(false, 2000, 1000);
    let slices = vec![packet.slices(PARTIAL).remove(0), packet.slices(FULL).remove(1)];
    let written = rebuild(&slices, ALL);
    assert_eq!(written.len(), 2);
    assert_eq!(deliver(&written), packet.expected());
}

/// Changes of the second of two packets after which they must not be merged.
#[test]
fn what_differs_is_not_merged() {
    type Change = fn(&mut Super);
    let changes: [(&str, Change); 9] = [
        ("a gap", |next| next.seq = next.seq.wrapping_add(1)),
        ("a repetition", |next| next.seq = next.seq.wrapping_sub(1000)),
        ("traffic class", |next| next.class = 3),
        ("fragmentable", |next| next.dont_fragment = false),
        ("identification", |next| next.id = next.id.wrapping_add(1)),
        ("options", |next| next.options = 4),
        ("longer", |next| next.payload.push(0)),
        ("echo of congestion", |next| next.flags |= 0x40),
        ("window reduced", |next| next.flags |= 0x80),
    ];
    let first = tcp(false, 1000, 1000);
    let next = Super { seq: first.seq.wrapping_add(1000), id: first.id.wrapping_add(1), ..first.clone() };
    let pair = |next: &Super| {
        let packets = [first.slices(PARTIAL), next.slices(PARTIAL)].concat();
        let written = rebuild(&packets, ALL);
        assert_eq!(deliver(&written).concat(), [first.bytes(), next.bytes()].concat());
        written.len()
    };
    assert_eq!(pair(&next), 1, "unchanged they are merged");
    for (name, change) in changes {
        let mut changed = next.clone();
        changed.gso_size = 2000;
        change(&mut changed);
        assert_eq!(pair(&changed), 2, "{name}");
    }
}

/// Every ECN codepoint and both TCP flags of ECN (RFC 3168), over both versions and protocols.
#[test]
fn congestion_marks_survive_both_ways() {
    const CONGESTION_EXPERIENCED: u8 = 3;
    for (v6, is_tcp, ecn) in [false, true]
        .into_iter()
        .flat_map(|v6| [false, true].map(|tcp| (v6, tcp)))
        .flat_map(|(v6, tcp)| (0..4).map(move |ecn| (v6, tcp, ecn)))
    {
        let base = if is_tcp { tcp(v6, 4_500, 1_000) } else { udp(v6, 4_500, 1_000) };
        let flags = if is_tcp { base.flags | 0xC0 } else { base.flags };
        let packet = Super { class: 0xB8 | ecn, flags, ..base };
        let mut slices = packet.slices(PARTIAL);
        assert_eq!(rebuild(&slices, ALL).len(), 1);
        assert_eq!(deliver(&rebuild(&slices, ALL)), packet.expected());
        for (i, slice) in slices.iter().enumerate() {
            assert_eq!(traffic_class(slice), 0xB8 | ecn);
            let flags = slice[packet.transport() + 13];
            // The answer to a mark is sent once, in the first slice; the echo goes on until it is.
            assert!(!is_tcp || flags & 0xC0 == if i == 0 { 0xC0 } else { 0x40 });
        }
        if ecn == CONGESTION_EXPERIENCED {
            continue;
        }
        // A queue on the way marks the third packet: that mark reaches the receiver, and no other
        // packet gets one.
        mark(&mut slices[2]);
        let delivered = deliver(&rebuild(&slices, ALL));
        let marks: Vec<u8> = delivered.iter().map(|slice| traffic_class(slice) & 3).collect();
        assert_eq!(marks, [ecn, ecn, CONGESTION_EXPERIENCED, ecn, ecn]);
    }
}

/// A group has the header of its first packet, so each bit of the type of service or traffic class
/// keeps packets apart: DSCP and congestion mark, of both versions and protocols.
#[test]
fn packets_of_different_traffic_classes_stay_apart() {
    const CLASS: u8 = 0xB9;
    for (v6, is_tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        let base = if is_tcp { tcp(v6, 2_000, 1_000) } else { udp(v6, 2_000, 1_000) };
        let of_class = |class| Super { class, ..base.clone() }.slices(PARTIAL);
        assert_eq!(rebuild(&of_class(CLASS), ALL).len(), 1, "alike they are merged");
        for bit in 0..8 {
            let other = CLASS ^ 1 << bit;
            let written = rebuild(&[of_class(CLASS)[0].clone(), of_class(other)[1].clone()], ALL);
            assert_eq!(written.len(), 2, "IPv6 {v6}, TCP {is_tcp}, bit {bit}");
            let classes: Vec<u8> = deliver(&written).iter().map(|packet| traffic_class(packet)).collect();
            assert_eq!(classes, [CLASS, other], "IPv6 {v6}, TCP {is_tcp}, bit {bit}");
        }
    }
}

fn traffic_class(packet: &[u8]) -> u8 {
    if packet[0] & 0x70 == 0x60 { packet[0] << 4 | packet[1] >> 4 } else { packet[1] }
}

/// Sets "congestion experienced", as a router does.
fn mark(packet: &mut [u8]) {
    if packet[0] & 0x70 == 0x60 {
        packet[1] |= 0x30;
    } else {
        packet[1] |= 3;
        // The header checksum does not cover the tunnel's own bit.
        let first = packet[0];
        packet[0] &= 0x7F;
        segment::fill_ipv4_checksum(packet);
        packet[0] = first;
    }
}

/// A device that refuses what was made for it gets the packets as they came, complete.
#[test]
fn each_packet_can_be_had_alone() {
    for (packet, needs) in [
        (tcp(false, 5_001, 1_000), Needs::Tcp),
        (tcp(true, 900, 1_000), Needs::Checksum),
        (udp(true, 2_500, 800), Needs::Udp),
    ] {
        let buffer = packet.slices(PARTIAL).concat();
        let mut alone = Vec::new();
        let mut sink = |rebuilt: &Rebuilt<'_>| {
            assert_eq!(rebuilt.needs(), needs);
            rebuilt.each_alone(|single| {
                assert_eq!((single.needs(), single.packets()), (Needs::Nothing, 1));
                alone.push(collect(single));
            });
        };
        let mut rebuilder = Rebuilder::new(ALL);
        let mut at = 0;
        while at < buffer.len() {
            let parsed = Packet::parse(&buffer[at..]).expect("a good packet");
            rebuilder.push(&buffer, &parsed, &mut sink);
            at += parsed.total_len();
        }
        rebuilder.flush(&buffer, &mut sink);
        let wanted: Vec<Vec<u8>> =
            packet.expected().iter().map(|bytes| [&[0; 10], bytes.as_slice()].concat()).collect();
        assert_eq!(alone, wanted);
    }
}

/// Packets that are held and written later, out of several buffers, are the same as written at
/// once.
#[test]
fn held_packets_are_those_that_were_made() {
    let messages = [
        vec![tcp(false, 5_001, 1_000), udp(true, 2_500, 800)],
        vec![udp(false, 40, 800)],
        vec![tcp(true, 900, 1_000), tcp(true, 9_000, 1_000)],
    ];
    let buffers: Vec<Vec<u8>> = messages
        .iter()
        .map(|all| all.iter().flat_map(|packet| packet.slices(PARTIAL).concat()).collect())
        .collect();
    let (mut held, mut wanted) = (Held::with_capacity(2, 2), Vec::new());
    let describe = |rebuilt: &Rebuilt<'_>| {
        let mut alone = Vec::new();
        rebuilt.each_alone(|single| alone.push(collect(single)));
        (collect(rebuilt), rebuilt.needs(), rebuilt.packets(), alone)
    };
    for _ in 0..2 {
        for (number, buffer) in buffers.iter().enumerate() {
            let mut sink = |rebuilt: &Rebuilt<'_>| {
                wanted.push(describe(rebuilt));
                held.push(number, rebuilt);
            };
            let mut rebuilder = Rebuilder::new(ALL);
            let mut at = 0;
            while at < buffer.len() {
                let parsed = Packet::parse(&buffer[at..]).expect("a good packet");
                rebuilder.push(buffer, &parsed, &mut sink);
                at += parsed.total_len();
            }
            rebuilder.flush(buffer, &mut sink);
        }
        let got: Vec<_> = held.iter(&buffers).map(|rebuilt| describe(&rebuilt)).collect();
        assert_eq!(got, wanted);
        assert_eq!(held.len(), wanted.len());
        assert_eq!(held.packets(), wanted.iter().map(|(_, _, packets, _)| packets).sum::<usize>());
        held.clear();
        wanted.clear();
        assert!(held.is_empty() && held.packets() == 0 && held.iter(&buffers).next().is_none());
    }
}

/// Changes of single bytes for which the model has no field, by offset in an IPv4 packet.
#[test]
fn other_differing_bytes_are_not_merged() {
    let slices = tcp(false, 2000, 1000).slices(PARTIAL);
    for (name, at) in
        [("time to live", 8), ("acknowledgement", 30), ("window", 34), ("urgent pointer", 39), ("option", 41)]
    {
        let mut changed = slices.clone();
        changed[1][at] ^= 1;
        let checksum = ipv4_checksum(&changed[1]);
        changed[1][10..12].copy_from_slice(&checksum);
        assert_eq!(rebuild(&changed, ALL).len(), 2, "{name}");
    }
    for (name, flag) in [("SYN", 2), ("RST", 4), ("URG", 0x20)] {
        let mut changed = slices.clone();
        changed[1][33] |= flag;
        assert_eq!(rebuild(&changed, ALL).len(), 2, "{name}");
    }
    let mut changed = slices.clone();
    changed[1][11] ^= 1;
    assert_eq!(rebuild(&changed, ALL).len(), 2, "wrong IPv4 header checksum");
}

#[test]
fn differing_ipv6_headers_are_not_merged() {
    let slices = tcp(true, 2000, 1000).slices(PARTIAL);
    assert_eq!(rebuild(&slices, ALL).len(), 1);
    for (name, at) in [("flow label", 3), ("hop limit", 7)] {
        let mut changed = slices.clone();
        changed[1][at] ^= 1;
        assert_eq!(rebuild(&changed, ALL).len(), 2, "{name}");
    }
}

/// Properties that no packet of a group may have, even if all have them.
#[test]
fn special_packets_are_not_merged_even_if_alike() {
    let slices = tcp(false, 2000, 1000).slices(FULL);
    let cases =
        [("SYN", 33, 2), ("RST", 33, 4), ("URG", 33, 0x20), ("no ACK", 33, 0x10), ("reserved bits", 32, 1)];
    for (name, at, bit) in
        cases.into_iter().chain([("first fragments", 6, 0x60), ("reserved IP bit", 6, 0x80)])
    {
        let mut changed = slices.clone();
        for slice in &mut changed {
            slice[at] ^= bit;
            segment::fill_checksums(slice, 20, true);
        }
        let written = rebuild(&changed, ALL);
        assert_eq!(written.len(), 2, "{name}");
        assert_eq!(deliver(&written), changed, "{name}");
    }
}

/// The header checksum of a partial packet, whose first byte is not what the checksum covers.
fn ipv4_checksum(packet: &[u8]) -> [u8; 2] {
    let mut header = packet[..20].to_vec();
    header[0] &= 0x7F;
    checksum::ipv4_header(&header).to_be_bytes()
}

#[test]
fn a_constant_identification_is_merged_if_fragmenting_is_forbidden() {
    for (dont_fragment, expected) in [(true, 1), (false, 3)] {
        let packet = Super { dont_fragment, id: 0, ..tcp(false, 3000, 1000) };
        let mut slices = packet.slices(PARTIAL);
        for slice in &mut slices {
            slice[4..6].fill(0);
            let checksum = ipv4_checksum(slice);
            slice[10..12].copy_from_slice(&checksum);
        }
        assert_eq!(rebuild(&slices, ALL).len(), expected);
    }
}

#[test]
fn interleaved_flows_are_collected_side_by_side() {
    let flows: Vec<Super> =
        vec![tcp(false, 5000, 1000), tcp(true, 5000, 1000), udp(false, 5000, 1000), udp(true, 5000, 1000)];
    let sliced: Vec<_> = flows.iter().map(|flow| flow.slices(PARTIAL)).collect();
    let packets: Vec<_> = (0..5).flat_map(|i| sliced.iter().map(move |slices| slices[i].clone())).collect();
    let written = rebuild(&packets, ALL);
    assert_eq!(written.len(), 4);
    assert_eq!(deliver(&written), flows.iter().flat_map(Super::expected).collect::<Vec<_>>());
}

#[test]
fn more_flows_than_groups_lose_merging_but_no_packet() {
    let mut packets = Vec::new();
    for _ in 0..2 {
        for flow in 0..20_u8 {
            let mut slice = tcp(false, 700, 1000).slices(FULL).remove(0);
            slice[21] = flow;
            segment::fill_checksums(&mut slice, 20, true);
            packets.push(slice);
        }
    }
    let mut delivered = deliver(&rebuild(&packets, ALL));
    delivered.sort();
    packets.sort();
    assert_eq!(delivered, packets);
}

#[test]
fn what_cannot_be_merged_does_not_overtake_its_flow() {
    let data = tcp(false, 2000, 1000);
    let acknowledgement = Super { payload: Vec::new(), seq: data.seq.wrapping_add(2000), ..data.clone() };
    let packets = [data.slices(PARTIAL), acknowledgement.slices(PARTIAL)].concat();
    let written = rebuild(&packets, ALL);
    assert_eq!(deliver(&written), [data.expected(), acknowledgement.expected()].concat());
    // A fragment, which has no ports, must not overtake any flow between the two hosts.
    let mut fragment = data.bytes()[..28].to_vec();
    fragment[2..4].copy_from_slice(&28_u16.to_be_bytes());
    fragment[6..8].copy_from_slice(&100_u16.to_be_bytes());
    let mut packets = data.slices(PARTIAL);
    packets.push(fragment.clone());
    let delivered = deliver(&rebuild(&packets, ALL));
    assert_eq!(delivered.last(), Some(&fragment));
}

#[test]
fn a_batch_leaves_nothing_behind() {
    let mut rebuilder = Rebuilder::new(ALL);
    let packet = tcp(false, 5000, 1000);
    let slices = packet.slices(PARTIAL);
    for _ in 0..3 {
        let written =
            [rebuild_with(&mut rebuilder, &slices[..2]), rebuild_with(&mut rebuilder, &slices[2..])].concat();
        assert_eq!(written.len(), 2);
        assert_eq!(deliver(&written), packet.expected());
    }
}

#[test]
fn super_packets_stay_within_the_largest_packet() {
    let packet = Super { flags: 0x10, ..tcp(false, 65_000, 1000) };
    let mut slices = packet.slices(PARTIAL);
    let next = Super {
        seq: packet.seq.wrapping_add(65_000),
        id: packet.id.wrapping_add(65),
        ..tcp(false, 2000, 1000)
    };
    slices.extend(next.slices(PARTIAL));
    let written = rebuild(&slices, ALL);
    assert_eq!(written.len(), 2);
    assert!(written.iter().all(|bytes| bytes.len() <= 10 + 65_535));
    assert_eq!(deliver(&written), [packet.expected(), next.expected()].concat());
}

/// The kernel's request for a checksum at `start` + `offset`, without cutting.
fn checksum_at(start: u16, offset: u16) -> VirtioHeader {
    VirtioHeader {
        flags: VirtioHeader::NEEDS_CSUM,
        csum_start: start.into(),
        csum_offset: offset.into(),
        ..VirtioHeader::default()
    }
}

fn error(header: &VirtioHeader, packet: &[u8]) -> Option<OffloadError> {
    Slicer::new(header, &Packet::parse(packet).expect("a good packet"), PARTIAL).err()
}

#[test]
fn a_packet_without_offload_passes_as_it_is() {
    let bytes = tcp(false, 100, 1000).bytes();
    let slicer =
        Slicer::new(&VirtioHeader::default(), &Packet::parse(&bytes).expect("a good packet"), PARTIAL);
    let slicer = slicer.expect("nothing to do");
    assert_eq!((slicer.count(), write(&slicer, 0)), (1, bytes));
}

#[test]
fn headers_that_do_not_fit_the_packet_are_refused() {
    let (v4, v6, datagram) = (tcp(false, 3000, 1000), tcp(true, 3000, 1000), udp(false, 3000, 1000));
    let refused = |packet: &Super, change: fn(&mut VirtioHeader)| {
        let mut header = packet.header();
        change(&mut header);
        error(&header, &packet.bytes())
    };
    assert_eq!(refused(&v4, |_| ()), None);
    assert_eq!(
        refused(&v4, |header| header.hdr_len = 7.into()),
        None,
        "the length of headers is not relied upon"
    );
    assert_eq!(refused(&v4, |header| header.gso_type = 3), Some(OffloadError::UnsupportedGso(3)));
    assert_eq!(refused(&v4, |header| header.gso_type = 0x85), Some(OffloadError::UnsupportedGso(0x85)));
    assert_eq!(refused(&v4, |header| header.gso_type = 4), Some(OffloadError::Mismatch));
    assert_eq!(refused(&v6, |header| header.gso_type = 1), Some(OffloadError::Mismatch));
    assert_eq!(refused(&v6, |header| header.gso_type = 5), Some(OffloadError::Mismatch));
    assert_eq!(refused(&datagram, |header| header.gso_type = 1), Some(OffloadError::Mismatch));
    assert_eq!(refused(&v4, |header| header.gso_size = 0.into()), Some(OffloadError::GsoSize));
    assert_eq!(refused(&v4, |header| header.csum_start = 40.into()), Some(OffloadError::ChecksumPlace));
    assert_eq!(refused(&Super { flags: 0x12, ..v4.clone() }, |_| ()), Some(OffloadError::Flags));
    let mut partial = v4.bytes();
    partial[0] |= 0x80;
    assert_eq!(error(&v4.header(), &partial), Some(OffloadError::AlreadyPartial));
    assert_eq!(VirtioHeader::split(&[0; 9]).err(), Some(OffloadError::Truncated));
}

#[test]
fn a_fragment_is_never_cut() {
    let mut bytes = tcp(false, 2960, 1000).bytes();
    bytes[6] = 0x20;
    assert_eq!(error(&tcp(false, 2960, 1000).header(), &bytes), Some(OffloadError::Mismatch));
}

#[test]
fn other_checksums_are_completed_where_they_overwrite_no_header() {
    let mut echo = udp(false, 40, 1000).bytes();
    echo[9] = 1;
    echo[22..24].fill(0); // ICMP has no pseudo header, so the kernel leaves a zero.
    segment::fill_ipv4_checksum(&mut echo);
    let packet = Packet::parse(&echo).expect("a good packet");
    let slicer = Slicer::new(&checksum_at(20, 2), &packet, PARTIAL).expect("a checksum behind the IP header");
    let completed = write(&slicer, 0);
    assert_eq!(completed[0], 0x45, "complete, for the peer knows no partial form of it");
    assert_eq!(checksum::Sum::default().bytes(&completed[20..]).fold(), 0xFFFF);
    for (start, offset) in [(0, 2), (19, 1), (20, 48), (u16::MAX, u16::MAX)] {
        assert_eq!(
            error(&checksum_at(start, offset), &echo),
            Some(OffloadError::ChecksumPlace),
            "{start} {offset}"
        );
    }
    let stream = tcp(false, 40, 1000).bytes();
    assert_eq!(
        error(&checksum_at(20, 12), &stream),
        Some(OffloadError::ChecksumPlace),
        "inside the TCP header"
    );
    assert_eq!(error(&checksum_at(60, 2), &stream), None, "an inner packet's, inside the payload");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slices_are_what_software_makes(packet in super_packet()) {
        prop_assert_eq!(packet.slices(FULL), packet.expected());
    }

    #[test]
    fn rebuilt_slices_are_what_software_makes(packet in super_packet()) {
        let delivered = deliver(&rebuild(&packet.slices(PARTIAL), ALL));
        prop_assert_eq!(delivered, packet.expected());
    }

    #[test]
    fn any_order_and_loss_delivers_what_was_sent(
        packets in prop::collection::vec(super_packet(), 1..4),
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
        partial: bool,
    ) {
        let peer = if partial { PARTIAL } else { FULL };
        let sent: Vec<_> = packets.iter().flat_map(|packet| packet.slices(peer)).collect();
        let expected: Vec<_> = packets.iter().flat_map(Super::expected).collect();
        let order: Vec<usize> = order.iter().map(|index| index.index(sent.len())).collect();
        let received: Vec<_> = order.iter().map(|i| sent[*i].clone()).collect();
        let mut delivered: Vec<_> = deliver(&rebuild(&received, ALL)).into_iter().map(segment::without_idle_id).collect();
        let mut expected: Vec<_> = order.iter().map(|i| segment::without_idle_id(expected[*i].clone())).collect();
        delivered.sort();
        expected.sort();
        prop_assert_eq!(delivered, expected);
    }
}
