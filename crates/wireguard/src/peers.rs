//! All peers of a worker: handshakes, sessions, timers and addresses, found by key and by index
//! without a scan.
//!
//! Datagrams and reports go in; messages to send, requests to the process with the static key, keys
//! for the shards and events come out ([`Peers::poll_output`]). Data are sealed and opened by the
//! shards, which report what they have seen ([`Peers::on_opened`], [`Peers::on_sent`]); timers
//! count seconds, so one report a second for each peer is enough, besides the first message of each
//! session.
//!
//! The work on a message of a handshake has one order: its first MAC, the gate, then the process
//! with the static key. Nothing is kept for a message before that, and a bounded amount while it is
//! there.

pub mod handover;
mod handshake;
mod indexes;
mod requests;
mod session;
mod table;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use vpnd_crypto::Backend;
use vpnd_proto::plane::{Activity, Endpoint};
use vpnd_proto::session::{Random, random_bytes};
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;

use crate::endpoint::{Moved, Roaming};
use crate::gate::{self, Gate};
use crate::handshakes::{Refused, Request};
use crate::key::PublicKey;
use crate::message::CookieReply;
use crate::timers::{Due, JITTER, REKEY_AFTER_TIME, REKEY_ON_RECEIVE, Timers};
use crate::transport::{Opened, Opener, REKEY_AFTER_MESSAGES, Sealer};
use indexes::Indexes;
pub use requests::MAX_WAITING;
use requests::Requests;
use table::Table;

/// A peer's number, which is never given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(u64);

/// A request's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// Settings of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The public half of the static key.
    pub own: PublicKey,
    /// Shards, which own the receiving indexes; at least 1.
    pub shards: usize,
    /// The library that seals and opens.
    pub backend: Backend,
    /// Rates of handshakes.
    pub limits: gate::Limits,
}

/// Something to be done.
#[derive(Debug)]
pub enum Output {
    /// Send this.
    Send {
        /// Where to.
        to: Endpoint,
        /// The bytes.
        datagram: Vec<u8>,
    },
    /// Ask the process with the static key, and bring its reply to [`Peers::on_reply`].
    Ask(RequestId, Box<Request>),
    /// Open messages to `index` with this, in the shard that owns the index.
    Open {
        /// The sender.
        peer: PeerId,
        /// The index in them.
        index: Index,
        /// Their key.
        opener: Box<Opener>,
    },
    /// Forget the key of `index`.
    Close(Index),
    /// Seal data for the peer with this from now on, in every shard; with nothing, if there is
    /// none.
    Seal(PeerId, Option<Arc<Sealer>>),
    /// Send to the peer there from now on.
    Endpoint(PeerId, Endpoint),
    /// Something that people may want to know.
    Event(Event),
}

/// Something that people may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A handshake is done: the peer has shown that it has the keys of a new session.
    HandshakeDone(PeerId),
    /// All sessions of the peer have ended: nothing was received for long.
    SessionEnded(PeerId),
    /// The peer was asked for a handshake for a minute and a half, and has not answered.
    Unreachable(PeerId),
    /// Two devices have the peer's configuration: it comes back and back to addresses that it has
    /// left.
    BackAndForth {
        /// Who.
        peer: PeerId,
        /// Where it is, and where it was before.
        between: [Endpoint; 2],
    },
    /// A handshake was refused.
    Refused {
        /// Where it came from.
        from: Endpoint,
        /// Why, with the peer's key if that is known.
        why: Refused,
    },
}

/// The reason why a message of a handshake is dropped. Each is one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Dropped {
    /// It is no message of a handshake.
    #[error("not a message of a handshake")]
    Malformed,
    /// The sender does not know our public key.
    #[error("the first MAC is wrong")]
    WrongMac,
    /// It answers nothing that was sent.
    #[error("it answers nothing that was sent")]
    UnknownIndex,
    /// It was made by someone who has not seen the message that it answers, or was changed.
    #[error("it is not authentic")]
    NotAuthentic,
    /// The sender was asked to prove its address.
    #[error("the sender must prove its address")]
    CookieSent,
    /// The sender's host or its network sends too many.
    #[error("its host or network sends too many handshakes")]
    TooMany,
    /// Too many handshakes wait for the process with the static key.
    #[error("too many handshakes are being worked on")]
    Busy,
}

/// All peers.
pub struct Peers {
    config: Config,
    random: Random,
    gate: Gate,
    peers: Table,
    indexes: Indexes,
    requests: Requests,
    outputs: VecDeque<Output>,
}

impl Peers {
    /// A worker without peers.
    #[must_use]
    pub fn new(now: Time, config: Config, mut random: Random) -> Self {
        Self {
            gate: Gate::new(now, config.own, config.limits, &mut random),
            config,
            random,
            peers: Table::default(),
            indexes: Indexes::default(),
            requests: Requests::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Adds a peer, or changes `interval` of the one that has the key: how often something is sent
    /// to it at least.
    pub fn add(
        &mut self,
        now: Time,
        key: PublicKey,
        endpoint: Option<Endpoint>,
        interval: Option<Duration>,
    ) -> PeerId {
        if let Some(id) = self.by_key(&key) {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.timers.set_interval(now, interval);
            }
            self.peers.set_timer(id);
            return id;
        }
        let timers = Timers::new(now, interval);
        let id = self.peers.insert(key, self.config.shards, Roaming::new(endpoint), timers);
        if let Some(endpoint) = endpoint {
            self.outputs.push_back(Output::Endpoint(id, endpoint));
        }
        id
    }

    /// Removes a peer and all its keys; the process with the static key is informed elsewhere.
    pub fn remove(&mut self, id: PeerId) {
        self.erase(id);
        self.peers.remove(id);
    }

    /// Ends the peer's sessions: its keys are erased, and it may begin again.
    pub fn end(&mut self, id: PeerId) {
        self.erase(id);
    }

    /// All peers.
    pub fn ids(&self) -> impl Iterator<Item = PeerId> {
        self.peers.ids()
    }

    /// The peer with this key.
    #[must_use]
    pub fn by_key(&self, key: &PublicKey) -> Option<PeerId> {
        self.peers.by_key(key)
    }

    /// The peer's key.
    #[must_use]
    pub fn key(&self, id: PeerId) -> Option<PublicKey> {
        Some(self.peers.get(id)?.key)
    }

    /// Where the peer is.
    #[must_use]
    pub fn endpoint(&self, id: PeerId) -> Option<Endpoint> {
        self.peers.get(id)?.roaming.endpoint()
    }

    /// The gate's decisions so far.
    #[must_use]
    pub const fn gate_counts(&self) -> gate::Counts {
        self.gate.counts()
    }

    /// A shard has opened a message to `index`, or several, the last of them from `from`. `opened`
    /// is the last of them that was no keepalive, if one was, and `newest` if any was.
    pub fn on_opened(&mut self, now: Time, index: Index, from: Endpoint, opened: Opened) {
        let Some(id) = self.indexes.peer(index) else { return };
        let Some(peer) = self.peers.get_mut(id) else { return };
        if let Some(confirmed) = peer.sessions.confirm(index) {
            peer.timers.handshake_done();
            let sealer = peer.sessions.current.as_ref().map(|session| Arc::clone(&session.sealer));
            confirmed.ended.into_iter().for_each(|index| self.close(index));
            self.outputs.push_back(Output::Seal(id, sealer));
            self.outputs.push_back(Output::Event(Event::HandshakeDone(id)));
        }
        if opened.newest {
            self.note_source(now, id, from, index);
        }
        self.on_received(now, id, opened.len > 0);
    }

    /// A shard has sealed for the peer and sent it; `data` if it was no keepalive.
    pub fn on_sent(&mut self, now: Time, id: PeerId, data: bool) {
        let jitter = self.jitter();
        let Some(peer) = self.peers.get_mut(id) else { return };
        if data {
            peer.timers.sent_data(now, jitter);
        } else {
            peer.timers.sent(now);
        }
        let rekey = peer.sessions.current.as_ref().is_some_and(|session| {
            session.is_initiator_older_than(now, REKEY_AFTER_TIME)
                || session.sealer.reserved() >= REKEY_AFTER_MESSAGES
        });
        if rekey {
            self.begin(now, id);
        }
        self.peers.set_timer(id);
    }

    /// Traffic of the peer that shards report now and then, beside what they report at once: the
    /// timers count seconds.
    pub fn on_activity(&mut self, now: Time, id: PeerId, activity: &Activity) {
        let sent_last = activity.last_tx_packet > activity.last_rx;
        if !sent_last && activity.last_tx_packet != Time::ZERO {
            self.on_sent(now, id, true);
        }
        if activity.last_rx != Time::ZERO {
            self.on_received(now, id, activity.last_rx_contents != Time::ZERO);
        }
        if sent_last {
            self.on_sent(now, id, true);
        }
    }

    /// Something of the peer was opened; `data` if it was no keepalive.
    fn on_received(&mut self, now: Time, id: PeerId, data: bool) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        if data {
            peer.timers.received_data(now);
        } else {
            peer.timers.received(now);
        }
        let current = peer.sessions.current.as_ref();
        if current.is_some_and(|session| session.is_initiator_older_than(now, REKEY_ON_RECEIVE)) {
            self.begin(now, id);
        }
        self.peers.set_timer(id);
    }

    /// A shard has data for the peer and no key that it may seal them with.
    pub fn on_no_session(&mut self, now: Time, id: PeerId) {
        self.begin(now, id);
        self.peers.set_timer(id);
    }

    /// The peer without keys is there, as others know it.
    pub fn expect_at(&mut self, id: PeerId, endpoint: Endpoint) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.roaming = Roaming::new(Some(endpoint));
            self.outputs.push_back(Output::Endpoint(id, endpoint));
        }
    }

    /// The peer is to have other keys now, though a handshake with it was begun a moment ago.
    pub fn begin_at_once(&mut self, now: Time, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.timers.forget_last_attempt();
        }
        self.on_no_session(now, id);
    }

    /// A cookie reply came. It is kept for the next message, which is sent when its time has come
    /// (§6.6), and moves no peer.
    ///
    /// # Errors
    /// If it answers no message, or was not made by the peer.
    pub fn on_cookie_reply(&mut self, now: Time, reply: &CookieReply) -> Result<(), Dropped> {
        let id = self.indexes.peer(reply.receiver()).ok_or(Dropped::UnknownIndex)?;
        let peer = self.peers.get_mut(id).ok_or(Dropped::UnknownIndex)?;
        if peer.cookies.keep(now, peer.key, reply) { Ok(()) } else { Err(Dropped::NotAuthentic) }
    }

    /// The next time at which [`Peers::on_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.peers.poll_timeout()
    }

    /// Does what is due.
    pub fn on_timeout(&mut self, now: Time) {
        while let Some(id) = self.peers.pop_due(now) {
            while let Some(due) = self.peers.get_mut(id).and_then(|peer| peer.timers.pop(now)) {
                match due {
                    Due::Retry => self.ask_to_initiate(id),
                    Due::GiveUp => {
                        self.forget_attempt(id);
                        self.outputs.push_back(Output::Event(Event::Unreachable(id)));
                    }
                    Due::Handshake => self.begin(now, id),
                    Due::Keepalive => self.send_keepalive(now, id),
                    Due::Erase => {
                        self.erase(id);
                        self.outputs.push_back(Output::Event(Event::SessionEnded(id)));
                    }
                }
            }
            self.peers.set_timer(id);
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// An authentic message of the peer came from `from`, of the session that has our index `keys`.
    fn note_source(&mut self, now: Time, id: PeerId, from: Endpoint, keys: Index) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let moved = peer.roaming.on_message(now, from, keys);
        if moved == Moved::No {
            return;
        }
        self.outputs.push_back(Output::Endpoint(id, from));
        if let (Moved::BackAndForth, Some(previous)) = (moved, peer.roaming.previous()) {
            let between = [from, previous];
            self.outputs.push_back(Output::Event(Event::BackAndForth { peer: id, between }));
        }
    }

    /// Seals nothing and sends it: an answer, or the proof that this end has the keys of a new
    /// session.
    fn send_keepalive(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(to) = peer.roaming.endpoint() else { return };
        let mut datagram = vec![0; Sealer::message_len(0)];
        let session = peer.sessions.current.as_ref();
        let range = session.and_then(|session| session.sealer.reserve(now, 1).ok());
        if range.and_then(|mut range| range.seal(&mut datagram, 0).ok()).is_some() {
            peer.timers.sent(now);
            self.outputs.push_back(Output::Send { to, datagram });
        } else {
            // The interval of a keepalive that nothing can seal keeps the session up.
            self.begin(now, id);
        }
    }

    /// Erases all keys of the peer.
    fn erase(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let indexes = peer.sessions.take_all();
        peer.timers.session_erased();
        indexes.into_iter().for_each(|index| self.close(index));
        self.forget_attempt(id);
        self.outputs.push_back(Output::Seal(id, None));
        self.peers.set_timer(id);
    }

    fn close(&mut self, index: Index) {
        self.indexes.release(index);
        self.outputs.push_back(Output::Close(index));
    }

    fn jitter(&mut self) -> Duration {
        let random = u64::from_le_bytes(random_bytes(&mut self.random));
        JITTER.mul_f64(random as f64 / u64::MAX as f64)
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("peers", &self.peers.len()).finish_non_exhaustive()
    }
}
