//! Sessions of stock WireGuard clients: rows of the same table, whose keys and timers are with the
//! owner's peers instead of in epochs.
//!
//! INVARIANT: such a session has neither a connection nor epochs, and no client has its token: it
//! begins and goes on by handshakes alone.

use super::session::WireGuard;
use super::{Authenticated, Effect, Gateway};
use crate::attach::Token;
use crate::control::Code;
use crate::plane::{Command, Endpoint, Slot};
use crate::session::random_bytes;
use crate::time::Time;
use crate::wireguard::{PADDING, Sealer};

impl Gateway {
    /// Lets a device in that has shown its key, and carries packets of `mtu` bytes at most. Takes
    /// the place of the device's session before. The effects are to be carried out before the
    /// shards are given keys.
    ///
    /// # Errors
    /// If there is no room for it, no profile, or the gateway is being drained.
    pub fn admit_wireguard(&mut self, now: Time, who: Authenticated, mtu: u16) -> Result<Slot, Code> {
        if self.draining {
            return Err(Code::Drain);
        }
        self.check_room(&who)?;
        let token = Token::from_bytes(random_bytes(&mut self.random));
        let slot = self.begin_session(now, who, token.hash()).ok_or(Code::Internal)?;
        // Packets are padded: none makes a datagram larger than the path for which `mtu` was meant.
        let padded = usize::from(mtu) / PADDING * PADDING;
        let size = Sealer::message_len(padded).try_into().unwrap_or(u16::MAX);
        let Some(session) = self.table.get_mut(slot) else { return Err(Code::Internal) };
        session.wireguard = Some(WireGuard { endpoint: None, handshake: now, two_places: None });
        (session.open, session.path_size) = (true, Some(size));
        let (spec, record) = (session.spec(), session.record.clone());
        self.command_all(|_| Command::Open(spec.clone()));
        self.command_all(|_| Command::PathSize { slot, size });
        self.effects.push_back(Effect::Persist(record));
        Ok(slot)
    }

    /// The peer of a session is at `endpoint` now, which may be known.
    pub fn note_wireguard_endpoint(&mut self, slot: Slot, endpoint: Endpoint) {
        let Some(session) = self.table.get_mut(slot) else { return };
        let (id, Some(peer)) = (session.record.id, &mut session.wireguard) else { return };
        if peer.endpoint.replace(endpoint) == Some(endpoint) {
            return;
        }
        self.effects.push_back(Effect::HeardAt { session: id, lane: 0, outer: endpoint.remote });
    }

    /// Two devices have the keys of the session's peer.
    pub fn note_wireguard_two_places(&mut self, now: Time, slot: Slot) {
        if let Some(peer) = self.table.get_mut(slot).and_then(|session| session.wireguard.as_mut()) {
            peer.two_places = Some(now);
        }
    }

    /// New keys were made for a session.
    pub fn note_wireguard_handshake(&mut self, now: Time, slot: Slot) {
        if let Some(session) = self.table.get_mut(slot) {
            session.heard = session.heard.max(now);
            if let Some(peer) = &mut session.wireguard {
                peer.handshake = now;
            }
        }
    }
}
