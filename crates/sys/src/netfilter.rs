//! The frame of netfilter's netlink messages: headers and attributes. Connection tracking and
//! nftables speak it.
//!
//! INVARIANT: bytes that are no message give none, and whatever is cut ends the list.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};

/// Length of netlink's own header.
pub(super) const HEADER: usize = 16;
/// Length of the header that all of netfilter's messages begin with.
pub(super) const NETFILTER_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;
/// Flags in the type of an attribute.
const FLAGS: u16 = 0xc000;

/// Opens a socket of the calling thread's network namespace.
pub(super) fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))?)
}

/// The messages of a datagram: type and body.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// One attribute of a message.
pub(super) struct Attribute<'a> {
    pub(super) kind: u16,
    pub(super) value: &'a [u8],
    /// With its header, padded.
    pub(super) whole: &'a [u8],
}

/// The attributes in `bytes`, as far as they are whole.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & !FLAGS;
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        let padded = length.next_multiple_of(4).min(bytes.len());
        let whole = bytes.get(..padded)?;
        bytes = bytes.get(padded..)?;
        Some(Attribute { kind, value, whole })
    })
}
