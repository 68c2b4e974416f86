//! The kernel's list of tracked flows, through ctnetlink: forgetting those that clients have begun.
//!
//! INVARIANT: only flows whose first packet came from the named network are touched; those of the machine and of others go on.
//! This module must not know why flows are to be forgotten.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ipnet::Ipv4Net;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, netlink, send, socket_with};

/// Headers of netlink and of netfilter's messages.
const HEADER: usize = 16;
const NETFILTER_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;
/// Netlink's own messages.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NFNL_SUBSYS_CTNETLINK`, with `IPCTNL_MSG_CT_GET` and `IPCTNL_MSG_CT_DELETE`.
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
/// Attributes: `CTA_TUPLE_ORIG`, in it `CTA_TUPLE_IP`, in it `CTA_IP_V4_SRC`; beside the first `CTA_ID` and `CTA_ZONE`.
const ORIGINAL: u16 = 1;
const ADDRESSES: u16 = 1;
const SOURCE_V4: u16 = 1;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// Flags in the type of an attribute.
const FLAGS: u16 = 0xc000;
/// Limit for the kernel to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// More than any part of a list has.
const BUFFER: usize = 64 << 10;
/// The list may change while it is read, so it is read until nothing is found, but not for ever.
const ROUNDS: usize = 5;

/// Forgets each flow that was begun from an address of this network; how many there were. Packets that still come for one
/// are treated as those of a new one.
///
/// # Errors
/// If the kernel has no ctnetlink, or refuses.
pub fn forget(network: Ipv4Net) -> io::Result<usize> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::NETFILTER))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    let mut forgotten = 0;
    for _ in 0..ROUNDS {
        let flows = flows(&socket, network)?;
        if flows.is_empty() {
            return Ok(forgotten);
        }
        for flow in flows {
            match delete(&socket, &flow) {
                Ok(()) => forgotten += 1,
                // It has ended meanwhile.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(forgotten)
}

/// The attributes by which the kernel finds each flow of the network again.
fn flows(socket: &OwnedFd, network: Ipv4Net) -> io::Result<Vec<Vec<u8>>> {
    request(socket, GET, DUMP, &[])?;
    let (mut flows, mut buffer) = (Vec::new(), vec![0; BUFFER]);
    loop {
        let length = rustix::io::read(socket, &mut buffer)?;
        for (kind, body) in messages(&buffer[..length]) {
            match kind {
                DONE => return Ok(flows),
                ERROR => acknowledged(body)?,
                _ => flows.extend(matching(body, network)),
            }
        }
    }
}

/// The attributes that name a flow, if its first packet came from the network.
fn matching(body: &[u8], network: Ipv4Net) -> Option<Vec<u8>> {
    let all = body.get(NETFILTER_HEADER..)?;
    let original = attributes(all).find(|attribute| attribute.kind == ORIGINAL)?;
    let addresses = attributes(original.value).find(|attribute| attribute.kind == ADDRESSES)?;
    let source = attributes(addresses.value).find(|attribute| attribute.kind == SOURCE_V4)?;
    let source = Ipv4Addr::from(<[u8; 4]>::try_from(source.value).ok()?);
    if !network.contains(&source) {
        return None;
    }
    let named = attributes(all).filter(|attribute| [ORIGINAL, ID, ZONE].contains(&attribute.kind));
    Some(named.flat_map(|attribute| attribute.whole.iter().copied()).collect())
}

fn delete(socket: &OwnedFd, flow: &[u8]) -> io::Result<()> {
    request(socket, DELETE, ACKNOWLEDGE, flow)?;
    let mut buffer = [0; 4096];
    let length = rustix::io::read(socket, &mut buffer)?;
    match messages(&buffer[..length]).next() {
        Some((ERROR, body)) => acknowledged(body),
        _ => Err(io::Error::other("the kernel has not answered a request to forget a flow")),
    }
}

fn request(socket: &OwnedFd, kind: u16, flags: u16, attributes: &[u8]) -> io::Result<()> {
    let length = HEADER + NETFILTER_HEADER + attributes.len();
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    // Sequence number and sender: there is one request at a time, on a socket of its own.
    message.extend([0; 8]);
    message.extend([AddressFamily::INET.as_raw() as u8, 0, 0, 0]);
    message.extend(attributes);
    send(socket, &message, SendFlags::empty())?;
    Ok(())
}

/// The result that an error message has: zero is success.
fn acknowledged(body: &[u8]) -> io::Result<()> {
    let code = body.get(..4).and_then(|code| <[u8; 4]>::try_from(code).ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        None => Err(io::Error::other("the kernel has sent an error without a code")),
    }
}

/// The messages of a datagram: type and body.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

struct Attribute<'a> {
    kind: u16,
    value: &'a [u8],
    /// With its header, padded.
    whole: &'a [u8],
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
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

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::sys::testing::{in_namespace_async, run};

    /// Flows by which the machine's own addresses lead: the sources are addresses of the loopback interface.
    fn tracked() -> usize {
        flows_of("0.0.0.0/0")
    }

    fn flows_of(network: &str) -> usize {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::NETFILTER),
        );
        flows(&socket.unwrap(), network.parse().unwrap()).unwrap().len()
    }

    #[test]
    fn flows_of_a_network_are_forgotten_and_others_stay() {
        in_namespace_async(async || {
            run("ip", &["link", "set", "lo", "up"]);
            for address in ["10.8.0.7/32", "10.8.1.7/32", "192.0.2.1/32"] {
                run("ip", &["addr", "add", address, "dev", "lo"]);
            }
            run(
                "nft",
                &[
                    "add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c ct state new accept",
                ],
            );
            assert_eq!(forget("10.8.0.0/16".parse().unwrap()).unwrap(), 0);
            let to = UdpSocket::bind("192.0.2.1:4000").unwrap();
            // Kept open, so that no port is used twice.
            let mut sockets = Vec::new();
            for (from, flows) in [("10.8.0.7:0", 300), ("10.8.1.7:0", 2), ("192.0.2.1:0", 1)] {
                for _ in 0..flows {
                    let socket = UdpSocket::bind(from).unwrap();
                    socket.send_to(b"hello", to.local_addr().unwrap()).unwrap();
                    sockets.push(socket);
                }
            }
            assert_eq!(tracked(), 303);
            assert_eq!(forget("10.8.0.0/24".parse().unwrap()).unwrap(), 300);
            assert_eq!((tracked(), flows_of("10.8.0.0/16"), flows_of("192.0.2.1/32")), (3, 2, 1));
            assert_eq!(forget("10.8.0.0/24".parse().unwrap()).unwrap(), 0);
        });
    }

    #[test]
    fn bytes_that_are_no_messages_have_none() {
        for bytes in [&[][..], &[0; 3], &[0; 16], &[255; 40], &[20, 0, 0, 0, 2, 0]] {
            assert!(messages(bytes).take(10).count() <= 1, "{bytes:?}");
            assert!(attributes(bytes).take(10).count() <= 10, "{bytes:?}");
            assert_eq!(matching(bytes, "0.0.0.0/0".parse().unwrap()), None);
        }
    }
}
