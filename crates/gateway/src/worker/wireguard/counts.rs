//! Counts of handshakes by their outcome, as metrics name them.

use std::collections::BTreeMap;

use vpnd_wireguard::gate;
use vpnd_wireguard::handshakes::Refused;
use vpnd_wireguard::peers::Dropped;

/// Outcomes since the start, beside those that the gate counts.
#[derive(Debug, Default)]
pub(super) struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    pub(super) fn add(&mut self, name: &'static str) {
        *self.0.entry(name).or_default() += 1;
    }

    /// A message of a handshake was dropped.
    pub(super) fn add_dropped(&mut self, dropped: Dropped) {
        match dropped {
            // The first look counts them.
            Dropped::Malformed | Dropped::WrongMac => {}
            // The gate counts them.
            Dropped::CookieSent | Dropped::TooMany => {}
            Dropped::UnknownIndex => self.add("unknown_index"),
            Dropped::NotAuthentic => self.add("not_authentic"),
            Dropped::Busy => self.add("busy"),
        }
    }

    /// The process with the static key has refused a step.
    pub(super) fn add_refused(&mut self, why: Refused) {
        self.add(match why {
            Refused::NotAuthentic(_) => "not_authentic",
            Refused::UnknownKey(_) => "unknown_key",
            Refused::Replayed(_) => "replayed",
            Refused::TooOften(_) => "too_often",
            Refused::NotBegun(_) => "not_begun",
            Refused::Busy => "busy",
        });
    }

    /// All of them, with those of the gate and of the first look.
    pub(super) fn all(
        &self,
        gate: gate::Counts,
        first_look: [(&'static str, u64); 2],
    ) -> BTreeMap<String, u64> {
        let gate = [("passed", gate.passed), ("cookies", gate.cookies), ("too_many", gate.too_many)];
        let own = self.0.iter().map(|(name, count)| (*name, *count));
        let all = gate.into_iter().chain(first_look).chain(own);
        all.map(|(name, count)| (format!("wireguard_{name}"), count)).collect()
    }
}
