//! Questions to the auth process about WireGuard, and its answers.
//!
//! INVARIANT: steps of handshakes are asked for when they have their turn, so that those under way
//! are no more than the auth process has room for.

use std::net::IpAddr;

use tokio::sync::mpsc;
use vpnd_proto::time::Time;
use vpnd_wireguard::PublicKey;
use vpnd_wireguard::handshakes::{Refused, Reply};
use vpnd_wireguard::peers::RequestId;

use crate::worker::auth_client::AuthClient;
use vpnd_ipc::gateway::wireguard::{Admission, AdmitDevice, Handshake, HandshakeReply};
use vpnd_sys::clock::now;
use vpnd_wireguard::turns::{Step, Turns};

/// An answer of the auth process.
pub(in crate::worker) enum FromAuth {
    /// A step of a handshake.
    Step(Step, Box<Reply>),
    /// Whether a peer without a session gets one.
    Admission { peer: PublicKey, admission: Result<Admission, String> },
}

/// The way to the auth process and back.
pub(super) struct Questions {
    auth: AuthClient,
    turns: Turns,
    answer: mpsc::UnboundedSender<FromAuth>,
    answers: mpsc::UnboundedReceiver<FromAuth>,
}

impl Questions {
    pub(super) fn new(auth: &AuthClient) -> Self {
        let (answer, answers) = mpsc::unbounded_channel();
        Self { auth: auth.clone(), turns: Turns::default(), answer, answers }
    }

    pub(super) fn auth(&self) -> AuthClient {
        self.auth.clone()
    }

    /// This step waits for its turn; `has_session` is whether its peer has one, `source` where its
    /// message came from. Returns the request that gets no turn for want of a place.
    pub(super) fn add_step(
        &mut self,
        step: Step,
        has_session: bool,
        source: Option<IpAddr>,
    ) -> Option<RequestId> {
        self.turns.add_step(now(), step, has_session, source)
    }

    /// Asks for the steps that have their turn. `answers` of devices wait for auth; `admitted`
    /// devices wait for their sessions.
    pub(super) fn ask_steps(&mut self, answers: usize, admitted: usize) {
        while let Some(step) = self.turns.next_step(now(), answers, admitted) {
            let (auth, answer) = (self.auth.clone(), self.answer.clone());
            tokio::spawn(async move {
                let reply = auth.request(Handshake::from(&step.request)).await.ok();
                let reply = reply.and_then(HandshakeReply::parse).unwrap_or(Reply::Refused(Refused::Busy));
                let _ = answer.send(FromAuth::Step(step, Box::new(reply)));
            });
        }
    }

    /// Asks whether a peer gets a session; `outer` is the address of its device.
    pub(super) fn ask_admission(&self, peer: PublicKey, outer: IpAddr) {
        let (auth, answer) = (self.auth.clone(), self.answer.clone());
        tokio::spawn(async move {
            let request = AdmitDevice { peer: peer.0.into(), outer };
            let admission = auth.request(request).await.map_err(|error| error.to_string());
            let _ = answer.send(FromAuth::Admission { peer, admission });
        });
    }

    /// A step was replied to. Returns the reply, unless the step waits for another turn.
    pub(super) fn step_done(&mut self, step: Step, reply: Reply) -> Option<(RequestId, Reply)> {
        self.turns.step_done(now(), step, reply)
    }

    /// The next answer. Safe to cancel.
    pub(super) async fn receive(&mut self) -> Option<FromAuth> {
        self.answers.recv().await
    }

    /// The next answer, if one waits.
    pub(super) fn try_receive(&mut self) -> Option<FromAuth> {
        self.answers.try_recv().ok()
    }

    /// When a step may be asked for that was not before.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.turns.poll_timeout()
    }
}
