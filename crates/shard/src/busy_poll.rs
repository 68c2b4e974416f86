//! Whether a shard without work looks at its sources again at once instead of sleeping, which
//! spares it the wake-up: on a virtual machine that takes longer than all the rest of a packet's
//! way.
//!
//! It pays only where the next packet arrives soon and no other thread needs the core. So a shard
//! polls while most of its last waits would have ended in time; between two looks it offers its
//! core to other threads, and where one of them keeps it, the shard sleeps, and tries again after a
//! pause that grows.
//!
//! INVARIANTS: this decides and counts, and knows neither clock nor sources. With a limit of 0 it
//! never polls.

use std::ops::Add;
use std::time::Duration;

use vpnd_proto::time::Time;

/// Waits that are remembered: the bits of [`BusyPoll::recent`].
const REMEMBERED: u32 = u16::BITS;
/// The number of those that must have ended in time.
const ENOUGH: u32 = REMEMBERED / 2;
/// A thread that kept the core for this long does more than take a packet and answer it. While it
/// does, a shard that polls is scheduled later than one that sleeps, since only a wake-up puts a
/// thread before another.
const LONG_YIELD: Duration = Duration::from_micros(100);
/// Pause after the first such thread. Each next one doubles it, each packet found by polling halves
/// it.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Costs and gains of polling since the shard started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollCounts {
    /// Waits that a packet ended while the shard polled.
    pub found: u64,
    /// Waits in which it gave up because nothing came in time.
    pub expired: u64,
    /// Waits in which it gave up because another thread kept the core.
    pub yielded: u64,
    /// Time from the begin of these waits to the end of polling, other threads' turns included.
    pub time: Duration,
}

impl PollCounts {
    /// Each with its name, as the gateway's status has it.
    pub fn by_name(&self) -> [(&'static str, u64); 4] {
        let time_ms = u64::try_from(self.time.as_millis()).unwrap_or(u64::MAX);
        [("found", self.found), ("expired", self.expired), ("yielded", self.yielded), ("time_ms", time_ms)]
    }
}

impl Add for PollCounts {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            found: self.found + more.found,
            expired: self.expired + more.expired,
            yielded: self.yielded + more.yielded,
            time: self.time + more.time,
        }
    }
}

/// A shard's decision, and its last waits.
#[derive(Debug)]
pub(super) struct BusyPoll {
    limit: Duration,
    /// The last waits, the newest in the lowest bit: 1 for each that ended within the limit.
    recent: u16,
    /// Begin of the present wait.
    idle_since: Time,
    polling: bool,
    /// Whether it looked in the present wait.
    looked: bool,
    paused_until: Time,
    pause: Duration,
    counts: PollCounts,
}

impl BusyPoll {
    /// Polls for at most `limit` at a time; never if that is 0.
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            recent: 0,
            idle_since: Time::ZERO,
            polling: false,
            looked: false,
            paused_until: Time::ZERO,
            pause: Duration::ZERO,
            counts: PollCounts::default(),
        }
    }

    /// Whether the shard may ever poll, and so has to report its waits.
    #[inline]
    pub(super) fn is_enabled(&self) -> bool {
        !self.limit.is_zero()
    }

    /// Whether to look again instead of sleeping.
    #[inline]
    pub(super) fn is_polling(&self) -> bool {
        self.polling
    }

    pub(super) fn counts(&self) -> PollCounts {
        self.counts
    }

    /// The shard has handled its work and waits from now on.
    pub(super) fn wait_began(&mut self, now: Time) {
        self.idle_since = now;
        self.looked = false;
        self.polling = self.is_enabled() && now >= self.paused_until && self.recent.count_ones() >= ENOUGH;
    }

    /// A look found nothing; after it the core was offered to others from `yielded` until `now`.
    pub(super) fn look_failed(&mut self, yielded: Time, now: Time) {
        self.looked = true;
        if now.since(yielded) >= LONG_YIELD {
            self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            self.paused_until = now + self.pause;
            self.counts.yielded += 1;
            self.end_poll(now);
        } else if now.since(self.idle_since) >= self.limit {
            self.counts.expired += 1;
            self.end_poll(now);
        }
    }

    /// A packet ends the wait.
    pub(super) fn wait_ended(&mut self, now: Time) {
        let in_time = now.since(self.idle_since) <= self.limit;
        self.recent = self.recent << 1 | u16::from(in_time);
        if self.polling && self.looked {
            self.counts.found += 1;
            self.pause /= 2;
            self.end_poll(now);
        }
    }

    fn end_poll(&mut self, now: Time) {
        self.polling = false;
        self.counts.time += now.since(self.idle_since);
    }
}

#[cfg(test)]
mod tests;
