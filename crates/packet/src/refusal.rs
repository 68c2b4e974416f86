//! Refusals of packets, in the place of the host that they are for, so that their sender does not
//! wait: a reset for TCP (RFC 9293 §3.10.7.1), "port unreachable" for UDP (RFC 1122 §4.1.3.1, RFC
//! 4443 §3.1).
//!
//! INVARIANT: a packet gets one refusal at most, which goes to its sender, from the address that it
//! was for; a reset gets none. How often one is sent is the caller's affair.

use std::net::IpAddr;

use crate::icmp;
use crate::segment::Segment;
use crate::tcp_flag::{ACK, FIN, RST, SYN};
use crate::{Packet, Tcp};

/// Room that [`answer`] needs, in bytes.
pub const MAX_ANSWER: usize = icmp::MAX_MESSAGE;

/// Writes the refusal of a packet, if it may have one. Returns its length.
///
/// # Panics
/// If `out` is shorter than [`MAX_ANSWER`].
#[must_use]
pub fn answer(packet: &Packet<'_>, out: &mut [u8]) -> Option<usize> {
    let destination = packet.dst();
    let is_broadcast = matches!(destination, IpAddr::V4(v4) if v4.is_broadcast());
    if is_broadcast || !icmp::may_answer(packet) {
        return None;
    }
    match packet.tcp() {
        Some(tcp) => reset(packet, tcp, out),
        None if packet.ports().is_some() => {
            Some(icmp::write_error(packet, destination, icmp::Error::PortUnreachable, out))
        }
        None => None,
    }
}

/// Writes the segment that a host without such a connection sends.
fn reset(packet: &Packet<'_>, tcp: Tcp<'_>, out: &mut [u8]) -> Option<usize> {
    // The length of a fragment's segment is not known.
    if tcp.flags() & RST != 0 || packet.fragment().is_some() {
        return None;
    }
    let data = packet.total_len() - packet.headers_len()?;
    let [is_begin, is_end] = [SYN, FIN].map(|flag| u32::from(tcp.flags() & flag != 0));
    let next = tcp.seq().wrapping_add(data as u32).wrapping_add(is_begin + is_end);
    let (seq, ack, flags) = if tcp.flags() & ACK != 0 { (tcp.ack(), 0, RST) } else { (0, next, RST | ACK) };
    Some(Segment { seq, ack, flags, options: &[], data: &[] }.write(packet, out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp_flag::PSH;
    use crate::{ICMP, ICMPV6, IPV4_HEADER, IPV6_HEADER, TCP, TCP_HEADER, UDP, checksum, put16};

    const FROM: &[u8] = &[10, 8, 0, 2];

    /// A packet from port 50,000 to port 443 of this IPv4 host, or of an IPv6 host.
    fn packet(to: Option<[u8; 4]>, protocol: u8, transport: &[u8]) -> Vec<u8> {
        let mut bytes = match to {
            Some(to) => {
                let mut bytes = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0];
                bytes.extend([FROM, &to].concat());
                put16(&mut bytes, 2, (IPV4_HEADER + transport.len()) as u16);
                bytes
            }
            None => {
                let mut bytes = vec![0; IPV6_HEADER];
                (bytes[0], bytes[6], bytes[7]) = (0x60, protocol, 64);
                put16(&mut bytes, 4, transport.len() as u16);
                (bytes[8], bytes[23], bytes[24], bytes[39]) = (0xFD, 2, 0x20, 80);
                bytes
            }
        };
        bytes.extend(transport);
        bytes
    }

    fn tcp(flags: u8, seq: u32, ack: u32, data: &[u8]) -> Vec<u8> {
        let mut header = vec![0; TCP_HEADER];
        put16(&mut header, 0, 50_000);
        put16(&mut header, 2, 443);
        header[4..8].copy_from_slice(&seq.to_be_bytes());
        header[8..12].copy_from_slice(&ack.to_be_bytes());
        (header[12], header[13]) = (5 << 4, flags);
        [&header, data].concat()
    }

    fn udp(data: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 8];
        put16(&mut header, 0, 50_000);
        put16(&mut header, 2, 443);
        put16(&mut header, 4, (8 + data.len()) as u16);
        [&header, data].concat()
    }

    /// The refusal of a packet.
    fn refused(sent: &[u8]) -> Option<Vec<u8>> {
        let mut sent = sent.to_vec();
        if sent[0] >> 4 == 4 {
            let sum = checksum::ipv4_header(&sent[..IPV4_HEADER]);
            put16(&mut sent, 10, sum);
        }
        let sent = Packet::parse(&sent).unwrap();
        let mut out = [0xFF; MAX_ANSWER];
        let len = answer(&sent, &mut out)?;
        let refusal = Packet::parse(&out[..len]).expect("a good packet");
        assert_eq!((refusal.src(), refusal.dst()), (sent.dst(), sent.src()));
        if sent.tcp().is_some() {
            assert_eq!(refusal.ports(), Some((443, 50_000)));
            assert!(len <= sent.total_len(), "no more bytes than it had");
        }
        Some(out[..len].to_vec())
    }

    #[test]
    fn a_connection_is_reset_by_the_numbers_that_its_sender_takes() {
        for to in [Some([192, 0, 2, 80]), None] {
            let reset = |flags, seq, ack, data: &[u8]| {
                let refusal = refused(&packet(to, TCP, &tcp(flags, seq, ack, data)))?;
                let refusal = Packet::parse(&refusal).unwrap();
                let tcp = refusal.tcp().unwrap();
                Some((tcp.flags(), tcp.seq(), tcp.ack()))
            };
            assert_eq!(reset(SYN, u32::MAX, 0, b""), Some((RST | ACK, 0, 0)));
            assert_eq!(reset(SYN, 7, 0, b"early"), Some((RST | ACK, 0, 13)));
            assert_eq!(reset(FIN, 7, 0, b"1"), Some((RST | ACK, 0, 9)));
            // The connection was open before.
            for flags in [ACK, ACK | PSH, ACK | FIN, SYN | ACK] {
                assert_eq!(reset(flags, 7, 99, b"data"), Some((RST, 99, 0)));
            }
            for flags in [RST, RST | ACK, RST | SYN] {
                assert_eq!(reset(flags, 7, 99, b""), None, "a reset of a reset");
            }
        }
    }

    #[test]
    fn nothing_receives_at_a_port_of_udp() {
        for (to, expected) in [(Some([192, 0, 2, 80]), (3, 3)), (None, (1, 4))] {
            let sent = packet(to, UDP, &udp(b"hello"));
            let refusal = refused(&sent).unwrap();
            assert_eq!(Packet::parse(&refusal).unwrap().icmp(), Some(expected));
            let quoted = &refusal[refusal.len() - sent.len()..];
            assert_eq!(quoted[IPV4_HEADER..], sent[IPV4_HEADER..], "it says what it is about");
            let long = refused(&packet(to, UDP, &udp(&[9; 1_400]))).unwrap();
            assert!(long.len() <= MAX_ANSWER, "and no more of it than every path carries");
        }
    }

    #[test]
    fn what_may_have_no_refusal_gets_none() {
        for to in [[224, 0, 0, 251], [255; 4]] {
            assert_eq!(refused(&packet(Some(to), UDP, &udp(b"who is there"))), None, "{to:?}");
            assert_eq!(refused(&packet(Some(to), TCP, &tcp(SYN, 1, 0, b""))), None, "{to:?}");
        }
        let host = [192, 0, 2, 80];
        assert_eq!(refused(&packet(Some(host), ICMP, &[8, 0, 0, 0, 0, 1, 0, 1])), None, "a ping");
        assert_eq!(refused(&packet(Some(host), ICMP, &[3, 3, 0, 0, 0, 0, 0, 0])), None, "an error");
        assert_eq!(refused(&packet(None, ICMPV6, &[1, 4, 0, 0, 0, 0, 0, 0])), None, "an error");
        assert_eq!(refused(&packet(Some(host), 47, &[0; 8])), None, "another protocol");
        for (place, what) in [(0x2000_u16, "a first fragment"), (0x0003, "a later one")] {
            let mut fragment = packet(Some(host), TCP, &tcp(SYN, 1, 0, b"1234"));
            put16(&mut fragment, 6, place);
            assert_eq!(refused(&fragment), None, "{what}");
        }
        let mut later = packet(Some(host), UDP, &[9; 16]);
        put16(&mut later, 6, 0x0003);
        assert_eq!(refused(&later), None, "it has no ports");
    }
}
