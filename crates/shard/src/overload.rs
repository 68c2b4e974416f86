//! Both directions of a gateway's shard while it is behind: messages are taken from the kernel as
//! they come, and handled by turns of the sessions that they are of, or for.
//!
//! INVARIANT: this is off the way of a shard that keeps up. It begins when turns end with messages
//! left in the kernel's queue, and ends when both that queue and the backlog are empty: so what
//! comes later is never handled before what waits.

use std::io;

use vpnd_packet::offload::{PeerFeatures, Slicer};
use vpnd_proto::plane::{Claim, DropReason};
use vpnd_proto::time::Time;

use super::backlog::{Backlog, Message, Owner, Read};
use super::devices::{DatagramSocket, PacketDevice};
use super::inbound::{RECEIVE_BYTES, RECEIVE_MESSAGES, sender_of};
use super::outbound::parse;
use super::{Progress, Shard, now};
use vpnd_sys::udp::RecvMeta;

/// The cost of what is handled between two looks at the kernel's queue, which is a turn of the
/// direction: little enough that it takes a fraction of a millisecond.
const TURN_COST: usize = 256 << 10;
/// The cost of what is taken from the kernel at once. Taking a message costs about a sixth of
/// handling it: so the larger part of the time is left for handling, and the kernel's queue
/// overflows only when more than four times of what can be handled comes.
const TAKE_COST: usize = 4 * TURN_COST;

/// One direction of a shard that may be behind.
pub(super) struct Overload<M> {
    /// Messages that wait.
    pub(super) backlog: Backlog<M>,
    /// Whether messages go through the backlog.
    pub(super) is_behind: bool,
}

impl<M: Message> Overload<M> {
    pub(super) fn new() -> Self {
        Self { backlog: Backlog::new(), is_behind: false }
    }

    /// Ends a turn; `taken` is how far the kernel's queue was taken.
    fn end_turn(&mut self, taken: Progress) -> Progress {
        self.is_behind = taken == Progress::More || !self.backlog.is_empty();
        if self.is_behind { Progress::More } else { Progress::Drained }
    }
}

impl<T: PacketDevice, S: DatagramSocket> Shard<T, S> {
    /// Takes messages from the socket, and handles those whose turn it is.
    #[cold]
    pub(super) fn receive_by_turns(&mut self, buffers: &mut [Box<[u8]>]) -> Progress {
        let taken = self.take_messages(buffers);
        self.handle_turn(buffers);
        self.inbound.overload.end_turn(taken)
    }

    /// Takes packets from the TUN device, and sends those whose turn it is.
    ///
    /// # Errors
    /// If the device is gone.
    #[cold]
    pub(super) fn transmit_by_turns(&mut self) -> io::Result<Progress> {
        let taken = self.take_packets()?;
        self.send_turn();
        Ok(self.outbound.overload.end_turn(taken))
    }

    /// Handles all that waits. What comes meanwhile stays in the socket and in the device.
    pub(super) fn handle_backlog(&mut self) {
        let mut buffers = std::mem::take(&mut self.inbound.buffers);
        while !self.inbound.overload.backlog.is_empty() {
            self.handle_turn(&mut buffers);
        }
        self.inbound.buffers = buffers;
        while !self.outbound.overload.backlog.is_empty() {
            self.send_turn();
        }
    }

    /// Handles the messages whose turn it is.
    fn handle_turn(&mut self, buffers: &mut [Box<[u8]>]) {
        let mut meta = [RecvMeta::default(); RECEIVE_MESSAGES];
        let now = now();
        let (count, congested) = self.inbound.overload.backlog.serve(now, TURN_COST, buffers, &mut meta);
        self.handle_messages(now, buffers, &meta[..count], congested);
    }

    /// Sends the packets whose turn it is.
    fn send_turn(&mut self) {
        let now = now();
        let mut cost = 0;
        while cost < TURN_COST
            && let Some((packet, is_congested)) =
                self.outbound.overload.backlog.pop(now, &mut self.outbound.read)
        {
            let loses_first = is_congested && !self.outbound.mark(packet.len);
            self.send_read(now, packet.len, loses_first);
            cost += packet.cost();
        }
        self.finish_sending(now);
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
                        budget = budget.saturating_sub(meta.cost());
                        self.take_message(now, buffer, *meta);
                    }
                    if count < asked {
                        return Progress::Drained;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Drained,
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
            Err(reason) if meta.packets() == 1 => {
                self.tunnel.drop(reason);
                return;
            }
            // Datagrams behind the first may be of a session.
            Err(_) => Owner::Unproven(meta.addr.ip()),
        };
        let dropped = self.inbound.overload.backlog.push(now, owner, meta, buffer);
        self.tunnel.plane.counters_mut().count(DropReason::Overload, dropped);
    }

    /// Returns the queue for a message, judged by its first datagram. Nothing of it is proved yet,
    /// so it is a session's only if it comes from that session's address. Otherwise an attacker who
    /// knows a session's index could fill its queue.
    fn owner(&self, message: &[u8], meta: &RecvMeta) -> Result<Owner, DropReason> {
        let from = meta.addr.ip();
        let Some(header) = self.hand_off.peek(message)? else { return Ok(Owner::PassedOn(from)) };
        match self.tunnel.plane.claim(header, sender_of(meta)) {
            Claim::Known(slot) => Ok(Owner::Session(slot)),
            Claim::Unproven => Ok(Owner::Unproven(from)),
            Claim::Nobody => Err(DropReason::UnknownIndex),
        }
    }

    /// Takes packets from the TUN device to the backlog.
    fn take_packets(&mut self) -> io::Result<Progress> {
        let now = now();
        let mut budget = TAKE_COST;
        while budget > 0 {
            let Some(len) = self.read_packet()? else { return Ok(Progress::Drained) };
            budget = budget.saturating_sub(self.take_packet(now, len));
        }
        Ok(Progress::More)
    }

    /// Takes the packet of `len` bytes that was read to the backlog. Returns what it costs.
    fn take_packet(&mut self, now: Time, len: usize) -> usize {
        let (owner, packet) = match self.recipient(now, len) {
            Ok(known) => known,
            Err(reason) => {
                self.tunnel.drop(reason);
                return Read { len, packets: 1 }.cost();
            }
        };
        let dropped = self.outbound.overload.backlog.push(now, owner, packet, &mut self.outbound.read);
        self.tunnel.plane.counters_mut().count(DropReason::Overload, dropped);
        packet.cost()
    }

    /// Returns the queue for the packet of `len` bytes that was read: that of the session that it
    /// is for.
    fn recipient(&mut self, now: Time, len: usize) -> Result<(Owner, Read), DropReason> {
        let (header, packet) = parse(&self.outbound.read[..len])?;
        let slot = self.tunnel.plane.recipient(now, &packet)?;
        let slicer = Slicer::new(&header, &packet, PeerFeatures::default());
        let packets = slicer.map_err(|_| DropReason::BadOffload)?.count();
        Ok((Owner::Session(slot), Read { len, packets }))
    }
}
