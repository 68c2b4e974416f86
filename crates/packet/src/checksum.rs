//! The Internet checksum (RFC 1071), its incremental update (RFC 1624) and the pseudo headers of
//! TCP and UDP.
//!
//! Sums are kept in the byte order of memory, which one's complement arithmetic allows (RFC 1071,
//! section 2), and turned into a number only when folded. Nothing here may assume that a packet
//! came from a trusted side: the entry points take checked packets or check themselves.

use crate::{PARTIAL_CHECKSUM, Packet, PacketError, TCP, UDP, Version, be16, put16};

/// A running one's complement sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes that begin at an even place of what is summed. An odd last byte counts as if a
    /// zero followed it, so only the last piece may have an odd length.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // Sums of 32-bit words cannot overflow 64 bits before 2^32 words, and compilers turn this
        // loop into vectors.
        let (words, tail) = bytes.as_chunks::<4>();
        let mut sum = self.0;
        for word in words {
            sum += u64::from(u32::from_ne_bytes(*word));
        }
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        Self(sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// Adds a 16-bit field by its value.
    #[inline]
    #[must_use]
    pub fn word(self, value: u16) -> Self {
        Self(self.0 + u64::from(value.to_be()))
    }

    /// The 16-bit one's complement sum: what a partial checksum field holds.
    #[inline]
    #[must_use]
    pub fn fold(self) -> u16 {
        let mut sum = self.0;
        sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
        sum = (sum & 0xFFFF) + (sum >> 16);
        sum = (sum & 0xFFFF) + (sum >> 16);
        sum = (sum & 0xFFFF) + (sum >> 16);
        u16::from_be(sum as u16)
    }

    /// The checksum: the complement of the sum.
    #[inline]
    #[must_use]
    pub fn checksum(self) -> u16 {
        !self.fold()
    }

    /// The checksum for a field in which zero means "none": zero is sent as 0xFFFF (RFC 768).
    #[inline]
    #[must_use]
    pub fn nonzero_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xFFFF,
            checksum => checksum,
        }
    }
}

/// The checksum after a 16-bit field changed from `old` to `new` (RFC 1624, equation 3).
#[inline]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::default().word(!checksum).word(!old).word(new).checksum()
}

/// Sum of the pseudo header that TCP and UDP checksums cover (RFC 9293, section 3.1; RFC 8200,
/// section 8.1), read from the addresses of the IP header at the start of `packet`. `len` is the
/// length of transport header and payload.
#[inline]
pub fn pseudo_header(packet: &[u8], version: Version, protocol: u8, len: usize) -> Sum {
    let addresses = match version {
        Version::V4 => &packet[12..20],
        Version::V6 => &packet[8..40],
    };
    // The length is below 2^17 (an IPv6 packet without jumbo payload), so its upper half is added
    // as a word as well.
    Sum::default().bytes(addresses).word(u16::from(protocol)).word(len as u16).word((len >> 16) as u16)
}

/// Checksum of an IPv4 header, whose own checksum field is left out.
#[inline]
pub fn ipv4_header(header: &[u8]) -> u16 {
    Sum::default().bytes(&header[..10]).bytes(&header[12..]).checksum()
}

/// Where the checksum field lies in the header of `protocol`, if that is TCP or UDP.
#[inline]
pub const fn field_offset(protocol: u8) -> Option<usize> {
    match protocol {
        TCP => Some(16),
        UDP => Some(6),
        _ => None,
    }
}

/// Turns a partial packet into a complete one in place: computes the TCP or UDP checksum and clears
/// the bit. A complete packet stays as it is.
pub fn complete(bytes: &mut [u8]) -> Result<(), PacketError> {
    let packet = Packet::parse(bytes)?;
    if !packet.is_partial() {
        return Ok(());
    }
    let at = packet.transport_offset().ok_or(PacketError::Partial)?;
    let (version, protocol, total_len) = (packet.version(), packet.protocol(), packet.total_len());
    bytes[0] &= !PARTIAL_CHECKSUM;
    fill(&mut bytes[..total_len], version, protocol, at);
    Ok(())
}

/// Computes the TCP or UDP checksum of a packet whose transport header at `at` reaches to its end.
/// Other protocols are left as they are.
///
/// # Panics
/// If the packet ends before the transport header does.
#[inline]
pub fn fill(packet: &mut [u8], version: Version, protocol: u8, at: usize) {
    fill_split(packet, &[], version, protocol, at);
}

/// The checksum of a packet of which `headers`, of even length, lie apart from the rest.
#[inline]
pub(crate) fn fill_split(headers: &mut [u8], rest: &[u8], version: Version, protocol: u8, at: usize) {
    let Some(field) = field_offset(protocol) else { return };
    put16(headers, at + field, 0);
    let len = headers.len() - at + rest.len();
    let sum = pseudo_header(headers, version, protocol, len).bytes(&headers[at..]).bytes(rest);
    let checksum = if protocol == UDP { sum.nonzero_checksum() } else { sum.checksum() };
    put16(headers, at + field, checksum);
}

/// Whether a complete TCP or UDP packet has the right checksum. False for other protocols, for
/// fragments, for partial packets, and for UDP without a checksum: nothing was verified then.
pub fn verify(packet: &Packet<'_>) -> bool {
    let (Some(at), Some(field)) = (packet.transport_offset(), field_offset(packet.protocol())) else {
        return false;
    };
    let bytes = packet.bytes();
    if packet.is_partial() || packet.fragment().is_some() {
        return false;
    }
    let end = if packet.protocol() == UDP { at + usize::from(be16(bytes, at + 4)) } else { bytes.len() };
    if packet.protocol() == UDP && be16(bytes, at + field) == 0 {
        return false;
    }
    pseudo_header(bytes, packet.version(), packet.protocol(), end - at).bytes(&bytes[at..end]).fold()
        == 0xFFFF
}

#[cfg(test)]
mod tests;
