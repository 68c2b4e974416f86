//! The sessions of peers: what shards are sent about them, and what others have to do with them.
//!
//! INVARIANT: shards get keys of a peer only while it has a session. A slot that may be another
//! peer's next is no peer's here.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use vpnd_proto::plane::{Command, Endpoint, Slot, WireGuardCommand};
use vpnd_proto::session::SessionId;
use vpnd_proto::wire::Index;
use vpnd_wireguard::PublicKey;
use vpnd_wireguard::peers::PeerId;
use vpnd_wireguard::transport::{Opener, Sealer};

use super::decision::Decision;
use vpnd_ipc::gateway::wireguard::DeviceGrant;

/// A session of a peer.
#[derive(Clone, Copy)]
struct Joined {
    id: SessionId,
    slot: Slot,
    /// Whether it reaches nothing but the portal.
    is_walled: bool,
    /// When its peer had been renewed last, by which its end was decided.
    renewed_s: u64,
    /// Whether the next one is begun from here.
    is_changed: bool,
}

impl Joined {
    /// If it reaches the portal alone it is to end.
    fn change(&mut self) -> Option<Decision> {
        self.is_changed |= self.is_walled;
        self.is_walled.then_some(Decision::Changed(self.id))
    }
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
    decisions: VecDeque<Decision>,
}

impl PeerSessions {
    /// No peer has a session yet.
    pub(super) fn new(shards: usize) -> Self {
        Self {
            joined: HashMap::new(),
            by_slot: HashMap::new(),
            by_session: HashMap::new(),
            renewed: HashMap::new(),
            shards,
            decisions: VecDeque::new(),
        }
    }

    /// The peer was renewed last then. If its session reaches the portal alone it is to end: the
    /// next one may not be like that.
    pub(super) fn renew(&mut self, peer: PeerId, renewed_s: u64) {
        self.renewed.insert(peer, renewed_s);
        if let Some(joined) = self.joined.get_mut(&peer) {
            self.decisions.extend(joined.change());
        }
    }

    /// Other settings are in force, by which devices that reach the portal alone may be let in.
    pub(super) fn change_all(&mut self) {
        self.decisions.extend(self.joined.values_mut().filter_map(Joined::change));
    }

    /// The peer is none any more. Its session is there until it is over.
    pub(super) fn remove(&mut self, peer: PeerId) {
        self.renewed.remove(&peer);
        self.decide(peer, |joined| Decision::Gone(joined.id));
    }

    /// The auth process has admitted a peer.
    pub(super) fn admit(&mut self, peer: PublicKey, grant: Box<DeviceGrant>) {
        self.decisions.push_back(Decision::Admit { peer, grant });
    }

    /// The peer has this session, in place of the one before. `renewed_s` is when the peer had been
    /// renewed last, by which it was decided what the session reaches and when it ends.
    pub(super) fn join(&mut self, peer: PeerId, id: SessionId, slot: Slot, is_walled: bool, renewed_s: u64) {
        let is_changed = is_walled && self.renewed.get(&peer) != Some(&renewed_s);
        if is_changed {
            self.decisions.push_back(Decision::Changed(id));
        }
        let joined = Joined { id, slot, is_walled, renewed_s, is_changed };
        if let Some(before) = self.joined.insert(peer, joined) {
            // The next session in its slot may be another peer's.
            self.by_slot.remove(&before.slot);
        }
        self.by_slot.insert(slot, peer);
        self.by_session.insert(id, peer);
    }

    /// A session is over. Returns its peer, and whether the next one is begun from here; `None` if
    /// the peer has the next one by now.
    pub(super) fn over(&mut self, id: SessionId) -> Option<(PeerId, bool)> {
        let peer = self.by_session.remove(&id)?;
        let joined = self.get(peer).filter(|joined| joined.id == id)?;
        self.joined.remove(&peer);
        self.by_slot.remove(&joined.slot);
        Some((peer, joined.is_changed))
    }

    /// Nothing was received of the peer for long.
    pub(super) fn silent(&mut self, peer: PeerId) {
        self.decide(peer, |joined| Decision::Silent(joined.id));
    }

    /// The peer's session has new keys.
    pub(super) fn shaken(&mut self, peer: PeerId) {
        self.decide(peer, |joined| Decision::Shaken(joined.slot));
    }

    /// Two devices have the peer's configuration; one of them is at `outer`.
    pub(super) fn two_devices(&mut self, peer: PeerId, outer: SocketAddr) {
        self.decide(peer, |joined| Decision::TwoDevices(joined.slot, joined.id, outer));
    }

    /// The next thing that others have to do.
    pub(super) fn poll_decision(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    fn decide(&mut self, peer: PeerId, decision: impl FnOnce(Joined) -> Decision) {
        self.decisions.extend(self.get(peer).map(decision));
    }

    fn get(&self, peer: PeerId) -> Option<Joined> {
        self.joined.get(&peer).copied()
    }

    /// Whether the peer has a session.
    pub(super) fn has(&self, peer: PeerId) -> bool {
        self.joined.contains_key(&peer)
    }

    /// The session of a peer.
    pub(super) fn id(&self, peer: PeerId) -> Option<SessionId> {
        self.get(peer).map(|joined| joined.id)
    }

    /// The peer whose session is in this slot.
    pub(super) fn in_slot(&self, slot: Slot) -> Option<PeerId> {
        self.by_slot.get(&slot).copied()
    }

    /// Each peer that has a session: the session, and when the peer had been renewed by which its
    /// end was decided.
    pub(super) fn all(&self) -> impl Iterator<Item = (PeerId, SessionId, u64)> {
        self.joined.iter().map(|(peer, joined)| (*peer, joined.id, joined.renewed_s))
    }

    /// The peer that has or had the session.
    pub(super) fn peer(&self, id: SessionId) -> Option<PeerId> {
        self.by_session.get(&id).copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = SessionId> {
        self.by_session.keys().copied()
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
    pub(super) fn seal(
        &mut self,
        peer: PeerId,
        key: Option<(Arc<Sealer>, Endpoint)>,
    ) -> Vec<(usize, Command)> {
        if let Some((_, endpoint)) = key {
            self.decide(peer, |joined| Decision::At(joined.slot, endpoint));
        }
        self.command_all(peer, |slot| match &key {
            Some((sealer, endpoint)) => {
                WireGuardCommand::Seal { slot, sealer: Arc::clone(sealer), endpoint: *endpoint }
            }
            None => WireGuardCommand::Unseal(slot),
        })
    }

    /// Has data for the peer sent there.
    pub(super) fn move_to(&mut self, peer: PeerId, endpoint: Endpoint) -> Vec<(usize, Command)> {
        self.decide(peer, |joined| Decision::At(joined.slot, endpoint));
        self.command_all(peer, |slot| WireGuardCommand::Move { slot, endpoint })
    }

    /// Has the next packet for the peer begin a handshake again.
    pub(super) fn unanswered(&self, peer: PeerId) -> Vec<(usize, Command)> {
        self.command_all(peer, WireGuardCommand::Unanswered)
    }

    /// A command for each shard, if the peer has a session.
    fn command_all(&self, peer: PeerId, command: impl Fn(Slot) -> WireGuardCommand) -> Vec<(usize, Command)> {
        let Some(Joined { slot, .. }) = self.get(peer) else { return Vec::new() };
        (0..self.shards).map(|shard| (shard, Command::WireGuard(command(slot)))).collect()
    }
}
