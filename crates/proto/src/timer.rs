//! A deterministic queue of timers: what fires next, and why.
//!
//! A timer is named by its key, which should name the reason too; setting it again moves it. Two
//! timers of the same time fire in the order of their keys, so that a run can be repeated exactly.

use std::collections::{BTreeMap, BTreeSet};

use crate::time::Time;

/// Timers named by `K`.
#[derive(Clone, Debug)]
pub struct TimerQueue<K> {
    by_time: BTreeSet<(Time, K)>,
    by_key: BTreeMap<K, Time>,
}

impl<K: Ord + Copy> Default for TimerQueue<K> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), by_key: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> TimerQueue<K> {
    /// A queue without timers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the timer `key` to `at`, wherever it stood before.
    pub fn set(&mut self, key: K, at: Time) {
        if let Some(before) = self.by_key.insert(key, at) {
            self.by_time.remove(&(before, key));
        }
        self.by_time.insert((at, key));
    }

    /// Removes the timer `key` if it is set.
    pub fn cancel(&mut self, key: K) {
        if let Some(at) = self.by_key.remove(&key) {
            self.by_time.remove(&(at, key));
        }
    }

    /// When the timer `key` fires, if it is set.
    #[must_use]
    pub fn get(&self, key: K) -> Option<Time> {
        self.by_key.get(&key).copied()
    }

    /// The next timer to fire.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Time, K)> {
        self.by_time.first().copied()
    }

    /// The timers that are due at `now`, the next one first.
    pub fn due(&self, now: Time) -> impl Iterator<Item = K> {
        self.by_time.iter().take_while(move |(at, _)| *at <= now).map(|(_, key)| *key)
    }

    /// Takes out the next timer that is due at `now`.
    pub fn pop(&mut self, now: Time) -> Option<K> {
        let (at, key) = self.poll_timeout()?;
        if at > now {
            return None;
        }
        self.cancel(key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn timers_fire_in_order_and_once() {
        let mut timers = TimerQueue::new();
        let at = Time::from_nanos;
        timers.set('b', at(5));
        timers.set('a', at(5));
        timers.set('c', at(9));
        timers.set('c', at(1));
        assert_eq!(timers.poll_timeout(), Some((at(1), 'c')));
        assert_eq!(timers.pop(at(0)), None);
        assert_eq!((timers.due(at(0)).count(), timers.due(at(4)).collect::<String>()), (0, "c".to_owned()));
        let fired: String = core::iter::from_fn(|| timers.pop(at(5))).collect();
        assert_eq!(fired, "cab");
        assert_eq!(timers.poll_timeout(), None);
    }

    proptest! {
        #[test]
        fn agrees_with_a_list(steps in proptest::collection::vec((0u8..4, 0u8..6, 0u64..50), 0..200)) {
            let mut timers = TimerQueue::new();
            let mut list: Vec<(Time, u8)> = Vec::new();
            for (what, key, at) in steps {
                let at = Time::from_nanos(at);
                match what {
                    0 | 1 => {
                        timers.set(key, at);
                        list.retain(|entry| entry.1 != key);
                        list.push((at, key));
                    }
                    2 => {
                        timers.cancel(key);
                        list.retain(|entry| entry.1 != key);
                    }
                    _ => {
                        list.sort_unstable();
                        let due = list.first().copied().filter(|entry| entry.0 <= at);
                        list.retain(|entry| Some(*entry) != due);
                        prop_assert_eq!(timers.pop(at), due.map(|entry| entry.1));
                    }
                }
                prop_assert_eq!(timers.poll_timeout(), list.iter().min().copied());
            }
        }
    }
}
