//! Messages to clients, and when a session is announced to its client.
//!
//! INVARIANT: a session that has begun is announced only if the store has it and the kernel has
//! nothing left of the last holder of its addresses; if one of these can't be, the session ends and
//! its client is refused. Messages to one connection keep their order. The control plane does not
//! wait for the kernel: the messages do.

use std::collections::{HashMap, HashSet};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use vpnd_proto::control::{Code, Explanation, Message, ROUTES_IN_MESSAGE, Refused};
use vpnd_proto::gateway::Gateway;
use vpnd_proto::session::{ConnectionId, SessionId};
use vpnd_proto::time::Time;

use super::Outgoing;
use crate::worker::registry::{REVOKED, Registry};
use crate::worker::releases::RELEASE_TIMEOUT;
use vpnd_pki::revocation_list::CertificateNumber;
use vpnd_sys::clock::now;

/// Messages that wait for clients.
#[derive(Default)]
pub(super) struct Outboxes {
    connections: HashMap<ConnectionId, mpsc::Sender<Outgoing>>,
    held: HashMap<ConnectionId, Held>,
    /// Sessions of logins whose clients have not been told.
    begun: HashSet<SessionId>,
}

impl Outboxes {
    pub(super) fn open(&mut self, connection: ConnectionId, outbox: mpsc::Sender<Outgoing>) {
        self.connections.insert(connection, outbox);
    }

    /// Whether the client of this connection may be told something.
    pub(super) fn is_open(&self, connection: ConnectionId) -> bool {
        self.connections.contains_key(&connection)
    }

    /// The client of this connection can't be told anything more.
    pub(super) fn lost(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
        self.held.remove(&connection);
    }

    /// A login's session, which is announced to the client once it is in force.
    pub(super) fn begin(&mut self, session: SessionId) {
        self.begun.insert(session);
    }

    pub(super) fn over(&mut self, session: SessionId) {
        self.begun.remove(&session);
    }

    /// Refuses a new connection and closes it.
    pub(super) fn refuse(&mut self, connection: ConnectionId, code: Code, text: &str) {
        self.refuse_until(connection, code, text, None);
    }

    /// Refuses a connection that has shown a certificate which was revoked meanwhile. Returns
    /// whether it has.
    pub(super) fn refuse_revoked(
        &mut self,
        connection: ConnectionId,
        certificate: Option<&CertificateNumber>,
        registry: &Registry,
    ) -> bool {
        let is_revoked = certificate.is_some_and(|certificate| registry.is_revoked(certificate));
        if is_revoked {
            self.refuse(connection, Code::Certificate, REVOKED);
        }
        is_revoked
    }

    /// Refuses a claim that may be good a moment later.
    pub(super) fn refuse_for_now(&mut self, connection: ConnectionId) {
        let text = "the gateway cannot look up your session now; try again later";
        self.refuse_until(connection, Code::Internal, text, Some(1_000));
    }

    fn refuse_until(
        &mut self,
        connection: ConnectionId,
        code: Code,
        text: &str,
        retry_after_ms: Option<u32>,
    ) {
        let Some(outbox) = self.connections.remove(&connection) else { return };
        let refused = Refused { code, text: Explanation::cut(text), retry_after_ms };
        for message in [Outgoing::Message(Box::new(Message::Refused(refused))), Outgoing::Close(code)] {
            // A new connection's outbox has room for both.
            let _ = outbox.try_send(message);
        }
    }

    /// When a session has waited for its addresses for as long as it may.
    pub(super) fn held_until(&self) -> Option<Time> {
        self.held.values().map(|held| held.until).min()
    }

    /// Delivers a message to its connection. `failed` are the sessions that could not be made
    /// durable. Returns the session that it should announce, if that one can't begin.
    pub(super) fn deliver(
        &mut self,
        connection: ConnectionId,
        message: Outgoing,
        failed: &HashSet<SessionId>,
        gateway: &Gateway,
        registry: &Registry,
    ) -> Option<SessionId> {
        if let Some(held) = self.held.get_mut(&connection) {
            held.messages.push(message);
            return None;
        }
        let Some(session) = announced(&message) else {
            self.send(connection, message, gateway);
            return None;
        };
        let has_begun = self.begun.contains(&session);
        if failed.contains(&session) {
            self.send(connection, refusal("the gateway cannot store your session; try again later"), gateway);
            // One that goes on has tokens in the store by which its client attaches.
            return has_begun.then_some(session);
        }
        if has_begun && !registry.is_released(session) {
            let until = now() + RELEASE_TIMEOUT;
            self.held.insert(connection, Held { session, until, messages: vec![message] });
        } else {
            self.over(session);
            self.send(connection, message, gateway);
        }
        None
    }

    /// Delivers what waits for addresses that are released by now, and refuses who has waited too
    /// long. Returns the sessions of these, which can't begin.
    pub(super) fn deliver_held(&mut self, gateway: &Gateway, registry: &Registry) -> Vec<SessionId> {
        let now = now();
        let is_due = |held: &Held| held.until <= now || registry.is_released(held.session);
        let due: Vec<_> = self.held.extract_if(|_, held| is_due(held)).collect();
        let mut late = Vec::new();
        for (connection, Held { session, messages, .. }) in due {
            if !registry.is_released(session) {
                tracing::warn!(%session, "the kernel does not forget the connections of an address; its next user is refused");
                self.send(connection, refusal("your address is not free yet; try again later"), gateway);
                late.push(session);
                continue;
            }
            self.over(session);
            for message in messages {
                self.send(connection, message, gateway);
            }
        }
        late
    }

    fn send(&mut self, connection: ConnectionId, message: Outgoing, gateway: &Gateway) {
        if is_update(&message)
            && let Some(session) = gateway.session_of(connection)
        {
            log_routes_left_out(gateway, session);
        }
        if let Outgoing::Close(_) = message {
            // Its task may have ended by itself, or ends without an outbox.
            if let Some(outbox) = self.connections.remove(&connection) {
                let _ = outbox.try_send(message);
            }
            return;
        }
        let full = self.connections.get(&connection).map(|outbox| outbox.try_send(message));
        if let Some(Err(TrySendError::Full(_))) = full {
            tracing::info!(connection = connection.0, "a client does not read its messages");
            // Without its outbox the task closes the connection, and the client attaches again.
            self.connections.remove(&connection);
        }
    }
}

/// Messages that wait for a session's addresses, the announcement of it first.
struct Held {
    session: SessionId,
    until: Time,
    messages: Vec<Outgoing>,
}

/// Logs that a client gets fewer routes than its profile has, because it can't take more.
pub(super) fn log_routes_left_out(gateway: &Gateway, session: SessionId) {
    let left_out = gateway.routes_left_out(session);
    if left_out > 0
        && let Some(status) = gateway.session(session)
    {
        tracing::warn!(
            user = %status.user, left_out, given = ROUTES_IN_MESSAGE,
            "an old client can't take all routes of its profile: the rest of them does not lead into its tunnel; have it \
             updated, or put neighbouring networks together"
        );
    }
}

fn is_update(message: &Outgoing) -> bool {
    matches!(message, Outgoing::Message(message) if matches!(**message, Message::Update(_)))
}

/// The session that the message announces.
fn announced(message: &Outgoing) -> Option<SessionId> {
    match message {
        Outgoing::Message(message) => match &**message {
            Message::Established(established) => Some(established.session),
            _ => None,
        },
        Outgoing::Close(_) => None,
    }
}

/// The refusal of a client whose session could not begin.
fn refusal(text: &str) -> Outgoing {
    let text = Explanation::cut(text);
    Outgoing::Message(Box::new(Message::Refused(Refused {
        code: Code::Internal,
        text,
        retry_after_ms: Some(5_000),
    })))
}
