//! When inner packets may be merged: the rules of generic receive offload, kept strictly enough
//! that cutting the merged packet again gives back the packets it was made of. (One exception, as
//! in Linux: packets that may not be fragmented and all carry one and the same IPv4 identification,
//! for there it means nothing; RFC 6864.)

use super::rebuilder::Piece;
use crate::checksum::{self, Sum};
use crate::{
    IPV4_HEADER, IPV6_HEADER, PARTIAL_CHECKSUM, Packet, Shape, TCP, UDP, Version, be16, be32, tcp_flag,
};

/// The most packets that are merged into one.
pub(super) const MAX_PACKETS: usize = 128;
/// The most datagrams that Linux accepts in one UDP super-packet.
const MAX_UDP_PACKETS: usize = 64;
/// The most bytes of a merged packet, headers included.
const MAX_TOTAL: usize = u16::MAX as usize;

/// Flags that may differ between the packets of a group.
const LOOSE_FLAGS: u8 = tcp_flag::CWR | tcp_flag::FIN | tcp_flag::PSH;
/// Flags that end a group.
const LAST_FLAGS: u8 = tcp_flag::FIN | tcp_flag::PSH;

/// A packet that by itself could be part of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) packet: Packet<'a>,
    /// Where the packet lies in the batch's buffer.
    pub(super) at: usize,
    pub(super) transport: usize,
    pub(super) headers: usize,
}

impl<'a> Candidate<'a> {
    /// Looks at a packet alone: no fragment, IPv4 options or extension headers; TCP with data and
    /// no flags but those of a stream in flight; UDP that fills its packet.
    #[inline]
    pub(super) fn new(packet: &Packet<'a>, at: usize) -> Option<Self> {
        let bytes = packet.bytes();
        let transport = packet.transport_offset()?;
        let headers = packet.headers_len()?;
        let plain = match packet.version() {
            // Reserved bit and fragment fields are zero; the header checksum is right, for it will
            // be computed again.
            Version::V4 => {
                transport == IPV4_HEADER
                    && be16(bytes, 6) & !0x4000 == 0
                    && be16(bytes, 10) == ipv4_checksum(packet)
            }
            Version::V6 => transport == IPV6_HEADER,
        };
        let mergeable = match packet.protocol() {
            TCP => is_stream_segment(bytes, transport),
            UDP => usize::from(be16(bytes, transport + 4)) == bytes.len() - transport,
            _ => false,
        };
        (plain && mergeable && bytes.len() > headers).then_some(Self {
            packet: *packet,
            at,
            transport,
            headers,
        })
    }

    /// Whether nothing may be merged behind this packet.
    #[inline]
    pub(super) fn is_last(&self) -> bool {
        self.packet.protocol() == TCP && self.flags() & LAST_FLAGS != 0
    }

    #[inline]
    fn flags(&self) -> u8 {
        self.packet.bytes()[self.transport + 13]
    }

    #[inline]
    fn payload_len(&self) -> usize {
        self.packet.total_len() - self.headers
    }

    fn piece(&self) -> Piece {
        Piece { start: (self.at + self.headers) as u32, len: self.payload_len() as u32 }
    }
}

/// The right checksum of an IPv4 header without options. The partial-checksum bit is no part of it.
#[inline]
fn ipv4_checksum(packet: &Packet<'_>) -> u16 {
    let bytes = packet.bytes();
    let first = u16::from_be_bytes([bytes[0] & !PARTIAL_CHECKSUM, bytes[1]]);
    Sum::default().word(first).bytes(&bytes[2..10]).bytes(&bytes[12..IPV4_HEADER]).checksum()
}

/// ACK is set, SYN, RST and URG are not, and the bits next to the header length are zero.
#[inline]
fn is_stream_segment(bytes: &[u8], at: usize) -> bool {
    let flags = bytes[at + 13];
    let forbidden = tcp_flag::SYN | tcp_flag::RST | tcp_flag::URG;
    flags & forbidden == 0 && flags & tcp_flag::ACK != 0 && bytes[at + 12] & 0x0F == 0
}

/// A run of packets that become one. Packets are known by their place in the batch's buffer.
#[derive(Debug)]
pub(super) struct Group {
    /// The first packet, whose headers are the group's.
    pub(super) at: usize,
    first_len: usize,
    shape: Shape,
    partial: bool,
    pub(super) transport: usize,
    pub(super) headers: usize,
    /// Payload length of every packet but the last.
    pub(super) gso_size: usize,
    /// Length of the merged packet.
    pub(super) total_len: usize,
    /// FIN and PSH of the last packet.
    pub(super) last_flags: u8,
    /// Payloads in order.
    pub(super) pieces: Vec<Piece>,
    /// Whether the first packet's checksum was verified; meaningless if `partial`.
    verified: bool,
    /// How the IPv4 identification goes on, once there are two packets.
    id_step: Option<u16>,
}

impl Group {
    /// A group of one packet; `pieces` is an empty vector to be reused.
    pub(super) fn new(first: &Candidate<'_>, mut pieces: Vec<Piece>) -> Self {
        pieces.push(first.piece());
        Self {
            at: first.at,
            first_len: first.packet.total_len(),
            shape: first.packet.shape(),
            partial: first.packet.is_partial(),
            transport: first.transport,
            headers: first.headers,
            gso_size: first.payload_len(),
            total_len: first.packet.total_len(),
            last_flags: 0,
            pieces,
            verified: false,
            id_step: None,
        }
    }

    /// The first packet.
    #[inline]
    pub(super) fn first<'b>(&self, buffer: &'b [u8]) -> Packet<'b> {
        Packet::from_parts(&buffer[self.at..self.at + self.first_len], self.shape)
    }

    /// Whether `packet` goes the same way: same addresses, and the same ports if it has any.
    #[inline]
    pub(super) fn is_flow_of(&self, buffer: &[u8], packet: &Packet<'_>) -> bool {
        let first = self.first(buffer);
        let version = first.version();
        if version != packet.version()
            || addresses(first.bytes(), version) != addresses(packet.bytes(), version)
        {
            return false;
        }
        match (packet.transport_offset(), packet.protocol()) {
            (Some(at), protocol @ (TCP | UDP)) => {
                first.protocol() == protocol
                    && be32(first.bytes(), self.transport) == be32(packet.bytes(), at)
            }
            // Without ports it could belong to any flow between the two.
            _ => true,
        }
    }

    /// Adds `next`, which is of the same flow, if the rules allow. Returns whether it did.
    #[inline]
    pub(super) fn try_add(&mut self, buffer: &[u8], next: &Candidate<'_>) -> bool {
        if !self.has_room_for(next) {
            return false;
        }
        let first = self.first(buffer);
        let Some(id_step) = self.continues_ip(&first, next) else { return false };
        let is_tcp = first.protocol() == TCP;
        if is_tcp && !self.continues_tcp(first.bytes(), next) {
            return false;
        }
        if !self.partial && !self.verify(&first, next) {
            return false;
        }
        self.id_step = id_step;
        self.total_len += next.payload_len();
        if is_tcp {
            self.last_flags = next.flags() & LAST_FLAGS;
        }
        self.pieces.push(next.piece());
        true
    }

    /// Whether nothing can be added any more after `last` was.
    #[inline]
    pub(super) fn is_closed_by(&self, last: &Candidate<'_>) -> bool {
        last.payload_len() < self.gso_size
            || last.is_last()
            || self.pieces.len() == max_packets(last.packet.protocol())
    }

    #[inline]
    fn has_room_for(&self, next: &Candidate<'_>) -> bool {
        self.partial == next.packet.is_partial()
            && next.payload_len() <= self.gso_size
            && self.total_len + next.payload_len() <= MAX_TOTAL
            && self.pieces.len() < max_packets(next.packet.protocol())
    }

    /// Compares the IP headers but for lengths and checksum. Returns the new `id_step`, or `None`
    /// if they don't fit.
    #[inline]
    fn continues_ip(&self, first: &Packet<'_>, next: &Candidate<'_>) -> Option<Option<u16>> {
        let (version, first, bytes) = (first.version(), first.bytes(), next.packet.bytes());
        match version {
            Version::V4 => {
                // Type of service, fragment bits, time to live.
                if first[1] != bytes[1] || first[6..9] != bytes[6..9] {
                    return None;
                }
                self.id_step_to(first, bytes).map(Some)
            }
            // Traffic class, flow label and hop limit.
            Version::V6 => (first[..4] == bytes[..4] && first[7] == bytes[7]).then_some(None),
        }
    }

    fn id_step_to(&self, first: &[u8], next: &[u8]) -> Option<u16> {
        let distance = be16(next, 4).wrapping_sub(be16(first, 4));
        let dont_fragment = first[6] & 0x40 != 0;
        let step = match self.id_step {
            Some(step) => step,
            None if distance == 0 && dont_fragment => 0,
            None => 1,
        };
        (distance == step.wrapping_mul(self.pieces.len() as u16)).then_some(step)
    }

    /// Compares the TCP headers: the next bytes of the stream, and everything but the flags of
    /// first and last the same, the header's length among it.
    #[inline]
    fn continues_tcp(&self, first: &[u8], next: &Candidate<'_>) -> bool {
        let own = &first[self.transport..self.headers];
        let theirs = &next.packet.bytes()[next.transport..next.headers];
        let expected = be32(own, 4).wrapping_add((self.total_len - self.headers) as u32);
        let flags = theirs[13];
        be32(theirs, 4) == expected
            && own[8..13] == theirs[8..13]
            && flags & tcp_flag::CWR == 0
            && (own[13] ^ flags) & !LOOSE_FLAGS == 0
            // Window, urgent pointer, options; the checksum between them is computed again.
            && own[14..16] == theirs[14..16]
            && own[18..] == theirs[18..]
    }

    /// Complete packets are merged only if their checksums are there and right, for the merged
    /// packet's is declared good to the kernel. The first packet is verified no earlier than a
    /// second one could join it.
    fn verify(&mut self, first: &Packet<'_>, next: &Candidate<'_>) -> bool {
        self.verified = self.verified || checksum::verify(first);
        self.verified && checksum::verify(&next.packet)
    }
}

fn max_packets(protocol: u8) -> usize {
    if protocol == UDP { MAX_UDP_PACKETS } else { MAX_PACKETS }
}

#[inline]
fn addresses(packet: &[u8], version: Version) -> &[u8] {
    match version {
        Version::V4 => &packet[12..20],
        Version::V6 => &packet[8..40],
    }
}
