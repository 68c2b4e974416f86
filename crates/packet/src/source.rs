//! Which inner sources a session owns.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Packet;

/// The inner addresses a session may send from: in the common case one IPv4 and one IPv6 address,
/// compared directly; further addresses and networks are searched one by one.
///
/// The source address alone decides, which every fragment carries too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFilter {
    v4: Option<u32>,
    v6: Option<u128>,
    more: Vec<IpNet>,
}

impl SourceFilter {
    /// A filter that permits exactly what `owned` covers; nothing if it is empty.
    pub fn new(owned: impl IntoIterator<Item = IpNet>) -> Self {
        let mut filter = Self::default();
        for net in owned {
            match net {
                IpNet::V4(net) if net.prefix_len() == 32 && filter.v4.is_none() => {
                    filter.v4 = Some(net.addr().to_bits())
                }
                IpNet::V6(net) if net.prefix_len() == 128 && filter.v6.is_none() => {
                    filter.v6 = Some(net.addr().to_bits());
                }
                net => filter.more.push(net.trunc()),
            }
        }
        filter
    }

    /// Whether the packet's source is owned.
    #[inline]
    pub fn permits(&self, packet: &Packet<'_>) -> bool {
        self.permits_address(packet.src())
    }

    /// Whether `source` is owned.
    #[inline]
    pub fn permits_address(&self, source: IpAddr) -> bool {
        let direct = match source {
            IpAddr::V4(address) => self.v4 == Some(address.to_bits()),
            IpAddr::V6(address) => self.v6 == Some(address.to_bits()),
        };
        direct || self.more.iter().any(|net| net.contains(&source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(nets: &[&str]) -> SourceFilter {
        SourceFilter::new(nets.iter().map(|net| net.parse().unwrap()))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn owns_its_addresses_and_no_others() {
        let filter = filter(&["10.8.0.2/32", "fd00::2/128"]);
        assert!(filter.permits_address(ip("10.8.0.2")));
        assert!(filter.permits_address(ip("fd00::2")));
        assert!(!filter.permits_address(ip("10.8.0.3")));
        assert!(!filter.permits_address(ip("fd00::3")));
    }

    #[test]
    fn an_empty_filter_permits_nothing() {
        let filter = filter(&[]);
        assert!(!filter.permits_address(ip("10.8.0.2")));
        assert!(!filter.permits_address(ip("::1")));
    }

    #[test]
    fn further_addresses_and_networks() {
        let filter = filter(&["10.8.0.2/32", "10.8.0.9/32", "192.168.7.0/24", "fd00:7::/48"]);
        for owned in ["10.8.0.2", "10.8.0.9", "192.168.7.77", "fd00:7::1"] {
            assert!(filter.permits_address(ip(owned)), "{owned}");
        }
        for foreign in ["10.8.0.3", "192.168.8.1", "fd00:8::1"] {
            assert!(!filter.permits_address(ip(foreign)), "{foreign}");
        }
    }
}
