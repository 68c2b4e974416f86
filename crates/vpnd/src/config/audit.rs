//! `[audit]`: what is recorded of people, and for how long.

use super::document::{Log as Problems, Section};
use crate::audit::OuterAddresses;
use crate::audit::recorder::Policy;
use crate::audit::retention::Retention;

/// A hundred years.
const MAX_DAYS: u64 = 36_500;

pub(super) fn audit(s: &mut Section<'_>, p: &mut Problems) -> Policy {
    let kinds = [
        ("full", OuterAddresses::Full),
        ("truncated", OuterAddresses::Truncated),
        ("none", OuterAddresses::None),
    ];
    let default = Retention::DEFAULT;
    let mut days = |s: &mut Section<'_>, key: &'static str, default: u32| {
        s.number(p, key, 0..=MAX_DAYS, default.into()) as u32
    };
    let retention = Retention {
        user_days: days(s, "user_days", default.user_days),
        device_days: days(s, "device_days", default.device_days),
        inner_days: days(s, "inner_days", default.inner_days),
        outer_days: days(s, "outer_days", default.outer_days),
        refused_days: days(s, "refused_days", default.refused_days),
        record_days: days(s, "record_days", default.record_days),
    };
    Policy {
        enabled: s.flag(p, "enabled", true),
        outer: s.choice(p, "outer_addresses", &kinds).unwrap_or_default(),
        retention,
        min_free: s.number(p, "min_free_mib", 0..=1 << 20, 64) << 20,
    }
}
