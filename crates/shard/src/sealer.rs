//! The last step of every packet on its way to a peer: sealed behind the others of the batch.
//!
//! Both directions end here but for one shortcut: a packet between clients is sealed where it
//! stands if it can be.

use std::ops::Range;

use vpnd_packet::mss::clamp_mss;
use vpnd_packet::offload::Slicer;
use vpnd_proto::plane::{Outer, Sender};
use vpnd_proto::wire::HEADER_LEN;

use super::batch::Batch;
use super::devices::DatagramSocket;

/// The datagrams that carry an inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One.
    Whole,
    /// Two, which any path carries, to a peer that joins them.
    Halves,
}

/// The plaintext of one datagram.
#[derive(Clone, Copy)]
enum Part {
    Whole,
    Half { second: bool },
}

impl Form {
    const fn parts(self) -> &'static [Part] {
        match self {
            Self::Whole => &[Part::Whole],
            Self::Halves => &[Part::Half { second: false }, Part::Half { second: true }],
        }
    }
}

/// Seals packets of one session into the batch. Each is sent, or counted as dropped.
pub(super) struct Sealer<'a, S> {
    pub(super) sender: Sender<'a>,
    pub(super) batch: &'a mut Batch,
    pub(super) socket: &'a S,
}

impl<S: DatagramSocket> Sealer<'_, S> {
    /// Writes each of these slices behind room for its header and seals it there. With `clamp` its
    /// MSS is held to that MTU.
    #[inline]
    pub(super) fn slices(&mut self, slicer: &Slicer<'_>, slices: Range<usize>, clamp: Option<u16>) {
        // All slices have the first one's header.
        let outer = self.sender.outer(slicer.traffic_class());
        for slice in slices {
            self.make_room(outer, slicer.slice_len(slice));
            let tail = self.batch.tail();
            let len = slicer.write(slice, &mut tail[HEADER_LEN..]);
            if let Some(mtu) = clamp {
                // A packet that can't be parsed carries no MSS either.
                let _ = clamp_mss(&mut tail[HEADER_LEN..HEADER_LEN + len], mtu);
            }
            if let Ok(sealed) = self.sender.seal(tail, len) {
                self.batch.push(sealed.outer, sealed.len);
            }
        }
    }

    /// Copies one plaintext packet into the batch and seals it there.
    pub(super) fn packet(&mut self, packet: &[u8], form: Form) {
        let outer = match form {
            Form::Whole => self.sender.outer_of(packet),
            Form::Halves => self.sender.outer(0),
        };
        for part in form.parts() {
            self.make_room(outer, packet.len());
            let tail = self.batch.tail();
            let sealed = match *part {
                Part::Whole => {
                    tail[HEADER_LEN..HEADER_LEN + packet.len()].copy_from_slice(packet);
                    self.sender.seal_packet(tail, packet.len())
                }
                Part::Half { second } => self.sender.seal_half(tail, packet, second),
            };
            // Without its first half the second is of no use.
            let Ok(sealed) = sealed else { return };
            self.batch.push(sealed.outer, sealed.len);
        }
    }

    /// Sends one plaintext packet that is longer than the path to a peer that joins no halves: the
    /// outer IP layer cuts it.
    #[cold]
    pub(super) fn packet_in_fragments(&mut self, packet: &[u8]) {
        self.flush();
        self.packet(packet, Form::Whole);
        self.batch.send_fragmented(self.socket, self.sender.counters());
    }

    /// Makes sure that a packet of `len` bytes with this outer header can join the batch.
    #[inline]
    fn make_room(&mut self, outer: Outer, len: usize) {
        if !self.batch.takes(outer, self.sender.datagram_len(len)) {
            self.flush();
        }
    }

    #[cold]
    fn flush(&mut self) {
        self.batch.send(self.socket, self.sender.counters());
    }
}
