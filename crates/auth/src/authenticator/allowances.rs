//! Limits what each of many does: above all logins that are let in, by user. Each of those costs
//! writes to the store, a line of the audit file and, with a new device, an address.
//!
//! Invariants: a user has so many at once and then one for each interval, whatever the number of
//! devices and places; a login beyond that leaves no trace in the store. There is no entry for more
//! users than have logged in lately, and none is dropped that is not full again.

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
}

impl<K: Copy + Eq + Hash> Allowances<K> {
    pub(crate) fn new(burst: u32, interval: Duration) -> Self {
        Self { burst, interval, users: HashMap::new() }
    }

    /// Takes one login of this user, or returns the seconds after which there is another.
    pub(crate) fn take(&mut self, user: K, now: Time) -> Result<(), u64> {
        if self.users.len() >= MANY && !self.users.contains_key(&user) {
            self.users.retain(|_, allowance| !allowance.is_full(now));
        }
        let allowance = self.users.entry(user).or_insert_with(|| Allowance::new(self.burst, self.interval));
        if allowance.take(now) { Ok(()) } else { Err(self.interval.as_secs()) }
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
