//! Users with sessions whom a source shows no more: one or two have left, many at once are a fault
//! of the source.
//!
//! Invariants: an absence that [`Absences::judge`] holds ends no session by itself; it is held
//! until the source shows the user again or an administrator confirms it. What a source says of an
//! entry that it shows, such as that it is disabled, is none of this module's business and is never
//! held. The time that sessions go on without a confirmation is bounded elsewhere.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use vpnd_proto::time::Time;

use vpnd_store::UserId;

/// Users that may be gone at once, whatever their share.
const FEW: usize = 5;
/// Share of a source's users with sessions that may be gone at once, percent.
const PERCENT: usize = 10;

/// The absences of one source.
#[derive(Debug, Default)]
pub(super) struct Absences {
    held: HashSet<UserId>,
    confirmed: HashSet<UserId>,
    /// When sessions ended because their user was gone, without a confirmation.
    ended: VecDeque<Time>,
}

impl Absences {
    /// Whether the absence of one of these was not known before.
    pub(super) fn is_news(&self, mut absent: impl Iterator<Item = UserId>) -> bool {
        absent.any(|user| !self.held.contains(&user) && !self.confirmed.contains(&user))
    }

    /// Judges a round: which of these `absent` users are gone. `users` is how many of the source
    /// have sessions, and `window` the time of a round.
    #[must_use]
    pub(super) fn judge(
        &mut self,
        absent: &HashSet<UserId>,
        users: usize,
        at: Time,
        window: Duration,
    ) -> HashSet<UserId> {
        self.ended.retain(|ended| at.since(*ended) < window);
        let mut gone: HashSet<UserId> = absent.intersection(&self.confirmed).copied().collect();
        let is_new = |user: &&UserId| !self.confirmed.contains(user) && !self.held.contains(user);
        let new: Vec<UserId> = absent.iter().filter(is_new).copied().collect();
        let count = new.len() + self.held.len() + self.ended.len();
        let is_many = count > FEW && count * 100 > (users + self.ended.len()) * PERCENT;
        if is_many {
            self.held.extend(new);
        } else {
            self.ended.extend(new.iter().map(|_| at));
            gone.extend(new);
        }
        gone
    }

    /// The source shows this user.
    pub(super) fn shown(&mut self, user: UserId) {
        self.confirmed.remove(&user);
        self.held.remove(&user);
    }

    /// Forgets users who have no session any more.
    pub(super) fn retain(&mut self, has_session: impl Fn(&UserId) -> bool) {
        self.held.retain(&has_session);
        self.confirmed.retain(&has_session);
    }

    /// Takes those that are held for gone; how many these are.
    pub(super) fn confirm(&mut self) -> usize {
        let count = self.held.len();
        self.confirmed.extend(self.held.drain());
        count
    }

    /// Whether an administrator has confirmed that this user is gone.
    pub(super) fn is_confirmed(&self, user: UserId) -> bool {
        self.confirmed.contains(&user)
    }

    /// The number of users that are held.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    fn users(numbers: std::ops::Range<u8>) -> HashSet<UserId> {
        numbers.map(|number| UserId([number; 16])).collect()
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(1_000 + seconds)
    }

    #[test]
    fn few_absent_users_are_removed_and_many_are_held_back() {
        for (absent, all, are_gone) in
            [(5, 5, true), (6, 6, false), (6, 59, false), (6, 60, true), (20, 199, false)]
        {
            let (mut absences, absent) = (Absences::default(), users(0..absent));
            let gone = absences.judge(&absent, all, at(0), WINDOW);
            assert_eq!(
                gone,
                if are_gone { absent.clone() } else { HashSet::new() },
                "{} of {all}",
                absent.len()
            );
            assert_eq!(absences.held(), if are_gone { 0 } else { absent.len() });
        }
    }

    #[test]
    fn absences_within_one_round_are_counted_together() {
        let mut absences = Absences::default();
        for number in 0..5 {
            let one = users(number..number + 1);
            assert_eq!(absences.judge(&one, 20, at(u64::from(number)), WINDOW), one);
        }
        assert_eq!(absences.judge(&users(5..6), 15, at(30), WINDOW), HashSet::new());
        let mut later = Absences { ended: absences.ended, ..Absences::default() };
        assert_eq!(later.judge(&users(5..6), 15, at(70), WINDOW), users(5..6));
    }

    #[test]
    fn held_absences_last_until_the_user_is_seen_or_it_is_confirmed() {
        let mut absences = Absences::default();
        assert!(absences.is_news(users(0..8).into_iter()));
        assert_eq!(absences.judge(&users(0..8), 20, at(0), WINDOW), HashSet::new());
        assert!(!absences.is_news(users(0..8).into_iter()) && absences.is_news(users(7..9).into_iter()));
        // Most come back; one of the rest is not gone because of that.
        for user in users(0..6) {
            absences.shown(user);
        }
        assert_eq!(absences.judge(&users(6..8), 20, at(9), WINDOW), HashSet::new());
        assert_eq!(absences.confirm(), 2);
        assert!(absences.is_confirmed(UserId([6; 16])) && !absences.is_confirmed(UserId([0; 16])));
        // A user who is shown again is not gone, nor is one who was not confirmed.
        absences.shown(UserId([6; 16]));
        assert_eq!(absences.judge(&users(7..8), 20, at(10), WINDOW), users(7..8));
        assert!(absences.ended.is_empty(), "it has been confirmed, so it counts no more");
        assert_eq!(absences.judge(&users(0..8), 20, at(11), WINDOW), users(7..8));
        for user in users(0..6) {
            absences.shown(user);
        }
        absences.shown(UserId([6; 16]));
        assert_eq!(absences.held(), 0);
        absences.retain(|_| false);
        assert!(!absences.is_confirmed(UserId([7; 16])));
    }
}
