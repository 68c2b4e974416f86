//! Changes that a router and the end of a tunnel make to the header of a packet that has been
//! checked.

use super::{Version, be16, put16};
use crate::checksum;
use crate::ecn::{self, Ecn};

/// Takes one from the time to live or hop limit of a checked packet, whose IPv4 header checksum
/// follows (RFC 1624). Returns whether any is left; if not, the packet stays as it is.
#[inline]
pub fn decrement_hop_limit(packet: &mut [u8], version: Version) -> bool {
    match version {
        Version::V4 => {
            if packet[8] <= 1 {
                return false;
            }
            let old = be16(packet, 8);
            packet[8] -= 1;
            let sum = checksum::update(be16(packet, 10), old, be16(packet, 8));
            put16(packet, 10, sum);
        }
        Version::V6 => {
            if packet[7] <= 1 {
                return false;
            }
            packet[7] -= 1;
        }
    }
    true
}

/// Sets the congestion codepoint of a checked packet, whose IPv4 header checksum follows (RFC
/// 1624).
#[inline]
pub fn set_ecn(packet: &mut [u8], version: Version, ecn: Ecn) {
    match version {
        Version::V4 => {
            let old = be16(packet, 0);
            packet[1] = (packet[1] & !ecn::MASK) | ecn as u8;
            let sum = checksum::update(be16(packet, 10), old, be16(packet, 0));
            put16(packet, 10, sum);
        }
        // The traffic class lies across the first two bytes.
        Version::V6 => packet[1] = (packet[1] & !(ecn::MASK << 4)) | (ecn as u8) << 4,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::PARTIAL_CHECKSUM;

    proptest! {
        #[test]
        fn the_header_checksum_stays_right_for_every_mark(header: [u8; 20], partial: bool, class: u8) {
            let mut header = with_checksum(header, partial);
            let before = header;
            set_ecn(&mut header, Version::V4, Ecn::of(class));
            prop_assert_eq!(header[1], before[1] & !3 | class & 3);
            prop_assert_eq!((header[0], &header[2..10], &header[12..]), (before[0], &before[2..10], &before[12..]));
            header[0] = 0x45;
            prop_assert_eq!(checksum::Sum::default().bytes(&header).fold(), 0xFFFF);
        }

        #[test]
        fn the_header_checksum_stays_right(header: [u8; 20], partial: bool) {
            let mut header = with_checksum(header, partial);
            let before = header;
            let left = decrement_hop_limit(&mut header, Version::V4);
            prop_assert_eq!(left, before[8] > 1);
            if left {
                prop_assert_eq!(header[8], before[8] - 1);
                header[0] = 0x45;
                prop_assert_eq!(checksum::Sum::default().bytes(&header).fold(), 0xFFFF);
            } else {
                prop_assert_eq!(header, before);
            }
        }
    }

    fn with_checksum(mut header: [u8; 20], partial: bool) -> [u8; 20] {
        header[0] = 0x45;
        let sum = checksum::ipv4_header(&header);
        put16(&mut header, 10, sum);
        if partial {
            header[0] |= PARTIAL_CHECKSUM;
        }
        header
    }

    #[test]
    fn only_the_mark_of_ipv6_changes() {
        for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
            let mut packet = [0x6F, 0xFF, 0xFF, 0xFF];
            set_ecn(&mut packet, Version::V6, ecn);
            assert_eq!(packet, [0x6F, 0xCF | (ecn as u8) << 4, 0xFF, 0xFF]);
        }
    }

    #[test]
    fn a_hop_limit_ends_at_one() {
        for (limit, left) in [(0, false), (1, false), (2, true), (255, true)] {
            let mut packet = [0; 40];
            packet[7] = limit;
            assert_eq!(decrement_hop_limit(&mut packet, Version::V6), left);
            assert_eq!(packet[7], if left { limit - 1 } else { limit });
        }
    }
}
