//! Interpretation of IPv4 and IPv6 headers: the only place that walks options and extension
//! headers.
//!
//! The common cases (IPv4 without options, IPv6 without extension headers) touch one header and
//! return; rare ones are in separate functions.

use super::{
    Fragment, IPV4_HEADER, IPV6_HEADER, PARTIAL_CHECKSUM, Packet, PacketError, Shape, TCP, TCP_HEADER, UDP,
    UDP_HEADER, Version, be16, be32,
};

/// The most extension headers that are walked.
const MAX_EXTENSIONS: usize = 8;
/// The most bytes that IPv6 extension headers may take. Hosts may set such limits (RFC 8504,
/// section 5.3).
pub(super) const MAX_EXTENSION_BYTES: usize = 256;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_LOOSE_SOURCE_ROUTE: u8 = 131;
const OPTION_STRICT_SOURCE_ROUTE: u8 = 137;

/// A later fragment below this offset could overwrite the TCP header of the first (RFC 3128), which
/// is at least 20 bytes long; offsets are multiples of 8.
const MIN_LATER_OFFSET: u16 = 24;

#[inline]
pub(super) fn packet(bytes: &[u8]) -> Result<Packet<'_>, PacketError> {
    let first = *bytes.first().ok_or(PacketError::Truncated)?;
    let partial = first & PARTIAL_CHECKSUM != 0;
    let packet = match (first & !PARTIAL_CHECKSUM) >> 4 {
        4 => v4(bytes, partial)?,
        6 => v6(bytes, partial)?,
        _ => return Err(PacketError::Version),
    };
    if partial {
        check_partial(&packet)?;
    }
    Ok(packet)
}

fn v4(bytes: &[u8], partial: bool) -> Result<Packet<'_>, PacketError> {
    let head = bytes.first_chunk::<IPV4_HEADER>().ok_or(PacketError::Truncated)?;
    let header_len = usize::from(head[0] & 0x0F) * 4;
    let total_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    if header_len < IPV4_HEADER || total_len < header_len {
        return Err(PacketError::HeaderLength);
    }
    let bytes = bytes.get(..total_len).ok_or(PacketError::Truncated)?;
    check_v4_addresses([head[12], head[13], head[14], head[15]], [head[16], head[17], head[18], head[19]])?;
    if header_len > IPV4_HEADER {
        check_v4_options(&bytes[IPV4_HEADER..header_len])?;
    }
    let place = u16::from_be_bytes([head[6], head[7]]) & 0x3FFF;
    let protocol = head[9];
    let payload = &bytes[header_len..];
    let fragment = if place == 0 { None } else { Some(v4_fragment(place, payload.len(), protocol)?) };
    let transport = if fragment.is_none_or(Fragment::is_first) {
        check_transport(protocol, payload, fragment)?;
        Some(header_len as u16)
    } else {
        None
    };
    Ok(Packet::from_parts(bytes, Shape { version: Version::V4, protocol, partial, transport, fragment }))
}

fn v6(bytes: &[u8], partial: bool) -> Result<Packet<'_>, PacketError> {
    let head = bytes.first_chunk::<IPV6_HEADER>().ok_or(PacketError::Truncated)?;
    let total_len = IPV6_HEADER + usize::from(u16::from_be_bytes([head[4], head[5]]));
    let bytes = bytes.get(..total_len).ok_or(PacketError::Truncated)?;
    check_v6_addresses(&head[8..24], &head[24..40])?;
    let chain = match head[6] {
        protocol @ (TCP | UDP | super::ICMPV6) => Chain { protocol, at: IPV6_HEADER, fragment: None },
        next => walk_extensions(bytes, next)?,
    };
    let Chain { protocol, at, fragment } = chain;
    let transport = if fragment.is_none_or(Fragment::is_first) {
        check_transport(protocol, &bytes[at..], fragment)?;
        Some(at as u16)
    } else {
        None
    };
    Ok(Packet::from_parts(bytes, Shape { version: Version::V6, protocol, partial, transport, fragment }))
}

/// Where the walk through the extension headers ended.
struct Chain {
    protocol: u8,
    at: usize,
    fragment: Option<Fragment>,
}

fn walk_extensions(bytes: &[u8], first: u8) -> Result<Chain, PacketError> {
    let mut chain = Chain { protocol: first, at: IPV6_HEADER, fragment: None };
    for _ in 0..=MAX_EXTENSIONS {
        let rest = &bytes[chain.at..];
        // Hop-by-hop options are read by every router, so they may only come first (RFC 8200,
        // section 4.1).
        if chain.protocol == HOP_BY_HOP && chain.at != IPV6_HEADER {
            return Err(PacketError::Extensions);
        }
        let Some(len) = extension_len(chain.protocol, rest)? else { return Ok(chain) };
        let header = rest.get(..len).ok_or(PacketError::Extensions)?;
        if chain.protocol == ROUTING {
            check_routing(header)?;
        }
        if chain.protocol == FRAGMENT {
            if chain.fragment.is_some() {
                return Err(PacketError::Extensions);
            }
            chain.fragment = Some(v6_fragment(header, rest.len() - len)?);
        }
        chain.protocol = header[0];
        chain.at += len;
        if chain.at > IPV6_HEADER + MAX_EXTENSION_BYTES {
            return Err(PacketError::Extensions);
        }
        if chain.fragment.is_some_and(|fragment| !fragment.is_first()) {
            // The next bytes are the middle of something: they must not be read as headers.
            return Ok(chain);
        }
    }
    Err(PacketError::Extensions)
}

/// Length of the extension header that `rest` begins with; `None` if the protocol is none.
fn extension_len(protocol: u8, rest: &[u8]) -> Result<Option<usize>, PacketError> {
    Ok(Some(match protocol {
        HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING => (usize::from(byte(rest, 1)?) + 1) * 8,
        AUTHENTICATION => (usize::from(byte(rest, 1)?) + 2) * 4,
        FRAGMENT => 8,
        _ => return Ok(None),
    }))
}

/// The number that all fragments of one packet have; `None` if this is no fragment.
pub(super) fn identification(packet: &Packet<'_>) -> Option<u32> {
    packet.fragment()?;
    match packet.version() {
        Version::V4 => Some(be16(packet.bytes, 4).into()),
        Version::V6 => {
            let (mut protocol, mut rest) = (packet.bytes[6], &packet.bytes[IPV6_HEADER..]);
            while protocol != FRAGMENT {
                let len = extension_len(protocol, rest).ok()??;
                (protocol, rest) = (rest[0], rest.get(len..)?);
            }
            Some(be32(rest, 4))
        }
    }
}

fn byte(bytes: &[u8], at: usize) -> Result<u8, PacketError> {
    bytes.get(at).copied().ok_or(PacketError::Extensions)
}

/// A routing header with stations left sends the packet on to an address that no policy has seen.
/// Type 0 is forbidden altogether (RFC 5095).
fn check_routing(header: &[u8]) -> Result<(), PacketError> {
    let (kind, segments_left) = (header[2], header[3]);
    if kind == 0 || segments_left != 0 { Err(PacketError::SourceRouting) } else { Ok(()) }
}

fn v6_fragment(header: &[u8], payload: usize) -> Result<Fragment, PacketError> {
    let place = be16(header, 2);
    let fragment = Fragment { offset: place & 0xFFF8, more: place & 1 != 0 };
    check_fragment(fragment, payload)?;
    // The fragmentable part may begin with extension headers, so the rule cannot depend on the
    // protocol.
    if !fragment.is_first() && fragment.offset < MIN_LATER_OFFSET {
        return Err(PacketError::Fragment);
    }
    Ok(fragment)
}

fn v4_fragment(place: u16, payload: usize, protocol: u8) -> Result<Fragment, PacketError> {
    let fragment = Fragment { offset: (place & 0x1FFF) * 8, more: place & 0x2000 != 0 };
    check_fragment(fragment, payload)?;
    if protocol == TCP && !fragment.is_first() && fragment.offset < MIN_LATER_OFFSET {
        return Err(PacketError::Fragment);
    }
    Ok(fragment)
}

fn check_fragment(fragment: Fragment, payload: usize) -> Result<(), PacketError> {
    let beyond = usize::from(fragment.offset) + payload > usize::from(u16::MAX);
    let ragged = fragment.more && !payload.is_multiple_of(8);
    if beyond || ragged || payload == 0 { Err(PacketError::Fragment) } else { Ok(()) }
}

/// TCP and UDP headers must be whole: a first fragment that cuts them would hide ports and flags
/// from the policy (RFC 1858, RFC 7112).
#[inline]
fn check_transport(protocol: u8, payload: &[u8], fragment: Option<Fragment>) -> Result<(), PacketError> {
    let error = if fragment.is_some() { PacketError::Fragment } else { PacketError::Transport };
    match protocol {
        TCP => {
            let head = payload.first_chunk::<TCP_HEADER>().ok_or(error)?;
            let len = usize::from(head[12] >> 4) * 4;
            if len < TCP_HEADER || len > payload.len() { Err(error) } else { Ok(()) }
        }
        UDP => {
            let head = payload.first_chunk::<UDP_HEADER>().ok_or(error)?;
            let len = usize::from(u16::from_be_bytes([head[4], head[5]]));
            let beyond = len > payload.len() && !fragment.is_some_and(|fragment| fragment.more);
            if len < UDP_HEADER || beyond { Err(error) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// A partial checksum covers the transport header and all that follows, so both must be there and
/// agree in length.
fn check_partial(packet: &Packet<'_>) -> Result<(), PacketError> {
    let at = packet.transport_offset().ok_or(PacketError::Partial)?;
    let whole = packet.fragment().is_none();
    let fits = match packet.protocol() {
        TCP => true,
        UDP => usize::from(be16(packet.bytes, at + 4)) == packet.bytes.len() - at,
        _ => false,
    };
    if whole && fits { Ok(()) } else { Err(PacketError::Partial) }
}

#[inline]
fn check_v4_addresses(src: [u8; 4], dst: [u8; 4]) -> Result<(), PacketError> {
    const BROADCAST: [u8; 4] = [255; 4];
    if matches!(src[0], 0 | 127 | 224..=239) || src == BROADCAST {
        return Err(PacketError::Source);
    }
    if matches!(dst[0], 0 | 127) { Err(PacketError::Destination) } else { Ok(()) }
}

#[inline]
fn check_v6_addresses(src: &[u8], dst: &[u8]) -> Result<(), PacketError> {
    if src[0] == 0xFF || is_special_v6(src) {
        return Err(PacketError::Source);
    }
    if is_special_v6(dst) { Err(PacketError::Destination) } else { Ok(()) }
}

/// Unspecified, loopback, IPv4-compatible and IPv4-mapped addresses: all have ten zero bytes in
/// front.
#[inline]
fn is_special_v6(address: &[u8]) -> bool {
    address[..10] == [0; 10] && matches!([address[10], address[11]], [0, 0] | [0xFF, 0xFF])
}

fn check_v4_options(mut options: &[u8]) -> Result<(), PacketError> {
    while let Some(&kind) = options.first() {
        let len = match kind {
            OPTION_END => return Ok(()),
            OPTION_NOP => 1,
            OPTION_LOOSE_SOURCE_ROUTE | OPTION_STRICT_SOURCE_ROUTE => return Err(PacketError::SourceRouting),
            _ => usize::from(*options.get(1).ok_or(PacketError::Options)?).max(1),
        };
        if kind != OPTION_NOP && len < 2 {
            return Err(PacketError::Options);
        }
        options = options.get(len..).ok_or(PacketError::Options)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
