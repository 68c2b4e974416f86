//! Receiving while a gateway's shard is behind: messages are taken from the kernel as they come, and handled by turns of the sessions.
//!
//! INVARIANT: this is off the way of a shard that keeps up. It begins when a turn ends with messages left in the socket, and ends when
//! both socket and backlog are empty.

use vpnd_proto::plane::{Claim, DropReason};
use vpnd_proto::time::Time;
use vpnd_proto::wire::{Header, PacketClass};

use super::backlog::{Owner, cost, datagrams};
use super::devices::{DatagramSocket, PacketDevice};
use super::inbound::{MIN_COST, RECEIVE_BUDGET, RECEIVE_BYTES, RECEIVE_MESSAGES, sender_of};
use super::{Progress, Shard, now};
use crate::sys::udp::RecvMeta;

/// The cost of what is handled between two looks at the socket: little enough that it takes a fraction of a millisecond.
const TURN_COST: usize = 256 << 10;
/// The cost of what is taken from the socket at once. Taking a message costs about a sixth of handling it: so the larger part of the
/// time is left for handling, and the kernel's queue overflows only when more than four times of what can be handled comes.
const TAKE_COST: usize = 4 * TURN_COST;

impl<T: PacketDevice, S: DatagramSocket> Shard<T, S> {
    /// Handles messages by turns of their sessions, until there are none or the budget is used.
    #[cold]
    pub(super) fn receive_by_turns(&mut self, buffers: &mut [Box<[u8]>]) -> Progress {
        let mut budget = RECEIVE_BUDGET;
        while budget > 0 {
            let taken = self.take_messages(buffers);
            budget = budget.saturating_sub(self.handle_turn(buffers).max(MIN_COST));
            if taken == Progress::Drained && self.inbound.backlog.is_empty() {
                self.inbound.behind = false;
                return Progress::Drained;
            }
        }
        Progress::More
    }

    /// Handles all that waits. Messages that come meanwhile stay in the socket.
    pub(super) fn handle_backlog(&mut self) {
        let mut buffers = std::mem::take(&mut self.inbound.buffers);
        while !self.inbound.backlog.is_empty() {
            self.handle_turn(&mut buffers);
        }
        self.inbound.buffers = buffers;
    }

    /// Handles the messages whose turn it is. Returns what they cost.
    fn handle_turn(&mut self, buffers: &mut [Box<[u8]>]) -> usize {
        let mut meta = [RecvMeta::default(); RECEIVE_MESSAGES];
        let now = now();
        let (count, congested) = self.inbound.backlog.serve(now, TURN_COST, buffers, &mut meta);
        self.handle_messages(now, buffers, &meta[..count], congested);
        meta[..count].iter().map(cost).sum()
    }

    /// Takes messages from the socket to the backlog.
    fn take_messages(&mut self, buffers: &mut [Box<[u8]>]) -> Progress {
        let mut budget = TAKE_COST;
        while budget > 0 {
            let mut meta = [RecvMeta::default(); RECEIVE_MESSAGES];
            let asked = self.inbound.messages;
            match self.receive_messages(buffers, &mut meta) {
                Ok(count) => {
                    let now = now();
                    for (buffer, meta) in buffers.iter_mut().zip(&meta[..count]) {
                        budget = budget.saturating_sub(cost(meta));
                        self.take_message(now, buffer, *meta);
                    }
                    if count < asked {
                        return Progress::Drained;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Progress::Drained,
                Err(_) => budget = budget.saturating_sub(RECEIVE_BYTES),
            }
        }
        Progress::More
    }

    /// Takes one message to the backlog.
    fn take_message(&mut self, now: Time, buffer: &mut Box<[u8]>, meta: RecvMeta) {
        let owner = match self.owner(&buffer[..meta.len], &meta) {
            Ok(owner) => owner,
            // Nothing is cheaper than to drop it now.
            Err(reason) if datagrams(&meta) == 1 => {
                self.drop(reason);
                return;
            }
            // Those behind the first may be somebody's.
            Err(_) => Owner::Unproven,
        };
        let dropped = self.inbound.backlog.push(now, owner, meta, buffer);
        self.plane.counters_mut().count(DropReason::Overload, dropped);
    }

    /// In whose queue a message waits, by its first datagram. Nothing of it is proved yet: so it is a session's only if it comes from
    /// where that session is. Otherwise whoever knows a session's index could fill its queue.
    fn owner(&self, message: &[u8], meta: &RecvMeta) -> Result<Owner, DropReason> {
        if self.quic.is_some() && PacketClass::of(message) == PacketClass::Quic {
            return Ok(Owner::PassedOn);
        }
        let header = Header::parse(message).map_err(|_| DropReason::BadHeader)?;
        if self.neighbours.len() > 1 && header.index.shard(self.neighbours.len()) != self.number {
            return Ok(Owner::PassedOn);
        }
        match self.plane.claim(header, sender_of(meta)) {
            Claim::Known(slot) => Ok(Owner::Session(slot)),
            Claim::Unproven => Ok(Owner::Unproven),
            Claim::Nobody => Err(DropReason::UnknownIndex),
        }
    }
}
