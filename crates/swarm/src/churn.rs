//! The actions of sessions in a soak test, decided by a seed: leave and come back, move, lose the
//! connection.
//!
//! Pure: time goes in as seconds since the start, actions come out. INVARIANT: the same seed gives
//! the same actions.

use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// Rates of the actions of a process's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub seed: u64,
    /// Seconds between two actions of one session, on average.
    pub every_s: f64,
    /// Seconds that a session stays away, at least and at most.
    pub away_s: (f64, f64),
    /// Seconds between two moves of all control connections of a socket.
    pub rebind_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// End the session, and log in again after this number of seconds.
    Leave(f64),
    /// Send from another socket from now on: another port, often another address.
    Roam,
    /// Lose the control connection without closing it, so that a new one brings new keys.
    Rekey,
}

/// Counts of the actions taken, by kind and result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Sessions ended by their client.
    pub left: u64,
    /// Data moved to another port or address.
    pub roamed: u64,
    /// Control connections lost on purpose.
    pub rekeyed: u64,
    /// Control sockets that got another port, with all their connections.
    pub rebound: u64,
    /// New keys by password.
    pub logins: u64,
    /// New keys by token: after lost connections, and because keys were old.
    pub attaches: u64,
    /// Attempts that were repeated.
    pub failed: u64,
    /// Packets sent through the tunnel.
    pub sent: u64,
    /// Packets that came back.
    pub answered: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.left += more.left;
        self.roamed += more.roamed;
        self.rekeyed += more.rekeyed;
        self.rebound += more.rebound;
        self.logins += more.logins;
        self.attaches += more.attaches;
        self.failed += more.failed;
        self.sent += more.sent;
        self.answered += more.answered;
    }
}

/// The actions of all sessions of a process, in order of time.
pub struct Churn {
    plan: Plan,
    random: ChaCha8Rng,
    next_s: f64,
    next_rebind_s: f64,
}

impl Churn {
    pub fn new(plan: Plan, now_s: f64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(plan.seed);
        Self { plan, random, next_s: now_s, next_rebind_s: now_s + plan.rebind_s }
    }

    /// The next action that is due at `now_s`, and which of `count` sessions takes it.
    pub fn due(&mut self, now_s: f64, count: usize) -> Option<(usize, Action)> {
        if count == 0 || self.next_s > now_s {
            return None;
        }
        // Actions of independent sessions come at exponential distances.
        let pause = -(1.0 - self.random.random::<f64>()).ln() * self.plan.every_s / count as f64;
        // After a long wait the missed actions are not made up for all at once.
        self.next_s = (self.next_s + pause).max(now_s - 1.0);
        let who = self.random.random_range(0..count);
        let action = match self.random.random_range(0..10) {
            0..4 => Action::Roam,
            4..7 => Action::Rekey,
            _ => Action::Leave(self.random.random_range(self.plan.away_s.0..=self.plan.away_s.1)),
        };
        Some((who, action))
    }

    /// Which of `count` control sockets moves now, if one is due.
    pub fn rebind(&mut self, now_s: f64, count: usize) -> Option<usize> {
        if count == 0 || self.next_rebind_s > now_s {
            return None;
        }
        self.next_rebind_s = now_s + self.plan.rebind_s;
        Some(self.random.random_range(0..count))
    }

    /// One of `count` that is not `than`.
    pub fn other(&mut self, than: usize, count: usize) -> usize {
        if count < 2 {
            return than;
        }
        (than + self.random.random_range(1..count)) % count
    }
}

/// The seed of a device's key, the same each time its process is started again, as a real client's
/// is.
pub fn device(seed: u64, session: u32) -> [u8; 32] {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(u64::from(session));
    let mut bytes = [0; 32];
    random.fill_bytes(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { seed: 7, every_s: 50.0, away_s: (5.0, 9.0), rebind_s: 30.0 };

    fn actions(seconds: u32, count: usize) -> Vec<(usize, Action)> {
        let mut churn = Churn::new(PLAN, 0.0);
        let mut all = Vec::new();
        for second in 0..seconds {
            all.extend(std::iter::from_fn(|| churn.due(second.into(), count)));
        }
        all
    }

    #[test]
    fn a_seed_gives_the_same_deeds_of_every_kind_at_the_rate_that_was_asked_for() {
        let all = actions(1_000, 100);
        assert_eq!(all, actions(1_000, 100));
        assert!((1_800..2_200).contains(&all.len()), "100 sessions, each every 50 s: {}", all.len());
        let share = |kind: fn(&Action) -> bool| all.iter().filter(|(_, action)| kind(action)).count();
        assert!(
            share(|action| *action == Action::Roam) > 600 && share(|action| *action == Action::Rekey) > 450
        );
        let away = |action: &Action| matches!(action, Action::Leave(away) if (5.0..=9.0).contains(away));
        assert!(
            share(away) > 450
                && all.iter().all(|(_, action)| away(action) || !matches!(action, Action::Leave(_)))
        );
        assert!((0..100).all(|one| all.iter().any(|(who, _)| *who == one)), "every session has a turn");
    }

    #[test]
    fn nothing_is_due_without_sessions_and_little_after_a_long_wait() {
        assert!(actions(100, 0).is_empty());
        let mut churn = Churn::new(PLAN, 0.0);
        let late = std::iter::from_fn(|| churn.due(100_000.0, 100)).count();
        assert!(late < 50, "{late}");
        assert_eq!(churn.rebind(29.0, 8), None);
        assert!(churn.rebind(30.0, 8).is_some_and(|socket| socket < 8));
        assert_eq!(churn.rebind(31.0, 8), None);
        assert!((0..100).all(|_| churn.other(3, 8) != 3) && churn.other(0, 1) == 0);
    }

    #[test]
    fn a_device_keeps_its_name() {
        assert_eq!(device(1, 2), device(1, 2));
        assert!(device(1, 2) != device(1, 3) && device(1, 2) != device(2, 2));
    }
}
