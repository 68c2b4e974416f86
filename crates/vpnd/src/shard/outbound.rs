//! From the TUN device to the peers: route, slice, seal in place, send in batches.

use std::io;

use rustix::io::Errno;
use vpnd_proto::control::FEATURE_PARTIAL_CHECKSUM;
use vpnd_proto::offload::{PeerFeatures, Slicer, VirtioHeader};
use vpnd_proto::packet::{Packet, tcp_flag};
use vpnd_proto::plane::{DropReason, Outer, Outgoing, Plane, Sender, Slot};
use vpnd_proto::pmtu::clamp_mss;
use vpnd_proto::time::Time;
use vpnd_proto::wire::HEADER_LEN;

use super::Progress;
use super::batch::{Batch, MAX_OVERHEAD};
use super::devices::{DatagramSocket, PacketDevice};
use super::oversize::Spare;
use crate::sys::tun::MAX_READ_LEN;

/// Packets read before the other direction has its turn.
const READ_BUDGET: usize = 64;

/// Buffers of this direction.
pub(super) struct Outbound {
    pub(super) read: Box<[u8]>,
    batch: Batch,
    /// The tunnel's MTU, to which the MSS of new TCP connections is held in both directions: whoever answers a SYN that
    /// entered the tunnel sends through it.
    mtu: u16,
    pub(super) spare: Spare,
}

impl Outbound {
    pub(super) fn new(mtu: u16) -> Self {
        Self { read: vec![0; MAX_READ_LEN].into_boxed_slice(), batch: Batch::new(), mtu, spare: Spare::new() }
    }

    /// Reads packets until there are none or the budget is used, and sends them all.
    ///
    /// # Errors
    /// If the device is gone.
    pub(super) fn transmit(
        &mut self,
        now: Time,
        tun: &impl PacketDevice,
        plane: &mut Plane,
        socket: &impl DatagramSocket,
    ) -> io::Result<Progress> {
        let mut progress = Progress::More;
        for _ in 0..READ_BUDGET {
            match tun.try_read(&mut self.read) {
                Ok(len) => {
                    if let Err(reason) = self.super_packet(now, len, plane, (tun, socket)) {
                        plane.count_drop(reason);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    progress = Progress::Drained;
                    break;
                }
                // The link is down: packets will come when it is up.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) => {
                    progress = Progress::Drained;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        // Never wait for more packets to fill a batch.
        self.flush(plane, socket);
        self.send_path_checks(now, plane, socket);
        Ok(progress)
    }

    /// Slices and seals what was read. What is refused is still to be counted.
    fn super_packet(
        &mut self,
        now: Time,
        len: usize,
        plane: &mut Plane,
        (tun, socket): (&impl PacketDevice, &impl DatagramSocket),
    ) -> Result<(), DropReason> {
        let (header, packet) = VirtioHeader::split(&self.read[..len]).map_err(|_| DropReason::BadOffload)?;
        let packet = Packet::parse(packet).map_err(|_| DropReason::BadPacket)?;
        // A packet that leads nowhere is counted there.
        let Ok(slot) = plane.route(&packet) else { return Ok(()) };
        let lost = match plane.sender(now, slot) {
            Ok(mut sender) => {
                let peer =
                    PeerFeatures { partial_checksum: sender.features() & FEATURE_PARTIAL_CHECKSUM != 0 };
                let slicer = Slicer::new(&header, &packet, peer).map_err(|_| DropReason::BadOffload)?;
                if sender.exceeds_path(slicer.slice_len(0)) {
                    self.fit_read(now, (slot, len), peer, plane, (tun, socket));
                    return Ok(());
                }
                let clamp = is_syn(&packet).then(|| self.mtu.min(sender.path_mtu()));
                seal_slices(&slicer, &mut sender, clamp, &mut self.batch, socket)
            }
            Err(DropReason::NoEpoch) => {
                // What waits is sealed later, perhaps for a peer without the feature: `Sender::suit` sees to that.
                let slicer = Slicer::new(&header, &packet, PeerFeatures { partial_checksum: true })
                    .map_err(|_| DropReason::BadOffload)?;
                return keep_slices(&slicer, slot, &mut self.batch, plane, socket);
            }
            Err(reason) => return Err(reason),
        };
        lost.count(plane);
        Ok(())
    }

    /// Seals one plaintext packet into the batch.
    pub(super) fn packet(
        &mut self,
        now: Time,
        slot: Slot,
        packet: &[u8],
        plane: &mut Plane,
        socket: &impl DatagramSocket,
    ) {
        let lost = plane.sender(now, slot).map(|mut sender| {
            let outer = sender.outer_of(packet);
            let mut lost = make_room(&sender, outer, packet.len(), &mut self.batch, socket);
            let tail = self.batch.tail();
            tail[HEADER_LEN..HEADER_LEN + packet.len()].copy_from_slice(packet);
            let suited = sender.suit(&mut tail[HEADER_LEN..HEADER_LEN + packet.len()]);
            match suited.and_then(|()| sender.seal(tail, packet.len())) {
                Ok(sealed) => self.batch.push(sealed.outer, sealed.len),
                Err(reason) => lost.refused = Some((reason, 1)),
            }
            lost
        });
        match lost {
            Ok(lost) => lost.count(plane),
            Err(reason) => plane.count_drop(reason),
        }
    }

    /// Holds the MSS to another MTU from now on.
    pub(super) fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
    }

    /// What the MSS is held to.
    pub(super) fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Sends a datagram of the plane's own at once.
    pub(super) fn originate(
        &mut self,
        now: Time,
        what: Outgoing,
        plane: &mut Plane,
        socket: &impl DatagramSocket,
    ) {
        self.flush(plane, socket);
        // A refusal is counted by the plane.
        if let Ok(sealed) = plane.originate(now, what, self.batch.tail()) {
            self.batch.push(sealed.outer, sealed.len);
            self.flush(plane, socket);
        }
    }

    /// Sends one plaintext packet in two halves, which any path carries, to a peer that joins them.
    #[cold]
    pub(super) fn packet_in_halves(
        &mut self,
        now: Time,
        slot: Slot,
        packet: &[u8],
        plane: &mut Plane,
        socket: &impl DatagramSocket,
    ) {
        let lost = plane.sender(now, slot).map(|mut sender| {
            let mut lost = Lost::default();
            for second in [false, true] {
                lost.unsent +=
                    make_room(&sender, sender.outer(0), packet.len(), &mut self.batch, socket).unsent;
                match sender.seal_half(self.batch.tail(), packet, second) {
                    Ok(sealed) => self.batch.push(sealed.outer, sealed.len),
                    Err(reason) => {
                        lost.refused = Some((reason, 1));
                        break;
                    }
                }
            }
            lost
        });
        match lost {
            Ok(lost) => lost.count(plane),
            Err(reason) => plane.count_drop(reason),
        }
    }

    /// Sends one plaintext packet that is longer than the path to a peer that joins no halves: the outer IP layer cuts it.
    #[cold]
    pub(super) fn packet_in_fragments(
        &mut self,
        now: Time,
        slot: Slot,
        packet: &[u8],
        plane: &mut Plane,
        socket: &impl DatagramSocket,
    ) {
        self.flush(plane, socket);
        self.packet(now, slot, packet, plane, socket);
        Lost { unsent: self.batch.send_fragmented(socket), refused: None }.count(plane);
    }

    /// Sends what is in the batch.
    pub(super) fn flush(&mut self, plane: &mut Plane, socket: &impl DatagramSocket) {
        flush(&mut self.batch, socket).count(plane);
    }
}

/// Datagrams that did not make it; counted once the lane is no longer borrowed.
#[derive(Default)]
struct Lost {
    unsent: usize,
    refused: Option<(DropReason, usize)>,
}

impl Lost {
    fn count(&self, plane: &mut Plane) {
        for _ in 0..self.unsent {
            plane.count_drop(DropReason::Send);
        }
        if let Some((reason, times)) = self.refused {
            for _ in 0..times {
                plane.count_drop(reason);
            }
        }
    }
}

fn flush(batch: &mut Batch, socket: &impl DatagramSocket) -> Lost {
    Lost { unsent: batch.send(socket), refused: None }
}

/// Makes sure that a packet of `len` bytes with this outer header can join the batch.
#[inline]
fn make_room(
    sender: &Sender<'_>,
    outer: Outer,
    len: usize,
    batch: &mut Batch,
    socket: &impl DatagramSocket,
) -> Lost {
    if batch.takes(outer, sender.datagram_len(len)) { Lost::default() } else { flush(batch, socket) }
}

/// True for the packets that carry an MSS.
#[inline]
pub(super) fn is_syn(packet: &Packet<'_>) -> bool {
    packet.tcp().is_some_and(|tcp| tcp.flags() & tcp_flag::SYN != 0)
}

/// Writes each slice behind room for its header and seals it there. With `clamp` its MSS is held to that MTU.
fn seal_slices(
    slicer: &Slicer<'_>,
    sender: &mut Sender<'_>,
    clamp: Option<u16>,
    batch: &mut Batch,
    socket: &impl DatagramSocket,
) -> Lost {
    let mut lost = Lost::default();
    // All slices have the first one's header.
    let outer = sender.outer(slicer.traffic_class());
    for slice in 0..slicer.count() {
        lost.unsent += make_room(sender, outer, slicer.slice_len(slice), batch, socket).unsent;
        let tail = batch.tail();
        let len = slicer.write(slice, &mut tail[HEADER_LEN..]);
        if let Some(mtu) = clamp {
            // What can't be parsed carries no MSS either.
            let _ = clamp_mss(&mut tail[HEADER_LEN..HEADER_LEN + len], mtu);
        }
        match sender.seal(tail, len) {
            Ok(sealed) => batch.push(sealed.outer, sealed.len),
            Err(reason) => {
                lost.refused = Some((reason, slicer.count() - slice));
                break;
            }
        }
    }
    lost
}

/// Keeps the slices of a packet until its session has an epoch; the batch's tail serves as scratch space.
fn keep_slices(
    slicer: &Slicer<'_>,
    slot: Slot,
    batch: &mut Batch,
    plane: &mut Plane,
    socket: &impl DatagramSocket,
) -> Result<(), DropReason> {
    flush(batch, socket).count(plane);
    for slice in 0..slicer.count() {
        let len = slicer.write(slice, batch.tail());
        // A packet that finds no room is counted there.
        let _ = plane.wait(slot, &batch.tail()[..len]);
    }
    Ok(())
}

const _: () = assert!(MAX_OVERHEAD >= 48, "the suite that grows most adds 48 bytes");
