//! How fast one may guess: a wait that doubles with each failure, by user and place, by user, and by place.
//!
//! Invariants: guesses against a user from many places slow down only places that the user never came from; the
//! tables have a fixed largest size; whether a user exists changes nothing. Times are passed in; a clock that is set back
//! makes nobody wait for longer than the longest wait.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

/// Failures without a wait, for one user from one place.
const FREE_BY_PAIR: u32 = 5;
/// Failures without a wait, for one user from all places unknown to them.
const FREE_BY_USER: u32 = 50;
/// Failures without a wait, from one place for all users: many people may share an address.
const FREE_BY_PLACE: u32 = 100;
/// The longest wait, seconds.
const MAX_WAIT_S: u64 = 300;
/// Failures are forgotten after this long without another, seconds.
const MEMORY_S: u64 = 1800;
/// Entries in each table.
const MAX_ENTRIES: usize = 16_384;
/// The longest name that is told apart, in bytes: a user's name is shorter.
const MAX_NAME_BYTES: usize = 128;

/// Counts failures.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    by_pair: Table<(String, String)>,
    by_user: Table<String>,
    by_place: Table<String>,
}

#[derive(Debug)]
struct Table<K>(HashMap<K, Failures>);

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last_s: u64,
}

impl Throttle {
    /// How many seconds to wait before a guess is looked at; `None` if it may be now. `known` says that the user has
    /// come from this place before.
    pub(super) fn wait_s(&mut self, user: &str, place: &str, known: bool, now_s: u64) -> Option<u64> {
        let user = cut(user);
        let pair = self.by_pair.wait_s(&(user.clone(), place.to_owned()), FREE_BY_PAIR, now_s);
        let shared = [
            self.by_user.wait_s(&user, FREE_BY_USER, now_s),
            self.by_place.wait_s(&place.to_owned(), FREE_BY_PLACE, now_s),
        ];
        let shared = shared.into_iter().max().filter(|_| !known).unwrap_or(0);
        Some(pair.max(shared)).filter(|wait| *wait > 0)
    }

    /// Counts a wrong guess.
    pub(super) fn failed(&mut self, user: &str, place: &str, now_s: u64) {
        let user = cut(user);
        self.by_pair.add((user.clone(), place.to_owned()), now_s);
        self.by_user.add(user, now_s);
        self.by_place.add(place.to_owned(), now_s);
    }

    /// Forgets the failures of a user from the place they have just logged in from.
    pub(super) fn succeeded(&mut self, user: &str, place: &str) {
        self.by_pair.0.remove(&(cut(user), place.to_owned()));
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

/// What counts as one place: an IPv4 address, or an IPv6 /64, of which one host has all addresses.
pub(super) fn place(source: IpAddr) -> String {
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

    fn fail(throttle: &mut Throttle, user: &str, place: &str, times: u32, now_s: u64) {
        for _ in 0..times {
            throttle.failed(user, place, now_s);
        }
    }

    #[test]
    fn the_wait_doubles_up_to_its_limit_and_is_forgotten() {
        let mut throttle = Throttle::default();
        fail(&mut throttle, "ann", "a", 4, 1000);
        assert_eq!(throttle.wait_s("ann", "a", false, 1000), None);
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            throttle.failed("ann", "a", 1000);
            assert_eq!(throttle.wait_s("ann", "a", false, 1000), Some(wait));
            assert_eq!(throttle.wait_s("ann", "a", false, 1000 + wait), None);
        }
        assert_eq!(throttle.wait_s("ann", "b", false, 1000), None, "another place");
        assert_eq!(throttle.wait_s("bob", "a", false, 1000), None, "another user");
        fail(&mut throttle, "ann", "a", 1, 1000 + MEMORY_S);
        assert_eq!(throttle.wait_s("ann", "a", false, 1000 + MEMORY_S), None, "the old ones are forgotten");
    }

    #[test]
    fn a_clock_that_is_set_locks_nobody_out_and_lets_nobody_guess_at_once() {
        const YEAR_S: u64 = 365 * 86_400;
        let mut throttle = Throttle::default();
        fail(&mut throttle, "ann", "a", 10, 2 * YEAR_S);
        let wait = throttle.wait_s("ann", "a", false, 2 * YEAR_S).unwrap();
        assert_eq!(
            throttle.wait_s("ann", "a", false, YEAR_S),
            Some(wait),
            "a year back: the wait begins again"
        );
        assert_eq!(throttle.wait_s("ann", "a", false, YEAR_S + wait), None, "and is over as soon");
        fail(&mut throttle, "bob", "a", 10, YEAR_S);
        assert_eq!(throttle.wait_s("bob", "a", false, 2 * YEAR_S), None, "a year on: forgotten");
        fail(&mut throttle, "bob", "a", 6, 2 * YEAR_S);
        assert!(throttle.wait_s("bob", "a", false, 2 * YEAR_S).is_some(), "and counted anew");
    }

    #[test]
    fn a_person_is_not_locked_out_of_a_place_they_know() {
        let mut throttle = Throttle::default();
        for i in 0..200 {
            throttle.failed("ann", &format!("attacker {i}"), 1000);
        }
        assert!(throttle.wait_s("ann", "elsewhere", false, 1000).is_some());
        assert_eq!(throttle.wait_s("ann", "home", true, 1000), None);
        fail(&mut throttle, "ann", "home", 10, 1000);
        assert!(
            throttle.wait_s("ann", "home", true, 1000).is_some(),
            "guessing from there is slow all the same"
        );
    }

    #[test]
    fn one_place_that_tries_many_users_slows_down() {
        let mut throttle = Throttle::default();
        for i in 0..=FREE_BY_PLACE {
            throttle.failed(&format!("user{i}"), "attacker", 1000);
        }
        assert!(throttle.wait_s("fresh", "attacker", false, 1000).is_some());
        assert_eq!(throttle.wait_s("fresh", "home", false, 1000), None);
    }

    #[test]
    fn memory_is_bounded_and_the_worst_stay() {
        let mut throttle = Throttle::default();
        fail(&mut throttle, "ann", "a", 20, 1000);
        for i in 0..MAX_ENTRIES + 50 {
            throttle.by_pair.add((format!("user{i}"), "b".to_owned()), 1001);
        }
        assert_eq!(throttle.by_pair.0.len(), MAX_ENTRIES);
        assert!(throttle.wait_s("ann", "a", false, 1001).is_some());
        assert_eq!(cut(&"é".repeat(100)).len(), 128);
    }

    #[test]
    fn an_ipv6_network_is_one_place() {
        assert_eq!(place("2001:db8::1".parse().unwrap()), place("2001:db8::2".parse().unwrap()));
        assert_ne!(place("2001:db8::1".parse().unwrap()), place("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(place("::ffff:192.0.2.1".parse().unwrap()), "192.0.2.1");
    }
}
