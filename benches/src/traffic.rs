//! The packets that stages work on: TCP over IPv4 with time stamps, as the kernel hands them over.

use vpnd_packet::offload::VirtioHeader;
use zerocopy::IntoBytes;

/// Length of IPv4 and TCP headers with time stamps, in bytes.
pub const HEADERS: usize = 52;
/// The tunnel's MTU in the stages, in bytes: what vpnd finds on an ordinary Ethernet path.
pub const MTU: usize = 1408;
/// Payload of each slice of a super-packet, in bytes.
pub const MSS: usize = MTU - HEADERS;
/// Inner packets of the longest super-packet: no IP packet is longer than 65,535 bytes.
pub const MAX_SLICES: usize = (65_535 - HEADERS) / MSS;
/// Lengths of single packets, in bytes: from an acknowledgement to a full one.
pub const PACKET_LENS: [usize; 5] = [64, 256, 576, 1024, MTU];
/// Slices of the super-packets.
pub const SLICES: [usize; 5] = [1, 4, 12, 24, MAX_SLICES];

/// A client's inner address, and that of a host on the campus.
pub const CLIENT: [u8; 4] = [10, 86, 0, 2];
/// Another client.
pub const OTHER_CLIENT: [u8; 4] = [10, 86, 0, 3];
/// A host behind the gateway.
pub const CAMPUS: [u8; 4] = [10, 200, 0, 9];

/// A TCP packet of `len` bytes in all, whose transport checksum is left to an offload.
///
/// # Panics
/// If `len` has no room for the headers or is longer than an IP packet.
pub fn packet(from: [u8; 4], to: [u8; 4], len: usize) -> Vec<u8> {
    assert!((HEADERS..=65_535).contains(&len), "an IP packet has 52 to 65,535 bytes");
    let mut bytes = vec![0x45, 0];
    bytes.extend((len as u16).to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    bytes.extend(from);
    bytes.extend(to);
    bytes.extend([0x9C, 0x40, 1, 0xBB, 0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x10, 1, 0xF6, 0, 0, 0, 0]);
    bytes.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    bytes.resize(len, 0x5A);
    let checksum = vpnd_packet::checksum::ipv4_header(&bytes[..20]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// The virtio header of a packet of `len` bytes, a super-packet if it is longer than the MTU.
pub fn header(len: usize) -> VirtioHeader {
    let cut = len > MTU;
    VirtioHeader {
        flags: VirtioHeader::NEEDS_CSUM,
        gso_type: if cut { VirtioHeader::GSO_TCPV4 } else { VirtioHeader::GSO_NONE },
        hdr_len: (HEADERS as u16).into(),
        gso_size: if cut { MSS as u16 } else { 0 }.into(),
        csum_start: 20.into(),
        csum_offset: 16.into(),
    }
}

/// Header and packet as a TUN device passes them.
pub fn from_tun(from: [u8; 4], to: [u8; 4], len: usize) -> Vec<u8> {
    [header(len).as_bytes(), &packet(from, to, len)].concat()
}

/// Length of a super-packet with this many full slices.
pub const fn super_len(slices: usize) -> usize {
    HEADERS + slices * MSS
}

#[cfg(test)]
mod tests {
    use vpnd_packet::Packet;
    use vpnd_packet::offload::{PeerFeatures, Slicer};

    use super::*;

    #[test]
    fn super_packets_are_cut_as_their_names_say() {
        for slices in SLICES {
            let bytes = packet(CLIENT, CAMPUS, super_len(slices));
            let packet = Packet::parse(&bytes).expect("a good packet");
            let peer = PeerFeatures { partial_checksum: true };
            let slicer = Slicer::new(&header(bytes.len()), &packet, peer).expect("a good header");
            assert_eq!(slicer.count(), slices);
        }
        assert!(super_len(MAX_SLICES) <= 65_535 && super_len(MAX_SLICES + 1) > 65_535);
    }
}
