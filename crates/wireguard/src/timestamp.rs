//! TAI64N, which orders the handshakes of a peer (§5.1): seconds since 1970 from 2^62 + 10, then
//! nanoseconds, big-endian, so that bytes compare as times do.
//!
//! A peer's clock need not be right; it must only not go back. Leap seconds are ignored, as by
//! every implementation.

use core::time::Duration;

/// The label of the second 1970-01-01 00:00:00 TAI, and what TAI was ahead then.
const EPOCH: u64 = (1 << 62) + 10;
/// Timestamps are rounded down to this many nanoseconds (2^24, 16.8 ms), so that they tell little
/// about the sender's clock; no peer may begin handshakes faster anyway.
const STEP_NANOS: u32 = 1 << 24;

/// A time by the clock of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp([u8; Self::LEN]);

impl Timestamp {
    /// Bytes of a timestamp.
    pub const LEN: usize = 12;

    /// The timestamp of a time since 1970 (UTC), rounded down.
    #[must_use]
    pub fn from_unix(since_1970: Duration) -> Self {
        let nanos = since_1970.subsec_nanos();
        Self::new(EPOCH.saturating_add(since_1970.as_secs()), nanos - nanos % STEP_NANOS)
    }

    /// The bytes on the wire, from a message or a store.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// The bytes on the wire.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        self.0
    }

    /// The next timestamp that is later, for a clock that has not moved on or has gone back.
    #[must_use]
    pub fn next(self) -> Self {
        let (seconds, nanos) = self.parts();
        match nanos.checked_add(STEP_NANOS).filter(|nanos| *nanos < 1_000_000_000) {
            Some(nanos) => Self::new(seconds, nanos),
            None => Self::new(seconds.saturating_add(1), 0),
        }
    }

    fn new(seconds: u64, nanos: u32) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&seconds.to_be_bytes());
        bytes[8..].copy_from_slice(&nanos.to_be_bytes());
        Self(bytes)
    }

    fn parts(self) -> (u64, u32) {
        let (seconds, nanos) = self.0.split_at(8);
        let seconds = seconds.try_into().map(u64::from_be_bytes).expect("the first 8 of 12 bytes");
        let nanos = nanos.try_into().map(u32::from_be_bytes).expect("the last 4 of 12 bytes");
        (seconds, nanos)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_those_of_tai64n() {
        let time = Timestamp::from_unix(Duration::new(1, STEP_NANOS + 5));
        assert_eq!(time.to_bytes(), [0x40, 0, 0, 0, 0, 0, 0, 11, 1, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn bytes_compare_as_times_do(a in 0u64..1 << 40, b in 0u64..1 << 40) {
            let stamp = |steps: u64| Timestamp::from_unix(Duration::from_nanos(steps * u64::from(STEP_NANOS)));
            let (x, y) = (stamp(a), stamp(b));
            // Within a second steps differ; its last, shorter step is never skipped.
            if a.abs_diff(b) > 1 {
                prop_assert_eq!(a < b, x < y);
            }
        }

        #[test]
        fn the_next_is_later(bytes: [u8; 12]) {
            let time = Timestamp::from_bytes(bytes);
            if time.parts().0 < u64::MAX {
                prop_assert!(time.next() > time);
                prop_assert!(time.next().parts().1 < 1_000_000_000);
            }
        }
    }
}
