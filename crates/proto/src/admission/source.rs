//! The source of a datagram, as far as its address shows: a host, and the networks that it is in.

use std::net::IpAddr;

/// The number of networks that a host is in, itself included.
pub(super) const LEVELS: usize = 3;
/// Bits of a prefix from wide to narrow: a provider, a site, a host; one with IPv6 has its /64.
const V4_BITS: [u32; LEVELS] = [16, 24, 32];
const V6_BITS: [u32; LEVELS] = [48, 56, 64];

/// A host, as far as its address shows: an IPv4 address or an IPv6 /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    v6: bool,
    /// The address, its first bit in front; of IPv6 the first 64 bits.
    pub(super) bits: u64,
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self { v6: false, bits: u64::from(v4.to_bits()) << 32 },
            IpAddr::V6(v6) => Self { v6: true, bits: (v6.to_bits() >> 64) as u64 },
        }
    }
}

impl From<Source> for IpAddr {
    /// The host's first address.
    fn from(source: Source) -> Self {
        if source.v6 {
            Self::from(std::net::Ipv6Addr::from_bits(u128::from(source.bits) << 64))
        } else {
            Self::from(std::net::Ipv4Addr::from_bits((source.bits >> 32) as u32))
        }
    }
}

/// A network or a single host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    /// Bits of its prefix.
    pub(super) length: u32,
    pub(super) v6: bool,
    pub(super) prefix: u64,
}

impl Source {
    /// The provider's network that it is in (/16 or /48), the site's (/24 or /56), and itself.
    #[must_use]
    pub fn networks(self) -> [Network; LEVELS] {
        let lengths = if self.v6 { V6_BITS } else { V4_BITS };
        lengths.map(|length| Network { length, v6: self.v6, prefix: self.bits >> (64 - length) })
    }
}
