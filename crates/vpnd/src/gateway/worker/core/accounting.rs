//! The traffic of sessions that are accounted for, to their last packet.

use vpnd_proto::control::{Code, Message};
use vpnd_proto::gateway::Selector;
use vpnd_proto::plane::Activity;
use vpnd_proto::session::{ConnectionId, SessionId};

use super::{Core, CoreRequest, CoreTask, Stopped};

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
    /// A message of a client, which may end its session.
    pub(super) async fn handle_message(&mut self, connection: ConnectionId, message: &Message) {
        let session = self.gateway.session_of(connection);
        if session.is_some_and(|session| self.registry.is_accounted(session)) {
            self.collect_activity().await;
        }
        self.gateway.handle_message(connection, message);
    }

    /// Ends sessions; returns how many there were.
    pub(super) async fn end(&mut self, which: &Selector, code: Code, text: &str) -> usize {
        if self.registry.has_accounting() {
            self.collect_activity().await;
        }
        let count = self.gateway.end(which, code, text);
        self.carry_out().await;
        count
    }

    pub(super) fn traffic(&self, sessions: Vec<SessionId>) -> Vec<(SessionId, Activity)> {
        let activity = |id| Some((id, self.gateway.session(id)?.activity));
        sessions.into_iter().filter_map(activity).collect()
    }
}
