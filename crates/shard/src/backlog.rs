//! The messages that wait at a shard which is behind, sorted by whose they are, within a fixed
//! amount of memory.
//!
//! The kernel's queue of a socket or TUN device is shared by all sessions: when it is full, the
//! next message is lost, and the session that sends most has most of it. So a shard that can't keep
//! up takes messages out of it as they arrive, which costs a fraction of handling them, and serves
//! sessions in turns ([`FairQueue`]). There is a queue for each session and a few for everything
//! whose session is not certain. Each direction of a shard has its own backlog of the [`Message`]s
//! that it gets.
//!
//! INVARIANTS: memory is that of [`Store`]. Messages of one session leave in the order in which
//! they came.

mod store;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use vpnd_proto::plane::Slot;
use vpnd_proto::time::Time;

use super::codel::Codel;
use super::fair_queue::{FairQueue, Size};
use store::{Contents, MAX_MESSAGES, Store};
use vpnd_sys::tun::MAX_READ_LEN;
use vpnd_sys::udp::RecvMeta;

/// Longest run of datagrams in one message, in bytes.
pub(super) const MESSAGE_LEN: usize = 65_536;
/// Length of a buffer: that of the longest message of either direction.
pub(super) const BUFFER_LEN: usize = if MAX_READ_LEN > MESSAGE_LEN { MAX_READ_LEN } else { MESSAGE_LEN };
/// Cost of handling a packet in addition to its bytes, in bytes: a short one takes more than half
/// of the time of a long one.
const PACKET_COST: usize = 1_000;
/// Least cost of a session's turn: enough for a dozen packets to leave together, and little enough
/// for others to wait a fraction of a millisecond.
const QUANTUM: u32 = 32 << 10;
/// Cost of a round of all sessions while turns can be longer than that: some 15 ms of a core. Eight
/// sessions then have a megabyte each at once, and a gateway without priority is interrupted by
/// their clients a few times a turn and not by each message of it.
const ROUND: u32 = 8 << 20;
/// Queues for datagrams with a session's index that come from where that session is not known to
/// be.
const UNPROVEN_QUEUES: u32 = 8;
/// Queues for datagrams that this shard only passes on.
const PASSED_ON_QUEUES: u32 = 8;
/// The queue of the session in slot 0.
const FIRST_SESSION: u32 = UNPROVEN_QUEUES + PASSED_ON_QUEUES;

/// Facts about a message in addition to its bytes.
pub(super) trait Message: Copy {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Returns the number of its packets: datagrams, or slices of a super-packet.
    fn packets(&self) -> usize;

    /// This one with `next` behind it, if the two can be handled as one.
    fn joined(&self, next: &Self) -> Option<Self>;

    /// Returns the cost of handling it, in bytes.
    fn cost(&self) -> usize {
        self.len() + PACKET_COST * self.packets()
    }
}

/// A run of datagrams. One that goes on where the one before ends is as if the kernel had merged
/// them.
impl Message for RecvMeta {
    fn len(&self) -> usize {
        self.len
    }

    fn packets(&self) -> usize {
        self.len.div_ceil(self.stride.max(1)).max(1)
    }

    fn joined(&self, next: &Self) -> Option<Self> {
        let same = |meta: &Self| (meta.addr, meta.dst_ip, meta.ecn, meta.stride);
        let is_full = self.len.is_multiple_of(self.stride.max(1));
        let mut joined = *self;
        joined.len += next.len;
        (same(self) == same(next) && is_full && joined.len <= MESSAGE_LEN).then_some(joined)
    }
}

/// A read from a TUN device: a header and a packet, perhaps a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) len: usize,
    /// Slices of the packet.
    pub(super) packets: usize,
}

impl Message for Read {
    fn len(&self) -> usize {
        self.len
    }

    fn packets(&self) -> usize {
        self.packets
    }

    fn joined(&self, _: &Self) -> Option<Self> {
        None
    }
}

/// The owner of the queue in which a message waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A session, whose address the message has.
    Session(Slot),
    /// A queue that the addresses of strangers share: a session's index from another address than
    /// its own, perhaps since its client has moved, perhaps forged.
    Unproven(IpAddr),
    /// A shared queue of messages for QUIC and for other shards.
    PassedOn(IpAddr),
}

/// Messages that wait.
#[derive(Debug)]
pub(super) struct Backlog<M> {
    queue: FairQueue<Waiting<M>>,
    store: Store,
    /// By queue: whether it has been long for so long that its senders should slow down.
    codels: Vec<Codel>,
    /// Spreads addresses over the queues that they share, unpredictably for others.
    hasher: RandomState,
}

#[derive(Debug)]
struct Waiting<M> {
    message: M,
    contents: Contents,
    since: Time,
}

impl<M: Message> Backlog<M> {
    pub(super) fn new() -> Self {
        Self {
            queue: FairQueue::new(QUANTUM, ROUND, MAX_MESSAGES),
            store: Store::new(),
            codels: Vec::new(),
            hasher: RandomState::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the message in `buffer`, which may be replaced by another. Returns how many packets
    /// were dropped to make room.
    pub(super) fn push(&mut self, now: Time, owner: Owner, message: M, buffer: &mut Box<[u8]>) -> usize {
        let mut dropped = 0;
        let contents = loop {
            if let Some(contents) = self.store.put(buffer, message.len()) {
                break contents;
            }
            // The oldest message of the longest queue is worth least, and its loss is noticed
            // soonest.
            let Some(oldest) = self.queue.drop_longest() else { return dropped + message.packets() };
            dropped += oldest.message.packets();
            self.store.drop(oldest.contents);
        };
        let room = Store::room(&contents, message.len());
        let size = Size { cost: message.cost() as u32, room: room as u32 };
        let flow = self.flow(owner);
        self.queue.push(flow, Waiting { message, contents, since: now }, size);
        dropped
    }

    /// Fills `buffers` and `messages` with those whose turn it is, until they cost `enough`.
    /// Returns how many, and a bit for each that is to show congestion.
    pub(super) fn serve(
        &mut self,
        now: Time,
        enough: usize,
        buffers: &mut [Box<[u8]>],
        messages: &mut [M],
    ) -> (usize, u32) {
        let (mut count, mut total, mut congested) = (0, 0, 0);
        for (buffer, place) in buffers.iter_mut().zip(messages) {
            if total >= enough {
                break;
            }
            let Some((message, is_congested)) = self.pop(now, buffer) else { break };
            *place = message;
            congested |= u32::from(is_congested) << count;
            total += message.cost();
            count += 1;
        }
        (count, congested)
    }

    /// Puts the message whose turn it is into `buffer`, which may be replaced by another. Returns
    /// it, and whether it is to show congestion.
    ///
    /// Messages of one session that fit together become one: so they are sealed and sent as one.
    pub(super) fn pop(&mut self, now: Time, buffer: &mut Box<[u8]>) -> Option<(M, bool)> {
        let Waiting { mut message, contents, since } = self.queue.pop()?;
        let is_congested = self.is_congested(now, since);
        self.store.take(contents, message.len(), buffer, 0);
        loop {
            let mut joined = None;
            let next = self.queue.pop_same(|next| {
                let is_short = matches!(next.contents, Contents::Blocks(_));
                joined = message.joined(&next.message).filter(|_| is_short);
                joined.is_some()
            });
            let (Some(next), Some(joined)) = (next, joined) else { break };
            self.store.take(next.contents, next.message.len(), buffer, message.len());
            message = joined;
        }
        Some((message, is_congested))
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

    fn flow(&self, owner: Owner) -> u32 {
        match owner {
            Owner::Session(slot) => FIRST_SESSION + slot.index,
            Owner::Unproven(from) => self.spread(from, UNPROVEN_QUEUES),
            Owner::PassedOn(from) => UNPROVEN_QUEUES + self.spread(from, PASSED_ON_QUEUES),
        }
    }

    /// Returns one of `queues` queues. A host may use any address of its IPv6 network.
    fn spread(&self, from: IpAddr, queues: u32) -> u32 {
        let network = match from.to_canonical() {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        (self.hasher.hash_one(network) % u64::from(queues)) as u32
    }
}

#[cfg(test)]
mod tests;
