//! Segmentation and checksum offload between a TUN device and the tunnel (PROTOCOL §8.2).
//!
//! Towards the tunnel a [`Slicer`] cuts a super-packet of the kernel into self-contained inner
//! packets, in general without computing a transport checksum. Towards the TUN device a
//! [`Rebuilder`] merges runs of inner packets into super-packets by the rules of generic receive
//! offload.
//!
//! INVARIANTS: every inner packet is complete in itself, so that a lost datagram costs one packet.
//! Nothing in a virtio header that goes to the kernel comes from the peer: it is derived from the
//! parsed packet. The kernel fills in a checksum only if the peer declared it unfilled inside an
//! authenticated datagram, or if it was verified here.
//!
//! This module must not know sessions, keys or devices.

mod group;
mod held;
mod rebuilder;
mod slicer;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use held::Held;
pub use rebuilder::{Needs, Rebuilder, Rebuilt, TunFeatures};
pub use slicer::{PeerFeatures, Slicer};

/// Length of the header in front of each packet of a TUN device that was opened with
/// `IFF_VNET_HDR`.
pub const VIRTIO_HEADER: usize = size_of::<VirtioHeader>();

/// `struct virtio_net_hdr` (virtio 1.2, section 5.1.6), as a TUN device passes it: without a buffer
/// count, and little-endian. A little-endian machine's TUN device does so by itself; on a
/// big-endian one the device has to be switched with `TUNSETVNETLE`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct VirtioHeader {
    /// Bits [`NEEDS_CSUM`](Self::NEEDS_CSUM) and others.
    pub flags: u8,
    /// How to cut the packet: [`GSO_NONE`](Self::GSO_NONE), [`GSO_TCPV4`](Self::GSO_TCPV4) and so
    /// on.
    pub gso_type: u8,
    /// Length of all headers, as the sender of this header believes; never relied upon here.
    pub hdr_len: U16,
    /// Payload bytes of each slice.
    pub gso_size: U16,
    /// Where the bytes begin that the checksum covers.
    pub csum_start: U16,
    /// Where the checksum field is, counted from `csum_start`.
    pub csum_offset: U16,
}

const _: () = assert!(size_of::<VirtioHeader>() == 10);

impl VirtioHeader {
    /// Flag: the checksum field holds the sum of the pseudo header and has to be completed.
    pub const NEEDS_CSUM: u8 = 1;
    /// Not a super-packet.
    pub const GSO_NONE: u8 = 0;
    /// TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// UDP, cut into datagrams (USO).
    pub const GSO_UDP_L4: u8 = 5;
    /// Bit added to a TCP type: the first slice, and only that, carries CWR.
    pub const GSO_ECN: u8 = 0x80;

    /// Splits what a TUN device delivered into header and packet.
    pub fn split(bytes: &[u8]) -> Result<(Self, &[u8]), OffloadError> {
        Self::read_from_prefix(bytes).map_err(|_| OffloadError::Truncated)
    }
}

/// The error of a packet from the TUN device that can't be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum OffloadError {
    /// Shorter than a virtio header.
    #[error("the TUN device delivered less than a virtio header")]
    Truncated,
    /// A GSO type that was never asked for, such as IP fragmentation of UDP.
    #[error("unsupported GSO type {0:#04x}: switch that offload of the TUN device off")]
    UnsupportedGso(u8),
    /// The GSO type does not fit the packet's protocol or IP version, or the packet is a fragment.
    #[error("the GSO type does not fit the packet")]
    Mismatch,
    /// A super-packet with a slice size of zero.
    #[error("the GSO size is zero")]
    GsoSize,
    /// The checksum to fill in is not inside the packet, or not that of the transport header.
    #[error("the virtio header names a checksum that is not the packet's")]
    ChecksumPlace,
    /// A super-packet with SYN or RST, which cannot be repeated on several slices.
    #[error("a TCP super-packet with SYN or RST")]
    Flags,
    /// The packet carries the tunnel's partial-checksum bit, which does not exist on a TUN device.
    #[error("a packet from the TUN device carries the partial-checksum bit")]
    AlreadyPartial,
}
