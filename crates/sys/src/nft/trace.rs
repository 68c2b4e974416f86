//! The kernel's trace of packets on their way through nftables: the chain that has dropped one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{SocketFlags, bind};

use crate::netfilter::{self, NETFILTER_HEADER, attributes, messages};

/// The multicast group `NFNLGRP_NFTRACE`, as a bit.
const GROUP: u32 = 1 << 8;
/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_TRACE`.
const TRACE: u16 = 10 << 8 | 17;
const TABLE: u16 = 1;
const CHAIN: u16 = 2;
const TYPE: u16 = 4;
const VERDICT: u16 = 5;
const POLICY: u16 = 16;
/// Attribute of a verdict.
const CODE: u16 = 1;
/// Values of [`TYPE`].
const OF_POLICY: u32 = 1;
const OF_RULE: u32 = 3;
const DROP: u32 = 0;
const BUFFER: usize = 64 << 10;

/// A chain of any firewall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainPlace {
    pub family: String,
    pub table: String,
    pub chain: String,
}

/// A subscription to traces.
pub(crate) struct TraceWatch(OwnedFd);

impl TraceWatch {
    /// Subscribes, for the network namespace of the calling thread.
    pub(crate) fn open() -> io::Result<Self> {
        let socket = netfilter::socket(SocketFlags::NONBLOCK)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUP))?;
        Ok(Self(socket))
    }

    /// The last drop that has been reported since the last call.
    pub(crate) fn last_drop(&self) -> Option<ChainPlace> {
        let (mut buffer, mut last) = (vec![0; BUFFER], None);
        while let Ok(length) = rustix::io::read(&self.0, &mut buffer) {
            let traces = messages(&buffer[..length]).filter(|(kind, _)| *kind == TRACE);
            last = traces.filter_map(|(_, body)| drop_of(body)).last().or(last);
        }
        last
    }
}

impl AsFd for TraceWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The chain that has dropped the packet, if this trace reports a drop.
fn drop_of(body: &[u8]) -> Option<ChainPlace> {
    let (head, body) = body.split_at_checked(NETFILTER_HEADER)?;
    let value = |kind: u16| Some(attributes(body).find(|attribute| attribute.kind == kind)?.value);
    let number = |value: &[u8]| Some(u32::from_be_bytes(value.try_into().ok()?));
    let decision = match number(value(TYPE)?)? {
        OF_POLICY => number(value(POLICY)?)?,
        OF_RULE => number(attributes(value(VERDICT)?).find(|attribute| attribute.kind == CODE)?.value)?,
        _ => return None,
    };
    let text = |kind: u16| Some(std::str::from_utf8(value(kind)?).ok()?.trim_end_matches('\0').to_owned());
    let family = match head[0] {
        1 => "inet",
        2 => "ip",
        5 => "netdev",
        10 => "ip6",
        _ => "other",
    };
    (decision == DROP).then_some(ChainPlace {
        family: family.to_owned(),
        table: text(TABLE)?,
        chain: text(CHAIN)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_trace_are_none() {
        for bytes in [&[][..], &[2, 0, 0], &[2, 0, 0, 0, 8, 0, 4, 0, 0, 0, 0, 3], &[255; 40]] {
            assert_eq!(drop_of(bytes), None);
        }
    }
}
