//! The inner packets of a load: TCP segments over IPv4, whose payload begins with a number and an instant.

use std::net::Ipv4Addr;

use vpnd_proto::checksum::{ipv4_header, pseudo_header};
use vpnd_proto::packet::{PARTIAL_CHECKSUM, TCP, Version};

const IPV4_HEADER: usize = 20;
/// A TCP header without options.
const BARE_TCP_HEADER: usize = 20;
/// One with the time stamps that Linux sends by default.
const TCP_HEADER: usize = 32;
/// Number and instant.
const STAMP: usize = 16;
/// The length from which packets have options: shorter ones have no room, or are mostly header.
const WITH_OPTIONS: usize = 128;
const PORT: u16 = 5_001;

/// The length of the shortest packet, in bytes.
pub const LEAST_PACKET: usize = IPV4_HEADER + BARE_TCP_HEADER + STAMP;

/// Bytes of a packet of `len` bytes that are no payload.
pub fn headers(len: usize) -> usize {
    IPV4_HEADER + if len < WITH_OPTIONS { BARE_TCP_HEADER } else { TCP_HEADER }
}

/// The packets of one flow, but for their numbers.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    header: Vec<u8>,
    len: usize,
}

/// Marks of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Its number in its flow.
    pub(crate) number: u64,
    /// When it was sealed, in nanoseconds.
    pub(crate) at_ns: u64,
}

impl Template {
    /// Packets of `len` bytes, at least [`LEAST_PACKET`].
    pub(crate) fn new(from: Ipv4Addr, to: Ipv4Addr, len: u16) -> Self {
        let total = usize::from(len).max(LEAST_PACKET);
        let mut header = vec![0; headers(total)];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        // Don't fragment.
        header[6] = 0x40;
        header[8] = 64;
        header[9] = TCP;
        header[12..16].copy_from_slice(&from.octets());
        header[16..20].copy_from_slice(&to.octets());
        let sum = ipv4_header(&header[..IPV4_HEADER]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let tcp_len = total - IPV4_HEADER;
        let sum = pseudo_header(&header, Version::V4, TCP, tcp_len).fold();
        let tcp = &mut header[IPV4_HEADER..];
        tcp[..2].copy_from_slice(&PORT.to_be_bytes());
        tcp[2..4].copy_from_slice(&PORT.to_be_bytes());
        tcp[12] = (tcp.len() as u8 / 4) << 4;
        // ACK, as in any segment of a connection.
        tcp[13] = 0x10;
        tcp[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
        // The receiving kernel completes it, as for the segments of any client with a TUN device.
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        if let Some(options) = tcp.get_mut(BARE_TCP_HEADER..BARE_TCP_HEADER + 4) {
            options.copy_from_slice(&[1, 1, 8, 10]);
        }
        header[0] |= PARTIAL_CHECKSUM;
        Self { header, len: total }
    }

    /// Bytes of each packet.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes a packet into `out`, which is as long as it. What follows the stamp stays as it is.
    pub(crate) fn write(&self, out: &mut [u8], stamp: Stamp) {
        let at = self.header.len();
        out[..at].copy_from_slice(&self.header);
        let sequence = stamp.number.wrapping_mul((self.len - at) as u64) as u32;
        out[24..28].copy_from_slice(&sequence.to_be_bytes());
        out[at..at + 8].copy_from_slice(&stamp.number.to_le_bytes());
        out[at + 8..at + STAMP].copy_from_slice(&stamp.at_ns.to_le_bytes());
    }

    /// The stamp of a packet that arrived, if it is of this flow.
    pub(crate) fn read(&self, packet: &[u8]) -> Option<Stamp> {
        let at = self.header.len();
        // Hop limit and checksums have changed on the way; ports and addresses have not.
        let is_own = packet.len() == self.len
            && packet[9] == TCP
            && packet[12..24] == self.header[12..24]
            && packet[0] & !PARTIAL_CHECKSUM == 0x45;
        let number = |from: usize| packet[from..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        if is_own { Some(Stamp { number: number(at)?, at_ns: number(at + 8)? }) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use vpnd_proto::checksum::{complete, verify};
    use vpnd_proto::packet::Packet;

    use super::*;

    const FROM: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 2);
    const TO: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 3);

    #[test]
    fn packets_are_whole_and_their_checksums_can_be_completed() {
        for len in [0, 64, 127, 128, 1_400] {
            let template = Template::new(FROM, TO, len);
            let mut packet = vec![0xA5; template.len()];
            let stamp = Stamp { number: 7, at_ns: 9 };
            template.write(&mut packet, stamp);
            assert_eq!(template.len(), usize::from(len).max(LEAST_PACKET));
            complete(&mut packet).unwrap();
            let parsed = Packet::parse(&packet).unwrap();
            assert!(verify(&parsed), "{len}");
            assert_eq!(template.read(&packet), Some(stamp));
        }
    }

    #[test]
    fn packets_of_other_flows_have_no_stamp() {
        let template = Template::new(FROM, TO, 100);
        let mut packet = vec![0; template.len()];
        Template::new(TO, FROM, 100).write(&mut packet, Stamp { number: 1, at_ns: 1 });
        assert_eq!(template.read(&packet), None);
        template.write(&mut packet, Stamp { number: 1, at_ns: 1 });
        assert_eq!(template.read(&packet[..99]), None);
        packet[9] = 17;
        assert_eq!(template.read(&packet), None);
    }
}
