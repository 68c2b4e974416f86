//! Sessions whose outer form is WireGuard's: their keys, and the way of their data through a plane.
//!
//! Behind the outer form they are sessions as all others: the same table, source check, policy,
//! limits and counts. Keys, timers and endpoints come from the control plane, which has the peers'
//! state machines.
//!
//! INVARIANT: one shard has the key that opens what comes to an index, so that each message is
//! accepted once. No datagram moves a peer here: it is reported, and the control plane moves it in
//! all shards.

use std::collections::HashMap;
use std::sync::Arc;

use core::hash::BuildHasherDefault;

use vpnd_packet::mss::clamp_mss;

use super::hash::IndexHasher;
use super::receive::Arrival;
use super::reports::Reports;
use super::session::may_move;
use super::{DropReason, Endpoint, Event, Opened, Origin, Plane, Slot, find};
use crate::control::FEATURE_ECN;
use crate::time::Time;
use crate::wire::{HEADER_LEN, Index};
use crate::wireguard::{OpenRefused, Opener, Sealer, TransportHeader};

/// A command about a session whose outer form is WireGuard's.
#[derive(Debug)]
pub enum WireGuardCommand {
    /// Open messages to `index`, which this shard owns.
    Open {
        /// The session.
        slot: Slot,
        /// The index in the messages.
        index: Index,
        /// Their key.
        opener: Box<Opener>,
    },
    /// Forget the key of an index.
    Close(Index),
    /// Seal for the session with this key from now on.
    Seal {
        /// The session.
        slot: Slot,
        /// The key, which all shards share.
        sealer: Arc<Sealer>,
        /// Where its peer is.
        endpoint: Endpoint,
    },
    /// Seal no more for the session until there is another key, for which it asks again.
    Unseal(Slot),
    /// The peer is somewhere else now.
    Move {
        /// The session.
        slot: Slot,
        /// Where its peer is.
        endpoint: Endpoint,
    },
    /// No key came of the last request for one: ask again with the next packet.
    Unanswered(Slot),
}

/// The key of an index, and where its messages come from.
#[derive(Debug)]
pub(super) struct WireGuardReceiver {
    slot: Slot,
    opener: Box<Opener>,
    heard_at: Option<(Endpoint, Time)>,
}

/// The keys of a shard, by index. These indexes are apart from those of lanes: a datagram's first
/// byte tells which it has.
pub(super) type WireGuardReceivers = HashMap<Index, WireGuardReceiver, BuildHasherDefault<IndexHasher>>;

impl WireGuardReceiver {
    /// The session that its messages are of.
    pub(super) const fn slot(&self) -> Slot {
        self.slot
    }

    pub(super) const fn highest(&self) -> Option<u64> {
        self.opener.window.highest()
    }

    /// The session sends to `endpoint` now: messages from elsewhere are reported again.
    fn move_to(&mut self, endpoint: Endpoint) {
        self.heard_at = self.heard_at.map(|(_, since)| (endpoint, since));
    }

    /// Whether its newest message came from `endpoint`.
    pub(super) fn was_heard_at(&self, endpoint: Endpoint) -> bool {
        self.heard_at.is_some_and(|(at, _)| at == endpoint)
    }

    /// Opens a message in place. Returns the plaintext's length, padding included.
    #[inline]
    fn open(
        &mut self,
        now: Time,
        header: TransportHeader,
        message: &mut [u8],
        from: Endpoint,
        reports: &mut Reports,
    ) -> Result<usize, DropReason> {
        let opened = match self.opener.open(now, header, message) {
            Ok(opened) => opened,
            Err(OpenRefused::Replayed) => return Err(DropReason::Replayed),
            Err(OpenRefused::NotAuthentic) => return Err(DropReason::NotAuthentic),
            Err(OpenRefused::Exhausted) => return Err(DropReason::KeySpent),
        };
        // Only the newest authentic message moves a peer: a replayed or delayed one must not.
        if opened.newest && may_move(self.heard_at, now, from) {
            let event =
                Event::WireGuardOpened { slot: self.slot, index: header.receiver, endpoint: from, opened };
            if reports.push(event) {
                self.heard_at = Some((from, now));
            }
        }
        Ok(opened.len)
    }
}

impl Plane {
    pub(super) fn apply_wireguard(&mut self, command: WireGuardCommand) {
        match command {
            WireGuardCommand::Open { slot, index, opener } => {
                if let Some(session) = find(&mut self.sessions, slot) {
                    session.wireguard_indexes.push(index);
                    self.wireguard.insert(index, WireGuardReceiver { slot, opener, heard_at: None });
                }
            }
            WireGuardCommand::Close(index) => {
                let Some(receiver) = self.wireguard.remove(&index) else { return };
                if let Some(session) = find(&mut self.sessions, receiver.slot) {
                    session.wireguard_indexes.retain(|other| *other != index);
                }
            }
            WireGuardCommand::Seal { slot, sealer, endpoint } => {
                if let Some(session) = find(&mut self.sessions, slot) {
                    session.seal_by_wireguard(sealer, endpoint);
                }
            }
            WireGuardCommand::Unseal(slot) => {
                if let Some(session) = find(&mut self.sessions, slot) {
                    session.unseal_wireguard();
                }
            }
            WireGuardCommand::Move { slot, endpoint } => {
                let Some(session) = find(&mut self.sessions, slot) else { return };
                session.move_wireguard(endpoint);
                for index in &session.wireguard_indexes {
                    if let Some(receiver) = self.wireguard.get_mut(index) {
                        receiver.move_to(endpoint);
                    }
                }
            }
            WireGuardCommand::Unanswered(slot) => {
                if let Some(session) = find(&mut self.sessions, slot) {
                    session.ask_again();
                }
            }
        }
    }

    #[inline]
    pub(super) fn try_open_wireguard(
        &mut self,
        now: Time,
        header: TransportHeader,
        message: &mut [u8],
        origin: Origin,
    ) -> Result<Opened, DropReason> {
        let receiver = self.wireguard.get_mut(&header.receiver).ok_or(DropReason::UnknownIndex)?;
        let session = find(&mut self.sessions, receiver.slot).ok_or(DropReason::UnknownIndex)?;
        let len = receiver.open(now, header, message, origin.from, &mut self.reports)?;
        session.note_use(&mut self.used);
        session.activity.rx_datagrams += 1;
        session.activity.last_rx = now;
        if len == 0 {
            return Ok(Opened::Consumed);
        }
        session.activity.last_rx_contents = now;
        // A sender that marks its datagrams has carried the packet's own mark over (RFC 6040), as
        // the kernel's WireGuard does; others mark none.
        let arrival = Arrival { features: FEATURE_ECN, mark: origin.mark, congested: origin.congested };
        let message = &mut message[..HEADER_LEN + len];
        let accepted =
            session.accept(now, message, HEADER_LEN, arrival, &self.forwarding, &mut self.reports)?;
        // Hosts behind a device may announce more than the device carries.
        if accepted.packet.packet(message).is_syn() {
            let mtu = Sealer::contents_len(session.path.limit());
            let _ = clamp_mss(&mut message[accepted.packet.range()], mtu as u16);
        }
        session.pass(now, accepted, &mut self.shared)
    }
}
