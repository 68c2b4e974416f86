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

/// Reads both; `is_direct` says that the gateway has no account there.
pub(super) fn read(s: &mut Section<'_>, p: &mut Problems, is_direct: bool) -> Option<Recheck> {
    let every_s = s.number(p, "recheck_s", 0..=86_400, if is_direct { 0 } else { 900 });
    let grace_s = s.number(p, "recheck_grace_s", 0..=604_800, 14_400);
    if is_direct && every_s > 0 {
        let reason =
            "users can't be asked about again without their password: that needs bind_dn, not user_dn";
        s.problem(p, "recheck_s", reason.to_owned());
    }
    let (every, grace) = (Duration::from_secs(every_s), Duration::from_secs(grace_s));
    (every_s > 0).then_some(Recheck { every, grace })
}
