//! The keys of a device on their way from one worker to the next.

use std::collections::HashMap;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::session::SessionId;
use vpnd_proto::wire::Index;
use vpnd_wireguard::peers::PeerId;
use vpnd_wireguard::peers::handover::HandedPeer;
use vpnd_wireguard::{Peers, PublicKey};

use super::admissions::Admissions;
use super::sessions::PeerSessions;

/// A device that has a session, and its keys.
#[derive(Debug, Encode, Decode)]
pub struct HandedDevice {
    #[n(0)]
    key: ByteArray<32>,
    /// When it had been renewed last, by which the end of its session was decided.
    #[n(1)]
    renewed_s: u64,
    #[n(2)]
    peer: HandedPeer,
}

/// A device whose keys are its peer's here.
pub(in crate::worker) struct TakenOver {
    pub(super) peer: PeerId,
    pub(super) renewed_s: u64,
}

/// The devices whose sessions have keys, by session; `opened` is the highest counter that shards
/// have opened for each index.
pub(super) fn devices(
    peers: &Peers,
    sessions: &PeerSessions,
    admissions: &Admissions,
    opened: &HashMap<Index, u64>,
) -> HashMap<SessionId, HandedDevice> {
    let handed = sessions.all().filter_map(|(peer, session, renewed_s)| {
        // One that is not in force yet has no keys, or those of the session before.
        let key = peers.key(peer).filter(|_| !admissions.is_beginning(session))?;
        let peer = peers.hand_over(peer, opened)?;
        Some((session, HandedDevice { key: key.0.into(), renewed_s, peer }))
    });
    handed.collect()
}

impl HandedDevice {
    /// Gives the keys to its peer; `None` if they do not fit together, or there is no such peer.
    pub(super) fn into_peers(self, peers: &mut Peers) -> Option<TakenOver> {
        let Self { key, renewed_s, peer: handed } = self;
        let peer = peers.by_key(&PublicKey(key.into()))?;
        peers.take_over(peer, handed).then_some(TakenOver { peer, renewed_s })
    }
}
