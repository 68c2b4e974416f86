//! Pools of inner addresses: which addresses of the networks of `[tunnel]` the clients of each
//! access profile get.
//!
//! Invariants: the gateway's own address and those that name a network are in no pool; two pools
//! are the same or have no address in common, so that an address tells its profile apart from those
//! with other pools. This module must not know of leases.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::document::{Log as Problems, Section};
use super::{AccessProfile, Tunnel};

/// Addresses of one pool that are ever used; bounds the search in an IPv6 pool.
const MAX_POOL: u64 = 1 << 20;

/// The addresses of one protocol version that a profile's clients get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolChoice {
    /// Those of the pool in `[tunnel]` that no profile has for itself.
    #[default]
    Rest,
    /// A part of that pool.
    Part(IpNet),
    /// None.
    Nothing,
}

/// The pools of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    pub v4: Option<Pool>,
    pub v6: Option<Pool>,
}

/// Addresses of one network, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    net: IpNet,
    ranges: Vec<Range>,
    size: u64,
}

/// Addresses as numbers, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u128,
    last: u128,
}

impl Pools {
    /// The pools of `[tunnel]`, as far as these choices don't take parts of them.
    #[must_use]
    pub fn rest(tunnel: &Tunnel, taken: &[PoolChoice]) -> Self {
        let rest = |net: IpNet| Pool::rest(net, taken);
        Self {
            v4: tunnel.pool_v4.map(|net| rest(net.into())),
            v6: tunnel.pool_v6.map(|net| rest(net.into())),
        }
    }

    /// Whether a client with these addresses has as many as the pools give, each out of its pool.
    #[must_use]
    pub fn fit(&self, v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>) -> bool {
        let fits = |pool: &Option<Pool>, address: Option<IpAddr>| match (pool, address) {
            (Some(pool), Some(address)) => pool.contains(address),
            (pool, address) => pool.is_none() && address.is_none(),
        };
        fits(&self.v4, v4.map(Into::into)) && fits(&self.v6, v6.map(Into::into))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.v4.iter().chain(&self.v6)
    }
}

impl Pool {
    fn rest(net: IpNet, taken: &[PoolChoice]) -> Self {
        let mut ranges = vec![leasable(net)];
        for choice in taken {
            let PoolChoice::Part(part) = choice else { continue };
            if part.addr().is_ipv4() == net.addr().is_ipv4() {
                let (first, last) = bounds(*part);
                ranges = ranges.into_iter().flat_map(|range| range.without(first, last)).collect();
            }
        }
        Self::new(net, ranges)
    }

    /// The addresses of a part of `net`; none if it is no part.
    fn part(net: IpNet, part: IpNet) -> Self {
        let (all, (first, last)) = (leasable(net), bounds(part));
        // IPv6 has no broadcast address; the first of a network is that of its routers (RFC 4291
        // section 2.6.1).
        let last = if part.addr().is_ipv4() { last - 1 } else { last };
        let range = Range { first: all.first.max(first + 1), last: all.last.min(last) };
        Self::new(part, if net.contains(&part) { vec![range] } else { Vec::new() })
    }

    fn new(net: IpNet, ranges: Vec<Range>) -> Self {
        let ranges: Vec<_> = ranges.into_iter().filter(|range| range.first <= range.last).collect();
        let size = ranges.iter().map(Range::count).fold(0u64, u64::saturating_add).min(MAX_POOL);
        Self { net, ranges, size }
    }

    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.net.addr().is_ipv4()
    }

    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The address with this number, below [`Pool::size`].
    #[must_use]
    pub fn address(&self, number: u64) -> IpAddr {
        let mut left = number;
        for range in &self.ranges {
            if left < range.count() {
                return self.ip(range.first + u128::from(left));
            }
            left -= range.count();
        }
        // No caller has such a number.
        self.net.network()
    }

    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let mut before = 0;
        let number = bits(address);
        address.is_ipv4() == self.is_ipv4()
            && self.ranges.iter().any(|range| {
                let is_in = (range.first..=range.last).contains(&number)
                    && u128::from(before) + (number - range.first) < u128::from(self.size);
                before = u64::saturating_add(before, range.count());
                is_in
            })
    }

    /// The first and last addresses of its ranges.
    pub fn ranges(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        self.ranges.iter().map(|range| (self.ip(range.first), self.ip(range.last)))
    }

    fn ip(&self, number: u128) -> IpAddr {
        match self.net {
            IpNet::V4(_) => Ipv4Addr::from(number as u32).into(),
            IpNet::V6(_) => Ipv6Addr::from(number).into(),
        }
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.net.fmt(f)
    }
}

impl Range {
    fn count(&self) -> u64 {
        u64::try_from(self.last - self.first).map_or(u64::MAX, |count| count.saturating_add(1))
    }

    /// The rest of it below and above these.
    fn without(self, first: u128, last: u128) -> impl Iterator<Item = Self> {
        let below = first.checked_sub(1).map(|end| Self { first: self.first, last: self.last.min(end) });
        let above = last.checked_add(1).map(|begin| Self { first: self.first.max(begin), last: self.last });
        below.into_iter().chain(above).filter(|range| range.first <= range.last)
    }
}

/// All addresses of a pool but those of the network, of the gateway, and in IPv4 for all hosts.
fn leasable(net: IpNet) -> Range {
    let (first, last) = bounds(net);
    Range { first: first + 2, last: if net.addr().is_ipv4() { last - 1 } else { last } }
}

fn bounds(net: IpNet) -> (u128, u128) {
    (bits(net.network()), bits(net.broadcast()))
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// The pools of these profiles, in their order.
pub(super) fn of_profiles(tunnel: &Tunnel, profiles: &[AccessProfile]) -> Vec<Pools> {
    let taken: Vec<_> = profiles.iter().flat_map(|profile| profile.pools).collect();
    let rest = Pools::rest(tunnel, &taken);
    let pool = |choice: PoolChoice, net: Option<IpNet>, rest: &Option<Pool>| match (choice, net) {
        (PoolChoice::Rest, _) => rest.clone(),
        (PoolChoice::Part(part), Some(net)) => Some(Pool::part(net, part)),
        (PoolChoice::Part(_), None) | (PoolChoice::Nothing, _) => None,
    };
    let pools = |AccessProfile { pools: [v4, v6], .. }: &AccessProfile| Pools {
        v4: pool(*v4, tunnel.pool_v4.map(Into::into), &rest.v4),
        v6: pool(*v6, tunnel.pool_v6.map(Into::into), &rest.v6),
    };
    profiles.iter().map(pools).collect()
}

/// Reads the pools of a profile.
pub(super) fn choices(s: &mut Section<'_>, p: &mut Problems) -> [PoolChoice; 2] {
    let v4 = choice::<Ipv4Net>(s, p, "pool_v4", 30, "an IPv4 network such as \"10.86.16.0/20\", or \"none\"");
    let v6 = "an IPv6 network such as \"fd12:3456:789a::1:0:0/96\", or \"none\"";
    let v6 = choice::<Ipv6Net>(s, p, "pool_v6", 126, v6);
    if [v4, v6] == [PoolChoice::Nothing; 2] {
        let message = "a profile needs addresses: only one of 'pool_v4' and 'pool_v6' can be \"none\"";
        s.problem(p, "pool_v6", message.to_owned());
    }
    [v4, v6]
}

fn choice<N: FromStr + Into<IpNet>>(
    s: &mut Section<'_>,
    p: &mut Problems,
    key: &'static str,
    longest: u8,
    expects: &str,
) -> PoolChoice {
    match s.parsed::<Word<N>>(p, key, expects) {
        None => PoolChoice::Rest,
        Some(Word(None)) => PoolChoice::Nothing,
        Some(Word(Some(net))) => {
            let net: IpNet = net.into();
            if net != net.trunc() {
                let message = format!("'{key}' in [profile] has host bits set: {net}; write {}", net.trunc());
                s.problem(p, key, message);
            } else if net.prefix_len() > longest {
                let message =
                    format!("'{key}' in [profile] is too small: {net}; give it at least a /{longest}");
                s.problem(p, key, message);
            }
            PoolChoice::Part(net)
        }
    }
}

/// A network, or "none".
struct Word<N>(Option<N>);

impl<N: FromStr> FromStr for Word<N> {
    type Err = N::Err;

    fn from_str(text: &str) -> Result<Self, N::Err> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|net| Self(Some(net))) }
    }
}

/// The reason why these profiles can't have their pools out of this tunnel's, if there is one.
pub(super) fn conflict(tunnel: &Tunnel, profiles: &[AccessProfile]) -> Option<String> {
    let parts = profiles.iter().flat_map(|profile| {
        profile.pools.into_iter().filter_map(move |choice| match choice {
            PoolChoice::Part(part) => Some((profile.title(), part)),
            _ => None,
        })
    });
    let parts: Vec<_> = parts.collect();
    for (at, (title, part)) in parts.iter().enumerate() {
        if !tunnel.pools().any(|pool| pool.contains(part)) {
            return Some(format!(
                "the pool {part} of the profile '{title}' is no part of a pool of [tunnel]; choose a part of it, or make that larger (at a \
                 restart)"
            ));
        }
        let crossing =
            parts[..at].iter().find(|(_, other)| other != part && super::check::overlap(*other, *part));
        if let Some((other, net)) = crossing {
            return Some(format!(
                "the pools {net} of the profile '{other}' and {part} of '{title}' overlap; give both the same, or no address in common"
            ));
        }
    }
    let empty = profiles.iter().zip(of_profiles(tunnel, profiles)).find_map(|(profile, pools)| {
        let full = pools.iter().find(|pool| pool.size() == 0).map(ToString::to_string);
        let none = pools.iter().next().is_none().then(|| "[tunnel]".to_owned());
        Some((profile, full.or(none)?))
    });
    empty.map(|(profile, pool)| {
        format!(
            "the profile '{}' has no address left in {pool}; give it another pool, or the others smaller ones",
            profile.title()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccessProfiles, ServerConfig};

    fn tunnel() -> Tunnel {
        Tunnel {
            pool_v4: Some("10.86.0.0/24".parse().unwrap()),
            pool_v6: Some("fd00::/64".parse().unwrap()),
            ..Tunnel::default()
        }
    }

    fn parse(profiles: &str) -> Result<AccessProfiles, String> {
        let text = format!(
            "[tls]\ncertificate = 'a'\nkey = 'b'\n[tunnel]\npool_v4 = '10.86.0.0/24'\npool_v6 = 'fd00::/64'\n{profiles}"
        );
        let config = ServerConfig::parse(&text, "server.toml", std::path::Path::new("/"));
        config.map(|config| config.profiles).map_err(|invalid| invalid.to_string())
    }

    fn all(pool: &Pool) -> Vec<IpAddr> {
        (0..pool.size()).map(|number| pool.address(number)).collect()
    }

    #[test]
    fn pools_have_no_address_in_common_and_lose_none() {
        let profiles = parse(
            "[[profile]]\nname = 'staff'\nusers = 'a'\npool_v4 = '10.86.0.64/26'\n\
             [[profile]]\nname = 'labs'\nusers = 'b'\npool_v4 = '10.86.0.0/30'\npool_v6 = 'fd00::/96'\n\
             [[profile]]\nname = 'phones'\nusers = 'c'\npool_v4 = '10.86.0.64/26'\n\
             [[profile]]\nname = 'guests'\nusers = 'd'\npool_v4 = 'none'\n\
             [[profile]]\nname = 'others'\n",
        );
        let pools = profiles.unwrap().pools(&tunnel());
        let v4: Vec<_> = pools.iter().map(|pools| pools.v4.as_ref().map(all).unwrap_or_default()).collect();
        assert_eq!(v4[0], v4[2], "two may share one");
        assert_eq!(
            (v4[0].len(), v4[0][0].to_string(), v4[0][61].to_string().as_str()),
            (62, "10.86.0.65".to_owned(), "10.86.0.126")
        );
        assert_eq!(v4[1], ["10.86.0.2".parse::<IpAddr>().unwrap()], "the gateway has the first");
        assert!(v4[3].is_empty() && pools[3].v4.is_none() && pools[3].v6.is_some());
        // 253 can be leased; a part leases neither its network's nor its last address.
        assert_eq!(v4[4].len(), 253 - 64 - 2);
        let mut seen = std::collections::BTreeSet::new();
        for address in [&v4[0], &v4[1], &v4[4]].into_iter().flatten() {
            assert!(seen.insert(*address), "{address} is in two pools");
        }
        for (pools, own) in pools.iter().zip(&v4) {
            for last in 0..=255u8 {
                let address = IpAddr::from([10, 86, 0, last]);
                let contains = pools.v4.as_ref().is_some_and(|pool| pool.contains(address));
                assert_eq!(contains, own.contains(&address), "{address}");
            }
        }
        let v6 = |at: usize| pools[at].v6.as_ref().unwrap();
        assert_eq!((v6(1).address(0), v6(1).size()), ("fd00::2".parse().unwrap(), MAX_POOL));
        assert_eq!(v6(4).address(0), "fd00::1:0:0".parse::<IpAddr>().unwrap());
        assert!(!v6(1).contains("fd00::1".parse().unwrap()) && !v6(4).contains("fd00::5".parse().unwrap()));
        assert!(!v6(4).contains("fd00:0:0:0:ffff::".parse().unwrap()), "never leased");
    }

    #[test]
    fn addresses_fit_if_each_is_in_its_pool_and_none_is_missing() {
        let profiles =
            parse("[[profile]]\nname = 'six'\npool_v4 = 'none'\npool_v6 = 'fd00::1:0:0/96'\n").unwrap();
        let six = profiles.pools(&tunnel()).remove(0);
        let dual = Pools::rest(&tunnel(), &[]);
        let v4 = |text: &str| text.parse().ok();
        let v6 = |text: &str| text.parse().ok();
        assert!(six.fit(None, v6("fd00::1:0:7")) && dual.fit(v4("10.86.0.9"), v6("fd00::7")));
        for (pools, v4, v6) in [
            (&six, v4("10.86.0.9"), v6("fd00::1:0:7")),
            (&six, None, v6("fd00::7")),
            (&six, None, None),
            (&dual, v4("10.86.0.9"), None),
            (&dual, v4("10.86.0.1"), v6("fd00::7")),
            (&dual, v4("10.86.1.9"), v6("fd00::7")),
        ] {
            assert!(!pools.fit(v4, v6), "{v4:?} {v6:?}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, problem) in [
            ("pool_v4 = '10.86.0.1/26'", "server.toml:9: 'pool_v4' in [profile] has host bits set"),
            ("pool_v4 = '10.86.0.0/31'", "too small: 10.86.0.0/31; give it at least a /30"),
            ("pool_v4 = 'fd00::/64'", "must be an IPv4 network"),
            ("pool_v4 = '10.87.0.0/24'", "10.87.0.0/24 of the profile 'a' is no part of a pool of [tunnel]"),
            ("pool_v4 = 'none'\npool_v6 = 'none'", "only one of 'pool_v4' and 'pool_v6' can be"),
            ("pool_v4 = '10.86.0.0/25'\n[[profile]]\nname = 'b'\npool_v4 = '10.86.0.64/26'", "overlap"),
            (
                "pool_v4 = '10.86.0.0/24'\n[[profile]]\nname = 'b'",
                "the profile 'b' has no address left in 10.86.0.0/24",
            ),
        ] {
            let error = parse(&format!("[[profile]]\nname = 'a'\n{text}\n")).unwrap_err();
            assert!(error.contains(problem), "{text}\n{error}");
        }
        assert!(
            parse("[[profile]]\nname = 'a'\npool_v4 = '10.86.0.0/24'\n").is_ok(),
            "nobody needs the rest"
        );
    }
}
