//! When the next messages are due at a steady rate.
//!
//! A sleeping thread wakes late, so it asks how many messages are due *by now* and sends them
//! together. Between two wakes at least [`QUANTUM_NS`] pass: at high rates messages leave in small
//! groups, and the generator leaves the CPU to the VPN instead of spinning. Who falls behind by
//! more than [`DEBT_NS`] does not catch up, so that a pause never becomes a burst that the path
//! must lose.

/// The shortest sleep, in nanoseconds.
pub const QUANTUM_NS: u64 = 100_000;
/// Delay that is made up for, in nanoseconds.
pub const DEBT_NS: u64 = 5_000_000;

/// A schedule of messages.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Nanoseconds between messages; `None` as fast as possible.
    gap_ns: Option<f64>,
    origin_ns: u64,
    given: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Send(u64),
    /// Nothing until this instant.
    Wait(u64),
}

impl Pace {
    /// Messages of `bytes` bytes at `bits_per_second` from `origin_ns` on; without a rate always
    /// due.
    pub fn new(bits_per_second: Option<u64>, bytes: u32, origin_ns: u64) -> Self {
        let gap_ns = bits_per_second.map(|rate| f64::from(bytes) * 8e9 / rate.max(1) as f64);
        Self { gap_ns, origin_ns, given: 0 }
    }

    /// The number of at most `most` messages that are due at `now_ns`; they count as sent.
    pub fn due(&mut self, now_ns: u64, most: u64) -> Due {
        let Some(gap) = self.gap_ns else { return Due::Send(most) };
        if now_ns < self.instant(self.given, gap) {
            return Due::Wait(self.instant(self.given, gap).max(now_ns + QUANTUM_NS));
        }
        let behind = now_ns - self.instant(self.given, gap);
        if behind > DEBT_NS.max((2.0 * gap) as u64) {
            // The schedule begins again; what was missed shows as a lower rate.
            self.origin_ns = now_ns;
            self.given = 0;
        }
        let elapsed = (now_ns - self.origin_ns) as f64;
        let due = ((elapsed / gap) as u64 + 1).saturating_sub(self.given).clamp(1, most);
        self.given += due;
        Due::Send(due)
    }

    fn instant(&self, number: u64, gap: f64) -> u64 {
        self.origin_ns + (number as f64 * gap) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages that a sender with this pace sends in a second when each wake comes `late_ns` too
    /// late.
    fn sent_in_a_second(rate: u64, bytes: u32, late_ns: u64) -> (u64, u64) {
        let mut pace = Pace::new(Some(rate), bytes, 1_000);
        let (mut now, mut sent, mut wakes) = (1_000, 0, 0);
        while now < 1_000_001_000 {
            match pace.due(now, 64) {
                Due::Send(n) => sent += n,
                Due::Wait(until) => {
                    now = until + late_ns;
                    wakes += 1;
                }
            }
        }
        (sent, wakes)
    }

    #[test]
    fn the_rate_is_kept_whatever_the_timer_adds() {
        for late in [0, 60_000, 900_000] {
            let (sent, _) = sent_in_a_second(13_000_000, 500, late);
            assert!((3_245..=3_251).contains(&sent), "{sent} of 3250 messages, wakes {late} ns late");
            let (sent, wakes) = sent_in_a_second(512_000_000, 64, late);
            assert!((998_000..=1_000_100).contains(&sent), "{sent} of 1000000 messages");
            assert!(wakes <= 10_000, "{wakes} wakes");
        }
    }

    #[test]
    fn a_long_pause_is_not_made_up_for() {
        let mut pace = Pace::new(Some(8_000_000), 1_000, 0);
        assert_eq!(pace.due(0, 64), Due::Send(1));
        assert_eq!(pace.due(1_000, 64), Due::Wait(1_000_000));
        assert_eq!(pace.due(3_000_000, 64), Due::Send(3), "a short one is");
        assert_eq!(pace.due(500_000_000, 64), Due::Send(1));
        assert_eq!(pace.due(500_000_000, 64), Due::Wait(501_000_000));
    }

    #[test]
    fn slow_rates_send_one_at_a_time_and_no_rate_is_always_due() {
        let mut pace = Pace::new(Some(8), 1, 0);
        assert_eq!(pace.due(0, 64), Due::Send(1));
        assert_eq!(pace.due(999_999_999, 64), Due::Wait(1_000_099_999));
        assert_eq!(pace.due(1_000_000_000, 64), Due::Send(1));
        assert_eq!(Pace::new(None, 1, 0).due(0, 64), Due::Send(64));
    }
}
