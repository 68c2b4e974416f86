//! The inner packets of a load over IPv4: TCP segments between sessions, UDP datagrams to and from
//! the campus. Their payload begins with a number and an instant.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use vpnd_packet::checksum::{ipv4_header, pseudo_header};
use vpnd_packet::{PARTIAL_CHECKSUM, TCP, UDP, Version};

const IPV4_HEADER: usize = 20;
/// A TCP header without options.
const BARE_TCP_HEADER: usize = 20;
/// One with the time stamps that Linux sends by default.
const TCP_HEADER: usize = 32;
/// Number and instant.
const STAMP: usize = 16;
/// The length from which packets have options: shorter ones have no room, or are mostly header.
const WITH_OPTIONS: usize = 128;
const UDP_HEADER: usize = 8;
/// The port of both ends.
pub(crate) const PORT: u16 = 5_001;

/// Bytes of an acknowledgement, the shortest packet that can be made. One of Linux has no payload
/// and is 4 bytes shorter.
pub const ACKNOWLEDGEMENT: u16 = (IPV4_HEADER + BARE_TCP_HEADER + STAMP) as u16;

/// The length of the shortest packet of bulk traffic, in bytes: one that its length tells from an
/// acknowledgement.
pub const LEAST_PACKET: usize = ACKNOWLEDGEMENT as usize + 1;

/// The transport protocol of the inner packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    /// Bytes of a packet of `len` bytes that are no payload.
    fn headers(self, len: usize) -> usize {
        IPV4_HEADER
            + match self {
                Self::Udp => UDP_HEADER,
                Self::Tcp if len < WITH_OPTIONS => BARE_TCP_HEADER,
                Self::Tcp => TCP_HEADER,
            }
    }
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
    /// Packets of `len` bytes, at least as long as an [`ACKNOWLEDGEMENT`].
    pub(crate) fn new(transport: Transport, from: Ipv4Addr, to: Ipv4Addr, len: u16) -> Self {
        let total = usize::from(len.max(ACKNOWLEDGEMENT));
        let protocol = match transport {
            Transport::Tcp => TCP,
            Transport::Udp => UDP,
        };
        let mut header = vec![0; transport.headers(total)];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        // Don't fragment.
        header[6] = 0x40;
        header[8] = 64;
        header[9] = protocol;
        header[12..16].copy_from_slice(&from.octets());
        header[16..20].copy_from_slice(&to.octets());
        let sum = ipv4_header(&header[..IPV4_HEADER]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let len = total - IPV4_HEADER;
        // The receiving kernel completes the checksum, as for the packets of any client with a TUN
        // device.
        let sum = pseudo_header(&header, Version::V4, protocol, len).fold();
        let rest = &mut header[IPV4_HEADER..];
        rest[..2].copy_from_slice(&PORT.to_be_bytes());
        rest[2..4].copy_from_slice(&PORT.to_be_bytes());
        match transport {
            Transport::Tcp => write_tcp(rest, sum),
            Transport::Udp => {
                rest[4..6].copy_from_slice(&(len as u16).to_be_bytes());
                rest[6..8].copy_from_slice(&sum.to_be_bytes());
            }
        }
        header[0] |= PARTIAL_CHECKSUM;
        Self { header, len: total }
    }

    pub(crate) fn from(&self) -> Ipv4Addr {
        self.address(12)
    }

    pub(crate) fn to(&self) -> Ipv4Addr {
        self.address(16)
    }

    fn address(&self, at: usize) -> Ipv4Addr {
        Ipv4Addr::from_octets(*self.header[at..].first_chunk().expect("an IPv4 header is longer"))
    }

    /// Bytes of payload in each packet.
    pub(crate) fn payload(&self) -> usize {
        self.len - self.header.len()
    }

    /// Writes the payload alone, for a socket that adds the headers.
    pub(crate) fn write_payload(out: &mut [u8], stamp: Stamp) {
        out[..8].copy_from_slice(&stamp.number.to_le_bytes());
        out[8..STAMP].copy_from_slice(&stamp.at_ns.to_le_bytes());
    }

    /// The stamp of a payload.
    pub(crate) fn read_payload(payload: &[u8]) -> Option<Stamp> {
        let number = |from: usize| Some(u64::from_le_bytes(*payload.get(from..)?.first_chunk()?));
        Some(Stamp { number: number(0)?, at_ns: number(8)? })
    }

    /// Bytes of each packet.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes a packet into `out`, which is as long as it. What follows the stamp stays as it is.
    pub(crate) fn write(&self, out: &mut [u8], stamp: Stamp) {
        let at = self.header.len();
        out[..at].copy_from_slice(&self.header);
        if self.header[9] == TCP {
            let sequence = stamp.number.wrapping_mul(self.payload() as u64) as u32;
            out[24..28].copy_from_slice(&sequence.to_be_bytes());
        }
        Self::write_payload(&mut out[at..], stamp);
    }

    /// The stamp of a packet that arrived, if it is of this flow.
    pub(crate) fn read(&self, packet: &[u8]) -> Option<Stamp> {
        let at = self.header.len();
        // Hop limit and checksums have changed on the way; ports and addresses have not.
        let is_own = packet.len() == self.len
            && packet[9] == self.header[9]
            && packet[12..24] == self.header[12..24]
            && packet[0] & !PARTIAL_CHECKSUM == 0x45;
        if is_own { Self::read_payload(&packet[at..]) } else { None }
    }
}

fn write_tcp(header: &mut [u8], sum: u16) {
    header[12] = (header.len() as u8 / 4) << 4;
    // ACK, as in any segment of a connection.
    header[13] = 0x10;
    header[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    header[16..18].copy_from_slice(&sum.to_be_bytes());
    if let Some(options) = header.get_mut(BARE_TCP_HEADER..BARE_TCP_HEADER + 4) {
        options.copy_from_slice(&[1, 1, 8, 10]);
    }
}

#[cfg(test)]
mod tests {
    use vpnd_packet::Packet;
    use vpnd_packet::checksum::{complete, verify};

    use super::*;

    const FROM: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 2);
    const TO: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 3);

    #[test]
    fn packets_are_whole_and_their_checksums_can_be_completed() {
        let lens = [0, 64, 127, 128, 1_400];
        for (transport, len) in lens.iter().flat_map(|&len| [(Transport::Tcp, len), (Transport::Udp, len)]) {
            let template = Template::new(transport, FROM, TO, len);
            let mut packet = vec![0xA5; template.len()];
            let stamp = Stamp { number: 7, at_ns: 9 };
            template.write(&mut packet, stamp);
            assert_eq!(template.len(), usize::from(len.max(ACKNOWLEDGEMENT)));
            complete(&mut packet).unwrap();
            let parsed = Packet::parse(&packet).unwrap();
            assert!(verify(&parsed), "{len}");
            assert_eq!(template.read(&packet), Some(stamp));
        }
    }

    #[test]
    fn packets_of_other_flows_have_no_stamp() {
        let template = Template::new(Transport::Tcp, FROM, TO, 100);
        let mut packet = vec![0; template.len()];
        Template::new(Transport::Tcp, TO, FROM, 100).write(&mut packet, Stamp { number: 1, at_ns: 1 });
        assert_eq!(template.read(&packet), None);
        template.write(&mut packet, Stamp { number: 1, at_ns: 1 });
        assert_eq!(template.read(&packet[..99]), None);
        packet[9] = UDP;
        assert_eq!(template.read(&packet), None);
    }
}
