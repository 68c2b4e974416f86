//! Packets that do not fit the path to the peer: their sender is told what does, or they are cut (PROTOCOL §13).
//!
//! This is off the usual way of a packet, which only compares its length with a limit.

use std::io::IoSlice;

use vpnd_proto::checksum;
use vpnd_proto::icmp;
use vpnd_proto::offload::{PeerFeatures, Slicer, VIRTIO_HEADER, VirtioHeader};
use vpnd_proto::packet::Packet;
use vpnd_proto::plane::{DropReason, Outgoing, Plane, Slot};
use vpnd_proto::pmtu::oversize::{self, Remedy};
use vpnd_proto::time::Time;

use super::devices::{DatagramSocket, PacketDevice};
use super::outbound::Outbound;

/// The longest inner packet, in bytes.
const LONGEST: usize = 65_535;

/// Room for one packet, and for what is made of it. By default there is none.
#[derive(Default)]
pub(super) struct Spare {
    packet: Box<[u8]>,
    made: Box<[u8]>,
}

impl Spare {
    pub(super) fn new() -> Self {
        let room = || vec![0; LONGEST].into_boxed_slice();
        Self { packet: room(), made: room() }
    }

    /// Takes a packet; returns its length.
    pub(super) fn put(&mut self, packet: &[u8]) -> usize {
        self.packet[..packet.len()].copy_from_slice(packet);
        packet.len()
    }

    /// Makes the message that the hops of its packet of `len` bytes are used up, if there may be one. Returns its length.
    fn time_exceeded(&mut self, now: Time, slot: Slot, len: usize, plane: &mut Plane) -> Option<usize> {
        // What is quoted is read by others than the peer.
        checksum::complete(&mut self.packet[..len]).ok()?;
        let packet = Packet::parse(&self.packet[..len]).ok()?;
        let source = plane.own_address(packet.version())?;
        let may = icmp::may_answer(&packet) && plane.may_send_error(now, slot);
        may.then(|| icmp::write_error(&packet, source, icmp::Error::TimeExceeded, &mut self.made))
    }

    /// The message of so many bytes that was made last.
    fn made(&self, len: usize) -> &[u8] {
        &self.made[..len]
    }
}

impl Outbound {
    /// Sends the packet of `len` bytes in the spare room as far as the path allows. Returns the length of a message to its
    /// sender, which stands there then.
    #[cold]
    pub(super) fn fit(
        &mut self,
        now: Time,
        slot: Slot,
        len: usize,
        plane: &mut Plane,
        socket: &impl DatagramSocket,
    ) -> Option<usize> {
        // Out of the way, so that the batch can be used.
        let mut spare = std::mem::take(&mut self.spare);
        let message = self.fit_within(now, slot, (&mut spare, len), plane, socket);
        self.spare = spare;
        match message {
            Ok(message) => message,
            Err(reason) => {
                plane.count_drop(reason);
                None
            }
        }
    }

    fn fit_within(
        &mut self,
        now: Time,
        slot: Slot,
        (spare, len): (&mut Spare, usize),
        plane: &mut Plane,
        socket: &impl DatagramSocket,
    ) -> Result<Option<usize>, DropReason> {
        let sender = plane.sender(now, slot)?;
        let mtu = sender.exceeds_path(len).then(|| sender.path_mtu());
        let joins = sender.joins_halves();
        let bytes = &mut spare.packet[..len];
        if mtu.is_some() {
            // What is quoted or cut is read by others than the peer.
            checksum::complete(bytes).map_err(|_| DropReason::BadPacket)?;
        }
        let packet = Packet::parse(bytes).map_err(|_| DropReason::BadPacket)?;
        let remedy = mtu.map_or(Remedy::Carry, |mtu| oversize::remedy(&packet, mtu));
        match remedy {
            Remedy::Carry if mtu.is_some() && joins => {
                self.packet_in_halves(now, slot, packet.bytes(), plane, socket);
            }
            Remedy::Carry if mtu.is_some() => {
                self.packet_in_fragments(now, slot, packet.bytes(), plane, socket);
            }
            Remedy::Carry => self.packet(now, slot, packet.bytes(), plane, socket),
            Remedy::Fragment(mtu) => {
                let sink = |piece: &[u8]| self.packet(now, slot, piece, plane, socket);
                oversize::fragment(&packet, mtu, &mut spare.made, sink).map_err(|_| DropReason::TooBig)?;
            }
            Remedy::TooBig(mtu) => {
                plane.count_drop(DropReason::TooBig);
                let may = plane.may_send_error(now, slot);
                return Ok(may.then(|| oversize::too_big(&packet, mtu, &mut spare.made)));
            }
            Remedy::Drop => return Err(DropReason::TooBig),
        }
        Ok(None)
    }

    /// Sends what was read from the TUN device, `len` bytes, and does not fit the path. One message is enough: all slices have
    /// one sender.
    #[cold]
    pub(super) fn fit_read(
        &mut self,
        now: Time,
        (slot, len): (Slot, usize),
        peer: PeerFeatures,
        plane: &mut Plane,
        (tun, socket): (&impl PacketDevice, &impl DatagramSocket),
    ) {
        let read = std::mem::take(&mut self.read);
        let packet = VirtioHeader::split(&read[..len]).ok();
        let packet = packet.and_then(|(header, bytes)| Some((header, Packet::parse(bytes).ok()?)));
        let slicer = packet.and_then(|(header, packet)| Slicer::new(&header, &packet, peer).ok());
        let mut answered = false;
        for slice in 0..slicer.map_or(0, |slicer| slicer.count()) {
            let len = slicer.map_or(0, |slicer| slicer.write(slice, &mut self.spare.packet));
            if let Some(message) = self.fit(now, slot, len, plane, socket)
                && !std::mem::replace(&mut answered, true)
                && write_message(tun, self.spare.made(message)).is_err()
            {
                plane.count_drop(DropReason::TunWrite);
            }
        }
        self.read = read;
    }

    /// The same for a packet of one client for another: the message goes back through the tunnel.
    #[cold]
    pub(super) fn fit_forwarded(
        &mut self,
        now: Time,
        to: Slot,
        packet: &[u8],
        plane: &mut Plane,
        socket: &impl DatagramSocket,
    ) {
        let len = self.spare.put(packet);
        let Some(message) = self.fit(now, to, len, plane, socket) else { return };
        let sender = Packet::parse(self.spare.made(message)).ok();
        let Some(sender) = sender.and_then(|message| plane.session_of(message.dst())) else { return };
        let spare = std::mem::take(&mut self.spare);
        self.packet(now, sender, spare.made(message), plane, socket);
        self.spare = spare;
    }

    /// Sends "time exceeded" to the client whose packet can't go on, as a router does: from the gateway's own address. The drop is
    /// counted already.
    #[cold]
    pub(super) fn answer_expired(
        &mut self,
        now: Time,
        slot: Slot,
        packet: &[u8],
        plane: &mut Plane,
        socket: &impl DatagramSocket,
    ) {
        let mut spare = std::mem::take(&mut self.spare);
        let len = spare.put(packet);
        if let Some(message) = spare.time_exceeded(now, slot, len, plane) {
            self.packet(now, slot, spare.made(message), plane, socket);
        }
        self.spare = spare;
    }

    /// Asks the clients to probe their paths to whom large datagrams were just sent.
    pub(super) fn send_path_checks(&mut self, now: Time, plane: &mut Plane, socket: &impl DatagramSocket) {
        while let Some(slot) = plane.poll_path_check() {
            self.originate(now, Outgoing::PathCheck(slot), plane, socket);
        }
    }
}

/// Gives the kernel a packet that asks it for nothing.
fn write_message(tun: &impl PacketDevice, message: &[u8]) -> std::io::Result<()> {
    let header = [0; VIRTIO_HEADER];
    tun.try_write_vectored(&[IoSlice::new(&header), IoSlice::new(message)]).map(drop)
}
