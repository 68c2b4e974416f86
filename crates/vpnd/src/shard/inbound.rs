//! From the peers to the TUN device or, at a gateway, to another client: open in place, then rebuild or seal again.

use std::io::{self, IoSliceMut};
use std::ops::Range;

use vpnd_proto::ecn::Ecn;
use vpnd_proto::offload::Rebuilder;
use vpnd_proto::packet::Packet;
use vpnd_proto::plane::{DropReason, Endpoint, Opened, Outgoing, Role, Slot};
use vpnd_proto::pmtu::clamp_mss;
use vpnd_proto::time::Time;
use vpnd_proto::wire::{HEADER_LEN, Header, PacketClass};

use super::batch::{Run, send_runs};
use super::devices::{DatagramSocket, PacketDevice};
use super::outbound::is_syn;
use super::writes::{TunWrites, Writer};
use super::{Misdirected, Origin, Progress, Shard, now};
use crate::sys::tun::TunOffloads;
use crate::sys::udp::{MAX_SENDS, RecvMeta};

/// The most messages received by one system call; each may hold a run of datagrams.
const RECEIVE_MESSAGES: usize = 32;
/// What one system call should bring, in bytes: so little that it is still in the core's cache when it is opened, sealed
/// and copied to the kernel again. So bulk traffic comes message by message and small packets come by the dozen.
const RECEIVE_BYTES: usize = 128 << 10;
/// What a message counts for at least, in bytes, when the budget is spent.
const MIN_COST: usize = 4 << 10;
/// What is sealed for another client has at least a header and an IPv4 packet, in bytes.
const SHORTEST_FORWARD: usize = HEADER_LEN + 20;
/// Longest run of datagrams in one message, in bytes.
const MESSAGE_LEN: usize = 65_536;
/// Bytes received before the other direction has its turn.
const RECEIVE_BUDGET: usize = 1 << 20;

/// Buffers of this direction.
pub(super) struct Inbound {
    buffers: Vec<Box<[u8]>>,
    /// Messages that the next system call asks for.
    messages: usize,
    /// What was sealed again where it stood and waits to be sent: the number of its buffer, and its place there.
    runs: Vec<(usize, Run)>,
    rebuilder: Rebuilder,
    writer: Writer,
    /// A packet that came in two halves.
    joined: Vec<u8>,
}

impl Inbound {
    pub(super) fn new(offloads: TunOffloads) -> Self {
        let writer = Writer::new(offloads);
        Self {
            buffers: (0..RECEIVE_MESSAGES).map(|_| vec![0; MESSAGE_LEN].into_boxed_slice()).collect(),
            messages: RECEIVE_MESSAGES,
            runs: Vec::with_capacity(MESSAGE_LEN / SHORTEST_FORWARD + MAX_SENDS),
            rebuilder: Rebuilder::new(writer.features()),
            writer,
            joined: Vec::new(),
        }
    }

    /// What has become of the offloads of what is written.
    pub(super) fn writes(&self) -> TunWrites {
        self.writer.state()
    }
}

impl Shard {
    /// Receives until there is nothing or the budget is used.
    pub(super) fn receive(&mut self, socket: &impl DatagramSocket, tun: &impl PacketDevice) -> Progress {
        let mut buffers = std::mem::take(&mut self.inbound.buffers);
        let mut progress = Progress::More;
        let mut budget = RECEIVE_BUDGET;
        while budget > 0 {
            let mut meta = [RecvMeta::default(); RECEIVE_MESSAGES];
            let asked = self.inbound.messages;
            let received = {
                let mut slices = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer));
                let mut slices: [_; RECEIVE_MESSAGES] =
                    std::array::from_fn(|_| slices.next().expect("there is a buffer for each message"));
                socket.try_recv(&mut slices[..asked], &mut meta)
            };
            match received {
                Ok(count) => {
                    let now = now();
                    for (number, meta) in meta[..count].iter().enumerate() {
                        let from = Endpoint { remote: meta.addr, local: meta.dst_ip };
                        let origin =
                            Origin { from, mark: meta.ecn.map_or(Ecn::NotEct, |ecn| Ecn::of(ecn as u8)) };
                        let message = &mut buffers[number][..meta.len];
                        self.run(now, number, message, meta.stride.max(1), origin, socket, tun);
                        self.send_if_enough(&buffers, socket);
                    }
                    self.send_runs(&buffers, socket);
                    let bytes: usize = meta[..count].iter().map(|meta| meta.len.max(1)).sum();
                    self.inbound.messages = (RECEIVE_BYTES * count / bytes.max(1)).clamp(1, RECEIVE_MESSAGES);
                    budget = budget.saturating_sub(bytes.max(MIN_COST * count));
                    // Fewer than asked for: there were no more. What comes from now on is a new event.
                    if count < asked {
                        progress = Progress::Drained;
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    progress = Progress::Drained;
                    break;
                }
                // An ICMP error about an earlier datagram, and the like: nothing was received, the next call goes on.
                Err(error) => {
                    tracing::trace!(%error, "receiving failed");
                    budget = budget.saturating_sub(RECEIVE_BYTES);
                }
            }
        }
        self.inbound.buffers = buffers;
        progress
    }

    /// A datagram that another shard received for this one.
    pub(super) fn take_stray(
        &mut self,
        stray: Misdirected,
        socket: &impl DatagramSocket,
        tun: &impl PacketDevice,
    ) {
        let Misdirected { mut datagram, origin } = stray;
        let len = datagram.len();
        self.run(now(), 0, &mut datagram, len, origin, socket, tun);
        self.send_runs(&[datagram], socket);
    }

    /// Opens a run of datagrams of `stride` bytes each, the last perhaps shorter, and passes on what is in them. What goes
    /// to other clients stays where it is, in the buffer of this `number`, until it is sent.
    #[expect(clippy::too_many_arguments, reason = "one step of the loop above, which owns all of these")]
    fn run(
        &mut self,
        now: Time,
        number: usize,
        message: &mut [u8],
        stride: usize,
        origin: Origin,
        socket: &impl DatagramSocket,
        tun: &impl PacketDevice,
    ) {
        let mut start = 0;
        while start < message.len() {
            let end = (start + stride).min(message.len());
            match self.open(now, &mut message[start..end], origin) {
                Ok(Opened::Tun(range)) => {
                    self.collect(message, start + range.start..start + range.end, tun);
                }
                Ok(Opened::Forward { to, len }) => {
                    self.forward(now, number, message, start..end, to, len, socket);
                }
                Ok(Opened::Joined { to, len }) => {
                    // What came before it is passed on before it.
                    self.flush_to_tun(message, tun);
                    self.joined(now, to, len, socket, tun);
                }
                Ok(Opened::Expired { slot, len }) => {
                    let packet = &message[start + HEADER_LEN..start + HEADER_LEN + len];
                    self.outbound.answer_expired(now, slot, packet, &mut self.plane, socket);
                }
                Ok(Opened::Probe { slot, id, size, padded }) => {
                    self.originate(Outgoing::Reply { slot, id, size, padded }, socket);
                }
                Ok(Opened::Consumed) | Err(_) => {}
            }
            start = end;
        }
        self.outbound.flush(&mut self.plane, socket);
        self.outbound.send_path_checks(now, &mut self.plane, socket);
        self.flush_to_tun(message, tun);
    }

    /// Opens one datagram, or hands it to the shard or QUIC endpoint that can.
    fn open(&mut self, now: Time, datagram: &mut [u8], origin: Origin) -> Result<Opened, DropReason> {
        if let Some(quic) = &self.quic
            && PacketClass::of(datagram) == PacketClass::Quic
        {
            if quic.forward(datagram, origin.from) {
                return Ok(Opened::Consumed);
            }
            self.plane.count_drop(DropReason::ShardQueue);
            return Err(DropReason::ShardQueue);
        }
        if self.role == Role::Gateway
            && self.neighbours.len() > 1
            && let Ok(header) = Header::parse(datagram)
        {
            let owner = header.index.shard(self.neighbours.len());
            if owner != self.number {
                return self.hand_over(owner, datagram, origin);
            }
        }
        self.plane.open(now, datagram, origin.from, origin.mark)
    }

    fn hand_over(&mut self, owner: usize, datagram: &[u8], origin: Origin) -> Result<Opened, DropReason> {
        match self.neighbours[owner].try_send(Misdirected { datagram: datagram.into(), origin }) {
            Ok(()) => Ok(Opened::Consumed),
            Err(_) => {
                self.plane.count_drop(DropReason::ShardQueue);
                Err(DropReason::ShardQueue)
            }
        }
    }

    /// Seals a packet for another client where it stands, and joins it to the run before if it fits.
    #[expect(clippy::too_many_arguments, reason = "one step of the loop above, which owns all of these")]
    fn forward(
        &mut self,
        now: Time,
        number: usize,
        message: &mut [u8],
        place: Range<usize>,
        to: Slot,
        len: usize,
        socket: &impl DatagramSocket,
    ) {
        let start = place.start;
        let sealed = match self.plane.forward(now, to, &mut message[place], len) {
            Ok(sealed) => sealed,
            // The other client's suite adds more than this one's took away: seal in a buffer with room.
            Err(DropReason::TooLong) => {
                let packet = &message[start + HEADER_LEN..start + HEADER_LEN + len];
                return self.outbound.packet(now, to, packet, &mut self.plane, socket);
            }
            Err(DropReason::TooBig) => {
                let packet = &message[start + HEADER_LEN..start + HEADER_LEN + len];
                return self.outbound.fit_forwarded(now, to, packet, &mut self.plane, socket);
            }
            Err(_) => return,
        };
        match self.inbound.runs.last_mut() {
            Some((buffer, run)) if *buffer == number && run.takes(sealed.outer, start, sealed.len) => {
                run.push(sealed.len);
            }
            _ => self.inbound.runs.push((number, Run::new(sealed.outer, start, sealed.len))),
        }
    }

    /// Sends what waits if it makes a system call worth while.
    fn send_if_enough(&mut self, buffers: &[Box<[u8]>], socket: &impl DatagramSocket) {
        let runs = &self.inbound.runs;
        if runs.len() >= MAX_SENDS || runs.iter().map(|(_, run)| run.len()).sum::<usize>() >= MESSAGE_LEN / 2
        {
            self.send_runs(buffers, socket);
        }
    }

    /// Sends what waits in `buffers`.
    fn send_runs(&mut self, buffers: &[Box<[u8]>], socket: &impl DatagramSocket) {
        let runs = self.inbound.runs.iter().map(|(number, run)| (&*buffers[*number], run));
        for _ in 0..send_runs(socket, runs) {
            self.plane.count_drop(DropReason::Send);
        }
        self.inbound.runs.clear();
    }

    /// Takes a packet for the TUN device; what it completes is written.
    fn collect(&mut self, message: &mut [u8], range: Range<usize>, tun: &impl PacketDevice) {
        let Ok(mut packet) = Packet::parse(&message[range.clone()]) else {
            return self.plane.count_drop(DropReason::BadPacket);
        };
        // Only the client knows the path, so it also holds down what its own machine sends: on the narrowest paths the
        // device's MTU, which IPv6 keeps at 1280, does not.
        if self.role == Role::Client && is_syn(&packet) {
            // What can't be parsed carries no MSS either.
            let _ = clamp_mss(&mut message[range.clone()], self.outbound.mtu());
            packet = Packet::parse(&message[range]).expect("a clamped packet is as good as before");
        }
        let Inbound { rebuilder, writer, .. } = &mut self.inbound;
        rebuilder.push(message, &packet, |rebuilt| writer.write(tun, rebuilt));
    }

    /// Passes on a packet that came in two halves, for another client or the TUN device.
    #[cold]
    fn joined(
        &mut self,
        now: Time,
        to: Option<Slot>,
        len: usize,
        socket: &impl DatagramSocket,
        tun: &impl PacketDevice,
    ) {
        let mut packet = std::mem::take(&mut self.inbound.joined);
        packet.clear();
        packet.extend_from_slice(&self.plane.joined()[..len]);
        match to {
            Some(to) => self.outbound.fit_forwarded(now, to, &packet, &mut self.plane, socket),
            None => {
                self.collect(&mut packet, 0..len, tun);
                self.flush_to_tun(&packet, tun);
            }
        }
        self.inbound.joined = packet;
    }

    /// Ends a batch: writes what is still collected.
    fn flush_to_tun(&mut self, message: &[u8], tun: &impl PacketDevice) {
        let Inbound { rebuilder, writer, .. } = &mut self.inbound;
        rebuilder.flush(message, |rebuilt| writer.write(tun, rebuilt));
        rebuilder.set_features(writer.features());
        for _ in 0..writer.take_lost() {
            self.plane.count_drop(DropReason::TunWrite);
        }
    }
}
