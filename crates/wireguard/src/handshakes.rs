//! The process that has the static key: which handshakes it answers, begins and ends.
//!
//! It has the static private key and the preshared keys, and gives away keys of single sessions. It
//! knows no addresses, indexes or sessions: those are the worker's ([`peers`](crate::peers)), with
//! whom it talks in [`Request`] and [`Reply`].
//!
//! INVARIANT: a first message is answered only if its timestamp is later than that of every one
//! answered before (§5.1). The latest of each peer can be kept in a store
//! ([`Responded::timestamp`]) and given back ([`Known::latest`]), so that a restart does not forget
//! it.

use core::time::Duration;
use std::collections::BTreeMap;

use vpnd_crypto::Secret;
use vpnd_proto::session::{Random, random_bytes};
use vpnd_proto::time::Time;

use crate::key::{PublicKey, StaticKey};
use crate::message::{Initiation, Response};
use crate::noise::{self, Initiator, NotAuthentic, SessionKeys, agree};
use crate::timestamp::Timestamp;

/// A peer's handshakes are answered at most this often, 50 times a second.
const INTERVAL: Duration = Duration::from_millis(20);

/// Facts about a peer beside its key.
#[derive(Debug, Default)]
pub struct Known {
    /// The preshared key, if there is one (§5.2).
    pub preshared: Option<Secret<32>>,
    /// The latest timestamp that this peer has shown.
    pub latest: Option<Timestamp>,
    /// The latest timestamp that was shown to this peer; later ones follow, whatever the clock
    /// says.
    pub latest_own: Option<Timestamp>,
}

/// A request of the worker.
#[derive(Debug)]
pub enum Request {
    /// Answer a first message.
    Respond(Initiation),
    /// Begin a handshake with this peer.
    Initiate(PublicKey),
    /// End the handshake begun with this peer, which has answered.
    Finish(PublicKey, Response),
}

/// A reply to the worker. Its messages have no indexes and no MACs yet.
#[derive(Debug)]
pub enum Reply {
    /// To [`Request::Respond`].
    Responded(Box<Responded>),
    /// To [`Request::Initiate`]: the message, and its timestamp for the store.
    Initiated(Initiation, Timestamp),
    /// To [`Request::Finish`].
    Finished(SessionKeys),
    /// To any of them.
    Refused(Refused),
}

/// The answer to a first message.
#[derive(Debug)]
pub struct Responded {
    /// The sender.
    pub peer: PublicKey,
    /// By the peer's clock: the latest.
    pub timestamp: Timestamp,
    /// The second message.
    pub response: Response,
    /// The keys of the session.
    pub keys: SessionKeys,
}

/// The error of a handshake that is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Malformed, forged, or for another key.
    #[error(transparent)]
    NotAuthentic(#[from] NotAuthentic),
    /// No peer has that key. The sender may have made it up: it has not proved that it has it.
    #[error("the key {} is not known", .0.short())]
    UnknownKey(PublicKey),
    /// The timestamp is not later than the latest: a replay, or a device whose clock was set back.
    #[error(
        "the peer {} has shown a later timestamp before: a replay, or its clock was set back ('vpnd device renew \
         --reset-clock' permits earlier ones)",
        .0.short()
    )]
    Replayed(PublicKey),
    /// The peer begins handshakes too often.
    #[error("the peer {} begins handshakes too often", .0.short())]
    TooOften(PublicKey),
    /// No handshake was begun with the peer.
    #[error("no handshake with the peer {} waits for a response", .0.short())]
    NotBegun(PublicKey),
    /// The process with the static key has no time, or nowhere to keep the timestamp.
    #[error("the gateway is busy")]
    Busy,
}

/// The error of a peer that is not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    /// A key of low order, with which nothing would be secret.
    #[error("no device can have this key: it is a point of low order")]
    LowOrder,
    /// The gateway's own key.
    #[error("this is the gateway's own key; the device needs another one")]
    Own,
}

#[derive(Debug)]
struct Peer {
    preshared: Secret<32>,
    /// The secret of the two static keys.
    shared: Secret<32>,
    latest: Option<Timestamp>,
    latest_own: Option<Timestamp>,
    answered_at: Option<Time>,
    begun: Option<Initiator>,
}

/// The static key and the peers that may shake hands with it.
pub struct Handshakes {
    own: StaticKey,
    peers: BTreeMap<PublicKey, Peer>,
    random: Random,
}

impl Handshakes {
    /// A gateway without peers.
    #[must_use]
    pub fn new(own: StaticKey, random: Random) -> Self {
        Self { own, peers: BTreeMap::new(), random }
    }

    /// The public key that peers need.
    #[must_use]
    pub const fn public(&self) -> PublicKey {
        self.own.public()
    }

    /// Lets a peer in, or changes what is known of it: a new preshared key counts from the next
    /// handshake on, and timestamps only become later.
    ///
    /// # Errors
    /// If no device can have the key.
    pub fn add(&mut self, key: PublicKey, known: Known) -> Result<(), NotAdded> {
        if key == self.own.public() {
            return Err(NotAdded::Own);
        }
        let preshared = known.preshared.unwrap_or(Secret::new([0; 32]));
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.preshared = preshared;
            peer.latest = peer.latest.max(known.latest);
            peer.latest_own = peer.latest_own.max(known.latest_own);
            return Ok(());
        }
        let shared = agree(&self.own.private, &key).map_err(|NotAuthentic| NotAdded::LowOrder)?;
        let Known { latest, latest_own, .. } = known;
        let peer = Peer { preshared, shared, latest, latest_own, answered_at: None, begun: None };
        self.peers.insert(key, peer);
        Ok(())
    }

    /// Answers this peer no more.
    pub fn remove(&mut self, key: &PublicKey) {
        self.peers.remove(key);
    }

    /// The latest timestamp that a peer has shown.
    #[must_use]
    pub fn latest(&self, key: &PublicKey) -> Option<Timestamp> {
        self.peers.get(key)?.latest
    }

    /// Does what the worker asks for. `since_1970` is the time of day, for messages of our own.
    pub fn handle(&mut self, now: Time, since_1970: Duration, request: &Request) -> Reply {
        let done = match request {
            Request::Respond(message) => {
                self.respond(now, message).map(|responded| Reply::Responded(Box::new(responded)))
            }
            Request::Initiate(key) => self
                .initiate(since_1970, *key)
                .map(|(message, timestamp)| Reply::Initiated(message, timestamp)),
            Request::Finish(key, response) => self.finish(*key, response).map(Reply::Finished),
        };
        done.unwrap_or_else(Reply::Refused)
    }

    fn respond(&mut self, now: Time, message: &Initiation) -> Result<Responded, Refused> {
        let claimed = noise::open(&self.own, message)?;
        let key = claimed.peer();
        let peer = self.peers.get_mut(&key).ok_or(Refused::UnknownKey(key))?;
        let opened = claimed.prove(&peer.shared, message)?;
        let timestamp = opened.timestamp();
        if peer.latest.is_some_and(|latest| timestamp <= latest) {
            return Err(Refused::Replayed(key));
        }
        if peer.answered_at.is_some_and(|at| now.since(at) < INTERVAL) {
            return Err(Refused::TooOften(key));
        }
        let ephemeral = Secret::new(random_bytes(&mut self.random));
        let (response, keys) = opened.respond(&peer.preshared, &ephemeral)?;
        peer.latest = Some(timestamp);
        peer.answered_at = Some(now);
        Ok(Responded { peer: key, timestamp, response, keys })
    }

    fn initiate(&mut self, since_1970: Duration, key: PublicKey) -> Result<(Initiation, Timestamp), Refused> {
        let peer = self.peers.get_mut(&key).ok_or(Refused::UnknownKey(key))?;
        let clock = Timestamp::from_unix(since_1970);
        let timestamp = peer.latest_own.map_or(clock, |latest| clock.max(latest.next()));
        let ephemeral = Secret::new(random_bytes(&mut self.random));
        let (initiator, message) = noise::initiate(&self.own, key, &peer.shared, ephemeral, timestamp)?;
        peer.latest_own = Some(timestamp);
        peer.begun = Some(initiator);
        Ok((message, timestamp))
    }

    fn finish(&mut self, key: PublicKey, response: &Response) -> Result<SessionKeys, Refused> {
        let peer = self.peers.get_mut(&key).ok_or(Refused::UnknownKey(key))?;
        let initiator = peer.begun.as_ref().ok_or(Refused::NotBegun(key))?;
        let keys = initiator.finish(&self.own, &peer.preshared, response)?;
        peer.begun = None;
        Ok(keys)
    }
}

impl std::fmt::Debug for Handshakes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handshakes").field("peers", &self.peers.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
