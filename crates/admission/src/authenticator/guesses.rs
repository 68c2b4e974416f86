//! Guesses of passwords and codes, at both entrances and over all gateways of a fleet.
//!
//! INVARIANT: a guess is counted before anything looks at the password; in a fleet after all that
//! other gateways have counted, if it may be one too many for all of them together.

use std::sync::{Arc, Mutex, MutexGuard};

use vpnd_proto::admission::Source;

use super::throttle::{Guess, Person, Throttle};
use super::{Entrance, Login};
use crate::notices::{Membership, Notice, Notices, Subscriber, lock};
use vpnd_store::StoreError;

pub(super) struct Guesses {
    /// By entrance.
    throttles: [Mutex<Throttle>; 2],
    fleet: Membership,
}

impl Default for Guesses {
    fn default() -> Self {
        let throttles = [Throttle::default(), Throttle::at_portal()].map(Mutex::new);
        Self { throttles, fleet: Membership::default() }
    }
}

impl Guesses {
    /// Guesses are decided on in the order of this fleet from now on.
    pub(super) fn join(&self, notices: &Arc<Notices>) {
        self.fleet.join(notices);
    }

    /// Guesses count at all gateways of a fleet, of which this many are alive.
    pub(super) fn share(&self, gateways: u32) {
        for entrance in Entrance::ALL {
            self.at(entrance).share(gateways);
        }
    }

    /// Counts a login of this person as a guess, or returns the seconds after which there may be
    /// another.
    pub(super) fn admit(
        &self,
        login: &Login,
        person: Person,
        known: bool,
        now_s: u64,
    ) -> Result<Result<Guess, u64>, StoreError> {
        let (from, mut throttle) = (Source::from(login.source), self.at(login.entrance));
        if !throttle.is_tight(person, from, known, now_s) {
            return Ok(throttle.admit(person, from, known, now_s));
        }
        drop(throttle);
        self.fleet.in_order(|| self.at(login.entrance).admit(person, from, known, now_s))
    }

    /// Counts a login by which nothing can be guessed until it is over.
    pub(super) fn count_shown(&self, login: &Login, person: Person, known: bool, now_s: u64) -> Guess {
        self.at(login.entrance).count_shown(person, Source::from(login.source), known, now_s)
    }

    /// Seconds until a login of this person is admitted; `None` if that is now.
    pub(super) fn wait_s(&self, login: &Login, person: &Person, known: bool, now_s: u64) -> Option<u64> {
        self.at(login.entrance).wait_s(person, Source::from(login.source), known, now_s)
    }

    /// Seconds until another guess like this one is admitted; `None` if that is now.
    pub(super) fn wait_after_s(&self, login: &Login, guess: &Guess, now_s: u64) -> Option<u64> {
        self.at(login.entrance).wait_after_s(guess, now_s)
    }

    /// It was none: nothing was checked, or all of it was right.
    pub(super) fn take_back(&self, login: &Login, guess: Guess) {
        self.at(login.entrance).take_back(guess);
    }

    /// It was none, and the person is let in.
    pub(super) fn succeeded(&self, login: &Login, guess: Guess) {
        self.at(login.entrance).succeeded(guess);
    }

    /// The name has led to this entry of its source: guesses by other names of it count for the
    /// same person.
    pub(super) fn is_entry(&self, name: &str, entry: Person) {
        for entrance in Entrance::ALL {
            self.at(entrance).is_entry(name, entry);
        }
    }

    fn at(&self, entrance: Entrance) -> MutexGuard<'_, Throttle> {
        lock(&self.throttles[entrance as usize])
    }
}

impl Subscriber for Guesses {
    fn learn(&self, notice: &Notice) {
        if let Notice::Guess(is_at_portal, guess) = notice {
            let entrance = if *is_at_portal { Entrance::Portal } else { Entrance::Tunnel };
            self.at(entrance).learn(guess);
        }
    }

    fn made(&self) -> Vec<Notice> {
        let made_at = |entrance| {
            let made = self.at(entrance).take_shared().into_iter();
            made.map(move |guess| Notice::Guess(entrance == Entrance::Portal, guess))
        };
        Entrance::ALL.into_iter().flat_map(made_at).collect()
    }
}
