//! Limits guesses: a wait that doubles with each failure, by person and network, and a pace for
//! each network over all persons.
//!
//! A guess is checked and counted in one step, before anything looks at the password
//! ([`Throttle::admit`]), and taken back if it turns out to be none: so those that come at the same
//! time are no more than those that come one after the other. Failures of a person count for the
//! host they come from, its site and its provider. Those from everywhere together lock no user out:
//! once there are many, each network that the user never came from may fail only once before it
//! waits. So an attacker with many addresses of one network gets as many guesses as that
//! network, and one with many networks gets one guess from each.
//!
//! The portal has a separate throttle, since addresses of its logins are what the portal says. If
//! it was taken over they are invented, so there a person and all persons together have a budget
//! besides, whatever the address: one for guesses from networks that their users are said to have
//! come from, another for the rest, so that strangers don't use up what users need at home.
//!
//! Invariants: guesses against a user slow down only the networks that they come from, as far as
//! the user never came from there; the tables have a fixed largest size; whether a user exists
//! changes nothing; a person is one, however the name is spelled, and as soon as it is known which
//! entry of a source that is, whatever the name. Times are passed in; a clock that is set back
//! makes no wait longer than the longest one.

mod shared;

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use sha2::{Digest as _, Sha256};
use vpnd_proto::admission::{Network, Source};

use shared::Shared;
use vpnd_config::user_name;
use vpnd_store::{LOCAL, User};

/// Failures without a wait, for one person from one provider's network, one site, one host.
const FREE_BY_NETWORK: [u32; 3] = [40, 15, 5];
/// Free failures of each network that the user never came from, while the user is under attack.
const FREE_UNDER_ATTACK: u32 = 1;
/// This many failures of one user from anywhere are an attack.
const ATTACK: u32 = 50;
/// Failures of all persons together without a wait, from one provider's network, one site, one
/// host: many people may share them.
const FREE_OF_ALL: [u64; 3] = [1_600, 400, 100];
/// The time in which that many are forgotten, one after the other, seconds.
const MEMORY_OF_ALL_S: u64 = 4 * 3600;
/// Failures of one person at the portal without a wait, from anywhere. In a day that is no more
/// than one address gets, whose longest wait is [`MAX_WAIT_S`].
const FREE_AT_PORTAL: u64 = 40;
/// Free failures of all persons together: as for one provider's network, which many people share.
const FREE_OF_ALL_AT_PORTAL: u64 = FREE_OF_ALL[0];
/// [`FREE_OF_ALL`] at the portal: no network uses up what all have, so a customer with a /48 keeps
/// no other network out.
const FREE_OF_ALL_BY_NETWORK_AT_PORTAL: [u64; 3] = [FREE_OF_ALL_AT_PORTAL / 4, 200, 100];
/// The longest wait, seconds.
const MAX_WAIT_S: u64 = 300;
/// Failures of a person are forgotten after this long without another, seconds.
const MEMORY_S: u64 = 1800;
/// Entries in each table.
const MAX_ENTRIES: usize = 16_384;

/// The account whose password is guessed, as far as is known: any account of a name, in the form
/// that [`user_name::folded`] gives it, or the entry of a source, which may have several names. A
/// hash, so that the database of a fleet does not get what strangers type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Person([u8; 32]);

/// A guess that was admitted and has counted since.
#[derive(Debug)]
pub(super) struct Guess {
    person: Person,
    from: Source,
    known: bool,
    at_s: u64,
    /// When the ones before it were counted, as far as they count still.
    before_s: Before,
    /// In a fleet, its number at this gateway.
    number: u64,
}

/// By network, and by person.
type Before = ([Option<u64>; 3], Option<u64>);

/// Counts failures.
#[derive(Debug)]
pub(super) struct Throttle {
    /// From wide to narrow networks.
    by_network: [Table<(Person, Network)>; 3],
    by_person: Table<Person>,
    of_all: [Pace<Network>; 3],
    /// The portal's budgets, for guesses from unknown and from known networks.
    at_portal: Option<[Budget; 2]>,
    /// The entries of names that sources have looked up.
    entries: HashMap<Person, Person>,
    /// `None` unless the gateway is one of a fleet.
    shared: Option<Shared>,
}

#[derive(Debug)]
struct Table<K>(HashMap<K, Failures>);

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last_s: u64,
}

/// Failures, each of which is forgotten after the one before.
#[derive(Debug)]
struct Pace<K> {
    /// The time in which one is forgotten.
    each_ms: u64,
    levels: HashMap<K, Level>,
}

/// Failures whatever the address: of each person, and of all.
#[derive(Debug)]
struct Budget {
    by_person: Pace<Person>,
    of_all: Pace<()>,
}

/// The time in which all of them were forgotten, if there were no more.
#[derive(Clone, Copy, Debug)]
struct Level {
    left_ms: u64,
    at_s: u64,
}

impl Guess {
    /// Whether the user has come from this source, or with this device, before.
    pub(super) fn is_known(&self) -> bool {
        self.known
    }
}

impl Person {
    /// An account that logs in by this name; `user` is their record here, if there is one.
    pub(super) fn of(typed: &str, user: Option<&User>) -> Self {
        match user {
            Some(user) if user.source != LOCAL => Self::entry(&user.source, &user.subject),
            _ => Self::named(typed),
        }
    }

    pub(super) fn entry(source: &str, subject: &str) -> Self {
        Self(Sha256::new().chain_update(source).chain_update([0]).chain_update(subject).finalize().into())
    }

    pub(super) fn named(typed: &str) -> Self {
        // No source has an empty name.
        Self::entry("", &user_name::folded(typed))
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self {
            by_network: Default::default(),
            by_person: Table::default(),
            of_all: FREE_OF_ALL.map(Pace::new),
            at_portal: None,
            entries: HashMap::new(),
            shared: None,
        }
    }
}

impl Throttle {
    /// A throttle for logins whose addresses the portal states.
    pub(super) fn at_portal() -> Self {
        let budget =
            || Budget { by_person: Pace::new(FREE_AT_PORTAL), of_all: Pace::new(FREE_OF_ALL_AT_PORTAL) };
        let of_all = FREE_OF_ALL_BY_NETWORK_AT_PORTAL.map(Pace::new);
        Self { at_portal: Some([budget(), budget()]), of_all, ..Self::default() }
    }

    /// Admits a guess and counts it, or returns the seconds until the next one is admitted. `known`
    /// means that the user has come from this source, or with this device, before.
    pub(super) fn admit(
        &mut self,
        person: Person,
        from: Source,
        known: bool,
        now_s: u64,
    ) -> Result<Guess, u64> {
        let person = self.resolve(person);
        match self.wait_s(&person, from, known, now_s) {
            Some(wait_s) => Err(wait_s),
            None => Ok(self.count(person, from, known, now_s)),
        }
    }

    /// Counts a login by which nothing can be guessed until it is over. It waits for nothing, or
    /// strangers' failures would keep people out whose source has shown who they are.
    pub(super) fn count_shown(&mut self, person: Person, from: Source, known: bool, now_s: u64) -> Guess {
        let person = self.resolve(person);
        self.count(person, from, known, now_s)
    }

    /// Seconds until the next guess is admitted; `None` if it is now.
    pub(super) fn wait_s(&mut self, person: &Person, from: Source, known: bool, now_s: u64) -> Option<u64> {
        self.wait_beyond_s(person, from, known, now_s, 0)
    }

    /// The wait if this many `more` failures had been counted just now of each that has failed
    /// before.
    fn wait_beyond_s(
        &mut self,
        person: &Person,
        from: Source,
        known: bool,
        now_s: u64,
        more: u32,
    ) -> Option<u64> {
        let person = self.resolve(*person);
        let attacked = self.by_person.count(&person, now_s) >= ATTACK;
        let networks = from.networks();
        let mut waits = Vec::new();
        for ((table, network), free) in self.by_network.iter_mut().zip(networks).zip(FREE_BY_NETWORK) {
            let free = if attacked && !known { FREE_UNDER_ATTACK } else { free };
            waits.push(table.wait_s(&(person, network), free, now_s, more));
        }
        let own = waits.pop().unwrap_or(0);
        let of_all =
            self.of_all.iter_mut().zip(networks).map(|(pace, network)| pace.wait_s(&network, now_s, more));
        let shared = waits.into_iter().chain(of_all).max().filter(|_| !known).unwrap_or(0);
        let budget = self.budget(known).map_or(0, |budget| budget.wait_s(&person, now_s, more));
        Some(own.max(shared).max(budget)).filter(|wait| *wait > 0)
    }

    /// Seconds until another guess like this one is admitted; `None` if that is now.
    pub(super) fn wait_after_s(&mut self, guess: &Guess, now_s: u64) -> Option<u64> {
        self.wait_s(&guess.person, guess.from, guess.known, now_s)
    }

    /// It was none: nothing was checked, or all of it was right.
    pub(super) fn take_back(&mut self, guess: Guess) {
        self.discount(&guess);
        if let Some(shared) = &mut self.shared {
            shared.taken_back(&guess);
        }
    }

    /// It was none, and the person is let in: forgets the failures from their host.
    pub(super) fn succeeded(&mut self, guess: Guess) {
        let (person, from, at_s) = (guess.person, guess.from, guess.at_s);
        self.take_back(guess);
        let had_failed = self.forgive(person, from);
        if let Some(shared) = self.shared.as_mut().filter(|_| had_failed) {
            shared.forgiven(person, from, at_s);
        }
    }

    /// Forgets the failures of a person from a host; whether there were any.
    fn forgive(&mut self, person: Person, from: Source) -> bool {
        let ([_, _, host], person) = (from.networks(), self.resolve(person));
        let [_, _, by_host] = &mut self.by_network;
        by_host.0.remove(&(person, host)).is_some()
    }

    /// The name has led to this entry of its source: from now on guesses by that name count for it,
    /// earlier ones included.
    pub(super) fn is_entry(&mut self, name: &str, entry: Person) {
        let named = Person::named(name);
        if self.resolve(named) == entry {
            return;
        }
        for table in &mut self.by_network {
            table.rename(|(person, network)| (*person == named).then_some((entry, *network)));
        }
        self.by_person.rename(|person| (*person == named).then_some(entry));
        for budget in self.at_portal.iter_mut().flatten() {
            budget.by_person.rename(&named, &entry);
        }
        if self.entries.len() >= MAX_ENTRIES && !self.entries.contains_key(&named) {
            // Any other: its name is looked up again.
            self.entries.extract_if(|_, _| true).next();
        }
        self.entries.insert(named, entry);
    }

    fn resolve(&self, person: Person) -> Person {
        self.entries.get(&person).copied().unwrap_or(person)
    }

    fn budget(&mut self, known: bool) -> Option<&mut Budget> {
        let [unknown, of_known] = self.at_portal.as_mut()?;
        Some(if known { of_known } else { unknown })
    }

    fn count(&mut self, person: Person, from: Source, known: bool, now_s: u64) -> Guess {
        let mut guess = self.tally(person, from, known, now_s);
        if let Some(shared) = &mut self.shared {
            guess.number = shared.counted(&guess);
        }
        guess
    }

    fn tally(&mut self, person: Person, from: Source, known: bool, now_s: u64) -> Guess {
        for (pace, network) in self.of_all.iter_mut().zip(from.networks()) {
            pace.add(network, now_s);
        }
        if let Some(budget) = self.budget(known) {
            budget.by_person.add(person, now_s);
            budget.of_all.add((), now_s);
        }
        let before_s = self.count_person(person, from, now_s);
        Guess { person, from, known, at_s: now_s, before_s, number: 0 }
    }

    fn count_person(&mut self, person: Person, from: Source, now_s: u64) -> Before {
        let mut before_s = [None; 3];
        let tables = self.by_network.iter_mut().zip(from.networks());
        for ((table, network), before_s) in tables.zip(&mut before_s) {
            *before_s = table.add((person, network), now_s);
        }
        (before_s, self.by_person.add(person, now_s))
    }

    fn discount(&mut self, guess: &Guess) {
        let Guess { from, at_s, before_s: (by_network, by_person), .. } = guess;
        for (pace, network) in self.of_all.iter_mut().zip(from.networks()) {
            pace.take_back(&network);
        }
        let person = self.resolve(guess.person);
        let tables = self.by_network.iter_mut().zip(from.networks());
        for ((table, network), before_s) in tables.zip(by_network) {
            table.take_back(&(person, network), *at_s, *before_s);
        }
        self.by_person.take_back(&person, *at_s, *by_person);
        if let Some(budget) = self.budget(guess.known) {
            budget.by_person.take_back(&person);
            budget.of_all.take_back(&());
        }
    }
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq + Clone> Table<K> {
    fn wait_s(&mut self, key: &K, free: u32, now_s: u64, more: u32) -> u64 {
        let Some(failures) = self.0.get_mut(key).filter(|failures| failures.is_fresh(now_s)) else {
            return 0;
        };
        // A time in the future is from before the clock was set back: it counts as now.
        failures.last_s = failures.last_s.min(now_s);
        let Some(beyond) = failures.count.saturating_add(more).checked_sub(free) else { return 0 };
        let wait = 1u64.checked_shl(beyond).unwrap_or(u64::MAX).min(MAX_WAIT_S);
        let last_s = if more > 0 { now_s } else { failures.last_s };
        (last_s + wait).saturating_sub(now_s)
    }

    fn count(&self, key: &K, now_s: u64) -> u32 {
        self.0.get(key).filter(|failures| failures.is_fresh(now_s)).map_or(0, |failures| failures.count)
    }

    /// Counts one. Returns when the one before was counted, if that counts still.
    fn add(&mut self, key: K, now_s: u64) -> Option<u64> {
        if self.0.len() >= MAX_ENTRIES && !self.0.contains_key(&key) {
            self.make_room(now_s);
        }
        let failures = self.0.entry(key).or_insert(Failures { count: 0, last_s: now_s });
        if !failures.is_fresh(now_s) {
            failures.count = 0;
        }
        let before_s = (failures.count > 0).then_some(failures.last_s);
        failures.count = failures.count.saturating_add(1);
        failures.last_s = failures.last_s.max(now_s);
        before_s
    }

    /// Takes back what was counted at `at_s`. If nothing was counted since, the wait is that of
    /// before, too.
    fn take_back(&mut self, key: &K, at_s: u64, before_s: Option<u64>) {
        let Some(failures) = self.0.get_mut(key) else { return };
        failures.count = failures.count.saturating_sub(1);
        if failures.count == 0 {
            self.0.remove(key);
        } else if failures.last_s == at_s {
            failures.last_s = before_s.unwrap_or(at_s);
        }
    }

    /// Counts the failures of a key for the other one that `renamed` gives for it, if any.
    fn rename(&mut self, renamed: impl Fn(&K) -> Option<K>) {
        let found: Vec<_> = self.0.keys().filter_map(|key| Some((key.clone(), renamed(key)?))).collect();
        for (key, other) in found {
            let Some(failures) = self.0.remove(&key) else { continue };
            let all = self.0.entry(other).or_insert(Failures { count: 0, last_s: failures.last_s });
            all.count = all.count.saturating_add(failures.count);
            all.last_s = all.last_s.max(failures.last_s);
        }
    }

    /// Drops what is forgotten, or else the entry with the fewest and oldest failures. The scan is
    /// short compared with the hash or the request to a source that each failure costs.
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

impl Budget {
    fn wait_s(&mut self, person: &Person, now_s: u64, more: u32) -> u64 {
        self.by_person.wait_s(person, now_s, more).max(self.of_all.wait_s(&(), now_s, more))
    }
}

impl<K: Hash + Eq + Clone> Pace<K> {
    const MEMORY_MS: u64 = MEMORY_OF_ALL_S * 1000;

    fn new(free: u64) -> Self {
        Self { each_ms: Self::MEMORY_MS / free, levels: HashMap::new() }
    }

    fn wait_s(&mut self, key: &K, now_s: u64, more: u32) -> u64 {
        let Some(level) = self.levels.get_mut(key) else { return 0 };
        level.advance(now_s);
        if level.left_ms == 0 {
            return 0;
        }
        let next_ms = self.each_ms * (1 + u64::from(more));
        (level.left_ms + next_ms).saturating_sub(Self::MEMORY_MS).div_ceil(1000)
    }

    fn add(&mut self, key: K, now_s: u64) {
        if self.levels.len() >= MAX_ENTRIES && !self.levels.contains_key(&key) {
            self.make_room(now_s);
        }
        let level = self.levels.entry(key).or_insert(Level { left_ms: 0, at_s: now_s });
        level.advance(now_s);
        // Failures beyond the free ones were counted for users who don't wait for others.
        level.left_ms = (level.left_ms + self.each_ms).min(2 * Self::MEMORY_MS);
    }

    fn take_back(&mut self, key: &K) {
        if let Some(level) = self.levels.get_mut(key) {
            level.left_ms = level.left_ms.saturating_sub(self.each_ms);
        }
    }

    /// Counts the failures of a key for another one.
    fn rename(&mut self, key: &K, other: &K) {
        let Some(level) = self.levels.remove(key) else { return };
        let all = self.levels.entry(other.clone()).or_insert(Level { left_ms: 0, at_s: level.at_s });
        all.left_ms = (all.left_ms + level.left_ms).min(2 * Self::MEMORY_MS);
    }

    fn make_room(&mut self, now_s: u64) {
        self.levels.retain(|_, level| {
            level.advance(now_s);
            level.left_ms > 0
        });
        if self.levels.len() < MAX_ENTRIES {
            return;
        }
        let least = self.levels.iter().min_by_key(|(_, level)| level.left_ms).map(|(key, _)| key.clone());
        least.and_then(|key| self.levels.remove(&key));
    }
}

impl Level {
    /// A clock that was set back forgets nothing, and makes nothing last longer.
    fn advance(&mut self, now_s: u64) {
        let passed_s = now_s.saturating_sub(self.at_s);
        *self = Self { left_ms: self.left_ms.saturating_sub(passed_s.saturating_mul(1000)), at_s: now_s };
    }
}

impl Failures {
    fn is_fresh(self, now_s: u64) -> bool {
        now_s.saturating_sub(self.last_s) < MEMORY_S
    }
}

/// The source as it is remembered: an IPv4 address, or an IPv6 /64, of which one host has all
/// addresses.
pub(super) fn source_prefix(source: IpAddr) -> String {
    match source.to_canonical() {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => {
            let network = ipnet::Ipv6Net::new(v6, 64).expect("64 is a prefix length of IPv6");
            network.trunc().to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(address: &str) -> Source {
        Source::from(address.parse::<IpAddr>().unwrap())
    }

    fn fail(throttle: &mut Throttle, user: &str, from: Source, times: u32, now_s: u64) {
        for _ in 0..times {
            throttle.count(Person::named(user), from, false, now_s);
        }
    }

    fn wait_s(throttle: &mut Throttle, user: &str, from: Source, known: bool, now_s: u64) -> Option<u64> {
        throttle.wait_s(&Person::named(user), from, known, now_s)
    }

    #[test]
    fn the_wait_doubles_up_to_its_limit_and_is_forgotten() {
        let mut throttle = Throttle::default();
        let (a, b) = (host("192.0.2.1"), host("198.51.100.1"));
        fail(&mut throttle, "ann", a, 4, 1000);
        assert_eq!(wait_s(&mut throttle, "ann", a, false, 1000), None);
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            fail(&mut throttle, "ann", a, 1, 1000);
            assert_eq!(wait_s(&mut throttle, "ann", a, true, 1000), Some(wait));
            assert_eq!(wait_s(&mut throttle, "ann", a, true, 1000 + wait), None);
        }
        assert_eq!(wait_s(&mut throttle, "ann", b, false, 1000), None, "another place");
        assert_eq!(wait_s(&mut throttle, "bob", a, false, 1000), None, "another user");
        fail(&mut throttle, "ann", a, 1, 1000 + MEMORY_S);
        assert_eq!(
            wait_s(&mut throttle, "ann", a, false, 1000 + MEMORY_S),
            None,
            "the old ones are forgotten"
        );
    }

    #[test]
    fn clock_steps_neither_lengthen_nor_clear_the_throttle() {
        const YEAR_S: u64 = 365 * 86_400;
        let mut throttle = Throttle::default();
        let a = host("192.0.2.1");
        fail(&mut throttle, "ann", a, 10, 2 * YEAR_S);
        let wait = wait_s(&mut throttle, "ann", a, false, 2 * YEAR_S).unwrap();
        assert_eq!(
            wait_s(&mut throttle, "ann", a, false, YEAR_S),
            Some(wait),
            "a year back: the wait begins again"
        );
        assert_eq!(wait_s(&mut throttle, "ann", a, false, YEAR_S + wait), None, "and is over as soon");
        fail(&mut throttle, "bob", a, 10, YEAR_S);
        assert_eq!(wait_s(&mut throttle, "bob", a, false, 2 * YEAR_S), None, "a year on: forgotten");
        fail(&mut throttle, "bob", a, 6, 2 * YEAR_S);
        assert!(wait_s(&mut throttle, "bob", a, false, 2 * YEAR_S).is_some(), "and counted anew");
    }

    /// Counts the guesses that are checked, if each is made as soon as it may be or not at all.
    fn looked_at(
        throttle: &mut Throttle,
        user: &str,
        from: impl Iterator<Item = Source>,
        now_s: u64,
    ) -> usize {
        let looked_at = |from: &Source| throttle.admit(Person::named(user), *from, false, now_s).is_ok();
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
    fn an_attack_on_a_user_does_not_block_other_networks() {
        let mut throttle = Throttle::default();
        let botnet =
            |number: u64| Source::from(IpAddr::from(std::net::Ipv4Addr::from_bits((number as u32) << 16)));
        let guesses = (0..5).flat_map(|_| (0..200).map(botnet));
        assert_eq!(looked_at(&mut throttle, "ann", guesses, 1000), 200, "one from each");
        let new = host("203.0.113.9");
        assert_eq!(wait_s(&mut throttle, "ann", new, false, 1000), None, "a place that she never came from");
        fail(&mut throttle, "ann", new, 1, 1000);
        assert!(wait_s(&mut throttle, "ann", new, false, 1000).is_some(), "but she may not mistype there");
        assert_eq!(wait_s(&mut throttle, "ann", new, true, 1000), None, "unless she is known");
        fail(&mut throttle, "ann", new, 10, 1000);
        assert!(
            wait_s(&mut throttle, "ann", new, true, 1000).is_some(),
            "guessing from there is slow all the same"
        );
    }

    #[test]
    fn a_network_that_tries_many_users_slows_down() {
        let mut throttle = Throttle::default();
        let try_all = |throttle: &mut Throttle, from: fn(u32) -> Source, now_s| {
            let guess =
                |i: &u32| throttle.admit(Person::named(&format!("user{i}")), from(*i), false, now_s).is_ok();
            (0..4_000).filter(guess).count()
        };
        let address = |bits: u32| Source::from(IpAddr::from(std::net::Ipv4Addr::from_bits(bits)));
        let of_host = |_| host("192.0.2.1");
        assert_eq!(try_all(&mut throttle, of_host, 1000), 100);
        assert_eq!(wait_s(&mut throttle, "fresh", host("192.0.2.1"), false, 1000), Some(144));
        assert_eq!(wait_s(&mut throttle, "fresh", host("192.0.2.1"), true, 1000), None, "who is known");
        assert_eq!(wait_s(&mut throttle, "fresh", host("192.0.2.2"), false, 1000), None);
        assert_eq!(try_all(&mut throttle, of_host, 1000 + 3600), 25, "it is a pace");
        assert_eq!(try_all(&mut throttle, of_host, 1000 + 100 * 3600), 100, "no more is saved up");
        let of_site = |i: u32| Source::from(IpAddr::from([198, 51, 100, (i % 250) as u8]));
        assert_eq!(try_all(&mut throttle, of_site, 1000), 400);
        let of_provider = |i: u32| Source::from(IpAddr::from([203, 0, (i % 250) as u8, (i / 250) as u8]));
        assert_eq!(try_all(&mut throttle, of_provider, 1000), 1_600);
        assert_eq!(wait_s(&mut throttle, "fresh", address(0xCB01_0001), false, 1000), None, "another one");
        // A clock that is set back by a year makes no wait longer.
        assert!(wait_s(&mut throttle, "fresh", host("203.0.1.1"), false, 10).is_some_and(|wait| wait <= 144));
    }

    #[test]
    fn concurrent_guesses_are_throttled_like_serial_ones() {
        let mut throttle = Throttle::default();
        let a = host("192.0.2.1");
        let admitted = |throttle: &mut Throttle, user: &str| {
            (0..100)
                .filter_map(|_| throttle.admit(Person::named(user), a, false, 1000).ok())
                .collect::<Vec<_>>()
        };
        let under_way = admitted(&mut throttle, "ann");
        assert_eq!(under_way.len(), 5);
        assert_eq!(wait_s(&mut throttle, "ann", a, true, 1000), Some(1), "known or not");
        for guess in under_way {
            throttle.take_back(guess);
        }
        assert_eq!(admitted(&mut throttle, "ann").len(), 5, "those were none");
    }

    #[test]
    fn all_names_of_an_account_share_one_counter() {
        let mut throttle = Throttle::default();
        let a = host("192.0.2.1");
        let spellings = ["muller", "müller", "MÜLLER", "mùller", "Muller", "müllér"];
        let admitted =
            spellings.iter().map(|name| throttle.admit(Person::named(name), a, false, 1000).is_ok());
        assert_eq!(admitted.collect::<Vec<_>>(), [true, true, true, true, true, false]);
        // A name of another form counts for the entry as soon as the source has looked it up.
        let ann = Person::entry("staff", "id-1");
        for name in ["ann", "ann.smith", "a.smith"] {
            assert!(throttle.admit(Person::named(name), a, false, 1000).is_ok());
            throttle.is_entry(name, ann);
            assert_eq!(throttle.by_person.count(&Person::named(name), 1000), 0);
        }
        assert_eq!(throttle.by_person.count(&ann, 1000), 3);
        let mut admit = |name| throttle.admit(Person::named(name), a, false, 1000);
        let under_way = [admit("ann").unwrap(), admit("ann.smith").unwrap()];
        for name in ["ann", "ann.smith", "a.smith"] {
            assert_eq!(throttle.admit(Person::named(name), a, false, 1000).err(), Some(1), "{name}");
        }
        // Those under way while it was looked up are no exception.
        let bob = Person::entry("staff", "id-2");
        let guesses = [(); 5].map(|()| throttle.admit(Person::named("robert"), a, false, 1000).unwrap());
        throttle.is_entry("robert", bob);
        assert_eq!(throttle.admit(Person::named("robert"), a, false, 1000).err(), Some(1));
        for guess in guesses.into_iter().chain(under_way) {
            throttle.take_back(guess);
        }
        assert_eq!([ann, bob].map(|person| throttle.by_person.count(&person, 1000)), [3, 0]);
        assert_eq!(wait_s(&mut throttle, "bob", a, false, 1000), None);
    }

    #[test]
    fn a_guess_that_is_taken_back_leaves_no_trace() {
        let mut throttle = Throttle::default();
        let a = host("192.0.2.1");
        for _ in 0..500 {
            let guess = throttle.admit(Person::named("ann"), a, false, 1000).unwrap();
            throttle.take_back(guess);
        }
        assert!(
            throttle.by_person.0.is_empty() && throttle.by_network.iter().all(|table| table.0.is_empty())
        );
        fail(&mut throttle, "ann", a, 8, 1000);
        let guess = throttle.admit(Person::named("ann"), a, false, 1008).expect("8 s are over");
        assert_eq!(wait_s(&mut throttle, "ann", a, false, 1008), Some(16));
        throttle.take_back(guess);
        assert_eq!(wait_s(&mut throttle, "ann", a, false, 1008), None, "nor does its time count");
        let guess = throttle.admit(Person::named("ann"), a, false, 1008).unwrap();
        throttle.succeeded(guess);
        assert!(throttle.by_network[2].0.is_empty(), "who is let in begins anew");
    }

    #[test]
    fn throttle_tables_are_bounded_and_keep_the_worst() {
        let mut throttle = Throttle::default();
        let (a, b) = (host("192.0.2.1"), host("198.51.100.1"));
        fail(&mut throttle, "ann", a, 20, 1000);
        for i in 0..MAX_ENTRIES + 50 {
            throttle.by_network[2].add((Person::named(&format!("user{i}")), b.networks()[2]), 1001);
        }
        assert_eq!(throttle.by_network[2].0.len(), MAX_ENTRIES);
        assert!(wait_s(&mut throttle, "ann", a, true, 1001).is_some());
        for i in 0..MAX_ENTRIES as u32 + 50 {
            throttle.of_all[2]
                .add(Source::from(IpAddr::from(std::net::Ipv4Addr::from_bits(i))).networks()[2], 1001);
        }
        assert_eq!(throttle.of_all[2].levels.len(), MAX_ENTRIES);
    }

    #[test]
    fn an_ipv6_64_counts_as_one_host() {
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

    /// Guesses that are admitted within a day, each from another address.
    fn in_a_day(throttle: &mut Throttle, person: impl Fn(u32) -> String, known: bool) -> usize {
        let guesses = (0..86_400u32).filter(|second| {
            let from = host(&std::net::Ipv4Addr::from_bits(second << 8 | 1).to_string());
            throttle.admit(Person::named(&person(*second)), from, known, 1000 + u64::from(*second)).is_ok()
        });
        guesses.count()
    }

    #[test]
    fn a_portal_that_invents_addresses_guesses_no_faster_than_one_address() {
        let from = host("192.0.2.1");
        let mut throttle = Throttle::default();
        let seconds = 1000..1000 + 86_400;
        let one = seconds.filter(|at| throttle.admit(Person::named("ann"), from, true, *at).is_ok()).count();
        let mut throttle = Throttle::at_portal();
        for known in [false, true] {
            let invented = in_a_day(&mut throttle, |_| "ann".to_owned(), known);
            assert!(invented <= one && invented > one / 2, "{invented}, {one} from one address");
        }
        assert_eq!(wait_s(&mut throttle, "bob", host("198.51.100.1"), false, 1000 + 86_400), None);
        let of_all = in_a_day(&mut Throttle::at_portal(), |second| format!("user {second}"), false);
        assert!(of_all as u64 <= 8 * FREE_OF_ALL_AT_PORTAL, "{of_all}");
    }

    #[test]
    fn an_ipv6_48_has_one_budget_at_the_portal() {
        let (mut throttle, person) = (Throttle::at_portal(), |n: u64| Person::named(&format!("user{n}")));
        let of_site = |site: u64, n: u64| {
            let bits = u128::from((0x2001_0db8_0000_u64 | site) << 16 | n) << 64;
            Source::from(IpAddr::from(std::net::Ipv6Addr::from_bits(bits)))
        };
        let admitted = |throttle: &mut Throttle, from: &dyn Fn(u64) -> Source| {
            (0..65_536).filter(|n| throttle.admit(person(*n), from(*n), false, 1000).is_ok()).count()
        };
        assert_eq!(admitted(&mut throttle, &|_| of_site(0, 0)), 100, "a /64");
        assert_eq!(admitted(&mut throttle, &|n| of_site(0, n)), 300, "the rest of its /48");
        assert!(throttle.admit(person(0), of_site(0, 9_999), true, 1000).is_ok(), "whom it knows");
        assert_eq!(admitted(&mut throttle, &|n| of_site(1, n)), 400, "its neighbour");
        assert!(throttle.admit(person(0), host("192.0.2.1"), false, 1000).is_ok());
    }

    #[test]
    fn a_successful_portal_login_uses_no_budget() {
        let mut throttle = Throttle::at_portal();
        for n in 0..10_000u32 {
            let from = host(&std::net::Ipv4Addr::from_bits(n << 8 | 1).to_string());
            let name = "ann".to_owned();
            let guess = throttle.admit(Person::named(&name), from, false, 1000).unwrap();
            throttle.is_entry(&name, Person::entry("staff", "1"));
            throttle.succeeded(guess);
        }
    }
}
