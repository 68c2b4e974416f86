//! The sessions of peers, and what shards are sent about them.
//!
//! INVARIANT: shards get keys of a peer only while it has a session. A slot that may be another
//! peer's next is no peer's here.

use std::collections::HashMap;
use std::sync::Arc;

use vpnd_proto::plane::{Command, Endpoint, Slot, WireGuardCommand};
use vpnd_proto::session::SessionId;
use vpnd_proto::wire::Index;
use vpnd_wireguard::peers::PeerId;
use vpnd_wireguard::transport::{Opener, Sealer};

/// A session of a peer.
#[derive(Clone, Copy)]
pub(super) struct Joined {
    pub(super) id: SessionId,
    pub(super) slot: Slot,
    /// Whether it reaches nothing but the portal.
    is_walled: bool,
    /// When its peer had been renewed last, by which its end was decided.
    renewed_s: u64,
    /// Whether the next one is begun from here.
    pub(super) is_changed: bool,
}

/// The session of each peer that has one.
pub(super) struct PeerSessions {
    joined: HashMap<PeerId, Joined>,
    by_slot: HashMap<Slot, PeerId>,
    /// Those that are not over yet: a peer may have the next one already.
    by_session: HashMap<SessionId, PeerId>,
    /// When each peer was renewed last.
    renewed: HashMap<PeerId, u64>,
    shards: usize,
}

impl PeerSessions {
    /// Without sessions.
    pub(super) fn new(shards: usize) -> Self {
        Self {
            joined: HashMap::new(),
            by_slot: HashMap::new(),
            by_session: HashMap::new(),
            renewed: HashMap::new(),
            shards,
        }
    }

    /// The peer was renewed last then.
    pub(super) fn renew(&mut self, peer: PeerId, renewed_s: u64) {
        self.renewed.insert(peer, renewed_s);
    }

    /// The peer is none any more. Its session is there until it is over.
    pub(super) fn remove(&mut self, peer: PeerId) {
        self.renewed.remove(&peer);
    }

    /// The peer has this session, in place of the one before. `renewed_s` is when the peer had been
    /// renewed last, by which it was decided what the session reaches and when it ends. Returns
    /// whether that would be decided otherwise now, so that the session is to end.
    pub(super) fn join(
        &mut self,
        peer: PeerId,
        id: SessionId,
        slot: Slot,
        is_walled: bool,
        renewed_s: u64,
    ) -> bool {
        let is_changed = is_walled && self.renewed.get(&peer) != Some(&renewed_s);
        let joined = Joined { id, slot, is_walled, renewed_s, is_changed };
        if let Some(before) = self.joined.insert(peer, joined) {
            // The next session in its slot may be another peer's.
            self.by_slot.remove(&before.slot);
        }
        self.by_slot.insert(slot, peer);
        self.by_session.insert(id, peer);
        is_changed
    }

    /// A session is over. Returns it with its peer, unless that one has the next one by now.
    pub(super) fn over(&mut self, id: SessionId) -> Option<(PeerId, Joined)> {
        let peer = self.by_session.remove(&id)?;
        let joined = self.get(peer).filter(|joined| joined.id == id)?;
        self.joined.remove(&peer);
        self.by_slot.remove(&joined.slot);
        Some((peer, joined))
    }

    /// The session of a peer that reaches the portal alone is to end: the next one may not be like
    /// that.
    pub(super) fn change_walled(&mut self, peer: PeerId) -> Option<SessionId> {
        let joined = self.joined.get_mut(&peer).filter(|joined| joined.is_walled)?;
        joined.is_changed = true;
        Some(joined.id)
    }

    /// The session of a peer.
    pub(super) fn get(&self, peer: PeerId) -> Option<Joined> {
        self.joined.get(&peer).copied()
    }

    /// The peer whose session is in this slot.
    pub(super) fn in_slot(&self, slot: Slot) -> Option<PeerId> {
        self.by_slot.get(&slot).copied()
    }

    /// The peer that has or had the session.
    pub(super) fn peer(&self, id: SessionId) -> Option<PeerId> {
        self.by_session.get(&id).copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = SessionId> {
        self.by_session.keys().copied()
    }

    /// The peers whose sessions reach the portal alone.
    pub(super) fn walled(&self) -> Vec<PeerId> {
        let walled = self.joined.iter().filter(|(_, joined)| joined.is_walled);
        walled.map(|(peer, _)| *peer).collect()
    }

    /// Whether the peer was renewed after its session had been admitted, which ends too early by
    /// that: another one takes its place at the next handshake.
    pub(super) fn is_renewed(&self, peer: PeerId) -> bool {
        let Some(joined) = self.get(peer).filter(|joined| !joined.is_walled) else { return false };
        self.renewed.get(&peer).is_some_and(|renewed_s| *renewed_s > joined.renewed_s)
    }

    /// Has the peer's messages to `index` opened.
    pub(super) fn open(&self, peer: PeerId, index: Index, opener: Box<Opener>) -> Vec<(usize, Command)> {
        let open = self.get(peer).map(|joined| WireGuardCommand::Open { slot: joined.slot, index, opener });
        open.map(|open| (index.shard(self.shards), Command::WireGuard(open))).into_iter().collect()
    }

    /// Has the key of `index` forgotten.
    pub(super) fn close(&self, index: Index) -> Vec<(usize, Command)> {
        vec![(index.shard(self.shards), Command::WireGuard(WireGuardCommand::Close(index)))]
    }

    /// Has data for the peer sealed with this key, and sent there; not at all without one.
    pub(super) fn seal(&self, peer: PeerId, key: Option<(Arc<Sealer>, Endpoint)>) -> Vec<(usize, Command)> {
        self.all(peer, |slot| match &key {
            Some((sealer, endpoint)) => {
                WireGuardCommand::Seal { slot, sealer: Arc::clone(sealer), endpoint: *endpoint }
            }
            None => WireGuardCommand::Unseal(slot),
        })
    }

    /// Has data for the peer sent there.
    pub(super) fn move_to(&self, peer: PeerId, endpoint: Endpoint) -> Vec<(usize, Command)> {
        self.all(peer, |slot| WireGuardCommand::Move { slot, endpoint })
    }

    /// Has the next packet for the peer begin a handshake again.
    pub(super) fn unanswered(&self, peer: PeerId) -> Vec<(usize, Command)> {
        self.all(peer, WireGuardCommand::Unanswered)
    }

    /// A command for each shard, if the peer has a session.
    fn all(&self, peer: PeerId, command: impl Fn(Slot) -> WireGuardCommand) -> Vec<(usize, Command)> {
        let Some(Joined { slot, .. }) = self.get(peer) else { return Vec::new() };
        (0..self.shards).map(|shard| (shard, Command::WireGuard(command(slot)))).collect()
    }
}
