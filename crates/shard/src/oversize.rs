//! Packets that do not fit the path to the peer: their sender gets a message with the size that
//! does, or they are cut (PROTOCOL §13). Other answers to a client's packets are here, too.
//!
//! This is off the usual way of a packet, which only compares its length with a limit.

use std::io::IoSlice;
use std::net::IpAddr;
use std::ops::Range;

use vpnd_packet::checksum;
use vpnd_packet::icmp;
use vpnd_packet::mss::clamp_mss;
use vpnd_packet::offload::{Slicer, VIRTIO_HEADER};
use vpnd_packet::{Packet, Version, refusal, web};
use vpnd_proto::plane::{DropReason, Sender, Slot};
use vpnd_proto::pmtu::oversize::{self, Remedy};
use vpnd_proto::rate::Segments;
use vpnd_proto::time::Time;

use super::Shard;
use super::devices::{DatagramSocket, PacketDevice};
use super::outbound::Outbound;
use super::sealer::{Form, Sealer};

/// The longest inner packet, in bytes.
const LONGEST: usize = 65_535;

/// Room for one packet, and for the fragments or the message that are made of it.
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

    /// Makes the message that the hops of its packet of `len` bytes are used up, if there may be
    /// one, from the gateway's `own` address of each IP version. Returns its length.
    fn time_exceeded(
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
    fn made(&self, len: usize) -> &[u8] {
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

impl<T: PacketDevice, S: DatagramSocket> Shard<T, S> {
    /// Seals a packet that waited for an epoch, as if it came now: the path and the limits may have
    /// changed meanwhile.
    #[cold]
    pub(super) fn send_waiting(&mut self, now: Time, slot: Slot, packet: &[u8]) {
        let Self { plane, outbound: Outbound { batch, spare, mtu, .. }, socket, tun, .. } = self;
        // A packet of another client came by the tunnel, so its message goes there.
        let from = Packet::parse(packet).ok().and_then(|packet| plane.session_of(packet.src()));
        let mut sender = match plane.sender(now, slot) {
            Ok(sender) => sender,
            Err(no_sender) => {
                no_sender.give_up();
                return;
            }
        };
        if sender.admit(Segments::one(packet.len())) == 0 {
            return;
        }
        let len = spare.put(packet);
        // A packet that can't be parsed carries no MSS either.
        let _ = clamp_mss(&mut spare.packet[..len], sender.path_mtu().min(*mtu));
        let mut sealer = Sealer { sender, batch, socket };
        let Some(message) = sealer.fit(spare, len, true) else { return };
        match from {
            None => sealer.write_message(tun, spare.made(message)),
            Some(_) => self.return_message(now, message),
        }
    }

    /// Sends a message that [`Sealer::fit`] made about a packet of a client back to it, through the
    /// tunnel.
    #[cold]
    pub(super) fn return_message(&mut self, now: Time, len: usize) {
        let Self { plane, outbound: Outbound { batch, spare, .. }, socket, .. } = self;
        let message = spare.made(len);
        let origin = Packet::parse(message).ok().and_then(|message| plane.session_of(message.dst()));
        let Some(Ok(sender)) = origin.map(|origin| plane.sender(now, origin)) else { return };
        Sealer { sender, batch, socket }.packet(message, Form::Whole);
    }

    /// Sends "time exceeded" to the client whose packet can't go on, as a router does: from the
    /// gateway's own address. The drop is counted already.
    #[cold]
    pub(super) fn answer_expired(&mut self, now: Time, slot: Slot, packet: &[u8]) {
        let Self { plane, outbound: Outbound { batch, spare, .. }, socket, .. } = self;
        let (v4, v6) = (plane.own_address(Version::V4), plane.own_address(Version::V6));
        let own = |version| if version == Version::V4 { v4 } else { v6 };
        let Ok(mut sender) = plane.sender(now, slot) else { return };
        let len = spare.put(packet);
        let Some(message) = spare.time_exceeded(len, &mut sender, own) else { return };
        Sealer { sender, batch, socket }.packet(spare.made(message), Form::Whole);
    }

    /// Answers a client's request for a web page in the place of the web site, within the client's
    /// rate limits.
    #[cold]
    pub(super) fn answer_request(&mut self, now: Time, slot: Slot, packet: &[u8]) {
        let Self { plane, outbound: Outbound { batch, spare, .. }, socket, .. } = self;
        let Some(response) = plane.redirect() else { return };
        let Ok(mut sender) = plane.sender(now, slot) else { return };
        let Ok(packet) = Packet::parse(packet) else { return };
        let Some(answer) = web::answer(&packet, &response, &mut spare.made) else { return };
        if sender.admit(Segments::one(answer)) > 0 {
            Sealer { sender, batch, socket }.packet(spare.made(answer), Form::Whole);
        }
    }
    /// Refuses a client's packet in the place of the host that it is for. The drop is counted
    /// already.
    #[cold]
    pub(super) fn refuse(&mut self, now: Time, slot: Slot, packet: &[u8]) {
        let Self { plane, outbound: Outbound { batch, spare, .. }, socket, .. } = self;
        let Ok(mut sender) = plane.sender(now, slot) else { return };
        let Ok(packet) = Packet::parse(packet) else { return };
        let Some(answer) = refusal::answer(&packet, &mut spare.made) else { return };
        if sender.may_send_error() {
            Sealer { sender, batch, socket }.packet(spare.made(answer), Form::Whole);
        }
    }
}
