//! The keys of a device on their way from one worker to the next.

use std::collections::HashMap;
use std::sync::Arc;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_ipc::gateway::wireguard::Keys;
use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::SessionId;
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;
use vpnd_wireguard::peers::PeerId;
use vpnd_wireguard::peers::handover::{HandedKeys, HandedPeer};
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
    endpoint: Endpoint,
    #[n(3)]
    previous: Option<TransferredKeys>,
    #[n(4)]
    current: Option<TransferredKeys>,
    #[n(5)]
    next: Option<TransferredKeys>,
    #[n(6)]
    keepalive: Option<Time>,
    #[n(7)]
    unanswered: Option<Time>,
}

/// The keys of one handshake, and how far they are used.
#[derive(Debug, Encode, Decode)]
struct TransferredKeys {
    #[n(0)]
    keys: Keys,
    #[n(1)]
    index: Index,
    #[n(2)]
    receiver: Index,
    #[n(3)]
    is_initiator: bool,
    #[n(4)]
    since: Time,
    #[n(5)]
    unused: u64,
    #[n(6)]
    highest: Option<u64>,
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
        Some((session, HandedDevice::new(key, renewed_s, &peers.hand_over(peer, opened)?)))
    });
    handed.collect()
}

impl HandedDevice {
    fn new(key: PublicKey, renewed_s: u64, peer: &HandedPeer) -> Self {
        let HandedPeer { endpoint, keepalive, unanswered, previous, current, next } = peer;
        let [previous, current, next] =
            [previous, current, next].map(|keys| keys.as_ref().map(TransferredKeys::from));
        Self {
            key: key.0.into(),
            renewed_s,
            endpoint: *endpoint,
            previous,
            current,
            next,
            keepalive: *keepalive,
            unanswered: *unanswered,
        }
    }

    /// Gives the keys to its peer; `None` if they do not fit together, or there is no such peer.
    pub(super) fn into_peers(self, peers: &mut Peers) -> Option<TakenOver> {
        let (peer, renewed_s) = (peers.by_key(&PublicKey(self.key.into()))?, self.renewed_s);
        let handed = self.parse()?;
        peers.take_over(peer, handed).then_some(TakenOver { peer, renewed_s })
    }

    /// Its keys, if they are as long as keys are.
    fn parse(self) -> Option<HandedPeer> {
        let parse = |keys: Option<TransferredKeys>| match keys {
            Some(keys) => keys.parse().map(Some),
            None => Some(None),
        };
        let Self { endpoint, previous, current, next, keepalive, unanswered, .. } = self;
        let (previous, current, next) = (parse(previous)?, parse(current)?, parse(next)?);
        Some(HandedPeer { endpoint, keepalive, unanswered, previous, current, next })
    }
}

impl From<&HandedKeys> for TransferredKeys {
    fn from(handed: &HandedKeys) -> Self {
        let HandedKeys { keys, index, receiver, is_initiator, since, unused, highest } = handed;
        Self {
            keys: keys.as_ref().into(),
            index: *index,
            receiver: *receiver,
            is_initiator: *is_initiator,
            since: *since,
            unused: *unused,
            highest: *highest,
        }
    }
}

impl TransferredKeys {
    fn parse(self) -> Option<HandedKeys> {
        let Self { keys, index, receiver, is_initiator, since, unused, highest } = self;
        let keys = Arc::new(keys.parse()?);
        Some(HandedKeys { keys, index, receiver, is_initiator, since, unused, highest })
    }
}
