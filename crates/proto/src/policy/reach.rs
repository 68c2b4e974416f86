//! A set of networks that an address is looked up in for each packet.

use std::net::IpAddr;

use ipnet::IpNet;

/// Networks as ranges of addresses, sorted, none touching another of the same version.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl Reach {
    pub(super) fn new(networks: impl Iterator<Item = IpNet>) -> Self {
        let mut this = Self::default();
        for network in IpNet::aggregate(&networks.map(|network| network.trunc()).collect()) {
            match network {
                IpNet::V4(network) => this.v4.push((network.network().into(), network.broadcast().into())),
                IpNet::V6(network) => this.v6.push((network.network().into(), network.broadcast().into())),
            }
        }
        this.v4.sort_unstable();
        this.v6.sort_unstable();
        this
    }

    #[inline]
    pub(super) fn holds(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => holds(&self.v4, address.into()),
            IpAddr::V6(address) => holds(&self.v6, address.into()),
        }
    }
}

#[inline]
fn holds<T: Ord>(ranges: &[(T, T)], address: T) -> bool {
    let before = ranges.partition_point(|(first, _)| *first <= address);
    before.checked_sub(1).is_some_and(|last| address <= ranges[last].1)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use ipnet::{Ipv4Net, Ipv6Net};
    use proptest::prelude::*;

    use super::*;

    fn network() -> impl Strategy<Value = IpNet> {
        // Few bits, so that networks overlap and addresses hit them.
        let v4 = (any::<u8>(), 20..=32u8).prop_map(|(n, length)| {
            Ipv4Net::new(Ipv4Addr::from(u32::from(n) << 8 | 7), length).unwrap().into()
        });
        let v6 = (any::<u8>(), 110..=128u8).prop_map(|(n, length)| {
            Ipv6Net::new(Ipv6Addr::from(u128::from(n) << 12), length).unwrap().into()
        });
        prop_oneof![v4, v6, Just("0.0.0.0/0".parse().unwrap()), Just("::/0".parse().unwrap())]
    }

    proptest! {
        #[test]
        fn an_address_is_held_if_a_network_contains_it(
            networks in prop::collection::vec(network(), 0..12),
            v4 in 0..0x1_0100u32,
            v6 in 0..0x10_1000u128,
        ) {
            let reach = Reach::new(networks.iter().copied());
            let ends = [Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::BROADCAST.into(), IpAddr::from(Ipv6Addr::from(u128::MAX))];
            for address in [Ipv4Addr::from(v4).into(), Ipv6Addr::from(v6).into()].into_iter().chain(ends) {
                let contained = networks.iter().any(|network| network.contains(&address));
                prop_assert_eq!(reach.holds(address), contained, "{}", address);
            }
        }
    }
}
