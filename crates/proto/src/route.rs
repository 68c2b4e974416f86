//! Longest prefix match from inner addresses to whatever carries them.
//!
//! One hash table per prefix length that is in use, host routes in separate tables: a client's
//! address is found with one probe, and a lookup costs at most one probe per distinct prefix
//! length. Tables are never iterated, so results depend on content only.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;

use ipnet::IpNet;

/// A prefix has a route already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the prefix has a route already")]
pub struct RouteTaken;

/// Maps prefixes of both IP versions to values; lookups return that of the longest prefix.
#[derive(Clone, Debug)]
pub struct RouteTable<T> {
    v4: Family<u32, T>,
    v6: Family<u128, T>,
}

impl<T: Copy> RouteTable<T> {
    /// An empty table. `seed` should be random: outsiders then can't choose addresses that collide.
    pub fn new(seed: u64) -> Self {
        let state = Seed(seed);
        Self { v4: Family::new(state), v6: Family::new(state.next()) }
    }

    /// Adds the route to `net`.
    ///
    /// # Errors
    /// If there is one: it stays as it is.
    pub fn insert(&mut self, net: IpNet, value: T) -> Result<(), RouteTaken> {
        match net {
            IpNet::V4(net) => self.v4.insert(net.network().to_bits(), net.prefix_len(), value),
            IpNet::V6(net) => self.v6.insert(net.network().to_bits(), net.prefix_len(), value),
        }
    }

    /// Removes exactly the route to `net`; returns the value it had.
    pub fn remove(&mut self, net: IpNet) -> Option<T> {
        match net {
            IpNet::V4(net) => self.v4.remove(net.network().to_bits(), net.prefix_len()),
            IpNet::V6(net) => self.v6.remove(net.network().to_bits(), net.prefix_len()),
        }
    }

    /// The value of the longest prefix that covers `address`.
    #[inline]
    pub fn lookup(&self, address: IpAddr) -> Option<T> {
        match address {
            IpAddr::V4(address) => self.v4.lookup(address.to_bits()),
            IpAddr::V6(address) => self.v6.lookup(address.to_bits()),
        }
    }

    /// The value of exactly the route to `net`.
    pub fn exact(&self, net: IpNet) -> Option<T> {
        match net {
            IpNet::V4(net) => self.v4.exact(net.network().to_bits(), net.prefix_len()),
            IpNet::V6(net) => self.v6.exact(net.network().to_bits(), net.prefix_len()),
        }
    }

    /// Number of routes.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether there are no routes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bits of an address of one IP version.
trait Bits: Copy + Eq + Hash {
    /// Length of an address in bits.
    const LEN: u8;
    /// The address with all but the first `prefix_len` bits cleared.
    fn mask(self, prefix_len: u8) -> Self;
}

impl Bits for u32 {
    const LEN: u8 = 32;
    #[inline]
    fn mask(self, prefix_len: u8) -> Self {
        self & Self::MAX.checked_shl(u32::from(Self::LEN - prefix_len)).unwrap_or(0)
    }
}

impl Bits for u128 {
    const LEN: u8 = 128;
    #[inline]
    fn mask(self, prefix_len: u8) -> Self {
        self & Self::MAX.checked_shl(u32::from(Self::LEN - prefix_len)).unwrap_or(0)
    }
}

/// Routes of one IP version.
#[derive(Clone, Debug)]
struct Family<B, T> {
    hosts: HashMap<B, T, Seed>,
    /// Shorter prefixes, longest first; no table is empty.
    nets: Vec<(u8, HashMap<B, T, Seed>)>,
    seed: Seed,
}

impl<B: Bits, T: Copy> Family<B, T> {
    fn new(seed: Seed) -> Self {
        Self { hosts: HashMap::with_hasher(seed), nets: Vec::new(), seed }
    }

    fn insert(&mut self, net: B, prefix_len: u8, value: T) -> Result<(), RouteTaken> {
        if prefix_len == B::LEN {
            return add(&mut self.hosts, net, value);
        }
        let at = match self.position(prefix_len) {
            Ok(at) => at,
            Err(at) => {
                self.nets.insert(at, (prefix_len, HashMap::with_hasher(self.seed)));
                at
            }
        };
        add(&mut self.nets[at].1, net, value)
    }

    fn remove(&mut self, net: B, prefix_len: u8) -> Option<T> {
        if prefix_len == B::LEN {
            return self.hosts.remove(&net);
        }
        let at = self.position(prefix_len).ok()?;
        let removed = self.nets[at].1.remove(&net);
        if self.nets[at].1.is_empty() {
            self.nets.remove(at);
        }
        removed
    }

    #[inline]
    fn lookup(&self, address: B) -> Option<T> {
        if let Some(value) = self.hosts.get(&address) {
            return Some(*value);
        }
        self.nets.iter().find_map(|(prefix_len, table)| table.get(&address.mask(*prefix_len)).copied())
    }

    fn exact(&self, net: B, prefix_len: u8) -> Option<T> {
        if prefix_len == B::LEN {
            return self.hosts.get(&net).copied();
        }
        let at = self.position(prefix_len).ok()?;
        self.nets[at].1.get(&net).copied()
    }

    fn len(&self) -> usize {
        self.hosts.len() + self.nets.iter().map(|(_, table)| table.len()).sum::<usize>()
    }

    fn position(&self, prefix_len: u8) -> Result<usize, usize> {
        self.nets.binary_search_by(|(len, _)| prefix_len.cmp(len))
    }
}

fn add<B: Bits, T>(routes: &mut HashMap<B, T, Seed>, net: B, value: T) -> Result<(), RouteTaken> {
    match routes.entry(net) {
        Entry::Vacant(free) => {
            free.insert(value);
            Ok(())
        }
        Entry::Occupied(_) => Err(RouteTaken),
    }
}

/// Seeded hashing of addresses by folded multiplication: a few cycles, no collisions to be found.
#[derive(Clone, Copy, Debug)]
struct Seed(u64);

impl Seed {
    /// A second seed made from the first.
    fn next(self) -> Self {
        Self(fold(self.0 ^ MULTIPLIER, MULTIPLIER.rotate_left(32)))
    }
}

impl BuildHasher for Seed {
    type Hasher = AddressHasher;

    #[inline]
    fn build_hasher(&self) -> AddressHasher {
        AddressHasher(self.0)
    }
}

/// State of one hash computation.
#[derive(Debug)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.0 = fold(self.0 ^ value, MULTIPLIER);
    }

    #[inline]
    fn write_u128(&mut self, value: u128) {
        self.write_u64(value as u64);
        self.write_u64((value >> 64) as u64);
    }
}

/// An odd number with bits in no pattern: the fractional part of the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Both halves of the 128-bit product, mixed: each bit of the input reaches each of the result.
#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128) * (b as u128);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use ipnet::{Ipv4Net, Ipv6Net};
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_longest_prefix_wins() {
        let mut table = RouteTable::new(1);
        for (prefix, value) in [("0.0.0.0/0", 0), ("10.0.0.0/8", 1), ("10.1.0.0/16", 2), ("10.1.2.3/32", 3)] {
            table.insert(net(prefix), value).unwrap();
        }
        assert_eq!(table.lookup(ip("10.1.2.3")), Some(3));
        assert_eq!(table.lookup(ip("10.1.2.4")), Some(2));
        assert_eq!(table.lookup(ip("10.2.2.4")), Some(1));
        assert_eq!(table.lookup(ip("8.8.8.8")), Some(0));
        assert_eq!(table.lookup(ip("::1")), None);
        assert_eq!(table.len(), 4);
    }

    #[test]
    fn removing_uncovers_the_shorter_prefix() {
        let mut table = RouteTable::new(1);
        table.insert(net("fd00::/8"), 'a').unwrap();
        table.insert(net("fd00::7/128"), 'b').unwrap();
        assert_eq!(table.lookup(ip("fd00::7")), Some('b'));
        assert_eq!(table.remove(net("fd00::7/128")), Some('b'));
        assert_eq!(table.lookup(ip("fd00::7")), Some('a'));
        assert_eq!(table.remove(net("fd00::/8")), Some('a'));
        assert_eq!(table.remove(net("fd00::/8")), None);
        assert!(table.is_empty());
    }

    #[test]
    fn host_bits_of_a_prefix_do_not_matter() {
        let mut table = RouteTable::new(1);
        table.insert(net("10.1.2.3/16"), 5).unwrap();
        assert_eq!(table.exact(net("10.1.0.0/16")), Some(5));
        assert_eq!(table.lookup(ip("10.1.99.99")), Some(5));
    }

    /// Addresses from a small range, so that prefixes cover each other and lookups hit.
    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<u8>().prop_map(|low| IpAddr::V4(Ipv4Addr::new(10, low & 3, 0, low))),
            any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
            any::<u8>().prop_map(|low| IpAddr::V6(Ipv6Addr::new(
                0xFD00,
                0,
                u16::from(low & 3),
                0,
                0,
                0,
                0,
                low.into()
            ))),
            any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
        ]
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        (address(), any::<u8>()).prop_map(|(address, len)| match address {
            IpAddr::V4(address) => IpNet::V4(Ipv4Net::new(address, len % 33).unwrap().trunc()),
            IpAddr::V6(address) => IpNet::V6(Ipv6Net::new(address, len % 129).unwrap().trunc()),
        })
    }

    fn linear(routes: &[(IpNet, u32)], address: IpAddr) -> Option<u32> {
        let covering = routes.iter().filter(|(net, _)| net.contains(&address));
        covering.max_by_key(|(net, _)| net.prefix_len()).map(|(_, value)| *value)
    }

    proptest! {
        #[test]
        fn agrees_with_a_linear_scan(
            seed: u64,
            changes in prop::collection::vec((any::<bool>(), prefix()), 1..60),
            probes in prop::collection::vec(address(), 1..60),
        ) {
            let mut table = RouteTable::new(seed);
            let mut model: Vec<(IpNet, u32)> = Vec::new();
            for (value, (remove, net)) in (0..).zip(changes) {
                let old = model.iter().position(|(other, _)| *other == net);
                if remove {
                    prop_assert_eq!(table.remove(net), old.map(|at| model.remove(at).1));
                } else if old.is_some() {
                    prop_assert_eq!(table.insert(net, value), Err(RouteTaken));
                } else {
                    prop_assert_eq!(table.insert(net, value), Ok(()));
                    model.push((net, value));
                }
            }
            prop_assert_eq!(table.len(), model.len());
            for probe in probes.into_iter().chain(model.iter().map(|(net, _)| net.addr())) {
                prop_assert_eq!(table.lookup(probe), linear(&model, probe));
            }
        }
    }
}
