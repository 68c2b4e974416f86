//! The way of a datagram: opened, checked, and where its packet goes (PROTOCOL §7.2, §8, §12).

use core::net::SocketAddr;

use super::forwarding::{Forwarding, NextHop};
use super::halves::{HALF, Half};
use super::limiter::Shared;
use super::reports::Reports;
use super::session::Session;
use super::shared_path::AVOID_BATCHES;
use super::{DropReason, Dropped, Endpoint, Plane, Role, Slot, find};
use crate::control::{FEATURE_ECN, FEATURE_HALVES, FEATURE_PARTIAL_CHECKSUM};
use crate::inband::Inband;
use crate::time::Time;
use crate::wire::{HEADER_LEN, Header, Index};
use crate::wireguard::TransportHeader;
use vpnd_packet::ecn::Ecn;
use vpnd_packet::{Checked, Packet, decrement_hop_limit, set_ecn};

/// An opened datagram: its contents, and where they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// A packet for the TUN device; it stands in the datagram.
    Tun(Checked),
    /// A packet for another client; it stands at [`HEADER_LEN`] and is `len` bytes long.
    Forward {
        /// The client that it is for.
        to: Slot,
        /// Length of the packet in bytes.
        len: usize,
    },
    /// A packet whose second half this was; it stands in [`Plane::joined`].
    Joined {
        /// The other client that it is for; `None` for the TUN device.
        to: Option<Slot>,
        /// The packet.
        packet: Checked,
    },
    /// A packet for another client whose time to live or hop limit is used up; the drop is counted
    /// already. Its sender may be sent an ICMP error ([`Plane::may_send_error`]). It stands at
    /// [`HEADER_LEN`].
    Expired {
        /// The session that it came from.
        slot: Slot,
        /// Length of the packet in bytes.
        len: usize,
    },
    /// A request for a web page, for [`Plane::redirect`] to answer, at [`HEADER_LEN`].
    Redirect {
        /// The session that it came from.
        slot: Slot,
        /// Length of the packet in bytes.
        len: usize,
    },
    /// A packet that may not pass, as its sender is to know at once; the drop is counted already.
    /// It stands at [`HEADER_LEN`].
    Refused {
        /// The session that it came from.
        slot: Slot,
        /// Length of the packet in bytes.
        len: usize,
    },
    /// A probe to be answered with [`Plane::originate`].
    Probe {
        /// The session that it came from.
        slot: Slot,
        /// The probe's number.
        id: u16,
        /// Length of the probe's plaintext in bytes.
        size: u16,
        /// Whether the answer is to be as long.
        padded: bool,
    },
    /// A probe to be answered with [`Outgoing::Batch`](super::Outgoing::Batch).
    BatchProbe {
        /// The session that it came from.
        slot: Slot,
        /// Number of the first reply.
        id: u16,
        /// Length of each reply's plaintext in bytes.
        size: u16,
    },
    /// Batches to this address and port are lost on the way, as the client there has found.
    BatchesLost(SocketAddr),
    /// Nothing more to do.
    Consumed,
}

/// The header of data, in either of the forms that they have outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataHeader {
    /// The header of our own clients.
    Lane(Header),
    /// The header of WireGuard.
    WireGuard(TransportHeader),
}

impl DataHeader {
    /// The receiver's index.
    #[inline]
    #[must_use]
    pub const fn index(self) -> Index {
        match self {
            Self::Lane(header) => header.index,
            Self::WireGuard(header) => header.receiver,
        }
    }
}

impl From<Header> for DataHeader {
    #[inline]
    fn from(header: Header) -> Self {
        Self::Lane(header)
    }
}

impl From<TransportHeader> for DataHeader {
    #[inline]
    fn from(header: TransportHeader) -> Self {
        Self::WireGuard(header)
    }
}

/// Where a datagram came from and how, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The addresses of its outer header.
    pub from: Endpoint,
    /// The congestion codepoint of its outer header.
    pub mark: Ecn,
    /// Whether to tell its packet's sender of congestion: by a mark if ECN-capable, else by a loss.
    pub congested: bool,
}

/// The session of a datagram, by its header and source address, neither of which is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// No session with an epoch here: [`Plane::open`] would drop it.
    Nobody,
    /// A session, from another address than its peer's: it has moved, or another host sends.
    Unproven,
    /// A session, from its peer's address.
    Known(Slot),
}

/// How an inner packet came.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    /// The features of its epoch (PROTOCOL §3.4).
    pub(super) features: u32,
    /// The congestion mark, as in [`Origin`].
    pub(super) mark: Ecn,
    /// The flag of the same name, as in [`Origin`].
    pub(super) congested: bool,
}

/// An inner packet that passed all checks. `next_hop` is `None` if its hops are used up, which is
/// counted already, as a refusal is.
pub(super) struct Accepted {
    pub(super) packet: Checked,
    pub(super) next_hop: Option<NextHop>,
}

impl Plane {
    /// Returns the session that a datagram claims. Changes nothing, and costs little.
    #[must_use]
    pub fn claim(&self, header: impl Into<DataHeader>, from: Endpoint) -> Claim {
        let (slot, was_heard) = match header.into() {
            DataHeader::Lane(header) => {
                let Some(receiver) = self.receivers.get(&header.index) else { return Claim::Nobody };
                (receiver.slot, receiver.was_heard_at(header.lane, from))
            }
            DataHeader::WireGuard(header) => {
                let Some(receiver) = self.wireguard.get(&header.receiver) else { return Claim::Nobody };
                (receiver.slot(), receiver.was_heard_at(from))
            }
        };
        let session = self.sessions.get(slot.index as usize).and_then(Option::as_deref);
        match session.filter(|session| session.slot == slot) {
            None => Claim::Nobody,
            Some(session) if was_heard || session.is_at(from) => Claim::Known(slot),
            Some(_) => Claim::Unproven,
        }
    }

    /// Checks and opens one datagram in place (PROTOCOL §7.2, §8). `header` is its header.
    ///
    /// # Errors
    /// If it was dropped.
    #[inline]
    pub fn open(
        &mut self,
        now: Time,
        header: impl Into<DataHeader>,
        datagram: &mut [u8],
        origin: Origin,
    ) -> Result<Opened, Dropped> {
        let opened = match header.into() {
            DataHeader::Lane(header) => self.try_open(now, header, datagram, origin),
            DataHeader::WireGuard(header) => self.try_open_wireguard(now, header, datagram, origin),
        };
        opened.map_err(|reason| self.reports.drop(reason))
    }

    #[inline]
    fn try_open(
        &mut self,
        now: Time,
        header: Header,
        datagram: &mut [u8],
        origin: Origin,
    ) -> Result<Opened, DropReason> {
        let receiver = self.receivers.get_mut(&header.index).ok_or(DropReason::UnknownIndex)?;
        let session = find(&mut self.sessions, receiver.slot).ok_or(DropReason::UnknownIndex)?;
        let len = receiver.open(now, header, datagram, origin.from, session, &mut self.reports)?;
        let features = receiver.features;
        session.note_use(&mut self.used);
        let plaintext = &mut datagram[HEADER_LEN..HEADER_LEN + len];
        match plaintext.first() {
            None => Ok(Opened::Consumed),
            Some(&HALF) if features & FEATURE_HALVES != 0 => {
                let (joined, forwarding) = (&mut self.joined, &self.forwarding);
                let half = Half::parse(header, plaintext).ok_or(DropReason::UnknownInband)?;
                let opened =
                    session.accept_half(now, &half, features, joined, forwarding, &mut self.reports)?;
                if let Opened::Joined { packet, .. } = &opened {
                    session.receive_packet(now, packet.range().len(), &mut self.shared)?;
                }
                Ok(opened)
            }
            Some(0x10..=0x1F) => {
                let agreed = |message: &Inband| features & message.feature() == message.feature();
                match Inband::parse(plaintext).filter(agreed) {
                    Some(Inband::BatchesLost) if self.forwarding.role == Role::Gateway => {
                        session.path.avoid_batches(now + AVOID_BATCHES);
                        Ok(Opened::BatchesLost(origin.from.remote))
                    }
                    message => session.handle_inband(
                        now,
                        self.forwarding.role,
                        header.lane,
                        message,
                        &mut self.reports,
                    ),
                }
            }
            Some(_) => {
                let end = HEADER_LEN + len;
                let accepted = session.accept(
                    now,
                    &mut datagram[..end],
                    HEADER_LEN,
                    Arrival { features, mark: origin.mark, congested: origin.congested },
                    &self.forwarding,
                    &mut self.reports,
                )?;
                session.pass(now, accepted, &mut self.shared)
            }
        }
    }
}

impl Session {
    /// Passes on a packet that stands at [`HEADER_LEN`], if the session's limits allow that.
    #[inline]
    pub(super) fn pass(
        &mut self,
        now: Time,
        Accepted { packet, next_hop }: Accepted,
        shared: &mut Shared,
    ) -> Result<Opened, DropReason> {
        let len = packet.range().len();
        if next_hop.is_some_and(|next_hop| next_hop != NextHop::Refuse) {
            self.receive_packet(now, len, shared)?;
        }
        Ok(match next_hop {
            Some(NextHop::Tun) => Opened::Tun(packet),
            Some(NextHop::Client(to)) => Opened::Forward { to, len },
            Some(NextHop::Redirect) => Opened::Redirect { slot: self.slot, len },
            Some(NextHop::Refuse) => Opened::Refused { slot: self.slot, len },
            None => Opened::Expired { slot: self.slot, len },
        })
    }

    /// Decides about an authentic inner packet, which reaches from `start` to the end of `buffer`.
    /// This is the only place where it is parsed.
    #[inline]
    pub(super) fn accept(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        start: usize,
        Arrival { features, mark, congested }: Arrival,
        forwarding: &Forwarding,
        reports: &mut Reports,
    ) -> Result<Accepted, DropReason> {
        let plaintext = &mut buffer[start..];
        let packet = Packet::parse(plaintext).map_err(|_| DropReason::BadPacket)?;
        if packet.is_partial() && features & FEATURE_PARTIAL_CHECKSUM == 0 {
            return Err(DropReason::BadPacket);
        }
        // Nothing says what the mark of a peer without the feature means.
        let mark = if features & FEATURE_ECN != 0 { mark } else { Ecn::NotEct };
        let next_hop = match forwarding.role {
            Role::Client => {
                if !self.owns(packet.dst()) {
                    return Err(DropReason::NotForUs);
                }
                NextHop::Tun
            }
            Role::Gateway => {
                if !self.filter.permits(&packet) {
                    return Err(DropReason::ForeignSource);
                }
                forwarding.next_hop(now, self, &packet)?
            }
        };
        let (version, ecn, packet) = (packet.version(), packet.ecn(), Checked::new(&packet, start as u16));
        if let Some(combination) = ecn.unused_in(mark) {
            reports.counters.count_unused(combination);
        }
        let combined = ecn.decapsulated(mark).ok_or(DropReason::Congestion)?;
        let combined = if congested { combined.congested().ok_or(DropReason::Overload)? } else { combined };
        if combined != ecn {
            set_ecn(plaintext, version, combined);
        }
        if next_hop == NextHop::Refuse {
            reports.drop(DropReason::Policy);
        }
        // For a packet to the TUN device the kernel is the router, and decrements.
        if matches!(next_hop, NextHop::Client(_)) && !decrement_hop_limit(plaintext, version) {
            reports.drop(DropReason::HopLimit);
            return Ok(Accepted { packet, next_hop: None });
        }
        Ok(Accepted { packet, next_hop: Some(next_hop) })
    }
}
