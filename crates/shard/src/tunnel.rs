//! The tunnel's end of a shard: the plane, the socket, and what is sealed on its way from one to
//! the other.
//!
//! INVARIANT: what is sent by itself leaves at once, behind all that was sealed before it.

use vpnd_packet::mss::clamp_mss;
use vpnd_packet::{Packet, Version, refusal, web};
use vpnd_proto::plane::{DropReason, Dropped, Outgoing, Plane, Role, Slot};
use vpnd_proto::rate::Segments;
use vpnd_proto::time::Time;

use super::batch::Batch;
use super::devices::{DatagramSocket, PacketDevice};
use super::oversize::Spare;
use super::sealer::{Form, Sealer};

/// The state that packets need on their way into the tunnel.
pub(super) struct Tunnel<S> {
    /// Which end this is.
    pub(super) role: Role,
    pub(super) plane: Plane,
    pub(super) socket: S,
    pub(super) batch: Batch,
    pub(super) spare: Spare,
    /// The tunnel's MTU, to which the MSS of new TCP connections is held in both directions: the
    /// answer to a SYN that entered the tunnel passes through it, too.
    pub(super) mtu: u16,
}

impl<S: DatagramSocket> Tunnel<S> {
    pub(super) fn new(role: Role, plane: Plane, socket: S, mtu: u16) -> Self {
        Self { role, plane, socket, batch: Batch::new(), spare: Spare::new(), mtu }
    }

    pub(super) fn drop(&mut self, reason: DropReason) -> Dropped {
        self.plane.counters_mut().drop(reason)
    }

    /// Sends what is in the batch.
    pub(super) fn flush(&mut self) {
        self.batch.send(&self.socket, self.plane.counters_mut());
    }

    /// Sends a datagram of the plane's own, or a batch of them, at once and by itself.
    pub(super) fn originate(&mut self, now: Time, outgoing: Outgoing) {
        self.flush();
        for part in outgoing.parts() {
            if let Ok(sealed) = self.plane.originate(now, part, self.batch.tail()) {
                self.batch.push(sealed.outer, sealed.len);
            }
        }
        self.flush();
    }

    /// Requests the clients to which large datagrams were just sent to probe their paths. One that
    /// these have reached when the request comes needs not do so.
    pub(super) fn send_path_checks(&mut self, now: Time) {
        while let Some(slot) = self.plane.poll_path_check() {
            self.originate(now, Outgoing::PathCheck(slot));
        }
    }

    /// Seals a packet that waited for an epoch, as if it came now: the path and the limits may have
    /// changed meanwhile.
    #[cold]
    pub(super) fn send_waiting(&mut self, now: Time, slot: Slot, packet: &[u8], tun: &impl PacketDevice) {
        let Self { plane, socket, batch, spare, mtu, .. } = self;
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
        let Self { plane, socket, batch, spare, .. } = self;
        let message = spare.made(len);
        let origin = Packet::parse(message).ok().and_then(|message| plane.session_of(message.dst()));
        let Some(Ok(sender)) = origin.map(|origin| plane.sender(now, origin)) else { return };
        Sealer { sender, batch, socket }.packet(message, Form::Whole);
    }

    /// Sends "time exceeded" to the client whose packet can't go on, as a router does: from the
    /// gateway's own address. The drop is counted already.
    #[cold]
    pub(super) fn answer_expired(&mut self, now: Time, slot: Slot, packet: &[u8]) {
        let Self { plane, socket, batch, spare, .. } = self;
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
        let Self { plane, socket, batch, spare, .. } = self;
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
        let Self { plane, socket, batch, spare, .. } = self;
        let Ok(mut sender) = plane.sender(now, slot) else { return };
        let Ok(packet) = Packet::parse(packet) else { return };
        let Some(answer) = refusal::answer(&packet, &mut spare.made) else { return };
        if sender.may_send_error() {
            Sealer { sender, batch, socket }.packet(spare.made(answer), Form::Whole);
        }
    }

    /// Passes a packet that came in two halves on to another client.
    pub(super) fn forward_joined(&mut self, now: Time, to: Slot, packet: &[u8]) {
        let Self { plane, socket, batch, spare, .. } = self;
        let mut sender = match plane.sender(now, to) {
            Ok(sender) => sender,
            Err(no_sender) => return no_sender.queue(packet),
        };
        if sender.admit(Segments::one(packet.len())) == 0 {
            return;
        }
        let len = spare.put(packet);
        if let Some(answer) = (Sealer { sender, batch, socket }).fit(spare, len, true) {
            self.return_message(now, answer);
        }
    }
}
