//! The outer header of a data datagram (PROTOCOL §7) and the doors of the port (PROTOCOL §2).
//!
//! Raw bytes stop here: what `parse` returns has been checked. Keys and sessions are unknown here.

use minicbor::{Decode, Encode};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes in front of the ciphertext; all of them are authenticated.
pub const HEADER_LEN: usize = 16;
/// The first byte of a data datagram.
pub const DATA: u8 = 0x80;
/// The flag of [`Header::confirm`].
const CONFIRM: u8 = 1;
/// The largest payload of a UDP datagram over IPv4.
pub const MAX_DATAGRAM: usize = 65_507;
/// Lanes from a gateway at most, and so shards of a gateway.
pub const MAX_GATEWAY_LANES: usize = 64;
/// Lanes from a client at most.
pub const MAX_CLIENT_LANES: usize = 16;

/// The channel that a datagram belongs to (PROTOCOL §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketClass {
    /// The control channel.
    Quic,
    /// A data datagram, or one of the types reserved next to it.
    Data,
    /// A message of a WireGuard handshake, of the types 1 to 3; unknown where WireGuard is off.
    WireGuardHandshake,
    /// WireGuard's data, of the type 4; unknown where WireGuard is off.
    WireGuardData,
    /// From another gateway of the fleet, of the type 5; unknown to a gateway of none.
    Fleet,
    /// None of these: to be dropped.
    Unknown,
}

impl PacketClass {
    /// Decides by the first byte alone, and for the types 1 to 5 by the first four.
    #[inline]
    #[must_use]
    pub fn of(datagram: &[u8]) -> Self {
        match datagram {
            [byte, ..] if byte & 0x40 != 0 => Self::Quic,
            [byte, ..] if byte & 0x80 != 0 => Self::Data,
            [1..=3, 0, 0, 0, ..] => Self::WireGuardHandshake,
            [4, 0, 0, 0, ..] => Self::WireGuardData,
            [5, 0, 0, 0, ..] => Self::Fleet,
            _ => Self::Unknown,
        }
    }
}

/// A receiver index: which receiver, epoch and shard a datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct Index(#[n(0)] pub u32);

impl Index {
    /// The gateway shard, of `shards`, that owns this index (PROTOCOL §7.1).
    #[must_use]
    pub const fn shard(self, shards: usize) -> usize {
        (self.0 & 0xFF) as usize % shards
    }
}

/// The header as it stands on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct Layout {
    kind: u8,
    lane: u8,
    flags: u8,
    reserved: u8,
    index: U32,
    counter: U64,
}

const _: () = assert!(size_of::<Layout>() == HEADER_LEN);

/// The checked header of a data datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's lane.
    pub lane: u8,
    /// Whether a datagram of almost the size in use has just come the other way (PROTOCOL §13.2).
    pub confirm: bool,
    /// The receiver's index.
    pub index: Index,
    /// The datagram's number in its lane.
    pub counter: u64,
}

/// The error of bytes that are no data datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Shorter than a header.
    #[error("shorter than a data header")]
    Truncated,
    /// Not of type 0x80.
    #[error("not a data datagram")]
    Kind,
    /// The reserved bits are not zero.
    #[error("reserved bits are not zero")]
    Reserved,
}

impl Header {
    /// Reads the header in front of `datagram`.
    ///
    /// # Errors
    /// If the bytes are too few, of another type, or use reserved bits.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<Self, HeaderError> {
        let (layout, _) = Layout::ref_from_prefix(datagram).map_err(|_| HeaderError::Truncated)?;
        if layout.kind != DATA {
            return Err(HeaderError::Kind);
        }
        if layout.flags & !CONFIRM != 0 || layout.reserved != 0 {
            return Err(HeaderError::Reserved);
        }
        Ok(Self {
            lane: layout.lane,
            confirm: layout.flags & CONFIRM != 0,
            index: Index(layout.index.get()),
            counter: layout.counter.get(),
        })
    }

    /// The header's bytes.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let layout = Layout {
            kind: DATA,
            lane: self.lane,
            flags: if self.confirm { CONFIRM } else { 0 },
            reserved: 0,
            index: U32::new(self.index.0),
            counter: U64::new(self.counter),
        };
        zerocopy::transmute!(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layout_is_the_published_one() {
        let header =
            Header { lane: 3, confirm: false, index: Index(0x0403_0201), counter: 0x0807_0605_0403_0201 };
        for (confirm, flags) in [(false, 0), (true, 1)] {
            let header = Header { confirm, ..header };
            let bytes = [0x80, 3, flags, 0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8];
            assert_eq!(header.to_bytes(), bytes);
            assert_eq!(Header::parse(&bytes), Ok(header));
        }
        assert_eq!(header.index.shard(4), 1);
    }

    #[test]
    fn refuses_what_is_not_a_data_datagram() {
        let good = Header { lane: 0, confirm: false, index: Index(7), counter: 0 }.to_bytes();
        assert_eq!(Header::parse(&good[..15]), Err(HeaderError::Truncated));
        for kind in [0x00, 0x04, 0x40, 0x81, 0xBF, 0xC0] {
            let mut bad = good;
            bad[0] = kind;
            assert_eq!(Header::parse(&bad), Err(HeaderError::Kind));
        }
        for (at, bit) in (1..8).map(|bit| (2, bit)).chain((0..8).map(|bit| (3, bit))) {
            let mut bad = good;
            bad[at] = 1 << bit;
            assert_eq!(Header::parse(&bad), Err(HeaderError::Reserved));
        }
    }

    #[test]
    fn every_first_byte_has_a_packet_class() {
        for byte in 0..=255u8 {
            let want = match byte {
                0x40..=0x7F | 0xC0..=0xFF => PacketClass::Quic,
                0x80..=0xBF => PacketClass::Data,
                _ => PacketClass::Unknown,
            };
            assert_eq!(PacketClass::of(&[byte]), want);
        }
        assert_eq!(PacketClass::of(&[]), PacketClass::Unknown);
    }

    proptest! {
        #[test]
        fn types_of_four_bytes_take_only_what_was_unknown(
            first in prop_oneof![0..8u8, any::<u8>()], rest in proptest::collection::vec(0..2u8, 0..40)
        ) {
            let datagram: Vec<u8> = core::iter::once(first).chain(rest.iter().copied()).collect();
            let zeros = rest.len() >= 3 && rest[..3] == [0; 3];
            let want = match first {
                0x40..=0x7F | 0xC0..=0xFF => PacketClass::Quic,
                0x80..=0xBF => PacketClass::Data,
                1..=3 if zeros => PacketClass::WireGuardHandshake,
                4 if zeros => PacketClass::WireGuardData,
                5 if zeros => PacketClass::Fleet,
                _ => PacketClass::Unknown,
            };
            prop_assert_eq!(PacketClass::of(&datagram), want);
        }

        #[test]
        fn parse_undoes_to_bytes(lane: u8, confirm: bool, index: u32, counter: u64) {
            let header = Header { lane, confirm, index: Index(index), counter };
            prop_assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert_eq!(&header.to_bytes()[..], &bytes[..HEADER_LEN]);
            }
        }
    }
}
