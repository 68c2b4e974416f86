//! Turns of notices that callers share. INVARIANT: of those that callers wait for, one is under way
//! at a time, however many callers there are; each waits for one that began after it asked.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::lock;
use vpnd_store::StoreError;

/// The turns that callers wait for.
#[derive(Default)]
pub(super) struct SharedTurns {
    begun: AtomicU64,
    /// Locked while a turn is under way.
    last: Mutex<Last>,
}

/// The last turn that has ended.
#[derive(Default)]
struct Last {
    number: u64,
    failure: Option<StoreError>,
}

impl SharedTurns {
    /// Returns the number of turns that have begun, which a caller reads when it asks.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Returns after a turn that is later than the first `begun` ones: another caller's, or `turn`.
    /// Its failure is that of all who wait for it: without the database, each of them would wait
    /// for the next caller to fail.
    pub(super) fn join(
        &self,
        begun: u64,
        turn: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut last = lock(&self.last);
        if last.number <= begun {
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let failure = turn().err();
            *last = Last { number, failure };
        }
        last.failure.as_ref().map_or(Ok(()), |failure| Err(failure.repeated()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn callers_share_a_turn_that_begins_after_they_ask() {
        let (turns, count) = (SharedTurns::default(), Cell::new(0));
        let turn = || {
            count.set(count.get() + 1);
            Ok(())
        };
        let (asked, asked_meanwhile) = (turns.begun(), Cell::new(0));
        let first = || {
            asked_meanwhile.set(turns.begun());
            turn()
        };
        turns.join(asked, first).unwrap();
        (0..100).for_each(|_| turns.join(asked, turn).unwrap());
        assert_eq!(count.get(), 1, "all have asked before it began");
        (0..100).for_each(|_| turns.join(asked_meanwhile.get(), turn).unwrap());
        assert_eq!(count.get(), 2, "the first may have read the notices before they asked");
        turns.join(turns.begun(), turn).unwrap();
        assert_eq!(count.get(), 3);
    }

    #[test]
    fn a_failed_turn_is_repeated_for_those_alone_who_ask_later() {
        let (turns, count) = (SharedTurns::default(), Cell::new(0));
        let failing = || {
            count.set(count.get() + 1);
            Err(StoreError::NoFleet)
        };
        let asked = turns.begun();
        (0..100).for_each(|_| assert!(turns.join(asked, failing).is_err()));
        assert_eq!(count.get(), 1);
        assert!(turns.join(turns.begun(), || Ok(())).is_ok());
    }
}
