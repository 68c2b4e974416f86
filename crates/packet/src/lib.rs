//! Inner IP packets: a checked view of one, checksums, ECN, MSS clamping, ICMP errors, refusals,
//! answers for web browsers, and segmentation offloads.
//!
//! Everything that later decides about a packet (source ownership, routing, policy, offload) reads
//! it through [`Packet`], so a header is interpreted once and in one place.
//!
//! Invariants of a [`Packet`]: `bytes()` is exactly as long as the IP header says; the headers up
//! to and including a TCP or UDP header are inside it (absent only on later fragments); its source
//! is an address that a single host can have; it cannot make a router send it anywhere but to its
//! destination address.
//!
//! The partial-checksum bit: bit 0x80 of the first byte says that the transport checksum is not
//! filled in. It exists only inside the tunnel, never on a TUN device.
//!
//! This crate must not know sessions, keys, policies or devices.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod ecn;
pub mod icmp;
pub mod mss;
pub mod offload;
mod parse;
pub mod refusal;
mod rewrite;
mod segment;
mod source;
pub mod web;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use crate::ecn::Ecn;
pub use rewrite::{decrement_hop_limit, set_ecn};
pub use source::SourceFilter;

/// Bit of a plaintext's first byte: the TCP or UDP checksum is not filled in and must be ignored.
pub const PARTIAL_CHECKSUM: u8 = 0x80;

/// ICMP for IPv4.
pub const ICMP: u8 = 1;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// ICMP for IPv6.
pub const ICMPV6: u8 = 58;

/// Length of an IPv4 header without options.
pub const IPV4_HEADER: usize = 20;
/// Length of the fixed IPv6 header.
pub const IPV6_HEADER: usize = 40;
/// Length of a UDP header.
pub const UDP_HEADER: usize = 8;
/// Length of a TCP header without options.
pub const TCP_HEADER: usize = 20;
/// The longest run of IP and transport headers that a checked packet can have: IPv6 with the most
/// extension headers that are accepted, and TCP with all its options.
pub const MAX_HEADERS: usize = IPV6_HEADER + parse::MAX_EXTENSION_BYTES + 60;

/// Bits of a TCP header's flag byte.
pub mod tcp_flag {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// First packet of a connection.
    pub const SYN: u8 = 0x02;
    /// Connection refused or broken.
    pub const RST: u8 = 0x04;
    /// Hand the data to the application now.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer is valid.
    pub const URG: u8 = 0x20;
    /// Echo of a congestion mark (RFC 3168).
    pub const ECE: u8 = 0x40;
    /// The sender has reduced its window (RFC 3168).
    pub const CWR: u8 = 0x80;
}

/// The error of bytes that are no inner packet, or one that may not be carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PacketError {
    /// The version nibble is neither 4 nor 6.
    #[error("not an IPv4 or IPv6 packet")]
    Version,
    /// The buffer ends before the IP header or before the length the IP header names.
    #[error("the packet is shorter than its IP header says")]
    Truncated,
    /// IPv4 header length below 20 bytes, or beyond the packet.
    #[error("impossible IPv4 header length")]
    HeaderLength,
    /// IPv4 options that do not parse.
    #[error("malformed IPv4 options")]
    Options,
    /// IPv4 source routing, an IPv6 routing header of type 0, or any that still has stations to
    /// visit.
    #[error("source routing is refused")]
    SourceRouting,
    /// Too many or too long IPv6 extension headers, one out of place, or one cut off.
    #[error("unacceptable chain of IPv6 extension headers")]
    Extensions,
    /// The source is multicast, unspecified, loopback, broadcast or an IPv4-mapped address.
    #[error("the source is not the address of one host")]
    Source,
    /// The destination is unspecified, loopback or an IPv4-mapped address.
    #[error("the destination is not an address that is reachable through a tunnel")]
    Destination,
    /// A TCP or UDP header that does not fit the packet.
    #[error("the TCP or UDP header does not fit the packet")]
    Transport,
    /// A fragment that can hide or overwrite a transport header (RFC 1858, RFC 3128, RFC 5722, RFC
    /// 7112), is empty, or lies beyond the largest packet.
    #[error("unacceptable fragment")]
    Fragment,
    /// The partial-checksum bit on a packet that has no complete TCP or UDP header.
    #[error("partial checksum without a TCP or UDP header")]
    Partial,
}

/// IP version of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Place of a fragment in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Bytes of the original payload before this fragment.
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
}

impl Fragment {
    /// Whether this is the fragment that carries the transport header.
    pub const fn is_first(self) -> bool {
        self.offset == 0
    }
}

/// A checked inner packet. See the module for what it guarantees.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    shape: Shape,
}

/// The result of checking a packet, apart from its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    version: Version,
    protocol: u8,
    partial: bool,
    transport: Option<u16>,
    fragment: Option<Fragment>,
}

/// A checked packet without its bytes: its place in a buffer and the result of checking it, so that
/// the next user of the buffer need not check again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    // Small, for each packet's result is passed on by value.
    start: u16,
    len: u32,
    shape: Shape,
}

impl Checked {
    /// `packet`, which begins at `start` in its buffer.
    #[inline]
    #[must_use]
    pub const fn new(packet: &Packet<'_>, start: u16) -> Self {
        Self { start, len: packet.total_len() as u32, shape: packet.shape() }
    }

    /// The packet's bytes in the buffer.
    #[inline]
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }

    /// The packet, out of the buffer in which it was checked. Only its payload, congestion mark,
    /// hop limit and TCP options may have changed since.
    ///
    /// # Panics
    /// If the buffer is shorter than it was.
    #[inline]
    #[must_use]
    pub fn packet<'a>(&self, buffer: &'a [u8]) -> Packet<'a> {
        let packet = Packet::from_parts(&buffer[self.range()], self.shape);
        debug_assert_eq!(Packet::parse(packet.bytes()).map(|parsed| parsed.shape()), Ok(self.shape));
        packet
    }
}

impl<'a> Packet<'a> {
    /// Checks `bytes`; what lies behind the IP total length is padding and cut off.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        parse::packet(bytes)
    }

    /// The packet of which `bytes` and `shape` were taken earlier.
    #[inline]
    pub(crate) const fn from_parts(bytes: &'a [u8], shape: Shape) -> Self {
        Self { bytes, shape }
    }

    /// All that checking found out, so that the packet can be made again from its bytes.
    #[inline]
    pub(crate) const fn shape(&self) -> Shape {
        self.shape
    }

    /// The packet without padding. The first byte may carry [`PARTIAL_CHECKSUM`].
    #[inline]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Length in bytes, IP header included.
    #[inline]
    pub const fn total_len(&self) -> usize {
        self.bytes.len()
    }

    /// IP version.
    #[inline]
    pub const fn version(&self) -> Version {
        self.shape.version
    }

    /// Whether the transport checksum is not filled in. Then there is a whole TCP or UDP header.
    #[inline]
    pub const fn is_partial(&self) -> bool {
        self.shape.partial
    }

    /// Whether its source means something on one link only. The kernel of a client sends from such
    /// addresses into each of its devices, router solicitations above all, and no gateway takes
    /// them.
    #[inline]
    pub fn is_from_one_link(&self) -> bool {
        match self.src() {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        }
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> IpAddr {
        match self.shape.version {
            Version::V4 => IpAddr::V4(Ipv4Addr::from(array::<4>(self.bytes, 12))),
            Version::V6 => IpAddr::V6(Ipv6Addr::from(array::<16>(self.bytes, 8))),
        }
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> IpAddr {
        match self.shape.version {
            Version::V4 => IpAddr::V4(Ipv4Addr::from(array::<4>(self.bytes, 16))),
            Version::V6 => IpAddr::V6(Ipv6Addr::from(array::<16>(self.bytes, 24))),
        }
    }

    /// The upper-layer protocol, behind all IPv6 extension headers. On a later IPv6 fragment it is
    /// what the fragment header names, which may be an extension header.
    #[inline]
    pub const fn protocol(&self) -> u8 {
        self.shape.protocol
    }

    /// Where the upper-layer header begins; `None` on fragments other than the first.
    #[inline]
    pub fn transport_offset(&self) -> Option<usize> {
        self.shape.transport.map(usize::from)
    }

    /// Place in the original packet, if this is a fragment. An atomic IPv6 fragment (RFC 6946) has
    /// offset 0 and no more fragments.
    #[inline]
    pub const fn fragment(&self) -> Option<Fragment> {
        self.shape.fragment
    }

    /// The number that all fragments of one packet have; `None` if this is no fragment.
    pub fn identification(&self) -> Option<u32> {
        parse::identification(self)
    }

    /// Traffic class byte: DSCP in the upper six bits, ECN in the lower two.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        traffic_class(array(self.bytes, 0))
    }

    /// Differentiated services code point (RFC 2474).
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// Explicit congestion notification (RFC 3168).
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::of(self.traffic_class())
    }

    /// IPv4 time to live or IPv6 hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        match self.shape.version {
            Version::V4 => self.bytes[8],
            Version::V6 => self.bytes[7],
        }
    }

    /// Whether a router may not fragment this packet: the IPv4 DF bit, always on IPv6.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        match self.shape.version {
            Version::V4 => self.bytes[6] & 0x40 != 0,
            Version::V6 => true,
        }
    }

    /// Source and destination port of TCP or UDP; `None` for other protocols and later fragments.
    #[inline]
    pub fn ports(&self) -> Option<(u16, u16)> {
        let at = self.transport_of(TCP).or_else(|| self.transport_of(UDP))?;
        Some((be16(self.bytes, at), be16(self.bytes, at + 2)))
    }

    /// The TCP header, if this is TCP and not a later fragment.
    #[inline]
    pub fn tcp(&self) -> Option<Tcp<'a>> {
        let at = self.transport_of(TCP)?;
        let len = usize::from(self.bytes[at + 12] >> 4) * 4;
        Some(Tcp { header: &self.bytes[at..at + len] })
    }

    /// Whether this is a TCP packet that can carry an MSS.
    #[inline]
    pub fn is_syn(&self) -> bool {
        self.tcp().is_some_and(|tcp| tcp.flags() & tcp_flag::SYN != 0)
    }

    /// Type and code, if this is ICMP of either version with its first four bytes present.
    pub fn icmp(&self) -> Option<(u8, u8)> {
        let expected = match self.shape.version {
            Version::V4 => ICMP,
            Version::V6 => ICMPV6,
        };
        let at = self.transport_of(expected)?;
        self.bytes.get(at..at + 4).map(|head| (head[0], head[1]))
    }

    /// Length of IP and transport headers of a TCP or UDP packet, thus where the payload begins.
    #[inline]
    pub fn headers_len(&self) -> Option<usize> {
        let at = self.transport_offset()?;
        match self.shape.protocol {
            TCP => Some(at + usize::from(self.bytes[at + 12] >> 4) * 4),
            UDP => Some(at + UDP_HEADER),
            _ => None,
        }
    }

    #[inline]
    fn transport_of(&self, protocol: u8) -> Option<usize> {
        if self.shape.protocol == protocol { self.transport_offset() } else { None }
    }
}

/// A TCP header inside a checked packet, options included.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    header: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Sequence number.
    #[inline]
    pub fn seq(&self) -> u32 {
        be32(self.header, 4)
    }

    /// Acknowledgement number.
    #[inline]
    pub fn ack(&self) -> u32 {
        be32(self.header, 8)
    }

    /// Flag byte, see [`tcp_flag`].
    #[inline]
    pub fn flags(&self) -> u8 {
        self.header[13]
    }

    /// Receive window as in the header, not scaled.
    #[inline]
    pub fn window(&self) -> u16 {
        be16(self.header, 14)
    }

    /// Option bytes, padding included.
    #[inline]
    pub fn options(&self) -> &'a [u8] {
        &self.header[TCP_HEADER..]
    }

    /// The whole header.
    #[inline]
    pub const fn header(&self) -> &'a [u8] {
        self.header
    }
}

/// Traffic class of the packet that begins with these bytes.
#[inline]
#[must_use]
pub fn traffic_class(first: [u8; 2]) -> u8 {
    const V6: u8 = 0x20;
    if first[0] & V6 == 0 { first[1] } else { (first[0] << 4) | (first[1] >> 4) }
}

/// The 16-bit big-endian number at `at`.
///
/// # Panics
/// If `bytes` ends before it.
#[inline]
#[must_use]
pub fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// The 32-bit big-endian number at `at`.
#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// Writes a 16-bit big-endian number at `at`.
///
/// # Panics
/// If `bytes` ends before it.
#[inline]
pub fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes has N bytes")
}
