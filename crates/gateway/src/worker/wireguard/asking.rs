//! Questions to the auth process, and what its answers lead to.
//!
//! INVARIANT: a peer without a session gets no answer to its handshake before it has one. One that
//! was renewed is answered in any case: if it gets no other session, in the one that it has.

use vpnd_ipc::gateway::wireguard::{Admission, AdmitDevice, Handshake, HandshakeReply};
use vpnd_proto::control;
use vpnd_sys::clock::now;
use vpnd_wireguard::PublicKey;
use vpnd_wireguard::handshakes::{Refused, Reply};
use vpnd_wireguard::peers::RequestId;

use super::turns::Step;
use super::{Decision, REFUSALS, WireGuard};

/// Why a device whose session lifetime is over, or that was kicked, is not let in.
const WALLED: &str = "its sessions are over until 'vpnd device renew'";

/// An answer of the auth process.
pub(in crate::worker) enum FromAuth {
    /// A step of a handshake.
    Step(Step, Box<Reply>),
    /// Whether a peer without a session gets one.
    Admission { peer: PublicKey, admission: Result<Admission, String> },
}

impl WireGuard {
    pub(super) fn take_answer(&mut self, answer: FromAuth) {
        match answer {
            FromAuth::Step(step, reply) => {
                if let Some((request, reply)) = self.turns.step_done(now(), step, *reply) {
                    self.take_step(request, reply);
                }
            }
            FromAuth::Admission { peer, admission } => {
                self.turns.admission_done();
                self.take_admission(peer, admission);
            }
        }
    }

    /// Asks the auth process what has its turn.
    pub(super) fn take_turns(&mut self) {
        while let Some(step) = self.turns.next_step(now(), self.peers.finishing(), self.waiting.len()) {
            let (auth, answer) = (self.auth.clone(), self.answer.clone());
            tokio::spawn(async move {
                let reply = auth.request(Handshake::from(&step.request)).await.ok();
                let reply = reply.and_then(HandshakeReply::parse).unwrap_or(Reply::Refused(Refused::Busy));
                let _ = answer.send(FromAuth::Step(step, Box::new(reply)));
            });
        }
        while let Some((peer, from)) = self.turns.next_admission() {
            let (auth, answer) = (self.auth.clone(), self.answer.clone());
            let outer = self.datagrams.client(from.remote).ip().to_canonical();
            tokio::spawn(async move {
                let request = AdmitDevice { peer: peer.0.into(), outer };
                let admission = auth.request(request).await.map_err(|error| error.to_string());
                let _ = answer.send(FromAuth::Admission { peer, admission });
            });
        }
    }

    fn take_step(&mut self, request: RequestId, reply: Reply) {
        let key = match &reply {
            Reply::Responded(responded) => responded.peer,
            Reply::Finished(_) => match self.peers.finishes_with(request) {
                Some(key) => key,
                None => return,
            },
            Reply::Initiated(..) | Reply::Refused(_) => return self.peers.on_reply(now(), request, reply),
        };
        // A session that has begun may not be in force yet: then the peer's last reply waits for
        // it.
        let is_in_force = self.has_session(&key) && !self.waiting.contains_key(&key);
        let is_answered = is_in_force && !(self.admits && self.is_renewed(&key));
        let outer = self.peers.source(request);
        let Some(outer) = outer.filter(|_| !is_answered) else {
            return self.peers.on_reply(now(), request, reply);
        };
        if !self.admits || self.refusals.is_recent(now(), &key) {
            return self.peers.give_up(request);
        }
        // It may take a directory long to say whether the device is let in.
        self.peers.set_aside(request);
        match self.waiting.insert(key, (request, reply)) {
            Some((before, _)) => self.peers.give_up(before),
            None => self.turns.add_admission(key, outer),
        }
    }

    fn take_admission(&mut self, peer: PublicKey, admission: Result<Admission, String>) {
        match admission {
            Ok(Admission::Granted(grant)) => {
                self.decisions.push_back(Decision::Admit { peer, grant });
            }
            Ok(Admission::Walled) => self.turn_away(peer, WALLED, true),
            Ok(Admission::Refused(refused)) => self.refused(peer, &control::Refused::from(refused).text),
            Err(why) => self.refused(peer, &why),
        }
    }

    /// The peer's session is in force: what it waits for is done.
    pub(in crate::worker) fn answer(&mut self, peer: PublicKey) {
        self.refusals.forget(&peer);
        if let Some((request, reply)) = self.waiting.remove(&peer) {
            self.peers.on_reply(now(), request, reply);
        }
    }

    /// The peer gets no session.
    pub(in crate::worker) fn refused(&mut self, peer: PublicKey, why: &str) {
        self.turn_away(peer, why, false);
    }

    fn turn_away(&mut self, peer: PublicKey, why: &str, is_walled: bool) {
        if self.is_renewed(&peer) {
            if REFUSALS.admits() {
                tracing::info!(key = peer.short(), why, "a renewed WireGuard device keeps its session");
            }
            return self.answer(peer);
        }
        self.counts.add(if is_walled { "walled" } else { "refused" });
        if REFUSALS.admits() {
            tracing::info!(key = peer.short(), why, "a WireGuard device is not let in");
        }
        self.refusals.note(now(), peer, why, is_walled);
        if let Some((request, _)) = self.waiting.remove(&peer) {
            self.peers.give_up(request);
        }
    }
}
