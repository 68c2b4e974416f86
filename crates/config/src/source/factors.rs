//! The factors that a source's logins have proved, by its administrator's word: the gateway
//! can't see what a server has checked.

use super::Source;
use crate::document::{Log as Problems, Section};
use crate::factor::{CheckedElsewhere, Factors};

impl Source {
    /// The factors that a login has proved which this source has accepted, after a challenge or
    /// without.
    #[must_use]
    pub fn factors(&self, challenged: bool) -> Factors {
        let approval = if self.push().is_some() { Factors::APPROVAL } else { Factors::default() };
        let challenge = if challenged { self.challenge_amr } else { Factors::default() };
        Factors::PASSWORD.and(self.amr).and(approval).and(challenge)
    }
}

/// Factors that a source is trusted to have checked.
pub(super) fn read(s: &mut Section<'_>, p: &mut Problems, key: &'static str) -> Factors {
    let names: Vec<CheckedElsewhere> = s.list(p, key, "\"otp\" or \"mca\"").unwrap_or_default();
    names.into_iter().fold(Factors::default(), |all, CheckedElsewhere(one)| all.and(one))
}
