//! From a packet of the TUN device, perhaps a super-packet, to inner packets.
//!
//! Numbers as the kernel's own segmentation gives them: the IPv4 identification counts up, the TCP
//! sequence number advances, FIN and PSH stay on the last slice and CWR on the first.

use super::{OffloadError, VirtioHeader};
use crate::checksum::{self, Sum};
use crate::{PARTIAL_CHECKSUM, Packet, TCP, UDP, UDP_HEADER, Version, be16, be32, put16, tcp_flag};

/// The features of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerFeatures {
    /// Packets whose transport checksum is not filled in.
    pub partial_checksum: bool,
}

/// Cuts one packet of the TUN device into inner packets. Holds no copy: slices are written from the
/// packet.
#[derive(Clone, Copy, Debug)]
pub struct Slicer<'a> {
    packet: Packet<'a>,
    plan: Plan,
}

#[derive(Clone, Copy, Debug)]
enum Plan {
    /// One slice: the packet itself.
    Whole(Finish),
    Cut(Cut),
}

/// The work that remains for the checksum of a packet that is not cut.
#[derive(Clone, Copy, Debug)]
enum Finish {
    AsIs,
    Partial {
        field: usize,
    },
    Complete {
        transport: usize,
    },
    /// The checksum of some other protocol, for which the tunnel has no partial form: sum from
    /// `start`, store at `field`.
    Generic {
        start: usize,
        field: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Cut {
    transport: usize,
    headers: usize,
    gso_size: usize,
    count: usize,
    partial: bool,
    /// Sum of an IPv4 header without the fields that differ between slices.
    ip_sum: Sum,
}

impl<'a> Slicer<'a> {
    /// Plans the slices of `packet`, which came from a TUN device behind `header`.
    ///
    /// Slices of a super-packet get their own checksums, so it does not matter whether `header`
    /// requests one.
    pub fn new(header: &VirtioHeader, packet: &Packet<'a>, peer: PeerFeatures) -> Result<Self, OffloadError> {
        if packet.is_partial() {
            return Err(OffloadError::AlreadyPartial);
        }
        let needs_checksum = header.flags & VirtioHeader::NEEDS_CSUM != 0;
        let plan = match header.gso_type {
            VirtioHeader::GSO_NONE if needs_checksum => Plan::Whole(finish(header, packet, peer)?),
            VirtioHeader::GSO_NONE => Plan::Whole(Finish::AsIs),
            _ => cut(header, packet, peer)?,
        };
        Ok(Self { packet: *packet, plan })
    }

    /// Traffic class of every slice.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.packet.traffic_class()
    }

    /// Number of slices, at least one.
    #[inline]
    pub const fn count(&self) -> usize {
        match &self.plan {
            Plan::Whole(_) => 1,
            Plan::Cut(cut) => cut.count,
        }
    }

    /// Length of slice `i` in bytes. All slices but the last have the same.
    ///
    /// # Panics
    /// If there is no slice `i`.
    #[inline]
    pub fn slice_len(&self, i: usize) -> usize {
        match &self.plan {
            Plan::Whole(_) => {
                assert_eq!(i, 0, "a packet that is not cut has one slice");
                self.packet.total_len()
            }
            Plan::Cut(cut) => cut.headers + cut.range(i, self.packet.total_len()).len(),
        }
    }

    /// Writes slice `i`, a self-contained inner packet, to the start of `out` and returns its
    /// length.
    ///
    /// # Panics
    /// If there is no slice `i` or `out` is shorter than [`slice_len`](Self::slice_len).
    #[inline]
    pub fn write(&self, i: usize, out: &mut [u8]) -> usize {
        let len = self.slice_len(i);
        let out = &mut out[..len];
        match &self.plan {
            Plan::Whole(finish) => {
                out.copy_from_slice(self.packet.bytes());
                finish.apply(&self.packet, out);
            }
            Plan::Cut(cut) => cut.write(&self.packet, i, out),
        }
        len
    }
}

/// Decides what to do with the checksum that the kernel left unfilled in a packet that is not cut.
fn finish(header: &VirtioHeader, packet: &Packet<'_>, peer: PeerFeatures) -> Result<Finish, OffloadError> {
    let start = usize::from(header.csum_start.get());
    let field = start + usize::from(header.csum_offset.get());
    let own = transport_checksum(packet);
    if own == Some((start, field)) && covers_all(packet, start) {
        return Ok(if peer.partial_checksum {
            Finish::Partial { field }
        } else {
            Finish::Complete { transport: start }
        });
    }
    // Any other checksum has to lie behind the headers that were checked, which it must not
    // overwrite.
    let behind = packet.headers_len().or(packet.transport_offset()).is_some_and(|headers| start >= headers);
    if (behind || own == Some((start, field))) && field + 2 <= packet.total_len() {
        Ok(Finish::Generic { start, field })
    } else {
        Err(OffloadError::ChecksumPlace)
    }
}

/// Start and field of the TCP or UDP checksum of a packet that is no fragment.
fn transport_checksum(packet: &Packet<'_>) -> Option<(usize, usize)> {
    let at = packet.transport_offset()?;
    let field = at + checksum::field_offset(packet.protocol())?;
    packet.fragment().is_none().then_some((at, field))
}

/// Whether TCP or UDP at `at` fills the packet, so that the packet may travel without a checksum.
fn covers_all(packet: &Packet<'_>, at: usize) -> bool {
    packet.protocol() == TCP || usize::from(be16(packet.bytes(), at + 4)) == packet.total_len() - at
}

fn cut(header: &VirtioHeader, packet: &Packet<'_>, peer: PeerFeatures) -> Result<Plan, OffloadError> {
    let (protocol, version) = match header.gso_type & !VirtioHeader::GSO_ECN {
        VirtioHeader::GSO_TCPV4 => (TCP, Version::V4),
        VirtioHeader::GSO_TCPV6 => (TCP, Version::V6),
        VirtioHeader::GSO_UDP_L4 if header.gso_type == VirtioHeader::GSO_UDP_L4 => (UDP, packet.version()),
        _ => return Err(OffloadError::UnsupportedGso(header.gso_type)),
    };
    if (packet.protocol(), packet.version()) != (protocol, version) {
        return Err(OffloadError::Mismatch);
    }
    let place = transport_checksum(packet).filter(|(at, _)| covers_all(packet, *at));
    let (transport, field) = place.ok_or(OffloadError::Mismatch)?;
    let headers = packet.headers_len().ok_or(OffloadError::Mismatch)?;
    let gso_size = usize::from(header.gso_size.get());
    if gso_size == 0 {
        return Err(OffloadError::GsoSize);
    }
    let named = (usize::from(header.csum_start.get()), usize::from(header.csum_offset.get()));
    if header.flags & VirtioHeader::NEEDS_CSUM != 0 && named != (transport, field - transport) {
        return Err(OffloadError::ChecksumPlace);
    }
    let count = (packet.total_len() - headers).div_ceil(gso_size);
    if count <= 1 {
        let partial = peer.partial_checksum;
        return Ok(Plan::Whole(if partial {
            Finish::Partial { field }
        } else {
            Finish::Complete { transport }
        }));
    }
    if packet.tcp().is_some_and(|tcp| tcp.flags() & (tcp_flag::SYN | tcp_flag::RST) != 0) {
        return Err(OffloadError::Flags);
    }
    let partial = peer.partial_checksum;
    Ok(Plan::Cut(Cut {
        transport,
        headers,
        gso_size,
        count,
        partial,
        ip_sum: constant_ip_sum(packet, transport),
    }))
}

/// Sum of an IPv4 header without total length, identification and checksum.
fn constant_ip_sum(packet: &Packet<'_>, header_len: usize) -> Sum {
    let bytes = packet.bytes();
    match packet.version() {
        Version::V4 => Sum::default().bytes(&bytes[..2]).bytes(&bytes[6..10]).bytes(&bytes[12..header_len]),
        Version::V6 => Sum::default(),
    }
}

impl Finish {
    fn apply(self, packet: &Packet<'_>, out: &mut [u8]) {
        match self {
            Self::AsIs => {}
            Self::Partial { field } => {
                out[0] |= PARTIAL_CHECKSUM;
                // The sum that the kernel left there means nothing to the peer.
                put16(out, field, 0);
            }
            Self::Complete { transport } => {
                checksum::fill(out, packet.version(), packet.protocol(), transport)
            }
            Self::Generic { start, field } => {
                // The field already holds the sum of whatever pseudo header the protocol has.
                let checksum = Sum::default().bytes(&out[start..]).nonzero_checksum();
                put16(out, field, checksum);
            }
        }
    }
}

impl Cut {
    /// The bytes of the packet that are the payload of slice `i`.
    #[inline]
    fn range(&self, i: usize, total_len: usize) -> std::ops::Range<usize> {
        assert!(i < self.count, "there is no slice {i} of {}", self.count);
        let start = self.headers + i * self.gso_size;
        start..(start + self.gso_size).min(total_len)
    }

    fn write(&self, packet: &Packet<'_>, i: usize, out: &mut [u8]) {
        let bytes = packet.bytes();
        let (head, payload) = out.split_at_mut(self.headers);
        head.copy_from_slice(&bytes[..self.headers]);
        payload.copy_from_slice(&bytes[self.range(i, bytes.len())]);
        match packet.version() {
            Version::V4 => self.patch_v4(i, out),
            Version::V6 => put16(out, 4, (out.len() - crate::IPV6_HEADER) as u16),
        }
        let protocol = packet.protocol();
        if protocol == TCP {
            self.patch_tcp(i, out);
        } else {
            put16(out, self.transport + 4, (out.len() - self.headers + UDP_HEADER) as u16);
        }
        if self.partial {
            out[0] |= PARTIAL_CHECKSUM;
            put16(out, self.transport + if protocol == TCP { 16 } else { 6 }, 0);
        } else {
            checksum::fill(out, packet.version(), protocol, self.transport);
        }
    }

    fn patch_v4(&self, i: usize, out: &mut [u8]) {
        let total_len = out.len() as u16;
        let id = be16(out, 4).wrapping_add(i as u16);
        put16(out, 2, total_len);
        put16(out, 4, id);
        put16(out, 10, self.ip_sum.word(total_len).word(id).checksum());
    }

    fn patch_tcp(&self, i: usize, out: &mut [u8]) {
        let at = self.transport;
        let seq = be32(out, at + 4).wrapping_add((i * self.gso_size) as u32);
        out[at + 4..at + 8].copy_from_slice(&seq.to_be_bytes());
        if i + 1 != self.count {
            out[at + 13] &= !(tcp_flag::FIN | tcp_flag::PSH);
        }
        if i != 0 {
            out[at + 13] &= !tcp_flag::CWR;
        }
    }
}
