//! The traffic of sessions that are accounted for, to their last packet.

use vpnd_proto::control::{Code, Message};
use vpnd_proto::gateway::Selector;
use vpnd_proto::plane::Activity;
use vpnd_proto::session::{ConnectionId, SessionId};

use super::{Core, CoreRequest, CoreTask, Stopped};
use vpnd_sys::clock::now;

impl Core {
    /// The traffic of those of these sessions that there are.
    pub(crate) async fn traffic(
        &self,
        sessions: Vec<SessionId>,
    ) -> Result<Vec<(SessionId, Activity)>, Stopped> {
        self.ask(|reply| CoreRequest::Traffic { sessions, reply }).await
    }
}

impl CoreTask {
    /// A message of a client, which may end its session. One whose traffic is accounted for ends with the others of its batch, so that
    /// shards are asked for what they have counted once for all of these, and for no other message.
    pub(super) fn handle_message(&mut self, connection: ConnectionId, message: &Message) {
        let session = self.gateway.session_of(connection);
        match (message, session.filter(|session| self.registry.is_accounted(*session))) {
            (Message::Bye, Some(session)) => self.leaving.push(session),
            _ => self.gateway.handle_message(connection, message),
        }
    }

    /// Ends the sessions whose clients have left since the last call.
    pub(super) async fn end_leaving(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        self.collect_activity().await;
        for session in std::mem::take(&mut self.leaving) {
            self.gateway.end(&Selector::Session(session), Code::Bye, "");
        }
    }

    /// Ends sessions; returns how many there were.
    pub(super) async fn end(&mut self, which: &Selector, code: Code, text: &str) -> usize {
        self.collect_last_traffic().await;
        let count = self.gateway.end(which, code, text);
        self.carry_out().await;
        count
    }

    /// Does what is due, which may end sessions.
    pub(super) async fn handle_timeout(&mut self) {
        let now = now();
        if self.gateway.due_to_end(now).any(|session| self.registry.is_accounted(session)) {
            self.collect_activity().await;
        }
        self.gateway.handle_timeout(now);
    }

    /// Sessions may end now: their traffic since the last report counts.
    pub(super) async fn collect_last_traffic(&mut self) {
        if self.registry.has_accounting() {
            self.collect_activity().await;
        }
    }

    pub(super) fn traffic(&self, sessions: Vec<SessionId>) -> Vec<(SessionId, Activity)> {
        let activity = |id| Some((id, self.gateway.session(id)?.activity));
        sessions.into_iter().filter_map(activity).collect()
    }
}
