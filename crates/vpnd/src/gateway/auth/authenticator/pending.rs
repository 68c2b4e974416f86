//! Logins that were asked for a one-time code: those whose password was right and those where anything was wrong, for nobody
//! must be able to distinguish them.
//!
//! INVARIANT: their number is bounded, and networks share it fairly; each leaves once, by its code, by a connection that is gone,
//! or because its time is over or it was displaced.

use std::collections::BTreeMap;
use std::time::Duration;

use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares, Standing};
use vpnd_proto::time::Time;

use super::{Cause, Login};
use crate::store::User;

/// Logins at most.
const LIMIT: usize = 1_024;
/// Limit for a code. The worker's own limit is shorter.
const LIFETIME: Duration = Duration::from_secs(120);
/// A person who has taken this long makes room for another.
const TYPING_TIMEOUT: Duration = Duration::from_secs(20);

/// A login whose code is to come.
pub(super) struct Attempt {
    pub(super) login: Login,
    /// The user whom the right code lets in, or the cause of a refusal that follows whatever the code.
    pub(super) awaited: Result<Box<User>, Cause>,
}

struct PendingLogin {
    permit: PermitId,
    since: Time,
    attempt: Attempt,
}

pub(super) struct Pending {
    shares: Shares,
    held: BTreeMap<u64, PendingLogin>,
    next: u64,
}

impl Pending {
    pub(super) fn new() -> Self {
        let division =
            Division { limit: LIMIT, displace_after: TYPING_TIMEOUT, displaced: Displaced::Oldest };
        Self { shares: Shares::new(division), held: BTreeMap::new(), next: 0 }
    }

    /// Adds a login. Returns its number, unless there is no room for its network, and the logins that are over by that.
    pub(super) fn add(&mut self, now: Time, attempt: Attempt) -> (Option<u64>, Vec<Attempt>) {
        let mut over = self.overdue(now);
        let source = Source::from(attempt.login.source);
        let Entered::In { permit, displaced } = self.shares.enter(now, source, Standing::Stranger) else {
            over.push(attempt);
            return (None, over);
        };
        let displaced = self.held.iter().find(|(_, held)| Some(held.permit) == displaced);
        let displaced = displaced.map(|(number, _)| *number);
        over.extend(displaced.and_then(|number| self.held.remove(&number)).map(|held| held.attempt));
        let number = self.next;
        self.next += 1;
        self.held.insert(number, PendingLogin { permit, since: now, attempt });
        (Some(number), over)
    }

    /// Takes out the login with this number, if it is still there.
    pub(super) fn take(&mut self, number: u64) -> Option<Attempt> {
        let held = self.held.remove(&number)?;
        self.shares.leave(held.permit);
        Some(held.attempt)
    }

    fn overdue(&mut self, now: Time) -> Vec<Attempt> {
        let overdue = self.held.iter().filter(|(_, held)| now.since(held.since) >= LIFETIME);
        let overdue: Vec<u64> = overdue.map(|(number, _)| *number).collect();
        overdue.into_iter().filter_map(|number| self.take(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use vpnd_proto::session::DeviceId;

    use super::*;
    use crate::password::Password;

    fn attempt(source: [u8; 4]) -> Attempt {
        let login = Login {
            user: "ann".to_owned(),
            password: Password::new("wrong".to_owned()),
            code: None,
            certificate: None,
            source: source.into(),
            device: DeviceId([1; 16]),
        };
        Attempt { login, awaited: Err(Cause::WrongPassword) }
    }

    #[test]
    fn each_is_taken_once_and_none_is_lost() {
        let mut pending = Pending::new();
        let (number, over) = pending.add(Time::ZERO, attempt([192, 0, 2, 1]));
        assert!(over.is_empty() && pending.take(number.unwrap()).is_some());
        assert!(pending.take(number.unwrap()).is_none());
        let (late, _) = pending.add(Time::ZERO, attempt([192, 0, 2, 1]));
        let (number, over) = pending.add(Time::ZERO + LIFETIME, attempt([192, 0, 2, 1]));
        assert_eq!((over.len(), pending.held.len()), (1, 1), "a code may take so long");
        assert!(pending.take(late.unwrap()).is_none() && pending.take(number.unwrap()).is_some());
    }

    #[test]
    fn they_are_bounded_and_a_crowd_keeps_nobody_out() {
        let mut pending = Pending::new();
        let mut over = 0;
        for number in 0..5_000u32 {
            let [_, _, c, d] = number.to_be_bytes();
            over += pending.add(Time::ZERO, attempt([10, (number % 8) as u8, c, d])).1.len();
        }
        assert_eq!(pending.held.len(), LIMIT - LIMIT / 4);
        assert_eq!(over + pending.held.len(), 5_000, "whoever leaves is counted");
        let (honest, displaced) = pending.add(Time::ZERO, attempt([192, 0, 2, 1]));
        assert_eq!((honest.is_some(), displaced.len(), pending.held.len()), (true, 1, LIMIT - LIMIT / 4));
    }
}
