//! Messages to clients, and when a client is told of its session.
//!
//! INVARIANT: a session that has begun is announced only if the store has it and the kernel has
//! nothing left of whoever had its addresses before; if one of these can't be, the session ends and
//! its client is refused. Messages to one connection keep their order. The control plane does not
//! wait for the kernel: the messages do.

use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use vpnd_proto::control::{Code, Explanation, Message, ROUTES_IN_MESSAGE, Refused};
use vpnd_proto::session::{ConnectionId, SessionId};
use vpnd_proto::time::Time;

use super::{CoreTask, Outgoing};
use vpnd_sys::clock::now;

/// Time for the kernel to forget connections. A client waits longer for the answer to its login.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages that wait for a session's addresses, the announcement of it first.
pub(super) struct Held {
    session: SessionId,
    until: Time,
    messages: Vec<Outgoing>,
}

impl CoreTask {
    /// Delivers a message to its connection. `failed` are the sessions that could not be made
    /// durable.
    pub(super) fn deliver(
        &mut self,
        connection: ConnectionId,
        message: Outgoing,
        failed: &HashSet<SessionId>,
    ) {
        if let Some(held) = self.held.get_mut(&connection) {
            held.messages.push(message);
            return;
        }
        let Some(session) = announced(&message) else { return self.send(connection, message) };
        let has_begun = self.begun.contains(&session);
        if failed.contains(&session) {
            self.send(connection, refusal("the gateway cannot store your session; try again later"));
            // One that goes on has tokens in the store by which its client attaches.
            if has_begun {
                self.unready.push(session);
            }
        } else if has_begun && !self.registry.is_released(session) {
            let until = now() + RELEASE_TIMEOUT;
            self.held.insert(connection, Held { session, until, messages: vec![message] });
        } else {
            self.begun.remove(&session);
            self.send(connection, message);
        }
    }

    /// Delivers what waits for addresses that are released by now, and refuses who has waited too
    /// long.
    pub(super) fn deliver_held(&mut self) {
        let now = now();
        let registry = &self.registry;
        let due: Vec<_> =
            self.held.extract_if(|_, held| held.until <= now || registry.is_released(held.session)).collect();
        for (connection, Held { session, messages, .. }) in due {
            if !self.registry.is_released(session) {
                tracing::warn!(%session, "the kernel does not forget the connections of an address; its next user is refused");
                self.send(connection, refusal("your address is not free yet; try again later"));
                self.unready.push(session);
                continue;
            }
            self.begun.remove(&session);
            for message in messages {
                self.send(connection, message);
            }
        }
    }

    /// When [`CoreTask::deliver_held`] has something to do at the latest.
    pub(super) fn held_until(&self) -> Option<Time> {
        self.held.values().map(|held| held.until).min()
    }

    /// Logs that a client gets fewer routes than its profile has, because it can't take more.
    pub(super) fn log_routes_left_out(&self, session: SessionId) {
        let left_out = self.gateway.routes_left_out(session);
        if left_out > 0
            && let Some(status) = self.gateway.session(session)
        {
            tracing::warn!(
                user = %status.user, left_out, given = ROUTES_IN_MESSAGE,
                "an old client can't take all routes of its profile: the rest of them does not lead into its tunnel; have it \
                 updated, or put neighbouring networks together"
            );
        }
    }

    fn send(&mut self, connection: ConnectionId, message: Outgoing) {
        if is_update(&message)
            && let Some(session) = self.gateway.session_of(connection)
        {
            self.log_routes_left_out(session);
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
            // Without its outbox the task closes the connection, and the client attaches anew.
            self.connections.remove(&connection);
        }
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
