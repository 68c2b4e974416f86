//! How often the machine is compared with what it should be, for what no report of the kernel
//! shows: each second while something changes, and seldom afterwards, so that an idle machine
//! sleeps.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Interval for a while after each sign of a change: others may follow.
const OFTEN: Duration = Duration::from_secs(1);
const WHILE: Duration = Duration::from_secs(30);
/// Interval in peace.
const SELDOM: Duration = Duration::from_secs(300);

pub(super) struct Pace {
    next: Instant,
    often_until: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self::new_at(Instant::now())
    }

    fn new_at(now: Instant) -> Self {
        Self { next: now + OFTEN, often_until: now + WHILE }
    }

    /// Something changes on this machine, or is not as it should be.
    pub(super) fn sign(&mut self) {
        self.sign_at(Instant::now());
    }

    fn sign_at(&mut self, now: Instant) {
        self.often_until = now + WHILE;
        self.next = self.next.min(now + OFTEN);
    }

    /// The next look is within this time.
    pub(super) fn within(&mut self, time: Duration) {
        self.next = self.next.min(Instant::now() + time);
    }

    /// Waits until it is time. Safe to cancel.
    pub(super) async fn due(&mut self) {
        sleep_until(self.next).await;
        self.looked_at(Instant::now());
    }

    fn looked_at(&mut self, now: Instant) {
        self.next = now + if now < self.often_until { OFTEN } else { SELDOM };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_rare_when_idle_and_each_second_after_an_event() {
        let began = Instant::now();
        let mut pace = Pace::new_at(began);
        // The second of each of the next looks.
        let looks = |pace: &mut Pace, count: usize| {
            let looks = (0..count).map(|_| {
                let at = pace.next;
                pace.looked_at(at);
                (at - began).as_secs()
            });
            looks.last().unwrap()
        };
        assert_eq!(looks(&mut pace, 30), 30);
        assert_eq!(looks(&mut pace, 2), 630);
        pace.sign_at(began + Duration::from_secs(700));
        assert_eq!(looks(&mut pace, 30), 730);
        assert_eq!(looks(&mut pace, 1), 1_030);
    }
}
