//! The lane that seals a session's packets, and the outer headers that it gives them.
//!
//! INVARIANT: a packet that is given to a [`Sender`] or a [`PacketQueue`] is sealed, kept, or
//! counted as dropped, once.

use std::collections::VecDeque;

use super::super::command::{Activity, Event, Slot};
use super::super::count::{Counters, DropReason, Dropped};
use super::super::limiter::{Limiter, Shared};
use super::super::path::Path;
use super::super::reports::Reports;
use super::super::{Endpoint, Outgoing, halves};
use super::{Epoch, MAX_WAITING, MAX_WAITING_LEN};
use crate::control::{FEATURE_HALVES, FEATURE_PARTIAL_CHECKSUM, FEATURE_PATH_CONFIRM, FEATURE_PATH_SIZE};
use crate::lane::SealRefused;
use crate::rate::{Segments, Way};
use crate::time::Time;
use crate::wire::HEADER_LEN;
use vpnd_packet::checksum;
use vpnd_packet::{PARTIAL_CHECKSUM, traffic_class};

/// The outer header of a datagram, as far as it decides which datagrams can be sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Where to send them.
    pub endpoint: Endpoint,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// Whether the datagram must stay out of batches, which are lost on the way.
    pub single: bool,
    /// Whether the IP layer may fragment it: the path of a stock WireGuard client is not measured.
    pub may_fragment: bool,
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
    /// Whether datagrams stay out of batches. Other shards can change that: what room was made for
    /// must be what is sealed.
    pub(super) single: bool,
    pub(super) limiter: Option<&'a mut Limiter>,
    pub(super) shared: &'a mut Shared,
    pub(super) reports: &'a mut Reports,
}

/// The reason why there is no [`Sender`].
#[derive(Debug)]
pub enum NoSender<'a> {
    /// The packet may not be sent, or no client has its address. It is dropped, and counted.
    Dropped(Dropped),
    /// The session has no epoch that may seal. One is requested, and packets can wait for it.
    NoEpoch(PacketQueue<'a>),
}

impl NoSender<'_> {
    /// Keeps `packet` if it can wait; otherwise it is dropped and counted.
    pub fn queue(self, packet: &[u8]) {
        if let Self::NoEpoch(mut queue) = self {
            queue.push(packet);
        }
    }

    /// Drops a packet that is not to wait.
    pub fn give_up(self) -> Dropped {
        match self {
            Self::Dropped(dropped) => dropped,
            Self::NoEpoch(queue) => queue.reports.drop(DropReason::NoEpoch),
        }
    }
}

/// Packets of a session that wait for an epoch (PROTOCOL §11).
#[derive(Debug)]
pub struct PacketQueue<'a> {
    pub(super) waiting: &'a mut VecDeque<Box<[u8]>>,
    pub(super) reports: &'a mut Reports,
}

impl PacketQueue<'_> {
    /// Keeps a packet; the oldest make room. Too long a packet is dropped.
    pub fn push(&mut self, packet: &[u8]) {
        if packet.len() > MAX_WAITING_LEN {
            self.reports.drop(DropReason::NoEpoch);
            return;
        }
        let full = self.waiting.len() == MAX_WAITING;
        if full {
            self.waiting.pop_front();
            self.reports.drop(DropReason::NoEpoch);
        }
        self.waiting.push_back(packet.into());
    }

    /// The plane's counters, for packets that can't be given to the queue.
    pub fn counters(&mut self) -> &mut Counters {
        &mut self.reports.counters
    }
}

impl Sender<'_> {
    /// The session.
    #[inline]
    #[must_use]
    pub const fn slot(&self) -> Slot {
        self.slot
    }

    /// The features of both ends (PROTOCOL §3.4).
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

    /// The plane's counters, for packets that can't be given to the sender.
    #[inline]
    pub fn counters(&mut self) -> &mut Counters {
        &mut self.reports.counters
    }

    /// The outer header of a packet with this traffic class.
    #[inline]
    #[must_use]
    pub fn outer(&self, traffic_class: u8) -> Outer {
        let traffic_class = traffic_class & self.epoch.copied;
        let may_fragment = self.epoch.send.lane().is_none();
        Outer { endpoint: self.endpoint(), traffic_class, single: self.single, may_fragment }
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

    /// Whether the path is known not to carry the datagram of a packet of `len` bytes.
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

    /// Returns how many of the first packets of `segments` the session's limits let pass; the
    /// others are dropped and counted. Every packet from elsewhere must be admitted once before it
    /// is sealed; the gateway's own packets are not charged.
    #[inline]
    #[must_use = "what is not admitted must not be sealed"]
    pub fn admit(&mut self, segments: Segments) -> usize {
        let Some(limiter) = &mut self.limiter else {
            self.epoch.send.expect(segments.count);
            return segments.count;
        };
        let admitted = limiter.admit(self.now, Way::Down, segments, self.shared);
        self.epoch.send.expect(admitted);
        if admitted < segments.count {
            self.reports.counters.count(DropReason::RateLimit, segments.count - admitted);
        }
        admitted
    }

    /// Whether an error may be sent now about a packet that is too large for the path of this
    /// session, or that this session has sent and that goes nowhere; counted against its rate.
    pub fn may_send_error(&mut self) -> bool {
        self.path.may_answer(self.now)
    }

    /// Seals the packet of `len` bytes that stands at [`crate::wire::HEADER_LEN`] in `datagram`,
    /// with a complete checksum if the peer can't complete it.
    ///
    /// # Errors
    /// If it was dropped, because it is malformed, the key is used up or the buffer too short.
    #[inline]
    pub fn seal_packet(&mut self, datagram: &mut [u8], len: usize) -> Result<Sealed, Dropped> {
        let Some(packet) = datagram.get_mut(HEADER_LEN..HEADER_LEN + len) else {
            return Err(self.reports.drop(DropReason::TooLong));
        };
        self.complete_checksum(packet)?;
        self.seal(datagram, len)
    }

    /// Seals a packet whose checksum is as the peer needs it.
    ///
    /// # Errors
    /// If it was dropped, because the key is used up or the buffer too short.
    #[inline]
    pub fn seal(&mut self, datagram: &mut [u8], len: usize) -> Result<Sealed, Dropped> {
        let outer = self.outer_of(datagram.get(HEADER_LEN..).unwrap_or_default());
        let confirm =
            self.epoch.features & FEATURE_PATH_CONFIRM != 0 && self.path.takes_confirmation(self.now);
        let sealed = Sealed { outer, ..self.seal_plaintext(datagram, len, confirm)? };
        self.count_packet(len);
        self.activity.tx_single += u64::from(outer.single);
        if self.path.sent(self.now, sealed.len) && self.epoch.features & FEATURE_PATH_SIZE != 0 {
            self.ask_about_path();
        }
        Ok(sealed)
    }

    /// Whether the peer joins packets that come in two halves.
    #[must_use]
    pub fn joins_halves(&self) -> bool {
        self.epoch.features & FEATURE_HALVES != 0
    }

    /// Writes one half of `packet` into `datagram` and seals it. The second must follow the first
    /// before anything else is sealed, and may not if the first was refused; a `datagram` as long
    /// as for the whole packet has room for either.
    ///
    /// # Errors
    /// If the packet was dropped, because it is longer than any that is joined, the key is used up
    /// or the buffer too short.
    pub fn seal_half(&mut self, datagram: &mut [u8], packet: &[u8], second: bool) -> Result<Sealed, Dropped> {
        let body = datagram.get_mut(HEADER_LEN..).unwrap_or_default();
        let Some(len) = halves::write(packet, second, body) else {
            return Err(self.reports.drop(DropReason::TooLong));
        };
        let sealed = self.seal_inband(datagram, len)?;
        if second {
            self.count_packet(packet.len());
            self.activity.tx_halved += 1;
        }
        Ok(sealed)
    }

    /// Writes and seals a datagram of the plane's own.
    ///
    /// # Errors
    /// If it was dropped, because the key is used up or the buffer too short.
    pub(in crate::plane) fn seal_outgoing(
        &mut self,
        outgoing: Outgoing,
        datagram: &mut [u8],
    ) -> Result<Sealed, Dropped> {
        match outgoing.write(datagram.get_mut(HEADER_LEN..).unwrap_or_default()) {
            Some(len) => self.seal_inband(datagram, len),
            None => Err(self.reports.drop(DropReason::TooLong)),
        }
    }

    /// Completes a checksum that the peer could not complete itself.
    #[inline]
    fn complete_checksum(&mut self, packet: &mut [u8]) -> Result<(), Dropped> {
        let partial = packet.first().is_some_and(|first| first & PARTIAL_CHECKSUM != 0);
        if !partial || self.epoch.features & FEATURE_PARTIAL_CHECKSUM != 0 {
            return Ok(());
        }
        checksum::complete(packet).map_err(|_| self.reports.drop(DropReason::BadPacket))
    }

    #[inline]
    fn count_packet(&mut self, len: usize) {
        self.activity.tx_packets += 1;
        self.activity.tx_bytes += len as u64;
        self.activity.last_tx_packet = self.now;
    }

    /// Only clients probe: one does so at once, a gateway requests it.
    #[cold]
    fn ask_about_path(&mut self) {
        if self.epoch.follows_peer {
            self.reports.push_path_check(self.slot);
        } else {
            // Asked again while large packets go.
            let _ = self.reports.push(Event::PathInUse { slot: self.slot });
        }
    }

    /// Like [`Sender::seal`] for a plaintext that is no inner packet: it is no use of the tunnel,
    /// and its outer header has no mark.
    #[inline]
    fn seal_inband(&mut self, datagram: &mut [u8], len: usize) -> Result<Sealed, Dropped> {
        self.seal_plaintext(datagram, len, false)
    }

    #[inline]
    fn seal_plaintext(&mut self, datagram: &mut [u8], len: usize, confirm: bool) -> Result<Sealed, Dropped> {
        let len = match self.epoch.send.seal(self.now, datagram, len, confirm) {
            Ok(len) => len,
            Err(SealRefused::Exhausted) => return Err(self.reports.drop(DropReason::KeySpent)),
            Err(SealRefused::NoRoom) => return Err(self.reports.drop(DropReason::TooLong)),
        };
        self.activity.last_tx = self.now;
        if self.epoch.send.rekey_due() && !self.epoch.rekey_reported {
            let due = Event::RekeyDue { slot: self.slot, epoch: self.epoch.number };
            self.epoch.rekey_reported = self.reports.push(due);
        }
        Ok(Sealed { len, outer: self.outer(0) })
    }
}
