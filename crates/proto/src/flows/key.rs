//! The names of flows, as their packets and the replies to these have them.

use core::net::IpAddr;

use vpnd_packet::{ICMP, ICMPV6, Packet, TCP, UDP, Version, be16, tcp_flag};

/// Length of the head of an ICMP message, behind which an error quotes the packet that it is about.
const ICMP_HEAD: usize = 8;

/// A flow, by the names of its two ends as the packet that opened it had them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Source of the packet that opened it.
    pub opener: IpAddr,
    /// Destination of that packet.
    pub responder: IpAddr,
    /// Its protocol.
    pub protocol: u8,
    /// Source and destination port; of an ICMP request its identifier and type; else 0.
    pub ports: (u16, u16),
}

impl FlowKey {
    /// The flow of this packet of its opener; a later fragment has none, nor what nothing answers.
    #[inline]
    pub(super) fn of_opener(packet: &Packet<'_>) -> Option<Self> {
        let transport = &packet.bytes()[packet.transport_offset()?..];
        let ports = ports(packet.version(), packet.protocol(), transport)?;
        Some(Self { opener: packet.src(), responder: packet.dst(), protocol: packet.protocol(), ports })
    }

    /// The flow that this packet answers, if it is one of those that answer: for TCP one with ACK
    /// or RST, for ICMP a reply or an error about a packet of the flow. A later fragment has none.
    #[inline]
    pub fn of_reply(packet: &Packet<'_>) -> Option<Self> {
        let transport = &packet.bytes()[packet.transport_offset()?..];
        let (version, protocol) = (packet.version(), packet.protocol());
        let ports = match protocol {
            TCP if packet.tcp()?.flags() & (tcp_flag::ACK | tcp_flag::RST) == 0 => return None,
            ICMP | ICMPV6 if packet.icmp().is_some_and(|(kind, _)| is_error(version, kind)) => {
                return Self::of_quoted(transport.get(ICMP_HEAD..)?);
            }
            ICMP | ICMPV6 => {
                let (kind, _) = packet.icmp()?;
                (be16(transport.get(..ICMP_HEAD)?, 4), u16::from(request(version, kind)?))
            }
            _ => {
                let (responder, opener) = ports(version, protocol, transport)?;
                (opener, responder)
            }
        };
        Some(Self { opener: packet.dst(), responder: packet.src(), protocol, ports })
    }

    /// Returns what all fragments of one packet have in common, and no other recent packet; `None`
    /// if this is no fragment. The protocol is a part of it in IPv4 alone (RFC 791, RFC 8200).
    #[inline]
    pub fn of_fragment(packet: &Packet<'_>) -> Option<Self> {
        let id = packet.identification()?;
        let protocol = match packet.version() {
            Version::V4 => packet.protocol(),
            Version::V6 => 0,
        };
        let ports = ((id >> 16) as u16, id as u16);
        Some(Self { opener: packet.src(), responder: packet.dst(), protocol, ports })
    }

    /// The port at which the flow was opened, if its protocol has ports.
    #[inline]
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        matches!(self.protocol, TCP | UDP).then_some(self.ports.1)
    }

    /// The flow of the packet that an error quotes; IPv6 extension headers are not looked behind.
    fn of_quoted(quoted: &[u8]) -> Option<Self> {
        let version = if quoted.first()? >> 4 == 6 { Version::V6 } else { Version::V4 };
        let (protocol, opener, responder, at): (_, IpAddr, IpAddr, _) = match version {
            Version::V4 => {
                let head = quoted.first_chunk::<20>()?;
                // A later fragment has no ports.
                if be16(head, 6) & 0x1FFF != 0 {
                    return None;
                }
                let address = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]].into();
                (head[9], address(12), address(16), usize::from(head[0] & 0x0F) * 4)
            }
            Version::V6 => {
                let head = quoted.first_chunk::<40>()?;
                let address = |at: usize| head[at..].first_chunk::<16>().copied().map(IpAddr::from);
                (head[6], address(8)?, address(24)?, 40)
            }
        };
        let ports = ports(version, protocol, quoted.get(at..)?)?;
        Some(Self { opener, responder, protocol, ports })
    }

    /// A keyed hash by folded multiplication: a few cycles, and no attacker can find collisions.
    #[inline]
    pub(super) fn hash(&self, key: [u64; 2]) -> u64 {
        let rest = u64::from(self.protocol) << 32 | u64::from(self.ports.0) << 16 | u64::from(self.ports.1);
        let ends = match (self.opener, self.responder) {
            (IpAddr::V4(opener), IpAddr::V4(responder)) => {
                u64::from(opener.to_bits()) << 32 | u64::from(responder.to_bits())
            }
            (opener, responder) => [opener, responder].into_iter().fold(key[1], |hash, address| {
                let bits = match address {
                    IpAddr::V4(address) => address.to_bits().into(),
                    IpAddr::V6(address) => address.to_bits(),
                };
                fold(hash ^ bits as u64, key[0] ^ (bits >> 64) as u64)
            }),
        };
        let hash = fold(ends ^ key[0], rest ^ key[1]);
        fold(hash ^ key[1], key[0] | 1)
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The ports of the packet whose transport header begins here, as [`FlowKey`] has them; none if it
/// opens no flow.
#[inline]
fn ports(version: Version, protocol: u8, transport: &[u8]) -> Option<(u16, u16)> {
    match protocol {
        TCP | UDP => transport.get(..4).map(|head| (be16(head, 0), be16(head, 2))),
        ICMP | ICMPV6 => {
            let head = transport.get(..ICMP_HEAD)?;
            is_request(version, protocol, head[0]).then(|| (be16(head, 4), head[0].into()))
        }
        _ => Some((0, 0)),
    }
}

/// Whether a message of ICMP asks for a reply: echo, and in IPv4 the time.
fn is_request(version: Version, protocol: u8, kind: u8) -> bool {
    match version {
        Version::V4 => protocol == ICMP && matches!(kind, 8 | 13),
        Version::V6 => protocol == ICMPV6 && kind == 128,
    }
}

/// The request that a message of ICMP answers.
fn request(version: Version, kind: u8) -> Option<u8> {
    match (version, kind) {
        (Version::V4, 0) => Some(8),
        (Version::V4, 14) => Some(13),
        (Version::V6, 129) => Some(128),
        _ => None,
    }
}

/// Whether a message of ICMP is an error about a packet, which it quotes.
pub(crate) fn is_error(version: Version, kind: u8) -> bool {
    match version {
        Version::V4 => matches!(kind, 3 | 11 | 12),
        Version::V6 => matches!(kind, 1..=4),
    }
}
