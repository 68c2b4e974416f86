//! The smallest packet that a gateway's kernel answers: an ICMP echo over IPv4 (RFC 792), and its
//! reply.

use std::net::Ipv4Addr;

/// Length of the packet in bytes: two headers and no data.
pub(crate) const PING_LEN: usize = 28;

const ICMP: u8 = 1;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;

/// An echo request; its reply bears the same `mark`, the identifier of the header.
pub(crate) fn ping(from: Ipv4Addr, to: Ipv4Addr, mark: u16, sequence: u16) -> [u8; PING_LEN] {
    let mut packet = [0; PING_LEN];
    packet[0] = 0x45;
    packet[3] = PING_LEN as u8;
    packet[8] = 64;
    packet[9] = ICMP;
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    let sum = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20] = ECHO_REQUEST;
    packet[24..26].copy_from_slice(&mark.to_be_bytes());
    packet[26..28].copy_from_slice(&sequence.to_be_bytes());
    let sum = checksum(&packet[20..]);
    packet[22..24].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The mark of the [`ping`] that a packet answers, if it answers one.
pub(crate) fn replied(packet: &[u8]) -> Option<u16> {
    let is_reply =
        packet.len() >= PING_LEN && packet[0] == 0x45 && packet[9] == ICMP && packet[20] == ECHO_REPLY;
    is_reply.then(|| u16::from_be_bytes([packet[24], packet[25]]))
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    !((sum & 0xFFFF) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_checksums_are_right_and_replies_are_recognised() {
        let mut packet = ping([10, 86, 0, 9].into(), [10, 86, 0, 1].into(), 0x1234, 0xABCD);
        assert_eq!((checksum(&packet[..20]), checksum(&packet[20..])), (0, 0));
        assert!(vpnd_packet::Packet::parse(&packet).is_ok());
        assert_eq!(replied(&packet), None);
        packet[20] = ECHO_REPLY;
        assert_eq!(replied(&packet), Some(0x1234));
        assert_eq!(replied(&packet[..27]), None);
    }
}
