use proptest::prelude::*;

use super::*;

/// RFC 1071 as it is written: 16-bit words, end-around carry.
fn plain(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

/// A UDP packet over IPv4; its checksum is filled in by the tests.
const UDP_PACKET: [u8; 32] = [
    0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0xB2, 0xC7, 192, 168, 0, 1, 192, 168, 0, 2, // IP
    0x04, 0xD2, 0x16, 0x2E, 0, 12, 0, 0, 0xDE, 0xAD, 0xBE, 0xEF, // UDP
];

#[test]
fn the_example_of_rfc_1071() {
    let sum = Sum::default().bytes(&[0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7]);
    assert_eq!(sum.fold(), 0xDDF2);
    assert_eq!(sum.checksum(), 0x220D);
}

#[test]
fn the_example_of_rfc_1624() {
    assert_eq!(update(0xDD2F, 0x5555, 0x3285), 0x0000);
}

#[test]
fn a_known_ipv4_header() {
    let header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xB8, 0x61, 192, 168, 0, 1, 192, 168, 0, 199];
    assert_eq!(ipv4_header(&header), 0xB861);
}

#[test]
fn completing_fills_the_checksum_and_clears_the_bit() {
    let mut bytes = UDP_PACKET;
    bytes[0] |= PARTIAL_CHECKSUM;
    bytes[26..28].copy_from_slice(&[0xAB, 0xCD]);
    complete(&mut bytes).unwrap();
    let packet = Packet::parse(&bytes).unwrap();
    assert!(!packet.is_partial());
    assert!(verify(&packet));
    let mut with_pseudo_header = vec![192, 168, 0, 1, 192, 168, 0, 2, 0, 17, 0, 12];
    with_pseudo_header.extend(&bytes[20..]);
    assert_eq!(plain(&with_pseudo_header), 0xFFFF);
}

#[test]
fn a_complete_packet_is_left_alone() {
    let mut bytes = UDP_PACKET;
    complete(&mut bytes).unwrap();
    assert_eq!(bytes, UDP_PACKET);
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_ones() {
    let mut bytes = UDP_PACKET;
    bytes[0] |= PARTIAL_CHECKSUM;
    complete(&mut bytes).unwrap();
    // Move the checksum into the payload: the sum of everything else is then all ones already.
    let checksum = be16(&bytes, 26);
    let payload = Sum::default().word(be16(&bytes, 28)).word(checksum).fold();
    put16(&mut bytes, 28, payload);
    bytes[0] |= PARTIAL_CHECKSUM;
    complete(&mut bytes).unwrap();
    assert_eq!(be16(&bytes, 26), 0xFFFF);
    assert!(verify(&Packet::parse(&bytes).unwrap()));
    put16(&mut bytes, 26, 0);
    assert!(!verify(&Packet::parse(&bytes).unwrap()), "no checksum, though the sum is right");
}

#[test]
fn nothing_is_verified_without_a_checksum() {
    let mut bytes = UDP_PACKET;
    put16(&mut bytes, 26, 0);
    assert!(!verify(&Packet::parse(&bytes).unwrap()));
    bytes[0] |= PARTIAL_CHECKSUM;
    complete(&mut bytes).unwrap();
    bytes[0] |= PARTIAL_CHECKSUM;
    assert!(!verify(&Packet::parse(&bytes).unwrap()));
    bytes[0] &= !PARTIAL_CHECKSUM;
    assert!(verify(&Packet::parse(&bytes).unwrap()));
    bytes[31] ^= 1;
    assert!(!verify(&Packet::parse(&bytes).unwrap()));
}

proptest! {
    #[test]
    fn sums_agree_with_the_plain_ones(bytes in prop::collection::vec(any::<u8>(), 0..3000), split: prop::sample::Index) {
        let expected = plain(&bytes);
        prop_assert_eq!(Sum::default().bytes(&bytes).fold(), expected);
        let at = if bytes.is_empty() { 0 } else { split.index(bytes.len()) & !1 };
        prop_assert_eq!(Sum::default().bytes(&bytes[..at]).bytes(&bytes[at..]).fold(), expected);
    }

    #[test]
    fn an_updated_checksum_equals_a_full_sum(mut bytes in prop::collection::vec(any::<u8>(), 4..64), new: u16, at: prop::sample::Index) {
        bytes.truncate(bytes.len() & !1);
        bytes[0] |= 1; // All-zero data is the one case in which the two zeros of one's complement differ.
        let at = (at.index(bytes.len() - 2) & !1) + 2;
        let at = at.min(bytes.len() - 2);
        let before = Sum::default().bytes(&bytes).checksum();
        let old = be16(&bytes, at);
        put16(&mut bytes, at, new);
        prop_assert_eq!(update(before, old, new), Sum::default().bytes(&bytes).checksum());
    }

    #[test]
    fn completing_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        if let Some(first) = bytes.first_mut() {
            *first = (*first & 0x2F) | 0xC0;
        }
        if complete(&mut bytes).is_ok() {
            prop_assert!(!Packet::parse(&bytes).unwrap().is_partial());
        }
    }
}
