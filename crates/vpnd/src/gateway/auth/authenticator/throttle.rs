//! Limits guesses: a wait that doubles with each failure, by user and network, and by host.
//!
//! Failures of a user count for the host they come from, its site and its provider. Those from everywhere together lock nobody
//! out: once there are many, each network that the user never came from may fail only once before it waits. So whoever
//! guesses from many addresses of one network gets as many guesses as that network, and whoever has many networks gets one from each.
//!
//! Invariants: guesses against a user slow down only the networks that they come from, as far as the user never came from
//! there; the tables have a fixed largest size; whether a user exists changes nothing. Times are passed in; a clock that is set back
//! makes nobody wait for longer than the longest wait.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use vpnd_proto::admission::{Network, Source};

/// Failures without a wait, for one user from one provider's network, one site, one host.
const FREE_BY_NETWORK: [u32; 3] = [40, 15, 5];
/// The same for each network that the user never came from, while the user is under attack.
const FREE_UNDER_ATTACK: u32 = 1;
/// So many failures of one user from anywhere are an attack.
const ATTACK: u32 = 50;
/// Failures without a wait, from one host for all users: many people may share an address.
const FREE_BY_HOST: u32 = 100;
/// The longest wait, seconds.
const MAX_WAIT_S: u64 = 300;
/// Failures are forgotten after this long without another, seconds.
const MEMORY_S: u64 = 1800;
/// Entries in each table.
const MAX_ENTRIES: usize = 16_384;
/// The longest name that has an entry of its own, in bytes: a user's name is shorter.
const MAX_NAME_BYTES: usize = 128;

/// Counts failures.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// From wide to narrow networks.
    by_network: [Table<(String, Network)>; 3],
    by_user: Table<String>,
    by_host: Table<Source>,
}

#[derive(Debug)]
struct Table<K>(HashMap<K, Failures>);

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last_s: u64,
}

impl Throttle {
    /// Seconds until the next guess is checked; `None` if it is checked now. `known` means that the user has
    /// come from this source, or with this device, before.
    pub(super) fn wait_s(&mut self, user: &str, from: Source, known: bool, now_s: u64) -> Option<u64> {
        let user = cut(user);
        let attacked = self.by_user.count(&user, now_s) >= ATTACK;
        let by_host = self.by_host.wait_s(&from, FREE_BY_HOST, now_s);
        let mut waits = Vec::new();
        for ((table, network), free) in self.by_network.iter_mut().zip(from.networks()).zip(FREE_BY_NETWORK) {
            let free = if attacked && !known { FREE_UNDER_ATTACK } else { free };
            waits.push(table.wait_s(&(user.clone(), network), free, now_s));
        }
        let own = waits.pop().unwrap_or(0);
        let shared = waits.into_iter().chain([by_host]).max().filter(|_| !known).unwrap_or(0);
        Some(own.max(shared)).filter(|wait| *wait > 0)
    }

    /// Counts a wrong guess.
    pub(super) fn failed(&mut self, user: &str, from: Source, now_s: u64) {
        let user = cut(user);
        for (table, network) in self.by_network.iter_mut().zip(from.networks()) {
            table.add((user.clone(), network), now_s);
        }
        self.by_user.add(user, now_s);
        self.by_host.add(from, now_s);
    }

    /// Takes one failure back: it was counted for a login that came to a good end.
    pub(super) fn withdrawn(&mut self, user: &str, from: Source) {
        let user = cut(user);
        for (table, network) in self.by_network.iter_mut().zip(from.networks()) {
            table.take_back(&(user.clone(), network));
        }
        self.by_user.take_back(&user);
        self.by_host.take_back(&from);
    }

    /// Forgets the failures of a user from the host they have just logged in from.
    pub(super) fn succeeded(&mut self, user: &str, from: Source) {
        let [_, _, by_host] = &mut self.by_network;
        let [_, _, host] = from.networks();
        by_host.0.remove(&(cut(user), host));
    }
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq + Clone> Table<K> {
    fn wait_s(&mut self, key: &K, free: u32, now_s: u64) -> u64 {
        let Some(failures) = self.0.get_mut(key).filter(|failures| failures.is_fresh(now_s)) else {
            return 0;
        };
        // What lies in the future happened before somebody set the clock back: at the latest now.
        failures.last_s = failures.last_s.min(now_s);
        let Some(beyond) = failures.count.checked_sub(free) else { return 0 };
        let wait = 1u64.checked_shl(beyond).unwrap_or(u64::MAX).min(MAX_WAIT_S);
        (failures.last_s + wait).saturating_sub(now_s)
    }

    fn count(&self, key: &K, now_s: u64) -> u32 {
        self.0.get(key).filter(|failures| failures.is_fresh(now_s)).map_or(0, |failures| failures.count)
    }

    fn add(&mut self, key: K, now_s: u64) {
        if self.0.len() >= MAX_ENTRIES && !self.0.contains_key(&key) {
            self.make_room(now_s);
        }
        let failures = self.0.entry(key).or_insert(Failures { count: 0, last_s: now_s });
        if !failures.is_fresh(now_s) {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last_s = now_s;
    }

    fn take_back(&mut self, key: &K) {
        let Some(failures) = self.0.get_mut(key) else { return };
        failures.count = failures.count.saturating_sub(1);
        if failures.count == 0 {
            self.0.remove(key);
        }
    }

    /// Drops what is forgotten, or else the entry with the fewest and oldest failures. The scan is short beside the
    /// hash that each failure has cost.
    fn make_room(&mut self, now_s: u64) {
        self.0.retain(|_, failures| failures.is_fresh(now_s));
        if self.0.len() < MAX_ENTRIES {
            return;
        }
        let least = self.0.iter().min_by_key(|(_, failures)| (failures.count, failures.last_s));
        if let Some(key) = least.map(|(key, _)| key.clone()) {
            self.0.remove(&key);
        }
    }
}

impl Failures {
    fn is_fresh(self, now_s: u64) -> bool {
        now_s.saturating_sub(self.last_s) < MEMORY_S
    }
}

/// The source as it is remembered: an IPv4 address, or an IPv6 /64, of which one host has all addresses.
pub(super) fn source_prefix(source: IpAddr) -> String {
    match source.to_canonical() {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => {
            let network = ipnet::Ipv6Net::new(v6, 64).expect("64 is a prefix length of IPv6");
            network.trunc().to_string()
        }
    }
}

fn cut(user: &str) -> String {
    let end = (0..=user.len().min(MAX_NAME_BYTES)).rev().find(|end| user.is_char_boundary(*end));
    user[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(address: &str) -> Source {
        Source::from(address.parse::<IpAddr>().unwrap())
    }

    fn fail(throttle: &mut Throttle, user: &str, from: Source, times: u32, now_s: u64) {
        for _ in 0..times {
            throttle.failed(user, from, now_s);
        }
    }

    #[test]
    fn the_wait_doubles_up_to_its_limit_and_is_forgotten() {
        let mut throttle = Throttle::default();
        let (a, b) = (host("192.0.2.1"), host("198.51.100.1"));
        fail(&mut throttle, "ann", a, 4, 1000);
        assert_eq!(throttle.wait_s("ann", a, false, 1000), None);
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            throttle.failed("ann", a, 1000);
            assert_eq!(throttle.wait_s("ann", a, true, 1000), Some(wait));
            assert_eq!(throttle.wait_s("ann", a, true, 1000 + wait), None);
        }
        assert_eq!(throttle.wait_s("ann", b, false, 1000), None, "another place");
        assert_eq!(throttle.wait_s("bob", a, false, 1000), None, "another user");
        fail(&mut throttle, "ann", a, 1, 1000 + MEMORY_S);
        assert_eq!(throttle.wait_s("ann", a, false, 1000 + MEMORY_S), None, "the old ones are forgotten");
    }

    #[test]
    fn a_clock_that_is_set_locks_nobody_out_and_lets_nobody_guess_at_once() {
        const YEAR_S: u64 = 365 * 86_400;
        let mut throttle = Throttle::default();
        let a = host("192.0.2.1");
        fail(&mut throttle, "ann", a, 10, 2 * YEAR_S);
        let wait = throttle.wait_s("ann", a, false, 2 * YEAR_S).unwrap();
        assert_eq!(
            throttle.wait_s("ann", a, false, YEAR_S),
            Some(wait),
            "a year back: the wait begins again"
        );
        assert_eq!(throttle.wait_s("ann", a, false, YEAR_S + wait), None, "and is over as soon");
        fail(&mut throttle, "bob", a, 10, YEAR_S);
        assert_eq!(throttle.wait_s("bob", a, false, 2 * YEAR_S), None, "a year on: forgotten");
        fail(&mut throttle, "bob", a, 6, 2 * YEAR_S);
        assert!(throttle.wait_s("bob", a, false, 2 * YEAR_S).is_some(), "and counted anew");
    }

    /// Counts the guesses that are checked, if each is made as soon as it may be or not at all.
    fn looked_at(
        throttle: &mut Throttle,
        user: &str,
        from: impl Iterator<Item = Source>,
        now_s: u64,
    ) -> usize {
        let looked_at = |from: &Source| {
            let looked_at = throttle.wait_s(user, *from, false, now_s).is_none();
            if looked_at {
                throttle.failed(user, *from, now_s);
            }
            looked_at
        };
        from.filter(looked_at).count()
    }

    #[test]
    fn a_network_has_no_more_guesses_for_having_many_addresses() {
        let mut throttle = Throttle::default();
        let site = |number: u64| {
            Source::from(IpAddr::from(std::net::Ipv4Addr::from_bits(0xC000_0200 | number as u32)))
        };
        assert_eq!(looked_at(&mut throttle, "ann", (0..250).map(site), 1000), 15);
        let provider = |number: u64| {
            let bits = 0x2001_0db8_0001_0000_u64 | number << 6;
            Source::from(IpAddr::from(std::net::Ipv6Addr::from_bits(u128::from(bits) << 64)))
        };
        assert_eq!(
            looked_at(&mut throttle, "ann", (0..1_000).map(provider), 1000),
            35,
            "what made it an attack"
        );
        assert_eq!(looked_at(&mut throttle, "bob", (0..1_000).map(provider), 1000), 40);
    }

    #[test]
    fn an_attack_on_a_user_locks_nobody_out_of_another_network() {
        let mut throttle = Throttle::default();
        let botnet =
            |number: u64| Source::from(IpAddr::from(std::net::Ipv4Addr::from_bits((number as u32) << 16)));
        let guesses = (0..5).flat_map(|_| (0..200).map(botnet));
        assert_eq!(looked_at(&mut throttle, "ann", guesses, 1000), 200, "one from each");
        let new = host("203.0.113.9");
        assert_eq!(throttle.wait_s("ann", new, false, 1000), None, "a place that she never came from");
        throttle.failed("ann", new, 1000);
        assert!(throttle.wait_s("ann", new, false, 1000).is_some(), "but she may not mistype there");
        assert_eq!(throttle.wait_s("ann", new, true, 1000), None, "unless she is known");
        fail(&mut throttle, "ann", new, 10, 1000);
        assert!(
            throttle.wait_s("ann", new, true, 1000).is_some(),
            "guessing from there is slow all the same"
        );
    }

    #[test]
    fn one_host_that_tries_many_users_slows_down() {
        let mut throttle = Throttle::default();
        let attacker = host("192.0.2.1");
        for i in 0..=FREE_BY_HOST {
            throttle.failed(&format!("user{i}"), attacker, 1000);
        }
        assert!(throttle.wait_s("fresh", attacker, false, 1000).is_some());
        assert_eq!(throttle.wait_s("fresh", host("192.0.2.2"), false, 1000), None);
    }

    #[test]
    fn what_is_taken_back_never_was() {
        let mut throttle = Throttle::default();
        let a = host("192.0.2.1");
        for _ in 0..500 {
            throttle.failed("ann", a, 1000);
            throttle.withdrawn("ann", a);
        }
        assert_eq!(throttle.wait_s("ann", a, false, 1000), None);
        assert!(
            throttle.by_user.0.is_empty()
                && throttle.by_host.0.is_empty()
                && throttle.by_network[0].0.is_empty()
        );
    }

    #[test]
    fn memory_is_bounded_and_the_worst_stay() {
        let mut throttle = Throttle::default();
        let (a, b) = (host("192.0.2.1"), host("198.51.100.1"));
        fail(&mut throttle, "ann", a, 20, 1000);
        for i in 0..MAX_ENTRIES + 50 {
            throttle.by_network[2].add((format!("user{i}"), b.networks()[2]), 1001);
        }
        assert_eq!(throttle.by_network[2].0.len(), MAX_ENTRIES);
        assert!(throttle.wait_s("ann", a, true, 1001).is_some());
        assert_eq!(cut(&"é".repeat(100)).len(), 128);
    }

    #[test]
    fn an_ipv6_network_is_one_place() {
        assert_eq!(
            source_prefix("2001:db8::1".parse().unwrap()),
            source_prefix("2001:db8::2".parse().unwrap())
        );
        assert_ne!(
            source_prefix("2001:db8::1".parse().unwrap()),
            source_prefix("2001:db8:0:1::1".parse().unwrap())
        );
        assert_eq!(source_prefix("::ffff:192.0.2.1".parse().unwrap()), "192.0.2.1");
    }
}
