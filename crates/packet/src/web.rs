//! A web server without connections, for hosts that are to learn where to go: to each request over
//! TCP it gives the same response (RFC 9293).
//!
//! INVARIANT: a packet gets one answer at most, which goes to its sender, from the address that it
//! was for.

use crate::refusal;
use crate::segment::Segment;
use crate::tcp_flag::{ACK, FIN, PSH, RST, SYN};
use crate::{IPV6_HEADER, Packet, TCP_HEADER};

/// The longest response, in bytes: its packet fits any path.
pub const MAX_RESPONSE: usize = 500;
/// Room that [`answer`] needs, in bytes.
pub const MAX_ANSWER: usize = IPV6_HEADER + TCP_HEADER + MAX_RESPONSE;

/// The port of web servers without TLS.
pub const HTTP: u16 = 80;

/// Number of a connection's first byte, which is none of the response. One number for all of them
/// is no secret: no other host sees a connection.
const FIRST: u32 = 0;
/// Option of a SYN: segments of 1,220 bytes at most.
const MSS: [u8; 4] = [2, 4, 0x04, 0xC4];

/// Writes the answer to a packet for a web server, if it needs one: a reset, if it is of a
/// connection with another server. Returns its length.
///
/// # Panics
/// If `response` is longer than [`MAX_RESPONSE`], or `out` shorter than [`MAX_ANSWER`].
#[must_use]
pub fn answer(packet: &Packet<'_>, response: &[u8], out: &mut [u8]) -> Option<usize> {
    assert!(response.len() <= MAX_RESPONSE, "a response of {} bytes", response.len());
    let tcp = packet.tcp().filter(|_| packet.fragment().is_none())?;
    let received = packet.total_len() - packet.headers_len()?;
    let ends = tcp.flags() & FIN != 0;
    let is_first = tcp.ack() == FIRST.wrapping_add(1);
    // Both ends take up a number, too.
    let is_known = tcp.ack().wrapping_sub(FIRST) as usize <= response.len() + 2;
    // Data count as received, and so does their end.
    let next = tcp.seq().wrapping_add(received as u32).wrapping_add(ends.into());
    let plain = Segment { seq: tcp.ack(), ack: next, flags: ACK, options: &[], data: &[] };
    let segment = match tcp.flags() & (SYN | ACK | RST) {
        SYN => {
            let ack = tcp.seq().wrapping_add(1);
            Segment { seq: FIRST, ack, flags: SYN | ACK, options: &MSS, ..plain }
        }
        ACK if !is_known => return refusal::answer(packet, out),
        ACK if received > 0 && is_first => Segment { flags: ACK | PSH | FIN, data: response, ..plain },
        ACK if ends && is_first => Segment { flags: ACK | FIN, ..plain },
        ACK if received > 0 || ends => plain,
        _ => return None,
    };
    Some(segment.write(packet, out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IPV4_HEADER, TCP, Version, be16, checksum, put16};

    const RESPONSE: &[u8] = b"HTTP/1.1 302 Found\r\n\r\n";

    /// A browser at one address, which knows what it has sent and received.
    struct Browser {
        version: Version,
        seq: u32,
        ack: u32,
    }

    /// An answer's sequence and acknowledgement numbers, flags and data.
    type Answer = (u32, u32, u8, Vec<u8>);

    impl Browser {
        fn packet(&self, flags: u8, data: &[u8]) -> Vec<u8> {
            let header = if self.version == Version::V4 { IPV4_HEADER } else { IPV6_HEADER };
            let len = header + TCP_HEADER + data.len();
            let mut bytes = vec![0; len];
            if self.version == Version::V4 {
                (bytes[0], bytes[8], bytes[9]) = (0x45, 64, TCP);
                put16(&mut bytes, 2, len as u16);
                bytes[12..20].copy_from_slice(&[10, 8, 0, 2, 192, 0, 2, 80]);
                let sum = checksum::ipv4_header(&bytes[..IPV4_HEADER]);
                put16(&mut bytes, 10, sum);
            } else {
                (bytes[0], bytes[6], bytes[7]) = (0x60, TCP, 64);
                put16(&mut bytes, 4, (len - header) as u16);
                (bytes[8], bytes[23], bytes[24], bytes[39]) = (0xFD, 2, 0x20, 80);
            }
            let tcp = &mut bytes[header..];
            put16(tcp, 0, 50_000);
            put16(tcp, 2, HTTP);
            tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
            tcp[8..12].copy_from_slice(&self.ack.to_be_bytes());
            (tcp[12], tcp[13]) = (5 << 4, flags);
            tcp[TCP_HEADER..].copy_from_slice(data);
            bytes
        }

        fn send(&self, flags: u8, data: &[u8]) -> Option<Answer> {
            let sent = self.packet(flags, data);
            let sent = Packet::parse(&sent).unwrap();
            let mut out = [0xFF; MAX_ANSWER];
            let len = answer(&sent, RESPONSE, &mut out)?;
            let answer = Packet::parse(&out[..len]).expect("a good packet");
            assert_eq!((answer.src(), answer.dst()), (sent.dst(), sent.src()));
            assert_eq!(answer.ports(), Some((HTTP, 50_000)));
            let header = answer.transport_offset().unwrap();
            let sum = checksum::pseudo_header(&out, self.version, TCP, len - header);
            assert_eq!(sum.bytes(&out[header..len]).checksum(), 0);
            if self.version == Version::V4 {
                assert_eq!(checksum::ipv4_header(&out[..IPV4_HEADER]), be16(&out, 10));
            }
            let tcp = answer.tcp().unwrap();
            Some((tcp.seq(), tcp.ack(), tcp.flags(), out[answer.headers_len().unwrap()..len].to_vec()))
        }
    }

    #[test]
    fn a_request_gets_the_response_whatever_it_asks_for() {
        for version in [Version::V4, Version::V6] {
            let mut browser = Browser { version, seq: u32::MAX - 1, ack: 0 };
            let (seq, ack, flags, data) = browser.send(SYN, b"").unwrap();
            assert_eq!((ack, flags, &data[..]), (u32::MAX, SYN | ACK, &b""[..]));
            (browser.seq, browser.ack) = (ack, seq.wrapping_add(1));
            assert_eq!(browser.send(ACK, b""), None);
            // In two segments, the second of which was on its way when the response came.
            let response = |ack| Some((browser.ack, ack, ACK | PSH | FIN, RESPONSE.to_vec()));
            assert_eq!(browser.send(ACK | PSH, b"GET /"), response(4));
            assert_eq!(browser.send(ACK | PSH, b"GET /"), response(4), "sent again");
            let second = Browser { seq: 4, ..browser };
            assert_eq!(second.send(ACK | PSH, b"a HTTP/1.1"), response(14));
            // It has the response and its end, and ends, too.
            let over = Browser { seq: 14, ack: browser.ack + RESPONSE.len() as u32 + 1, ..browser };
            assert_eq!(over.send(ACK, b""), None);
            assert_eq!(over.send(ACK | PSH, b"more"), Some((over.ack, 18, ACK, Vec::new())));
            assert_eq!(over.send(ACK | FIN, b""), Some((over.ack, 15, ACK, Vec::new())));
        }
    }

    #[test]
    fn a_connection_with_another_server_is_reset() {
        for ack in [RESPONSE.len() as u32 + 3, u32::MAX] {
            let before = Browser { version: Version::V6, seq: 7, ack };
            for data in [&b""[..], b"GET /"] {
                assert_eq!(before.send(ACK, data), Some((ack, 0, RST, Vec::new())));
            }
        }
    }

    #[test]
    fn what_is_no_request_gets_no_response() {
        let browser = Browser { version: Version::V4, seq: 7, ack: FIRST + 1 };
        assert_eq!(browser.send(ACK | FIN, b""), Some((browser.ack, 8, ACK | FIN, Vec::new())));
        for flags in [0, RST, RST | ACK, SYN | ACK, FIN, PSH, SYN | RST] {
            assert_eq!(browser.send(flags, b"GET /"), None, "{flags:#x}");
        }
        assert_eq!(browser.send(ACK, b""), None);
        let mut fragment = browser.packet(SYN, b"1234");
        fragment[6] = 0x20;
        let sum = checksum::ipv4_header(&fragment[..IPV4_HEADER]);
        put16(&mut fragment, 10, sum);
        let fragment = Packet::parse(&fragment).unwrap();
        assert_eq!(answer(&fragment, RESPONSE, &mut [0; MAX_ANSWER]), None);
    }
}
