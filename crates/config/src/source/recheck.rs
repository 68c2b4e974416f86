//! `recheck_s` and `recheck_grace_s` of a source: asking about users with sessions again.

use std::time::Duration;

use crate::document::{Log as Problems, Section};

/// How users with sessions are asked about again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recheck {
    /// Each user so often.
    pub every: Duration,
    /// Time for which sessions go on without an answer after one was due.
    pub grace: Duration,
}

/// Reads the settings of a provider, which answers only if it gives refresh tokens: off by default.
pub(super) fn read_of_provider(s: &mut Section<'_>, p: &mut Problems) -> Option<Recheck> {
    keys(s, p, 0)
}

/// Reads both; `is_direct` says that the gateway has no account there.
pub(super) fn read(s: &mut Section<'_>, p: &mut Problems, is_direct: bool) -> Option<Recheck> {
    let recheck = keys(s, p, if is_direct { 0 } else { 900 });
    if is_direct && recheck.is_some() {
        let reason =
            "users can't be asked about again without their password: that needs bind_dn, not user_dn";
        s.problem(p, "recheck_s", reason.to_owned());
    }
    recheck
}

fn keys(s: &mut Section<'_>, p: &mut Problems, default_s: u64) -> Option<Recheck> {
    let every_s = s.number(p, "recheck_s", 0..=86_400, default_s);
    let grace_s = s.number(p, "recheck_grace_s", 0..=604_800, 14_400);
    let (every, grace) = (Duration::from_secs(every_s), Duration::from_secs(grace_s));
    (every_s > 0).then_some(Recheck { every, grace })
}
