//! The receiving indexes in use. They are random but for the bits that name their shard, so they do
//! not tell how many peers there are.

use std::collections::{BTreeSet, HashMap};

use vpnd_proto::session::{Random, random_index};
use vpnd_proto::wire::Index;

use super::PeerId;

/// The owner of each index.
#[derive(Debug, Default)]
pub(super) struct Indexes(HashMap<Index, PeerId>);

impl Indexes {
    /// A new index of the peer, owned by `shard` of `shards`.
    pub(super) fn allocate(
        &mut self,
        peer: PeerId,
        shard: usize,
        shards: usize,
        random: &mut Random,
    ) -> Index {
        let index = random_index(random, shard, shards, |index| self.0.contains_key(&index));
        self.0.insert(index, peer);
        index
    }

    /// Gives the peer these indexes, unless one of them is in use.
    pub(super) fn take_all(&mut self, peer: PeerId, indexes: &[Index]) -> bool {
        let distinct: BTreeSet<Index> = indexes.iter().copied().collect();
        let are_free =
            distinct.len() == indexes.len() && distinct.iter().all(|index| !self.0.contains_key(index));
        if are_free {
            self.0.extend(distinct.into_iter().map(|index| (index, peer)));
        }
        are_free
    }

    pub(super) fn peer(&self, index: Index) -> Option<PeerId> {
        self.0.get(&index).copied()
    }

    pub(super) fn release(&mut self, index: Index) {
        self.0.remove(&index);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
