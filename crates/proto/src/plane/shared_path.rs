//! State that the shards of an end share about a session's path. Confirmations that large datagrams
//! arrive (PROTOCOL §13.2): one shard may receive large datagrams and another send the packet that
//! confirms them, and one may receive the confirmation of what another has sent. And whether
//! batches arrive (§9.4): one shard receives the report, all send.
//!
//! All words are times that nothing else hangs on, so relaxed ordering is enough: a shard that sees
//! an old one confirms twice, asks once more, or sends one more batch.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::time::Time;

/// Once a large datagram has come, the next packet the other way confirms it, if that goes within
/// this time: so old is a confirmation at most.
const CONFIRM_WITHIN: Duration = Duration::from_secs(1);
/// While no packet confirms them, the time of the newest large datagram is written so often.
const WRITE_EVERY: Duration = Duration::from_millis(10);

/// Batches that were lost are tried again after this time: kernels are updated, routes change.
pub(crate) const AVOID_BATCHES: Duration = Duration::from_secs(600);

/// State of one session's path, in separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SharedPath {
    /// When the newest large datagram came that no packet has confirmed, in ns; 0 if there is none.
    owed: AtomicU64,
    /// When the peer has confirmed one last, in ns.
    received: AtomicU64,
    /// Until when batches are avoided, in ns.
    single_until: AtomicU64,
}

impl SharedPath {
    /// A datagram of almost the size in use came.
    #[inline]
    pub(super) fn owe(&self, now: Time) {
        let owed = Time::from_nanos(self.owed.load(Ordering::Relaxed));
        if owed == Time::ZERO || now.since(owed) >= WRITE_EVERY {
            self.owed.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Whether the packet sent now confirms that a large datagram came. Each is confirmed once.
    #[inline]
    pub(super) fn take_owed(&self, now: Time) -> bool {
        let owed = self.owed.load(Ordering::Relaxed);
        if owed == 0 {
            return false;
        }
        self.owed.store(0, Ordering::Relaxed);
        now.since(Time::from_nanos(owed)) <= CONFIRM_WITHIN
    }

    /// The peer has received a datagram of almost the size in use.
    #[inline]
    pub(super) fn receive(&self, now: Time) {
        self.received.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// When [`SharedPath::receive`] was called last.
    #[inline]
    pub(super) fn received(&self) -> Time {
        Time::from_nanos(self.received.load(Ordering::Relaxed))
    }

    /// Batches to the peer are lost on the way.
    pub(super) fn avoid_batches(&self, until: Time) {
        self.single_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Batches may arrive again: the path is another one.
    pub(super) fn try_batches(&self) {
        self.single_until.store(0, Ordering::Relaxed);
    }

    /// Whether datagrams to the peer are sent outside batches.
    #[inline]
    pub(super) fn avoids_batches(&self, now: Time) -> bool {
        now.as_nanos() < self.single_until.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_tried_again_in_time_or_on_another_path() {
        let (path, now) = (SharedPath::default(), Time::ZERO + Duration::from_secs(100));
        assert!(!path.avoids_batches(now));
        path.avoid_batches(now + AVOID_BATCHES);
        assert!(path.avoids_batches(now) && path.avoids_batches(now + Duration::from_secs(599)));
        assert!(!path.avoids_batches(now + AVOID_BATCHES));
        path.try_batches();
        assert!(!path.avoids_batches(now));
    }
}
