//! Clamping the maximum segment size that TCP peers announce to each other.

use crate::checksum;
use crate::{IPV4_HEADER, IPV6_HEADER, Packet, PacketError, TCP_HEADER, Version, be16, put16, tcp_flag};

const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_MSS: u8 = 2;

/// Lowers the MSS option of a TCP SYN so that its answers fit `inner_mtu`, in place. Other packets,
/// and those whose MSS is small enough or absent, stay as they are. Returns whether something
/// changed.
///
/// A complete checksum is updated (RFC 1624); a partial one needs nothing.
pub fn clamp_mss(bytes: &mut [u8], inner_mtu: u16) -> Result<bool, PacketError> {
    let packet = Packet::parse(bytes)?;
    let Some(tcp) = packet.tcp().filter(|tcp| tcp.flags() & tcp_flag::SYN != 0) else { return Ok(false) };
    let ip_header = match packet.version() {
        Version::V4 => IPV4_HEADER,
        Version::V6 => IPV6_HEADER,
    };
    let (Some(at), Some(option)) = (packet.transport_offset(), mss_option(tcp.options())) else {
        return Ok(false);
    };
    let value_at = at + TCP_HEADER + option;
    let (old, new) = (be16(bytes, value_at), inner_mtu.saturating_sub((ip_header + TCP_HEADER) as u16));
    if old <= new {
        return Ok(false);
    }
    let partial = packet.is_partial();
    put16(bytes, value_at, new);
    if !partial {
        // At an odd place the two bytes belong to different words, which is the same as swapping
        // them.
        let swap = |value: u16| if (value_at - at).is_multiple_of(2) { value } else { value.swap_bytes() };
        let checksum = checksum::update(be16(bytes, at + 16), swap(old), swap(new));
        put16(bytes, at + 16, checksum);
    }
    Ok(true)
}

/// Where the value of the MSS option is among the option bytes.
fn mss_option(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < options.len() {
        let len = match options[at] {
            OPTION_END => return None,
            OPTION_NOP => 1,
            kind => {
                let len = usize::from(*options.get(at + 1)?);
                if len < 2 || at + len > options.len() {
                    return None;
                }
                if kind == OPTION_MSS {
                    return (len == 4).then_some(at + 2);
                }
                len
            }
        };
        at += len;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::PARTIAL_CHECKSUM;

    /// A SYN with `options`, with a right checksum.
    fn syn(v6: bool, flags: u8, options: &[u8]) -> Vec<u8> {
        let len = (20 + options.len()) as u8;
        let mut bytes = if v6 {
            let mut bytes = vec![0x60, 0, 0, 0, 0, len, 6, 64];
            bytes.extend([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            bytes.extend([0xFD, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9]);
            bytes
        } else {
            vec![0x45, 0, 0, 20 + len, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 8, 0, 2, 10, 1, 0, 9]
        };
        let at = bytes.len();
        bytes.extend([1, 2, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, (len / 4) << 4, flags, 0xFF, 0xFF, 0, 0, 0, 0]);
        bytes.extend(options);
        let version = if v6 { Version::V6 } else { Version::V4 };
        checksum::fill(&mut bytes, version, crate::TCP, at);
        bytes
    }

    fn mss_of(bytes: &[u8]) -> Option<u16> {
        let tcp = Packet::parse(bytes).unwrap().tcp().unwrap();
        mss_option(tcp.options()).map(|at| be16(tcp.options(), at))
    }

    #[test]
    fn a_large_mss_is_lowered() {
        for (v6, expected) in [(false, 1360), (true, 1340)] {
            for options in
                [&[2, 4, 0x05, 0xB4][..], &[1, 2, 4, 0x05, 0xB4, 1, 1, 1], &[4, 2, 2, 4, 0x05, 0xB4, 1, 0]]
            {
                let mut bytes = syn(v6, tcp_flag::SYN, options);
                assert_eq!(clamp_mss(&mut bytes, 1400), Ok(true));
                assert_eq!(mss_of(&bytes), Some(expected));
                assert!(checksum::verify(&Packet::parse(&bytes).unwrap()), "{options:?}");
                assert_eq!(clamp_mss(&mut bytes, 1400), Ok(false));
            }
        }
    }

    #[test]
    fn the_answer_to_a_syn_is_clamped_too() {
        let mut bytes = syn(false, tcp_flag::SYN | tcp_flag::ACK, &[2, 4, 0x05, 0xB4]);
        assert_eq!(clamp_mss(&mut bytes, 1400), Ok(true));
    }

    #[test]
    fn a_partial_checksum_is_left_alone() {
        let mut bytes = syn(false, tcp_flag::SYN, &[2, 4, 0x05, 0xB4]);
        bytes[0] |= PARTIAL_CHECKSUM;
        let before = be16(&bytes, 36);
        assert_eq!(clamp_mss(&mut bytes, 1400), Ok(true));
        assert_eq!((mss_of(&bytes), be16(&bytes, 36)), (Some(1360), before));
    }

    #[test]
    fn everything_else_stays() {
        let untouched = [
            syn(false, tcp_flag::SYN, &[2, 4, 0x02, 0x18]),
            syn(false, tcp_flag::ACK, &[2, 4, 0x05, 0xB4]),
            syn(false, tcp_flag::SYN, &[]),
            syn(false, tcp_flag::SYN, &[0, 2, 4, 5]),
            syn(false, tcp_flag::SYN, &[2, 3, 5, 0]),
            syn(false, tcp_flag::SYN, &[2, 0, 5, 0]),
            syn(false, tcp_flag::SYN, &[1, 1, 2, 4]),
        ];
        for bytes in untouched {
            let mut clamped = bytes.clone();
            assert_eq!(clamp_mss(&mut clamped, 1400), Ok(false));
            assert_eq!(clamped, bytes);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_options_never_panic(options in prop::collection::vec(any::<u8>(), 0..10), v6: bool, mtu: u16) {
            let options = options.concat4();
            let mut bytes = syn(v6, tcp_flag::SYN, &options);
            clamp_mss(&mut bytes, mtu).unwrap();
            prop_assert!(checksum::verify(&Packet::parse(&bytes).unwrap()));
        }
    }

    trait Concat4 {
        fn concat4(&self) -> Vec<u8>;
    }

    impl Concat4 for Vec<u8> {
        /// Four option bytes from each byte, so that lengths stay whole words.
        fn concat4(&self) -> Vec<u8> {
            self.iter().flat_map(|byte| [byte & 3, byte >> 5, byte & 7, *byte]).collect()
        }
    }
}
