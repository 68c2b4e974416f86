//! Hints on their way to the store, for which nothing waits: sessions go on while it does not
//! answer.
//!
//! INVARIANT: the newest hint of each key counts, so no more of them wait than there are keys.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Hints by key, and whether there will be no more.
type Kept<K, V> = (HashMap<K, V>, bool);

struct Waiting<K, V> {
    kept: Mutex<Kept<K, V>>,
    changed: Condvar,
}

/// Stores hints in a separate thread, which ends when this is dropped.
pub struct Keeper<K, V>(Arc<Waiting<K, V>>);

impl<K: Hash + Eq + Send + 'static, V: Send + 'static> Keeper<K, V> {
    /// With this function, which stores those of a `pause` together.
    pub fn start(pause: Duration, store: impl Fn(Vec<(K, V)>) + Send + 'static) -> Self {
        let waiting = Arc::new(Waiting { kept: Mutex::default(), changed: Condvar::new() });
        let shared = Arc::clone(&waiting);
        thread::spawn(move || {
            while let Some(kept) = shared.next(pause) {
                store(kept.into_iter().collect());
            }
        });
        Self(waiting)
    }

    pub fn keep(&self, hints: impl IntoIterator<Item = (K, V)>) {
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.0.extend(hints);
        if !kept.0.is_empty() {
            self.0.changed.notify_one();
        }
    }
}

impl<K, V> Drop for Keeper<K, V> {
    fn drop(&mut self) {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.0.changed.notify_one();
    }
}

impl<K, V> Waiting<K, V> {
    /// Waits for something to keep. `None` once there will be nothing more.
    fn next(&self, pause: Duration) -> Option<HashMap<K, V>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |(kept, is_over): &mut Kept<K, V>| kept.is_empty() && !*is_over;
        let mut kept = self.changed.wait_while(kept, idle).unwrap_or_else(PoisonError::into_inner);
        if !pause.is_zero() {
            drop(kept);
            thread::sleep(pause);
            kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        }
        Some(std::mem::take(&mut kept.0)).filter(|kept| !kept.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_newest_hint_of_each_key_is_stored() {
        let (sender, stored) = mpsc::channel();
        let keeper = Keeper::start(Duration::from_millis(50), move |hints: Vec<(u8, u8)>| {
            sender.send(hints).unwrap();
        });
        keeper.keep([(1, 1)]);
        keeper.keep([(1, 2)]);
        drop(keeper);
        assert_eq!(stored.iter().collect::<Vec<_>>(), [vec![(1, 2)]]);
    }
}
