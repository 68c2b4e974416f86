//! TCP segments that answer a packet in the place of the host that it is for (RFC 9293).
//!
//! INVARIANT: a segment goes to the packet's sender, from the address and port that it was for.

use crate::checksum;
use crate::{IPV4_HEADER, IPV6_HEADER, Packet, TCP, TCP_HEADER, Version, put16};

const WINDOW: u16 = u16::MAX;

/// A segment to be written.
pub(crate) struct Segment<'a> {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) options: &'a [u8],
    pub(crate) data: &'a [u8],
}

impl Segment<'_> {
    /// Writes the segment to the sender of `packet`, which is of TCP. Returns its length.
    pub(crate) fn write(&self, packet: &Packet<'_>, out: &mut [u8]) -> usize {
        let (bytes, version) = (packet.bytes(), packet.version());
        let (from, to) = packet.ports().expect("it is TCP");
        let (header, source, destination) = match version {
            Version::V4 => (IPV4_HEADER, 12..16, 16..20),
            Version::V6 => (IPV6_HEADER, 8..24, 24..40),
        };
        let tcp_len = TCP_HEADER + self.options.len();
        let len = header + tcp_len + self.data.len();
        let out = &mut out[..len];
        out[..header + tcp_len].fill(0);
        out[source.clone()].copy_from_slice(&bytes[destination.clone()]);
        out[destination].copy_from_slice(&bytes[source]);
        match version {
            Version::V4 => {
                // Not to be fragmented.
                (out[0], out[6], out[8], out[9]) = (0x45, 0x40, 64, TCP);
                put16(out, 2, len as u16);
                let sum = checksum::ipv4_header(&out[..IPV4_HEADER]);
                put16(out, 10, sum);
            }
            Version::V6 => {
                (out[0], out[6], out[7]) = (0x60, TCP, 64);
                put16(out, 4, (len - header) as u16);
            }
        }
        let tcp = &mut out[header..];
        put16(tcp, 0, to);
        put16(tcp, 2, from);
        tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.ack.to_be_bytes());
        (tcp[12], tcp[13]) = (((tcp_len / 4) << 4) as u8, self.flags);
        put16(tcp, 14, WINDOW);
        tcp[TCP_HEADER..tcp_len].copy_from_slice(self.options);
        tcp[tcp_len..].copy_from_slice(self.data);
        let sum = checksum::pseudo_header(out, version, TCP, len - header).bytes(&out[header..]).checksum();
        put16(out, header + 16, sum);
        len
    }
}
