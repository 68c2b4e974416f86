//! From the peers to the TUN device or, at a gateway, to another client: open in place, then
//! rebuild or seal again.

use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::time::Duration;

use vpnd_packet::Checked;
use vpnd_packet::ecn::Ecn;
use vpnd_packet::mss::clamp_mss;
use vpnd_packet::offload::Rebuilder;
use vpnd_proto::plane::{Dropped, Endpoint, Opened, Origin, Outgoing, Role, Slot};
use vpnd_proto::rate::Segments;
use vpnd_proto::time::Time;
use vpnd_proto::wire::HEADER_LEN;

use super::backlog::{BUFFER_LEN, MESSAGE_LEN};
use super::batch::{Run, send_runs};
use super::devices::{DatagramSocket, PacketDevice};
use super::overload::Overload;
use super::sealer::{Form, Sealer};
use super::tunnel::Tunnel;
use super::writes::{TunWrites, Writer};
use super::{Misdirected, Progress, Shard, now};
use vpnd_sys::tun::TunOffloads;
use vpnd_sys::udp::{MAX_SENDS, RecvMeta};

/// The most messages received by one system call; each may hold a run of datagrams.
pub(super) const RECEIVE_MESSAGES: usize = 32;
const _: () = assert!(RECEIVE_MESSAGES <= u32::BITS as usize, "a bit for each");
/// Bytes that one system call should bring: so little that it is still in the core's cache when it
/// is opened, sealed and copied to the kernel again. So bulk traffic comes message by message and
/// small packets come by the dozen.
pub(super) const RECEIVE_BYTES: usize = 128 << 10;
/// Least part of the budget that a message uses up, in bytes.
const MIN_COST: usize = 4 << 10;
/// Length of the shortest datagram for another client: a header and an IPv4 packet.
const SHORTEST_FORWARD: usize = HEADER_LEN + 20;
/// Bytes received before the other direction has its turn.
const RECEIVE_BUDGET: usize = 1 << 20;
/// A gateway's shard that has received for this long and still finds messages is behind.
pub(super) const BEHIND_AFTER: Duration = Duration::from_millis(1);

/// Buffers of this direction.
pub(super) struct Inbound {
    pub(super) buffers: Vec<Box<[u8]>>,
    /// Messages that the next system call asks for.
    pub(super) messages: usize,
    pub(super) overload: Overload<RecvMeta>,
    /// Datagrams that were sealed again where they stood and wait to be sent: the number of their
    /// buffer, and their place there.
    runs: Vec<(usize, Run)>,
    rebuilder: Rebuilder,
    writer: Writer,
    /// Room for a packet that came in two halves.
    joined: Box<[u8]>,
}

impl Inbound {
    pub(super) fn new(offloads: TunOffloads) -> Self {
        let writer = Writer::new(offloads);
        Self {
            buffers: (0..RECEIVE_MESSAGES).map(|_| vec![0; BUFFER_LEN].into_boxed_slice()).collect(),
            messages: RECEIVE_MESSAGES,
            overload: Overload::new(),
            runs: Vec::with_capacity(MESSAGE_LEN / SHORTEST_FORWARD + MAX_SENDS),
            rebuilder: Rebuilder::new(writer.features()),
            writer,
            joined: vec![0; BUFFER_LEN].into_boxed_slice(),
        }
    }

    /// The state of the offloads of what is written.
    pub(super) fn writes(&self) -> TunWrites {
        self.writer.state()
    }
}

/// A message of the socket: a datagram, or a run of them side by side.
struct Message<'a> {
    /// All buffers: packets of earlier messages are sent and written out of theirs.
    buffers: &'a mut [Box<[u8]>],
    /// The number of the buffer in which this one stands.
    number: usize,
    len: usize,
}

impl Message<'_> {
    #[inline]
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffers[self.number][..self.len]
    }
}

impl<T: PacketDevice, S: DatagramSocket> Shard<T, S> {
    /// Receives until there is nothing or the budget is used.
    pub(super) fn receive(&mut self) -> Progress {
        let mut buffers = std::mem::take(&mut self.inbound.buffers);
        let progress = if self.inbound.overload.is_behind {
            self.receive_by_turns(&mut buffers)
        } else {
            self.receive_in_order(&mut buffers)
        };
        self.inbound.buffers = buffers;
        progress
    }

    /// Handles messages as they come.
    fn receive_in_order(&mut self, buffers: &mut [Box<[u8]>]) -> Progress {
        let mut since = None;
        let mut budget = RECEIVE_BUDGET;
        while budget > 0 {
            let mut meta = [RecvMeta::default(); RECEIVE_MESSAGES];
            let asked = self.inbound.messages;
            match self.receive_messages(buffers, &mut meta) {
                Ok(count) => {
                    let now = now();
                    let bytes = self.handle_messages(now, buffers, &meta[..count], 0);
                    budget = budget.saturating_sub(bytes.max(MIN_COST * count));
                    // Fewer than asked for: there were no more. What comes from now on is a new
                    // event.
                    if count < asked {
                        return Progress::Drained;
                    }
                    // At a client all messages are of one session.
                    let has_taken_long = now.since(*since.get_or_insert(now)) >= BEHIND_AFTER;
                    self.inbound.overload.is_behind =
                        self.tunnel.role == Role::Gateway && (has_taken_long || budget == 0);
                    if self.inbound.overload.is_behind {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Drained,
                Err(_) => budget = budget.saturating_sub(RECEIVE_BYTES),
            }
        }
        Progress::More
    }

    /// Receives as many messages as should come at once.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is nothing. With others nothing was received, and
    /// the next call goes on.
    #[inline]
    pub(super) fn receive_messages(
        &mut self,
        buffers: &mut [Box<[u8]>],
        meta: &mut [RecvMeta; RECEIVE_MESSAGES],
    ) -> io::Result<usize> {
        let mut slices = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer));
        let mut slices: [_; RECEIVE_MESSAGES] =
            std::array::from_fn(|_| slices.next().expect("there is a buffer for each message"));
        let received = self.tunnel.socket.try_recv(&mut slices[..self.inbound.messages], meta);
        match &received {
            Ok(count) => {
                let bytes: usize = meta[..*count].iter().map(|meta| meta.len.max(1)).sum();
                self.inbound.messages = (RECEIVE_BYTES * count / bytes.max(1)).clamp(1, RECEIVE_MESSAGES);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // An ICMP error about an earlier datagram, and the like.
            Err(error) => tracing::trace!(%error, "receiving failed"),
        }
        received
    }

    /// A datagram that another shard received for this one.
    pub(super) fn handle_misdirected(&mut self, misdirected: Misdirected) {
        let now = now();
        let Misdirected { header, mut datagram, origin } = misdirected;
        let opened = self.tunnel.plane.open(now, header, &mut datagram, origin);
        let len = datagram.len();
        let mut message = Message { buffers: std::slice::from_mut(&mut datagram), number: 0, len };
        if let Ok(opened) = opened {
            self.dispatch(now, &mut message, 0..len, opened);
        }
        self.finish_message(&mut message);
        self.finish_batch(&[datagram]);
        self.tunnel.send_path_checks(now);
    }

    /// Handles each received message. A bit of `congested` is set for each that shows congestion.
    /// Returns how many bytes they had.
    pub(super) fn handle_messages(
        &mut self,
        now: Time,
        buffers: &mut [Box<[u8]>],
        meta: &[RecvMeta],
        congested: u32,
    ) -> usize {
        for (number, meta) in meta.iter().enumerate() {
            let mark = meta.ecn.map_or(Ecn::NotEct, |ecn| Ecn::of(ecn as u8));
            let origin = Origin { from: sender_of(meta), mark, congested: congested >> number & 1 != 0 };
            let message = Message { buffers: &mut *buffers, number, len: meta.len };
            self.handle_message(now, message, meta.stride.max(1), origin);
            self.send_if_enough(buffers);
        }
        self.finish_batch(buffers);
        self.tunnel.send_path_checks(now);
        meta.iter().map(|meta| meta.len.max(1)).sum()
    }

    /// Opens a run of datagrams of `stride` bytes each, the last perhaps shorter, and passes their
    /// contents on. A packet for another client stays in the message's buffer until it is sent.
    ///
    /// Its first datagram alone shows congestion: one lost packet tells a sender as much as a lost
    /// run.
    fn handle_message(&mut self, now: Time, mut message: Message<'_>, stride: usize, mut origin: Origin) {
        let mut start = 0;
        while start < message.len {
            let place = start..(start + stride).min(message.len);
            start = place.end;
            if let Ok(opened) = self.open(now, &mut message.bytes()[place.clone()], origin) {
                self.dispatch(now, &mut message, place, opened);
            }
            origin.congested = false;
        }
        self.finish_message(&mut message);
    }

    /// Opens one datagram, or passes it to the shard or the control plane that can.
    #[inline]
    fn open(&mut self, now: Time, datagram: &mut [u8], origin: Origin) -> Result<Opened, Dropped> {
        match self.hand_off.sort(datagram, origin) {
            Ok(Some(header)) => self.tunnel.plane.open(now, header, datagram, origin),
            Ok(None) => Ok(Opened::Consumed),
            Err(reason) => Err(self.tunnel.drop(reason)),
        }
    }

    /// Passes on the contents of the datagram that stands at `place`.
    #[inline]
    fn dispatch(&mut self, now: Time, message: &mut Message<'_>, place: Range<usize>, opened: Opened) {
        match opened {
            Opened::Tun(packet) => self.collect(message, place.start, packet),
            Opened::Forward { to, len } => self.forward(now, message, place, to, len),
            Opened::Joined { to, packet } => {
                // Packets that came before it are passed on before it, and out of their buffers.
                self.flush_to_tun(message);
                self.write_held(message.buffers);
                self.pass_joined(now, to, packet);
            }
            Opened::Expired { slot, len } => {
                self.tunnel.answer_expired(now, slot, &message.bytes()[place][HEADER_LEN..HEADER_LEN + len]);
            }
            Opened::Redirect { slot, len } => {
                self.tunnel.answer_request(now, slot, &message.bytes()[place][HEADER_LEN..HEADER_LEN + len]);
            }
            Opened::Refused { slot, len } => {
                self.tunnel.refuse(now, slot, &message.bytes()[place][HEADER_LEN..HEADER_LEN + len]);
            }
            Opened::Probe { slot, id, size, padded } => {
                self.tunnel.originate(now, Outgoing::Reply { slot, id, size, padded });
            }
            Opened::BatchProbe { slot, id, size } => {
                self.tunnel.originate(now, Outgoing::Batch { slot, id, size, replies: true });
            }
            Opened::BatchesLost(peer) => super::warn_of_lost_batches(peer),
            Opened::Consumed => {}
        }
    }

    /// Seals a packet for another client where it stands, and joins it to the run before if it
    /// fits.
    #[inline]
    fn forward(&mut self, now: Time, message: &mut Message<'_>, place: Range<usize>, to: Slot, len: usize) {
        let Self { tunnel: Tunnel { plane, socket, batch, spare, .. }, inbound, .. } = self;
        let number = message.number;
        let datagram = &mut message.bytes()[place.clone()];
        let mut sender = match plane.sender(now, to) {
            Ok(sender) => sender,
            Err(no_sender) => return no_sender.queue(&datagram[HEADER_LEN..HEADER_LEN + len]),
        };
        if sender.admit(Segments::one(len)) == 0 {
            return;
        }
        if sender.exceeds_path(len) {
            let len = spare.put(&datagram[HEADER_LEN..HEADER_LEN + len]);
            if let Some(answer) = (Sealer { sender, batch, socket }).fit(spare, len, true) {
                self.tunnel.return_message(now, answer);
            }
            return;
        }
        // The other client's suite adds more than this one's took away: seal in a buffer with room.
        if sender.datagram_len(len) > datagram.len() {
            let packet = &datagram[HEADER_LEN..HEADER_LEN + len];
            return Sealer { sender, batch, socket }.packet(packet, Form::Whole);
        }
        let Ok(sealed) = sender.seal_packet(datagram, len) else { return };
        match inbound.runs.last_mut() {
            Some((buffer, run)) if *buffer == number && run.takes(sealed.outer, place.start, sealed.len) => {
                run.push(sealed.len);
            }
            _ => inbound.runs.push((number, Run::new(sealed.outer, place.start, sealed.len))),
        }
    }

    /// Sends the runs if they make a system call worth while.
    fn send_if_enough(&mut self, buffers: &[Box<[u8]>]) {
        let runs = &self.inbound.runs;
        if runs.len() >= MAX_SENDS || runs.iter().map(|(_, run)| run.len()).sum::<usize>() >= MESSAGE_LEN / 2
        {
            self.send_runs(buffers);
        }
    }

    /// Sends the runs, which stand in `buffers`.
    fn send_runs(&mut self, buffers: &[Box<[u8]>]) {
        let runs = self.inbound.runs.iter().map(|(number, run)| (&*buffers[*number], run));
        send_runs(&self.tunnel.socket, runs, self.tunnel.plane.counters_mut());
        self.inbound.runs.clear();
    }

    /// Takes a packet for the TUN device, whose datagram begins at `start`; a super-packet that it
    /// completes will be written.
    #[inline]
    fn collect(&mut self, message: &mut Message<'_>, start: usize, checked: Checked) {
        let (number, buffer) = (message.number, message.bytes());
        let mut packet = checked.packet(&buffer[start..]);
        // Only the client knows the path, so it also holds down what its own machine sends: on the
        // narrowest paths the device's MTU, which IPv6 keeps at 1280, does not.
        if self.tunnel.role == Role::Client && packet.is_syn() {
            // A packet that can't be parsed carries no MSS either.
            let _ = clamp_mss(&mut buffer[start..][checked.range()], self.tunnel.mtu);
            packet = checked.packet(&buffer[start..]);
        }
        let Inbound { rebuilder, writer, .. } = &mut self.inbound;
        rebuilder.push(buffer, &packet, |rebuilt| writer.hold(number, rebuilt));
        if writer.is_full() {
            self.write_held(message.buffers);
        }
    }

    /// Passes on a packet that came in two halves, for another client or the TUN device.
    #[cold]
    fn pass_joined(&mut self, now: Time, to: Option<Slot>, checked: Checked) {
        let mut joined = std::mem::take(&mut self.inbound.joined);
        let packet = &self.tunnel.plane.joined()[checked.range()];
        let len = packet.len();
        joined[..len].copy_from_slice(packet);
        if let Some(to) = to {
            self.tunnel.forward_joined(now, to, &joined[..len]);
        } else {
            let mut message = Message { buffers: std::slice::from_mut(&mut joined), number: 0, len };
            self.collect(&mut message, 0, checked);
            self.flush_to_tun(&mut message);
            self.write_held(message.buffers);
        }
        self.inbound.joined = joined;
    }

    /// Ends a message: sends what is still collected of it, and completes what will be written.
    fn finish_message(&mut self, message: &mut Message<'_>) {
        self.tunnel.flush();
        self.flush_to_tun(message);
    }

    /// Completes the packets for the TUN device that are still collected of a message.
    fn flush_to_tun(&mut self, message: &mut Message<'_>) {
        let (number, buffer) = (message.number, message.bytes());
        let Inbound { rebuilder, writer, .. } = &mut self.inbound;
        rebuilder.flush(buffer, |rebuilt| writer.hold(number, rebuilt));
    }

    /// Sends and writes what is left of messages, which stand in `buffers`.
    fn finish_batch(&mut self, buffers: &[Box<[u8]>]) {
        self.send_runs(buffers);
        self.write_held(buffers);
        let Inbound { rebuilder, writer, .. } = &mut self.inbound;
        rebuilder.set_features(writer.features());
    }

    /// Writes the packets that wait for it, which stand in `buffers`.
    fn write_held(&mut self, buffers: &[Box<[u8]>]) {
        let Self { inbound: Inbound { writer, .. }, tunnel, tun, .. } = self;
        writer.write(tun, buffers, tunnel.plane.counters_mut());
    }
}

/// Where a message came from.
#[inline]
pub(super) fn sender_of(meta: &RecvMeta) -> Endpoint {
    Endpoint { remote: meta.addr, local: meta.dst_ip }
}
