//! The kernel's list of tracked flows, through ctnetlink: forgetting those that clients have begun,
//! or that are of an address.
//!
//! INVARIANT: only flows of the named network or addresses are touched; those of the machine and of
//! others go on. A flow is removed by the name that the kernel gave, never without one, which would
//! remove all. This module must not know why flows are to be forgotten.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use ipnet::Ipv4Net;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SendFlags, SocketFlags, send};

use super::netfilter::{self, HEADER, NETFILTER_HEADER, attributes, messages};

/// Netlink's own messages.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NFNL_SUBSYS_CTNETLINK`, with `IPCTNL_MSG_CT_GET` and `IPCTNL_MSG_CT_DELETE`.
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
/// Attributes: `CTA_TUPLE_ORIG`, in it `CTA_TUPLE_IP`, in it `CTA_IP_V4_SRC`; next to the first
/// `CTA_ID` and `CTA_ZONE`.
const ORIGINAL: u16 = 1;
/// `CTA_TUPLE_REPLY`.
const REPLY: u16 = 2;
const ADDRESSES: u16 = 1;
const SOURCE_V4: u16 = 1;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// Limit for the kernel to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// More than any part of a list has.
const BUFFER: usize = 64 << 10;
/// The list may change while it is read, so it is read until nothing is found, but at most this
/// many times.
const ROUNDS: usize = 5;

/// Forgets each flow that was begun from an address of this network; how many there were. Packets
/// that still come for one are treated as those of a new one.
///
/// # Errors
/// If the kernel refuses; of kind [`io::ErrorKind::Unsupported`] if it has no ctnetlink.
pub fn forget(network: Ipv4Net) -> io::Result<usize> {
    forget_all(|flow| began_in(flow, network) == Some(true))
}

/// Forgets each flow that has one of these addresses at either end, before or after translation;
/// how many there were.
///
/// # Errors
/// Those of [`forget`].
pub fn forget_addresses(addresses: &BTreeSet<IpAddr>) -> io::Result<usize> {
    if addresses.is_empty() {
        return Ok(0);
    }
    forget_all(|flow| ends(flow).any(|address| addresses.contains(&address)))
}

/// Forgets each flow whose attributes are meant.
fn forget_all(is_meant: impl Fn(&[u8]) -> bool) -> io::Result<usize> {
    let socket = netfilter::socket(SocketFlags::empty())
        .map_err(|error| without_ctnetlink(error, Errno::PROTONOSUPPORT))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    let mut forgotten = 0;
    for _ in 0..ROUNDS {
        // A subsystem that the kernel does not have is an invalid argument.
        let flows = flows(&socket, &is_meant).map_err(|error| without_ctnetlink(error, Errno::INVAL))?;
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

/// This error, marked as such if it has the code of a kernel without ctnetlink.
fn without_ctnetlink(error: io::Error, code: Errno) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(errno) if errno == code => io::Error::new(io::ErrorKind::Unsupported, error),
        _ => error,
    }
}

/// For each flow that is meant, what the kernel finds it again by.
fn flows(socket: &OwnedFd, is_meant: &impl Fn(&[u8]) -> bool) -> io::Result<Vec<Vec<u8>>> {
    // Lists both protocol versions.
    request(socket, GET, DUMP, &[0; NETFILTER_HEADER])?;
    let (mut flows, mut buffer) = (Vec::new(), vec![0; BUFFER]);
    loop {
        let length = rustix::io::read(socket, &mut buffer)?;
        for (kind, body) in messages(&buffer[..length]) {
            match kind {
                DONE => return Ok(flows),
                ERROR => acknowledged(body)?,
                _ => flows.extend(matching(body, is_meant)),
            }
        }
    }
}

/// The header and the attributes that name a flow, if it is meant.
fn matching(body: &[u8], is_meant: &impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let (header, all) = body.split_at_checked(NETFILTER_HEADER)?;
    attributes(all).find(|attribute| attribute.kind == ORIGINAL)?;
    if !is_meant(all) {
        return None;
    }
    let named = attributes(all).filter(|attribute| [ORIGINAL, ID, ZONE].contains(&attribute.kind));
    Some([header].into_iter().chain(named.map(|attribute| attribute.whole)).flatten().copied().collect())
}

/// Whether the first packet came from the network.
fn began_in(flow: &[u8], network: Ipv4Net) -> Option<bool> {
    let original = attributes(flow).find(|attribute| attribute.kind == ORIGINAL)?;
    let addresses = attributes(original.value).find(|attribute| attribute.kind == ADDRESSES)?;
    let source = attributes(addresses.value).find(|attribute| attribute.kind == SOURCE_V4)?;
    let source = Ipv4Addr::from(<[u8; 4]>::try_from(source.value).ok()?);
    Some(network.contains(&source))
}

/// The addresses at both ends, in both directions.
fn ends(flow: &[u8]) -> impl Iterator<Item = IpAddr> {
    let directions = attributes(flow).filter(|attribute| [ORIGINAL, REPLY].contains(&attribute.kind));
    let addresses = directions.flat_map(|direction| attributes(direction.value));
    let addresses = addresses.filter(|attribute| attribute.kind == ADDRESSES);
    addresses.flat_map(|addresses| attributes(addresses.value)).filter_map(|end| match end.value.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(end.value).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(end.value).ok()?).into()),
        _ => None,
    })
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

/// `body` begins with the header of netfilter's messages.
fn request(socket: &OwnedFd, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let length = HEADER + body.len();
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    // Sequence number and sender: there is one request at a time, on its own socket.
    message.extend([0; 8]);
    message.extend(body);
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

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::testing::{in_namespace_async, run};

    /// Flows by which the machine's own addresses lead: the sources are addresses of the loopback
    /// interface.
    fn tracked() -> usize {
        flows_of("0.0.0.0/0")
    }

    fn flows_of(network: &str) -> usize {
        let socket = netfilter::socket(SocketFlags::empty()).unwrap();
        let network = network.parse().unwrap();
        flows(&socket, &|flow: &[u8]| began_in(flow, network) == Some(true)).unwrap().len()
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
            assert_eq!(matching(bytes, &|_: &[u8]| true), None);
        }
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::from((value.len() as u16 + 4).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn tuple(kind: u16, source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
        let ips = [attribute(1, &source), attribute(2, &destination)].concat();
        attribute(kind | 0x8000, &attribute(ADDRESSES | 0x8000, &ips))
    }

    /// A connection of 10.86.0.7 that the gateway has translated to 192.0.2.1.
    fn translated() -> Vec<u8> {
        let inner = tuple(ORIGINAL, [10, 86, 0, 7], [10, 20, 0, 1]);
        let outer = tuple(REPLY, [10, 20, 0, 1], [192, 0, 2, 1]);
        [vec![2, 0, 0, 0], inner, attribute(3, &[0; 4]), outer, attribute(ID, &[1, 2, 3, 4])].concat()
    }

    fn of(body: &[u8], own: &str) -> Option<Vec<u8>> {
        let own: IpAddr = own.parse().unwrap();
        matching(body, &|flow: &[u8]| ends(flow).any(|address| address == own))
    }

    #[test]
    fn a_flow_is_its_addresses_in_both_directions_and_named_by_what_identifies_it() {
        for own in ["10.86.0.7", "10.20.0.1", "192.0.2.1"] {
            let named = of(&translated(), own).unwrap_or_else(|| panic!("one of {own}"));
            let kinds: Vec<u16> = attributes(&named[NETFILTER_HEADER..]).map(|one| one.kind).collect();
            assert_eq!(kinds, [ORIGINAL, ID]);
        }
        assert_eq!(of(&translated(), "10.86.0.8"), None);
    }

    #[test]
    fn a_flow_without_a_name_is_left_alone() {
        let body = [vec![2, 0, 0, 0], tuple(REPLY, [10, 86, 0, 7], [10, 20, 0, 1])].concat();
        assert_eq!(of(&body, "10.86.0.7"), None);
    }

    #[test]
    fn cut_messages_do_no_harm() {
        let whole = translated();
        for len in 0..whole.len() {
            let _ = of(&whole[..len], "10.86.0.7");
            let _ = messages(&whole[..len]).count();
        }
    }
}
