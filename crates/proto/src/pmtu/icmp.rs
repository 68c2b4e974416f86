//! Telling an inner sender that its packet does not fit (RFC 792 and RFC 1191, RFC 4443).

use std::net::IpAddr;
use std::time::Duration;

use crate::checksum::{self, Sum};
use crate::packet::{ICMP, ICMPV6, IPV4_HEADER, IPV6_HEADER, PARTIAL_CHECKSUM, Packet, Version, put16};
use crate::time::Time;

/// The longest message that [`too_big`] makes: the smallest MTU that every IPv6 link has.
pub const MAX_TOO_BIG: usize = 1280;
/// The longest IPv4 message, which every host can take (RFC 1812, section 4.3.2.3).
const MAX_V4: usize = 576;
const ICMP_HEADER: usize = 8;

/// Writes to `out` the message that `packet` was too big for `inner_mtu`, from `gateway` to the packet's source, and
/// returns its length.
///
/// `None` if none may be sent: the packet may be fragmented, is a later fragment or itself an ICMP error, went to a
/// multicast or broadcast address (RFC 1122, section 3.2.2), or `gateway` is of the other IP version.
///
/// # Panics
/// If `out` is shorter than [`MAX_TOO_BIG`].
pub fn too_big(packet: &Packet<'_>, gateway: IpAddr, inner_mtu: u16, out: &mut [u8]) -> Option<usize> {
    let single = match packet.dst() {
        IpAddr::V4(dst) => !dst.is_multicast() && !dst.is_broadcast(),
        IpAddr::V6(dst) => !dst.is_multicast(),
    };
    let later_fragment = packet.fragment().is_some_and(|fragment| !fragment.is_first());
    if !single || later_fragment || !packet.dont_fragment() || is_icmp_error(packet) {
        return None;
    }
    let len = match (gateway, packet.src()) {
        (IpAddr::V4(gateway), IpAddr::V4(sender)) => {
            let len = write_body(packet, [3, 4], u32::from(inner_mtu), IPV4_HEADER, MAX_V4, out);
            let ip = [0x45, 0xC0, (len >> 8) as u8, len as u8, 0, 0, 0x40, 0, 64, ICMP, 0, 0];
            out[..12].copy_from_slice(&ip);
            out[12..16].copy_from_slice(&gateway.octets());
            out[16..20].copy_from_slice(&sender.octets());
            let checksum = checksum::ipv4_header(&out[..IPV4_HEADER]);
            put16(out, 10, checksum);
            let checksum = Sum::default().bytes(&out[IPV4_HEADER..len]).checksum();
            put16(out, IPV4_HEADER + 2, checksum);
            len
        }
        (IpAddr::V6(gateway), IpAddr::V6(sender)) => {
            let len = write_body(packet, [2, 0], u32::from(inner_mtu), IPV6_HEADER, MAX_TOO_BIG, out);
            let payload = len - IPV6_HEADER;
            out[..8].copy_from_slice(&[0x6C, 0, 0, 0, (payload >> 8) as u8, payload as u8, ICMPV6, 64]);
            out[8..24].copy_from_slice(&gateway.octets());
            out[24..40].copy_from_slice(&sender.octets());
            let pseudo = checksum::pseudo_header(out, Version::V6, ICMPV6, payload);
            let checksum = pseudo.bytes(&out[IPV6_HEADER..len]).checksum();
            put16(out, IPV6_HEADER + 2, checksum);
            len
        }
        _ => return None,
    };
    Some(len)
}

/// Writes the ICMP header behind an IP header of `ip_header` bytes, then as much of `packet` as fits `max`. Returns
/// the length of the whole message.
fn write_body(
    packet: &Packet<'_>,
    kind: [u8; 2],
    mtu: u32,
    ip_header: usize,
    max: usize,
    out: &mut [u8],
) -> usize {
    let quoted = packet.total_len().min(max - ip_header - ICMP_HEADER);
    let len = ip_header + ICMP_HEADER + quoted;
    let message = &mut out[ip_header..len];
    message[..2].copy_from_slice(&kind);
    message[2..4].fill(0);
    // In ICMPv4 only the lower half of this field is the MTU, and the upper is zero (RFC 1191, section 4).
    message[4..8].copy_from_slice(&mtu.to_be_bytes());
    message[ICMP_HEADER..].copy_from_slice(&packet.bytes()[..quoted]);
    message[ICMP_HEADER] &= !PARTIAL_CHECKSUM;
    len
}

fn is_icmp_error(packet: &Packet<'_>) -> bool {
    match (packet.version(), packet.icmp()) {
        (Version::V4, Some((kind, _))) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        (Version::V6, Some((kind, _))) => kind < 128 || kind == 137,
        _ => false,
    }
}

/// A token bucket: `per_second` on average, `burst` at once.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    interval: Duration,
    burst: Duration,
    /// The point at which the bucket will be full again.
    full_at: Time,
}

impl RateLimiter {
    /// A full bucket. `per_second` and `burst` are at least 1; less counts as 1.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, burst: interval * burst.max(1), full_at: Time::ZERO }
    }

    /// Takes a token, if there is one at `now`.
    pub fn allow(&mut self, now: Time) -> bool {
        let full_at = self.full_at.max(now) + self.interval;
        let allowed = full_at.since(now) <= self.burst;
        if allowed {
            self.full_at = full_at;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::be16;

    const GATEWAY_V4: &str = "10.8.0.1";
    const GATEWAY_V6: &str = "fd00::1";

    fn v4(protocol: u8, dont_fragment: bool, len: u16) -> Vec<u8> {
        let mut bytes =
            vec![0x45, 0, 0, 0, 0, 1, if dont_fragment { 0x40 } else { 0 }, 0, 64, protocol, 0, 0];
        bytes.extend([10, 8, 0, 2, 10, 1, 0, 9, 0, 53, 0, 54]);
        bytes.extend((len - 20).to_be_bytes());
        bytes.resize(usize::from(len), 7);
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        bytes
    }

    fn v6(next: u8, len: u16) -> Vec<u8> {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        bytes.extend([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        bytes.extend([0xFD, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 53, 0, 54]);
        bytes.extend((len - 40).to_be_bytes());
        bytes.resize(usize::from(len), 7);
        bytes[4..6].copy_from_slice(&(len - 40).to_be_bytes());
        bytes
    }

    fn message(bytes: &[u8], gateway: &str) -> Option<Vec<u8>> {
        let mut out = vec![0xEE; MAX_TOO_BIG];
        let len = too_big(&Packet::parse(bytes).unwrap(), gateway.parse().unwrap(), 1400, &mut out)?;
        out.truncate(len);
        Some(out)
    }

    #[test]
    fn fragmentation_needed() {
        let mut original = v4(17, true, 1500);
        original[0] |= PARTIAL_CHECKSUM;
        let bytes = message(&original, GATEWAY_V4).unwrap();
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.total_len(), packet.icmp()), (MAX_V4, Some((3, 4))));
        assert_eq!(
            (packet.src().to_string(), packet.dst().to_string()),
            (GATEWAY_V4.into(), "10.8.0.2".into())
        );
        assert_eq!((be16(&bytes, 24), be16(&bytes, 26)), (0, 1400));
        assert_eq!(Sum::default().bytes(&bytes[..20]).fold(), 0xFFFF);
        assert_eq!(Sum::default().bytes(&bytes[20..]).fold(), 0xFFFF);
        assert_eq!(bytes[28], 0x45, "the quoted packet is as its sender made it");
        assert_eq!(bytes[29..], original[1..MAX_V4 - 28]);
    }

    #[test]
    fn packet_too_big() {
        let original = v6(17, 1501);
        let bytes = message(&original, GATEWAY_V6).unwrap();
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.total_len(), packet.icmp()), (MAX_TOO_BIG, Some((2, 0))));
        assert_eq!(
            (packet.src().to_string(), packet.dst().to_string()),
            (GATEWAY_V6.into(), "fd00::2".into())
        );
        assert_eq!((be16(&bytes, 44), be16(&bytes, 46)), (0, 1400));
        let pseudo = checksum::pseudo_header(&bytes, Version::V6, ICMPV6, bytes.len() - 40);
        assert_eq!(pseudo.bytes(&bytes[40..]).fold(), 0xFFFF);
        assert_eq!(bytes[48..], original[..MAX_TOO_BIG - 48]);
    }

    #[test]
    fn a_short_packet_is_quoted_whole() {
        assert_eq!(message(&v4(17, true, 101), GATEWAY_V4).unwrap().len(), 129);
    }

    #[test]
    fn silence_where_the_standards_demand_it() {
        assert!(message(&v4(17, false, 1500), GATEWAY_V4).is_none(), "may be fragmented");
        assert!(message(&v4(17, true, 1500), GATEWAY_V6).is_none(), "gateway of the other version");
        let mut multicast = v4(17, true, 1500);
        multicast[16] = 224;
        assert!(message(&multicast, GATEWAY_V4).is_none());
        multicast[16..20].fill(255);
        assert!(message(&multicast, GATEWAY_V4).is_none());
        let mut later = v4(17, true, 1500);
        later[7] = 100;
        assert!(message(&later, GATEWAY_V4).is_none());
        let mut icmp = v4(1, true, 1500);
        for (kind, silent) in [(0, false), (3, true), (8, false), (11, true)] {
            icmp[20] = kind;
            assert_eq!(message(&icmp, GATEWAY_V4).is_none(), silent, "{kind}");
        }
        let mut icmp = v6(58, 1500);
        for (kind, silent) in [(1, true), (2, true), (128, false), (129, false), (137, true)] {
            icmp[40] = kind;
            assert_eq!(message(&icmp, GATEWAY_V6).is_none(), silent, "{kind}");
        }
    }

    #[test]
    fn the_limiter_allows_a_burst_and_then_the_rate() {
        let mut limiter = RateLimiter::new(10, 3);
        let start = Time::from_nanos(5);
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!([0, 0, 0, 0].map(|millis| limiter.allow(at(millis))), [true, true, true, false]);
        assert_eq!([99, 100, 100, 200].map(|millis| limiter.allow(at(millis))), [false, true, false, true]);
        assert_eq!([9000; 4].map(|millis| limiter.allow(at(millis))), [true, true, true, false]);
    }
}
