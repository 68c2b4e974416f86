//! The lane that seals a session's packets, and the outer headers that it gives them.

use super::super::command::{Activity, Event, Slot};
use super::super::count::DropReason;
use super::super::events::Events;
use super::super::path::Path;
use super::super::{Endpoint, halves};
use super::Epoch;
use crate::checksum;
use crate::control::{FEATURE_HALVES, FEATURE_PARTIAL_CHECKSUM, FEATURE_PATH_SIZE};
use crate::lane::SealRefused;
use crate::packet::{PARTIAL_CHECKSUM, traffic_class};
use crate::time::Time;
use crate::wire::HEADER_LEN;

/// What the outer headers of datagrams have in common that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Where to send them.
    pub endpoint: Endpoint,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
}

/// A sealed datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Length of the datagram in bytes.
    pub len: usize,
    /// Its outer header.
    pub outer: Outer,
}

/// The lane that seals a session's packets now.
#[derive(Debug)]
pub struct Sender<'a> {
    pub(super) slot: Slot,
    pub(super) now: Time,
    pub(super) epoch: &'a mut Epoch,
    pub(super) activity: &'a mut Activity,
    pub(super) path: &'a mut Path,
    pub(super) events: &'a mut Events,
}

impl Sender<'_> {
    /// Features that the peer understands (PROTOCOL §3.4).
    #[inline]
    #[must_use]
    pub fn features(&self) -> u32 {
        self.epoch.features
    }

    /// Where the datagrams go.
    #[inline]
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.epoch.endpoint.expect("a sealing epoch knows its peer's endpoint")
    }

    /// The outer header of a packet with this traffic class.
    #[inline]
    #[must_use]
    pub fn outer(&self, traffic_class: u8) -> Outer {
        Outer { endpoint: self.endpoint(), traffic_class: traffic_class & self.epoch.copied }
    }

    /// The outer header of this packet.
    #[inline]
    #[must_use]
    pub fn outer_of(&self, packet: &[u8]) -> Outer {
        self.outer(packet.first_chunk().map_or(0, |first| traffic_class(*first)))
    }

    /// Length of the datagram that a packet of `len` bytes makes.
    #[inline]
    #[must_use]
    pub fn datagram_len(&self, len: usize) -> usize {
        self.epoch.send.datagram_len(len)
    }

    /// Whether the path to the peer does not carry the datagram of a packet of `len` bytes, as far as is known.
    #[inline]
    #[must_use]
    pub fn exceeds_path(&self, len: usize) -> bool {
        self.datagram_len(len) > self.path.limit()
    }

    /// The largest packet that the path to the peer carries, in bytes.
    #[must_use]
    pub fn path_mtu(&self) -> u16 {
        let limit = self.path.limit();
        let mut len = limit.saturating_sub(self.datagram_len(0));
        // Some suites pad.
        while len > 0 && self.datagram_len(len) > limit {
            len -= 1;
        }
        len as u16
    }

    /// Makes a plaintext packet understandable for the peer: fills in a checksum that it could not fill in itself.
    ///
    /// # Errors
    /// If the packet is malformed.
    #[inline]
    pub fn suit(&self, packet: &mut [u8]) -> Result<(), DropReason> {
        if self.epoch.features & FEATURE_PARTIAL_CHECKSUM != 0 || packet[0] & PARTIAL_CHECKSUM == 0 {
            return Ok(());
        }
        checksum::complete(packet).map_err(|_| DropReason::BadPacket)
    }

    /// Seals the packet of `len` bytes that stands at [`crate::wire::HEADER_LEN`] in `datagram`.
    ///
    /// # Errors
    /// If the key is used up or the buffer too short.
    #[inline]
    pub fn seal(&mut self, datagram: &mut [u8], len: usize) -> Result<Sealed, DropReason> {
        let outer = self.outer_of(datagram.get(HEADER_LEN..).unwrap_or_default());
        let sealed = Sealed { outer, ..self.seal_inband(datagram, len)? };
        self.activity.tx_packets += 1;
        self.activity.tx_bytes += len as u64;
        self.activity.last_tx_packet = self.now;
        if self.path.sent(self.now, sealed.len, self.activity.last_rx)
            && self.epoch.features & FEATURE_PATH_SIZE != 0
        {
            self.ask_about_path();
        }
        Ok(sealed)
    }

    /// Whether the peer joins packets that come in two halves.
    #[must_use]
    pub fn joins_halves(&self) -> bool {
        self.epoch.features & FEATURE_HALVES != 0
    }

    /// Writes one half of `packet` into `datagram` and seals it. The second must follow the first before anything else is
    /// sealed; a `datagram` as long as for the whole packet has room for either.
    ///
    /// # Errors
    /// If the packet is longer than any that is joined, the key is used up or the buffer too short.
    pub fn seal_half(
        &mut self,
        datagram: &mut [u8],
        packet: &[u8],
        second: bool,
    ) -> Result<Sealed, DropReason> {
        let body = datagram.get_mut(HEADER_LEN..).ok_or(DropReason::TooLong)?;
        let len = halves::write(packet, second, body).ok_or(DropReason::TooLong)?;
        let sealed = self.seal_inband(datagram, len)?;
        if second {
            self.activity.tx_packets += 1;
            self.activity.tx_bytes += packet.len() as u64;
            self.activity.tx_halved += 1;
            self.activity.last_tx_packet = self.now;
        }
        Ok(sealed)
    }

    /// Only clients probe: one does so at once, a gateway asks for it.
    #[cold]
    fn ask_about_path(&mut self) {
        if self.epoch.follows_peer {
            self.events.push_path_check(self.slot);
        } else {
            // Asked again while large packets go.
            let _ = self.events.push(Event::PathInUse { slot: self.slot });
        }
    }

    /// Like [`Sender::seal`] for what is no inner packet, and so no use of the tunnel.
    #[inline]
    pub(in crate::plane) fn seal_inband(
        &mut self,
        datagram: &mut [u8],
        len: usize,
    ) -> Result<Sealed, DropReason> {
        let len = self.epoch.send.seal(self.now, datagram, len).map_err(|refused| match refused {
            SealRefused::Spent => DropReason::KeySpent,
            SealRefused::NoRoom => DropReason::TooLong,
        })?;
        self.activity.last_tx = self.now;
        if self.epoch.send.rekey_due() && !self.epoch.rekey_reported {
            let due = Event::RekeyDue { slot: self.slot, epoch: self.epoch.number };
            self.epoch.rekey_reported = self.events.push(due);
        }
        Ok(Sealed { len, outer: self.outer(0) })
    }
}
