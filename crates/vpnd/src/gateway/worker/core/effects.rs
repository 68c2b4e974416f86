//! The effects of the core, carried out in its order.
//!
//! INVARIANT: a client is sent what its session needs to be in force only after it is: shards have their commands, the store has the session, and
//! the kernel has forgotten the connections of whoever had the address before.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use tokio::sync::mpsc::error::TrySendError;
use vpnd_proto::control::{Code, Explanation, Message, ROUTES_IN_MESSAGE, Refused};
use vpnd_proto::gateway::{Addresses, Effect};
use vpnd_proto::session::{ConnectionId, SessionId};

use super::{CoreTask, Outgoing};

impl CoreTask {
    /// Carries out the core's effects: shards first, then the store, and when both are done the messages to clients, in the
    /// core's order.
    pub(super) async fn carry_out(&mut self) {
        let mut commanded = false;
        let (mut endings, mut messages) = (Vec::new(), Vec::new());
        let (mut begun, mut over) = (Vec::new(), BTreeSet::new());
        while let Some(effect) = self.gateway.poll_effect() {
            match effect {
                Effect::Command { shard, command } => {
                    self.shards.command(shard, command).await;
                    commanded = true;
                }
                Effect::Persist(record) => {
                    begun.extend(all(record.addresses));
                    self.registry.persist(&record);
                }
                Effect::Forget(session) => self.registry.forget(session),
                Effect::Send { connection, message } => {
                    messages.push((connection, Outgoing::Message(Box::new(message))));
                }
                Effect::CloseConnection { connection, code } => {
                    messages.push((connection, Outgoing::Close(code)));
                }
                Effect::Ended(session) => {
                    self.ended.add(&session);
                    over.extend(all(session.addresses));
                    endings.push(session.into());
                }
            }
        }
        // Without either nobody waits for the commands to take effect. A packet of a session that is over would make the kernel know its
        // connection again.
        if commanded && !(messages.is_empty() && over.is_empty()) {
            self.shards.barrier().await;
        }
        // Before the store, from which on the addresses may be anybody's.
        self.registry.release(over);
        let failed = self.registry.commit(endings).await;
        if !messages.is_empty() {
            self.registry.released(&begun).await;
        }
        for (connection, message) in messages {
            self.deliver(connection, message, &failed);
        }
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

    /// Delivers a message to its connection, unless the session that it announces could not be made durable.
    fn deliver(&mut self, connection: ConnectionId, message: Outgoing, failed: &HashSet<SessionId>) {
        let message = match message {
            Outgoing::Message(message) => match *message {
                Message::Established(established) if failed.contains(&established.session) => {
                    Outgoing::Message(Box::new(not_stored()))
                }
                message => {
                    if let (Message::Update(_), Some(session)) =
                        (&message, self.gateway.session_of(connection))
                    {
                        self.log_routes_left_out(session);
                    }
                    Outgoing::Message(Box::new(message))
                }
            },
            Outgoing::Close(code) => {
                // Its task may have ended by itself, or ends without an outbox.
                if let Some(outbox) = self.connections.remove(&connection) {
                    let _ = outbox.try_send(Outgoing::Close(code));
                }
                return;
            }
        };
        let full = self.connections.get(&connection).map(|outbox| outbox.try_send(message));
        if let Some(Err(TrySendError::Full(_))) = full {
            tracing::info!(connection = connection.0, "a client does not take what it is sent");
            // Without its outbox the task closes the connection, and the client attaches anew.
            self.connections.remove(&connection);
        }
    }
}

fn all(addresses: Addresses) -> impl Iterator<Item = IpAddr> {
    addresses.ipv4.map(IpAddr::V4).into_iter().chain(addresses.ipv6.map(IpAddr::V6))
}

/// The refusal of a client whose session could not be made durable.
fn not_stored() -> Message {
    let text = Explanation::cut("the gateway cannot store your session; try again later");
    Message::Refused(Refused { code: Code::Internal, text, retry_after_ms: Some(5_000) })
}
