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
    pub(super) fn begin_renewed(&mut self, peer: PeerId) {
        if self.sessions.is_renewed(peer) {
            self.peers.begin_at_once(now(), peer);
        }
    }

    pub(super) fn is_renewed(&self, key: &PublicKey) -> bool {
        self.peers.by_key(key).is_some_and(|peer| self.sessions.is_renewed(peer))
    }

    /// Begins handshakes with these devices, which have talked to an address that is this machine's
    /// now, unless they have sessions here.
    pub(in crate::worker) fn begin_at(&mut self, found: Vec<DeviceAt>) {
        for DeviceAt { key, outer } in found {
            let Some(id) = self.peers.by_key(&PublicKey(key.into())) else { continue };
            if self.sessions.get(id).is_none() {
                let at = self.datagrams.as_bound(outer);
                self.peers.expect_at(id, at);
                self.peers.begin_at_once(now(), id);
            }
        }
    }
}
