//! Which requests of servers count, over all gateways of a fleet.
//!
//! INVARIANT: a request counts once, and none of a user after one that its server made later, so
//! neither a recorded one nor one that was held back undoes anything. What is forgotten is refused
//! for its age.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use crate::notices::{Membership, Notice, Notices, Subscriber, lock};
use vpnd_store::{StoreError, UserId};
use vpnd_sys::clock::wall_s;

/// How far a server's clock may be from this machine's, seconds: more than the idp process lets it
/// be, by the clock of any gateway.
const WINDOW_S: u64 = 600;
/// Requests that are remembered, of all gateways.
const MAX_SEEN: usize = 65_536;

/// A request, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// No other request has it.
    pub(super) authenticator: [u8; 16],
    /// By the server's clock.
    pub(super) made_s: u64,
    /// The user whose sessions it means, if there are any.
    pub(super) user: Option<UserId>,
}

/// Why a request does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    Repeated,
    /// A later one of its user has counted.
    Overtaken,
    /// It may be one that is forgotten.
    Old,
}

impl Late {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Repeated => "it has come before, at this gateway or at another one",
            Self::Overtaken => "a later one of the same user has counted: compare the servers' clocks",
            Self::Old => "it was made too long ago, or too far in the future: compare the clocks",
        }
    }
}

#[derive(Default)]
pub(super) struct Sequence {
    fleet: Membership,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// When they were made, by their authenticators.
    requests: HashMap<[u8; 16], u64>,
    /// When the last one of each user was made.
    latest: HashMap<UserId, u64>,
    /// Requests that were made until then may be unknown.
    unknown_until_s: u64,
    /// Not known to the fleet's other gateways.
    made: Vec<Stamp>,
}

impl Sequence {
    /// Requests count once at all gateways of this fleet from now on.
    pub(super) fn join(self: &Arc<Self>, notices: &Arc<Notices>) {
        self.fleet.join(notices);
        let sequence: Weak<Self> = Arc::downgrade(self);
        notices.subscribe(sequence);
    }

    /// Counts this request, or returns why it does not count.
    pub(super) fn take(&self, stamp: Stamp, now_s: u64) -> Result<Result<(), Late>, StoreError> {
        self.fleet.in_order(|| {
            let mut seen = lock(&self.seen);
            let taken = seen.take(stamp, now_s);
            // A time that does not count here must not count elsewhere.
            if self.fleet.is_in_fleet() && matches!(taken, Ok(()) | Err(Late::Overtaken)) {
                seen.made.push(stamp);
            }
            taken
        })
    }
}

impl Seen {
    fn take(&mut self, stamp: Stamp, now_s: u64) -> Result<(), Late> {
        if stamp.made_s <= self.unknown_until_s || stamp.made_s.abs_diff(now_s) > WINDOW_S {
            return Err(Late::Old);
        }
        if self.requests.contains_key(&stamp.authenticator) {
            return Err(Late::Repeated);
        }
        let latest_s = stamp.user.and_then(|user| self.latest.get(&user).copied());
        self.note(stamp, now_s);
        if latest_s.is_some_and(|latest_s| stamp.made_s < latest_s) { Err(Late::Overtaken) } else { Ok(()) }
    }

    fn note(&mut self, stamp: Stamp, now_s: u64) {
        if self.requests.len() >= MAX_SEEN {
            let is_in_time = |made_s: &u64| made_s.saturating_add(WINDOW_S) >= now_s;
            self.requests.retain(|_, made_s| is_in_time(made_s));
            self.latest.retain(|_, made_s| is_in_time(made_s));
        }
        if self.requests.len() >= MAX_SEEN {
            self.forget(now_s);
        }
        self.requests.insert(stamp.authenticator, stamp.made_s);
        if let Some(user) = stamp.user {
            let latest_s = self.latest.entry(user).or_default();
            *latest_s = stamp.made_s.max(*latest_s);
        }
    }

    fn forget(&mut self, now_s: u64) {
        self.requests.clear();
        self.latest.clear();
        self.unknown_until_s = now_s;
    }
}

impl Subscriber for Sequence {
    fn learn(&self, notice: &Notice) {
        if let Notice::ServerRequest(authenticator, user, made_s) = notice {
            let user = user.map(|user| UserId(user.into()));
            let stamp = Stamp { authenticator: (*authenticator).into(), made_s: *made_s, user };
            lock(&self.seen).note(stamp, wall_s());
        }
    }

    fn made(&self) -> Vec<Notice> {
        let made = std::mem::take(&mut lock(&self.seen).made).into_iter();
        let notice = |Stamp { authenticator, made_s, user }| {
            Notice::ServerRequest(authenticator.into(), user.map(|user| user.0.into()), made_s)
        };
        made.map(notice).collect()
    }

    fn has_missed(&self) {
        lock(&self.seen).forget(wall_s());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use vpnd_store::Store;
    use vpnd_store::postgres::testing::simulated::Simulated;

    const NOW_S: u64 = 1_700_000_000;
    const ANN: UserId = UserId([1; 16]);

    fn stamp(authenticator: u8, made_s: u64) -> Stamp {
        Stamp { authenticator: [authenticator; 16], made_s, user: Some(ANN) }
    }

    #[test]
    fn a_request_counts_once_and_in_order_at_all_gateways() {
        let database = Simulated::new(Instant::now());
        let directories = [1, 2].map(|_| tempfile::tempdir().unwrap());
        let gateway = |number: u8| {
            let directory = directories[usize::from(number) - 1].path();
            let store = Arc::new(database.at(number, directory)) as Arc<dyn Store>;
            let sequence = Arc::new(Sequence::default());
            sequence.join(&Arc::new(Notices::new(store)));
            sequence
        };
        let take = |sequence: &Sequence, stamp| sequence.take(stamp, NOW_S).unwrap();
        let [first, second] = [1, 2].map(gateway);
        assert_eq!(take(&first, stamp(1, NOW_S)), Ok(()));
        let of_an_address = Stamp { user: None, ..stamp(2, NOW_S) };
        assert_eq!(take(&first, of_an_address), Ok(()));
        assert_eq!(take(&second, stamp(1, NOW_S)), Err(Late::Repeated));
        let reached = Stamp { user: Some(ANN), ..of_an_address };
        assert_eq!(take(&second, reached), Err(Late::Repeated), "whoever has the address meanwhile");
        assert_eq!(take(&second, stamp(3, NOW_S)), Ok(()), "another one of the same second");
        assert_eq!(take(&second, stamp(4, NOW_S - 1)), Err(Late::Overtaken));
        assert_eq!(take(&second, stamp(7, NOW_S + WINDOW_S + 1)), Err(Late::Old));
        assert_eq!(take(&first, stamp(8, NOW_S)), Ok(()), "that of the future keeps none out");
        let other = Stamp { user: Some(UserId([2; 16])), ..stamp(5, NOW_S - 1) };
        assert_eq!(take(&first, other), Ok(()), "another user's");
        assert_eq!(take(&first, stamp(4, NOW_S - 1)), Err(Late::Repeated));
        let restarted = gateway(1);
        assert_eq!(take(&restarted, stamp(3, NOW_S)), Err(Late::Repeated));
        assert_eq!(take(&restarted, stamp(6, NOW_S - 1)), Err(Late::Overtaken));
    }

    #[test]
    fn what_is_forgotten_is_refused_for_its_age() {
        let mut seen = Seen::default();
        let numbered = |number: usize, made_s| {
            let mut authenticator = [0; 16];
            authenticator[..8].copy_from_slice(&number.to_le_bytes());
            Stamp { authenticator, made_s, user: None }
        };
        for number in 0..MAX_SEEN {
            assert_eq!(seen.take(numbered(number, NOW_S), NOW_S), Ok(()));
        }
        let later_s = NOW_S + WINDOW_S + 1;
        assert_eq!(seen.take(numbered(0, NOW_S), later_s), Err(Late::Old));
        assert_eq!(seen.take(numbered(MAX_SEEN, later_s), later_s), Ok(()));
        assert_eq!(seen.requests.len(), 1);
        // Too many at once.
        for number in (1..MAX_SEEN).chain([MAX_SEEN + 1]) {
            assert_eq!(seen.take(numbered(number, later_s), later_s), Ok(()), "{number}");
        }
        assert_eq!(seen.requests.len(), 1);
        assert_eq!(seen.take(numbered(1, later_s), later_s), Err(Late::Old));
        assert_eq!(seen.take(numbered(1, later_s + 1), later_s), Ok(()));
        // Restored databases have lost some.
        seen.forget(later_s + 1);
        assert_eq!(seen.take(numbered(2, later_s + 1), later_s), Err(Late::Old));
    }
}
