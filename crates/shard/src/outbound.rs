//! From the TUN device to the peers: route, slice, seal in place, send in batches.

use std::io;

use rustix::io::Errno;
use vpnd_packet::offload::{PeerFeatures, Slicer, VIRTIO_HEADER, VirtioHeader};
use vpnd_packet::{Packet, set_ecn};
use vpnd_proto::control::FEATURE_PARTIAL_CHECKSUM;
use vpnd_proto::plane::{DropReason, NoSender, PacketQueue, Role};
use vpnd_proto::rate::Segments;
use vpnd_proto::time::Time;

use super::backlog::{BUFFER_LEN, Read};
use super::batch::{Batch, MAX_OVERHEAD};
use super::devices::{DatagramSocket, PacketDevice};
use super::inbound::BEHIND_AFTER;
use super::overload::Overload;
use super::sealer::Sealer;
use super::tunnel::Tunnel;
use super::{Progress, Shard, now};

/// Packets read before the other direction has its turn.
const READ_BUDGET: usize = 64;
/// Bytes read before that: super-packets must not keep a call of the other direction waiting for
/// milliseconds.
const READ_BYTES: usize = 1 << 20;

/// Buffers of this direction.
pub(super) struct Outbound {
    /// The last read: a header and a packet.
    pub(super) read: Box<[u8]>,
    pub(super) overload: Overload<Read>,
    /// Since when each turn ends with packets left in the device.
    undrained_since: Option<Time>,
}

impl Outbound {
    pub(super) fn new() -> Self {
        let read = vec![0; BUFFER_LEN].into_boxed_slice();
        Self { read, overload: Overload::new(), undrained_since: None }
    }

    /// Marks the packet of `len` bytes that was read. Each slice of a super-packet then has the
    /// mark, as when a router marks one before it is cut. Returns whether it can have a mark.
    #[cold]
    pub(super) fn mark(&mut self, len: usize) -> bool {
        // A packet that can't be parsed is dropped anyway.
        let Ok((_, packet)) = parse(&self.read[..len]) else { return true };
        let (version, ecn) = (packet.version(), packet.ecn());
        let Some(marked) = ecn.congested() else { return false };
        if marked != ecn {
            set_ecn(&mut self.read[VIRTIO_HEADER..len], version, marked);
        }
        true
    }
}

impl<T: PacketDevice, S: DatagramSocket> Shard<T, S> {
    /// Reads packets until there are none or the budget is used, and sends them.
    ///
    /// # Errors
    /// If the device is gone.
    pub(super) fn transmit(&mut self) -> io::Result<Progress> {
        if self.outbound.overload.is_behind {
            return self.transmit_by_turns();
        }
        let start = now();
        let progress = self.transmit_in_order(start)?;
        self.outbound.undrained_since = match progress {
            Progress::Drained => None,
            Progress::More => self.outbound.undrained_since.or(Some(start)),
        };
        // At a client all packets are of one session.
        self.outbound.overload.is_behind = self.tunnel.role == Role::Gateway
            && self.outbound.undrained_since.is_some_and(|since| now().since(since) >= BEHIND_AFTER);
        Ok(progress)
    }

    /// Sends packets as they come.
    fn transmit_in_order(&mut self, now: Time) -> io::Result<Progress> {
        let mut progress = Progress::More;
        let mut bytes = 0;
        for _ in 0..READ_BUDGET {
            if bytes >= READ_BYTES {
                break;
            }
            let Some(len) = self.read_packet()? else {
                progress = Progress::Drained;
                break;
            };
            self.send_read(now, len, false);
            bytes += len;
        }
        self.finish_sending(now);
        Ok(progress)
    }

    /// Reads a packet. Returns its length, or `None` while there are none.
    ///
    /// # Errors
    /// If the device is gone.
    #[inline]
    pub(super) fn read_packet(&mut self) -> io::Result<Option<usize>> {
        match self.tun.try_read(&mut self.outbound.read) {
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // The link is down: packets will come when it is up.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends a turn: never wait for more packets to fill a batch.
    pub(super) fn finish_sending(&mut self, now: Time) {
        self.tunnel.flush();
        self.tunnel.send_path_checks(now);
    }

    /// Slices and seals the (super-)packet of `len` bytes that was read, all but the first slice if
    /// its sender is to be told of congestion by a loss.
    #[inline]
    pub(super) fn send_read(&mut self, now: Time, len: usize, loses_first: bool) {
        let Self { tunnel: Tunnel { plane, socket, batch, spare, mtu, .. }, outbound, tun, .. } = self;
        let (header, packet) = match parse(&outbound.read[..len]) {
            Ok(parsed) => parsed,
            Err(reason) => {
                plane.counters_mut().drop(reason);
                return;
            }
        };
        let mut sender = match plane.route(now, &packet) {
            Ok(sender) => sender,
            Err(NoSender::NoEpoch(queue)) => return queue_slices(&header, &packet, queue, batch, socket),
            Err(NoSender::Dropped(_)) => return,
        };
        let peer = PeerFeatures { partial_checksum: sender.features() & FEATURE_PARTIAL_CHECKSUM != 0 };
        let Ok(slicer) = Slicer::new(&header, &packet, peer) else {
            sender.counters().drop(DropReason::BadOffload);
            return;
        };
        let admitted = sender.admit(segments_of(&slicer));
        if admitted == 0 {
            return;
        }
        let slices = usize::from(loses_first)..admitted;
        sender.counters().count(DropReason::Overload, slices.start);
        let exceeds_path = sender.exceeds_path(slicer.slice_len(0));
        let clamp = packet.is_syn().then(|| sender.path_mtu().min(*mtu));
        let mut sealer = Sealer { sender, batch, socket };
        if exceeds_path {
            sealer.fit_slices(&slicer, slices, spare, tun);
        } else {
            sealer.slices(&slicer, slices, clamp);
        }
    }
}

/// All slices of a packet.
#[inline]
fn segments_of(slicer: &Slicer<'_>) -> Segments {
    let count = slicer.count();
    Segments { len: slicer.slice_len(0), last_len: slicer.slice_len(count - 1), count }
}

#[inline]
pub(super) fn parse(read: &[u8]) -> Result<(VirtioHeader, Packet<'_>), DropReason> {
    let (header, packet) = VirtioHeader::split(read).map_err(|_| DropReason::BadOffload)?;
    let packet = Packet::parse(packet).map_err(|_| DropReason::BadPacket)?;
    Ok((header, packet))
}

/// Keeps the slices of a packet until its session has an epoch; the batch's tail serves as scratch
/// space.
#[cold]
fn queue_slices(
    header: &VirtioHeader,
    packet: &Packet<'_>,
    mut queue: PacketQueue<'_>,
    batch: &mut Batch,
    socket: &impl DatagramSocket,
) {
    // A waiting packet is sealed later, perhaps for a peer without the feature:
    // `Sender::seal_packet` sees to that.
    let Ok(slicer) = Slicer::new(header, packet, PeerFeatures { partial_checksum: true }) else {
        queue.counters().drop(DropReason::BadOffload);
        return;
    };
    batch.send(socket, queue.counters());
    for slice in 0..slicer.count() {
        let len = slicer.write(slice, batch.tail());
        queue.push(&batch.tail()[..len]);
    }
}

const _: () = assert!(MAX_OVERHEAD >= 48, "the suite that grows most adds 48 bytes");
