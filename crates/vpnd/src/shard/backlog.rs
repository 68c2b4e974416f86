//! The messages that wait at a shard which is behind, sorted by whose they are, within a fixed amount of memory.
//!
//! A kernel's receive queue is one for everybody: when it is full, whoever comes next loses, and whoever sends most has most of it.
//! So a shard that can't keep up takes messages out of it as they come, which costs a fraction of handling them, and serves them by
//! turns ([`FairQueue`]). There is a queue for each session and a few for everything whose session is not certain.
//!
//! INVARIANTS: memory is that of [`Store`]. Messages of one session leave in the order in which they came.

mod store;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use vpnd_proto::plane::Slot;
use vpnd_proto::time::Time;

use super::codel::Codel;
use super::fair_queue::{FairQueue, Size};
use crate::sys::udp::RecvMeta;
use store::{Contents, MAX_MESSAGES, Store};

/// Longest run of datagrams in one message, in bytes.
pub(super) const MESSAGE_LEN: usize = 65_536;
/// What handling a datagram costs beside its bytes, as so many bytes: a short packet takes a good half of the time of a long one.
const DATAGRAM_COST: usize = 1_000;
/// What a session may cost in its turn: so much that its datagrams go out by the dozen, and so little that others wait
/// a fraction of a millisecond.
const QUANTUM: u32 = 32 << 10;
/// Queues for datagrams with a session's index that come from where that session is not known to be.
const UNPROVEN_QUEUES: u32 = 8;
/// Queues for datagrams that this shard only passes on.
const PASSED_ON_QUEUES: u32 = 8;
/// The queue of the session in slot 0.
const FIRST_SESSION: u32 = UNPROVEN_QUEUES + PASSED_ON_QUEUES;

/// Whose queue a message waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// That of a session, whose address the message has.
    Session(Slot),
    /// One that the addresses of strangers share: a session's index from another address than its own, perhaps since its client has
    /// moved, perhaps forged.
    Unproven,
    /// The same for QUIC and for other shards.
    PassedOn,
}

/// Messages that wait.
#[derive(Debug)]
pub(super) struct Backlog {
    queue: FairQueue<Waiting>,
    store: Store,
    /// By queue: whether it has been long for so long that its senders should slow down.
    codels: Vec<Codel>,
    /// Spreads addresses over the queues that they share, as nobody outside can predict.
    hasher: RandomState,
}

#[derive(Debug)]
struct Waiting {
    meta: RecvMeta,
    contents: Contents,
    since: Time,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self {
            queue: FairQueue::new(QUANTUM, MAX_MESSAGES),
            store: Store::new(),
            codels: Vec::new(),
            hasher: RandomState::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the message in `buffer`, which may be replaced by another. Returns how many datagrams were dropped to make room.
    pub(super) fn push(&mut self, now: Time, owner: Owner, meta: RecvMeta, buffer: &mut Box<[u8]>) -> usize {
        let mut dropped = 0;
        let contents = loop {
            if let Some(contents) = self.store.put(buffer, meta.len) {
                break contents;
            }
            // What has waited longest in the longest queue is worth least, and its loss is noticed soonest.
            let Some(oldest) = self.queue.drop_longest() else { return dropped + datagrams(&meta) };
            dropped += datagrams(&oldest.meta);
            self.store.drop(oldest.contents);
        };
        let room = Store::room(&contents, meta.len);
        let size = Size { cost: cost(&meta) as u32, room: room as u32 };
        let waiting = Waiting { meta, contents, since: now };
        self.queue.push(self.flow(owner, meta.addr.ip()), waiting, size);
        dropped
    }

    /// Fills `buffers` and `metas` with messages whose turn it is, until they cost `enough`. Returns how many, and a bit for each that
    /// is to show congestion.
    ///
    /// Messages of one session that fit together become one: so they are sealed and sent as one.
    pub(super) fn serve(
        &mut self,
        now: Time,
        enough: usize,
        buffers: &mut [Box<[u8]>],
        metas: &mut [RecvMeta],
    ) -> (usize, u32) {
        let (mut count, mut total, mut congested) = (0, 0, 0);
        for (buffer, meta) in buffers.iter_mut().zip(metas) {
            if total >= enough {
                break;
            }
            let Some(first) = self.queue.pop() else { break };
            congested |= u32::from(self.is_congested(now, first.since)) << count;
            *meta = first.meta;
            self.store.take(first.contents, meta.len, buffer, 0);
            while let Some(next) = self.queue.pop_same(|next| joins(meta, next)) {
                self.store.take(next.contents, next.meta.len, buffer, meta.len);
                meta.len += next.meta.len;
            }
            total += cost(meta);
            count += 1;
        }
        (count, congested)
    }

    /// Whether the message that was just taken from its queue is to show congestion.
    fn is_congested(&mut self, now: Time, since: Time) -> bool {
        let (flow, is_last) = self.queue.served();
        let flow = flow as usize;
        if self.codels.len() <= flow {
            self.codels.resize(flow + 1, Codel::default());
        }
        self.codels[flow].signals(now, now.since(since), is_last)
    }

    fn flow(&self, owner: Owner, from: IpAddr) -> u32 {
        match owner {
            Owner::Session(slot) => FIRST_SESSION + slot.index,
            Owner::Unproven => self.spread(from, UNPROVEN_QUEUES),
            Owner::PassedOn => UNPROVEN_QUEUES + self.spread(from, PASSED_ON_QUEUES),
        }
    }

    /// One of so many queues. A host may use any address of its IPv6 network.
    fn spread(&self, from: IpAddr, queues: u32) -> u32 {
        let network = match from.to_canonical() {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        (self.hasher.hash_one(network) % u64::from(queues)) as u32
    }
}

/// How many datagrams a message has.
pub(super) fn datagrams(meta: &RecvMeta) -> usize {
    meta.len.div_ceil(meta.stride.max(1)).max(1)
}

/// What handling a message costs, in bytes.
pub(super) fn cost(meta: &RecvMeta) -> usize {
    meta.len + DATAGRAM_COST * datagrams(meta)
}

/// Whether a message goes on where the one before ends, as if the kernel had merged them.
fn joins(before: &RecvMeta, next: &Waiting) -> bool {
    let same = |meta: &RecvMeta| (meta.addr, meta.dst_ip, meta.ecn, meta.stride);
    matches!(next.contents, Contents::Blocks(_))
        && same(before) == same(&next.meta)
        && before.len.is_multiple_of(before.stride.max(1))
        && before.len + next.meta.len <= MESSAGE_LEN
}

#[cfg(test)]
mod tests;
