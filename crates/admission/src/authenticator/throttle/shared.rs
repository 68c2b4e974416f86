//! Guesses that the gateways of a fleet let one another know, so that an attacker gets no more of
//! them by spreading over gateways.
//!
//! A gateway admits a guess by itself only if there is room even if each other one has admitted as
//! many unknown to the rest; else it first learns what others have counted
//! ([`Throttle::is_tight`]). A person who has not failed before is admitted in any case: at the
//! same moment each gateway may let such a person guess once. What was admitted too much in a
//! moment counts, so that later waits are longer.

use vpnd_proto::admission::Source;

use super::{Guess, MAX_ENTRIES, Person, Throttle};
use crate::notices::{GuessEvent, SharedGuess};

/// Time after which a guess is known at all gateways, seconds: they send and read several times a
/// second.
const KNOWN_AFTER_S: u64 = 2;

/// The part of a throttle that other gateways are to know.
#[derive(Debug)]
pub(super) struct Shared {
    /// Those that are alive, this one included.
    gateways: u32,
    last: u64,
    /// Not taken yet. Guesses with their numbers, others without.
    made: Vec<(u64, SharedGuess)>,
    /// Guesses of this gateway that others may not know of.
    unheard: Vec<Unheard>,
}

#[derive(Clone, Copy, Debug)]
struct Unheard {
    number: u64,
    person: Person,
    from: Source,
    at_s: u64,
}

impl Shared {
    pub(super) fn counted(&mut self, guess: &Guess) -> u64 {
        self.last += 1;
        let Guess { person, from, at_s, .. } = *guess;
        self.unheard.push(Unheard { number: self.last, person, from, at_s });
        self.make(self.last, GuessEvent::Counted, guess);
        self.last
    }

    pub(super) fn taken_back(&mut self, guess: &Guess) {
        self.unheard.retain(|unheard| unheard.number != guess.number);
        let before = self.made.len();
        self.made.retain(|(number, _)| *number != guess.number);
        if self.made.len() == before {
            self.make(0, GuessEvent::TakenBack, guess);
        }
    }

    pub(super) fn forgiven(&mut self, person: Person, from: Source, at_s: u64) {
        let guess = Guess { person, from, known: false, at_s, before_s: ([None; 3], None), number: 0 };
        self.make(0, GuessEvent::Forgiven, &guess);
    }

    fn make(&mut self, number: u64, event: GuessEvent, guess: &Guess) {
        // While the database is away there are no logins, and hardly a change.
        if self.made.len() < MAX_ENTRIES {
            let Guess { person, from, known, at_s, .. } = *guess;
            let shared = SharedGuess { event, person: person.0.into(), from: from.into(), known, at_s };
            self.made.push((number, shared));
        }
    }

    /// Failures that others may have admitted besides, if the next one is admitted here.
    fn margin(&mut self, person: Person, from: Source, now_s: u64) -> u32 {
        self.unheard.retain(|unheard| unheard.at_s.abs_diff(now_s) < KNOWN_AFTER_S);
        let is_alike = |unheard: &&Unheard| unheard.person == person || unheard.from == from;
        let unheard = u32::try_from(self.unheard.iter().filter(is_alike).count()).unwrap_or(u32::MAX);
        unheard.saturating_add(1).saturating_mul(self.gateways.saturating_sub(1))
    }
}

impl Throttle {
    /// Guesses count at all gateways of a fleet, of which this many are alive.
    pub(in super::super) fn share(&mut self, gateways: u32) {
        let new = Shared { gateways, last: 0, made: Vec::new(), unheard: Vec::new() };
        self.shared.get_or_insert(new).gateways = gateways;
    }

    /// Whether a guess that would be admitted may be one too many for all gateways together, so
    /// that this one has to learn first what others have counted.
    pub(in super::super) fn is_tight(
        &mut self,
        person: Person,
        from: Source,
        known: bool,
        now_s: u64,
    ) -> bool {
        let resolved = self.resolve(person);
        let Some(margin) = self.shared.as_mut().map(|shared| shared.margin(resolved, from, now_s)) else {
            return false;
        };
        self.wait_s(&person, from, known, now_s).is_none()
            && self.wait_beyond_s(&person, from, known, now_s, margin).is_some()
    }

    /// Changes that others are to know, since the last call.
    pub(in super::super) fn take_shared(&mut self) -> Vec<SharedGuess> {
        let made = self.shared.as_mut().map(|shared| std::mem::take(&mut shared.made));
        made.into_iter().flatten().map(|(_, guess)| guess).collect()
    }

    /// Another gateway has counted it, or no longer counts it.
    pub(in super::super) fn learn(&mut self, guess: &SharedGuess) {
        let SharedGuess { event, person, from, known, at_s } = *guess;
        let (person, from) = (self.resolve(Person(person.into())), Source::from(from));
        match event {
            GuessEvent::Counted => _ = self.tally(person, from, known, at_s),
            GuessEvent::TakenBack => {
                // When the ones before it were counted only that gateway knows.
                let before_s = ([None; 3], None);
                self.discount(&Guess { person, from, known, at_s, before_s, number: 0 });
            }
            GuessEvent::Forgiven => _ = self.forgive(person, from),
        }
    }
}

#[cfg(test)]
mod tests;
