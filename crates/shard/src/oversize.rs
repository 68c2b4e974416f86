//! Packets that do not fit the path to the peer: their sender gets a message with the size that
//! does, or they are cut (PROTOCOL §13).
//!
//! This is off the usual way of a packet, which only compares its length with a limit.

use std::io::IoSlice;
use std::net::IpAddr;
use std::ops::Range;

use vpnd_packet::checksum;
use vpnd_packet::icmp;
use vpnd_packet::offload::{Slicer, VIRTIO_HEADER};
use vpnd_packet::{Packet, Version};
use vpnd_proto::plane::{DropReason, Sender};
use vpnd_proto::pmtu::oversize::{self, Remedy};

use super::devices::{DatagramSocket, PacketDevice};
use super::sealer::{Form, Sealer};

/// The longest inner packet, in bytes.
const LONGEST: usize = 65_535;

/// Room for one packet, and for the fragments or the message that are made of it.
pub(super) struct Spare {
    pub(super) packet: Box<[u8]>,
    pub(super) made: Box<[u8]>,
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

    /// Makes the message that the hops of its packet of `len` bytes are used up, if there may be
    /// one, from the gateway's `own` address of each IP version. Returns its length.
    pub(super) fn time_exceeded(
        &mut self,
        len: usize,
        sender: &mut Sender<'_>,
        own: impl FnOnce(Version) -> Option<IpAddr>,
    ) -> Option<usize> {
        // The quoted packet is read by others than the peer.
        checksum::complete(&mut self.packet[..len]).ok()?;
        let packet = Packet::parse(&self.packet[..len]).ok()?;
        let source = own(packet.version())?;
        let may = icmp::may_answer(&packet) && sender.may_send_error();
        may.then(|| icmp::write_error(&packet, source, icmp::Error::TimeExceeded, &mut self.made))
    }

    /// The message of `len` bytes that was made last.
    pub(super) fn made(&self, len: usize) -> &[u8] {
        &self.made[..len]
    }
}

impl<S: DatagramSocket> Sealer<'_, S> {
    /// Sends these slices of a packet from the TUN device, which do not fit the path. One message
    /// is enough, and one is charged: all slices have one sender.
    #[cold]
    pub(super) fn fit_slices(
        &mut self,
        slicer: &Slicer<'_>,
        slices: Range<usize>,
        spare: &mut Spare,
        tun: &impl PacketDevice,
    ) {
        let first = slices.start;
        for slice in slices {
            let len = slicer.write(slice, &mut spare.packet);
            if let Some(message) = self.fit(spare, len, slice == first) {
                self.write_message(tun, spare.made(message));
            }
        }
    }

    /// Sends the packet of `len` bytes in the spare room as far as the path allows. Returns the
    /// length of a message to its sender, which stands there then, if that is to have one.
    #[cold]
    pub(super) fn fit(&mut self, spare: &mut Spare, len: usize, answers: bool) -> Option<usize> {
        match self.try_fit(spare, len, answers) {
            Ok(message) => message,
            Err(reason) => {
                self.sender.counters().drop(reason);
                None
            }
        }
    }

    /// Writes a message to the sender of a packet from the TUN device. It needs no offload.
    pub(super) fn write_message(&mut self, tun: &impl PacketDevice, message: &[u8]) {
        let header = [0; VIRTIO_HEADER];
        if tun.try_write_vectored(&[IoSlice::new(&header), IoSlice::new(message)]).is_err() {
            self.sender.counters().drop(DropReason::TunWrite);
        }
    }

    fn try_fit(&mut self, spare: &mut Spare, len: usize, answers: bool) -> Result<Option<usize>, DropReason> {
        let bytes = &mut spare.packet[..len];
        if !self.sender.exceeds_path(len) {
            self.packet(bytes, Form::Whole);
            return Ok(None);
        }
        // A packet that is quoted or cut is read by others than the peer.
        checksum::complete(bytes).map_err(|_| DropReason::BadPacket)?;
        let packet = Packet::parse(bytes).map_err(|_| DropReason::BadPacket)?;
        match oversize::remedy(&packet, self.sender.path_mtu()) {
            Remedy::Carry if self.sender.joins_halves() => self.packet(packet.bytes(), Form::Halves),
            Remedy::Carry => self.packet_in_fragments(packet.bytes()),
            Remedy::Fragment(mtu) => {
                let sink = |piece: &[u8]| self.packet(piece, Form::Whole);
                oversize::fragment(&packet, mtu, &mut spare.made, sink).map_err(|_| DropReason::TooBig)?;
            }
            Remedy::TooBig(mtu) => {
                self.sender.counters().drop(DropReason::TooBig);
                let may = answers && self.sender.may_send_error();
                return Ok(may.then(|| oversize::too_big(&packet, mtu, &mut spare.made)));
            }
            Remedy::Drop => return Err(DropReason::TooBig),
        }
        Ok(None)
    }
}
