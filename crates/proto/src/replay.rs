//! Replay window over 8,192 counters.
//!
//! A ring of bits addressed by the low bits of the counter, so that moving the window clears what
//! enters it instead of shifting what is in it (the idea of RFC 6479; the window here is exact, not
//! rounded to words).
//!
//! INVARIANT: for every counter in `(highest - WINDOW, highest]` its bit says whether it was
//! committed; no other counter has a bit.

/// Counters that may still arrive late.
pub const WINDOW: u64 = 8192;

const WORDS: usize = (WINDOW / 64) as usize;

/// Remembers which counters of a lane have been received.
#[derive(Clone)]
pub struct ReplayWindow {
    bits: [u64; WORDS],
    highest: Option<u64>,
}

impl ReplayWindow {
    /// A window that has seen nothing.
    pub const fn new() -> Self {
        Self { bits: [0; WORDS], highest: None }
    }

    /// A window that lets nothing pass up to `highest`: what another process has recorded below
    /// that is not known here.
    pub const fn closed_up_to(highest: Option<u64>) -> Self {
        Self { bits: [u64::MAX; WORDS], highest }
    }

    /// Records `counter`, after its datagram was opened. False if it had been recorded meanwhile or
    /// is too old: then the datagram must be dropped.
    #[inline]
    #[must_use = "a datagram whose counter was refused must be dropped"]
    pub fn commit(&mut self, counter: u64) -> bool {
        if !self.check(counter) {
            return false;
        }
        if self.highest.is_none_or(|highest| counter > highest) {
            self.advance(counter);
        }
        self.bits[word(counter)] |= bit(counter);
        true
    }

    /// Whether `counter` is neither recorded nor too old: worth the work of opening its datagram.
    #[inline]
    pub fn check(&self, counter: u64) -> bool {
        match self.highest {
            None => true,
            Some(highest) if counter > highest => true,
            Some(highest) => highest - counter < WINDOW && self.bits[word(counter)] & bit(counter) == 0,
        }
    }

    /// The highest counter recorded.
    #[inline]
    pub const fn highest(&self) -> Option<u64> {
        self.highest
    }

    /// Whether no counter above `counter` has been recorded; the same before and after it is
    /// recorded itself.
    #[inline]
    pub fn is_newest(&self, counter: u64) -> bool {
        self.highest.is_none_or(|highest| counter >= highest)
    }

    /// Moves the window up to `counter`, clearing the bits of all counters that enter it.
    fn advance(&mut self, counter: u64) {
        match self.highest.replace(counter) {
            Some(highest) if counter - highest < WINDOW => self.clear(highest + 1, counter),
            _ => self.bits = [0; WORDS],
        }
    }

    /// Clears the bits of `from..=to`, fewer than a whole window.
    fn clear(&mut self, from: u64, to: u64) {
        let mut at = from;
        loop {
            let last_of_word = (at | 63).min(to);
            let below = bit(at) - 1;
            let up_to = u64::MAX >> (63 - (last_of_word & 63));
            self.bits[word(at)] &= below | !up_to;
            if last_of_word == to {
                return;
            }
            at = last_of_word + 1;
        }
    }
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for ReplayWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplayWindow").field("highest", &self.highest).finish_non_exhaustive()
    }
}

#[inline]
const fn word(counter: u64) -> usize {
    ((counter / 64) % (WORDS as u64)) as usize
}

#[inline]
const fn bit(counter: u64) -> u64 {
    1 << (counter % 64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_counter_once() {
        let mut window = ReplayWindow::new();
        for counter in [0, 1, 5, 3, 8191, 8192, 2] {
            assert!(window.check(counter));
            assert!(window.commit(counter));
            assert!(!window.check(counter));
            assert!(!window.commit(counter));
        }
        assert_eq!(window.highest(), Some(8192));
    }

    #[test]
    fn the_window_is_exactly_8192_wide() {
        let mut window = ReplayWindow::new();
        assert!(window.commit(10_000));
        assert!(window.check(10_000 - 8191));
        assert!(!window.check(10_000 - 8192));
    }

    #[test]
    fn a_closed_window_lets_only_later_counters_pass() {
        let mut window = ReplayWindow::closed_up_to(Some(10_000));
        for counter in [0, 10_000 - 8192, 10_000 - 8191, 9_999, 10_000] {
            assert!(!window.check(counter) && !window.commit(counter), "{counter}");
        }
        assert!(window.commit(10_002));
        assert!(window.check(10_001), "it was not heard before");
        assert!(!window.check(10_000));
        let mut unheard = ReplayWindow::closed_up_to(None);
        assert!(unheard.commit(5) && unheard.check(4) && !unheard.check(5));
    }

    #[test]
    fn the_newest_counter_is_recognised_before_and_after_entry() {
        let mut window = ReplayWindow::new();
        assert!(window.is_newest(0));
        assert!(window.commit(7));
        assert!(window.is_newest(7));
        assert!(window.is_newest(8));
        assert!(!window.is_newest(6));
    }

    #[test]
    fn the_last_counter_works() {
        let mut window = ReplayWindow::new();
        assert!(window.commit(u64::MAX));
        assert!(!window.commit(u64::MAX));
        assert!(window.commit(u64::MAX - 8191));
        assert!(!window.commit(u64::MAX - 8192));
    }

    /// Steps around the current highest counter: small, around the window's width, and far.
    fn step() -> impl Strategy<Value = i64> {
        prop_oneof![-70_i64..70, -8300_i64..8300, Just(8192), Just(-8191), Just(-8192), any::<i64>()]
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(
            start in prop_oneof![0_u64..20_000, (u64::MAX - 20_000)..=u64::MAX, any::<u64>()],
            steps in prop::collection::vec(step(), 1..300),
        ) {
            let mut window = ReplayWindow::new();
            let mut seen = HashSet::new();
            let mut highest: Option<u64> = None;
            let mut base = start;
            for step in steps {
                let counter = base.saturating_add_signed(step);
                let fresh = !seen.contains(&counter)
                    && highest.is_none_or(|highest| counter > highest || highest - counter < 8192);
                prop_assert_eq!(window.check(counter), fresh);
                prop_assert_eq!(window.is_newest(counter), highest.is_none_or(|highest| counter >= highest));
                prop_assert_eq!(window.commit(counter), fresh);
                if fresh {
                    seen.insert(counter);
                    highest = highest.max(Some(counter));
                }
                prop_assert_eq!(window.highest(), highest);
                base = highest.unwrap_or(start);
            }
        }
    }
}
