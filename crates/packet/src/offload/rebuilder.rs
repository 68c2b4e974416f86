//! From opened inner packets to what a TUN device takes, merged where it pays.
//!
//! INVARIANTS: packets of one flow leave in the order in which they came; nothing is held beyond
//! the end of a batch; a packet is never changed beyond what a checksum or a merge requires. No
//! allocation after construction.

use std::io::IoSlice;

use zerocopy::IntoBytes;

use super::group::{Candidate, Group, MAX_PACKETS};
use super::{VIRTIO_HEADER, VirtioHeader};
use crate::checksum;
use crate::{IPV6_HEADER, MAX_HEADERS, PARTIAL_CHECKSUM, Packet, TCP, Version, put16, tcp_flag};

/// Flows that are collected at the same time.
const MAX_GROUPS: usize = 8;
/// The most bytes of a head.
pub(super) const MAX_HEAD: usize = VIRTIO_HEADER + MAX_HEADERS;

/// The features of a TUN device. `checksum`, `tcp` and `udp` need `vnet_header`, and the latter two
/// `checksum`; without those they have no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunFeatures {
    /// Each packet is preceded by a [`VirtioHeader`].
    pub vnet_header: bool,
    /// The kernel completes partial checksums. Otherwise that is done here.
    pub checksum: bool,
    /// TCP super-packets.
    pub tcp: bool,
    /// UDP super-packets (Linux 6.2 and later).
    pub udp: bool,
}

/// The feature that a device needs for a packet, beyond taking it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Needs {
    /// The packet is complete.
    Nothing,
    /// Its checksum has to be filled in.
    Checksum,
    /// It is a TCP super-packet.
    Tcp,
    /// It is a UDP super-packet.
    Udp,
}

impl TunFeatures {
    /// Returns these features without those that `needs` names, which the kernel has refused.
    #[must_use]
    pub fn without(self, needs: Needs) -> Self {
        match needs {
            Needs::Nothing => self,
            Needs::Checksum => Self { checksum: false, tcp: false, udp: false, ..self },
            Needs::Tcp => Self { tcp: false, ..self },
            Needs::Udp => Self { udp: false, ..self },
        }
    }
}

/// A range of the batch's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u32,
    pub(super) len: u32,
}

/// Merges the packets of a batch. One is kept for the life of a shard.
///
/// Call [`push`](Self::push) for each packet of the batch and [`flush`](Self::flush) at its end,
/// all with the same buffer. The bytes of a packet must not change between its push and that flush.
#[derive(Debug)]
pub struct Rebuilder {
    features: TunFeatures,
    /// Open groups, oldest first; no two of the same flow.
    open: Vec<Group>,
    spare: Vec<Vec<Piece>>,
    head: Head,
    /// Address and length of the batch's buffer, to notice a caller that mixes buffers.
    batch: Option<(usize, usize)>,
}

impl Rebuilder {
    /// A rebuilder for a device with `features`.
    pub fn new(features: TunFeatures) -> Self {
        Self {
            features,
            open: Vec::with_capacity(MAX_GROUPS),
            spare: (0..=MAX_GROUPS).map(|_| Vec::with_capacity(MAX_PACKETS)).collect(),
            head: Head::default(),
            batch: None,
        }
    }

    /// Changes what the device takes, as when the kernel refused a super-packet. Not in the middle
    /// of a batch.
    pub fn set_features(&mut self, features: TunFeatures) {
        debug_assert!(self.open.is_empty(), "features change between batches only");
        self.features = features;
    }

    /// Takes the next packet of the batch, a view into `buffer`. What is finished goes to `sink`:
    /// perhaps an earlier group, perhaps this packet, perhaps nothing yet.
    ///
    /// # Panics
    /// If `packet` does not lie in `buffer`, or `buffer` is not that of the batch's earlier
    /// packets.
    pub fn push(&mut self, buffer: &[u8], packet: &Packet<'_>, mut sink: impl FnMut(&Rebuilt<'_>)) {
        let at = self.place_of(buffer, packet);
        let candidate = Candidate::new(packet, at).filter(|_| self.merges(packet.protocol()));
        let Some(candidate) = candidate else {
            self.emit_flow_of(buffer, packet, &mut sink);
            self.emit_alone(buffer, packet, at, &mut sink);
            return;
        };
        if let Some(i) = self.open.iter().rposition(|group| group.is_flow_of(buffer, packet)) {
            if self.open[i].try_add(buffer, &candidate) {
                if self.open[i].is_closed_by(&candidate) {
                    self.emit(buffer, i, &mut sink);
                }
                return;
            }
            self.emit(buffer, i, &mut sink);
        }
        if candidate.is_last() {
            self.emit_alone(buffer, packet, at, &mut sink);
            return;
        }
        if self.open.len() == MAX_GROUPS {
            self.emit(buffer, 0, &mut sink);
        }
        let pieces = self.spare.pop().unwrap_or_default();
        self.open.push(Group::new(&candidate, pieces));
    }

    /// Ends the batch: everything still collected goes to `sink`.
    pub fn flush(&mut self, buffer: &[u8], mut sink: impl FnMut(&Rebuilt<'_>)) {
        if let Some(batch) = self.batch.take() {
            assert_eq!(batch, identity(buffer), "a batch has one buffer");
        }
        while !self.open.is_empty() {
            self.emit(buffer, 0, &mut sink);
        }
    }

    /// Whether the device takes super-packets of this protocol.
    fn merges(&self, protocol: u8) -> bool {
        let TunFeatures { vnet_header, checksum, tcp, udp } = self.features;
        vnet_header && checksum && if protocol == TCP { tcp } else { udp }
    }

    fn place_of(&mut self, buffer: &[u8], packet: &Packet<'_>) -> usize {
        let batch = *self.batch.get_or_insert_with(|| identity(buffer));
        assert_eq!(batch, identity(buffer), "a batch has one buffer");
        let at = (packet.bytes().as_ptr() as usize).wrapping_sub(batch.0);
        assert!(
            at <= buffer.len() && packet.total_len() <= buffer.len() - at,
            "the packet lies in the buffer"
        );
        at
    }

    /// Emits the groups that `packet`, which cannot be merged, must not overtake.
    fn emit_flow_of(&mut self, buffer: &[u8], packet: &Packet<'_>, sink: &mut impl FnMut(&Rebuilt<'_>)) {
        let mut i = 0;
        while i < self.open.len() {
            if self.open[i].is_flow_of(buffer, packet) {
                self.emit(buffer, i, sink);
            } else {
                i += 1;
            }
        }
    }

    fn emit(&mut self, buffer: &[u8], i: usize, sink: &mut impl FnMut(&Rebuilt<'_>)) {
        let mut group = self.open.remove(i);
        if group.pieces.len() > 1 {
            let needs = self.head.set_merged(&group, buffer);
            sink(&Rebuilt {
                head: self.head.bytes(),
                buffer,
                pieces: &group.pieces,
                replaced: group.headers,
                needs,
                vnet_header: self.features.vnet_header,
            });
        } else {
            self.emit_alone(buffer, &group.first(buffer), group.at, sink);
        }
        group.pieces.clear();
        self.spare.push(group.pieces);
    }

    fn emit_alone(
        &mut self,
        buffer: &[u8],
        packet: &Packet<'_>,
        at: usize,
        sink: &mut impl FnMut(&Rebuilt<'_>),
    ) {
        self.head.emit_alone(buffer, packet, at, self.features, sink);
    }
}

/// Address and length of a buffer: two batches never share both by accident while one is under way.
fn identity(buffer: &[u8]) -> (usize, usize) {
    (buffer.as_ptr() as usize, buffer.len())
}

/// One write to the TUN device: a head, and ranges of the batch's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Rebuilt<'a> {
    pub(super) head: &'a [u8],
    pub(super) buffer: &'a [u8],
    /// One for each packet.
    pub(super) pieces: &'a [Piece],
    /// The number of bytes in front of each piece that belong to its packet and are left out for
    /// the head's.
    pub(super) replaced: usize,
    pub(super) needs: Needs,
    pub(super) vnet_header: bool,
}

impl<'a> Rebuilt<'a> {
    /// The most slices that [`io_slices`](Self::io_slices) gives.
    pub const MAX_SLICES: usize = 1 + MAX_PACKETS;

    /// Number of inner packets in it.
    pub const fn packets(&self) -> usize {
        self.pieces.len()
    }

    /// The most slices that [`io_slices`](Self::io_slices) gives of this one, at most
    /// [`MAX_SLICES`](Self::MAX_SLICES).
    pub const fn max_slices(&self) -> usize {
        1 + self.pieces.len()
    }

    /// The feature that the device needs for it.
    pub const fn needs(&self) -> Needs {
        self.needs
    }

    /// The packets of which this was made, in order, each by itself and with a full checksum: for a
    /// device that refused to take them as they are.
    pub fn each_alone(&self, mut sink: impl FnMut(&Rebuilt<'_>)) {
        let features = TunFeatures { vnet_header: self.vnet_header, ..TunFeatures::default() };
        let mut head = Head::default();
        for piece in self.pieces {
            let at = piece.start as usize - self.replaced;
            let bytes = &self.buffer[at..piece.start as usize + piece.len as usize];
            let packet = Packet::parse(bytes).expect("it was a packet when it was pushed");
            head.emit_alone(self.buffer, &packet, at, features, &mut sink);
        }
    }

    /// The bytes to write, in order; none of the slices is empty.
    pub fn slices(&self) -> impl Iterator<Item = &'a [u8]> {
        let buffer = self.buffer;
        let payloads =
            self.pieces.iter().map(move |piece| &buffer[piece.start as usize..][..piece.len as usize]);
        std::iter::once(self.head).chain(payloads).filter(|slice| !slice.is_empty())
    }

    /// Returns the slices for `writev`.
    pub fn io_slices(&self) -> impl Iterator<Item = IoSlice<'a>> {
        self.slices().map(IoSlice::new)
    }
}

/// Bytes that are made here rather than taken from the buffer: virtio header and rewritten packet
/// headers.
#[derive(Debug)]
struct Head {
    bytes: [u8; MAX_HEAD],
    len: usize,
}

impl Default for Head {
    fn default() -> Self {
        Self { bytes: [0; MAX_HEAD], len: 0 }
    }
}

impl Head {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Headers of the packet that `group` becomes, its checksum left to the kernel.
    fn set_merged(&mut self, group: &Group, buffer: &[u8]) -> Needs {
        let first = group.first(buffer);
        let (version, protocol) = (first.version(), first.protocol());
        let l4_len = group.total_len - group.transport;
        let headers = self.start(VIRTIO_HEADER, &first.bytes()[..group.headers]);
        let mut gso_type = VirtioHeader::GSO_UDP_L4;
        match version {
            Version::V4 => {
                put16(headers, 2, group.total_len as u16);
                let checksum = checksum::ipv4_header(&headers[..group.transport]);
                put16(headers, 10, checksum);
            }
            Version::V6 => put16(headers, 4, (group.total_len - IPV6_HEADER) as u16),
        }
        if protocol == TCP {
            let flags = &mut headers[group.transport + 13];
            *flags |= group.last_flags;
            let ecn = if *flags & tcp_flag::CWR != 0 { VirtioHeader::GSO_ECN } else { 0 };
            gso_type =
                ecn | if version == Version::V4 { VirtioHeader::GSO_TCPV4 } else { VirtioHeader::GSO_TCPV6 };
        } else {
            put16(headers, group.transport + 4, l4_len as u16);
        }
        let header = partial_header(headers, version, protocol, group.transport, l4_len);
        let sizes = VirtioHeader { gso_type, gso_size: (group.gso_size as u16).into(), ..header };
        self.bytes[..VIRTIO_HEADER].copy_from_slice(sizes.as_bytes());
        if protocol == TCP { Needs::Tcp } else { Needs::Udp }
    }

    /// Passes on a packet that is not merged.
    fn emit_alone(
        &mut self,
        buffer: &[u8],
        packet: &Packet<'_>,
        at: usize,
        features: TunFeatures,
        sink: &mut impl FnMut(&Rebuilt<'_>),
    ) {
        let (replaced, needs) = self.set_alone(packet, features);
        let piece = Piece { start: (at + replaced) as u32, len: (packet.total_len() - replaced) as u32 };
        let (head, vnet_header) = (self.bytes(), features.vnet_header);
        sink(&Rebuilt { head, buffer, pieces: &[piece], replaced, needs, vnet_header });
    }

    /// Prepares for a packet that is not merged; returns how many of its bytes the head replaces.
    fn set_alone(&mut self, packet: &Packet<'_>, features: TunFeatures) -> (usize, Needs) {
        let virtio = if features.vnet_header { VIRTIO_HEADER } else { 0 };
        let (Some(at), Some(headers_len), true) =
            (packet.transport_offset(), packet.headers_len(), packet.is_partial())
        else {
            self.start(virtio, &[]);
            return (0, Needs::Nothing);
        };
        let (version, protocol, l4_len) = (packet.version(), packet.protocol(), packet.total_len() - at);
        let headers = self.start(virtio, &packet.bytes()[..headers_len]);
        if features.vnet_header && features.checksum {
            let header = partial_header(headers, version, protocol, at, l4_len);
            self.bytes[..VIRTIO_HEADER].copy_from_slice(header.as_bytes());
            return (headers_len, Needs::Checksum);
        }
        checksum::fill_split(headers, &packet.bytes()[headers_len..], version, protocol, at);
        (headers_len, Needs::Nothing)
    }

    /// Begins again with an empty virtio header of `virtio` bytes and a copy of `headers`, which it
    /// returns without the partial-checksum bit.
    fn start(&mut self, virtio: usize, headers: &[u8]) -> &mut [u8] {
        self.len = virtio + headers.len();
        self.bytes[..virtio].fill(0);
        let copy = &mut self.bytes[virtio..self.len];
        copy.copy_from_slice(headers);
        if let Some(first) = copy.first_mut() {
            *first &= !PARTIAL_CHECKSUM;
        }
        copy
    }
}

/// Puts the sum of the pseudo header into the checksum field and makes the virtio header by which
/// the kernel is to complete it.
fn partial_header(
    headers: &mut [u8],
    version: Version,
    protocol: u8,
    at: usize,
    l4_len: usize,
) -> VirtioHeader {
    let field = checksum::field_offset(protocol).expect("only TCP and UDP packets have partial checksums");
    let pseudo = checksum::pseudo_header(headers, version, protocol, l4_len).fold();
    put16(headers, at + field, pseudo);
    VirtioHeader {
        flags: VirtioHeader::NEEDS_CSUM,
        hdr_len: (headers.len() as u16).into(),
        csum_start: (at as u16).into(),
        csum_offset: (field as u16).into(),
        ..VirtioHeader::default()
    }
}
