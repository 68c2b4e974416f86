//! The way of a datagram through a plane: opened, checked, and where its packet goes (PROTOCOL §7.2, §8, §12).

use core::ops::Range;

use super::halves::HALF;
use super::{DropReason, Endpoint, Plane, Role, Slot, find, note_use};
use crate::ecn::Ecn;
use crate::inband::Inband;
use crate::packet::{Packet, decrement_hop_limit, set_ecn};
use crate::policy::{Destination, Verdict};
use crate::time::Time;
use crate::wire::{HEADER_LEN, Header};

/// What became of a datagram. Ranges are positions in the datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// A packet for the TUN device.
    Tun(Range<usize>),
    /// A packet for another client; it stands at [`HEADER_LEN`] and is `len` bytes long.
    Forward {
        /// Whom it is for.
        to: Slot,
        /// Length of the packet in bytes.
        len: usize,
    },
    /// A packet whose second half this was; [`Plane::joined`] has its `len` bytes.
    Joined {
        /// Which other client it is for; `None` for the TUN device.
        to: Option<Slot>,
        /// Length of the packet in bytes.
        len: usize,
    },
    /// A packet for another client whose time to live or hop limit is used up; the drop is counted already. Its sender may be
    /// sent an ICMP error ([`Plane::may_send_error`]). It stands at [`HEADER_LEN`].
    Expired {
        /// Who sent it.
        slot: Slot,
        /// Length of the packet in bytes.
        len: usize,
    },
    /// A probe to be answered with [`Plane::originate`].
    Probe {
        /// Who asks.
        slot: Slot,
        /// The probe's number.
        id: u16,
        /// Length of the probe's plaintext in bytes.
        size: u16,
        /// Whether the answer is to be as long.
        padded: bool,
    },
    /// Nothing more to do.
    Consumed,
}

impl Plane {
    /// Checks and opens one datagram in place (PROTOCOL §7.2, §8). `mark` is the congestion codepoint of its outer header.
    ///
    /// # Errors
    /// Why it was dropped; the drop is counted already.
    #[inline]
    pub fn open(
        &mut self,
        now: Time,
        datagram: &mut [u8],
        from: Endpoint,
        mark: Ecn,
    ) -> Result<Opened, DropReason> {
        let opened = self.try_open(now, datagram, from, mark);
        if let Err(reason) = opened {
            self.counters.drop(reason);
        }
        opened
    }

    #[inline]
    fn try_open(
        &mut self,
        now: Time,
        datagram: &mut [u8],
        from: Endpoint,
        mark: Ecn,
    ) -> Result<Opened, DropReason> {
        let header = Header::parse(datagram).map_err(|_| DropReason::BadHeader)?;
        let receiver = self.receivers.get_mut(&header.index).ok_or(DropReason::UnknownIndex)?;
        let session = find(&mut self.sessions, receiver.slot).ok_or(DropReason::UnknownIndex)?;
        let len = receiver.open(now, header, datagram, from, session, &mut self.events)?;
        note_use(&mut self.used, session);
        let slot = receiver.slot;
        let plaintext = &mut datagram[HEADER_LEN..HEADER_LEN + len];
        match plaintext.first() {
            None => Ok(Opened::Consumed),
            Some(&HALF) => self.half(now, slot, header, plaintext),
            Some(0x10..=0x1F) => self.inband(now, slot, header.lane, Inband::parse(plaintext)),
            Some(_) => self.inner(now, slot, plaintext, mark),
        }
    }

    /// Decides where an authentic inner packet goes.
    #[inline]
    pub(super) fn inner(
        &mut self,
        now: Time,
        slot: Slot,
        plaintext: &mut [u8],
        mark: Ecn,
    ) -> Result<Opened, DropReason> {
        let packet = Packet::parse(plaintext).map_err(|_| DropReason::BadPacket)?;
        let session = find(&mut self.sessions, slot).ok_or(DropReason::NoSession)?;
        let (len, dst, version, ecn) = (packet.total_len(), packet.dst(), packet.version(), packet.ecn());
        let opened = match self.role {
            Role::Client => {
                if !session.owns(dst) {
                    return Err(DropReason::NotForUs);
                }
                Opened::Tun(HEADER_LEN..HEADER_LEN + len)
            }
            Role::Gateway => {
                if !session.filter.permits(&packet) {
                    return Err(DropReason::ForeignSource);
                }
                self.deliver(slot, &packet)?
            }
        };
        let combined = ecn.decapsulated(mark).ok_or(DropReason::Congestion)?;
        if combined != ecn {
            set_ecn(plaintext, version, combined);
        }
        // What goes to the TUN device is routed by the kernel, which decrements there.
        if matches!(opened, Opened::Forward { .. }) && !decrement_hop_limit(plaintext, version) {
            self.counters.drop(DropReason::HopLimit);
            return Ok(Opened::Expired { slot, len });
        }
        if let Some(session) = find(&mut self.sessions, slot) {
            session.received_packet(now, len);
        }
        Ok(opened)
    }

    /// At a gateway: to another client, if policy allows, or to the TUN device.
    #[inline]
    fn deliver(&self, from: Slot, packet: &Packet<'_>) -> Result<Opened, DropReason> {
        let source = self.session(from).ok_or(DropReason::NoSession)?;
        let len = packet.total_len();
        let Some(to) = self.routes.lookup(packet.dst()) else {
            return match self.policy.evaluate(&source.principal, Destination::Campus, packet) {
                Verdict::Allow => Ok(Opened::Tun(HEADER_LEN..HEADER_LEN + len)),
                Verdict::Deny => Err(DropReason::Policy),
            };
        };
        let target = self.session(to).ok_or(DropReason::NoSession)?;
        match self.policy.evaluate(&source.principal, Destination::Client(&target.principal), packet) {
            Verdict::Allow => Ok(Opened::Forward { to, len }),
            Verdict::Deny => Err(DropReason::Policy),
        }
    }
}
