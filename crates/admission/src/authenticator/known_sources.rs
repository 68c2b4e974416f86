//! Sources from which anybody has logged in lately, whatever user: logins from there have their
//! turn before strangers'.
//!
//! INVARIANT: its size is bounded; the oldest source makes room.

use std::collections::HashMap;

use super::history::KNOWN_SOURCE_S;
use vpnd_store::Users;

const MAX_SOURCES: usize = 16_384;

/// Time of the last login, by source.
#[derive(Debug, Default)]
pub(super) struct KnownSources(HashMap<String, u64>);

impl KnownSources {
    /// Loads the store's sources. If it fails, every network counts as unknown.
    pub(super) fn of(users: &dyn Users) -> Self {
        let found = users.newest_sources(MAX_SOURCES).unwrap_or_else(|error| {
            tracing::warn!(%error, "networks of earlier logins could not be read");
            Vec::new()
        });
        Self(found.into_iter().collect())
    }

    pub(super) fn contains(&self, prefix: &str, now_s: u64) -> bool {
        self.0.get(prefix).is_some_and(|seen_s| seen_s.saturating_add(KNOWN_SOURCE_S) > now_s)
    }

    pub(super) fn add(&mut self, prefix: String, now_s: u64) {
        if self.0.len() >= MAX_SOURCES && !self.0.contains_key(&prefix) {
            let oldest = self.0.iter().min_by_key(|(_, seen_s)| **seen_s).map(|(prefix, _)| prefix.clone());
            oldest.and_then(|oldest| self.0.remove(&oldest));
        }
        self.0.insert(prefix, now_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_networks_expire_and_the_oldest_are_evicted() {
        let mut sources = KnownSources::default();
        sources.add("first".to_owned(), 1_000);
        assert!(sources.contains("first", 1_000 + KNOWN_SOURCE_S - 1));
        assert!(!sources.contains("first", 1_000 + KNOWN_SOURCE_S) && !sources.contains("other", 1_000));
        for number in 0..MAX_SOURCES {
            sources.add(format!("place {number}"), 2_000);
        }
        assert_eq!(sources.0.len(), MAX_SOURCES);
        assert!(!sources.contains("first", 2_000) && sources.contains("place 0", 2_000));
    }
}
