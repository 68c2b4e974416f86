//! The receive indexes of all epochs that are alive, and how they are spread over the shards.

use std::collections::BTreeSet;

use crate::session::{Random, random_index};
use crate::wire::Index;

/// The indexes in use. INVARIANT: `load` counts them by their shard.
#[derive(Debug)]
pub(super) struct Indexes {
    taken: BTreeSet<Index>,
    load: Vec<usize>,
}

impl Indexes {
    pub(super) fn new(shards: usize) -> Self {
        Self { taken: BTreeSet::new(), load: vec![0; shards] }
    }

    /// One index for each of the client's lanes, owned by the shard that serves the lane (PROTOCOL
    /// §7.1). A session stays on the shards of its epoch `before`, so that its flows keep their
    /// order; a new one goes where there are fewest.
    pub(super) fn allocate(&mut self, lanes: usize, before: &[Index], random: &mut Random) -> Vec<Index> {
        let shards = self.load.len();
        let groups = lanes.min(shards);
        let mut indexes = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let shard = match before.get(lane).filter(|_| before.len() == lanes) {
                Some(index) => index.shard(shards),
                // The shards whose number is `lane` modulo `groups` serve it.
                None => (lane % groups..shards)
                    .step_by(groups)
                    .min_by_key(|shard| self.load[*shard])
                    .expect("a lane's group is below the number of shards"),
            };
            let index = random_index(random, shard, shards, |index| self.taken.contains(&index));
            self.taken.insert(index);
            self.load[shard] += 1;
            indexes.push(index);
        }
        indexes
    }

    pub(super) fn shards(&self) -> usize {
        self.load.len()
    }

    /// Takes an index that another process has given out; false if it is taken.
    pub(super) fn take(&mut self, index: Index) -> bool {
        let free = self.taken.insert(index);
        if free {
            let shard = index.shard(self.load.len());
            self.load[shard] += 1;
        }
        free
    }

    /// The number of them.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.taken.len()
    }

    /// An epoch is over: its index may be given out again.
    pub(super) fn release(&mut self, index: Index) {
        if self.taken.remove(&index) {
            let shard = index.shard(self.load.len());
            self.load[shard] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random() -> Random {
        let mut state = 7u64;
        Box::new(move |bytes| {
            for byte in bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
        })
    }

    #[test]
    fn sessions_are_spread_evenly_and_stay_where_they_are() {
        let (mut indexes, mut random) = (Indexes::new(4), random());
        let sessions: Vec<_> = (0..8).map(|_| indexes.allocate(1, &[], &mut random)[0]).collect();
        assert_eq!(indexes.load, [2, 2, 2, 2]);
        let next = indexes.allocate(1, &sessions[..1], &mut random)[0];
        assert_eq!(next.shard(4), sessions[0].shard(4));
        indexes.release(sessions[0]);
        indexes.release(sessions[0]);
        assert_eq!(indexes.load, [2, 2, 2, 2]);
    }

    #[test]
    fn every_lane_is_served_by_a_shard_of_its_group() {
        for (lanes, shards) in [(1, 1), (2, 4), (3, 4), (4, 2), (16, 3)] {
            let allocated = Indexes::new(shards).allocate(lanes, &[], &mut random());
            let groups = lanes.min(shards);
            for (lane, index) in allocated.iter().enumerate() {
                assert_eq!(index.shard(shards) % groups, lane % groups, "{lanes} lanes, {shards} shards");
            }
        }
    }
}
