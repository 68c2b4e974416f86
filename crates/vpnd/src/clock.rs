//! The daemon's three clocks. The protocol's own code has none: time is an argument there.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use vpnd_proto::time::Time;

use crate::sys::process;

/// Boot time, the protocol's clock: it goes on while the machine sleeps, so keys age then too.
pub(crate) fn now() -> Time {
    Time::from_nanos(u64::try_from(process::boottime().as_nanos()).unwrap_or(u64::MAX))
}

/// Seconds since 1970 by the system's clock, which people agree on and administrators set; 0 if it stands before that.
#[must_use]
pub fn wall_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Seconds since 1970 as the system's clock had it when this process first read it, gone on evenly since, suspend included.
///
/// Sessions, leases and grants go by this one. Somebody who sets the machine's clock, by a year even, neither ends a session
/// nor frees the address of one.
pub(crate) fn steady_s() -> u64 {
    static START: OnceLock<(u64, Time)> = OnceLock::new();
    let (started_s, at) = *START.get_or_init(|| (wall_s(), now()));
    started_s.saturating_add(now().since(at).as_secs())
}
