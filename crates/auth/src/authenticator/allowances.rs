//! Limits what each of many does: above all logins that are let in, by user. Each of those costs
//! writes to the store, a line of the audit file and, with a new device, an address.
//!
//! Invariants: a user has a number at once and then one for each interval, whatever the number of
//! devices and places; a login beyond that leaves no trace in the store. There is no entry for more
//! users than have logged in lately, and none is dropped that is not full again.
//!
//! In a fleet the gateways let one another know what was taken: at one moment each may allow the number
//! that it allows by itself, and within a second all go by what is left.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use vpnd_proto::time::Time;

use vpnd_store::UserId;
use vpnd_sys::allowance::Allowance;

/// Logins of one user at once, unless configured otherwise.
pub(super) const LOGINS: u32 = 30;
/// The time from one to the next, when those are used up.
pub(super) const INTERVAL: Duration = Duration::from_secs(20);
/// Entries beyond which those are dropped that are full again.
const MANY: usize = 4_096;

#[derive(Debug)]
pub(crate) struct Allowances<K = UserId> {
    burst: u32,
    interval: Duration,
    users: HashMap<K, Allowance>,
    /// Taken here, and not known to the fleet's other gateways; `None` outside a fleet.
    made: Option<Vec<K>>,
}

impl<K: Copy + Eq + Hash> Allowances<K> {
    pub(crate) fn new(burst: u32, interval: Duration) -> Self {
        Self { burst, interval, users: HashMap::new(), made: None }
    }

    /// Counts logins at all gateways of a fleet from now on.
    pub(crate) fn share(&mut self) {
        self.made.get_or_insert_default();
    }

    /// The users whose logins were allowed here since the last call, one for each.
    pub(crate) fn take_shared(&mut self) -> Vec<K> {
        self.made.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Another gateway has allowed this one, that long ago.
    pub(crate) fn learn(&mut self, user: K, age: Duration, now: Time) {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let at = Time::from_nanos(now.as_nanos().saturating_sub(age));
        self.allowance(user, now).take(at);
    }

    /// Takes one login of this user, or returns the seconds after which there is another.
    pub(crate) fn take(&mut self, user: K, now: Time) -> Result<(), u64> {
        if !self.allowance(user, now).take(now) {
            return Err(self.interval.as_secs());
        }
        // While the database is away there are no logins.
        if let Some(made) = self.made.as_mut().filter(|made| made.len() < MANY) {
            made.push(user);
        }
        Ok(())
    }

    fn allowance(&mut self, user: K, now: Time) -> &mut Allowance {
        if self.users.len() >= MANY && !self.users.contains_key(&user) {
            self.users.retain(|_, allowance| !allowance.is_full(now));
        }
        self.users.entry(user).or_insert_with(|| Allowance::new(self.burst, self.interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(number: usize) -> UserId {
        let mut id = [1; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        UserId(id)
    }

    #[test]
    fn a_user_logs_in_so_often_and_others_as_often() {
        let mut allowances = Allowances::new(30, INTERVAL);
        let taken = |allowances: &mut Allowances, number, at| {
            (0..100).filter(|_| allowances.take(user(number), at).is_ok()).count()
        };
        assert_eq!(taken(&mut allowances, 1, Time::ZERO), 30);
        assert_eq!(allowances.take(user(1), Time::ZERO), Err(20));
        assert_eq!(taken(&mut allowances, 2, Time::ZERO), 30);
        assert_eq!(taken(&mut allowances, 1, Time::ZERO + Duration::from_secs(3600)), 30);
        // A laptop that reconnects each half minute for a day, by a login each time.
        let reconnects = (0..2_880).map(|n| Time::ZERO + Duration::from_secs(7_200 + 30 * n));
        assert!(reconnects.into_iter().all(|at| allowances.take(user(1), at).is_ok()));
    }

    #[test]
    fn what_another_gateway_has_allowed_counts_from_then_on() {
        let (second, now) = (Duration::from_secs(1), Time::ZERO + Duration::from_secs(10_000));
        let [mut here, mut there] = [0, 1].map(|_| Allowances::new(30, INTERVAL));
        assert!(here.take(user(1), now).is_ok() && here.take_shared().is_empty(), "it is alone");
        here.share();
        for _ in 0..20 {
            here.take(user(1), now).unwrap();
        }
        let taken = here.take_shared();
        assert_eq!((taken.len(), here.take_shared().len()), (20, 0), "once");
        taken.iter().for_each(|user| there.learn(*user, second, now));
        let left = (0..100).filter(|_| there.take(user(1), now).is_ok()).count();
        assert_eq!((left, there.take(user(2), now)), (10, Ok(())));
        // A gateway that has just started learns of what was long ago.
        let mut new = Allowances::new(30, INTERVAL);
        taken.iter().for_each(|user| new.learn(*user, 100 * second, now));
        assert_eq!((0..100).filter(|_| new.take(user(1), now).is_ok()).count(), 15, "five were since");
        new.learn(user(3), Duration::MAX, now);
        assert!(new.take_shared().is_empty() && new.take(user(3), now).is_ok());
    }

    #[test]
    fn only_full_ones_make_room() {
        let mut allowances = Allowances::new(2, INTERVAL);
        for number in 0..MANY {
            assert!(allowances.take(user(number), Time::ZERO).is_ok());
        }
        let later = Time::ZERO + INTERVAL * 3;
        for number in [0, 0] {
            assert!(allowances.take(user(number), later).is_ok());
        }
        assert!(allowances.take(user(MANY), later).is_ok());
        assert_eq!(allowances.users.len(), 2);
        assert!(allowances.take(user(0), later).is_err(), "it is no new one");
    }
}
