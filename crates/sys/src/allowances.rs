//! An [`Allowance`] for each of many keys, such as users or networks.
//!
//! INVARIANT: there are no entries for more keys than were counted lately, and none is dropped that
//! is not full again.
//!
//! In a fleet the gateways exchange what was taken: at one moment each may allow the number
//! that it allows by itself, and within a second all go by what is left.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use vpnd_proto::time::Time;

use crate::allowance::Allowance;

/// Entries beyond which those are dropped that are full again.
const MANY: usize = 4_096;

#[derive(Debug)]
pub struct Allowances<K> {
    burst: u32,
    interval: Duration,
    by_key: HashMap<K, Allowance>,
    /// Taken here, and not known to the fleet's other gateways; `None` outside a fleet.
    made: Option<Vec<K>>,
}

impl<K: Copy + Eq + Hash> Allowances<K> {
    pub fn new(burst: u32, interval: Duration) -> Self {
        Self { burst, interval, by_key: HashMap::new(), made: None }
    }

    /// Counts at all gateways of a fleet from now on.
    pub fn share(&mut self) {
        self.made.get_or_insert_default();
    }

    /// The keys of what was allowed here since the last call, one for each event.
    pub fn take_shared(&mut self) -> Vec<K> {
        self.made.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Another gateway has allowed this one, that long ago.
    pub fn learn(&mut self, key: K, age: Duration, now: Time) {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let at = Time::from_nanos(now.as_nanos().saturating_sub(age));
        self.allowance(key, now).take(at);
    }

    /// Takes one event of this key, or returns the seconds after which there is another.
    pub fn take(&mut self, key: K, now: Time) -> Result<(), u64> {
        if !self.allowance(key, now).take(now) {
            return Err(self.interval.as_secs());
        }
        // Without a database nothing is exchanged, and there are no logins.
        if let Some(made) = self.made.as_mut().filter(|made| made.len() < MANY) {
            made.push(key);
        }
        Ok(())
    }

    /// Gives one of this key back, which no other gateway has learnt of.
    pub fn give_back(&mut self, key: &K) {
        if let Some(allowance) = self.by_key.get_mut(key) {
            allowance.give_back();
        }
    }

    fn allowance(&mut self, key: K, now: Time) -> &mut Allowance {
        if self.by_key.len() >= MANY && !self.by_key.contains_key(&key) {
            self.by_key.retain(|_, allowance| !allowance.is_full(now));
        }
        self.by_key.entry(key).or_insert_with(|| Allowance::new(self.burst, self.interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(20);

    #[test]
    fn each_key_has_its_own_allowance() {
        let mut allowances = Allowances::new(30, INTERVAL);
        let taken = |allowances: &mut Allowances<usize>, key, at| {
            (0..100).filter(|_| allowances.take(key, at).is_ok()).count()
        };
        assert_eq!(taken(&mut allowances, 1, Time::ZERO), 30);
        assert_eq!(allowances.take(1, Time::ZERO), Err(20));
        assert_eq!(taken(&mut allowances, 2, Time::ZERO), 30);
        assert_eq!(taken(&mut allowances, 1, Time::ZERO + Duration::from_secs(3600)), 30);
        // A laptop that reconnects each half minute for a day, by a login each time.
        let reconnects = (0..2_880).map(|n| Time::ZERO + Duration::from_secs(7_200 + 30 * n));
        assert!(reconnects.into_iter().all(|at| allowances.take(1, at).is_ok()));
    }

    #[test]
    fn events_at_another_gateway_count_from_their_time_on() {
        let (second, now) = (Duration::from_secs(1), Time::ZERO + Duration::from_secs(10_000));
        let [mut here, mut there] = [0, 1].map(|_| Allowances::new(30, INTERVAL));
        assert!(here.take(1, now).is_ok() && here.take_shared().is_empty(), "it is alone");
        here.share();
        for _ in 0..20 {
            here.take(1, now).unwrap();
        }
        let taken = here.take_shared();
        assert_eq!((taken.len(), here.take_shared().len()), (20, 0), "once");
        taken.iter().for_each(|key| there.learn(*key, second, now));
        let left = (0..100).filter(|_| there.take(1, now).is_ok()).count();
        assert_eq!((left, there.take(2, now)), (10, Ok(())));
        // A gateway that has just started learns of what was long ago.
        let mut new = Allowances::new(30, INTERVAL);
        taken.iter().for_each(|key| new.learn(*key, 100 * second, now));
        assert_eq!((0..100).filter(|_| new.take(1, now).is_ok()).count(), 15, "five were since");
        new.learn(3, Duration::MAX, now);
        assert!(new.take_shared().is_empty() && new.take(3, now).is_ok());
    }

    #[test]
    fn only_full_allowances_are_dropped() {
        let mut allowances = Allowances::new(2, INTERVAL);
        for key in 0..MANY {
            assert!(allowances.take(key, Time::ZERO).is_ok());
        }
        let later = Time::ZERO + INTERVAL * 3;
        for key in [0, 0] {
            assert!(allowances.take(key, later).is_ok());
        }
        assert!(allowances.take(MANY, later).is_ok());
        assert_eq!(allowances.by_key.len(), 2);
        assert!(allowances.take(0, later).is_err(), "it is no new one");
    }
}
