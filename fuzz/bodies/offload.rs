//! Any packet behind any virtio header through the slicer; its slices, some damaged, and any other
//! packets through the rebuilder: what arrives is what a plain software segmentation makes of it.
//!
//! Input: one byte of switches, two bytes that choose the damage (bit and slice, place), a virtio
//! header, and the packet.

#[path = "../../crates/packet/tests/model/segment.rs"]
mod segment;

use std::collections::BTreeMap;
use std::net::IpAddr;

use vpnd_packet::checksum;
use vpnd_packet::offload::{Needs, PeerFeatures, Rebuilder, Rebuilt, Slicer, TunFeatures, VirtioHeader};
use vpnd_packet::{Packet, TCP, Version};

const SWITCHES: usize = 3;
const ALL: TunFeatures = TunFeatures { vnet_header: true, checksum: true, tcp: true, udp: true };

/// Checks one input.
pub(crate) fn run(data: &[u8]) {
    let Some((switches, rest)) = data.split_at_checked(SWITCHES) else { return };
    let Ok((header, packet)) = VirtioHeader::split(rest) else { return };
    let Some(packet) = with_right_header_checksum(packet) else { return };
    let Ok(packet) = Packet::parse(&packet) else { return };
    let Some(full) = slices(&header, &packet, false) else { return };
    let partial = slices(&header, &packet, true).expect("what the peer understands decides no error");
    assert_eq!(full.len(), partial.len());
    check_slices(&header, &packet, &full);
    for (partial, full) in partial.iter().zip(&full) {
        assert_eq!(&completed(partial), full);
    }
    let damaged = damage(if switches[0] & 1 != 0 { partial } else { full }, switches);
    check_rebuilding(&damaged, ALL);
    let bits = switches[0];
    let features = TunFeatures {
        vnet_header: bits & 2 != 0,
        checksum: bits & 4 != 0,
        tcp: bits & 8 != 0,
        udp: bits & 16 != 0,
    };
    check_rebuilding(&damaged, features);
}

/// A kernel always hands out right IPv4 header checksums, and fuzzing would hardly ever guess one.
fn with_right_header_checksum(packet: &[u8]) -> Option<Vec<u8>> {
    let mut packet = packet.to_vec();
    let parsed = Packet::parse(&packet).ok()?;
    if parsed.version() == Version::V4 && !parsed.is_partial() {
        segment::fill_ipv4_checksum(&mut packet);
    }
    Some(packet)
}

fn slices(header: &VirtioHeader, packet: &Packet<'_>, partial_checksum: bool) -> Option<Vec<Vec<u8>>> {
    let slicer = Slicer::new(header, packet, PeerFeatures { partial_checksum }).ok()?;
    let slices = (0..slicer.count()).map(|i| {
        let mut out = vec![0; slicer.slice_len(i)];
        assert_eq!(slicer.write(i, &mut out), out.len());
        out
    });
    Some(slices.collect())
}

/// Slices of a super-packet against the model; a packet that is not cut stays the same but for a
/// checksum.
fn check_slices(header: &VirtioHeader, packet: &Packet<'_>, full: &[Vec<u8>]) {
    if header.gso_type == VirtioHeader::GSO_NONE {
        assert_eq!(full.len(), 1);
        assert_eq!(full[0].len(), packet.total_len());
        assert!(header.flags & VirtioHeader::NEEDS_CSUM != 0 || full[0] == packet.bytes());
        return;
    }
    let transport = packet.transport_offset().expect("only whole packets are cut");
    let gso_size = usize::from(header.gso_size.get());
    assert_eq!(full, segment::split(packet.bytes(), transport, packet.protocol() == TCP, gso_size));
}

fn completed(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    checksum::complete(&mut packet).expect("a slice is a good packet");
    packet
}

/// Flips one bit of one slice and repeats another; slices that are no packets any more are left
/// out.
fn damage(mut slices: Vec<Vec<u8>>, switches: &[u8]) -> Vec<Vec<u8>> {
    let (bit, which, place) = (switches[1] >> 5, usize::from(switches[1] & 31), usize::from(switches[2]));
    if switches[0] & 32 != 0 {
        let i = which % slices.len();
        let at = place % slices[i].len();
        slices[i][at] ^= 1 << bit;
    }
    if switches[0] & 64 != 0 {
        slices.insert(0, slices[which % slices.len()].clone());
    }
    slices.retain(|slice| Packet::parse(slice).is_ok());
    slices
}

/// The packets behind the TUN device are, for each flow and in its order, those that were pushed.
fn check_rebuilding(packets: &[Vec<u8>], features: TunFeatures) {
    let buffer = packets.concat();
    let mut rebuilder = Rebuilder::new(features);
    let (mut delivered, mut alone, mut count, mut at) = (Vec::new(), Vec::new(), 0, 0);
    let mut sink = |rebuilt: &Rebuilt<'_>| {
        count += rebuilt.packets();
        let bytes: Vec<u8> = rebuilt.slices().flatten().copied().collect();
        delivered.extend(if features.vnet_header { segment::deliver(&bytes) } else { vec![bytes] });
        rebuilt.each_alone(|single| {
            assert_eq!((single.packets(), single.needs()), (1, Needs::Nothing));
            let bytes: Vec<u8> = single.slices().flatten().copied().collect();
            alone.push(bytes[if features.vnet_header { size_of::<VirtioHeader>() } else { 0 }..].to_vec());
        });
    };
    for packet in packets {
        let parsed = Packet::parse(&buffer[at..]).expect("only good packets are pushed");
        rebuilder.push(&buffer, &parsed, &mut sink);
        at += packet.len();
    }
    rebuilder.flush(&buffer, &mut sink);
    assert_eq!(count, packets.len());
    // A damaged length field makes the rest of a slice padding.
    let sent = packets.iter().map(|packet| completed(packet));
    let sent =
        sent.map(|packet| Packet::parse(&packet).expect("a completed packet is good").bytes().to_vec());
    let sent = by_flow(sent);
    assert_eq!(by_flow(delivered.into_iter()), sent);
    // A packet that a device refused is written as it came.
    assert_eq!(by_flow(alone.into_iter()), sent);
}

type Flow = (IpAddr, IpAddr, u8, Option<(u16, u16)>);

fn by_flow(packets: impl Iterator<Item = Vec<u8>>) -> BTreeMap<Flow, Vec<Vec<u8>>> {
    let mut flows: BTreeMap<Flow, Vec<Vec<u8>>> = BTreeMap::new();
    for packet in packets {
        let parsed = Packet::parse(&packet).expect("what arrives is a good packet");
        let flow = (parsed.src(), parsed.dst(), parsed.protocol(), parsed.ports());
        flows.entry(flow).or_default().push(segment::without_idle_id(packet));
    }
    flows
}
