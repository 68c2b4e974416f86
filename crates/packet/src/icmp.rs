//! ICMP errors about inner packets (RFC 792, RFC 4443): which packets may have one, and how it is
//! written.
//!
//! How often one is sent is the caller's affair, as is the address that it comes from.

use core::net::IpAddr;

use crate::checksum::{self, Sum};
use crate::{ICMP, ICMPV6, IPV4_HEADER, IPV6_HEADER, PARTIAL_CHECKSUM, Packet, Version, put16};

/// The longest message over IPv4: what every host accepts (RFC 1812 §4.3.2.3).
const MAX_MESSAGE_V4: usize = 576;
/// The longest message over IPv6: the smallest MTU (RFC 4443 §2.4).
const MAX_MESSAGE_V6: usize = 1280;
/// Header of an ICMP message about another packet, in bytes.
const ICMP_HEADER: usize = 8;
/// Room that [`write_error`] needs, in bytes.
pub const MAX_MESSAGE: usize = MAX_MESSAGE_V6;

/// The error that a message reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// This many bytes would fit: "fragmentation needed" or "packet too big".
    TooBig(u16),
    /// Time to live or hop limit was used up on the way.
    TimeExceeded,
    /// Nothing receives at the port.
    PortUnreachable,
}

impl Error {
    /// Type, code, and the last two bytes of the header.
    fn fields(self, version: Version) -> (u8, u8, u16) {
        match (self, version) {
            (Self::TooBig(mtu), Version::V4) => (3, 4, mtu),
            (Self::TooBig(mtu), Version::V6) => (2, 0, mtu),
            (Self::TimeExceeded, Version::V4) => (11, 0, 0),
            (Self::TimeExceeded, Version::V6) => (3, 0, 0),
            (Self::PortUnreachable, Version::V4) => (3, 3, 0),
            (Self::PortUnreachable, Version::V6) => (1, 4, 0),
        }
    }
}

/// Whether an error about this packet may be sent: not about ICMP errors, later fragments and
/// multicast (RFC 1122 §3.2.2, RFC 4443 §2.4).
#[must_use]
pub fn may_answer(packet: &Packet<'_>) -> bool {
    if packet.dst().is_multicast() || packet.fragment().is_some_and(|fragment| !fragment.is_first()) {
        return false;
    }
    match (packet.version(), packet.icmp()) {
        (Version::V4, Some((kind, _))) => !matches!(kind, 3 | 4 | 5 | 11 | 12),
        (Version::V6, Some((kind, _))) => kind >= 128,
        (_, None) => true,
    }
}

/// Writes an error about `packet` to its sender, from `source`, which must be of the packet's
/// version. Returns its length.
///
/// # Panics
/// If `out` is shorter than [`MAX_MESSAGE`].
pub fn write_error(packet: &Packet<'_>, source: IpAddr, error: Error, out: &mut [u8]) -> usize {
    let bytes = packet.bytes();
    let (header, longest) = match packet.version() {
        Version::V4 => (IPV4_HEADER, MAX_MESSAGE_V4),
        Version::V6 => (IPV6_HEADER, MAX_MESSAGE_V6),
    };
    let (kind, code, value) = error.fields(packet.version());
    let quoted = bytes.len().min(longest - header - ICMP_HEADER);
    let len = header + ICMP_HEADER + quoted;
    let out = &mut out[..len];
    out[..header + ICMP_HEADER].fill(0);
    out[header + ICMP_HEADER..].copy_from_slice(&bytes[..quoted]);
    // The bit exists only inside the tunnel.
    out[header + ICMP_HEADER] &= !PARTIAL_CHECKSUM;
    (out[header], out[header + 1]) = (kind, code);
    put16(out, header + 6, value);
    let sum = match packet.version() {
        Version::V4 => {
            (out[0], out[8], out[9]) = (0x45, 64, ICMP);
            put16(out, 2, len as u16);
            put_address(&mut out[12..16], source);
            out[16..20].copy_from_slice(&bytes[12..16]);
            let sum = checksum::ipv4_header(&out[..IPV4_HEADER]);
            put16(out, 10, sum);
            Sum::default()
        }
        Version::V6 => {
            (out[0], out[6], out[7]) = (0x60, ICMPV6, 64);
            put16(out, 4, (len - header) as u16);
            put_address(&mut out[8..24], source);
            out[24..40].copy_from_slice(&bytes[8..24]);
            checksum::pseudo_header(out, Version::V6, ICMPV6, len - header)
        }
    };
    let sum = sum.bytes(&out[header..]).checksum();
    put16(out, header + 2, sum);
    len
}

fn put_address(field: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(v4) => field.copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => field.copy_from_slice(&v6.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::be16;

    #[test]
    fn time_exceeded_comes_from_the_router_and_quotes_the_packet() {
        let mut out = [0xFF; MAX_MESSAGE];
        let v4 = [&[0x45, 0, 0, 24, 0, 1, 0, 0, 1, 17, 0, 0, 10, 8, 0, 2, 10, 8, 0, 3][..], &[0; 4]].concat();
        // No room for a UDP header: of another protocol, then.
        let mut v4 = v4;
        v4[9] = 200;
        let len = write_error(
            &Packet::parse(&v4).unwrap(),
            "10.8.0.1".parse().unwrap(),
            Error::TimeExceeded,
            &mut out,
        );
        let message = Packet::parse(&out[..len]).expect("a good packet");
        assert_eq!(
            (message.src().to_string(), message.dst().to_string()),
            ("10.8.0.1".into(), "10.8.0.2".into())
        );
        assert_eq!((message.icmp(), be16(&out, 26)), (Some((11, 0)), 0));
        assert_eq!(out[28..len], v4);
        assert_eq!(checksum::ipv4_header(&out[..20]), be16(&out, 10));
        assert_eq!(Sum::default().bytes(&out[20..len]).checksum(), 0);

        let mut v6 = vec![0; IPV6_HEADER + 4];
        (v6[0], v6[5], v6[6], v6[7]) = (0x60, 4, 200, 1);
        (v6[8], v6[23], v6[24], v6[39]) = (0xFD, 2, 0xFD, 3);
        let len = write_error(
            &Packet::parse(&v6).unwrap(),
            "fd00::1".parse().unwrap(),
            Error::TimeExceeded,
            &mut out,
        );
        let message = Packet::parse(&out[..len]).expect("a good packet");
        assert_eq!(
            (message.src().to_string(), message.dst().to_string()),
            ("fd00::1".into(), "fd00::2".into())
        );
        assert_eq!((message.icmp(), be16(&out, 46)), (Some((3, 0)), 0));
        assert_eq!(out[48..len], v6);
        let pseudo = checksum::pseudo_header(&out, Version::V6, ICMPV6, len - 40);
        assert_eq!(pseudo.bytes(&out[40..len]).checksum(), 0);
    }
}
