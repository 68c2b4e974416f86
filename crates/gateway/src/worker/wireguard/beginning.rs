//! Handshakes that the gateway begins without a packet for the peer.

use vpnd_wireguard::PublicKey;
use vpnd_wireguard::peers::PeerId;

use super::WireGuard;
use vpnd_ipc::gateway::wireguard::DeviceAt;
use vpnd_sys::clock::now;

impl WireGuard {
    /// Begins handshakes with the peers that have been somewhere: what they had agreed on with the
    /// gateway's process before this one is lost, and they do not know.
    pub(super) fn begin_all(&mut self) {
        let known: Vec<_> = self.peers.ids().filter(|id| self.peers.endpoint(*id).is_some()).collect();
        known.into_iter().for_each(|id| self.peers.on_no_session(now(), id));
    }

    /// Begins a handshake with a peer that was renewed while it has a session, so that one that
    /// lasts longer takes its place before it ends.
    pub(super) fn begin_renewed(&mut self, key: &PublicKey, id: PeerId) {
        if self.is_renewed(key) {
            self.peers.begin_at_once(now(), id);
        }
    }

    /// Whether the peer was renewed after its session had been admitted, which ends too early by
    /// that: another one takes its place at the next handshake.
    pub(super) fn is_renewed(&self, key: &PublicKey) -> bool {
        let joined = self.peers.by_key(key).and_then(|peer| self.sessions.get(&peer));
        let Some(joined) = joined.filter(|joined| !joined.is_walled) else { return false };
        self.renewed.get(key).is_some_and(|renewed_s| *renewed_s > joined.renewed_s)
    }

    /// Begins handshakes with these devices, which have talked to an address that is this machine's
    /// now, unless they have sessions here.
    pub(in crate::worker) fn begin_at(&mut self, found: Vec<DeviceAt>) {
        for DeviceAt { key, outer } in found {
            let Some(id) = self.peers.by_key(&PublicKey(key.into())) else { continue };
            if !self.sessions.contains_key(&id) {
                let at = self.as_bound(outer);
                self.peers.expect_at(id, at);
                self.peers.begin_at_once(now(), id);
            }
        }
    }
}
