//! Memory for replies of a source's servers, which no source has more of than others leave it: all
//! its connections share one limit.
//!
//! INVARIANT: what is held is given back when its holder goes. Who gets none fails: replies that
//! wait for memory would hold what they have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a source's replies may take at the same time.
const MAX_BYTES: usize = 16 << 20;

/// The memory of one source's replies.
#[derive(Clone, Default)]
pub(super) struct ReplyMemory(Arc<AtomicUsize>);

/// The part of one connection.
pub(super) struct Held {
    memory: ReplyMemory,
    bytes: usize,
}

/// The servers of a source send too much at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("replies of this source take more than {} MiB at the same time", MAX_BYTES >> 20)]
pub(super) struct NoMemory;

impl ReplyMemory {
    pub(super) fn hold_nothing(&self) -> Held {
        Held { memory: self.clone(), bytes: 0 }
    }
}

impl Held {
    /// Holds this number of bytes from now on, instead of those before.
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), NoMemory> {
        let Self { memory: ReplyMemory(all), bytes: before } = self;
        let change = |all: usize| (all - *before).checked_add(bytes).filter(|all| *all <= MAX_BYTES);
        all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).map_err(|_| NoMemory)?;
        *before = bytes;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_source_holds_more_than_its_limit() {
        let memory = ReplyMemory::default();
        let (mut one, mut other) = (memory.hold_nothing(), memory.hold_nothing());
        assert_eq!(one.set(MAX_BYTES - 10), Ok(()));
        assert_eq!((other.set(10), other.set(11)), (Ok(()), Err(NoMemory)));
        assert_eq!((one.set(usize::MAX), one.set(0)), (Err(NoMemory), Ok(())));
        assert_eq!(other.set(MAX_BYTES), Ok(()));
        drop(other);
        assert_eq!(one.set(MAX_BYTES), Ok(()));
    }
}
