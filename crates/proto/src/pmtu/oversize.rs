//! Packets that do not fit the path: a message or IPv4 fragments (RFC 791, RFC 1191, RFC 8201).
//!
//! The message comes from the packet's own destination. The host behind which the path is narrow
//! has no other address that every firewall and source check on the way back accepts from there:
//! its kernel takes no packet from a device that bears its own address, and translators undo what
//! they did to the quoted packet either way.

use vpnd_packet::checksum;
use vpnd_packet::icmp;
use vpnd_packet::{IPV4_HEADER, Packet, PacketError, Version, be16, put16};

/// The smallest MTU of an IPv6 link (RFC 8200 §5).
pub const IPV6_MIN_MTU: u16 = 1280;

/// The treatment of a packet that the path does not carry whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// It is dropped, and its sender gets a message that this many bytes fit.
    TooBig(u16),
    /// It is cut into fragments of this many bytes at most.
    Fragment(u16),
    /// It is dropped in silence: no message may be about it (RFC 1122 §3.2.2, RFC 4443 §2.4).
    Drop,
    /// It is still sent, in pieces that its receiver never sees: IPv6 relies on every link to carry
    /// as much (RFC 8200 §5).
    Carry,
}

/// Decides about a packet that is longer than `mtu`.
#[must_use]
pub fn remedy(packet: &Packet<'_>, mtu: u16) -> Remedy {
    if packet.version() == Version::V6 && packet.total_len() <= IPV6_MIN_MTU.into() {
        return Remedy::Carry;
    }
    if !icmp::may_answer(packet) {
        return if packet.dont_fragment() { Remedy::Drop } else { Remedy::Fragment(mtu) };
    }
    match packet.version() {
        Version::V4 if !packet.dont_fragment() => Remedy::Fragment(mtu),
        Version::V4 => Remedy::TooBig(mtu),
        Version::V6 => Remedy::TooBig(mtu.max(IPV6_MIN_MTU)),
    }
}

/// Writes the message that `mtu` bytes of `packet` fit: "fragmentation needed" or "packet too big".
/// Returns its length.
///
/// # Panics
/// If `out` is shorter than [`icmp::MAX_MESSAGE`].
pub fn too_big(packet: &Packet<'_>, mtu: u16, out: &mut [u8]) -> usize {
    icmp::write_error(packet, packet.dst(), icmp::Error::TooBig(mtu), out)
}

/// Cuts an IPv4 packet, whose checksum must be filled in, into fragments of at most `mtu` bytes.
/// Each is written to `out` and given to `sink`.
///
/// # Errors
/// If it is no complete IPv4 packet, or `mtu` has no room for header and payload.
pub fn fragment(
    packet: &Packet<'_>,
    mtu: u16,
    out: &mut [u8],
    mut sink: impl FnMut(&[u8]),
) -> Result<(), PacketError> {
    let bytes = packet.bytes();
    if packet.version() != Version::V4 || packet.is_partial() {
        return Err(PacketError::Fragment);
    }
    let header = usize::from(bytes[0] & 0xF) * 4;
    let piece = usize::from(mtu).saturating_sub(header) / 8 * 8;
    if piece == 0 {
        return Err(PacketError::Fragment);
    }
    let place = be16(bytes, 6);
    let (first, flags, more) = (place & 0x1FFF, place & 0xC000, place & 0x2000 != 0);
    let mut at = header;
    while at < bytes.len() {
        let end = (at + piece).min(bytes.len());
        let out = &mut out[..header + end - at];
        out[..header].copy_from_slice(&bytes[..header]);
        out[header..].copy_from_slice(&bytes[at..end]);
        if at > header {
            keep_copied_options(&mut out[IPV4_HEADER..header]);
        }
        let offset = first + ((at - header) / 8) as u16;
        let followed = end < bytes.len() || more;
        put16(out, 2, (header + end - at) as u16);
        put16(out, 6, flags | offset | if followed { 0x2000 } else { 0 });
        let sum = checksum::ipv4_header(&out[..header]);
        put16(out, 10, sum);
        sink(out);
        at = end;
    }
    Ok(())
}

/// Options without the "copied" bit stand in the first fragment only (RFC 791 §3.1); in others
/// nothing takes their place.
fn keep_copied_options(options: &mut [u8]) {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        let len = match (kind, options.get(at + 1)) {
            (END, _) => return,
            (NOTHING, _) => 1,
            (_, Some(len)) => usize::from(*len).clamp(2, options.len() - at),
            (_, None) => return,
        };
        if kind & 0x80 == 0 {
            options[at..at + len].fill(NOTHING);
        }
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_packet::checksum::Sum;
    use vpnd_packet::icmp::MAX_MESSAGE;
    use vpnd_packet::{ICMP, ICMPV6, IPV6_HEADER, UDP};

    fn v4(dont_fragment: bool, protocol: u8, payload: usize) -> Vec<u8> {
        let total = (IPV4_HEADER + payload) as u16;
        let flags = if dont_fragment { 0x40 } else { 0 };
        let mut packet =
            vec![0x45, 0, 0, 0, 0x12, 0x34, flags, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 9, 0, 2];
        put16(&mut packet, 2, total);
        let sum = checksum::ipv4_header(&packet);
        put16(&mut packet, 10, sum);
        packet.extend((0..payload).map(|at| at as u8));
        if protocol == UDP {
            put16(&mut packet, IPV4_HEADER + 4, payload as u16);
        }
        packet
    }

    fn v6(payload: usize) -> Vec<u8> {
        let mut packet = vec![0; IPV6_HEADER];
        (packet[0], packet[6], packet[7]) = (0x60, UDP, 64);
        put16(&mut packet, 4, payload as u16);
        (packet[8], packet[23], packet[24], packet[39]) = (0xFD, 1, 0xFD, 2);
        packet.extend((0..payload).map(|at| at as u8));
        put16(&mut packet, IPV6_HEADER + 4, payload as u16);
        packet
    }

    fn decide(bytes: &[u8], mtu: u16) -> Remedy {
        remedy(&Packet::parse(bytes).expect("a good packet"), mtu)
    }

    #[test]
    fn each_kind_of_packet_has_its_remedy() {
        assert_eq!(decide(&v4(true, UDP, 1_380), 1_340), Remedy::TooBig(1_340));
        assert_eq!(decide(&v4(false, UDP, 1_380), 1_340), Remedy::Fragment(1_340));
        assert_eq!(decide(&v6(1_340), 1_300), Remedy::TooBig(1_300));
        assert_eq!(decide(&v6(1_340), 1_220), Remedy::TooBig(1_280), "IPv6 knows no smaller MTU");
        assert_eq!(decide(&v6(1_240), 1_220), Remedy::Carry);
        // An ICMP error as long as one may be, and a packet for a group.
        let (mut error, mut group) = (v6(1_240), v6(1_240));
        (error[6], error[IPV6_HEADER], group[24]) = (ICMPV6, 2, 0xFF);
        assert_eq!(decide(&error, 1_220), Remedy::Carry, "IPv6 carries 1,280 bytes of anything");
        assert_eq!(decide(&group, 1_220), Remedy::Carry);
    }

    #[test]
    fn errors_are_never_answered() {
        for (kind, expected) in [(3, Remedy::Drop), (11, Remedy::Drop), (8, Remedy::TooBig(1_340))] {
            let mut packet = v4(true, ICMP, 1_380);
            packet[IPV4_HEADER] = kind;
            assert_eq!(decide(&packet, 1_340), expected, "type {kind}");
        }
        for (kind, expected) in [(2, Remedy::Drop), (128, Remedy::TooBig(1_340))] {
            let mut packet = v6(1_380);
            (packet[6], packet[IPV6_HEADER]) = (ICMPV6, kind);
            assert_eq!(decide(&packet, 1_340), expected, "type {kind}");
        }
    }

    #[test]
    fn the_message_goes_back_and_quotes_the_packet() {
        let mut out = [0xFF; MAX_MESSAGE];
        let packet = v4(true, UDP, 1_380);
        let len = too_big(&Packet::parse(&packet).unwrap(), 1_340, &mut out);
        let message = Packet::parse(&out[..len]).expect("a good packet");
        assert_eq!(
            (message.src().to_string(), message.dst().to_string()),
            ("10.9.0.2".into(), "10.0.0.1".into())
        );
        assert_eq!((len, message.icmp(), be16(&out, 26)), (576, Some((3, 4)), 1_340));
        assert_eq!(out[28..len], packet[..len - 28]);
        assert_eq!(checksum::ipv4_header(&out[..20]), be16(&out, 10));
        assert_eq!(Sum::default().bytes(&out[20..len]).checksum(), 0);

        let packet = v6(1_380);
        let len = too_big(&Packet::parse(&packet).unwrap(), 1_340, &mut out);
        let message = Packet::parse(&out[..len]).expect("a good packet");
        assert_eq!(
            (message.src().to_string(), message.dst().to_string()),
            ("fd00::2".into(), "fd00::1".into())
        );
        assert_eq!((len, message.icmp(), be16(&out, 46)), (1_280, Some((2, 0)), 1_340));
        assert_eq!(out[48..len], packet[..len - 48]);
        let pseudo = checksum::pseudo_header(&out, Version::V6, ICMPV6, len - 40);
        assert_eq!(pseudo.bytes(&out[40..len]).checksum(), 0);
    }

    #[test]
    fn fragments_fit_and_make_the_packet_again() {
        for (offset, more) in [(0, false), (185, true)] {
            let mut packet = v4(false, UDP, 3_000);
            put16(&mut packet, 6, offset | if more { 0x2000 } else { 0 });
            let mut out = [0; 2_000];
            let (mut whole, mut next) = (Vec::new(), offset);
            fragment(&Packet::parse(&packet).unwrap(), 1_340, &mut out, |fragment| {
                assert!(fragment.len() <= 1_340);
                let parsed = Packet::parse(fragment).expect("a good packet");
                assert_eq!(checksum::ipv4_header(&fragment[..20]), be16(fragment, 10));
                assert_eq!(be16(fragment, 6) & 0x1FFF, next);
                next += ((fragment.len() - 20) / 8) as u16;
                whole.extend_from_slice(&fragment[20..]);
                let last = whole.len() == 3_000;
                assert_eq!(parsed.fragment().unwrap().more, !last || more);
            })
            .unwrap();
            assert_eq!(whole, packet[20..]);
        }
    }

    #[test]
    fn options_that_are_not_copied_stand_in_the_first_fragment_only() {
        let mut packet = v4(false, UDP, 2_000);
        // A timestamp, not copied, and a router alert, copied.
        packet.splice(20..20, [0x44, 4, 5, 0, 0x94, 4, 0, 0]);
        packet[0] = 0x47;
        put16(&mut packet, 2, 2_028);
        let mut options = Vec::new();
        let mut out = [0; 2_000];
        fragment(&Packet::parse(&packet).unwrap(), 1_000, &mut out, |fragment| {
            options.push(fragment[20..28].to_vec());
        })
        .unwrap();
        assert_eq!(options[0], [0x44, 4, 5, 0, 0x94, 4, 0, 0]);
        assert_eq!(options[1..], [[1, 1, 1, 1, 0x94, 4, 0, 0], [1, 1, 1, 1, 0x94, 4, 0, 0]]);
    }
}
