//! Confirmations that large datagrams arrive, which the shards of an end share (PROTOCOL §13.2):
//! one may receive large datagrams and another send the packet that confirms them, and one may
//! receive the confirmation of what another has sent.
//!
//! Both words are times that nothing else hangs on, so relaxed ordering is enough: a shard that
//! sees an old one confirms twice or asks once more.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::time::Time;

/// Once a large datagram has come, the next packet the other way confirms it, if that goes within
/// this time: so old is a confirmation at most.
const CONFIRM_WITHIN: Duration = Duration::from_secs(1);
/// While no packet confirms them, the time of the newest large datagram is written so often.
const WRITE_EVERY: Duration = Duration::from_millis(10);

/// The confirmations of one session, in separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Confirmations {
    /// When the newest large datagram came that no packet has confirmed, in ns; 0 if there is none.
    owed: AtomicU64,
    /// When the peer has confirmed one last, in ns.
    received: AtomicU64,
}

impl Confirmations {
    /// A datagram of almost the size in use came.
    #[inline]
    pub(super) fn owe(&self, now: Time) {
        let owed = Time::from_nanos(self.owed.load(Ordering::Relaxed));
        if owed == Time::ZERO || now.since(owed) >= WRITE_EVERY {
            self.owed.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Whether the packet that is sent now is to confirm that a large datagram came. Each is
    /// confirmed once.
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

    /// When [`Confirmations::receive`] was called last.
    #[inline]
    pub(super) fn received(&self) -> Time {
        Time::from_nanos(self.received.load(Ordering::Relaxed))
    }
}
