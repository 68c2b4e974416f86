//! The keys of peers on their way to the next process of a gateway, in an upgrade.
//!
//! The process that hands over seals and opens no more, and the two share one clock. A handshake
//! that is on its way is not handed over: the end that began it begins again.
//!
//! INVARIANT: no counter is sealed or opened twice with a key. Sealing goes on behind the last
//! counter that any shard had reserved, and what comes late from before counts as a replay.

use std::collections::HashMap;
use std::sync::Arc;

use minicbor::{Decode, Encode};
use vpnd_proto::plane::Endpoint;
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;

use super::session::{Role, Session, Sessions};
use super::table::Peer;
use super::{Output, PeerId, Peers};
use crate::endpoint::Roaming;
use crate::noise::SessionKeys;

/// The sessions of a peer (§6.3), and its address.
#[derive(Clone, Debug, Encode, Decode)]
pub struct HandedPeer {
    /// Its address.
    #[n(0)]
    pub endpoint: Endpoint,
    /// When its data have to be answered with a keepalive, if they have not been answered.
    #[n(1)]
    pub keepalive: Option<Time>,
    /// When a handshake begins unless it is heard.
    #[n(2)]
    pub unanswered: Option<Time>,
    /// The keys before: they open messages that are still on their way.
    #[n(3)]
    pub previous: Option<HandedKeys>,
    /// The keys that seal.
    #[n(4)]
    pub current: Option<HandedKeys>,
    /// The keys that the peer has not shown yet to have.
    #[n(5)]
    pub next: Option<HandedKeys>,
}

/// The keys of one handshake, and how far they are used.
#[derive(Clone, Debug, Encode, Decode)]
pub struct HandedKeys {
    /// The keys.
    #[n(0)]
    pub keys: SessionKeys,
    /// The index of messages that are received.
    #[n(1)]
    pub index: Index,
    /// The index of messages that are sent.
    #[n(2)]
    pub receiver: Index,
    /// Whether this end began the handshake.
    #[n(3)]
    pub is_initiator: bool,
    /// When they were agreed on.
    #[n(4)]
    pub since: Time,
    /// The next counter to be sealed.
    #[n(5)]
    pub unused: u64,
    /// The highest counter that was opened.
    #[n(6)]
    pub highest: Option<u64>,
}

impl HandedPeer {
    fn all(&self) -> impl Iterator<Item = &HandedKeys> {
        [&self.previous, &self.current, &self.next].into_iter().flatten()
    }
}

impl Peers {
    /// The peer's keys, for the process that goes on; `None` if it has none, or its address is not
    /// known. `opened` is the highest counter that the shards have opened for each index.
    #[must_use]
    pub fn hand_over(&self, id: PeerId, opened: &HashMap<Index, u64>) -> Option<HandedPeer> {
        let Peer { roaming, sessions, timers, .. } = self.peers.get(id)?;
        if sessions.is_empty() {
            return None;
        }
        let hand = |session: &Option<Session>| {
            let session = session.as_ref()?;
            Some(HandedKeys {
                keys: session.keys.clone(),
                index: session.index,
                receiver: session.sealer.receiver(),
                is_initiator: session.role == Role::Initiator,
                since: session.since,
                unused: session.sealer.reserved(),
                highest: opened.get(&session.index).copied(),
            })
        };
        let Sessions { previous, current, next } = sessions;
        // The report that the peer has the next keys may be on its way.
        let is_confirmed = next.as_ref().is_some_and(|next| opened.contains_key(&next.index));
        let [previous, current, next] =
            if is_confirmed { [current, next, &None] } else { [previous, current, next] };
        let (keepalive, unanswered) = timers.owed();
        Some(HandedPeer {
            endpoint: roaming.endpoint()?,
            keepalive,
            unanswered,
            previous: hand(previous),
            current: hand(current),
            next: hand(next),
        })
    }

    /// Goes on with a peer that another process has handed over. Returns whether it does: the peer
    /// must be known and have no keys, and their indexes must be free.
    pub fn take_over(&mut self, id: PeerId, handed: HandedPeer) -> bool {
        let is_new = self.peers.get(id).is_some_and(|peer| peer.sessions.is_empty());
        let newest = handed.all().map(|keys| keys.since).max();
        let indexes: Vec<Index> = handed.all().map(|keys| keys.index).collect();
        let (Some(newest), true) = (newest, is_new && self.indexes.take_all(id, &indexes)) else {
            return false;
        };
        let HandedPeer { endpoint, keepalive, unanswered, previous, current, next } = handed;
        let [previous, current, next] = [previous, current, next].map(|keys| Some(self.resume(id, keys?)));
        let sealer = current.as_ref().map(|session: &Session| Arc::clone(&session.sealer));
        if let Some(peer) = self.peers.get_mut(id) {
            peer.roaming = Roaming::new(Some(endpoint));
            peer.sessions = Sessions { previous, current, next };
            peer.timers.session_made(newest);
            peer.timers.owe(keepalive, unanswered);
        }
        self.outputs.push_back(Output::Seal(id, sealer));
        self.peers.set_timer(id);
        true
    }

    fn resume(&mut self, id: PeerId, handed: HandedKeys) -> Session {
        let HandedKeys { keys, index, receiver, is_initiator, since, unused, highest } = handed;
        let (opener, sealer) = self.ciphers(since, &keys, receiver);
        let (opener, sealer) = (opener.resume_after(highest), sealer.resume_at(unused));
        self.outputs.push_back(Output::Open { peer: id, index, opener: Box::new(opener) });
        let role = if is_initiator { Role::Initiator } else { Role::Responder };
        Session { index, keys, sealer: Arc::new(sealer), role, since }
    }
}
