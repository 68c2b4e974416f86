//! One direction of a network path: what happens to a datagram on its way.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

/// Properties of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// Probability that a datagram is lost.
    pub(crate) loss: f64,
    /// Probability that it arrives twice.
    pub(crate) duplication: f64,
    /// Shortest time on the way.
    pub(crate) delay: Duration,
    /// Delay that may be added, evenly spread: this reorders datagrams.
    pub(crate) jitter: Duration,
    /// Longer datagrams vanish.
    pub(crate) mtu: usize,
}

impl Path {
    /// Nothing but a delay.
    pub(crate) const CLEAN: Self = Self {
        loss: 0.0,
        duplication: 0.0,
        delay: Duration::from_millis(10),
        jitter: Duration::ZERO,
        mtu: 1500,
    };

    pub(crate) fn lossy(loss: f64) -> Self {
        Self { loss, ..Self::CLEAN }
    }

    /// When the copies of a datagram of `len` bytes arrive, counted from now.
    pub(crate) fn carry(&self, rng: &mut Xoshiro256PlusPlus, len: usize) -> Vec<Duration> {
        if len > self.mtu || rng.random_bool(self.loss) {
            return Vec::new();
        }
        let copies = if rng.random_bool(self.duplication) { 2 } else { 1 };
        (0..copies).map(|_| self.once(rng)).collect()
    }

    /// When a message of the reliable channel arrives, or `None` if the connection breaks before.
    pub(crate) fn carry_reliably(&self, rng: &mut Xoshiro256PlusPlus) -> Option<Duration> {
        let mut waited = Duration::ZERO;
        let mut retransmit = Duration::from_millis(200);
        for _ in 0..8 {
            if !rng.random_bool(self.loss) {
                return Some(waited + self.once(rng));
            }
            waited += retransmit;
            retransmit *= 2;
        }
        None
    }

    fn once(&self, rng: &mut Xoshiro256PlusPlus) -> Duration {
        self.delay + self.jitter.mul_f64(rng.random::<f64>())
    }
}
