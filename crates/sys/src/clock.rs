//! The daemon's three clocks. The protocol's own code has none: time is an argument there.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use minicbor::{Decode, Encode};
use vpnd_proto::time::Time;

use crate::process;

/// Boot time, the protocol's clock: it goes on while the machine sleeps, so keys age then too.
pub fn now() -> Time {
    Time::from_nanos(u64::try_from(process::boottime().as_nanos()).unwrap_or(u64::MAX))
}

/// Seconds since 1970 by the system's clock, which people agree on and administrators set; 0 if it
/// stands before that.
#[must_use]
pub fn wall_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// One moment by two clocks, from which all processes of a daemon count the same seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Origin {
    /// Seconds since 1970 by the system's clock.
    #[n(0)]
    wall_s: u64,
    /// Boot time at that moment.
    #[n(1)]
    boot: Time,
}

impl Origin {
    /// The moment at which the system's clock was at `wall_s` and boot time at `boot`.
    #[must_use]
    pub const fn new(wall_s: u64, boot: Time) -> Self {
        Self { wall_s, boot }
    }

    /// Boot time at a second of [`steady_s`]; the origin for all seconds before it.
    #[must_use]
    pub fn boot_time(self, steady_s: u64) -> Time {
        self.boot + Duration::from_secs(steady_s.saturating_sub(self.wall_s))
    }

    fn steady_s(self, now: Time) -> u64 {
        self.wall_s.saturating_add(now.since(self.boot).as_secs())
    }
}

/// Set once: by the privileged parent when it first needs it, by a child from its first message.
static ORIGIN: OnceLock<Origin> = OnceLock::new();

/// This daemon's origin, which the parent hands to each child, also to those of an upgrade.
pub fn origin() -> Origin {
    *ORIGIN.get_or_init(|| Origin::new(wall_s(), now()))
}

/// Takes over the parent's origin.
///
/// # Errors
/// If this process has counted from another one already.
pub fn adopt(parents: Origin) -> Result<(), OriginError> {
    if *ORIGIN.get_or_init(|| parents) == parents { Ok(()) } else { Err(OriginError) }
}

#[derive(Debug, thiserror::Error)]
#[error("this process read its clock before it had the parent's")]
pub struct OriginError;

/// Seconds since 1970 as the system's clock had it at the daemon's [`origin`], counted evenly
/// since, suspend included.
///
/// Sessions, leases and grants use this clock. A step of the system's clock, by a year even,
/// neither ends a session nor frees its address. It is the same in all processes of a daemon,
/// because each compares times that another has written.
pub fn steady_s() -> u64 {
    origin().steady_s(now())
}

/// Both, as arguments: seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// Wall clock: one-time codes, the audit file.
    pub wall: fn() -> u64,
    /// Clock that can't be set: sessions, leases, grants.
    pub steady: fn() -> u64,
}

impl Default for Clocks {
    fn default() -> Self {
        Self { wall: wall_s, steady: steady_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 86_400;

    /// A worker and auth that started at other moments, with a step of the system's clock in
    /// between, count the same seconds.
    #[test]
    fn processes_with_one_origin_agree_whenever_they_first_look() {
        let boot = Time::from_nanos(5_000_000_000);
        let origin = Origin { wall_s: 10 * DAY_S, boot };
        let encoded = minicbor::to_vec(origin).unwrap();
        let handed_over: Origin = minicbor::decode(&encoded).unwrap();
        for later_s in [0, 1, 3_600, 3 * DAY_S] {
            let now = boot + Duration::from_secs(later_s);
            assert_eq!(origin.steady_s(now), 10 * DAY_S + later_s);
            assert_eq!(handed_over.steady_s(now), origin.steady_s(now));
            assert_eq!(handed_over.boot_time(origin.steady_s(now)), now);
        }
    }

    #[test]
    fn an_origin_is_never_exchanged() {
        let first = origin();
        for step in [2 * DAY_S, 0_u64.wrapping_sub(2 * DAY_S)] {
            let other = Origin { wall_s: first.wall_s.wrapping_add(step), ..first };
            assert!(adopt(other).is_err());
        }
        adopt(first).unwrap();
        assert_eq!(origin(), first);
    }
}
