//! Points in time, by the caller's clock.
//!
//! This crate never reads a clock. The daemon passes the boot-time clock, which goes on while the
//! machine is suspended (so keys age during a suspend); the simulation passes its own.

use core::ops::{Add, Sub};
use core::time::Duration;

use minicbor::{Decode, Encode};

/// Nanoseconds since an arbitrary start that does not change while the process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct Time(#[n(0)] u64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);

    /// The point `nanos` nanoseconds after the clock's start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this; zero if it is not later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    /// Saturates at the end of the clock, 584 years after its start.
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Time {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let now = Time::from_nanos(5);
        assert_eq!(now - Time::from_nanos(9), Duration::ZERO);
        assert_eq!(Time::from_nanos(u64::MAX) + Duration::from_secs(1), Time::from_nanos(u64::MAX));
        assert_eq!(now + Duration::from_nanos(2), Time::from_nanos(7));
    }
}
