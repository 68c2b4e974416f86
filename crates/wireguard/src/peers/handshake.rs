//! The messages of handshakes, on their way to and from the process with the static key.

use std::net::SocketAddr;
use std::sync::Arc;

use vpnd_proto::plane::Endpoint;
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;
use zerocopy::IntoBytes as _;

use super::requests::Pending;
use super::session::{Role, Session};
use super::table::Begun;
use super::{Dropped, Event, Output, PeerId, Peers, RequestId};
use crate::gate::Verdict;
use crate::handshakes::{Reply, Request, Responded};
use crate::key::PublicKey;
use crate::mac::HandshakeMessage;
use crate::message::{Initiation, Message, Response};
use crate::noise::SessionKeys;
use crate::transport::{Opener, Sealer};

/// Responses to one message of ours that need not pass the gate: its index is random, and few other
/// senders can answer it. Without this the devices behind one NAT could not all answer a gateway
/// that has restarted.
const FREE_RESPONSES: u8 = 4;

impl Peers {
    /// A datagram of the types 1 to 3 came.
    ///
    /// # Errors
    /// The reason if nothing comes of it.
    pub fn on_datagram(&mut self, now: Time, from: Endpoint, datagram: &[u8]) -> Result<(), Dropped> {
        self.on_datagram_of(now, from, from.remote, datagram)
    }

    /// Handles one that counts for another address than it is answered at.
    ///
    /// # Errors
    /// The reason if nothing comes of it.
    pub fn on_datagram_of(
        &mut self,
        now: Time,
        from: Endpoint,
        source: SocketAddr,
        datagram: &[u8],
    ) -> Result<(), Dropped> {
        match Message::parse(datagram) {
            Ok(Message::Initiation(message)) => {
                if !self.gate.is_for_us(message) {
                    return Err(Dropped::WrongMac);
                }
                self.admit(now, (from, source), message.sender(), message)?;
                let pending = Pending::Respond { from, theirs: message.sender() };
                self.pass_on(Request::Respond(*message), pending)
            }
            Ok(Message::Response(message)) => self.on_response(now, (from, source), message),
            Ok(Message::CookieReply(message)) => self.on_cookie_reply(now, message),
            Ok(Message::Transport(_)) | Err(_) => Err(Dropped::Malformed),
        }
    }

    fn on_response(
        &mut self,
        now: Time,
        (from, source): (Endpoint, SocketAddr),
        message: &Response,
    ) -> Result<(), Dropped> {
        if !self.gate.is_for_us(message) {
            return Err(Dropped::WrongMac);
        }
        let ours = message.receiver();
        let id = self.indexes.peer(ours).ok_or(Dropped::UnknownIndex)?;
        let peer = self.peers.get_mut(id).ok_or(Dropped::UnknownIndex)?;
        let begun = peer.begun.as_mut().filter(|begun| begun.index == ours).ok_or(Dropped::UnknownIndex)?;
        let key = peer.key;
        if begun.responses < FREE_RESPONSES {
            begun.responses += 1;
        } else {
            self.admit(now, (from, source), message.sender(), message)?;
        }
        let pending = Pending::Finish { peer: id, from, ours, theirs: message.sender() };
        self.pass_on(Request::Finish(key, *message), pending)
    }

    /// Asks the gate whether a message is worth the static key's time.
    fn admit(
        &mut self,
        now: Time,
        (from, source): (Endpoint, SocketAddr),
        sender: Index,
        message: &impl HandshakeMessage,
    ) -> Result<(), Dropped> {
        match self.gate.admit(now, source, sender, message, &mut self.random) {
            Verdict::Pass => Ok(()),
            Verdict::TooMany => Err(Dropped::TooMany),
            Verdict::Cookie(reply) => {
                self.outputs.push_back(Output::Send { to: from, datagram: reply.as_bytes().to_vec() });
                Err(Dropped::CookieSent)
            }
        }
    }

    fn pass_on(&mut self, request: Request, pending: Pending) -> Result<(), Dropped> {
        let id = self.requests.add(pending)?;
        self.outputs.push_back(Output::Ask(id, Box::new(request)));
        Ok(())
    }

    /// Begins a handshake with the peer, if its address is known and none is on its way.
    pub(super) fn begin(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        if peer.roaming.endpoint().is_some() && peer.timers.begin(now) {
            self.ask_to_initiate(id);
        }
    }

    pub(super) fn ask_to_initiate(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        // The one that waits does for both, or those of thousands of peers would never be done.
        if !std::mem::replace(&mut peer.is_asked, true) {
            let request = Request::Initiate(peer.key);
            self.outputs.push_back(Output::Ask(self.requests.add_own(id), Box::new(request)));
        }
    }

    /// Responses to messages of ours that wait for the process with the static key, of
    /// [`MAX_WAITING`](super::MAX_WAITING).
    #[must_use]
    pub fn finishing(&self) -> usize {
        self.requests.finishing()
    }

    /// Where the message came from for which a request was made.
    #[must_use]
    pub fn source(&self, id: RequestId) -> Option<Endpoint> {
        self.requests.source(id)
    }

    /// The peer with which a handshake is to be ended.
    #[must_use]
    pub fn finishes_with(&self, id: RequestId) -> Option<PublicKey> {
        self.key(self.requests.finishes_with(id)?)
    }

    /// The request waits for others than the process with the static key, perhaps for long: it
    /// takes no room from messages of other peers. The caller bounds their number.
    pub fn set_aside(&mut self, id: RequestId) {
        self.requests.set_aside(id);
    }

    /// Nothing comes of a request, whatever the reply was.
    pub fn give_up(&mut self, id: RequestId) {
        self.take_request(id);
    }

    fn take_request(&mut self, id: RequestId) -> Option<Pending> {
        let pending = self.requests.take(id)?;
        if let Pending::Initiate(peer) = pending
            && let Some(peer) = self.peers.get_mut(peer)
        {
            peer.is_asked = false;
        }
        Some(pending)
    }

    /// The process with the static key has replied.
    pub fn on_reply(&mut self, now: Time, id: RequestId, reply: Reply) {
        let Some(pending) = self.take_request(id) else { return };
        match (pending, reply) {
            (Pending::Respond { from, theirs }, Reply::Responded(responded)) => {
                self.responded(now, from, theirs, *responded);
            }
            (Pending::Initiate(peer), Reply::Initiated(message, _)) => self.initiated(now, peer, message),
            (Pending::Finish { peer, from, ours, theirs }, Reply::Finished(keys)) => {
                self.finished(now, peer, from, ours, theirs, keys);
            }
            (Pending::Respond { from, .. } | Pending::Finish { from, .. }, Reply::Refused(why)) => {
                self.outputs.push_back(Output::Event(Event::Refused { from, why }));
            }
            // The peer was removed there, and will be here; or a reply that answers something else,
            // which is none.
            _ => {}
        }
    }

    fn responded(&mut self, now: Time, from: Endpoint, theirs: Index, responded: Responded) {
        let Some(id) = self.by_key(&responded.peer) else { return };
        let Some(peer) = self.peers.get_mut(id) else { return };
        let ours = self.indexes.allocate(id, peer.shard, self.config.shards, &mut self.random);
        let mut response = responded.response.between(ours, theirs);
        peer.cookies.stamp(now, &peer.mac1, &mut response);
        peer.timers.received(now);
        peer.timers.sent(now);
        self.note_source(now, id, from, ours);
        self.add_session(now, id, Role::Responder, ours, theirs, responded.keys);
        self.outputs.push_back(Output::Send { to: from, datagram: response.as_bytes().to_vec() });
        self.peers.set_timer(id);
    }

    fn initiated(&mut self, now: Time, id: PeerId, message: Initiation) {
        self.forget_attempt(id);
        let jitter = self.jitter();
        let Some(peer) = self.peers.get_mut(id).filter(|peer| peer.timers.is_beginning()) else { return };
        let Some(to) = peer.roaming.endpoint() else { return };
        let ours = self.indexes.allocate(id, peer.shard, self.config.shards, &mut self.random);
        peer.begun = Some(Begun { index: ours, responses: 0 });
        let mut message = message.from(ours);
        peer.cookies.stamp(now, &peer.mac1, &mut message);
        peer.timers.initiation_sent(now, jitter);
        self.outputs.push_back(Output::Send { to, datagram: message.as_bytes().to_vec() });
        self.peers.set_timer(id);
    }

    fn finished(
        &mut self,
        now: Time,
        id: PeerId,
        from: Endpoint,
        ours: Index,
        theirs: Index,
        keys: SessionKeys,
    ) {
        let Some(peer) =
            self.peers.get_mut(id).filter(|peer| peer.begun.is_some_and(|begun| begun.index == ours))
        else {
            return;
        };
        peer.begun = None;
        peer.timers.handshake_done();
        peer.timers.received(now);
        self.note_source(now, id, from, ours);
        self.add_session(now, id, Role::Initiator, ours, theirs, keys);
        self.outputs.push_back(Output::Event(Event::HandshakeDone(id)));
        // The peer may not send with the new keys before it has received something.
        self.send_keepalive(now, id);
        self.peers.set_timer(id);
    }

    fn add_session(
        &mut self,
        now: Time,
        id: PeerId,
        role: Role,
        ours: Index,
        theirs: Index,
        keys: SessionKeys,
    ) {
        let (opener, sealer) = self.ciphers(now, &keys, theirs);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let session = Session { index: ours, keys, sealer: Arc::new(sealer), role, since: now };
        let current = Arc::clone(&session.sealer);
        let ended = peer.sessions.insert(session);
        peer.timers.session_made(now);
        ended.into_iter().for_each(|index| self.close(index));
        self.outputs.push_back(Output::Open { peer: id, index: ours, opener: Box::new(opener) });
        if role == Role::Initiator {
            self.outputs.push_back(Output::Seal(id, Some(current)));
        }
    }

    /// The two ciphers of keys that were agreed on at `since`.
    pub(super) fn ciphers(&self, since: Time, keys: &SessionKeys, receiver: Index) -> (Opener, Sealer) {
        const WHY: &str = "the worker was configured with a backend that has ChaCha20-Poly1305";
        let opener = Opener::new(since, self.config.backend, &keys.receive).expect(WHY);
        let sealer = Sealer::new(since, self.config.backend, &keys.send, receiver).expect(WHY);
        (opener, sealer)
    }

    /// No response to the last first message is expected any more.
    pub(super) fn forget_attempt(&mut self, id: PeerId) {
        if let Some(begun) = self.peers.get_mut(id).and_then(|peer| peer.begun.take()) {
            self.indexes.release(begun.index);
        }
    }
}
