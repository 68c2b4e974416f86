//! Inner packets: UDP over IPv4 or IPv6 that carries the packet's number in the model.

use std::net::IpAddr;

use vpnd_packet::checksum;

const UDP: u8 = 17;
const PORT: u16 = 9;
/// Bytes before the payload, at most.
pub(crate) const HEADERS: usize = 48;

/// A packet from `src` to `dst`, both of one family, with `id` and then zeros up to `len` bytes of
/// payload.
pub(crate) fn packet(src: IpAddr, dst: IpAddr, id: u64, len: usize) -> Vec<u8> {
    let payload = len.max(8);
    let mut packet = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total = (20 + 8 + payload) as u16;
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, UDP, 0, 0];
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header.extend(src.octets());
            header.extend(dst.octets());
            let sum = checksum::ipv4_header(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, UDP, 64];
            header[4..6].copy_from_slice(&((8 + payload) as u16).to_be_bytes());
            header.extend(src.octets());
            header.extend(dst.octets());
            header
        }
        _ => panic!("both addresses are of one family"),
    };
    for field in [PORT, PORT, (8 + payload) as u16, 0] {
        packet.extend(field.to_be_bytes());
    }
    packet.extend(id.to_le_bytes());
    packet.resize(packet.len() + payload - 8, 0);
    packet
}

/// The number in a packet.
pub(crate) fn id(packet: &[u8]) -> u64 {
    let at = if packet[0] >> 4 == 4 { 28 } else { 48 };
    u64::from_le_bytes(packet[at..at + 8].try_into().expect("eight bytes were asked for"))
}

/// Which of a node's shards a packet comes out of, as the kernel spreads flows over queues.
pub(crate) fn queue(packet: &[u8], shards: usize) -> usize {
    (id(packet).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % shards
}
