//! The effects of the core, carried out in its order.
//!
//! INVARIANT: a client is sent what its session needs to be in force only after it is: shards have
//! their commands and the store has the session (and what [`super::announce`] says of the kernel).

use std::collections::BTreeSet;

use vpnd_proto::control::{Code, Message};
use vpnd_proto::gateway::{Effect, Selector};
use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::ConnectionId;

use super::endings::Leaving;
use super::{CoreTask, Outgoing, ToEnd};
use vpnd_sys::clock::now;

impl CoreTask {
    /// Carries out the core's effects, and those of sessions that end because they could not begin;
    /// then the replies are sent.
    pub(super) async fn carry_out(&mut self) {
        self.end_leaving().await;
        loop {
            self.carry_out_once().await;
            let unready = self.endings.take_unready();
            if unready.is_empty() {
                break;
            }
            for session in unready {
                self.gateway.end(&Selector::Session(session), Code::Internal, "");
            }
        }
        self.endings.reply();
    }

    /// Carries out effects: shards first, then the store, and when both are done the messages to
    /// clients, in the core's order.
    async fn carry_out_once(&mut self) {
        let mut commanded = false;
        let (mut endings, mut messages) = (Vec::new(), Vec::new());
        let mut over = BTreeSet::new();
        while let Some(effect) = self.gateway.poll_effect() {
            match effect {
                Effect::Command { shard, command } => {
                    self.shards.command(shard, command).await;
                    commanded = true;
                }
                Effect::HeardAt { session, lane, outer: remote } => {
                    let local = self.wireguard.as_ref().and_then(|wireguard| wireguard.own_address(session));
                    self.registry.heard_at(session, lane, Endpoint { remote, local });
                }
                Effect::Persist(record) => self.registry.persist(&record),
                Effect::Forget(session) => self.registry.forget(session),
                Effect::Send { connection, message } => {
                    messages.push((connection, Outgoing::Message(Box::new(message))));
                }
                Effect::CloseConnection { connection, code } => {
                    messages.push((connection, Outgoing::Close(code)));
                }
                Effect::Ended(session) => {
                    self.endings.count(&session);
                    self.outboxes.over(session.session);
                    if let Some(wireguard) = &mut self.wireguard {
                        wireguard.session_over(session.session);
                    }
                    over.extend(session.addresses.iter());
                    endings.push(session.into());
                }
            }
        }
        // Without either nothing waits for the commands to take effect. A packet of a session that
        // is over would make the kernel know its connection again.
        if commanded && !(messages.is_empty() && over.is_empty()) {
            self.shards.barrier().await;
        }
        // Before the store, from which on the addresses may be anybody's.
        self.registry.release(over);
        let failed = self.registry.commit(endings).await;
        self.endings.add_unstored(&failed);
        if let Some(wireguard) = &self.wireguard {
            self.endings.add_unready(failed.iter().copied().filter(|session| wireguard.has(*session)));
        }
        for (connection, message) in messages {
            self.deliver(connection, message, &failed);
        }
    }

    /// Ends the sessions that were to end since the last call. Shards are asked for what they have
    /// counted once for all of them.
    async fn end_leaving(&mut self) {
        let leaving = self.endings.take_leaving();
        if leaving.iter().any(|leaving| self.registry.is_accounted(leaving.session)) {
            self.collect_activity().await;
        }
        for Leaving { session, code, text } in leaving {
            self.gateway.end(&Selector::Session(session), code, &text);
        }
    }

    /// Does what is due, which may end sessions.
    pub(super) async fn handle_timeout(&mut self) {
        let now = now();
        if self.gateway.due_to_end(now).any(|session| self.registry.is_accounted(session)) {
            self.collect_activity().await;
        }
        self.gateway.handle_timeout(now);
    }

    /// A message of a client, which may end its session. One whose traffic is accounted for ends
    /// with the others of its batch.
    pub(super) fn handle_message(&mut self, connection: ConnectionId, message: &Message) {
        let session = self.gateway.session_of(connection);
        match (message, session.filter(|session| self.registry.is_accounted(*session))) {
            (Message::Bye, Some(session)) => {
                self.endings.end(ToEnd::session(session, Code::Bye, ""), &self.gateway);
            }
            _ => self.gateway.handle_message(connection, message),
        }
    }
}
